"""What impl="auto" takes, by measurement, and the check of the kernels before a process first uses them on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mvpa_ts.attention.problem import Problem
from mvpa_ts.attention.triton import why_unavailable

Attention = Callable[[Problem], tuple[Tensor, Tensor]]
NEEDS_REFERENCE = "torch.func and forward-mode derivatives need impl='reference', which 'auto' takes there"

# Where `make gpu` found the results of FlashMVPA right: GPU, torch, Triton. A row stands beside its committed results:
# experiments/results/attention/attention_gpu.md.
PASSED = frozenset({("NVIDIA H200", "2.11", "3.6")})
PASSED_HEAD_DIM = 64

# Where the kernels are compared with the reference: not under Triton's interpreter, which is for tests.
_CHECKED_ON = ("cuda",)

_logger = logging.getLogger(__name__)
_logged: set[tuple[str, str, str]] = set()
_checked: set[tuple[torch.device, torch.dtype]] = set()

# Errors of a right kernel are at most 1.7 times those of the reference; the margin is for one small case.
_MOST_TIMES_THE_ERROR = 4.0


def pick(problem: Problem, needs_lse: bool) -> tuple[str, str]:
    """The implementation that 'auto' takes, and why."""
    if is_transformed():
        return "reference", "torch.func or forward-mode derivatives"
    query = problem.query
    if query.is_meta or torch.compiler.is_exporting():
        return "reference", "a fixed sequence of torch's operators holds for any number of samples"
    B, T, C, H, d = query.shape
    pairs = B * H * (T * C) ** 2
    if query.device.type == "cuda":
        # H200, bfloat16, batch 64, 12 heads of 64, both passes, ms of reference, sdpa and triton: 3.5, 4.3 and 4.1 at
        # T = 8, C = 21, which are 2·10⁷ pairs; 12.1, 7.7 and 4.7 at T = C = 20, which are 1.2·10⁸.
        if pairs <= 1 << 25:
            return "reference", "few pairs of tokens"
        not_passed = _why_not_passed(problem, needs_lse)
        if not_passed is None:
            return "triton", "it passed its checks on this GPU with this torch and Triton"
        if needs_lse or problem.channel_window is not None or query.dtype == torch.float64:
            return "separable", "sdpa has no log-sum-exp, no channel_window, and no fused kernel in float64"
        # The columns that sdpa adds to a head. With 6·10⁸ numbers (T = C = 50, batch 64) both passes took 12 GiB.
        if B * T * C * H * (d + 3 * T + 2 * C) > 1 << 30:
            return "separable", "sdpa would need tens of GiB"
        return "sdpa", not_passed
    # One CPU thread, forward and backward: the reference took 0.5 to 1.0 of separable's time up to 5·10⁴ pairs, 0.9 to
    # 1.5 near 10⁵, depending on the processor, and 1.2 to 16 above. sdpa was nowhere the fastest by more than a tenth,
    # and 7 times slower at T = C = 50 with a window. All sizes: experiments/results/attention/attention_cpu.md.
    if query.device.type == "cpu" and query.dtype in (torch.float16, torch.bfloat16):
        return "separable", "it computes 16 bits in float32, for few pairs and for many"
    # Elsewhere fewer, larger kernels should win until the reference's weights, several times 4 bytes a pair, are GiBs.
    if pairs > (1 << 16 if query.device.type == "cpu" else 1 << 26):
        return "separable", "many pairs of tokens"
    return "reference", "few pairs of tokens"


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation has to follow every operator."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def why_not_triton(problem: Problem) -> str | None:
    """Say why the kernels cannot take this problem; None if they can."""
    if forward_ad._current_level >= 0:  # torch would lose the tangents without a word
        return NEEDS_REFERENCE
    if problem.channel_window is not None:
        return f"the kernels have no channel_window, got {problem.channel_window}; use impl='separable'"
    return why_unavailable(problem.query)


def _why_not_passed(problem: Problem, needs_lse: bool) -> str | None:
    reason = why_not_triton(problem)
    if reason is None and not _has_passed(problem.query.device):
        reason = "the kernels were not checked on this GPU with this torch and Triton"
    switches = problem.causal and len(problem.components) == 3 and not needs_lse
    if reason is None and not (switches and problem.query.shape[-1] == PASSED_HEAD_DIM):
        reason = f"the kernels were checked on this GPU for causal use, all terms and heads of {PASSED_HEAD_DIM}"
    return reason


def _constant(function: Callable[..., bool]) -> Callable[..., bool]:
    # What does not change within a process is a constant of a compiled graph. `torch.compiler.assume_constant_result`
    # says so too, but imports the whole compiler.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# These functions run while a graph is traced.
@_constant
def _has_passed(device: torch.device) -> bool:
    import triton

    versions = (".".join(text.split(".")[:2]) for text in (torch.__version__, triton.__version__))
    return (torch.cuda.get_device_name(device), *versions) in PASSED


@_constant
def log_once(name: str, device_type: str, reason: str) -> bool:
    """Log what 'auto' took, once for each reason."""
    if (name, device_type, reason) not in _logged:
        _logged.add((name, device_type, reason))
        _logger.info("mvpa_attention takes impl=%r on %s: %s", name, device_type, reason)
    return True


@_constant
def check_once(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare the kernels with the reference, before a process first uses them on this device in this precision."""
    if device.type not in _CHECKED_ON or (device, dtype) in _checked:
        return True
    # Under a mode that sees every operator, or while a graph is captured, a later call checks.
    watched = is_transformed() or torch._C._len_torch_dispatch_stack() > 0
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if not (watched or capturing):
        compare_with_reference(device, dtype)
        _checked.add((device, dtype))
    return True


def compare_with_reference(device: torch.device, dtype: torch.dtype) -> None:
    """Raise a RuntimeError if output or gradients of the kernels are further from float64 than rounding explains."""
    import triton

    from mvpa_ts.attention.reference import reference_attention
    from mvpa_ts.attention.triton.operator import triton_attention

    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        generator = torch.Generator().manual_seed(0)  # the caller's random numbers stay as they are
        inputs = [torch.randn(shape, generator=generator).to(device, dtype) for shape in _SHAPES.values()]
        exact = _results(reference_attention, [x.double() for x in inputs])
        allowed, actual = (_results(attention, inputs) for attention in (reference_attention, triton_attention))
    errors = [
        [(x.double() - e).square().mean().sqrt().item() for x, e in zip(results, exact, strict=True)]
        for results in (actual, allowed)
    ]
    names = ("the output", *(f"the gradient of {name}" for name in _SHAPES))
    for name, error, standard, result in zip(names, *errors, exact, strict=True):
        floor = torch.finfo(dtype).eps * result.abs().max().item()
        # Written so that NaN fails.
        if not error <= max(_MOST_TIMES_THE_ERROR * standard, floor):
            raise RuntimeError(
                f"impl='triton' is wrong on {device} with torch {torch.__version__} and Triton {triton.__version__}: "
                f"in a small case in {dtype}, {name} is {error:.2g} from the exact one, the reference {standard:.2g}; "
                "use impl='sdpa'"
            )


# More segments than the window, several blocks of queries, two query heads for each head of keys.
_B, _T, _C, _H, _H_KV, _D, _WINDOW = 1, 5, 17, 2, 1, 64, 1
_SHAPES = {
    "query": (_B, _T, _C, _H, _D), "key": (_B, _T, _C, _H_KV, _D), "value": (_B, _T, _C, _H_KV, _D),
    "time_key": (_T, _H_KV, _D), "channel_key": (_C, _H_KV, _D),
    "content_bias": (_H_KV, _D), "time_bias": (_H_KV, _D), "channel_bias": (_H_KV, _D),
}  # fmt: skip


def _results(attention: Attention, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of its product with fixed numbers."""
    leaves: dict[str, Any] = {name: x.detach().requires_grad_() for name, x in zip(_SHAPES, inputs, strict=True)}
    query = leaves["query"]
    problem = Problem(
        **leaves, real=torch.ones(query.shape[:3], dtype=torch.bool, device=query.device), all_real=True, causal=True,
        window=_WINDOW, dense_last_segment=True, components=("content", "time", "channel"),
        channel_distance="absolute", channel_window=None,
    )  # fmt: skip
    output, _ = attention(problem)
    cotangent = torch.linspace(-1.0, 1.0, output.numel(), device=output.device).view_as(output)
    return [output.detach(), *torch.autograd.grad(output, list(leaves.values()), cotangent.to(output.dtype))]
