"""The arithmetic: scores, weights and gradients of one block of query segments.

Each pass over a tile counts as much as the arithmetic in it, and each call of torch as much as some ten thousand
weights: results go into memory that is there, offsets into the small scores before they are spread over a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mvpa_ts.attention.separable.scratch import Scratch
from mvpa_ts.attention.separable.tiles import Block, Inputs, Masks, Options, in_windows, steps

# Corners of a tile outside of the windows that are written again one by one; with more of them all of it is masked.
_MOST_CORNERS = 8


class Scores:
    """The scores of one block of queries, in base 2 as `inputs` are, and what follows from them."""

    def __init__(
        self, inputs: Inputs, masks: Masks | None, options: Options, block: Block, scratch: Scratch
    ) -> None:
        self.inputs, self.masks, self.options, self.block, self.scratch = inputs, masks, options, block, scratch
        K, _, M, d = inputs.query.shape
        T, C = inputs.key.shape[1], inputs.channels
        self.keys = inputs.key.shape[2]  # E
        self.shape = (K, block.stop - block.start, M // C, C)  # of the queries: [K, m, G, C]
        self.scale = d**-0.5 * math.log2(math.e)
        # Finite, so that a row of −∞ minus its maximum is −∞ and not NaN.
        self.lowest = torch.finfo(inputs.query.dtype).min / 4
        if block.near:
            self.content_query = self._biased("content_query", inputs.content_bias)
        self.time_query = self._biased("time_query", inputs.time_bias)  # [K, m·M, d]
        self.channel_query = self._biased("channel_query", inputs.channel_bias)
        # Rows of the time table for the lags between the queries and the keys of this block.
        self.time_rows = slice(T - block.stop, T - block.start - 1 + block.key_stop)
        self.time_score = self._time_positions(
            self._product("time_score", self.time_query, inputs.time_table[:, self.time_rows])
        )
        self.channel_score = self._channel_positions(
            self._product("channel_score", self.channel_query, inputs.channel_table)
        )
        if block.causal and self.shape[1] > 1:
            self.time_score[..., block.start : block.stop].masked_fill_(scratch.later(self.shape[1]), -math.inf)
        if masks is not None:
            self.time_score.masked_fill_(masks.segments[:, None, None, None, : block.key_stop], -math.inf)
            self.channel_score += masks.channels[:, None, None, None]
        self.channel_max = self.channel_score
        if block.far and self._rank_one:
            self.channel_max = self.channel_score.amax(-1, keepdim=True)
            if masks is not None:
                self.channel_max.clamp_(min=self.lowest)
            weight = scratch.tile("channel_weight", self.channel_score.shape)
            self.channel_weight = torch.sub(self.channel_score, self.channel_max, out=weight).exp2_()

    def attend(self, output: Tensor, lse: Tensor) -> None:
        """Write output [K, m, M, d] of the queries, and log2 of their denominators [K, m, M]."""
        near_logits = self._near_logits() if self.block.near else None
        maxima = [] if near_logits is None else [_largest(near_logits)]
        for first, last in self.block.far:
            if self._rank_one:
                maxima.append(self.time_score[..., first:last].amax(-1, keepdim=True).add_(self.channel_max))
            else:
                maxima.extend(_largest(self._far_logits(keys)) for keys in self._steps(first, last))
        highest = maxima[0]
        for maximum in maxima[1:]:
            torch.maximum(highest, maximum, out=highest)
        if self.masks is not None:
            highest.clamp_(min=self.lowest)

        summed = self.scratch.tile("output", self.time_query.shape)
        if near_logits is None:
            total = torch.zeros_like(highest)
            summed.zero_()
        else:
            weights = near_logits.sub_(highest[..., None]).exp2_()
            total = weights.flatten(4).sum(-1, keepdim=True)
            torch.bmm(_tokens(weights), _rows(self.inputs.value, self._near), out=summed)
        for keys, weights in self._far_tiles(highest, total):
            summed.baddbmm_(_tokens(weights), _rows(self.inputs.value, keys))
        if self.masks is not None:
            # Without any allowed key all weights are zero, and 1 does for the denominator.
            total.masked_fill_(total == 0, 1.0)
        torch.div(summed.view(output.shape), total.view(*lse.shape, 1), out=output)
        torch.add(highest.view(lse.shape), total.log2_().view(lse.shape), out=lse)

    def add_gradients(self, grads: Inputs, grad_output: Tensor, delta: Tensor, lse: Tensor) -> None:
        """Add the gradients that arise in this block to `grads`."""
        lse = lse.reshape(*self.shape, 1)
        x, root = self.inputs, self.inputs.query.shape[-1] ** -0.5
        grad_output, delta = grad_output.flatten(1, 2), delta.flatten(1, 2)
        K, m, G, C = self.shape
        # Scores for distances that do not occur are no one's, and their gradients stay zero.
        time_rows_grad = self.scratch.tile("time_grad", (K, m * G * C, m - 1 + self.block.key_stop)).zero_()
        channel_rows_grad = self.scratch.tile("channel_grad", (K, m * G * C, C + self.keys - 1)).zero_()
        time_grad, channel_grad = self._time_positions(time_rows_grad), self._channel_positions(channel_rows_grad)
        query_grad = self.scratch.tile("output", self.time_query.shape)
        if self.block.near:
            grad = self._score_gradient(grads, grad_output, delta, self._near, self._near_logits().sub_(lse[..., None]).exp2_())
            torch.sum(grad, -1, out=time_grad[..., self._near])
            torch.sum(grad, -2, out=channel_grad)
            self._drop_outside(grad)
            query_grad.baddbmm_(_tokens(grad), _rows(x.key, self._near), beta=0, alpha=root)
            _rows(grads.key, self._near).baddbmm_(_tokens(grad).mT, self.content_query, alpha=root)
            grads.content_bias.add_(query_grad.sum(1)[:, None, None])
        else:
            query_grad.zero_()
        for keys, weights in self._far_tiles(lse):
            grad = self._score_gradient(grads, grad_output, delta, keys, weights)
            torch.sum(grad, -1, out=time_grad[..., keys])
            channel_grad += grad.sum(-2)

        for rows_grad, queries, rows, table, table_grad, bias_grad in (
            (time_rows_grad, self.time_query, self.time_rows, x.time_table, grads.time_table, grads.time_bias),
            (channel_rows_grad, self.channel_query, ..., x.channel_table, grads.channel_table, grads.channel_bias),
        ):
            table = table[:, rows]
            table_grad[:, rows].baddbmm_(rows_grad.mT, queries, alpha=root)
            # The tables in use are scaled for base 2.
            query_grad.baddbmm_(rows_grad, table, alpha=math.log(2.0))
            bias_grad[:, 0].baddbmm_(rows_grad.sum(1, keepdim=True), table, alpha=math.log(2.0))
        queries_grad = grads.query[:, self.block.queries]
        queries_grad.copy_(query_grad.view(queries_grad.shape))

    @property
    def _near(self) -> slice:
        return slice(self.block.near_start, self.block.near_stop)

    @property
    def _masked_windows(self) -> bool:
        return self.options.channel_window is not None or len(self.block.outside) > _MOST_CORNERS

    def _windows(self) -> Tensor:
        return in_windows(self.block, self.options, self.shape[-1], self.keys, self.time_query)

    @property
    def _rank_one(self) -> bool:
        # With holes, s_max + l_max may lie above every real logit, so far that all weights underflow.
        return self.masks is None or self.masks.holes is None

    def _steps(self, first: int, last: int) -> Iterator[slice]:
        return steps(first, last, math.prod(self.shape) * self.keys)

    def _biased(self, name: str, bias: Tensor) -> Tensor:
        """Queries with a bias, [K, m·M, d]."""
        query = self.inputs.query[:, self.block.queries]
        return torch.add(query, bias, out=self.scratch.tile(name, query.shape)).flatten(1, 2)

    def _product(self, name: str, queries: Tensor, table: Tensor) -> Tensor:
        """Products in base 2: [K, m·M, d] and [K, J, d] -> [K, m·M, J]."""
        return torch.bmm(queries, table.mT, out=self.scratch.tile(name, (*queries.shape[:2], table.shape[1])))

    def _time_positions(self, by_row: Tensor) -> Tensor:
        """View scores by table row [K, m·M, m−1+keys] as scores by key segment [K, m, G, C, keys]."""
        K, m, G, C = self.shape
        return by_position(by_row, K, m, G * C).unflatten(2, (G, C))

    def _channel_positions(self, by_row: Tensor) -> Tensor:
        """View scores by table row [K, m·M, C+E−1] as scores by key channel [K, m, G, C, E]."""
        K, m, G, C = self.shape
        return by_position(by_row, K * m * G, C, 1).view(K, m, G, C, self.keys)

    def _far_logits(self, keys: slice) -> Tensor:
        """[K, m, G, C, keys, E], without content."""
        return self._position_logits("far", keys)

    def _near_logits(self) -> Tensor:
        """[K, m, G, C, keys, E], with content where it is in the windows."""
        logits = self._position_logits("near", self._near)
        keys = _rows(self.inputs.key, self._near).mT
        if self._masked_windows:
            content = torch.bmm(self.content_query, keys, out=_tokens(self.scratch.tile("gradient", logits.shape)))
            return logits.addcmul_(content.view(logits.shape), self._windows(), value=self.scale)
        _tokens(logits).baddbmm_(self.content_query, keys, alpha=self.scale)
        for segment, corner in self.block.outside:
            keys = slice(self._near.start + corner.start, self._near.start + corner.stop)
            self._write_positions(logits[:, segment, :, :, corner], segment, keys)
        return logits

    def _position_logits(self, name: str, keys: slice) -> Tensor:
        logits = self.scratch.tile(name, (*self.shape, keys.stop - keys.start, self.keys))
        self._write_positions(logits, slice(None), keys)
        return logits

    def _write_positions(self, logits: Tensor, segments: slice, keys: slice) -> None:
        """Write the sums of time and channel scores for some of the block's query segments, and some key segments."""
        time_score, channel_score = self.time_score[:, segments], self.channel_score[:, segments]
        torch.add(time_score[..., keys, None], channel_score[..., None, :], out=logits)
        if self.masks is not None and self.masks.holes is not None:
            logits += self.masks.holes[:, None, None, None, keys]

    def _far_tiles(self, offset: Tensor, total: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Key segments and their weights [K, m, G, C, keys, E], tile by tile; their sums are added to `total`."""
        for first, last in self.block.far:
            if self._rank_one:
                time_weight = self.scratch.tile("time_weight", (*self.shape, last - first))
                torch.add(self.time_score[..., first:last], self.channel_max - offset, out=time_weight).exp2_()
                if total is not None:
                    total.addcmul_(time_weight.sum(-1, keepdim=True), self.channel_weight.sum(-1, keepdim=True))
            for keys in self._steps(first, last):
                if self._rank_one:
                    weights = self.scratch.tile("far", (*self.shape, keys.stop - keys.start, self.keys))
                    part = time_weight[..., keys.start - first : keys.stop - first, None]
                    torch.mul(part, self.channel_weight[..., None, :], out=weights)
                else:
                    weights = self._far_logits(keys).sub_(offset[..., None]).exp2_()
                    if total is not None:
                        total += weights.flatten(4).sum(-1, keepdim=True)
                yield keys, weights

    def _score_gradient(
        self, grads: Inputs, grad_output: Tensor, delta: Tensor, keys: slice, weights: Tensor
    ) -> Tensor:
        """Gradient of the logits of a tile, in the shape of `weights`; that of the values is added to `grads`."""
        _rows(grads.value, keys).baddbmm_(_tokens(weights).mT, grad_output)
        grad = self.scratch.tile("gradient", weights.shape)
        torch.bmm(grad_output, _rows(self.inputs.value, keys).mT, out=_tokens(grad))
        _tokens(grad).sub_(delta)
        return grad.mul_(weights)

    def _drop_outside(self, grad: Tensor) -> None:
        """Leave what goes to content: the pairs in the windows."""
        if self._masked_windows:
            grad *= self._windows()
        else:
            for segment, corner in self.block.outside:
                grad[:, segment, :, :, corner].zero_()


def _largest(tile: Tensor) -> Tensor:
    return tile.flatten(4).amax(-1, keepdim=True)


def _tokens(tile: Tensor) -> Tensor:
    """Flatten [K, m, G, C, keys, E] to [K, m·M, keys·E]."""
    K, m, G, C, keys, E = tile.shape
    return tile.view(K, m * G * C, keys * E)


def _rows(tensor: Tensor, keys: slice) -> Tensor:
    """Tokens of some segments, [K, T, E, d] -> [K, keys·E, d]: the same memory, so that sums can go there."""
    K, _, _, d = tensor.shape
    return tensor[:, keys].view(K, -1, d)


def by_position(by_row: Tensor, outer: int, positions: int, inner: int) -> Tensor:
    """View [outer · positions · inner, J] as [outer, positions, inner, keys], J = positions − 1 + keys.

    The rows of a table run towards smaller distances, so position i reads key k in row positions − 1 − i + k.
    """
    rows = by_row.shape[-1]
    sizes = (outer, positions, inner, rows - positions + 1)
    return by_row.as_strided(sizes, (positions * inner * rows, inner * rows - 1, rows, 1), positions - 1)
