"""Detectors on the same segments: ranks, the best of them, and what is too little to compare."""

import math

import numpy as np
import pytest

from mvpa_ts.ieeg.scoring.comparison import compare_results, compare_segments
from mvpa_ts.ieeg.scoring.results import RecordingResult, SubjectResult

LABELS = np.arange(200) % 20 == 0


def test_the_best_is_named_and_many_segments_are_trusted():
    perfect, chance = LABELS * 0.8, np.full(200, 0.6)
    comparison = compare_segments(LABELS, {"ours": chance, "line-length": perfect}, 10, {"ours": 0.7})
    assert comparison.rows["ours"] == {"auroc": 0.5, "auprc": 0.05, "found": 0, "false": 0}
    assert comparison.words() == [
        "200 segments, 10 of them in 10 seizures: AUROC (AUPRC; segments found, and false ones) of "
        "ours 0.500 (0.050; 0 and 0), line-length 1.000 (1.000; 10 and 0).",
        "The highest AUROC on these segments: line-length.",
    ]
    words = compare_segments(LABELS, {"a": perfect, "b": perfect}, 10).words()
    assert words[-1] == "The same highest AUROC on these segments: a, b."


@pytest.mark.parametrize(("count", "seizures"), [(200, 4), (80, 10)])
def test_few_seizures_or_segments_are_too_little(count, seizures):
    words = compare_segments(LABELS[:count], {"ours": LABELS[:count] * 0.8}, seizures).words()
    assert words[-1] == "Too little to trust: fewer than 5 seizures or 100 segments."


@pytest.mark.parametrize(("labels", "missing"), [([0, 0, 0], "seizures"), ([1, 1, 1], "segments without a seizure")])
def test_one_class_is_not_compared(labels, missing):
    comparison = compare_segments(labels, {"ours": [0.1, 0.2, 0.3]}, 1)
    assert comparison.words()[0].endswith(f"detectors are not compared, because there are no {missing} here.")
    assert math.isnan(comparison.rows["ours"]["auroc"])


def test_only_segments_that_all_scored_are_compared():
    comparison = compare_segments([0, 1, 1], {"ours": [0.1, 0.9, math.nan], "line-length": [0.1, 0.2, 0.9]}, 1)
    assert (comparison.segments, comparison.ictal) == (2, 1)


def test_segments_are_counted_by_the_threshold_of_their_recording():
    subjects = []
    for name, threshold in (("a", 0.3), ("b", 0.5)):
        result = RecordingResult(name, name, 10.0, np.array([0.0, 5.0]), np.full(2, 0.4), [(0.0, 5.0)], [], threshold)
        subjects.append(SubjectResult(name, [result]))
    row = compare_results(subjects).rows["the detector"]
    assert (row["found"], row["false"]) == (1, 1)


@pytest.mark.parametrize("probabilities", [{}, {"ours": [0.1]}])
def test_arrays_of_another_length_are_refused(probabilities):
    with pytest.raises(ValueError, match=r"probabilities must hold a detector, each with shape \(3,\) of labels"):
        compare_segments([0, 1, 1], probabilities, 1)
