"""From a checked call to the tensors that are cut into tiles, and back."""

from __future__ import annotations

import math

import torch
from einops import rearrange, repeat
from torch import Tensor

from mvpa_ts.attention.problem import Problem
from mvpa_ts.attention.separable.channel_blocks import ChannelBlocks
from mvpa_ts.attention.separable.operator import attend
from mvpa_ts.attention.separable.tiles import Inputs, Masks, Options, evenly_spaced


def separable_attention(problem: Problem) -> tuple[Tensor, Tensor]:
    """Evaluate equation (1) of docs/attention.md block by block; returns [B, T, C, H, d] and the log-sum-exp."""
    p = problem
    B, T = p.key.shape[:2]
    H_kv = p.key.shape[3]
    value = p.value if p.kept is None else p.value * p.kept / (1.0 - p.dropout)

    # bfloat16 and float16 are evaluated in float32, as a fused kernel would.
    dtype = torch.promote_types(p.query.dtype, torch.float32)
    with torch.autocast(p.query.device.type, enabled=False):
        cut = ChannelBlocks.of(p)
        query, key, value = cut.queries(p.query.to(dtype)), cut.keys(p.key.to(dtype)), cut.values(value.to(dtype), p)
        # The rows of both tables have the order that `by_position` reads.
        lag = torch.arange(T - 1, -T, -1, device=p.query.device)
        distance = torch.arange(cut.size + cut.reach - 1, -cut.size - cut.reach, -1, device=p.query.device)
        time_key = p.time_key if "time" in p.components else torch.zeros_like(p.time_key)
        channel_key = p.channel_key if "channel" in p.components else torch.zeros_like(p.channel_key)
        rows, biases = B * cut.number, (p.content_bias, p.time_bias, p.channel_bias)
        inputs = Inputs(
            evenly_spaced(rearrange(query, "b t c (k g) d -> (b k) t (g c) d", k=H_kv)),
            evenly_spaced(rearrange(key, "b t c k d -> (b k) t c d")),
            evenly_spaced(rearrange(value, "b t c k d -> (b k) t c d")),
            repeat(time_key[p.time_rows(lag)].to(dtype), "r k d -> (b k) r d", b=rows),
            repeat(channel_key[p.channel_rows(distance)].to(dtype), "r k d -> (b k) r d", b=rows),
            *(repeat(bias.to(dtype), "k d -> (b k) 1 1 d", b=rows) for bias in biases),
        )
        options = Options(
            causal=p.causal,
            window=p.window if "content" in p.components else -1,
            dense_last_segment=p.dense_last_segment,
            channel_window=p.channel_window,
            reach=cut.reach,
            first=p.first_segment,
        )
        output, lse = attend(inputs, _masks(p, cut, dtype), options)
    output = cut.joined(rearrange(output.to(p.query.dtype), "(b k) t (g c) d -> b t c (k g) d", b=rows, c=cut.size))
    lse = cut.joined(rearrange(lse, "(b k) t (g c) -> b t c (k g)", b=rows, c=cut.size))
    if p.all_real:
        return output, lse
    unreal = ~p.real[:, p.first_segment : p.first_segment + p.query.shape[1], :, None]
    return output.masked_fill(unreal[..., None], 0.0), lse.masked_fill(unreal, -math.inf)


def _masks(p: Problem, cut: ChannelBlocks, dtype: torch.dtype) -> Masks | None:
    if p.all_real and cut.number == 1:
        return None
    counts = cut.counts(p)  # [B', T, E]: real tokens behind each key
    largest = counts.amax(1)
    segments = p.real.any(2).repeat_interleave(cut.number, 0)
    holes = None
    # A compiled graph must not depend on the values of a mask. Holes may all be zero; the result is the same.
    if torch.compiler.is_compiling() or bool((counts != largest[:, None] * segments[..., None]).any()):
        holes = (counts.to(dtype) / largest.clamp(min=1)[:, None]).log2()
        holes = repeat(holes, "b t c -> (b k) t c", k=p.key.shape[3])
    return Masks(
        repeat(~segments, "b t -> (b k) t", k=p.key.shape[3]),
        repeat(largest.to(dtype).log2(), "b c -> (b k) c", k=p.key.shape[3]),
        holes,
    )
