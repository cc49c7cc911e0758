"""Detectors of several networks: the mean of their logits, on files and in a stream."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy.special import expit, logit

from mvpa_ts.ieeg import Detector, MVPFormer, Preprocessing, mvpformer_tiny, simulate_recording
from mvpa_ts.ieeg.detection.networks import load_networks, save_networks
from mvpa_ts.ieeg.detection.streaming import StreamingDetector
from mvpa_ts.ieeg.training.finetuning import FinetuningModule

CONFIG = mvpformer_tiny(num_classes=2, context=6, prediction_head=False, dropout=0.0)


@pytest.fixture
def networks() -> list[MVPFormer]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        networks = [MVPFormer(CONFIG).eval() for _ in range(3)]
    with torch.no_grad():
        for network in networks:
            network.head.weight.mul_(3)  # so that their probabilities differ
    return networks


def test_the_mean_logit_counts_on_a_file_and_in_a_stream(networks):
    recording = simulate_recording("S03", seed=1, num_channels=3, duration=28.0, num_seizures=0)
    preprocessing = Preprocessing(notch=50.0)
    detection = Detector(networks, preprocessing, channels="all").detect(recording)
    each = [Detector(network, preprocessing, channels="all").detect(recording).probabilities for network in networks]
    assert np.std(each, axis=0).min() > 1e-3
    np.testing.assert_allclose(detection.probabilities, expit(np.mean(logit(each), axis=0)), atol=1e-6)
    stream = StreamingDetector(networks, recording.sfreq, recording.channel_names, preprocessing)
    decisions = stream.feed(recording.read(0, recording.num_samples)) + stream.finish()
    np.testing.assert_allclose([decision.probability for decision in decisions], detection.probabilities, atol=2e-5)


def test_all_networks_are_saved_loaded_and_hashed(networks, tmp_path):
    for network, threshold in zip(networks, (0.2, 0.5, 0.9), strict=True):
        network.config = dataclasses.replace(CONFIG, threshold=threshold)
    save_networks(networks, tmp_path / "three")
    loaded = load_networks(tmp_path / "three")
    torch.testing.assert_close(*([x.state_dict() for x in group] for group in (loaded, networks)), rtol=0, atol=0)
    detector = Detector(tmp_path / "three")
    assert detector.threshold == Detector(networks).threshold == pytest.approx(expit(np.mean(logit([0.2, 0.5, 0.9]))))
    recording = simulate_recording("S03", num_channels=2, duration=12.0, num_seizures=0)
    before = detector.detect(recording).provenance
    assert before.model["networks"] == 3
    with torch.no_grad():
        loaded[1].head.weight.add_(1.0)
    assert Detector(loaded).detect(recording).provenance.weights != before.weights
    # A detector of one network is a plain model.
    save_networks(networks[:1], tmp_path / "one")
    assert "networks" not in json.loads((tmp_path / "one" / "config.json").read_text())
    assert MVPFormer.from_pretrained(tmp_path / "one").config == networks[0].config
    assert len(load_networks(tmp_path / "one")) == 1


def test_networks_that_are_no_detector_are_refused(networks):
    with pytest.raises(ValueError, match="at least one network, got none"):
        Detector([])
    with pytest.raises(ValueError, match="same configuration, number 1 has another"):
        Detector([networks[0], MVPFormer(dataclasses.replace(CONFIG, context=5))])


def test_one_network_is_never_taken_for_the_detector(networks, tmp_path):
    save_networks(networks, tmp_path / "three")
    with pytest.raises(ValueError, match="three holds 3 networks of one detector, and one network is needed here"):
        MVPFormer.from_pretrained(tmp_path / "three")
    with pytest.raises(ValueError, match="three holds 3 networks of one detector"):
        FinetuningModule(tmp_path / "three", method="full")
