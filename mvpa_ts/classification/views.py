"""What both paths of the classification network read of a series."""

from __future__ import annotations

import torch
from torch import Tensor


def series_views(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Level, shape and mask of series, channels before steps; raises a ValueError where x and mask do not fit.

    From x and mask [B, L, C], True = observed, all [B, C, L]: the level is the series, zero where nothing was observed,
    and the shape the same with mean 0 and standard deviation 1 over the observed steps of each channel.
    """
    if x.ndim != 3:
        raise ValueError(f"x must be [B, L, C], got shape {tuple(x.shape)}")
    if mask is None:
        mask = torch.ones_like(x, dtype=torch.bool)
    elif mask.dtype != torch.bool or mask.shape != x.shape:
        raise ValueError(f"mask must be a bool tensor of shape {tuple(x.shape)}, got {mask.dtype} {tuple(mask.shape)}")
    level, mask = x.mT.masked_fill(~mask.mT, 0.0), mask.mT
    count = mask.sum(2, keepdim=True).clamp(min=1)
    centred = (level - level.sum(2, keepdim=True) / count) * mask
    # The constant keeps the noise of a channel that hardly moves small; 1 is the spread over the training data.
    return level, centred / (centred.square().sum(2, keepdim=True) / count + 1e-4).sqrt(), mask
