"""Embeddings of a recording: features of the last segment of each window, one row per 5 s and channel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mvpa_ts.ieeg.model.sliding import sliding_features
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

    def __repr__(self) -> str:
        segments, channels, width = self.features.shape
        silent = int((~self.valid).sum())
        missing = f" ({silent} without a signal)" if silent else ""
        return f"<Embeddings of {segments} segments × {channels} channels{missing} × {width}>"


def embed_segments(
    model: MVPFormer, segments: Segments, context: int | None = None, batch_size: int = 8
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The rows of `sliding_features` one by one, for recordings whose features do not fit in memory.

    Parameters
    ----------
    model, segments, context, batch_size
        See `mvpa_ts.ieeg.model.sliding.sliding_features`.

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
        The context is longer than the model's time codebook.
    """
    for batch, features, valid in sliding_features(model, segments, context=context, batch_size=batch_size):
        yield from zip(batch, features, valid, strict=True)
