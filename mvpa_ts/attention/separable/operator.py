"""The forward and the backward pass over all tiles, as one differentiable operation.

torch.compile sees a single operator, so one graph serves any number of segments and channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mvpa_ts.attention.separable.products import faster_products
from mvpa_ts.attention.separable.scores import Scores
from mvpa_ts.attention.separable.scratch import Scratch
from mvpa_ts.attention.separable.second_derivative import second_gradients
from mvpa_ts.attention.separable.tiles import Block, Inputs, Masks, Options, cut_blocks, evenly_spaced, row_chunks


def attend(inputs: Inputs, masks: Masks | None, options: Options) -> tuple[Tensor, Tensor]:
    """Return the output [K, T, M, d] and the log-sum-exp of the logits [K, T, M], −∞ for queries without a key."""
    if torch.compiler.is_compiling():
        return separable_attention(*inputs, *(masks or (None, None, None)), *options)
    return _Attention.apply(*inputs, masks, options)


class _Attention(torch.autograd.Function):
    """Attention that saves the log-sum-exp and computes the weights again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        *tensors, masks, options = args
        inputs = Inputs(*tensors)
        output, lse = _forward(inputs, masks, options)
        ctx.save_for_backward(*inputs, output, lse)
        ctx.masks, ctx.options = masks, options
        return output, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*_Gradients.apply(*gradients, *ctx.saved_tensors, ctx.masks, ctx.options), None, None)


class _Gradients(torch.autograd.Function):
    """Gradients of the inputs, as a function of the inputs and of the gradients of output and log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, grad_lse: Tensor, *args: Any) -> tuple[Tensor, ...]:
        *tensors, output, lse, masks, options = args
        inputs = Inputs(*tensors)
        ctx.save_for_backward(grad_output, grad_lse, *inputs)
        ctx.masks, ctx.options = masks, options
        return tuple(_backward(grad_output, grad_lse, inputs, output, lse, masks, options))

    @staticmethod
    def backward(ctx: Any, *directions: Tensor) -> tuple[Tensor | None, ...]:
        found = _SecondGradients.apply(*directions, *ctx.saved_tensors, ctx.masks, ctx.options)
        return (*found, None, None, None, None)


class _SecondGradients(torch.autograd.Function):
    """Gradients of what `_Gradients` returns, in given directions. There is no third derivative."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        *tensors, masks, options = args
        directions, (grad_output, grad_lse, *inputs) = tensors[: len(Inputs._fields)], tensors[len(Inputs._fields) :]
        return second_gradients(Inputs(*directions), grad_output, grad_lse, Inputs(*inputs), masks, options)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise RuntimeError(
            "impl='separable' has no third derivative: its second gradients cannot be differentiated again; "
            "use impl='reference' for that"
        )


def _forward(inputs: Inputs, masks: Masks | None, options: Options) -> tuple[Tensor, Tensor]:
    output = torch.empty_like(inputs.query)
    lse = inputs.query.new_empty(inputs.query.shape[:3])
    blocks, inputs = cut_blocks(inputs, options), inputs.in_base_2()
    with faster_products(inputs.query, _multiplications(inputs, blocks)), Scratch(inputs.query) as scratch:
        for rows in row_chunks(inputs, blocks):
            part, part_masks = inputs.rows(rows), masks and masks.rows(rows)
            part_output, part_lse = output[rows], lse[rows]
            for block in blocks:
                queries = block.queries
                Scores(part, part_masks, options, block, scratch).attend(part_output[:, queries], part_lse[:, queries])
    if masks is not None:
        # The logits of a query without a key have a finite offset, lower than any real logit.
        lse.masked_fill_(lse <= torch.finfo(lse.dtype).min / 8, -math.inf)
    return output, lse.mul_(math.log(2.0))


def _backward(
    grad_output: Tensor,
    grad_lse: Tensor,
    inputs: Inputs,
    output: Tensor,
    lse: Tensor,
    masks: Masks | None,
    options: Options,
) -> Inputs:
    grad_output = evenly_spaced(grad_output)
    delta = ((grad_output * output).sum(-1) - grad_lse)[..., None]
    lse = lse / math.log(2.0)
    if masks is not None:
        # Queries without a key, and those that are not real, have −∞ here; their weights become zero.
        lse.masked_fill_(lse == -math.inf, math.inf)
    grads = Inputs(torch.empty_like(inputs.query), *(torch.zeros_like(tensor) for tensor in inputs[1:]))
    blocks, inputs = cut_blocks(inputs, options), inputs.in_base_2()
    with (
        torch.autocast(output.device.type, enabled=False),
        faster_products(inputs.query, _multiplications(inputs, blocks)),
        Scratch(inputs.query) as scratch,
    ):
        for rows in row_chunks(inputs, blocks):
            part, part_masks, part_grads = inputs.rows(rows), masks and masks.rows(rows), grads.rows(rows)
            part_output, part_delta, part_lse = grad_output[rows], delta[rows], lse[rows]
            for block in blocks:
                queries = block.queries
                Scores(part, part_masks, options, block, scratch).add_gradients(
                    part_grads, part_output[:, queries], part_delta[:, queries], part_lse[:, queries]
                )
    return grads


def _multiplications(inputs: Inputs, blocks: tuple[Block, ...]) -> int:
    """How many a product of one block has."""
    _, T, E, _ = inputs.key.shape
    return inputs.query.numel() * T * E // len(blocks)


@torch.library.custom_op("mvpa_ts::separable_attention", mutates_args=())
def separable_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    time_table: Tensor,
    channel_table: Tensor,
    content_bias: Tensor,
    time_bias: Tensor,
    channel_bias: Tensor,
    segments: Tensor | None,
    channels: Tensor | None,
    holes: Tensor | None,
    causal: bool,
    window: int | None,
    dense_last_segment: bool,
    channel_window: int | None,
    reach: int,
    first: int,
) -> tuple[Tensor, Tensor]:
    """Do the work of `attend`; the arguments are the fields of `Inputs`, `Masks` and `Options`."""
    tensors = (query, key, value, time_table, channel_table, content_bias, time_bias, channel_bias)
    options = Options(causal, window, dense_last_segment, channel_window, reach, first)
    return _forward(Inputs(*tensors), _optional_masks(segments, channels, holes), options)


@separable_attention.register_fake
def _(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty(query.shape[:3])


@torch.library.custom_op("mvpa_ts::separable_attention_backward", mutates_args=())
def separable_attention_backward(
    output_gradient: Tensor,
    lse_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    time_table: Tensor,
    channel_table: Tensor,
    content_bias: Tensor,
    time_bias: Tensor,
    channel_bias: Tensor,
    output: Tensor,
    lse: Tensor,
    segments: Tensor | None,
    channels: Tensor | None,
    holes: Tensor | None,
    causal: bool,
    window: int | None,
    dense_last_segment: bool,
    channel_window: int | None,
    reach: int,
    first: int,
) -> list[Tensor]:
    """Return the gradients of the first eight inputs of `separable_attention`."""
    tensors = (query, key, value, time_table, channel_table, content_bias, time_bias, channel_bias)
    masks = _optional_masks(segments, channels, holes)
    options = Options(causal, window, dense_last_segment, channel_window, reach, first)
    return list(_backward(output_gradient, lse_gradient, Inputs(*tensors), output, lse, masks, options))


@separable_attention_backward.register_fake
def _(output_gradient: Tensor, lse_gradient: Tensor, *others: Any) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in others[: len(Inputs._fields)]]


def _optional_masks(segments: Tensor | None, channels: Tensor | None, holes: Tensor | None) -> Masks | None:
    return None if segments is None or channels is None else Masks(segments, channels, holes)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = len(Inputs._fields)
    ctx.save_for_backward(*inputs[:tensors], *output, *inputs[tensors : tensors + len(Masks._fields)])
    ctx.options = inputs[tensors + len(Masks._fields) :]


def _differentiate(ctx: Any, output_gradient: Tensor, lse_gradient: Tensor) -> tuple[Tensor | None, ...]:
    found = separable_attention_backward(output_gradient, lse_gradient, *ctx.saved_tensors, *ctx.options)
    return (*found, *(len(Masks._fields) + len(ctx.options)) * (None,))


separable_attention.register_autograd(_differentiate, setup_context=_save)
