"""Random changes that keep a series' class: warped and cropped time, scaled channels, noise, gaps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augmentation:
    """How far a training series may be changed; zero turns a change off.

    Attributes
    ----------
    warp : float
        Strength of a smooth change of speed: standard deviation of its logarithm.
    crop : float
        Largest share of a series that is cut off its ends before it is stretched to its length again.
    scale : float
        Standard deviation of the logarithm of a factor for each channel.
    noise : float
        Standard deviation, where a channel's is 1.
    cut : float
        Largest share of a series that is hidden in one stretch.
    channel_dropout : float
        Probability that a channel is hidden.

    Examples
    --------
    >>> x, mask = torch.randn(4, 50, 3), torch.ones(4, 50, 3, dtype=torch.bool)
    >>> changed, seen = Augmentation(cut=0.5)(x, mask, torch.Generator().manual_seed(0))
    >>> changed.shape, bool(seen.all())
    (torch.Size([4, 50, 3]), False)
    """

    warp: float = 0.3
    crop: float = 0.2
    scale: float = 0.2
    noise: float = 0.05
    cut: float = 0.1
    channel_dropout: float = 0.05

    def __call__(self, x: Tensor, mask: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Change x [B, L, C] and mask [B, L, C] (padding at the end)."""
        B, L, C = x.shape
        lengths = (mask.any(2) * torch.arange(1, L + 1)).amax(1)  # [B]
        if self.warp or self.crop:
            x, mask = self._warped(x, mask, lengths, generator)
        if self.scale:
            x = x * torch.exp(self.scale * torch.randn(B, 1, C, generator=generator))
        if self.noise:
            x = x + self.noise * torch.randn(x.shape, generator=generator)
        if self.cut:
            size = torch.rand(B, 1, generator=generator) * self.cut * lengths[:, None]
            start = torch.rand(B, 1, generator=generator) * (lengths[:, None] - size)
            steps = torch.arange(L)
            mask = mask & ~((steps >= start) & (steps < start + size))[:, :, None]
        if self.channel_dropout and C > 1:
            keep = torch.rand(B, C, generator=generator) >= self.channel_dropout
            keep[torch.arange(B), torch.randint(C, (B,), generator=generator)] = True
            mask = mask & keep[:, None]
        return x.masked_fill(~mask, 0.0), mask

    def _warped(self, x: Tensor, mask: Tensor, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        B, L = x.shape[:2]
        knots = self.warp * torch.randn(B, 1, 6, generator=generator)
        speed = torch.exp(F.interpolate(knots, size=L, mode="linear", align_corners=True)[:, 0])
        inside = torch.arange(L) < lengths[:, None]
        travelled = (speed * inside).cumsum(1)
        share = (travelled - travelled[:, :1]) / (travelled[:, -1:] - travelled[:, :1]).clamp(min=1e-6)
        cut = self.crop * torch.rand(B, 2, generator=generator) / 2
        share = cut[:, :1] + share * (1 - cut.sum(1, keepdim=True))
        position = (share * (lengths[:, None] - 1)).clamp(min=0)  # [B, L]
        left = position.floor().long()
        right = torch.minimum(left + 1, (lengths[:, None] - 1).clamp(min=0))
        share_of_right = (position - left)[:, :, None]
        rows = torch.arange(B)[:, None]
        moved = x[rows, left] * (1 - share_of_right) + x[rows, right] * share_of_right
        observed = torch.where(share_of_right < 1e-6, mask[rows, left], mask[rows, left] & mask[rows, right])
        observed = observed & inside[:, :, None]
        return moved.masked_fill(~observed, 0.0), observed


UNCHANGED = Augmentation(warp=0.0, crop=0.0, scale=0.0, noise=0.0, cut=0.0, channel_dropout=0.0)
"""Leaves every series as it is."""


def mixed(
    x: Tensor, mask: Tensor, target: Tensor, strength: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Give each series a share of another where both are observed, and its target likewise (Zhang et al. 2018).

    The share follows a Beta distribution with both parameters `strength`, and is at most one half.
    """
    first, second = torch._standard_gamma(torch.full((2,), strength), generator=generator)
    kept = (first / (first + second).clamp(min=1e-9)).item()
    kept = max(kept, 1 - kept)
    other = torch.randperm(len(x), generator=generator)
    blended = torch.where(mask & mask[other], kept * x + (1 - kept) * x[other], x)
    return blended, kept * target + (1 - kept) * target[other]
