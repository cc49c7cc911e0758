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

from mvpa_ts.attention.problem import INPUTS, Problem, autocast_dtype

# In 16 bits scores and values are passed as two numbers, themselves and what their rounding took away. Rounded only
# once, they made errors of up to 1.8 times those of logits in float32 (tests/attention/test_sdpa.py holds 1.5).
SPLIT = True
# Of few keys, or few with content, one takes most of the weight, and gradients, which a fused kernel takes from its
# rounded output, had up to 2.5 times the error. What float32 costs there on a GPU is not measured.
FEW_KEYS, FEW_NEAR = 512, 32
# On a CPU torch's kernels add numbers of 16 bits up in 16 bits.
_FLOAT32_ON = ("cpu",)
# Fused kernels read heads in steps of 16 bytes.
_MULTIPLE = 8
# What keeps rounding small is done for numbers of at most so many bytes.
_HALF = 2
# The gradient of a key's offset is then a mean over as many columns, at scales that round it differently: rounded once,
# it took the gradient of the content bias from 1.4 to 1.6 times the error.
_OFFSET_SCALES = (1.0, 1.25, 1.5, 1.75)


def sdpa_attention(problem: Problem) -> tuple[Tensor, Any]:
    """Evaluate equation (1) of docs/attention.md by one call of torch's attention; returns [B, T, C, H, d] and None."""
    T, C, _, d = problem.query.shape[1:]
    dtype = autocast_dtype(problem.query) or problem.query.dtype
    few = T * C <= FEW_KEYS or (T if problem.window is None else problem.window + 1) * C < FEW_NEAR
    if problem.query.device.type in _FLOAT32_ON or few:
        dtype = torch.promote_types(problem.query.dtype, torch.float32)
    with torch.autocast(problem.query.device.type, enabled=False):
        query, key, value, centre = longer_heads(problem, dtype)
        width = value.shape[-1]
        value = pad(value, (0, _value_width(query, width) - width))
        output = scaled_dot_product_attention(query, key, value, scale=d**-0.5)[..., :width]
        if centre is not None:
            output = rearrange(output, "b k n (parts d) -> parts b k n d", d=d).sum(0) + centre
    output = rearrange(output.to(problem.query.dtype), "b k (g t c) d -> b t c (k g) d", t=T, c=C)
    # A real query has at least its own token as a key, so only the others have to be cleared.
    return (output if problem.all_real else output.masked_fill(~problem.real[..., None, None], 0.0)), None


def _value_width(query: Tensor, width: int) -> int:
    # On a CPU torch would hold all weights in memory if values were narrower than keys.
    return query.shape[-1] if query.device.type == "cpu" else width + -width % _MULTIPLE


def longer_heads(p: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Make queries [B, H_kv, G·N, E], keys [B, H_kv, M, E] and values [B, H_kv, M, d]; M is N, or 2·N with a window.

    The columns are those of the content, the key's offset, segments and channels. In 16 bits values are 2·d wide, and
    fourth is what to add to the sum of the output's two parts.
    """
    B, T, C, H_kv, _ = p.key.shape
    # In float32 at least, in which the parts of a gradient are added up: each rounded, they added a tenth to its error.
    single = torch.promote_types(dtype, torch.float32)
    query, key, value, time_key, channel_key, u, v, w = (getattr(p, name).to(dtype).to(single) for name in INPUTS)
    lowest = -6e4 if dtype == torch.float16 else -1e30  # finite: a one-hot vector multiplies it by zero
    lag, distance = (x[:, None] - x for x in (torch.arange(size, device=key.device) for size in (T, C)))
    applies = _where_keys_apply(p, lag)
    value, centre = _centred(p, value, dtype)
    # Copied before it is rounded, so that the gradients of the copies are added up in float32.
    value = repeat(value, "b t c k d -> b k (copies t c) d", copies=len(applies))
    value = torch.cat(_rounded(value, dtype), -1)
    # Query heads that share a key head become more queries of it: there is no mask that would have to know them.
    query = rearrange(query, "b t c (k g) d -> b k g t c d", k=H_kv)
    key = rearrange(key, "b t c k d -> b k t c d")

    # What a key adds to the score of any query; scores of a query with every segment, and with every channel.
    offsets = [torch.zeros_like(key[..., :1], dtype=dtype)]
    times, channels = [query.new_zeros((*query.shape[:5], T), dtype=dtype)], []
    if content := "content" in p.components:
        offsets = _rounded((key * rearrange(u, "k d -> k 1 1 d")).sum(-1, keepdim=True), dtype, _OFFSET_SCALES)
    if "time" in p.components:
        rows = time_key[p.time_rows(lag)]
        times = _scores(query, v, rows, "bkgtcd,tskd->bkgtcs", applies[0] | applies[-1], dtype)
    if "channel" in p.components:
        rows = channel_key[p.channel_rows(distance)]
        channels = _scores(query, w, rows, "bkgtcd,cekd->bkgtce", torch.ones_like(distance, dtype=torch.bool), dtype)
    # Each copy of the keys has time scores of its own; what rounding took away serves both.
    times = [torch.cat([times[0].masked_fill(~where, lowest) for where in applies], -1), *times[1:]]

    copies = []
    for position in range(len(applies)):
        segment = pad(torch.eye(T, dtype=dtype, device=key.device), (position * T, (len(applies) - 1 - position) * T))
        segment = torch.cat([segment, *(torch.eye(T, dtype=dtype, device=key.device) for _ in times[1:])], -1)
        channel = torch.eye(C, dtype=dtype, device=key.device).repeat(1, len(channels))
        # The second copy has no content.
        parts = [x if position == 0 else torch.zeros_like(x) for x in ([key.to(dtype)] if content else []) + offsets]
        parts[content] = parts[content].masked_fill(rearrange(~p.real, "b t c -> b 1 t c 1"), lowest)
        parts += [repeat(segment, "t s -> b k t c s", b=B, k=H_kv, c=C)]
        parts += [repeat(channel, "c e -> b k t c e", b=B, k=H_kv, t=T)]
        copies.append(_columns(parts, value.shape[-1]))
    scales = [torch.full_like(query[..., :1], x, dtype=dtype) for x in (*_OFFSET_SCALES, 1.0)[: len(offsets)]]
    longer_query = _columns(([query.to(dtype)] if content else []) + scales + times + channels, value.shape[-1])
    longer_key = rearrange(copies, "copies b k t c e -> b k (copies t c) e")
    return rearrange(longer_query, "b k g t c e -> b k (g t c) e"), longer_key, value, centre


def _centred(p: Problem, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Values [B, T, C, H_kv, d], for 16 bits less a centre [B, H_kv, 1, d]; and this centre, or None."""
    if p.kept is not None:
        value = value * p.kept / (1.0 - p.dropout)
    if dtype.itemsize > _HALF:
        return value, None
    # Weights add up to one, so the output gets it back. Fused kernels take gradients of scores from their rounded
    # output: values with means of five standard deviations made up to 14 times the error. A mean below a quarter of one
    # stays, since adding it rounds the output once more.
    real = p.real.sum((1, 2))[:, None, None, None, None]
    mean, square = (x.detach().sum((1, 2), keepdim=True) / real for x in (value, value.square()))
    centre = torch.where(square < 17.0 * mean.square(), mean, 0.0).to(dtype).to(value.dtype)
    return value - centre, rearrange(centre, "b 1 1 k d -> b k 1 d")


def _where_keys_apply(p: Problem, lag: Tensor) -> list[Tensor]:
    """Say which segments' keys a query attends to, bool [T, 1, T], for each copy of the keys."""
    lag = lag[:, None]
    allowed = lag >= 0 if p.causal else torch.ones_like(lag, dtype=torch.bool)
    if "content" not in p.components or p.window is None or p.window >= len(lag) - 1:
        return [allowed]
    near = lag.abs() <= p.window
    if p.dense_last_segment:
        near[-1] = True
    return [allowed & near, allowed & ~near]


def _scores(query: Tensor, bias: Tensor, rows: Tensor, axes: str, allowed: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Scores of the query with rows of a table, less their mean in 16 bits, and what rounding took away."""
    score = torch.einsum(axes, query + rearrange(bias, "k d -> k 1 1 1 d"), rows)
    if dtype.itemsize > _HALF:
        return [score]
    # Gradients of a query's scores add up to zero, but a fused kernel starts from its rounded output, which adds to
    # each its weight times one error. A softmax does not see the mean that is taken away here. Its gradient takes away
    # what they add up to, shared out by weights. Those of these scores alone are near enough: gradients of tables had
    # 1.4 to 2.5 times the error of logits in float32, and have 0.8 to 1.3 times.
    weight = (score.detach() * query.shape[-1] ** -0.5).masked_fill(~allowed, -torch.inf).softmax(-1)
    return _rounded(score - (weight * score).sum(-1, keepdim=True), dtype)


def _rounded(score: Tensor, dtype: torch.dtype, scales: tuple[float, ...] = (1.0,)) -> list[Tensor]:
    """The score in the given precision; in 16 bits its equal parts over these scales, and what rounding took away."""
    if not SPLIT or dtype.itemsize > _HALF:
        return [score.to(dtype)]
    parts = [(score / (len(scales) * scale)).to(dtype) for scale in scales]
    total = sum(scale * x.detach().to(score.dtype) for scale, x in zip(scales, parts, strict=True))
    return [*parts, (score.detach() - total).to(dtype)]  # the gradient is that of the parts


def _columns(parts: list[Tensor], least: int) -> Tensor:
    """Join along the last axis, with zeros up to a width that fused kernels take: no less than that of the values."""
    joined = torch.cat(parts, -1)
    width = max(joined.shape[-1], least)
    return pad(joined, (0, width + -width % _MULTIPLE - joined.shape[-1]))
