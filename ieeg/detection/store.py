"""Probabilities on disk while a detection runs: appended only, so that a killed run goes on where it stopped."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt


class ProbabilityStore:
    """A table of starts and probabilities of one recording under one set of settings, which only grows.

    The file is text: a line with the settings as JSON, then for each segment a row with its number, start, probability
    and checksum. Opening cuts off a row that a killed process left half written. It refuses a file with other settings,
    and a row that is not the one that is due: none is lost or doubled.

    Parameters
    ----------
    path : path
    settings : mapping
        What the probabilities depend on: weights, configuration, preprocessing, channels, recording. JSON values.
    starts : array, shape (n,)
        Where the windows' last segments begin (s).

    Raises
    ------
    ValueError
        The file holds other settings, other starts, or is damaged before its last row.
    OSError
        Another process has the file open for writing.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ProbabilityStore(Path(folder) / "run", {"weights": "1f"}, [0.0, 5.0, 10.0]) as store:
    ...         store.append([0.25, 0.5])
    ...     with ProbabilityStore(Path(folder) / "run", {"weights": "1f"}, [0.0, 5.0, 10.0]) as store:
    ...         print(store.probabilities)
    [0.25 0.5 ]
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any], starts: npt.ArrayLike) -> None:
        self.path = Path(path)
        self.settings = json.loads(json.dumps(settings, sort_keys=True, allow_nan=False))
        self.starts = np.asarray(starts, dtype=np.float64)
        self._values: list[float] = []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            _lock(self._file, self.path)
            self._read()
        except BaseException:
            self._file.close()
            raise

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """What is stored, [rows]; NaN where a segment could not be scored."""
        return np.array(self._values, dtype=np.float64)

    def __len__(self) -> int:
        return len(self._values)

    def append(self, probabilities: Sequence[float] | npt.NDArray[np.floating[Any]]) -> None:
        """Add the rows that follow those stored, and bring them to the disk."""
        values = [float(value) for value in probabilities]
        count, most = len(self), len(self.starts)
        if count + len(values) > most:
            raise ValueError(f"{self.path} has {count} of {most} rows; {len(values)} more rows are too many")
        rows = [f"{self._due(number)}{value!r}" for number, value in enumerate(values, start=count)]
        try:
            self._write("".join(f"{row}\t{zlib.crc32(row.encode()):08x}\n" for row in rows))
        except OSError as error:
            stored = f"{count} of {most} rows are stored, a new run goes on from them"
            raise OSError(error.errno, f"{error.strerror}; {stored}", str(self.path)) from error
        self._values += values

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def __enter__(self) -> ProbabilityStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A full disk refuses on closing what it refused before, and would hide the first error.
        with suppress(OSError) if kind else nullcontext():
            self.close()

    def _write(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())  # a machine that loses power keeps the rows, too

    def _read(self) -> None:
        """Take in the settings and the rows, and cut off what a kill left of the last line."""
        self._file.seek(0)
        *lines, torn = self._file.read().split(b"\n")
        self._file.truncate(self._file.tell() - len(torn))
        if not lines:  # new, or killed within the settings
            self._write(json.dumps(self.settings, sort_keys=True) + "\n")
            return
        self._check_settings(lines[0])
        for number, line in enumerate(lines[1:]):
            row, _, checksum = line.rpartition(b"\t")
            whole = checksum == f"{zlib.crc32(row):08x}".encode()
            if number >= len(self.starts) or not whole or not row.startswith(self._due(number).encode()):
                raise ValueError(f"{self.path}: row {number + 1} is damaged or of another recording; delete the file")
            self._values.append(float(row.rpartition(b"\t")[2]))

    def _due(self, number: int) -> str:
        """What the row of this number begins with."""
        return f"{number}\t{self.starts[number]:.6f}\t"

    def _check_settings(self, line: bytes) -> None:
        try:
            stored = dict(json.loads(line))
        except (ValueError, TypeError):
            raise ValueError(f"{self.path} is not a store of probabilities; move it away") from None
        if stored != self.settings:
            names = sorted(name for name in {*stored, *self.settings} if stored.get(name) != self.settings.get(name))
            raise ValueError(
                f"{self.path} was begun with other settings ({', '.join(names)}): use another output folder, or delete "
                "the file to begin anew"
            )


def _lock(file: IO[bytes], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(f"{path} is being written by another process") from None
    except OSError as error:
        # Some file systems of clusters, such as Lustre, have no locks. A detection runs there without one.
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
