"""Location and scale of each window, by which both kinds of forecaster read and write."""

from __future__ import annotations

import torch
from torch import Tensor


def location_scale(x: Tensor, mask: Tensor | None, unit: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the observed steps, [B, 1, C]; x holds zeros at the others.

    A window that hardly varies has a deviation of some 0.003 `unit`, [C] or [B, 1, C], by default 1.
    """
    location, centred = _centred(x, mask)
    unit = x.new_ones(()) if unit is None else unit
    variance = _mean((centred / unit).square(), mask)
    return location.detach(), ((variance + 1e-5).sqrt() * unit).detach()


def unit_of_windows(x: Tensor, mask: Tensor | None) -> Tensor:
    """What counts as little in each window, [B, 1, C]: a thousandth of how far it goes from its mean.

    For a constant window, a millionth of its size; for one of zeros next to nothing, so that it is forecast as zero.
    """
    _, centred = _centred(x, mask)
    unit = torch.maximum(1e-3 * centred.abs().amax(1, keepdim=True), 1e-6 * x.abs().amax(1, keepdim=True))
    # A power of two, by which numbers are divided without rounding.
    return unit.clamp(min=2.0**-100).log2().round().exp2().detach()


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    return x.mean(1, keepdim=True) if mask is None else x.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def _centred(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean over the observed steps, [B, 1, C], and how far each of them lies from it, [B, L, C]."""
    location = _mean(x, mask)
    return location, x - location if mask is None else (x - location).masked_fill(~mask, 0.0)
