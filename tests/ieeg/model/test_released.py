"""Released checkpoints: files with exactly their names and shapes, and their formulas in their own layout."""

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import pywt
import torch
from safetensors.torch import save_file
from support.reading import refuses
from torch import Tensor

from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig, mvpformer_m, mvpformer_s
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.released import convert_released, load_released
from mvpa_ts.ieeg.model.seen_subjects import read_training_subjects, save_training_subjects

CONFIG = MVPFormerConfig(
    dim=24, num_layers=2, num_heads=4, num_kv_heads=2, mlp_dim=20, time_rows=16, channel_rows=9, window=1, context=13
)
KV = 12
T, C = 3, 4


def released_base(
    config: MVPFormerConfig, seed: int = 0, make: Callable[..., Tensor] | None = None
) -> dict[str, Tensor]:
    """A state dict with every key of a released base model."""
    generator = torch.Generator().manual_seed(seed)
    make = make or (lambda *shape: torch.randn(*shape, generator=generator) * 0.3)
    D, inner, kv = config.dim, config.mlp_dim, config.dim // config.num_heads * config.num_kv_heads
    weights = {
        "seizure_embeddings": make(3, 2560),
        "mvpformer.positional_embedding.weight": make(config.time_rows, D),
        "mvpformer.channel_embedding.weight": make(config.channel_rows, D),
        "mvpformer.ln_f.weight": make(D),
        "head.head.weight": make(D, D),
        "encoder.ln.weight": make(2610),
        "encoder.proj.weight": make(D, 2610),
    }
    for i in range(config.num_layers):
        block = {
            "ln_1.weight": make(D),
            "ln_2.weight": make(D),
            "attn.q_attn.weight": make(D, D),
            "attn.c_attn.weight": make(2 * kv, D),
            "attn.position_net.weight": make(kv, D),
            "attn.channel_net.weight": make(kv, D),
            "attn.c_proj.weight": make(D, D),
            "attn.attn_bias": make(3 * kv),
            "attn.time_bias": torch.ones(1, 1, 5, 5, dtype=torch.bool),
            "attn.masked_bias": torch.tensor(-1e4),
            "mlp.gate_proj.weight": make(inner, D),
            "mlp.up_proj.weight": make(inner, D),
            "mlp.down_proj.weight": make(D, inner),
        }
        weights |= {f"mvpformer.h.{i}.{name}": tensor for name, tensor in block.items()}
    return weights


def released_head(config: MVPFormerConfig, rank: int = 3, seed: int = 1) -> dict[str, Tensor]:
    """A state dict with every key of a released classifier: head, adapters, class weights."""
    generator = torch.Generator().manual_seed(seed)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    D, kv = config.dim, config.dim // config.num_heads * config.num_kv_heads
    weights = {"head.head.weight": make(2, D), "class_loss.weight": make(2)}
    for i in range(config.num_layers):
        attention = f"mvpformer.h.{i}.attn"
        weights[f"{attention}.q_attn.lora_A"] = make(rank, D)
        weights[f"{attention}.q_attn.lora_B"] = make(D, rank)
        weights[f"{attention}.c_attn.lora_A"] = make(rank, D)
        weights[f"{attention}.c_attn.lora_B"] = make(kv, rank)
    return weights


def write(weights: dict[str, Tensor], path: Path) -> Path:
    (save_file if path.suffix.lower() == ".safetensors" else torch.save)(weights, path)
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(released_base(CONFIG), tmp_path / "base.ckpt")


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return write(released_head(CONFIG), tmp_path / "head.ckpt")


def by_formula(
    weights: dict[str, Tensor], config: MVPFormerConfig, signal: np.ndarray, alpha: float = 16.0
) -> np.ndarray:
    """Features [T, C, D] of a signal [C, T·2560] by scalar loops over the released tensors, adapters unmerged."""
    w = {name: tensor.double().numpy() for name, tensor in weights.items()}
    d, heads, kv_heads = config.dim // config.num_heads, config.num_heads, config.num_kv_heads
    kv = d * kv_heads

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight

    C, T = signal.shape[0], signal.shape[1] // 2560
    segments = signal.reshape(C, T, 2560).transpose(1, 0, 2)
    coefficients = np.concatenate(pywt.wavedec(segments, "db4", mode="periodic"), axis=-1)
    x = np.einsum("tci,oi->tco", norm(coefficients, w["encoder.ln.weight"]), w["encoder.proj.weight"])
    for i in range(config.num_layers):
        block = f"mvpformer.h.{i}."
        z = norm(x, w[f"{block}ln_1.weight"])

        def projected(name: str, z: np.ndarray = z, block: str = block) -> np.ndarray:
            plain = np.einsum("tci,oi->tco", z, w[f"{block}attn.{name}.weight"])
            if f"{block}attn.{name}.lora_A" in w:
                down, up = w[f"{block}attn.{name}.lora_A"], w[f"{block}attn.{name}.lora_B"]
                added = np.einsum("tci,ri,or->tco", z, down, up) * alpha / down.shape[0]
                plain[..., plain.shape[-1] - up.shape[0] :] += added
            return plain

        query, key_value = projected("q_attn"), projected("c_attn")
        time_key = w["mvpformer.positional_embedding.weight"][:T] @ w[f"{block}attn.position_net.weight"].T
        channel_key = w["mvpformer.channel_embedding.weight"][:C] @ w[f"{block}attn.channel_net.weight"].T
        bias = w[f"{block}attn.attn_bias"]
        attended = np.zeros_like(query)
        for t, c, h in itertools.product(range(T), range(C), range(heads)):
            q = query[t, c, h * d : (h + 1) * d]
            g = slice((h // (heads // kv_heads)) * d, (h // (heads // kv_heads) + 1) * d)
            u, v, z_bias = bias[:kv][g], bias[kv : 2 * kv][g], bias[2 * kv :][g]
            scores = {}
            for s, e in itertools.product(range(t + 1), range(C)):
                near = t - s <= config.window or t == T - 1
                score = (q + u) @ key_value[s, e, :kv][g] if near else 0.0
                score += (q + v) @ time_key[T - 1 - (t - s), g] + (q + z_bias) @ channel_key[C - 1 - abs(c - e), g]
                scores[s, e] = score / math.sqrt(d)
            highest = max(scores.values())
            total = sum(math.exp(score - highest) for score in scores.values())
            for (s, e), score in scores.items():
                attended[t, c, h * d : (h + 1) * d] += math.exp(score - highest) / total * key_value[s, e, kv:][g]
        gate = np.einsum("tci,oi->tco", z, w[f"{block}mlp.gate_proj.weight"])
        up = np.einsum("tci,oi->tco", z, w[f"{block}mlp.up_proj.weight"])
        gated = gate / (1 + np.exp(-gate)) * up
        x = (
            x
            + np.einsum("tci,oi->tco", attended, w[f"{block}attn.c_proj.weight"])
            + np.einsum("tci,oi->tco", gated, w[f"{block}mlp.down_proj.weight"])
        )
    return norm(x, w["mvpformer.ln_f.weight"])


def make_signal(segments: int = T, channels: int = C) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 50 * torch.randn(1, channels, segments * 2560, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("segments", "channels"), [(1, 1), (3, 4), (5, 2)])
def test_base_model_computes_the_released_formulas(base, segments, channels):
    model, signal = load_released(base, config=CONFIG).double(), make_signal(segments, channels)
    weights = released_base(CONFIG)
    truth = by_formula(weights, CONFIG, signal[0].numpy())
    with torch.no_grad():
        np.testing.assert_allclose(model(signal)[0].numpy(), truth, atol=1e-8)
        predicted = truth @ weights["head.head.weight"].double().numpy().T
        np.testing.assert_allclose(model.predict_next(signal)[0].numpy(), predicted, atol=1e-8)
    assert model.head is None


@pytest.mark.parametrize("alpha", [16.0, 4.0])
def test_head_file_with_its_adapters(base, head, alpha):
    model, signal = load_released(base, head, CONFIG, lora_alpha=alpha).double(), make_signal()
    weights = released_base(CONFIG) | released_head(CONFIG)
    truth = by_formula(weights, CONFIG, signal[0].numpy(), alpha)
    with torch.no_grad():
        features = model(signal)
        # the merged weights are float32
        np.testing.assert_allclose(features[0].numpy(), truth, atol=1e-4)
        logits = truth[-1].mean(0) @ weights["head.head.weight"].double().numpy().T
        np.testing.assert_allclose(model.classify(features)[0].numpy(), logits, atol=1e-4)
    assert model.prediction_head is not None
    without = load_released(base, config=CONFIG).double()(signal)
    assert (without - features).abs().max() > 0.01


def test_adapters_touch_query_and_value_only(base, head):
    plain, merged = load_released(base, config=CONFIG).state_dict(), load_released(base, head, CONFIG).state_dict()
    changed = {name.split(".", 3)[-1] for name in plain if not torch.equal(plain[name], merged[name])}
    assert changed == {"attention.query.weight", "attention.value.weight"}


@pytest.mark.parametrize("make", [mvpformer_s, mvpformer_m], ids=["s", "m"])
def test_published_sizes(make, tmp_path):
    """Counts of what a released file holds, on the meta device; a base file of S is converted whole."""
    weights = released_base(make(), make=lambda *shape: torch.zeros(*shape, dtype=torch.bfloat16, device="meta"))
    buffers = ("time_bias", "masked_bias")
    held = sum(tensor.numel() for name, tensor in weights.items() if not name.endswith(buffers))
    expected = {"s": (74_167_602, 16_896), "m": (1_243_279_922, 56_832)}["s" if make is mvpformer_s else "m"]
    assert held == sum(expected)
    if make is mvpformer_s:
        real = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in weights.items()}
        model, conversion = convert_released(write(real, tmp_path / "s.ckpt"))
        assert sum(parameter.numel() for parameter in model.parameters()) == expected[0]
        assert model.config == mvpformer_s(row_order="released")
        assert next(model.parameters()).dtype == torch.float32
        assert (conversion.matched, len(conversion.unused)) == (5 + 12 * 10 + 1, 1 + 12 * 3)


@pytest.mark.parametrize("prefix", ["genie.", "decoder"])
def test_files_with_the_older_name(base, prefix, tmp_path):
    weights = released_base(CONFIG)
    if prefix == "genie.":
        renamed = {f"genie.{name}": tensor for name, tensor in weights.items()}
    else:
        renamed = {name.replace("mvpformer.", "genie."): tensor for name, tensor in weights.items()}
    model = load_released(write(renamed, tmp_path / "genie.ckpt"), config=CONFIG)
    for name, tensor in load_released(base, config=CONFIG).state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_safetensors_and_nested_state_dict(base, tmp_path):
    weights = {name: tensor.contiguous() for name, tensor in released_base(CONFIG).items()}
    first = load_released(write(weights, tmp_path / "base.SAFETENSORS"), config=CONFIG)
    second = load_released(write({"state_dict": weights, "epoch": 3}, tmp_path / "nested.ckpt"), config=CONFIG)
    for name, tensor in load_released(base, config=CONFIG).state_dict().items():
        assert torch.equal(first.state_dict()[name], tensor)
        assert torch.equal(second.state_dict()[name], tensor)


def test_a_missing_encoder_norm_is_ones_with_a_note(tmp_path):
    weights = released_base(CONFIG)
    del weights["encoder.ln.weight"]
    model, conversion = convert_released(write(weights, tmp_path / "base.ckpt"), config=CONFIG)
    assert (model.encoder.norm.weight == 1).all()
    assert "encoder.ln.weight is not in the file: ones" in str(conversion)
    assert conversion.matched == 4 + 2 * 10 + 1


def test_a_single_file_with_a_classifier(tmp_path):
    """A base with a 2×D head and adapters of its own has no prediction head."""
    weights = released_base(CONFIG) | released_head(CONFIG)
    model = load_released(write(weights, tmp_path / "whole.ckpt"), config=CONFIG)
    assert model.prediction_head is None
    assert model.config.num_classes == 2


def test_always_released_rows_and_the_context_that_is_asked_for(base):
    assert load_released(base, config=CONFIG).config.row_order == "released"
    assert load_released(base, config=CONFIG).config.context == 13
    assert load_released(base, config=CONFIG, context=7).config.context == 7


def test_converted_folder_gives_the_same_outputs(base, head, tmp_path, capsys):
    config_file = tmp_path / "size.json"
    config_file.write_text(json.dumps(CONFIG.to_dict()))
    save_training_subjects(tmp_path / "out", ["of the model that was there"])
    status = main(["convert", str(base), "--head", str(head), "--size", str(config_file), "-o", str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert read_training_subjects(tmp_path / "out") is None
    assert "35 tensors matched, none missing, none unexpected" in printed.out
    assert "4 weights with a LoRA adapter merged" in printed.out
    assert "8 tensors left out" in printed.out
    model, signal = MVPFormer.from_pretrained(tmp_path / "out"), make_signal().float()
    assert torch.equal(model(signal), load_released(base, head, CONFIG)(signal))


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    weights = torch.load(path, weights_only=True)
    edit(weights)
    torch.save(weights, path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("mvpformer.h.1.attn.c_attn.weight"), r"1 missing: mvpformer\.h\.1\.attn\.c_attn\.weight"),
        (lambda w: w.pop("mvpformer.channel_embedding.weight"), r"1 missing: mvpformer\.channel_embedding"),
        (lambda w: w.update({"mvpformer.wte.weight": torch.zeros(3)}), r"1 unexpected: mvpformer\.wte\.weight"),
        (lambda w: w.update({"mvpformer.h.2.ln_1.weight": torch.zeros(24)}), r"1 unexpected: mvpformer\.h\.2"),
        (lambda w: w.update({"encoder.proj.weight": torch.zeros(24, 2611)}), r"\(24, 2611\) in place of \(24, 2610\)"),
        (lambda w: w.update({"head.head.weight": torch.zeros(24, 23)}), r"with D = 24, got \(24, 23\)"),
        (
            lambda w: w.update({"mvpformer.h.0.attn.q_attn.lora_A": torch.zeros(3, 24)}),
            "set of LoRA adapters does not fit the model",
        ),
        (lambda w: w.update(epoch=3), "must hold a state dict"),
        (lambda w: w.update({"genie.encoder.proj.weight": w["encoder.proj.weight"]}), "some tensors twice"),
    ],
)
def test_a_base_file_that_does_not_fit_is_refused(base, edit, message):
    change(base, edit)
    refuses(load_released, message, base, config=CONFIG)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("head.head.weight"), "must hold head.head.weight"),
        (lambda w: w.pop("mvpformer.h.1.attn.c_attn.lora_B"), r"1 missing: mvpformer\.h\.1\.attn\.c_attn\.lora_B"),
        (
            lambda w: w.update({"mvpformer.h.0.attn.c_attn.lora_B": torch.zeros(24, 3)}),
            r"c_attn\.lora_B \(24, 3\) in place of \(12, 3\)",
        ),
        (lambda w: w.update({"mvpformer.ln_f.weight": torch.zeros(24)}), r"LoRA adapters only; mvpformer\.ln_f"),
        (lambda w: w.update({"head.head.weight": torch.zeros(24, 24)}), "a classifier in the other"),
    ],
)
def test_a_head_file_that_does_not_fit_is_refused(base, head, edit, message):
    change(head, edit)
    refuses(load_released, message, base, head, CONFIG)


def test_another_size_is_refused(base):
    refuses(load_released, r"with D = 768, got \(24, 24\)", base, config="s")
    write(released_base(dataclasses.replace(CONFIG, num_layers=3)), base)
    with pytest.raises(ValueError, match=r"does not fit the model \(25 tensors match; 10 unexpected: mvpformer\.h\.2"):
        load_released(base, config=CONFIG)
    refuses(load_released, "config must be 's', 'm' or an MVPFormerConfig, got 'xl'", base, config="xl")


def test_missing_and_damaged_files(base, tmp_path):
    refuses(load_released, r"there is no file .*absent\.ckpt", tmp_path / "absent.ckpt", kind=FileNotFoundError)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.ckpt"):
        load_released(base, tmp_path / "absent.ckpt", CONFIG)
    for size in (0, 100, base.stat().st_size // 2):
        (tmp_path / "cut.ckpt").write_bytes(base.read_bytes()[:size])
        refuses(load_released, r"cut\.ckpt is damaged", tmp_path / "cut.ckpt", config=CONFIG)
    torch.save({"head.head.weight": Path("a path")}, tmp_path / "code.ckpt")
    with pytest.raises(ValueError, match="more than tensors and plain values, which is never loaded"):
        load_released(tmp_path / "code.ckpt", config=CONFIG)
    for content in (b"x", b"a text\n", b"a"):  # at which torch's reader raises one exception and another
        (tmp_path / "other.txt").write_bytes(content)
        refuses(load_released, r"other\.txt is damaged", tmp_path / "other.txt", config=CONFIG)


def test_the_command_says_what_is_wrong(tmp_path, capsys, fails):
    fails("mvpformer convert: there is no file", "convert", tmp_path / "absent.ckpt", "-o", tmp_path / "out")
    assert main(["convert", str(tmp_path / "absent.ckpt"), "--size", "xl", "-o", str(tmp_path / "out")]) == 1
    assert "--size must be s, m or the path of a config.json, got xl: there is no such file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_under_braindecodes_names(tmp_path, monkeypatch):
    """Parity with braindecode's class, whose files on the hub hold the released weights."""
    audio = ("torchaudio", "torchaudio.functional", "torchaudio.transforms")
    for name in (*audio, "linear_attention_transformer", "wfdb"):  # of its other models and data sets
        monkeypatch.setitem(sys.modules, name, MagicMock())
    braindecode = pytest.importorskip("braindecode.models.mvpformer")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = braindecode.MVPFormer(
            n_outputs=2,
            n_chans=3,
            n_times=5 * 2560,
            sfreq=512,
            d_model=CONFIG.dim,
            n_layers=CONFIG.num_layers,
            n_heads=CONFIG.num_heads,
            n_head_kv=CONFIG.num_kv_heads,
            d_inner=CONFIG.mlp_dim,
            local_window=CONFIG.window,
            max_segments=CONFIG.time_rows,
            max_channels=CONFIG.channel_rows,
        ).eval()
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        x = 50 * torch.randn(2, 3, 5 * 2560)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = load_released(tmp_path / "model.safetensors", config=CONFIG)
    assert (ours.config.num_classes, ours.config.prediction_head, ours.config.row_order) == (2, False, "released")
    with torch.no_grad():
        torch.testing.assert_close(ours.classify(ours(x)), theirs(x), atol=1e-4, rtol=1e-4)
