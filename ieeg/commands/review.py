"""``mvpformer review``: correct the events of a detection in mne-qt-browser."""

from __future__ import annotations

from pathlib import Path

from mvpa_ts.ieeg.commands import main as common
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser
from mvpa_ts.ieeg.constants import counted
from mvpa_ts.ieeg.recordings.events_table import read_events, read_seizures
from mvpa_ts.ieeg.recordings.left_out import of_recording, report_left_out
from mvpa_ts.ieeg.recordings.reading import read_recording
from mvpa_ts.ieeg.recordings.seizure_words import is_background

DESCRIPTION = """Correct the events of a detection: keep, move, delete, add.

Opens recording and events in mne-qt-browser (pip install ".[review]"). When you close the window, the corrected events
go to reviewed_events.tsv, beside events.tsv. Then train the detector on them again, which takes seconds:
  mvpformer finetune --from-review results/night --recordings night.edf --model runs/patient/model --output runs/new
Without a window, edit a copy of events.tsv as reviewed_events.tsv by hand, and pass --no-window.

Example: mvpformer review night.edf results/night --until 3600
"""


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = command_line().parse_args(arguments)
    from mvpa_ts.ieeg.detection.detection import detection_of
    from mvpa_ts.ieeg.detection.review import REVIEWED, review

    reading = common.reading_options(options)
    recording, words = read_recording(options.recording, **reading), reading["seizure_words"]
    detection = detection_of(recording, options.detection)
    common.check_output_folder(options.detection)
    show = None
    if options.no_window:
        table = Path(options.detection) / REVIEWED
        if not table.is_file():
            raise CommandError(f"--no-window takes events of {table}, which is missing: copy events.tsv and edit it")
        texts = [text for _, _, text in read_events(table, words)]
        edited = read_seizures(table, recording.duration, words)
        if texts and not edited and not any(map(is_background, texts)):
            # The table is written anew, and what was edited would be lost.
            raise CommandError(f"{table}: no row says seizure (sz) within the recording, or that there is none (bckg)")

        def show(raw):  # type: ignore[no-untyped-def]
            import mne

            raw.set_annotations(mne.Annotations([on for on, _ in edited], [off - on for on, off in edited], "seizure"))

    result = review(recording, detection.events, show, until=options.until, seizure_words=words)
    result.save(options.detection)
    counts = ", ".join(f"{count} {change}" for change, count in result.changes.items())
    print(f"{recording.name}: {counts}; see {options.detection}/{REVIEWED}")


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("review", DESCRIPTION)
    parser.add_argument("recording", help="file of the recording")
    parser.add_argument("detection", help="its folder, which `mvpformer detect` wrote")
    parser.add_argument("--until", type=float, help="you looked at the recording up to here (s); later trains nothing")
    parser.add_argument("--no-window", action="store_true", help="take reviewed_events.tsv as it was edited by hand")
    common.add_reading_options(parser)
    return parser


def train_again(arguments: list[str]) -> None:
    """``mvpformer finetune --from-review``: train a detector again on corrected events."""
    parser = CommandParser("finetune", "Train a detector again on events that a reader corrected.")
    parser.add_argument("--from-review", nargs="+", required=True, help="folders that `mvpformer review` wrote into")
    parser.add_argument("--recordings", nargs="+", required=True, help="the reviewed files, in the same order")
    parser.add_argument("--model", required=True, help="folder of the detector, or demo")
    parser.add_argument("--output", required=True, help="folder for the new detector, in model/")
    common.add_reading_options(parser)
    options = parser.parse_args(arguments)
    from mvpa_ts.ieeg.detection.review import load_review, retrain

    common.check_model(options.model)
    common.check_output_folder(options.output)
    if len(options.from_review) != len(options.recordings):
        raise CommandError(
            f"--from-review names {len(options.from_review)} folders and --recordings {len(options.recordings)} files: "
            "give one file for each folder, in the same order"
        )
    reading = common.reading_options(options)
    reviews = [load_review(folder, reading["seizure_words"]) for folder in options.from_review]
    recordings = [read_recording(file, **reading) for file in options.recordings]
    retrain(options.model, [*zip(reviews, recordings, strict=True)], options.output)
    events = counted(sum(onset < item.until for item in reviews for onset, _ in item.events), "reviewed event")
    print(f"trained on {events}; next: mvpformer detect FILE --model {common.quote(options.output)}/model -o results")
    rows = [row for item in recordings for row in of_recording(item.name, item.dropped, item.left_out, item.notes)]
    report_left_out(Path(options.output), rows)
