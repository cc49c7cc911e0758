"""A linear regression of all steps ahead on the steps before, fitted on a history longer than the look-back.

The network reads 512 steps, and was never trained on the series. A long history shows how a series returns to its
level, and how surely, at each step ahead. The regression reads the last steps, and means of those before, all less
their common mean: how far that lies from the mean of all history says little where a year has seasons.

Legend: B panels, L steps of history, C series, N = B·C, h steps ahead, W windows of the history, F features.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.simple_forecasts import filled, standardised

MEANS = ((24, 1), (36, 4), (7, 24))  # read from the end: so many means of so many steps; of hours two weeks
MOST_LONG_MEANS = 28  # means of 24 steps, where the history is more than four times as long
WINDOWS = 512  # that are fitted, at the most; they are spread evenly over the history
PENALTY, FREE = 0.03, 1e-3  # of the ridge, in mean variances of the features, and that of the last value
HALF_CERTAIN = 15.0  # horizons in a history that make the regression half certain
_LATELY = (8, 16, 24)  # steps before the end from which it is tried
_AT_ONCE = 4096  # series times steps ahead
_PARTS = 4  # of the history: errors in each are those of a regression fitted on the others


def direct_regression(x: Tensor, mask: Tensor, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    """Forecasts and their usual errors, each [B, h, C], and how certain the regression is, [B, C], from 0 to 1.

    Histories `x` and where they were observed, `mask`, are [B, L, C], and begin with the first step. The series of a
    panel share half of what tells their weights. Usual errors are those in parts of the history that were left out of
    the fit, larger where the last 24 steps went otherwise. Nothing is certain of a history that is too short.
    """
    B, L, C = x.shape
    fewest = sum(number * width for number, width in MEANS)
    if fewest + horizon >= L:
        return x.new_zeros(B, horizon, C), x.new_ones(B, horizon, C), x.new_zeros(B, C)
    rows, observed = (rearrange(tensor, "b l c -> (b c) l") for tensor in (x, mask))
    counts = observed.double()
    values, location, scale = standardised(filled(rows, observed)[0].double(), counts)

    more_means = max(0, L // 4 - horizon - fewest) // MEANS[-1][1]
    numbers = MEANS[0][0], MEANS[1][0], min(MEANS[2][0] + more_means, MOST_LONG_MEANS)
    sizes = [size for number, (_, size) in zip(numbers, MEANS, strict=True) for _ in range(number)]
    edges = torch.tensor([0, *accumulate(sizes)], device=x.device)  # steps before the end of a window's past
    reach = sum(sizes)
    stride = -(-(L - reach - horizon + 1) // WINDOWS)
    ends = torch.arange(L - horizon, reach - 1, -stride, device=x.device).flip(0)
    past, level = _features(values, ends, edges)
    counted = F.pad(counts.cumsum(1), (1, 0))
    weight = (counted[:, ends + horizon] - counted[:, ends - reach]) / (reach + horizon)
    weight = weight.masked_fill(weight < 0.5, 0.0)[..., None]  # [N, W, 1]

    # Each part of the history is left out of one fit; of the last fit none is.
    left_out = [slice(len(ends) * k // _PARTS, len(ends) * (k + 1) // _PARTS) for k in range(_PARTS)] + [slice(0)]
    weighted = (past * weight).mT  # [N, F, W]
    gram = torch.stack([weighted[..., rows] @ past[:, rows] for rows in left_out])
    fitted = _of_others(gram, C)
    # The last value is nearly free: where it tells the next ones, no other forecast comes near.
    penalty = torch.where(torch.arange(len(sizes), device=x.device) == 0, FREE, PENALTY).to(gram)
    fitted = fitted + torch.diag_embed(penalty * fitted[-1].diagonal(dim1=1, dim2=2).mean(1, keepdim=True) + 1e-6)
    origins = L - torch.tensor([0, *_LATELY], device=x.device)
    last, last_level = _features(values, origins, edges)
    forecasts, errors = [], []
    # Steps ahead are regressed apart: so many at once stay in the cache, whatever the number of series.
    for steps in torch.arange(horizon, device=x.device).split(max(1, _AT_ONCE // len(values))):
        ahead = values[:, ends[:, None] + steps] - level
        cross = torch.stack([weighted[..., rows] @ ahead[:, rows] for rows in left_out])
        weights = torch.linalg.solve_ex(fitted, _of_others(cross, C)).result  # [parts + 1, N, F, steps]
        missed = (ahead.square() * weight).sum(1) + (weights * (gram @ weights - 2.0 * cross)).sum((0, 2))
        errors.append((missed.clamp(min=0.0) / weight.sum(1).clamp(min=1e-6)).sqrt().clamp(min=1e-6))
        forecasts.append(last @ weights[-1] + last_level)
    forecast, error = torch.cat(forecasts, 2), torch.cat(errors, 1)
    # Where a series lately went elsewhere, as after a shift, it is not as its history says.
    since = origins[1:, None] + torch.arange(horizon, device=x.device)
    passed = (since < L) * counts[:, since.clamp(max=L - 1)]
    missed = ((values[:, since.clamp(max=L - 1)] - forecast[:, 1:]) / error[:, None]).square() * passed
    lately = missed.sum((1, 2)) / passed.sum((1, 2)).clamp(min=1.0)
    forecast, error = forecast[:, 0], error * (0.5 * lately[:, None]).clamp(min=1.0)
    horizons = (weight.sum((1, 2)) * stride / horizon).view(B, C).to(x)
    certainty = horizons.square() / (horizons.square() + HALF_CERTAIN**2)
    in_units = (forecast * scale + location, error * scale)
    forecast, error = (rearrange(tensor.to(x), "(b c) h -> b h c", c=C) for tensor in in_units)
    return forecast, error, certainty


def _features(values: Tensor, ends: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Steps and means before each of the `ends`, less their level, [N, W, F], and the level, [N, W, 1]."""
    sums = F.pad(values.cumsum(1), (1, 0))[:, ends[:, None] - edges]
    level = (sums[..., :1] - sums[..., -1:]) / edges[-1]
    return (sums[..., :-1] - sums[..., 1:]) / edges.diff() - level, level


def _of_others(products: Tensor, channels: int) -> Tensor:
    """Products of all parts but each, and as much again by the mean over a series' panel; both [parts, N, ·, ·]."""
    others = (products.sum(0) - products).unflatten(1, (-1, channels))
    return (others + others.mean(2, keepdim=True)).flatten(1, 2)
