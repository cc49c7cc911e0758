"""Deprecated: samples of any number into a stream of segments; `StreamingDetector` takes its place."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mvpa_ts.ieeg.constants import SAMPLING_RATE, SEGMENT_SAMPLES, SEGMENT_SECONDS
from mvpa_ts.ieeg.preprocessing.bad_samples import bad_samples, flat_run

if TYPE_CHECKING:
    from mvpa_ts.ieeg.model.mvpformer import MVPFormer


@dataclass(frozen=True)
class StreamedSegment:
    """What `feed` gives for each 5 s; deprecated with it.

    Attributes
    ----------
    start : float
        Seconds from the first sample to the segment's.
    features : Tensor, shape (C, D)
    valid : bool Tensor, shape (C,)
        Channels that had a signal; the features of the others are zero.
    probability : float or None
        Of class 1; NaN where no channel had a signal, None without a classification head.
    """

    start: float
    features: Tensor
    valid: Tensor
    probability: float | None


class SampleFeed:
    """The deprecated method `feed` of `StreamingMVPFormer`."""

    model: MVPFormer
    num_segments: int
    _waiting: NDArray[np.float32]

    @abstractmethod
    def step(self, signal: Tensor, channel_mask: Tensor | None = None) -> Tensor:
        """See `StreamingMVPFormer.step`."""

    def feed(self, samples: ArrayLike | Tensor) -> Iterator[StreamedSegment]:
        """Take new samples [C, n] in µV at 512 Hz, any n, and give what is complete.

        .. deprecated:: 0.1
           Use `mvpa_ts.ieeg.StreamingDetector`, which also resamples and filters, or `step` with whole segments.
        """
        warnings.warn(
            "StreamingMVPFormer.feed is deprecated: use mvpa_ts.ieeg.StreamingDetector for samples as they come, or "
            "step with segments of 2560 samples",
            DeprecationWarning,
            stacklevel=2,
        )
        new = np.asarray(samples, np.float32)
        if new.ndim != 2 or len(new) != len(self._waiting):
            raise ValueError(f"samples must be [C, n] with C = {len(self._waiting)}, got shape {new.shape}")
        self._waiting = np.concatenate([self._waiting, new], axis=1)
        return self._complete()

    def _complete(self) -> Iterator[StreamedSegment]:
        while self._waiting.shape[1] >= SEGMENT_SAMPLES:
            signal, self._waiting = np.split(self._waiting, [SEGMENT_SAMPLES], axis=1)
            bad = bad_samples(signal, flat_run(SAMPLING_RATE))
            valid = torch.ones(len(signal), dtype=torch.bool)
            if bad is not None:
                valid = torch.from_numpy(bad.mean(1) <= 0.5)
                signal = np.where(bad, 0.0, signal)
            start = float(self.num_segments * SEGMENT_SECONDS)
            features = self.step(torch.from_numpy(signal), valid)
            probability = None
            if self.model.head is not None:
                with torch.inference_mode():
                    logits = self.model.classify(features[None, None], valid[None].to(features.device))
                probability = float(logits.softmax(-1)[0, 1]) if valid.any() else math.nan
            yield StreamedSegment(start, features, valid, probability)
