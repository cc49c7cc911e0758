"""Effects of covariates, found in the history in closed form: nothing is trained, and noise has no effect.

The effect of a covariate that is known ahead is a curve of its value now and one and two steps before. It is fitted by
ridge regression on whitened rows: a series and its covariates less what the series' own lags explain (Cochrane and
Orcutt, 1949), since two slow curves look alike by chance. What counts of it is decided out of the sample: an effect by
which the rows do not foretell one another is left out.

Legend: N series, L steps of history, h steps ahead, k covariates, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mvpa_ts.forecasting.pretrained.simple_forecasts import filled, likely_period, standardised

LAGS = 3
"""Steps of a covariate that act on a step of the series: its own and those before."""
PENALTIES = (0.003, 0.03, 0.3)
"""Shrinkage, as a share of the features' mean square."""
BEYOND = 0.1
"""How far over the range of the history a covariate counts, as a share of that range; further values count as this."""
_LEAST_ROWS = 12
_CLEAR = 2.0  # standard errors by which a share must differ from zero


def covariate_effects(x: Tensor, mask: Tensor, future: Tensor) -> Tensor:
    """What the covariates add to each step of the history and of the horizon, in the units of the series, [N, L + h].

    Series and mask are [N, L]; `future` [N, L + h, k] has no gaps. A series has zeros if its covariates say nothing
    about it, or if it has few more than 12 observed steps.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.forecasting.pretrained.covariates import covariate_effects
    >>> price = torch.rand(1, 110, 1, generator=torch.Generator().manual_seed(0))
    >>> sales = 10.0 - 4.0 * price[:, :100, 0]
    >>> effect = covariate_effects(sales, torch.ones(1, 100, dtype=torch.bool), price)
    >>> round(float((effect[0, 100:] - effect[0, 100:].mean() + 4.0 * (price[0, 100:, 0] - price[0, 100:].mean()))
    ...             .abs().max()), 1)
    0.0
    """
    L = x.shape[1]
    values, first = filled(x.double(), mask)
    z, _, scale = standardised(values, mask)
    features = _features(future.double(), L, first, mask.sum(1))
    lags = _own_lags(z, first)
    furthest = lags.amax(1, keepdim=True)
    step = torch.arange(L, device=x.device)
    counted = (mask & mask.roll(1, 1) & (step > first[:, None] + furthest)).double()
    # Of changes: two walks, or two levels that shift, go together for long by chance.
    z, changes = torch.diff(z, dim=1, prepend=z[:, :1]), torch.diff(features[:, :L], dim=1, prepend=features[:, :1])
    memory = _memory(z, changes, lags, counted)
    white, white_features = _whitened(z[..., None], memory, lags)[..., 0], _whitened(changes, memory, lags)
    weights, share = _fitted(white, white_features, counted)
    usable = counted.sum(1) >= _LEAST_ROWS
    return ((features @ weights[..., None])[..., 0] * (share * usable)[:, None] * scale).to(x.dtype)


def _features(future: Tensor, L: int, first: Tensor, rows: Tensor) -> Tensor:
    """Each covariate, its square and earlier values of both, [N, L + h, F]; zero where a series has too few rows."""
    past = future[:, :L]
    begun = (torch.arange(L, device=first.device) >= first[:, None]).double()[..., None]  # before are rows of others
    count = begun.sum(1, keepdim=True)
    # What stays the same says nothing, and must take no room from the others' earlier values.
    varied = (past != past[:, :1]).any(1)
    room = (rows / (8 * varied.sum(1).clamp(min=1)))[:, None, None]  # four rows for each value and square
    lowest, highest = past.amin(1, keepdim=True), past.amax(1, keepdim=True)
    over = BEYOND * (highest - lowest)
    future = torch.minimum(torch.maximum(future, lowest - over), highest + over)
    centred = future - (past * begun).sum(1, keepdim=True) / count
    deviation = ((centred[:, :L].square() * begun).sum(1, keepdim=True) / (count - 1.0).clamp(min=1.0)).sqrt()
    unit = torch.where(deviation > 1e-12 * past.abs().amax(1, keepdim=True), deviation, torch.inf)
    u = centred / unit
    squares = u.clamp(-3.0, 3.0).square()
    squares = squares - (squares[:, :L] * begun).sum(1, keepdim=True) / count
    # Features that no series has would only be solved for.
    curves = torch.cat([u[..., varied.any(0)], (squares * (room >= 1))[..., varied.any(0)]], 2)
    lags = LAGS if (room >= LAGS).any() else 1
    longer = curves * (room >= LAGS)
    return torch.cat([curves, *(_lagged(longer, torch.full_like(first, lag)) for lag in range(1, lags))], 2)


def _own_lags(z: Tensor, first: Tensor) -> Tensor:
    """Lags of the series itself, [N, 4]: the last three steps and the season; 1 again where it has none."""
    periods = likely_period(z, first)
    near = torch.tensor([1, 2, 3], device=z.device).expand(len(z), 3)
    season = torch.where((periods > 3) & (3 * periods <= z.shape[1] - first[:, None]), periods, 1)
    return torch.cat([near, season], 1)


def _lagged(x: Tensor, lag: Tensor) -> Tensor:
    """[N, L, F] as it was `lag` [N] steps before; the first steps repeat."""
    step = (torch.arange(x.shape[1], device=x.device) - lag[:, None]).clamp(min=0)
    return x.gather(1, step[..., None].expand_as(x))


def _memory(z: Tensor, features: Tensor, lags: Tensor, counted: Tensor) -> Tensor:
    """Weights of the series' own lags, [N, 4], beside the covariates."""
    lagged = torch.cat([_lagged(z[..., None], lag) for lag in lags.unbind(1)], 2)
    rows = torch.cat([lagged, features, torch.ones_like(lagged[..., :1])], 2)
    weighted = rows * counted[..., None]
    gram = weighted.mT @ rows
    size = 0.01 * counted.sum(1)[:, None, None] + 1e-3
    solution = torch.linalg.solve(gram + size * torch.eye(gram.shape[1], device=z.device), weighted.mT @ z[..., None])
    memory = solution[:, :4, 0]
    return torch.cat([memory[:, :3], torch.where(lags[:, 3:] > 1, memory[:, 3:], 0.0)], 1)


def _whitened(x: Tensor, memory: Tensor, lags: Tensor) -> Tensor:
    """[N, L, F] less what is expected by the lags."""
    expected = [weight[:, None, None] * _lagged(x, lag) for weight, lag in zip(memory.T, lags.T, strict=True)]
    return x - torch.stack(expected).sum(0)


def _fitted(white: Tensor, features: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the features [N, F], and the share of the effect that holds out of the sample [N]."""
    L = white.shape[1]
    total = counted.sum(1, keepdim=True).clamp(min=1.0)
    centre = (features * counted[..., None]).sum(1, keepdim=True) / total[..., None]
    features = (features - centre) * counted[..., None]
    white = (white - (white * counted).sum(1, keepdim=True) / total) * counted
    size = (features.square().sum((1, 2)) / features.any(1).sum(1).clamp(min=1)).clamp(min=1e-9)
    gram, cross = features.mT @ features, features.mT @ white[..., None]
    effects, predictions = [], []
    for penalty in PENALTIES:
        damped = gram + (penalty * size)[:, None, None] * torch.eye(gram.shape[1], device=gram.device)
        weights = torch.linalg.solve(damped, cross)
        leverage = (features * torch.linalg.solve(damped, features.mT).mT).sum(2) + counted / total
        # What each row's value would be by all the others (Allen, 1974).
        predictions.append(white - (white - (features @ weights)[..., 0]) / (1.0 - leverage).clamp(min=1e-3))
        effects.append(weights[..., 0])
    others = torch.stack(predictions) * counted
    best = (white - others).square().sum(2).argmin(0)[None, :, None]
    chosen = others.gather(0, best.expand(1, -1, L))[0]
    power = chosen.square().sum(1).clamp(min=1e-12)
    share = (white * chosen).sum(1) / power
    error = ((white - share[:, None] * chosen).square().sum(1) / total[:, 0] / power).sqrt()
    # Shrunk by how sure it is, to nothing where it might as well be zero.
    sure = (1.0 - (_CLEAR * error / share.abs().clamp(min=1e-9)).square()).clamp(min=0.0)
    weights = torch.stack(effects).gather(0, best.expand(1, -1, features.shape[2]))[0]
    return weights, (share * sure).clamp(0.0, 1.0)
