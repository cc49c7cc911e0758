"""The forward and the backward pass over a batch, a few samples at a time.

The time and channel scores of equation (1) in docs/attention.md are matrix products, made by a kernel of their own; the
others read them and compute the content term. The scores of a few samples exist at one time. The backward pass computes
them again: kept, they would need as much memory as query, key and value together (T = C = 100, heads of 64).
mvpa_ts/attention/reference.py explains the letters of the shapes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor

from mvpa_ts.attention.triton import launch
from mvpa_ts.attention.triton.launch_scores import Tables, score_gradients, scores

# A launch has at least this many programs of 128 query tokens, if the batch is large enough: 31 for each multiprocessor
# of an H100, so that waiting for the last ones costs little.
_PROGRAMS = 4096


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    tables: Tables,
    real: Tensor | None,
    options: launch.Options,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output and what the backward pass needs.

    These are the output [B, T, C, H, d]; the log-sum-exp and the largest far time score, [B, H, N] and in base 2; and
    the residual of the output. The residual is the rounding error of a 16-bit output, as int8 of the same shape; a
    float32 output has none, [B, 0].
    """
    B, T, C, H, _ = query.shape
    output = launch.like(query)
    lse, time_max = (launch.allocate((B, H, T * C), dtype=torch.float32, device=query.device) for _ in range(2))
    shape = query.shape if query.element_size() == 2 else (B, 0)
    residual = launch.allocate(shape, dtype=torch.int8, device=query.device)
    for part in parts(query):
        mask = None if real is None else real[part]
        # Scores are held by nothing but the call, so that they are gone before the next ones are made.
        launch.forward(
            launch.Inputs(query[part], key[part], value[part], content_bias, *scores(query[part], tables), mask),
            options,
            (output[part], lse[part], time_max[part], residual[part]),
        )
    return output, lse, time_max, residual


def gradients(
    output_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    tables: Tables,
    real: Tensor | None,
    results: tuple[Tensor, ...],
    lse_gradient: Tensor | None,
    options: launch.Options,
) -> tuple[Tensor, Tensor | None, Tensor, dict[str, Tensor]]:
    """Return the gradients of query, key (None without content) and value, and a dict of those that samples share.

    The results are those of `attend`. The dict is by name and in float32. One program writes each element and sums have
    a fixed order, so gradients are the same each time.
    """
    query_gradient, value_gradient = launch.like(query), launch.like(value)
    key_gradient = None if content_bias is None else launch.like(key)
    shared = {"content_bias": None if content_bias is None else query[0, 0, 0]} | vars(tables)
    sums = {name: torch.zeros_like(x, dtype=torch.float32) for name, x in shared.items() if x is not None}
    for part in parts(query):
        mask = None if real is None else real[part]
        # Gradients of the scores are held by nothing but the calls, too.
        _add_shared(
            query[part],
            tables,
            *launch.backward(
                output_gradient[part],
                launch.Inputs(query[part], key[part], value[part], content_bias, *scores(query[part], tables), mask),
                tuple(result[part] for result in results),
                None if lse_gradient is None else lse_gradient[part],
                options,
                (query_gradient[part], None if key_gradient is None else key_gradient[part], value_gradient[part]),
            ),
            query_gradient[part],
            sums,
        )
    return query_gradient, key_gradient, value_gradient, sums


def _add_shared(
    query: Tensor,
    tables: Tables,
    time_gradient: Tensor | None,
    channel_gradient: Tensor | None,
    bias_gradient: Tensor | None,
    query_gradient: Tensor,
    sums: dict[str, Tensor],
) -> None:
    """Add the part of some samples to the gradients that all share, and that of the scores to the query's."""
    if "content_bias" in sums:
        if bias_gradient is None:
            bias_gradient = query_gradient.sum((0, 1, 2), dtype=torch.float32)
        sums["content_bias"] += bias_gradient
    else:
        query_gradient.zero_()  # the kernel writes the part that comes from content
    if tables.time is not None and time_gradient is not None:
        table, offset = _score_gradients(query, tables.time, time_gradient, query_gradient, of_channel=False)
        sums["time"] += table
        sums["time_offset"] += offset[:, :, None]
    if tables.channel is not None and channel_gradient is not None:
        table, offset = _score_gradients(query, tables.channel, channel_gradient, query_gradient, of_channel=True)
        sums["channel"] += table.mT
        sums["channel_offset"] += offset[:, None]


def _score_gradients(
    query: Tensor, table: Tensor, gradient: Tensor, query_gradient: Tensor, *, of_channel: bool
) -> tuple[Tensor, Tensor]:
    """As `score_gradients`, by products of torch where its sums do not fit."""
    if launch.sums_fit(query, table.shape[2 if of_channel else 1]):
        return score_gradients(query, table, gradient, query_gradient, of_channel=of_channel)
    gradient, group = gradient.to(query.dtype), "h (b t c)"
    if of_channel:  # rows of the table are columns of the scores
        gradient, table, group = gradient.mT, table.mT, "(c h) (b t)"
    # A view, so that the sum is written there.
    rearrange(query_gradient, f"b t c h d -> {group} d").baddbmm_(gradient.mT, table)
    queries = rearrange(query, f"b t c h d -> {group} d")
    return _float32_product(gradient, queries), gradient.sum(2, dtype=torch.float32)


def parts(query: Tensor) -> Iterator[slice]:
    """Cut the batch into parts of about equal size, each just large enough to fill a GPU."""
    B, T, C, H, _ = query.shape
    enough = -(-_PROGRAMS // (-(-T * C // 128) * H))
    samples = -(-B // max(B // enough, 1))
    for start in range(0, B, samples):
        yield slice(start, start + samples)


def _float32_product(left: Tensor, right: Tensor) -> Tensor:
    # Scores rounded to 16 bits would double the error of the output.
    if left.dtype == torch.float32 or left.device.type == "cpu":  # a CPU has no product of 16 bits into 32
        return torch.bmm(left.float(), right.float())
    return torch.bmm(left, right, out_dtype=torch.float32)
