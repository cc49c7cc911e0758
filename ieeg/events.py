"""From a probability for each segment to seizure events, and events written as SzCORE/BIDS ``events.tsv``.

Events are ``(onset, offset)`` in seconds, half-open, sorted, and do not overlap.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mvpa_ts.files import write_text

SEGMENT = 5.0
"""Seconds of a segment, one decision each."""

SeizureEvents = list[tuple[float, float]]

COLUMNS = ("onset", "duration", "eventType", "confidence", "channels", "dateTime", "recordingDuration")
"""Columns of a SzCORE ``events.tsv``, in the standard's order."""

# BIDS hides a date by moving it before 1925; the standard's own reader wants a date and not "n/a".
_HIDDEN_DATE = "1900-01-01 00:00:00"


@dataclass(frozen=True)
class EventRules:
    """How positive segments become events; applied in the order of the fields.

    Attributes
    ----------
    threshold : float
        A segment is positive where its probability exceeds this; 0.5 is the argmax of two classes.
    merge_gap : float
        Events that lie less than this apart become one (s).
    min_duration : float
        Shorter events are dropped (s).
    min_positives : int
        Events with fewer positive segments are dropped; negatives that merging took in do not count.
    max_duration : float
        Longer events are cut into parts of this length (s).
    """

    threshold: float = 0.5
    merge_gap: float = 0.0
    min_duration: float = 0.0
    min_positives: int = 1
    max_duration: float = math.inf

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold}")
        for name in ("merge_gap", "min_duration", "min_positives"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not self.max_duration > 0:
            raise ValueError(f"max_duration must be positive, got {self.max_duration}")


RULES = {
    # SzCORE (Dan 2024): merge under 90 s, split over 5 min.
    "szcore": EventRules(merge_gap=90.0, max_duration=300.0),
    # MVPFormer's paper: merge under 5 min, drop under 20 s, drop under 5 positives.
    "paper": EventRules(merge_gap=300.0, min_duration=20.0, min_positives=5),
    "none": EventRules(),
}
PAPER_REFERENCE_GAP = 60.0
"""The paper merges reference seizures that lie less than this apart (s)."""

RuleName = Literal["szcore", "paper", "none"]


def event_rules(rules: RuleName | EventRules) -> EventRules:
    """The rules of that name, or the rules themselves."""
    if isinstance(rules, EventRules):
        return rules
    if rules not in RULES:
        raise ValueError(f"rules must be an EventRules or one of {', '.join(RULES)}, got {rules!r}")
    return RULES[rules]


def probabilities_to_events(
    probabilities: npt.ArrayLike,
    starts: npt.ArrayLike,
    rules: RuleName | EventRules = "szcore",
    *,
    threshold: float | None = None,
    segment: float = SEGMENT,
) -> SeizureEvents:
    """Events of a recording from the probability of each of its segments.

    Parameters
    ----------
    probabilities : array, shape (n,)
        Seizure probability of each segment; NaN, for a segment that was not scored, is negative.
    starts : array, shape (n,)
        Where each segment begins (s), ascending. The last may overlap the one before it.
    rules : {"szcore", "paper", "none"} or EventRules, default "szcore"
    threshold : float, optional
        Instead of the rules' own.
    segment : float, default 5
        Length of a segment (s).

    Returns
    -------
    list of (onset, offset)

    Raises
    ------
    ValueError
        The shapes differ, starts do not ascend, or the rules are unknown.

    Examples
    --------
    Two bursts 60 s apart become one event; the third is too far away.

    >>> probabilities = [0.9, 0.9] + [0.1] * 12 + [0.8] + [0.1] * 40 + [0.9]
    >>> probabilities_to_events(probabilities, [5 * i for i in range(56)], "szcore")
    [(0.0, 75.0), (275.0, 280.0)]
    """
    chosen = event_rules(rules)
    values, onsets = _checked(probabilities, starts)
    positive = values > (chosen.threshold if threshold is None else threshold)
    positive_starts = onsets[positive]
    events = merge_events([(start, start + segment) for start in positive_starts.tolist()], chosen.merge_gap)
    kept = [
        (onset, offset)
        for onset, offset in events
        if offset - onset >= chosen.min_duration
        and np.count_nonzero((positive_starts >= onset) & (positive_starts < offset)) >= chosen.min_positives
    ]
    return split_events(kept, chosen.max_duration)


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
    for onset, offset in sorted((float(onset), float(offset)) for onset, offset in events):
        if not offset >= onset:
            raise ValueError(f"an event must not end before it begins, got ({onset}, {offset})")
        if merged and (onset <= merged[-1][1] or onset - merged[-1][1] < gap):
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
    """Stretches of [0, duration) that no segment with a probability covers; NaN is none.

    Examples
    --------
    >>> unscored_stretches([0.1, math.nan, math.nan, 0.2], [0, 5, 10, 13], 18.0)
    [(5.0, 13.0)]
    """
    values, onsets = _checked(probabilities, starts)
    scored = merge_events([(start, start + SEGMENT) for start in onsets[~np.isnan(values)].tolist()])
    edges = [(0.0, 0.0), *scored, (float(duration), float(duration))]
    # Rates that do not divide the second leave rests far below one sample.
    return [(end, start) for (_, end), (start, _) in itertools.pairwise(edges) if start - end > 2e-3]


@dataclass(frozen=True)
class OnlineRule:
    """Alarm while at least `k` of the last `n` segments are positive: what a running system can know.

    The paper asks for 3 of 10 seconds, which decisions every 5 s cannot give. The default is 1 of 2: the alarm comes
    with the first positive segment and stays on for one more.

    Attributes
    ----------
    k, n : int
    threshold : float

    Examples
    --------
    >>> rule = OnlineRule(k=2, n=3)
    >>> rule.alarms([0.9, 0.1, 0.9, 0.1, 0.1, 0.9]).tolist()
    [False, False, True, False, False, False]
    >>> rule.latency()
    (5.0, 10.0)
    """

    k: int = 1
    n: int = 2
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.n:
            raise ValueError(f"an online rule needs 1 <= k <= n, got k={self.k}, n={self.n}")
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold}")

    def alarms(self, probabilities: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """State of the alarm at the end of each segment, bool [n]; segments before the first are negative."""
        positive = np.asarray(probabilities, dtype=np.float64) > self.threshold
        counts = np.concatenate(([0], np.cumsum(positive)))
        last = np.arange(1, len(counts))
        return np.asarray(counts[last] - counts[np.maximum(last - self.n, 0)] >= self.k)

    def latency(self, segment: float = SEGMENT) -> tuple[float, float]:
        """Bounds (s) of the delay from onset to alarm, if every segment that holds some seizure is positive.

        The lower bound is for an onset at the very end of a segment, the upper for one at its beginning.
        """
        return (self.k - 1) * segment, self.k * segment

    def delays(
        self, probabilities: npt.ArrayLike, starts: npt.ArrayLike, reference: SeizureEvents, *, segment: float = SEGMENT
    ) -> list[float]:
        """Seconds from the onset of each reference seizure to the first alarm before its end; NaN where there is none.

        An alarm is known at the end of its segment.
        """
        values, onsets = _checked(probabilities, starts)
        known = onsets[self.alarms(values)] + segment
        delays = []
        for onset, offset in reference:
            inside = known[(known > onset) & (known - segment < offset)]
            delays.append(float(inside[0] - onset) if inside.size else math.nan)
        return delays


def write_events(
    path: str | os.PathLike[str],
    events: Sequence[tuple[float, float]],
    duration: float,
    *,
    confidences: Sequence[float] | None = None,
    event_type: str = "sz",
) -> None:
    """Write events as the ``events.tsv`` of SzCORE, which is BIDS with five columns more.

    A recording without events gets the standard's one row of type ``bckg`` over its whole length. The date is hidden,
    as BIDS does it, by one before 1925.

    Parameters
    ----------
    path : path
    events : sequence of (onset, offset)
        Seconds.
    duration : float
        Length of the recording (s).
    confidences : sequence of float, optional
        Between 0 and 1, one for each event.
    event_type : str, default "sz"
        HED-SCORE name of a seizure: "sz", "sz-foc", "sz-gen", …
    """
    if confidences is not None and len(confidences) != len(events):
        raise ValueError(f"confidences ({len(confidences)}) must be as many as events ({len(events)})")
    rows = []
    for index, (onset, offset) in enumerate(events):
        confidence = "n/a" if confidences is None else f"{confidences[index]:.4f}"
        rows.append((onset, offset - onset, event_type, confidence))
    if not events:
        rows.append((0.0, duration, "bckg", "n/a"))
    lines = ["\t".join(COLUMNS)]
    lines += [
        f"{onset:.3f}\t{length:.3f}\t{kind}\t{confidence}\tall\t{_HIDDEN_DATE}\t{duration:.3f}"
        for onset, length, kind, confidence in rows
    ]
    write_text(path, "\n".join(lines) + "\n")


def _checked(
    probabilities: npt.ArrayLike, starts: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    values, onsets = np.asarray(probabilities, dtype=np.float64), np.asarray(starts, dtype=np.float64)
    if values.ndim != 1 or values.shape != onsets.shape:
        raise ValueError(f"probabilities and starts must be [n] alike, got {values.shape} and {onsets.shape}")
    if np.any(np.diff(onsets) <= 0):
        raise ValueError("starts must ascend")
    return values, onsets
