"""HDF5 files from others: clear errors, and no link out of the file is followed."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  registers the lz4 filters of SWEC files
import numpy as np

from mvpa_ts.ieeg.recordings.guards import MAX_CHANNELS, check_regular

# Of one chunk after decompression; SWEC's, 3 min of 128 channels at 1024 Hz, have 94 MB.
MAX_CHUNK_BYTES = 2**29
_HEAP_WINDOW = 2**25


def open_hdf5(path: Path, **options: Any) -> h5py.File:
    """Open a file to read, with the lz4 filters of SWEC files at hand."""
    check_regular(path)
    try:
        return h5py.File(path, "r", **options)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be opened: truncated, damaged or not an HDF5 file") from error


def check_heaps(path: Path) -> None:
    """Raise a ValueError where a file's texts and lists of other files are damaged so that HDF5 would hang or crash.

    HDF5 2.0 walks such a heap by the sizes that its objects state, for ever where one is 0, and takes the number of
    sources of a virtual data set as it is. Heaps are looked for in the first and the last 32 MiB.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        for start in sorted({0, max(size - _HEAP_WINDOW, 0)}):
            file.seek(start)
            content = file.read(_HEAP_WINDOW)
            for match in re.finditer(rb"GCOL\x01\0\0\0", content):
                begin = match.start()
                length = int.from_bytes(content[begin + 8 : begin + 16], "little")
                # A list that ends beyond the file was cut or changed, and HDF5 would read on behind it.
                if not 16 <= length <= size - start - begin:
                    raise ValueError(f"{path} is truncated or damaged: a list of texts ends after the file")
                if not _walks(content[begin : begin + length]):
                    raise ValueError(f"{path} is damaged: a list of texts or of other files cannot be read")


def _walks(heap: bytes) -> bool:
    """Whether the objects of a global heap follow one another to its end."""
    position = 16
    while position + 16 <= len(heap):
        index, _, _, length = struct.unpack_from("<HHIQ", heap, position)
        if index == 0:  # free space, whose length counts its own header
            if not 16 <= length <= len(heap) - position:
                return False
            position += length
            continue
        if length > len(heap) - position - 16:
            return False
        block = heap[position + 16 : position + 16 + length]
        # No text begins so; the sources of a virtual data set do, with their number after it.
        if len(block) > 12 and block[0] in (0, 1) and int.from_bytes(block[1:9], "little") > length:
            return False
        position += 16 + -(-length // 8) * 8
    return True


def small_attribute(file: h5py.File, name: str, *, texts: bool = False) -> np.ndarray | None:
    """The values of an attribute; None where it is missing or holds no numbers.

    With `texts` those of any length are read too, for which HDF5 reads the file's heap; see `check_heaps`.
    """
    if name not in file.attrs:
        return None
    attribute = file.attrs.get_id(name)
    # An attribute is a number or a short text. A large one is damage or a trap, and reading it would take its memory.
    if math.prod(attribute.shape) > 100 or attribute.dtype.itemsize > 1000:
        return None
    if attribute.dtype.kind not in "fiuS" and not (texts and h5py.check_string_dtype(attribute.dtype)):
        return None
    return np.ravel(file.attrs[name])


def local_object(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset | None:
    """What a file holds under a name such as ``data/seizures``, None without it; no group on the way may be a link."""
    parts = name.split("/")
    for step in ("/".join(parts[: i + 1]) for i in range(len(parts))):
        # A soft or external link may point at any file that this user can read.
        link = file.get(step, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{file.filename}: {step} is a link to elsewhere, which is not followed")
    return file[name]


def local_dataset(file: h5py.File, name: str, *, virtual: bool = False) -> h5py.Dataset:
    """A data set of numbers whose samples lie in this file, not where a link or a list of other files points.

    With `virtual` it may be a virtual data set, whose sources the caller checks.
    """
    path = file.filename
    dataset = local_object(file, name)
    if dataset is None:
        raise ValueError(f"{path} has no {name}; it holds {[*file][:20]}")
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiu":
        raise ValueError(f"{path}: {name} must be an array of numbers")
    # HDF5 would open the other files without a word, wherever they lie.
    if dataset.external is not None or (dataset.is_virtual and not virtual):
        raise ValueError(f"{path}: {name} keeps its samples in other files, which are not followed")
    if not dataset.is_virtual:
        _check_stored(dataset, path, name)
    return dataset


def _check_stored(dataset: h5py.Dataset, path: str, name: str) -> None:
    if dataset.chunks is None:
        needed = math.prod(dataset.shape) * dataset.dtype.itemsize
        if (stored := dataset.id.get_storage_size()) < needed:
            raise ValueError(f"{path} is truncated: {name} states {needed} bytes, {stored} are there")
        return
    # A chunk is unpacked whole, and a few compressed bytes can state any size.
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if size > MAX_CHUNK_BYTES:
        raise ValueError(f"{path}: a chunk of {name} has {size} bytes, more than {MAX_CHUNK_BYTES}")
    expected = math.prod(-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    if (present := dataset.id.get_num_chunks()) < expected:
        raise ValueError(
            f"{path} is truncated: {name} has {present} of its {expected} chunks, and HDF5 would read zeros for others"
        )


def small_array(file: h5py.File, name: str, most: int = MAX_CHANNELS) -> np.ndarray | None:
    """A data set of at most `most` values of any kind, which lies in this file; None without it."""
    dataset = local_object(file, name)
    if dataset is None:
        return None
    if not isinstance(dataset, h5py.Dataset) or dataset.external is not None or dataset.is_virtual:
        raise ValueError(f"{file.filename}: {name} must be an array that is stored in the file")
    if dataset.shape is None or dataset.size > most:
        raise ValueError(f"{file.filename}: {name} must hold at most {most} values, it has shape {dataset.shape}")
    if dataset.chunks is not None and math.prod(dataset.chunks) > 1000 * most:
        raise ValueError(f"{file.filename}: {name} is stored in chunks of {dataset.chunks}")
    return np.asarray(dataset[()])
