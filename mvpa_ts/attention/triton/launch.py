"""From tensors to kernel launches: block sizes, constants, outputs. No autograd here."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from mvpa_ts.attention.triton.backward_key import key_gradient_kernel
from mvpa_ts.attention.triton.backward_query import query_gradient_kernel
from mvpa_ts.attention.triton.forward import forward_kernel
from mvpa_ts.attention.triton.primitives import INTERPRETED

# float32 inputs keep float32 products; Triton's default rounds them to tf32.
PRECISION = INTERPRETED.value if os.environ.get("TRITON_INTERPRET") == "1" else "ieee"
# Replaced in tests, to fill with NaN what a kernel must write.
allocate: Callable[..., Tensor] = torch.empty


@dataclass(frozen=True)
class Blocks:
    """How a kernel is cut: query tokens and tile keys of one step, and what Triton makes of them."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


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
    B, T, C, H, _ = query.shape
    output = allocate(query.shape, dtype=query.dtype, device=query.device)
    tile_stop = C if tiles_channels(T, C) else T
    lse, time_max = (allocate((B, H, T * C), dtype=torch.float32, device=query.device) for _ in range(2))
    block = Blocks(32, 16, 4, 2)
    grid = (triton.cdiv(T * C, block.block_m) * B * H,)
    forward_kernel[grid](
        p_query=query,
        p_key=key,
        p_value=value,
        p_output=output,
        p_lse=lse,
        p_time_max=time_max,
        SINGLE_TILE=tile_stop <= block.block_n,
        BLOCK_M=block.block_m,
        BLOCK_N=block.block_n,
        num_warps=block.num_warps,
        num_stages=block.num_stages,
        **_common(query, key, content_bias, time_score, channel_score, real, options),
    )
    return output, lse, time_max


def backward(
    output_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    time_score: Tensor | None,
    channel_score: Tensor | None,
    real: Tensor | None,
    output: Tensor,
    lse: Tensor,
    time_max: Tensor,
    options: Options,
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None, Tensor | None]:
    """Gradients of query, key, value and of both scores; None for what does not take part."""
    B, T, C, H, _ = query.shape
    H_kv = key.shape[3]
    along_channels = tiles_channels(T, C)
    tile_stop, cross_stop = (C, T) if along_channels else (T, C)
    common = _common(query, key, content_bias, time_score, channel_score, real, options)
    delta = allocate(lse.shape, dtype=lse.dtype, device=lse.device)
    query_gradient, key_gradient = None, None
    if content_bias is not None:
        query_gradient = allocate(query.shape, dtype=query.dtype, device=query.device)
        key_gradient = allocate(key.shape, dtype=key.dtype, device=key.device)
    value_gradient = allocate(value.shape, dtype=value.dtype, device=value.device)

    block = Blocks(32, 16, 4, 2)
    # Tiles one after another add up their cross gradients: in float32, if there is more than one.
    cross_dtype = query.dtype if tile_stop <= block.block_n else torch.float32
    time_gradient, channel_gradient = None, None
    if time_score is not None:
        # Rows of the table that no query reaches have no gradient.
        dtype = cross_dtype if along_channels else query.dtype
        time_gradient = torch.zeros(time_score.shape, dtype=dtype, device=query.device)
    if channel_score is not None:
        dtype = query.dtype if along_channels else cross_dtype
        channel_gradient = allocate(channel_score.shape, dtype=dtype, device=query.device)
    query_gradient_kernel[(triton.cdiv(T * C, block.block_m) * B * H,)](
        p_query=query,
        p_key=key,
        p_value=value,
        p_output=output,
        p_output_gradient=output_gradient,
        p_lse=lse,
        p_time_max=time_max,
        p_delta=delta,
        p_query_gradient=query if query_gradient is None else query_gradient,
        p_time_gradient=query if time_gradient is None else time_gradient,
        p_channel_gradient=query if channel_gradient is None else channel_gradient,
        SINGLE_TILE=tile_stop <= block.block_n,
        BLOCK_M=block.block_m,
        BLOCK_N=block.block_n,
        num_warps=block.num_warps,
        num_stages=block.num_stages,
        **common,
    )
    block = Blocks(32, 16, 4, 2)
    cross = 2
    key_gradient_kernel[(triton.cdiv(tile_stop, block.block_n) * triton.cdiv(cross_stop, cross) * B * H_kv,)](
        p_query=query,
        p_key=key,
        p_value=value,
        p_output_gradient=output_gradient,
        p_lse=lse,
        p_time_max=time_max,
        p_delta=delta,
        p_key_gradient=key if key_gradient is None else key_gradient,
        p_value_gradient=value_gradient,
        CROSS=cross,
        BLOCK_M=block.block_m,
        BLOCK_N=block.block_n,
        num_warps=block.num_warps,
        num_stages=block.num_stages,
        **common,
    )
    if time_gradient is not None:
        time_gradient = time_gradient.to(query.dtype)
    if channel_gradient is not None:
        channel_gradient = channel_gradient.to(query.dtype)
    return query_gradient, key_gradient, value_gradient, time_gradient, channel_gradient


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
    # What is absent is not read: any pointer will do.
    arguments: dict[str, Any] = dict.fromkeys(("p_real", "p_segment_real", "p_channel_real", "p_holes"), query)
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
        "p_content_bias": query if content_bias is None else content_bias,
        "p_time": query if time_score is None else time_score,
        "p_channel": query if channel_score is None else channel_score,
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
        "WIDE": any(score is not None and score.numel() >= 1 << 31 for score in (time_score, channel_score)),
        "TILE_CHANNELS": tiles_channels(T, C),
        "PRECISION": PRECISION,
        "HEAD_DIM": d,
        "BLOCK_D": max(16, triton.next_power_of_2(d)),
    }
