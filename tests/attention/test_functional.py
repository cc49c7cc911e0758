"""The public function: what it refuses, how it drops, which implementation it picks."""

import functools
from typing import Any

import pytest
import torch
from support.attention_checks import INPUTS, Case
from torch import Tensor, nn
from torch.autograd import forward_ad

from mvpa_ts import mvpa_attention
from mvpa_ts.attention import separable
from mvpa_ts.attention.problem import Problem

B, T, C, H_KV, D = 2, 4, 3, 2, 4
IMPLEMENTATIONS = ("reference", "separable")


def call(**changes: Any) -> Tensor:
    return mvpa_attention(**dict(zip(INPUTS, Case(groups=2).inputs(), strict=True)) | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.zeros(B, T, C, D)}, r"query must be \[B, T, C, H, d\].*\(2, 4, 3, 4\)"),
        ({"query": torch.zeros(B, 0, C, 4, D)}, r"query must be .* no empty axis.*\(2, 0, 3, 4, 4\)"),
        ({"query": torch.zeros(B, T, C, 4, D, dtype=torch.int64)}, "query must be floating point, got torch.int64"),
        ({"query": torch.zeros(B, T, C, 3, D)}, r"heads of query \(3\) must be a multiple of the heads of key \(2\)"),
        ({"key": torch.zeros(B, T, C + 1, H_KV, D)}, r"key must be .*\[2, 4, 3, H_kv, 4\].*\(2, 4, 4, 2, 4\)"),
        ({"value": torch.zeros(B, T, C, H_KV, D + 1)}, r"value must be .*\(2, 4, 3, 2, 5\)"),
        ({"value": torch.zeros(B, T, C, 1, D)}, "value must have the 2 heads of key, got 1"),
        ({"time_key": torch.zeros(T, H_KV, D + 1)}, r"time_key must be \[R, H_kv, d\] = \[R, 2, 4\].*\(4, 2, 5\)"),
        ({"time_key": torch.zeros(T - 1, H_KV, D)}, "time_key must have R ≥ 4 rows.*R = 3"),
        ({"time_key": torch.zeros(2 * T, H_KV, D), "causal": False}, "time_key must have an odd.*R ≥ 7.*R = 8"),
        ({"time_key": torch.zeros(2 * T - 3, H_KV, D), "causal": False}, "time_key must have an odd.*R ≥ 7.*R = 5"),
        ({"channel_key": torch.zeros(C, 1, D)}, r"channel_key must be \[R, H_kv, d\] = \[R, 2, 4\].*\(3, 1, 4\)"),
        ({"channel_key": torch.zeros(C - 1, H_KV, D)}, "channel_key must have R ≥ 3 rows.*R = 2"),
        ({"channel_key": torch.zeros(C, H_KV, D), "channel_distance": "signed"}, "channel_key must have an odd.*R = 3"),
        ({"content_bias": torch.zeros(4, D)}, r"content_bias must be \[H_kv, d\] = \[2, 4\].*\(4, 4\)"),
        ({"time_bias": torch.zeros(D)}, r"time_bias must be .*\(4,\)"),
        ({"channel_bias": torch.zeros(H_KV, 1)}, r"channel_bias must be .*\(2, 1\)"),
        ({"key": None}, "key must be a torch.Tensor, got NoneType"),
        ({"time_key": None}, "time_key must be a torch.Tensor, got NoneType; if its term is not in components"),
        ({"channel_bias": None}, "channel_bias must be a torch.Tensor, got NoneType; if its term"),
        ({"components": None}, "components must be a subset of .*, got None"),
        *(({name: "no"}, f"{name} must be .* got 'no'") for name in ("causal", "dense_last_segment", "return_lse")),
        ({"window": -1}, "window must be None or at least 0 segments, a whole number, got -1"),
        ({"window": 2.5}, "window must be None or at least 0 segments, a whole number, got 2.5"),
        ({"window": "2"}, "window must be .*, got '2'"),
        ({"channel_window": 0}, "channel_window must be None or a whole number of at least 1 channel, got 0"),
        ({"channel_window": 1.5}, "channel_window must be None or a whole number of at least 1 channel, got 1.5"),
        ({"channel_window": True}, "channel_window must be None or a whole number .*got True"),
        ({"channel_window": C}, "channel_window must be None or from 1 to C - 1 = 2 channels, got 3"),
        ({"channel_beyond": "wrap"}, "channel_beyond must be 'error' or 'clamp', got 'wrap'"),
        ({"channel_key": torch.zeros(2, 2, 4), "channel_window": 1}, "channel_key must have R ≥ 3 rows.*R = 2"),
        ({"channel_key": torch.zeros(0, 2, 4), "channel_beyond": "clamp"}, "channel_key must have R ≥ 1 rows.*R = 0"),
        (
            {"channel_key": torch.zeros(4, 2, 4), "channel_beyond": "clamp", "channel_distance": "signed"},
            "channel_key must have an odd number of rows",
        ),
        ({"components": ("content", "space")}, "components must be a subset.*'space'"),
        ({"channel_distance": "cyclic"}, "channel_distance must be 'absolute' or 'signed', got 'cyclic'"),
        ({"channel_mask": torch.ones(B, T, dtype=torch.bool)}, r"channel_mask must be .*\(2, 3\), got .*\(2, 4\)"),
        ({"segment_mask": torch.ones(B, T)}, r"segment_mask must be a bool .*got torch.float32"),
        ({"token_mask": torch.ones(B, C, T, dtype=torch.bool)}, r"token_mask must be .*\(2, 4, 3\), got .*\(2, 3, 4\)"),
        ({"token_mask": [[[True] * C] * T] * B}, r"token_mask must be a bool tensor of shape \(2, 4, 3\), got list"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": "0.1"}, r"dropout must be in \[0, 1\), got '0.1'"),
        ({"dropout_masks": (torch.ones(B, C).bool(), torch.ones(B, C).bool())}, r"dropout_masks\[0\] must be"),
        ({"dropout_masks": (torch.ones(B, T).bool(), torch.ones(B, T).bool())}, r"dropout_masks\[1\] must be"),
        ({"impl": "fast"}, "impl must be one of .*got 'fast'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument_and_what_came(changes, message):
    with pytest.raises(ValueError, match=message):
        call(**changes)


def test_triton_on_cpu_says_why_it_cannot_run():
    with pytest.raises(RuntimeError, match="impl='triton' cannot run here: "):
        call(impl="triton")


def test_one_component_may_be_given_as_a_string():
    torch.testing.assert_close(call(components="time"), call(components=["time"]))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_rate_zero_is_exactly_no_dropout(impl):
    torch.testing.assert_close(call(impl=impl, dropout=0.0), call(impl=impl), atol=1e-12, rtol=0)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_dropout_follows_its_generator(impl):
    def drop(seed: int, which: str) -> Tensor:
        return call(impl=which, dropout=0.5, generator=torch.Generator().manual_seed(seed))

    torch.testing.assert_close(drop(3, impl), drop(3, "reference"))  # the masks do not depend on the implementation
    assert not torch.allclose(drop(3, impl), drop(4, impl))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_dropout_keeps_the_expectation(impl):
    samples, rate = 20_000, 0.3
    inputs = Case((3, 2), batch=1, kv_heads=1, head_dim=2).inputs()
    whole = mvpa_attention(*inputs, impl=impl)
    repeated = [tensor.detach().expand(samples, *tensor.shape[1:]) for tensor in inputs[:3]]
    dropped = mvpa_attention(
        *repeated, *inputs[3:], impl=impl, dropout=rate, generator=torch.Generator().manual_seed(0)
    )
    standard_error = dropped.std(0) / samples**0.5
    assert ((dropped.mean(0) - whole[0]).abs() < 5 * standard_error).all()


def test_dropout_takes_whole_segments_and_channels_without_renormalisation():
    keep_segment = torch.tensor([[True, False, True, True]] * B)
    keep_channel = torch.tensor([[True, True, False]] * B)
    value = Case().inputs()[2].detach()
    kept = value * keep_segment[:, :, None, None, None] * keep_channel[:, None, :, None, None]
    dropped = call(value=value, dropout=0.2, dropout_masks=(keep_segment, keep_channel))
    torch.testing.assert_close(dropped, call(value=kept) / 0.8)


def test_auto_gives_what_the_named_implementations_give():
    torch.testing.assert_close(call(impl="auto"), call(impl="reference"))
    large = Case((40, 25), batch=1, kv_heads=1, window=3)
    torch.testing.assert_close(large.evaluate("auto"), large.evaluate("reference"))


@pytest.mark.parametrize(("shape", "expected"), [((2, 3), []), ((25, 16), ["separable"])], ids=["small", "large"])
def test_auto_avoids_the_reference_at_large_sizes(shape, expected, monkeypatch):
    called = []

    def record(problem: Problem) -> tuple[Tensor, Tensor]:
        called.append("separable")
        return problem.query, problem.query[..., 0]

    monkeypatch.setattr(separable, "separable_attention", record)
    mvpa_attention(*Case(shape).inputs())
    assert called == expected


class Attend(nn.Module):
    """A query attends with itself as key and value."""

    def forward(self, query: Tensor) -> Tensor:
        rows, bias = query.new_zeros(25, *query.shape[3:]), query.new_zeros(query.shape[3:])
        return mvpa_attention(query, query, query, rows, rows, bias, bias, bias)


def test_auto_is_exported_for_batches_of_any_size():
    example = torch.randn(2, 25, 16, 2, 4)  # large enough for the separable path
    exported = torch.export.export(Attend(), (example,), dynamic_shapes=({0: torch.export.Dim("samples")},)).module()
    for query in (example, torch.randn(5, 25, 16, 2, 4)):
        torch.testing.assert_close(exported(query), Attend()(query))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_auto_takes_tensors_without_memory_of_any_size(dtype):
    query = torch.empty(64, 25, 16, 16, 64, device="meta", dtype=dtype)
    assert Attend()(query).shape == query.shape


def test_transforms_of_functions_where_a_term_is_off():
    inputs = [tensor.detach() for tensor in Case(batch=3).inputs()]

    def of_sample(query: Tensor) -> Tensor:
        others = (tensor[:1] for tensor in inputs[1:3])
        return mvpa_attention(query[None], *others, *inputs[3:], components=("time",)).square().sum()

    by_sample = torch.func.vmap(torch.func.grad(of_sample))(inputs[0])
    one_by_one = torch.stack([torch.func.grad(of_sample)(query) for query in inputs[0]])
    torch.testing.assert_close(by_sample, one_by_one)


def test_forward_mode_where_a_term_is_off():
    inputs = [tensor.detach() for tensor in Case().inputs()]
    directions = [torch.randn_like(tensor) for tensor in inputs]

    def attend(*tensors: Tensor) -> Tensor:
        return mvpa_attention(*tensors, components=("content", "channel"), window=1)

    output, tangent = torch.func.jvp(attend, tuple(inputs), tuple(directions))
    step = 1e-6
    after, before = (
        attend(*(tensor + sign * step * direction for tensor, direction in zip(inputs, directions, strict=True)))
        for sign in (1, -1)
    )
    torch.testing.assert_close(output, attend(*inputs))
    torch.testing.assert_close(tangent, (after - before) / (2 * step), atol=1e-7, rtol=1e-7)


def test_a_term_that_is_off_compiles_into_one_graph_and_has_zero_gradients():
    torch._dynamo.reset()
    inputs = Case().inputs(torch.float32)
    attend = functools.partial(mvpa_attention, components=("content", "channel"))
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(call(*inputs).square().sum(), inputs) for call in (compiled, attend)]
    torch.testing.assert_close(*found)
    assert (found[0][3] == 0).all()


LARGE = Case((16, 17), batch=1)  # "auto" takes the separable path


@pytest.mark.parametrize("transform", ["jvp", "dual", "vjp", "vmap"])
def test_transforms_take_the_reference_at_large_sizes(transform):
    query, *others = (tensor.detach() for tensor in LARGE.inputs())
    mask = torch.rand(1, 17) > 0.2

    def transformed(impl: str) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return mvpa_attention(x, *others, impl=impl, channel_mask=mask)

        if transform == "jvp":
            return torch.func.jvp(attend, (query,), (query,))[1]
        if transform == "vjp":
            return torch.func.vjp(attend, query)[1](query)[0]
        if transform == "vmap":
            return torch.vmap(attend)(torch.stack([query, -query]))
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(attend(forward_ad.make_dual(query, query))).tangent

    torch.testing.assert_close(transformed("auto"), transformed("reference"))
    torch._dynamo.reset()
    compiled = torch.compile(lambda: transformed("auto"), backend="eager")
    torch.testing.assert_close(compiled(), transformed("reference"))
    with pytest.raises(RuntimeError, match=r"impl='separable' cannot run here: torch.func.* need impl='reference'"):
        transformed("separable")


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_its_precision_whatever_the_implementation(dtype, impl):
    """Queries and keys may be in float32 even so, after a normalisation for example."""
    inputs = Case().inputs(torch.float32)
    with torch.autocast("cpu", dtype):
        output, lse = mvpa_attention(*inputs, impl=impl, return_lse=True)
    assert (output.dtype, lse.dtype) == (dtype, torch.float32)
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(output.float().sum(), inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_few_pairs_in_16_bits_are_as_exact_as_many(dtype):
    """A sample alone had six times the error that it had in a batch."""
    inputs = [10.0 * x for x in Case().inputs(torch.float64)]
    rounded = [x.to(dtype) for x in inputs]
    exact = mvpa_attention(*(x.double() for x in rounded))
    # What is left is the rounding of the output.
    torch.testing.assert_close(mvpa_attention(*rounded).double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-3)


def test_low_precision_stays_low_precision():
    inputs = Case().inputs(torch.bfloat16)
    inputs[3:] = Case().inputs(torch.float32)[3:]
    for impl in IMPLEMENTATIONS:
        assert mvpa_attention(*inputs, impl=impl).dtype == torch.bfloat16
