"""Results of a detector on the recordings of a subject, beside the reference."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from mvpa_ts.ieeg.detection.detection import read_detection
from mvpa_ts.ieeg.detection.rules import OnlineRule
from mvpa_ts.ieeg.detection.saved import EVENTS, REFERENCE, read_baselines
from mvpa_ts.ieeg.events import Flags, Floats, SeizureEvents, clip_events, segment_labels, unscored_stretches
from mvpa_ts.ieeg.recordings.events_table import read_rows, read_seizures
from mvpa_ts.ieeg.scoring.scores import Mode, Scores, score_events, score_seconds, score_segments


@dataclass(frozen=True)
class RecordingResult:
    """Result of a detector on one recording, beside the reference.

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
    in_training : bool or None
        Whether the model was trained on this recording or its subject; None if that is unknown.
    others_in_training : bool or None
        Whether it was trained on other recordings of the subject, and not on this one; None if that is unknown.
    baselines : mapping of name to array, shape (n,)
        Probabilities by each baseline; empty for a detection without them.
    """

    name: str
    subject: str
    duration: float
    starts: Floats
    probabilities: Floats
    reference: SeizureEvents
    detected: SeizureEvents
    threshold: float = 0.5
    in_training: bool | None = None
    others_in_training: bool | None = False
    baselines: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def labels(self) -> Flags:
        """Label of each segment: True if it overlaps a seizure."""
        return segment_labels(self.starts, self.reference)

    @property
    def predictions(self) -> Flags:
        """Raw decision of each segment; a skipped one is negative."""
        return np.asarray(self.probabilities > self.threshold)

    @property
    def episodic(self) -> Flags:
        """Decision of each segment after post-processing: True if it overlaps a detected event."""
        return segment_labels(self.starts, self.detected)

    @property
    def scored(self) -> Flags:
        """Whether each segment got a probability."""
        return ~np.isnan(self.probabilities)

    @cached_property
    def skipped(self) -> SeizureEvents:
        """Stretches that no scored segment covers."""
        return unscored_stretches(self.probabilities, self.starts, self.duration)

    @property
    def hours_skipped(self) -> float:
        """Skipped time (h)."""
        return sum(offset - onset for onset, offset in self.skipped) / 3600

    @property
    def hours_scored(self) -> float:
        """Time for which there is a probability (h)."""
        # A difference would leave a rest where nothing was scored.
        return self.duration / 3600 - self.hours_skipped if self.scored.any() else 0.0

    @property
    def seizures_skipped(self) -> int:
        """Reference seizures that lie completely in skipped stretches, so that they could not be found."""
        seizures = clip_events(self.reference, self.duration)
        return sum(any(start <= onset and offset <= stop for start, stop in self.skipped) for onset, offset in seizures)

    def events(self, mode: Mode) -> Scores:
        """Score events; rates are per scored hour, and a skipped seizure counts as missed."""
        scores = score_events(self.reference, self.detected, self.duration, mode)
        return replace(scores, hours=self.hours_scored)

    @property
    def seconds(self) -> Scores:
        """Score every second after post-processing; of skipped ones, only those of a seizure or a detection count."""
        scores = score_seconds(self.reference, self.detected, self.duration, self.skipped)
        return replace(scores, hours=self.hours_scored)

    def online(self, rule: OnlineRule) -> OnlineScores:
        """Score the alarms of a running system: the delay of the first alarm of each seizure, and false alarms.

        An alarm is a stretch of segments in which the rule stays on. It is false if none of them overlaps a seizure.
        An alarm in the last `n` segments of a seizure may go on after it; it still belongs to that seizure.
        """
        on = rule.alarms(self.probabilities, self.threshold)
        seizures = clip_events(self.reference, self.duration)  # as `num_seizures` counts them
        delays = rule.delays(self.probabilities, self.starts, seizures, self.threshold)
        # A run of segments with the alarm on is one alarm, however long it lasts.
        begins = np.flatnonzero(on & ~np.concatenate(([False], on[:-1])))
        ends = np.flatnonzero(on & ~np.concatenate((on[1:], [False]))) + 1
        ictal = self.labels
        false = sum(not ictal[begin:end].any() for begin, end in zip(begins, ends, strict=True))
        return OnlineScores(tuple(delays), false, self.hours_scored)


@dataclass(frozen=True)
class OnlineScores:
    """Alarms of one recording, or the sum over several.

    Attributes
    ----------
    delays : tuple of float
        Seconds from the onset of each seizure to its first alarm; NaN without an alarm.
    false_alarms : int
    hours : float
        Scored time.
    """

    delays: tuple[float, ...] = ()
    false_alarms: int = 0
    hours: float = 0.0

    def __add__(self, more: OnlineScores) -> OnlineScores:
        return OnlineScores(self.delays + more.delays, self.false_alarms + more.false_alarms, self.hours + more.hours)

    @property
    def sensitivity(self) -> float:
        """Share of seizures with an alarm; NaN without any seizure."""
        return float(np.mean(~np.isnan(self.delays))) if self.delays else math.nan

    @property
    def delay(self) -> float:
        """Median delay of the seizures with an alarm (s); NaN without any."""
        delays = [delay for delay in self.delays if not math.isnan(delay)]
        return float(np.median(delays)) if delays else math.nan

    @property
    def false_alarms_per_hour(self) -> float:
        """False alarms in an hour; NaN if nothing was scored."""
        return self.false_alarms / self.hours if self.hours else math.nan


@dataclass(frozen=True)
class SubjectResult:
    """All recordings of a subject.

    Attributes
    ----------
    subject : str
    recordings : sequence of RecordingResult
    mode : {"szcore", "paper"}
        How events are merged, see `score_events`.
    alarm : OnlineRule
        Rule for alarms of a running system.

    Raises
    ------
    ValueError
        There is no recording.
    """

    subject: str
    recordings: Sequence[RecordingResult]
    mode: Mode = "szcore"
    alarm: OnlineRule = field(default_factory=OnlineRule)

    def __post_init__(self) -> None:
        if not self.recordings:
            raise ValueError(f"recordings of subject {self.subject} must hold at least one recording, got none")

    @cached_property
    def labels(self) -> Flags:
        """Labels of all scored segments, one recording after another."""
        return np.concatenate([recording.labels[recording.scored] for recording in self.recordings])

    @cached_property
    def probabilities(self) -> Floats:
        """Probabilities of all scored segments, one recording after another."""
        return np.concatenate([recording.probabilities[recording.scored] for recording in self.recordings])

    @cached_property
    def predictions(self) -> Flags:
        """Raw decisions of all scored segments, one recording after another."""
        return np.concatenate([recording.predictions[recording.scored] for recording in self.recordings])

    @cached_property
    def episodic(self) -> Flags:
        """Decisions of all scored segments after post-processing; see `RecordingResult.episodic`."""
        return np.concatenate([recording.episodic[recording.scored] for recording in self.recordings])

    @cached_property
    def online(self) -> OnlineScores:
        """Add up the alarms of all recordings; see `RecordingResult.online`."""
        return sum((recording.online(self.alarm) for recording in self.recordings), OnlineScores())

    @cached_property
    def events(self) -> Scores:
        """Add up the event scores of all recordings; see `RecordingResult.events`."""
        return Scores.pooled(recording.events(self.mode) for recording in self.recordings)

    @cached_property
    def seconds(self) -> Scores:
        """Add up the scores of seconds of all recordings; see `RecordingResult.seconds`."""
        return Scores.pooled(recording.seconds for recording in self.recordings)

    @cached_property
    def segments(self) -> Scores:
        """Score the raw decisions of all scored segments, before post-processing."""
        return score_segments(self.labels, self.predictions)

    @property
    def in_training(self) -> str:
        """Whether the model knows the subject: yes, some files, other files, not this file, no or unknown."""
        answers = {recording.in_training for recording in self.recordings}
        if True in answers:
            return "yes" if answers == {True} else "some files"
        if None in answers:
            return "unknown"
        others = {recording.others_in_training for recording in self.recordings}
        return "other files" if True in others else "not this file" if None in others else "no"

    @property
    def hours(self) -> float:
        """Length of all recordings (h)."""
        return sum(recording.duration for recording in self.recordings) / 3600

    @property
    def hours_scored(self) -> float:
        """Time for which there is a probability (h)."""
        return self.events.hours

    @property
    def hours_skipped(self) -> float:
        """Time that was skipped (h)."""
        return sum(recording.hours_skipped for recording in self.recordings)

    @property
    def num_seizures(self) -> int:
        """Number of reference seizures inside the recordings, as annotated."""
        return sum(len(clip_events(recording.reference, recording.duration)) for recording in self.recordings)

    @property
    def seizures_skipped(self) -> int:
        """Number of reference seizures that were skipped completely."""
        return sum(recording.seizures_skipped for recording in self.recordings)


def read_result(folder: str | Path, reference: SeizureEvents | str | Path | None = None) -> RecordingResult:
    """Read a saved detection, for scoring.

    Parameters
    ----------
    folder : path
        Folder that `Detection.save` or ``mvpformer detect`` wrote.
    reference : list of (onset, offset) or path, optional
        Seconds, or an events.tsv; default: ``reference_events.tsv`` in the folder.
    """
    # The same checks as for a user's own reading, so that a damaged folder is never scored.
    detection = read_detection(folder)
    if reference is None:
        if not (Path(folder) / REFERENCE).is_file():
            raise FileNotFoundError(
                f"{folder} has no {REFERENCE}, as the recording says nothing of seizures: pass the events as reference"
            )
        reference = Path(folder) / REFERENCE
    if isinstance(reference, (str, os.PathLike)):
        start = next((begun for *_, begun in read_rows(Path(folder) / EVENTS)), "")
        sfreq = detection.provenance.sfreq
        reference = read_seizures(Path(reference), detection.duration, sfreq=sfreq, start=start)
    return RecordingResult(
        name=detection.provenance.recording,
        subject=detection.provenance.subject or detection.provenance.recording,
        duration=detection.duration,
        starts=detection.starts,
        probabilities=detection.probabilities,
        reference=reference,
        detected=detection.events,
        threshold=detection.threshold,
        in_training=detection.provenance.subject_in_training,
        others_in_training=detection.provenance.others_in_training,
        baselines=read_baselines(folder, len(detection.starts)),
    )
