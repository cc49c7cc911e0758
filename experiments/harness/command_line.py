"""The command line of a script: its docstring is the help, and ``--quick`` makes a smoke run of it."""

from __future__ import annotations

import argparse


def script_parser(description: str | None, quick: str = "a smoke run") -> argparse.ArgumentParser:
    """A parser that shows the script's docstring as it is written, with the option ``--quick`` and its help."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser
