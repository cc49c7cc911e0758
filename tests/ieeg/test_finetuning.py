"""Finetuning: what trains, what is saved, and that nothing is silently inert."""

from __future__ import annotations

import dataclasses
import json

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from made_up_recordings import recording
from safetensors.torch import load_file, save_file

pytest.importorskip("peft")
from mvpa_ts.ieeg import Detector, MVPFormer, mvpformer_m, mvpformer_s, mvpformer_tiny
from mvpa_ts.ieeg.command_line import main
from mvpa_ts.ieeg.data.module import SeizureDataModule, Simulation
from mvpa_ts.ieeg.finetuning import (
    FinetuningModule,
    core_of,
    load_finetuned,
    merged,
    prepared,
    save_finetuned,
    trainable_share,
    with_head,
)

CONFIG = mvpformer_tiny(dim=16, mlp_dim=24, context=4, dropout=0.0)


def signal(segments: int = 4, channels: int = 3, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, channels, segments * 2560, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def base() -> MVPFormer:
    torch.manual_seed(0)
    return MVPFormer(CONFIG).eval()


def disturbed(model: torch.nn.Module) -> torch.nn.Module:
    """Adapters begin at zero; here they do something."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5, generator=torch.Generator().manual_seed(len(name)))
    return model


@pytest.mark.parametrize(("size", "percent"), [(mvpformer_s, "0.33%"), (mvpformer_m, "0.11%")])
def test_share_of_the_paper(size, percent):
    with torch.device("meta"):
        _, _, share = trainable_share(prepared(MVPFormer(size(num_classes=2, prediction_head=False))))
    assert f"{share:.2%}" == percent


@pytest.mark.parametrize("attention", ["mvpa", "llama"])
def test_adapters_are_on_query_and_value_and_get_gradients(attention):
    torch.manual_seed(0)
    model = prepared(with_head(MVPFormer(mvpformer_tiny(attention=attention))))
    core = core_of(model)
    core.classify(core(signal())).square().sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == CONFIG.num_layers * 4 + 1  # A and B of query and value in each block; the head
    assert all(
        ".query." in name or ".value." in name or name.endswith("head.modules_to_save.default.weight")
        for name in trained
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, f"{name} is inert"


def test_adapters_change_the_output(base):
    before = base(signal())
    model = disturbed(prepared(with_head(base)))
    assert not torch.allclose(core_of(model)(signal()), before, atol=1e-3)


@pytest.mark.parametrize("method", ["lora", "head", "full"])
def test_what_is_saved_computes_the_same(base, method, tmp_path):
    model = disturbed(prepared(with_head(base), method)).eval()
    expected = core_of(model).classify(core_of(model)(signal()))
    save_finetuned(model, tmp_path)
    plain = load_finetuned(tmp_path)
    torch.testing.assert_close(plain.classify(plain(signal())), expected)
    assert Detector(tmp_path / "model", channels="all").model.config.num_classes == 2
    if method == "lora":
        alone = load_finetuned(tmp_path / "adapter", base)
        torch.testing.assert_close(alone.classify(alone(signal())), expected)
        after = core_of(model).classify(core_of(model)(signal()))
        torch.testing.assert_close(after, expected, rtol=0, atol=0)
        # Against the formula W + alpha / rank · B A, and peft's own merging.
        layer = core_of(model).stack.blocks[0].attention.query
        weight = layer.base_layer.weight + 2.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        torch.testing.assert_close(plain.stack.blocks[0].attention.query.weight, weight)
        by_peft = model.merge_and_unload()
        torch.testing.assert_close(by_peft.classify(by_peft(signal())), expected, atol=1e-5, rtol=1e-4)


def test_head_only_trains_the_head(base):
    model = prepared(with_head(base), "head")
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["head.weight"]
    assert trainable_share(model)[0] == 0


def test_adapter_alone_needs_its_base(base, tmp_path):
    save_finetuned(prepared(with_head(base)), tmp_path)
    with pytest.raises(FileNotFoundError, match="name the model it was trained on"):
        load_finetuned(tmp_path / "adapter")
    other = MVPFormer(mvpformer_tiny(dim=32, context=4))
    with pytest.raises(ValueError, match="does not fit base"):
        load_finetuned(tmp_path / "adapter", other)
    with pytest.raises(FileNotFoundError, match="holds neither"):
        load_finetuned(tmp_path / "nothing", base)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        load_finetuned(tmp_path / "adapter", base)


def lora(base, folder):
    save_finetuned(disturbed(prepared(with_head(base))), folder)
    return folder / "adapter"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 4}, "its num_layers is 4, not 2"),
        ({"num_layers": 1}, "its num_layers is 1, not 2"),
        (
            {"row_order": "released", "window": 3},
            "its window is 3, not 10; its row_order is 'released', not 'distance'",
        ),
        ({"components": ("content",)}, "its components is"),
        ({}, "trained on weights with SHA-256 [0-9a-f]{64}, those of base have [0-9a-f]{64}"),
    ],
    ids=["more-layers", "fewer-layers", "order-and-window", "components", "other-weights"],
)
def test_adapter_on_another_base_is_refused(base, changes, message, tmp_path):
    adapter = lora(base, tmp_path)
    other = MVPFormer(dataclasses.replace(CONFIG, **changes))
    with pytest.raises(ValueError, match=f"does not fit base: .*{message}"):
        load_finetuned(adapter, other)


def test_adapter_fits_its_base_whatever_its_heads(base, tmp_path):
    """Neither head of the base is under the adapter; pooling and context are the adapter's own."""
    adapter = lora(with_head(base, pooling="concatenate", num_channels=3, context=2), tmp_path)
    expected = load_finetuned(tmp_path)
    for same in (base, with_head(base, seed=5)):
        loaded = load_finetuned(adapter, same)
        assert loaded.config == expected.config
        torch.testing.assert_close(loaded.state_dict(), expected.state_dict())
    with torch.no_grad():
        next(base.encoder.parameters())[0] += 1e-6
    with pytest.raises(ValueError, match="trained on weights with SHA-256"):
        load_finetuned(adapter, base)


@pytest.mark.parametrize("part", ["blocks.1", "head", "value.lora_B"])
def test_adapter_file_with_missing_tensors_is_refused(base, part, tmp_path):
    adapter = lora(base, tmp_path)
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({name: tensor for name, tensor in weights.items() if part not in name}, file)
    count = sum(part in name for name in weights)
    with pytest.raises(ValueError, match=rf"does not fit the model .*{count} missing: .*{part}"):
        load_finetuned(adapter, base)


def test_adapter_file_with_other_tensors_is_refused(base, tmp_path):
    adapter = lora(base, tmp_path)
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({**weights, "base_model.model.stack.blocks.2.more": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match=r"1 unexpected: base_model\.model\.stack\.blocks\.2\.more"):
        load_finetuned(adapter, base)
    save_file({name: tensor[:1].contiguous() if "head" in name else tensor for name, tensor in weights.items()}, file)
    with pytest.raises(ValueError, match=r"1 of another shape: .*head\.weight \(1, 16\) in place of \(2, 16\)"):
        load_finetuned(adapter, base)
    (adapter / "base.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"base\.json is not in"):
        load_finetuned(adapter, base)


def test_merged_keeps_the_pretrained_weights(base):
    plain = merged(prepared(with_head(base)))
    for name in plain.state_dict().keys() - {"head.weight"}:
        tensor = base.state_dict()[name]
        torch.testing.assert_close(plain.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either base"),
        ({"architecture": CONFIG}, r"method='lora' leaves .* which are random without base: .* by method='full'"),
        ({"architecture": CONFIG, "method": "head"}, "method='head' leaves"),
        ({"architecture": CONFIG, "method": "some"}, "method must be one of lora, head, full"),
        ({"architecture": CONFIG, "method": "full", "class_weights": "some"}, "class_weights must be"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        FinetuningModule(**arguments)


def test_from_scratch_all_weights_train():
    module = FinetuningModule(architecture=CONFIG, method="full")
    assert all(parameter.requires_grad for parameter in module.model.parameters())


def test_windows_are_those_encoded_one_by_one():
    module = FinetuningModule(architecture=CONFIG, method="full").eval()
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


def test_spans_hold_every_window_once_and_balance_by_their_ends():
    data = SeizureDataModule(
        simulation=Simulation(subjects=2, channels=(2,), hours=0.1, seizures=1),
        validation_subjects=["S02"],
        context=4,
        windows=3,
        balance="ictal",
    )
    data.setup()
    assert data.validation is not None
    ends = [s.first + end for s in data.validation.spans for end in range(3, s.last - s.first)]
    assert sorted(set(ends)) == list(range(3, 72))
    labels = data.validation.segments[0].labels()
    flags = data._ictal(data.validation)
    assert [bool(labels[s.first + 3 : s.last].any()) for s in data.validation.spans] == flags.tolist()


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_every_window_is_scored_once_whatever_the_batch(batch_size):
    """80 segments have 61 windows of 20; the last span holds 13 of them, of the 16 of the others."""
    architecture = mvpformer_tiny(dim=16, mlp_dim=24, context=20, dropout=0.0)
    module = FinetuningModule(architecture=architecture, method="full").eval()
    data = SeizureDataModule(
        recordings=[recording(f"S{n}", seed=n, segments=80, channels=2) for n in range(2)],
        validation_subjects=["S1"],
        context=20,
        windows=16,
        batch_size=batch_size,
        in_memory=True,
    )
    data.setup()
    assert data.validation is not None
    assert [span.last - span.first for span in data.validation.spans] == [35, 35, 35, 32]
    # By hand: each window alone.
    segments = data.validation.segments[0]
    expected = []
    with torch.no_grad():
        for first in range(61):
            window = torch.from_numpy(segments.read(first, first + 20)[0])[None]
            expected.append(module.core.classify(module.core(window))[0])
        parts = [module.logits_and_labels(batch) for batch in data.val_dataloader()]
    logits, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    assert len(logits) == 61
    assert labels.sum() == segments.labels()[19:].sum()
    torch.testing.assert_close(logits.sort(0).values, torch.stack(expected).sort(0).values, atol=1e-4, rtol=1e-4)


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
        trainer = pl.Trainer(
            max_steps=4,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            use_distributed_sampler=False,
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


def test_command_from_a_pretrained_folder_to_a_detector(base, tmp_path, capsys):
    base.save_pretrained(tmp_path / "base")
    small = {"subjects": 2, "channels": [2], "hours": 0.1, "seizures": 1, "seed": 0}
    arguments = ["finetune", "--config", "tiny", "--output", str(tmp_path / "run"), "--trainer.max_steps", "2"]
    arguments += ["--data.simulation", json.dumps(small), "--data.validation_subjects", "[S02]"]
    arguments += ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
    arguments += ["--trainer.val_check_interval", "2"]
    assert main([*arguments, "--model.base", str(tmp_path / "base")]) == 0
    assert "weights are trained" in capsys.readouterr().err
    assert Detector(tmp_path / "run" / "model", channels="all").context == 4
    for name in ("adapter/adapter_model.safetensors", "csv/version_0/config.yaml", "checkpoints/last.ckpt"):
        assert (tmp_path / "run" / name).is_file()
    (losses,) = (tmp_path / "run" / "csv").rglob("metrics.csv")
    header = losses.read_text().splitlines()[0]
    assert all(f"validation/{name}" in header for name in ("loss", "auroc", "average_precision", "f1", "kappa"))
    with pytest.raises(SystemExit):
        main([*arguments, "--model.base", str(tmp_path / "nothing")])
    assert "nothing is neither a folder nor a model on the Hugging Face hub" in capsys.readouterr().err
    trained = [*arguments, "--model.base", str(tmp_path / "base")]
    validate = ["finetune", "validate", *trained[1:]]
    assert main(validate) == 1  # the head would be random
    assert "validate needs --ckpt_path" in capsys.readouterr().err
    assert main([*validate, "--ckpt_path", "last"]) == 0
    assert "validation/auroc" in capsys.readouterr().out
    trained[trained.index("--output") + 1] = str(tmp_path / "mistyped")
    assert main([*trained, "--ckpt_path", "last"]) == 1
    assert "there is no checkpoint" in capsys.readouterr().err
