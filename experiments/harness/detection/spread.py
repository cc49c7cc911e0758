"""The rule that knows what a seizure of the hard cohort is: a wave that reaches another channel later.

It has no weights. Of each pair of channels it takes the cross-correlation over 20 s at all lags up to 8 s, less that at
the opposite lag: what is in both at once, a rhythm with its period included, cancels out. It shows what can be found in
these recordings, and is no detector for patients, in whose seizures no wave is a copy of another.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import fft as scipy_fft
from scipy import signal as scipy_signal

from mvpa_ts.ieeg import Recording, Segments

RATE = 128
SEGMENT_SECONDS, WINDOW_SECONDS, LAG_SECONDS = 5, 20, (0.25, 8)
TOGETHER = 8  # windows whose correlations are taken at once
SPREAD = "rule that knows the spread"


@cache
def spread(recording: Recording) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Score of each segment, and where the segments begin (s)."""
    segments = Segments(recording)
    return spread_scores(segments), segments.starts


def spread_scores(segments: Segments) -> npt.NDArray[np.float64]:
    """Score of each segment, in (0, 1)."""
    count = segments.num_samples // segments.segment_samples
    signal = segments.read(0, count)[0].astype(np.float64)
    return travelling(scipy_signal.decimate(signal, 4, axis=1), RATE, segments.num_segments)


def travelling(
    signal: npt.NDArray[np.float64], rate: int, count: int, seconds: int = WINDOW_SECONDS
) -> npt.NDArray[np.float64]:
    """Largest lagged correlation of two channels, over so long around each of so many segments of a signal [C, N]."""
    segment, window = SEGMENT_SECONDS * rate, seconds * rate
    lags = slice(*(int(min(lag, seconds / 2) * rate) for lag in LAG_SECONDS))
    x = np.diff(signal, axis=1, prepend=0.0)
    x = scipy_signal.sosfiltfilt(scipy_signal.butter(2, 3.0, "highpass", fs=rate, output="sos"), x, axis=1)
    x = x.astype(np.float32)
    first, second = np.array([*itertools.combinations(range(len(x)), 2)]).T
    # No lag that counts wraps around.
    size = scipy_fft.next_fast_len(window + lags.stop, real=True)
    opposite = slice(-lags.start, -lags.stop, -1)
    middles = (np.minimum(np.arange(count), x.shape[1] // segment - 1) + 0.5) * segment
    begins = np.clip(middles.astype(int) - window // 2, 0, max(x.shape[1] - window, 0))
    windows = np.lib.stride_tricks.sliding_window_view(x, min(window, x.shape[1]), axis=1)
    scores = []
    for some in np.split(begins, range(TOGETHER, count, TOGETHER)):
        stretch = windows[:, some]
        # Spikes and pops would decide alone.
        limit = 4.5 * _median(np.abs(stretch))
        stretch = np.clip(stretch, -limit, limit)
        stretch /= np.maximum(np.linalg.norm(stretch, axis=-1, keepdims=True), 1e-9)
        spectrum = scipy_fft.rfft(stretch, size)
        product = spectrum[first]
        product *= spectrum[second].conj()
        correlation = scipy_fft.irfft(product, size)
        scores.append(np.abs(correlation[..., lags] - correlation[..., opposite]).max((0, 2)) / 2)
    return np.concatenate(scores).astype(np.float64)


def _median(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Median over the last axis, which is kept: numpy's takes ten times as long."""
    middle = x.shape[-1] // 2
    x = np.partition(x, middle, axis=-1)
    upper = x[..., middle : middle + 1]
    return upper if x.shape[-1] % 2 else (x[..., :middle].max(-1, keepdims=True) + upper) / 2
