"""The checked input that `mvpa_attention` passes to an implementation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INPUTS = ("query", "key", "value", "time_key", "channel_key", "content_bias", "time_bias", "channel_bias")


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """The precision of products under autocast; None where it is off, or the device has none."""
    on = not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)
    return torch.get_autocast_dtype(tensor.device.type) if on else None


@dataclass(frozen=True)
class Problem:
    """One checked call of `mvpa_attention`, as every implementation receives it.

    Query, key and value are zero for tokens that are not real, so their values (even NaN) cannot reach another token.
    If a term of the score is off, its tensors are here but unused.
    """

    query: Tensor  # [B, T, C, H, d]
    key: Tensor  # [B, T, C, H_kv, d]
    value: Tensor  # [B, T, C, H_kv, d]
    time_key: Tensor  # [R, H_kv, d]
    channel_key: Tensor  # [R, H_kv, d]
    content_bias: Tensor  # [H_kv, d]
    time_bias: Tensor  # [H_kv, d]
    channel_bias: Tensor  # [H_kv, d]
    real: Tensor  # bool [B, T, C]
    all_real: bool  # no mask was given, so `real` need not be looked at
    causal: bool
    window: int | None
    dense_last_segment: bool
    components: tuple[str, ...]
    channel_distance: str
    channel_window: int | None
    dropout: float = 0.0
    dropout_masks: tuple[Tensor, Tensor] | None = None  # keep_segment [B, T], keep_channel [B, C]
    # Where the queries begin among the segments of the keys, if they are fewer: one process's share of a sample.
    first_segment: int = 0

    @property
    def kept(self) -> Tensor | None:
        """The tokens whose values dropout keeps, bool [B, T, C, 1, 1]; None without dropout.

        Dropping a key's weight after the softmax is the same as dropping its value.
        """
        if self.dropout_masks is None:
            return None
        keep_segment, keep_channel = self.dropout_masks
        return (keep_segment[:, :, None] & keep_channel[:, None])[..., None, None]

    @property
    def channel_reach(self) -> int:
        """The distance from which on channels share the table's end row, one for each side if signed."""
        rows = self.channel_key.shape[0]
        return (rows - 1) // 2 if self.channel_distance == "signed" else rows - 1

    def time_rows(self, lag: Tensor) -> Tensor:
        """Rows of `time_key` for lags t − t'; causal tables begin at lag 0, other ones have it in their middle."""
        return lag.clamp(min=0) if self.causal else lag + (self.time_key.shape[0] - 1) // 2

    def channel_rows(self, distance: Tensor) -> Tensor:
        """Rows of `channel_key` for distances c − c'; distances past the table's end get its last row."""
        reach = self.channel_reach
        if self.channel_distance == "signed":
            return distance.clamp(-reach, reach) + reach
        return distance.abs().clamp(max=reach)

    @property
    def first_far_channel(self) -> int | None:
        """The distance from which on scores depend only on a channel's side; None if there is none."""
        nearest = 1
        if "content" in self.components:
            if self.channel_window is None:
                return None
            nearest = self.channel_window + 1
        return max(nearest, self.channel_reach) if "channel" in self.components else nearest
