"""Series of which nothing tells what comes next: lumps, such as sales of spare parts, and steps, such as prices.

Neither their own past nor the other series of their panel foretell them. So the best forecast is a distribution: of
lumps that of the values so far, of steps that of paths that change as often and as far as the series did.

Legend: B panels, L steps of history, C series, h steps ahead, Q quantiles, T lags.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.simple_forecasts import SEEN

_READ = 512  # steps, the last ones
_LEAST_STEPS = 16
_PATHS = 1000
# Chosen on made-up series: shares of steps with the commonest value, of steps without a change, and of changes that the
# next step leaves as they are.
_COMMONEST, _STAYING, _KEPT = 0.35, 0.6, 0.75
_FEW_LEVELS = 5  # between which a series goes back and forth, as a switch does
_COMING_BACK = 0.5  # a season: values so far apart differ by less than this share of what nearer ones do
_BY_CHANCE = 0.05  # how often chance alone may look like a relation
_NEIGHBOURS = 64  # series on each side in which relations are looked for
_TOGETHER = 3  # changes that follow others by as many steps: fewer do so by chance


def with_chance(
    forecast: Tensor, x: Tensor, mask: Tensor, levels: Sequence[float], season: int | Tensor | None = None
) -> Tensor:
    """Quantiles [B, h, C, Q], replaced where chance rules a series of x [B, L, C], observed where `mask` is True.

    A told `season` is one for all panels, or [B].

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.forecasting.pretrained.chance import with_chance
    >>> price = torch.tensor([9.0] * 13 + [10.0] * 11 + [10.5] * 16)[None, :, None]
    >>> with_chance(torch.zeros(1, 6, 1, 3), price, price > 0, (0.1, 0.5, 0.9))[0, 5, 0]
    tensor([10.5000, 10.5000, 11.5000])
    """
    seasons = torch.as_tensor(0 if season is None else season).expand(len(x)).tolist()
    longer = x.masked_fill(~mask, torch.nan)
    x, mask = longer[:, -_READ:], mask[:, -_READ:]
    number = mask.sum(1)
    repeated = (x.sort(1).values.diff(dim=1) == 0.0).sum(1) >= _COMMONEST * number - 1.0
    candidates = repeated & mask[:, -1] & (number >= _LEAST_STEPS)
    if not candidates.any():
        return forecast
    forecast = forecast.clone()
    # The same draws for all series, so that none depends on those beside it.
    draws = torch.rand(3, _PATHS, forecast.shape[1], generator=torch.Generator().manual_seed(0)).to(x.device)
    for panel, series in candidates.nonzero().tolist():
        begin = int(mask[panel, :, series].to(torch.uint8).argmax())
        values, beside = x[panel, begin:, series].double(), slice(max(0, series - _NEIGHBOURS), series + _NEIGHBOURS)
        if values.isnan().any() or _comes_again(values, longer[panel, :, series], seasons[panel]):
            continue
        others = x[panel, begin:, beside].mT.clone().double()
        others[min(series, _NEIGHBOURS)] = torch.nan  # tells nothing of itself
        if (quantiles := _by_chance(values, others, draws, levels)) is not None:
            forecast[panel, :, series] = quantiles.to(forecast)
    return forecast


def _comes_again(x: Tensor, longer: Tensor, season: int) -> bool:
    """Whether the last values x [L] are what the whole series was a told season before, which is longer than T."""
    steps = min(len(x), len(longer) - season)
    if season <= _lags(x) or steps < _LEAST_STEPS:
        return False
    missed = (x[-steps:] - longer[len(longer) - season - steps : len(longer) - season]).abs().nanmean()
    return bool(missed < _COMING_BACK * _apart(x).max())


def _by_chance(x: Tensor, others: Tensor, draws: Tensor, levels: Sequence[float]) -> Tensor | None:
    """Quantiles [h, Q], or [Q] of any step, by `draws` [3, paths, h]; None where its past or others tell more."""
    changed, changes = ((rows.diff() != 0.0).to(x.dtype) for rows in (x, others.nan_to_num(0.0)))
    if _stays(x):
        return None if _follows(changed, changes) else _of_paths(x, draws, levels)
    common = (x == x.mode().values).to(x.dtype)
    if not changed.any() or common.mean() < _COMMONEST:
        return None
    _, place, number = x.unique(return_inverse=True, return_counts=True)
    ranks = (number.cumsum(0) - 0.5 * number)[place]
    time = torch.arange(len(x), dtype=x.dtype, device=x.device)
    for signal in (ranks, common):
        trend = (_standardised(signal) * _standardised(time)).mean() * math.sqrt(len(x))
        if trend.abs() > 2.0 or (_relation(signal, signal[None]) > 1.0).any():
            return None
    if (_relation(ranks, others).abs() > 1.0).any():
        return None
    return x.quantile(x.new_tensor(levels), interpolation="lower")


def _stays(x: Tensor) -> bool:
    """Whether a series [L] changes now and then, to new values that last, and not in time."""
    change = x.diff()
    changed = change != 0.0
    number = int(changed.sum())
    if number == 0 or number > (1.0 - _STAYING) * len(changed) or len(x.unique()) <= min(number, _FEW_LEVELS):
        return False
    kept = (changed[:-1] & ~changed[1:]).sum()
    if kept + 1 < _KEPT * (changed[:-1].sum() + 1):
        return False
    differences = _apart(x)
    in_time = ((change - _earlier(change)).abs() - change.abs()).nansum(1) < 0.0
    return not ((differences < _COMING_BACK * differences.cummax(0).values).any() or in_time[1:].any())


def _apart(x: Tensor) -> Tensor:
    """Mean differences of values [L] so many steps apart, [T]."""
    return (x - _earlier(x)).abs().nanmean(1)


def _earlier(x: Tensor) -> Tensor:
    """Values [L] at each of T lags, [T, L], NaN before the first."""
    lags = _lags(x)
    return F.pad(x, (lags, 0), value=torch.nan).unfold(0, len(x), 1)[:lags].flip(0)


def _lags(x: Tensor) -> int:
    """How far back a series of L steps is compared, T: as far as a season is found."""
    return int(x.shape[-1] / SEEN)


def _follows(changed: Tensor, changes: Tensor) -> bool:
    """Whether more changes [L] come some steps after those of one of the others [C, L] than by chance."""
    together = _at_lags(changed, changes).round()
    pairs = len(changed) - torch.arange(1, _lags(changed) + 1, device=changed.device)
    expected = changed.mean() * changes.mean(1, keepdim=True) * pairs
    often = together >= _TOGETHER
    likely = torch.special.gammainc(together[often], expected[often])  # so many or more, by Poisson
    return bool((likely < _BY_CHANCE / max(1, together.numel())).any())


def _relation(x: Tensor, others: Tensor) -> Tensor:
    """Correlation of a series [L] with others [C, L] at each of T lags, over what chance would exceed."""
    pairs = len(x) - torch.arange(1, _lags(x) + 1, device=x.device)
    scores = _at_lags(_standardised(x), _standardised(others)) / pairs.sqrt()
    return scores / -torch.special.ndtri(x.new_tensor(_BY_CHANCE / max(1, scores.numel())))


def _at_lags(x: Tensor, others: Tensor) -> Tensor:
    """Sums of the products of a series [L] and of what others [C, L] were at each of T lags before, [C, T]."""
    L = len(x)
    spectrum = torch.fft.rfft(x, n=2 * L) * torch.fft.rfft(others, n=2 * L).conj()
    return torch.fft.irfft(spectrum, n=2 * L)[:, 1 : _lags(x) + 1]


def _standardised(x: Tensor) -> Tensor:
    """Deviations from the mean over the last axis; what is missing has none."""
    deviation = x - x.nanmean(-1, keepdim=True)
    return (deviation / deviation.square().nanmean(-1, keepdim=True).sqrt()).nan_to_num(0.0, posinf=0.0, neginf=0.0)


def _of_paths(x: Tensor, draws: Tensor, levels: Sequence[float]) -> Tensor:
    """Quantiles [h, Q] of paths that change as often and as far as x [L] did: a compound binomial process."""
    change = x.diff()
    sizes = change[change != 0.0]
    often = (len(sizes) + 0.5) / len(x)
    upwards = ((sizes > 0.0).sum() + 1) / (len(sizes) + 2)
    happens, draw, direction = draws
    size = sizes.abs().float()[(draw * len(sizes)).long()]
    paths = (torch.where(direction < upwards, size, -size) * (happens < often)).cumsum(1)
    return x[-1] + paths.quantile(paths.new_tensor(levels), dim=0, interpolation="nearest").mT.double()
