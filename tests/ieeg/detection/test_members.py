"""Detectors of several networks: the mean of their logits, on files and in a stream."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy.special import expit, logit

from mvpa_ts.ieeg import Detector, MVPFormer, Preprocessing, mvpformer_tiny, simulate_recording
from mvpa_ts.ieeg.detection.streaming import StreamingDetector
from mvpa_ts.ieeg.model.members import joined
from mvpa_ts.ieeg.training.finetuning import FinetuningModule
from mvpa_ts.ieeg.training.pretraining import PretrainingModule

CONFIG = mvpformer_tiny(num_classes=2, context=6, prediction_head=False, dropout=0.0)


@pytest.fixture(scope="module")
def model() -> MVPFormer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = MVPFormer(dataclasses.replace(CONFIG, members=3)).eval()
    with torch.no_grad():
        for network in made.networks:
            network.head.weight.mul_(3)  # so that their probabilities differ
    return made


def alone(network: MVPFormer) -> MVPFormer:
    """A model of this network only."""
    single = MVPFormer(dataclasses.replace(network.config, members=1))
    single.load_state_dict({name: w for name, w in network.state_dict().items() if not name.startswith("others.")})
    return single.eval()


def test_the_mean_logit_counts_on_a_file_and_in_a_stream(model):
    made = simulate_recording("S03", seed=1, num_channels=3, duration=28.0, num_seizures=0)
    preprocessing = Preprocessing(notch=50.0)
    got = Detector(model, preprocessing, channels="all").detect(made)
    each = [
        Detector(alone(network), preprocessing, channels="all").detect(made).probabilities for network in model.networks
    ]
    assert np.std(each, axis=0).min() > 1e-3
    np.testing.assert_allclose(got.probabilities, expit(np.mean(logit(each), axis=0)), atol=1e-6)
    stream = StreamingDetector(model, made.sfreq, made.channel_names, preprocessing)
    decisions = stream.feed(made.read(0, made.num_samples)) + stream.finish()
    np.testing.assert_allclose([decision.probability for decision in decisions], got.probabilities, atol=2e-5)


def test_all_networks_are_saved_loaded_and_hashed(model, tmp_path):
    model.save_pretrained(tmp_path / "three")
    loaded = MVPFormer.from_pretrained(tmp_path / "three")
    for first, second in zip(loaded.networks, model.networks, strict=True):
        torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    made = simulate_recording("S03", num_channels=2, duration=12.0, num_seizures=0)
    before = Detector(loaded).detect(made).provenance.weights
    with torch.no_grad():
        loaded.others[1].head.weight.add_(1.0)
    assert Detector(loaded).detect(made).provenance.weights != before
    # Files of one network are as they were before there were several.
    alone(model).save_pretrained(tmp_path / "one")
    assert "members" not in json.loads((tmp_path / "one" / "config.json").read_text())
    assert MVPFormer.from_pretrained(tmp_path / "one").networks[1:] == ()


def test_a_detector_is_joined_of_several(model):
    singles = [alone(network) for network in model.networks]
    for single, threshold in zip(singles, (0.2, 0.5, 0.9), strict=True):
        single.config = dataclasses.replace(single.config, threshold=threshold)
    whole = joined(singles)
    torch.testing.assert_close(whole.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert whole.config.members == 3
    assert whole.config.threshold == pytest.approx(expit(np.mean(logit([0.2, 0.5, 0.9]))))
    assert [single.config.members for single in singles] == [1, 1, 1]
    with pytest.raises(ValueError, match="at least one model"):
        joined([])
    with pytest.raises(ValueError, match=r"models\[1\] has 3 networks and 2 classes"):
        joined([singles[0], model])
    with pytest.raises(ValueError, match=r"models\[1\] differs from models\[0\]"):
        joined([singles[0], MVPFormer(dataclasses.replace(CONFIG, context=5))])


def test_training_begins_with_one_network(model, tmp_path):
    model.save_pretrained(tmp_path / "three")
    with pytest.raises(ValueError, match="three holds 3 networks, and one is trained at a time"):
        FinetuningModule(tmp_path / "three", method="full")
    with pytest.raises(ValueError, match="pretraining trains one network"):
        PretrainingModule(mvpformer_tiny(members=2))
