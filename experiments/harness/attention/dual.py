"""Dual-coded attention as the paper writes it, and the MVPA that comes nearest to its scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def codes(kind: str, count: int, d: int, generator: torch.Generator) -> Tensor:
    """Codes [count, d] of unit standard deviation: "random" or "sinusoids"."""
    if kind == "random":
        return torch.randn(count, d, generator=generator, dtype=torch.float64)
    rates = torch.exp(torch.arange(0, d, 2, dtype=torch.float64) * (-math.log(100.0) / d))
    angles = torch.arange(count, dtype=torch.float64)[:, None] * rates
    return math.sqrt(2.0) * torch.cat([angles.sin(), angles.cos()], 1)[:, :d]


def positions(time: Tensor, channel: Tensor) -> tuple[Tensor, Tensor]:
    """The codes of all tokens, segment-major, [T·C, d] each."""
    T, C = len(time), len(channel)
    return time.repeat_interleave(C, 0), channel.repeat(T, 1)


def dual_scores(x: Tensor, query: Tensor, key: Tensor, time: Tensor, channel: Tensor) -> Tensor:
    """Scores [B, N, N] of dual-coded attention: (x + T + C)ᵀ W_qᵀ W_k (x' + T' + C').

    Parameters
    ----------
    x : Tensor, shape (B, N, d)
    query, key : Tensor, shape (d, d)
        W_q and W_k.
    time, channel : Tensor, shape (N, d)
        Codes of each token.
    """
    coded = x + time + channel
    return (coded @ query.T) @ (coded @ key.T).mT


def fit_mvpa(x: Tensor, query: Tensor, key: Tensor, rest: Tensor, T: int, C: int) -> Callable[[Tensor], Tensor]:
    """MVPA's terms besides query · key that come nearest to `rest`, as a function of other tokens.

    They are linear in what is learned: u·k', and for each lag and each distance a vector that meets the query and a
    number for v or w. Lags are signed, for without a causal mask keys lie on both sides; distances are absolute.
    """
    tokens = torch.arange(T * C)
    lag = (tokens // C)[:, None] - tokens // C + T - 1  # 0 to 2T − 2
    distance = ((tokens % C)[:, None] - tokens % C).abs()
    design = _design(x, query, key, lag, distance, T, C)
    solution = torch.linalg.lstsq(design, rest.reshape(-1, 1)).solution

    def scores(other: Tensor) -> Tensor:
        return (_design(other, query, key, lag, distance, T, C) @ solution).reshape(len(other), T * C, T * C)

    return scores


def _design(x: Tensor, query: Tensor, key: Tensor, lag: Tensor, distance: Tensor, T: int, C: int) -> Tensor:
    """Rows for all pairs of tokens, columns for all that MVPA learns."""
    B, N, d = x.shape
    q, k = x @ query.T, x @ key.T
    q1 = torch.cat([q, q.new_ones(B, N, 1)], -1)  # the query's part and that of v or w
    parts = [k[:, None].expand(B, N, N, d).reshape(-1, d)]
    for index, count in ((lag, 2 * T - 1), (distance, C)):
        table = torch.nn.functional.one_hot(index, count).to(x.dtype)
        parts.append(torch.einsum("bnd,nmr->bnmrd", q1, table).reshape(-1, count * (d + 1)))
    return torch.cat(parts, 1)
