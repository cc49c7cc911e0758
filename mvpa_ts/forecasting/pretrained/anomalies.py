"""Anomalies of a panel: values that the pretrained forecaster did not expect, and sensors that stand still.

Each row is forecast from the rows before it. A value's score is its distance from the median, in widths of the 80 %
interval on that side. A sensor that repeats its last value gets a score by how much longer it stands still than ever
before. A value is an anomaly if its score lies above the quantile of all earlier scores of the panel. It is conformal:
the share of alarms is kept whatever the scores are. The level follows what it gave so far (Gibbs and Candès, Adaptive
conformal inference under distribution shift, 2021), because real panels change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.base import LEAST_STEPS, BaseForecaster
from mvpa_ts.forecasting.pretrained.pretrained import load_base
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
        Rows are regular in time. Missing values are NaN.
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

    if isinstance(rate, bool) or not 0.0 < float(rate) < 1.0:
        raise ValueError(
            f"rate must be a share of values between 0 and 1, such as 0.01, got {rate!r}: without false alarms nothing "
            "can be found"
        )
    table = df.pivot(index="ds", columns="unique_id", values="y") if "unique_id" in getattr(df, "columns", ()) else df
    table = table.to_frame() if not hasattr(table, "columns") else table
    values = table.to_numpy(dtype=float)
    if np.isinf(values).any():
        raise ValueError("df must hold finite numbers, or NaN for missing values; got infinite ones")
    if empty := [str(name) for name, seen in zip(table.columns, ~np.isnan(values).all(0), strict=True) if not seen]:
        raise ValueError(f"df must hold a value of each series, got none of {', '.join(empty[:5])}: leave them out")
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
            "y": values[judged],
            "forecast": quantiles[..., 4][judged],
            "score": scores[judged],
            "threshold": threshold[judged],
            "anomaly": anomaly[judged],
            "source": source[judged],
        }
    )


@torch.no_grad()
def rolling_quantiles(network: BaseForecaster, values: np.ndarray, season: int | None = None) -> np.ndarray:
    """Quantiles of each row [L, C, Q] from the rows before it, up to 8 steps ahead; NaN for the first 16 rows."""
    L, C = values.shape
    scaling = Scaling.of(values)
    context = min(_CONTEXT, L)
    # In double precision first, because large levels with small changes would leave float32.
    scaled = torch.tensor(scaling.apply(values), dtype=torch.float32)
    padded = F.pad(scaled, (0, 0, context, 0), value=torch.nan)
    quantiles = np.full((L, C, 9), np.nan)
    for origins in torch.arange(LEAST_STEPS, L, STEPS).split(max(1, _MOST_READ // C)):
        x = padded[origins[:, None] + torch.arange(context)]
        forecasts = network(x.nan_to_num(0.0), ~x.isnan(), horizon=STEPS, season=season)
        for origin, forecast in zip(origins.tolist(), forecasts.double().numpy(), strict=True):
            ahead = forecast * scaling.scale[:, None] + scaling.location[:, None]
            quantiles[origin : origin + STEPS] = ahead[: L - origin]
    return quantiles


def surprise(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Distance of each value from its median, in widths of the interval on that side, [L, C]."""
    median = quantiles[..., 4]
    error = values - median
    width = np.where(error > 0.0, quantiles[..., -1] - median, median - quantiles[..., 0])
    # Where a series repeats itself, an interval may have no width at all: at least a share of the steps so far.
    steps = np.diff(values, axis=0, prepend=np.nan)
    number = np.cumsum(np.isfinite(steps), axis=0)
    least = 0.02 * np.sqrt(np.cumsum(np.nan_to_num(steps) ** 2, axis=0) / np.maximum(number, 1))
    least = np.vstack([np.zeros((1, values.shape[1])), least[:-1]]) + 1e-12
    return np.abs(error) / (width + least)


def stillness(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """How much longer each series stands still than in any run that has ended, [L, C]; 1 where it begins to matter."""
    L, C = values.shape
    same = np.abs(np.diff(values, axis=0)) <= 1e-6 * np.nanstd(values, axis=0)
    score = np.zeros((L, C))
    run, longest = np.zeros(C), np.zeros(C)
    for row in range(1, L):
        longest = np.where(same[row - 1], longest, np.maximum(longest, run))
        run = np.where(same[row - 1], run + 1.0, 0.0)
        score[row] = (run / (longest + _STILL)) ** _STILL_POWER
    return np.where(np.isfinite(values) & np.isfinite(quantiles[..., 4]), score, np.nan)


def alarms(scores: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Which scores [L, C] lie above the quantile of those in earlier rows, and that threshold; NaN where too few."""
    L, C = scores.shape
    anomaly, threshold = np.zeros((L, C), dtype=bool), np.full((L, C), np.nan)
    level, earlier = rate, np.empty(0)
    for row in range(L):
        # The row itself is not among the scores that it is compared with.
        given = np.isfinite(scores[row])
        if given.any() and len(earlier) + 1 >= 1.0 / rate:
            usable = max(level, 1.0 / (len(earlier) + 1))
            threshold[row] = np.quantile(earlier, 1.0 - usable, method="weibull")
            anomaly[row] = given & (scores[row] > threshold[row])
            missed = rate - anomaly[row][given].mean()
            level += _FOLLOW * rate * missed * np.sqrt(given.sum())
            level = float(np.clip(level, _LEVELS[0] * rate, _LEVELS[1] * rate))
        earlier = np.concatenate([earlier, scores[row][given]])
    return anomaly, threshold
