"""The second derivative, one block of queries at a time: torch differentiates the plain equations of the block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mvpa_ts.attention.separable.scores import by_position
from mvpa_ts.attention.separable.tiles import Block, Inputs, Masks, Options, cut_blocks, in_windows, row_chunks


def second_gradients(
    directions: Inputs, grad_output: Tensor, grad_lse: Tensor, inputs: Inputs, masks: Masks | None, options: Options
) -> tuple[Tensor, ...]:
    """Return the gradients of ⟨gradients of the inputs, directions⟩ by `grad_output`, `grad_lse` and the inputs.

    The weights of a block with all its keys are in memory some ten times. Blocks are small, so memory stays linear.
    """
    found_output, found_lse = torch.zeros_like(grad_output), torch.zeros_like(grad_lse)
    totals = Inputs(*(torch.zeros_like(tensor) for tensor in inputs))
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
            for total, added in zip(totals.rows(rows), second[2:], strict=True):
                total += added
    return found_output, found_lse, *totals


def _written_out(inputs: Inputs, masks: Masks | None, options: Options, block: Block) -> tuple[Tensor, Tensor]:
    """Compute output [K, m, M, d] and log-sum-exp [K, m, M] of a block with operations that torch can differentiate."""
    K, _, M, d = inputs.query.shape
    T, C, E = inputs.key.shape[1], inputs.channels, inputs.key.shape[2]
    m = block.stop - block.start
    query, scale = inputs.query[:, block.queries], d**-0.5
    biases = (inputs.content_bias, inputs.time_bias, inputs.channel_bias)
    content_query, time_query, channel_query = ((query + bias).flatten(1, 2) for bias in biases)
    # As in scores.py, but in base e and without writing over anything.
    time_table = inputs.time_table[:, T - block.stop : T - block.start - 1 + block.key_stop]
    time_score = by_position(torch.bmm(time_query, time_table.mT) * scale, K, m, M).unflatten(2, (-1, C))
    channel_score = torch.bmm(channel_query, inputs.channel_table.mT) * scale
    channel_score = by_position(channel_score, K * m * M // C, C, 1).view(*time_score.shape[:-1], E)
    if block.causal and m > 1:
        later = torch.ones(m, block.key_stop, dtype=torch.bool, device=query.device).triu(block.start + 1)
        time_score = time_score.masked_fill(later[:, None, None], -math.inf)
    if masks is not None:
        time_score = time_score.masked_fill(masks.segments[:, None, None, None, : block.key_stop], -math.inf)
        channel_score = channel_score + masks.channels[:, None, None, None] * math.log(2.0)
    logits = time_score[..., None] + channel_score[..., None, :]  # [K, m, G, C, keys, E]
    if (near := block.near) is not None:
        content = torch.bmm(content_query, inputs.key[:, near].flatten(1, 2).mT) * scale
        content = content.view(*logits.shape[:4], -1, E) * in_windows(block, options, C, E, query)
        logits = logits + torch.nn.functional.pad(content, (0, 0, near.start, block.key_stop - near.stop))
    if masks is not None and masks.holes is not None:
        logits = logits + masks.holes[:, None, None, None, : block.key_stop] * math.log(2.0)
    logits = logits.flatten(4).flatten(1, 3)
    no_key = (logits == -math.inf).all(-1, keepdim=True)
    lse = logits.masked_fill(no_key, 0.0).logsumexp(-1, keepdim=True)
    weights = (logits - lse).exp()
    shape = query.shape
    output = weights @ inputs.value[:, : block.key_stop].flatten(1, 2)
    return output.view(shape), lse.masked_fill(no_key, -math.inf).view(shape[:3])
