"""The arithmetic: scores, weights and gradients of one block of query segments, in tiles of bounded size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Query tokens of a block, where a segment is not larger: 64 and 256 are 5 % slower forward and backward at T = C = 50,
# and at (T, C) = (100, 8) and (12, 21) no better (one CPU thread, AVX-512).
_BLOCK_TOKENS = 128
# Elements of a tile of weights: 2 MiB in float32. Twice or half as many are no better at T = C = 50; 2²¹: 10 % slower.
_TILE_ELEMENTS = 1 << 19


class Options(NamedTuple):
    """What is the same for all blocks."""

    causal: bool
    window: int | None  # −1: no content at all
    dense_last_segment: bool
    channel_window: int | None
    reach: int  # channels by which the keys of a segment reach further than its queries, on each side
    first: int = 0  # segment of the first query, where there are fewer queries than keys


class Inputs(NamedTuple):
    """The tensors, as they are laid out for products."""

    query: Tensor  # [K, T, M, d], or fewer segments
    key: Tensor  # [K, T, E, d]
    value: Tensor  # [K, T, E, d]
    time_table: Tensor  # [K, 2T−1, d]
    channel_table: Tensor  # [K, C+E−1, d]
    content_bias: Tensor  # [K, 1, 1, d]
    time_bias: Tensor  # [K, 1, 1, d]
    channel_bias: Tensor  # [K, 1, 1, d]

    @property
    def channels(self) -> int:
        """Query channels C."""
        return self.channel_table.shape[1] - self.key.shape[2] + 1

    def rows(self, rows: slice) -> Inputs:
        return Inputs(*(tensor[rows] for tensor in self))


class Masks(NamedTuple):
    """What is not real, with one row for each of K: whole segments, channels, and what else is missing.

    A key that stands for n channels has log2 n in place of 0.
    """

    segments: Tensor  # bool [K, T], True = missing
    channels: Tensor  # log2 of the tokens behind each key, −∞ for none, [K, E]
    holes: Tensor | None  # what is to be added to that, [K, T, E]; None where segments and channels tell all

    def rows(self, rows: slice) -> Masks:
        return Masks(self.segments[rows], self.channels[rows], None if self.holes is None else self.holes[rows])


class Block(NamedTuple):
    """Queries of segments start … stop−1: they score content on near_start … near_stop−1, and see keys < key_stop."""

    start: int
    stop: int
    near_start: int
    near_stop: int
    key_stop: int
    causal: bool
    window: int | None  # None: all of the near segments are in the window of all of the queries
    queries: slice  # where they lie in the tensor of queries

    def pieces(self, step: int) -> Iterator[tuple[int, int, bool]]:
        """Ranges of key segments, and whether they are near; far ones in steps of `step` segments."""
        if self.near_start < self.near_stop:
            yield self.near_start, self.near_stop, True
        for first, last in ((0, self.near_start), (self.near_stop, self.key_stop)):
            for start in range(first, last, step):
                yield start, min(start + step, last), False


def cut_blocks(inputs: Inputs, options: Options) -> tuple[Block, ...]:
    """Whole query segments; those of a dense last segment are a block of their own."""
    T, M = inputs.key.shape[1], inputs.query.shape[2]
    size = max(1, _BLOCK_TOKENS // M)
    window, last = options.window, options.first + inputs.query.shape[1]
    dense = options.dense_last_segment and window is not None and window >= 0 and last == T
    cuts = [*range(options.first, last - dense, size), *([T - 1] if dense else []), last]
    return tuple(_block(start, stop, T, dense, options) for start, stop in itertools.pairwise(cuts))


def _block(start: int, stop: int, T: int, dense: bool, options: Options) -> Block:
    window, queries = options.window, slice(start - options.first, stop - options.first)
    key_stop = stop if options.causal else T
    if window is None or (dense and start == T - 1):
        return Block(start, stop, 0, key_stop, key_stop, options.causal, None, queries)
    if window < 0:
        return Block(start, stop, 0, 0, key_stop, options.causal, None, queries)
    near_start, near_stop = max(0, start - window), min(key_stop, stop + window)
    uneven = stop - 1 - window > near_start or start + window + 1 < near_stop
    return Block(start, stop, near_start, near_stop, key_stop, options.causal, window if uneven else None, queries)


def row_chunks(inputs: Inputs, blocks: tuple[Block, ...], all_keys: bool = False) -> Iterator[slice]:
    """Slices of the axis K for which one tile of near weights, or of all weights, stays within its bound."""
    K, _, M, _ = inputs.query.shape
    E = inputs.key.shape[2]
    largest = max(
        (b.stop - b.start) * M * max(1, b.key_stop if all_keys else b.near_stop - b.near_start) * E for b in blocks
    )
    step = max(1, _TILE_ELEMENTS // largest)
    return (slice(start, start + step) for start in range(0, K, step))


class Scratch:
    """Memory for tiles, used again and again: fresh pages cost more time than the arithmetic done on them."""

    def __init__(self, like: Tensor) -> None:
        self.like, self.buffers = like, dict[str, Tensor]()

    def tile(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """An uninitialised tile; it holds until the same name is asked for again."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.like.new_empty(size)
        return self.buffers[name][:size].view(shape)


class Scores:
    """The scores of one block of queries, in base 2, and what follows from them."""

    def __init__(self, inputs: Inputs, masks: Masks | None, options: Options, block: Block, scratch: Scratch) -> None:
        self.inputs, self.masks, self.options, self.block, self.scratch = inputs, masks, options, block, scratch
        K, _, M, d = inputs.query.shape
        T, C = inputs.key.shape[1], inputs.channels
        self.keys = inputs.key.shape[2]  # E
        self.shape = (K, block.stop - block.start, M // C, C)  # of the queries: [K, m, G, C]
        self.scale = d**-0.5
        query = inputs.query[:, block.queries]
        self.content_query, self.time_query, self.channel_query = (
            (query + bias).flatten(1, 2) for bias in (inputs.content_bias, inputs.time_bias, inputs.channel_bias)
        )  # [K, m·M, d]
        # Rows of the time table for the lags between the queries and the keys of this block.
        self.time_rows = slice(T - block.stop, T - block.start - 1 + block.key_stop)
        self.time_score = self._time_positions(self._product(self.time_query, inputs.time_table[:, self.time_rows]))
        self.channel_score = self._channel_positions(self._product(self.channel_query, inputs.channel_table))
        if block.causal and self.shape[1] > 1:
            queries, keys = (
                torch.arange(*ends, device=query.device) for ends in ((block.start, block.stop), (block.key_stop,))
            )
            later = keys > queries[:, None, None, None]
            self.time_score = self.time_score.masked_fill(later, -math.inf)
        if masks is not None:
            segments = masks.segments[:, None, None, None, : block.key_stop]
            self.time_score = self.time_score.masked_fill(segments, -math.inf)
            self.channel_score = self.channel_score + masks.channels[:, None, None, None]
        # Finite, so that a row of −∞ minus its maximum is −∞ and not NaN.
        self.lowest = torch.finfo(query.dtype).min / 4
        self.channel_max = self.channel_score.amax(-1, keepdim=True).clamp_(min=self.lowest)
        self.channel_weight = (self.channel_score - self.channel_max).exp2_()

    def attend(self) -> tuple[Tensor, Tensor]:
        """Output [K, m·M, d] of the queries, and log2 of their denominators [K, m, G, C, 1]."""
        pieces = list(self._pieces())
        highest = torch.full_like(self.channel_max, self.lowest)
        near_logits = None
        for first, last, near in pieces:
            if near:
                near_logits = self._logits(first, last, near)
                piece_max = near_logits.flatten(4).amax(-1, keepdim=True)
            elif self._rank_one:
                piece_max = self.time_score[..., first:last].amax(-1, keepdim=True) + self.channel_max
            else:
                piece_max = self._logits(first, last, near).flatten(4).amax(-1, keepdim=True)
            highest = torch.maximum(highest, piece_max)

        output = torch.zeros_like(self.content_query)
        total = torch.zeros_like(highest)
        for first, last, near in pieces:
            weights = self._weights(first, last, near, highest, near_logits)
            total += weights.flatten(4).sum(-1, keepdim=True)
            output.baddbmm_(_tokens(weights), self.inputs.value[:, first:last].flatten(1, 2))
        # Without any allowed key all weights are zero, and 1 does for the denominator.
        total.masked_fill_(total == 0, 1.0)
        output /= total.view(*output.shape[:2], 1)
        return output, highest + total.log2()

    def add_gradients(self, grads: Inputs, grad_output: Tensor, delta: Tensor, lse: Tensor) -> None:
        """Add the gradients that arise in this block to `grads`."""
        x = self.inputs
        grad_output, delta = grad_output.flatten(1, 2), delta.flatten(1, 2)
        lse = lse.reshape(*self.shape, 1)
        content_grad = torch.zeros_like(self.content_query)
        time_grad = torch.zeros_like(self.time_score)
        channel_grad = torch.zeros_like(self.channel_score)
        for first, last, near in self._pieces():
            weights = self._weights(first, last, near, lse)
            keys = slice(first, last)
            grads.value[:, keys].flatten(1, 2).baddbmm_(_tokens(weights).mT, grad_output)
            grad = self.scratch.tile("gradient", weights.shape)
            torch.bmm(grad_output, x.value[:, keys].flatten(1, 2).mT, out=_tokens(grad))
            _tokens(grad).sub_(delta)
            grad *= weights
            time_grad[..., keys] = grad.sum(-1)
            channel_grad += grad.sum(-2)
            if near:
                if (window := self.in_windows(first, last)) is not None:
                    grad *= window
                content_grad.baddbmm_(_tokens(grad), x.key[:, keys].flatten(1, 2), alpha=self.scale)
                grads.key[:, keys].flatten(1, 2).baddbmm_(_tokens(grad).mT, self.content_query, alpha=self.scale)

        K, m, G, C = self.shape
        time_rows_grad = time_grad.new_zeros(K, m * G * C, m - 1 + self.block.key_stop)
        self._time_positions(time_rows_grad).copy_(time_grad)
        channel_rows_grad = channel_grad.new_zeros(K, m * G * C, C + self.keys - 1)
        self._channel_positions(channel_rows_grad).copy_(channel_grad)
        time_table, time_table_grad = x.time_table[:, self.time_rows], grads.time_table[:, self.time_rows]
        time_table_grad.baddbmm_(time_rows_grad.mT, self.time_query, alpha=self.scale)
        grads.channel_table.baddbmm_(channel_rows_grad.mT, self.channel_query, alpha=self.scale)
        query_grads = (
            content_grad,
            torch.bmm(time_rows_grad, time_table).mul_(self.scale),
            torch.bmm(channel_rows_grad, x.channel_table).mul_(self.scale),
        )
        for query_grad, bias_grad in zip(query_grads, grads[-3:], strict=True):
            bias_grad += query_grad.sum(1)[:, None, None]
            grads.query[:, self.block.queries].flatten(1, 2).add_(query_grad)

    @property
    def _rank_one(self) -> bool:
        # With holes, s_max + l_max may lie above every real logit, so far that all weights underflow.
        return self.masks is None or self.masks.holes is None

    def _pieces(self) -> Iterator[tuple[int, int, bool]]:
        return self.block.pieces(max(1, _TILE_ELEMENTS // (math.prod(self.shape) * self.keys)))

    def _product(self, queries: Tensor, table: Tensor) -> Tensor:
        """Scaled products in base 2: [K, m·M, d] and [K, J, d] -> [K, m·M, J]."""
        return torch.bmm(queries, table.mT).mul_(self.scale * math.log2(math.e))

    def _time_positions(self, by_row: Tensor) -> Tensor:
        """View scores by table row [K, m·M, m−1+keys] as scores by key segment [K, m, G, C, keys]."""
        K, m, G, C = self.shape
        return by_position(by_row, K, m, G * C).unflatten(2, (G, C))

    def _channel_positions(self, by_row: Tensor) -> Tensor:
        """View scores by table row [K, m·M, C+E−1] as scores by key channel [K, m, G, C, E]."""
        K, m, G, C = self.shape
        return by_position(by_row, K * m * G, C, 1).view(K, m, G, C, self.keys)

    def _logits(self, first: int, last: int, near: bool) -> Tensor:
        """[K, m, G, C, keys, E]."""
        logits = self.scratch.tile("near" if near else "far", (*self.shape, last - first, self.keys))
        torch.add(self.time_score[..., first:last, None], self.channel_score[..., None, :], out=logits)
        if near:
            keys = self.inputs.key[:, first:last].flatten(1, 2).mT
            scale = self.scale * math.log2(math.e)
            if (window := self.in_windows(first, last)) is None:
                _tokens(logits).baddbmm_(self.content_query, keys, alpha=scale)
            else:
                content_score = torch.bmm(self.content_query, keys).view_as(logits)
                logits.addcmul_(content_score, window, value=scale)
        if self.masks is not None and self.masks.holes is not None:
            logits += self.masks.holes[:, None, None, None, first:last]
        return logits

    def _weights(self, first: int, last: int, near: bool, offset: Tensor, logits: Tensor | None = None) -> Tensor:
        """Exponentials of the logits minus `offset`; [K, m, G, C, keys, E]."""
        if near or not self._rank_one:
            logits = logits if near and logits is not None else self._logits(first, last, near)
            return logits.sub_(offset[..., None]).exp2_()
        time_weight = (self.time_score[..., first:last] + (self.channel_max - offset)).exp2_()
        weights = self.scratch.tile("far", (*time_weight.shape, self.keys))
        return torch.mul(time_weight[..., None], self.channel_weight[..., None, :], out=weights)

    def in_windows(self, first: int, last: int) -> Tensor | None:
        """Get 1 where a query scores the content of a key, else 0; [m or 1, 1, C or 1, keys or 1, E or 1]."""
        device, dtype = self.time_score.device, self.time_score.dtype
        near = None
        if self.block.window is not None:
            query_segment = torch.arange(self.block.start, self.block.stop, device=device)
            key_segment = torch.arange(first, last, device=device)
            near = (query_segment[:, None] - key_segment).abs() <= self.block.window
            near = near[:, None, None, :, None]
        if self.options.channel_window is not None:
            query_channel = torch.arange(self.shape[-1], device=device)
            key_channel = torch.arange(self.keys, device=device) - self.options.reach
            beside = (query_channel[:, None] - key_channel).abs() <= self.options.channel_window
            near = beside[:, None] if near is None else near & beside[:, None]
        return None if near is None else near.to(dtype)


def _tokens(tile: Tensor) -> Tensor:
    """Flatten [K, m, G, C, keys, E] to [K, m·M, keys·E]."""
    return tile.flatten(4).flatten(1, 3)


def by_position(by_row: Tensor, outer: int, positions: int, inner: int) -> Tensor:
    """View [outer · positions · inner, J] as [outer, positions, inner, keys], J = positions − 1 + keys.

    The rows of a table run towards smaller distances, so position i reads key k in row positions − 1 − i + k.
    """
    rows = by_row.shape[-1]
    sizes = (outer, positions, inner, rows - positions + 1)
    return by_row.as_strided(sizes, (positions * inner * rows, inner * rows - 1, rows, 1), positions - 1)
