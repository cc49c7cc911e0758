"""Scores of detected against reference seizures: by event, by second and by segment.

Scores by event and by second ("sample") are computed by `timescoring`, the library of the SzCORE framework (Dan 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.detection.rules import PAPER_REFERENCE_GAP, RULES
from mvpa_ts.ieeg.events import Intervals, clip_events, merge_events

Mode = Literal["szcore", "paper"]


@dataclass(frozen=True)
class Scores:
    """Counts of one recording, subject or cohort, and the scores that follow from them.

    Attributes
    ----------
    reference : int
        Number of seizures (or seizure samples) in the reference.
    true_positives : int
        Reference events (or samples) that were detected.
    false_positives : int
        Detected events (or samples) that are not in the reference.
    hours : float
        Scored time.
    true_negatives : int, optional
        For samples only: events that did not happen cannot be counted.

    Examples
    --------
    >>> scores = Scores(reference=4, true_positives=3, false_positives=1, hours=8.0)
    >>> scores.sensitivity, scores.precision, scores.f1, scores.false_positives_per_hour
    (0.75, 0.75, 0.75, 0.125)
    """

    reference: int
    true_positives: int
    false_positives: int
    hours: float
    true_negatives: int | None = None

    @property
    def sensitivity(self) -> float:
        """Share of the reference that was detected; NaN without any reference seizure."""
        return _ratio(self.true_positives, self.reference)

    @property
    def precision(self) -> float:
        """Share of the detections that are true; NaN without detections."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def f1(self) -> float:
        """2 TP / (2 TP + FP + FN); NaN without any reference seizure and without any detection."""
        return _ratio(2 * self.true_positives, self.true_positives + self.false_positives + self.reference)

    @property
    def specificity(self) -> float:
        """Share of the seizure-free samples without a detection; NaN for events."""
        if self.true_negatives is None:
            return math.nan
        return _ratio(self.true_negatives, self.true_negatives + self.false_positives)

    @property
    def prevalence(self) -> float:
        """Share of seizure samples; NaN for events."""
        if self.true_negatives is None:
            return math.nan
        return _ratio(self.reference, self.reference + self.false_positives + self.true_negatives)

    @property
    def kappa(self) -> float:
        """Cohen's kappa of samples; NaN for events, and where both say the same of all."""
        both, false, neither = self.true_positives, self.false_positives, self.true_negatives
        if neither is None:
            return math.nan
        missed = self.reference - both
        chance = (both + missed) * (missed + neither) + (both + false) * (false + neither)
        return _ratio(2.0 * (both * neither - missed * false), chance)

    @property
    def false_positives_per_hour(self) -> float:
        """False detections in an hour, the unit of the paper."""
        return _ratio(self.false_positives, self.hours)

    @property
    def false_positives_per_day(self) -> float:
        """False detections in 24 hours, the unit of SzCORE."""
        return 24.0 * self.false_positives_per_hour

    @staticmethod
    def pooled(scores: Iterable[Scores]) -> Scores:
        """Score several recordings as if they were one: add up their counts and hours."""
        summands = list(scores)
        negatives = [summand.true_negatives for summand in summands if summand.true_negatives is not None]
        names = ("reference", "true_positives", "false_positives", "hours")
        totals = {name: sum(getattr(summand, name) for summand in summands) for name in names}
        return Scores(**totals, true_negatives=sum(negatives) if summands and len(negatives) == len(summands) else None)


def score_events(reference: Intervals, detected: Intervals, duration: float, mode: Mode = "szcore") -> Scores:
    """Score events: count the seizures that were found, and the false detections.

    A seizure is found if any detection overlaps the time from 30 s before it to 60 s after it.

    Parameters
    ----------
    reference, detected : sequence of (onset, offset)
        Seconds; parts outside [0, duration) are cut off.
    duration : float
        Length of the recording (s).
    mode : {"szcore", "paper"}, default "szcore"
        "szcore": events less than 90 s apart are merged, events longer than 5 min are split. "paper": reference
        seizures less than 1 min apart are merged, and so are detections less than 5 min apart; nothing is split. The
        tolerances are those of SzCORE, because the paper states none.

    Raises
    ------
    ValueError
        `duration` is under 0.1 s, or the mode is unknown.

    Examples
    --------
    >>> scores = score_events([(100, 160), (2000, 2060)], [(110, 150), (3000, 3030)], 3600.0)
    >>> scores.sensitivity, scores.precision, scores.false_positives_per_hour
    (0.5, 0.5, 1.0)
    """
    from timescoring.scoring import EventScoring

    if mode not in ("szcore", "paper"):
        raise ValueError(f"mode must be 'szcore' or 'paper', got {mode!r}")
    rules = RULES[mode]
    # Neither a length of just 5 min nor a gap of just 90 s may depend on rounding of binary numbers.
    options = EventScoring.Parameters(maxEventDuration=rules.max_duration + 1e-6, minDurationBetweenEvents=0.0)
    gap = PAPER_REFERENCE_GAP if mode == "paper" else rules.merge_gap
    truth = _annotation(merge_events(clip_events(reference, duration), gap), duration)
    hypothesis = _annotation(merge_events(clip_events(detected, duration), rules.merge_gap), duration)
    result = EventScoring(truth, hypothesis, options)
    return Scores(int(result.refTrue), int(result.tp), int(result.fp), result.numSamples / result.fs / 3600)


def score_seconds(reference: Intervals, detected: Intervals, duration: float, skipped: Intervals = ()) -> Scores:
    """Score every second of the recording as right or wrong: the sample scores of SzCORE.

    Parameters
    ----------
    reference, detected, duration
        As in `score_events`.
    skipped : sequence of (onset, offset)
        Stretches of the recording that were not scored. Their seconds are no true negatives. A seizure there is missed.

    Examples
    --------
    >>> score_seconds([(100, 160)], [(100, 130)], 3600.0, skipped=[(1000, 3600)]).true_negatives
    940
    """
    from timescoring.scoring import SampleScoring

    reference, detected = clip_events(reference, duration), clip_events(detected, duration)
    result = SampleScoring(_annotation(reference, duration), _annotation(detected, duration))
    whole = [(math.floor(onset), math.ceil(offset)) for onset, offset in skipped]  # of a second, a part is enough
    # What was not scored is neither right nor wrong: its seconds are taken out of the true negatives.
    others = SampleScoring(_annotation([*reference, *detected, *whole], duration), _annotation([], duration))
    seconds = int(result.numSamples)
    negatives = seconds - int(others.refTrue)
    return Scores(int(result.refTrue), int(result.tp), int(result.fp), seconds / 3600, negatives)


def score_segments(labels: npt.ArrayLike, predictions: npt.ArrayLike, *, segment: float = SEGMENT_SECONDS) -> Scores:
    """Score the decision of every segment, before post-processing, against its label.

    Parameters
    ----------
    labels, predictions : bool array, shape (n,)
    segment : float, default 5
        Length of a segment (s).

    Examples
    --------
    >>> score_segments([1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 1]).specificity
    0.75
    """
    truth, positive = np.asarray(labels, dtype=bool), np.asarray(predictions, dtype=bool)
    if truth.ndim != 1 or truth.shape != positive.shape:
        raise ValueError(f"labels and predictions must both have shape (n,), got {truth.shape} and {positive.shape}")
    return Scores(
        reference=int(truth.sum()),
        true_positives=int((truth & positive).sum()),
        false_positives=int((~truth & positive).sum()),
        hours=len(truth) * segment / 3600,
        true_negatives=int((~truth & ~positive).sum()),
    )


def _annotation(events: Intervals, duration: float) -> Any:
    from timescoring.annotations import Annotation

    # 10 samples a second, the resolution at which timescoring compares events.
    samples = round(duration * 10)
    if samples < 1:
        raise ValueError(f"duration must be at least 0.1 s, got {duration}")
    return Annotation(list(events), 10, samples)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
