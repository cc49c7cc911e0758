"""A linear regression of all steps ahead on the steps before, fitted on a history longer than the look-back.

The network reads 512 steps, and was never trained on the series. A long history shows how a series returns to its
level, and how surely, at each step ahead. The regression reads the last steps, and means of those before, all less
their common mean: how far that lies from the mean of all history says little where a year has seasons.

Legend: B panels, L steps of history, C series, N = B·C, h steps ahead, W windows of the history, F features.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.simple_forecasts import filled

MEANS = ((24, 1), (36, 4), (7, 24))
"""What is read, from the end: so many means of so many steps each. Of hours that is two weeks."""
MOST_LONG_MEANS = 28
"""Means of 24 steps, where the history is more than four times as long."""
WINDOWS = 512
"""Windows that are fitted, at the most; they are spread evenly over the history."""
PENALTY, FREE = 0.03, 1e-3
"""Ridge penalty in mean variances of the features, and that of the last value."""
KNOWN = 15.0
"""Horizons in a history that make the regression half known."""
_PARTS = 4  # of the history: errors in each are those of a regression fitted on the others


def direct_regression(x: Tensor, mask: Tensor, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    """Forecasts and their usual errors, each [B, h, C], and how well the regression is known, [B, C], from 0 to 1.

    Histories `x` and where they were observed, `mask`, are [B, L, C], and begin with the first step. The series of a
    panel share half of what tells their weights. An error is usual in the parts of the history that were left out of
    the fit. Of a history that is too short nothing is known.
    """
    B, L, C = x.shape
    fewest = sum(number * width for number, width in MEANS)
    if fewest + horizon >= L:
        return x.new_zeros(B, horizon, C), x.new_ones(B, horizon, C), x.new_zeros(B, C)
    observed = rearrange(mask, "b l c -> (b c) l")
    values = filled(rearrange(x, "b l c -> (b c) l"), observed)[0].double()
    seen = observed.double()
    number = seen.sum(1, keepdim=True).clamp(min=1.0)
    location = (values * seen).sum(1, keepdim=True) / number
    scale = (((values - location) * seen).square().sum(1, keepdim=True) / number).sqrt().clamp(min=1e-9)
    values = (values - location) / scale

    (long, width), room = MEANS[-1], L // 4 - horizon - fewest
    numbers = [*(number for number, _ in MEANS[:-1]), min(max(long + room // width, long), MOST_LONG_MEANS)]
    sizes = torch.cat([torch.full((n,), size, device=x.device) for n, (_, size) in zip(numbers, MEANS, strict=True)])
    edges = F.pad(sizes.cumsum(0), (1, 0))  # steps before the end of a window's past
    reach = sum(n * size for n, (_, size) in zip(numbers, MEANS, strict=True))
    stride = -(-(L - reach - horizon + 1) // WINDOWS)
    ends = torch.arange(L - horizon, reach - 1, -stride, device=x.device).flip(0)
    past, level = _features(values, ends, edges)
    ahead = values[:, ends[:, None] + torch.arange(horizon, device=x.device)] - level
    counted = F.pad(seen.cumsum(1), (1, 0))
    weight = (counted[:, ends + horizon] - counted[:, ends - reach]) / (reach + horizon)
    weight = weight.masked_fill(weight < 0.5, 0.0)[..., None]  # [N, W, 1]

    parts = [
        tuple(of[:, part] for of in (past, ahead, weight)) for part in torch.arange(len(ends)).tensor_split(_PARTS)
    ]
    own_gram = torch.stack([(before * counts).mT @ before for before, _, counts in parts])
    own_cross = torch.stack([(before * counts).mT @ after for before, after, counts in parts])
    grams, crosses = _shared(own_gram, C), _shared(own_cross, C)
    gram, cross = grams.sum(0), crosses.sum(0)
    # The last value is nearly free: where it tells the next ones, no other forecast comes near.
    penalty = torch.where(torch.arange(len(sizes), device=x.device) == 0, FREE, PENALTY).to(gram)
    ridge = torch.diag_embed(penalty * gram.diagonal(dim1=1, dim2=2).mean(1, keepdim=True) + 1e-6)
    without = torch.linalg.solve(gram - grams + ridge, cross - crosses)  # [parts, N, F, h]
    missed = (ahead.square() * weight).sum(1) + (without * (own_gram @ without - 2.0 * own_cross)).sum((0, 2))
    error = (missed.clamp(min=0.0) / weight.sum(1).clamp(min=1e-6)).sqrt().clamp(min=1e-6)

    last, level = _features(values, ends.new_tensor([L]), edges)
    forecast = (last @ torch.linalg.solve(gram + ridge, cross) + level)[:, 0]
    horizons = (weight.sum((1, 2)) * stride / horizon).view(B, C).to(x)
    known = horizons.square() / (horizons.square() + KNOWN**2)
    of_steps = (rearrange(of.to(x), "(b c) h -> b h c", c=C) for of in (forecast * scale + location, error * scale))
    return *of_steps, known


def _features(values: Tensor, ends: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Steps and means before each of the `ends`, less their level, [N, W, F], and the level, [N, W, 1]."""
    sums = F.pad(values.cumsum(1), (1, 0))[:, ends[:, None] - edges]
    level = (sums[..., :1] - sums[..., -1:]) / edges[-1]
    return (sums[..., :-1] - sums[..., 1:]) / edges.diff() - level, level


def _shared(products: Tensor, channels: int) -> Tensor:
    """Products of each series and, as much again, the mean over its panel, [parts, N, ·, ·]."""
    of_panels = products.unflatten(1, (-1, channels))
    return (of_panels + of_panels.mean(2, keepdim=True)).flatten(1, 2)
