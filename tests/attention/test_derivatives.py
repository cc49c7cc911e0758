"""The log-sum-exp as an output, second derivatives, and compiled graphs."""

import itertools
import math
import shutil
from typing import Any

import pytest
import torch
from support.attention_checks import Case, assert_compiled_same
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from mvpa_ts import MVPAttention, mvpa_attention
from mvpa_ts.attention.separable import channel_blocks, tiles

ALL = ("reference", "separable")
CASES = [
    Case((3, 2), kv_heads=1),
    Case((5, 3), window=1, masks="token", groups=2, batch=1),
    Case((4, 3), window=1, causal=False, dense_last_segment=True, masks="channel", dropout=0.4, kv_heads=1),
    Case((2, 9), channel_window=1, channel_reach=1, batch=1, channel_distance="signed"),
    Case((3, 2), components=("time",)),
]


@pytest.mark.parametrize("impl", ALL)
def test_the_log_sum_exp_is_that_of_the_logits(impl):
    """Content alone, without biases: the logits are those of ordinary attention."""
    inputs = [tensor.detach() for tensor in Case((4, 3), kv_heads=1, causal=False).inputs()]
    inputs[5].zero_()
    _, lse = mvpa_attention(*inputs, components=("content",), causal=False, return_lse=True, impl=impl)
    query, key = (tensor.flatten(1, 2)[:, :, 0] for tensor in inputs[:2])
    expected = (query @ key.mT / math.sqrt(4)).logsumexp(-1)
    torch.testing.assert_close(lse.flatten(1), expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_sum_exp_and_its_gradients(case):
    def evaluate(impl: str) -> list[Tensor]:
        inputs = case.inputs()
        output, lse = mvpa_attention(*inputs, impl=impl, return_lse=True, **case.options())
        loss = output.square().sum() + lse[lse.isfinite()].sin().sum()
        return [output.detach(), lse.detach(), *torch.autograd.grad(loss, inputs)]

    torch.testing.assert_close(evaluate("separable"), evaluate("reference"), atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("impl", ALL)
def test_a_query_without_a_key_has_minus_infinity(impl):
    segment_mask = torch.tensor([[False] * 4, [False, True, True, True]])
    _, lse = mvpa_attention(*Case((4, 3)).inputs(), segment_mask=segment_mask, return_lse=True, impl=impl)
    assert (lse[0] == -math.inf).all()
    assert (lse[1, 0] == -math.inf).all()
    assert lse[1, 1:].isfinite().all()


@pytest.mark.parametrize("impl", ALL)
def test_twice_the_keys_are_twice_the_sum_of_exponentials(impl):
    query, key, value, time_key, channel_key, *biases = Case((4, 3), causal=False).inputs()
    rows = time_key, channel_key[:1].expand(6, -1, -1)
    options: Any = {"causal": False, "impl": impl, "return_lse": True}
    doubled = (torch.cat([x, x], 2) for x in (query, key, value))
    output, lse = mvpa_attention(*doubled, *rows, *biases, **options)
    expected, expected_lse = mvpa_attention(query, key, value, *rows, *biases, **options)
    torch.testing.assert_close(output[:, :, :3], expected)
    torch.testing.assert_close(lse[:, :, :3], expected_lse + math.log(2.0))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_second_derivatives(case, monkeypatch):
    monkeypatch.setattr(tiles, "_BLOCK_TOKENS", 4)
    monkeypatch.setattr(tiles, "_TILE_ELEMENTS", 64)
    monkeypatch.setattr(channel_blocks, "_BLOCK_CHANNELS", 2)

    def evaluate(impl: str) -> tuple[Tensor, ...]:
        inputs = case.inputs()
        output, lse = mvpa_attention(*inputs, impl=impl, return_lse=True, **case.options())
        loss = output.square().sum() + lse[lse.isfinite()].sin().sum()
        gradients = torch.autograd.grad(loss, inputs, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in gradients)
        return torch.autograd.grad(penalty, inputs)  # type: ignore[arg-type]

    torch.testing.assert_close(evaluate("separable"), evaluate("reference"), atol=1e-8, rtol=1e-8)


def test_a_third_derivative_is_refused_and_says_what_to_use():
    inputs = Case((3, 2), kv_heads=1).inputs()
    derivative = mvpa_attention(*inputs, impl="separable").square().sum()
    for _ in range(2):
        gradients = torch.autograd.grad(derivative, inputs[:3], create_graph=True)
        derivative = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    with pytest.raises(RuntimeError, match=r"impl='separable' has no third derivative.*use impl='reference'"):
        torch.autograd.grad(derivative, inputs[:1], allow_unused=True)


@pytest.mark.slow  # the C++ compiler takes 25 s; backends without it are compared above
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's default backend, inductor, needs a C++ compiler")
def test_the_default_backend_gives_the_same_numbers():
    torch._dynamo.reset()
    attention = MVPAttention(8, 1, causal=False, window=1, impl="separable")
    codebooks = torch.randn(5, 8), torch.randn(5, 8)
    with torch._inductor.config.patch(compile_threads=1):
        x = torch.randn(1, 3, 5, 8, requires_grad=True)
        compiled = torch.compile(attention, fullgraph=True)
        assert_compiled_same(attention, compiled, x, *codebooks, atol=1e-4, rtol=1e-4)


# Tracing the backward pass for any size takes half a minute; in small: released rows, in test_compiled_networks.py.
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("masked", "window"), [(False, None), (True, None), (True, 2)])
def test_the_module_is_one_graph_for_all_numbers_of_channels(masked, window):
    torch._dynamo.reset()
    backend = CompileCounterWithBackend("aot_eager")
    attention = MVPAttention(
        16, 2, causal=False, window=1, impl="separable", channel_window=window, beyond="clamp" if window else "error"
    )
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend=backend)
    codebooks = torch.randn(7, 16), torch.randn(60 if window is None else 3, 16)
    graphs = []
    for C in (7, 11, 13) if window is None else (200, 210, 330):
        token_mask = torch.rand(2, 4, C) > 0.2 if masked else None
        x = torch.randn(2, 4, C, 16, requires_grad=True)
        assert_compiled_same(attention, compiled, x, *codebooks, atol=1e-4, rtol=1e-4, token_mask=token_mask)
        graphs.append(backend.frame_count)
    assert graphs[1] == graphs[2], graphs


def test_operators_are_registered_correctly():
    from mvpa_ts.attention.separable import operator

    K, T, C, d = 2, 3, 4, 4
    shapes = [*3 * [(K, T, C, d)], (K, 2 * T - 1, d), (K, 2 * C - 1, d), *3 * [(K, 1, 1, d)]]
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    masks = [torch.zeros(K, T, dtype=torch.bool), torch.zeros(K, C), None]
    for with_masks, window in itertools.product((False, True), (None, 1)):
        others = (masks if with_masks else [], True, window, False, None, 0, 0)
        torch.library.opcheck(
            operator.separable_attention, (tensors, *others), test_utils=("test_schema", "test_faketensor")
        )
