"""Linear memory: content inside the window, a rank-1 far field outside it.

docs/attention.md derives it. In this file the batch and the key/value heads are one axis K = B·H_kv, and a segment
holds M = G·C query tokens and C key tokens; the rest of the legend is in reference.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from torch import Tensor

from mvpa_ts.attention.problem import Problem

# Query tokens of a block, where a segment is not larger: 64 and 256 are 5 % slower forward and backward at T = C = 50,
# and at (T, C) = (100, 8) and (12, 21) no better (one CPU thread, AVX-512).
_BLOCK_TOKENS = 128
# Elements of a tile of weights: 2 MiB in float32. Twice or half as many are no better at T = C = 50; 2²¹: 10 % slower.
_TILE_ELEMENTS = 1 << 19


def separable_attention(problem: Problem) -> Tensor:
    """Evaluate equation (1) of docs/attention.md block by block; returns [B, T, C, H, d]."""
    p = problem
    B, T, C, _, _ = p.query.shape
    H_kv = p.key.shape[3]
    # Row j of either table is for the distance T−1−j (or C−1−j) from key to query: see `_by_position`.
    lag = torch.arange(T - 1, -T, -1, device=p.query.device)
    distance = torch.arange(C - 1, -C, -1, device=p.query.device)
    time_rows = lag.clamp(min=0) if p.causal else lag + (p.time_key.shape[0] - 1) // 2
    signed = p.channel_distance == "signed"
    channel_rows = distance + (p.channel_key.shape[0] - 1) // 2 if signed else distance.abs()
    time_key = p.time_key if "time" in p.components else torch.zeros_like(p.time_key)
    channel_key = p.channel_key if "channel" in p.components else torch.zeros_like(p.channel_key)
    value = p.value
    if p.dropout_masks is not None:
        # Dropping a key's weight after the softmax is the same as dropping its value.
        keep_segment, keep_channel = p.dropout_masks
        keep = rearrange(keep_segment[:, :, None] & keep_channel[:, None], "b t c -> b t c 1 1")
        value = value * keep / (1.0 - p.dropout)

    # bfloat16 and float16 are evaluated in float32, as a fused kernel would.
    dtype = torch.promote_types(p.query.dtype, torch.float32)
    with torch.autocast(p.query.device.type, enabled=False):
        output = _SeparableAttention.apply(
            rearrange(p.query.to(dtype), "b t c (k g) d -> (b k) t (g c) d", k=H_kv).contiguous(),
            rearrange(p.key.to(dtype), "b t c k d -> (b k) t c d").contiguous(),
            rearrange(value.to(dtype), "b t c k d -> (b k) t c d").contiguous(),
            repeat(time_key[time_rows].to(dtype), "r k d -> (b k) r d", b=B),
            repeat(channel_key[channel_rows].to(dtype), "r k d -> (b k) r d", b=B),
            *(
                repeat(bias.to(dtype), "k d -> (b k) 1 1 d", b=B)
                for bias in (p.content_bias, p.time_bias, p.channel_bias)
            ),
            _masks(p, dtype),
            tuple(_blocks(p)),
        )
    output = rearrange(output.to(p.query.dtype), "(b k) t (g c) d -> b t c (k g) d", b=B, c=C)
    return output if p.all_real else output.masked_fill(~p.real[..., None, None], 0.0)


class _Block(NamedTuple):
    """Queries of segments start … stop−1: they score content on near_start … near_stop−1, and see keys < key_stop."""

    start: int
    stop: int
    near_start: int
    near_stop: int
    key_stop: int
    causal: bool
    window: int | None  # None: all of the near segments are in the window of all of the queries

    def pieces(self, step: int) -> Iterator[tuple[int, int, bool]]:
        """Ranges of key segments, and whether they are near; far ones in steps of `step` segments."""
        if self.near_start < self.near_stop:
            yield self.near_start, self.near_stop, True
        for first, last in ((0, self.near_start), (self.near_stop, self.key_stop)):
            for start in range(first, last, step):
                yield start, min(start + step, last), False


def _blocks(p: Problem) -> Iterator[_Block]:
    """Whole query segments; those of a dense last segment are a block of their own."""
    _, T, C, H, _ = p.query.shape
    size = max(1, _BLOCK_TOKENS // (C * H // p.key.shape[3]))
    window = p.window if "content" in p.components else -1
    dense = p.dense_last_segment and window is not None and window >= 0
    cuts = [*range(0, T - dense, size), *([T - 1] if dense else []), T]
    for start, stop in itertools.pairwise(cuts):
        key_stop = stop if p.causal else T
        if window is None or (dense and start == T - 1):
            yield _Block(start, stop, 0, key_stop, key_stop, p.causal, None)
        elif window < 0:
            yield _Block(start, stop, 0, 0, key_stop, p.causal, None)
        else:
            near_start, near_stop = max(0, start - window), min(key_stop, stop + window)
            uneven = stop - 1 - window > near_start or start + window + 1 < near_stop
            yield _Block(start, stop, near_start, near_stop, key_stop, p.causal, window if uneven else None)


class _Masks(NamedTuple):
    """What is not real, with one row for each of K: whole segments, whole channels, and what else is missing."""

    segments: Tensor  # bool [K, T]
    channels: Tensor  # bool [K, C]
    holes: Tensor | None  # 0 or −∞, [K, T, C]; None where segments and channels tell all

    def rows(self, rows: slice) -> _Masks:
        return _Masks(self.segments[rows], self.channels[rows], None if self.holes is None else self.holes[rows])


def _masks(p: Problem, dtype: torch.dtype) -> _Masks | None:
    if p.all_real:
        return None
    H_kv = p.key.shape[3]
    segments, channels = p.real.any(2), p.real.any(1)
    hole = segments[:, :, None] & channels[:, None] & ~p.real
    holes = None
    if hole.any():
        holes = torch.zeros(hole.shape, dtype=dtype, device=hole.device).masked_fill_(hole, -math.inf)
        holes = repeat(holes, "b t c -> (b k) t c", k=H_kv)
    return _Masks(repeat(~segments, "b t -> (b k) t", k=H_kv), repeat(~channels, "b c -> (b k) c", k=H_kv), holes)


class _Inputs(NamedTuple):
    query: Tensor  # [K, T, M, d]
    key: Tensor  # [K, T, C, d]
    value: Tensor  # [K, T, C, d]
    time_table: Tensor  # [K, 2T−1, d]
    channel_table: Tensor  # [K, 2C−1, d]
    content_bias: Tensor  # [K, 1, 1, d]
    time_bias: Tensor  # [K, 1, 1, d]
    channel_bias: Tensor  # [K, 1, 1, d]

    def rows(self, rows: slice) -> _Inputs:
        return _Inputs(*(tensor[rows] for tensor in self))


class _SeparableAttention(torch.autograd.Function):
    """Save the maximum and the denominator of the softmax, and compute the weights again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        *tensors, masks, blocks = args
        inputs = _Inputs(*tensors)
        output = torch.empty_like(inputs.query)
        highest, total = inputs.query.new_empty((2, *inputs.query.shape[:3], 1))
        scratch = _Scratch(inputs.query)
        for rows in _row_chunks(inputs, blocks):
            part, part_masks = inputs.rows(rows), masks and masks.rows(rows)
            for block in blocks:
                queries = slice(block.start, block.stop)
                results = _Scores(part, part_masks, block, scratch).attend()
                for tensor, result in zip((output, highest, total), results, strict=True):
                    tensor[rows, queries] = result.view_as(tensor[rows, queries])
        ctx.save_for_backward(*inputs, output, highest, total)
        ctx.masks, ctx.blocks = masks, blocks
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return (*_SeparableGradients.apply(grad_output, *ctx.saved_tensors, ctx.masks, ctx.blocks), None, None)


class _SeparableGradients(torch.autograd.Function):
    """Gradients of the inputs; a node of its own, so that who differentiates it again is told and gets no zeros."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, *args: Any) -> tuple[Tensor, ...]:
        *tensors, output, highest, total, masks, blocks = args
        inputs = _Inputs(*tensors)
        grad_output = torch.div(grad_output, total, out=torch.empty_like(output))
        delta = (grad_output * output).sum(-1, keepdim=True)
        grads = _Inputs(*(torch.zeros_like(tensor) for tensor in inputs))
        scratch = _Scratch(inputs.query)
        with torch.autocast(output.device.type, enabled=False):
            for rows in _row_chunks(inputs, blocks):
                part, part_masks = inputs.rows(rows), masks and masks.rows(rows)
                for block in blocks:
                    queries = slice(block.start, block.stop)
                    _Scores(part, part_masks, block, scratch).add_gradients(
                        grads.rows(rows), grad_output[rows, queries], delta[rows, queries], highest[rows, queries]
                    )
        return tuple(grads)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise RuntimeError(
            "impl='separable' has no second derivative: its gradients cannot be differentiated again; "
            "use impl='reference' for that"
        )


def _row_chunks(inputs: _Inputs, blocks: tuple[_Block, ...]) -> Iterator[slice]:
    """Slices of the axis K for which one tile of near weights stays within its bound."""
    K, _, M, _ = inputs.query.shape
    C = inputs.key.shape[2]
    largest = max((b.stop - b.start) * M * max(1, b.near_stop - b.near_start) * C for b in blocks)
    step = max(1, _TILE_ELEMENTS // largest)
    return (slice(start, start + step) for start in range(0, K, step))


class _Scratch:
    """Memory for tiles, used again and again: fresh pages cost more time than the arithmetic done on them."""

    def __init__(self, like: Tensor) -> None:
        self.like, self.buffers = like, dict[str, Tensor]()

    def tile(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """An uninitialised tile; it holds until the same name is asked for again."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.like.new_empty(size)
        return self.buffers[name][:size].view(shape)


class _Scores:
    """The scores of one block of queries, in base 2, and what follows from them."""

    def __init__(self, inputs: _Inputs, masks: _Masks | None, block: _Block, scratch: _Scratch) -> None:
        self.inputs, self.masks, self.block, self.scratch = inputs, masks, block, scratch
        K, T, M, d = inputs.query.shape
        C = inputs.key.shape[2]
        self.shape = (K, block.stop - block.start, M // C, C)  # of the queries: [K, m, G, C]
        self.scale = d**-0.5
        query = inputs.query[:, block.start : block.stop]
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
            segments, channels = (
                masks.segments[:, None, None, None, : block.key_stop],
                masks.channels[:, None, None, None],
            )
            self.time_score = self.time_score.masked_fill(segments, -math.inf)
            self.channel_score = self.channel_score.masked_fill(channels, -math.inf)
        # Finite, so that a row of −∞ minus its maximum is −∞ and not NaN.
        self.lowest = torch.finfo(query.dtype).min / 4
        self.channel_max = self.channel_score.amax(-1, keepdim=True).clamp_(min=self.lowest)
        self.channel_weight = (self.channel_score - self.channel_max).exp2_()

    def attend(self) -> tuple[Tensor, Tensor, Tensor]:
        """Output [K, m·M, d] of the queries, the highest logit and, relative to it, the denominator."""
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
        return output, highest, total

    def add_gradients(self, grads: _Inputs, grad_output: Tensor, delta: Tensor, highest: Tensor) -> None:
        """Add the gradients that arise in this block to `grads`; grad_output and delta are over the denominator."""
        x = self.inputs
        grad_output, delta = grad_output.flatten(1, 2), delta.flatten(1, 2)
        highest = highest.reshape(*self.shape, 1)
        content_grad = torch.zeros_like(self.content_query)
        time_grad = torch.zeros_like(self.time_score)
        channel_grad = torch.zeros_like(self.channel_score)
        for first, last, near in self._pieces():
            weights = self._weights(first, last, near, highest)
            keys = slice(first, last)
            grads.value[:, keys].flatten(1, 2).baddbmm_(_tokens(weights).mT, grad_output)
            grad = self.scratch.tile("gradient", weights.shape)
            torch.bmm(grad_output, x.value[:, keys].flatten(1, 2).mT, out=_tokens(grad))
            _tokens(grad).sub_(delta)
            grad *= weights
            time_grad[..., keys] = grad.sum(-1)
            channel_grad += grad.sum(-2)
            if near:
                if self.block.window is not None:
                    grad *= self._in_window(first, last)
                content_grad.baddbmm_(_tokens(grad), x.key[:, keys].flatten(1, 2), alpha=self.scale)
                grads.key[:, keys].flatten(1, 2).baddbmm_(_tokens(grad).mT, self.content_query, alpha=self.scale)

        K, m, G, C = self.shape
        time_rows_grad = time_grad.new_zeros(K, m * G * C, m - 1 + self.block.key_stop)
        self._time_positions(time_rows_grad).copy_(time_grad)
        channel_rows_grad = channel_grad.new_zeros(K, m * G * C, 2 * C - 1)
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
            grads.query[:, self.block.start : self.block.stop].flatten(1, 2).add_(query_grad)

    @property
    def _rank_one(self) -> bool:
        # With holes, s_max + l_max may lie above every real logit, so far that all weights underflow.
        return self.masks is None or self.masks.holes is None

    def _pieces(self) -> Iterator[tuple[int, int, bool]]:
        return self.block.pieces(max(1, _TILE_ELEMENTS // (math.prod(self.shape) * self.shape[-1])))

    def _product(self, queries: Tensor, table: Tensor) -> Tensor:
        """Scaled products in base 2: [K, m·M, d] and [K, J, d] -> [K, m·M, J]."""
        return torch.bmm(queries, table.mT).mul_(self.scale * math.log2(math.e))

    def _time_positions(self, by_row: Tensor) -> Tensor:
        """View scores by table row [K, m·M, m−1+keys] as scores by key segment [K, m, G, C, keys]."""
        K, m, G, C = self.shape
        return _by_position(by_row, K, m, G * C).unflatten(2, (G, C))

    def _channel_positions(self, by_row: Tensor) -> Tensor:
        """View scores by table row [K, m·M, 2·C−1] as scores by key channel [K, m, G, C, C]."""
        K, m, G, C = self.shape
        return _by_position(by_row, K * m * G, C, 1).view(K, m, G, C, C)

    def _logits(self, first: int, last: int, near: bool) -> Tensor:
        """[K, m, G, C, keys, C]."""
        logits = self.scratch.tile("near" if near else "far", (*self.shape, last - first, self.shape[-1]))
        torch.add(self.time_score[..., first:last, None], self.channel_score[..., None, :], out=logits)
        if near:
            keys = self.inputs.key[:, first:last].flatten(1, 2).mT
            scale = self.scale * math.log2(math.e)
            if self.block.window is None:
                _tokens(logits).baddbmm_(self.content_query, keys, alpha=scale)
            else:
                content_score = torch.bmm(self.content_query, keys).view_as(logits)
                logits.addcmul_(content_score, self._in_window(first, last), value=scale)
        if self.masks is not None and self.masks.holes is not None:
            logits += self.masks.holes[:, None, None, None, first:last]
        return logits

    def _weights(self, first: int, last: int, near: bool, offset: Tensor, logits: Tensor | None = None) -> Tensor:
        """Exponentials of the logits minus `offset`; [K, m, G, C, keys, C]."""
        if near or not self._rank_one:
            logits = logits if near and logits is not None else self._logits(first, last, near)
            return logits.sub_(offset[..., None]).exp2_()
        time_weight = (self.time_score[..., first:last] + (self.channel_max - offset)).exp2_()
        weights = self.scratch.tile("far", (*time_weight.shape, self.shape[-1]))
        return torch.mul(time_weight[..., None], self.channel_weight[..., None, :], out=weights)

    def _in_window(self, first: int, last: int) -> Tensor:
        """1 where a query segment scores the content of a key segment, else 0; [m, 1, 1, keys, 1]."""
        assert self.block.window is not None
        device, dtype = self.time_score.device, self.time_score.dtype
        query_segment = torch.arange(self.block.start, self.block.stop, device=device)
        key_segment = torch.arange(first, last, device=device)
        near = (query_segment[:, None] - key_segment).abs() <= self.block.window
        return near.to(dtype)[:, None, None, :, None]


def _tokens(tile: Tensor) -> Tensor:
    """Flatten [K, m, G, C, keys, C] to [K, m·M, keys·C]."""
    return tile.flatten(4).flatten(1, 3)


def _by_position(by_row: Tensor, outer: int, positions: int, inner: int) -> Tensor:
    """View [outer · positions · inner, J] as [outer, positions, inner, keys], J = positions − 1 + keys.

    The rows of a table run towards smaller distances, so position i reads key k in row positions − 1 − i + k.
    """
    rows = by_row.shape[-1]
    sizes = (outer, positions, inner, rows - positions + 1)
    return by_row.as_strided(sizes, (positions * inner * rows, inner * rows - 1, rows, 1), positions - 1)
