"""The MV-Llama ablation against a scalar evaluation of ordinary attention with rotary positions."""

import cmath
import itertools
import math

import pytest
import torch

from mvpa_ts.ieeg.model.configuration import mvpformer_tiny
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.rotary import RotaryAttention, cantor_pairing

B, T, C, D, HEADS, KV_HEADS, WIDTH = 2, 3, 4, 24, 4, 2, 6


def make_attention(dropout: float = 0.0) -> RotaryAttention:
    torch.manual_seed(0)
    return RotaryAttention(D, HEADS, KV_HEADS, dropout).double().eval()


def make_tokens() -> torch.Tensor:
    return torch.randn(B, T, C, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def turned(vector: list[float], position: int) -> list[complex]:
    """Pairs (x_i, x_{i+d/2}) as complex numbers, turned by position · 10000^(−2i/d)."""
    half = len(vector) // 2
    return [
        complex(vector[i], vector[i + half]) * cmath.exp(1j * position * 10_000 ** (-2 * i / len(vector)))
        for i in range(half)
    ]


def by_loops(attention: RotaryAttention, x: torch.Tensor) -> torch.Tensor:
    query, key, value = ((x @ layer.weight.T).tolist() for layer in (attention.query, attention.key, attention.value))
    output = torch.zeros_like(x)
    tokens = list(itertools.product(range(T), range(C)))
    for b, (t, c), head in itertools.product(range(B), tokens, range(HEADS)):
        shared = head // (HEADS // KV_HEADS)
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        shared_part = slice(shared * WIDTH, (shared + 1) * WIDTH)
        q = turned(query[b][t][c][part], (t + c) * (t + c + 1) // 2 + c)
        weights = {}
        for s, e in tokens:
            if s <= t:
                k = turned(key[b][s][e][shared_part], (s + e) * (s + e + 1) // 2 + e)
                score = sum((i * j.conjugate()).real for i, j in zip(q, k, strict=True))
                weights[s, e] = math.exp(score / math.sqrt(WIDTH))
        total = sum(weights.values())
        for (s, e), weight in weights.items():
            for i, number in enumerate(value[b][s][e][shared_part]):
                output[b, t, c, head * WIDTH + i] += weight / total * number
    return output @ attention.output.weight.T


def test_the_pairing_is_one_to_one():
    segment, channel = torch.arange(110)[:, None], torch.arange(128)
    assert cantor_pairing(segment, channel).unique().numel() == 110 * 128


def test_equation():
    attention, x = make_attention(), make_tokens()
    with torch.no_grad():
        # float32 angles: 1e-7 of a turn at these positions
        torch.testing.assert_close(attention(x), by_loops(attention, x), atol=1e-6, rtol=1e-6)


def test_masked_tokens_reach_no_other_and_are_zero():
    attention, x = make_attention(), make_tokens()
    mask = torch.rand(B, T, C, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[:, 0, 0] = True
    mask[1, 1] = False
    clean, poisoned = (attention(x.masked_fill(~mask[..., None], value), token_mask=mask) for value in (0.0, torch.nan))
    assert torch.equal(clean, poisoned)
    assert (clean[~mask] == 0).all()


def test_dropout_in_training_only():
    attention, x = make_attention(dropout=0.5), make_tokens()
    assert torch.equal(attention(x), make_attention()(x))
    attention.train()
    assert not torch.equal(attention(x), attention(x))


def test_the_model_has_no_codebooks_and_trains_every_parameter():
    torch.manual_seed(0)
    model = MVPFormer(mvpformer_tiny(attention="llama", num_classes=2))
    assert not [name for name, _ in model.stack.named_parameters() if "codebook" in name or "bias" in name]
    features = model(torch.randn(1, 3, 4 * 2560))
    (model.predict(features).square().mean() + model.classify(features).square().mean()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_an_odd_head_width_is_refused():
    with pytest.raises(ValueError, match="even head width, got 5"):
        mvpformer_tiny(attention="llama", dim=20)


def test_order_of_channels_and_segments_matters():
    attention, x = make_attention(), make_tokens()
    assert not torch.allclose(attention(x.flip(2)).flip(2), attention(x))


@pytest.mark.parametrize("components", [(), ("content",), ("time", "channel")])
def test_component_subsets_of_mvpformer_train_with_gradients_everywhere(components):
    torch.manual_seed(0)
    model = MVPFormer(mvpformer_tiny(components=components))
    model.predict_next(torch.randn(1, 3, 4 * 2560)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    on = model.stack.blocks[0].attention
    assert on.time_key.weight.grad.any() == ("time" in components)
    assert on.key.weight.grad.any() == ("content" in components)
    assert on.channel_key.weight.grad.any() == ("channel" in components)
