"""Attention over a sample whose segments are shared out among processes: exact, with no more sent than is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, distributed

from mvpa_ts.attention.functional import COMPONENTS, check_call, checked_components, merged_mask
from mvpa_ts.attention.problem import INPUTS, Problem
from mvpa_ts.attention.separable import separable_attention


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    time_key: Tensor,
    channel_key: Tensor,
    content_bias: Tensor,
    time_bias: Tensor,
    channel_bias: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    dense_last_segment: bool = False,
    components: Iterable[str] = COMPONENTS,
    channel_distance: Literal["absolute", "signed"] = "absolute",
    channel_window: int | None = None,
    channel_beyond: Literal["error", "clamp"] = "error",
    token_mask: Tensor | None = None,
    group: distributed.ProcessGroup | None = None,
) -> Tensor:
    """Do what `mvpa_attention` does, where every process holds the same number of segments, in the order of ranks.

    A query reads the values of all segments that it may see, but keys within `window` only. So values go to all later
    processes (to all, if not causal), and keys to the neighbours: with a window, half of what sending both would take.

    Parameters
    ----------
    query, key, value : Tensor, shape (B, T / processes, C, H or H_kv, d)
        This process's segments.
    time_key : Tensor
        For the lags of the whole sample, T segments; the same in all processes, as all other tables and biases.
    token_mask : bool Tensor, shape (B, T / processes, C), optional
        In all processes or in none.
    group : ProcessGroup, optional
        Default: all processes.

    Returns
    -------
    Tensor, shape (B, T / processes, C, H, d)
        Of this process's segments. Gradients of tables and biases are this process's share: their sum over the
        processes is the gradient.

    Raises
    ------
    ValueError
        As `mvpa_attention`.

    Examples
    --------
    In a program that torchrun has started, with 50 segments on each of 4 processes::

        output = context_parallel_attention(*query_key_value, time_key, channel_key, *biases, window=10)
    """
    processes, rank = distributed.get_world_size(group), distributed.get_rank(group)
    B, share, C = query.shape[:3]
    T = share * processes
    terms = checked_components(components)
    options: dict[str, Any] = {
        "causal": causal, "window": window, "dense_last_segment": dense_last_segment, "components": terms,
        "channel_distance": channel_distance, "channel_window": channel_window,
    }  # fmt: skip
    tables_and_biases = (time_key, channel_key, content_bias, time_bias, channel_bias)
    check_call((query, key, value, *tables_and_biases), options, channel_beyond, segments=T)
    read = segments_read(share, processes, causal=causal)
    reach = window if "content" in terms else -1
    near = segments_read(share, processes, causal=causal, window=reach, dense_last_segment=dense_last_segment)
    real = merged_mask((B, share, C), None, None, token_mask)
    if real is None:
        real = torch.ones(B, T, C, dtype=torch.bool, device=query.device)
    else:
        query, key, value = (x.masked_fill(~real[..., None, None], 0.0) for x in (query, key, value))
        real = _exchanged(real.to(torch.uint8), [(0, T)] * processes, group).bool()
    # In the precision of the call first: less travels.
    key, value = _exchanged(key.to(query.dtype), near, group), _exchanged(value.to(query.dtype), read, group)
    inputs = (query, key, value, *tables_and_biases)
    tensors: dict[str, Any] = {name: x.to(query.dtype) for name, x in zip(INPUTS, inputs, strict=True)}
    problem = Problem(**tensors, **options, real=real, all_real=token_mask is None, first_segment=rank * share)
    output, _ = separable_attention(problem)
    return output


def segments_read(
    share: int, processes: int, *, causal: bool, window: int | None = None, dense_last_segment: bool = False
) -> list[tuple[int, int]]:
    """First and last (not counted) segment that each process reads; with a window of −1, none.

    Examples
    --------
    >>> segments_read(5, 3, causal=True)
    [(0, 5), (0, 10), (0, 15)]
    >>> segments_read(5, 3, causal=True, window=2)
    [(0, 5), (3, 10), (8, 15)]
    """
    T = share * processes
    needed = []
    for start in range(0, T, share):
        stop = start + share
        last = stop if causal else T
        if window is None or (dense_last_segment and window >= 0 and stop == T):
            needed.append((0, last))
        else:
            needed.append((max(0, start - window), min(last, stop + window)) if window >= 0 else (start, start))
    return needed


def _exchanged(x: Tensor, reads: list[tuple[int, int]], group: distributed.ProcessGroup | None) -> Tensor:
    """[B, share, ...] -> [B, T, ...] with the segments that this process reads, and zeros in place of others."""
    share, rank, ranks = x.shape[1], distributed.get_rank(group), range(len(reads))
    local = x.movedim(1, 0)

    def overlap(reader: int, holder: int) -> slice:
        """What a process reads of what another holds, as segments of the latter."""
        start, stop = (min(max(edge - holder * share, 0), share) for edge in reads[reader])
        return slice(start, max(start, stop))

    sent = [local[overlap(reader, rank)] for reader in ranks]
    incoming = [len(local[overlap(rank, holder)]) for holder in ranks]
    received = _AllToAll.apply(torch.cat(sent), [len(segments) for segments in sent], incoming, group)
    whole = local.new_zeros(share * len(reads), *local.shape[1:])
    start, _ = reads[rank]
    whole[start : start + len(received)] = received
    return whole.movedim(0, 1)


class _AllToAll(torch.autograd.Function):
    """So many rows of x to each process, and theirs to this one; gradients go back the same way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, outgoing: list[int], incoming: list[int], group: distributed.ProcessGroup | None
    ) -> Tensor:
        ctx.way_back = incoming, outgoing, group
        received = x.new_empty(sum(incoming), *x.shape[1:])
        distributed.all_to_all_single(received, x.contiguous(), incoming, outgoing, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _AllToAll.apply(gradient, *ctx.way_back), None, None, None
