"""``mvpformer board``: every detector at hand on every recording of a folder, in one table and one page."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

from mvpa_ts.checks import warn
from mvpa_ts.ieeg.commands import main as common
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser
from mvpa_ts.ieeg.recordings.finding import warn_of_shared_names
from mvpa_ts.ieeg.recordings.reading import read_recording

DESCRIPTION = """Put detectors beside each other on the recordings of a folder, such as a BIDS data set.

Runs the box's detector (demo), line length, brainmaze where it is installed, the folders of --model with their
regression, and what --add adds, all with SzCORE's rules: events less than 90 s apart count as one, so a table can have
fewer events than there were alarms. Recordings must state their seizures, or that there are none (bckg); others are
listed. Writes board.csv and board.html to --output; running again gives the same bytes.

Example: mvpformer board bids --model runs/patient/model --add my_detectors.py -o board
"""


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = command_line().parse_args(arguments)

    common.check_output_folder(options.output)
    for file in options.add:
        if not Path(file).is_file():
            raise CommandError(f"--add: there is no file {file}")
        if not file.lower().endswith(".py"):
            raise CommandError(f"--add must name Python files, which end in .py, got {file}")
    for model in options.model:
        common.check_model(model, baselines=True)
    # Two folders may hold the same file, which must not count twice.
    files_of = common.recordings_in(options.folders)
    files = [*{file.resolve(): file for files in files_of.values() for file in files}.values()]
    warn_of_shared_names(files)
    from mvpa_ts.ieeg.scoring.board import ADDED, PAGE, board, detectors_at_hand, in_words
    from mvpa_ts.ieeg.scoring.cohort import markdown_table

    def written() -> int | None:
        page = Path(options.output) / PAGE
        return page.stat().st_mtime_ns if page.is_file() else None

    before, board_before = dict(ADDED), written()
    try:
        for file in options.add:
            count = len(ADDED)
            try:
                runpy.run_path(file)
            except Exception as error:  # of a foreign file, in any way
                raise CommandError(f"--add: {file} fails, {type(error).__name__}: {error}") from error
            if len(ADDED) == count:
                raise CommandError(f"--add: {file} adds no detector: call add_detector in it")
        detectors = detectors_at_hand(options.model)  # what cannot be one is said before hours of reading
        recordings, damaged = [], {}
        for file in files:
            try:
                recordings.append(read_recording(file, **common.reading_options(options)))
            except (ValueError, OSError) as error:
                damaged[str(file)] = f"cannot be read: {error}"
        if damaged and not recordings:
            raise CommandError(next(iter(damaged.values())))
        result = board(recordings, detectors)
        result = replace(result, left_out={**result.left_out, **damaged})
    finally:
        ADDED.clear()
        ADDED.update(before)
    if written() != board_before:
        warn(f"another run wrote a board into {options.output} since this one began; this one takes its place")
    result.save(options.output)
    print(markdown_table(result.rows))
    print(in_words(result.rows))
    for reasons in (result.left_out, result.failures, result.trained):
        for name, reason in reasons.items():
            print(f"{name}: {reason}")
    print(f"see {options.output}")
    if damaged:
        raise CommandError(f"{len(damaged)} of {len(files)} recordings cannot be read: {', '.join(sorted(damaged))}")
    common.refuse_unread(files_of)


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("board", DESCRIPTION)
    parser.add_argument("folders", nargs="+", metavar="folder", help="BIDS or SWEC folders, other folders, or files")
    parser.add_argument("-o", "--output", required=True, help="folder for board.csv and board.html")
    parser.add_argument("--model", nargs="+", default=[], help="folders of finetuned models, or files of baselines")
    parser.add_argument("--add", nargs="+", default=[], help="Python files that call add_detector")
    common.add_reading_options(parser)
    return parser
