"""The hard cohort's calibration: amplitude and spectra do badly there, and a rule that knows how seizures spread well.

A small draw, an hour each, with the threshold of validation subjects. The settings were chosen on other seeds (1, 11,
12); on 3, 4 and 6 line length had an F1 of .40, .40 and 0, regression .55, .33 and 0, and the rule .75, 1 and .80.
"""

import numpy as np
import pytest

pytest.importorskip("timescoring")

from harness.detection.pipeline import best_threshold
from harness.detection.spread import spread_scores

from mvpa_ts.ieeg import Segments, simulate_cohort
from mvpa_ts.ieeg.detection.baselines import LineLength, fit_baselines
from mvpa_ts.ieeg.detection.features import TrainingFeatures
from mvpa_ts.ieeg.detection.rules import probabilities_to_events
from mvpa_ts.ieeg.scoring.scores import Scores, score_events
from mvpa_ts.ieeg.training.spans import HeldSegments

TRAIN, VALIDATE, TEST = slice(0, 2), slice(2, 4), slice(4, 7)


def episodic_f1(recordings, scores):
    """F1 of episodes by the paper's rules in the test recordings."""
    scored = [(r, values, 5.0 * np.arange(len(values))) for r, values in zip(recordings, scores, strict=True)]
    threshold = best_threshold(scored[VALIDATE], "paper")
    pooled = Scores.pooled(
        score_events(
            r.seizures, probabilities_to_events(values, starts, "paper", threshold=threshold), r.duration, "paper"
        )
        for r, values, starts in scored[TEST]
    )
    return float(np.nan_to_num(pooled.f1))


@pytest.fixture(scope="module")
def draw():
    recordings = simulate_cohort(7, seed=4, num_channels=6, duration=3600.0, sfreq=128.0, cohort="hard")
    return recordings, [HeldSegments(Segments(recording)) for recording in recordings]


def test_a_rule_that_knows_how_seizures_spread_ranks_their_segments_first():
    """In ten minutes of one subject, which are found in a second."""
    (recording,) = simulate_cohort(1, seed=4, num_channels=4, duration=600.0, sfreq=128.0, cohort="hard")
    segments = Segments(recording)
    scores, seizures = spread_scores(segments), segments.labels()
    assert scores[seizures].min() > np.quantile(scores[~seizures], 0.9)


@pytest.mark.slow
def test_line_length_and_regression_do_badly(draw):
    recordings, segments = draw
    _, regression = fit_baselines(TrainingFeatures.of(segments[TRAIN]))
    for baseline, most in ((LineLength(), 0.4), (regression, 0.6)):
        scores = [np.concatenate([*baseline.probabilities(item)]) for item in segments]
        assert episodic_f1(recordings, scores) <= most


@pytest.mark.slow
def test_a_rule_that_knows_how_seizures_spread_does_well(draw):
    recordings, segments = draw
    assert episodic_f1(recordings, [spread_scores(item) for item in segments]) >= 0.75
