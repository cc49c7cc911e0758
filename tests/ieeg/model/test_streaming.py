"""The stream against the full pass, segment by segment."""

from typing import Any

import pytest
import torch
from support.made_up_recordings import enlarged
from torch import Tensor

from mvpa_ts.ieeg import MVPFormer
from mvpa_ts.ieeg.model.streaming import StreamingMVPFormer

SEGMENT = 2560
C = 3


def make_model(**changes: Any) -> MVPFormer:
    return enlarged(**({"num_layers": 3, "num_classes": 2, "context": 8} | changes))


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
    for t in range(4):
        assert torch.equal(stream.step(piece(signal, t)), first[t])


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
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
