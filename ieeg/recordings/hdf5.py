"""Opening HDF5 files of others: clear errors, and nothing followed that leads out of the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import h5py


def open_hdf5(path: Path, **options: Any) -> h5py.File:
    """Open a file to read, with the lz4 filters of SWEC files at hand.

    Raises
    ------
    FileNotFoundError
    ValueError
        It is truncated, damaged or no HDF5 file.
    """
    import h5py
    import hdf5plugin  # noqa: F401  registers the filters

    try:
        return h5py.File(path, "r", **options)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be opened: truncated, damaged or no HDF5 file ({error})") from error


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
        There is no such data set, or it leads elsewhere.
    """
    import h5py

    path = file.filename
    parts = name.split("/")
    for step in ("/".join(parts[: i + 1]) for i in range(len(parts))):
        link = file.get(step, getlink=True)
        if link is None:
            raise ValueError(f"{path} has no {name}; it holds {[*file]}")
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{path}: {step} is a link to elsewhere, which is not followed")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiu":
        raise ValueError(f"{path}: {name} must be an array of numbers")
    if dataset.external is not None or (dataset.is_virtual and not virtual):
        raise ValueError(f"{path}: {name} keeps its samples in other files, which are not followed")
    return dataset
