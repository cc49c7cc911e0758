"""Probes on features with a known answer, channel ranking and sweep."""

import numpy as np
import pytest
import torch
from harness.detection.decoding import channel_sweep, decode, rank_by_decoding, trial_features
from sklearn.metrics import roc_auc_score
from support.made_up_recordings import seeded

from mvpa_ts.ieeg.datasets.treebank_tasks import Examples, split_examples


def trials(count=600, seed=0):
    generator = np.random.default_rng(seed)
    times = np.cumsum(generator.exponential(1.5, count))
    return times, generator.integers(0, 2, count)


def split_trials(times, labels, how):
    starts = np.round(times * 2048).astype(np.int64)
    return split_examples(Examples(starts, 10240, labels.astype(bool)), how)


def made_features(informative, channels=14, count=600, seed=0):
    """Features in which some channels carry the label in one direction."""
    times, labels = trials(count)
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, channels, 8))
    for channel in informative:
        features[:, channel, 0] += 1.2 * labels
    return times, labels, features


class TestProbe:
    def test_finds_what_is_there_and_nothing_where_nothing_is(self):
        times, labels, features = made_features([2, 7])
        split = split_trials(times, labels, "blocked")
        informed = decode(features, labels, split)
        assert informed.roc_auc > 0.8
        assert informed.balanced_accuracy > 0.7
        assert informed.trials == len(split.test)
        assert informed.channels == 14
        blind = decode(features, labels, split, [0, 1, 3])
        assert 0.3 < blind.roc_auc < 0.7
        assert blind.channels == 3

    def test_scores_are_of_the_test_rows(self):
        times, labels, features = made_features([2])
        split = split_trials(times, labels, "blocked")
        changed = labels.copy()
        changed[split.test] = 1 - changed[split.test]
        scores, inverted = decode(features, labels, split), decode(features, changed, split)
        assert inverted.roc_auc == pytest.approx(1 - scores.roc_auc)
        assert inverted.balanced_accuracy == pytest.approx(1 - scores.balanced_accuracy)

    @pytest.mark.parametrize("part", ["train", "validation", "test"])
    @pytest.mark.parametrize("label", [0, 1])
    def test_a_part_of_one_class_is_an_error_that_names_it(self, part, label):
        times, labels, features = made_features([2], channels=3)
        split = split_trials(times, labels, "blocked")
        labels[getattr(split, part)] = 1 - label
        message = rf"{part} part must hold .* got {len(getattr(split, part))} windows and none of class {label}"
        for score in (decode, channel_sweep, rank_by_decoding):
            with pytest.raises(ValueError, match=message):
                score(features, labels, split)

    def test_ranking_and_sweep(self):
        times, labels, features = made_features([2, 7])
        split = split_trials(times, labels, "blocked")
        assert set(rank_by_decoding(features, labels, split)[:2]) == {2, 7}
        sweep = channel_sweep(features, labels, split, counts=(2, 10, 50))
        assert [scores.channels for scores in sweep] == [2, 10]
        assert sweep[0].roc_auc > 0.8
        (all_there_are,) = channel_sweep(features[:, :3], labels, split)
        assert all_there_are.channels == 3


class TestFeatures:
    @pytest.fixture(scope="class")
    def model(self):
        return seeded()

    def test_are_those_of_the_last_segment_whatever_the_batch(self, model):
        signals = np.random.default_rng(0).normal(0, 50, (5, 3, 2 * 2560))
        features = trial_features(model, signals, batch_size=2)
        with torch.no_grad():
            expected = model(torch.from_numpy(signals).float())[:, -1].numpy()
        np.testing.assert_allclose(features, expected, atol=1e-5)

    def test_features_decode_a_rhythm_in_noise(self, model):
        generator = np.random.default_rng(0)
        times, labels = trials(200)
        signals = generator.normal(0, 1, (200, 2, 2560))
        # A slow deflection in one class, which a linear encoder can see.
        signals[labels == 1] += 2.0 * np.hanning(2560)
        features = trial_features(model, signals)
        split = split_trials(times, labels, "random")
        scores = decode(features, labels, split)
        assert scores.roc_auc > 0.9
        assert roc_auc_score(labels, signals.mean((1, 2))) > 0.9

    @pytest.mark.parametrize("training", [True, False])
    def test_the_model_stays_what_it_was(self, training):
        """Also where computing fails; features are without dropout either way."""
        model = seeded(dropout=0.5).train(training)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        signals = np.random.default_rng(0).normal(0, 50, (3, 2, 2560))
        first, second = trial_features(model, signals), trial_features(model, signals, device="cpu")
        np.testing.assert_array_equal(first, second)
        assert {module.training for module in model.modules()} == {training}
        torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
        assert all(parameter.requires_grad and not parameter.is_inference() for parameter in model.parameters())
        with pytest.raises(ValueError, match="2560"):
            trial_features(model, signals[..., :100])
        assert model.training == training

    def test_features_are_computed_where_the_model_is(self):
        """The meta device has no values to give back, which shows that nothing was moved to the CPU."""
        model = seeded().train().to("meta")
        with pytest.raises(RuntimeError, match=r"meta tensor|scalarType"):
            trial_features(model, np.zeros((1, 2, 2560)))
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
        assert model.training

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_a_model_on_a_gpu_stays_there(self):
        model = seeded().cuda()
        signals = np.random.default_rng(0).normal(0, 50, (3, 2, 2560))
        features = trial_features(model, signals)
        np.testing.assert_allclose(trial_features(model, signals, device="cpu"), features, atol=1e-4)
        assert {parameter.device.type for parameter in model.parameters()} == {"cuda"}
        assert not any(parameter.is_inference() for parameter in model.parameters())

    def test_shape_is_checked(self, model):
        with pytest.raises(ValueError, match=r"signals must be \[n, C, samples\]"):
            trial_features(model, np.zeros((3, 2560)))
