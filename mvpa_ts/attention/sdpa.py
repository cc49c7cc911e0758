"""MVPA as plain attention with longer heads, by torch's own fused attention; exact, on any device.

The score of time depends on the query and the key's segment only, that of channel on the query and the key's channel.
So each key gets a one-hot vector of its segment and one of its channel, and each query the rows of its scores for every
segment and every channel: one dot product adds up all terms. Causality is a score so low that its weight is zero.

A content window needs each key twice, with its content and without: scores of time mask the copy that does not apply.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from mvpa_ts.attention.problem import Problem, autocast_dtype

# In 16 bits a score is passed as two numbers, itself and what its rounding took away. Rounded only once, scores made
# errors of up to 2.0 times those of logits in float32 (tests/attention/test_sdpa.py holds 1.5).
SPLIT = True
# Fused kernels read heads in steps of 16 bytes.
_MULTIPLE = 8


def sdpa_attention(problem: Problem) -> tuple[Tensor, Any]:
    """Evaluate equation (1) of docs/attention.md by one call of torch's attention; returns [B, T, C, H, d] and None."""
    p = problem
    T, C, _, d = p.query.shape[1:]
    device_type = p.query.device.type
    with torch.autocast(device_type, enabled=False):
        query, key, value = longer_heads(p, _precision(p.query))
        value = pad(value, (0, _value_width(query, d) - d))
        output = scaled_dot_product_attention(query, key, value, scale=d**-0.5)
    output = rearrange(output[..., :d].to(p.query.dtype), "b k (g t c) d -> b t c (k g) d", t=T, c=C)
    # A real query has at least its own token as a key, so only the others have to be cleared.
    return (output if p.all_real else output.masked_fill(~p.real[..., None, None], 0.0)), None


def _precision(query: Tensor) -> torch.dtype:
    # On a CPU torch's kernels add numbers of 16 bits up in 16 bits.
    if query.device.type == "cpu":
        return torch.promote_types(query.dtype, torch.float32)
    return autocast_dtype(query) or query.dtype


def _value_width(query: Tensor, d: int) -> int:
    # On a CPU torch would hold all weights in memory if values were narrower than keys.
    return query.shape[-1] if query.device.type == "cpu" else d + -d % _MULTIPLE


def longer_heads(p: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Make queries [B, H_kv, G·N, E], keys [B, H_kv, M, E] and values [B, H_kv, M, d]; M is N, or 2·N with a window.

    The columns are those of the content, the key's offset, segments and channels.
    """
    B, T, C, H_kv, d = p.key.shape
    # In float32 at least, in which the parts of a gradient are added up: each rounded, they added a tenth to its error.
    single = torch.promote_types(dtype, torch.float32)
    query, key = (x.to(dtype).to(single) for x in (p.query, p.key))
    value = p.value.to(dtype)
    if p.kept is not None:
        value = value * p.kept / (1.0 - p.dropout)
    # Query heads that share a key head become more queries of it: there is no mask that would have to know them.
    query = rearrange(query, "b t c (k g) d -> b k g t c d", k=H_kv)
    key, value = (rearrange(x, "b t c k d -> b k t c d") for x in (key, value))

    lowest = -6e4 if dtype == torch.float16 else -1e30  # finite: a one-hot vector multiplies it by zero
    applies = _where_keys_apply(p)
    times, channels = _time_scores(p, query, dtype), _channel_scores(p, query, dtype)
    # Each copy of the keys has time scores of its own; what rounding took away serves both.
    times = [torch.cat([times[0].masked_fill(~where, lowest) for where in applies], -1), *times[1:]]
    offsets = _offsets(p, key, dtype)
    unreal = rearrange(~p.real, "b t c -> b 1 t c 1")

    content = "content" in p.components
    copies = []
    for position in range(len(applies)):
        segment = pad(torch.eye(T, dtype=dtype, device=key.device), (position * T, (len(applies) - 1 - position) * T))
        segment = torch.cat([segment, *(torch.eye(T, dtype=dtype, device=key.device) for _ in times[1:])], -1)
        channel = torch.eye(C, dtype=dtype, device=key.device).repeat(1, len(channels))
        # The second copy has no content.
        parts = [x if position == 0 else torch.zeros_like(x) for x in ([key.to(dtype)] if content else []) + offsets]
        if content or not p.all_real:
            first = int(content)
            parts[first] = parts[first].masked_fill(unreal, lowest)
        parts += [repeat(segment, "t s -> b k t c s", b=B, k=H_kv, c=C)]
        parts += [repeat(channel, "c e -> b k t c e", b=B, k=H_kv, t=T)]
        copies.append(_columns(parts, d))
    ones = [torch.ones_like(query[..., :1], dtype=dtype)] * len(offsets)
    longer_query = _columns(([query.to(dtype)] if content else []) + ones + times + channels, d)
    return (
        rearrange(longer_query, "b k g t c e -> b k (g t c) e"),
        rearrange(copies, "copies b k t c e -> b k (copies t c) e"),
        repeat(value, "b k t c d -> b k (copies t c) d", copies=len(copies)),
    )


def _where_keys_apply(p: Problem) -> list[Tensor]:
    """Say which segments' keys a query attends to, bool [T, 1, T], for each copy of the keys."""
    T = p.query.shape[1]
    segment = torch.arange(T, device=p.query.device)
    lag = (segment[:, None] - segment)[:, None]
    allowed = lag >= 0 if p.causal else torch.ones_like(lag, dtype=torch.bool)
    if "content" not in p.components or p.window is None or p.window >= T - 1:
        return [allowed]
    near = lag.abs() <= p.window
    if p.dense_last_segment:
        near = near | (segment == T - 1)[:, None, None]
    return [allowed & near, allowed & ~near]


def _time_scores(p: Problem, query: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Scores of the query with every segment, [B, H_kv, G, T, C, T], and what rounding took away."""
    T = query.shape[3]
    if "time" not in p.components:
        return [query.new_zeros((*query.shape[:5], T), dtype=dtype)]
    segment = torch.arange(T, device=query.device)
    biased, table = _exact(query, p.time_bias, p.time_key, dtype)
    rows = p.time_rows(segment[:, None] - segment)
    return _rounded(torch.einsum("bkgtcd,tskd->bkgtcs", biased, table[rows]), dtype)


def _channel_scores(p: Problem, query: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Scores of the query with every channel, [B, H_kv, G, T, C, C], and what rounding took away."""
    if "channel" not in p.components:
        return []
    channel = torch.arange(query.shape[4], device=query.device)
    biased, table = _exact(query, p.channel_bias, p.channel_key, dtype)
    rows = p.channel_rows(channel[:, None] - channel)
    return _rounded(torch.einsum("bkgtcd,cekd->bkgtce", biased, table[rows]), dtype)


def _offsets(p: Problem, key: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """What a key adds to the score of any query, [B, H_kv, T, C, 1]: its product with the content bias."""
    if "content" not in p.components:
        return [] if p.all_real else [torch.zeros_like(key[..., :1], dtype=dtype)]
    bias = rearrange(p.content_bias.to(dtype).to(key.dtype), "k d -> k 1 1 d")
    return _rounded((key * bias).sum(-1, keepdim=True), dtype)


def _exact(query: Tensor, bias: Tensor, table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The biased query and the table in the query's precision, from numbers of the given one."""
    bias, table = (x.to(dtype).to(query.dtype) for x in (bias, table))
    return query + rearrange(bias, "k d -> k 1 1 1 d"), table


def _rounded(score: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The score in the given precision and, in 16 bits, what rounding took away."""
    high = score.to(dtype)
    if not SPLIT or high.dtype.itemsize > 2:
        return [high]
    return [high, (score.detach() - high.detach()).to(dtype)]  # the gradient of both is that of the first


def _columns(parts: list[Tensor], least: int) -> Tensor:
    """Join along the last axis, with zeros up to a width that fused kernels take: no less than that of the values."""
    joined = torch.cat(parts, -1)
    width = max(joined.shape[-1], least)
    return pad(joined, (0, width + -width % _MULTIPLE - joined.shape[-1]))
