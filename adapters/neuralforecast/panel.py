"""Checks of the panel that the host hands to a model: what it lets pass and what would go wrong silently."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from neuralforecast.core import NeuralForecast
from neuralforecast.tsdataset import BaseTimeSeriesDataset
from torch import Tensor

from mvpa_ts.adapters.neuralforecast import callers
from mvpa_ts.adapters.neuralforecast.cycle import whole_positions
from mvpa_ts.windows import Scaling, Series, Windows, observed_range, series_windows


def check_local(dataset: Any, distributed_config: Any = None) -> None:
    """Refuse data that is split among workers: each would see some of the channels only."""
    pyspark = sys.modules.get("pyspark")
    in_worker = pyspark is not None and pyspark.TaskContext.get() is not None
    if distributed_config is not None or in_worker or not isinstance(dataset, BaseTimeSeriesDataset):
        raise ValueError(
            "df must be a pandas or polars frame, without distributed_config: Spark splits it by series, and MVPA "
            "attends across all series at once"
        )


def check_series(dataset: BaseTimeSeriesDataset, n_series: int) -> None:
    """Raise ValueError unless the panel has `n_series` series; the host trains on any number."""
    if len(dataset) != n_series:
        raise ValueError(f"n_series ({n_series}) must be the number of series in df, got {len(dataset)} there")


def check_static(dataset: BaseTimeSeriesDataset) -> None:
    """Raise ValueError for a static table of another number of series; the host would read past its end."""
    static = getattr(dataset, "static", None)
    if static is not None and len(static) != len(dataset):
        raise ValueError(
            f"static_df must have one row for each of the {len(dataset)} series of df, got {len(static)} rows"
        )


def check_values(dataset: BaseTimeSeriesDataset, cycle_column: str | None, ahead: int) -> None:
    """Raise ValueError for a series without a value, for infinite ones, and for a cycle without whole numbers.

    The last `ahead` rows of each series may lack their target.
    """
    if not hasattr(dataset, "temporal"):
        return  # parquet files are read series by series
    columns = dataset.temporal_cols
    available = dataset.temporal[:, columns.get_loc("available_mask")].numpy() > 0
    owner = np.repeat(np.arange(dataset.n_groups), np.diff(dataset.indptr))
    empty = np.flatnonzero(np.bincount(owner[available], minlength=dataset.n_groups) == 0)
    if len(empty):
        raise ValueError(
            f"df must hold at least one value of every series, got none of series {_names(dataset, empty)}"
        )
    known = np.arange(len(owner)) < (dataset.indptr[1:] - ahead)[owner]
    for number, column in enumerate(columns):
        values = dataset.temporal[:, number].numpy()
        lost = np.isnan(values) & known if number == dataset.y_idx else False
        broken = np.flatnonzero(available & (np.isinf(values) | lost))
        if len(broken):
            raise ValueError(_infinite(dataset, column, values[broken[0]], broken[0], owner[broken[0]]))
    if cycle_column is not None:
        phase = dataset.temporal[:, columns.get_loc(cycle_column)].numpy()[available]
        if not np.array_equal(phase, np.rint(phase)):
            raise ValueError(
                f"cycle_column={cycle_column!r} must hold whole numbers, the position in the cycle, unscaled: "
                "local_scaler_type of NeuralForecast scales it, use the model's scaler_type instead"
            )


def _infinite(dataset: BaseTimeSeriesDataset, column: str, value: float, row: int, owner: int) -> str:
    series = _names(dataset, np.array([owner]))
    advice = "mark the row as missing (available_mask = 0) or mend it"
    validated = callers.with_validation_rows()  # the host does not look for NaN in these
    if np.isnan(value) and not validated:
        return (
            f"df must hold finite numbers, got inf or NaN in column {column!r} of series {series}, which "
            f"local_scaler_type spreads over all its rows: {advice}"
        )
    host = callers.fitting(dataset)
    step = row - int(dataset.indptr[owner])
    where = f"in its row {step}" if host is None else f"at {np.asarray(host.ds)[row]}"
    frames = "df and val_df" if validated else "df"
    return f"{frames} must hold finite numbers, got {value} in column {column!r} of series {series} {where}: {advice}"


def check_length(dataset: BaseTimeSeriesDataset, val_size: int, test_size: int, input_size: int, h: int) -> None:
    """Raise ValueError unless rows are left for a window; the host says that there is none, not why."""
    if 0 < val_size < h:  # the host looks at the val_size of `fit` alone
        if callers.with_validation_rows():
            raise ValueError(f"val_df must have at least h ({h}) rows of each series, got {val_size}")
        raise ValueError(f"val_size must be 0 or at least h ({h}), got {val_size}")
    left = dataset.max_size - val_size - test_size
    if left <= input_size:
        raise ValueError(
            f"df must leave more than input_size ({input_size}) rows to train on, got {left}: its longest series has "
            f"{dataset.max_size} rows, less val_size ({val_size}) and test_size ({test_size}). Give a smaller "
            "val_size or input_size, or start_padding_enabled=True"
        )


def value_range(dataset: BaseTimeSeriesDataset, held_out: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each series but for its last rows; infinite for a series without any, [N] each."""
    if not hasattr(dataset, "temporal"):
        raise ValueError(
            "bounded=True needs df in memory, got parquet files, which are read series by series: pass df as a frame"
        )
    y = dataset.temporal[:, [dataset.y_idx]]
    trained = dataset.temporal[:, [dataset.temporal_cols.get_loc("available_mask")]] > 0
    ranges = []
    for start, stop in pairwise(dataset.indptr.tolist()):
        trained[max(start, stop - held_out) : stop] = False
        ranges.append(torch.stack(observed_range(y[start:stop], trained[start:stop])))
    lower, upper = torch.cat(ranges, dim=1)
    return lower, upper


def windows(
    dataset: BaseTimeSeriesDataset,
    held_out: int,
    explained: np.ndarray | float = 0.0,
    *,
    lookback: int,
    horizon: int,
    cycle_column: str | None,
) -> Windows:
    """Windows of all rows of the panel but the last, series as channels; rows are counted from the series' ends.

    What is `explained` already is subtracted from the values.
    """
    if not hasattr(dataset, "temporal"):
        raise ValueError(
            "ridge needs df in memory, got parquet files, which are read series by series: pass df as a frame, or "
            "ridge=None"
        )
    position = 0 if cycle_column is None else positions(dataset, cycle_column)[: -held_out or None]
    values = rows(dataset, held_out) - explained
    largest = np.nanmax(np.abs(values), axis=0, initial=0.0)
    # Zero stays zero: to it the level returns. A series far from zero that hardly varies would leave float32.
    scale = np.maximum(np.nan_to_num(units(dataset, held_out)[:, 1]), 1e-8 * largest)
    scaling = Scaling(np.zeros(dataset.n_groups), np.where(scale > 0.0, scale, 1.0))
    return series_windows([Series(values, position=position)], [scaling], lookback=lookback, horizon=horizon)["train"]


def windows_count(dataset: BaseTimeSeriesDataset, held_out: int, *, lookback: int, horizon: int) -> int | None:
    """Whole windows of the longest series but for its last rows; None for parquet files."""
    if not hasattr(dataset, "temporal"):
        return None
    return max(0, int(np.diff(dataset.indptr).max()) - held_out - lookback - horizon + 1)


def positions(dataset: BaseTimeSeriesDataset, cycle_column: str) -> np.ndarray:
    """Positions in the cycle of all rows, counted from the series' ends, by the clock where the column has it."""
    temporal, columns = dataset.temporal, dataset.temporal_cols
    missing = temporal[:, columns.get_loc("available_mask")] == 0
    column = temporal[:, columns.get_loc(cycle_column)].masked_fill(missing, 0.0).round().long()
    length = int(np.diff(dataset.indptr).max())
    found = torch.zeros(length, dataset.n_groups, dtype=torch.long)
    known = torch.zeros(length, dataset.n_groups, dtype=torch.bool)
    for series, (start, stop) in enumerate(pairwise(dataset.indptr.tolist())):
        found[length - (stop - start) :, series] = column[start:stop]
        known[length - (stop - start) :, series] = ~missing[start:stop]
    return whole_positions(found, known.any(1)).numpy()


def warn_of_long_cycle(
    dataset: BaseTimeSeriesDataset, held_out: int, cycle_column: str | None, cycle_length: int | None
) -> None:
    """Warn where the rows of the panel but the last hold no phase of the cycle twice."""
    if cycle_column is None or cycle_length is None or not hasattr(dataset, "temporal"):
        return
    phases = positions(dataset, cycle_column)[: -held_out or None] % cycle_length
    if len(np.unique(phases)) == len(phases):
        warnings.warn(
            f"cycle_length ({cycle_length}) should be smaller than the number of rows to train on, got {len(phases)}: "
            f"no step of the cycle comes twice in {cycle_column!r}, so it cannot be learnt. Give more rows, a shorter "
            "cycle_length, or leave cycle_length and cycle_column out",
            stacklevel=2,
        )


def rows(dataset: BaseTimeSeriesDataset, held_out: int, *, weighed: bool = False) -> np.ndarray:
    """Values of all rows but the last, [rows, N], counted from the series' ends; NaN is missing.

    Rows whose sample weight is 0 count as missing if `weighed`.
    """
    temporal, columns = dataset.temporal.numpy(), dataset.temporal_cols
    missing = temporal[:, columns.get_loc("available_mask")] == 0
    if weighed and "sample_weight" in columns:
        missing = missing | ~(temporal[:, columns.get_loc("sample_weight")] > 0)
    values = np.full((np.diff(dataset.indptr).max(), dataset.n_groups), np.nan)
    for series, (start, stop) in enumerate(pairwise(dataset.indptr.tolist())):
        y = temporal[start:stop, dataset.y_idx].astype(float)
        values[len(values) - len(y) :, series] = np.where(missing[start:stop], np.nan, y)
    return values[: max(0, len(values) - held_out)]


def known_features(dataset: BaseTimeSeriesDataset, held_out: int, names: Sequence[str]) -> np.ndarray:
    """Columns of all rows but the last, [rows, N, F], counted from the series' ends; NaN is missing."""
    temporal, columns = dataset.temporal.numpy(), dataset.temporal_cols
    chosen = [columns.get_loc(name) for name in names]
    table = np.full((np.diff(dataset.indptr).max(), dataset.n_groups, len(chosen)), np.nan)
    for series, (start, stop) in enumerate(pairwise(dataset.indptr.tolist())):
        table[len(table) - (stop - start) :, series] = temporal[start:stop, chosen]
    return table[: max(0, len(table) - held_out)]


def units(dataset: BaseTimeSeriesDataset, held_out: int) -> np.ndarray:
    """Mean and deviation of each series but for its last rows, [N, 2]; NaN for a constant series or one in a file."""
    if not hasattr(dataset, "temporal"):
        return np.full((len(dataset), 2), np.nan)
    values = rows(dataset, held_out, weighed=True)
    observed = ~np.isnan(values)
    count = observed.sum(0)
    count = np.where(count > 1, count, np.nan)
    mean = np.where(observed, values, 0.0).sum(0) / count
    deviation = np.sqrt((np.where(observed, values - mean, 0.0) ** 2).sum(0) / count)
    varies = deviation > 1e-12 * np.abs(mean)
    return np.where(varies[:, None], np.stack([mean, deviation], axis=1), np.nan)


def feature_scales(dataset: BaseTimeSeriesDataset, held_out: int, names: Sequence[str]) -> dict[str, list[float]]:
    """Mean and deviation of exogenous columns over the rows of all series but the last `held_out`; none for files."""
    if not hasattr(dataset, "temporal") or not names:
        return {}
    columns, owner = dataset.temporal_cols, np.repeat(np.arange(dataset.n_groups), np.diff(dataset.indptr))
    trained = np.arange(len(owner)) < (dataset.indptr[1:] - held_out)[owner]
    trained &= dataset.temporal[:, columns.get_loc("available_mask")].numpy() > 0
    static = dataset.static_cols
    scales = {}
    for name in names:
        if name in columns:
            values = dataset.temporal[:, columns.get_loc(name)].numpy()[trained]
        elif static is not None and name in static:
            values = dataset.static[:, static.get_loc(name)].numpy()
        else:
            continue  # the host names it
        scaling = Scaling.of(values[:, None].astype(float))
        scales[name] = [float(scaling.location[0]), float(scaling.scale[0])]
    return scales


def check_dates(dataset: BaseTimeSeriesDataset, read: int | None = None) -> None:
    """Raise ValueError for dates that occur twice in a series; warn of a wrong freq, and of rows that are absent.

    The host counts steps from each series' end and gives models no dates: a series that lacks some would be put
    beside the wrong steps of the others, and where all lack some, steps are not as far apart as they seem.
    `read` is the number of last rows that `predict` reads; None in `fit`, which reads all.
    """
    known = callers.fitted_dates(dataset) if read is None else callers.predicted_dates(dataset, read)
    if known is None:
        return
    host, names, parts = known
    polars = not isinstance(names, pd.Series)
    for name, part in zip(names, parts, strict=True):
        repeated = part[1:][part[1:] == part[:-1]]
        if len(repeated):
            columns = [host.id_col, host.time_col]
            drop = f"df.unique({columns})" if polars else f"df.drop_duplicates({columns})"
            raise ValueError(
                f"df must hold each date once in a series, got {_shown(repeated[0])} twice in series {name!r}: drop a "
                f"row, as {drop} does"
            )
    dates = np.unique(np.concatenate(parts))
    jump = _jump(dates, host.freq)
    fact = f"the dates of df do not follow freq={host.freq!r}: {jump}. neuralforecast counts each row as one step."
    if jump is not None and (other := _other_frequency(dates, host.freq)) is not None:
        told = f"freq={other!r}" if other and not polars else "freq to that of the dates"
        advice = f"Set {told}." if read is None else f"The models were fitted to freq={host.freq!r}: give such rows."
        warnings.warn(f"{fact} {advice}", stacklevel=2)
        return
    facts, last = [], dates[-1:]
    if early := [repr(name) for name, part in zip(names, parts, strict=True) if part[-1:] != last]:
        begin = (
            "ends before {}, so its forecast begins" if len(early) == 1 else "end before {}, so their forecasts begin"
        )
        facts.append(f"series {listed(early)} {begin.format(_shown(dates[-1]))} at another date")
    if lacking := [
        repr(name)
        for name, part in zip(names, parts, strict=True)
        if part[-1:] == last and not np.array_equal(part, dates[len(dates) - len(part) :])
    ]:
        facts.append(f"series {listed(lacking)} {'lacks' if len(lacking) == 1 else 'lack'} dates that others have")
    if facts:
        fact = (
            f"{', and '.join(facts)}. neuralforecast counts steps from the end of each series, so MVPA reads the wrong "
            "steps side by side."
        )
    if facts or jump is not None:
        warnings.warn(f"{fact} {_lines_that_mend(host, polars)}", stacklevel=2)


def _lines_that_mend(host: NeuralForecast, polars: bool) -> str:
    """Three lines that run as they are printed."""
    y = f"df[{host.target_col!r}]"
    freq = host.freq if isinstance(host.freq, (str, int)) else host.freq.freqstr
    others = {"id_col": (host.id_col, "unique_id"), "time_col": (host.time_col, "ds")}
    columns = "".join(f", {option}={name!r}" for option, (name, usual) in others.items() if name != usual)
    mask = (
        f"df = df.with_columns(available_mask={y}.is_not_null().cast(float))"
        if polars
        else f'df["available_mask"] = {y}.notna().astype(float)'
    )
    return (
        "Add the missing rows:\nfrom utilsforecast.preprocessing import fill_gaps\n"
        f'df = fill_gaps(df, {freq!r}, end="global"{columns})\n{mask}'
    )


def _jump(dates: np.ndarray, freq: Any) -> str | None:
    """Where sorted dates leave the grid of a frequency; None where they do not, or where it is polars'."""
    if isinstance(freq, str) and re.fullmatch(r"\d+(m|d|w|mo|q|y|i)", freq):
        return None  # a name of polars, which pandas would read as another frequency
    found: Any
    grid: Any
    if np.issubdtype(dates.dtype, np.number):
        found, grid = dates, np.arange(len(dates)) * freq + dates[0]
    else:
        found = pd.DatetimeIndex(dates)
        grid = pd.date_range(found[0], periods=len(found), freq=freq)
    wrong = np.flatnonzero(np.asarray(found != grid))
    if not len(wrong):
        return None
    first = wrong[0]
    return (
        f"after {found[first - 1]} comes {found[first]}, not {grid[first]}" if first else f"they begin with {found[0]}"
    )


def _other_frequency(dates: np.ndarray, freq: Any) -> Any:
    """The frequency of dates that jump, if `freq` is not theirs; "" where it cannot be told.

    None where rows are absent: most dates follow the one before, at other distances than all the same.
    """
    found: Any = dates if np.issubdtype(dates.dtype, np.number) else pd.DatetimeIndex(dates)
    if found is dates:
        steps, counts = np.unique(np.diff(dates), return_counts=True)
        usual = int(steps[counts.argmax()])
        return None if usual == freq else usual
    offset = pd.tseries.frequencies.to_offset(freq)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some offsets are slow to add
        follows = np.asarray(found[1:] == found[:-1] + offset)
    whole = pd.infer_freq(found) if len(found) > 2 else None
    if whole is None and follows.sum() * 2 >= len(follows) > 0:
        return None
    stretches = (found[start : start + 8] for start in range(0, min(len(found) - 7, 400), 4))
    name = whole or next((name for stretch in stretches if (name := pd.infer_freq(stretch))), "")
    return None if name and pd.tseries.frequencies.to_offset(name) == offset else name


def _shown(date: Any) -> Any:
    return pd.Timestamp(date) if isinstance(date, np.datetime64) else date


def check_order(dataset: BaseTimeSeriesDataset, channel_order: Sequence[Any] | str | None) -> None:
    """Raise ValueError if a list of ids does not hold those of the panel."""
    if channel_order is None or isinstance(channel_order, str):
        return
    if len(dataset) != len(channel_order):
        raise ValueError(
            f"channel_order names {len(channel_order)} series, the panel has {len(dataset)}: give its order to "
            "finetune(channel_order=…)"
        )
    names = callers.ids(dataset)
    if names is not None and set(names) != set(channel_order):
        strange = sorted(repr(name) for name in set(channel_order) ^ set(names))
        raise ValueError(
            f"channel_order must hold exactly the ids of the panel, these are in only one of them: {listed(strange)}"
        )
    if names is not None and names != sorted(names):
        raise ValueError(
            f"channel_order needs a unique_id that sorts by name, got categories in the order "
            f"{listed([repr(name) for name in names])}: make unique_id a column of strings"
        )


def _names(dataset: BaseTimeSeriesDataset, positions: np.ndarray) -> str:
    names = callers.ids(dataset)
    return listed([f"number {i} by name" if names is None else repr(names[i]) for i in positions.tolist()])


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first five of many."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
