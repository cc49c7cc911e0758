"""The second derivative, one block of queries at a time, by differentiating the block as it is written."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mvpa_ts.attention.separable.tiles import Block, Inputs, Masks, Options, Scores, Scratch, cut_blocks, row_chunks


def second_gradients(
    directions: Inputs, grad_output: Tensor, grad_lse: Tensor, inputs: Inputs, masks: Masks | None, options: Options
) -> tuple[Tensor, ...]:
    """Gradients of ⟨gradients of the inputs, directions⟩ by `grad_output`, `grad_lse` and the inputs.

    All keys of a block are in memory at once, some ten times; blocks are small, so that memory stays linear.
    """
    found_output, found_lse = torch.zeros_like(grad_output), torch.zeros_like(grad_lse)
    found = Inputs(*(torch.zeros_like(tensor) for tensor in inputs))
    blocks = cut_blocks(inputs, options)
    for rows in row_chunks(inputs, blocks, all_keys=True):
        part_masks = masks and masks.rows(rows)
        for block in blocks:
            queries = block.queries
            with torch.enable_grad():
                leaves = Inputs(*(tensor.detach().requires_grad_() for tensor in inputs.rows(rows)))
                cotangents = [grad[rows, queries].detach().requires_grad_() for grad in (grad_output, grad_lse)]
                results = _written_out(leaves, part_masks, options, block)
                gradients = torch.autograd.grad(results, leaves, cotangents, create_graph=True, materialize_grads=True)
                pairs = zip(gradients, directions.rows(rows), strict=True)
                along = torch.stack([(gradient * direction).sum() for gradient, direction in pairs]).sum()
            second = torch.autograd.grad(along, [*cotangents, *leaves], materialize_grads=True)
            found_output[rows, queries], found_lse[rows, queries] = second[:2]
            for total, part in zip(found.rows(rows), second[2:], strict=True):
                total += part
    return found_output, found_lse, *found


def _written_out(inputs: Inputs, masks: Masks | None, options: Options, block: Block) -> tuple[Tensor, Tensor]:
    """Output [K, m, M, d] and log-sum-exp [K, m, M] of a block, by operations that torch can differentiate twice."""
    scores = Scores(inputs, masks, options, block, Scratch(inputs.query))
    logits = scores.time_score[..., None] + scores.channel_score[..., None, :]  # [K, m, G, C, keys, E]
    if block.near_start < block.near_stop:
        near = slice(block.near_start, block.near_stop)
        content = torch.bmm(scores.content_query, inputs.key[:, near].flatten(1, 2).mT)
        content = (content * (scores.scale * math.log2(math.e))).view(*scores.shape, -1, scores.keys)
        if (window := scores.in_windows(block.near_start, block.near_stop)) is not None:
            content = content * window
        after = block.key_stop - block.near_stop
        logits = logits + torch.nn.functional.pad(content, (0, 0, block.near_start, after))
    if masks is not None and masks.holes is not None:
        logits = logits + masks.holes[:, None, None, None, : block.key_stop]
    logits = logits.flatten(4).flatten(1, 3) * math.log(2.0)
    no_key = (logits == -math.inf).all(-1, keepdim=True)
    lse = logits.masked_fill(no_key, 0.0).logsumexp(-1, keepdim=True)
    weights = (logits - lse).exp()
    shape = inputs.query[:, block.queries].shape
    output = weights @ inputs.value[:, : block.key_stop].flatten(1, 2)
    return output.view(shape), lse.masked_fill(no_key, -math.inf).view(shape[:3])
