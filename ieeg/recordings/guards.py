"""What a file may ask for: regular files, names inside its own folder, sizes that its bytes can hold.

Files come from others and may be damaged or made to do harm. What a header states is compared with the file's own size
and with the limits below before anything of that size is made.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PureWindowsPath

from mvpa_ts.checks import warn

# Channels of a file; the widest probes have some 5,000 sites.
MAX_CHANNELS = 10_000
# Samples per second; amplifiers end at some 50 kHz.
MAX_RATE = 1e6
# Of a table or a header of text, such as events.tsv.
MAX_TABLE_BYTES = 64 * 2**20
# Advice at the end of an error of a file that was cut off.
READ_ALL_THE_SAME = 'To read what is there, add --truncated read in a command, or pass truncated="read" in Python'


class LeftOutWarning(UserWarning):
    """Something of a recording was left out. Other warnings doubt what was kept."""


warn_left_out = partial(warn, category=LeftOutWarning)


def check_regular(path: Path) -> None:
    """Raise a ValueError where a path is not a regular file: reading a pipe or a device may never end."""
    if not path.exists():
        raise FileNotFoundError(f"no file {path}")
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file (a pipe, a device or a folder), so it is not read")


def check_local(name: str, path: Path, what: str) -> None:
    r"""Raise a ValueError where a name that stands in a file leads out of the file's own folder.

    Slashes may be of either kind; `what` is how the file calls the name, such as "DataFile".

    Examples
    --------
    >>> check_local("night.eeg", Path("night.vhdr"), "DataFile")
    >>> check_local("..\\other.eeg", Path("night.vhdr"), "DataFile")
    Traceback (most recent call last):
    ValueError: night.vhdr names a file outside its own folder as its DataFile, which is not followed
    """
    # A file may come from any system, so "..\\" leads out of the folder as well as "../".
    named = PureWindowsPath(name)  # takes both kinds of slashes
    if named.is_absolute() or named.drive or named.root or ".." in named.parts or "\0" in name:
        raise ValueError(f"{path} names a file outside its own folder as its {what}, which is not followed")


def read_text_bytes(path: Path) -> bytes:
    """All of a table or header of text; a ValueError where it is no regular file or larger than `MAX_TABLE_BYTES`."""
    check_regular(path)
    # A table is read whole, and a recording that was given a table's name would fill the memory.
    if (size := os.path.getsize(path)) > MAX_TABLE_BYTES:
        raise ValueError(f"{path} has {size} bytes, a table or header has at most {MAX_TABLE_BYTES}")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """A table or header of text in UTF-8; in UTF-16, as Excel writes it; else in Windows-1252, with a warning."""
    content = read_text_bytes(path)
    with suppress(UnicodeDecodeError):
        # Some programs write no mark before it; then every second byte of plain letters is zero.
        wide = content[:2] in (b"\xff\xfe", b"\xfe\xff") or content[1:2] == b"\0"
        return content.decode("utf-16" if wide else "utf-8-sig")
    # Most programs of Western Europe write it, and nearly any bytes are letters of it.
    warn(f"{path} is not UTF-8 and is read as Windows-1252: save it as UTF-8 if it is neither")
    return content.decode("cp1252", errors="replace")


def check_once(path: Path, columns: Sequence[str]) -> None:
    """Raise a ValueError for a table with two columns of one name, of which only the last would be read."""
    if twice := [name for name in columns if name.strip() and columns.count(name) > 1]:
        raise ValueError(f"{path} has the column {twice[0]!r} more than once: rename one of them")


def check_size(path: Path, needed: int, what: str, advice: str = "") -> None:
    """Raise a ValueError where a file is shorter than its header says."""
    if (size := os.path.getsize(path)) < needed:
        raise ValueError(f"{path} is truncated: its header promises {what}, {needed} bytes, and it has {size}{advice}")


def damaged(path: Path, why: str) -> ValueError:
    """The error of a file that is not what it should be."""
    return ValueError(f"{path} cannot be read: truncated, damaged or not what its name says ({why})")


@contextmanager
def damage_is_an_error(path: str | Path, where: str = "") -> Iterator[None]:
    """Make one ValueError, which names the file, of the many exceptions that other libraries raise for a damaged one.

    The message states the kind of exception and not its text, which may quote what stands in the file; that text is in
    ``__cause__``. A ValueError that begins with a name of the file passes, and so do a file that is not there and
    memory that is exhausted. `where` says what was being read, such as " at samples [0, 512)".
    """
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            yield
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # MNE and HDF5 raise every kind
        file = Path(path)
        # Our own errors name the file first and pass unchanged. All others may quote what stands in the file.
        # Tables of a BIDS data set lie in the folders above.
        names = (*(f"{parent}{os.sep}" for parent in file.parents), file.name.partition(".")[0])
        if isinstance(error, ValueError) and str(error).startswith(names):
            raise
        why = f"truncated, damaged or not what its name says ({type(error).__name__})"
        if str(error).startswith("Split raw file"):  # as MNE says of a FIF file
            why = "it is split, and its next part is not there. Put all parts beside it, named as MNE named them"
        if str(error).startswith("No raw data in"):
            why = "it holds epochs or averages and no continuous signal. Give the recording that they were made from"
        raise ValueError(f"{path} cannot be read{where}: {why}") from error
