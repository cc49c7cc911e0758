"""The one rule of a segment's label, in training and in evaluation."""

import numpy as np
import pytest

from mvpa_ts.ieeg import Recording, Segments
from mvpa_ts.ieeg.events import segment_labels
from mvpa_ts.ieeg.scoring.results import RecordingResult


@pytest.mark.parametrize(
    ("seizure", "labels"),
    [
        ((14.999999999999998, 20.0), [0, 0, 1, 1, 0]),
        ((15.0, 20.0), [0, 0, 0, 1, 0]),
        ((15.0, 20.000000000000004), [0, 0, 0, 1, 1]),
        ((10.0, 10.0), [0, 0, 0, 0, 0]),
        ((0.0, 5e-324), [1, 0, 0, 0, 0]),
        ((4.0, 21.0), [1, 1, 1, 1, 1]),
    ],
)
def test_training_and_evaluation_label_alike(seizure, labels):
    """A seizure from 14.999999999999998 s was in the segment from 10 s to one rule and not to the other."""
    x = np.random.default_rng(0).normal(0, 50, (2, 25 * 512))
    segments = Segments(Recording.from_array(x, 512.0, ["A1", "A2"], "µV", seizures=[seizure]))
    result = RecordingResult("r", "S1", 25.0, segments.starts, np.zeros(5), [seizure], [])
    np.testing.assert_array_equal(segments.labels(), np.array(labels, bool))
    np.testing.assert_array_equal(result.labels, segments.labels())


def test_overlapping_seizures_and_a_tail():
    starts = [0.0, 5.0, 10.0, 12.5]
    assert segment_labels(starts, [(11.0, 12.0), (7.0, 12.5)]).tolist() == [False, True, True, False]
    assert segment_labels([], [(1.0, 2.0)]).tolist() == []
    with pytest.raises(ValueError, match="must not end before it begins"):
        segment_labels(starts, [(3.0, 2.0)])
