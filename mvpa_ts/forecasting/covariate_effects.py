"""What covariates that are known ahead do at the same step: a regression with autoregressive errors."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_LAGS, _ROWS_OF_LAG = 24, 10
_ROUNDS = 5  # of errors and regression in turn; the numbers move by less than a thousandth afterwards
_ROWS_OF_COVARIATE = 4
_MOST_VALUES = 2_000_000  # read at most, the last ones: more would not change what is learnt
_DOUBT = 4.0  # squares of the t-value below which an effect counts as none


@torch.no_grad()
def covariate_effects(values: Tensor, observed: Tensor, features: Tensor) -> Tensor:
    """Change of the values by one unit of each covariate, shared by the channels.

    The errors of the regression are taken as autoregressive, and both are fitted in turn (Cochrane and Orcutt, 1949):
    series that merely drift alike then have no effect on each other. Effects that the data hardly tell from zero are
    shrunk towards it by the non-negative garrote (Breiman, 1995).

    Parameters
    ----------
    values : Tensor, shape (n, C)
        In units of each channel's deviation.
    observed : bool Tensor, shape (n, C)
        What is stored elsewhere does not matter.
    features : Tensor, shape (n, C, F)
        NaN in rows that do not count.

    Returns
    -------
    Tensor, shape (F,)
        Zeros if there are fewer than four rows for each covariate.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> features = torch.randn(200, 1, 2)
    >>> values = 3.0 * features[..., 0] + 0.1 * torch.randn(200, 1)  # the second one does nothing
    >>> covariate_effects(values, torch.ones(200, 1, dtype=torch.bool), features).round(decimals=1)
    tensor([3., 0.])
    """
    C, F = features.shape[1:]
    last = max(200, _MOST_VALUES // (C * (F + _MOST_LAGS)))
    y, X = values[-last:].double(), features[-last:].double()
    known = observed[-last:] & X.isfinite().all(2)
    y, X = y.masked_fill(~known, 0.0), X.masked_fill(~known[..., None], 0.0)
    rows = int(known.any(1).sum())
    lags = min(_MOST_LAGS, rows // _ROWS_OF_LAG)
    whole = known
    while lags:
        whole = _with_lags(known, lags)
        if 2 * int(whole.any(1).sum()) >= rows:
            break
        lags //= 2  # many values are missing
        whole = known
    none = torch.zeros(F, dtype=values.dtype, device=values.device)
    if int(whole.any(1).sum()) - lags < _ROWS_OF_COVARIATE * F:
        return none
    # From both ends, for series that drift alike have two solutions; the one with the smaller errors counts.
    starts = X.new_zeros(F), _Regression(y, X, known).effects
    found = min((_alternated(y, X, known, whole, lags, start) for start in starts), key=lambda fit: fit.variance)
    certain = found.effects.square() / found.uncertainty.clamp(min=torch.finfo(y.dtype).tiny)
    return (found.effects * (1.0 - _DOUBT / certain).clamp(min=0.0)).nan_to_num(0.0).to(none)


class _Regression:
    """Least squares of values on covariates, each less its mean by channel."""

    def __init__(self, y: Tensor, X: Tensor, counted: Tensor) -> None:
        y, X = _centred(y[..., None], counted)[..., 0], _centred(X, counted)
        products = torch.einsum("ncf,ncg->fg", X, X)
        size = products.diagonal().clamp(min=torch.finfo(y.dtype).tiny)
        inverse = torch.linalg.inv(products + torch.diag(1e-6 * size + 1e-12))
        self.effects = inverse @ torch.einsum("ncf,nc->f", X, y)
        errors = y - X @ self.effects
        count = int(counted.sum())
        self.variance = float(errors.square().sum() / max(count, 1))
        # Errors of channels at one step may be alike: a step counts as one observation.
        scores = torch.einsum("ncf,nc->nf", X, errors)
        steps = int(counted.any(1).sum())
        corrected = steps / max(1, steps - X.shape[2] - 1)
        self.uncertainty = corrected * (inverse @ (scores.mT @ scores) @ inverse).diagonal()


def _alternated(y: Tensor, X: Tensor, known: Tensor, whole: Tensor, lags: int, effects: Tensor) -> _Regression:
    """Regression on what is left after subtracting what the last steps tell; errors and effects in turn."""
    fit = None
    for _ in range(_ROUNDS):
        errors = _centred((y - X @ effects)[..., None], known)[..., 0]
        past = torch.stack([errors.roll(lag, 0) for lag in range(1, lags + 1)], 2) if lags else errors[..., None] * 0.0
        weights = _Regression(errors, past, whole).effects
        filtered = [_filtered(part, weights, whole) for part in (y[..., None], X)]
        fit = _Regression(filtered[0][..., 0], filtered[1], whole)
        effects = fit.effects
    assert fit is not None
    return fit


def _with_lags(known: Tensor, lags: int) -> Tensor:
    """Where a value and those of so many steps before are known."""
    whole = known.clone()
    for lag in range(1, lags + 1):
        whole &= known.roll(lag, 0)
        whole[:lag] = False
    return whole


def _filtered(x: Tensor, weights: Tensor, whole: Tensor) -> Tensor:
    left = x.clone()
    for lag, weight in enumerate(weights, start=1):
        left -= weight * x.roll(lag, 0)
    return left * whole[..., None]


def _centred(x: Tensor, counted: Tensor) -> Tensor:
    counted = counted[..., None].to(x)
    mean = (x * counted).sum(0) / counted.sum(0).clamp(min=1.0)
    return (x - mean) * counted
