"""The forward and the backward pass over all tiles, as one differentiable operation.

torch.compile sees a single operator, so one graph serves any number of segments and channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mvpa_ts.attention.separable.products import faster_products
from mvpa_ts.attention.separable.scores import Scores
from mvpa_ts.attention.separable.scratch import Scratch
from mvpa_ts.attention.separable.second_derivative import second_gradients
from mvpa_ts.attention.separable.tiles import Inputs, Masks, Options, cut_blocks, evenly_spaced, row_chunks


def attend(inputs: Inputs, masks: Masks | None, options: Options) -> tuple[Tensor, Tensor]:
    """Return the output [K, T, M, d] and the log-sum-exp of the logits [K, T, M], −∞ for queries without a key."""
    if torch.compiler.is_compiling():
        return separable_attention(list(inputs), list(masks or ()), *options)
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
        gradients = _SecondGradients.apply(*directions, *ctx.saved_tensors, ctx.masks, ctx.options)
        return (*gradients, None, None, None, None)


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

    def attend_part(scores: Scores, rows: slice, queries: slice) -> None:
        scores.attend(output[rows, queries], lse[rows, queries])

    _block_by_block(attend_part, inputs, masks, options)
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

    def add_part(scores: Scores, rows: slice, queries: slice) -> None:
        block = (rows, queries)
        scores.add_gradients(grads.rows(rows), grad_output[block], delta[block], lse[block])

    with torch.autocast(output.device.type, enabled=False):
        _block_by_block(add_part, inputs, masks, options)
    return grads


def _block_by_block(
    work: Callable[[Scores, slice, slice], None], inputs: Inputs, masks: Masks | None, options: Options
) -> None:
    """Call `work` with the scores of each block, and where its rows and queries lie in the output."""
    blocks, inputs = cut_blocks(inputs, options), inputs.in_base_2()
    _, T, E, _ = inputs.key.shape
    multiplications = inputs.query.numel() * T * E // len(blocks)  # of one product
    with faster_products(inputs.query, multiplications), Scratch(inputs.query) as scratch:
        for rows in row_chunks(inputs, blocks):
            part, block_masks = inputs.rows(rows), masks and masks.rows(rows)
            for block in blocks:
                work(Scores(part, block_masks, options, block, scratch), rows, block.queries)


@torch.library.custom_op("mvpa_ts::separable_attention", mutates_args=())
def separable_attention(
    inputs: Sequence[Tensor],
    masks: Sequence[Tensor | None],
    causal: bool,
    window: int | None,
    dense_last_segment: bool,
    channel_window: int | None,
    reach: int,
    first: int,
) -> tuple[Tensor, Tensor]:
    """Do the work of `attend`; tensors and settings are the fields of `Inputs`, `Masks` (or none) and `Options`."""
    options = Options(causal, window, dense_last_segment, channel_window, reach, first)
    return _forward(Inputs(*inputs), _masks_of(masks), options)


@separable_attention.register_fake
def _(inputs: Sequence[Tensor], *others: Any) -> tuple[Tensor, Tensor]:
    query = inputs[0]
    return torch.empty_like(query), query.new_empty(query.shape[:3])


@torch.library.custom_op("mvpa_ts::separable_attention_backward", mutates_args=())
def separable_attention_backward(
    output_gradient: Tensor,
    lse_gradient: Tensor,
    inputs: Sequence[Tensor],
    output: Tensor,
    lse: Tensor,
    masks: Sequence[Tensor | None],
    causal: bool,
    window: int | None,
    dense_last_segment: bool,
    channel_window: int | None,
    reach: int,
    first: int,
) -> list[Tensor]:
    """Return the gradients of the inputs of `separable_attention`."""
    options = Options(causal, window, dense_last_segment, channel_window, reach, first)
    return list(_backward(output_gradient, lse_gradient, Inputs(*inputs), output, lse, _masks_of(masks), options))


@separable_attention_backward.register_fake
def _(output_gradient: Tensor, lse_gradient: Tensor, inputs: Sequence[Tensor], *others: Any) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in inputs]


def _masks_of(tensors: Sequence[Tensor | None]) -> Masks | None:
    return Masks(*tensors) if tensors else None  # type: ignore[arg-type]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, masks, *ctx.options = inputs
    ctx.save_for_backward(*tensors, *output, *masks)


def _differentiate(ctx: Any, output_gradient: Tensor, lse_gradient: Tensor) -> tuple[Any, ...]:
    *inputs, output, lse = ctx.saved_tensors[: len(Inputs._fields) + 2]
    masks = list(ctx.saved_tensors[len(Inputs._fields) + 2 :])
    gradients = separable_attention_backward(output_gradient, lse_gradient, inputs, output, lse, masks, *ctx.options)
    return gradients, [None] * len(masks), *[None] * len(ctx.options)


separable_attention.register_autograd(_differentiate, setup_context=_save)
