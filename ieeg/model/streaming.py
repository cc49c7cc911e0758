"""MVPFormer on a signal that keeps coming: one step per new segment, however long the past."""

from __future__ import annotations

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from mvpa_ts.attention import MVPAttention
from mvpa_ts.attention.last_segment import last_segment_attention
from mvpa_ts.blocks import ParallelBlock
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.sample_feed import SampleFeed
from mvpa_ts.ieeg.model.sample_feed import StreamedSegment as StreamedSegment  # deprecated, at its documented path


class StreamingMVPFormer(SampleFeed):
    """Features of each new segment from cached keys and values of the segments before it.

    A segment is computed once for its output and, where ``dense_last_segment`` is on, a second time, with the window
    alone, for the cache: that is what it will be for the segments to come. The result equals the full pass over the
    stream so far until `context` segments have come. After that the oldest segment leaves the cache; what later ones
    took from it stays in theirs, so a full pass over the last `context` segments, which never saw it, differs.

    Parameters
    ----------
    model : MVPFormer
        With ``attention="mvpa"``; it is put into evaluation mode. Its weights must not change while it streams.
    num_channels : int
    context : int, optional
        Segments that are attended to, the newest included; default ``model.config.context``.

    Raises
    ------
    ValueError
        The model is a MV-Llama, or the codebooks are too short for `context` or `num_channels`.

    Notes
    -----
    With ``row_order="released"`` the meaning of a codebook row moves with the number of segments, which in a stream
    would change all of the past at each step. Here a stream has the rows of `context` segments and `num_channels`
    channels from its first segment on, so it equals the full pass when exactly `context` segments have come.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    >>> stream = StreamingMVPFormer(MVPFormer(mvpformer_tiny()), num_channels=3)
    >>> [stream.step(segment).shape for segment in torch.randn(3, 2 * 2560).split(2560, dim=1)]  # µV at 512 Hz
    [torch.Size([3, 64]), torch.Size([3, 64])]
    """

    def __init__(self, model: MVPFormer, num_channels: int, context: int | None = None) -> None:
        config = model.config
        context = config.context if context is None else context
        if config.attention != "mvpa":
            raise ValueError("a stream needs attention='mvpa': rotary positions on the Cantor pairing move with time")
        for name, value, rows in (
            ("context", context, config.time_rows),
            ("num_channels", num_channels, config.channel_rows),
        ):
            if not 1 <= value <= rows:
                raise ValueError(f"{name} must be in 1 … {rows}, the codebook's rows, got {value}")
        self.model = model.eval()
        self.num_channels = num_channels
        self.context = context
        with torch.inference_mode():
            self._layers = [
                _Layer(block, model, num_channels, context)
                for block in model.stack.blocks
                if isinstance(block, ParallelBlock)
            ]
        self.reset()

    def reset(self) -> None:
        """Forget the past."""
        self.num_segments = 0
        """Segments seen so far."""
        device = next(self.model.parameters()).device
        self._real = torch.zeros(2 * self.context, self.num_channels, dtype=torch.bool, device=device)
        self._stop = 0
        self._waiting = np.empty((self.num_channels, 0), np.float32)
        self._past: Tensor | None = None

    @torch.inference_mode()
    def step(self, signal: Tensor, channel_mask: Tensor | None = None) -> Tensor:
        """Features [C, D] of the next segment, a signal [C, 2560] in µV at 512 Hz; channel_mask [C], True = real."""
        expected = (self.num_channels, SEGMENT_SAMPLES)
        if tuple(signal.shape) != expected:
            raise ValueError(f"signal must be one segment, of shape {expected}, got {tuple(signal.shape)}")
        if channel_mask is None:
            channel_mask = torch.ones(self.num_channels, dtype=torch.bool)
        elif channel_mask.dtype != torch.bool or channel_mask.shape != (self.num_channels,):
            raise ValueError(
                f"channel_mask must be a bool tensor of shape ({self.num_channels},), "
                f"got {channel_mask.dtype} of {tuple(channel_mask.shape)}"
            )
        weight = next(self.model.parameters())
        channel_mask = channel_mask.to(weight.device)
        segment = signal.to(weight.device)[None]

        if self._stop == len(self._real):  # the buffers are full: their newer half moves to the front
            kept = slice(self._stop - self.context + 1, self._stop)
            self._real[: self.context - 1] = self._real[kept].clone()
            for layer in self._layers:
                layer.move_to_front(kept)
            self._stop = self.context - 1
        self._real[self._stop] = channel_mask
        self._stop += 1
        self.num_segments += 1
        seen = slice(max(0, self._stop - self.context), self._stop)
        real = None if self._real[seen].all() else self._real[seen]

        # The first row becomes the output; the second, where there is one, goes on into the cache.
        embeddings, self._past = self.model.encode_onward(segment, channel_mask[None, None], self._past)
        x = embeddings[0].expand(2 if self._twice else 1, -1, -1)
        for layer in self._layers:
            x = layer.step(x, seen, real)
        features = self.model.stack.norm(x[0])
        return features.masked_fill(~channel_mask[:, None], 0.0)

    @property
    def _twice(self) -> bool:
        config = self.model.config
        return config.dense_last_segment and config.window is not None and "content" in config.components


class _Layer:
    """One block with its tables, and its cache of keys and values [H_kv, 2·context, C, d]."""

    def __init__(self, block: ParallelBlock, model: MVPFormer, num_channels: int, context: int) -> None:
        attention = block.attention
        assert isinstance(attention, MVPAttention)
        self.block, self.attention = block, attention
        assert model.stack.time_codebook is not None
        assert model.stack.channel_codebook is not None
        times, channels = model.stack.time_codebook[:context], model.stack.channel_codebook[:num_channels]
        if model.config.row_order == "released":
            times, channels = times.flip(0), channels.flip(0)
        self.time_key = rearrange(attention.time_key(times), "r (h d) -> r h d", d=attention.head_dim)
        self.channel_key = rearrange(attention.channel_key(channels), "r (h d) -> r h d", d=attention.head_dim)
        shape = (model.config.num_kv_heads, 2 * context, num_channels, attention.head_dim)
        # Twice as long as needed, so that a view of the segments in use is contiguous and moves are rare.
        self.keys, self.values = (torch.zeros(shape, dtype=times.dtype, device=times.device) for _ in range(2))

    def step(self, x: Tensor, seen: slice, real: Tensor | None) -> Tensor:
        """Map the newest segment [1 or 2, C, D] through the block; `seen` are the cache's places, the last one new."""
        attention = self.attention
        normed = self.block.norm(x)
        query, key, value = (
            rearrange(projection(normed), "s c (h d) -> s c h d", d=attention.head_dim)
            for projection in (attention.query, attention.key, attention.value)
        )
        attended = torch.empty_like(query)
        for row in range(len(x)):  # the last row stays in the cache
            self.keys[:, seen.stop - 1] = rearrange(key[row], "c h d -> h c d")
            self.values[:, seen.stop - 1] = rearrange(value[row], "c h d -> h c d")
            dense = attention.dense_last_segment and row == 0
            attended[row] = last_segment_attention(
                query[row],
                self.keys[:, seen],
                self.values[:, seen],
                self.time_key,
                self.channel_key,
                attention.content_bias,
                attention.time_bias,
                attention.channel_bias,
                window=None if dense else attention.window,
                components=attention.components,
                real=real,
            )
        return x + attention.output(rearrange(attended, "s c h d -> s c (h d)")) + self.block.mlp(normed)

    def move_to_front(self, kept: slice) -> None:
        for cache in (self.keys, self.values):
            cache[:, : kept.stop - kept.start] = cache[:, kept].clone()
