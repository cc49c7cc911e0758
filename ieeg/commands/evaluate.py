"""``mvpformer evaluate``: detected against reference seizures, over recordings and subjects."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mvpa_ts.checks import listed, warn
from mvpa_ts.files import read_config
from mvpa_ts.ieeg.commands.classes import SCORES, score_classes
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser, check_output_folder, k_of_n
from mvpa_ts.ieeg.constants import counted
from mvpa_ts.ieeg.detection.rules import OnlineRule
from mvpa_ts.ieeg.detection.saved import PROBABILITIES, REFERENCE, RUN, STORE, classes_of, read_run, warn_of_mixed
from mvpa_ts.ieeg.recordings.events_table import read_events
from mvpa_ts.ieeg.recordings.finding import check_kind, find_recordings, stem_of
from mvpa_ts.ieeg.recordings.guards import warn_left_out
from mvpa_ts.ieeg.recordings.left_out import LEFT_OUT, Row, listing, of_recording, of_warnings, read_left_out
from mvpa_ts.ieeg.recordings.recording import recorded_warnings
from mvpa_ts.ieeg.recordings.seizure_words import WORDS_NOT_TAKEN, is_background, is_seizure

if TYPE_CHECKING:
    import argparse

    from mvpa_ts.ieeg.scoring.results import RecordingResult, SubjectResult

# Ends of the names of other tables in a BIDS data set.
_OTHER_TABLES = ("channels", "electrodes", "participants", "scans", "sessions")
DESCRIPTION = """Score what `mvpformer detect` wrote.

Takes every folder below DETECTIONS that holds a run.json. The reference is that folder's reference_events.tsv, or below
--reference the file <recording>_events.tsv, <recording>.tsv or <recording>/events.tsv, read as `mvpformer detect` reads
the events.tsv beside a recording. Writes to --output
  cohort.md        what was found, in a sentence, and the main tables
  subjects.csv     one row a subject: kappa on raw and on post-processed decisions (kappa_episodic, which is the
                   paper's), event, second and segment scores, delay and false alarms of a running system
  summary.csv      mean over subjects and pooled, with bootstrap intervals, for each group of subjects
  groups.csv       shares under 0.05 false detections an hour and at expert agreement
  regression.csv   both kappas on length, number and rate of seizures, one by one and jointly
  *.png            figures; box plots and regressions from three subjects on
or, of classes, scores.csv (balanced accuracy, kappa, AUROC of each class against the others) and confusion.csv.

Example: mvpformer evaluate results -o scores --mode paper
"""


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = command_line().parse_args(arguments)
    from mvpa_ts.ieeg.scoring.results import SubjectResult

    root, rule = Path(options.detections), OnlineRule(*k_of_n(options.alarm, "--alarm"))
    if not root.exists():
        raise CommandError(f"there is no folder {root}")
    if options.reference is not None and not Path(options.reference).is_dir():
        raise CommandError(f"--reference must be a folder with the tables of all recordings, got {options.reference}")
    check_output_folder(options.output)
    with recorded_warnings() as said:
        folders = _complete_detections(root)
        references = References(options.reference, root, folders)
        _warn_of_earlier_runs(root, folders)
        warn_of_mixed(folders)
        rows = _left_out(root, folders)
        of_classes = any(classes_of(read_run(folder)) for folder in folders)
        if of_classes:
            if (options.mode, options.unannotated, options.alarm) != ("szcore", "error", "1/2"):
                raise CommandError(f"{root} holds classes: --mode, --unannotated and --alarm are for seizures")
            _warn_of_training_subjects(folders)
            tables = {folder: references.needed(folder) for folder in folders} if options.reference else {}
            rows += score_classes(folders, Path(options.output), tables)
        by_subject = {} if of_classes else _by_subject(folders, references, options.unannotated)
    if not of_classes:
        results = [SubjectResult(subject, of, options.mode, rule) for subject, of in by_subject.items()]
        # A table of NaN would look like a result.
        if not any(result.hours_scored for result in results):
            raise CommandError(f"nothing was compared: all segments were skipped; {RUN} of each recording says why")
        _report(results, options, len(folders))
    if lines := listing([*rows, *of_warnings(said)], root / LEFT_OUT):
        print("\n".join(lines))


def _complete_detections(root: Path) -> list[Path]:
    folders = sorted(path.parent for path in root.rglob(RUN))
    if not folders:
        if root.is_file():
            check_kind(root)
        advice = f": first run `mvpformer detect {root} -o results`" if find_recordings(root) else ""
        raise CommandError(f"{root} holds no complete detection (no {RUN} in it or below it){advice}")
    return folders


def _by_subject(folders: Sequence[Path], references: References, unannotated: str) -> dict[str, list[RecordingResult]]:
    """The results of each subject's recordings, with a look for what would count twice or is training data."""
    from tqdm import tqdm

    from mvpa_ts.ieeg.scoring.comparison import warn_of_copies

    by_subject: dict[str, list[RecordingResult]] = {}
    places: dict[tuple[str, str], Path] = {}
    for folder in tqdm(folders, desc="evaluate", unit="recording"):
        result = _result(folder, references, unannotated)
        by_subject.setdefault(result.subject, []).append(result)
        first = places.setdefault((result.subject, result.name), folder)
        if first != folder:
            warn(
                f"{first} and {folder} count as two recordings of one subject, {result.subject!r}: if they are of "
                "different people, or are one recording by two detectors, evaluate them one by one"
            )
    references.warn_of_unused()
    warn_of_copies([(result.name, result.probabilities) for results in by_subject.values() for result in results])
    _warn_of_training_subjects(folders)
    return by_subject


def _report(results: Sequence[SubjectResult], options: argparse.Namespace, recordings: int) -> None:
    """Write tables and figures, and print what was found."""
    from mvpa_ts.ieeg.scoring.cohort import cohort_report, markdown_table, swec_groups
    from mvpa_ts.ieeg.scoring.plots import save_cohort_plots

    report = cohort_report(results, swec_groups([result.subject for result in results]), seed=options.seed)
    # The page comes last: where it is there, figures and tables are of one run.
    for file in ("cohort.md", *(f"{name}.csv" for name in SCORES)):
        (Path(options.output) / file).unlink(missing_ok=True)
    save_cohort_plots(report, options.output)
    report.save(options.output)
    print("\n".join(report.words))
    counts = f"{counted(recordings, 'recording')} of {counted(len(results), 'subject')}"
    print(f"\n{counts}; event scores in mode {options.mode}\n")
    if len(summary := report.shown("summary")):
        print(markdown_table(report.groups))
        print(markdown_table(summary[["group", "measure", "subjects", "mean", "mean_low", "mean_high", "pooled"]]))
    else:
        print(markdown_table(report.shown("subjects")))
    print(f"see {options.output}")


def _left_out(root: Path, folders: Sequence[Path]) -> list[Row]:
    """What `mvpformer detect` left out of the recordings, and the files that it could not read."""
    of_last_run = read_left_out(root)
    rows = [row for row in of_last_run if row[2].startswith(("failed", "of a kind", "a link"))]
    listed_names = {row[0] for row in of_last_run} | {folder.name for folder in folders}
    for folder in folders:
        run = read_config(folder / RUN)
        others = [file for file in run.get("files_left_out", ()) if not {file, stem_of(Path(file))} & listed_names]
        rows += [(file, "", f"left out by the run that wrote {folder}") for file in others]
        listed_names |= {*others}
        notes = (run["recording"].get(key, ()) for key in ("left_out", "notes"))
        rows += of_recording(folder.name, run["channels"]["dropped"], *notes)
    return rows


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("evaluate", DESCRIPTION)
    parser.add_argument("detections", help="folder that `mvpformer detect` wrote")
    parser.add_argument("-o", "--output", required=True, help="folder for tables and figures")
    parser.add_argument("--reference", help="folder of reference events, if the recordings state none")
    parser.add_argument("--mode", choices=("szcore", "paper"), default="szcore", help="how events are scored")
    parser.add_argument(
        "--unannotated",
        choices=("error", "seizure-free"),
        default="error",
        help="recordings without reference: an error, or taken as seizure-free",
    )
    parser.add_argument("--alarm", default="1/2", help="a system alarms at k of n positive segments: 1/2 or 1of2")
    parser.add_argument("--seed", type=int, default=0, help="random seed of draws and bootstrap")
    return parser


def _warn_of_training_subjects(folders: Sequence[Path]) -> None:
    if seen := [folder.name for folder in folders if read_config(folder / RUN)["model"].get("subject_in_training")]:
        warn(
            f"the model was trained on {len(seen)} of {len(folders)} recordings, such as {seen[0]}, or on subjects of "
            "these names: their scores are scores on training data"
        )


def _warn_of_earlier_runs(root: Path, folders: Sequence[Path]) -> None:
    if begun := [str(path.parent) for path in sorted(root.rglob(STORE)) if not (path.parent / RUN).is_file()]:
        warn_left_out(
            f"{root} holds detections that were interrupted, and are not scored: {listed(begun)}. Run "
            "`mvpformer detect` again as it was, and it goes on"
        )
    failed = {stem_of(Path(row[0])) for row in read_left_out(root) if row[2].startswith("failed")}
    for folder in folders:
        if folder.name in failed:
            warn(
                f"the last `mvpformer detect` failed on {folder.name}: {folder} holds the results of an earlier run, "
                "which are scored here. Run detect on it again, or remove the folder"
            )


def _result(folder: Path, references: References, unannotated: str) -> RecordingResult:
    """A detection with its reference; a recording without one is an error or seizure-free, as `unannotated` says."""
    from mvpa_ts.ieeg.scoring.results import read_result

    table = references.of(folder)
    if table is None:
        missing = references.missing(folder)
    elif not table.is_file():
        missing = f"{folder} has no {REFERENCE}, as the recording says nothing of seizures: give --reference"
        left_out = read_config(folder / RUN)["recording"].get("left_out", ())
        if words := [text for text in left_out if WORDS_NOT_TAKEN in text]:
            # Taken as seizure-free, a recording with such words may make true detections false.
            missing = f"{folder} has no {REFERENCE}. {words[0]}, when you run `mvpformer detect` again"
            if unannotated == "seizure-free":
                warn(f"{missing}: it is taken as seizure-free")
    else:
        texts = sorted({text for _, _, text in read_events(table)})
        if any(is_seizure(text) or is_background(text) for text in texts):
            return read_result(folder, table)
        missing = f"{table} has no row that says seizure or bckg; its rows say {listed(map(repr, texts)) or 'nothing'}"
        if texts and unannotated == "seizure-free":
            warn(f"{missing}: it is taken as seizure-free")
    if unannotated == "error":
        raise CommandError(f"{missing}; if the recording holds no seizure, pass --unannotated seizure-free")
    return read_result(folder, [])


class References:
    """Tables of reference events: below --reference, or without it in the folders of the detections themselves."""

    def __init__(self, root: str | None, detections: Path, folders: Sequence[Path]) -> None:
        self.root = None if root is None else Path(root)
        self.detections, self.names = detections, Counter(folder.name for folder in folders)

    def of(self, folder: Path) -> Path | None:
        """A detection's one table, or None; of several, that in the same subfolder."""
        if self.root is None:
            return folder / REFERENCE
        name, subfolder = folder.name, folder.relative_to(self.detections).parent
        alike = {self.root / subfolder / pattern for pattern in _patterns(name)}
        # A bracket in a name is a letter: "night[3]" is not "night3".
        tables = sorted({path for pattern in _patterns(name) for path in self.root.rglob(glob.escape(pattern))})
        # Results may lie below the root too: what a detector found is no reference.
        tables = [path for path in tables if not (path.parent / PROBABILITIES).exists()]
        if len(tables) > 1:
            tables = [path for path in tables if path in alike] or tables
        # Recordings of one name may lie in folders of their own, as p1/night and p2/night.
        if self.names[name] > 1 and tables and tables[0] not in alike:
            raise CommandError(
                f"{self.detections} holds several recordings called {name}, and {tables[0]} does not say whose "
                "seizures it states: put the references in subfolders like those of the detections"
            )
        if len(tables) > 1:
            raise CommandError(
                f"{name} has several references: {', '.join(map(str, tables))}. Leave one, or put them in subfolders "
                f"like those of the detections in {self.detections}"
            )
        if not tables:
            return None
        # A reference of another patient is found by name alone, and every score would be wrong.
        subfolders, others = {*subfolder.parts}, {*tables[0].relative_to(self.root).parent.parts} - {name}
        if subfolders and others and not subfolders & others:
            warn(
                f"{folder} is scored by {tables[0]}, whose folder has another name: if that is another patient, put "
                "the references in subfolders like those of the detections"
            )
        return tables[0]

    def needed(self, folder: Path) -> Path:
        """As `of`; a CommandError where there is none."""
        if (table := self.of(folder)) is None:
            raise CommandError(self.missing(folder))
        return table

    def missing(self, folder: Path) -> str:
        """What to add where a detection has no table."""
        names = " or ".join(dict.fromkeys(_patterns(folder.name)))
        return f"{self.root} holds no reference for {folder.name}: add the missing file {names}"

    def warn_of_unused(self) -> None:
        """Warn of tables that belong to no recording by their names, as that of "P1" to "p1"."""
        if self.root is None:
            return
        expected = {pattern for name in self.names for pattern in _patterns(name)}
        stated = (path for path in sorted(self.root.rglob("*.?sv")) if not path.stem.endswith(_OTHER_TABLES))
        tables = [path for path in stated if not (path.parent / PROBABILITIES).exists()]
        if unused := [str(path) for path in tables if not {path.name, f"{path.parent.name}/{path.name}"} & expected]:
            warn_left_out(f"tables below --reference belong to no recording here, and are not read: {listed(unused)}")


def _patterns(name: str) -> tuple[str, ...]:
    stem = name.removesuffix("_ieeg").removesuffix("_eeg")
    return f"{stem}_events.tsv", f"{name}_events.tsv", f"{name}.tsv", f"{name}/events.tsv"
