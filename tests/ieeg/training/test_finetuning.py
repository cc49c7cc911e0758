"""Training on labelled spans: which windows count, and that a run goes from a pretrained folder to a detector."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from support.made_up_recordings import WITHOUT_DROPOUT, quiet_trainer, recording, seeded, signal
from support.reading import refuses

pytest.importorskip("peft")
from mvpa_ts.ieeg import Detector, MVPFormer, mvpformer_tiny
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.model.lora import prepared, with_head
from mvpa_ts.ieeg.training.augmentation import Augmentation
from mvpa_ts.ieeg.training.data_module import SeizureDataModule, Simulation
from mvpa_ts.ieeg.training.finetuning import FinetuningModule

CONFIG = mvpformer_tiny(**WITHOUT_DROPOUT)


@pytest.fixture
def base() -> MVPFormer:
    return seeded(**WITHOUT_DROPOUT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"exactly one of base \(the folder of a pretrained model\)"),
        ({"architecture": CONFIG}, r"method='lora' trains only some weights, .* random: use method='full'"),
        ({"architecture": CONFIG, "method": "head"}, "method='head' trains only some weights"),
        ({"architecture": CONFIG, "method": "some"}, "method must be one of lora, head, amplitude, blocks, full"),
        ({"architecture": CONFIG, "method": "full", "class_weights": "some"}, "class_weights must be"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        FinetuningModule(**arguments)


@pytest.mark.parametrize("side", ["there", "here"])
def test_a_setting_that_one_run_lacks_is_another_setting(side):
    """A record leaves out what is off: a run with augmentation is not gone on with without it, nor the other way."""
    trainer = SimpleNamespace(accumulate_grad_batches=1, gradient_clip_val=None, precision="32-true", training=True)
    plain, changed = (
        FinetuningModule(architecture=CONFIG, method="full", **options)
        for options in ({}, {"augmentation": Augmentation(gain=2.0)})
    )
    for module in (plain, changed):
        module._trainer = trainer
    first, second = (changed, plain) if side == "there" else (plain, changed)
    checkpoint: dict[str, Any] = {}
    first.on_save_checkpoint(checkpoint)
    first.on_load_checkpoint(checkpoint)
    refuses(second.on_load_checkpoint, r"a run with other settings \(augmentation: ", checkpoint)


def test_from_scratch_all_weights_train():
    module = FinetuningModule(architecture=CONFIG, method="full")
    assert all(parameter.requires_grad for parameter in module.model.parameters())


def test_windows_are_those_encoded_one_by_one():
    module = FinetuningModule(architecture=dataclasses.replace(CONFIG, amplitude="none"), method="full").eval()
    x = signal(segments=6)
    mask = torch.ones(2, 6, 3, dtype=torch.bool)
    mask[1, 3] = False  # the fourth segment of the second span has no signal: its window is left out
    mask[0, 2, 1] = False
    ictal = torch.tensor([[0, 0, 0, 1, 1, 0], [1, 0, 0, 1, 0, 1]], dtype=torch.bool)
    logits, labels = module.logits_and_labels({"signal": x, "ictal": ictal, "token_mask": mask})
    expected, wanted = [], []
    for sample in range(2):
        for last in range(3, 6):
            if not mask[sample, last].any():
                continue
            one = slice(last - 3, last + 1)
            window = x[sample : sample + 1, :, (last - 3) * 2560 : (last + 1) * 2560]
            features = module.core(window, token_mask=mask[sample : sample + 1, one])
            expected.append(module.core.classify(features, mask[sample : sample + 1, last]))
            wanted.append(int(ictal[sample, last]))
    torch.testing.assert_close(logits, torch.cat(expected), atol=1e-5, rtol=1e-4)
    assert labels.tolist() == wanted


@pytest.mark.parametrize("attention", ["mvpa", "llama"])
def test_a_batch_without_a_window_that_ends_in_a_signal(tmp_path, attention):
    """A recording disconnected for long, in batches of one: nothing to learn, and no gradient but zero."""
    MVPFormer(dataclasses.replace(CONFIG, attention=attention)).save_pretrained(tmp_path)
    module = FinetuningModule(tmp_path)
    mask = torch.ones(1, 5, 3, dtype=torch.bool)
    mask[:, 3:] = False  # the last segments of both windows
    batch = {"signal": signal(segments=5, batch=1), "ictal": torch.ones(1, 5, dtype=torch.bool), "token_mask": mask}
    logits, labels = module.logits_and_labels(batch)
    assert (logits.shape, labels.shape) == ((0, 2), (0,))
    logits.sum().backward()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in trained)


def test_every_segment_is_a_target_once_and_balances_its_span():
    data = SeizureDataModule(
        simulation=Simulation(subjects=2, channels=(2,), hours=0.1, seizures=1),
        validation_subjects=["S02"],
        context=4,
        windows=3,
        balance="ictal",
    )
    data.setup()
    assert data.validation is not None
    assert [segment for s in data.validation.spans for segment in range(s.first, s.last)] == list(range(72))
    labels = data.validation.segments[0].labels()
    assert [bool(labels[s.first : s.last].any()) for s in data.validation.spans] == data.validation.ictal.tolist()


@pytest.mark.parametrize("amplitude", ["none", "bands"])
@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_targets_have_the_probabilities_of_detection_whatever_the_batch(batch_size, amplitude):
    """A recording of 80 segments, the last of them over its end, and one of two, shorter than the context."""
    architecture = mvpformer_tiny(dim=16, mlp_dim=24, context=20, dropout=0.0, amplitude=amplitude)
    module = FinetuningModule(architecture=architecture, method="full").eval()
    held_out = [recording("S1", seed=1, segments=80, channels=2, rest=1000), recording("S2", 2, segments=2, channels=3)]
    data = SeizureDataModule(
        recordings=[recording("S0", seed=0, segments=30, channels=2), *held_out],
        validation_subjects=["S1", "S2"],
        context=20,
        windows=16,
        batch_size=batch_size,
        in_memory=True,
    )
    data.past = amplitude == "bands"
    data.setup()
    detector = Detector(module.core, channels="all", rules="none")
    expected = np.concatenate([detector.detect(item).probabilities for item in held_out])
    module.eval()
    with torch.no_grad():
        parts = [module.logits_and_labels(batch) for batch in data.val_dataloader()]
    logits, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    assert len(expected) == 82
    assert labels.sum() == sum(item.labels().sum() for item in data.validation.segments)
    np.testing.assert_allclose(np.sort(logits.softmax(1)[:, 1].numpy()), np.sort(expected), atol=1e-5)


def test_resumed_run_is_the_same_run(base, tmp_path):
    base.save_pretrained(tmp_path / "base")

    def run(**options: object) -> dict[str, torch.Tensor]:
        module = FinetuningModule(tmp_path / "base", warmup_steps=1, learning_rate=1e-2, seed=3)
        data = SeizureDataModule(
            simulation=Simulation(subjects=2, channels=(2, 3), hours=0.1, seizures=1),
            validation_subjects=["S02"],
            context=4,
            batch_size=2,
            balance="ictal",
        )
        trainer = quiet_trainer(
            max_steps=4,
            limit_val_batches=0,
            callbacks=[ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)],
        )
        trainer.fit(module, data, weights_only=True, **options)
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}

    whole = run()
    torch.rand(7)  # what was drawn before must not matter
    resumed = run(ckpt_path=tmp_path / "step=2.ckpt")
    for name, tensor in whole.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=0, msg=name)
    with pytest.raises(ValueError, match="was not written by `mvpformer finetune`"):
        FinetuningModule(tmp_path / "base").on_load_checkpoint({})


def test_command_from_a_pretrained_folder_to_a_detector(base, tmp_path, capsys, fails):
    base.save_pretrained(tmp_path / "base")
    small = {"subjects": 2, "channels": [2], "hours": 0.1, "seizures": 1, "seed": 0}
    arguments = ["finetune", "--config", "tiny", "--output", str(tmp_path / "run"), "--trainer.max_steps", "2"]
    arguments += ["--data.simulation", json.dumps(small), "--data.validation_subjects", "[S02]"]
    arguments += ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
    arguments += ["--trainer.val_check_interval", "2"]
    assert main([*arguments, "--model.base", str(tmp_path / "base")]) == 0
    assert "weights are trained" in capsys.readouterr().err
    assert Detector(tmp_path / "run" / "model", channels="all").config.context == 4
    for name in ("adapter/adapter_model.safetensors", "csv/version_0/config.yaml", "checkpoints/last.ckpt"):
        assert (tmp_path / "run" / name).is_file()
    (losses,) = (tmp_path / "run" / "csv").rglob("metrics.csv")
    header = losses.read_text().splitlines()[0]
    assert all(f"validation/{name}" in header for name in ("loss", "auroc", "average_precision", "f1", "kappa"))
    with pytest.raises(SystemExit):
        main([*arguments, "--model.base", str(tmp_path / "nothing")])
    assert f"error: there is no folder {tmp_path / 'nothing'}" in capsys.readouterr().err
    trained = [*arguments, "--model.base", str(tmp_path / "base")]
    validate = ["finetune", "validate", *trained[1:]]
    fails("validate needs --ckpt_path", *validate)
    assert main([*validate, "--ckpt_path", "last"]) == 0
    assert "validation/auroc" in capsys.readouterr().out
    trained[trained.index("--output") + 1] = str(tmp_path / "mistyped")
    fails("there is no checkpoint", *trained, "--ckpt_path", "last")


def test_amplitude_trains_head_and_map_and_blocks_leave_the_projection(base, tmp_path):
    base.save_pretrained(tmp_path)
    trained = {}
    for method in ("head", "amplitude", "blocks"):
        module = FinetuningModule(tmp_path, method=method)
        trained[method] = {name for name, p in module.core.named_parameters() if p.requires_grad}
    assert trained["head"] == {"head.weight"}
    assert trained["amplitude"] == {"head.weight", "amplitude.projection.weight", "amplitude.projection.bias"}
    everything = {name for name, _ in module.core.named_parameters()}
    assert trained["blocks"] == everything - {"encoder.norm.weight", "encoder.projection.weight"}
    MVPFormer(dataclasses.replace(CONFIG, amplitude="none")).save_pretrained(tmp_path / "blind")
    with pytest.raises(ValueError, match="method='amplitude' needs a model with amplitude='bands'"):
        FinetuningModule(tmp_path / "blind", method="amplitude")
    frozen = with_head(MVPFormer.from_pretrained(tmp_path / "blind"), 2).requires_grad_(False)
    refuses(prepared, "needs a model with amplitude='bands'", frozen, "amplitude")
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_the_best_weights_are_kept_and_go_on_with_a_checkpoint(base, tmp_path):
    """Trained at a rate that spoils the weights after the first validation."""
    base.save_pretrained(tmp_path / "base")
    module = FinetuningModule(
        tmp_path / "base", method="full", learning_rate=1.0, warmup_steps=4, schedule="constant", keep="best"
    )
    data = SeizureDataModule(
        recordings=[recording("S0", 0, segments=9), recording("S1", 1, segments=9)],
        validation_subjects=["S1"],
        context=4,
        windows=3,
        batch_size=2,
        in_memory=True,
    )
    quiet_trainer(max_steps=4, val_check_interval=1, num_sanity_val_steps=0, enable_checkpointing=False).fit(
        module, data
    )
    assert module.best is not None
    assert module.best["step"] < 4
    checkpoint: dict[str, Any] = {}
    module.on_save_checkpoint(checkpoint)
    assert checkpoint["best"]["loss"] == module.best["loss"]
    last = module.core.head.weight.detach().clone()
    module.export(tmp_path / "run")
    exported = MVPFormer.from_pretrained(tmp_path / "run" / "model")
    torch.testing.assert_close(exported.head.weight, module.best["weights"]["model.head.weight"])
    assert not torch.equal(exported.head.weight, last)


@pytest.mark.parametrize(("apart", "expected"), [(True, 0.5 * (1.0 + 5.0)), (False, 0.0)])
def test_the_threshold_lies_halfway_from_quiet_segments_to_the_lowest_seizure(
    base, tmp_path, monkeypatch, apart, expected
):
    """Logits are made up: seizures of 5 and 9 at their highest, quiet segments of up to 1, or of 6."""
    base.save_pretrained(tmp_path / "base")
    module = FinetuningModule(tmp_path / "base", method="head", calibrate=True)
    items = [recording(f"S{n}", n, segments=12) for n in range(2)]  # seizures from 20 to 50 s
    data = SeizureDataModule(
        recordings=items[:1], validation_recordings=items[1:], context=4, windows=3, in_memory=True
    )
    data.setup()
    module.trainer = quiet_trainer(enable_checkpointing=False)
    module.trainer.datamodule = data
    highest = {"S0": 5.0, "S1": 9.0}

    def scores(batch):
        labels = batch["ictal"][batch["target"]].long()
        quiet = 1.0 if apart else 6.0
        high = [highest[batch["subject"][0]] if label else quiet for label in labels.tolist()]
        return torch.stack([torch.zeros(len(high)), torch.tensor(high)], 1), labels

    monkeypatch.setattr(module, "logits_and_labels", scores)
    module.export(tmp_path / "run")
    model = MVPFormer.from_pretrained(tmp_path / "run" / "model")
    assert model.config.threshold == pytest.approx(1 / (1 + np.exp(-expected)))
    assert Detector(model).threshold == model.config.threshold
    assert Detector(model, threshold=0.2).threshold == 0.2
    # Other weights have another threshold.
    assert FinetuningModule(tmp_path / "run" / "model", method="head").core.config.threshold == 0.5
