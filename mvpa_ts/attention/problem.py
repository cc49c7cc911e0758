"""The checked input that `mvpa_attention` hands to an implementation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """One call of `mvpa_attention` after checking: what every implementation receives.

    Tokens that are not real hold zeros in query, key and value, so nothing stored in them (NaN included) can reach
    another token. A term that is off has its tensors here, unused.
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
    dropout: float
    dropout_masks: tuple[Tensor, Tensor] | None  # keep_segment [B, T], keep_channel [B, C]
