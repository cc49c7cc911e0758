"""Ridge regressions that are fitted inside the history: on a series' own lags, its neighbours, and its leaders.

Relations between the series of a panel are found here in closed form, without a weight of the network. Each regression
is fitted on all of the history, and on what lies before earlier origins, to be tried there. The penalty is the one that
did best there.

Legend: B panels, C series, N = B·C, L steps of history, h steps ahead, O origins, R rows, F features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

NAMES = ("own lags of all series", "neighbours", "neighbours, lately", "leaders")
"""What each forecast is, in their order."""
OWN_LAGS, NEIGHBOUR_LAGS, NEIGHBOURS = 32, 16, 6
LEADERS, LEADER_LAGS, LEADER_OWN_LAGS = 4, 32, 16
LATELY = 128.0
"""Steps after which a row counts 1/e in the regression on what happened lately."""
LEAST_BACK = 24
"""Nearer origins share the fit of this one: a few rows more change little."""
PENALTIES = (3.0, 30.0, 300.0, 3000.0)
BLOCK = 64
"""Steps that are forecast at once; longer horizons go on from there."""
MOST_ROWS = 12_000
"""Rows of a pooled regression; of more, every second or third is read."""
_TRIED_LAGS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48)
_BOUND = 20.0


def relation_forecasts(
    x: Tensor, observed: Tensor, origins: Sequence[int], horizon: int, order: Tensor | None
) -> Tensor:
    """Forecasts from the end of the history and from earlier origins.

    Parameters
    ----------
    x : Tensor, shape (B, C, L)
        Standardised histories without gaps, their season taken away.
    observed : bool Tensor, shape (B, C, L)
        Steps that count as targets.
    origins : sequence of int
        Steps before the end, increasing.
    horizon : int
    order : Tensor, shape (B, C), optional
        Series by place, for each panel; −1 in the first column where a panel has none.

    Returns
    -------
    Tensor, shape (1 + O, B, C, K, h)
        In the order of `NAMES`; the first is that from the end.
    """
    _, C, L = x.shape
    block = max(1, min(horizon, BLOCK, L // 4))
    tested = [back for back in origins if 2 * back + 4 <= L]
    tried = max(tested) if tested else max(1, L // 3)
    alone = _Pooled(x, observed, block, tried, None)
    if C == 1:
        always, lately = alone.forecast(origins, horizon, (None, LATELY))
        return torch.stack([always, always, lately, always], dim=3)
    near = _Pooled(x, observed, block, tried, _neighbours(x, order))
    forecasts = [*alone.forecast(origins, horizon), *near.forecast(origins, horizon, (None, LATELY))]
    forecasts += _Led(x, observed, block, tried).forecast(origins, horizon)
    return torch.stack(forecasts, dim=3)


def _neighbours(x: Tensor, order: Tensor | None) -> Tensor:
    """Series at each relative place, [B, C, S], −1 where there is none.

    Without an order these are the series that correlate most, the strongest first.
    """
    _, C, _ = x.shape
    S = min(NEIGHBOURS, C - 1)
    alike = _strongest(x, min(2 * S, C - 1))
    alike = F.pad(alike, (0, 2 * S - alike.shape[2]), value=-1)
    if order is None:
        return alike
    placed = order[:, :1, None] >= 0
    order = order.clamp(min=0)
    rank = order.argsort(1)
    offsets = torch.tensor([*range(-S, 0), *range(1, S + 1)], device=x.device)
    place = rank[..., None] + offsets  # [B, C, 2 S]
    inside = (place >= 0) & (place < C)
    neighbour = order.gather(1, place.clamp(0, C - 1).flatten(1)).view_as(place)
    return torch.where(placed, torch.where(inside, neighbour, -1), alike)


def lagged_correlation(x: Tensor) -> Tensor:
    """Largest correlation of each series with an earlier value of another, over some lags, [B, C, C]; own are −1."""
    L = x.shape[2]
    z = x - x.mean(2, keepdim=True)
    z = z / z.square().sum(2, keepdim=True).sqrt().clamp(min=1e-6)
    lags = [lag for lag in _TRIED_LAGS if 2 * lag < L]
    best = torch.stack([z[:, :, lag:] @ z[:, :, : L - lag].mT for lag in lags]).abs().amax(0)
    return best - 2.0 * torch.eye(x.shape[1], device=x.device)


def _strongest(x: Tensor, number: int) -> Tensor:
    return lagged_correlation(x).topk(number, dim=2).indices


class _Regression:
    """What both kinds share: choosing the penalty at the origins, and going on past a block."""

    def __init__(self, x: Tensor, observed: Tensor, block: int, tried: int) -> None:
        self.x, self.observed, self.block, self.tried = x, observed, block, tried
        self.reach = max(OWN_LAGS, LEADER_LAGS)

    def features(self, x: Tensor, ends: range) -> Tensor:
        """Features at some steps, [B, C, R, F]; `x` is padded by `reach` in front."""
        raise NotImplementedError

    def _lags(self, x: Tensor, ends: range, number: int, series: Tensor | None = None) -> Tensor:
        """Values at each end and before it, the latest last, [B, C, R, number]; or of other series [B, S]."""
        x = x[:, :, self.reach + ends[0] + 1 - number : self.reach + ends[-1] + 1]
        if series is not None:
            x = x.gather(1, series[..., None].expand(-1, -1, x.shape[2]))
        return x.unfold(2, number, 1)[:, :, :: ends.step]

    def _own(self, x: Tensor, ends: range, number: int) -> list[Tensor]:
        """A constant, the last value, and how earlier ones differ from it: shrunk, the last value is what stays."""
        lags = self._lags(x, ends, number)
        last = lags[..., -1:]
        return [torch.ones_like(last), last, lags[..., :-1] - last]

    def _others(self, x: Tensor, ends: range, number: int, series: Tensor) -> Tensor:
        """Lags of other series [B, C, S] of each series, [B, C, R, S * number]."""
        lags = self._lags(x, ends, number, series.flatten(1))
        return rearrange(lags, "b (c s) r l -> b c r (s l)", c=series.shape[1])

    def products(self, stops: Sequence[int], memory: Sequence[float | None]) -> list[list[tuple[Tensor, Tensor]]]:
        """Sums over rows of features times features, and times targets, up to each stop, for each memory.

        With a memory, a row counts less by 1/e for so many steps between it and the stop.
        """
        every = max(1, round(self.x.shape[1] * stops[-1] / MOST_ROWS)) if self.pooled else 1
        padded = F.pad(self.x, (self.reach, 0))
        sums: list[list[tuple[Tensor, Tensor]]] = [[] for _ in memory]
        first = 0
        for stop in stops:
            ends = range(first, max(stop, first + 1), every)
            rows = self.features(padded, ends)
            target = self.x[:, :, first + 1 : ends[-1] + self.block + 1].unfold(2, self.block, 1)[:, :, ::every]
            counts = self.observed[:, :, first : ends[-1] + 1 : every].to(rows.dtype)[..., None]
            before_stop = torch.arange(first - stop, ends[-1] + 1 - stop, every, device=self.x.device)
            for of_memory, steps in zip(sums, memory, strict=True):
                faded = counts if steps is None else counts * (before_stop / steps).exp()[:, None]
                weighted, unweighted, ahead = rows * faded, rows, target
                if self.pooled:
                    weighted, unweighted, ahead = (tensor.flatten(1, 2) for tensor in (weighted, rows, target))
                gram, cross = weighted.mT @ unweighted, weighted.mT @ ahead
                if of_memory:
                    kept = 1.0 if steps is None else math.exp((first - stop) / steps)
                    gram, cross = gram + kept * of_memory[-1][0], cross + kept * of_memory[-1][1]
                of_memory.append((gram, cross))
            first = stop
        return sums

    pooled = False

    def factor(self, gram: Tensor, penalty: Tensor) -> Tensor:
        """Cholesky factor with a penalty [..]; the constant and the last value are hardly shrunk."""
        size = penalty[..., None].repeat_interleave(gram.shape[-1], dim=-1)
        size[..., :2] = 0.1
        # Sums over all series lie too far above the penalty for single precision; those of one series do not.
        damped = gram.double() if self.pooled else gram.clone()
        damped.diagonal(dim1=-2, dim2=-1).add_(size + 1e-3)
        return torch.linalg.cholesky_ex(damped)[0]

    def apply(self, factor: Tensor, cross: Tensor, backs: Sequence[int], horizon: int) -> Tensor:
        """Forecasts from `backs` steps before the end, [O, B, C, h]."""
        B, C, L = self.x.shape
        earlier = torch.stack([F.pad(self.x, (self.reach + back, 0))[:, :, : self.reach + L] for back in backs])
        cross = cross.to(factor.dtype)
        # Weights cost a solution for each step of a block, without them there is one for each row that is forecast.
        rows_ahead = len(backs) * math.ceil(horizon / self.block) * (C if self.pooled else 1)
        weights = torch.cholesky_solve(cross, factor) if rows_ahead > self.block else None
        blocks: list[Tensor] = []
        flat = earlier.flatten(0, 1)  # [O·B, C, reach + L]
        repeated = self.repeat(len(backs))
        while sum(step.shape[2] for step in blocks) < horizon:
            end = flat.shape[2] - self.reach - 1
            rows = repeated.features(flat, range(end, end + 1))[:, :, 0].to(factor.dtype)
            together = "b (o c)" if self.pooled else "b c o"
            rows = rearrange(rows, f"(o b) c f -> {together} f", b=B)
            step = torch.cholesky_solve(rows.mT, factor).mT @ cross if weights is None else rows @ weights
            step = rearrange(step.to(flat.dtype), f"{together} h -> (o b) c h", c=C).clamp(-_BOUND, _BOUND)
            blocks.append(step)
            flat = torch.cat([flat, step], 2)
        return torch.cat(blocks, 2)[:, :, :horizon].unflatten(0, (len(backs), B))

    def repeat(self, number: int) -> _Regression:
        """The same for `number` copies of the panels."""
        return self

    def forecast(self, origins: Sequence[int], horizon: int, memory: Sequence[float | None] = (None,)) -> list[Tensor]:
        """Forecasts [1 + O, B, C, h] for each memory, with the penalty that did best at the origins."""
        L = self.x.shape[2]
        tried = [back for back in origins if back <= self.tried]
        # The last target of a fit lies before its origins.
        fits = sorted({back for back in tried if back >= LEAST_BACK}, reverse=True) or [self.tried]
        stops = [max(1, L - back - self.block) for back in fits]
        of_memory = self.products([*stops, max(stops[-1], L - self.block)], memory)
        return [self._of_memory(sums, fits, origins, tried, horizon) for sums in of_memory]

    def _of_memory(
        self, sums: list[tuple[Tensor, Tensor]], fits: list[int], origins: Sequence[int], tried: list[int], horizon: int
    ) -> Tensor:
        L = self.x.shape[2]
        # Each origin has the latest fit that saw nothing after it.
        fit_of = [max([i for i, back in enumerate(fits) if back >= origin], default=0) for origin in origins]
        penalties = self.x.new_tensor(PENALTIES)
        errors: list[Tensor] = []
        past: list[Tensor] = []
        for penalty in penalties:
            of_origin: dict[int, Tensor] = {}
            for index, (gram, cross) in enumerate(sums[:-1]):
                if backs := [origin for origin, fit in zip(origins, fit_of, strict=True) if fit == index]:
                    factor = self.factor(gram, penalty.expand(gram.shape[:-2]))
                    of_origin.update(zip(backs, self.apply(factor, cross, backs, horizon), strict=True))
            past.append(torch.stack([of_origin[back] for back in origins]))
            for back in tried:
                near = min(back, self.block, horizon)
                missed = of_origin[back][..., :near] - self.x[:, :, L - back :][..., :near]
                errors.append((missed.square() * self.observed[:, :, L - back :][..., :near]).mean(2))
        if tried:
            error = torch.stack(errors).unflatten(0, (len(past), -1)).mean(1)  # [penalties, B, C]
            best = (error.mean(2, keepdim=True).expand_as(error) if self.pooled else error).nan_to_num(1e9).argmin(0)
        else:  # without a trial, much shrinking
            best = torch.full(self.x.shape[:2], len(PENALTIES) - 1, device=self.x.device)
        chosen = penalties[best[:, 0] if self.pooled else best]
        gram, cross = sums[-1]
        final = self.apply(self.factor(gram, chosen), cross, [0], horizon)
        place = best[None, None, :, :, None].expand(1, *past[0].shape)
        return torch.cat([final, torch.stack(past).gather(0, place)[0]])


class _Pooled(_Regression):
    """One regression for all series of a panel: own lags, and those of the neighbours at each relative place."""

    pooled = True

    def __init__(self, x: Tensor, observed: Tensor, block: int, tried: int, neighbours: Tensor | None) -> None:
        super().__init__(x, observed, block, tried)
        self.neighbours = neighbours

    def repeat(self, number: int) -> _Pooled:
        near = None if self.neighbours is None else self.neighbours.repeat(number, 1, 1)
        return _Pooled(self.x, self.observed, self.block, self.tried, near)

    def features(self, x: Tensor, ends: range) -> Tensor:
        lagged = self._own(x, ends, OWN_LAGS)
        if self.neighbours is not None:
            others = self._others(x, ends, NEIGHBOUR_LAGS, self.neighbours.clamp(min=0))
            lagged.append(others * (self.neighbours >= 0).repeat_interleave(NEIGHBOUR_LAGS, 2)[:, :, None])
        return torch.cat(lagged, 3)


class _Led(_Regression):
    """A regression for each series: own lags, and those of the series that correlate most with it."""

    def __init__(self, x: Tensor, observed: Tensor, block: int, tried: int, leaders: Tensor | None = None) -> None:
        super().__init__(x, observed, block, tried)
        # Chosen before the origins, so that a trial is fair.
        early = x[:, :, : max(8, x.shape[2] - tried)]
        self.leaders = _strongest(early, min(LEADERS, x.shape[1] - 1)) if leaders is None else leaders

    def repeat(self, number: int) -> _Led:
        return _Led(self.x, self.observed, self.block, self.tried, self.leaders.repeat(number, 1, 1))

    def features(self, x: Tensor, ends: range) -> Tensor:
        return torch.cat([*self._own(x, ends, LEADER_OWN_LAGS), self._others(x, ends, LEADER_LAGS, self.leaders)], 3)
