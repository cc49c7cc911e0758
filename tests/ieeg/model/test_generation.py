"""Generation: the roll-out against a loop without a cache, and the waveform against the pieces it is made of."""

from typing import Any

import numpy as np
import pytest
import torch
from support.made_up_recordings import PLAIN, enlarged, noise
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.ieeg import MVPFormer, embed, generate
from mvpa_ts.ieeg.model.generation import nearest_segments, roll_out

C = 3


def make_model(**changes: Any) -> MVPFormer:
    return enlarged(**({"context": 9} | changes))


def past_of(segments: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(segments, C, 64, dtype=torch.float64, generator=generator)


def loop(model: MVPFormer, embeddings: Tensor, valid: Tensor, steps: int) -> Tensor:
    """The roll-out from its definition, one full pass a step."""
    model.eval()
    lengths = [embeddings[valid[:, c], c].norm(dim=-1).sort().values for c in range(embeddings.shape[1])]
    generated = []
    for _ in range(steps):
        with torch.no_grad():
            direction = model.predict(model.decode(embeddings[None], token_mask=valid[None]))[0, -1]
        rows = [
            direction[c] / direction[c].norm() * lengths[c][(len(lengths[c]) - 1) // 2]
            if valid[-1, c]
            else torch.zeros(64, dtype=torch.float64)
            for c in range(len(lengths))
        ]
        generated.append(torch.stack(rows))
        embeddings = torch.cat([embeddings, generated[-1][None]])
        valid = torch.cat([valid, valid[-1:]])
    return torch.stack(generated)


@pytest.mark.parametrize(
    "changes",
    [{}, {"window": 2}, {"window": None}, {"window": 1, "dense_last_segment": False}, {"attention": "llama"}],
    ids=str,
)
def test_the_roll_out_is_a_loop_of_full_passes(changes):
    model, past = make_model(**changes), past_of(5)
    valid = torch.ones(5, C, dtype=torch.bool)
    valid[0] = False
    valid[2, 1] = False
    generated = roll_out(model, past.masked_fill(~valid[..., None], torch.nan), valid, steps=4)
    torch.testing.assert_close(generated, loop(model, past, valid, 4), atol=1e-7, rtol=1e-6)
    assert (generated[0] - generated[3]).abs().max() > 0.1


def test_a_channel_without_signal_at_the_end_is_left_out():
    model, past = make_model(), past_of(6)
    valid = torch.ones(6, C, dtype=torch.bool)
    valid[-1, 0] = False
    generated = roll_out(model, past, valid, steps=3)
    assert (generated[:, 0] == 0).all()
    torch.testing.assert_close(generated, loop(model, past, valid, 3), atol=1e-7, rtol=1e-6)


def test_what_lies_before_the_context_has_no_part_but_in_the_length():
    model, past = make_model(attention="llama", context=4), past_of(10)
    valid = torch.ones(10, C, dtype=torch.bool)
    other = past.clone()
    other[:6] = F.normalize(past_of(6, seed=2), dim=-1) * past[:6].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(roll_out(model, past, valid, 2), roll_out(model, other, valid, 2))


def test_many_steps_with_a_full_context_stay_finite_and_the_mode_comes_back():
    model = make_model(context=4).train()
    generated = roll_out(model, past_of(12), torch.ones(12, C, dtype=torch.bool), steps=30)
    assert generated.shape == (30, C, 64)
    assert generated.isfinite().all()
    assert model.training


def test_nearest_is_by_direction_over_all_channels():
    past = past_of(7)
    valid = torch.ones(7, C, dtype=torch.bool)
    assert nearest_segments(past[[3, 0, 6]] * 0.1, past, valid).tolist() == [3, 0, 6]
    valid[3, 0] = valid[3, 1] = False
    mixed = past[3].clone()
    mixed[0], mixed[1] = past[5, 0], past[5, 1]
    assert nearest_segments(mixed[None], past, valid).tolist() == [5]


def test_the_waveform_is_made_of_the_recordings_past():
    source = noise(63.0)
    model = make_model().float()
    result = generate(model, source, 3, preprocessing=PLAIN)
    assert result.embeddings.shape == (3, C, 64)
    assert result.waveform.shape == (C, 3 * 2560)
    assert result.start == pytest.approx(63.0, abs=2.1 / 512)
    assert (result.sources >= 3 - 2.1 / 512).all()
    assert (result.sources <= 63 - 10).all()
    signal = source.read(0, source.num_samples)
    for step, begin in enumerate(np.round(result.sources * 512).astype(int)):
        piece = result.waveform[:, step * 2560 : (step + 1) * 2560]
        after_fade = 0 if step == 0 else 256
        np.testing.assert_allclose(piece[:, after_fade:], signal[:, begin + after_fade : begin + 2560], atol=1e-4)
    joint = slice(2560, 2560 + 256)
    first, second = np.round(result.sources[:2] * 512).astype(int)
    weights = 0.5 - 0.5 * np.cos(np.pi * (np.arange(256) + 0.5) / 256)
    expected = weights * signal[:, second : second + 256] + (1 - weights) * signal[:, first + 2560 : first + 2816]
    np.testing.assert_allclose(result.waveform[:, joint], expected, atol=1e-3)


def test_only_the_past_counts_and_the_grid_ends_with_the_recording():
    """What is generated after 61.3 s is the same whatever comes later, and at another rate nearly the same place."""
    source, model = noise(80.0), make_model().float()
    cut = source.crop(0.0, 61.3)
    result = generate(model, cut, 2, preprocessing=PLAIN)
    embeddings = embed(model, cut.crop(1.3, 61.3), preprocessing=PLAIN)
    assert len(embeddings.starts) == 12
    assert result.start == pytest.approx(61.3, abs=2.1 / 512)
    other = generate(model, noise(61.3, rate=1000.0), 2, preprocessing=PLAIN)
    assert other.start == pytest.approx(61.3, abs=3e-3)
    assert other.waveform.shape == (C, 2 * 2560)


def test_a_short_past_is_searched():
    result = generate(make_model().float(), noise(60.0), 4, preprocessing=PLAIN, past=3)
    assert set(result.sources) <= {45.0, 50.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: generate(make_model().float(), noise(60.0), 0, preprocessing=PLAIN), "steps must be at least 1"),
        (lambda: generate(make_model().float(), noise(9.0), 1, preprocessing=PLAIN), "needs two past segments"),
        (lambda: generate(make_model().float(), noise(60.0), 1, past=1), "past is 1"),
        (lambda: generate(make_model(prediction_head=False), noise(60.0), 1), "no prediction head"),
        (lambda: generate(make_model().float(), noise(60.0), 1, preprocessing=PLAIN, context=200), "context must"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
