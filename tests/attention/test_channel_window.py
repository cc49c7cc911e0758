"""A window over channels and shared rows for far channels: the blocks of channels against the reference."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_checks import (
    EXTRA_FACTORS,
    INPUTS,
    RANDOM_OPTIONS,
    Case,
    Returned,
    assert_as_accurate_as_reference,
    assert_equals_reference,
    assert_masked_nan_reaches_nothing,
    covering_cases,
)
from torch import Tensor

from mvpa_ts import MVPAttention, mvpa_attention
from mvpa_ts.attention.separable import channel_blocks, scratch, tiles

FACTORS = EXTRA_FACTORS | {
    "shape": ((1, 9), (3, 12), (5, 17), (2, 30)),
    "groups": (1, 2),
    "window": (None, 0, 2),
    "channel_window": (1, 2, None),
    "channel_reach": (0, 1, 3),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small problems have several blocks."""
    monkeypatch.setattr(channel_blocks, "_BLOCK_CHANNELS", 3)
    return


@pytest.mark.parametrize("case", covering_cases(FACTORS), ids=str)
def test_output_and_gradients(case):
    assert_equals_reference(case, "separable")


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(4, 24)),
    groups=st.integers(1, 2),
    window=st.none() | st.integers(0, 4),
    **RANDOM_OPTIONS,
    channel_window=st.none() | st.integers(1, 3),
    channel_reach=st.none() | st.integers(0, 5),
    components=st.sampled_from(EXTRA_FACTORS["components"]),
    kv_heads=st.integers(1, 2),
    head_dim=st.integers(1, 4),
    block_channels=st.integers(1, 8),
    tile_elements=st.integers(1, 4000),
)
def test_random_shapes_options_and_tilings(block_channels, tile_elements, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel_blocks, "_BLOCK_CHANNELS", block_channels)
        patch.setattr(tiles, "_TILE_ELEMENTS", tile_elements)
        assert_equals_reference(Case(**options), "separable")


@pytest.mark.parametrize(
    "case",
    [
        Case((2, 9), window=0, channel_window=1, channel_reach=1, head_dim=2, batch=1),
        Case((2, 9), channel_window=1, channel_reach=2, head_dim=2, batch=1, channel_distance="signed", masks="token"),
    ],
    ids=str,
)
def test_gradcheck(case):
    options = case.options()
    assert torch.autograd.gradcheck(lambda *x: mvpa_attention(*x, impl="separable", **options), case.inputs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channel_distance", ["absolute", "signed"])
def test_error_in_low_precision(channel_distance, dtype):
    """Four draws together, and the three biases together: in 128 sums over all tokens one draw's error is luck."""
    wide: dict[str, Any] = {"batch": 3, "kv_heads": 4, "head_dim": 32}

    def drawn(impl: str, dtype: torch.dtype) -> dict[str, Tensor]:
        results: dict[str, list[Tensor]] = {}
        for seed in range(4):
            case = Case((4, 40), window=2, channel_window=2, channel_reach=3, channel_distance=channel_distance, **wide)
            for name, tensor in replace(case, seed=seed).evaluate(impl, dtype).items():
                results.setdefault("bias" if name.endswith("bias") else name, []).append(tensor)
        return {name: torch.cat(tensors) for name, tensors in results.items()}

    exact, reference = drawn("reference", torch.float64), drawn("reference", dtype)
    actual = drawn("separable", dtype)
    for name in exact:
        assert_as_accurate_as_reference(actual[name], reference[name], exact[name], name)


@pytest.mark.parametrize("impl", ["reference", "separable"])
@pytest.mark.parametrize("masks", ["channel", "segment", "token", "all"])
def test_nan_in_masked_tokens_reaches_nothing(masks, impl):
    assert_masked_nan_reaches_nothing(Case((3, 20), window=1, masks=masks, channel_window=1, channel_reach=2), impl)


@pytest.mark.parametrize("impl", ["reference", "separable"])
def test_content_further_away_than_the_window_changes_nothing_but_its_value_does(impl):
    case = Case((2, 20), channel_window=2, channel_reach=1, dense_last_segment=True, window=0)
    inputs = case.inputs()
    query, key, value = inputs[:3]
    far_key, edge_key, far_value = key.clone(), key.clone(), value.clone()
    far_key[:, :, 3], edge_key[:, :, 2], far_value[:, :, 19] = 9.0, 9.0, 9.0

    def first_channel(*tensors: Tensor) -> Tensor:
        return mvpa_attention(*tensors, *inputs[3:], impl=impl, **case.options())[:, :, 0]

    before = first_channel(query, key, value)
    torch.testing.assert_close(first_channel(query, far_key, value), before, atol=1e-12, rtol=0)
    assert not torch.allclose(first_channel(query, edge_key, value), before)
    assert not torch.allclose(first_channel(query, key, far_value), before)


def call(**changes: Any) -> Tensor:
    names = dict(zip(INPUTS, Case((2, 6)).inputs(), strict=True))
    return mvpa_attention(**names | changes)


def test_triton_says_that_it_has_no_channel_window():
    with pytest.raises(RuntimeError, match="impl='triton' cannot run here: the kernels have no channel_window, got 2"):
        call(impl="triton", channel_window=2)


def test_numbers_of_numpy_and_torch_count_as_whole():
    for two in (np.int64(2), torch.tensor(2)):
        torch.testing.assert_close(call(channel_window=two), call(channel_window=2), atol=0, rtol=0)


def test_defaults_are_the_released_behaviour():
    torch.testing.assert_close(call(), call(channel_window=None, channel_beyond="error"), atol=0, rtol=0)
    for impl in ("reference", "separable"):
        torch.testing.assert_close(call(impl=impl, channel_window=5), call(impl=impl), atol=1e-12, rtol=0)


@pytest.mark.parametrize("components", [("content", "time", "channel"), ("time", "channel"), ("time",)], ids=str)
def test_work_is_linear_in_channels(components):
    work = []
    for C in (100, 400):
        scratch._kept.__dict__.clear()  # memory of calls before this would spare one of the two its allocations
        with Returned() as returned:
            Case((2, C), channel_window=3, channel_reach=4, batch=1, components=components).evaluate("separable")
        work.append(returned.total)
    assert work[1] < 4.1 * work[0]


def codebooks(time_rows: int, channel_rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(rows, 8, generator=generator) for rows in (time_rows, channel_rows))  # type: ignore[return-value]


@pytest.mark.parametrize("channel_distance", ["absolute", "signed"])
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 40])
def test_the_module_clamps_by_the_same_mechanism(channels, channel_distance):
    """A codebook written out to every distance gives the same, forward and backward, at any number of channels."""
    x = torch.randn(2, 3, channels, 8, generator=torch.Generator().manual_seed(6))
    times, rows = codebooks(5, 7)
    torch.manual_seed(7)
    clamped = MVPAttention(8, 2, causal=False, beyond="clamp", channel_window=2, channel_distance=channel_distance)
    torch.nn.init.normal_(clamped.channel_bias)
    clamped.impl = "separable"
    written_out = MVPAttention(8, 2, causal=False, channel_window=2, channel_distance=channel_distance)
    written_out.load_state_dict(clamped.state_dict())
    written_out.impl = "reference"
    if channel_distance == "signed":
        long = torch.cat([rows[:1].expand(50, -1), rows, rows[-1:].expand(50, -1)])
    else:
        long = torch.cat([rows, rows[-1:].expand(50, -1)])
    expected, actual = written_out(x, times, long), clamped(x, times, rows)
    torch.testing.assert_close(actual, expected)
    gradients = [
        torch.autograd.grad(output.square().sum(), list(module.parameters()))
        for output, module in ((expected, written_out), (actual, clamped))
    ]
    torch.testing.assert_close(*reversed(gradients), atol=1e-4, rtol=1e-4)
