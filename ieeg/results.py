"""What a detector said of the recordings of a subject, and what is true of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from mvpa_ts.ieeg.events import SEGMENT, SeizureEvents, clip_events, merge_events
from mvpa_ts.ieeg.scoring import Mode, Scores, score_events, score_seconds, score_segments


def segment_labels(
    starts: npt.ArrayLike,
    seizures: Sequence[tuple[float, float]],
    rule: Literal["any", "half"] = "any",
    *,
    segment: float = SEGMENT,
) -> npt.NDArray[np.bool_]:
    """Whether each segment is seizure: any overlap, or at least half of it.

    Examples
    --------
    >>> segment_labels([0, 5, 10, 15], [(9.0, 12.5)], "any").tolist()
    [False, True, True, False]
    >>> segment_labels([0, 5, 10, 15], [(9.0, 12.5)], "half").tolist()
    [False, False, True, False]
    """
    if rule not in ("any", "half"):
        raise ValueError(f"rule must be 'any' or 'half', got {rule!r}")
    onsets = np.asarray(starts, dtype=np.float64)
    covered = np.zeros(len(onsets))
    for onset, offset in merge_events(seizures):
        covered += np.clip(np.minimum(onsets + segment, offset) - np.maximum(onsets, onset), 0.0, None)
    return covered > 0 if rule == "any" else covered >= segment / 2


@dataclass(frozen=True)
class RecordingResult:
    """What a detector said of one recording, and what is true of it.

    Attributes
    ----------
    name, subject : str
    duration : float
        Seconds.
    starts, probabilities : array, shape (n,)
        Seconds and probability of each segment; NaN where it was skipped.
    reference, detected : list of (onset, offset)
    threshold : float
        A segment is positive where its probability exceeds this.
    """

    name: str
    subject: str
    duration: float
    starts: npt.NDArray[np.float64]
    probabilities: npt.NDArray[np.float64]
    reference: SeizureEvents
    detected: SeizureEvents
    threshold: float = 0.5

    @property
    def labels(self) -> npt.NDArray[np.bool_]:
        """Label of each segment: seizure where it overlaps one."""
        return segment_labels(self.starts, self.reference)

    @property
    def predictions(self) -> npt.NDArray[np.bool_]:
        """Raw decision of each segment; a skipped one is negative."""
        return np.asarray(self.probabilities > self.threshold)


@dataclass(frozen=True)
class SubjectResult:
    """All recordings of a subject.

    Attributes
    ----------
    subject : str
    recordings : sequence of RecordingResult
    mode : {"szcore", "paper"}
        Of the event scores.
    similarities : mapping
        Further numbers for the table, such as the three reference similarities of pretraining.
    """

    subject: str
    recordings: Sequence[RecordingResult]
    mode: Mode = "szcore"
    similarities: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.recordings:
            raise ValueError(f"subject {self.subject} has no recording")

    @cached_property
    def labels(self) -> npt.NDArray[np.bool_]:
        """Labels of all segments, one recording after the other."""
        return np.concatenate([recording.labels for recording in self.recordings])

    @cached_property
    def predictions(self) -> npt.NDArray[np.bool_]:
        """Raw decisions of all segments, one recording after the other."""
        return np.concatenate([recording.predictions for recording in self.recordings])

    @cached_property
    def events(self) -> Scores:
        """Episodic scores."""
        return Scores.pooled(score_events(r.reference, r.detected, r.duration, self.mode) for r in self.recordings)

    @cached_property
    def seconds(self) -> Scores:
        """Scores of every second after post-processing."""
        return Scores.pooled(score_seconds(r.reference, r.detected, r.duration) for r in self.recordings)

    @cached_property
    def segments(self) -> Scores:
        """Raw scores of every segment before post-processing."""
        return score_segments(self.labels, self.predictions)

    @property
    def hours(self) -> float:
        """Length of all recordings."""
        return sum(recording.duration for recording in self.recordings) / 3600

    @property
    def num_seizures(self) -> int:
        """Reference seizures inside the recordings, as annotated."""
        return sum(len(clip_events(recording.reference, recording.duration)) for recording in self.recordings)
