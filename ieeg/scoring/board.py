"""A board: every detector at hand on every recording of a folder, by the rules of SzCORE, in one table and one page.

A detector is added by a function of a `Recording` and the seconds at which its segments of 5 s begin, which gives a
probability for each, see `add_detector`; docs/lab.md has brainmaze as the example.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mvpa_ts.files import replaced_together, write_csv
from mvpa_ts.ieeg.constants import BRAINMAZE, DEMO, LINE_LENGTH, counted
from mvpa_ts.ieeg.detection.baselines import Baseline, BaselineDetector, brainmaze_installed
from mvpa_ts.ieeg.detection.detector import Detector
from mvpa_ts.ieeg.detection.report import render
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.recordings.copies import copies
from mvpa_ts.ieeg.recordings.recording import Recording, warn_of_unannotated
from mvpa_ts.ieeg.scoring.comparison import ranking
from mvpa_ts.ieeg.scoring.results import RecordingResult, SubjectResult
from mvpa_ts.ieeg.scoring.scores import Scores

ScoreFunction = Callable[[Recording, npt.NDArray[np.float64]], npt.ArrayLike]

BOARD, PAGE = "board.csv", "board.html"
# Column of the share of the time without a seizure that events cover, and the share beyond which a row stands last.
ALARMED, MOST_ALARMED = "quiet time alarmed", 0.5
MERGED = (
    "SzCORE: events less than 90 s apart are one, those over 5 min are split; a seizure is found if an event overlaps "
    "the time from 30 s before it to 60 s after it."
)


class Added(Baseline):
    """A detector that is a function of a recording and the starts of its segments."""

    kind = "added"

    def __init__(self, name: str, score: ScoreFunction) -> None:
        self._name, self.score = name, score

    @property
    def name(self) -> str:
        """See `Baseline.name`."""
        return self._name

    def settings(self) -> dict[str, Any]:
        """Its name: what else it depends on nobody knows."""
        return {"baseline": self._name}

    def probabilities(self, segments: Segments, first: int = 0) -> Iterator[npt.NDArray[np.float64]]:
        """See `Baseline.probabilities`."""
        values = np.asarray(self.score(segments.recording, segments.starts.copy()), dtype=np.float64)
        scored = values[~np.isnan(values)] if values.shape == segments.starts.shape else np.array([math.inf])
        if ((scored < 0) | (scored > 1)).any():
            raise ValueError(
                f"the detector {self._name} must give {len(segments.starts)} probabilities between 0 and 1 (NaN where "
                f"it has none) for {segments.recording.name}, got an array of shape {values.shape}: {values!s:.100}"
            )
        yield values[first:]


ADDED: dict[str, Detector] = {}


def add_detector(name: str, score: ScoreFunction, *, threshold: float = 0.5) -> None:
    """Add a detector to the board of this process.

    Parameters
    ----------
    name : str
        What the table calls it.
    score : callable
        Takes a `Recording` and the starts of its segments (s, shape (n,)); gives n probabilities, NaN for none.
    threshold : float, default 0.5
        A segment is positive above it.

    Raises
    ------
    ValueError
        The name is taken.

    Examples
    --------
    >>> import numpy as np
    >>> add_detector("never", lambda recording, starts: np.zeros(len(starts)))
    >>> ADDED.pop("never").rules.merge_gap
    90.0
    """
    if name in ADDED or name in (DEMO, LINE_LENGTH, BRAINMAZE):
        raise ValueError(f"there is a detector {name!r} already: give this one another name")
    ADDED[name] = BaselineDetector(Added(name, score), threshold=threshold, channels="all")  # type: ignore[arg-type]


def detectors_at_hand(models: Sequence[str] = ()) -> dict[str, Detector]:
    """The box's detector, line length, brainmaze where it is installed, models and baselines, and what was added."""
    detectors: dict[str, Detector] = {DEMO: Detector(DEMO), LINE_LENGTH: BaselineDetector(LINE_LENGTH)}
    if brainmaze_installed():
        detectors[BRAINMAZE] = BaselineDetector(BRAINMAZE)
    for model in models:
        regression = Path(model) / "regression.json"
        baseline = model in (LINE_LENGTH, BRAINMAZE) or Path(model).suffix.lower() == ".json"
        detector = detectors[model] = (BaselineDetector if baseline else Detector)(model)
        if detector.classes:
            raise ValueError(
                f"{model} tells {', '.join(detector.classes)} apart, and a board is of seizures: give folders of "
                "finetuned models; `mvpformer detect` and then `mvpformer evaluate` score classes"
            )
        if regression.is_file():
            detectors[f"{model}: regression"] = BaselineDetector(os.fspath(regression))
    return detectors | ADDED


@dataclass(frozen=True)
class Board:
    """Scores of detectors over recordings.

    Attributes
    ----------
    rows : DataFrame
        One row a detector, the best F1 of events first; those that alarm over most of the quiet time last.
    left_out : mapping of recording to reason
    failures : mapping of "detector: recording" to error
    trained : mapping of detector to text
        Which recordings, or others of whose subjects, trained it.
    notes : sequence of str
        What was said of the recordings when they were read.
    """

    rows: pd.DataFrame
    left_out: Mapping[str, str]
    failures: Mapping[str, str]
    trained: Mapping[str, str]
    notes: Sequence[str] = ()

    def save(self, folder: str | Path) -> None:
        """Write ``board.csv`` and ``board.html``, there only where both are whole; equal boards, equal bytes."""
        shown = self.rows.map(lambda value: f"{value:.3f}" if isinstance(value, float) else str(value))
        cells = shown.replace("nan", "–").to_numpy().tolist()
        facts = {
            "Events": in_words(self.rows),
            "Segments": "of 5 s; AUROC and AUPRC of the probabilities",
            "Left out": "; ".join(f"{name}: {why}" for name, why in self.left_out.items()) or "no recording",
            "Trained": "; ".join(f"{name} {reason}" for name, reason in self.trained.items())
            or "on none of these, as far as known",
            "Failed": "; ".join(f"{name}: {why}" for name, why in self.failures.items()) or "no detector",
        }
        table = ("Detectors", tuple(self.rows.columns), cells)
        with replaced_together(folder, PAGE, BOARD) as (page, file):
            write_csv(file, self.rows)
            html = render("Detectors on the same recordings", [], facts, [table], self.notes)
            page.write_text(html, encoding="utf-8")


def in_words(rows: pd.DataFrame) -> str:
    """How events are counted, from how much time if that is less than a day, and which detectors hardly ever stop.

    Examples
    --------
    >>> rows = pd.DataFrame({"detector": ["mine", "other"], "hours": [0.1, 0.1], ALARMED: [0.2, 0.9]})
    >>> in_words(rows).removeprefix(MERGED)
    ' False events a day are counted from 6 minutes. Last, for alarms over most of the quiet time: other.'
    """
    hours = float(rows["hours"].max())
    minutes = f"{hours:.1f} hours" if hours >= 2 else f"{60 * hours:.0f} minutes"
    words = MERGED + (f" False events a day are counted from {minutes}." if hours < 24 else "")
    always = rows.loc[rows[ALARMED] > MOST_ALARMED, "detector"]
    return words + (f" Last, for alarms over most of the quiet time: {', '.join(always)}." if len(always) else "")


def board(recordings: Sequence[Recording], detectors: Mapping[str, Detector]) -> Board:
    """Score every detector on every recording that says where its seizures are.

    A recording on which a detector fails counts for this detector as nothing detected, in no time in which events could
    have been false. It is listed.

    Raises
    ------
    ValueError
        No recording says where its seizures are, or there is no detector.
    """
    # Recordings of one name, as in folders of several patients, are told apart by their place.
    often = Counter(r.name for r in recordings)
    named = {r.name + (f" (recording {n})" if often[r.name] > 1 else ""): r for n, r in enumerate(recordings, start=1)}
    left_out = {label: "says nothing of seizures" for label, r in named.items() if not r.annotated}
    annotated = [label for label, r in named.items() if r.annotated]
    for first, again in copies([named[label] for label in annotated]):
        left_out[annotated[again]] = f"holds the same signal as {annotated[first]}"
    annotated = [label for label in annotated if label not in left_out]
    warn_of_unannotated(recordings, "so nothing is scored there")
    if not annotated or not detectors:
        raise ValueError(
            f"a board needs a detector and a recording that says whether there is a seizure, got "
            f"{counted(len(detectors), 'detector')} and {counted(len(annotated), 'such recording')}"
        )
    failures: dict[str, str] = {}
    trained: dict[str, str] = {}
    rows = []
    for name, detector in detectors.items():
        results, taught, others, failed = [], [], [], 0
        for label in annotated:
            recording = named[label]
            try:
                detection = detector.detect(recording)
                starts, values, events = detection.starts, detection.probabilities, detection.events
                taught += [label] if detection.provenance.subject_in_training else []
                others += [label] if detection.provenance.others_in_training else []
            # A foreign detector may fail in any way; the others are scored all the same.
            except Exception as error:
                failures[f"{name}: {label}"] = str(error)
                starts, values, events, failed = np.zeros(0), np.zeros(0), [], failed + 1
            source = recording.name, recording.subject_name, recording.duration
            results.append(RecordingResult(*source, starts, values, [*recording.seizures], events))
        result = SubjectResult(name, results)
        ranked = ranking(result.labels, result.probabilities)
        counts = {"seizures skipped": result.seizures_skipped, "trained on": len(taught), "failed on": failed}
        rows.append(_row(name, result.events, result.seconds, *ranked) | counts)
        said = [f"on {', '.join(taught)}, whose scores do not show how good it is"] if taught else []
        said += [f"on other recordings of the subjects of {', '.join(others)}"] if others else []
        trained |= {name: f"was trained {', and '.join(said)}"} if said else {}
    # An event that never ends finds each seizure, and over few recordings it is hardly ever false.
    frame = pd.DataFrame(rows).sort_values(["event F1", "second F1", "AUROC"], ascending=False)
    frame = frame.sort_values(ALARMED, key=lambda shares: shares > MOST_ALARMED, kind="stable", ignore_index=True)
    notes = dict.fromkeys(note for label in annotated for note in (*named[label].left_out, *named[label].notes))
    return Board(frame, left_out, failures, trained, [*notes])


def _row(name: str, events: Scores, seconds: Scores, auroc: float, auprc: float) -> dict[str, Any]:
    return {
        "detector": name,
        "seizures": events.reference,
        "found": events.true_positives,
        "false events a day": round(events.false_positives_per_day, 3),
        "event F1": round(events.f1, 4),
        "second sensitivity": round(seconds.sensitivity, 4),
        "second precision": round(seconds.precision, 4),
        "second F1": round(seconds.f1, 4),
        ALARMED: round(1 - seconds.specificity, 4),
        "AUROC": round(auroc, 4),
        "AUPRC": round(auprc, 4),
        "hours": round(events.hours, 3),
    }
