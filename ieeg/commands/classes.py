"""``mvpformer finetune --classes``: a detector of classes of one's own, such as awake and asleep; and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mvpa_ts.files import write_csv
from mvpa_ts.ieeg.commands import main as common
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser
from mvpa_ts.ieeg.constants import CLASSES, LINE_LENGTH, MARKED_BAD
from mvpa_ts.ieeg.detection.saved import PROBABILITIES, STATED, classes_of, read_run
from mvpa_ts.ieeg.events import Integers, class_labels, segment_labels
from mvpa_ts.ieeg.recordings.events_table import read_spans
from mvpa_ts.ieeg.recordings.left_out import Row, not_read, of_recording, of_segments, report_left_out
from mvpa_ts.ieeg.recordings.reading import read_classes, read_recording

DESCRIPTION = """Train a detector of classes of your own, a regression on band power and line length.

Annotations or FILE_events.tsv state spans with a duration, whose whole text is the name of a class. A segment of 5 s is
of the class that covers half of it or more; if none does, or two share it, it is left out. DIR/classes.json is the
detector. scores.csv and confusion.csv, as of `mvpformer evaluate`, are of the recordings that validate.

Example: mvpformer finetune --classes awake sleep --recordings a.edf b.edf --validation-recordings c.edf --output DIR
"""

NO_CLASS = "no class covers half of it, or two share it"
# Tables of `report`.
SCORES = ("scores", "confusion")


def train_classes(arguments: list[str]) -> None:
    """Run the command."""
    parser = CommandParser("finetune", DESCRIPTION)
    parser.add_argument("--classes", nargs="+", required=True, help="two names or more")
    parser.add_argument("--recordings", nargs="+", required=True, help="files and folders that train")
    parser.add_argument("--validation-recordings", nargs="+", default=[], help="others, which show how good it is")
    parser.add_argument("--output", required=True, help="folder for the detector")
    parser.add_argument("--preprocessing", type=common.preprocessing_changes, default="{}", help="as for detect, kept")
    common.add_reading_options(parser)
    options = parser.parse_args(arguments)
    common.check_output_folder(options.output)
    from mvpa_ts.ieeg.detection.baselines import BaselineDetector, ClassRegression
    from mvpa_ts.ieeg.detection.features import blocks, segment_features
    from mvpa_ts.ieeg.model import seen_subjects
    from mvpa_ts.ieeg.training.division import check_copies, check_lists

    names, output = [" ".join(name.split()) for name in options.classes], Path(options.output)
    if len({name.lower() for name in names} - {"", "onset", STATED, "n/a"}) < max(len(names), 2):
        needs = f"--classes needs two names or more, each once, and neither onset nor {STATED}"
        raise CommandError(f"{needs}, got {', '.join(names)}; n/a is no name")
    reader = BaselineDetector(LINE_LENGTH, options.preprocessing)  # segments as detection makes them
    listed = (common.recordings_in(paths).values() for paths in (options.recordings, options.validation_recordings))
    train, held_out = ([file for files in of_each for file in files] for of_each in listed)
    check_lists(train, held_out)
    files, count = [*train, *held_out], len(train)
    recordings = [read_recording(file, **common.reading_options(options)) for file in files]
    check_copies(recordings[:count], recordings[count:])
    segments = [reader.segments(recording) for recording in recordings]
    stated = [read_classes(file, item, names, options.truncated) for file, item in zip(files, recordings, strict=True)]
    classes = [class_labels(item.starts, spans) for item, spans in zip(segments, stated, strict=True)]
    # As in detection, which gives such segments no probability.
    bad = [segment_labels(item.starts, item.recording.bad_spans) for item in segments]
    labels = [np.where(marked, -1, of) for of, marked in zip(classes, bad, strict=True)]
    trained, validated = np.concatenate(labels[:count]), np.concatenate([*labels[count:], [-1]])
    for number, name in enumerate(names):
        if number not in trained:
            if any(spans[name] for spans in stated[:count]):
                raise CommandError(f"no 5 s of --recordings are of {name!r}: {NO_CLASS}, or they are marked bad")
            where = "--validation-recordings alone hold" if number in validated else "no recording holds"
            raise CommandError(f"{where} a span whose text is {name!r}, which --recordings need to learn this class")
    features = np.concatenate([segment_features(*block) for item in segments[:count] for block in blocks(item)])
    regression = replace(ClassRegression.fit(names, features, trained), preprocessing=options.preprocessing)
    regression.save(output / f"{CLASSES}.json")
    subjects = {seen_subjects.subject_hash(item.subject_name) for item in recordings[:count]}
    seen_subjects.save_training_subjects(output, subjects, map(seen_subjects.recording_hash, recordings[:count]))
    seen_subjects.save_training_channels(output, recordings[:count])
    for name in SCORES:  # of an earlier run
        (output / f"{name}.csv").unlink(missing_ok=True)
    if held_out:
        probabilities = [block for item in segments[count:] for block in regression.probabilities(item)]
        report(names, validated[:-1], np.concatenate(probabilities), output)
    print(f"next: mvpformer detect RECORDING --model {common.quote(str(output))}/{CLASSES}.json -o results")
    paths = [Path(path) for path in (*options.recordings, *options.validation_recordings)]
    others, links = not_read(paths)
    rows = [row for item in recordings for row in of_recording(item.name, item.dropped, item.left_out, item.notes)]
    rows += [*others, *links]
    for item, label, marked in zip(recordings, classes, bad, strict=True):
        rows += [*of_segments(item.name, (label < 0) & ~marked, NO_CLASS), *of_segments(item.name, marked, MARKED_BAD)]
    report_left_out(output, rows)
    common.refuse_unread(paths)


def score_classes(folders: Sequence[Path], output: Path, references: Mapping[Path, Path]) -> list[Row]:
    """Score detections of classes against those that their recordings, or tables of them, state; what is left out."""
    import pandas as pd

    from mvpa_ts.ieeg.scoring.comparison import warn_of_copies

    reading: dict[str, Any] = {"sep": "\t", "na_values": "n/a", "keep_default_na": False, "dtype": {STATED: str}}
    frames = {item: pd.read_csv(item / PROBABILITIES, **reading) for item in folders}
    names, *others = {classes_of(read_run(folder)) for folder in folders}
    if others:
        kinds = sorted(", ".join(kind) or "seizures" for kind in (names, *others))
        raise CommandError(f"detections are of {' and of '.join(kinds)}: evaluate them one by one")
    if wrong := [item for item, frame in frames.items() if [*frame] != ["onset", *names, STATED]]:
        raise CommandError(f"{wrong[0] / PROBABILITIES} must have the columns onset, {', '.join(names)}, {STATED}")
    for item, reference in references.items():
        recording = read_run(item)["recording"]
        spans = read_spans(reference, names, recording["name"], recording["duration"], recording["sfreq"])
        labels = class_labels(frames[item]["onset"].to_numpy(float), spans)
        frames[item][STATED] = [[*names, np.nan][label] for label in labels]
    rows = [row for item, frame in frames.items() for row in of_segments(item.name, frame[STATED].isna(), NO_CLASS)]
    warn_of_copies([(item.name, frame[names[0]].to_numpy(float)) for item, frame in frames.items()])
    table = pd.concat([*frames.values()])
    labels = np.array([names.index(name) if name in names else -1 for name in table[STATED]])
    (output / "cohort.md").unlink(missing_ok=True)  # of seizures, by an earlier run
    report(names, labels, table[[*names]].to_numpy(float), output)
    print(f"see {output}")
    return rows


def report(names: Sequence[str], labels: Integers, probabilities: npt.ArrayLike, output: Path) -> None:
    """Print scores and confusions, and write them into a folder."""
    from mvpa_ts.ieeg.scoring.cohort import markdown_table
    from mvpa_ts.ieeg.scoring.comparison import MIN_SEGMENTS, compare_classes

    for name, table in compare_classes(names, labels, np.asarray(probabilities)).items():
        write_csv(output / f"{name}.csv", table)
        print(markdown_table(table))
    if (labels >= 0).sum() < MIN_SEGMENTS:
        print(f"This is too little to trust: fewer than {MIN_SEGMENTS} segments.")
