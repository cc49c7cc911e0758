"""Embeddings of a recording: features of the last segment of each window, one row per 5 s and channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mvpa_ts.ieeg.constants import check_rate
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.sliding import sliding_features
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.recordings.reading import AnyRecording


@dataclass(frozen=True)
class Embeddings:
    """What `embed` returns.

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

    def __repr__(self) -> str:
        segments, channels, width = self.features.shape
        silent = int((~self.valid).sum())
        missing = f" ({silent} without a signal)" if silent else ""
        return f"<Embeddings of {segments} segments × {channels} channels{missing} × {width}>"


# Not inference_mode: a probe could not be trained on its tensors.
@torch.no_grad()
def embed(
    model: MVPFormer,
    recording: AnyRecording,
    *,
    preprocessing: Preprocessing | None = None,
    channels: Sequence[str] | None = None,
    context: int | None = None,
    batch_size: int = 8,
) -> Embeddings:
    """Features of a recording, one row per 5 s and channel, each seen with the segments before it.

    Parameters
    ----------
    model : MVPFormer
        Used in evaluation mode.
    recording : Recording, Raw, path, or (samples in µV, sfreq)
    preprocessing : Preprocessing, optional
        Default: `default_preprocessing(recording)`.
    channels : sequence of str, optional
        Names, in this order; default all.
    context : int, optional
        Segments of a window; default ``model.config.context``.
    batch_size : int, default 8
        Windows that go through the decoder at a time.

    Returns
    -------
    Embeddings
        On the CPU, without gradients. `mvpa_ts.ieeg.model.sliding.sliding_features` gives the same rows batch by batch,
        for recordings whose features do not fit in memory.

    Examples
    --------
    >>> from mvpa_ts.ieeg import MVPFormer, embed, mvpformer_tiny, simulate_recording
    >>> embed(MVPFormer(mvpformer_tiny()), simulate_recording("S01", num_channels=4, duration=62))
    <Embeddings of 13 segments × 4 channels × 64>
    """
    training = model.training
    segments = Segments(recording, preprocessing, channels)
    # Before the first segment is read: the model would embed a signal of another rate without complaint.
    check_rate(segments.preprocessing.sfreq)
    try:
        windows = sliding_features(model.eval(), segments, context=context, batch_size=batch_size)
        batches = [(features.cpu(), valid.cpu()) for _, features, valid in windows]
    finally:
        model.train(training)
    features, valid = (torch.cat(column) for column in zip(*batches, strict=True))
    return Embeddings(features, valid, segments.starts, segments.channel_names)
