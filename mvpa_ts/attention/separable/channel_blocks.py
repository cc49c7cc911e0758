"""Linear cost in channels: all far channels on one side have the same score, so one key stands for them.

Content is scored up to `channel_window` channels away. All channels further away than `channel_key` reaches share its
last rows. So beyond some distance the weight of a key depends only on its segment and its side. The queries are cut
into blocks of neighbouring channels. A block sees the channels near it, one key for all channels further left, and one
for all further right. Such a key is the mean of its channels and counts once for each real token in them. The means
come from two running sums, one from each end: nothing is subtracted, so no digits are lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import pad

from mvpa_ts.attention.problem import Problem

# Channels of a block, unless `reach` is larger.
_BLOCK_CHANNELS = 64


@dataclass(frozen=True)
class ChannelBlocks:
    """Cut of the channels: `number` blocks of `size` query channels, with keys `reach` channels further on both sides.

    The outermost key on each side stands for all far channels. One block of reach 0 holds all channels as they are.
    """

    channels: int
    number: int
    size: int
    reach: int

    @classmethod
    def of(cls, p: Problem) -> ChannelBlocks:
        """Choose the blocks of a problem; one block if several would cost as much."""
        C = p.query.shape[2]
        number, size, reach = 1, C, 0
        if (nearest := p.first_far_channel) is not None:
            blocks = -(-C // max(_BLOCK_CHANNELS, nearest))
            cut = -(-C // blocks)
            if blocks * cut * (cut + 2 * nearest) < C * C:
                number, size, reach = blocks, cut, nearest
        return cls(C, number, size, reach)

    def queries(self, x: Tensor) -> Tensor:
        """Cut [B, T, C, ...] into [B · number, T, size, ...]."""
        if self.number == 1:
            return x
        return rearrange(self._padded(x, 0), "b t (n c) ... -> (b n) t c ...", n=self.number)

    def joined(self, x: Tensor) -> Tensor:
        """Undo `queries`."""
        return rearrange(x, "(b n) t c ... -> b t (n c) ...", n=self.number)[:, :, : self.channels]

    def keys(self, x: Tensor) -> Tensor:
        """Cut [B, T, C, ...] into [B · number, T, size + 2·reach, ...], with zeros in place of far channels."""
        return self._with_sides(x, None)

    def values(self, x: Tensor, p: Problem) -> Tensor:
        """Cut like `keys`, with the mean of the real tokens in place of far channels."""
        if self.number == 1:
            return x
        cut = self._with_sides(x, x)
        counts = self.counts(p).to(x.dtype)
        return cut / counts.clamp(min=1)[..., None, None]

    def counts(self, p: Problem) -> Tensor:
        """Count the real tokens behind each key, [B · number, T, size + 2·reach]; above one only for far channels."""
        real = p.real.long()
        return self._with_sides(real, real)

    def _with_sides(self, x: Tensor, summed: Tensor | None) -> Tensor:
        if self.number == 1:
            return x
        m, h, n = self.size, self.reach, self.number
        padded = self._padded(x, h)
        block, near_channel = (torch.arange(size, device=x.device) for size in (n, m + 2 * h - 2))
        near = padded.index_select(2, (block[:, None] * m + near_channel + 1).flatten()).unflatten(2, (n, -1))
        if summed is None:
            left = right = torch.zeros_like(near[:, :, :, :1])
        else:
            left = padded.cumsum(2)[:, :, : n * m : m].unsqueeze(3)
            right = padded.flip(2).cumsum(2).flip(2)[:, :, m + 2 * h - 1 :: m].unsqueeze(3)
        return rearrange(torch.cat([left, near, right], 3), "b t n c ... -> (b n) t c ...")

    def _padded(self, x: Tensor, reach: int) -> Tensor:
        after: list[Any] = [0, 0] * (x.ndim - 3)
        return pad(x, (*after, reach, self.number * self.size - self.channels + reach))
