"""A threshold that keeps a promise: at most so many false alarms a day, from quiet recordings of the patient.

A false alarm is an event, as the rules make it from positive segments. The loudest quiet events come at random: of
those above the j-th highest the number in T hours is Poisson, so their true rate times T has the Gamma distribution of
shape j. This holds whatever the scores are, so choosing the threshold from the same recordings costs nothing more.
Where alarms cluster, as with a gain that drifts, hours tell less: rate and j are divided by how much more than Poisson
numbers the alarms of half hours vary (quasi-likelihood: McCullagh and Nelder, 1989, section 4.5). It speaks for hours
like those that were given: nights promise nothing for days.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from mvpa_ts.checks import check_numbers, listed, warn
from mvpa_ts.files import read_config, write_json
from mvpa_ts.ieeg.constants import SEGMENT_SECONDS, counted, length, readable
from mvpa_ts.ieeg.detection.detector import Detector
from mvpa_ts.ieeg.detection.rules import EventRules, probabilities_to_events
from mvpa_ts.ieeg.events import Floats
from mvpa_ts.ieeg.model.seen_subjects import subject_hash
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.recordings.channels import plain_names
from mvpa_ts.ieeg.recordings.copies import copies
from mvpa_ts.ieeg.recordings.reading import AnyRecording, as_recording
from mvpa_ts.ieeg.recordings.recording import Recording, warn_of_unannotated
from mvpa_ts.ieeg.recordings.swec_table import identity

# A confidence counts as reached if it rounds to the one that was asked for: 55 hours give 89.9 % for one alarm a day.
ROUNDING = 0.005

# Alarms that are needed to see whether they cluster, and where: a lower threshold is taken for it.
CLUSTER_ALARMS, CLUSTER_SECONDS = 10, 1800.0

Scores = tuple[npt.ArrayLike, npt.ArrayLike]


@dataclass(frozen=True)
class Calibration:
    """A threshold, its rules, and what is promised of them.

    Attributes
    ----------
    per_day : float
        False alarms a day that are promised at most.
    confidence : float
        Probability that the promise holds, in hours like the quiet ones.
    hours : float
        Quiet hours with a score.
    alarms : int
        Quiet events above the threshold.
    rules : EventRules
        With the threshold.
    weights : str or None
        SHA-256 of the detector's weights; None for scores without a detector.
    reading : str or None
        Preprocessing and channels that the detector was told to read; None for scores without a detector.
    own_threshold : float or None
        The detector's own threshold; None for scores without a detector.
    subject : str or None
        SHA-256 of the person's name; None where it is not known.
    channel_names : tuple of str
        Of the first quiet recording; empty for scores without a detector.

    Examples
    --------
    >>> import numpy as np
    >>> quiet = np.random.default_rng(0).uniform(0, 0.5, 7200)
    >>> calibration = calibrate_scores([(quiet, 5.0 * np.arange(7200))], per_day=6.0, rules=EventRules())
    >>> calibration.alarms, calibration.rules.threshold == float(quiet.max())
    (0, True)
    """

    per_day: float
    confidence: float
    hours: float
    alarms: int
    rules: EventRules
    weights: str | None = None
    reading: str | None = None
    own_threshold: float | None = None
    subject: str | None = None
    channel_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"at most {self.per_day:g} false alarms a day with {self.confidence:.0%} confidence, from "
            f"{_quiet(self.hours)} with {self.alarms} above the threshold {self.rules.threshold:.6g}; it holds for "
            "hours like these"
        )
        if self.own_threshold is not None and self.rules.threshold < self.own_threshold:
            text += (
                f". The threshold lies below the detector's own, {self.own_threshold:g}: it alarms more often than "
                "without a calibration, as the promise allows"
            )
        return text

    def save(self, path: str | Path) -> None:
        """Write it as JSON, which ``mvpformer detect --calibration FILE`` takes."""
        fields = asdict(self)
        # JSON has no infinity.
        fields["rules"] = {name: "none" if value == math.inf else value for name, value in fields["rules"].items()}
        write_json(path, {"calibration": 1, **fields})

    def check(self, detector: Detector) -> None:
        """Raise a ValueError where the detector, or what it reads, is another than the one that was calibrated."""
        if self.weights not in (None, detector.weights()):
            raise ValueError(
                f"the calibration is of another detector than {detector.model_name or 'this one'} (their weights "
                "differ): calibrate this one, or name the model that was calibrated"
            )
        if self.reading not in (None, _reading(detector)):
            raise ValueError(
                f"the calibration is of a detector that reads {self.reading}, and this one reads {_reading(detector)}: "
                "take the same preprocessing and channels, or calibrate with these"
            )

    def warn_of_another(self, recording: Recording) -> None:
        """Warn where a recording is of another person than the quiet ones, or has other channels."""
        comparable = self.subject is not None and recording.person_known
        other = comparable and self.subject != subject_hash(recording.subject_name)
        if other or (self.channel_names and plain_names(self.channel_names) != plain_names(recording.channel_names)):
            recording.warn(
                f"{recording.name} {'is of another person' if other else 'has other channels'} than the quiet "
                "recordings of the calibration, so its promise does not hold here: calibrate with quiet ones like this",
            )


def _reading(detector: Detector) -> str:
    """What a detector was told to read, as text."""
    preprocessing = detector.preprocessing
    changes = preprocessing.to_dict() if isinstance(preprocessing, Preprocessing) else dict(preprocessing or {})
    return json.dumps({"preprocessing": changes, "channels": detector.channels}, sort_keys=True, default=list)


def _quiet(hours: float) -> str:
    return length(hours).replace(" ", " quiet ")


def load_calibration(path: str | Path) -> Calibration:
    """Read what `Calibration.save` or ``mvpformer calibrate`` wrote; a ValueError where it is damaged."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no calibration {path}: mvpformer calibrate writes one")
    fields: dict[str, Any] = read_config(Path(path))
    if fields.pop("calibration", None) != 1:
        raise ValueError(f"{path} is no calibration: mvpformer calibrate writes one")
    try:
        own = [] if fields.get("own_threshold") is None else ["own_threshold"]
        names = ["per_day", "confidence", "hours", "alarms", *own]
        check_numbers([fields[name] for name in names], None, ", ".join(names))
        rules: dict[str, Any] = {n: math.inf if v == "none" else v for n, v in fields.pop("rules").items()}
        channels = tuple(map(str, fields.pop("channel_names", ())))
        return Calibration(rules=EventRules(**rules), channel_names=channels, **fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no calibration: {error}") from error


def calibrate(
    detector: Detector, recordings: Iterable[AnyRecording], per_day: float, *, confidence: float = 0.9
) -> Calibration:
    """Choose a detector's threshold so that it keeps a promise of false alarms.

    Parameters
    ----------
    detector : Detector
        Its rules decide what an event is; its threshold is not used.
    recordings : iterable of Recording, Raw or path
        Quiet ones of the patient, from as many hours of the day and as many days as there are.
    per_day : float
        False alarms a day, at most.
    confidence : float, default 0.9
        Probability that the promise holds.

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        A recording states seizures, trained the detector, is a copy of another, or of another person; or the quiet
        hours are too few for the rate: the error says what they can promise, and how many hours the rate needs.

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_recording
    >>> from mvpa_ts.ieeg.detection.baselines import BaselineDetector
    >>> quiet = simulate_recording("S01", num_channels=2, duration=600.0, num_seizures=0)
    >>> calibrate(BaselineDetector("line-length"), [quiet], per_day=400.0).alarms
    0
    """
    _check_promise(per_day, confidence)
    scores: list[Scores] = []
    quiet = [as_recording(item) for item in recordings]
    # Before the hours of scoring.
    if len(people := sorted({identity(item.subject_name) for item in quiet if item.person_known})) > 1:
        raise ValueError(
            f"quiet recordings are of several people, {listed(people)}, and a promise holds for one: calibrate for each"
        )
    for item in quiet[1:]:
        first = quiet[0]
        facts = [(*map(each.metadata.get, ("sex", "hand")), plain_names(each.channel_names)) for each in (first, item)]
        if any(None not in pair and pair[0] != pair[1] for pair in zip(*facts, strict=True)):
            warn(
                f"{item.name} has other channels than {first.name}, or another sex or handedness in its header: if "
                "they are of two people, or of two montages, calibrate for each alone, as a promise holds for one"
            )
            break
    if pairs := copies(quiet):
        names = listed(f"{quiet[first].name} and {quiet[second].name}" for first, second in pairs)
        raise ValueError(f"{names} hold the same signal, perhaps in two formats, and would count twice: leave one out")
    warn_of_unannotated(quiet, "so all of it counts as quiet")
    for recording in quiet:
        if recording.seizures:
            (onset, offset), count = recording.seizures[0], len(recording.seizures)
            raise ValueError(
                f"{recording.name} is not quiet: it states {counted(count, 'seizure')}, the first from "
                f"{onset:g} to {offset:g} s. Leave it out, or give its quiet stretches as recordings of their own"
            )
        # A detector raises few alarms where it was taught that there is nothing.
        if detector.was_taught(recording):
            raise ValueError(
                f"{recording.name} trained the detector, so its hours promise nothing for others: give quiet "
                "recordings that did not train it"
            )
        detection = detector.detect(recording)
        scores.append((detection.probabilities, detection.starts))
    calibration = calibrate_scores(scores, per_day, rules=detector.rules, confidence=confidence)
    return replace(
        calibration,
        weights=detector.weights(),
        reading=_reading(detector),
        own_threshold=detector.own_threshold,
        subject=subject_hash(people[0]) if people else None,
        channel_names=quiet[0].channel_names,
    )


def _check_promise(per_day: float, confidence: float) -> None:
    most = 86400 / SEGMENT_SECONDS
    if not 0 < per_day <= most:
        raise ValueError(f"per_day must be a positive number of false alarms, at most {most:g}, got {per_day!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence!r}")


def calibrate_scores(
    scores: Sequence[Scores], per_day: float, *, rules: EventRules, confidence: float = 0.9
) -> Calibration:
    """As `calibrate`, from the probabilities and starts of quiet recordings."""
    _check_promise(per_day, confidence)
    values = [(np.asarray(p, dtype=np.float64), np.asarray(s, dtype=np.float64)) for p, s in scores]
    # The last segment of a recording overlaps the one before, and an hour counts once.
    until_next = [np.diff(s[~np.isnan(p)], append=math.inf) for p, s in values]
    hours = float(sum(np.minimum(steps, SEGMENT_SECONDS).sum() for steps in until_next)) / 3600
    expected = per_day * hours / 24  # quiet events if the rate is just what is promised
    if stats.gamma.cdf(expected, 1) < confidence - ROUNDING:
        least = -math.log1p(-confidence)
        raise ValueError(
            f"{_quiet(hours)} cannot promise {per_day:g} false alarms a day with {confidence:.0%} confidence: "
            + (f"they promise {readable(least * 24 / hours)} at best, and " if hours else "")
            + f"{per_day:g} a day needs {length(least * 24 / per_day)}. Give more quiet recordings, a higher rate or a "
            "lower confidence"
        )
    clustering, events = 1.0, _too_many(expected, confidence, 1.0)
    if events > 1:
        telling = _highest_with(values, max(events, CLUSTER_ALARMS), rules)
        clustering = _clustering(values, replace(rules, threshold=telling))
        events = _too_many(expected, confidence, clustering)
    threshold = _highest_with(values, events, rules)
    chosen = replace(rules, threshold=threshold)
    if threshold >= 1.0:
        warn("the threshold is 1, which no segment exceeds: quiet segments have a probability of 1")
    alarms = sum(len(probabilities_to_events(p, s, chosen)) for p, s in values)
    if (reached := _reached(expected, events, clustering)) < confidence - ROUNDING:
        warn(f"quiet alarms cluster, so the confidence is {reached:.0%} in place of {confidence:.0%}: give more hours")
    return Calibration(per_day, reached, hours, alarms, chosen)


def _too_many(expected: float, confidence: float, clustering: float) -> int:
    """Alarms, at least one, of which fewer keep the promise."""
    events = 1
    while _reached(expected, events + 1, clustering) >= confidence:
        events += 1
    return events


def _reached(expected: float, events: int, clustering: float) -> float:
    """Confidence of fewer alarms than these; what is less than a cluster counts as one."""
    return float(stats.gamma.cdf(expected / clustering, max(1.0, events / clustering)))


def _clustering(values: Sequence[tuple[Floats, Floats]], rules: EventRules) -> float:
    """How much more than Poisson numbers the alarms of half hours vary, at least 1.

    Pearson's statistic over the lower quartile of its distribution: from few half hours the ratio is uncertain.
    """
    alarms, scored = [], []
    for p, s in (item for item in values if len(item[1])):
        bins, span = max(1, round((s[-1] - s[0]) / CLUSTER_SECONDS)), (s[0], s[-1] + SEGMENT_SECONDS)
        alarms.append(np.histogram([onset for onset, _ in probabilities_to_events(p, s, rules)], bins, span)[0])
        scored.append(np.histogram(s[~np.isnan(p)], bins, span)[0])
    number, share = np.concatenate(alarms), np.concatenate(scored)
    expected = number.sum() * share / share.sum()
    if (some := expected > 0).sum() < 2:
        return 1.0
    pearson = ((number - expected)[some] ** 2 / expected[some]).sum()
    return max(1.0, float(pearson / stats.chi2.ppf(0.25, some.sum() - 1)))


def _highest_with(values: Sequence[tuple[Floats, Floats]], events: int, rules: EventRules) -> float:
    """Highest score that as a threshold lets fewer than `events` through, while the next lower score lets that many."""
    everything = np.concatenate([p for p, _ in values])
    # From the top, because lower thresholds may join two events: the first one from above is an order statistic.
    candidates = np.unique(everything[~np.isnan(everything)])[::-1]
    most, best = 0, candidates[0]
    for higher, lower in itertools.pairwise(candidates):
        lowered = replace(rules, threshold=float(lower))
        # Recordings without a positive segment have no event.
        count = sum(len(probabilities_to_events(p, s, lowered)) for p, s in values if np.any(p > lower))
        if count >= events:
            return float(higher)
        # If none lets so many through, it is the highest of those with the most: lower ones only join events.
        most, best = max((most, best), (count, lower), key=lambda pair: pair[0])
    return float(best)
