"""Detectors of several networks: the mean of their logits, on files, in a stream and in training."""

from __future__ import annotations

import dataclasses
import json

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from support.made_up_recordings import recording

from mvpa_ts.ieeg import Detector, MVPFormer, Preprocessing, mvpformer_tiny, simulate_recording
from mvpa_ts.ieeg.detection.streaming import StreamingDetector
from mvpa_ts.ieeg.model.lora import with_head, with_members
from mvpa_ts.ieeg.training.augmentation import Augmentation
from mvpa_ts.ieeg.training.data_module import SeizureDataModule
from mvpa_ts.ieeg.training.finetuning import FinetuningModule
from mvpa_ts.ieeg.training.pretraining import PretrainingModule

CONFIG = mvpformer_tiny(num_classes=2, context=6, prediction_head=False, dropout=0.0)
AUGMENTATION = Augmentation(gain=3.0, polarity=True, shift=True)


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
    single = MVPFormer(CONFIG)
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


def test_a_new_head_is_new_in_each_network(model):
    headed = with_head(model, seed=1)
    for new, old in zip(headed.networks, model.networks, strict=True):
        assert not torch.equal(new.head.weight, old.head.weight)
        torch.testing.assert_close(new.encoder.projection.weight, old.encoder.projection.weight, rtol=0, atol=0)


def trained(base, folder, members: int) -> FinetuningModule:
    """A model after three steps."""
    base.save_pretrained(folder / "base")
    module = FinetuningModule(
        folder / "base", method="full", learning_rate=1e-3, warmup_steps=1, augmentation=AUGMENTATION, members=members
    )
    data = SeizureDataModule(
        recordings=[recording("S0", 0, segments=12), recording("S1", 1, segments=12)],
        validation_recordings=[recording("S2", 2, segments=12)],
        context=6,
        windows=3,
        batch_size=2,
        balance="ictal",
        in_memory=True,
    )
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(
        max_steps=3, accelerator="cpu", logger=False, use_distributed_sampler=False, num_sanity_val_steps=0,
        val_check_interval=3, **quiet,
    )  # fmt: skip
    trainer.fit(module, data)
    module.export(folder)
    return module


def test_each_network_trains_as_if_it_were_alone(tmp_path, capsys):
    """Its gradients are not divided by the number of networks; the others see other changes of the same batches."""
    torch.manual_seed(0)
    base = MVPFormer(CONFIG)
    one = trained(base, tmp_path / "one", 1)
    three = trained(base, tmp_path / "three", 3)
    first, *others = three.core.networks
    torch.testing.assert_close(alone(first).state_dict(), one.core.state_dict(), rtol=1e-5, atol=1e-6)
    weights = [first.head.weight, *(network.head.weight for network in others)]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert MVPFormer.from_pretrained(tmp_path / "three" / "model").config.members == 3
    printed = capsys.readouterr().err
    assert "training: 2 recordings, 2 seizures in " in printed
    assert "last validation: loss " in printed


def test_numbers_that_do_not_fit_are_refused(model, tmp_path):
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="members must be 3, as the model has so many networks, got 2"):
        FinetuningModule(tmp_path, method="full", augmentation=AUGMENTATION, members=2)
    with pytest.raises(ValueError, match="members must be at least 1, got 0"):
        FinetuningModule(tmp_path, method="full", members=0)
    with pytest.raises(ValueError, match="give augmentation, or set members to 1"):
        FinetuningModule(tmp_path, method="full", members=3)
    with pytest.raises(ValueError, match="pretraining trains one network"):
        PretrainingModule(mvpformer_tiny(members=2))
    assert with_members(model, 3) is model
