"""The pass over all tiles, forward and backward, as one differentiable operation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mvpa_ts.attention.separable.tiles import Inputs, Masks, Options, Scores, Scratch, cut_blocks, row_chunks


def attend(inputs: Inputs, masks: Masks | None, options: Options) -> tuple[Tensor, Tensor]:
    """Output [K, T, M, d] and log-sum-exp [K, T, M] of the logits, −∞ for queries without a key."""
    return _Attention.apply(*inputs, masks, options)


class _Attention(torch.autograd.Function):
    """Save the log-sum-exp, and compute the weights again in the backward pass."""

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
    """Gradients of the inputs; a node of its own, so that who differentiates it again is told and gets no zeros."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, grad_lse: Tensor, *args: Any) -> tuple[Tensor, ...]:
        *tensors, output, lse, masks, options = args
        return tuple(_backward(grad_output, grad_lse, Inputs(*tensors), output, lse, masks, options))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise RuntimeError(
            "impl='separable' has no second derivative: its gradients cannot be differentiated again; "
            "use impl='reference' for that"
        )


def _forward(inputs: Inputs, masks: Masks | None, options: Options) -> tuple[Tensor, Tensor]:
    output = torch.empty_like(inputs.query)
    lse = inputs.query.new_empty(inputs.query.shape[:3])
    scratch, blocks = Scratch(inputs.query), cut_blocks(inputs, options)
    for rows in row_chunks(inputs, blocks):
        part, part_masks = inputs.rows(rows), masks and masks.rows(rows)
        for block in blocks:
            queries = slice(block.start, block.stop)
            results = Scores(part, part_masks, options, block, scratch).attend()
            for tensor, result in zip((output, lse), results, strict=True):
                tensor[rows, queries] = result.view_as(tensor[rows, queries])
    # A query without a key has a finite stand-in for the offset of its logits, which is lower than any logit.
    no_key = lse <= torch.finfo(lse.dtype).min / 8
    return output, (lse * math.log(2.0)).masked_fill_(no_key, -math.inf)


def _backward(
    grad_output: Tensor,
    grad_lse: Tensor,
    inputs: Inputs,
    output: Tensor,
    lse: Tensor,
    masks: Masks | None,
    options: Options,
) -> Inputs:
    grad_output = grad_output.contiguous()
    delta = ((grad_output * output).sum(-1) - grad_lse)[..., None]
    lse = (lse / math.log(2.0)).clamp_(min=torch.finfo(lse.dtype).min / 4)
    grads = Inputs(*(torch.zeros_like(tensor) for tensor in inputs))
    scratch, blocks = Scratch(inputs.query), cut_blocks(inputs, options)
    with torch.autocast(output.device.type, enabled=False):
        for rows in row_chunks(inputs, blocks):
            part, part_masks = inputs.rows(rows), masks and masks.rows(rows)
            for block in blocks:
                queries = slice(block.start, block.stop)
                Scores(part, part_masks, options, block, scratch).add_gradients(
                    grads.rows(rows), grad_output[rows, queries], delta[rows, queries], lse[rows, queries]
                )
    return grads
