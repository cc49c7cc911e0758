"""``mvpformer detect``: seizure events in recordings, one folder of results each."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from mvpa_ts.files import read_config, write_json
from mvpa_ts.ieeg.commands import main as common
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser
from mvpa_ts.ieeg.commands.scoring_task import ScoringTask
from mvpa_ts.ieeg.detection.saved import RUN, warn_of_mixed
from mvpa_ts.ieeg.recordings.bids import beside, bids_root
from mvpa_ts.ieeg.recordings.finding import SUFFIXES, warn_of_shared_names
from mvpa_ts.ieeg.recordings.left_out import LEFT_OUT, Row, listing, not_read, read_left_out, write_left_out

DESCRIPTION = """Detect seizures in recordings, or in all recordings below a folder.

Reads EDF, BDF, GDF, BrainVision, FIF, BIDS and SWEC. Each recording gets a folder below --output with
  events.tsv            seizures, SzCORE/BIDS
  probabilities.tsv     probability of each 5 s, and the alarm of the online rule
  baselines.tsv         probability by line length, and by the regression that finetune left beside the model
  reference_events.tsv  seizures that the recording itself states, or that there are none (bckg)
  onsets.tsv            where each event begins: channels by how strongly and how early they change
  report.html           figures and settings, in one file
  run.json              versions, weights, preprocessing, what was left out or doubted and why
and probabilities.store, from which an interrupted run continues when you start it again. left_out.tsv in --output lists
files, channels, rows and words left out or doubted, as the command's last lines do. If --output ends in .tsv, only the
events of the one recording are written, to this file. A file of classes (mvpformer finetune --classes) as --model
gives events.tsv and run.json of classes, and in probabilities.tsv that of each class and the class that is stated.

Examples: mvpformer detect patient.edf -o results
          mvpformer detect night1.edf night2.edf -o results
          mvpformer detect patient.edf --model runs/patient/model -o results

Baselines go the same way: --model line-length, --model regression FILE (the regression.json that finetune wrote beside
the model), --model brainmaze (the published model of brainmaze-eeg-models, where it is installed). line-length is
positive where channels change by more than 10 µV from sample to sample at 512 Hz: a rule to compare with, where the
background is about 5 µV. A stronger one needs --model line-length FILE, the line-length.json that finetune wrote.
"""


# Files, each with the folder of its results or its table.
Outputs = Sequence[tuple[Path, Path]]


@dataclass(frozen=True)
class Outcome:
    """What became of one recording: a line about its events, or the error; and warnings that nobody has seen yet."""

    file: Path
    line: str = ""
    error: Exception | None = None
    warnings: tuple[tuple[str, type[Warning], str, int], ...] = ()
    left_out: Sequence[Row] = ()


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = command_line().parse_args(common.with_baseline_files(arguments))
    from mvpa_ts.ieeg.recordings.swec_table import warn_of_missing_subjects

    files_of = common.recordings_in(options.recordings)
    common.check_model(options.model, baselines=True)
    files = [file for listed in files_of.values() for file in listed]
    warn_of_shared_names(files)
    warn_of_missing_subjects(files_of, files)
    table = options.output.lower().endswith(".tsv")
    if Path(options.output).is_file() and not table:
        raise CommandError(f"--output {options.output} is a file: name a folder, or a file that ends in .tsv")
    common.check_output_folder(Path(options.output).parent if table else options.output)
    if options.calibration and options.threshold is not None:
        raise CommandError("--calibration sets the threshold: leave --threshold out")
    if options.calibration and options.rules is not None:
        raise CommandError("--calibration sets the rules: leave --rules out, or calibrate with --rules")
    if options.calibration and options.score_bad:
        raise CommandError("--calibration promises nothing for stretches marked BAD_: leave --score-bad out")
    options.rules = options.rules or "szcore"
    if options.jobs < 1:
        raise CommandError(f"--jobs must be at least 1, got {options.jobs}")
    outputs = _outputs(files_of, Path(options.output))
    if table:
        _check_table(*outputs[0])
    others, links = not_read(files_of)
    left_out = [*others, *links]
    failed: list[str] = []
    registry: dict[str | tuple[str, type[Warning], int], int] = {}
    for number, outcome in enumerate(_outcomes(_task(options), outputs, options.jobs, options.scheduler), start=1):
        # Shown here, so that a warning that many recordings share is shown once.
        for warning in outcome.warnings:
            warnings.warn_explicit(*warning, registry=registry)
        left_out += outcome.left_out
        if outcome.error is None:
            print(outcome.line)
        elif len(files) == 1:
            raise outcome.error
        else:
            print(f"mvpformer detect: {_named(outcome.file, outcome.error)}", file=sys.stderr)
            failed.append(outcome.file.name)
            left_out.append((outcome.file.name, "", f"failed: {_named(outcome.file, outcome.error)}"))
        if len(files) > 1 and (options.jobs > 1 or options.scheduler):
            print(f"{number} of {len(files)} files done", file=sys.stderr)
    _report(left_out, [name for name, *_ in (*others, *links)] + failed, outputs, Path(options.output))
    if failed:
        raise CommandError(f"{len(failed)} of {len(files)} recordings failed: {', '.join(sorted(failed))}")
    common.refuse_unread(files_of)


def _check_table(file: Path, table: Path) -> None:
    if table.is_dir():
        raise CommandError(f"--output {table} is a folder: name a file.tsv, or a folder of another name")
    if (table.parent / RUN).is_file():
        raise CommandError(f"--output {table} lies in the folder of another result: name a file outside of it")
    for other in (file, *(path for path in table.parent.glob("*") if path.name.lower().endswith(SUFFIXES))):
        if table.resolve() == beside(other, "events.tsv").resolve():
            raise CommandError(f"--output {table} holds the true seizures of {other.name}: name another")


def _report(rows: Sequence[Row], files: Sequence[str], outputs: Outputs, root: Path) -> None:
    """List what was left out; with folders of results also in a table, and the files in each recording's run.json."""
    folders = [output for _, output in outputs if (output / RUN).is_file()]
    if folders:
        # An earlier run may have scored other recordings into the same folder.
        others = {folder.parent.name for folder in root.rglob(RUN)} - {folder.name for folder in folders}
        write_left_out(root, [*(row for row in read_left_out(root) if row[0] in others), *rows])
        warn_of_mixed(path.parent for path in sorted(root.rglob(RUN)))
    for folder in folders:
        write_json(folder / RUN, read_config(folder / RUN) | {"files_left_out": list(files)})
    for line in listing(rows, root / LEFT_OUT if folders else None):
        print(line, file=sys.stderr)


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("detect", DESCRIPTION)
    parser.add_argument("recordings", nargs="+", metavar="recording", help="files, or BIDS, SWEC or other folders")
    parser.add_argument("-o", "--output", required=True, help="folder for the results, or a file.tsv")
    common.add_detector_options(parser)
    parser.add_argument("--channels", default="auto", help='auto (up to 32), all, or names: A1,A2,"B,3"')
    parser.add_argument(
        "--rules",
        choices=("szcore", "paper", "none"),
        help="how positive segments become events: szcore, the default, or paper, which gives fewer and longer events",
    )
    parser.add_argument("--calibration", help="file of `mvpformer calibrate`: threshold and rules, for the same model")
    common.add_reading_options(parser)
    parser.add_argument(
        "--clock",
        action="store_true",
        help="write the recording's date and time into events.tsv, which are hidden otherwise",
    )
    parser.add_argument(
        "--score-bad",
        action="store_true",
        help="score stretches that are marked BAD_ too, which are left out otherwise",
    )
    parser.add_argument("--noise", type=float, help="add white noise at this signal-to-noise ratio (dB), a stress test")
    parser.add_argument("--batch-size", type=int, default=4, help="windows that are computed together")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, …")
    parser.add_argument("--jobs", type=int, default=1, help="recordings scored at the same time, each in a process")
    parser.add_argument("--scheduler", help="tcp://HOST:PORT of a dask.distributed cluster that sees the same files")
    return parser


def _task(options: argparse.Namespace) -> ScoringTask:
    chosen = vars(options) | {"reading": common.reading_options(options)}
    task = ScoringTask(**{field.name: chosen[field.name] for field in fields(ScoringTask)})
    if not options.scheduler:
        task.detector()  # wrong settings are named before the first file is read
    return task


def _outcomes(task: ScoringTask, outputs: Outputs, jobs: int, scheduler: str | None) -> Iterator[Outcome]:
    """The outcome of each recording, in order from one process, as they come from several."""
    if scheduler:
        yield from _on_cluster(task, outputs, scheduler)
    elif jobs > 1 and len(outputs) > 1:
        yield from _in_processes(task, outputs, jobs)
    else:
        for number, (file, output) in enumerate(outputs, start=1):
            if len(outputs) > 1:
                print(f"file {number} of {len(outputs)}: {file.name}", file=sys.stderr)
            yield _attempt(task, file, output, progress=True)


def _attempt_elsewhere(task: ScoringTask, file: Path, output: Path, threads: int | None = None) -> Outcome:
    """Score one recording in another process; its warnings come back with the outcome, to be shown as all others."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    with warnings.catch_warnings(record=True) as caught:
        outcome = _attempt(task, file, output)
    shown = tuple((str(warning.message), warning.category, warning.filename, warning.lineno) for warning in caught)
    return replace(outcome, warnings=shown)


def _attempt(task: ScoringTask, file: Path, output: Path, progress: bool = False) -> Outcome:
    try:
        line, left_out = task.score(file, output, progress=progress)
        return Outcome(file, line, left_out=left_out)
    except Exception as error:  # whatever a damaged file does to the library that reads it must not cost the others
        return Outcome(file, error=error)


def _in_processes(task: ScoringTask, outputs: Outputs, jobs: int) -> Iterator[Outcome]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    threads = max(1, (os.cpu_count() or 1) // jobs)
    # A fresh process each: after a fork torch's threads hang. Ctrl-C ends it, or it would begin the next recording.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, signal.signal, (signal.SIGINT, signal.SIG_DFL)) as pool:
        futures = {pool.submit(_attempt_elsewhere, task, file, output, threads): file for file, output in outputs}
        for future in as_completed(futures):
            if future.exception() is None:
                yield future.result()
            else:  # one dead process ends the pool, and what was stored stays
                why = "a process was killed, perhaps for want of memory: start again to go on, with fewer --jobs"
                yield Outcome(futures[future], error=OSError(why))


def _on_cluster(task: ScoringTask, outputs: Outputs, scheduler: str) -> Iterator[Outcome]:
    try:
        from distributed import Client, as_completed
    except ModuleNotFoundError:
        raise CommandError('--scheduler needs dask.distributed: pip install ".[cluster]" in the clone') from None
    try:
        client = Client(scheduler, timeout="10s")
    except (OSError, ValueError) as error:
        raise CommandError(f"--scheduler: no dask.distributed cluster answers at {scheduler} ({error})") from None
    with client:
        absolute = [(file.resolve(), output.resolve()) for file, output in outputs]
        # One recording a task: those of a worker that dies begin again elsewhere and go on from their stores.
        futures = {client.submit(_attempt_elsewhere, task, file, output, pure=False): file for file, output in absolute}
        for future in as_completed(futures):
            failure = future.exception()  # of the cluster, as when a recording kills worker after worker
            yield future.result() if failure is None else Outcome(futures[future], error=RuntimeError(str(failure)))


def _named(file: Path, error: Exception) -> str:
    """The error's message, with the file and the kind of error where it does not name the file itself."""
    if file.name in str(error):
        return str(error)
    kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
    return f"{file}: {kind}{error}"


def _outputs(files_of: Mapping[Path, list[Path]], output: Path) -> Outputs:
    """Each file and the folder of its results, which mirrors where it lies below a path; or the one table."""
    if output.suffix.lower() == ".tsv":
        files = [file for listed in files_of.values() for file in listed]
        if len(files) > 1:
            raise CommandError(
                f"--output {output} is a file for the events of one recording, but {', '.join(map(str, files_of))} "
                f"holds {len(files)}: name a folder"
            )
        return [(files[0], output)]

    taken: dict[Path, Path] = {}
    for path, files in files_of.items():
        whole = Path(os.path.abspath(path))
        # In a folder of a BIDS data set, such as that of one subject, results mirror where a file lies in the data set.
        root = bids_root(whole) or whole if path.is_dir() and files != [path] else whole.parent
        for file in files:
            name = file.name if file.is_dir() else file.name.removesuffix(".gz").rpartition(".")[0]
            folder = output / Path(os.path.abspath(file.parent)).relative_to(root) / name
            # Two results in one folder would be one recording with the store of another.
            if folder in taken and not file.samefile(taken[folder]):
                raise CommandError(
                    f"{file} and {taken[folder]} would share the folder {folder}: rename one, or name a folder that "
                    "holds both in folders of their own"
                )
            taken[folder] = file
    return [(file, folder) for folder, file in taken.items()]
