"""Opening HDF5 files of others: clear errors, and nothing followed that leads out of the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.ieeg.recordings.guards import MAX_CHANNELS, check_regular

if TYPE_CHECKING:
    import h5py

MAX_CHUNK_BYTES = 2**29
"""Of one chunk after decompression; SWEC's, 3 min of 128 channels at 1024 Hz, have 94 MB."""


def open_hdf5(path: Path, **options: Any) -> h5py.File:
    """Open a file to read, with the lz4 filters of SWEC files at hand.

    Raises
    ------
    FileNotFoundError
    ValueError
        It is no regular file, truncated, damaged or no HDF5 file.
    """
    import h5py
    import hdf5plugin  # noqa: F401  registers the filters

    check_regular(path)
    try:
        return h5py.File(path, "r", **options)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be opened: truncated, damaged or no HDF5 file") from error


def local_object(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset | None:
    """What a file holds under a name, None without it; a ValueError where a link leads elsewhere.

    Parameters
    ----------
    file : h5py.File
    name : str
        Such as ``data/seizures``; no group on the way may be a link either.
    """
    import h5py

    parts = name.split("/")
    for step in ("/".join(parts[: i + 1]) for i in range(len(parts))):
        link = file.get(step, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{file.filename}: {step} is a link to elsewhere, which is not followed")
    return file[name]


def local_dataset(file: h5py.File, name: str, *, virtual: bool = False) -> h5py.Dataset:
    """A data set of numbers whose samples lie in this file, not where a link or a list of other files points.

    Parameters
    ----------
    file : h5py.File
    name : str
        Such as ``data/ieeg``; no group on the way may be a link either.
    virtual : bool
        Allow a virtual data set, whose sources the caller checks.

    Raises
    ------
    ValueError
        There is no such data set, it leads elsewhere, its chunks are larger than `MAX_CHUNK_BYTES`, or the file lacks
        some of them, for which HDF5 would read zeros.
    """
    import h5py

    path = file.filename
    dataset = local_object(file, name)
    if dataset is None:
        raise ValueError(f"{path} has no {name}; it holds {[*file][:20]}")
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiu":
        raise ValueError(f"{path}: {name} must be an array of numbers")
    if dataset.external is not None or (dataset.is_virtual and not virtual):
        raise ValueError(f"{path}: {name} keeps its samples in other files, which are not followed")
    if not dataset.is_virtual:
        _check_stored(dataset, path, name)
    return dataset


def _check_stored(dataset: h5py.Dataset, path: str, name: str) -> None:
    """Raise a ValueError where a data set states more than its file stores, or chunks that no memory should hold."""
    if dataset.chunks is None:
        needed = int(np.prod([float(length) for length in dataset.shape])) * dataset.dtype.itemsize
        if dataset.id.get_storage_size() < needed:
            raise ValueError(
                f"{path} is truncated: {name} states {needed} bytes, {dataset.id.get_storage_size()} are there"
            )
        return
    size = int(np.prod([float(length) for length in dataset.chunks])) * dataset.dtype.itemsize
    if size > MAX_CHUNK_BYTES:
        raise ValueError(f"{path}: a chunk of {name} has {size} bytes, more than {MAX_CHUNK_BYTES}")
    expected = 1
    for length, chunk in zip(dataset.shape, dataset.chunks, strict=True):
        expected *= -(-length // chunk)
    if (present := dataset.id.get_num_chunks()) < expected:
        raise ValueError(
            f"{path} is truncated: {name} has {present} of its {expected} chunks, and HDF5 would read zeros for the "
            "others"
        )


def small_array(file: h5py.File, name: str, most: int = MAX_CHANNELS) -> np.ndarray | None:
    """A data set of at most `most` values of any kind, which lies in this file; None without it.

    Raises
    ------
    ValueError
        It is no data set, is larger, or leads elsewhere.
    """
    import h5py

    dataset = local_object(file, name)
    if dataset is None:
        return None
    if not isinstance(dataset, h5py.Dataset) or dataset.external is not None or dataset.is_virtual:
        raise ValueError(f"{file.filename}: {name} must be an array that is stored in the file")
    if dataset.shape is None or dataset.size > most:
        raise ValueError(f"{file.filename}: {name} must hold at most {most} values, it has shape {dataset.shape}")
    if dataset.chunks is not None and np.prod([float(length) for length in dataset.chunks]) > 1000 * most:
        raise ValueError(f"{file.filename}: {name} is stored in chunks of {dataset.chunks}")
    return np.asarray(dataset[()])
