"""Ridge regressions that are fitted inside the history: on a series' own lags, its neighbours, and its leaders.

Relations between the series of a panel are found here in closed form, without a weight of the network. Each regression
is fitted on all of the history, and on what lies before earlier origins, to be tried there. It forecasts a few steps,
and goes on from there: so it learns from more rows, and what travels over several series is followed step by step.
Others are read about as long ago as they tell most: few lags of many series, each at its own delay.

The penalty of weights that all series share is the one that did best at the origins, where the latest counts most. That
of weights of one series did best on all rows after the first fit: few steps of one series say little.

Legend: B panels, C series, N = B·C, L steps of history, h steps ahead, O origins, R rows, F features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.travelling import MEMORIES, travelling_forecasts

NAMES = ("own lags of all series", "neighbours", "neighbours, lately", "leaders")
"""What each forecast is, in their order."""
OWN_LAGS, NEIGHBOUR_LAGS, NEIGHBOURS = 32, 12, 6
LEADERS, LEADER_LAGS, LEADER_OWN_LAGS = 6, 10, 16
FARTHEST_DELAY = 40
"""Steps before which others are read at the latest, besides their lags."""
DIFFERENT_LAGS, NEARBY = 4, 3.0
"""Lags whose weights may differ from series to series, and the distance, in places, over which they differ alike."""
LATELY, DELAYS_LATELY = 128.0, 64.0
"""Steps after which a row counts 1/e in the regression on what happened lately, and where delays are looked for."""
LEAST_BACK = 24
"""Nearer origins share the fit of this one: a few rows more change little."""
PENALTIES = (3.0, 30.0, 300.0, 3000.0)
DIFFERENT_PENALTIES = (1000.0, 100.0)
BLOCK, BLOCK_OF_EACH, BLOCK_ALONE = 8, 4, 64
"""Steps that are forecast at once, by weights that all series share, by those of each, and from own lags alone."""
MOST_ROWS = 12_000
"""Rows of a pooled regression; of more, every second or third is read."""
_TRIED_LAGS = range(49)
_NEARLY = 0.95
# Rows and factors that are worked on together: so many stay in a CPU's cache; a GPU wants few, large calls.
_AT_ONCE, _AT_ONCE_ON_A_GPU = (8192, 4), (1 << 20, 512)


def relation_forecasts(
    x: Tensor, observed: Tensor, origins: Sequence[int], horizon: int, order: Tensor | None,
    places: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Forecasts from the end of the history and from earlier origins, [1 + O, B, C, K, h], in the order of `NAMES`.

    Behind them follow those of what travels, where the series have `places` [B, C, k], in usual gaps.

    Those from origins, increasing steps before the end, mean nothing beyond as many steps as the earliest of them lies
    before it. Histories `x` [B, C, L] are standardised, without gaps, their season taken away; steps that are
    `observed` count as targets. `order` [B, C] has the series by place; −1 in the first column where a panel has none.
    """
    _, C, L = x.shape
    tested = [back for back in origins if 2 * back + 4 <= L]
    tried = max(tested) if tested else max(1, L // 3)
    block, block_of_each = (max(1, min(horizon, most, L // 4)) for most in (BLOCK, BLOCK_OF_EACH))
    history = (x, observed, origins, tried)
    correlation, delay = lagged_correlation(x, DELAYS_LATELY)
    neighbours = _neighbours(correlation, order)
    delays = delay.gather(2, neighbours.clamp(min=0))
    near = _Regressions(*history, block, neighbours, delays, OWN_LAGS, NEIGHBOUR_LAGS, pooled=True)
    sums = near.products((None, LATELY))
    if C == 1:
        always, lately = near.forecast(sums, horizon)
        travelling = [always] * (0 if places is None else len(MEMORIES))  # nothing does
        return torch.stack([always, always, lately, always, *travelling], dim=3)
    far = min(horizon, tried)
    always, lately = near.forecast(sums, far)
    different = _Regressions(*history, block, near.others, near.delays, DIFFERENT_LAGS, DIFFERENT_LAGS, pooled=False)
    always = different.added(always, order)
    # Chosen before the origins, so that a trial is fair.
    correlation, delay = lagged_correlation(x[:, :, : max(8, L - tried)], DELAYS_LATELY)
    leaders = correlation.topk(min(LEADERS, C - 1), dim=2).indices
    delays = delay.gather(2, leaders)
    led = _Regressions(*history, block_of_each, leaders, delays, LEADER_OWN_LAGS, LEADER_LAGS, pooled=False)
    others = [always, lately, *led.forecast(led.products((None,)), far)]
    if places is not None:
        others += travelling_forecasts(x, origins, far, places)
    block, nobody = max(1, min(horizon, BLOCK_ALONE, L // 4)), neighbours[..., :0]
    alone = _Regressions(*history, block, nobody, nobody, OWN_LAGS, 0, pooled=True)
    (of_own_past,) = alone.forecast(alone.products((None,)), horizon)
    # Beyond the earliest origin nobody tried them, and some explode: what others showed fades there.
    fading = (-torch.arange(1, horizon - far + 1, device=x.device) / far).exp()
    later = [of_own_past[..., far:] + (other[..., -1:] - of_own_past[..., far - 1 : far]) * fading for other in others]
    forecasts = [of_own_past, *(torch.cat(parts, 3) for parts in zip(others, later, strict=True))]
    return torch.stack(forecasts, dim=3)


def _neighbours(correlation: Tensor, order: Tensor | None) -> Tensor:
    """Series at each relative place, [B, C, S], −1 where there is none."""
    # Without an order these are the series that correlate most, the strongest first.
    C = correlation.shape[2]
    S = min(NEIGHBOURS, C - 1)
    alike = correlation.topk(min(2 * S, C - 1), dim=2).indices
    alike = F.pad(alike, (0, 2 * S - alike.shape[2]), value=-1)
    if order is None:
        return alike
    placed = order[:, :1, None] >= 0
    order = order.clamp(min=0)
    rank = order.argsort(1)
    offsets = torch.tensor([*range(-S, 0), *range(1, S + 1)], device=order.device)
    place = rank[..., None] + offsets  # [B, C, 2 S]
    inside = (place >= 0) & (place < C)
    neighbour = order.gather(1, place.clamp(0, C - 1).flatten(1)).view_as(place)
    return torch.where(placed, torch.where(inside, neighbour, -1), alike)


def lagged_correlation(x: Tensor, memory: float = math.inf) -> tuple[Tensor, Tensor]:
    """Largest correlation of each series with an earlier value of another, and the lag of it, both [B, C, C].

    The lag is the first with nearly that correlation: slow series correlate alike at many. A series' own is −1. With a
    memory, a step counts less by 1/e for so many steps before the end.
    """
    L = x.shape[2]
    z = x - x.mean(2, keepdim=True)
    z = z * (torch.arange(1 - L, 1, device=x.device) / (2 * memory)).exp()
    z = z / z.square().sum(2, keepdim=True).sqrt().clamp(min=1e-6)
    lags = [lag for lag in _TRIED_LAGS if 2 * lag < L]
    correlations = torch.stack([z[:, :, lag:] @ z[:, :, : L - lag].mT for lag in lags]).abs()
    best = correlations.amax(0)
    lag = (correlations >= _NEARLY * best).to(torch.uint8).argmax(0)
    return best - 2.0 * torch.eye(x.shape[1], device=x.device), lag


@dataclass
class _Regressions:
    """A ridge regression for each series, or one `pooled` over all series of a panel, of `x` [B, C, L]."""

    x: Tensor
    observed: Tensor
    origins: Sequence[int]
    tried: int  # the earliest origin that the penalty is tried at
    block: int  # steps that are forecast at once
    others: Tensor  # series [B, C, S] that each is forecast from besides itself; −1 is none
    delays: Tensor  # lag [B, C, S] at which each of them tells most
    own_lags: int
    other_lags: int
    pooled: bool

    def __post_init__(self) -> None:
        # A block needs the lags from the delay on down to the delay less its steps.
        latest = self.block + (self.other_lags - self.block) // 2
        self.skipped = (self.delays - latest).clamp(0, FARTHEST_DELAY)
        self.reach = max(self.own_lags, self.other_lags + FARTHEST_DELAY)
        self.number = 1 + self.own_lags + self.others.shape[2] * self.other_lags
        # Origins before which all is fitted on: the last target of a fit lies before its origins.
        self.fits = sorted({back for back in self.origins if LEAST_BACK <= back <= self.tried}, reverse=True)
        self.fits = self.fits or [self.tried]
        # Each origin has the latest fit that saw nothing after it.
        fair = ([fit for fit, back in enumerate(self.fits) if back >= origin] for origin in self.origins)
        self.fit_of = [max(fits, default=0) for fits in fair]
        self.at_once = _AT_ONCE if self.x.device.type == "cpu" else _AT_ONCE_ON_A_GPU

    def features(self, x: Tensor, every: int = 1, targets: int = 0, series: slice = slice(None)) -> Tensor:
        """Features of every so many windows of `reach` steps, [G, C, R, F], and room for targets; `x` is [G, C, ·]."""
        G, C, length = x.shape
        own_past = x[:, series].unfold(2, self.reach, 1)[:, :, ::every, -self.own_lags :]
        # A constant, the last value, how earlier ones differ from it, and the others' lags: where they are shrunk, the
        # last value is what stays.
        rows = x.new_empty(*own_past.shape[:3], self.number + targets)
        rows[..., 0], rows[..., 1] = 1.0, own_past[..., -1]
        rows[..., 2 : 1 + self.own_lags] = own_past[..., :-1] - own_past[..., -1:]
        if S := self.others.shape[2]:
            nothing = F.pad(x, (0, 0, 0, 1))  # a series of zeros, where there is no other
            of_series = self.others[:, series]
            of_series = torch.where(of_series < 0, C, of_series)[..., None]
            steps = torch.arange(self.reach - self.other_lags, length, device=x.device)
            place = (of_series * length + steps - self.skipped[:, series, :, None]).flatten(1)
            lags = nothing.flatten(1).gather(1, place.repeat(G // len(place), 1)).unflatten(1, (-1, len(steps)))
            lags = rearrange(lags.unfold(2, self.other_lags, 1)[:, :, ::every], "g (c s) r l -> g c r s l", s=S)
            rows[..., 1 + self.own_lags : self.number].unflatten(3, (S, -1)).copy_(lags)
        return rows

    def products(self, memory: Sequence[float | None]) -> Tensor:
        """Sums over rows of features times features and targets, for each memory M and fit, then up to the end.

        They are [M, fits + 1, B, F, F + block], or [M, fits + 1, B, C, F, F + block] of each series.
        """
        B, C, L = self.x.shape
        stops = [max(1, L - back - self.block) for back in self.fits]
        stops.append(max(stops[-1], L - self.block))
        stride = max(1, round(C * stops[-1] / MOST_ROWS)) if self.pooled else 1
        padded = F.pad(self.x, (self.reach, 0))
        regressions = (len(memory), len(stops), B) if self.pooled else (len(memory), len(stops), B, C)
        sums = self.x.new_zeros(*regressions, self.number, self.number + self.block)
        first = 0
        for index, stop in enumerate(stops):
            last = range(first, max(stop, first + 1), stride)[-1]
            before_stop = torch.arange(first - stop, last + 1 - stop, stride, device=self.x.device)
            at_once = max(1, self.at_once[0] // (B * len(before_stop)))
            for series in (slice(begin, begin + at_once) for begin in range(0, C, at_once)):
                rows = self.features(padded[:, :, first + 1 : last + 1 + self.reach], stride, self.block, series)
                targets = self.x[:, series, first + 1 : last + self.block + 1].unfold(2, self.block, 1)
                rows[..., self.number :] = targets[:, :, ::stride]
                counts = self.observed[:, series, first : last + 1 : stride].to(rows.dtype)[..., None]
                # With a memory, a row counts less by 1/e for so many steps between it and the stop.
                for of_memory, steps in zip(sums[:, index], memory, strict=True):
                    faded = counts if steps is None else counts * (before_stop / steps).exp()[:, None]
                    weighted = rows[..., : self.number] * faded
                    if self.pooled:
                        of_memory.baddbmm_(weighted.flatten(1, 2).mT, rows.flatten(1, 2))
                    else:
                        of_memory[:, series] = weighted.mT @ rows
            if index:
                for of_memory, steps in zip(sums, memory, strict=True):
                    kept = 1.0 if steps is None else math.exp((first - stop) / steps)
                    of_memory[index].add_(of_memory[index - 1], alpha=kept)
            first = stop
        return sums

    def weights(self, sums: Tensor, penalty: Tensor, free: int = 2) -> Tensor:
        """Weights [P, N, F, block] of ridge regressions, from sums [N, F, F + block] and penalties [P, N]."""
        gram, cross = sums.split((self.number, self.block), 2)
        # The constant and the last value are hardly shrunk.
        shrunk = penalty[..., None].repeat(1, 1, self.number)
        shrunk[..., :free] = 0.1
        damped = gram + torch.diag_embed(shrunk + 1e-3)
        factor = torch.linalg.cholesky_ex(damped.mT)[0]  # symmetric, and read by columns, as LAPACK does
        return torch.cholesky_solve(cross.expand(len(penalty), -1, -1, -1), factor)

    def fitted(self, sums: Tensor, penalty: Tensor) -> Tensor:
        """Weights [P, ..., F, block] from sums [..., F, F + block] and penalties [P, ...], or 1 there."""
        # Sums over all series lie too far above the penalty for single precision; those of one series do not.
        regressions = sums.flatten(0, -3).to(torch.float64 if self.pooled else sums.dtype)
        penalty = penalty.expand(-1, *sums.shape[:-2]).flatten(1)
        parts = regressions.split(self.at_once[1]), penalty.split(self.at_once[1], 1)
        weights = torch.cat([self.weights(*batch) for batch in zip(*parts, strict=True)], 1)
        return weights.unflatten(1, sums.shape[:-2])

    def ahead(self, weights: Tensor, backs: Sequence[int], horizon: int) -> Tensor:
        """Forecasts [P, M, O, B, C, h] from `backs` steps before the end.

        Each has its weights, [P, M, O, B, F, block], or [P, M, O, B, C, F, block] of each series.
        """
        padded = F.pad(self.x, (self.reach + max(backs), 0))
        before = torch.cat([padded[..., -back - self.reach :][..., : self.reach] for back in backs])
        repeats = len(weights) * weights.shape[1]
        before = before.repeat(repeats, 1, 1)  # [P·M·O·B, C, reach]
        of_window = weights.flatten(0, 3)
        # What goes on from forecasts may explode: none leaves the range of its history by more than that range.
        lowest, highest = (end.repeat(repeats * len(backs), 1)[..., None] for end in (self.x.amin(2), self.x.amax(2)))
        lowest, highest = 2 * lowest - highest, 2 * highest - lowest
        blocks: list[Tensor] = []
        for _ in range(math.ceil(horizon / self.block)):
            features = self.features(before)[:, :, 0].to(weights.dtype)
            step = features @ of_window if self.pooled else torch.einsum("wcf, wcfh -> wch", features, of_window)
            blocks.append(step.to(before.dtype).clamp(lowest, highest))
            before = torch.cat([before, blocks[-1]], 2)[:, :, -self.reach :]
        return torch.cat(blocks, 2)[:, :, :horizon].unflatten(0, (*weights.shape[:3], -1))

    def forecast(self, sums: Tensor, horizon: int) -> Tensor:
        """Forecasts [M, 1 + O, B, C, h], with the penalty that did best; each origin has its fit."""
        penalties = self.x.new_tensor(PENALTIES)
        if not self.pooled:
            penalty = penalties[self.best_on_later_rows(sums)][None, :, None]
            weights = self.fitted(sums, penalty)
            return self.ahead(weights[:, :, [-1, *self.fit_of]], (0, *self.origins), horizon)[0]
        near = min(horizon, max(self.origins))
        weights = self.fitted(sums[:, :-1], penalties.view(-1, 1, 1, 1))
        trials = self.ahead(weights[:, :, self.fit_of], self.origins, near)
        best = self.best_at_origins(trials)
        past = trials.gather(0, best[None, :, None, :, None, None].expand(1, *trials.shape[1:]))[0]
        final = self.ahead(self.fitted(sums[:, -1:], penalties[best][None, :, None]), (0,), horizon)[0]
        return torch.cat([final, F.pad(past, (0, horizon - near))], 1)

    def best_at_origins(self, every: Tensor) -> Tensor:
        """Number [M, B] of the penalty whose forecasts from the origins, [P, M, O, B, C, h], err least."""
        L = self.x.shape[2]
        errors = []
        for index, back in enumerate(self.origins):
            if back <= self.tried:
                ahead = slice(L - back, L - back + min(back, self.block, every.shape[5]))
                missed = every[:, :, index, ..., : ahead.stop - ahead.start] - self.x[:, :, ahead]
                errors.append((missed.square() * self.observed[:, :, ahead]).mean((3, 4)))
        if not errors:  # much, without a trial
            return torch.full(every.shape[1:4:2], len(PENALTIES) - 1, device=every.device)
        return torch.stack(errors).mean(0).nan_to_num(1e9).argmin(0)

    def best_on_later_rows(self, sums: Tensor) -> Tensor:
        """Number [M, B, C] of the penalty whose weights of the first fit err least on the rows after it."""
        first, later = sums[:, 0].flatten(0, 2), (sums[:, -1] - sums[:, 0]).flatten(0, 2)
        penalties = sums.new_tensor(PENALTIES)[:, None].expand(-1, len(first))
        parts = (sums.split(self.at_once[1], axis) for sums, axis in ((first, 0), (later, 0), (penalties, 1)))
        errors = [self.excess(after, self.weights(before, p)).sum(2) for before, after, p in zip(*parts, strict=True)]
        error = torch.cat(errors, 1)
        return error.nan_to_num(1e9).argmin(0).view(len(sums), *self.x.shape[:2])

    def excess(self, sums: Tensor, weights: Tensor) -> Tensor:
        """Square errors of weights [..., F, block] on the rows of sums, less those of zeros, [..., block]."""
        gram, cross = sums.split((self.number, self.block), -1)
        return ((gram @ weights - 2 * cross) * weights).sum(-2)

    def added(self, forecasts: Tensor, order: Tensor | None) -> Tensor:
        """Forecasts [1 + O, B, C, h] by weights that all series share, and what each series differs by at first."""
        B, C, _ = self.x.shape
        near = min(forecasts.shape[3], self.block)
        sums = self.products((None,))[0]  # [fits + 1, B, C, F, F + block]
        together = sums.sum(2).flatten(0, 1).double()
        shared = self.weights(together, torch.full_like(together[None, :, 0, 0], PENALTIES[0]))[0].to(sums.dtype)
        shared = shared.view(-1, B, 1, self.number, self.block)
        # The weights by which a series differs are a ridge regression on what shared ones leave over.
        later = self._left(sums[-1] - sums[0], shared[0])
        left = self._left(sums, shared)
        if order is not None:  # series nearby count, too
            rank = order.clamp(min=0).argsort(1).to(sums.dtype)
            weight = (-0.5 * ((rank[:, :, None] - rank[:, None]) / NEARBY).square()).exp()
            weight = torch.where(order[:, :1, None] >= 0, weight, torch.eye(C, device=weight.device))
            left = torch.einsum("bcd, nbdfg -> nbcfg", weight, left)
        penalties = left.new_tensor(DIFFERENT_PENALTIES)[:, None].expand(-1, left.shape[:3].numel())
        weights = self.weights(left.flatten(0, 2), penalties, free=0).unflatten(1, left.shape[:3])
        # At each step the penalty is chosen, or that nothing differs.
        weights = torch.cat([torch.zeros_like(weights[:1]), weights])  # [P, fits + 1, B, C, F, block]
        error = nearby_steps(self.excess(later, weights[:, 0]).sum(2))  # [P, B, block]
        best = error.nan_to_num(1e9).argmin(0)[None, None, :, None, None].expand(1, *weights.shape[1:])
        weights = weights.gather(0, best)[0]
        padded = F.pad(self.x, (self.reach + max(self.origins), 0))
        moved = [
            self.features(padded[..., : padded.shape[2] - back][..., -self.reach :]) @ weights[fit]
            for back, fit in zip((0, *self.origins), (-1, *self.fit_of), strict=True)
        ]
        difference = F.pad(torch.stack(moved)[..., 0, :near], (0, forecasts.shape[3] - near))
        return forecasts + difference

    def _left(self, sums: Tensor, shared: Tensor) -> Tensor:
        gram, cross = sums.split((self.number, self.block), -1)
        return torch.cat([gram, cross - gram @ shared], -1)


def nearby_steps(x: Tensor) -> Tensor:
    """Sums over the steps from three quarters to four thirds of each, on the last axis: single steps are few."""
    length = x.shape[-1]
    step = torch.arange(1, length + 1, device=x.device)
    first, last = (3 * step) // 4, ((4 * step + 2) // 3).clamp(max=length)
    sums = F.pad(x.cumsum(-1), (1, 0))
    return sums[..., last] - sums[..., torch.minimum(first, step - 1)]
