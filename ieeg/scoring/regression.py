"""Regression of kappa on length, number and rate of the seizures of subjects: each alone, and all three together."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

OUTCOMES = ("kappa", "kappa_episodic")
"""What is regressed on length, number and rate of seizures."""
JOINT = "joint"
"""Name of the regression on all three at once, as in the paper."""
REGRESSORS = {"hours": "length of the recording (h)", "seizures": "seizures", "seizures_per_hour": "seizures an hour"}
COLUMNS = ("group", "outcome", "regressor", "subjects", "slope", "slope_error", "intercept", "r", "r_squared", "p")
"""Of the table of regressions."""


def regression_rows(group: str, table: pd.DataFrame) -> list[tuple[object, ...]]:
    """Compute the rows of one group, values of `COLUMNS`, from its subjects' `OUTCOMES` and `REGRESSORS` in a table.

    There is a row for each outcome and regressor, and one for all regressors together (`JOINT`). Subjects with NaN are
    left out. A row is NaN if no line can be fitted: fewer than three subjects, or all with the same value.
    """
    rows: list[tuple[object, ...]] = []
    for outcome in OUTCOMES:
        for regressor in REGRESSORS:
            complete = table[[regressor, outcome]].dropna()
            x, y = complete[regressor].to_numpy(np.float64), complete[outcome].to_numpy(np.float64)
            # A line through fewer than three subjects, or through one value of x, says nothing.
            if len(x) < 3 or np.ptp(x) == 0:
                rows.append((group, outcome, regressor, len(x), *[math.nan] * 6))
                continue
            fit = stats.linregress(x, y)
            numbers = (fit.slope, fit.stderr, fit.intercept, fit.rvalue, fit.rvalue**2, fit.pvalue)
            rows.append((group, outcome, regressor, len(x), *map(float, numbers)))
        complete = table[[*REGRESSORS, outcome]].dropna()
        determination, p = joint_regression(complete[[*REGRESSORS]], complete[outcome])
        rows.append((group, outcome, JOINT, len(complete), *[math.nan] * 3, math.sqrt(determination), determination, p))
    return rows


def joint_regression(regressors: npt.ArrayLike, outcome: npt.ArrayLike) -> tuple[float, float]:
    """Regress an outcome [n] on several regressors [n, k] and a constant; return R² and p of the F-test.

    Both are NaN if there are not more subjects than coefficients, or if all outcomes are equal.

    Examples
    --------
    >>> x = [[1, 0], [2, 1], [3, 0], [4, 1], [5, 1]]
    >>> r_squared, p = joint_regression(x, [1.0, 2.5, 3.0, 4.5, 5.0])
    >>> print(f"{r_squared:.3f} {p:.3f}")
    0.990 0.010
    """
    x, y = np.asarray(regressors, np.float64), np.asarray(outcome, np.float64)
    spare = len(x) - x.shape[1] - 1
    if spare < 1 or not np.ptp(y) > 0:
        return math.nan, math.nan
    # Scaled columns, so that hours and rates weigh alike in the rank.
    scale = x.std(0)
    design = np.column_stack([(x - x.mean(0)) / np.where(scale > 0, scale, 1.0), np.ones(len(x))])
    coefficients, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    left = float(np.square(y - design @ coefficients).sum() / np.square(y - y.mean()).sum())
    free = rank - 1
    if not free:
        return 0.0, math.nan
    if left < 1e-12:
        return 1.0, 0.0
    return 1.0 - left, float(stats.f.sf((1.0 - left) / free / (left / (len(x) - rank)), free, len(x) - rank))
