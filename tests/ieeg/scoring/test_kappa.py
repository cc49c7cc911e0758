"""Kappa against scikit-learn, torchmetrics and known answers; draws, NaN policy, intervals."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score
from torchmetrics.functional.classification import binary_cohen_kappa

from mvpa_ts.ieeg.scoring.kappa import cohen_kappa, convergence, kappa_interval, landis_koch, sampled_kappa


def sparse(count=20000, ictal=20):
    """A recording with one seizure, found but for its first quarter, and two false segments."""
    labels = np.zeros(count, bool)
    labels[5000 : 5000 + ictal] = True
    predictions = np.zeros(count, bool)
    predictions[5000 + ictal // 4 : 5000 + ictal] = True
    predictions[[100, 9000]] = True
    return labels, predictions


class TestKappa:
    @pytest.mark.parametrize("seed", range(10))
    def test_equals_scikit_learn_and_torchmetrics(self, seed):
        generator = np.random.default_rng(seed)
        labels = generator.random(300) < generator.random()
        predictions = np.where(generator.random(300) < 0.8, labels, generator.random(300) < 0.5)
        expected = cohen_kappa_score(labels, predictions)
        assert cohen_kappa(labels, predictions) == pytest.approx(expected, abs=1e-12)
        theirs = binary_cohen_kappa(torch.tensor(predictions).int(), torch.tensor(labels).int())
        assert float(theirs) == pytest.approx(expected, abs=1e-5)

    def test_published_example(self):
        # Cohen's table of 50 grant proposals: 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no.
        labels = [1] * 25 + [0] * 25
        predictions = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
        assert cohen_kappa(labels, predictions) == pytest.approx(0.4)

    def test_undefined_and_zero(self):
        assert math.isnan(cohen_kappa([0, 0, 0], [0, 0, 0]))
        assert math.isnan(cohen_kappa([1, 1], [1, 1]))
        assert cohen_kappa([0, 0, 1], [0, 0, 0]) == 0.0

    @pytest.mark.parametrize(
        ("kappa", "word"),
        [(-0.01, "poor"), (0.0, "slight"), (0.2, "slight"), (0.21, "fair"), (0.53, "moderate"), (0.61, "substantial"),
         (0.81, "almost perfect"), (1.0, "almost perfect"), (math.nan, "undefined")],
    )  # fmt: skip
    def test_landis_and_koch(self, kappa, word):
        assert landis_koch(kappa) == word


class TestInterval:
    def test_covers_the_truth_as_often_as_it_says(self):
        # Independent segments of known joint probabilities, so the true kappa is known.
        joint = np.array([[0.78, 0.04], [0.05, 0.13]])
        rows, columns = joint.sum(1), joint.sum(0)
        truth = (np.trace(joint) - rows @ columns) / (1 - rows @ columns)
        generator = np.random.default_rng(0)
        covered = 0
        for _ in range(600):
            cells = generator.choice(4, 300, p=joint.ravel())
            _, low, high = kappa_interval(cells // 2, cells % 2)
            covered += low <= truth <= high
        assert 0.92 < covered / 600 < 0.98

    def test_perfect_and_undefined(self):
        assert kappa_interval([0, 1, 1], [0, 1, 1]) == (1.0, 1.0, 1.0)
        assert all(map(math.isnan, kappa_interval([0, 0], [0, 0])))


class TestDraws:
    def test_shape_and_reproducibility(self):
        first, again = (sampled_kappa(*sparse(), seed=3) for _ in range(2))
        assert first.values.shape == (250,)
        np.testing.assert_array_equal(first.values, again.values)
        assert not np.array_equal(first.values, sampled_kappa(*sparse(), seed=4).values, equal_nan=True)

    def test_uniform_draws_of_a_sparse_recording_rarely_hold_the_seizure(self):
        # 22 marked segments in 20000: 1 − (1 − 300/20000)^22 = 28 % of the draws hold any of them.
        estimate = sampled_kappa(*sparse(), draws=2000)
        assert 0.68 < estimate.undefined / 2000 < 0.76

    def test_stratified_draws_always_hold_both(self):
        labels, predictions = sparse()
        estimate = sampled_kappa(labels, predictions, scheme="stratified")
        assert estimate.undefined == 0
        assert estimate.low <= estimate.mean <= estimate.high

    def test_draws_agree_with_the_whole_where_seizures_are_common(self):
        generator = np.random.default_rng(1)
        labels = generator.random(5000) < 0.3
        predictions = np.where(generator.random(5000) < 0.85, labels, ~labels)
        for scheme in ("uniform", "stratified"):
            estimate = sampled_kappa(labels, predictions, scheme=scheme)
            assert estimate.whole == pytest.approx(cohen_kappa_score(labels, predictions))
            assert estimate.mean == pytest.approx(estimate.whole, abs=0.01)
            assert estimate.low < estimate.whole < estimate.high

    def test_stratified_draws_of_a_sparse_recording_state_their_prevalence(self):
        """14 days, 30 ictal segments, all found, one false segment in a thousand: kappa at 1/8064 and at 1/300."""
        labels = np.zeros(14 * 17280, bool)
        labels[1000:1030] = True
        predictions = labels | (np.random.default_rng(0).random(len(labels)) < 1e-3)
        stratified, uniform = (sampled_kappa(labels, predictions, scheme=kind) for kind in ("stratified", "uniform"))
        assert stratified.prevalence == pytest.approx(1 / 300)
        assert uniform.prevalence == pytest.approx(30 / len(labels), rel=0.5)
        assert stratified.whole == pytest.approx(cohen_kappa_score(labels, predictions))
        assert stratified.whole < 0.25
        assert stratified.mean > 0.8

    @pytest.mark.parametrize("ictal", [2, 50, 150])
    def test_stratified_draws_of_other_recordings_have_their_ratio(self, ictal):
        labels = np.arange(300) < ictal
        for scheme in ("stratified", "uniform"):
            assert sampled_kappa(labels, ~labels, scheme=scheme).prevalence == pytest.approx(ictal / 300)
        assert sampled_kappa(np.tile(labels, 3), np.tile(labels, 3), scheme="stratified").prevalence == ictal / 300

    def test_draws_do_not_repeat_segments(self):
        labels = np.arange(300) < 40
        predictions = np.arange(300) < 30
        estimate = sampled_kappa(labels, predictions)
        np.testing.assert_allclose(estimate.values, cohen_kappa(labels, predictions))

    def test_undefined_draws_are_counted_and_left_out(self):
        labels, predictions = sparse(ictal=4)
        estimate = sampled_kappa(labels, predictions)
        assert 0 < estimate.undefined < 250
        assert np.isnan(estimate.values).sum() == estimate.undefined
        assert estimate.mean == np.nanmean(estimate.values)  # undefined draws are left out

    def test_recording_without_any_seizure(self):
        with warnings.catch_warnings(action="error"):
            estimate = sampled_kappa(np.zeros(400, bool), np.zeros(400, bool))
        assert estimate.undefined == 250
        assert math.isnan(estimate.mean)
        assert math.isnan(estimate.whole)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scheme": "even"}, "scheme must be 'uniform' or 'stratified', got 'even'"),
            ({"draws": 0}, "at least 1, got 300 and 0"),
        ],
    )
    def test_errors(self, options, message):
        with pytest.raises(ValueError, match=message):
            sampled_kappa([0, 1], [0, 1], **options)


def test_convergence_is_the_running_mean():
    values = np.random.default_rng(0).normal(0.5, 0.1, 250)
    curve = convergence(np.insert(values, 10, np.nan))
    assert curve.shape == (250, 2)
    assert curve[-1, 0] == pytest.approx(values.mean())
    assert curve[-1, 1] == pytest.approx(1.96 * values.std(ddof=1) / math.sqrt(250))
    assert curve[49, 0] == pytest.approx(values[:50].mean())
