"""A window that slides over a recording: each segment is encoded once and decoded with the segments before it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mvpa_ts.ieeg.model.amplitude import LEVEL_SEGMENTS
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.preprocessing.segments import Segments


def sliding_features(
    model: MVPFormer, segments: Segments, *, context: int | None = None, batch_size: int = 8, first: int = 0
) -> Iterator[tuple[range, Tensor, Tensor]]:
    """Features of each segment as the last one of its window, in memory that does not grow with the recording.

    Each segment is read and encoded once, although `context` windows hold it. Windows that begin before the recording
    are padded on the left with masked segments.

    Parameters
    ----------
    model : MVPFormer
        Used in the mode it is in, on its device.
    context : int, optional
        Segments of a window; default ``model.config.context``.
    batch_size : int, default 8
        Windows that go through the decoder at a time.
    first : int, default 0
        Segment to begin with; the `context` − 1 before it, and those of their running level, are encoded again.

    Yields
    ------
    batch : range
        Segments, up to a multiple of `batch_size`, so that a run resumed there has the batches of the whole run.
    features : Tensor, shape (n, C, D)
        Of these segments; zero where not valid.
    valid : bool Tensor, shape (n, C)
    """
    context = model.config.context if context is None else context
    if not 1 <= context <= model.config.time_rows:
        raise ValueError(f"context must be from 1 to time_rows ({model.config.time_rows}), got {context}")
    # The windows of the first segments need those before them, also where a run goes on in the middle of a recording.
    embeddings, valid, past = encoded_past(model, segments, first, context - 1, batch_size)
    for batch in _batches(first, segments.num_segments, batch_size):
        new_embeddings, new_valid, past = _encoded(model, segments, batch, past)
        embeddings, valid = torch.cat([embeddings, new_embeddings]), torch.cat([valid, new_valid])
        # Row i holds the places of window i in the embeddings so far: windows overlap, so encoding each alone would
        # cost `context` times as much.
        rows = torch.arange(context, device=valid.device) + torch.arange(len(batch), device=valid.device)[:, None]
        token_mask = valid[rows]  # [n, T, C]
        # Without a mask the attention takes its quicker way.
        features = model.decode(embeddings[rows], token_mask=None if bool(token_mask.all()) else token_mask)[:, -1]
        yield batch, features, new_valid
        embeddings, valid = embeddings[len(batch) :], valid[len(batch) :]


# Embeddings [n, C, D], which of them are valid [n, C], and the past that the next segment is encoded with.
Encoded = tuple[Tensor, Tensor, Tensor | None]


def encoded_past(model: MVPFormer, segments: Segments, first: int, length: int, batch_size: int) -> Encoded:
    """Embeddings [length, C, D] and validity [length, C] of what precedes a segment; masked before the recording.

    The third is the past that the segment is encoded with.
    """
    weight = next(model.parameters())
    channels = len(segments.channel_names)
    embeddings = torch.zeros(length, channels, model.config.dim, device=weight.device, dtype=weight.dtype)
    valid = torch.zeros(length, channels, dtype=torch.bool, device=weight.device)
    past: Tensor | None = None
    # Amplitude is measured against a running level, whose segments lie before the first window.
    lead = 0 if model.amplitude is None else LEVEL_SEGMENTS - 1
    for batch in _batches(max(first - length - lead, 0), first, batch_size):
        new_embeddings, new_valid, past = _encoded(model, segments, batch, past)
        embeddings = torch.cat([embeddings, new_embeddings])[len(batch) :]
        valid = torch.cat([valid, new_valid])[len(batch) :]
    return embeddings, valid, past


def _encoded(model: MVPFormer, segments: Segments, batch: range, past: Tensor | None) -> Encoded:
    """Embeddings [n, C, D] of segments, which of their channels are valid [n, C], and the past to go on with."""
    device = next(model.parameters()).device
    signal, mask = segments.read(batch.start, batch.stop)
    valid = torch.from_numpy(mask).to(device)
    embeddings, past = model.encode_onward(torch.from_numpy(signal)[None].to(device), valid[None], past)
    return embeddings[0], valid, past


def _batches(first: int, count: int, size: int) -> Iterator[range]:
    """Ranges that end on multiples of `size`."""
    while first < count:
        last = min((first // size + 1) * size, count)
        yield range(first, last)
        first = last
