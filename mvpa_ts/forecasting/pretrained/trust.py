"""How far a regression on other series is trusted, at each step ahead, by what it would have brought so far.

The network weighs its simple forecasts by chunks of steps and by the errors of each series alone. A relation between
series shows in all of them together, often at the next step only. So here the evidence of a whole panel counts: from
earlier origins the regression's forecast is compared with the mixture of the forecasts that read no other series.

Legend: B panels, C series, N = B·C, R regressions, M means of them, O origins, K simple forecasts, s steps ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from mvpa_ts.forecasting.pretrained.relations import NAMES, nearby_steps

_ERROR_WEIGHT = 4.0  # of the mixture of forecasts that read no other series
_MOST = 5.0  # standard deviations: one outlier is not to decide for a panel
_LEAST = 1e-3
_MANY = 48  # series
_LATELY = 24.0  # steps before the end for which an origin counts less by 1/e where something travels


def trust_in_relations(
    past: Tensor, truth: Tensor, relative: Tensor, origins: Sequence[int], channels: int, chunk: int
) -> Tensor:
    """Share of each regression in the forecasts of a panel, then of each forecast of what travels in what comes of it.

    At each step the regression with the least errors has one, if it reads other series, or the mean of some does. It is
    the share that would have been best by least squares, times 1 − (1 − how often it was better)ᵐ, times oᵐ / (oᵐ + 1)
    by how many origins say so, o. From one origin many series tell more, so m grows from 1 to 2 with their number. In
    the best share an origin counts by the root of its steps before the end, for near ones see nearly the same.

    What travels is known by a number or two and may have changed, so there only late origins count.

    Of forecasts from earlier origins, `past` [O, N, K + M, s], the last M are what travels and the R before them the
    regressions; `truth` [O, N, s] is NaN where nothing is compared. `relative` [N, K, s / chunk] is the log of the
    errors over the least, `origins` are steps before the end and `channels` the series of a panel. The shares are
    [B, R + M, s].
    """
    K, R = relative.shape[1], len(NAMES)
    M = past.shape[2] - K
    if channels == 1:
        return past.new_zeros(past.shape[1], R + M, past.shape[3])
    alone, related, travelling = past.split((K - R, R, M), 2)
    weight = (-_ERROR_WEIGHT * relative[:, :-R]).softmax(1).repeat_interleave(chunk, 2)
    usual = (alone * weight).sum(2)
    steps = past.new_tensor(origins)
    m = min(max(channels / _MANY, 1.0), 2.0)
    compared = (~truth.isnan()).unflatten(1, (-1, channels)).any(2).sum(0)[:, None]  # origins, [B, 1, s]
    groups = [chosen for n in range(1, R) for chosen in combinations(range(1, R), n)]
    share = _shares(related, usual, truth, channels, groups, torch.ones_like(steps), steps.sqrt(), m)
    share = share * (1.0 - 1.0 / (compared**m + 1.0))
    if not M:
        return share
    of_series = share.repeat_interleave(channels, 0)
    usual = usual + (of_series * (related - usual[:, :, None])).sum(2)
    groups = [chosen for n in range(1, M + 1) for chosen in combinations(range(M), n)]
    lately = (-steps / _LATELY).exp()
    return torch.cat([share, _shares(travelling, usual, truth, channels, groups, lately, lately, 2.0)], 1)


def _shares(
    forecasts: Tensor, usual: Tensor, truth: Tensor, channels: int, groups: Sequence[Sequence[int]], counts: Tensor,
    weight: Tensor, m: float,
) -> Tensor:  # fmt: skip
    """Shares [B, R, s] of the forecasts [O, N, R, s] of the group that erred least, in place of the `usual` [O, N, s].

    Origins have one weight in how often a group was better, `counts`, and one in the best share.
    """
    R = forecasts.shape[2]
    compared = ~truth.isnan()
    missed = (truth - usual).clamp(-_MOST, _MOST).masked_fill(~compared, 0.0)[:, :, None]
    means = forecasts.new_tensor([[(r in chosen) / len(chosen) for r in range(R)] for chosen in groups])
    predicted = torch.einsum("mr, onrs -> onms", means, forecasts) - usual[:, :, None]
    predicted = predicted.clamp(-_MOST, _MOST).masked_fill(~compared[:, :, None], 0.0)
    number = compared.to(predicted.dtype)[:, :, None]
    # Sums over a panel and over steps nearby, [O, B, M, s].
    products = (missed.square(), (missed - predicted).square(), missed * predicted, predicted.square(), number)
    of_panels = (product.unflatten(1, (-1, channels)).sum(2) for product in products)
    before, after, cross, moved, count = map(nearby_steps, of_panels)
    counts = counts[:, None, None, None] * (count > 0)
    better = ((after < before) * counts).sum(0) / counts.sum(0).clamp(min=1e-6)
    error = (after * counts).sum(0)
    cross, moved, count = (torch.einsum("o, obms -> bms", weight, sums) for sums in (cross, moved, count))
    best_share = cross / (moved + _LEAST * count.clamp(min=1.0))
    share = best_share.clamp(0.0, 1.0) * (1.0 - (1.0 - better) ** m)
    best = error.argmin(1, keepdim=True)
    return torch.einsum("mr, bms -> brs", means, torch.zeros_like(share).scatter(1, best, share.gather(1, best)))
