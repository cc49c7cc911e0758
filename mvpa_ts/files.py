"""Files that are written whole or not at all: a reader finds the old file or the new one, also after a kill.

A damaged file is an error that names it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file that replaces `path` at the end of the block, or is deleted if the block fails.

    The parent folder is made. The file gets the permissions of any new file of this process.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced(Path(folder) / "table.tsv") as temporary:
    ...         _ = temporary.write_text("onset\\n")
    ...     print([file.name for file in Path(folder).iterdir()])
    ['table.tsv']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays, because matplotlib, MNE and numpy choose the format by it. Names have 255 bytes at most.
    temporary = path.with_name(f".{path.stem[:40]}-{secrets.token_hex(4)}{path.suffix}")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        temporary.replace(path)
    except OSError as error:  # a full disk is reported without the file's name
        if error.errno is None or error.filename is not None:
            raise
        kept = "so it was not written and an older one is whole"
        raise OSError(error.errno, f"{error.strerror}, {kept}", str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing_alone(folder: str | os.PathLike[str], *, wait: bool = True) -> Iterator[None]:
    """Make a folder, and let others who write into it so wait for the block's end, where the system has locks.

    Without `wait` an OSError says that another process writes there.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            import fcntl

            stack.callback(os.close, descriptor := os.open(folder, os.O_RDONLY))
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise OSError(f"{folder} is being written by another process") from None
        except (ImportError, OSError):  # Windows has none, nor have some file systems of clusters
            pass
        yield


@contextmanager
def replaced_together(folder: str | os.PathLike[str], description: str, *others: str) -> Iterator[list[Path]]:
    """As `replaced` for files that belong together, of which a reader needs the first, `description`.

    It is removed before the others take their places, and comes last: after a kill in between, the folder is refused,
    and no file is read with one of another save. Of two saves at once, one waits for the other.
    """
    with writing_alone(folder), ExitStack() as stack:
        yield [stack.enter_context(replaced(Path(folder) / name)) for name in (description, *others)]
        (Path(folder) / description).unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes through a temporary file."""
    with replaced(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8 through a temporary file."""
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write indented JSON through a temporary file; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_csv(path: str | os.PathLike[str], frame: pd.DataFrame) -> None:
    """Write a table as CSV through a temporary file, so that a spreadsheet takes no text in it for a formula.

    A spreadsheet runs text that begins with ``=``, ``+``, ``-`` or ``@``, and names of subjects may come from unknown
    files. Such text gets an apostrophe in front, which spreadsheets do not show.

    Parameters
    ----------
    path : path
    frame : DataFrame
        Written without its index.
    """

    def safe(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

    with replaced(path) as temporary:
        frame.map(safe).rename(columns=safe).to_csv(temporary, index=False)


def read_config(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`; raises a ValueError if the file holds something else."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # nested 10⁵ deep, JSON is no configuration either
        raise ValueError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config
