"""Simple forecasts of series that grow: trends, seasons on a trend, seasons that grow with it, regressions on lags.

Legend: N series, L steps of history, h steps ahead, m lags.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.simple_forecasts import PERIODS, local_slope, smoothed

NAMES = (
    "half the trend",
    "trend of 12 steps",
    "trend of 32 steps",
    "lags 1 to 3",
    "lags 1 to 12",
    "lags 1, 2 and season 1",
    f"lags 1, 2 and season {PERIODS}",
    *(
        f"{kind}, season {rank}"
        for rank in range(1, PERIODS + 1)
        for kind in ("repeated with the last change", "repeated with the mean change", "on the trend",
                     "on a damped trend", "growing with the trend")
    ),
)  # fmt: skip
"""What each of the K forecasts is, in their order."""
_CYCLES = 6  # read for the change from cycle to cycle
_BOUND = 20.0  # in standard deviations: a regression on few steps may run away


def trend_forecasts(x: Tensor, first: Tensor, periods: Tensor, shapes: Tensor) -> Tensor:
    """All forecasts of series without gaps, in the order of this module's `NAMES`; else as `simple_forecasts`."""
    L = x.shape[1]
    horizon = shapes.shape[2] - L
    ahead = torch.arange(1, horizon + 1, device=x.device, dtype=x.dtype)
    step = torch.arange(L, device=x.device)
    real = (step >= first[:, None]).to(x.dtype)
    now, last = smoothed(x, real, 0.5), x[:, -1:]
    slopes = [local_slope(x, real * (step >= L - steps)) for steps in (L, 12, 32)]
    forecasts = [
        now + 0.5 * slopes[0] * ahead,
        now + slopes[1] * torch.cumsum(0.9**ahead, 0),
        last + slopes[2] * ahead,
        *_regressions(x, first, periods, horizon),
    ]
    seasonal = _with_season(x, first, real, periods.mT[..., None], shapes, ahead)
    return torch.cat([torch.stack(forecasts, 1), seasonal.movedim(0, 1).flatten(1, 2)], 1)


def _with_season(x: Tensor, first: Tensor, real: Tensor, period: Tensor, shape: Tensor, ahead: Tensor) -> Tensor:
    """Five forecasts with each season of `period` steps [PERIODS, N, 1] on a trend, [PERIODS, N, 5, h]."""
    L = x.shape[1]
    x = x.expand(len(period), -1, -1)
    time = torch.arange(-L, len(ahead), device=x.device)  # 0 is the first step of the horizon
    means, whole = _cycle_sums(x, first, period)
    means = means / period
    count = whole.sum(-1, keepdim=True)
    oldest = means.gather(-1, (count.long() - 1).clamp(min=0))
    mean_change = (means[..., :1] - oldest) / (count - 1).clamp(min=1.0) * (count > 1)
    last_change = (means[..., :1] - means[..., 1:2]) * (count > 1)
    cycle = torch.div(ahead.long() - 1, period, rounding_mode="floor") + 1.0
    repeated = x.gather(-1, L - period + (ahead.long() - 1) % period)

    slope = mean_change / period
    centre = (period - 1) / 2
    shape = shape - slope * ((time % period) - centre)  # [PERIODS, N, L + h]
    trend = means[..., :1] + slope * (time + 1 + centre)
    past, season = shape[..., :L], shape[..., L:]
    level = smoothed(x - past - trend[..., :L], real, 0.3)
    on_trend = level + trend[..., L:] + season

    recent = real * (time[:L] >= -2 * period.clamp(min=4))
    steep = local_slope(x - past, recent)
    fading = 0.5 ** (1.0 / period)
    damped = smoothed(x - past, real, 0.3) + steep * fading * (1.0 - fading**ahead) / (1.0 - fading).clamp(min=1e-6)

    # How large the season is in each cycle, and how that goes with the cycle's level.
    power = _cycle_sums(past.square(), first, period)[0][..., :1]
    gains = _cycle_sums((x - trend[..., :L]) * past, first, period)[0] / power.clamp(min=1e-9)
    middle = (means * whole).sum(-1, keepdim=True) / count.clamp(min=1.0)
    usual = torch.where(count > 0, (gains * whole).sum(-1, keepdim=True) / count.clamp(min=1.0), 1.0)
    deviation = (means - middle) * whole
    growth = (deviation * (gains - usual)).sum(-1, keepdim=True) / (deviation.square().sum(-1, keepdim=True) + 1e-4)
    gain = (usual + growth * (trend - middle)).clamp(0.2, 5.0)
    grown = smoothed(x - gain[..., :L] * past - trend[..., :L], real, 0.3) + trend[..., L:] + gain[..., L:] * season
    with_changes = (repeated + last_change * cycle, repeated + mean_change * cycle)
    return torch.stack([*with_changes, on_trend, damped + season, grown], 2)


def _cycle_sums(x: Tensor, first: Tensor, period: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the last cycles, the latest first, [..., N, 6], and 1 where the cycle is whole; 0 for others."""
    L = x.shape[-1]
    sums = F.pad(torch.cumsum(x, -1), (1, 0))
    begin = L - torch.arange(1, _CYCLES + 1, device=x.device) * period
    whole = (begin >= first[:, None]).to(x.dtype)
    ends = (begin + period).clamp(min=0)
    return (sums.gather(-1, ends) - sums.gather(-1, begin.clamp(min=0))) * whole, whole


def _regressions(x: Tensor, first: Tensor, periods: Tensor, horizon: int) -> list[Tensor]:
    """Forecasts by linear regression on some lags, step after step, each [N, h]."""
    N, L = x.shape
    models = [*_fitted(x, first, torch.arange(1, 13, device=x.device).expand(N, 12), ((1.0, 0.0, 0.0), (1.0,)))]
    for period in (periods[:, 0], periods[:, -1]):
        lags = torch.stack([torch.ones_like(period), torch.full_like(period, 2), period, period + 1], 1)
        models += _fitted(x, first, lags, ((0.5, 0.0, 1.0, -0.5),))
    # All regressions go ahead together: 64 small steps instead of four times as many.
    most = max(weight.shape[1] for _, weight, _ in models)
    lag = torch.cat([F.pad(lags, (0, most - lags.shape[1]), value=1) for lags, _, _ in models])
    weight = torch.cat([F.pad(weight, (0, most - weight.shape[1])) for _, weight, _ in models])
    constant = torch.cat([constant for _, _, constant in models])
    # Only what the longest lag reaches is copied; a compiled graph has fixed sizes and copies all that a lag may reach.
    reach = max(12, L + 1) if torch.compiler.is_compiling() else int(lag.max())
    start = min(L, reach)
    history = F.pad(x[:, L - start :], (reach - start, horizon)).repeat(len(models), 1)
    end = history.shape[1] - horizon
    place = end - lag
    for ahead in range(horizon):
        value = constant + (weight * history.gather(1, place + ahead)).sum(1)
        history[:, end + ahead] = value.clamp(-_BOUND, _BOUND)
    return list(history[:, end:].unflatten(0, (len(models), N)))


def _fitted(
    x: Tensor, first: Tensor, lags: Tensor, priors: tuple[tuple[float, ...], ...]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Lags, weights [N, m] and constant [N] of a ridge regression towards each prior; a prior of few lags reads few."""
    N, L = x.shape
    m = lags.shape[1]
    usable = (torch.arange(L, device=x.device) >= (first + lags.amax(1))[:, None]).to(x.dtype)
    rows = x.new_empty(N, m + 2, L)
    rows[:, m], rows[:, m + 1] = x * usable, usable
    for place, lag in enumerate(lags.unbind(1)):
        shifted = (torch.arange(L, device=x.device) - lag[:, None]).clamp(min=0)
        rows[:, place] = x.gather(1, shifted).mul_(usable)
    products = rows @ rows.mT
    count = products[:, m + 1, m + 1, None].clamp(min=1.0)
    means = products[:, m + 1, : m + 1] / count
    products = products[:, : m + 1, : m + 1] - count[..., None] * means[:, :, None] * means[:, None]
    variance = products.diagonal(dim1=1, dim2=2).mean(1, keepdim=True) / count + 1e-3
    models = []
    for prior in priors:
        k = m if prior is priors[-1] else len(prior)  # the last is that of all lags, filled with zeros
        start = F.pad(x.new_tensor(prior), (0, k - len(prior)))
        gram, cross = products[:, :k, :k], products[:, :k, m]
        ridge = torch.diag_embed((0.5 * k * variance).expand(N, k))
        change = torch.linalg.solve_ex(gram + ridge, (cross - gram @ start)[..., None]).result[..., 0]
        enough = count >= k + 2
        weight = torch.where(enough, start + change, start)
        constant = torch.where(enough[:, 0], means[:, m] - (weight * means[:, :k]).sum(1), 0.0)
        models.append((lags[:, :k], weight, constant))
    return models
