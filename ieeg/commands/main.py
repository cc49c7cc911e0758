"""``mvpformer``: one entry point, commands loaded only when they run, so that ``--help`` answers at once."""

from __future__ import annotations

import argparse
import csv
import difflib
import importlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote as quote  # of folders in commands that are printed
from typing import TYPE_CHECKING, Any, NoReturn

from mvpa_ts import __version__
from mvpa_ts.files import read_config
from mvpa_ts.ieeg.constants import BRAINMAZE, DEMO, DEMO_BASE, HUB_PREFIX, LINE_LENGTH, REGRESSION, RESEARCH_USE

if TYPE_CHECKING:
    from mvpa_ts.ieeg.detection.detector import Detector
    from mvpa_ts.ieeg.recordings.recording import Recording

# Name of a command, which is its module in `mvpa_ts.ieeg.commands`, and what it does in one line.
COMMANDS: dict[str, str] = {
    "pretrain": "train a model to predict the next segment, from a YAML file",
    "finetune": "train a pretrained model to detect seizures, from a YAML file",
    "detect": "seizure events, probabilities and a report from recordings",
    "calibrate": "a threshold that keeps a promise of false alarms, from quiet recordings",
    "stream": "seizure probability of each 5 s of a running LSL stream",
    "evaluate": "tables and figures of detected against reference seizures",
    "board": "every detector at hand on the same recordings, in one table",
    "review": "correct the events of a detection, to train on them again",
    "plot": "a figure from a detection, a recording or a model",
    "simulate": "write recordings of made-up subjects, SWEC layout or EDF",
    "convert": "the authors' released weights as a model folder",
}
# What is kept of commands that write as they go, and how they go on, after a Ctrl-C.
INTERRUPTED = {
    "detect": "what is in --output is kept, and the same command goes on from it",
    "stream": "decisions up to here are kept",
    "simulate": "recordings up to here are whole: start again with --overwrite",
} | dict.fromkeys(
    ("pretrain", "finetune"), "start again, with --ckpt_path last if --output holds checkpoints/last.ckpt"
)


class CommandError(Exception):
    """Something the user can put right; shown without a traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, 1 for an error, 2 for wrong usage, 130 when interrupted.

    It is 141, as of other programs, where nobody reads the output any more (``mvpformer … | head -1``).
    """
    try:
        try:
            return _run(arguments)
        finally:
            if arguments is None:
                sys.stdout.flush()
    except BrokenPipeError:
        # Python would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(arguments: Sequence[str] | None) -> int:
    name, *words = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"mvpformer {__version__}")
        return 0
    # Only as a program: a caller's own way to show warnings stays.
    if arguments is None:
        warnings.showwarning = partial(_show_warning, shown=set())
    if name not in COMMANDS:
        print(f"mvpformer: unknown command {name!r}: choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if not {"-h", "--help"} & set(words):
        print(RESEARCH_USE, file=sys.stderr)
    try:
        importlib.import_module(f"mvpa_ts.ieeg.commands.{name}").main(words)
    except BrokenPipeError:  # of the output; what could not be written is forgotten, so that a flush would succeed
        raise
    except (CommandError, ValueError, OSError, ModuleNotFoundError) as error:
        print(f"mvpformer {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        kept = str(interrupt) or INTERRUPTED.get(name, "this run keeps nothing: start it again")
        print(f"mvpformer {name}: interrupted; {kept}", file=sys.stderr)
        return 130
    return 0


class CommandParser(argparse.ArgumentParser):
    """A parser whose help keeps the description's lines; options are written out, and a wrong one gets a suggestion."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=f"mvpformer {name}", description=description, formatter_class=_HelpFormatter, allow_abbrev=False
        )
        self._arguments: list[str] = []

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's; - and _ in an option are the same, and the arguments are kept for the message of an error."""
        self._arguments = [self._spelled(text) for text in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(self._arguments, namespace)

    def _spelled(self, text: str) -> str:
        """An option as this parser spells it; any other text as it is."""
        if not text.startswith("--"):
            return text
        option, equals, value = text.partition("=")
        spelling = {name.replace("_", "-"): name for name in self._option_string_actions}
        return spelling.get(option.replace("_", "-"), option) + equals + value

    def error(self, message: str) -> NoReturn:
        """End with status 2, the message, and the option that was meant."""
        super().error("; ".join([message, *suggestions(self._arguments, self._option_string_actions)]))


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Lines as written, and the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # "default: None" says nothing.
        silent = action.default in (None, "") or action.required
        return action.help if silent else super()._get_help_string(action)


def suggestions(arguments: Sequence[str], options: Iterable[str]) -> list[str]:
    """For each option that is none of `options`, the one that it is most like.

    Examples
    --------
    >>> suggestions(["--mod", "tiny", "--output=x"], ["--model", "--output"])
    ['--mod is no option, did you mean --model?']
    >>> suggestions(["--unit", "V"], ["--data.unit"])
    ['--unit is no option, did you mean --data.unit?']
    """
    existing = [option for option in options if option.startswith("--") and not option.endswith(".help")]
    unexisting = [text.partition("=")[0] for text in arguments if text.startswith("--") and text != "--"]
    lines = []
    for option in unexisting:
        if option in existing or option.removesuffix("+") in existing:
            continue
        # An abbreviation first, then a key without its group, then what is spelled alike.
        near = [name for name in existing if name.startswith(option)]
        last = option.lstrip("-").replace("-", "_")
        near += [name for name in existing if name.rpartition(".")[2].replace("-", "_") == last]
        near = near or difflib.get_close_matches(option, existing, 1)
        lines.append(f"{option} is no option" + (f", did you mean {near[0]}?" if near else ""))
    return lines


def recordings_in(paths: Iterable[str]) -> dict[Path, list[Path]]:
    """The recordings in each file or folder; an error where one is missing or holds none."""
    from mvpa_ts.ieeg.recordings.finding import check_kind, find_recordings

    files_of: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        # Before anything is loaded, since a typing error should not cost the time to import torch.
        check_kind(path)
        files_of[path] = find_recordings(path)
        if not files_of[path]:
            raise CommandError(f"{path} holds no recording")
    return files_of


def refuse_unread(paths: Iterable[Path]) -> None:
    """Say at a command's end, with an exit status, what was not read: a script would else take it for complete."""
    from mvpa_ts.ieeg.recordings.left_out import not_read

    if others := not_read(paths)[0]:
        raise CommandError(f"all are read but {len(others)} of a kind that is not read, such as {others[0][0]}")


def check_model(name: str | None, *, baselines: bool = False) -> None:
    """Raise a CommandError where a model is no folder here, no name on the hub and, if they may be, no baseline.

    Without this, a mistyped path would be looked up on the hub, where anybody may own it.
    """
    if name in (None, DEMO, DEMO_BASE) or name.startswith(HUB_PREFIX) or Path(name).exists():
        return
    if baselines and names_baseline(name):
        return
    hint = f"; a model on the Hugging Face hub is named {HUB_PREFIX}{name}" if name.count("/") == 1 else ""
    if "/" not in name and not difflib.get_close_matches(name, (DEMO, DEMO_BASE), 1):
        hint = "; a model that `mvpformer finetune --output DIR` trained is in DIR/model"
    if "/" not in name:
        hint += f"; the package has {DEMO} and {DEMO_BASE}"
    raise CommandError(f"there is no folder {name}{hint}")


def load_detector(model: str, preprocessing: Any, channels: str, **options: Any) -> Detector:
    """The detector that --model names, a baseline or networks, with --preprocessing and --channels."""
    from mvpa_ts.ieeg.detection.baselines import BaselineDetector
    from mvpa_ts.ieeg.detection.detector import Detector

    kind = BaselineDetector if names_baseline(model) else Detector
    return kind(model, preprocessing, channels=channel_choice(channels), **options)


def check_output_folder(output: str | Path) -> None:
    """Raise a CommandError where a command cannot write into its folder, made if need be, before hours of work."""
    if Path(output).is_file():
        raise CommandError(f"--output {output} is a file: name a folder")
    try:
        nearest = next(folder for folder in (Path(output), *Path(output).absolute().parents) if folder.exists())
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise CommandError(f"nothing can be written into {output} ({error.strerror}): name another folder") from None


def names_baseline(model: str) -> bool:
    """Whether a value of --model is a baseline: its name, or the JSON file of a fitted one.

    Examples
    --------
    >>> names_baseline("line-length"), names_baseline("runs/patient/model/regression.json"), names_baseline("demo")
    (True, True, False)
    """
    return model in (LINE_LENGTH, REGRESSION, BRAINMAZE) or model.lower().endswith(".json")


def with_baseline_files(arguments: Sequence[str]) -> list[str]:
    """Let ``--model regression FILE`` and ``--model line-length FILE`` be one option with the value FILE.

    Examples
    --------
    >>> with_baseline_files(["a.edf", "--model", "regression", "model/regression.json", "-o", "results"])
    ['a.edf', '--model', 'model/regression.json', '-o', 'results']
    """
    joined: list[str] = []
    for word in arguments:
        name = joined[-1].removeprefix("--model=") if joined else ""
        follows = name in (REGRESSION, LINE_LENGTH) and (joined[-1] != name or joined[-2:-1] == ["--model"])
        # A name without a file stays, and the command says what is missing.
        if follows and word.lower().endswith(".json"):
            if Path(word).is_file() and (kind := read_config(Path(word)).get("baseline")) not in (name, None):
                raise CommandError(f"--model {name} was named, but {word} holds {kind}: leave the name or the file out")
            joined[-1] = joined[-1].removesuffix(name) + word
        else:
            joined.append(word)
    return joined


# Types of options. A wrong value is a CommandError, which argparse lets through: its own message says less.


def unit(text: str) -> str:
    """A value of --unit."""
    from mvpa_ts.ieeg.recordings.recording import microvolts

    try:
        microvolts(text)
    except ValueError as error:
        raise CommandError(f"--{error}") from None
    return text


def threshold(text: str) -> float:
    """A value of --threshold."""
    if not 0.0 <= (number := float(text)) <= 1.0:
        raise CommandError(f"--threshold must be between 0 and 1, got {number}")
    return number


def channel_choice(text: str) -> Any:
    """A value of --channels: auto, all, or the names in it.

    Examples
    --------
    >>> channel_choice("auto"), channel_choice('A1, "A2,x"')
    ('auto', ['A1', 'A2,x'])
    """
    return text if text in ("auto", "all") else channel_names(text)


def k_of_n(text: str, option: str = "--online") -> tuple[int, int]:
    """The two numbers of --online and --alarm, "1of2" or "1/2"."""
    from mvpa_ts.ieeg.detection.rules import OnlineRule

    try:
        k, n = map(int, text.replace("/", "of").split("of"))
    except ValueError:
        raise CommandError(f"{option} must look like 1of2, got {text!r}") from None
    try:
        OnlineRule(k, n)
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None
    return k, n


def channel_names(text: str) -> list[str]:
    """The names in --channels, which commas divide; a name with a comma stands in quotation marks."""
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True))]
    if not (names and all(names)):
        raise CommandError(f"--channels must be names with commas between them, such as A1,A2, got {text!r}")
    return names


def preprocessing_changes(text: str) -> dict[str, object]:
    """What --preprocessing asks for."""
    try:
        changes, reason = json.loads(text), "it must be a JSON object"
    except (json.JSONDecodeError, RecursionError) as error:
        changes, reason = None, str(error)
    if not isinstance(changes, dict):
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        raise CommandError(f'--preprocessing must be JSON such as {{"notch": 50}}, got {shown}: {reason}')
    return changes


def add_detector_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that a detection and a stream share."""
    parser.add_argument(
        "--model",
        default=DEMO,
        help=f"folder of a finetuned model, {HUB_PREFIX}OWNER/NAME, or {DEMO}: the small detector of the package",
    )
    parser.add_argument(
        "--threshold",
        type=threshold,
        help="a segment is positive above this probability; default: the model's, else 0.5",
    )
    parser.add_argument("--online", type=k_of_n, default="1of2", help="alarm at k of n positive segments: 1of2 or 1/2")
    parser.add_argument(
        "--preprocessing",
        type=preprocessing_changes,
        help='changes of the default, JSON: {"band": [0.5, 120], "notch": 50, "reference": "bipolar"}',
    )


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a recording is read."""
    parser.add_argument("--unit", type=unit, help="unit of the samples if the file states none: µV (or uV), mV or V")
    parser.add_argument("--rate", type=float, help="if rates differ: read the channels at this rate (Hz)")
    parser.add_argument(
        "--truncated",
        choices=("error", "read"),
        default="error",
        help="if the file was cut short: refuse it, or read what is there",
    )
    parser.add_argument("--seizure-words", default="", help="further words that mean a seizure: Krampf,absence")


def reading_options(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `read_recording` from these options."""
    words = tuple(word.strip() for word in options.seizure_words.split(",") if word.strip())
    return {"unit": options.unit, "rate": options.rate, "truncated": options.truncated, "seizure_words": words}


def read_named(path: str | Path, channels: str, **options: Any) -> Recording:
    """A recording with all its EEG channels, and those of --channels that are left out unless they are named.

    `channels` is the value of --channels; `reading_options` gives the others.
    """
    from mvpa_ts.ieeg.recordings.channels import in_recording_order
    from mvpa_ts.ieeg.recordings.reading import read_recording

    named = channel_choice(channels)
    try:
        recording = read_recording(path, **options)
    # Naming channels may be what makes a file readable, so both are tried before the error counts.
    except ValueError as error:  # such as no channel that is EEG by its name, or rates that differ
        if isinstance(named, str):
            raise
        try:
            return read_recording(path, channels=named, **options)
        except ValueError:
            raise error from None
    if isinstance(named, str):
        return recording
    names = in_recording_order(named, [*recording.channel_names, *recording.dropped])
    left_out = [name for name in names if name in recording.dropped]
    return read_recording(path, channels=[*recording.channel_names, *left_out], **options) if left_out else recording


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, shown: set[str]
) -> None:
    """What concerns the recording or the settings as one line, once, without the place in the code."""
    # Python's own memory of what was shown is lost whenever some library changes a filter.
    if str(message) in shown:
        return
    shown.add(str(message))
    place = "" if issubclass(category, UserWarning) else f" ({filename}:{lineno})"
    print(f"mvpformer: {message}{place}", file=sys.stderr)


def _help() -> str:
    width = max(map(len, COMMANDS), default=0)
    commands = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: mvpformer COMMAND ...\n\nMVPFormer: a foundation model for intracranial EEG.\n\n"
        f"{commands}\n\n'mvpformer COMMAND --help' explains a command.\n{RESEARCH_USE}"
    )


if __name__ == "__main__":
    # Commands raise the CommandError of the imported module; this copy, __main__, has another.
    from mvpa_ts.ieeg.commands import main as command_line

    sys.exit(command_line.main())
