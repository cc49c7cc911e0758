"""What was left out (files, channels, rows and words of tables) and what was kept with a doubt, as lists."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from warnings import WarningMessage

import numpy as np
import numpy.typing as npt

from mvpa_ts.checks import grouped, listed
from mvpa_ts.files import write_text
from mvpa_ts.ieeg.constants import counted
from mvpa_ts.ieeg.recordings.finding import linked_recordings, other_recordings
from mvpa_ts.ieeg.recordings.guards import LeftOutWarning

LEFT_OUT = "left_out.tsv"
# Of a list on the screen; the table has all.
MOST_LINES = 20

# What of a recording where something was said of it, and nothing of it left out.
DOUBTED = "kept, with a doubt"

Row = tuple[str, str, str]  # recording or file, what of it ("" for all of it), and why or what was said


def of_recording(name: str, dropped: Mapping[str, str], left_out: Sequence[str], notes: Sequence[str]) -> list[Row]:
    """Rows of one recording: its channels by reason, what was left out of it, and what was doubted and kept.

    Examples
    --------
    >>> of_recording("night", {}, ["rows state no time"], ["seizures overlap"])
    [('night', '', 'rows state no time'), ('night', 'kept, with a doubt', 'seizures overlap')]
    >>> of_recording("night", {"EKG1": "no electrode", "A2": "marked bad", "EKG2": "no electrode"}, [], [])
    [('night', 'channels EKG1, EKG2', 'no electrode'), ('night', 'channel A2', 'marked bad')]
    """
    channels = grouped((reason, channel) for channel, reason in dropped.items())
    rows = [(name, f"channel{'s' * (len(of) > 1)} {', '.join(of)}", reason) for reason, of in channels.items()]
    return [*rows, *((name, "", text) for text in left_out), *((name, DOUBTED, note) for note in notes)]


def of_warnings(said: Iterable[WarningMessage]) -> list[Row]:
    """Rows of warnings that something was left out, which name it themselves."""
    return [("", "", str(item.message)) for item in said if item.category is LeftOutWarning]


def of_segments(name: str, segments: npt.ArrayLike, why: str) -> list[Row]:
    """A row of the segments [n] of a recording that are True, if there are some."""
    count = int(np.sum(segments))
    return [(name, counted(count, "segment"), why)] if count else []


def not_read(paths: Iterable[Path]) -> tuple[list[Row], list[Row]]:
    """Rows of what `find_recordings` leaves out of these folders: files of other kinds, and links."""
    folders = [path for path in paths if path.is_dir()]
    # By its place in the folder, since one in another subfolder may have the same name.
    others = {other: str(other.relative_to(folder)) for folder in folders for other in other_recordings(folder)}
    links = {link: to for folder in folders for link, to in linked_recordings(folder).items()}
    rows = [(link.name, "", f"a link to {to.name}, which is read once") for link, to in links.items()]
    return [(other, "", "of a kind that is not read") for other in others.values()], rows


def listing(rows: Iterable[Row], table: Path | None = None) -> list[str]:
    """The rows as lines, those that several recordings share as one, first what was left out; none without a row.

    Examples
    --------
    >>> listing([("a", "channel EKG", "no electrode"), ("b", "channel EKG", "no electrode"), ("c.trc", "", "not read")])
    ['left out:', '  a, b: channel EKG (no electrode)', '  c.trc: not read']
    """
    names = grouped(((what, why), name) for name, what, why in rows)
    sections: dict[str, list[str]] = {"left out": [], DOUBTED: []}
    for (what, why), of in names.items():
        shared = listed(of, 3)
        section, whole = sections[DOUBTED if what == DOUBTED else "left out"], what in ("", DOUBTED)
        # A message that names its recording needs no name before it.
        section.append(f"  {why if of[0] in why else f'{shared}: {why}'}" if whole else f"  {shared}: {what} ({why})")
    where = f", all in {table}" if table is not None else ""
    for lines in sections.values():
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"  and {len(lines) - MOST_LINES} more{where}"]
    return [line for heading, lines in sections.items() if lines for line in (f"{heading}:", *lines)]


def write_left_out(folder: Path, rows: Sequence[Row]) -> None:
    """Write ``left_out.tsv``, or remove that of an earlier run where nothing was left out."""
    if not rows:
        (folder / LEFT_OUT).unlink(missing_ok=True)
        return
    cells = [[" ".join(cell.split()) or "n/a" for cell in row] for row in rows]
    write_text(folder / LEFT_OUT, "\n".join(["recording\twhat\twhy", *("\t".join(row) for row in cells)]) + "\n")


def report_left_out(folder: Path, rows: Sequence[Row]) -> None:
    """Write ``left_out.tsv``, and print the rows as the command's last lines."""
    write_left_out(folder, rows)
    for line in listing(rows, folder / LEFT_OUT):
        print(line, file=sys.stderr)


def read_left_out(folder: Path) -> list[Row]:
    """Rows of ``left_out.tsv``; none where there is no such table."""
    if not (folder / LEFT_OUT).is_file():
        return []
    with (folder / LEFT_OUT).open(encoding="utf-8", newline="") as file:
        rows = [*csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
    return [(row[0], row[1].replace("n/a", ""), row[2]) for row in rows if len(row) == 3]
