"""Adapters and heads: what trains, what is saved, and that nothing is silently inert."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.made_up_recordings import WITHOUT_DROPOUT, seeded, signal
from support.reading import refuses

pytest.importorskip("peft")
from mvpa_ts.ieeg import Detector, MVPFormer, mvpformer_m, mvpformer_s, mvpformer_tiny
from mvpa_ts.ieeg.model.lora import (
    core_of,
    load_finetuned,
    merged,
    prepared,
    save_finetuned,
    trainable_share,
    with_head,
)

CONFIG = mvpformer_tiny(**WITHOUT_DROPOUT)


@pytest.fixture
def base() -> MVPFormer:
    return seeded(**WITHOUT_DROPOUT)


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
    # A and B of query and value in each block; the head; weight and bias of the amplitude map.
    assert len(trained) == CONFIG.num_layers * 4 + 3
    assert all(".query." in name or ".value." in name or ".modules_to_save.default." in name for name in trained)
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
    assert Detector(tmp_path / "model", channels="all").config.num_classes == 2
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
    # Prepared again, by another method, it trains what that one says.
    everything = {name for name, _ in model.named_parameters()}
    for method, left in (("blocks", "encoder."), ("full", "none")):
        trained = {name for name, weight in prepared(model, method).named_parameters() if weight.requires_grad}
        assert trained == {name for name in everything if not name.startswith(left)}


def test_a_head_leaves_precision_and_checkpointing_as_they_are(base):
    base.set_gradient_checkpointing(True)
    model = with_head(base.double())
    assert {weight.dtype for weight in model.parameters()} == {torch.float64}
    assert model.stack.gradient_checkpointing
    x = signal().double()
    torch.testing.assert_close(model(x), base(x))
    assert {weight.dtype for weight in with_head(base.bfloat16()).parameters()} == {torch.float32}


def test_adapter_alone_needs_its_base(base, tmp_path):
    save_finetuned(prepared(with_head(base)), tmp_path)
    refuses(load_finetuned, "name the model it was trained on", tmp_path / "adapter", kind=FileNotFoundError)
    other = MVPFormer(mvpformer_tiny(dim=32, context=4))
    refuses(load_finetuned, "does not fit base", tmp_path / "adapter", other)
    refuses(load_finetuned, "holds neither", tmp_path / "nothing", base, kind=FileNotFoundError)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    refuses(load_finetuned, "damaged", tmp_path / "adapter", base)


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
    refuses(load_finetuned, f"does not fit base: .*{message}", adapter, other)


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
    refuses(load_finetuned, "trained on weights with SHA-256", adapter, base)


def test_adapter_file_with_missing_or_other_tensors_is_refused(base, tmp_path):
    adapter = lora(base, tmp_path)
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    for part in ("blocks.1", "head", "value.lora_B"):
        save_file({name: tensor for name, tensor in weights.items() if part not in name}, file)
        count = sum(part in name for name in weights)
        refuses(load_finetuned, rf"does not fit the model .*{count} missing: .*{part}", adapter, base)
    save_file({**weights, "base_model.model.stack.blocks.2.more": torch.zeros(2)}, file)
    refuses(load_finetuned, r"1 unexpected: base_model\.model\.stack\.blocks\.2\.more", adapter, base)
    save_file({name: tensor[:1].contiguous() if "head" in name else tensor for name, tensor in weights.items()}, file)
    refuses(load_finetuned, r"1 of another shape: .*head\.weight \(1, 16\) in place of \(2, 16\)", adapter, base)
    (adapter / "base.json").unlink()
    refuses(load_finetuned, r"base\.json is not in", adapter, base, kind=FileNotFoundError)


def test_merged_keeps_the_pretrained_weights(base):
    plain = merged(prepared(with_head(base)))
    for name in plain.state_dict().keys() - {"head.weight"}:
        tensor = base.state_dict()[name]
        torch.testing.assert_close(plain.state_dict()[name], tensor, rtol=0, atol=0)


def test_a_changed_configuration_of_an_adapter_is_refused(base, tmp_path):
    """Loading by "pissa" would change the weights of the base."""
    adapter = lora(base, tmp_path)
    config = adapter / "adapter_config.json"
    text = config.read_text()
    assert json.loads((adapter / "base.json").read_text())["adapter_config_sha256"]
    config.write_text(json.dumps(json.loads(text) | {"init_lora_weights": "pissa"}))
    refuses(load_finetuned, r"adapter_config\.json was changed after the adapter was saved", adapter, base)
    config.write_text(text)
    load_finetuned(adapter, base)
