"""The mean shape of a long cycle, such as the week of hours, in histories that hold five or more of it.

The network reads 512 steps: three weeks of hours, less than two days of five minutes. Each step of a cycle is better
known by the mean of more of them. How much of that mean is believed is tried on the history.

Legend: B panels, L steps of history, C series, N = B·C, K cycles, s steps of a cycle, h steps ahead.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.seasons import week_of

FEWEST, MOST = 5, 12  # cycles of history: older ones tell less of the next
_FIRST = 2  # cycles whose mean is the first to be tried
_READ = 512 // 4  # steps of a cycle that the network sees four times


def cycles_of(season: int) -> tuple[int, ...]:
    """Steps of the day and of the week, as the told season implies them, where the network cannot see four of them."""
    if week := week_of(season):
        return (week,) if week > _READ else ()
    if season > 24 and 24 * 60 % season == 0:
        return (season, 7 * season) if season > _READ else (7 * season,)
    return ()


def cycle_profile(x: Tensor, mask: Tensor, horizon: int, cycle: int) -> Tensor:
    """The believed shape of a cycle in all steps of history and horizon, [B, L + h, C]; 0 where none is believed.

    Histories `x` and where they were observed, `mask`, are [B, L, C]. From the shape of a week, what all days have is
    taken away: the network sees enough days. Belief is a share from 0 to 1. It is tried on each cycle: how much of its
    changes over the horizon did the mean of the cycles before tell? The share is lowered by its error from cycle to
    cycle, and to what it was in the last half of a cycle. Half of it is the mean over the panel.
    """
    B, L, C = x.shape
    K = min(L // cycle, MOST)
    if K < FEWEST:
        return x.new_zeros(B, L + horizon, C)
    start = L - K * cycle
    rows = (x.masked_fill(~mask, 0.0), mask)
    cycles, seen = (rearrange(tensor[:, start:].double(), "b (k s) c -> (b c) k s", s=cycle) for tensor in rows)
    usable = seen.mean(2, keepdim=True) > 0.5
    values = _without_trend(cycles, seen, usable)
    if cycle % 7 == 0:
        days, of_days = (rearrange(tensor, "n k (d s) -> n (k d) s", d=7) for tensor in (values, seen))
        level = days.sum(2, keepdim=True) / of_days.sum(2, keepdim=True).clamp(min=1.0)
        day = ((days - level) * of_days).sum(1) / of_days.sum(1).clamp(min=1.0)
        values = (values - day.repeat(1, 7)[:, None]) * seen
    means = values.cumsum(1) / seen.cumsum(1).clamp(min=1.0)  # of the cycles up to each

    ahead = min(horizon, cycle // 2)
    # As many are tried whatever stands before the first step of a series.
    tried = usable[:, _FIRST:] & (usable.cumsum(1)[:, _FIRST - 1 : -1] >= _FIRST)
    compared = seen[:, _FIRST:] * seen[:, _FIRST:].roll(-ahead, 2) * tried
    predicted, change = (tensor.roll(-ahead, 2) - tensor for tensor in (means[:, _FIRST - 1 : -1], values[:, _FIRST:]))
    agreement, size = predicted * change * compared, predicted.square() * compared
    number, agreement, size = tried.sum(1), _with_panel(agreement, values, C), _with_panel(size, values, C)
    lately = agreement[:, -1, cycle // 2 :].sum(1) / size[:, -1, cycle // 2 :].sum(1).clamp(min=1e-12)
    agreement, size = agreement.sum(2), size.sum(2)
    total = size.sum(1, keepdim=True).clamp(min=1e-12)
    share = agreement.sum(1, keepdim=True) / total
    missed = (agreement - share * size).square().sum(1, keepdim=True)
    error = (missed * number / (number - 1).clamp(min=1)).sqrt() / total
    believed = torch.minimum(share - error, lately[:, None]).clamp(0.0, 1.0) * (number >= FEWEST - _FIRST)
    profile = means[:, -1] * believed * _varying(cycles, seen)
    steps = torch.arange(-start, L - start + horizon, device=x.device) % cycle
    return rearrange(profile[:, steps], "(b c) l -> b l c", c=C).to(x.dtype)


def _without_trend(values: Tensor, seen: Tensor, known: Tensor) -> Tensor:
    """Cycles [N, K, s] less their level and the slope from the level before to the level after."""
    level = values.sum(2, keepdim=True) / seen.sum(2, keepdim=True).clamp(min=1.0)
    between = F.pad(level.diff(dim=1), (0, 0, 1, 1))
    counts = F.pad((known[:, 1:] & known[:, :-1]).double(), (0, 0, 1, 1))
    rise = between * counts
    slope = (rise[:, 1:] + rise[:, :-1]) / (counts[:, 1:] + counts[:, :-1]).clamp(min=1.0)
    place = (torch.arange(values.shape[2], device=values.device) + 0.5) / values.shape[2] - 0.5
    return (values - level - slope * place) * seen


def _varying(cycles: Tensor, seen: Tensor) -> Tensor:
    """Whether cycles [N, K, s] vary at all their steps, [N, 1] from 0 to 1."""
    # Sunshine stands still at night. It is a shape times a rest: without the shape its nights would begin to move.
    mean = (cycles * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1.0)
    spread = ((cycles - mean).square() * seen).sum(1).sqrt()
    least = spread.quantile(0.1, dim=1, keepdim=True)
    return (2.0 * least / spread.mean(1, keepdim=True).clamp(min=1e-9)).clamp(max=1.0)


def _with_panel(products: Tensor, values: Tensor, channels: int) -> Tensor:
    """Products of every step [N, cycles, s] in a series' variance, half of them the mean over its panel."""
    products = products / values.square().sum((1, 2), keepdim=True).clamp(min=1e-9)
    of_panels = products.unflatten(0, (-1, channels))
    return (0.5 * (of_panels + of_panels.mean(1, keepdim=True))).flatten(0, 1)
