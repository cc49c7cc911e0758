"""Classification sets of the UEA archive, with the archive's own training and test files.

A file (``UEA/<name>/<name>_TRAIN.ts``) is looked for in the folder that the variable ``MVPA_TS_DATA`` names, then in
the installed sktime, which brings JapaneseVowels and BasicMotions, then in the cache of the user. If it is in none of
them, it is downloaded from the Zenodo record of the set, and must have the checksum that the record states. A file of
the data folder must hold as many series as in the archive, or be listed with its checksum in ``SHA256SUMS`` there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np

from mvpa_ts.datasets.checksums import SUMS, check_content, downloader, noted_checksum

MAX_CHANNELS = 100_000
# Of each set: its Zenodo record (Bagnall et al. 2018), and the numbers of series for training and for testing.
_SETS = {
    "BasicMotions": (11206179, 40, 40),
    "EthanolConcentration": (11206212, 261, 263),
    "FaceDetection": (11206216, 5890, 3524),
    "Handwriting": (11206227, 150, 850),
    "Heartbeat": (11206229, 204, 205),
    "JapaneseVowels": (18735628, 270, 370),
    "PEMS-SF": (11206252, 267, 173),
    "SelfRegulationSCP1": (11206265, 268, 293),
    "SelfRegulationSCP2": (11206269, 200, 180),
    "SpokenArabicDigits": (18734026, 6599, 2199),
    "UWaveGestureLibrary": (11206282, 120, 320),
}
UEA_DATASETS = tuple(_SETS)
_SPLITS = ("train", "test")


def load_uea(name: str, split: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Load one part of a set of the UEA archive.

    Parameters
    ----------
    name : str
        One of `UEA_DATASETS`, or another set whose files lie in the data folder.
    split : {"train", "test"}

    Returns
    -------
    series : list of float arrays, each of shape (C, L_i)
        NaN = missing; lengths may differ.
    labels : array of str, shape (n,)

    Raises
    ------
    ValueError
        The split or the name is unknown, or a file is damaged or does not hold as many series as the archive states.
    OSError
        The file is not on this machine and could not be downloaded, or its checksum is wrong.
    """
    path = uea_path(name, split)
    series, labels = read_ts(path)
    folder = Path(os.environ.get("MVPA_TS_DATA", "")).expanduser()
    if path != folder / "UEA" / name / path.name:
        return series, labels  # the cache and sktime have checksums of their own
    relative = f"UEA/{name}/{path.name}"
    expected = _SETS[name][1 + _SPLITS.index(split)] if name in _SETS else len(series)
    if (noted := noted_checksum(folder, relative)) is not None:
        check_content(path, folder, relative, noted)
    elif len(series) != expected:
        raise ValueError(
            f"{path} holds {len(series)} series, in the archive it has {expected}: it is cut short or changed. If it "
            f"was changed on purpose, say so in {folder}: sha256sum {relative} >> {SUMS}"
        )
    return series, labels


def uea_path(name: str, split: str) -> Path:
    """Return the path of the file of a part; download it if needed. Errors are those of `load_uea`."""
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {_SPLITS}, got {split!r}")
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"name must be that of a data set, got {name!r}")
    file = f"{name}_{split.upper()}.ts"
    folder = os.environ.get("MVPA_TS_DATA")
    places = [Path(folder).expanduser() / "UEA"] if folder else []
    if (host := importlib.util.find_spec("sktime")) is not None:
        places += [Path(place) / "datasets" / "data" for place in host.submodule_search_locations or ()]
    for place in places:
        if (place / name / file).is_file():
            return place / name / file
    if name not in _SETS:
        raise ValueError(f"name must be one of {UEA_DATASETS} or lie in MVPA_TS_DATA/UEA, got {name!r}")
    pooch = downloader(name, f"UEA/{name}/{file}", "sktime")
    return _cached(pooch, Path(pooch.os_cache("mvpa-ts")) / "UEA" / name / file, _SETS[name][0])


def _cached(pooch: Any, path: Path, record: int) -> Path:
    """Return a file of the cache; if it is missing or incomplete, download it and write its checksum beside it."""
    noted = path.with_suffix(".md5")
    if path.is_file() and noted.is_file() and hashlib.md5(path.read_bytes()).hexdigest() == noted.read_text():
        return path
    archive = pooch.create(path=path.parent, base_url=f"doi:10.5281/zenodo.{record}/")
    try:
        archive.load_registry_from_doi()  # names and checksums, as the record states them
        fetched = Path(archive.fetch(path.name, progressbar=True))
    except (OSError, ValueError) as error:  # requests raises an OSError; a wrong checksum or name is a ValueError
        raise OSError(f"{path.name} could not be downloaded from Zenodo record {record}: {error}") from error
    noted.write_text(hashlib.md5(fetched.read_bytes()).hexdigest())
    return fetched


def read_ts(path: str | Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Read the series [C, L_i] and labels of a `.ts` file of equally spaced, labelled series; "?" is a missing value.

    Raises
    ------
    ValueError
        The file has time stamps or no class labels, a number of the header or of a series cannot be read, or a line
        does not hold the channels that the header or the first line gives.
    """
    series: list[np.ndarray] = []
    labels: list[str] = []
    dimensions = None
    in_data = False
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            if not in_data:
                key, *values = line.lower().split()
                if key == "@timestamps" and values == ["true"]:
                    raise ValueError(f"{path} has time stamps; only equally spaced series can be read")
                if key == "@classlabel" and values[:1] != ["true"]:
                    raise ValueError(f"{path} has no class labels")
                if key == "@dimensions":
                    if not (values and values[0].isdecimal() and 1 <= int(values[0]) <= MAX_CHANNELS):
                        raise ValueError(f"{path}, line {number}: @dimensions must lie between 1 and {MAX_CHANNELS}")
                    dimensions = int(values[0])
                in_data = key == "@data"
                continue
            *channels, label = line.split(":")
            dimensions = dimensions or len(channels)
            if len(channels) != dimensions:
                raise ValueError(f"{path}, line {number}: {dimensions} channels expected, got {len(channels)}")
            try:
                series.append(_matrix(channels))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            labels.append(label.strip())
    if not series:
        raise ValueError(f"{path} holds no series")
    return series, np.array(labels)


def _matrix(channels: list[str]) -> np.ndarray:
    """Turn the comma-separated values of each channel into [C, L]; after its last value a channel is missing."""
    rows = [
        np.array([np.nan if value.strip() in ("", "?") else float(value) for value in channel.rstrip(", ").split(",")])
        for channel in channels
    ]
    if not rows:
        raise ValueError("there is no channel before the label")
    longest = max(map(len, rows))
    if len(rows) * longest > max(100 * sum(map(len, rows)), 1_000_000):
        raise ValueError(f"{len(rows)} channels of very different lengths, up to {longest}")
    values = np.full((len(rows), longest), np.nan)
    for target, row in zip(values, rows, strict=True):
        target[: len(row)] = row
    return values
