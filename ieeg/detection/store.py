"""Probabilities on disk while a detection runs: appended only, so that a killed run goes on where it stopped."""

from __future__ import annotations

import errno
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

_FORMAT = "mvpformer probabilities 1"
_NOT_BEFORE = ("recording_samples",)  # settings that a store of version 0.2 lacks


class ProbabilityStore:
    """Rows ``(start, probability)`` of one recording under one set of settings, in order.

    The file is text. Its first line holds the settings as JSON; every row carries a checksum. Opening cuts off a row
    that a killed process left half written, and refuses a file with other settings. Rows come in the recording's order
    and each is checked against the start that is due, so none is lost or doubled.

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

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any], starts: npt.ArrayLike) -> None:
        self.path = Path(path)
        self.settings = json.loads(json.dumps(settings, sort_keys=True, allow_nan=False))
        self.starts = np.asarray(starts, dtype=np.float64)
        self._values: list[float] = []
        self._file = self._opened()

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """What is stored, [rows]; NaN where a segment could not be scored."""
        return np.array(self._values, dtype=np.float64)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def complete(self) -> bool:
        """Whether every window has its row."""
        return len(self) == len(self.starts)

    def append(self, probabilities: Sequence[float] | npt.NDArray[np.floating[Any]]) -> None:
        """Add the rows that follow those stored, and bring them to the disk."""
        values = [float(value) for value in probabilities]
        if len(self) + len(values) > len(self.starts):
            raise ValueError(
                f"{self.path} has {len(self)} of {len(self.starts)} rows; {len(values)} more rows are too many"
            )
        first = len(self)
        lines = [_line(first + i, self.starts[first + i], value) for i, value in enumerate(values)]
        try:
            self._file.write("".join(lines).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            kept = f"{first} of {len(self.starts)} rows are stored, a new run goes on from them"
            raise OSError(error.errno, f"{error.strerror}; {kept}", str(self.path)) from error
        self._values += values

    def close(self) -> None:
        """Give the file free."""
        self._file.close()

    def __enter__(self) -> ProbabilityStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError) if kind else nullcontext():  # what a full disk refuses is refused again on closing
            self.close()

    def _opened(self) -> IO[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+b")
        try:
            _lock(file, self.path)
            file.seek(0)
            data = file.read()
            header, newline, body = data.partition(b"\n")
            if not newline:
                # Empty, or killed within the header: nothing was stored yet.
                file.truncate(0)
                described = {"format": _FORMAT, "settings": self.settings}
                file.write(json.dumps(described, sort_keys=True).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                return file
            self._check_settings(header)
            whole = self._read_rows(body)
            file.truncate(len(header) + 1 + whole)
            return file
        except BaseException:
            file.close()
            raise

    def _check_settings(self, header: bytes) -> None:
        try:
            described = json.loads(header)
            if described["format"] != _FORMAT:
                raise KeyError("format")
            expected = {name: self.settings[name] for name in _NOT_BEFORE if name in self.settings}
            stored = expected | described["settings"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.path} is not a store of probabilities; move it away") from None
        if stored != self.settings:
            names = sorted(name for name in {*stored, *self.settings} if stored.get(name) != self.settings.get(name))
            raise ValueError(
                f"{self.path} was begun with other settings ({', '.join(names)}): use another output folder, or delete "
                "the file to begin anew"
            )

    def _read_rows(self, body: bytes) -> int:
        """Take the rows in; returns how many bytes of `body` are whole rows."""
        whole = 0
        lines = body.split(b"\n")
        for index, line in enumerate(lines[:-1]):
            value = _parsed(line, index, self.starts)
            if value is None:
                # Only the last row can be torn by a kill; anything else is damage or another recording.
                if index == len(lines) - 2 and lines[-1] == b"" and zlib.crc32(line[:-9]) != _checksum(line):
                    break
                raise ValueError(f"{self.path}: row {index + 1} is damaged or of another recording; delete the file")
            self._values.append(value)
            whole += len(line) + 1
        return whole


def _line(index: int, start: float, probability: float) -> str:
    row = f"{index}\t{start:.6f}\t{'nan' if math.isnan(probability) else repr(probability)}"
    return f"{row}\t{zlib.crc32(row.encode()):08x}\n"


def _checksum(line: bytes) -> int:
    try:
        return int(line[-8:], 16)
    except ValueError:
        return -1


def _parsed(line: bytes, index: int, starts: npt.NDArray[np.float64]) -> float | None:
    """The probability in a row that is whole and due, else None."""
    if zlib.crc32(line[:-9]) != _checksum(line):
        return None
    number, start, value = line[:-9].decode().split("\t")
    if index >= len(starts) or int(number) != index or start != f"{starts[index]:.6f}":
        return None
    return float(value)


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
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise  # some file systems of clusters, such as Lustre, have no locks: there it runs without
