"""Automatic selection of channels by variance and kurtosis, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.recordings.channels import in_recording_order

# Channels that "auto" selects at most, as in the paper.
MOST_CHANNELS = 32


class Moments:
    """Variance and kurtosis of channels, gathered block by block in bounded memory."""

    def __init__(self, num_channels: int) -> None:
        self.count = np.zeros(num_channels)
        self.sums = np.zeros((4, num_channels))

    def add(self, signal: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
        """Add samples [C, n] of the channels that are `valid` [C]."""
        # Fourth powers of µV do not fit float32.
        x = signal[valid].astype(np.float64)
        power = np.ones_like(x)
        for order in range(4):
            power *= x
            self.sums[order, valid] += power.sum(1)
        self.count[valid] += x.shape[1]

    def variance_and_kurtosis(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Population variance and Pearson's kurtosis (3 for a Gaussian) of each channel; NaN without a sample."""
        with np.errstate(invalid="ignore", divide="ignore"):
            m1, m2, m3, m4 = self.sums / self.count
            variance = m2 - m1**2
            # Central moments from raw ones, which can be added up block by block.
            fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
            return variance, fourth / variance**2


def with_channels(
    segments: Segments, channels: Literal["auto", "all"] | Sequence[str], most: int = MOST_CHANNELS
) -> Segments:
    """The segments with some of their channels, in the recording's order.

    Parameters
    ----------
    segments : Segments
    channels : {"auto", "all"} or sequence of str
        "auto" takes up to `most` by `select_channels`; or names, see `Segments`.
    most : int

    Raises
    ------
    ValueError
        A name is unknown, or there is none.

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_recording
    >>> segments = Segments(simulate_recording("S01", num_channels=6, duration=60))
    >>> len(with_channels(segments, "auto", most=4).channel_names)
    4
    """
    if channels == "all":
        chosen = segments.channel_names
    elif channels == "auto":
        chosen = select_channels(segments, most)
    else:
        chosen = in_recording_order(channels, segments.channel_names)
    if chosen == segments.channel_names:
        return segments
    return Segments(segments.recording, segments.preprocessing, chosen)


def select_channels(segments: Segments, count: int = MOST_CHANNELS, minutes: float = 30.0) -> tuple[str, ...]:
    """The channels that say most, by the paper's rule.

    Variance and kurtosis are taken over the first `minutes`. Channels with a variance outside the 1st to 99th
    percentile or a kurtosis above the 95th are set aside; the others are ranked by variance / (1 + kurtosis), with
    Pearson's kurtosis, which is positive. The best `count` are taken, and those set aside fill up, best first, when
    there are not enough.

    Parameters
    ----------
    segments : Segments
        Preprocessed signal; masked stretches are left out, a channel without any valid segment is taken last.
    count : int
    minutes : float

    Returns
    -------
    tuple of str
        In the recording's order; all channels where there are no more than `count`.
    """
    names = segments.channel_names
    if len(names) <= count:
        return names
    moments = Moments(len(names))
    for index, signal, valid in segments:
        if segments.starts[index] >= 60 * minutes:
            break
        moments.add(signal, valid)
    chosen = rank_channels(*moments.variance_and_kurtosis())[:count]
    return tuple(names[i] for i in sorted(chosen))


def rank_channels(variance: NDArray[np.float64], kurtosis: NDArray[np.float64]) -> list[int]:
    """Indices of channels, best first: those kept by the percentile rules, then those set aside, then those unknown."""
    finite = np.isfinite(variance) & np.isfinite(kurtosis)
    if not finite.any():
        return list(range(len(variance)))
    # Extremes are set aside: a loose contact has the highest variance, and an artefact the highest kurtosis.
    low, high = np.percentile(variance[finite], [1, 99])
    kept = finite & (variance >= low) & (variance <= high) & (kurtosis <= np.percentile(kurtosis[finite], 95))
    score = np.where(finite, variance / (1 + kurtosis), 0.0)
    # By the last key first; channels that are alike stay in order.
    return np.lexsort((-score, ~kept, ~finite)).tolist()
