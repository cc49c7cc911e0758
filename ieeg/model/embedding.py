"""Embeddings of a recording: features of the last segment of each window, one row per 5 s and channel."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mvpa_ts.ieeg.preprocessing.segments import Segments

if TYPE_CHECKING:
    from mvpa_ts.ieeg.model.mvpformer import MVPFormer


@dataclass(frozen=True)
class Embeddings:
    """What `MVPFormer.embed` returns.

    Attributes
    ----------
    features : Tensor, shape (n, C, D)
        Features of each segment, seen with the segments before it; zero where `valid` is False.
    valid : bool Tensor, shape (n, C)
        False where the signal is missing or flat.
    starts : ndarray of float64, shape (n,)
        Seconds at which the segments begin.
    channel_names : tuple of str
    """

    features: Tensor
    valid: Tensor
    starts: NDArray[np.float64]
    channel_names: tuple[str, ...]


def embed_segments(
    model: MVPFormer, segments: Segments, context: int | None = None, batch_size: int = 8
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Run over a recording once, in memory that does not grow with it.

    Each segment is read and encoded once, although it is in as many windows as a window has segments. The first
    windows are padded on the left.

    Parameters
    ----------
    model : MVPFormer
        Used in the mode it is in; on its own device.
    segments : Segments
    context : int, optional
        Segments of a window; default ``model.config.context``.
    batch_size : int, default 8
        Windows that go through the decoder at a time.

    Yields
    ------
    index : int
        Of the window's last segment.
    features : Tensor, shape (C, D)
        Of that segment; zero where not valid.
    valid : bool Tensor, shape (C,)

    Raises
    ------
    ValueError
        The segments are not 512 Hz, or the context is longer than the model's time codebook.
    """
    context = model.config.context if context is None else context
    if not 1 <= context <= model.config.time_rows:
        raise ValueError(f"context must be in 1 … time_rows ({model.config.time_rows}), got {context}")
    device = next(model.parameters()).device
    past: deque[tuple[Tensor, Tensor]] = deque(maxlen=context)
    windows: list[tuple[int, Tensor, Tensor]] = []
    for index, signal, valid in segments:
        token_mask = torch.from_numpy(valid).to(device)
        embedding = model.encode(torch.from_numpy(signal).to(device)[None], token_mask[None, None])[0, 0]
        if not past:
            past.extend((torch.zeros_like(embedding), torch.zeros_like(token_mask)) for _ in range(context - 1))
        past.append((embedding, token_mask))
        tokens, masks = (torch.stack(list(part)) for part in zip(*past, strict=True))
        windows.append((index, tokens, masks))
        if len(windows) == batch_size:
            yield from _decoded(model, windows)
            windows = []
    if windows:
        yield from _decoded(model, windows)


def _decoded(model: MVPFormer, windows: list[tuple[int, Tensor, Tensor]]) -> Iterator[tuple[int, Tensor, Tensor]]:
    indices, tokens, masks = zip(*windows, strict=True)
    token_mask = torch.stack(masks)
    # All real: without a mask the attention takes its quicker way.
    features = model.decode(torch.stack(tokens), token_mask=None if token_mask.all() else token_mask)[:, -1]
    yield from zip(indices, features, token_mask[:, -1], strict=True)
