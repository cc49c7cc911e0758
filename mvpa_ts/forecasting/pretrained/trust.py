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


def trust_in_relations(
    past: Tensor, truth: Tensor, relative: Tensor, origins: Sequence[int], channels: int, chunk: int
) -> Tensor:
    """Share of each regression in the forecasts of a panel.

    At each step the regression with the least errors has one, if it reads other series, or the mean of some does. It is
    the share that would have been best by least squares, times 1 − (1 − how often it was better)ᵐ, times oᵐ / (oᵐ + 1)
    by how many origins say so, o. From one origin many series tell more, so m grows from 1 to 2 with their number. In
    the best share an origin counts by the root of its steps before the end, for near ones see nearly the same.

    Of forecasts from earlier origins, `past` [O, N, K, s], the last R are the regressions; `truth` [O, N, s] is NaN
    where nothing is compared. `relative` [N, K, s / chunk] is the log of the errors over the least, `origins` are steps
    before the end and `channels` the series of a panel. The shares are [B, R, s].
    """
    R = len(NAMES)
    if channels == 1:
        return past.new_zeros(past.shape[1], R, past.shape[3])
    weight = (-_ERROR_WEIGHT * relative[:, :-R]).softmax(1).repeat_interleave(chunk, 2)
    usual = (past[:, :, :-R] * weight).sum(2)
    compared = ~truth.isnan()
    missed = (truth - usual).clamp(-_MOST, _MOST).masked_fill(~compared, 0.0)[:, :, None]
    groups = [chosen for n in range(1, R) for chosen in combinations(range(1, R), n)]
    means = past.new_tensor([[(r in chosen) / len(chosen) for r in range(R)] for chosen in groups])
    predicted = torch.einsum("mr, onrs -> onms", means, past[:, :, -R:]) - usual[:, :, None]
    predicted = predicted.clamp(-_MOST, _MOST).masked_fill(~compared[:, :, None], 0.0)
    number = compared.to(predicted.dtype)[:, :, None]
    # Sums over a panel and over steps nearby, [O, B, M, s].
    products = (missed.square(), (missed - predicted).square(), missed * predicted, predicted.square(), number)
    of_panels = (product.unflatten(1, (-1, channels)).sum(2) for product in products)
    before, after, cross, moved, count = map(nearby_steps, of_panels)
    origins_compared = (number.unflatten(1, (-1, channels)).amax(2)).sum(0)  # [B, 1, s]
    compared_at = (count > 0).to(predicted.dtype)
    better = ((after < before) * compared_at).sum(0) / compared_at.sum(0).clamp(min=1.0)
    weight = past.new_tensor(origins).sqrt()
    cross, moved, count = (torch.einsum("o, obms -> bms", weight, sums) for sums in (cross, moved, count))
    best_share = cross / (moved + _LEAST * count.clamp(min=1.0))
    m = min(max(channels / _MANY, 1.0), 2.0)
    share = best_share.clamp(0.0, 1.0) * (1.0 - (1.0 - better) ** m) * (1.0 - 1.0 / (origins_compared**m + 1.0))
    best = after.sum(0).argmin(1, keepdim=True)
    return torch.einsum("mr, bms -> brs", means, torch.zeros_like(share).scatter(1, best, share.gather(1, best)))
