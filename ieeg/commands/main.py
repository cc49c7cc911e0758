"""``mvpformer``: one entry point, commands loaded only when they run, so that ``--help`` answers at once."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from mvpa_ts import __version__

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

RESEARCH_USE = "For research use; not a medical device."

COMMANDS: dict[str, str] = {
    "pretrain": "train a model to predict the next segment, from a YAML file",
    "finetune": "teach a pretrained model to tell seizures, from a YAML file",
    "detect": "seizure events, probabilities and a report from recordings",
    "evaluate": "tables and figures of detected against reference seizures",
    "plot": "a figure from a detection, a recording or a model",
    "simulate": "write recordings of made-up subjects, SWEC layout or EDF",
    "convert": "the authors' released weights as a model folder",
}
"""Name of a command, which is its module in `mvpa_ts.ieeg.commands`, and what it does in one line."""


class CommandError(Exception):
    """Something the user can put right; shown without a traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, 1 for an error, 2 for wrong usage, 130 when interrupted."""
    name, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"mvpformer {__version__}")
        return 0
    if arguments is None:
        warnings.showwarning = _show_warning
    if name not in COMMANDS:
        print(f"mvpformer: unknown command {name!r}: choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if not {"-h", "--help"} & set(rest):
        print(RESEARCH_USE, file=sys.stderr)
    try:
        importlib.import_module(f"mvpa_ts.ieeg.commands.{name}").main(rest)
    except (CommandError, ValueError, OSError) as error:
        print(f"mvpformer {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"mvpformer {name}: interrupted{f'; {interrupt}' if interrupt.args else ''}", file=sys.stderr)
        return 130
    return 0


def command_parser(name: str, description: str) -> ArgumentParser:
    """A parser whose help keeps the description's lines."""
    from argparse import RawDescriptionHelpFormatter

    from jsonargparse import ArgumentParser, DefaultHelpFormatter

    class Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        """Lines as written, and the defaults."""

    return ArgumentParser(prog=f"mvpformer {name}", description=description, formatter_class=Formatter)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What concerns the recording or the settings as one line, without the place in the code."""
    place = "" if issubclass(category, UserWarning) else f" ({filename}:{lineno})"
    print(f"mvpformer: {message}{place}", file=sys.stderr if file is None else file)


def _help() -> str:
    width = max(map(len, COMMANDS), default=0)
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: mvpformer COMMAND ...",
            "",
            "MVPFormer: a foundation model for intracranial EEG.",
            "",
            *lines,
            "",
            "'mvpformer COMMAND --help' explains a command.",
            RESEARCH_USE,
        ]
    )


if __name__ == "__main__":
    # Commands raise the CommandError of the imported module; this copy, __main__, has another.
    from mvpa_ts.ieeg.commands import main as command_line

    sys.exit(command_line.main())
