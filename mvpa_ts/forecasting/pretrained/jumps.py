"""What a history holds that no forecast should start from: single far values, and levels that were left for good."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained.simple_forecasts import filled

SHIFTS = 2
"""Levels that are left, at the most."""
AFTER, AROUND = 6, 24
"""Steps that a new level lasts at least, and steps on each side of a jump that tell its levels."""
_UNUSUAL, _APART, _SUDDEN = 1.8, 1.8, 0.6


def cleaned(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Values and mask without spikes and without the levels that were left, each [B, L, C]."""
    mask = mask & ~spikes(x, mask)
    return x + shifts(x, mask), mask


def spikes(x: Tensor, mask: Tensor) -> Tensor:
    """Observed values far from those around them, which no forecast should start from, [B, L, C].

    A value counts as a spike if it lies further from the median of its five nearest earlier values and of its later
    ones than 15 times what 98 in 100 values do. A new level is no spike, from its third value on.
    """
    L = x.shape[1]
    if L < 12:
        return torch.zeros_like(mask)
    filled_up = x.masked_fill(~mask, torch.nan)
    before = F.pad(filled_up, (0, 0, 5, 0), value=torch.nan).unfold(1, 5, 1)[:, :L]
    after = F.pad(filled_up, (0, 0, 0, 5), value=torch.nan).unfold(1, 5, 1)[:, 1:]
    past = (filled_up - before.nanmedian(3).values).abs()
    ahead = (filled_up - after.nanmedian(3).values).abs()
    seen_after = (~after.isnan()).sum(3)
    far = torch.where(seen_after >= 2, torch.minimum(past, ahead), past).nan_to_num(0.0)
    far = far.masked_fill(~mask, torch.nan)
    usual, spread = torch.nanquantile(far, torch.tensor([0.98, 0.5], device=x.device, dtype=x.dtype), 1, keepdim=True)
    # Of few values the farthest is itself among the 98 in 100.
    second = far.nan_to_num(0.0).topk(2, dim=1).values[:, 1:]
    usual = torch.where(mask.sum(1, keepdim=True) < 100, torch.minimum(usual, second), usual)
    return mask & (far > 15.0 * usual) & (far > 30.0 * spread) & (usual > 0)


def shifts(x: Tensor, mask: Tensor) -> Tensor:
    """What is to be added to each step so that it lies on the last level, [B, L, C]; zero where no level was left.

    A level is left where the largest step of a series is a third larger than 98 in 100 steps, leads from one level to
    another within that step, where these levels lie further apart than the values on either side spread, and where the
    new one was hardly seen before. What a season, an alternating machine or a random walk does is usual, so it is none.
    """
    B, L, _ = x.shape
    if L < 2 * AFTER + 4:
        return torch.zeros_like(x)
    rows, observed = (rearrange(tensor, "b l c -> (b c) l") for tensor in (x, mask))
    values, first = filled(rows, observed)
    step, added = torch.arange(L, device=x.device), torch.zeros_like(values)
    tail = torch.arange(AROUND, device=x.device)
    shares, far = x.new_tensor([0.1, 0.5, 0.9]), x.new_tensor([0.02, 0.98])
    allowed = (step >= first[:, None] + AFTER) & (step <= L - AFTER)
    for _ in range(SHIFTS):
        change = torch.diff(values, dim=1, prepend=values[:, :1]).abs()
        begins = (step > first[:, None]) & observed
        usual = torch.nanquantile(change.masked_fill(~begins, torch.nan), 0.98, dim=1, keepdim=True)
        at = change.masked_fill(~allowed, -1.0).argmax(1, keepdim=True)
        before, after = at - 1 - tail, at + tail
        sides = [
            values.gather(1, place.clamp(0, L - 1)).masked_fill((place < first[:, None]) | (place >= L), torch.nan)
            for place in (before, after)
        ]
        low, middle, high = torch.nanquantile(torch.stack(sides), shares, dim=2, keepdim=True)
        jump, spread = middle[1] - middle[0], (high - low).amax(0)
        largest = change.gather(1, at)
        earlier = values.masked_fill((step < first[:, None]) | (step >= at), torch.nan)
        lowest, highest = torch.nanquantile(earlier, far, dim=1, keepdim=True)
        new = (middle[1] < lowest) | (middle[1] > highest)
        since = values.masked_fill(step < at, torch.nan)
        half = 0.5 * (middle[0] + middle[1])
        low, _, high = torch.nanquantile(since, shares, dim=1, keepdim=True)
        stays = torch.where(jump > 0, low - half, half - high) > 0
        clear = (largest > _UNUSUAL * usual) & (jump.abs() > _APART * spread) & (largest > _SUDDEN * jump.abs())
        left = allowed.any(1, keepdim=True) & new & stays & clear
        if not (torch.compiler.is_compiling() or bool(left.any())):
            break  # nothing changes: a second look would see the same
        moved = torch.where(left & (step < at), jump, 0.0).nan_to_num(0.0)
        values, added = values + moved, added + moved
    return rearrange(added, "(b c) l -> b l c", b=B)
