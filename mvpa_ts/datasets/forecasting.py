"""Public forecasting benchmarks with the borders and the scaling that published tables use.

A file is looked for in the folder that the environment variable ``MVPA_TS_DATA`` names, then in the cache of the user.
If it is in neither, it is downloaded from its public address. Its checksum must be right. If you changed a file of
``MVPA_TS_DATA`` on purpose, list it in ``SHA256SUMS`` there, see `check_content`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mvpa_ts.datasets.checksums import check_content, downloader
from mvpa_ts.windows import Scaling, Windows

if TYPE_CHECKING:
    import pandas as pd

_ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small"
_WEATHER = "https://huggingface.co/datasets/thuml/Time-Series-Library/resolve/main/weather/weather.csv"
_ETTH1, _ETTH2 = ((f"ETT-small/{file}", f"{_ETT}/{file}") for file in ("ETTh1.csv", "ETTh2.csv"))
# name: (path below the data folder, public address, SHA-256)
_FILES = {
    "ETTh1": (*_ETTH1, "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"),
    "ETTh2": (*_ETTH2, "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b"),
    "Weather": ("weather/weather.csv", _WEATHER, "34ee981d07313e51da2a50bb600072c8ae4a69cb4b0651f4cb93a069d7a2ba63"),
}
FORECASTING_DATASETS = tuple(_FILES)
# A file holds this number for a value that was not measured; published tables count it as a value.
_MISSING_CODE = {"Weather": -9999.0}


def dataset_path(name: str) -> Path:
    """Return the path of the file of a dataset; download it if needed.

    Parameters
    ----------
    name : {"ETTh1", "ETTh2", "Weather"}

    Raises
    ------
    ValueError
        The name is unknown, or the file in ``MVPA_TS_DATA`` is not the published one; see `check_content`.
    OSError
        The file is not on this machine and could not be downloaded, or its checksum is wrong.
    """
    if name not in _FILES:
        raise ValueError(f"name must be one of {FORECASTING_DATASETS}, got {name!r}")
    relative, url, checksum = _FILES[name]
    if folder := os.environ.get("MVPA_TS_DATA"):
        local = Path(folder).expanduser() / relative
        if local.is_file():
            check_content(local, Path(folder).expanduser(), relative, checksum)
            return local
    pooch = downloader(name, relative, "neuralforecast")
    cache = Path(pooch.os_cache("mvpa-ts")) / relative
    try:
        return Path(pooch.retrieve(url, f"sha256:{checksum}", fname=cache.name, path=cache.parent, progressbar=True))
    except (OSError, ValueError) as error:  # requests raises an OSError; a wrong checksum is a ValueError
        raise OSError(f"{name} could not be downloaded from {url}: {error}") from error


def load_forecasting_frame(name: str) -> pd.DataFrame:
    """Load the dataset as published: a `date` column and one column for each channel, sorted by name.

    The channels are sorted because MVPA depends on their order, and neuralforecast sorts series by name.
    """
    import pandas as pd

    frame = pd.read_csv(dataset_path(name), parse_dates=["date"], encoding_errors="replace")
    return frame[["date", *sorted(frame.columns.drop("date"))]]


@dataclass(frozen=True)
class Borders:
    """Rows [start, stop) whose values are forecast in each part; a look-back may begin before its part."""

    train: tuple[int, int]
    validation: tuple[int, int]
    test: tuple[int, int]

    @classmethod
    def of(cls, name: str, rows: int) -> Borders:
        """Return the borders of a dataset with that many rows.

        ETT: 12, 4 and 4 months of 30 days; later rows are not used. Weather: the first 70 % train, the last 20 % test,
        and the rows between them validate.
        """
        if name.startswith("ETTh"):
            month = 30 * 24
            train, validation, test = 12 * month, 16 * month, 20 * month
        else:
            train, test = int(0.7 * rows), rows
            validation = rows - int(0.2 * rows)
        return cls((0, train), (train, validation), (validation, test))


def forecasting_windows(
    frame: pd.DataFrame, name: str, *, lookback: int, horizon: int, device: str = "cpu", clock: bool = False
) -> dict[str, Windows]:
    """Cut the parts "train", "validation" and "test" into all scaled windows at stride 1; none is dropped.

    Values that were not measured are marked as not observed, but count as targets, as in published tables. The scaler
    (mean and population standard deviation of each channel) is fitted on the train rows.

    Parameters
    ----------
    frame : DataFrame
        `date` and one column for each channel, as `load_forecasting_frame` returns it.
    name : str
        Dataset whose borders are used; see `Borders.of`.
    lookback, horizon : int
        Steps.
    device : str
    clock : bool
        Take the phase of a cycle from `date` instead of the row number; one step is the most frequent difference of
        dates. Weather repeats 06:00 on 12 May and skips 100 minutes on 29 May. Its table was made with False.

    Raises
    ------
    ValueError
        The frame is too short for the borders, or a part is too short for look-back and horizon.
    """
    values = frame.drop(columns="date").to_numpy(np.float64)
    borders = Borders.of(name, len(values))
    if len(values) < borders.test[1]:
        raise ValueError(f"{name} needs {borders.test[1]} rows, frame has {len(values)}")
    scaling = Scaling.of(values[slice(*borders.train)])
    tensor = torch.tensor(scaling.apply(values), dtype=torch.float32, device=device)
    observed = torch.tensor(values != _MISSING_CODE[name], device=device) if name in _MISSING_CODE else None
    positions = torch.tensor(clock_positions(frame["date"]), device=device) if clock else None
    windows = {}
    for division in ("train", "validation", "test"):
        start, stop = getattr(borders, division)
        first = max(start - lookback, 0)
        count = stop - lookback - horizon - first + 1
        if count < 1:
            raise ValueError(
                f"lookback ({lookback}) + horizon ({horizon}) must fit into the {division} part, got "
                f"{stop - start} rows there"
            )
        starts = torch.arange(first, first + count, device=device)
        windows[division] = Windows(tensor, starts, lookback, horizon, observed, positions=positions)
    return windows


def clock_positions(dates: pd.Series) -> np.ndarray:
    """Count the steps from the first date to each date, rounded; a step is the most frequent difference of dates."""
    passed = (dates - dates.iloc[0]).to_numpy()
    steps, counts = np.unique(np.diff(passed), return_counts=True)
    return np.rint(passed / steps[counts.argmax()]).astype(np.int64)
