"""How the work is cut: tensors as products take them, blocks of query segments, tiles of bounded size."""

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

    def in_base_2(self) -> Inputs:
        """Scale the tables, so that products of queries with them are scores in base 2."""
        scale = self.query.shape[-1] ** -0.5 * math.log2(math.e)
        return self._replace(time_table=self.time_table * scale, channel_table=self.channel_table * scale)


def evenly_spaced(x: Tensor) -> Tensor:
    """Return x [K, T, E, d] if its T·E tokens are one axis of products as they lie in memory, else a copy."""
    _, _, E, d = x.shape
    return x if x.stride(3) == 1 and x.stride(2) >= d and x.stride(1) == E * x.stride(2) else x.contiguous()


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

    @property
    def near(self) -> bool:
        """Whether content is scored at all."""
        return self.near_start < self.near_stop

    @property
    def far(self) -> list[tuple[int, int]]:
        """Ranges of key segments whose content is not scored."""
        ranges = ((0, self.near_start), (self.near_stop, self.key_stop))
        return [(first, last) for first, last in ranges if first < last]

    @property
    def outside(self) -> list[tuple[slice, slice]]:
        """Query segments, and the near key segments outside of their windows, both counted from the block's first."""
        pairs = []
        if self.window is not None:
            for segment in range(self.start, self.stop):
                place = slice(segment - self.start, segment - self.start + 1)
                before, after = (segment + side - self.near_start for side in (-self.window, self.window + 1))
                if before > 0:
                    pairs.append((place, slice(0, before)))
                if after < (near := self.near_stop - self.near_start):
                    pairs.append((place, slice(after, near)))
        return pairs


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
    chunks = -(-K // max(1, _TILE_ELEMENTS // largest))
    cuts = [K * chunk // chunks for chunk in range(chunks + 1)]
    return (slice(start, stop) for start, stop in itertools.pairwise(cuts))


def steps(first: int, last: int, elements: int) -> Iterator[slice]:
    """Cut a range of far key segments, each with `elements` weights, into tiles."""
    step = max(1, _TILE_ELEMENTS // elements)
    return (slice(start, min(start + step, last)) for start in range(first, last, step))


def in_windows(block: Block, options: Options, channels: int, keys: int, like: Tensor) -> Tensor:
    """Get 1 where a query scores the content of a near key, else 0; [m or 1, 1, C or 1, keys or 1, E or 1]."""
    near = torch.ones(1, 1, 1, 1, 1, dtype=torch.bool, device=like.device)
    if block.window is not None:
        query_segment = torch.arange(block.start, block.stop, device=like.device)
        key_segment = torch.arange(block.near_start, block.near_stop, device=like.device)
        beside = (query_segment[:, None] - key_segment).abs() <= block.window
        near = near & beside[:, None, None, :, None]
    if options.channel_window is not None:
        query_channel = torch.arange(channels, device=like.device)
        key_channel = torch.arange(keys, device=like.device) - options.reach
        near = near & ((query_channel[:, None] - key_channel).abs() <= options.channel_window)[:, None]
    return near.to(like.dtype)
