"""Running totals, such as meter readings: their steps are forecast, and added up.

Legend: B panels, L steps of history, C series, h steps ahead, Q quantiles. A sign is 1 of what rises, −1 of what falls
and 0 of other series.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mvpa_ts.forecasting.pretrained.base import LEVELS
from mvpa_ts.forecasting.quantiles import quantiles_at

# Steps that are compared: a random walk of fewer may rise by chance alone.
_LEAST_STEPS = 16
# Correlation of a step with the next one below which a series swings about a trend, as a total never does.
_SWINGING = -0.25


def signs_of_totals(x: Tensor, mask: Tensor) -> Tensor:
    """The sign [B, C] of series [B, L, C] that never turn back, and move at most steps once they began."""
    steps, pairs = _steps(x, mask)
    pairs = pairs & (steps != 0.0).cummax(1).values
    count = pairs.sum(1)
    rising, falling = ((pairs & (sign * steps > 0.0)).sum(1) for sign in (1.0, -1.0))
    deviation = (steps - (steps.sum(1) / count.clamp(min=1))[:, None]) * pairs
    swinging = (deviation[:, 1:] * deviation[:, :-1]).sum(1) < _SWINGING * deviation.square().sum(1)
    one_way = (rising * falling == 0) & (2 * (rising + falling) > count)
    # A straight line needs no sum. Where the last value is missing, nobody knows what to add to.
    total = one_way & ~swinging & (deviation != 0.0).any(1) & (count >= _LEAST_STEPS) & mask[:, -1]
    return (rising - falling).sign() * total


def with_steps(x: Tensor, mask: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Histories and masks [B, L, C] with the steps of running totals in their place."""
    steps, pairs = _steps(x, mask)
    total = sign[:, None] != 0
    return torch.where(total, steps, x), torch.where(total, pairs, mask)


def added_up(forecast: Tensor, steps: Tensor, last: Tensor, sign: Tensor, levels: Sequence[float]) -> Tensor:
    """Quantiles [B, h, C, Q] of running totals from those of the series itself and of their steps, [B, h, C, 9].

    They lie about the last value [B, C] and the mean steps, as wide as the series' own. They are no wider than the
    steps' quantiles added up, which would hold if all steps erred together; so no total turns back.
    """
    sign, half = sign[:, None, :, None], levels.index(0.5)

    def summed(quantiles: Tensor) -> Tensor:
        return last[:, None, :, None] + torch.where(sign * quantiles > 0.0, quantiles, 0.0).cumsum(1)

    middle = summed(steps).mean(3, keepdim=True)
    # Interpolated, they may cross by a rounding.
    widest = summed(quantiles_at(steps, LEVELS, levels).cummax(3).values)
    moved = middle + (forecast - forecast[..., half : half + 1])
    low = torch.maximum(moved, torch.minimum(widest, middle))
    high = torch.minimum(moved, torch.maximum(widest, middle))
    below = torch.arange(len(levels), device=forecast.device) < half
    return torch.where(sign == 0, forecast, torch.where(below, low, high))


def _steps(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Differences from the value before, [B, L, C], zero where one of both is missing, and where both are there."""
    pairs = mask & torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], 1)
    return torch.diff(x, dim=1, prepend=x[:, :1]).masked_fill(~pairs, 0.0), pairs
