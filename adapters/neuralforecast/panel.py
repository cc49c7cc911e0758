"""Checks of the panel that the host hands to a model: what it lets pass and what would go wrong silently."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import torch
from neuralforecast.core import NeuralForecast
from neuralforecast.tsdataset import BaseTimeSeriesDataset
from torch import Tensor

from mvpa_ts.windows import Scaling, Series, Windows, observed_range, series_windows

# The two lines that mend a panel whose series do not share their dates.
_MEND = (
    'Add the missing rows: df = utilsforecast.preprocessing.fill_gaps(df, freq, end="global"); '
    'df["available_mask"] = df["y"].notna().astype(float)'
)


def check_local(dataset: Any, distributed_config: Any = None) -> None:
    """Refuse data that is split among workers: each would see some of the channels only."""
    pyspark = sys.modules.get("pyspark")
    in_worker = pyspark is not None and pyspark.TaskContext.get() is not None
    if distributed_config is not None or in_worker or not isinstance(dataset, BaseTimeSeriesDataset):
        raise ValueError(
            "df must be a pandas or polars frame: Spark splits it by series, and MVPA attends across all series at once"
        )


def check_series(dataset: BaseTimeSeriesDataset, n_series: int) -> None:
    """Raise ValueError unless the panel has `n_series` series; the host trains on any number."""
    if len(dataset) != n_series:
        raise ValueError(f"n_series ({n_series}) must be the number of series in df, got {len(dataset)} there")


def check_values(dataset: BaseTimeSeriesDataset, cycle_column: str | None) -> None:
    """Raise ValueError for a series without a value and for a cycle column without whole numbers."""
    if not hasattr(dataset, "temporal"):
        return  # parquet files are read series by series
    columns = dataset.temporal_cols
    available = dataset.temporal[:, columns.get_loc("available_mask")].numpy() > 0
    owner = np.repeat(np.arange(dataset.n_groups), np.diff(dataset.indptr))
    empty = np.flatnonzero(np.bincount(owner[available], minlength=dataset.n_groups) == 0)
    if len(empty):
        raise ValueError(f"df must hold a value of every series, got none of series {_names(dataset, empty)}")
    if cycle_column is not None:
        phase = dataset.temporal[:, columns.get_loc(cycle_column)].numpy()[available]
        if not np.array_equal(phase, np.rint(phase)):
            raise ValueError(
                f"cycle_column={cycle_column!r} must hold whole numbers, the position in the cycle, unscaled: "
                "local_scaler_type of NeuralForecast scales it, use the model's scaler_type instead"
            )


def value_range(dataset: BaseTimeSeriesDataset, held_out: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each series but for its last rows; infinite for a series without any, [N] each."""
    if not hasattr(dataset, "temporal"):
        raise ValueError("bounded needs df in memory: parquet files are read series by series")
    y = dataset.temporal[:, [dataset.y_idx]]
    trained = dataset.temporal[:, [dataset.temporal_cols.get_loc("available_mask")]] > 0
    ranges = []
    for start, stop in pairwise(dataset.indptr.tolist()):
        trained[max(start, stop - held_out) : stop] = False
        ranges.append(torch.stack(observed_range(y[start:stop], trained[start:stop])))
    lower, upper = torch.cat(ranges, dim=1)
    return lower, upper


def windows(
    dataset: BaseTimeSeriesDataset, held_out: int, *, lookback: int, horizon: int, cycle_column: str | None
) -> Windows:
    """Windows of all rows of the panel but the last, series as channels; rows are counted from the series' ends."""
    if not hasattr(dataset, "temporal"):
        raise ValueError("ridge needs df in memory: parquet files are read series by series")
    columns, temporal = dataset.temporal_cols, dataset.temporal.numpy()
    lengths = np.diff(dataset.indptr)
    values = np.full((lengths.max(), dataset.n_groups), np.nan)
    for series, (start, stop) in enumerate(pairwise(dataset.indptr.tolist())):
        y = temporal[start:stop, dataset.y_idx].astype(float)
        missing = temporal[start:stop, columns.get_loc("available_mask")] == 0
        values[len(values) - len(y) :, series] = np.where(missing, np.nan, y)
    position = 0
    if cycle_column is not None:
        longest = dataset.indptr[lengths.argmax()]
        position = round(float(temporal[longest, columns.get_loc(cycle_column)]))
    rows = Series(values[: len(values) - held_out], position=position)
    unscaled = Scaling(np.zeros(dataset.n_groups), np.ones(dataset.n_groups))
    return series_windows([rows], [unscaled], lookback=lookback, horizon=horizon)["train"]


def check_dates(dataset: BaseTimeSeriesDataset) -> None:
    """Raise ValueError for dates that occur twice in a series, warn of series that do not share their dates.

    The host counts steps from each series' end and gives models no dates: a series that lacks some would be put
    beside the wrong steps of the others.
    """
    host = next((host for host, _ in _callers() if getattr(host, "dataset", None) is dataset), None)
    if host is None or len(host.ds) != int(dataset.indptr[-1]):
        return  # called without NeuralForecast, or with validation rows of their own: no dates to see
    dates = np.asarray(host.ds)
    grid = np.unique(dates)
    unaligned = []
    for name, part in zip(host.uids, np.split(dates, dataset.indptr[1:-1]), strict=True):
        repeated = part[1:][part[1:] == part[:-1]]
        if len(repeated):
            raise ValueError(f"df must hold each date once in a series, got {repeated[0]} twice in series {name!r}")
        if not np.array_equal(part, grid[len(grid) - len(part) :]):
            unaligned.append(repr(name))
    if unaligned:
        warnings.warn(
            f"series {_listed(unaligned)} lack dates that others have; neuralforecast counts steps from the end of "
            f"each series, so MVPA sees them beside the wrong steps. {_MEND}",
            stacklevel=2,
        )


def check_ends(dataset: BaseTimeSeriesDataset) -> None:
    """Warn of series that end before others: the host would forecast each from its own end, without a word."""
    for _, variables in _callers():
        dates = variables.get("last_dates")
        if variables.get("dataset") is dataset and dates is not None:
            ends = np.asarray(dates)
            if early := [repr(name) for name, end in zip(variables["uids"], ends, strict=True) if end != ends.max()]:
                warnings.warn(
                    f"series {_listed(early)} end before {ends.max()}, so their forecasts begin at other dates, and "
                    f"MVPA sees them beside the wrong steps. {_MEND}",
                    stacklevel=2,
                )
            return


def check_order(dataset: BaseTimeSeriesDataset, channel_order: Sequence[Any] | None) -> None:
    """Raise ValueError if `channel_order` does not hold the panel's ids."""
    if channel_order is None:
        return
    if len(dataset) != len(channel_order):
        raise ValueError(f"channel_order names {len(channel_order)} series, the panel has {len(dataset)}")
    ids = _ids(dataset)
    if ids is not None and set(ids) != set(channel_order):
        strange = sorted(repr(name) for name in set(channel_order) ^ set(ids))
        raise ValueError(f"channel_order must hold the ids of the panel; not in both: {_listed(strange)}")
    if ids is not None and ids != sorted(ids):
        raise ValueError(
            f"channel_order needs a unique_id that sorts by name, got categories in the order "
            f"{_listed([repr(name) for name in ids])}: make unique_id a column of strings"
        )


def _ids(dataset: BaseTimeSeriesDataset) -> list[Any] | None:
    """The panel's ids: no dataset holds them, the NeuralForecast object that is calling the model does."""
    for host, variables in _callers():
        if variables.get("dataset") is dataset and "uids" in variables:  # predict
            return list(variables["uids"])
        if getattr(host, "dataset", None) is dataset:  # fit
            return list(host.uids)
    return None


def _callers() -> Iterator[tuple[NeuralForecast, dict[str, Any]]]:
    """NeuralForecast objects among the callers, with the variables of their methods."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), NeuralForecast):
            yield caller, frame.f_locals
        frame = frame.f_back


def _names(dataset: BaseTimeSeriesDataset, positions: np.ndarray) -> str:
    ids = _ids(dataset)
    return _listed([f"number {i} by name" if ids is None else repr(ids[i]) for i in positions.tolist()])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
