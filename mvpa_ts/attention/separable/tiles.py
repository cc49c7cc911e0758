"""How the work is cut: tensors in the layout of matrix products, blocks of query segments, tiles of bounded size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Query tokens of a block, unless a segment is larger. With 128 forward and backward are 6 % slower at T = C = 50, with
# 256 10 % at (T, C) = (100, 8) (one CPU thread, AVX-512).
_BLOCK_TOKENS = 160
# Elements of a tile of weights: 4 MiB in float32. Half or twice as many are up to 3 % slower at T = C = 50.
_TILE_ELEMENTS = 1 << 20


class Options(NamedTuple):
    """Settings that are the same for all blocks."""

    causal: bool
    window: int | None  # −1: no content at all
    dense_last_segment: bool
    channel_window: int | None
    reach: int  # channels by which the keys of a segment reach further than its queries, on each side
    first: int = 0  # segment of the first query, where there are fewer queries than keys


class Inputs(NamedTuple):
    """The tensors in the layout of matrix products."""

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
        """Number of query channels, C."""
        return self.channel_table.shape[1] - self.key.shape[2] + 1

    def rows(self, rows: slice) -> Inputs:
        return Inputs(*(tensor[rows] for tensor in self))

    def in_base_2(self) -> Inputs:
        """Scale the tables, so that their products with queries are scores in base 2."""
        scale = self.query.shape[-1] ** -0.5 * math.log2(math.e)
        return self._replace(time_table=self.time_table * scale, channel_table=self.channel_table * scale)


def evenly_spaced(x: Tensor) -> Tensor:
    """Return x [K, T, E, d] if its T·E tokens lie evenly in memory and can be viewed as one axis; else a copy."""
    _, _, E, d = x.shape
    return x if x.stride(3) == 1 and x.stride(2) >= d and x.stride(1) == E * x.stride(2) else x.contiguous()


class Masks(NamedTuple):
    """Masked segments, masked channels, and other masked tokens, with one row for each of K.

    The last two are offsets of the logits. A key that stands for n channels has an offset of log2 n, another key 0.
    """

    segments: Tensor  # bool [K, T], True = missing
    channels: Tensor  # log2 of the tokens behind each key, −∞ for none, [K, E]
    holes: Tensor | None  # further offsets of single tokens, [K, T, E]; None if segments and channels say it all

    def rows(self, rows: slice) -> Masks:
        return Masks(self.segments[rows], self.channels[rows], None if self.holes is None else self.holes[rows])


class Block(NamedTuple):
    """Queries of segments start … stop−1, and the keys they see: those of segments before key_stop."""

    start: int
    stop: int
    key_stop: int
    near: slice | None  # key segments whose content is scored
    far: tuple[slice, ...]  # the other ones
    outside: tuple[tuple[slice, slice], ...]  # see `_outside`
    causal: bool
    window: int | None  # None: every near segment is in the window of every query
    queries: slice  # where the block lies in the tensor of queries


def cut_blocks(inputs: Inputs, options: Options) -> tuple[Block, ...]:
    """Cut the queries into blocks of whole segments; a dense last segment is a separate block."""
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
        return Block(start, stop, key_stop, slice(0, key_stop), (), (), options.causal, None, queries)
    if window < 0:
        return Block(start, stop, key_stop, None, (slice(0, key_stop),), (), options.causal, None, queries)
    near = slice(max(0, start - window), min(key_stop, stop + window))
    far = tuple(keys for keys in (slice(0, near.start), slice(near.stop, key_stop)) if keys.start < keys.stop)
    outside = _outside(start, stop, near, window)
    return Block(start, stop, key_stop, near, far, outside, options.causal, window if outside else None, queries)


def _outside(start: int, stop: int, near: slice, window: int) -> tuple[tuple[slice, slice], ...]:
    """Pair query segments, counted from `start`, with near key segments outside their windows, counted from `near`."""
    pairs = []
    for segment in range(stop - start):
        before, after = (start + segment + side - near.start for side in (-window, window + 1))
        for keys in (slice(0, before), slice(after, near.stop - near.start)):
            if keys.start < keys.stop:
                pairs.append((slice(segment, segment + 1), keys))
    return tuple(pairs)


def row_chunks(inputs: Inputs, blocks: tuple[Block, ...], all_keys: bool = False) -> Iterator[slice]:
    """Slice the axis K so that one tile of near weights, or of all weights, stays within its bound."""
    K, _, M, _ = inputs.query.shape
    E = inputs.key.shape[2]
    largest = max(
        (b.stop - b.start) * M * max(1, b.key_stop if all_keys or b.near is None else b.near.stop - b.near.start) * E
        for b in blocks
    )
    chunks = -(-K // max(1, _TILE_ELEMENTS // largest))
    cuts = [K * chunk // chunks for chunk in range(chunks + 1)]
    return (slice(start, stop) for start, stop in itertools.pairwise(cuts))


def steps(far: slice, elements: int) -> Iterator[slice]:
    """Cut far key segments, each with `elements` weights, into tiles."""
    step = max(1, _TILE_ELEMENTS // elements)
    return (slice(start, min(start + step, far.stop)) for start in range(far.start, far.stop, step))


def in_windows(block: Block, options: Options, channels: int, keys: int, like: Tensor) -> Tensor:
    """Return 1 where a query scores the content of a near key, else 0; [m or 1, 1, C or 1, keys or 1, E or 1]."""
    assert block.near is not None
    near = torch.ones(1, 1, 1, 1, 1, dtype=torch.bool, device=like.device)
    if block.window is not None:
        query_segment = torch.arange(block.start, block.stop, device=like.device)
        key_segment = torch.arange(block.near.start, block.near.stop, device=like.device)
        beside = (query_segment[:, None] - key_segment).abs() <= block.window
        near = near & beside[:, None, None, :, None]
    if options.channel_window is not None:
        query_channel = torch.arange(channels, device=like.device)
        key_channel = torch.arange(keys, device=like.device) - options.reach
        near = near & ((query_channel[:, None] - key_channel).abs() <= options.channel_window)[:, None]
    return near.to(like.dtype)
