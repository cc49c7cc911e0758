"""From a probability for each segment to seizure events and alarms."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.events import Flags, SeizureEvents, checked_segments, merge_events, split_events


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

    Raises
    ------
    ValueError
        A number is out of range or not a number; only `max_duration` may be infinite.

    Examples
    --------
    >>> EventRules(threshold=0.8, merge_gap=90.0).max_duration
    inf
    """

    threshold: float = 0.5
    merge_gap: float = 0.0
    min_duration: float = 0.0
    min_positives: int = 1
    max_duration: float = math.inf

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, numbers.Real):
                raise ValueError(f"{name} must be a number, got {value!r}")
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold}")
        for name in ("merge_gap", "min_duration", "min_positives"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, and must be finite, got {getattr(self, name)}")
        if not self.max_duration > 0:
            raise ValueError(f"max_duration must be positive, got {self.max_duration}")


RULES = {
    # SzCORE (Dan 2024): merge under 90 s, split over 5 min.
    "szcore": EventRules(merge_gap=90.0, max_duration=300.0),
    # MVPFormer's paper: merge under 5 min, drop under 20 s, drop under 5 positives.
    "paper": EventRules(merge_gap=300.0, min_duration=20.0, min_positives=5),
    "none": EventRules(),
}


# The paper merges reference seizures that lie less than this apart (s).
PAPER_REFERENCE_GAP = 60.0


RuleName = Literal["szcore", "paper", "none"]


def event_rules(rules: RuleName | EventRules, threshold: float | None = None) -> EventRules:
    """The rules of that name, or the rules themselves; with another threshold, if one is given."""
    if not isinstance(rules, EventRules):
        if rules not in RULES:
            raise ValueError(f"rules must be an EventRules or one of {', '.join(RULES)}, got {rules!r}")
        rules = RULES[rules]
    return rules if threshold is None else replace(rules, threshold=threshold)


def probabilities_to_events(
    probabilities: npt.ArrayLike,
    starts: npt.ArrayLike,
    rules: RuleName | EventRules = "szcore",
    *,
    threshold: float | None = None,
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
    chosen = event_rules(rules, threshold)
    values, onsets = checked_segments(probabilities, starts)
    positive_starts = onsets[values > chosen.threshold]
    events = merge_events([(start, start + SEGMENT_SECONDS) for start in positive_starts.tolist()], chosen.merge_gap)
    kept = [
        (onset, offset)
        for onset, offset in events
        if offset - onset >= chosen.min_duration
        and np.count_nonzero((positive_starts >= onset) & (positive_starts < offset)) >= chosen.min_positives
    ]
    return split_events(kept, chosen.max_duration)


@dataclass(frozen=True)
class OnlineRule:
    """Alarm while at least `k` of the last `n` segments are positive: what a running system can know.

    The default is 1 of 2: the alarm comes with the first positive segment and stays on for one more. (The paper asks
    for 3 of 10 seconds, which decisions every 5 s cannot give.)

    Attributes
    ----------
    k, n : int

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

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, numbers.Integral):
                raise ValueError(f"{name} of an online rule must be a whole number, got {value!r}")
        if not 1 <= self.k <= self.n:
            raise ValueError(f"an online rule needs 1 <= k <= n, got k={self.k}, n={self.n}")

    def alarms(self, probabilities: npt.ArrayLike, threshold: float = 0.5) -> Flags:
        """State of the alarm at the end of each segment, bool [n]; segments before the first are negative."""
        positive = np.asarray(probabilities, dtype=np.float64) > threshold
        # A running sum, so that the rule costs the same for every n.
        counts = np.concatenate(([0], np.cumsum(positive)))
        last = np.arange(1, len(counts))
        return np.asarray(counts[last] - counts[np.maximum(last - self.n, 0)] >= self.k)

    def latency(self) -> tuple[float, float]:
        """Bounds (s) of the delay from onset to alarm, if every segment that holds some seizure is positive.

        The lower bound is for an onset at the very end of a segment, the upper for one at its beginning.
        """
        return (self.k - 1) * SEGMENT_SECONDS, self.k * SEGMENT_SECONDS

    def delays(
        self, probabilities: npt.ArrayLike, starts: npt.ArrayLike, reference: SeizureEvents, threshold: float = 0.5
    ) -> list[float]:
        """Seconds from the onset of each reference seizure to the first alarm in it; NaN without an alarm.

        An alarm is known at the end of its segment, which must begin before the seizure ends.
        """
        values, onsets = checked_segments(probabilities, starts)
        alarm_times = onsets[self.alarms(values, threshold)] + SEGMENT_SECONDS
        delays = []
        for onset, offset in reference:
            inside = alarm_times[(alarm_times > onset) & (alarm_times - SEGMENT_SECONDS < offset)]
            delays.append(float(inside[0] - onset) if inside.size else math.nan)
        return delays


def online_rule(rule: OnlineRule | None) -> OnlineRule:
    """The rule itself, or the default one; a ValueError for anything else."""
    if rule is not None and not isinstance(rule, OnlineRule):
        raise ValueError(f"online must be an OnlineRule, such as OnlineRule(k=1, n=2), got {rule!r}")
    return rule or OnlineRule()
