"""The kernels under Triton's interpreter, on CPU tensors. `test_interpreter.py` runs this file in its own process.

Every buffer that a kernel must fill starts as NaN, and `races` watches each launch. Blocks are small, so that small
problems have several of them.
"""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from einops import rearrange
from harness.attention import accuracy
from harness.attention.accuracy import LIMITS, beyond_limits, error_ratios
from harness.attention.peers import Case as Size
from support.attention_checks import (
    COMPONENT_SUBSETS,
    INPUTS,
    Case,
    assert_as_accurate_as_reference,
    assert_equals_reference,
    assert_masked_nan_reaches_nothing,
    assert_zeros_without_a_key,
    covering_cases,
)
from support.races import Watch, watch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from mvpa_ts import MVPAttention, mvpa_attention
from mvpa_ts.attention import choice
from mvpa_ts.attention.triton import batch, launch, launch_scores, operator

FACTORS = {
    "shape": ((1, 1), (7, 1), (1, 5), (11, 3), (2, 18), (5, 17)),
    "window": (None, 0, 3),
    "groups": (1, 2),
    "causal": (True, False),
    "dense_last_segment": (False, True),
    "masks": ("none", "channel", "segment", "all"),
    "dropout": (0.0, 0.4),
    "components": COMPONENT_SUBSETS[-1:] + COMPONENT_SUBSETS[:-1:3],
    "channel_distance": ("absolute", "signed"),
    "head_dim": (16, 20),
}
CASES = covering_cases(FACTORS, kv_heads=1, batch=1)
FULL = {
    **FACTORS,
    "shape": ((1, 1), (13, 3), (9, 7), (7, 17), (4, 33)),
    "window": (None, 0, 2, 10),
    "groups": (1, 2, 4),
    "masks": ("none", "channel", "segment", "token", "all"),
    "components": COMPONENT_SUBSETS,
    "head_dim": (3, 16, 32, 72),
}


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return watch(monkeypatch)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(shape: torch.Size, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(shape, float("nan") if dtype.is_floating_point else 99, dtype=dtype, device=device)

    monkeypatch.setattr(launch, "allocate", allocate)
    cut(monkeypatch, 16, 16, 2)


def cut(monkeypatch: pytest.MonkeyPatch, query_tokens: int, keys: int, tiles: int) -> None:
    blocks = launch.Blocks(query_tokens, keys, num_warps=4, tiles=tiles)
    monkeypatch.setattr(launch, "choose_blocks", lambda *_: (blocks,))


def assert_exact(case: Case) -> None:
    """Float32 against float64. Softmaxes over few keys have gradients near zero, so the error has a floor."""
    assert_equals_reference(case, "triton", torch.float32, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case):
    assert_exact(case)


@pytest.mark.parametrize(
    "case",
    [
        Case((5, 3), window=1, kv_heads=1, batch=2, head_dim=16, masks="channel"),
        Case((3, 18), groups=2, kv_heads=1, batch=1, head_dim=16, causal=False),
    ],
    ids=str,
)
def test_log_sum_exp_and_its_gradients(case):
    def evaluate(impl: str, dtype: torch.dtype) -> list[Tensor]:
        inputs = case.inputs(dtype)
        output, lse = mvpa_attention(*inputs, impl=impl, return_lse=True, **case.options())
        alone = lse[lse.isfinite()].sin().sum()
        both = alone + output.square().sum()
        return [lse, *torch.autograd.grad(both, inputs, retain_graph=True), *torch.autograd.grad(alone, inputs[:2])]

    for actual, expected in zip(evaluate("triton", torch.float32), evaluate("reference", torch.float64), strict=True):
        torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)


@triton.jit
def careless_kernel(p_numbers, STEP: tl.constexpr, BARRIER: tl.constexpr, NUMBERS: tl.constexpr):
    p_own = p_numbers + tl.program_id(0) * STEP + tl.arange(0, NUMBERS)
    tl.store(p_own, tl.arange(0, NUMBERS))
    if BARRIER:
        tl.debug_barrier()
    tl.store(p_own, tl.load(p_own) + 1)


@pytest.mark.parametrize(
    ("programs", "step", "barrier", "message"),
    [
        (2, 4, True, None),
        (2, 2, True, "two programs write one number"),
        (2, 4, False, "reads again what it wrote, with no barrier between"),
        (3, 4, True, "writes what is in no tensor"),
    ],
)
def test_careless_kernels_are_found(programs, step, barrier, message, watched):
    def run() -> None:
        careless_kernel[(programs,)](p_numbers=torch.zeros(8), STEP=step, BARRIER=barrier, NUMBERS=4)

    if message is None:
        run()
        assert watched.launches == 1
        return
    with pytest.raises((AssertionError, triton.runtime.errors.InterpreterError), match=message):
        run()


@triton.jit
def repeating_kernel(p_number, p_values, NUMBERS: tl.constexpr):
    """Stores several values in one number."""
    o_value = tl.arange(0, NUMBERS)
    tl.store(p_number + 0 * o_value, tl.load(p_values + o_value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_two_values_for_one_number_are_found_unless_rounding_tells_them_apart(dtype, watched):
    values = torch.tensor([100, 100, 100, 100], dtype=dtype)
    number = torch.zeros(1, dtype=dtype)
    if dtype.is_floating_point:
        values[1] += 100 * torch.finfo(dtype).eps
    repeating_kernel[(1,)](p_number=number, p_values=values, NUMBERS=4)
    assert watched.launches == 1
    values[2] = 110
    with pytest.raises((AssertionError, triton.runtime.errors.InterpreterError), match="two values for one number"):
        repeating_kernel[(1,)](p_number=number, p_values=values, NUMBERS=4)


@pytest.mark.slow
@pytest.mark.parametrize("case", covering_cases(FULL, kv_heads=2, batch=2), ids=str)
def test_output_and_gradients_of_more_cases(case):
    assert_exact(case)


@pytest.mark.parametrize(
    ("query_tokens", "keys", "tiles"), [(32, 64, 1), pytest.param(64, 16, 4, marks=pytest.mark.slow)]
)
def test_other_blocks(query_tokens, keys, tiles, monkeypatch):
    cut(monkeypatch, query_tokens, keys, tiles)
    assert_exact(Case((5, 17), window=1, kv_heads=1, batch=1, head_dim=16))
    assert_exact(Case((18, 4), window=2, kv_heads=1, batch=1, head_dim=16, causal=False))


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        # The weights of the backward pass start from rounded numbers, the log-sum-exp and the output: over twelve
        # draws the gradients' errors were 1.1 to 1.4 times those of the reference.
        pytest.param(torch.float32, 1.5, marks=pytest.mark.slow),  # in small: the covering cases
        (torch.float16, 1.0),
        pytest.param(torch.bfloat16, 1.0, marks=pytest.mark.slow),  # in small: under autocast
    ],
    ids=str,
)
def test_error_in_each_precision(dtype, factor, monkeypatch):
    cut(monkeypatch, 32, 32, 2)
    # The gradient of the time bias is a sum over few lags: with one head of keys its error is a matter of luck.
    case = Case((6, 17), window=1, groups=2, batch=1, kv_heads=2, head_dim=32)
    exact, reference, actual = (
        case.evaluate(*which) for which in (("reference",), ("reference", dtype), ("triton", dtype))
    )
    for name in exact:
        # With a factor, the reference counts as that much further from the exact result.
        standard = (exact[name] + (reference[name].double() - exact[name]) * factor).to(dtype)
        assert_as_accurate_as_reference(actual[name], standard, exact[name], name)


@pytest.mark.slow  # half a minute; in small: test_error_in_each_precision
def test_error_is_near_that_of_logits_in_float32(monkeypatch):
    """In float16, which the interpreter rounds as the hardware does; the reference rounds its logits and fails."""
    cut(monkeypatch, 32, 32, 2)
    monkeypatch.setattr(accuracy, "MOST_CANDIDATES", 1)
    case = Size(9, 19, batch=1, heads=2, kv_heads=2, head_dim=32, window=2, dense_last_segment=False)
    options = {"window": 2}
    ratios = error_ratios(case, "triton", torch.device("cpu"), torch.float16, options)
    assert beyond_limits(ratios, torch.float16) == []
    ratios = error_ratios(case, "reference", torch.device("cpu"), torch.float16, options)
    assert min(ratios["output"], ratios["value"]) > 2 * LIMITS["float16"]


@pytest.mark.parametrize("masks", ["segment", "all"])
def test_nan_in_masked_tokens_reaches_nothing(masks):
    case = Case((7, 4), window=1, masks=masks, batch=1, kv_heads=1, head_dim=16)
    assert_masked_nan_reaches_nothing(case, "triton", torch.float32, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "name", "components"),
    [((34, 1), "time_key", ("content", "time", "channel")), ((2, 17), "channel_key", ("channel",))],
)
def test_nan_in_a_table_is_not_hidden(shape, name, components):
    """The last row of a table is used for far pairs alone. A GPU's minimum of NaN and a number is the number."""
    case = Case(shape, window=1, kv_heads=1, batch=1, head_dim=16, components=components)
    inputs = [x.detach() for x in case.inputs(torch.float32)]
    inputs[INPUTS.index(name)][max(shape) - 1] = float("nan")
    outputs = [mvpa_attention(*inputs, impl=impl, **case.options()) for impl in ("triton", "reference")]
    assert outputs[1].isnan().any()
    assert torch.equal(*(output.isnan() for output in outputs))


def test_a_window_of_any_size_is_all_segments():
    case = Case((4, 3), batch=1, kv_heads=1, head_dim=16)
    inputs = case.inputs(torch.float32)
    expected, *outputs = (
        mvpa_attention(*inputs, impl="triton", window=window) for window in (None, 4, 2**31 - 1, 2**63 - 1)
    )
    for output in outputs:
        torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)


def test_kernels_start_on_the_device_of_the_query(monkeypatch):
    """It need not be the current one, where Triton starts them."""
    devices: list[torch.device] = []
    current: list[bool] = []
    allocate = launch.allocate

    @contextmanager
    def device_of(tensor: Tensor) -> Iterator[None]:
        devices.append(tensor.device)
        yield
        devices.pop()

    def watched_allocate(*arguments: torch.Size, **named: object) -> Tensor:
        current.append(devices == [named["device"]])
        return allocate(*arguments, **named)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(launch, "allocate", watched_allocate)
    inputs = Case((3, 2), batch=1, kv_heads=1, head_dim=16).inputs(torch.float32)
    mvpa_attention(*inputs, impl="triton").sum().backward()
    assert current
    assert all(current)


def test_queries_without_a_key_give_zeros():
    assert_zeros_without_a_key(Case((5, 3), kv_heads=1, head_dim=16), "triton", torch.float32)


@pytest.mark.parametrize("masks", ["none", "token"])
def test_large_logits_neither_overflow_nor_vanish(masks):
    """A padding token may hold the largest score by far; the others must still get their weight."""
    case = Case((7, 6), window=1, masks=masks, batch=1, kv_heads=1, head_dim=16)
    inputs = [tensor.detach().mul(100.0).requires_grad_() for tensor in case.inputs()]
    expected = mvpa_attention(*inputs, impl="reference", **case.options())
    singles = [tensor.detach().float().requires_grad_() for tensor in inputs]
    actual = mvpa_attention(*singles, impl="triton", **case.options())
    # Logits are of order 10⁵ here, so float32 leaves their differences an error of 10⁻².
    torch.testing.assert_close(actual.double(), expected, atol=2.0, rtol=0.02)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(actual.sum(), singles))


@pytest.mark.parametrize(
    ("programs", "parts", "components"),
    [
        (1, 5, ("content", "time", "channel")),
        (4, 2, ("time",)),
        *(
            pytest.param(programs, parts, components, marks=pytest.mark.slow)
            for programs, parts in ((1, 5), (4, 2))
            for components in (("content", "time", "channel"), ("time",), ("channel",), ())
        ),
    ],
)
def test_parts_of_the_batch_give_what_the_whole_gives(programs, parts, components, monkeypatch):
    """Each sample has its own masks, and tables collect the gradients of all."""
    monkeypatch.setattr(batch, "_PROGRAMS", programs)  # a sample has one program for each of its two heads
    case = Case((4, 3), window=1, groups=2, kv_heads=1, batch=5, head_dim=16, masks="all", components=components)
    assert len(list(batch.parts(case.inputs()[0]))) == parts
    assert_exact(case)


@pytest.mark.parametrize("of_torch", [False, True], ids=["one_program", "torch"])
def test_gradients_of_scores_are_added_up_by_one_program_or_by_torch(of_torch, monkeypatch):
    """Elsewhere each program takes one block of rows."""
    monkeypatch.setattr(launch_scores, "_SHARES", 1)
    if of_torch:
        monkeypatch.setattr(launch, "sums_fit", lambda *_: False)
    assert_exact(Case((5, 17), window=1, kv_heads=1, batch=1, head_dim=16))
    assert_exact(Case((11, 3), window=1, kv_heads=1, batch=2, head_dim=16, causal=False))


@pytest.mark.parametrize("causal", [True, False])
def test_scores_are_products_of_queries_with_tables(causal):
    """Several tiles of rows, and channels that fill no tile; lags that a query does not have are left unwritten."""
    B, T, C, H, d, P = 2, 11, 9, 2, 20, 16
    R = T if causal else 2 * T - 1
    shapes = (B, T, C, H, d), (H, R, d), (H, R, 1), (C * H, d, P), (C * H, 1, P)
    generator = torch.Generator().manual_seed(0)
    query, *tables = (torch.randn(shape, generator=generator) for shape in shapes)
    time, channel = launch_scores.scores(query, launch_scores.Tables(*tables))
    table, offset, channel_table, channel_offset = (tensor.double() for tensor in tables)
    expected = torch.einsum("btchd,hrd->hrbtc", query.double(), table) + offset[..., None, None]
    if causal:
        exists = (torch.arange(R)[:, None] <= torch.arange(T))[:, None, :, None]
        expected = expected.where(exists, float("nan"))
    torch.testing.assert_close(time.double(), expected.flatten(2), atol=1e-5, rtol=1e-5, equal_nan=True)
    rows = rearrange(query.double(), "b t c h d -> (c h) (b t) d")
    torch.testing.assert_close(channel.double(), rows @ channel_table + channel_offset, atol=1e-5, rtol=1e-5)


def test_parts_cover_the_batch_and_fill_a_gpu():
    for B, T, C, H in ((64, 50, 50, 12), (64, 100, 100, 12), (64, 10, 10, 12), (3, 100, 88, 16), (1, 1, 1, 1)):
        query = torch.empty(B, T, C, H, 64, device="meta")
        sizes = [len(range(B)[part]) for part in batch.parts(query)]
        assert sum(sizes) == B
        assert len(sizes) == 1 or sizes[0] * -(-T * C // 128) * H >= batch._PROGRAMS
        assert len(sizes) == 1 or B // len(sizes) < 2 * sizes[0]


@pytest.fixture
def operator_arguments() -> tuple[list[Tensor], tuple[Tensor, bool, int, bool]]:
    """The first eight inputs of the operator, and the others."""
    case = Case((3, 2), window=1, masks="token", batch=1, kv_heads=1, head_dim=16)
    query, key, value, time_key, channel_key, u, v, w = case.inputs(torch.float32)
    tables = (
        *operator._time_table(query, time_key, v, True),
        *operator._channel_table(query, channel_key[torch.tensor([[0, 1], [1, 0]])], w),
    )
    tensors = [query, key, value, u, *(x.detach().requires_grad_() for x in tables)]
    return tensors, (case.real(), True, 1, False)


def test_operators_are_registered_correctly(operator_arguments):
    tensors, others = operator_arguments
    torch.library.opcheck(operator.flash_attention, (*tensors, *others))
    tensors = [tensor.detach() for tensor in tensors]
    results = operator.flash_attention(*tensors, *others)
    real, *switches = others
    arguments = (torch.ones_like(results[0]), *tensors, real, *results, torch.ones_like(results[1]), *switches)
    torch.library.opcheck(operator.flash_attention_backward, arguments)


def test_a_second_derivative_is_refused_and_says_what_to_use():
    inputs = Case((3, 2), batch=1, kv_heads=1, head_dim=16).inputs(torch.float32)
    gradients = torch.autograd.grad(
        mvpa_attention(*inputs, impl="triton").square().sum(), inputs, create_graph=True, retain_graph=True
    )
    with pytest.raises(RuntimeError, match=r"impl='triton' has no second derivative.*use impl='reference'"):
        gradients[1].sum().backward()


def test_forward_mode_is_refused():
    """Torch would give a tangent of zero."""
    inputs = [x.detach() for x in Case((2, 2), batch=1, kv_heads=1, head_dim=16).inputs(torch.float32)]
    with pytest.raises(RuntimeError, match=r"impl='triton' cannot run here: torch.func.* need impl='reference'"):
        torch.func.jvp(lambda query: mvpa_attention(query, *inputs[1:], impl="triton"), (inputs[0],), (inputs[0],))


def test_the_backward_pass_may_run_twice():
    inputs = Case((3, 2), window=0, batch=1, kv_heads=1, head_dim=16).inputs(torch.float32)
    loss = mvpa_attention(*inputs, impl="triton", window=0).square().sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, inputs), first, atol=0, rtol=0)


def test_compiled_without_a_graph_break():
    inputs = Case((3, 2), window=1, batch=1, kv_heads=1, head_dim=16).inputs(torch.float32)

    def attend() -> Tensor:
        return mvpa_attention(*inputs, impl="triton", window=1)

    torch.testing.assert_close(torch.compile(attend, backend="eager", fullgraph=True)(), attend())


@pytest.mark.slow  # three runs of both passes under the interpreter
def test_compiled_backward_and_checkpointed():
    case = Case((4, 3), window=1, masks="channel", groups=2, batch=1, kv_heads=1, head_dim=16)
    inputs, options = case.inputs(torch.float32), case.options()

    def attend(*tensors: Tensor) -> Tensor:
        return mvpa_attention(*tensors, impl="triton", **options)

    expected = attend(*inputs)
    outputs = {
        "compiled": torch.compile(attend, backend="aot_eager", fullgraph=True)(*inputs),
        "checkpointed": checkpoint(attend, *inputs, use_reentrant=False),
    }
    gradients = torch.autograd.grad(expected.square().sum(), inputs)
    for output in outputs.values():
        torch.testing.assert_close(output, expected)
        actual = torch.autograd.grad(output.square().sum(), inputs)
        torch.testing.assert_close(actual, gradients)


@pytest.mark.slow
def test_a_copied_module_compiles_once_more_for_shapes_that_change():
    """One sample has two programs here: the interpreter is slow."""
    generator = torch.Generator().manual_seed(0)
    time_codebook, channel_codebook = torch.randn(2, 8, 32, generator=generator)
    modules = [MVPAttention(32, 2, 1, window=1, impl=impl) for impl in ("triton", "reference")]
    modules[1].load_state_dict(modules[0].state_dict())
    attention = pickle.loads(pickle.dumps(copy.deepcopy(modules[0])))
    counter = CompileCounterWithBackend("eager")  # the next step, "aot_eager", is in the test above
    compiled = torch.compile(attention, backend=counter, fullgraph=True)
    for B, T, C in ((2, 3, 4), (3, 2, 5)):
        x = torch.randn(B, T, C, 32, generator=generator).requires_grad_()
        outputs = [module(x, time_codebook, channel_codebook) for module in (compiled, modules[1])]
        torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in outputs), atol=1e-5, rtol=1e-4)
    assert counter.frame_count <= 2


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's kernels are compared with the reference before their first use, as on a GPU."""
    monkeypatch.setattr(choice, "_CHECKED_ON", ("cpu",))
    monkeypatch.setattr(choice, "_checked", set())
    cut(monkeypatch, 64, 32, 2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_right_kernels_pass_the_check_of_the_first_call(dtype):
    inputs = Case((2, 2), batch=1, kv_heads=1, head_dim=16).inputs(dtype)
    for _ in range(2):
        mvpa_attention(*inputs, impl="triton")
    assert choice._checked == {(torch.device("cpu"), dtype)}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kernel", "result", "name", "compiled"),
    [
        ("forward_kernel", "p_output", "the output", False),
        ("key_gradient_kernel", "p_key_gradient", "the gradient of key", True),
    ],
)
def test_a_wrong_kernel_is_found_by_the_first_call(kernel, result, name, compiled, monkeypatch):
    right = getattr(launch, kernel)

    class Wrong:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def start(**arguments: Any) -> None:
                right[grid](**arguments)
                arguments[result].mul_(1.05)

            return start

    monkeypatch.setattr(launch, kernel, Wrong())
    inputs = Case((2, 2), batch=1, kv_heads=1, head_dim=16).inputs(torch.float32)

    def attend(*tensors: Tensor) -> Tensor:
        return mvpa_attention(*tensors, impl="triton")

    with pytest.raises(RuntimeError, match=f"impl='triton' is wrong on cpu .* {name} is .* from the exact one"):
        (torch.compile(attend, backend="eager", fullgraph=True) if compiled else attend)(*inputs)
    assert choice._checked == set()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 4e-2)], ids=str)
def test_autocast_computes_in_low_precision_and_returns_full_gradients(dtype, tolerance):
    case = Case((4, 3), window=1, batch=1, kv_heads=1, head_dim=16)
    inputs = case.inputs(torch.float32)
    with torch.autocast("cpu", dtype):
        output = mvpa_attention(*inputs, impl="triton", window=1)
    assert output.dtype == dtype
    exact = case.evaluate("reference")["output"]
    torch.testing.assert_close(output.double(), exact, atol=tolerance, rtol=tolerance)
    gradients = torch.autograd.grad(output.float().sum(), inputs)
    assert all(gradient.dtype == torch.float32 for gradient in gradients)


def test_inputs_need_not_be_contiguous_and_some_gradients_suffice():
    case = Case((5, 4), window=1, batch=1, kv_heads=1, head_dim=16)
    expected = case.evaluate("reference")
    for name in ("value", "content_bias", "time_key"):
        inputs = [
            x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_(name == other)
            for x, other in zip(case.inputs(torch.float32), INPUTS, strict=True)
        ]
        output = mvpa_attention(*inputs, impl="triton", window=1)
        generator = torch.Generator().manual_seed(2)
        cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64).float()
        (gradient,) = torch.autograd.grad(output, inputs[INPUTS.index(name)], cotangent)
        torch.testing.assert_close(gradient.double(), expected[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float64}, "it takes .*float32, got torch.float64"),
        ({"head_dim": 129}, "it takes heads up to 128 wide, got 129"),
    ],
    ids=str,
)
def test_what_the_kernels_do_not_take_is_refused(changes, message):
    options = {"head_dim": 16, "dtype": torch.float32} | changes
    inputs = Case((2, 2), head_dim=options["head_dim"]).inputs(options["dtype"])
    with pytest.raises(RuntimeError, match=f"impl='triton' cannot run here: {message}"):
        mvpa_attention(*inputs, impl="triton")
