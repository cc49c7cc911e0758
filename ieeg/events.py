"""Intervals of seizures in seconds: merged, split, clipped, and laid over segments.

Events are ``(onset, offset)`` in seconds, half-open, sorted, and do not overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.intp]
SeizureEvents = list[tuple[float, float]]
Intervals = Sequence[tuple[float, float]]

# A shorter event is a point in time: BrainVision gives such a mark the length of a sample.
POINT_SECONDS = 0.02


def merge_events(events: Iterable[tuple[float, float]], gap: float = 0.0) -> SeizureEvents:
    """Sorted events, those that touch, overlap or lie less than `gap` seconds apart as one.

    Examples
    --------
    >>> merge_events([(100, 110), (0, 10), (40, 50)], gap=60)
    [(0.0, 110.0)]
    >>> merge_events([(0, 10), (70, 80)], gap=60)
    [(0.0, 10.0), (70.0, 80.0)]
    """
    merged: SeizureEvents = []
    # Touching events become one even without a gap: 0 to 5 s and 5 to 10 s are one stretch of positive segments.
    for onset, offset in sorted((float(onset), float(offset)) for onset, offset in events):
        if not offset >= onset:
            raise ValueError(f"an event must not end before it begins, got ({onset}, {offset})")
        # Of two events that lie just `gap` apart, rounding of binary numbers must not decide.
        if merged and (onset <= merged[-1][1] or onset - merged[-1][1] < gap - 1e-6):
            merged[-1] = (merged[-1][0], max(merged[-1][1], offset))
        else:
            merged.append((onset, offset))
    return merged


def split_events(events: Iterable[tuple[float, float]], max_duration: float) -> SeizureEvents:
    """Events longer than `max_duration` (s) cut into parts of that length, the last part shorter.

    Examples
    --------
    >>> split_events([(0, 700)], 300)
    [(0.0, 300.0), (300.0, 600.0), (600.0, 700.0)]
    """
    parts: SeizureEvents = []
    for onset, offset in events:
        start = float(onset)
        # The last part keeps what is left, so the parts cover the event exactly and no second is lost or counted twice.
        while offset - start > max_duration:
            parts.append((start, start + max_duration))
            start += max_duration
        parts.append((start, float(offset)))
    return parts


def clip_events(events: Iterable[tuple[float, float]], duration: float) -> SeizureEvents:
    """Events inside [0, duration), overlapping ones as one, empty ones left out."""
    inside = ((max(0.0, float(onset)), min(float(duration), float(offset))) for onset, offset in merge_events(events))
    return [(onset, offset) for onset, offset in inside if offset > onset]


def unscored_stretches(probabilities: npt.ArrayLike, starts: npt.ArrayLike, duration: float) -> SeizureEvents:
    """Stretches of [0, duration) that no segment with a probability covers; NaN is no probability.

    Examples
    --------
    >>> import math
    >>> unscored_stretches([0.1, math.nan, math.nan, 0.2], [0, 5, 10, 13], 18.0)
    [(5.0, 13.0)]
    """
    values, onsets = checked_segments(probabilities, starts)
    scored = merge_events([(start, start + SEGMENT_SECONDS) for start in onsets[~np.isnan(values)].tolist()])
    # Events of no length at both ends make a missing beginning and a missing end gaps like all others.
    edges = [(0.0, 0.0), *scored, (float(duration), float(duration))]
    # Rates that do not divide the second leave rests far below one sample.
    return [(end, start) for (_, end), (start, _) in itertools.pairwise(edges) if start - end > 2e-3]


def checked_segments(probabilities: npt.ArrayLike, starts: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Probabilities and starts as float64 [n]; a ValueError where their shapes differ or starts do not ascend."""
    values, onsets = np.asarray(probabilities, dtype=np.float64), np.asarray(starts, dtype=np.float64)
    if values.ndim != 1 or values.shape != onsets.shape:
        raise ValueError(f"probabilities and starts must both have shape (n,), got {values.shape} and {onsets.shape}")
    if np.any(np.diff(onsets) <= 0):
        raise ValueError("starts must be in ascending order")
    return values, onsets


def segment_labels(starts: npt.ArrayLike, seizures: Intervals) -> Flags:
    """Whether each segment holds seizure: the one rule, for training and for evaluation.

    A segment [start, start + 5 s) holds seizure where it shares more than a point with one, compared in float64 without
    a tolerance. A seizure from 14.999999999999998 s on so labels the segment from 10 to 15 s. A tolerance would only
    move the place at which rounding decides, and two callers with two tolerances would disagree there.

    Parameters
    ----------
    starts : array, shape (n,)
        Seconds at which the segments begin.
    seizures : sequence of (onset, offset)
        Half-open intervals in seconds; one of no length labels nothing.

    Returns
    -------
    ndarray of bool, shape (n,)

    Raises
    ------
    ValueError
        A seizure ends before it begins.

    Examples
    --------
    >>> segment_labels([0, 5, 10, 15], [(9.0, 12.5)]).tolist()
    [False, True, True, False]
    """
    onsets = np.asarray(starts, dtype=np.float64)
    # One pass for each seizure: a recording has few seizures and, over days, ten thousands of segments.
    labels = np.zeros(onsets.shape, bool)
    for onset, offset in merge_events(seizures):
        if offset > onset:
            labels |= (onset < onsets + SEGMENT_SECONDS) & (offset > onsets)
    return labels


def class_labels(starts: Floats, spans: Mapping[str, SeizureEvents]) -> Integers:
    """Number of the class that covers half of a segment or more [n]; -1 where none does, or where two share it.

    Examples
    --------
    >>> class_labels(np.array([0.0, 5.0, 10.0]), {"awake": [(0.0, 7.0)], "asleep": [(7.0, 12.4)]}).tolist()
    [0, -1, -1]
    """
    shares = np.zeros((len(spans), len(starts)))
    for share, intervals in zip(shares, spans.values(), strict=True):
        for onset, offset in merge_events(intervals):
            share += np.clip(np.minimum(offset, starts + SEGMENT_SECONDS) - np.maximum(onset, starts), 0.0, None)
    # Where spans touch, their ends are rounded to samples or milliseconds.
    alone = (shares > POINT_SECONDS).sum(0) == 1
    return np.where(alone & (shares.max(0) >= SEGMENT_SECONDS / 2), shares.argmax(0), -1)
