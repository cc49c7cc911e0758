"""Keys and values of a stream's newest segments, kept from step to step by `MVPAttention.step`."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from mvpa_ts.attention.functional import check_mask


class KeyValueCache:
    """Room for the newest `context` segments of one stream; `MVPAttention.make_cache` makes it.

    The buffers are twice as long as needed, so that a view of the segments in use is contiguous and moves are rare. Its
    size does not change.

    Parameters
    ----------
    time_key : Tensor, shape (context, H_kv, d)
        Row = lag.
    channel_key : Tensor, shape (C, H_kv, d)
        Row = distance.

    Attributes
    ----------
    keys, values : Tensor, shape (H_kv, 2 · context, C, d)
    has_room : bool
        Whether `advance` was called since the last step.

    Examples
    --------
    >>> import torch
    >>> cache = KeyValueCache(torch.zeros(3, 2, 8), torch.zeros(4, 2, 8))
    >>> for _ in range(5):
    ...     cache.advance()
    >>> cache.seen
    slice(2, 5, None)
    """

    def __init__(self, time_key: Tensor, channel_key: Tensor) -> None:
        self.time_key, self.channel_key = time_key, channel_key
        self.context, kv_heads, head_dim = time_key.shape
        shape = (kv_heads, 2 * self.context, channel_key.shape[0], head_dim)
        self.keys, self.values = time_key.new_zeros(shape), time_key.new_zeros(shape)
        self._real = torch.zeros(shape[1:3], dtype=torch.bool, device=time_key.device)
        self.reset()

    def reset(self) -> None:
        """Forget the past."""
        self._stop = 0
        self.has_room = False
        self.real: Tensor | None = None
        """Which tokens of the segments in use are real, [T, C]; None where all are."""

    @property
    def seen(self) -> slice:
        """Where the segments in use lie, the newest one last."""
        return slice(max(0, self._stop - self.context), self._stop)

    def advance(self, channel_mask: Tensor | None = None) -> None:
        """Make room for a new segment, of which `channel_mask` [C] says which channels are real.

        A segment for which no `step` follows counts as missing.
        """
        if channel_mask is not None:
            check_mask("channel_mask", channel_mask, (self._real.shape[1],))
        if self.has_room:
            self._real[self._stop - 1] = False
        if self._stop == len(self._real):  # the buffers are full: their newer half moves to the front
            kept = slice(self._stop - self.context + 1, self._stop)
            self._real[: self.context - 1] = self._real[kept].clone()
            for buffer in (self.keys, self.values):
                buffer[:, : self.context - 1] = buffer[:, kept].clone()
            self._stop = self.context - 1
        self._real[self._stop] = True if channel_mask is None else channel_mask
        self._stop += 1
        self.has_room = True
        self.real = None if self._real[self.seen].all() else self._real[self.seen]

    def write(self, key: Tensor, value: Tensor) -> None:
        """Put keys and values [C, H_kv, d] in the place of the newest segment."""
        self.keys[:, self._stop - 1] = rearrange(key, "c h d -> h c d")
        self.values[:, self._stop - 1] = rearrange(value, "c h d -> h c d")
        self.has_room = False
