"""From tensors to kernel launches: block sizes, constants, outputs. No autograd here."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from mvpa_ts.attention.triton.backward_far import far_gradient_kernel
from mvpa_ts.attention.triton.backward_key import key_gradient_kernel
from mvpa_ts.attention.triton.backward_query import query_gradient_kernel
from mvpa_ts.attention.triton.forward import forward_kernel
from mvpa_ts.attention.triton.primitives import INTERPRETED, LOG2_E
from mvpa_ts.attention.triton.tuning import Blocks, fastest

# float32 inputs keep float32 products; Triton's default rounds them to tf32.
PRECISION = INTERPRETED.value if os.environ.get("TRITON_INTERPRET") == "1" else "ieee"
# Replaced in tests, to fill with NaN what a kernel must write.
allocate: Callable[..., Tensor] = torch.empty


@dataclass(frozen=True)
class Options:
    """The switches of one call; `window` is None if content is scored everywhere."""

    causal: bool
    window: int | None
    dense_last_segment: bool


class Inputs(NamedTuple):
    """What the kernels read of some samples, shapes as in `batch`; None for a term that is off, and for no mask."""

    query: Tensor
    key: Tensor
    value: Tensor
    content_bias: Tensor | None
    time_score: Tensor | None
    channel_score: Tensor | None
    real: Tensor | None


# A key is loaded for twice as many queries as by 128 rows, so that L2 no longer bounds the kernel.
_ROWS_256 = Blocks(256, 32, 8, num_stages=1)
# Of the kernels over keys: segments of keys that share the queries and the scores that are loaded. Near pairs keep two
# sums for each, so there are fewer.
_EIGHT = Blocks(32, 64, 8, num_stages=1, tiles=8)
_FOUR = Blocks(32, 64, 8, num_stages=1, tiles=4)
_TWO = Blocks(32, 64, 8, num_stages=1, tiles=2)
# Candidates for sm_90, chosen from the compiler's report of resources. The first
# block has the lowest bound among those that spill no register and whose products ptxas does not serialise. At most two
# follow that may be faster on a GPU: with loads that run ahead (more stages, more instructions), or with fewer rows, so
# that two programs share a multiprocessor. `tuning.fastest` times them. Eight warps on 64 rows would do some products
# twice. One stage (loads do not run ahead) takes a fifth fewer instructions.
# Keys of the dict: the kernel, and whether heads are wider than 64; then the layout: half a tile or one holds all
# channels, several do, or tiles run along the segments. Masks take registers, so some layouts have separate blocks for
# them. All candidates of the query kernel have the same number of keys, because the precision of what it writes depends
# on that number.
_BLOCKS: dict[tuple[str, bool], dict[str, tuple[Blocks, ...]]] = {
    ("forward", False): {
        "one tile": (_ROWS_256, Blocks(128, 64, 8), Blocks(64, 64, 4, num_stages=1)),
        "one tile, masked": (Blocks(128, 64, 8), Blocks(64, 64, 4), Blocks(64, 64, 4, num_stages=1)),
        "tiles": (_ROWS_256, Blocks(128, 64, 8), Blocks(64, 64, 4, num_stages=1)),
        "tiles, masked": (Blocks(128, 32, 8), Blocks(64, 32, 4)),
        "segments": (Blocks(64, 64, 8),),
    },
    ("forward", True): {
        "one tile": (Blocks(128, 32, 8), Blocks(128, 32, 8, num_stages=3)),
        "one tile, masked": (Blocks(128, 16, 8), Blocks(64, 32, 8)),
        "tiles": (Blocks(128, 32, 8), Blocks(128, 32, 8, num_stages=3)),
        "tiles, masked": (Blocks(128, 16, 8), Blocks(64, 32, 8)),
        "segments": (Blocks(64, 32, 8),),
    },
    ("query_gradient", False): {
        "half a tile": (Blocks(128, 32, 8, num_stages=1), Blocks(128, 32, 8)),
        "one tile": (Blocks(128, 64, 8, num_stages=1),),
        "one tile, masked": (Blocks(128, 32, 8, num_stages=1), Blocks(128, 32, 8)),
        "tiles": (Blocks(128, 64, 8, num_stages=1),),
        "tiles, masked": (Blocks(64, 32, 8),),
        "segments": (Blocks(64, 32, 8),),
    },
    ("query_gradient", True): {
        "one tile": (Blocks(128, 32, 8), Blocks(128, 32, 8, num_stages=3)),
        "tiles": (Blocks(128, 16, 8), Blocks(128, 16, 8, num_stages=3)),
        "segments": (Blocks(128, 16, 8),),
    },
    ("far_gradient", False): {
        **dict.fromkeys(("one tile", "tiles"), (_EIGHT, Blocks(64, 64, 4, num_stages=1, tiles=4))),
        **dict.fromkeys(("one tile, masked", "tiles, masked", "segments"), (_EIGHT,)),
    },
    ("far_gradient", True): dict.fromkeys(
        ("one tile", "tiles", "segments"), (Blocks(32, 32, 8, num_stages=1, tiles=8),)
    ),
    ("key_gradient", False): {
        **dict.fromkeys(("one tile", "tiles"), (_FOUR, _TWO)),
        **dict.fromkeys(("one tile, masked", "tiles, masked", "segments"), (_TWO,)),
    },
    ("key_gradient", True): dict.fromkeys(
        ("one tile", "tiles", "segments"), (Blocks(16, 32, 8, num_stages=1, tiles=4),)
    ),
}
# What the kernel of the far pairs does not read.
_NOT_FAR = {"p_query", "p_key", "p_value", "p_content_bias"}
# float32 products run on no tensor core, and their operands fill the registers.
FLOAT32_BLOCKS = (Blocks(16, 16, num_warps=8, num_stages=1),)


def choose_blocks(kernel: str, query: Tensor, masked: bool) -> tuple[Blocks, ...]:
    """List the blocks to choose from for queries of this precision and shape; without timing the first is taken."""
    if query.element_size() > 2:
        return FLOAT32_BLOCKS
    T, C, _, d = query.shape[1:]
    choices = _BLOCKS[kernel, d > 64]
    layout = "segments"
    if tiles_channels(T, C):
        most = max(blocks.keys for blocks in choices["one tile"])
        layout = "one tile" if most >= C else "tiles"
        if most >= 2 * C and "half a tile" in choices:
            layout = "half a tile"
    candidates = choices.get(f"{layout}, masked", choices[layout]) if masked else choices[layout]
    # Before sm_90 the operands of a product are in registers: larger tiles of queries would spill some.
    if compute_capability(query.device) < (9, 0):
        rows, keys = (128, 64) if kernel in ("far_gradient", "key_gradient") else (128, 32)
        candidates = tuple(
            dict.fromkeys(
                replace(b, query_tokens=min(b.query_tokens, rows), keys=min(b.keys, keys), tiles=1) for b in candidates
            )
        )
    return candidates


def compute_capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of the device, or (9, 0) if it is no GPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def padded_channels(channels: int) -> int:
    """Round the number of channels up to the columns of the channel scores, a multiple of 8."""
    return -(-channels // 8) * 8


def tiles_channels(segments: int, channels: int) -> bool:
    """Say whether key tiles run along the channels; with few channels most of such a tile would be empty."""
    return channels >= 16 or segments <= channels


def sums_fit(query: Tensor, columns: int) -> bool:
    """Say whether a program can hold what the gradients of so many columns of scores add up to.

    If so, `launch_scores.score_gradients` takes them, and reads only what the query kernel writes. Otherwise products
    of torch do, which read all of it.
    """
    keys, head_dim = (max(64, triton.next_power_of_2(size)) for size in (columns, query.shape[-1]))
    return keys * head_dim <= (128 * 64 if query.element_size() == 2 else 64 * 64)


def forward(inputs: Inputs, options: Options, results: tuple[Tensor, ...]) -> None:
    """Write the results: output, log-sum-exp, largest far time score and residual; see `batch.attend`."""
    query = inputs.query
    B, T, C, H, _ = query.shape
    common = _common(inputs, options)
    output, lse, time_max, residual = results

    def run(blocks: Blocks) -> None:
        forward_kernel[(triton.cdiv(T * C, blocks.query_tokens), H, B)](
            p_output=output,
            p_residual=residual,
            p_lse=lse,
            p_time_max=time_max,
            **common,
            **cut(blocks),
        )

    candidates = choose_blocks("forward", query, inputs.real is not None)
    run(fastest(forward_kernel, candidates, common, query.device, run))


def backward(
    output_gradient: Tensor,
    inputs: Inputs,
    results: tuple[Tensor, ...],
    lse_gradient: Tensor | None,
    options: Options,
    gradients: tuple[Tensor, Tensor | None, Tensor],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Write the gradient of value and the content part of the gradients of query and key; return the other gradients.

    The others are the gradients of both scores, where they exist (see `sums_fit`), and of the content bias by query
    head, [H, d] in float32. For heads wider than 64 the last is None: the caller sums the gradient of the query.

    One program writes each element, in a fixed order, so results are the same each time.
    """
    query, key, value, content_bias, time_score, channel_score, real = inputs
    B, T, C, H, _ = query.shape
    common = _common(inputs, options)
    output, lse, time_max, residual = results
    query_gradient, key_gradient, value_gradient = gradients
    delta = like(lse)

    candidates = choose_blocks("query_gradient", query, real is not None)
    tile_stop, cross_stop = (C, T) if tiles_channels(T, C) else (T, C)
    single_tile = tile_stop <= candidates[0].keys
    # Tiles one after another add up their cross gradients: in float32, if there is more than one.
    cross_dtype = query.dtype if single_tile else torch.float32
    of_time, of_channel = (cross_dtype, query.dtype) if tiles_channels(T, C) else (query.dtype, cross_dtype)
    time_gradient, channel_gradient = None, None
    if time_score is not None:
        time_gradient = allocate(time_score.shape, dtype=of_time, device=query.device)
        if not sums_fit(query, time_score.shape[1]):
            time_gradient.zero_()  # lags that a query does not have
    if channel_score is not None:
        channel_gradient = allocate(channel_score.shape, dtype=of_channel, device=query.device)
        if not sums_fit(query, channel_score.shape[2]):
            channel_gradient[..., C:] = 0.0

    # The key kernel adds the near pairs to the far ones, which are kept in float32 until then.
    has_far = content_bias is None or options.window is not None
    has_near = content_bias is not None or real is not None
    far_gradient = value_gradient
    if has_far and has_near:
        far_gradient = allocate(value.shape, dtype=torch.float32, device=value.device)

    bias_gradients: list[Tensor] = []

    def run_query(blocks: Blocks) -> None:
        parts = triton.cdiv(T * C, blocks.query_tokens)
        bias_gradients[:] = [allocate((B, H, parts, query.shape[-1]), dtype=torch.float32, device=query.device)]
        query_gradient_kernel[(parts, H, B)](
            p_output=output,
            p_residual=residual,
            p_output_gradient=output_gradient,
            p_lse=lse,
            p_lse_gradient=lse if lse_gradient is None else lse_gradient,
            p_time_max=time_max,
            p_delta=delta,
            p_query_gradient=query_gradient,
            p_bias_gradient=bias_gradients[0],
            p_time_gradient=query if time_gradient is None else time_gradient,
            p_channel_gradient=query if channel_gradient is None else channel_gradient,
            SINGLE_TILE=single_tile,
            HAS_LSE_GRADIENT=lse_gradient is not None,
            **common,
            **cut(blocks),
        )

    def programs(blocks: Blocks) -> int:
        return triton.cdiv(tile_stop, blocks.keys) * triton.cdiv(cross_stop, blocks.tiles) * B * key.shape[3]

    def run_far(blocks: Blocks) -> None:
        far_gradient_kernel[(programs(blocks),)](
            p_output_gradient=output_gradient,
            p_lse=lse,
            p_time_max=time_max,
            p_value_gradient=far_gradient,
            TILES=blocks.tiles,
            **{name: common[name] for name in common.keys() - _NOT_FAR},
            **cut(blocks),
        )

    def run_key(blocks: Blocks) -> None:
        key_gradient_kernel[(programs(blocks),)](
            p_output_gradient=output_gradient,
            p_lse=lse,
            p_delta=delta,
            p_far_gradient=far_gradient,
            p_key_gradient=key if key_gradient is None else key_gradient,
            p_value_gradient=value_gradient,
            # Read where it is used, it takes no register. The other kernels make the same number, in float32.
            scale_2=_float32(common["scale"] * _float32(LOG2_E.value)),
            TILES=blocks.tiles,
            **common,
            **cut(blocks),
        )

    run_query(fastest(query_gradient_kernel, candidates, common, query.device, run_query))
    if has_far:
        candidates = choose_blocks("far_gradient", query, real is not None)
        run_far(fastest(far_gradient_kernel, candidates, common, query.device, run_far))
    if has_near:
        candidates = choose_blocks("key_gradient", query, real is not None)
        run_key(fastest(key_gradient_kernel, candidates, common, query.device, run_key))
    bias_gradient = bias_gradients[0].sum((0, 2)) if content_bias is not None and query.shape[-1] <= 64 else None
    return time_gradient, channel_gradient, bias_gradient


def _common(inputs: Inputs, options: Options) -> dict[str, Any]:
    """Collect the arguments that all kernels share."""
    query, key, value, content_bias, time_score, channel_score, real = inputs
    B, T, C, H, d = query.shape
    # What is absent is not read: any pointer will do.
    masks: dict[str, Any] = dict.fromkeys(("p_real", "p_segment_real", "p_channel_real", "p_holes"), query)
    if real is not None:
        segment_real, channel_real = real.any(2), real.any(1)
        holes = (segment_real[:, :, None] & channel_real[:, None] & ~real).flatten(1).any(1)
        masks = {
            "p_real": real.view(torch.int8),
            "p_segment_real": segment_real.view(torch.int8),
            "p_channel_real": channel_real.view(torch.int8),
            "p_holes": holes.view(torch.int8),
        }
    return masks | {
        "p_query": query,
        "p_key": key,
        "p_value": value,
        "p_content_bias": query if content_bias is None else content_bias,
        "p_time": query if time_score is None else time_score,
        "p_channel": query if channel_score is None else channel_score,
        "scale": _float32(1.0 / math.sqrt(d)),
        # Cut at all segments, so that sums with it stay below 2³¹.
        "window": 0 if options.window is None else min(options.window, T),
        "batch": B,
        "segments": T,
        "channels": C,
        "column_groups": padded_channels(C) // 8,
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


def _float32(number: float) -> float:
    return ctypes.c_float(number).value


def cut(blocks: Blocks) -> dict[str, int]:
    """Return the arguments that say how a kernel cuts its work."""
    return {
        "BLOCK_M": blocks.query_tokens,
        "BLOCK_N": blocks.keys,
        "num_warps": blocks.num_warps,
        "num_stages": blocks.num_stages,
    }


def like(tensor: Tensor) -> Tensor:
    """Allocate a contiguous tensor of the same shape and precision."""
    return allocate(tensor.shape, dtype=tensor.dtype, device=tensor.device)
