"""Errors of FlashMVPA at full sizes against float64, over those that a standard makes in the same precision."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch
from harness.attention.peers import Case
from torch import Tensor

from mvpa_ts import mvpa_attention

# Error over that of the standard. In 16 bits the standard is attention with logits in float32 (`float32_logits`). In
# float32 the standard is the reference; the log-sum-exp, from which the backward pass starts, costs one more rounding.
LIMITS = {"bfloat16": 1.5, "float16": 1.5, "float32": 4.0}
# Both errors are taken over so many draws of the inputs. The gradient of a bias is few numbers, so the ratio of one
# draw is a matter of luck (experiments/results/attention/attention_precision.md).
DRAWS = 4
# All block sizes that a kernel may choose from are checked; they are at most this many.
MOST_CANDIDATES = 3
# One for each layout of the kernels: one tile of channels, half of one, several, few channels; narrow and wide heads.
FULL_SIZES = (
    Case(50, 50, batch=2, heads=2, kv_heads=1),
    Case(50, 7, batch=2, heads=2, kv_heads=1, window=3),
    Case(50, 25, batch=1, heads=2, kv_heads=1),
    Case(100, 88, batch=1, heads=2, kv_heads=2, dense_last_segment=False),
    Case(100, 32, batch=1, heads=4, kv_heads=2, head_dim=128),
    Case(100, 88, batch=1, heads=1, kv_heads=1, head_dim=128, dense_last_segment=False),
)
VARIANTS = ("plain", "channels masked, dropout", "tokens masked")


class Configuration(NamedTuple):
    """What is checked at one time."""

    case: Case
    variant: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.case}, {self.variant}, {name_of(self.dtype)}"


def name_of(dtype: torch.dtype) -> str:
    """The precision without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def configurations(cases: Sequence[Case], dtypes: Sequence[torch.dtype]) -> list[Configuration]:
    """All cases in the first precision, which is the one that is timed; the first two also in the others."""
    some = {dtype: cases if dtype == dtypes[0] else cases[:2] for dtype in dtypes}
    return [Configuration(case, name, dtype) for dtype in dtypes for case in some[dtype] for name in VARIANTS]


def options(configuration: Configuration, device: torch.device) -> dict[str, Any]:
    """Keyword arguments of the attention."""
    case = configuration.case
    generator = torch.Generator().manual_seed(3)

    def draw(probability: float, *shape: int) -> Tensor:
        return (torch.rand(case.batch, *shape, generator=generator) < probability).to(device)

    T, C = case.segments, case.channels
    token_mask, channel_mask, keep = draw(0.9, T, C), draw(0.8, C), (draw(0.8, T), draw(0.8, C))
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "channels masked, dropout": {"channel_mask": channel_mask, "dropout": 0.3, "dropout_masks": keep},
        "tokens masked": {"token_mask": token_mask},
    }
    shared = {"window": case.window, "dense_last_segment": case.dense_last_segment}
    return shared | variants[configuration.variant]


def check(checked: Sequence[Configuration], device: torch.device, impl: str) -> dict[str, Any]:
    """Errors (root mean square) of output and gradients, by configuration; or why there are none."""
    found: dict[str, Any] = {}
    for configuration in checked:
        case, _, dtype = configuration
        try:
            ratios = error_ratios(case, impl, device, dtype, options(configuration, device))
        except Exception as error:  # one precision or layout that cannot run must not keep the others from it
            failed = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            found[str(configuration)] = {"precision": name_of(dtype), "passes": False, "ratios": {}, "failed": failed}
            print(f"{configuration}: {failed}", flush=True)
            continue
        worst = max(ratios.values())
        found[str(configuration)] = {
            "precision": name_of(dtype),
            "passes": not beyond_limits(ratios, dtype),
            "ratios": {tensor: round(ratio, 3) for tensor, ratio in ratios.items()},
        }
        print(f"{configuration}: error {worst:.2f}× that of the standard", flush=True)
    return found


def beyond_limits(ratios: dict[str, float], dtype: torch.dtype) -> list[str]:
    """Names of the results whose error is larger than it may be."""
    return [name for name, ratio in ratios.items() if not ratio <= LIMITS[name_of(dtype)]]


def error_ratios(
    case: Case, impl: str, device: torch.device, dtype: torch.dtype, options: dict[str, Any]
) -> dict[str, float]:
    """For the output and every gradient: error over the error of the standard, the worst of all block sizes."""
    draws = [squared_errors(case, impl, device, dtype, options, seed) for seed in range(DRAWS)]
    allowed, found = (torch.stack(errors).sum(0) for errors in zip(*draws, strict=True))
    ratios = (found / allowed).sqrt().nan_to_num(nan=math.inf).amax(0)
    return dict(zip(("output", *case.shapes), ratios.tolist(), strict=True))


def squared_errors(
    case: Case, impl: str, device: torch.device, dtype: torch.dtype, options: dict[str, Any], seed: int
) -> tuple[Tensor, Tensor]:
    """Mean squares of the errors of output and gradients: the standard's [9], and the kernels' by block size [., 9]."""
    exact = evaluate(case, "reference", device, dtype, torch.float64, options, seed)
    with float32_logits(dtype) if dtype.itemsize == 2 else nullcontext():
        standard = evaluate(case, "reference", device, dtype, torch.float32, options, seed)

    def squares(actual: list[Tensor]) -> Tensor:
        return torch.stack([(got - true).square().mean().cpu() for got, true in zip(actual, exact, strict=True)])

    # What rounding the exact result costs, should the standard happen to be exact.
    rounding = torch.stack([true.square().mean().cpu() for true in exact]) * (torch.finfo(dtype).eps / 4) ** 2
    allowed = torch.maximum(squares([given.to(dtype).double() for given in standard]), rounding)
    found = []
    for position in range(MOST_CANDIDATES if impl == "triton" else 1):
        with blocks_at(position if impl == "triton" else None):
            found.append(squares(evaluate(case, impl, device, dtype, dtype, options, seed)))
    return allowed, torch.stack(found)


def evaluate(
    case: Case,
    impl: str,
    device: torch.device,
    given: torch.dtype,
    computed: torch.dtype,
    options: dict[str, Any],
    seed: int = 0,
) -> list[Tensor]:
    """Output and gradients in float64; all precisions start from the same numbers, those of the given one."""
    inputs = [x.detach().to(computed).requires_grad_() for x in case.inputs(device, given, seed).values()]
    output = mvpa_attention(*inputs, impl=impl, **options)  # type: ignore[arg-type]
    generator = torch.Generator(device).manual_seed(1)
    cotangent = torch.randn(output.shape, generator=generator, device=device, dtype=torch.float32)
    gradients = torch.autograd.grad(output, inputs, cotangent.to(given).to(computed))
    return [output.detach().double(), *(gradient.double() for gradient in gradients)]


class _RoundedBetween(torch.autograd.Function):
    """Softmax in float32, its weights and the gradient of its logits rounded: what kernels multiply in 16 bits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, dtype: torch.dtype) -> Tensor:
        weights = torch.softmax(logits, -1)
        ctx.save_for_backward(weights)
        ctx.dtype = dtype
        return weights.to(dtype).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        gradient = weights * (gradient - (weights * gradient).sum(-1, keepdim=True))
        return gradient.to(ctx.dtype).to(gradient.dtype), None


@contextmanager
def float32_logits(dtype: torch.dtype) -> Iterator[None]:
    """Let the reference, in float32, round weights and gradients of logits to `dtype`: the bar for 16 bits."""
    softmax = mock.patch.object(Tensor, "softmax", lambda logits, _dim: _RoundedBetween.apply(logits, dtype))
    with softmax:
        yield


@contextmanager
def blocks_at(position: int | None) -> Iterator[None]:
    """Kernels take their candidate at this position, or their last, instead of the fastest one; None changes nothing.

    All but the first take the samples one at a time, so that a cut batch is checked as well.
    """
    if position is None:
        yield
        return
    from mvpa_ts.attention.triton import batch, launch

    def take(_kernel: Any, candidates: Sequence[launch.Blocks], *_: Any) -> launch.Blocks:
        return candidates[min(position, len(candidates) - 1)]

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(launch, "fastest", take))
        if position:
            stack.enter_context(mock.patch.object(batch, "_PROGRAMS", 1))
        yield


def compile_ahead(checked: Sequence[Configuration], device: torch.device) -> None:
    """Compile what `check` needs in several processes: one alone takes seconds for each of a hundred kernels.

    The compiled kernels are in Triton's cache on disk then. What fails here fails again, and is told, in `check`.
    """
    jobs = [(configuration, device, position) for position in range(MOST_CANDIDATES) for configuration in checked]
    workers = min(8, (os.cpu_count() or 1) // 2)
    if workers < 2:
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        failures = sum(pool.map(_compile, jobs))
    if failures:
        print(f"{failures} of {len(jobs)} calls failed while kernels were compiled ahead", flush=True)


def _compile(job: tuple[Configuration, torch.device, int]) -> bool:
    configuration, device, position = job
    try:
        with blocks_at(position):
            dtype = configuration.dtype
            evaluate(configuration.case, "triton", device, dtype, dtype, options(configuration, device))
    except Exception:  # of any kind: the check makes the same call later and reports its error
        return True
    return False
