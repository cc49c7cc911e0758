"""The readable oracle: three named scores, one softmax, memory quadratic in the number of tokens.

Shape legend, used by every implementation::

    B     batch                    H     query heads          D = H·d  model width
    T     segments (time)          H_kv  key/value heads      R        rows of a table of distances
    C     channels                 G     H / H_kv             W        content window, in segments, inclusive
    N     T·C tokens, n = t·C + c  d     head width
"""

from __future__ import annotations

import math

import torch
from einops import rearrange, repeat
from torch import Tensor

from mvpa_ts.attention.problem import Problem


def reference_attention(problem: Problem) -> tuple[Tensor, Tensor]:
    """Evaluate equation (1) of docs/attention.md as it is written; returns [B, T, C, H, d] and the log-sum-exp."""
    p = problem
    B, T, C, H, d = p.query.shape
    G = H // p.key.shape[3]
    query = rearrange(p.query, "b t c (k g) d -> b k g (t c) d", g=G)
    key = rearrange(p.key, "b t c k d -> b k (t c) d")
    value = rearrange(p.value, "b t c k d -> b k (t c) d")
    u, v, w = (rearrange(bias, "k d -> k 1 1 d") for bias in (p.content_bias, p.time_bias, p.channel_bias))

    segment = torch.arange(T, device=query.device)
    channel = torch.arange(C, device=query.device)
    lag = repeat(segment[:, None] - segment, "t s -> (t c) (s e)", c=C, e=C)  # [N, N]
    distance = repeat(channel[:, None] - channel, "c e -> (t c) (s e)", t=T, s=T)  # [N, N], signed

    logits = query.new_zeros(B, H // G, G, T * C, T * C)
    if "content" in p.components:
        content_score = torch.einsum("bkgnd,bkmd->bkgnm", query + u, key)
        logits = logits + content_score * near_mask(p, lag, distance)
    if "time" in p.components:
        row_score = torch.einsum("bkgnd,rkd->bkgnr", query + v, p.time_key)
        logits = logits + row_score.gather(-1, p.time_rows(lag).expand_as(logits))
    if "channel" in p.components:
        row_score = torch.einsum("bkgnd,rkd->bkgnr", query + w, p.channel_key)
        logits = logits + row_score.gather(-1, p.channel_rows(distance).expand_as(logits))
    logits = logits / d**0.5

    allowed = rearrange(p.real, "b t c -> b 1 1 1 (t c)")
    if p.causal:
        allowed = allowed & (lag >= 0)
    # A query without any allowed key gives zeros: its row of logits is finite and its weights are cleared below.
    logits = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)
    weights = logits.softmax(-1).masked_fill(~allowed, 0.0)
    if p.kept is not None:
        weights = weights * rearrange(p.kept, "b t c 1 1 -> b 1 1 1 (t c)") / (1.0 - p.dropout)
    output = torch.einsum("bkgnm,bkmd->bkgnd", weights, value)
    output = rearrange(output, "b k g (t c) d -> b t c (k g) d", t=T)
    lse = logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(-1)
    lse = lse.masked_fill(~allowed.expand_as(logits).any(-1), -math.inf)
    lse = rearrange(lse, "b k g (t c) -> b t c (k g)", t=T)
    return output.masked_fill(~p.real[..., None, None], 0.0), lse.masked_fill(~p.real[..., None], -math.inf)


def near_mask(problem: Problem, lag: Tensor, distance: Tensor) -> Tensor:
    """Pairs whose content is scored: within both windows, with all segments for a dense last segment; [N, N]."""
    near = torch.ones_like(lag, dtype=torch.bool)
    if problem.window is not None:
        near = lag.abs() <= problem.window
        if problem.dense_last_segment:
            near[-problem.query.shape[2] :] = True
    return near if problem.channel_window is None else near & (distance.abs() <= problem.channel_window)
