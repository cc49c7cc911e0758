"""Recordings of the SWEC iEEG data set: HDF5 parts of a subject and the total file over them, with its traps.

A total file is a virtual data set. Its sources may point into another subject's folder, and HDF5 reads a source that is
missing as zeros, without a word. So sources are checked one by one, and samples are always read from the parts.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mvpa_ts.checks import listed, warn
from mvpa_ts.ieeg.recordings import hdf5
from mvpa_ts.ieeg.recordings.guards import MAX_CHANNELS, damage_is_an_error
from mvpa_ts.ieeg.recordings.levels import warn_if_implausible
from mvpa_ts.ieeg.recordings.recording import Interval, Recording, Signal

SIGNAL, SEIZURES = "data/ieeg", "data/seizures"
RATES = (512.0, 1024.0)
# Rows of a table of seizures.
MAX_SEIZURES = 100_000
MAX_PARTS = 100_000
_PART = re.compile(r"(.+)_part_(\d+)\.h5")
_KEPT_CHUNKS = 2
_TIMES = ("onsets", "offsets")


@dataclass(frozen=True)
class Part:
    """Samples [first, first + samples) of a recording, which are the columns of one file."""

    path: Path
    first: int
    samples: int


class SwecSource:
    """Samples of parts that follow one another; every process opens its own handles.

    Whole chunks are read straight to where they belong. Those read in part are kept, as 5 s at a time must not
    decompress 3 min each time. HDF5's own cache would take fresh memory for every chunk, a quarter of the reading time.
    """

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self._first = np.array([file.first for file in parts])
        self._open: dict[int, h5py.Dataset] = {}
        self._chunks: OrderedDict[tuple[int, int], Signal] = OrderedDict()
        self._process = os.getpid()

    def read(self, start: int, stop: int, channels: NDArray[np.intp]) -> Signal:
        """See `Source.read`."""
        x = np.empty((len(channels), stop - start), np.float32)
        self.read_into(x, 0, start, stop, channels)
        return x

    def read_into(self, out: Signal, column: int, start: int, stop: int, channels: NDArray[np.intp]) -> None:
        """Samples [start, stop) into `out` from column `column` on."""
        for index in range(int(np.searchsorted(self._first, start, "right")) - 1, len(self.parts)):
            file = self.parts[index]
            low, high = max(start, file.first), min(stop, file.first + file.samples)
            if low >= high:
                return
            with damage_is_an_error(file.path, f" at samples [{low - file.first}, {high - file.first})"):
                self._read_part(index, out, column + low - start, low - file.first, high - file.first, channels)

    def _read_part(self, index: int, out: Signal, column: int, low: int, high: int, channels: NDArray[np.intp]) -> None:
        dataset = self._dataset(index)
        rows, samples = dataset.shape
        # Compressed chunks are the unit of reading: a part of one costs as much as the whole.
        width = dataset.chunks[1] if dataset.chunks else samples
        direct = dataset.dtype == out.dtype and out.flags.c_contiguous and np.array_equal(channels, np.arange(rows))
        for left, right in itertools.pairwise([low, *range((low // width + 1) * width, high, width), high]):
            number, first = left // width, column + left - low
            target = np.s_[:, first : first + right - left]
            whole = not dataset.chunks or right - left == min(width, samples - number * width)
            if not whole or (index, number) in self._chunks:
                chunk = self._chunk(index, number, width)
                out[target] = chunk[channels, left - number * width : right - number * width]
            elif direct:
                dataset.read_direct(out, np.s_[:, left:right], target)
            else:  # a chunk holds all channels, so nothing is saved by reading fewer
                out[target] = dataset[:, left:right][channels]

    def _chunk(self, index: int, number: int, width: int) -> Signal:
        """All channels of one chunk of a part."""
        key = index, number
        if key not in self._chunks:
            while len(self._chunks) >= _KEPT_CHUNKS:
                self._chunks.popitem(last=False)
            self._chunks[key] = self._dataset(index)[:, number * width : (number + 1) * width]
        self._chunks.move_to_end(key)
        return self._chunks[key]

    def _dataset(self, index: int) -> h5py.Dataset:
        if self._process != os.getpid():  # a forked worker must not use its parent's handles
            self._open, self._process = {}, os.getpid()
        if index not in self._open:
            # Two handles at a time: reading goes from a part to the next one, and a subject may have hundreds.
            while len(self._open) > 1:
                self._open.pop(next(iter(self._open))).file.close()
            self._open[index] = hdf5.open_hdf5(self.parts[index].path, rdcc_nbytes=0)[SIGNAL]
        return self._open[index]

    def close(self) -> None:
        """Close the handles; the next reading opens them again."""
        for dataset in self._open.values():
            dataset.file.close()
        self._open = {}
        self._chunks.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_chunks": OrderedDict()}


def read_swec(path: str | Path, *, subject: str | None = None) -> Recording:
    """A recording of the SWEC iEEG data set.

    Parameters
    ----------
    path : path
        A subject's folder (``ID04``), its total file (``ID04_total.h5``), or one part, which has no seizures.
    subject : str, optional
        The files' prefix by default, "ID04".

    Returns
    -------
    Recording
        In µV, `preprocessed`; channels are called "ch1", "ch2", … because the files do not name them.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}")
    # The parts hold the samples, and the total file the seizures and what a subject is like.
    total, paths = _files(path)
    rate: float | None = None
    channels: int | None = None
    parts: list[Part] = []
    for part_path in paths:
        with damage_is_an_error(part_path), hdf5.open_hdf5(part_path) as file:
            shape = _signal(file, part_path, virtual=False).shape
            own_rate = _rate(file, part_path)
        if channels not in (None, shape[0]) or rate not in (None, own_rate):
            raise ValueError(
                f"{part_path} has {shape[0]} channels at {own_rate:g} Hz, the parts before it {channels} at {rate:g} Hz"
            )
        channels, rate = shape[0], own_rate
        parts.append(Part(part_path, parts[-1].first + parts[-1].samples if parts else 0, shape[1]))
    seizures: list[Interval] | None = None
    attributes: dict[str, Any] = {}
    if total is not None:
        rate, channels, parts, seizures, attributes = _read_total(total, parts, rate, channels)
    elif path.is_dir():
        warn(f"{path} has no total file, so its seizures are unknown")
    if not parts or rate is None or channels is None:
        raise FileNotFoundError(f"{path} holds neither parts nor a total file with samples of its own")
    prefix = _prefix(paths[0] if paths else total or path)
    recording = Recording(
        SwecSource(tuple(parts)),
        sfreq=rate,
        channel_names=[f"ch{i + 1}" for i in range(channels)],
        num_samples=parts[-1].first + parts[-1].samples,
        subject=subject or prefix,
        name=prefix if path.is_dir() or path == total else path.stem,
        seizures=seizures,
        metadata=attributes,
        preprocessed=True,
    )
    warn_if_implausible(recording)
    recording.close()  # a cohort that is only opened holds no chunks
    return recording


def prefix_of(path: Path) -> str | None:
    """The subject in the names of a recording's files, without opening them; None where there is no such file."""
    if path.is_file():
        return _prefix(path) if path.suffix.lower() == ".h5" else None
    files = itertools.chain(path.glob("*_total.h5"), path.glob("*_part_*.h5"))
    return next((_prefix(file) for file in files), None)


def _prefix(file: Path) -> str:
    return file.stem.partition("_part_")[0].removesuffix("_total")


def _files(path: Path) -> tuple[Path | None, list[Path]]:
    """Total file, if any, and the parts in order."""
    if path.is_file() and _PART.fullmatch(path.name):
        return None, [path]
    folder = path if path.is_dir() else path.parent
    totals = [path] if path.is_file() else sorted(folder.glob("*_total.h5"))
    if len(totals) > 1:
        raise ValueError(f"{folder} holds several total files, {[t.name for t in totals]}: pass the path of one")
    parts = [(match, file) for file in folder.glob("*_part_*.h5") if (match := _PART.fullmatch(file.name))]
    if totals:
        parts = [(match, file) for match, file in parts if match[1] == _prefix(totals[0])]
    elif len({match[1] for match, _ in parts}) > 1:
        raise ValueError(f"{folder} must hold the parts of one subject, got several: keep each in a separate folder")
    numbered = sorted((int(match[2]), file) for match, file in parts)
    # HDF5 would read zeros for a missing part, which look like a disconnected amplifier.
    if missing := sorted(set(range(1, len(numbered) + 1)) - {number for number, _ in numbered}):
        raise FileNotFoundError(f"{folder}: part {missing[0]} is missing; there are {[n for n, _ in numbered]}")
    return totals[0] if totals else None, [file for _, file in numbered]


def _read_total(
    total: Path, parts: list[Part], rate: float | None, channels: int | None
) -> tuple[float, int, list[Part], list[Interval] | None, dict[str, Any]]:
    """What the total file says, with the parts to read; raises where it contradicts the parts."""
    hdf5.check_heaps(total)
    with damage_is_an_error(total), hdf5.open_hdf5(total) as file:
        signal = _signal(file, total, virtual=True)
        own_rate = _rate(file, total)
        if rate not in (None, own_rate):
            raise ValueError(f"{total} has {own_rate:g} Hz, its parts have {rate:g} Hz")
        if channels not in (None, signal.shape[0]):
            raise ValueError(f"{total} has {signal.shape[0]} channels, its parts have {channels}")
        # Some downloads have one file that holds all samples itself.
        if not signal.is_virtual:
            parts = [Part(total, 0, signal.shape[1])]
        else:
            _check_sources(total, signal, parts, file)
        seizures = _seizures(file, total)
        stated = {key: _plain(hdf5.small_attribute(file, key, texts=True)) for key in ("age", "sex")}  # never a name
        attributes = {key: value for key, value in stated.items() if value is not None}
    return own_rate, signal.shape[0], parts, seizures, attributes


def _check_sources(total: Path, signal: h5py.Dataset, parts: list[Part], file: h5py.File) -> None:
    """Compare a virtual data set with the parts of its own folder, which are read whatever it points at."""
    info = hdf5.small_array(file, "info/files", MAX_PARTS)
    listed = [] if info is None else [Path(_text(name)).name for name in np.ravel(info)]
    names = {file_part.path.name for file_part in parts}
    absent = [name for name in listed if _PART.fullmatch(name) and name not in names]
    if absent and len(listed) != len(parts):
        raise FileNotFoundError(f"{total} lists {absent[0]}, which is not in {total.parent}")
    sources = signal.virtual_sources()
    wrong = sorted({source.file_name for source in sources if str(Path(source.file_name)) not in names})
    samples = sum(file_part.samples for file_part in parts)
    if samples != signal.shape[1]:
        missing = f"; {wrong[0]} is not there" if wrong else ""
        raise FileNotFoundError(
            f"{total} has {signal.shape[1]} samples, the parts beside it have {samples}{missing}: a part is missing "
            "or incomplete, and HDF5 would read zeros in its place"
        )
    if wrong:
        warn(f"{total} points at {wrong[0]}; the {len(parts)} parts beside it are read instead")
        return
    part_of = {file_part.path.name: file_part for file_part in parts}
    for source in sources:
        (_, start), (_, stop) = source.vspace.get_select_bounds()
        target = part_of[str(Path(source.file_name))]
        # Another order would move every seizure, whose times count in the order of the total file.
        if (start, stop) != (target.first, target.first + target.samples - 1):
            warn(f"{total} does not hold its parts in order; they are read in order")
            return


def _signal(file: h5py.File, path: Path, virtual: bool) -> h5py.Dataset:
    """`data/ieeg` after a check of its shape."""
    dataset = hdf5.local_dataset(file, SIGNAL, virtual=virtual)
    if dataset.ndim != 2 or min(dataset.shape) == 0:
        raise ValueError(f"{path}: {SIGNAL} must have shape (channels, samples), it has {dataset.shape}")
    if len(dataset) > MAX_CHANNELS:
        raise ValueError(f"{path}: {SIGNAL} must have at most {MAX_CHANNELS} channels, it has {len(dataset)}")
    stated = hdf5.small_attribute(file, "channels")
    if stated is not None and len(stated) == 1 and stated.dtype.kind in "iuf" and stated[0] != len(dataset):
        raise ValueError(f"{path} states {stated[0]} channels and holds {len(dataset)}")
    return dataset


def _rate(file: h5py.File, path: Path) -> float:
    value = hdf5.small_attribute(file, "sampling_rate")
    if value is None or len(value) != 1 or value.dtype.kind not in "iuf" or float(value[0]) not in RATES:
        stated = "none" if value is None else value.tolist()
        raise ValueError(f"{path}: sampling_rate must be 512 or 1024 Hz, got {stated}")
    return float(value[0])


def _seizures(file: h5py.File, path: Path) -> list[Interval] | None:
    """Compound or group with onsets and offsets in seconds, each (n,) or (n, 1)."""
    stored = hdf5.local_object(file, SEIZURES)
    if stored is None:
        # A damaged name would make the seizures vanish without a word.
        if others := sorted(set(file["data"]) - {"ieeg"}):
            raise ValueError(f"{path} has no {SEIZURES}, and its data names {listed(others)}: is it damaged?")
        warn(f"{path} has no {SEIZURES}, so its seizures are unknown")
        return None
    columns: dict[str, Any] = {}
    if isinstance(getattr(stored, "dtype", None), np.dtype):
        names = stored.dtype.names or ()
        table = hdf5.small_array(file, SEIZURES, MAX_SEIZURES)
        columns = {name: table[name] for name in names} if table is not None else {}
    else:
        names = tuple(stored)
        columns = {name: hdf5.small_array(file, f"{SEIZURES}/{name}", MAX_SEIZURES) for name in names if name in _TIMES}
    if not set(_TIMES) <= set(columns):
        raise ValueError(f"{path}: {SEIZURES} must hold onsets and offsets, it holds {list(names)[:20]}")
    onsets, offsets = (np.ravel(columns[name]).astype(np.float64) for name in _TIMES)
    # A cut table would pair the wrong onsets and offsets.
    if len(onsets) != len(offsets):
        raise ValueError(f"{path}: {len(onsets)} seizure onsets and {len(offsets)} offsets")
    if not (np.isfinite(onsets).all() and np.isfinite(offsets).all()):
        raise ValueError(f"{path}: a seizure has an onset or offset that is not a finite number")
    return list(zip(onsets.tolist(), offsets.tolist(), strict=True))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _plain(value: NDArray[Any] | None) -> str | float | None:
    """A text or number, None for anything else."""
    if value is None or len(value) != 1:
        return None
    if isinstance(value[0], bytes | str):
        return _text(value[0])[:20]
    return value[0].item() if value.dtype.kind in "fiu" else None
