"""The kernels as operators of torch, with fake implementations and gradients, and the scores they start from.

The legend of shapes is in mvpa_ts/attention/reference.py. Of equation (1) of docs/attention.md the kernels form the
content term; the raw time and channel scores are matrix products of linear size that torch makes (and differentiates):

    time_score     [H, R, B·N]     row r of the table, rows running from the smallest lag that occurs to the largest
    channel_score  [C·H, B·T, P]   last axis: channel of the key, and −∞ up to a multiple of 8
"""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.nn.functional import pad

from mvpa_ts.attention.problem import Problem
from mvpa_ts.attention.triton import launch


def triton_attention(problem: Problem) -> Tensor:
    """Evaluate equation (1) of docs/attention.md with the Triton kernels; returns [B, T, C, H, d]."""
    p = problem
    device_type = p.query.device.type
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else p.query.dtype
    with torch.autocast(device_type, enabled=False):
        query, key, value, *parameters = (
            tensor.to(dtype)
            for tensor in (
                p.query, p.key, p.value, p.time_key, p.channel_key, p.content_bias, p.time_bias, p.channel_bias,
            )
        )  # fmt: skip
        time_key, channel_key, content_bias, time_bias, channel_bias = parameters
        if p.dropout_masks is not None:
            # Dropping a key's weight after the softmax is the same as dropping its value.
            keep_segment, keep_channel = p.dropout_masks
            keep = rearrange(keep_segment[:, :, None] & keep_channel[:, None], "b t c -> b t c 1 1")
            value = value * (keep / (1.0 - p.dropout)).to(dtype)
        query = query.contiguous()
        output, _, _ = flash_attention(
            query,
            key.contiguous(),
            value.contiguous(),
            content_bias.contiguous() if "content" in p.components else None,
            _time_score(query, time_key, time_bias, p.causal) if "time" in p.components else None,
            _channel_score(query, channel_key, channel_bias, p.channel_distance) if "channel" in p.components else None,
            None if p.all_real else p.real.contiguous(),
            p.causal,
            p.window,
            p.dense_last_segment,
        )
    return output


def _time_score(query: Tensor, time_key: Tensor, bias: Tensor, causal: bool) -> Tensor:
    T, H = query.shape[1], query.shape[3]
    first = 0 if causal else (time_key.shape[0] - 1) // 2 - (T - 1)
    table = time_key[first : first + (T if causal else 2 * T - 1)]
    G = H // table.shape[1]
    from_bias = repeat((table * bias).sum(-1), "r k -> (k g) r 1", g=G)
    table = repeat(table, "r k d -> (k g) r d", g=G)
    return torch.baddbmm(from_bias, table, rearrange(query, "b t c h d -> h d (b t c)"))


def _channel_score(query: Tensor, channel_key: Tensor, bias: Tensor, channel_distance: str) -> Tensor:
    C, H = query.shape[2:4]
    channel = torch.arange(C, device=query.device)
    distance = channel[:, None] - channel
    signed = channel_distance == "signed"
    table = channel_key[distance + (channel_key.shape[0] - 1) // 2 if signed else distance.abs()]  # [C, C, H_kv, d]
    G = H // table.shape[2]
    from_bias = repeat((table * bias).sum(-1), "c e k -> (c k g) 1 e", g=G)
    table = repeat(table, "c e k d -> (c k g) d e", g=G)
    padding = launch.padded_channels(C) - C
    from_bias, table = pad(from_bias, (0, padding), value=float("-inf")), pad(table, (0, padding))
    return torch.baddbmm(from_bias, rearrange(query, "b t c h d -> (c h) (b t) d"), table)


@torch.library.custom_op("mvpa_ts::flash_attention", mutates_args=())
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    time_score: Tensor | None,
    channel_score: Tensor | None,
    real: Tensor | None,
    causal: bool,
    window: int | None,
    dense_last_segment: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of contiguous tensors; a score or bias that is None is off, and its tensors get no gradient.

    Returns the output, and two statistics [B, H, N] for the backward pass. Tokens that are not `real` hold zeros.
    """
    options = launch.Options(causal, window, dense_last_segment)
    return launch.forward(query, key, value, content_bias, time_score, channel_score, real, options)


@flash_attention.register_fake
def _(query: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    B, T, C, H = query.shape[:4]
    lse, time_max = (query.new_empty((B, H, T * C), dtype=torch.float32) for _ in range(2))
    return torch.empty_like(query), lse, time_max


@torch.library.custom_op("mvpa_ts::flash_attention_backward", mutates_args=())
def flash_attention_backward(
    output_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    time_score: Tensor | None,
    channel_score: Tensor | None,
    real: Tensor | None,
    output: Tensor,
    lse: Tensor,
    time_max: Tensor,
    causal: bool,
    window: int | None,
    dense_last_segment: bool,
) -> list[Tensor]:
    """Gradients of query and key (from content only), value, and the scores; empty for what is off."""
    options = launch.Options(causal, window, dense_last_segment)
    gradients = launch.backward(
        output_gradient,
        query,
        key,
        value,
        content_bias,
        time_score,
        channel_score,
        real,
        output,
        lse,
        time_max,
        options,
    )
    return [query.new_empty(0) if gradient is None else gradient for gradient in gradients]


@flash_attention_backward.register_fake
def _(
    output_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content_bias: Tensor | None,
    time_score: Tensor | None,
    channel_score: Tensor | None,
    *_: Any,
) -> list[Tensor]:
    of_content = [None, None] if content_bias is None else [query, key]
    tensors = [*of_content, value, time_score, channel_score]
    return [query.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in tensors]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.options = inputs[7:]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, output_gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if output_gradient is None:
        return (None,) * 10
    query, key, value, content_bias, time_score, channel_score, real, *results = ctx.saved_tensors
    gradients = flash_attention_backward(
        output_gradient.contiguous(),
        query,
        key,
        value,
        content_bias,
        time_score,
        channel_score,
        real,
        *results,
        *ctx.options,
    )
    query_gradient, key_gradient, value_gradient, time_gradient, channel_gradient = gradients
    bias_gradient = None
    if content_bias is not None and ctx.needs_input_grad[3]:
        over_heads = query_gradient.sum((0, 1, 2), dtype=torch.float32)
        bias_gradient = over_heads.unflatten(0, (content_bias.shape[0], -1)).sum(1).to(content_bias.dtype)
    return (
        None if content_bias is None else query_gradient,
        None if content_bias is None else key_gradient,
        value_gradient,
        bias_gradient,
        None if time_score is None else time_gradient,
        None if channel_score is None else channel_gradient,
        None,
        None,
        None,
        None,
    )


flash_attention.register_autograd(_backward, setup_context=_setup_context)
