"""Errors of FlashMVPA at full sizes against float64, over those that a standard makes in the same precision."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
# draw is a matter of luck: over five draws in float16 it went from 0.4 to 2.1.
DRAWS = 4
# All block sizes that a kernel may choose from are checked; they are at most this many.
MOST_CANDIDATES = 3


def name_of(dtype: torch.dtype) -> str:
    """The precision without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def options(case: Case, variant: str, device: torch.device) -> dict[str, Any]:
    """Keyword arguments of the attention."""
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
    return shared | variants[variant]


def beyond_limits(ratios: dict[str, float], dtype: torch.dtype) -> list[str]:
    """Names of the results whose error is larger than it may be."""
    return [name for name, ratio in ratios.items() if not ratio <= LIMITS[name_of(dtype)]]


def error_ratios(
    case: Case,
    impl: str,
    device: torch.device,
    dtype: torch.dtype,
    options: dict[str, Any],
    *,
    draws: int = DRAWS,
    positions: Sequence[int] | None = None,
    part: Part | None = None,
) -> dict[str, float]:
    """For the output and every gradient: error over the error of the standard, the worst of all block sizes."""
    drawn = [squared_errors(case, impl, device, dtype, options, seed, positions, part) for seed in range(draws)]
    allowed, reached = (torch.stack(squares).sum(0) for squares in zip(*drawn, strict=True))
    ratios = (reached / allowed).sqrt().nan_to_num(nan=math.inf).amax(0)
    return dict(zip(("output", *case.shapes), ratios.tolist(), strict=True))


def squared_errors(
    case: Case,
    impl: str,
    device: torch.device,
    dtype: torch.dtype,
    options: dict[str, Any],
    seed: int,
    positions: Sequence[int] | None = None,
    part: Part | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean squares of the errors of output and gradients: the standard's [9], and the kernels' by block size [., 9]."""
    exact = evaluate(case, "reference", device, dtype, torch.float64, options, seed, part)
    with float32_logits(dtype) if dtype.itemsize == 2 else nullcontext():
        standard = evaluate(case, "reference", device, dtype, torch.float32, options, seed, part)

    def squares(actual: list[Tensor]) -> Tensor:
        return torch.stack([(got - true).square().mean().cpu() for got, true in zip(actual, exact, strict=True)])

    # What rounding the exact result costs, should the standard happen to be exact.
    rounding = torch.stack([true.square().mean().cpu() for true in exact]) * (torch.finfo(dtype).eps / 4) ** 2
    allowed = torch.maximum(squares([given.to(dtype).double() for given in standard]), rounding)
    of_kernels = []
    if positions is None:
        positions = range(MOST_CANDIDATES if impl == "triton" else 1)
    for position in positions:
        with blocks_at(position if impl == "triton" else None):
            of_kernels.append(squares(evaluate(case, impl, device, dtype, dtype, options, seed, part)))
    return allowed, torch.stack(of_kernels)


class Part(NamedTuple):
    """Samples and key heads for which alone a large case is compared: float64 holds all pairs of tokens."""

    samples: list[int]
    heads: list[int]

    def of(self, name: str, tensor: Tensor, groups: int) -> Tensor:
        """Cut the part out of an input, of its gradient or of the output."""
        if name in ("output", "query"):
            heads = [head * groups + member for head in self.heads for member in range(groups)]
            return tensor[self.samples][:, :, :, heads]
        if name in ("key", "value"):
            return tensor[self.samples][:, :, :, self.heads]
        return tensor[..., self.heads, :]

    def of_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options for these samples: masks have one row for each."""
        masks = {name: mask[self.samples] for name, mask in options.items() if isinstance(mask, Tensor)}
        if "dropout_masks" in options:
            masks["dropout_masks"] = tuple(mask[self.samples] for mask in options["dropout_masks"])
        return options | masks


def evaluate(
    case: Case,
    impl: str,
    device: torch.device,
    given: torch.dtype,
    computed: torch.dtype,
    options: dict[str, Any],
    seed: int = 0,
    part: Part | None = None,
) -> list[Tensor]:
    """Output and gradients in float64; all precisions start from the same numbers, those of the given one.

    With a part the reference evaluates that alone. Others evaluate everything, with the gradient of that part.
    """
    names = ("output", *case.shapes)
    groups = case.heads // case.kv_heads
    tensors = {name: x.detach() for name, x in case.inputs(device, given, seed).items()}
    generator = torch.Generator(device).manual_seed(1)
    cotangent = torch.randn(tensors["query"].shape, generator=generator, device=device, dtype=torch.float32)
    cotangent = cotangent.to(given).to(computed)
    if part and impl == "reference":
        tensors = {name: part.of(name, x, groups) for name, x in tensors.items()}
        cotangent, options = part.of("output", cotangent, groups), part.of_options(options)
    elif part:
        chosen = torch.zeros_like(cotangent, dtype=torch.bool)
        heads = [head * groups + member for head in part.heads for member in range(groups)]
        for sample in part.samples:
            chosen[sample, :, :, heads] = True
        cotangent = cotangent * chosen
    inputs = [x.to(computed).requires_grad_() for x in tensors.values()]
    output = mvpa_attention(*inputs, impl=impl, **options)  # type: ignore[arg-type]
    results = [output.detach(), *torch.autograd.grad(output, inputs, cotangent)]
    if part and impl != "reference":
        results = [part.of(name, x, groups) for name, x in zip(names, results, strict=True)]
    return [x.double() for x in results]


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
    with mock.patch.object(Tensor, "softmax", lambda logits, _dim: _RoundedBetween.apply(logits, dtype)):
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
