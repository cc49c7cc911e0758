"""Launches of the kernels that make the scores of time and channel, and take their gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from mvpa_ts.attention.triton import launch
from mvpa_ts.attention.triton.score_gradients import score_gradient_kernel
from mvpa_ts.attention.triton.scores import score_kernel
from mvpa_ts.attention.triton.tuning import Blocks

_SCORE_BLOCKS = Blocks(64, 64, 4, num_stages=1)
# Channels of a program that makes scores: memory is written in 32 bytes, eight time scores.
_CHANNELS = 8
# Programs of the kernel of the score gradients, at least, where there are as many blocks: 8 for each multiprocessor of
# an H100. Each leaves sums that torch adds up.
_SHARES = 1024


@dataclass(frozen=True)
class Tables:
    """Tables that are multiplied with the queries to give the scores, for each head; None for a term that is off.

    The rows of the time table run from the smallest lag to the largest. The last axis of the channel scores is the
    channel of the key. It is padded to P, a multiple of 8; the padding has offsets of −∞.
    """

    time: Tensor | None  # [H, R, d]
    time_offset: Tensor | None  # [H, R, 1], float32
    channel: Tensor | None  # [C·H, d, P]
    channel_offset: Tensor | None  # [C·H, 1, P], float32


def scores(query: Tensor, tables: Tables) -> tuple[Tensor | None, Tensor | None]:
    """Time scores [H, R, B·N] and channel scores [C·H, B·T, P] of queries [B, T, C, H, d], float32.

    One kernel makes both, and adds the offsets before anything is written, which a batched product of torch does not.
    A time table of T rows is that of a causal problem; lags that a query does not have are not written.
    """
    B, T, C, H, d = query.shape
    time_score, channel_score, lags, columns = None, None, 0, 0
    if tables.time is not None:
        lags = tables.time.shape[1]
        time_score = launch.allocate((H, lags, B * T * C), dtype=torch.float32, device=query.device)
    if tables.channel is not None:
        columns = tables.channel.shape[2]
        channel_score = launch.allocate((C * H, B * T, columns), dtype=torch.float32, device=query.device)
    if time_score is None and channel_score is None:
        return None, None
    blocks = _SCORE_BLOCKS if query.element_size() == 2 else launch.FLOAT32_BLOCKS[0]

    def given(tensor: Tensor | None) -> Tensor:
        return query if tensor is None else tensor.contiguous()  # what is absent is not read

    score_kernel[(triton.cdiv(C, _CHANNELS) * triton.cdiv(B * T, blocks.query_tokens), H)](
        p_query=query,
        p_time_table=given(tables.time),
        p_time_offset=given(tables.time_offset),
        p_time_score=given(time_score),
        p_channel_table=given(tables.channel),
        p_channel_offset=given(tables.channel_offset),
        p_channel_score=given(channel_score),
        rows=B * T,
        segments=T,
        channels=C,
        heads=H,
        lags=lags,
        columns=columns,
        HAS_TIME=time_score is not None,
        HAS_CHANNEL=channel_score is not None,
        CAUSAL=lags == T,
        PRECISION=launch.PRECISION,
        HEAD_DIM=d,
        BLOCK_D=max(16, triton.next_power_of_2(d)),
        CHANNELS=_CHANNELS,
        **launch.cut(blocks),
    )
    return time_score, channel_score


def score_gradients(
    query: Tensor, table: Tensor, gradient: Tensor, query_gradient: Tensor, *, of_channel: bool
) -> tuple[Tensor, Tensor]:
    """Add to the gradient of the query what those of its scores give; return what they give for the table.

    The gradients are as `scores` writes the scores. Returned are the gradients of the table, [groups, columns, d], and
    of the offset, [groups, columns], in float32. Their sums over parts of the rows are added up in a fixed order.
    """
    B, T, C, H, d = query.shape
    groups, rows, query_stride = (C * H, B * T, C * H * d) if of_channel else (H, B * T * C, H * d)
    columns = table.shape[2 if of_channel else 1]
    keys = max(64 if query.element_size() == 2 else 16, triton.next_power_of_2(columns))
    warps = 8 if max(keys, d) > 64 else 4
    blocks = Blocks(64, keys, warps, 1) if query.element_size() == 2 else replace(launch.FLOAT32_BLOCKS[0], keys=keys)
    count = triton.cdiv(rows, blocks.query_tokens)
    share = triton.cdiv(count, triton.cdiv(_SHARES, groups))
    shares = triton.cdiv(count, share)
    table_gradient = launch.allocate((groups, shares, columns, d), dtype=torch.float32, device=query.device)
    offset_gradient = launch.allocate((groups, shares, columns), dtype=torch.float32, device=query.device)
    score_gradient_kernel[(groups * shares,)](
        p_query=query,
        p_table=table.contiguous(),
        p_gradient=gradient,
        p_query_gradient=query_gradient,
        p_table_gradient=table_gradient,
        p_offset_gradient=offset_gradient,
        rows=rows,
        columns=columns,
        query_stride=query_stride,
        tokens=T * C,
        channels=C,
        segments=T,
        time_center=0 if of_channel else columns - T,
        share=share,
        OF_CHANNEL=of_channel,
        PRECISION=launch.PRECISION,
        HEAD_DIM=d,
        BLOCK_D=max(16, triton.next_power_of_2(d)),
        **launch.cut(blocks),
    )
    if shares == 1:
        return table_gradient[:, 0], offset_gradient[:, 0]
    return table_gradient.sum(1), offset_gradient.sum(1)
