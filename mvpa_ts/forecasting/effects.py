"""Effects of covariates on series, with intervals: a regression whose errors are autoregressive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mvpa_ts.checks import listed, warn
from mvpa_ts.forecasting.network.closed_form import regressed_effects
from mvpa_ts.windows import Scaling

_LAGS = (1, 2, 3, 6, 12)  # of the errors; the number that Schwarz's criterion prefers is taken
_SPARE = 10  # rows more than what is fitted: of fewer, a normal distribution is too narrow
_WAVES = 3  # of a season: a sine and a cosine each


def effects_table(
    values: np.ndarray,
    features: np.ndarray,
    series: Sequence[Any],
    covariates: Sequence[Any],
    *,
    season: int = 0,
    coverage: float = 0.8,
) -> Any:
    """By how much each series changes where a covariate is one unit larger, all others and the season the same.

    It is the regression from which a network's own effects start, here for each series alone and with nothing shrunk.
    The errors are autoregressive, so that series which merely drift alike have no effect on each other.

    Parameters
    ----------
    values : array, shape (n, C)
        NaN is missing.
    features : array, shape (n, F) or (n, C, F)
        Covariates of the same steps.
    series, covariates : sequence
        Names.
    season : int, default 0
        Steps of a season that series and covariates share (168 for hours, which has the day in it); 0 for none. Without
        it, a summer that comes to both looks like an effect.
    coverage : float, default 0.8
        Share of the intervals that shall hold the effect.

    Returns
    -------
    pandas.DataFrame
        A row for each series and covariate: `effect`, `lower` and `upper`, in units of the series for a unit of the
        covariate. NaN where a series has too few rows, and where a covariate never varies or follows from the others
        and the season.

    Raises
    ------
    ValueError
        `coverage` is not between 0 and 1, or a number is infinite.

    Examples
    --------
    >>> import numpy as np
    >>> draws = np.random.default_rng(0)
    >>> price = draws.uniform(size=(300, 1))
    >>> sales = 10.0 - 4.0 * price + 0.1 * draws.standard_normal((300, 1))
    >>> effects_table(sales, price, ["sales"], ["price"])["effect"].round(1).tolist()
    [-4.0]
    """
    import pandas as pd

    if isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage must be between 0 and 1, got {coverage!r}")
    for subject, names, numbers in (("y", series, values), ("the covariates", covariates, features)):
        if where := listed(np.array(names, object)[np.isinf(numbers).reshape(-1, len(names)).any(0)]):
            raise ValueError(f"{subject} must hold finite numbers, or NaN where missing, got infinite ones in {where}")
    features = np.broadcast_to(features[:, None] if features.ndim == 2 else features, (*values.shape, len(covariates)))
    outcome, rows, alike, still = Scaling.of(values), [], {}, {}
    scaled, observed = torch.tensor(outcome.apply(values)).nan_to_num(0.0), torch.tensor(~np.isnan(values))
    reach = float(torch.special.ndtri(torch.tensor(0.5 + coverage / 2, dtype=torch.float64)))
    for column, name in enumerate(series):
        x = features[:, column]
        unit = Scaling.of(x)
        varies = np.nanmax(x, axis=0, initial=-np.inf) > np.nanmin(x, axis=0, initial=np.inf)
        effects = np.full((2, len(covariates)), np.nan)
        if varies.any():
            regressors = torch.tensor(unit.apply(x)[:, varies])
            fit = _fitted(scaled[:, column, None], observed[:, column, None], regressors, season)
            effects[:, varies] = math.nan if fit is None else fit
            if fit is not None:
                alike |= dict.fromkeys(map(str, np.array(covariates)[varies & np.isnan(effects[0])]))
        still |= dict.fromkeys(map(str, np.array(covariates)[~varies]))
        effect, error = effects * outcome.scale[column] / unit.scale
        intervals = zip(covariates, effect, reach * error, strict=True)
        rows += [(name, covariate, middle, middle - half, middle + half) for covariate, middle, half in intervals]
    if alike:
        warn(f"effects of {listed([*alike])} are NaN, for the others and the season tell the same: leave one out")
    if still:
        warn(f"effects of {listed([*still])} are NaN where they never vary: leave the column out")
    return pd.DataFrame(rows, columns=["unique_id", "covariate", "effect", "lower", "upper"])


def _fitted(y: Tensor, observed: Tensor, X: Tensor, season: int) -> np.ndarray | None:
    """Effects and their standard errors, (2, F), of one series [n, 1] and covariates [n, F]; None with too few rows."""
    regressors = torch.cat([X, *_waves(len(y), season)], 1)
    count, fits = int(observed.sum()), []
    for lags in _LAGS:
        # What was fitted beside the effects made the errors smaller than they are.
        spare = count - regressors.shape[1] - lags
        fit = regressed_effects(y, observed, regressors[:, None], most_lags=lags) if spare >= _SPARE else None
        if fit is not None:
            criterion = count * math.log(max(fit.variance, 1e-300)) + lags * math.log(count)
            fits.append((criterion, fit, count / spare))
    if not fits:
        return None
    _, fit, wider = min(fits, key=lambda each: each[0])
    error = (fit.uncertainty.clamp(min=0.0) * wider).sqrt()
    # Of columns that are sums of others, rows tell their effect together, and a solver would share it out.
    rows = torch.cat([regressors, torch.ones_like(y)], 1)[observed[:, 0] & regressors.isfinite().all(1)]
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    untold = (directions[sizes < 1e-8 * sizes.max()].abs() > 1e-6).any(0)[:-1]
    return torch.stack([fit.effects, error]).masked_fill(untold, math.nan)[:, : X.shape[1]].numpy()


def _waves(rows: int, season: int) -> list[Tensor]:
    """Sines and cosines [n, 1] of the season, and of the day in a week of hours, which the rows hold four times."""
    step = torch.arange(rows, dtype=torch.float64)[:, None]
    periods = [season, season // 7] if season % 7 == 0 and season > 7 else [season]
    speeds = {wave / period for period in periods if 1 < period <= rows / 4 for wave in range(1, _WAVES + 1)}
    angles = [2 * math.pi * speed * step for speed in sorted(speeds) if speed < 0.5]
    return [wave(angle) for angle in angles for wave in (torch.sin, torch.cos)]
