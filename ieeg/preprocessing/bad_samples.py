"""Samples that carry nothing: NaN, flat, zero-filled or beyond a volt; found, and bridged before filters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A volt: more than any amplifier of electrodes gives, so such a sample is a fault of the file or of its unit.
MAX_UV = 1e6
# Reach of the signal that bridges a bad stretch before a filter.
BRIDGE_SECONDS = 5.0


def flat_run(sfreq: float) -> int:
    """Samples that a flat stretch has at least."""
    # A channel that repeats one value for so long is disconnected, clipped or filled up; amplifier noise never does.
    return max(round(0.25 * sfreq), 2)


def bad_samples(x: NDArray[np.floating], run: int) -> NDArray[np.bool_] | None:
    """Where a signal [C, n] (µV) is not finite, beyond `MAX_UV`, or the same for `run` samples; None if all is good."""
    # Most channels pass on two quick looks. A sum of squares shows whether anything is NaN, infinite or too large. Of
    # pairs of neighbours at every (run − 1)th sample, each flat run holds one, and reaches at least half of its length
    # to one side.
    with np.errstate(invalid="ignore", over="ignore"):
        suspicious = ~(np.array([np.dot(row, row) for row in x]) < 0.99 * MAX_UV**2)
    same = x[:, : -1 : run - 1] == x[:, 1 :: run - 1]
    if same.any():
        channels, pairs = np.nonzero(same)
        left, half = pairs * (run - 1), run // 2 - 1
        value = x[channels, left]
        flat = x[channels, np.maximum(left - half, 0)] == value
        flat |= x[channels, np.minimum(left + 1 + half, x.shape[1] - 1)] == value
        suspicious[channels[flat]] = True
    bad = None
    for channel in np.flatnonzero(suspicious):
        bad_in_channel = implausible(x[channel]) | ~np.isfinite(x[channel]) | _flat(x[channel], run)
        if bad_in_channel.any():
            # Most blocks are good throughout and cost no mask.
            bad = np.zeros(x.shape, bool) if bad is None else bad
            bad[channel] = bad_in_channel
    return bad


def implausible(x: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which samples (µV) are numbers beyond `MAX_UV`, or infinite.

    Examples
    --------
    >>> implausible(np.array([50.0, -2e6, np.nan, np.inf])).tolist()
    [False, True, False, True]
    """
    return np.abs(x) > MAX_UV


def _flat(x: NDArray[np.floating], run: int) -> NDArray[np.bool_]:
    bounds = np.concatenate([[0], np.flatnonzero(x[1:] != x[:-1]) + 1, [len(x)]])
    # Runs of equal values, so that a flat stretch is found whatever its value.
    lengths = np.diff(bounds)
    return np.repeat(lengths >= run, lengths)


def bridge(x: NDArray[np.float64], bad: NDArray[np.bool_], reach: int) -> None:
    """Replace bad samples, in place, by what a filter does not notice.

    A short gap leads straight from the sample before it to the sample after it. Each edge weighs 1 / distance − 1 /
    reach, so that the filling depends on what is near and streamed blocks agree with the whole; deeper in than `reach`
    samples, a gap is zero.
    """
    position = np.arange(x.shape[1])
    for channel in np.flatnonzero(bad.any(1)):
        good = ~bad[channel]
        # The nearest good sample on each side, for all samples at once.
        before = np.maximum.accumulate(np.where(good, position, -1))
        after = np.minimum.accumulate(np.where(good, position, x.shape[1])[::-1])[::-1]
        gap = np.flatnonzero(~good)
        left, right = before[gap], after[gap]
        weights = np.maximum(1 / np.stack([gap - left, right - gap]) - 1 / reach, 0.0)
        weights[0, left < 0] = weights[1, right == x.shape[1]] = 0.0
        edges = np.stack([x[channel, np.maximum(left, 0)], x[channel, np.minimum(right, x.shape[1] - 1)]])
        edges[weights == 0] = 0.0  # an edge that is out of reach, or the end of the signal, may be NaN itself
        total = weights.sum(0)
        x[channel, gap] = np.divide((weights * edges).sum(0), total, out=np.zeros(len(gap)), where=total > 0)
