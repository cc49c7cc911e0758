"""The linear part of a detector: its penalty against drift, its threshold, its file, and the ways that it goes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from mvpa_ts.ieeg import Detector, MVPFormer, Recording, StreamingDetector, mvpformer_tiny
from mvpa_ts.ieeg.detection.features import BANDS, NUM_FEATURES, TrainingFeatures, blocks, segment_features
from mvpa_ts.ieeg.detection.linear import (
    FIRST_MINUTE,
    LinearPart,
    choose_network_weight,
    drift_covariance,
    fit_linear,
    load_linear,
    save_linear,
)
from mvpa_ts.ieeg.detection.networks import load_networks
from mvpa_ts.ieeg.preprocessing.segments import Segments

NOTHING = LinearPart((0.0,) * NUM_FEATURES, 0.0)
GAIN = np.concatenate([np.full(BANDS, 2.0), [1.0], np.zeros(BANDS + 1)])


def patient(seed, stretches=6, size=8):
    """Features of stretches, half of them seizures: stronger by a factor of two, and with one fast band that rises."""
    random = np.random.default_rng(seed)
    ictal = np.repeat(np.arange(stretches) % 2 == 0, size)
    features = 0.2 * random.normal(size=(len(ictal), NUM_FEATURES)) + 5.0
    features[ictal] += np.log(2.0) * GAIN
    features[ictal, 5] += 2.0
    lengths = np.ones(len(ictal))
    return TrainingFeatures(features, lengths, ictal, np.repeat(np.arange(stretches), size))


def test_a_stronger_background_is_no_seizure():
    """A plain regression trusts the gain, which differs most here; the linear part reads the shape."""
    training, test = patient(0), patient(1)
    plain = LogisticRegression(class_weight="balanced").fit(training.features, training.ictal)
    fitted = fit_linear(training)
    drifted = test.features + np.where(test.ictal, 0.0, np.log(3.0))[:, None] * GAIN
    assert roc_auc_score(test.ictal, plain.decision_function(drifted)) < 0.1
    assert roc_auc_score(test.ictal, fitted.logits(drifted)) > 0.95
    assert roc_auc_score(test.ictal, fitted.logits(test.features)) == 1.0


def test_stretches_that_were_left_out_set_the_threshold():
    fitted, test = fit_linear(patient(0)), patient(1)
    positive = fitted.probabilities(test.features) > 0.5
    assert positive[test.ictal].mean() > 0.9
    assert positive[~test.ictal].mean() < 0.05


def test_one_stretch_of_each_kind_is_enough():
    fitted, test = fit_linear(patient(0, stretches=2)), patient(1)
    assert roc_auc_score(test.ictal, fitted.logits(test.features)) == 1.0


def test_drift_moves_power_twice_as_much_as_length_and_no_spread():
    covariance = drift_covariance()
    assert (np.linalg.eigvalsh(covariance) > 0).all()
    direction = GAIN / np.linalg.norm(GAIN)
    assert direction @ covariance @ direction > 10 * covariance[-1, -1]


def test_networks_count_only_where_recordings_agree():
    random = np.random.default_rng(0)
    ictal, recording = np.tile([True, False], 60), np.repeat(np.arange(12), 10)
    sign = np.where(ictal, 1.0, -1.0)
    good, noise = sign + random.normal(size=120), random.normal(size=120)
    assert choose_network_weight(noise, 2 * good, ictal, recording) > 0
    assert choose_network_weight(2 * good, 3 * noise, ictal, recording) == 0.0
    assert choose_network_weight(noise, good, ictal, np.zeros(120, int)) == 0.0
    assert choose_network_weight(noise, good, np.ones(120, bool), recording) == 0.0


def test_a_recording_is_cut_between_its_seizures():
    x = np.random.default_rng(0).normal(0, 10, (2, 100 * 512))
    recording = Recording.from_array(x, 512.0, ["A1", "A2"], "µV", preprocessed=True, seizures=[(10, 20), (60, 70)])
    training = TrainingFeatures.of([Segments(recording), Segments(recording)])
    assert training.stretch.tolist() == [0] * 8 + [1] * 12 + [2] * 8 + [3] * 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [1.0]}, "weights must hold 18 finite numbers"),
        ({"bias": float("nan")}, "and bias one"),
        ({"network": -1.0}, "network must be a weight of 0 or more"),
        ({"persistence": 0}, "persistence must be a whole number of 1 or more"),
        ({"first_minute": {"weights": [1.0], "bias": 0.0}}, "weights must hold 18 finite numbers"),
        ({"more": 1}, "linear in .*config.json cannot be used"),
    ],
)
def test_a_damaged_one_is_named(tmp_path, change, message):
    MVPFormer(mvpformer_tiny(num_classes=2)).save_pretrained(tmp_path)
    assert load_linear(tmp_path) is None
    save_linear(NOTHING, tmp_path)
    assert load_linear(tmp_path) == NOTHING
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["linear"] |= change
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=message):
        load_linear(tmp_path)


@pytest.mark.parametrize("network", [0.0, 0.5])
def test_detector_and_stream_join_it_with_the_networks(tmp_path, network):
    torch.manual_seed(0)
    model = MVPFormer(mvpformer_tiny(num_classes=2, context=4))
    model.save_pretrained(tmp_path)
    random = np.random.default_rng(0)
    linear = replace(NOTHING, weights=tuple(random.normal(0, 0.1, NUM_FEATURES)), bias=-1.0, network=network)
    save_linear(linear, tmp_path)
    x = random.normal(0, 30, (3, 32 * 512))
    x[:, 5 * 512 : 10 * 512] = 0.0  # a segment without a signal
    recording = Recording.from_array(x, 512.0, ["A1", "A2", "A3"], "µV")
    settings = {"notch": None}
    detection = Detector(tmp_path, settings, rules="none", batch_size=40).detect(recording)
    alone = Detector(load_networks(tmp_path), settings, rules="none").detect(recording).probabilities
    segments = Segments(recording, detection.segments.preprocessing)
    features = np.concatenate([segment_features(*block) for block in blocks(segments)])
    logits = features @ np.array(linear.weights) - 1.0 + network * np.log(alone / (1 - alone))
    np.testing.assert_allclose(detection.probabilities, 1 / (1 + np.exp(-logits)), atol=1e-5)
    assert np.isnan(detection.probabilities[1])
    assert detection.rules.threshold == 0.5
    assert detection.provenance.model["linear"] == linear.to_dict()
    stream = StreamingDetector(tmp_path, 512.0, ["A1", "A2", "A3"], settings)
    decisions = [*stream.feed(x[:, : 20 * 512]), *stream.feed(x[:, 20 * 512 :]), *stream.finish()]
    streamed = np.array([decision.probability for decision in decisions])
    np.testing.assert_allclose(streamed[:4], detection.probabilities[:4], atol=1e-5)
    assert stream.threshold == 0.5


def running_mean(logits, count):
    """Of each and those before it, whatever is NaN left out."""
    means = [np.nanmean(logits[max(index - count + 1, 0) : index + 1]) for index in range(len(logits))]
    return np.where(np.isnan(logits), np.nan, means)


@pytest.mark.parametrize("network", [0.0, 0.5])
def test_the_first_minute_has_a_part_of_its_own_and_segments_decide_together(tmp_path, network):
    """In a file, in one that is gone on with and in a stream."""
    torch.manual_seed(0)
    MVPFormer(mvpformer_tiny(num_classes=2, context=2)).save_pretrained(tmp_path)
    random = np.random.default_rng(0)
    later, early = (random.normal(0, 0.1, NUM_FEATURES) for _ in range(2))
    linear = replace(NOTHING, weights=tuple(later), network=network)
    x = random.normal(0, 30, (2, 77 * 512))
    x[:, 5 * 512 : 10 * 512] = 0.0  # a segment without a signal
    recording = Recording.from_array(x, 512.0, ["A1", "A2"], "µV")
    settings = {"notch": None}
    save_linear(linear, tmp_path)
    plain = Detector(tmp_path, settings, rules="none").detect(recording)
    save_linear(replace(linear, persistence=3, first_minute=LinearPart(tuple(early), -1.0)), tmp_path)
    assert load_linear(tmp_path).first_minute.bias == -1.0
    detector = Detector(tmp_path, settings, rules="none", batch_size=1)
    probabilities = detector.detect(recording).probabilities
    features = np.concatenate([segment_features(*block) for block in blocks(plain.segments)])
    logits = np.log(plain.probabilities / (1 - plain.probabilities))
    logits[:FIRST_MINUTE] = features[:FIRST_MINUTE] @ early - 1.0
    expected = 1 / (1 + np.exp(-running_mean(logits, 3)))
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert np.isnan(probabilities[1])
    for first in (1, 3, 14):
        gone_on = np.concatenate([*detector._scored(detector.segments(recording), first)])
        np.testing.assert_allclose(gone_on, probabilities[first:], atol=1e-5)
    stream = StreamingDetector(tmp_path, 512.0, ["A1", "A2"], settings)
    streamed = np.array([decision.probability for decision in [*stream.feed(x), *stream.finish()]])
    np.testing.assert_allclose(streamed[:FIRST_MINUTE], probabilities[:FIRST_MINUTE], atol=1e-5)
    np.testing.assert_allclose(streamed[FIRST_MINUTE:], probabilities[FIRST_MINUTE:], atol=0.05)
