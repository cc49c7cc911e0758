"""From tensors to kernel launches: block sizes, constants, outputs. No autograd here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from mvpa_ts.attention.triton.forward import forward_kernel

# Replaced in tests, to fill with NaN what a kernel must write.
allocate: Callable[..., Tensor] = torch.empty


@dataclass(frozen=True)
class Blocks:
    """How a kernel is cut: query tokens and tile keys of one step, and what Triton makes of them."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def __iter__(self):
        return iter((self.block_m, self.block_n, self.num_warps, self.num_stages))


@dataclass(frozen=True)
class Options:
    """The switches of one call; `window` is None where content counts everywhere."""

    causal: bool
    window: int | None
    dense_last_segment: bool


def tiles_channels(segments: int, channels: int) -> bool:
    """Whether key tiles run along the channels; few channels would leave most of a tile empty."""
    return channels >= 16 or segments <= channels


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    time_score: Tensor | None,
    channel_score: Tensor | None,
    real: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, T, C, H, d]; and in base 2, [B, H, N], the log-sum-exp and the largest far time score."""
    B, T, C, H, d = query.shape
    output = allocate(query.shape, dtype=query.dtype, device=query.device)
    lse, time_max = (allocate((B, H, T * C), dtype=torch.float32, device=query.device) for _ in range(2))
    block = Blocks(32, 16, 4, 2)
    grid = (triton.cdiv(T * C, block.block_m), B * H)
    forward_kernel[grid](
        p_query=query,
        p_key=key,
        p_value=value,
        p_output=output,
        p_lse=lse,
        p_time_max=time_max,
        BLOCK_M=block.block_m,
        BLOCK_N=block.block_n,
        num_warps=block.num_warps,
        num_stages=block.num_stages,
        **_common(query, key, content_bias, time_score, channel_score, real, options),
    )
    return output, lse, time_max


def _common(
    query: Tensor,
    key: Tensor,
    content_bias: Tensor | None,
    time_score: Tensor | None,
    channel_score: Tensor | None,
    real: Tensor | None,
    options: Options,
) -> dict[str, Any]:
    """Arguments that all kernels share."""
    B, T, C, H, d = query.shape
    arguments: dict[str, Any] = {name: None for name in ("p_real", "p_segment_real", "p_channel_real", "p_holes")}
    if real is not None:
        segment_real, channel_real = real.any(2), real.any(1)
        holes = (segment_real[:, :, None] & channel_real[:, None] & ~real).flatten(1).any(1)
        arguments = {
            "p_real": real.view(torch.int8),
            "p_segment_real": segment_real.view(torch.int8),
            "p_channel_real": channel_real.view(torch.int8),
            "p_holes": holes.view(torch.int8),
        }
    return arguments | {
        "p_content_bias": content_bias,
        "p_time": time_score,
        "p_channel": channel_score,
        "scale": 1.0 / math.sqrt(d),
        "window": 0 if options.window is None else options.window,
        "batch": B,
        "segments": T,
        "channels": C,
        "heads": H,
        "time_center": 0 if options.causal else T - 1,
        "GROUPS": H // key.shape[3],
        "CAUSAL": options.causal,
        "HAS_CONTENT": content_bias is not None,
        "HAS_TIME": time_score is not None,
        "HAS_CHANNEL": channel_score is not None,
        "HAS_WINDOW": content_bias is not None and options.window is not None,
        "DENSE_LAST": options.dense_last_segment,
        "HAS_MASK": real is not None,
        "TILE_CHANNELS": tiles_channels(T, C),
        "PRECISION": "ieee",
        "HEAD_DIM": d,
        "BLOCK_D": max(16, triton.next_power_of_2(d)),
    }
