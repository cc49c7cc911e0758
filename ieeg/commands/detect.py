"""``mvpformer detect``: seizure events in recordings, one folder of results each."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvpa_ts.ieeg.commands.main import CommandError, CommandParser, check_model

if TYPE_CHECKING:
    from mvpa_ts.ieeg.detection.detector import Detector
    from mvpa_ts.ieeg.detection.rules import OnlineRule

DESCRIPTION = """Detect seizures in a recording, or in all recordings below a folder.

Reads EDF, BDF, GDF, BrainVision, FIF, BIDS and SWEC. Each recording gets a folder below --output with
  events.tsv            seizures, SzCORE/BIDS
  probabilities.tsv     probability of each 5 s, and the alarm of the online rule
  reference_events.tsv  seizures that the recording itself states, if any
  report.html           figures and settings, in one file
  run.json              versions, weights, preprocessing, channels left out and why
and probabilities.store, from which an interrupted run goes on when it is started again.

Example: mvpformer detect patient.edf --model models/tiny -o results
"""
STORE = "probabilities.store"


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = command_line().parse_args(arguments)
    from mvpa_ts.ieeg.detection.detector import Detector
    from mvpa_ts.ieeg.detection.rules import OnlineRule
    from mvpa_ts.ieeg.recordings.reading import find_recordings, warn_of_shared_names

    path = Path(options.recording)
    if not path.exists():
        raise CommandError(f"no file or folder {path}")
    check_model(options.model)
    files = find_recordings(path)
    if not files:
        raise CommandError(f"{path} holds no recording")
    warn_of_shared_names(files)
    folders = list(_folders(path, files, Path(options.output)))
    online = OnlineRule(*_k_of_n(options.online))
    channels = options.channels if options.channels in ("auto", "all") else options.channels.split(",")
    detector = Detector(
        options.model,
        _preprocessing_changes(options.preprocessing),
        threshold=options.threshold,
        rules=options.rules,
        channels=channels,
        batch_size=options.batch_size,
        device=options.device,
    )
    failed = []
    for file, folder in folders:
        try:
            _detect(detector, file, folder, online, options)
        # Whatever a damaged file does to the library that reads it, the others are scored; the command fails then.
        except Exception as error:
            if len(files) == 1:
                raise
            print(f"mvpformer detect: {_named(file, error)}", file=sys.stderr)
            failed.append(file.name)
    if failed:
        raise CommandError(f"{len(failed)} of {len(files)} recordings failed: {', '.join(failed)}")


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("detect", DESCRIPTION)
    parser.add_argument("recording", type=str, help="a file, a BIDS or SWEC folder, or any folder of recordings")
    parser.add_argument("-o", "--output", type=str, required=True, help="folder for the results")
    parser.add_argument("--model", type=str, required=True, help="folder of a finetuned model, or hf://OWNER/NAME")
    parser.add_argument("--channels", type=str, default="auto", help="auto (up to 32), all, or names with commas")
    parser.add_argument("--threshold", type=float, default=0.5, help="a segment is positive above this probability")
    parser.add_argument(
        "--rules", type=str, default="szcore", help="from positives to events: szcore, paper (fewer, longer) or none"
    )
    parser.add_argument("--online", type=str, default="1of2", help="alarm when k of the last n segments are positive")
    parser.add_argument(
        "--preprocessing",
        type=str,
        help='changes of the recording\'s default, JSON: {"band": [0.5, 120], "notch": 50, "reference": "bipolar"}',
    )
    parser.add_argument("--unit", type=str, help="unit of the samples, where the file does not say: µV, mV or V")
    parser.add_argument(
        "--noise", type=float, help="add white noise at this signal-to-noise ratio in dB, a stress test"
    )
    parser.add_argument("--batch_size", type=int, default=4, help="windows decoded together")
    parser.add_argument("--device", type=str, default="cpu", help="cpu, cuda, …")
    return parser


def _detect(detector: Detector, file: Path, folder: Path, online: OnlineRule, options: Any) -> None:
    from mvpa_ts.ieeg.datasets.swec import warn_of_swec_differences
    from mvpa_ts.ieeg.recordings.bids import electrode_positions
    from mvpa_ts.ieeg.recordings.noise import add_noise
    from mvpa_ts.ieeg.recordings.reading import read_recording
    from mvpa_ts.ieeg.training.seen_subjects import read_training_subjects, subject_hash

    recording = read_recording(file, unit=options.unit)
    warn_of_swec_differences([recording])
    positions = electrode_positions(file)  # before the hours of scoring, so that its warnings come early
    if options.noise is not None:
        recording = add_noise(recording, options.noise)
    segments = detector.segments(recording)
    detection = detector.detect_segments(segments, store=folder / STORE, progress=True)
    seen = read_training_subjects(options.model)
    if seen is not None:
        in_training = subject_hash(segments.subject) in seen
        provenance = replace(detection.provenance, subject_in_training=in_training)
        detection = replace(detection, provenance=provenance)
        if in_training:
            warnings.warn(
                f"{recording.name}: the model was trained on a subject of the name {segments.subject}; if it is this "
                "one, the scores are those of training data",
                stacklevel=2,
            )
    detection.save(folder, online=online, positions=positions)
    if not detection.scored.any():
        reasons = ", ".join(dict.fromkeys(stretch.reason for stretch in detection.skipped))
        raise ValueError(f"{recording.name}: nothing was scored ({reasons}); {folder} says nothing about seizures")
    skipped = sum(stretch.offset - stretch.onset for stretch in detection.skipped)
    count = len(detection.events)
    print(
        f"{recording.name}: {count} event{'' if count == 1 else 's'} in {detection.duration:.0f} s, {skipped:.0f} s "
        f"skipped; see {folder}"
    )


def _named(file: Path, error: Exception) -> str:
    """The error's message, with the file and the kind of error where it does not name the file itself."""
    if file.name in str(error):
        return str(error)
    kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
    return f"{file}: {kind}{error}"


def _folders(path: Path, files: list[Path], output: Path) -> Iterator[tuple[Path, Path]]:
    """Each file and the folder of its results, which mirrors where the file lies below `path`."""
    root = path if path.is_dir() and files != [path] else path.parent
    taken: dict[Path, Path] = {}
    for file in files:
        name = file.name if file.is_dir() else file.name.removesuffix(".gz").rpartition(".")[0]
        folder = output / file.parent.relative_to(root) / name
        if folder in taken:
            raise CommandError(f"{file} and {taken[folder]} would share the folder {folder}: rename one")
        taken[folder] = file
        yield file, folder


def _preprocessing_changes(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        changes = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _no_changes(text, str(error)) from None
    if not isinstance(changes, dict):
        raise _no_changes(text, "it must be an object")
    return changes


def _no_changes(text: str, reason: str) -> CommandError:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return CommandError(f'--preprocessing must be JSON such as {{"notch": 50}}, got {shown}: {reason}')


def _k_of_n(text: str) -> tuple[int, int]:
    try:
        k, n = map(int, text.split("of"))
    except ValueError:
        raise CommandError(f"--online must look like 1of2, got {text!r}") from None
    return k, n
