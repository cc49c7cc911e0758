"""Data frames of the host to series of the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mvpa_ts.adapters.sktime.timeline import frequency_of, position_of, regular
from mvpa_ts.windows import Series


def columns_of(frame: pd.DataFrame, names: list[Any] | None, argument: str = "X") -> pd.DataFrame:
    """The columns that `fit` saw, in its order."""
    if names is None:
        raise ValueError("X must be left out: the forecaster was fitted without it; to use it, give it to fit")
    if missing := [name for name in names if name not in frame.columns]:
        raise ValueError(
            f"{argument} must have the columns of fit, {names}, got {list(frame.columns)} without {missing}"
        )
    return frame[names]


def series_of(y: pd.DataFrame, X: pd.DataFrame | None, grid: pd.Index, ahead: pd.Index | None, position: int) -> Series:
    """Rows of y on their grid, and of X there and ahead.

    What y lacks is NaN, what X lacks is interpolated. Raises ValueError for infinite values and empty columns of X.
    """
    for name, frame in (("y", y), ("X", X)):
        if frame is not None and np.isinf(frame.to_numpy(float)).any():
            columns = [column for column in frame.columns if np.isinf(frame[column].to_numpy(float)).any()]
            raise ValueError(f"{name} must be finite, or NaN where missing, got inf in columns {columns}")
    values = y.reindex(grid).to_numpy(float)
    features = None
    if X is not None:
        rows = grid if ahead is None else grid.append(ahead)
        filled = X.reindex(rows).astype(float).interpolate(limit_direction="both")
        if filled.isna().any(axis=None):
            empty = list(filled.columns[filled.isna().any()])
            raise ValueError(f"X must hold a value of each column, got none of {empty}")
        features = filled.to_numpy(float)
    return Series(values, features, position)


def panel_of(y: pd.DataFrame, X: pd.DataFrame | None) -> list[Series]:
    """The instances of a panel, each on a grid of its own."""
    levels: list[Any] = list(range(y.index.nlevels - 1))
    parts = None if X is None else {name: part.droplevel(levels) for name, part in X.groupby(level=levels)}
    series = []
    for name, part in y.groupby(level=levels):
        own = part.droplevel(levels)
        frequency = frequency_of(own.index)
        grid = regular(own.index, own.index[-1], frequency)
        series.append(series_of(own, None if parts is None else parts[name], grid, None, position_of(grid, frequency)))
    return series
