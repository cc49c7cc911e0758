"""Memory for tiles, used again and again: fresh pages cost more time than the arithmetic done on them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """Uninitialised tensors by name, like a given one in type and device."""

    def __init__(self, like: Tensor) -> None:
        self.like, self.buffers, self.triangles = like, dict[str, Tensor](), dict[int, Tensor]()

    def tile(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A contiguous tile; it holds until the same name is asked for again."""
        size = math.prod(shape)
        buffer = self.buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self.buffers[name] = self.like.new_empty(size)
        return buffer[:size].view(shape)

    def later(self, segments: int) -> Tensor:
        """Where a key segment is later than the query segment, among the same ones; [m, 1, 1, m]."""
        if segments not in self.triangles:
            ones = torch.ones(segments, segments, dtype=torch.bool, device=self.like.device)
            self.triangles[segments] = ones.triu(1)[:, None, None]
        return self.triangles[segments]
