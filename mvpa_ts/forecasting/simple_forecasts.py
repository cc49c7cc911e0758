"""Simple forecasts of many series at once: last value, means, trends and repeated seasons, with their errors so far.

Legend: N series, L steps of history, h steps ahead, K forecasts.
"""

from __future__ import annotations

import torch
from torch import Tensor

PERIODS = 3
"""Seasons tried for each series."""
NAMES = (
    "last",
    "mean",
    "smoothed .05",
    "smoothed .2",
    "smoothed .5",
    "drift",
    "damped drift",
    *(
        f"{kind}, season {rank}"
        for rank in range(1, PERIODS + 1)
        for kind in ("repeated", "mean cycle", "level", "trend")
    ),
)
"""What each of the K forecasts is, in their order."""
_CYCLES = 4
_DAMPING = 0.9


def filled(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Each missing step takes the value before it, leading ones the first; [N, L], and the first observed step [N].

    A series without any observed step is zero from its last step on.
    """
    position = torch.arange(x.shape[1], device=x.device)
    last = torch.where(mask, position, -1).cummax(1).values
    first = torch.where(mask, position, x.shape[1] - 1).amin(1)
    values = x.masked_fill(~mask, 0.0).gather(1, torch.where(last < 0, first[:, None], last))
    return values, first


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


def likely_periods(x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Seasons by the highest peaks of the autocorrelation: steps [N, PERIODS], and strength, 0 without a peak."""
    correlation = autocorrelation(x, first)
    L = x.shape[1]
    lag = torch.arange(L, device=x.device)
    inner = correlation[:, 1:-1]
    peak = torch.zeros_like(correlation, dtype=torch.bool)
    peak[:, 1:-1] = (inner >= correlation[:, :-2]) & (inner >= correlation[:, 2:])
    peak &= (lag >= 2) & (1.6 * lag <= (L - first)[:, None])
    # Multiples of a season peak as high as the season: the shorter one is to win.
    score = torch.where(peak, correlation - 0.1 * lag / L, -1.0)
    best = score.topk(PERIODS, dim=1)
    strength = correlation.gather(1, best.indices).clamp(min=0.0) * (best.values > 0.05)
    return torch.where(strength > 0, best.indices, 1), strength


def simple_forecasts(x: Tensor, first: Tensor, periods: Tensor, horizon: int) -> Tensor:
    """All forecasts of series without gaps.

    Parameters
    ----------
    x : Tensor, shape (N, L)
    first : Tensor, shape (N,)
        Step at which each series begins.
    periods : Tensor, shape (N, PERIODS)
    horizon : int

    Returns
    -------
    Tensor, shape (N, K, h)
        In the order of `NAMES`.
    """
    N, L = x.shape
    ahead = torch.arange(horizon, device=x.device)
    back = torch.arange(L - 1, -1, -1, device=x.device)
    real = (torch.arange(L, device=x.device) >= first[:, None]).to(x.dtype)
    count = real.sum(1, keepdim=True)
    last = x[:, -1:]
    level = (x * real).sum(1, keepdim=True) / count
    flat = [last, level]
    for share in (0.05, 0.2, 0.5):
        weight = real * (1.0 - share) ** back.to(x.dtype)
        flat.append((weight * x).sum(1, keepdim=True) / weight.sum(1, keepdim=True))
    start = x.gather(1, first[:, None])
    slope = (last - start) / (count - 1.0).clamp(min=1.0)
    damped = torch.cumsum(_DAMPING ** (ahead + 1.0).to(x.dtype), 0)
    recent = torch.where(back < 16, real, torch.zeros(())).to(x.dtype)
    step = (torch.diff(x, dim=1) * recent[:, 1:]).sum(1, keepdim=True) / recent[:, 1:].sum(1, keepdim=True).clamp(min=1)
    forecasts = [value.expand(N, horizon) for value in flat]
    forecasts += [last + slope * (ahead + 1), last + step * damped]
    for rank in range(periods.shape[1]):
        period = periods[:, rank : rank + 1]
        place = L - period + ahead % period  # [N, h], in the last cycle
        cycles, means, present = [], [], []
        for cycle in range(_CYCLES):
            at = place - cycle * period
            whole = (L - (cycle + 1) * period) >= first[:, None]
            cycles.append(x.gather(1, at.clamp(min=0)))
            means.append(_mean_of_cycle(x, L - (cycle + 1) * period, period))
            present.append(whole.to(x.dtype))
        shown = torch.stack(present)  # [cycles, N, 1]
        shown[0] = 1.0
        total = shown.sum(0)
        average = (torch.stack(cycles) * shown).sum(0) / total
        centre = (torch.stack(means) * shown).sum(0) / total
        growth = (means[0] - means[1]) * shown[1]
        forecasts += [cycles[0], average, average + means[0] - centre, cycles[0] + growth * (1 + ahead // period)]
    return torch.stack(forecasts, 1)


def errors_so_far(x: Tensor, first: Tensor, periods: Tensor, steps: int) -> Tensor:
    """Mean absolute error of each forecast over the last `steps` steps, made from what came before them, [N, K].

    NaN for series with fewer than twice as many steps.
    """
    L = x.shape[1]
    if 2 * steps > L:
        return x.new_full((len(x), len(NAMES)), torch.nan)
    begin = first.clamp(max=L - steps - 1)
    within = periods.clamp(max=L - steps - 1)
    forecasts = simple_forecasts(x[:, :-steps], begin, within, steps)
    errors = (forecasts - x[:, None, -steps:]).abs().mean(2)
    return errors.masked_fill(((L - first) < 2 * steps)[:, None], torch.nan)


def _mean_of_cycle(x: Tensor, start: Tensor, period: Tensor) -> Tensor:
    """Mean of x [N, L] over [start, start + period), [N, 1]; steps before the beginning count as its first value."""
    sums = torch.cumsum(torch.nn.functional.pad(x, (1, 0)), 1)
    begin = start.clamp(min=0)
    end = (start + period).clamp(min=1)
    return (sums.gather(1, end) - sums.gather(1, begin)) / (end - begin).clamp(min=1)
