"""Memory for tiles, used again and again: new memory pages cost more time than the arithmetic done in them."""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

# A thread keeps at most so many bytes from one call to the next. With 12 heads of 64, a call at T = C = 50
# needs 12 MiB and one at (T, C) = (100, 32) 17.
_MOST_KEPT = 1 << 25
_kept = threading.local()


class Scratch:
    """Uninitialised tensors by name, of the type and device of a given tensor; use it in a `with` statement.

    On a CPU the thread keeps the memory for its next call. If it went back to the system instead, a call at
    (T, C) = (12, 21) would take 5 % longer forward and 10 % longer with backward.
    """

    def __init__(self, like: Tensor) -> None:
        self.like, self.buffers, self.triangles = like, dict[str, Tensor](), dict[int, Tensor]()
        self.tiles: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        # A tensor of a subclass, such as one without memory, must not be handed to another call.
        self.kind = like.dtype if type(like) is Tensor and like.device.type == "cpu" else None

    def __enter__(self) -> Scratch:
        # The memory is taken out of the store, so that a call inside a call gets other memory.
        if self.kind is not None:
            self.buffers = _kept.__dict__.pop(str(self.kind), {})
        return self

    def __exit__(self, *_: object) -> None:
        plain = all(type(buffer) is Tensor for buffer in self.buffers.values())
        size = sum(buffer.nbytes for buffer in self.buffers.values())
        if self.kind is not None and plain and size <= _MOST_KEPT:
            _kept.__dict__[str(self.kind)] = self.buffers

    def tile(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a contiguous tile; its values last until the next tile of the same name."""
        if (tile := self.tiles.get((name, shape))) is None:
            size = math.prod(shape)
            buffer = self.buffers.get(name)
            if buffer is None or buffer.numel() < size:
                # A tensor made in inference mode could not be written to outside it.
                with torch.inference_mode(False):
                    buffer = self.buffers[name] = self.like.new_empty(size)
                self.tiles = {key: value for key, value in self.tiles.items() if key[0] != name}
            tile = self.tiles[name, shape] = buffer[:size].view(shape)
        return tile

    def later(self, segments: int) -> Tensor:
        """Mark where a key segment is later than the query segment, for m segments; [m, 1, 1, m]."""
        if segments not in self.triangles:
            ones = torch.ones(segments, segments, dtype=torch.bool, device=self.like.device)
            self.triangles[segments] = ones.triu(1)[:, None, None]
        return self.triangles[segments]
