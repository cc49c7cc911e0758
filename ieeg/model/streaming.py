"""MVPFormer on a signal that keeps coming: one step per new segment, however long the past."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mvpa_ts.attention.functional import check_mask
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.model.mvpformer import MVPFormer


class StreamingMVPFormer:
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
    channels from its first segment on, so it equals the full pass when exactly `context` segments have come, unless
    the first or the last channel is missing, which the full pass does not count.

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
            raise ValueError("a stream needs attention='mvpa': rotary positions change as the stream goes on")
        for name, value, rows in (
            ("context", context, config.time_rows),
            ("num_channels", num_channels, config.channel_rows),
        ):
            # The cache is made for these sizes, and a row that the codebook lacks would only show after minutes of a
            # stream.
            if not 1 <= value <= rows:
                raise ValueError(f"{name} must be from 1 to {rows}, the rows of the codebook, got {value}")
        self.model = model.eval()
        self.num_channels = num_channels
        self.context = context
        with torch.inference_mode():
            codebooks = model.stack.time_codebook, model.stack.channel_codebook
            sizes = {"num_channels": num_channels, "context": context}
            blocks: Any = model.stack.blocks
            self._layers = [(block, block.attention.make_cache(*codebooks, **sizes)) for block in blocks]
        self.reset()

    def reset(self) -> None:
        """Forget the past."""
        for _, cache in self._layers:
            cache.reset()
        self._past: Tensor | None = None

    @torch.inference_mode()
    def step(self, signal: Tensor, channel_mask: Tensor | None = None) -> Tensor:
        """Features [C, D] of the next segment, a signal [C, 2560] in µV at 512 Hz; channel_mask [C], True = real."""
        expected = (self.num_channels, SEGMENT_SAMPLES)
        if tuple(signal.shape) != expected:
            raise ValueError(f"signal must be one segment, of shape {expected}, got {tuple(signal.shape)}")
        channel_mask = self._checked_mask(channel_mask)
        segment = signal.to(channel_mask.device)[None]
        embeddings, self._past = self.model.encode_onward(segment, channel_mask[None, None], self._past)
        return self._advance(embeddings[0, 0], channel_mask)

    @torch.inference_mode()
    def step_embeddings(self, embeddings: Tensor, channel_mask: Tensor | None = None) -> Tensor:
        """Features [C, D] of the next segment from its embeddings [C, D], as `MVPFormer.encode` gives them.

        For embeddings that no signal belongs to, such as predictions that are fed back.
        """
        expected = (self.num_channels, self.model.config.dim)
        if tuple(embeddings.shape) != expected:
            raise ValueError(f"embeddings must be of one segment, of shape {expected}, got {(*embeddings.shape,)}")
        return self._advance(embeddings, self._checked_mask(channel_mask))

    def _checked_mask(self, channel_mask: Tensor | None) -> Tensor:
        """The mask [C] on the model's device; all channels without one."""
        device = next(self.model.parameters()).device
        if channel_mask is None:
            return torch.ones(self.num_channels, dtype=torch.bool, device=device)
        check_mask("channel_mask", channel_mask, (self.num_channels,))
        return channel_mask.to(device)

    def _advance(self, embeddings: Tensor, channel_mask: Tensor) -> Tensor:
        """One step through the blocks: features [C, D], keys and values into the cache."""
        embeddings = embeddings.masked_fill(~channel_mask[:, None], 0.0)
        # The first row becomes the output; the second, where there is one, goes on into the cache.
        # A segment looks at the whole window as the newest one, and within its usual reach once it is part of the past.
        x = embeddings.expand(2 if self._twice else 1, -1, -1)
        for block, cache in self._layers:
            cache.advance(channel_mask)
            x = block.step(x, cache)
        return self.model.stack.norm(x[0]).masked_fill(~channel_mask[:, None], 0.0)

    @property
    def _twice(self) -> bool:
        config = self.model.config
        return config.dense_last_segment and config.window is not None and "content" in config.components
