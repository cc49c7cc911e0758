"""Detectors on the same segments: how well each ranks them, which is best, and whether that can be told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import logit

from mvpa_ts.checks import listed, warn
from mvpa_ts.ieeg.constants import counted
from mvpa_ts.ieeg.events import Flags, Floats, Integers
from mvpa_ts.ieeg.recordings.copies import same
from mvpa_ts.ieeg.scoring.results import SubjectResult
from mvpa_ts.ieeg.scoring.words import MIN_SEIZURES

# Segments that a comparison needs: of fewer, one decides a hundredth of the AUROC and more.
MIN_SEGMENTS = 100


@dataclass(frozen=True)
class SegmentComparison:
    """Detectors on the segments that all of them scored.

    Attributes
    ----------
    segments, ictal, seizures : int
        Segments, those of them in seizures, and seizures.
    rows : mapping of detector to numbers
        `auroc`, `auprc` (average precision), `found` (seizure segments above the threshold) and `false` (others above
        it). NaN in the first two where all segments are of one class.
    """

    segments: int
    ictal: int
    seizures: int
    rows: Mapping[str, Mapping[str, float]]

    @property
    def best(self) -> list[str]:
        """The detectors with the highest AUROC, to three decimals; none where it is undefined."""
        values = {name: round(row["auroc"], 3) for name, row in self.rows.items() if not math.isnan(row["auroc"])}
        return [name for name, value in values.items() if value == max(values.values())]

    def words(self) -> list[str]:
        """One sentence each: the numbers, the best, and a warning where this is too little to trust."""
        counts = f"{counted(self.segments, 'segment')}, {self.ictal} of them in {counted(self.seizures, 'seizure')}"
        if not self.best:
            missing = "segments without a seizure" if self.ictal else "seizures"
            return [f"{counts}: detectors are not compared, because there are no {missing} here."]
        numbers = ", ".join(
            f"{name} {row['auroc']:.3f} ({row['auprc']:.3f}; {row['found']:.0f} and {row['false']:.0f})"
            for name, row in self.rows.items()
        )
        sentences = [f"{counts}: AUROC (AUPRC; segments found, and false ones) of {numbers}."]
        if len(self.best) > 1:
            sentences.append(f"The same highest AUROC on these segments: {', '.join(self.best)}.")
        elif len(self.rows) > 1:
            sentences.append(f"The highest AUROC on these segments: {self.best[0]}.")
        if self.segments < MIN_SEGMENTS or self.seizures < MIN_SEIZURES:
            sentences.append(f"Too little to trust: fewer than {MIN_SEIZURES} seizures or {MIN_SEGMENTS} segments.")
        return sentences


def compare_segments(
    labels: npt.ArrayLike,
    probabilities: Mapping[str, npt.ArrayLike],
    seizures: int,
    thresholds: Mapping[str, npt.ArrayLike] | None = None,
) -> SegmentComparison:
    """Compare detectors on the segments that all of them scored.

    Parameters
    ----------
    labels : bool array, shape (n,)
    probabilities : mapping of detector to array, shape (n,)
        NaN where a segment was skipped.
    seizures : int
        Seizures among the segments.
    thresholds : mapping of detector to float, or array, shape (n,), optional
        Default: 0.5.

    Raises
    ------
    ValueError
        There is no detector, or the arrays differ in length.

    Examples
    --------
    >>> comparison = compare_segments([0, 0, 1, 1], {"line-length": [0.1, 0.4, 0.3, 0.9], "ours": [0, 0.1, 0.6, 1]}, 1)
    >>> comparison.best, comparison.rows["line-length"]["auroc"]
    (['ours'], 0.75)
    """
    ictal = np.asarray(labels, dtype=bool)
    scores = {name: np.asarray(values, dtype=np.float64) for name, values in probabilities.items()}
    if not scores or any(values.shape != ictal.shape for values in scores.values()):
        shapes = {name: values.shape for name, values in scores.items()}
        raise ValueError(f"probabilities must hold a detector, each with shape {ictal.shape} of labels, got {shapes}")
    scored = ~np.any([np.isnan(values) for values in scores.values()], axis=0)
    ictal = ictal[scored]
    rows = {}
    for name, values in scores.items():
        positive = (values > np.asarray((thresholds or {}).get(name, 0.5)))[scored]
        auroc, auprc = ranking(ictal, values[scored])
        rows[name] = {
            "auroc": auroc,
            "auprc": auprc,
            "found": int((positive & ictal).sum()),
            "false": int((positive & ~ictal).sum()),
        }
    return SegmentComparison(len(ictal), int(ictal.sum()), seizures, rows)


def compare_results(results: Sequence[SubjectResult]) -> SegmentComparison:
    """Compare a detector with the baselines that `mvpformer detect` wrote beside it in every recording."""
    recordings = [recording for result in results for recording in result.recordings]
    # A baseline that some recordings lack would be scored on other segments than the detector.
    names = [name for name in recordings[0].baselines if all(name in item.baselines for item in recordings)]
    scores = {"the detector": np.concatenate([item.probabilities for item in recordings])}
    scores |= {name: np.concatenate([item.baselines[name] for item in recordings]) for name in names}
    labels = np.concatenate([item.labels for item in recordings])
    thresholds = {"the detector": np.concatenate([np.full(len(item.starts), item.threshold) for item in recordings])}
    return compare_segments(labels, scores, sum(result.num_seizures for result in results), thresholds)


def warn_of_copies(results: Sequence[tuple[str, Floats]]) -> None:
    """Warn of recordings with the same probabilities [n], such as one recording in two formats: they count twice."""
    vectors = []
    for index, (_, probabilities) in enumerate(results):
        logits = logit(np.clip(np.nan_to_num(probabilities), 1e-4, 1 - 1e-4))
        if len(logits) >= 12:  # of a minute or less, chance could make two alike; the last may be padded in a copy
            vectors += [(None, index, logits[:count]) for count in (len(logits), len(logits) - 1)]
    if pairs := same(vectors):
        names = listed(f"{results[first][0]} and {results[second][0]}" for first, second in pairs)
        warn(
            f"{names} have the same probabilities: if they are copies, such as one recording in two formats, they "
            "count twice. Leave one out"
        )


def compare_classes(names: Sequence[str], labels: Integers, probabilities: Floats) -> dict[str, pd.DataFrame]:
    """Scores of classes, and confusions: segments by their true class (rows) and the likeliest (columns).

    Labels [n] below 0 and probabilities [n, K] that are NaN have no part. AUROCs are of a class against all others.
    """
    scored = (labels >= 0) & ~np.isnan(probabilities).any(1)
    if not scored.any():
        raise ValueError("nothing was compared: no segment has a class and a probability")
    from sklearn.metrics import cohen_kappa_score, confusion_matrix, recall_score

    truth, values, numbers = labels[scored], probabilities[scored], range(len(names))
    stated = values.argmax(1)
    confusion = confusion_matrix(truth, stated, labels=numbers)
    row = {
        "segments": len(truth),
        "balanced accuracy": recall_score(truth, stated, labels=np.unique(truth), average="macro"),
        "kappa": cohen_kappa_score(truth, stated) if len({*truth, *stated}) > 1 else math.nan,
        **{f"AUROC {name}": ranking(truth == number, values[:, number])[0] for number, name in enumerate(names)},
    }
    table = pd.DataFrame({"true class": [*names]} | dict(zip(names, confusion.T, strict=True)))
    return {"scores": pd.DataFrame([row]), "confusion": table}


def ranking(labels: Flags, scores: Floats) -> tuple[float, float]:
    """AUROC and average precision; NaN where all labels are the same.

    Examples
    --------
    >>> ranking(np.array([False, True]), np.array([0.2, 0.7]))
    (1.0, 1.0)
    """
    if not len(labels) or labels.all() or not labels.any():
        return math.nan, math.nan
    from sklearn.metrics import average_precision_score, roc_auc_score

    return float(roc_auc_score(labels, scores)), float(average_precision_score(labels, scores))
