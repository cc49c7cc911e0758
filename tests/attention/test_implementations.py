"""Every implementation against the reference: output and every gradient."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_checks import (
    EXTRA_FACTORS,
    FACTORS,
    INPUTS,
    RANDOM_OPTIONS,
    Case,
    Returned,
    assert_as_accurate_as_reference,
    assert_equals_reference,
    assert_masked_nan_reaches_nothing,
    assert_zeros_without_a_key,
    covering_cases,
)
from torch import Tensor

from mvpa_ts import mvpa_attention
from mvpa_ts.attention.separable import tiles

ALL = ("reference", "separable", "sdpa")
OTHERS = ("separable", "sdpa")


def kv_heads(shape: tuple[int, int]) -> int:
    return 1 if shape == (17, 33) else 2


@pytest.mark.parametrize("impl", OTHERS)
@pytest.mark.parametrize("case", covering_cases(EXTRA_FACTORS), ids=str)
def test_output_and_gradients(case, impl):
    assert_equals_reference(case, impl)


@pytest.mark.slow
@pytest.mark.parametrize("impl", OTHERS)
@pytest.mark.parametrize("window", FACTORS["window"])
@pytest.mark.parametrize("groups", FACTORS["groups"])
@pytest.mark.parametrize("shape", FACTORS["shape"], ids=str)
def test_output_and_gradients_for_the_full_product(shape, groups, window, impl):
    rest = [name for name in FACTORS if name not in ("shape", "groups", "window")]
    for values in itertools.product(*(FACTORS[name] for name in rest)):
        options = dict(zip(rest, values, strict=True))
        assert_equals_reference(Case(shape, groups, window, kv_heads=kv_heads(shape), **options), impl)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 9)),
    groups=st.integers(1, 3),
    window=st.none() | st.integers(0, 13),
    **RANDOM_OPTIONS,
    batch=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    head_dim=st.integers(1, 9),
    block_tokens=st.integers(1, 40),
    tile_elements=st.integers(1, 4000),
)
def test_random_shapes_options_and_tilings(block_tokens, tile_elements, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_BLOCK_TOKENS", block_tokens)
        patch.setattr(tiles, "_TILE_ELEMENTS", tile_elements)
        assert_equals_reference(Case(**options), "separable")  # type: ignore[arg-type]


GRADCHECKED = [
    Case(window=1, head_dim=2, batch=1),
    Case(window=0, head_dim=2, batch=1, groups=2, causal=False, masks="token"),
    Case(window=1, head_dim=2, dense_last_segment=True, kv_heads=1, masks="channel", dropout=0.4),
    Case(shape=(3, 2), head_dim=3, channel_distance="signed", causal=False, components=("time", "channel")),
]


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("case", GRADCHECKED, ids=str)
def test_gradcheck(case, impl):
    options = case.options()
    assert torch.autograd.gradcheck(lambda *inputs: mvpa_attention(*inputs, impl=impl, **options), case.inputs())


WIDE = {"batch": 3, "kv_heads": 4, "head_dim": 32}
LOW_PRECISION = [
    Case((9, 11), window=3, **WIDE),
    Case((9, 11), window=3, groups=2, causal=False, masks="all", **WIDE),
    Case((25, 5), window=4, dense_last_segment=True, dropout=0.4, **WIDE),
    Case((6, 17), components=("time", "channel"), channel_distance="signed", **WIDE),
]


@pytest.mark.parametrize("impl", OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", LOW_PRECISION, ids=str)
def test_error_in_low_precision(case, dtype, impl):
    exact, reference, actual = case.evaluate("reference"), case.evaluate("reference", dtype), case.evaluate(impl, dtype)
    # In float32 the fused kernels of torch start their gradients from a rounded log-sum-exp, as ours do.
    times = 4.0 if (impl, dtype) == ("sdpa", torch.float32) else 2.0
    for name in exact:
        assert_as_accurate_as_reference(actual[name], reference[name], exact[name], name, times)


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_large_logits_neither_overflow_nor_vanish(scale, impl):
    """A padding channel or token may hold the largest score by far; the others must still get their weight."""
    case = Case((7, 6), window=1, masks="token")

    def evaluate(which: str, dtype: torch.dtype) -> list[Tensor]:
        inputs = [tensor.detach().mul(scale).to(dtype).requires_grad_() for tensor in case.inputs()]
        inputs[2] = case.inputs(dtype)[2]
        output = mvpa_attention(*inputs, impl=which, **case.options())
        return [output.detach(), *torch.autograd.grad(output.sum(), inputs)]

    expected = evaluate("reference", torch.float64)
    torch.testing.assert_close(evaluate(impl, torch.float64), expected, atol=1e-8, rtol=1e-8)
    assert all(tensor.isfinite().all() for tensor in evaluate(impl, torch.float32))


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("masks", ["channel", "segment", "token", "all"])
@pytest.mark.parametrize("window", [None, 1])
def test_nan_in_masked_tokens_reaches_nothing(window, masks, impl):
    assert_masked_nan_reaches_nothing(Case((7, 6), groups=2, window=window, masks=masks), impl)


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("causal", [True, False])
def test_queries_without_a_key_give_zeros(causal, impl):
    assert_zeros_without_a_key(Case((5, 3), window=1, causal=causal), impl)


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("causal", [True, False])
def test_padding_changes_nothing(causal, impl):
    padded, real = Case((7, 6), window=2, causal=causal, groups=2), Case((5, 4), window=2, causal=causal, groups=2)
    inputs = padded.inputs()
    query, key, value, time_key, channel_key, *biases = inputs
    rows = time_key if causal else time_key[2:-2]  # lag 0 stays in the middle
    unpadded = mvpa_attention(
        *(x[:, :5, :4] for x in (query, key, value)), rows, channel_key, *biases, impl=impl, **real.options()
    )
    segment_mask, channel_mask = torch.arange(7) < 5, torch.arange(6) < 4
    output = mvpa_attention(
        *inputs,
        impl=impl,
        segment_mask=segment_mask.expand(2, -1),
        channel_mask=channel_mask.expand(2, -1),
        **padded.options(),
    )
    torch.testing.assert_close(output[:, :5, :4], unpadded)
    assert (output[:, 5:] == 0).all()
    assert (output[:, :, 4:] == 0).all()


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("components", [(), ("content",), ("time",), ("channel",)], ids=str)
def test_terms_that_are_off_get_zero_gradients(components, impl):
    gradients = Case(components=components).evaluate(impl)
    tensors = {
        "content": ("key", "content_bias"),
        "time": ("time_key", "time_bias"),
        "channel": ("channel_key", "channel_bias"),
    }
    for component, names in tensors.items():
        for name in names:
            assert (gradients[name].abs().sum() > 0) == (component in components), name
    assert (gradients["query"].abs().sum() > 0) == bool(components)


@pytest.mark.parametrize("impl", ALL)
def test_gradients_of_some_inputs_only(impl):
    case = Case(window=1)
    expected = case.evaluate("reference")
    for name in INPUTS:
        inputs = [tensor.requires_grad_(name == other) for tensor, other in zip(case.inputs(), INPUTS, strict=True)]
        output = mvpa_attention(*inputs, impl=impl, **case.options())
        generator = torch.Generator().manual_seed(2)
        cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        (gradient,) = torch.autograd.grad(output, inputs[INPUTS.index(name)], cotangent)
        torch.testing.assert_close(gradient, expected[name])


@pytest.mark.parametrize("impl", ALL)
def test_inputs_need_not_be_contiguous(impl):
    case = Case((5, 4), window=1)
    inputs = case.inputs()
    strided = [tensor.detach().flip(0).transpose(0, -1).contiguous().transpose(0, -1).flip(0) for tensor in inputs]
    expected = mvpa_attention(*inputs, impl=impl, window=1)
    torch.testing.assert_close(mvpa_attention(*strided, impl=impl, window=1), expected)


@pytest.mark.parametrize("impl", OTHERS)
def test_autocast_loses_no_more_than_the_reference(impl):
    case = Case((9, 7), window=2, head_dim=16)
    exact = case.evaluate("reference")["output"]
    inputs = case.inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = mvpa_attention(*inputs, window=2, impl=impl)
        output.float().sum().backward()
        reference = mvpa_attention(*inputs, window=2, impl="reference")
    assert (output - exact).abs().max() <= 2 * (reference - exact).abs().max()
    assert all(tensor.grad is not None and tensor.grad.dtype == torch.float32 for tensor in inputs)


@pytest.mark.parametrize("impl", ["reference", "separable"])
@pytest.mark.parametrize("causal", [True, False])
def test_memory_as_time_doubles(causal, impl, monkeypatch):
    monkeypatch.setattr(tiles, "_BLOCK_TOKENS", 12)  # so that T = 128 is many blocks
    largest = []
    for T in (128, 256):
        with Returned() as returned:
            Case((T, 3), window=4, causal=causal, head_dim=2, batch=1).evaluate(impl)
        largest.append(returned.largest)
    growth = largest[1] / largest[0]
    assert growth > 3.9 if impl == "reference" else growth < 2.3
