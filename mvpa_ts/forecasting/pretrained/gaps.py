"""Gaps within series, filled by what lies around them; and series that stop before the rest of their panel, carried on.

A value that is missing is likely between those beside it, or like those a season before and after: the way that errs
least on the steps that are observed fills the gaps of a series.

A sensor that has failed repeats its last value where gaps are filled by it, and every forecast would start from there.
So a ridge regression on the series' own lags and on those series that are still there, also at the steps after, goes on
step by step. A gap of the same length before the real one is filled for a trial: it chooses the penalty, and the share
that the regression gets beside the last value.

Legend: M series that have stopped, K others that are read, L steps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.relations import PENALTIES, lagged_correlation

OTHERS, LAGS = 6, 16
"""Series that are read, and steps of the own past, of theirs, and of theirs ahead."""
LEAST_OBSERVED = 64
"""Steps that a series spans at least, so that something can be learnt about it."""
_SEASONS = 3  # before and after a gap that are looked at
_AT_ONCE = 64  # series; more would take memory
_MOST = 5.0  # standard deviations: one outlier is not to decide for a series
_BOUND = 20.0


def between(x: Tensor, observed: Tensor, periods: Tensor) -> Tensor:
    """Series [N, L] whose gaps between observed steps are filled from steps beside them, or seasons [N, p] apart."""
    step = torch.arange(x.shape[1], device=x.device)
    # A value or season on one side alone would leave out how far the series rises until then.
    time, count = step * observed, observed.sum(1, keepdim=True).clamp(min=1)
    time = (step - time.sum(1, keepdim=True) / count) * observed
    slope = (time * x).sum(1, keepdim=True) / time.square().sum(1, keepdim=True).clamp(min=1.0)
    detrended = x - slope * step
    last = torch.where(observed, step, -1).cummax(1).values
    following = torch.where(observed, step, x.shape[1]).flip(1).cummin(1).values.flip(1)
    gap = (last >= 0) & (following < x.shape[1]) & ~observed
    sides = (F.pad(last, (1, 0), value=-1)[:, :-1], F.pad(following, (0, 1), value=x.shape[1])[:, 1:])
    interpolations = [_of_both(detrended, *sides)]
    seasons = torch.arange(1, 1 + _SEASONS, device=x.device)[:, None, None]
    for period in periods.T[..., None]:
        places = [_nearest(observed, step + sign * period * seasons) for sign in (-1, 1)]
        interpolations.append(torch.where(period > 1, _of_both(detrended, *places), torch.nan))
    guesses = torch.stack(interpolations)
    errors = (guesses - detrended).abs().masked_fill(~observed, torch.nan).nanmean(2)
    best = errors.nan_to_num(torch.inf).argmin(0)
    chosen = guesses.gather(0, best[None, :, None].expand(1, -1, x.shape[1]))[0]
    return torch.where(gap, torch.where(chosen.isnan(), interpolations[0], chosen) + slope * step, x)


def _nearest(observed: Tensor, places: Tensor) -> Tensor:
    """The first observed of some places [k, N, L] of each step, −1 where none is."""
    inside = (places >= 0) & (places < observed.shape[1])
    usable = inside & observed.expand(places.shape).gather(2, places.clamp(0, observed.shape[1] - 1))
    return torch.where(usable.any(0), places.gather(0, usable.to(torch.uint8).argmax(0, keepdim=True))[0], -1)


def _of_both(x: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Values on the line through those of two places of each step, [N, L]; of one place, its value; NaN of none."""
    step, L = torch.arange(x.shape[1], device=x.device), x.shape[1]
    has_before, has_after = before >= 0, (after >= 0) & (after < L)
    low, high = (x.gather(1, place.clamp(0, L - 1)) for place in (before, after))
    share = ((step - before) / (after - before).clamp(min=1)).to(x.dtype)
    value = torch.where(has_before & has_after, low + share * (high - low), torch.where(has_before, low, high))
    return torch.where(has_before | has_after, value, torch.nan)


def carried_on(x: Tensor, observed: Tensor) -> Tensor:
    """Panels in which series that have stopped go on to the end.

    Parameters
    ----------
    x : Tensor, shape (B, C, L)
        Standardised series in which a missing step takes the value before it.
    observed : bool Tensor, shape (B, C, L)

    Returns
    -------
    Tensor, shape (B, C, L)
    """
    L = x.shape[2]
    step = torch.arange(L, device=x.device)
    last, first = torch.where(observed, step, -1).amax(2), torch.where(observed, step, L).amin(2)
    gap = L - 1 - last
    stopped = (gap > 0) & (last - first >= LEAST_OBSERVED)
    panels = (stopped.any(1) & (gap == 0).any(1)).nonzero()[:, 0]
    if not len(panels):
        return x
    correlation, _ = lagged_correlation(x[panels])
    alike = torch.maximum(correlation, correlation.mT).masked_fill((gap[panels] > 0)[:, None], -1.0)
    strength, index = alike.topk(min(OTHERS, x.shape[1] - 1), dim=2)
    x = x.clone()
    for of_panel, panel in enumerate(panels.tolist()):
        for series in stopped[panel].nonzero()[:, 0].split(_AT_ONCE):
            others = x[panel, index[of_panel, series]] * (strength[of_panel, series] > 0)[..., None]
            at = panel, series
            x[at] = _carried_on(x[at], observed[at], others, gap[at], first[at])
    return x


def left_alone(observed: Tensor, reach: Tensor) -> Tensor:
    """Series [B, C] of panels [B, L, C] that stopped too early to be carried on, within the last `reach` [B] steps."""
    L = observed.shape[1]
    step, begin = torch.arange(L, device=observed.device)[:, None], (L - reach).clamp(min=0)[:, None]
    last = torch.where(observed, step, -1).amax(1)
    first = torch.where(observed & (step >= begin[..., None]), step, L).amin(1)
    return (last < L - 1) & (last >= begin) & (last - first < LEAST_OBSERVED)


def change_since_end(x: Tensor, periods: Tensor, horizon: int, farthest: int) -> tuple[Tensor, Tensor]:
    """How much series [M, L], NaN where missing, change from their last observed step to the middle of the horizon.

    Given is the mean change over as many steps, or over whole `periods` [M, p] that are as long, whichever is less; and
    how often it is that over the steps that trials at `farthest` steps before the end could see. Both are [M, 1].
    """
    L = x.shape[1]
    step, seasons = torch.arange(L, device=x.device), periods.clamp(min=1)
    last, first = torch.where(x.isnan(), -1, step).amax(1), torch.where(x.isnan(), L, step).amin(1)
    missing, longest = (L - 1 - last)[:, None], ((last - first) // 2).clamp(min=1)[:, None]
    # Trials see only what is observed, so those of a series that stopped err as little as over a shorter way.
    changes = []
    for distance in (missing + 1 + horizon // 2, 1 + (farthest - missing).clamp(0, horizon) // 2):
        lags = torch.cat([distance, ((distance / seasons).ceil() * seasons).long()], 1)
        before = step - torch.minimum(lags, longest)[..., None]  # [M, 1 + p, L]
        earlier = x[:, None].expand(before.shape).gather(2, before.clamp(min=0))
        change = (x[:, None] - earlier).abs().masked_fill(before < 0, torch.nan).nanmean(2)
        changes.append(change.nan_to_num(torch.inf).amin(1, keepdim=True))
    return changes[0], (changes[0] / changes[1].clamp(min=1e-3)).nan_to_num(1.0).clamp(min=1.0)


def _carried_on(x: Tensor, observed: Tensor, others: Tensor, gap: Tensor, first: Tensor) -> Tensor:
    """Series [M, L] whose last `gap` [M] steps are filled by the regression, as far as a trial trusts it."""
    L = x.shape[1]
    step = torch.arange(L, device=x.device)
    # The trial ends with the last observed step: all is moved there.
    moved = (step - gap[:, None]).clamp(min=0)
    inside = step >= gap[:, None]
    before, counted = x.gather(1, moved), observed.gather(1, moved) & inside
    beside = others.gather(2, moved[:, None].expand_as(others)) * inside[:, None]
    missing = torch.minimum(gap, (L - gap - first) // 3).clamp(min=1)
    tried = counted & (step >= L - missing[:, None])
    last_value = before.gather(1, (L - 1 - missing)[:, None])
    history = torch.where(step >= L - missing[:, None], last_value, before)
    trials = torch.stack([_regression(history, counted, beside, missing, x.new_full(gap.shape, p)) for p in PENALTIES])
    errors = ((trials - before).square() * tried).sum(2)
    best = errors.argmin(0)
    trial = trials.gather(0, best[None, :, None].expand(1, -1, L))[0]
    missed, predicted = ((series - last_value).clamp(-_MOST, _MOST) * tried for series in (before, trial))
    share = (missed * predicted).sum(1) / (predicted.square().sum(1) + 1e-3 * tried.sum(1).clamp(min=1))
    regression = _regression(x, observed, others, gap, x.new_tensor(PENALTIES)[best])
    return x + share.clamp(0.0, 1.0)[:, None] * (regression - x)


def _regression(x: Tensor, observed: Tensor, others: Tensor, gap: Tensor, penalty: Tensor) -> Tensor:
    """Series [M, L] whose last `gap` steps follow from the rest, one step after the other."""
    L = x.shape[1]
    step = torch.arange(L, device=x.device)
    counted = observed & (step < L - gap[:, None])
    padded, beside = F.pad(x, (LAGS, 0)), F.pad(others, (LAGS, 0))
    weights = {}
    for ahead in (LAGS, 0):  # near the end, the others are not known ahead
        rows = step[LAGS : max(LAGS + 1, L - ahead)]
        features = _features(padded, beside, rows, ahead)
        weighted = features * counted[:, rows, None]
        gram, cross = weighted.mT @ features, weighted.mT @ x[:, rows, None]
        size = penalty[:, None].double().repeat(1, gram.shape[1])
        size[:, :2] = 0.1  # the constant and the last value are hardly shrunk
        factor = torch.linalg.cholesky_ex(gram.double() + torch.diag_embed(size + 1e-3))[0]
        weights[ahead] = torch.cholesky_solve(cross.double(), factor).to(x.dtype)
    for t in range(L - int(gap.max()), L):
        ahead = LAGS if t + LAGS < L else 0
        value = (_features(padded, beside, step[t : t + 1], ahead) @ weights[ahead])[:, 0, 0].clamp(-_BOUND, _BOUND)
        padded[:, LAGS + t] = torch.where(t >= L - gap, value, padded[:, LAGS + t])
    return padded[:, LAGS:]


def _features(padded: Tensor, beside: Tensor, rows: Tensor, ahead: int) -> Tensor:
    """Own lags, and the others' steps around each row, [M, R, F]; both are padded by `LAGS` in front."""
    past = padded[:, LAGS + rows[:, None] - torch.arange(1, LAGS + 1, device=rows.device)]
    around = beside[:, :, LAGS + rows[:, None] + ahead - torch.arange(LAGS + ahead, device=rows.device)]
    # With the others shrunk away, the last value is what stays.
    past = torch.cat([torch.ones_like(past[..., :1]), past[..., :1], past[..., 1:] - past[..., :1]], 2)
    return torch.cat([past, around.movedim(1, 2).flatten(2)], 2)
