"""Regressions that are fitted inside each window, in closed form, and what share of the forecast each has.

A relation that changes from one stretch of a series to the next is in no weight that training could learn: the window
has to tell it. A few hundred equations are enough if all channels share one rule: weights by lag and by distance in the
order of the channels, fitted one step ahead and carried on from there. Channels that follow another one in no order get
a regression of their own.

Legend: B windows, L steps, C channels, h steps ahead, K forecasts, p lags, S neighbours a side.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.forecasting.normalisation import location_scale
from mvpa_ts.windows import Windows

NAMES = ("own lags", "neighbours", "neighbours, lately", "leaders")
"""What each forecast is, in their order."""
LEAST_LOOKBACK = 16
"""Steps of a window below which there is too little to fit."""
FARTHEST = 96
"""Steps that are forecast at the most; one step after the other, the forecast has long come to rest by then."""
CHUNK = 4
"""Steps of the horizon for which attention sets one share."""
START = 3.0
"""Score of the network before training: 95 % of the forecast, where one regression is far better than the others."""
OFF = 1e4
"""Score of the network where regressions do not pay: their share, and its gradient, is then exactly zero."""
LEAST_GAIN, LEAST_HORIZONS = 0.05, 5.0
"""Part of the squared error that regressions must take away, and the same times the horizons that say so: unrelated
walks of 400 steps seem to gain .06 on 50 horizons, panels with relations a tenth to a half on hundreds."""
# Of a last value with each step that is missing after it: a sensor that died long ago tells little now. With 0 or 1 a
# ridge regression on Beijing's training rows with gaps, and where sensors fail, misses by 1 to 6 % more.
_REMAINS = 0.9
_TRIED_WINDOWS, _FITTED_ROWS, _RIDGES = 48, 4000, (0.01, 0.1, 1.0)
_LAGS, _NEIGHBOURS, _PENALTY = 12, 2, 30.0
_LEADER_REACH, _LEADER_OWN = 40, 2  # lags at which a leader is looked for; own lags beside it
_MOST_LED = 64  # channels among which leaders are looked for: the time grows with their square
_MOST_ROWS = 3000  # equations of a pooled regression; with more channels, every second or third step is read
_ROOM = 2.0  # deviations that a forecast may go past what the window had
_LEAST_ERROR = 0.02  # of what errors are compared above
_FAR = 5.0  # deviations from the series' mean from which a window is read around itself


class Regressed(NamedTuple):
    """Forecasts from inside the windows.

    Parameters
    ----------
    forecasts : Tensor, shape (B, C, K, h)
        In the units of the window; at most `FARTHEST` steps.
    evidence : Tensor, shape (B, C, 2 K + 2)
        Logarithms of the errors that each would have made over the last steps of the window, when it was fitted to the
        steps before: of the channel and of all channels, less the least one; and both least ones.
    usable : tuple of bool
        Which of the K are not the copy of another: a single channel has no neighbours.
    """

    forecasts: Tensor
    evidence: Tensor
    usable: tuple[bool, ...]


def regress(x: Tensor, mask: Tensor | None, units: Tensor | None, horizon: int) -> Regressed:
    """Fit the regressions to each window x [B, L, C], which is zero where nothing was observed by the mask [B, L, C].

    Units [C, 2] are mean and deviation of the series; where they are NaN or None, those of the window are taken.

    Examples
    --------
    >>> import torch
    >>> source = torch.randn(1, 300, generator=torch.Generator().manual_seed(0))
    >>> y = torch.stack([source[0, 40 - 3 * c : 160 - 3 * c] for c in range(8)], dim=1)  # 3 steps later in each channel
    >>> found = regress(y[None, :96], None, None, horizon=6).forecasts[0, 3:, 1]  # by neighbours
    >>> bool((found.mT - y[96:102, 3:]).square().mean() < 0.2 * y.var())
    True
    """
    _, L, C = x.shape
    h, back = min(horizon, FARTHEST), min(horizon, L // 4)
    z, location, scale = standardised(x, mask, units)
    counts = None if mask is None else mask.to(x.dtype)
    lowest, highest = room(z)
    neighbours = _NEIGHBOURS if C > _NEIGHBOURS else int(C > 1)  # one graph serves all larger panels
    pooled, tried = _pooled(z, counts, neighbours, h, back, (lowest, highest))
    leads = 1 < C <= _MOST_LED
    led, led_tried = _led(z, counts, h, back, (lowest, highest)) if leads else (pooled[:, 0], tried[:, 0])
    forecasts, tried = torch.cat([pooled, led[:, None]], 1), torch.cat([tried, led_tried[:, None]], 1)  # [B, K, h, C]
    error = (tried - z[:, None, L - back :]).square()
    if counts is None:
        of_channel = error.mean(2)
    else:
        observed = counts[:, None, L - back :]
        of_channel = (error * observed).sum(2) / observed.sum(2).clamp(min=1.0)
    of_all = of_channel.mean(2, keepdim=True).expand_as(of_channel)
    logs = (torch.stack([of_channel, of_all], 1) + _LEAST_ERROR).log()  # [B, 2, K, C]
    least = logs.amin(2, keepdim=True)
    evidence = torch.cat([(logs - least).flatten(1, 2), least.flatten(1, 2)], 1).mT
    forecasts = forecasts * scale[:, None] + location[:, None]
    return Regressed(forecasts.permute(0, 3, 1, 2), evidence, (True, C > 1, True, leads))


def standardised(x: Tensor, mask: Tensor | None, units: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Windows [B, L, C] in the units of their series, gaps filled; location and scale [B, 1, C]."""
    location, scale = _units(x, mask, units)
    z = (x - location) / scale
    return z if mask is None else carried(z, mask)[0], location, scale


def read_off(shares: Any, _: object) -> None:
    """After weights are loaded; a function of the module, because pickle takes no other."""
    shares._read_off()


def room(z: Tensor) -> tuple[Tensor, Tensor]:
    """How far forecasts of standardised windows may go, [B, C] each."""
    return z.amin(1) - _ROOM, z.amax(1) + _ROOM


def _units(x: Tensor, mask: Tensor | None, units: Tensor | None) -> tuple[Tensor, Tensor]:
    """Location and scale of each window and channel, [B, 1, C]: those of the series, unless the window is far off."""
    location, scale = location_scale(x, mask)
    if units is None:
        return location, scale
    has_unit = ~units.isnan().any(1)
    mean, deviation = units.nan_to_num(0.0).unbind(1)
    wide = torch.maximum(deviation, scale / _FAR)
    near = location - torch.minimum(torch.maximum(location - mean, -_FAR * wide), _FAR * wide)
    return torch.where(has_unit, near, location), torch.where(has_unit, wide, scale)


def carried(z: Tensor, mask: Tensor, remains: float = _REMAINS) -> tuple[Tensor, Tensor]:
    """What remains of the last observed value where one is missing, 0 before the first; and its step, -1 for none."""
    steps = torch.arange(z.shape[1], device=z.device)[:, None]
    last, reach = torch.where(mask, steps, -1), 1
    while reach < len(steps):  # a running maximum, which ONNX lacks: of twice as many steps each time
        last = torch.maximum(last, F.pad(last, (0, 0, reach, 0), value=-1)[:, : len(steps)])
        reach *= 2
    value = z.gather(1, last.clamp(min=0)).masked_fill(last < 0, 0.0)
    return value * remains ** (steps - last).to(z.dtype), last


def _places(neighbours: int) -> list[int]:
    """Places from the first neighbour to the last, the nearest first."""
    return sorted(range(2 * neighbours + 1), key=lambda place: abs(place - neighbours))


def _solved(gram: Tensor, cross: Tensor, few: int = 1) -> tuple[Tensor, Tensor]:
    """Weights of ridge regressions [.., F, 1], and of those on the first few features alone, [.., few, 1]."""
    dtype, penalty = gram.dtype, _PENALTY * torch.eye(gram.shape[-1], dtype=torch.float64, device=gram.device)
    gram, cross = gram.double() + penalty, cross.double()
    if torch.onnx.is_in_onnx_export():
        weights, first_weights = _eliminated(gram, cross, few)
    else:
        factor = torch.linalg.cholesky_ex(gram)[0]
        weights = torch.cholesky_solve(cross, factor)
        first_weights = torch.cholesky_solve(cross[..., :few, :], factor[..., :few, :few])
    return weights.to(dtype), first_weights.to(dtype)


def _eliminated(gram: Tensor, cross: Tensor, few: int = 1) -> tuple[Tensor, Tensor]:
    """Both solutions by Gauss and Jordan, a few features at once: steps that ONNX has, most on small matrices."""
    # Positive definite matrices need no pivots.
    size = gram.shape[-1]
    remaining, first_solution = torch.cat([gram, cross], -1), cross
    identity = torch.eye(size, dtype=gram.dtype, device=gram.device)
    for first in range(0, size, few):
        width = min(few, size - first)
        column, remaining = remaining.split([width, remaining.shape[-1] - width], -1)
        corner, pivot = (columns[..., first : first + width, :] for columns in (column, remaining))
        pivot = pivot / corner if width == 1 else _eliminated(corner, pivot)[0]
        remaining = remaining - (column - identity[:, first : first + width]) @ pivot
        first_solution = first_solution if first else pivot[..., -cross.shape[-1] :]
    return remaining, first_solution


def _pooled(
    z: Tensor, counts: Tensor | None, neighbours: int, h: int, back: int, bounds: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Forecasts [B, 3, h, C] by weights that all channels share, and those [B, 3, back, C] of the last steps."""
    B, L, C = z.shape
    lags, before = min(_LAGS, L // 4), L - back
    padded = F.pad(z, (neighbours, neighbours))
    # Sums over the rows between these steps make up the four fits: of all and of late rows, to the end and before.
    edges = (lags - 1, before // 2, L // 2, before - 1, L - 1)
    stride = -(-C * L // _MOST_ROWS)
    parts = [torch.arange(first, last, stride, device=z.device) for first, last in pairwise(edges)]
    ends, lengths = torch.cat(parts), [len(times) * C for times in parts]
    lagged, target = padded.unfold(1, lags, 1)[:, ends - (lags - 1)], z[:, ends + 1].flatten(1)[..., None]
    # Lags of each channel and of its neighbours that end at these steps, [B, R·C, (2 S + 1)·p]; its own come first.
    rows = torch.cat([lagged[:, :, place : place + C] for place in _places(neighbours)], 3).flatten(1, 2)
    weighed = (rows if counts is None else rows * counts[:, ends + 1].flatten(1)[..., None]).mT
    grams = [a @ b for a, b in zip(weighed.split(lengths, 2), rows.split(lengths, 1), strict=True)]
    crosses = [a @ b for a, b in zip(weighed.split(lengths, 2), target.split(lengths, 1), strict=True)]
    gram, cross = torch.stack(grams), torch.stack(crosses)
    spans = ((0, 4), (2, 4), (0, 3), (1, 3))  # all and lately, then the same before the last steps
    totals = torch.stack([gram[first:last].sum(0) for first, last in spans])
    sums = torch.stack([cross[first:last].sum(0) for first, last in spans])
    near, alone = _solved(totals, sums, lags)  # [4, B, F, 1], [4, B, p, 1]
    alone = F.pad(alone, (0, 0, 0, near.shape[2] - lags))
    weights = torch.stack([alone[0], near[0], near[1], alone[2], near[2], near[3]], 1).flatten(0, 1)[..., 0]  # [B·6, F]
    by_place = [_places(neighbours).index(place) for place in range(2 * neighbours + 1)]
    weights = weights.unflatten(1, (-1, lags))[:, by_place]
    starts = torch.stack([padded[:, L - lags :]] * 3 + [padded[:, before - lags : before]] * 3, 1).flatten(0, 1)
    lowest, highest = (bound.repeat_interleave(6, 0) for bound in bounds)
    # Where the sum over the lags of each place lies that a channel reads, among those of all places and channels.
    place = torch.arange(2 * neighbours + 1, device=z.device)
    read, steps = place * (C + 2 * neighbours + 1) + torch.arange(C, device=z.device)[:, None], []
    for _ in range(max(h, back)):
        step = (weights @ starts).flatten(1)[:, read].sum(2)
        steps.append(torch.minimum(torch.maximum(step, lowest), highest))
        starts = torch.cat([starts[:, 1:], F.pad(steps[-1], (neighbours, neighbours))[:, None]], 1)
    forecasts = torch.stack(steps, 1).unflatten(0, (B, 6))
    return forecasts[:, :3, :h], forecasts[:, 3:, :back]


def _led(z: Tensor, counts: Tensor | None, h: int, back: int, bounds: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Forecasts [B, h, C] by a channel's last values and the one it follows, and of the last steps, [B, back, C]."""
    # The last steps are forecast from what lies before them.
    B, L, C = z.shape
    grams, crosses, read, starts = [], [], [], []
    read_back = max(2, min(_LEADER_REACH, L // 2 - 4)) + 1  # steps that a forecast reads at the most
    channel, first = torch.arange(C, device=z.device), torch.arange(3, device=z.device)
    for T in (L, L - back):
        reach = max(2, min(_LEADER_REACH, T // 2 - 4))
        leader, lag = _leaders(z[:, :T], reach)
        # Steps before the end, and of which series: its own last ones, and three around the lag of its leader.
        steps = torch.cat([first.expand(B, C, -1)[..., :_LEADER_OWN], lag[..., None] - first], 2)
        series = torch.cat([channel[:, None].expand(B, C, _LEADER_OWN), leader[..., None].expand(B, C, 3)], 2)
        ends = torch.arange(reach, T - 1, device=z.device)
        places = (ends[:, None] - steps[:, :, None]) * C + series[:, :, None]  # [B, C, R, 5]
        rows = F.pad(z.flatten(1).gather(1, places.flatten(1)).view_as(places), (1, 0), value=1.0)
        weighed = rows if counts is None else rows * counts[:, ends + 1].mT[..., None]
        grams.append(weighed.mT @ rows)
        crosses.append(weighed.mT @ z[:, ends + 1].mT[..., None])
        read.append(F.pad((read_back - 1 - steps) * C + series + 1, (1, 0)))
        starts.append(z[:, T - read_back : T])
    weights = _solved(torch.cat(grams), torch.cat(crosses))[0][..., 0]  # [2·B, C, 6]
    index, forecasts = torch.cat(read).flatten(1), []
    values = F.pad(torch.cat(starts).flatten(1), (1, 0), value=1.0)  # the constant is read at the beginning
    first_channel = values[:, :1]
    lowest, highest = (bound.repeat(2, 1) for bound in bounds)
    for _ in range(max(h, back)):
        step = (values.gather(1, index).view_as(weights) * weights).sum(2)
        forecasts.append(torch.minimum(torch.maximum(step, lowest), highest))
        values = torch.cat([first_channel, values[:, 1 + C :], forecasts[-1]], 1)
    led, tried = torch.stack(forecasts, 1).chunk(2)
    return led[:, :h], tried[:, :back]


@torch.no_grad()
def _leaders(z: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """The channel that each follows most, and by how many steps, [B, C]: two steps to `reach`."""
    # What is new at each step tells of the lag; the memory of the series would blur it.
    memory = (z[:, 1:] * z[:, :-1]).sum((1, 2)) / z.square().sum((1, 2)).clamp(min=1e-12)
    news = z[:, 1:] - memory[:, None, None] * z[:, :-1]
    news = news - news.mean(1, keepdim=True)
    news = news / news.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6)
    T, C = news.shape[1:]
    lags = torch.arange(2, reach + 1, device=z.device)
    earlier = F.pad(news, (0, 0, reach, 0)).unfold(1, T, 1)[:, : reach - 1]  # [B, lags, C, T], the longest lag first
    # Fewer products are summed at a longer lag: divided by the root of their number, chance is as large at each.
    alike = (earlier @ news[:, None]).flip(1).abs() * ((T - lags) ** -0.5)[:, None, None]  # [B, lags, C, C], by leaders
    best = (alike - alike.new_tensor(1e9) * torch.eye(C, device=z.device)).flatten(1, 2).argmax(1)
    return best % C, best // C + 2


@torch.no_grad()
def regressions_pay(windows: Windows) -> bool:
    """Whether regressions inside the windows add to what a channel's own look-back tells.

    A ridge regression on the channel's own look-back is fitted to the first three quarters of the windows. On the last
    quarter, the share of the regressions inside each window that is best by least squares must take enough of its error
    away. A few seasonal rows, where regressions in the window go astray, are so left to the network.

    Parameters
    ----------
    windows : Windows
        To train on.

    Examples
    --------
    >>> import torch
    >>> source = torch.randn(700, generator=torch.Generator().manual_seed(0))
    >>> wave = torch.stack([source[40 - 3 * c : 640 - 3 * c] for c in range(8)], dim=1)  # 3 steps later in each channel
    >>> regressions_pay(Windows(wave, torch.arange(500), lookback=48, horizon=6))
    True
    >>> noise = torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
    >>> regressions_pay(Windows(noise, torch.arange(500), lookback=48, horizon=6))
    False
    """
    h, C = windows.horizon, windows.values.shape[1]
    early, late = early_and_late(windows)
    if not len(early) or not len(late):
        return False
    horizons = C * (len(late) - 1 + h) / h
    early = early.thinned(-(-len(early) * C // _FITTED_ROWS))
    late = late.thinned(-(-len(late) // min(_TRIED_WINDOWS, max(8, 4000 // C))))
    inside = early.rows_inside()
    rows, observed = windows.values[inside][None], None
    if windows.observed is not None:
        observed = windows.observed[inside][None]
        rows = rows.masked_fill(~observed, 0.0)
    unit = location_scale(rows, observed)[1][0].mT
    past, ahead, _, _ = _from_last_value(early, unit)
    rows, targets = past.flatten(0, 1).double(), ahead.flatten(0, 1).double()
    gram, cross = rows.mT @ rows, rows.mT @ targets
    size = gram.diagonal().mean().clamp(min=1e-9) * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    past, truth, counts, last = _from_last_value(late, unit)
    truth, counts = truth[..., :FARTHEST], counts[..., :FARTHEST]
    solutions = (torch.linalg.solve(gram + ridge * size, cross).to(past)[:, :FARTHEST] for ridge in _RIDGES)
    missed = min(((truth - past @ weights) * counts for weights in solutions), key=lambda error: error.square().sum())
    ((inputs, _, _),) = late.batches(len(late))
    x, mask = inputs["x"], inputs["mask"]
    forecasts = regress(x if mask is None else x.masked_fill(~mask, 0.0), mask, None, h)
    errors = forecasts.evidence[..., len(NAMES) : 2 * len(NAMES)]
    usable = torch.tensor(forecasts.usable, device=errors.device)
    best = errors.masked_fill(~usable, torch.inf).argmin(2)[..., None, None]
    chosen = forecasts.forecasts.gather(2, best.expand(-1, -1, 1, forecasts.forecasts.shape[3]))[:, :, 0]
    moved = missed - (truth - (chosen / unit - last)) * counts
    share = ((missed * moved).sum() / moved.square().sum().clamp(min=1e-9)).clamp(0.0, 1.0)
    gain = 1.0 - (missed - share * moved).square().sum() / missed.square().sum().clamp(min=1e-9)
    return bool(gain >= LEAST_GAIN) and bool(gain * horizons >= LEAST_HORIZONS)


def early_and_late(windows: Windows) -> tuple[Windows, Windows]:
    """Those to fit to, and the last quarter, to try on, in whose targets none of the first reaches."""
    cut = 3 * len(windows) // 4
    return windows.only(slice(0, max(0, cut - windows.horizon))), windows.only(slice(cut, None))


def _from_last_value(windows: Windows, unit: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Look-backs [B, C, L] and horizons [B, C, h] less the last value, which of these count, and the last values."""
    ((inputs, target, counted),) = windows.batches(len(windows))
    x, mask = inputs["x"], inputs["mask"]
    past = (x if mask is None else carried(x, mask, remains=1.0)[0]).mT / unit
    last = past[..., -1:]
    counts = torch.ones_like(target).mT if counted is None else counted.mT.to(target.dtype)
    return past - last, (target.nan_to_num(0.0).mT / unit - last) * counts, counts, last


class RegressionShares(nn.Module):
    """How much of each step of the forecast comes from each regression in the window, and how much from the network.

    A softmax over what is learnt of each step, of the errors that the regressions made in the window, and what the
    attention path adds. The network itself is the last of them. At first nearly all is left to it: on a few rows of
    trend and season, regressions in the window are no good start. Where they do not pay, they are turned off.

    Parameters
    ----------
    horizon : int
    """

    def __init__(self, horizon: int) -> None:
        super().__init__()
        K = len(NAMES)
        self.step_score = nn.Parameter(torch.zeros(min(horizon, FARTHEST), K + 1))
        self.evidence_score = nn.Parameter(torch.zeros(2 * K + 2, K + 1))
        self.off = False  # whether nothing is to be fitted inside windows
        self.register_load_state_dict_post_hook(read_off)
        with torch.no_grad():
            self.step_score[:, -1] = START
            self.evidence_score[:K, :K] = self.evidence_score[K : 2 * K, :K] = -torch.eye(K)

    @torch.no_grad()
    def start(self, windows: Windows) -> None:
        """Before the first training: turn all regressions off if they do not pay on the windows."""
        untrained = not self.step_score[:, :-1].any() and bool((self.step_score[:, -1] == START).all())
        if untrained and not regressions_pay(windows):
            self.step_score[:, -1] = OFF
        self._read_off()

    def _read_off(self) -> None:
        # A plain attribute, because a compiled graph cannot branch on a parameter.
        self.off = bool(self.step_score[0, -1] > OFF / 2)

    def forward(self, forecast: Tensor, regressed: Regressed | None, added: Tensor | float) -> Tensor:
        """What is to be added to the network's forecast [B, h, C], with scores `added` [B, C, h, K + 1] or 0."""
        if regressed is None:  # gradients of zero: data-parallel training waits for them
            return torch.zeros_like(forecast) + 0.0 * (self.step_score.sum() + self.evidence_score.sum())
        h = len(self.step_score)
        score = self.step_score + (regressed.evidence @ self.evidence_score)[:, :, None] + added
        unusable = [k for k, usable in enumerate(regressed.usable) if not usable]
        score = score.index_fill(3, torch.tensor(unusable, dtype=torch.long, device=score.device), -torch.inf)
        share = score.softmax(3)[..., :-1].mT  # [B, C, K, h]
        moved = (share * (regressed.forecasts - forecast.mT[:, :, None, :h])).sum(2)
        return F.pad(moved, (0, forecast.shape[1] - h)).mT
