"""Attention of the newest segment alone, over keys and values that are kept from before: one step of a stream."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from einops import rearrange
from torch import Tensor

from mvpa_ts.attention.functional import COMPONENTS, checked_components


def last_segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    time_key: Tensor,
    channel_key: Tensor,
    content_bias: Tensor,
    time_bias: Tensor,
    channel_bias: Tensor,
    *,
    window: int | None = None,
    components: Iterable[str] = COMPONENTS,
    real: Tensor | None = None,
) -> Tensor:
    """The last segment's row of a causal `mvpa_attention` with unsigned distances, without the other rows.

    Parameters
    ----------
    query : Tensor, shape (C, H, d)
        Of the last segment.
    key, value : Tensor, shape (H_kv, T, C, d)
        Of all segments, the last one included; heads first, as a cache keeps them.
    time_key : Tensor, shape (R, H_kv, d)
        Row = lag, R ≥ T.
    channel_key : Tensor, shape (R, H_kv, d)
        Row = distance, R ≥ C.
    content_bias, time_bias, channel_bias : Tensor, shape (H_kv, d)
    window : int or None, default None
        Content is scored for the last ``window + 1`` segments; None: for all, as `dense_last_segment` does.
    components : iterable of {"content", "time", "channel"}
    real : bool Tensor, shape (T, C), optional
        Other tokens are no keys, whatever they hold, and their output is zero.

    Returns
    -------
    Tensor, shape (C, H, d)

    Examples
    --------
    >>> import torch
    >>> cached = torch.randn(2, 2, 6, 4, 8)  # keys and values of 6 segments of 4 channels, 2 heads
    >>> bias = torch.zeros(2, 8)
    >>> query, table = torch.randn(4, 2, 8), torch.randn(6, 2, 8)
    >>> last_segment_attention(query, *cached, table, table, bias, bias, bias, window=2).shape
    torch.Size([4, 2, 8])
    """
    terms = checked_components(components)
    C, H, d = query.shape
    H_kv, T = key.shape[:2]
    G = H // H_kv
    query = rearrange(query, "c (k g) d -> k (g c) d", k=H_kv) * d**-0.5
    if real is not None:
        key, value = (tensor.masked_fill(~real[..., None], 0.0) for tensor in (key, value))
    u, v, w = (rearrange(bias, "k d -> k 1 d") * d**-0.5 for bias in (content_bias, time_bias, channel_bias))

    time_score, channel_score = query.new_zeros(H_kv, G * C, T), query.new_zeros(H_kv, G * C, C)
    if "time" in terms:
        lags = rearrange(time_key[:T].flip(0), "t k d -> k d t")  # the first segment has the largest lag
        time_score = (query + v) @ lags
    if "channel" in terms:
        by_distance = (query + w) @ rearrange(channel_key[:C], "r k d -> k d r")
        channel = torch.arange(C, device=query.device)
        distance = (channel[:, None] - channel).abs().repeat(G, 1)
        channel_score = by_distance.gather(-1, distance.expand(H_kv, -1, -1))
    near = T if "content" not in terms else 0 if window is None else max(0, T - 1 - window)
    content_query = query + u
    attended = torch.empty_like(query)
    for head in range(H_kv):  # one at a time, so that the weights stay in the cache of a CPU: 1.4× at T = 100, C = 32
        logits = time_score[head, :, :, None] + channel_score[head, :, None]  # [G·C, T, C]
        if near < T:
            content_score = content_query[head] @ key[head, near:].flatten(0, 1).mT
            logits[:, near:] += content_score.unflatten(-1, (T - near, C))
        if real is not None:
            logits.masked_fill_(~real, -torch.inf)
        attended[head] = logits.flatten(1).softmax(-1) @ value[head].flatten(0, 1)
    attended = rearrange(attended, "k (g c) d -> c (k g) d", c=C)
    return attended if real is None else attended.masked_fill(~real[-1, :, None, None], 0.0)
