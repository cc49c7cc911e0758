"""The arithmetic: scores, weights and gradients of one block of query segments.

A pass over a tile costs as much as the arithmetic in it, and a call of torch as much as some ten thousand weights. So
results go into memory that exists already, and offsets are added to the small scores, not to whole tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mvpa_ts.attention.separable.scratch import Scratch
from mvpa_ts.attention.separable.tiles import Block, Inputs, Masks, Options, in_windows, steps

# Up to so many corners of a tile that lie outside the windows are written again; with more, the whole tile is masked.
_MOST_CORNERS = 8


class Scores:
    """The scores of one block of queries, in base 2 like `inputs`, and the passes that use them."""

    def __init__(self, inputs: Inputs, masks: Masks | None, options: Options, block: Block, scratch: Scratch) -> None:
        self.inputs, self.masks, self.options, self.block, self.scratch = inputs, masks, options, block, scratch
        K, _, M, d = inputs.query.shape
        T, C, m = inputs.key.shape[1], inputs.channels, block.stop - block.start
        self.keys = inputs.key.shape[2]  # E
        self.shape = (K, m, M // C, C)  # of the queries: [K, m, G, C]
        self.flat = (K, m * M, d)  # the same as products take them
        self.scale = d**-0.5 * math.log2(math.e)
        # With holes, the sum of the largest scores may lie so far above every real logit that all weights underflow.
        self.rank_one = masks is None or masks.holes is None
        # Finite, so that a row of −∞ minus its maximum is −∞ and not NaN.
        self.lowest = torch.finfo(inputs.query.dtype).min / 4
        self.masked_windows = options.channel_window is not None or len(block.outside) > _MOST_CORNERS
        query = inputs.query[:, block.queries]
        if block.near is not None:
            self.content_query = self._biased("content_query", query, inputs.content_bias)
        self.time_query = self._biased("time_query", query, inputs.time_bias)
        self.channel_query = self._biased("channel_query", query, inputs.channel_bias)
        # Rows of the time table for the lags between the queries and the keys of this block.
        self.time_rows = slice(T - block.stop, T - block.start - 1 + block.key_stop)
        time_table = inputs.time_table[:, self.time_rows]
        self.time_score = self._time_positions(self._product("time_score", self.time_query, time_table))
        channel_score = self._product("channel_score", self.channel_query, inputs.channel_table)
        self.channel_score = self._channel_positions(channel_score)
        if block.causal and m > 1:
            self.time_score[..., block.start : block.stop].masked_fill_(scratch.later(m), -math.inf)
        if masks is not None:
            self.time_score.masked_fill_(masks.segments[:, None, None, None, : block.key_stop], -math.inf)
            self.channel_score += masks.channels[:, None, None, None]
        if block.far and self.rank_one:
            self.channel_max = self.channel_score.amax(-1, keepdim=True)
            if masks is not None:
                self.channel_max.clamp_(min=self.lowest)
            self.channel_weight = scratch.tile("channel_weight", (*self.shape, self.keys))
            torch.sub(self.channel_score, self.channel_max, out=self.channel_weight).exp2_()

    def attend(self, output: Tensor, lse: Tensor) -> None:
        """Write the output [K, m, M, d] of the queries, and log2 of the denominators of their softmax [K, m, M]."""
        # Maxima and sums are [K, m·M, 1].
        near = self.block.near
        maxima = [] if near is None else [self._near_logits(near).amax(-1, keepdim=True)]
        for far in self.block.far:
            if self.rank_one:
                maximum = self.time_score[..., far].amax(-1, keepdim=True).add_(self.channel_max)
                maxima.append(maximum.view(*self.flat[:2], 1))
            else:
                maxima.extend(self._logits("far", keys).amax(-1, keepdim=True) for keys in self._steps(far))
        highest = maxima[0]
        for maximum in maxima[1:]:
            torch.maximum(highest, maximum, out=highest)
        if self.masks is not None:
            highest.clamp_(min=self.lowest)

        summed = self.scratch.tile("output", self.flat)
        if near is None:
            total = torch.zeros_like(highest)
            summed.zero_()
        else:
            weights = self._tile("near", near).sub_(highest).exp2_()
            total = weights.sum(-1, keepdim=True)
            torch.bmm(weights, _rows(self.inputs.value, near), out=summed)
        for keys, weights in self._far_weights(highest, total):
            summed.baddbmm_(weights, _rows(self.inputs.value, keys))
        if self.masks is not None:
            # Without any allowed key all weights are zero, and 1 does for the denominator.
            total.masked_fill_(total == 0, 1.0)
        torch.div(summed.view(output.shape), total.view(*lse.shape, 1), out=output)
        torch.add(highest.view(lse.shape), total.log2_().view(lse.shape), out=lse)

    def add_gradients(self, grads: Inputs, grad_output: Tensor, delta: Tensor, lse: Tensor) -> None:
        """Add the gradients that arise in this block to `grads`."""
        x, root, near = self.inputs, self.flat[-1] ** -0.5, self.block.near
        K, m, _, C = self.shape
        grad_output = grad_output.view(self.flat)
        delta, lse = delta.reshape(K, -1, 1), lse.reshape(K, -1, 1)
        # Distances that do not occur keep a gradient of zero.
        time_rows_grad = self.scratch.tile("time_grad", (*self.flat[:2], m - 1 + self.block.key_stop)).zero_()
        channel_rows_grad = self.scratch.tile("channel_grad", (*self.flat[:2], C + self.keys - 1)).zero_()
        time_grad, channel_grad = self._time_positions(time_rows_grad), self._channel_positions(channel_rows_grad)
        query_grad = self.scratch.tile("output", self.flat)
        if near is None:
            query_grad.zero_()
        else:
            weights = self._near_logits(near).sub_(lse).exp2_()
            grad = self._score_gradient(grads, grad_output, delta, near, weights)
            by_axes = self._unfolded("gradient", near)
            torch.sum(by_axes, -1, out=time_grad[..., near])
            torch.sum(by_axes, -2, out=channel_grad)
            if self.masked_windows:
                by_axes *= self._windows()
            else:
                for segments, corner in self.block.outside:
                    by_axes[:, segments, :, :, corner].zero_()
            query_grad.baddbmm_(grad, _rows(x.key, near), beta=0, alpha=root)
            _rows(grads.key, near).baddbmm_(grad.mT, self.content_query, alpha=root)
            grads.content_bias.add_(query_grad.sum(1)[:, None, None])
        for keys, weights in self._far_weights(lse):
            self._score_gradient(grads, grad_output, delta, keys, weights)
            by_axes = self._unfolded("gradient", keys)
            torch.sum(by_axes, -1, out=time_grad[..., keys])
            channel_grad += by_axes.sum(-2)

        time_table, time_table_grad = (table[:, self.time_rows] for table in (x.time_table, grads.time_table))
        for rows_grad, queries, table, table_grad, bias_grad in (
            (time_rows_grad, self.time_query, time_table, time_table_grad, grads.time_bias),
            (channel_rows_grad, self.channel_query, x.channel_table, grads.channel_table, grads.channel_bias),
        ):
            table_grad.baddbmm_(rows_grad.mT, queries, alpha=root)
            # The tables in use are scaled for base 2.
            query_grad.baddbmm_(rows_grad, table, alpha=math.log(2.0))
            bias_grad[:, 0].baddbmm_(rows_grad.sum(1, keepdim=True), table, alpha=math.log(2.0))
        queries_grad = grads.query[:, self.block.queries]
        queries_grad.copy_(query_grad.view(queries_grad.shape))

    def _windows(self) -> Tensor:
        return in_windows(self.block, self.options, self.shape[-1], self.keys, self.time_query)

    def _steps(self, far: slice) -> Iterator[slice]:
        return steps(far, math.prod(self.shape) * self.keys)

    def _tile(self, name: str, keys: slice) -> Tensor:
        """Return memory for the pairs with some key segments, in the shape of matrix products: [K, m·M, keys·E]."""
        return self.scratch.tile(name, (*self.flat[:2], (keys.stop - keys.start) * self.keys))

    def _unfolded(self, name: str, keys: slice) -> Tensor:
        """Return the memory of `_tile` in the shape [K, m, G, C, keys, E]."""
        return self.scratch.tile(name, (*self.shape, keys.stop - keys.start, self.keys))

    def _biased(self, name: str, query: Tensor, bias: Tensor) -> Tensor:
        """Add a bias to the queries, [K, m·M, d]."""
        torch.add(query, bias, out=self.scratch.tile(name, tuple(query.shape)))
        return self.scratch.tile(name, self.flat)

    def _product(self, name: str, queries: Tensor, table: Tensor) -> Tensor:
        """Multiply queries [K, m·M, d] with keys [K, J, d] to scores in base 2, [K, m·M, J]."""
        return torch.bmm(queries, table.mT, out=self.scratch.tile(name, (*self.flat[:2], table.shape[1])))

    def _time_positions(self, by_row: Tensor) -> Tensor:
        """View scores by table row [K, m·M, m−1+keys] as scores by key segment [K, m, G, C, keys]."""
        K, m, G, C = self.shape
        return by_position(by_row, K, m, G * C).view(*self.shape, -1)

    def _channel_positions(self, by_row: Tensor) -> Tensor:
        """View scores by table row [K, m·M, C+E−1] as scores by key channel [K, m, G, C, E]."""
        K, m, G, C = self.shape
        return by_position(by_row, K * m * G, C, 1).view(*self.shape, self.keys)

    def _near_logits(self, near: slice) -> Tensor:
        """Return logits [K, m·M, keys·E], with content inside the windows."""
        logits, keys = self._logits("near", near), _rows(self.inputs.key, near).mT
        by_axes = self._unfolded("near", near)
        if self.masked_windows:
            torch.bmm(self.content_query, keys, out=self._tile("gradient", near))
            by_axes.addcmul_(self._unfolded("gradient", near), self._windows(), value=self.scale)
        else:
            logits.baddbmm_(self.content_query, keys, alpha=self.scale)
            for segments, corner in self.block.outside:
                keys_there = slice(near.start + corner.start, near.start + corner.stop)
                self._write_logits(by_axes[:, segments, :, :, corner], segments, keys_there)
        return logits

    def _logits(self, name: str, keys: slice) -> Tensor:
        """Return logits [K, m·M, keys·E] without content."""
        self._write_logits(self._unfolded(name, keys), slice(None), keys)
        return self._tile(name, keys)

    def _write_logits(self, logits: Tensor, segments: slice, keys: slice) -> None:
        """Write the sums of time and channel scores, for some query segments of the block and some key segments."""
        time_score, channel_score = self.time_score[:, segments, :, :, keys], self.channel_score[:, segments]
        torch.add(time_score[..., None], channel_score[..., None, :], out=logits)
        if self.masks is not None and self.masks.holes is not None:
            logits += self.masks.holes[:, None, None, None, keys]

    def _far_weights(self, offset: Tensor, total: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield far key segments and their weights [K, m·M, keys·E], tile by tile; add the weights up in `total`."""
        for far in self.block.far:
            if self.rank_one:
                time_weight = self.scratch.tile("time_weight", (*self.shape, far.stop - far.start))
                shift = self.channel_max - offset.view(*self.shape, 1)
                torch.add(self.time_score[..., far], shift, out=time_weight).exp2_()
                if total is not None:
                    channel_sum = self.channel_weight.sum(-1, keepdim=True)
                    total.view_as(channel_sum).addcmul_(time_weight.sum(-1, keepdim=True), channel_sum)
            for keys in self._steps(far):
                if self.rank_one:
                    weight = time_weight[..., keys.start - far.start : keys.stop - far.start, None]
                    torch.mul(weight, self.channel_weight[..., None, :], out=self._unfolded("far", keys))
                    weights = self._tile("far", keys)
                else:
                    weights = self._logits("far", keys).sub_(offset).exp2_()
                    if total is not None:
                        total += weights.sum(-1, keepdim=True)
                yield keys, weights

    def _score_gradient(
        self, grads: Inputs, grad_output: Tensor, delta: Tensor, keys: slice, weights: Tensor
    ) -> Tensor:
        """Return the gradient of the logits of a tile, in the tile "gradient"; add that of the values to `grads`."""
        _rows(grads.value, keys).baddbmm_(weights.mT, grad_output)
        grad = torch.bmm(grad_output, _rows(self.inputs.value, keys).mT, out=self._tile("gradient", keys))
        return grad.sub_(delta).mul_(weights)


def _rows(tensor: Tensor, keys: slice) -> Tensor:
    """View the tokens of some segments, [K, T, E, d] -> [K, keys·E, d], so that sums can be written there."""
    K, _, _, d = tensor.shape
    return tensor[:, keys].view(K, -1, d)


def by_position(by_row: Tensor, outer: int, positions: int, inner: int) -> Tensor:
    """View [outer · positions · inner, J] as [outer, positions, inner, keys], J = positions − 1 + keys.

    The rows of a table run towards smaller distances. So position i finds key k in row positions − 1 − i + k.
    """
    rows = by_row.shape[-1]
    sizes = (outer, positions, inner, rows - positions + 1)
    return by_row.as_strided(sizes, (positions * inner * rows, inner * rows - 1, rows, 1), positions - 1)
