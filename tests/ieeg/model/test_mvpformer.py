"""MVPFormer: sizes, equations, masks, precision, gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from support.made_up_recordings import seeded
from support.reading import refuses
from torch import Tensor

from mvpa_ts.attention.reference import reference_attention
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig, mvpformer_m, mvpformer_s, mvpformer_tiny
from mvpa_ts.ieeg.model.mvpformer import MVPFormer

SEGMENT = 2560
B, T, C = 2, 4, 3


def make_signal(segments: int = T, channels: int = C, batch: int = B) -> Tensor:
    return 50 * torch.randn(batch, channels, segments * SEGMENT, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (mvpformer_s(), 74_167_602),
        (mvpformer_s(prediction_head=False), 73_577_778),
        (mvpformer_m(), 1_243_279_922),
        (mvpformer_m(prediction_head=False), 1_239_085_618),
    ],
    ids=["s", "s-headless", "m", "m-headless"],
)
def test_parameters_of_the_published_sizes(config, parameters):
    with torch.device("meta"):
        model = MVPFormer(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_encode_reads_segments_of_channels_in_place():
    model, signal = seeded(amplitude="none"), make_signal()
    embeddings = model.encode(signal)
    assert embeddings.shape == (B, T, C, 64)
    piece = signal[1, 2, 3 * SEGMENT : 4 * SEGMENT]
    torch.testing.assert_close(embeddings[1, 3, 2], model.encoder(piece))


def test_embedding_is_blind_to_amplitude_of_microvolts_but_not_of_volts():
    model, signal = seeded(amplitude="none"), make_signal()
    embeddings = model.encode(signal)
    torch.testing.assert_close(model.encode(1000 * signal), embeddings, atol=1e-5, rtol=1e-4)
    assert model.encode(1e-6 * signal).norm() < 0.05 * embeddings.norm()


def test_dropouts_and_initialisation():
    torch.manual_seed(0)
    model = MVPFormer(mvpformer_s(num_layers=2))
    block = model.stack.blocks[1]
    dropouts = (model.dropout.p, block.dropout.p, block.attention.dropout, block.mlp.dropout.p)
    assert dropouts == (0.1, 0.1, 0.1, 0.0)
    for name, parameter in model.stack.named_parameters():
        if "norm" in name:
            assert (parameter == 1).all()
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
    # torch's own initialisation of a linear map: uniform in ±1/√inputs.
    for layer in (model.encoder.projection, model.prediction_head):
        assert layer.weight.std().item() == pytest.approx(layer.in_features**-0.5 / 3**0.5, rel=0.05)
    assert block.norm.eps == model.stack.norm.eps == model.encoder.norm.eps == 1e-5


@pytest.mark.parametrize("segments", [1, 2, 12])
def test_decoder_equation(segments, monkeypatch):
    """X + attention(norm x) + MLP(norm x), in float64 with the oracle as the attention."""
    model = seeded().double()
    e = model.encode(make_signal(segments).double())
    x = e
    for block in model.stack.blocks:
        normed = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * block.norm.weight
        seen: dict[str, Any] = {}
        with monkeypatch.context() as patch:
            patch.setattr(
                "mvpa_ts.attention.functional._load", lambda name, seen=seen: lambda problem: _oracle(problem, seen)
            )
            attended = block.attention(normed, model.stack.time_codebook, model.stack.channel_codebook)
        assert seen == {"causal": True, "window": 10, "dense": True, "all": True}
        gate, up, down = (layer.weight for layer in (block.mlp.gate, block.mlp.up, block.mlp.down))
        gated = normed @ gate.T
        x = x + attended + ((gated * gated.sigmoid()) * (normed @ up.T)) @ down.T
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * model.stack.norm.weight
    torch.testing.assert_close(model.decode(e), expected, atol=1e-9, rtol=1e-9)


def _oracle(problem: Any, seen: dict[str, Any]) -> Tensor:
    seen.update(
        causal=problem.causal, window=problem.window, dense=problem.dense_last_segment, all=len(problem.components) == 3
    )
    return reference_attention(problem)


@pytest.mark.parametrize("attention", ["mvpa", "llama"])
def test_causal_in_time(attention):
    model, signal = seeded(dense_last_segment=False, attention=attention), make_signal()
    changed = signal.clone()
    changed[..., 2 * SEGMENT :] += 30 * torch.randn_like(changed[..., 2 * SEGMENT :])
    before, after = model(signal), model(changed)
    torch.testing.assert_close(after[:, :2], before[:, :2])
    assert not torch.allclose(after[:, 2:], before[:, 2:])


@pytest.mark.parametrize(
    ("attention", "row_order"), [("mvpa", "distance"), ("mvpa", "released"), ("llama", "distance")]
)
def test_padding_and_what_lies_in_it_change_nothing(attention, row_order):
    model, signal = seeded(attention=attention, row_order=row_order, num_classes=2), make_signal()
    padded = torch.full((B, C + 2, (T + 3) * SEGMENT), float("nan"))
    padded[:, :C, 3 * SEGMENT :] = signal
    channel_mask = (torch.arange(C + 2) < C).expand(B, -1)
    segment_mask = (torch.arange(T + 3) >= 3).expand(B, -1)
    token_mask = segment_mask[:, :, None] & channel_mask[:, None]

    def run(signal: Tensor, region: Any, **masks: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        model.zero_grad()
        features = model(signal, **masks)
        logits = model.classify(features, channel_mask=masks.get("channel_mask"))
        loss = model.predict(features)[region].square().sum() + logits.square().sum()
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        return features, features[region], logits, gradients

    _, features, logits, gradients = run(signal, ...)
    region = (slice(None), slice(3, None), slice(None, C))
    for masks in (
        {"channel_mask": channel_mask, "segment_mask": segment_mask},
        {"token_mask": token_mask, "channel_mask": channel_mask},
    ):
        whole, padded_features, padded_logits, padded_gradients = run(padded, region, **masks)
        torch.testing.assert_close(padded_features, features, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(padded_logits, logits, atol=1e-5, rtol=1e-4)
        assert (whole[~token_mask] == 0).all()
        torch.testing.assert_close(padded_gradients, gradients, atol=1e-3, rtol=1e-3)


def test_classification_averages_the_real_channels_of_the_last_segment():
    model, features = seeded(num_classes=2), torch.randn(B, T, C, 64)
    weight = model.head.weight
    torch.testing.assert_close(model.classify(features), features[:, -1].mean(1) @ weight.T)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    logits = model.classify(features, mask)
    torch.testing.assert_close(logits[0], features[0, -1, [0, 2]].mean(0) @ weight.T)
    assert (logits[1] == 0).all()


def test_classification_of_concatenated_channels():
    model = seeded(num_classes=4, pooling="concatenate", num_channels=C)
    features = torch.randn(B, T, C, 64)
    expected = torch.cat([features[:, -1, c] for c in range(C)], dim=-1) @ model.head.weight.T
    torch.testing.assert_close(model.classify(features), expected)
    refuses(model.classify, "needs 3 channels, got 2", features[:, :, :2])


def test_masks_of_another_shape_are_refused():
    """A mask of channels is none of segments, even where a sample has as many of both."""
    model = MVPFormer(mvpformer_tiny(num_classes=2)).eval()
    x, mask = torch.randn(2, 3, 2 * 2560), torch.ones(2, 3, dtype=torch.bool)
    refuses(model.encode, r"token_mask must be a bool tensor of shape \(2, 2, 3\)", x, mask)
    features = model(x, mask)
    for wrong in (mask[0], torch.ones(2, 2, 3, dtype=torch.bool), mask.float()):
        refuses(model.classify, r"channel_mask must be a bool tensor of shape \(2, 3\)", features, wrong)


def test_classification_by_the_most_suspicious_channels():
    model = seeded(num_classes=2, pooling="logsumexp")
    features = 3 * torch.randn(B, T, C, 64)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    odds = torch.exp(features[0, -1] @ (model.head.weight[1] - model.head.weight[0]))
    logits = model.classify(features, mask)
    torch.testing.assert_close(logits[0, 1] - logits[0, 0], odds[[0, 2]].mean().log())
    assert logits[1].isfinite().all()
    torch.testing.assert_close(model.classify(features)[0].softmax(0)[1], odds.mean() / (1 + odds.mean()))
    refuses(mvpformer_tiny, "pooling='logsumexp' needs num_classes 2", num_classes=3, pooling="logsumexp")


def test_predict_next_is_the_prediction_of_the_features():
    model, signal = seeded(), make_signal()
    torch.testing.assert_close(model.predict_next(signal), model(signal) @ model.prediction_head.weight.T)


def test_gradient_checkpointing_changes_no_gradient():
    torch.manual_seed(0)
    model, signal = MVPFormer(mvpformer_tiny()), make_signal()
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        model.set_gradient_checkpointing(enabled)
        torch.manual_seed(3)  # the same dropout
        model.predict_next(signal).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_gradient_checkpointing_keeps_less():
    def saved(enabled: bool) -> int:
        model = seeded(num_layers=6).train()
        model.set_gradient_checkpointing(enabled)
        bytes_kept = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal bytes_kept
            bytes_kept += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.decode(torch.randn(1, 10, 8, 64, requires_grad=True))
        return bytes_kept

    assert saved(True) < 0.3 * saved(False)


def test_bfloat16_autocast():
    model, signal = seeded(), make_signal()
    exact = model(signal)
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = model.encode(signal)
        features = model(signal)
        model.predict(features).float().square().mean().backward()
    assert embeddings.dtype == features.dtype == torch.float32
    assert 0 < (features.float() - exact).norm() < 0.03 * exact.norm()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    # The coefficients stay float32: a signal of 1 µV on an offset of 1 V is lost in bfloat16.
    wave = torch.sin(torch.arange(SEGMENT) / 10).view(1, 1, -1)
    with torch.autocast("cpu", torch.bfloat16):
        first, second = (model.encode(1e3 + amplitude * wave).float() for amplitude in (1.0, 2.0))
    assert not torch.equal(first, second)


def test_whole_model_in_bfloat16():
    model, signal = seeded().bfloat16(), make_signal()
    assert model(signal).dtype == torch.bfloat16
    assert model(signal).isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(torch.zeros(1, 2, 2559)), r"multiple of 2560 .* got shape \(1, 2, 2559\)"),
        (lambda m: m(torch.zeros(2, 2560)), "signal must be"),
        (
            lambda m: m(torch.zeros(1, 2, 2560).numpy()),
            "signal must be a torch.Tensor, got ndarray: pass torch.from_numpy",
        ),
        (lambda m: m(torch.zeros(1, 0, 2560)), "signal must be"),
        (lambda m: m.decode(torch.zeros(1, 2, 3, 63)), "with D = 64"),
        (lambda m: m(torch.zeros(1, 2, 2560), torch.ones(1, 3, dtype=torch.bool)), "channel_mask must be"),
        (lambda m: m.decode(torch.zeros(1, 31, 1, 64)), r"has 31 segments of 5 s, .* at most 30 \(time_rows\)"),
        (lambda m: m.decode(torch.zeros(1, 1, 8, 64)), r"has 8 channels, .* at most 7 \(channel_rows\)"),
        (lambda m: m.classify(torch.zeros(1, 1, 1, 64)), "no classification head"),
        (lambda m: m.predict(torch.zeros(1, 1, 1, 64)), "no prediction head"),
    ],
)
def test_refusals(call, message):
    refuses(call, message, seeded(time_rows=30, channel_rows=7, prediction_head=False))


def test_padding_needs_rows_where_they_stand_for_distances_alone():
    embeddings, mask = torch.randn(1, 31, 8, 64), torch.zeros(1, 31, 8, dtype=torch.bool)
    mask[:, 1:, 1:] = True
    sizes = {"time_rows": 30, "channel_rows": 7}
    refuses(seeded(**sizes).decode, "the input has 31 segments", embeddings, token_mask=mask)
    model = seeded(**sizes, row_order="released")
    features = model.decode(embeddings, token_mask=mask)
    torch.testing.assert_close(features[:, 1:, 1:], model.decode(embeddings[:, 1:, 1:]))
    mask[:, 5, 0] = True
    refuses(model.decode, "the input has 8 channels", embeddings, token_mask=mask)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 0}, "dim must be at least 1"),
        ({"dim": 65}, r"dim \(65\) must be a multiple of num_heads \(12\)"),
        ({"num_kv_heads": 5}, r"num_heads \(12\) must be a multiple of num_kv_heads \(5\)"),
        ({"attention": "mamba"}, "attention must be one of"),
        ({"components": ["space"]}, "components"),
        ({"context": 111}, r"context \(111\) must not exceed time_rows \(110\)"),
        ({"pooling": "concatenate"}, "num_channels"),
        ({"num_channels": 3}, "num_channels"),
        ({"dropout": 1.0}, "dropout"),
        ({"num_layers": -1}, "num_layers must be at least 0"),
        ({"row_order": "reversed"}, "row_order"),
        ({"dim": "64"}, "dim must be a whole number, got '64'"),
        ({"context": 20.0}, r"context must be a whole number, got 20\.0"),
        ({"num_heads": None}, "num_heads must be a whole number, got None"),
        ({"window": "none"}, "window must be None or at least 0 segments, a whole number, got 'none'"),
        ({"dropout": "0.1"}, r"dropout must be in \[0, 1\), got '0\.1'"),
        ({"prediction_head": "no"}, "prediction_head must be True or False, got 'no'"),
        ({"threshold": "0.5"}, r"threshold must be between 0 and 1, got '0\.5'"),
        ({"components": None}, "components must be a subset of .*, got None"),
    ],
)
def test_a_wrong_configuration_is_refused_when_made(fields, message):
    with pytest.raises(ValueError, match=message):
        MVPFormerConfig(**fields)


def test_configuration_as_a_dictionary():
    config = mvpformer_m(components=("time", "content"), window=None)
    assert config.components == ("content", "time")
    assert MVPFormerConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match="configuration has fields that MVPFormerConfig does not know: depth, width"):
        MVPFormerConfig.from_dict({"width": 3, "depth": 2})


def test_numbers_of_a_configuration_may_be_those_of_numpy():
    fields = {"dim": np.int64(24), "dropout": np.float32(0), "window": None}
    assert MVPFormerConfig.from_dict(fields) == MVPFormerConfig(24, dropout=0.0, window=None)
