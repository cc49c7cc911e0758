"""The stream against the full pass, segment by segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
from mvpa_ts.ieeg.model.streaming import StreamingMVPFormer

SEGMENT = 2560
C = 3


def make_model(**changes: Any) -> MVPFormer:
    torch.manual_seed(0)
    model = MVPFormer(mvpformer_tiny(**({"num_layers": 3, "num_classes": 2, "context": 8} | changes))).eval()
    with torch.no_grad():  # larger weights than at the start, so that attention is far from uniform
        for name, parameter in model.stack.named_parameters():
            if "norm" not in name:
                parameter.mul_(8.0)
    return model.double()


def make_signal(segments: int, channels: int = C) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 50 * torch.randn(channels, segments * SEGMENT, dtype=torch.float64, generator=generator)


def piece(signal: Tensor, t: int) -> Tensor:
    return signal[:, t * SEGMENT : (t + 1) * SEGMENT]


def full_pass(model: MVPFormer, signal: Tensor, stop: int, token_mask: Tensor | None = None) -> Tensor:
    """Features of segment stop − 1, from all segments before `stop`."""
    mask = None if token_mask is None else token_mask[None, :stop]
    with torch.no_grad():
        return model(signal[None, :, : stop * SEGMENT], token_mask=mask)[0, -1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 2},
        {"window": 0, "num_kv_heads": 1},
        {"window": None, "num_kv_heads": 4},
        {"window": 2, "dense_last_segment": False},
        {"window": 1, "components": ("time", "channel")},
        {"window": 1, "components": ("content",)},
    ],
    ids=str,
)
def test_every_segment_equals_the_full_pass(changes):
    model, signal = make_model(**changes), make_signal(8)
    stream = StreamingMVPFormer(model, C)
    for t in range(8):
        features = stream.step(piece(signal, t))
        torch.testing.assert_close(features, full_pass(model, signal, t + 1), atol=1e-10, rtol=1e-8)


def test_the_second_computation_matters():
    """With what the output was computed from in the cache, later segments would be wrong."""
    model, signal = make_model(window=1), make_signal(8)
    stream = StreamingMVPFormer(model, C)
    StreamingMVPFormer._twice, original = property(lambda self: False), StreamingMVPFormer._twice
    try:
        features = [stream.step(piece(signal, t)) for t in range(8)]
    finally:
        StreamingMVPFormer._twice = original
    assert (features[-1] - full_pass(model, signal, 8)).abs().max() > 1e-3


def test_channels_and_segments_that_are_missing_at_times():
    model, signal = make_model(window=2), make_signal(8, channels=4)
    mask = torch.rand(8, 4, generator=torch.Generator().manual_seed(3)) > 0.4
    mask[0] = False
    mask[3] = False
    mask[7, 1] = False
    stream = StreamingMVPFormer(model, 4)
    for t in range(8):
        poisoned = piece(signal, t).masked_fill(~mask[t][:, None], torch.nan)
        features = stream.step(poisoned, mask[t])
        torch.testing.assert_close(features, full_pass(model, signal, t + 1, mask), atol=1e-10, rtol=1e-8)
        assert (features[~mask[t]] == 0).all()


def test_segments_leave_the_cache():
    """Past the context: attention of the module over the last segments' inputs to each layer, computed anew."""
    model, signal = make_model(window=1, context=3), make_signal(11)
    stream = StreamingMVPFormer(model, C)
    stack = model.stack
    inputs: list[list[Tensor]] = [[] for _ in stack.blocks]  # of each layer and segment, windowed
    for t in range(11):
        features = stream.step(piece(signal, t))
        with torch.no_grad():
            windowed = dense = model.encode(signal[None, :, : (t + 1) * SEGMENT])[0, t]
            for block, past in zip(stack.blocks, inputs, strict=True):
                rows = {}
                for name, x in (("windowed", windowed), ("dense", dense)):
                    tokens = torch.stack([*past[-2:], x])[None]
                    block.attention.dense_last_segment = name == "dense"
                    rows[name] = block(tokens, stack.time_codebook, stack.channel_codebook)[0, -1]
                past.append(windowed)
                windowed, dense = rows["windowed"], rows["dense"]
            expected = stack.norm(dense)
            for block in stack.blocks:
                block.attention.dense_last_segment = True
        torch.testing.assert_close(features, expected, atol=1e-10, rtol=1e-8)


def test_memory_does_not_grow():
    model, signal = make_model(context=3), make_signal(1)
    stream = StreamingMVPFormer(model, C)
    places = [(cache.keys.data_ptr(), cache.keys.shape) for _, cache in stream._layers]
    for _ in range(20):
        stream.step(signal)
    assert [(cache.keys.data_ptr(), cache.keys.shape) for _, cache in stream._layers] == places
    assert stream.num_segments == 20


def test_released_rows_are_those_of_the_whole_context():
    model, signal = make_model(row_order="released", window=2), make_signal(8)
    stream = StreamingMVPFormer(model, C)
    for t in range(8):
        features = stream.step(piece(signal, t))
    torch.testing.assert_close(features, full_pass(model, signal, 8), atol=1e-10, rtol=1e-8)


def test_reset_forgets():
    model, signal = make_model(), make_signal(4)
    stream = StreamingMVPFormer(model, C)
    first = [stream.step(piece(signal, t)) for t in range(4)]
    stream.reset()
    assert stream.num_segments == 0
    for t in range(4):
        assert torch.equal(stream.step(piece(signal, t)), first[t])


@pytest.mark.parametrize("size", [1, 777, 2560, 6001, 10**6])
def test_samples_in_probabilities_out(size):
    model, signal = make_model().float(), make_signal(4).float()
    samples = torch.cat([signal, signal[:, :1000]], dim=1).numpy()
    stream = StreamingMVPFormer(model, C)
    if size == 1:
        samples = samples[:, : SEGMENT + 3]
    parts = [samples[:, i : i + size] for i in range(0, samples.shape[1], size)]
    with pytest.warns(DeprecationWarning, match="use mvpa_ts.ieeg.StreamingDetector"):
        segments = [segment for part in parts for segment in stream.feed(part)]
    assert [segment.start for segment in segments] == [0.0, 5.0, 10.0, 15.0][: len(segments)]
    assert len(segments) == (1 if size == 1 else 4)
    other = StreamingMVPFormer(model, C)
    for t, segment in enumerate(segments):
        features = other.step(piece(signal, t))
        assert torch.equal(segment.features, features)
        with torch.no_grad():
            logits = model.classify(model(signal[None, :, : (t + 1) * SEGMENT]))
        assert segment.probability == pytest.approx(logits.softmax(-1)[0, 1].item(), abs=1e-5)


def test_bad_channels_are_left_out_and_an_empty_segment_has_no_probability():
    model, signal = make_model().float(), make_signal(3).float().numpy()
    signal[0, : SEGMENT - 100] = np.nan
    signal[1, SEGMENT : 2 * SEGMENT] = 7.0
    signal[1, 2 * SEGMENT : 2 * SEGMENT + 200] = np.nan  # less than half
    signal[:, :SEGMENT][1:] = 0.0
    segments = list(StreamingMVPFormer(model, C).feed(signal))
    assert [segment.valid.tolist() for segment in segments] == [[False] * 3, [True, False, True], [True] * 3]
    assert np.isnan(segments[0].probability)
    assert all(0 < segment.probability < 1 for segment in segments[1:])


def test_without_a_head_there_is_no_probability():
    (segment,) = StreamingMVPFormer(make_model(num_classes=0).float(), C).feed(make_signal(1).float())
    assert segment.probability is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StreamingMVPFormer(make_model(attention="llama"), 3), "needs attention='mvpa'"),
        (lambda: StreamingMVPFormer(make_model(), 129), "num_channels must be from 1 to 128.* got 129"),
        (lambda: StreamingMVPFormer(make_model(), 3, context=111), "context must be from 1 to 110.* got 111"),
        (lambda: StreamingMVPFormer(make_model(), 3).step(torch.zeros(3, 2559)), r"signal must be .* \(3, 2559\)"),
        (
            lambda: StreamingMVPFormer(make_model(), 3).step(torch.zeros(3, 2560), torch.ones(2, dtype=torch.bool)),
            "channel_mask must be",
        ),
        (lambda: StreamingMVPFormer(make_model(), 3).feed(torch.zeros(2, 100)), r"samples must be \[C, n\] with C = 3"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
