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
    first, second = np.array([*itertools.combinations(range(len(x)), 2)]).T
    size = 2 * window
    scores = np.zeros(count)
    for index in range(count):
        middle = int((min(index, x.shape[1] // segment - 1) + 0.5) * segment)
        begin = min(max(middle - window // 2, 0), max(x.shape[1] - window, 0))
        stretch = x[:, begin : begin + window]
        # Spikes and pops would decide alone.
        limit = 4.5 * np.median(np.abs(stretch), axis=1, keepdims=True)
        stretch = np.clip(stretch, -limit, limit)
        stretch = stretch / np.maximum(np.linalg.norm(stretch, axis=1, keepdims=True), 1e-9)
        spectrum = scipy_fft.rfft(stretch.astype(np.float32), size, axis=1)
        correlation = scipy_fft.irfft(spectrum[first] * spectrum[second].conj(), size, axis=1)
        opposite = np.roll(correlation[:, ::-1], 1, axis=1)
        scores[index] = np.abs(correlation - opposite)[:, lags].max() / 2
    return scores
