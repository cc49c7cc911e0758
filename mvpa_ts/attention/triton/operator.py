"""The kernels as operators of torch, with fake implementations and gradients.

Torch makes and differentiates the tables of lags and distances, which are small. The operators do the rest.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.nn.functional import pad

from mvpa_ts.attention.problem import INPUTS, Problem, autocast_dtype
from mvpa_ts.attention.triton import launch
from mvpa_ts.attention.triton.batch import attend, gradients
from mvpa_ts.attention.triton.launch_scores import Tables


def triton_attention(problem: Problem) -> tuple[Tensor, Tensor]:
    """Evaluate equation (1) of docs/attention.md with the kernels; returns [B, T, C, H, d] and the log-sum-exp."""
    p = problem
    dtype = autocast_dtype(p.query) or p.query.dtype
    with torch.autocast(p.query.device.type, enabled=False):
        query, key, value, time_key, channel_key, content_bias, time_bias, channel_bias = (
            getattr(p, name).to(dtype) for name in INPUTS
        )
        if p.kept is not None:
            value = value * (p.kept / (1.0 - p.dropout)).to(dtype)
        time_table: tuple[Tensor | None, Tensor | None] = (None, None)
        channel_table: tuple[Tensor | None, Tensor | None] = (None, None)
        if "time" in p.components:
            time_table = _time_table(query, time_key, time_bias, p.causal)
        if "channel" in p.components:
            channel = torch.arange(query.shape[2], device=query.device)
            channel_rows = p.channel_rows(channel[:, None] - channel)
            channel_table = _channel_table(query, channel_key.float()[channel_rows], channel_bias)
        output, lse, *_ = flash_attention(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            content_bias.contiguous() if "content" in p.components else None,
            *time_table,
            *channel_table,
            None if p.all_real else p.real.contiguous(),
            p.causal,
            p.window,
            p.dense_last_segment,
        )
    # The kernels' is to base 2, and +∞ for a query without a key.
    lse = rearrange(lse, "b h (t c) -> b t c h", c=p.query.shape[2]) * math.log(2.0)
    return output, lse.masked_fill(lse == math.inf, -math.inf).masked_fill(~p.real[..., None], -math.inf)


def _time_table(query: Tensor, time_key: Tensor, bias: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the keys of the lags that occur, for each query head, and their products with the bias: see `Tables`."""
    T, H = query.shape[1], query.shape[3]
    first = 0 if causal else (time_key.shape[0] - 1) // 2 - (T - 1)
    # In float32, so that gradients of rows that several heads or pairs share are added up there.
    table = time_key[first : first + (T if causal else 2 * T - 1)].float()
    G = H // table.shape[1]
    offset = repeat((table * bias.float()).sum(-1), "r k -> (k g) r 1", g=G)
    return repeat(table, "r k d -> (k g) r d", g=G).to(query.dtype), offset


def _channel_table(query: Tensor, table: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 keys [C, C, H_kv, d] of all pairs of channels by query head, and their products with the bias."""
    C, H = query.shape[2:4]
    G = H // table.shape[2]
    offset = repeat((table * bias.float()).sum(-1), "c e k -> (c k g) 1 e", g=G)
    table = repeat(table, "c e k d -> (c k g) d e", g=G).to(query.dtype)
    padding = launch.padded_channels(C) - C
    return pad(table, (0, padding)), pad(offset, (0, padding), value=float("-inf"))


@torch.library.custom_op("mvpa_ts::flash_attention", mutates_args=())
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    time_table: Tensor | None,
    time_offset: Tensor | None,
    channel_table: Tensor | None,
    channel_offset: Tensor | None,
    real: Tensor | None,
    causal: bool,
    window: int | None,
    dense_last_segment: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend with contiguous tensors; a table or bias of None is a term that is off and gets no gradient.

    The offsets are float32; everything else has the precision of the query.

    Returns the output and, for the backward pass, two statistics [B, H, N] and the residual of the output: see
    `batch.attend`. Tokens that are not `real` hold zeros.
    """
    tables = Tables(time_table, time_offset, channel_table, channel_offset)
    options = launch.Options(causal, window, dense_last_segment)
    with torch.cuda.device_of(query):  # Triton starts kernels on the current device
        return attend(query, key, value, content_bias, tables, real, options)


@flash_attention.register_fake
def _(query: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B, T, C, H = query.shape[:4]
    lse, time_max = (query.new_empty((B, H, T * C), dtype=torch.float32) for _ in range(2))
    residual = query.new_empty(query.shape if query.element_size() == 2 else (B, 0), dtype=torch.int8)
    return torch.empty_like(query), lse, time_max, residual


@torch.library.custom_op("mvpa_ts::flash_attention_backward", mutates_args=())
def flash_attention_backward(
    output_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    time_table: Tensor | None,
    time_offset: Tensor | None,
    channel_table: Tensor | None,
    channel_offset: Tensor | None,
    real: Tensor | None,
    output: Tensor,
    lse: Tensor,
    time_max: Tensor,
    residual: Tensor,
    lse_gradient: Tensor | None,
    causal: bool,
    window: int | None,
    dense_last_segment: bool,
) -> list[Tensor]:
    """Return the gradients of the first eight inputs of `flash_attention`; they are empty for terms that are off."""
    tables = Tables(time_table, time_offset, channel_table, channel_offset)
    options = launch.Options(causal, window, dense_last_segment)
    with torch.cuda.device_of(query):
        query_gradient, key_gradient, value_gradient, sums = gradients(
            output_gradient,
            query,
            key,
            value,
            content_bias,
            tables,
            real,
            (output, lse, time_max, residual),
            lse_gradient,
            options,
        )
    if content_bias is not None:
        sums["content_bias"] = sums["content_bias"].unflatten(0, (content_bias.shape[0], -1)).sum(1)
    shared = {"content_bias": content_bias} | vars(tables)
    found = [query_gradient, key_gradient, value_gradient]
    found += [None if x is None else sums[name].to(x.dtype) for name, x in shared.items()]
    return [query.new_empty(0) if gradient is None else gradient for gradient in found]


@flash_attention_backward.register_fake
def _(
    output_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    *others: Any,
) -> list[Tensor]:
    inputs = [query, None if content_bias is None else key, value, content_bias, *others[:4]]
    return [query.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in inputs]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:9], *output)
    ctx.options = inputs[9:]
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, output_gradient: Tensor | None, lse_gradient: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    if output_gradient is None and lse_gradient is None:
        return (None,) * 12
    saved = ctx.saved_tensors  # checkpointing gives them once
    output_gradient = torch.zeros_like(saved[0]) if output_gradient is None else output_gradient.contiguous()
    lse_gradient = None if lse_gradient is None else lse_gradient.contiguous()
    gradients = flash_attention_backward(output_gradient, *saved, lse_gradient, *ctx.options)
    content = saved[3] is not None
    inputs_on = (True, content, True, content, *(table is not None for table in saved[4:8]))
    return (*(x if on else None for x, on in zip(gradients, inputs_on, strict=True)), *4 * (None,))


flash_attention.register_autograd(_backward, setup_context=_setup_context)


def _no_second_derivative(ctx: Any, *_: Any) -> None:
    raise RuntimeError(
        "impl='triton' has no second derivative: its gradients cannot be differentiated again; "
        "use impl='reference' for that"
    )


flash_attention_backward.register_autograd(_no_second_derivative)
