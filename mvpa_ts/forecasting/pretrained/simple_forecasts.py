"""Simple forecasts of many series at once: last value, means, trends and repeated seasons, with their errors so far.

Legend: N series, L steps of history, h steps ahead, K forecasts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

PERIODS = 3
"""Seasons tried for each series."""
NAMES = (
    "last",
    "mean",
    "smoothed .05",
    "smoothed .2",
    "smoothed .5",
    "drift",
    "damped trend",
    *(
        f"{kind}, season {rank}"
        for rank in range(1, PERIODS + 1)
        for kind in ("repeated", "level of the last cycle", "smoothed .05", "smoothed .3", "returning")
    ),
)
"""What each of the K forecasts is, in their order."""
SEEN = 1.6
"""How often a season must fit into a history to be found there."""
CYCLES = 6
"""Cycles that are averaged for the shape of a season."""
_DAMPING = 0.95
_TREND_STEPS = 32


def filled(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Each missing step takes the value before it, leading ones the first; [N, L], and the first observed step [N].

    A series without any observed step is zero from its last step on.
    """
    position = torch.arange(x.shape[1], device=x.device)
    last = torch.where(mask, position, -1).cummax(1).values
    first = torch.where(mask, position, x.shape[1] - 1).amin(1)
    values = x.masked_fill(~mask, 0.0).gather(1, torch.where(last < 0, first[:, None], last))
    return values, first


def standardised(x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Series [N, L] in deviations from their mean, and mean and deviation [N, 1], over the steps that are counted."""
    count = counted.sum(1, keepdim=True).clamp(min=1)
    location = (x * counted).sum(1, keepdim=True) / count
    scale = (((x - location) * counted).square().sum(1, keepdim=True) / count).sqrt().clamp(min=1e-9)
    return (x - location) / scale, location, scale


def autocorrelation(x: Tensor, first: Tensor) -> Tensor:
    """Autocorrelation of the detrended series at lags 0 … L−1, [N, L]; steps before `first` do not count."""
    N, L = x.shape
    real = (torch.arange(L, device=x.device) >= first[:, None]).to(x.dtype)
    count = real.sum(1, keepdim=True)
    time = (torch.arange(L, device=x.device, dtype=x.dtype) / L).expand(N, L) * real
    time = (time - time.sum(1, keepdim=True) / count) * real
    level = (x - (x * real).sum(1, keepdim=True) / count) * real
    slope = (time * level).sum(1, keepdim=True) / time.square().sum(1, keepdim=True).clamp(min=1e-6)
    level = level - slope * time
    spectrum = torch.fft.rfft(level, n=2 * L)
    products = torch.fft.irfft(spectrum.abs().square(), n=2 * L)[:, :L]
    pairs = (count - torch.arange(L, device=x.device)).clamp(min=1.0)
    return (products / pairs) / (products[:, :1] / count).clamp(min=1e-12)


def likely_period(x: Tensor, first: Tensor) -> Tensor:
    """Season by the highest peaks of the autocorrelation in steps, [N, 1]; 1 without a peak."""
    correlation = autocorrelation(x, first)
    height = torch.where(_peaks(correlation, (x.shape[1] - first)[:, None]), correlation, -1.0)
    shortest = _shortest(height)
    return torch.where(height.gather(1, shortest) > 0.05, shortest, 1)


def seasons_of_panel(x: Tensor, first: Tensor, channels: int, hint: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Seasons by how far the autocorrelation rises again: steps [N, PERIODS], and strength, 0 without.

    Slow curves lift the autocorrelation at all lags, where a ripple is no season. What counts is the height of a peak
    over the lowest value before it. The first season is that of the series, the second that of its changes from step to
    step, which slow curves do not hide; or, where that is the same, the next of the series. The last is that of the
    mean over the `channels` series of its panel, which are neighbours in `x`; or `hint` [N], the season by the
    calendar, where that is above 1 and the series holds it once.
    """
    correlation = autocorrelation(x, first)
    L = x.shape[1]
    count = (L - first)[:, None]
    rise = _rise(correlation, count)
    changes = torch.diff(x, dim=1, prepend=x[:, :1])
    rise_of_changes = _rise(autocorrelation(changes, (first + 1).clamp(max=L - 1)), count)
    panel = correlation.clamp(-1.5, 1.5).unflatten(0, (-1, channels)).mean(1)
    common = _rise(panel, count.view(-1, channels).amax(1, keepdim=True)).repeat_interleave(channels, 0)
    first_season, second_season = _shortest(rise), _shortest(rise_of_changes)
    lag = torch.arange(L, device=x.device)
    near = (lag - first_season).abs() <= 1 + 0.15 * first_season
    same = near.gather(1, second_season) | (rise_of_changes.gather(1, second_season) <= 0.1)
    second_season = torch.where(same, torch.where(near, -1.0, rise).argmax(1, keepdim=True), second_season)
    height = torch.where(same, rise, rise_of_changes).gather(1, second_season)
    shared = _shortest(common)
    periods = torch.cat([first_season, second_season, shared], 1)
    strength = torch.cat([rise.gather(1, first_season), height, common.gather(1, shared)], 1)
    periods, strength = torch.where(strength > 0.1, periods, 1), torch.where(strength > 0.1, strength, 0.0)
    if hint is not None:
        hinted = (hint > 1) & (hint <= L - first)
        hinted_lag = hint.clamp(1, L - 1)[:, None]
        risen = (correlation - correlation.cummin(1).values).gather(1, hinted_lag)[:, 0].clamp(0.0, 2.0)
        periods[:, -1] = torch.where(hinted, hint, periods[:, -1])
        strength[:, -1] = torch.where(hinted, risen, strength[:, -1])
    return periods, strength


def _peaks(correlation: Tensor, count: Tensor) -> Tensor:
    """Lags that are higher than those beside them, and short enough for `count` [N, 1] steps, [N, L]."""
    lag, inner = torch.arange(correlation.shape[1], device=correlation.device), correlation[:, 1:-1]
    peak = F.pad((inner >= correlation[:, :-2]) & (inner >= correlation[:, 2:]), (1, 1), value=False)
    return peak & (lag >= 2) & (SEEN * lag <= count)


def _rise(correlation: Tensor, count: Tensor) -> Tensor:
    """Height of each peak over the lowest value before it, −1 elsewhere; lags with few pairs count less, [N, L]."""
    lag = torch.arange(correlation.shape[1], device=correlation.device)
    rise = (correlation - correlation.cummin(1).values) * (2.0 * (1.0 - lag / count.clamp(min=1))).clamp(0.0, 1.0)
    return torch.where(_peaks(correlation, count), rise, -1.0)


def _shortest(height: Tensor) -> Tensor:
    # Multiples of a season peak as high as the season itself, so the first lag nearly as high as the highest is taken.
    high = (height > 0) & (height >= 0.85 * height.amax(1, keepdim=True))
    return torch.where(high.any(1), high.to(torch.uint8).argmax(1), 1)[:, None]


def simple_forecasts(x: Tensor, first: Tensor, periods: Tensor, shapes: Tensor) -> Tensor:
    """All forecasts of series without gaps.

    Series `x` [N, L] begin at the steps `first` [N]. Of each of their `periods` [N, PERIODS], `season_shape` gives the
    `shapes` [PERIODS, N, L + h].
    """
    N, L = x.shape
    horizon = shapes.shape[2] - L
    ahead = torch.arange(1, horizon + 1, device=x.device)
    step = torch.arange(L, device=x.device)
    real = (step >= first[:, None]).to(x.dtype)
    last, level = x[:, -1:], (x * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)
    start = x.gather(1, first[:, None])
    slope = (last - start) / (L - 1 - first[:, None]).clamp(min=1)
    flat = [last, level, *(smoothed(x, real, share) for share in (0.05, 0.2, 0.5))]
    forecasts = [value.expand(N, horizon) for value in flat]
    forecasts.append(last + slope * ahead)
    damped = torch.cumsum(_DAMPING ** ahead.to(x.dtype), 0)
    forecasts.append(flat[3] + local_slope(x, real * (step >= L - _TREND_STEPS)) * damped)
    # All seasons at once, [PERIODS, N, ·].
    period, deseasonalised, season = periods.mT[..., None], x - shapes[..., :L], shapes[..., L:]
    slow, quick = smoothed(deseasonalised, real, 0.05), smoothed(deseasonalised, real, 0.3)
    of_cycle = real * (step >= L - period)
    recent = (deseasonalised * of_cycle).sum(-1, keepdim=True) / of_cycle.sum(-1, keepdim=True).clamp(min=1)
    deviation = (deseasonalised - (deseasonalised * real).sum(-1, keepdim=True) / real.sum(-1, keepdim=True)) * real
    power = deviation.square().sum(-1, keepdim=True).clamp(min=1e-9)
    memory = (deviation[..., 1:] * deviation[..., :-1]).sum(-1, keepdim=True) / power
    repeated = x.expand_as(deseasonalised).gather(-1, L - period + (ahead - 1) % period)
    returning = season + slow + memory.clamp(0.0, 0.999) ** ahead * (deseasonalised[..., -1:] - slow)
    seasonal = torch.stack([repeated, season + recent, season + slow, season + quick, returning], 2)
    return torch.cat([torch.stack(forecasts, 1), seasonal.movedim(0, 1).flatten(1, 2)], 1)


def smoothed(x: Tensor, real: Tensor, share: float) -> Tensor:
    """Mean with weights that fall by `share` a step into the past, [..., N, 1]: simple exponential smoothing."""
    back = torch.arange(x.shape[-1] - 1, -1, -1, device=x.device, dtype=x.dtype)
    weight = real * (1.0 - share) ** back
    return (weight * x).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)


def local_slope(x: Tensor, weight: Tensor) -> Tensor:
    """Slope of the straight line through the steps that have a weight, [..., N, 1]."""
    total = weight.sum(-1, keepdim=True).clamp(min=1.0)
    time = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
    time = (time - (time * weight).sum(-1, keepdim=True) / total) * weight
    return (time * x).sum(-1, keepdim=True) / time.square().sum(-1, keepdim=True).clamp(min=1e-9)


def season_shape(x: Tensor, first: Tensor, period: Tensor, horizon: int) -> Tensor:
    """Shape of a season around zero, from the last cycles, at every step of history and horizon, [..., N, L + h]."""
    L = x.shape[1]
    place = L - period + (torch.arange(-L, horizon, device=x.device) % period)
    sums = torch.cumsum(F.pad(x, (1, 0)), 1).expand(*period.shape[:-1], -1)
    x = x.expand(*period.shape[:-1], -1)
    total, number = torch.zeros_like(place, dtype=x.dtype), torch.zeros_like(period, dtype=x.dtype)
    for cycle in range(CYCLES):
        begin = L - (cycle + 1) * period
        whole = (begin >= first[:, None]).to(x.dtype)
        centre = (sums.gather(-1, (begin + period).clamp(min=0)) - sums.gather(-1, begin.clamp(min=0))) / period
        total = total + whole * (x.gather(-1, (place - cycle * period).clamp(min=0)) - centre)
        number = number + whole
    return total / number.clamp(min=1.0)


def season_spread(x: Tensor, period: Tensor, horizon: int) -> Tensor:
    """How much a series changes from cycle to cycle at each time of its season, over the mean of all times.

    Nights of solar power are sure, noons are not. Of the differences between times only what is more than twice as
    large as chance counts (shrinkage as by James and Stein, 1961, and more cautious). Series are [N, L], with NaN
    for missing, and periods [N, 1]. It is given at every step of history and horizon, [N, L + h]; 1 where fewer than
    three cycles can be compared with the one before.
    """
    L = x.shape[1]
    step = torch.arange(L, device=x.device)
    changes = (x - x.gather(1, (step - period).clamp(min=0))).abs().masked_fill(step < period, torch.nan)
    # Times nearby are alike: a mean over a twelfth of the season.
    begin, end = (step - period // 24).clamp(min=0), (step + period // 24 + 1).clamp(max=L)
    observed = (~changes.isnan()).to(x.dtype)
    sums, counts = (F.pad(tensor.cumsum(1), (1, 0)) for tensor in (changes.nan_to_num(0.0), observed))
    nearby = (sums.gather(1, end) - sums.gather(1, begin)) / (counts.gather(1, end) - counts.gather(1, begin))
    place = L - period + (torch.arange(-L, horizon, device=x.device) % period)
    cycles = place - period * torch.arange(CYCLES, device=x.device)[:, None, None]  # [CYCLES, N, L + h]
    changes_before = nearby.expand(CYCLES, -1, -1).gather(2, cycles.clamp(min=0)).masked_fill(cycles < 0, torch.nan)
    number = (~changes_before.isnan()).sum(0)
    mean = changes_before.nanmean(0)
    usable = number > 2
    counted = usable & (torch.arange(L + horizon, device=x.device) >= L + horizon - period)  # a season, once
    chance = (changes_before - mean).square().nansum(0) / (number * (number - 1)).clamp(min=1)
    usual = mean.masked_fill(~counted, torch.nan).nanmean(1, keepdim=True)
    variance = (mean - usual).square().masked_fill(~counted, 0.0).sum(1, keepdim=True)
    share = 1.0 - 2.0 * chance.masked_fill(~counted, 0.0).sum(1, keepdim=True) / variance.clamp(min=1e-12)
    factor = 1.0 + share.clamp(0.0, 1.0) * (mean / usual.clamp(min=1e-6) - 1.0)
    return torch.where(usable, factor, 1.0).nan_to_num(1.0)
