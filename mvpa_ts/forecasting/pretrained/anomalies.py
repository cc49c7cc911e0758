"""Anomalies of a panel: values that the pretrained forecaster did not expect, and sensors that stand still.

Each row is forecast from the rows before it. A value's score is its distance from the median, in widths of the 80 %
interval on that side. A sensor that repeats its last value gets a score by how much longer it stands still than ever
before. A value is an anomaly if its score lies above the quantile of all earlier scores of the panel. It is conformal:
the share of alarms is kept whatever the scores are. The level follows what it gave so far (Gibbs and Candès, Adaptive
conformal inference under distribution shift, 2021), because real panels change.
"""

from __future__ import annotations

from datetime import datetime
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from mvpa_ts.checks import listed, warn
from mvpa_ts.forecasting.pretrained.base import LEAST_STEPS, BaseForecaster
from mvpa_ts.forecasting.pretrained.pretrained import load_base
from mvpa_ts.forecasting.pretrained.seasons import checked_season
from mvpa_ts.windows import Scaling

STEPS = 8
"""Rows that are forecast at once: fewer cost more time, and see a sensor fail less clearly."""
_CONTEXT = 512
_MOST_READ = 512  # windows times series of a batch
_STILL = 5  # rows by which a sensor must stand still longer than before to be as strange as at the interval's end
_STILL_POWER = 3
_FOLLOW = 0.5  # how fast the level follows the alarms, as a share of the rate
_LEVELS = (0.2, 1.5)  # of the rate: real panels get stranger more often than calmer


def detect_anomalies(
    df: Any, rate: float = 0.01, *, network: BaseForecaster | None = None, season: int | None = None
) -> Any:
    """Values that nobody would expect from the rows before them, with a promised rate of false alarms.

    Parameters
    ----------
    df : pandas.DataFrame
        As neuralforecast takes it, with columns `unique_id`, `ds` and `y`; or as sktime takes it, a column a series.
        Rows are regular in time; those that are absent count as missing, as do NaN and ``available_mask`` 0.
    rate : float, default 0.01
        Share of the values that are to be called an anomaly where nothing is wrong.
    network : BaseForecaster, optional
        Another one than `load_base()`, such as one that was trained further.
    season : int, optional
        Steps of the season that the calendar gives, such as 288 of every 5 minutes.

    Returns
    -------
    pandas.DataFrame
        A row for each value that was judged: `unique_id`, `ds`, `y`, what was expected of it (`forecast`), `score`, the
        `threshold` that was exceeded, and `anomaly`. `source` says which series of the panel a row's anomalies come
        from: that of the largest score, since a broken sensor misleads the forecasts of its neighbours, too.

    Raises
    ------
    ValueError
        `rate` is not between 0 and 1, or the panel has too few rows to keep it: the first 16 rows are read only, and
        ``1 / rate`` scores are needed before the first judgement. Panels of more series need fewer rows.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from mvpa_ts.forecasting.pretrained import detect_anomalies
    >>> draws = np.random.default_rng(0)
    >>> wave = np.sin(np.arange(120) / 4)[:, None]
    >>> table = pd.DataFrame(wave + 0.1 * draws.standard_normal((120, 2)), columns=["a", "b"])
    >>> table.loc[100, "b"] += 3.0
    >>> found = detect_anomalies(table, rate=0.01)
    >>> found.loc[found["source"] & (found["ds"] == 100), "unique_id"].tolist()
    ['b']
    """
    import pandas as pd

    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0.0 < float(rate) < 1.0:
        raise ValueError(
            f"rate must be a share of values between 0 and 1, such as 0.01, got {rate!r}: without false alarms nothing "
            "can be found"
        )
    season = checked_season(season)
    # A compiled one holds the forecaster.
    if network is not None and not isinstance(getattr(network, "_orig_mod", network), BaseForecaster):
        raise ValueError(f"network must be None or a forecaster, such as load_base('small'), got {network!r:.100}")
    table = _table(df)
    values = table.to_numpy()
    if infinite := listed(table.columns[np.isinf(values).any(0)]):
        raise ValueError(f"df must hold finite numbers, or NaN for missing values; got infinite ones of {infinite}")
    if empty := listed(table.columns[np.isnan(values).all(0)]):
        raise ValueError(f"df must hold a value of each series, got none of {empty}: leave them out")
    # By a power of two, which rounds nothing: squares of 1e-200 and 1e200 would be zero and infinite.
    unit = np.ldexp(1.0, np.frexp(np.nanmax(values / 2, axis=0) - np.nanmin(values / 2, axis=0))[1])
    values = values / unit
    needed = LEAST_STEPS + int(np.ceil(1.0 / rate / values.shape[1])) + 1
    if len(values) < needed:
        raise ValueError(
            f"df must have at least {needed} rows for rate={rate:g} of {values.shape[1]} series, got {len(values)}: "
            "give more rows, or a larger rate"
        )
    quantiles = rolling_quantiles(load_base() if network is None else network, values, season)
    scores = np.fmax(surprise(values, quantiles), stillness(values, quantiles))
    anomaly, threshold = alarms(scores, rate)
    # Neighbours of a broken sensor are flagged, too; the one that is furthest off is to blame.
    largest = np.where(anomaly, scores, -np.inf)
    source = anomaly & (largest == largest.max(1, keepdims=True))
    judged = np.isfinite(threshold) & np.isfinite(scores)
    row, column = np.nonzero(judged)
    return pd.DataFrame(
        {
            "unique_id": table.columns[column],
            "ds": table.index[row],
            "y": (values * unit)[judged],
            "forecast": (quantiles[..., 4] * unit)[judged],
            "score": scores[judged],
            "threshold": threshold[judged],
            "anomaly": anomaly[judged],
            "source": source[judged],
        }
    )


def _table(df: Any) -> Any:
    """A frame of either host as a column a series, rows in order on their grid, NaN where one is missing."""
    import pandas as pd

    if hasattr(df, "to_dicts"):  # of polars
        days = {name: datetime for name, kind in df.schema.items() if str(kind) == "Date"}
        df = pd.DataFrame(df.cast(days).to_dict(as_series=False))
    df = df.to_frame() if isinstance(df, pd.Series) else df
    if not isinstance(df, pd.DataFrame) or isinstance(df.index, pd.MultiIndex):
        got = "a MultiIndex" if isinstance(df, pd.DataFrame) else type(df).__name__
        raise TypeError(
            f"df must be a frame with columns unique_id, ds and y, or with a column a series, got {got}: take "
            "df.reset_index(), or pd.DataFrame(df)"
        )
    if df.empty:
        raise ValueError(f"df must have rows and columns, got {df.shape[0]} rows and {df.shape[1]} columns")
    if not df.columns.is_unique:
        twice = df.columns[df.columns.duplicated()][0]
        raise ValueError(f"df must have each column once, got {twice!r} more than once: rename one")
    if long := "unique_id" in df.columns:
        if lacking := sorted({"ds", "y"} - {*df.columns}):
            raise ValueError(f"df must have the columns unique_id, ds and y, got none of {lacking}: rename yours")
        if others := [name for name in df.columns if name not in ("unique_id", "ds", "y", "available_mask")]:
            warn(f"df has columns that are not read, beside unique_id, ds and y: {listed(map(repr, others))}")
        if (lost := df[["unique_id", "ds"]].isna().any(axis=1).to_numpy()).any():
            raise ValueError(f"df must have id and date in each row, got none in row {lost.argmax()}: leave it out")
        mask = df.get("available_mask", pd.Series(1, df.index))
        if (other := ~mask.isin((0, 1))).any():
            raise ValueError(f"df must hold 0 or 1 in column 'available_mask', got {mask[other].iloc[0]!r}")
        numbers = _numbers(df["y"].where(mask == 1).to_frame())["y"]
        if (again := df.duplicated(["unique_id", "ds"])).any():
            raise ValueError(
                f"df must hold each date once in a series, got {df['ds'][again].iloc[0]} twice in series "
                f"{df['unique_id'][again].iloc[0]!r}: drop a row, as df.drop_duplicates(['unique_id', 'ds']) does"
            )
        table = df.assign(y=numbers).pivot(index="ds", columns="unique_id", values="y")
    else:
        table = _numbers(df)
    index = table.index
    if pd.api.types.is_datetime64_any_dtype(index.dtype):  # pyarrow's too
        index = table.index = pd.DatetimeIndex(index)
    times = (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex)
    if not isinstance(index, times) and not pd.api.types.is_integer_dtype(index):
        where = "column 'ds'" if long else "its index"
        raise ValueError(
            f"df must have dates, periods or whole numbers in {where}, got {index.dtype} such as {[*index[:1]]}: take "
            "pd.to_datetime, with dayfirst=True where the day comes first"
        )
    if index.hasnans or index.has_duplicates:
        problem = "none" if index.hasnans else f"{index[index.duplicated()][0]} twice"
        raise ValueError(f"df must have a date in each row of its index and each once, got {problem}: drop the row")
    table = table.sort_index()
    return table.reindex(_grid(table.index))


def _numbers(frame: Any) -> Any:
    """All columns as floats; a ValueError names the one that holds no real numbers."""
    columns = {}
    for name, column in frame.items():
        try:
            if column.dtype.kind in "cmM":
                raise TypeError
            columns[name] = column.astype("float64" if column.dtype.kind != "O" else object).to_numpy(
                float, na_value=np.nan
            )
        except (TypeError, ValueError):
            raise ValueError(
                f"df must hold real numbers in column {name!r}, got {column.dtype} such as {[*column[:1]]}: leave the "
                "column out, make dates the index, or name the columns of a long table unique_id, ds and y"
            ) from None
    return frame.__class__(columns, index=frame.index, columns=frame.columns)


def _grid(index: Any) -> Any:
    """All steps from the first to the last date of a sorted index; a warning where there is no such grid."""
    import pandas as pd

    if len(index) < 3:
        return index
    if isinstance(index, pd.PeriodIndex):
        return pd.period_range(index[0], index[-1], freq=index.freq)
    if pd.api.types.is_integer_dtype(index):
        return pd.RangeIndex(index[0], index[-1] + 1, int(np.gcd.reduce(np.diff(index)))).rename(index.name)
    steps = index[1:] - index[:-1]
    # A stretch without a gap tells the calendar's steps, such as months.
    stretches = [index[start : start + 8] for start in range(0, max(1, min(len(index) - 7, 400)), 4)]
    durations = isinstance(index, pd.TimedeltaIndex)
    named = [] if durations else map(pd.infer_freq, stretches)
    range_of = pd.timedelta_range if durations else pd.date_range
    for freq in dict.fromkeys([*filter(None, named), steps.min()]):
        grid = range_of(index[0], index[-1], freq=freq)
        if len(grid) <= 20 * len(index) and index.isin(grid).all():
            return grid.rename(index.name).as_unit(index.unit)
    warn(
        f"df should have rows on a regular grid of dates, got distances from {steps.min()} to {steps.max()}: each row "
        "counts as one step. Take df.resample('h').mean(), or another grid"
    )
    return index


@torch.no_grad()
def rolling_quantiles(network: BaseForecaster, values: np.ndarray, season: int | None = None) -> np.ndarray:
    """Quantiles of each row [L, C, Q] from those before it, up to 8 steps ahead; NaN where a series has 15 or fewer."""
    L, C = values.shape
    scaling = Scaling.from_zero(values)
    context = min(_CONTEXT, L)
    # In double precision first, because large levels with small changes would leave float32.
    scaled = torch.tensor(scaling.apply(values), dtype=torch.float32)
    padded = F.pad(scaled, (0, 0, context, 0), value=torch.nan)
    quantiles = np.full((L, C, 9), np.nan)
    for origins in torch.arange(LEAST_STEPS, L, STEPS).split(max(1, _MOST_READ // C)):
        x = padded[origins[:, None] + torch.arange(context)]
        forecasts = network(x.nan_to_num(0.0), ~x.isnan(), horizon=STEPS, season=season)
        # Intervals of a series that has just begun have no width, and their scores would hide those of all others.
        forecasts[(x.isfinite().sum(1) < LEAST_STEPS)[:, None].expand(-1, STEPS, -1)] = torch.nan
        for origin, forecast in zip(origins.tolist(), forecasts.double().numpy(), strict=True):
            ahead = forecast * scaling.scale[:, None] + scaling.location[:, None]
            quantiles[origin : origin + STEPS] = ahead[: L - origin]
    return quantiles


def surprise(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Distance of each value from its median, in widths of the interval on that side, [L, C]."""
    median = quantiles[..., 4]
    error = values - median
    width = np.where(error > 0.0, quantiles[..., -1] - median, median - quantiles[..., 0])
    # Where a series repeats itself, as at night, an interval may have no width: at least a share of the steps so far.
    steps = np.diff(values, axis=0, prepend=np.nan)
    number = np.cumsum(np.isfinite(steps), axis=0)
    least = 0.1 * np.sqrt(np.cumsum(np.nan_to_num(steps) ** 2, axis=0) / np.maximum(number, 1))
    least = np.vstack([np.zeros((1, values.shape[1])), least[:-1]]) + 1e-12
    return np.abs(error) / (width + least)


def stillness(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """How much longer each series stands still than in any run that has ended, [L, C]; 1 where it begins to matter."""
    L, C = values.shape
    same = np.abs(np.diff(values, axis=0)) <= 1e-6 * np.nanstd(values, axis=0)
    score = np.zeros((L, C))
    run, longest, moved = np.zeros(C), np.zeros(C), np.zeros(C, dtype=bool)
    for row in range(1, L):
        longest = np.where(same[row - 1], longest, np.maximum(longest, run))
        run = np.where(same[row - 1], run + 1.0, 0.0)
        score[row] = (run / (longest + _STILL)) ** _STILL_POWER
        # What has never moved, such as a counter that stays zero, is no broken sensor.
        moved |= np.isfinite(values[row]) & np.isfinite(values[row - 1]) & ~same[row - 1]
        score[row] = np.where(moved, score[row], np.minimum(score[row], 1.0))
    return np.where(np.isfinite(values) & np.isfinite(quantiles[..., 4]), score, np.nan)


def alarms(scores: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Which scores [L, C] lie above the quantile of those in earlier rows, and that threshold; NaN where too few."""
    L, C = scores.shape
    anomaly, threshold = np.zeros((L, C), dtype=bool), np.full((L, C), np.nan)
    level, earlier = rate, np.empty(0)
    for row in range(L):
        # The row itself is not among the scores that it is compared with.
        scored = np.isfinite(scores[row])
        if scored.any() and len(earlier) + 1 >= 1.0 / rate:
            usable = max(level, 1.0 / (len(earlier) + 1))
            threshold[row] = np.quantile(earlier, 1.0 - usable, method="weibull")
            anomaly[row] = scored & (scores[row] > threshold[row])
            missed = rate - anomaly[row][scored].mean()
            level += _FOLLOW * rate * missed * np.sqrt(scored.sum())
            level = float(np.clip(level, _LEVELS[0] * rate, _LEVELS[1] * rate))
        earlier = np.concatenate([earlier, scores[row][scored]])
    return anomaly, threshold
