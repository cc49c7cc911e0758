"""What one process of the GPU benchmark does: checks, times, repetitions, training steps and profiles, one at a time.

Each is a function of plain values that returns plain values, so that orders and answers travel as lines of JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

import torch
from harness.attention.accuracy import Part, beyond_limits, error_ratios, options
from harness.attention.peers import Attend, Case, FlexMVPA, contenders
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts import MVPAttention
from mvpa_ts.blocks import MVPAStack, ParallelBlock, SwiGLU

PASSES = ("forward", "forward + backward")
OUT_OF_MEMORY = "out of memory"
# MVPFormer-S without its wavelet encoder, whose package a GPU machine may lack (tests compare with mvpformer_s).
SMALL_MODEL = {
    "dim": 768, "num_layers": 12, "num_heads": 12, "num_kv_heads": 4, "mlp_dim": 1728, "time_rows": 110,
    "channel_rows": 128, "window": 10, "dense_last_segment": True, "dropout": 0.1,
}  # fmt: skip
# After one of these a process can use its GPU no more.
_BROKEN = ("CUDA error", "illegal memory access", "device-side assert", "unspecified launch failure")


def serve(orders: TextIO, answers: TextIO) -> None:
    """Do what the lines say, one answer a line, until there are no more or the GPU can no longer be used."""
    for line in orders:
        item = json.loads(line)
        start = time.perf_counter()
        print(f"== {line.strip()}", file=sys.stderr, flush=True)
        try:
            answer = perform(**item)
        except torch.OutOfMemoryError as error:
            answer = {"failed": OUT_OF_MEMORY, "message": str(error)[:500]}
        except Exception as error:  # whatever fails is a result, and the next item may still run
            answer = {"failed": f"{type(error).__name__}: {error}"[:500], "traceback": traceback.format_exc()[-6000:]}
        answer["seconds"] = round(time.perf_counter() - start, 2)
        broken = any(sign in answer.get("failed", "") for sign in _BROKEN)
        print("@@" + json.dumps(answer | ({"process ends": True} if broken else {})), file=answers, flush=True)
        if broken:
            sys.exit(3)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def perform(kind: str, **arguments: Any) -> dict[str, Any]:
    """Do one item: a function of this file by its name."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "case" in arguments:
        arguments["case"] = Case(**arguments["case"])
    if "dtype" in arguments:
        arguments["dtype"] = getattr(torch, arguments["dtype"])
    functions: dict[str, Callable[..., dict[str, Any]]] = {
        "device": describe_device, "check": check, "compile": compile_only, "time": measure, "repeat": repeat,
        "train": train, "profile": profile,
    }  # fmt: skip
    return functions[kind](device=device, **arguments)


def describe_device(device: torch.device) -> dict[str, Any]:
    """The device and the software, after one product on it."""
    facts: dict[str, Any] = {"device": "CPU", "torch": torch.__version__}
    if device.type == "cuda":
        import triton

        properties = torch.cuda.get_device_properties(device)
        facts |= {"device": properties.name, "triton": triton.__version__, "cuda": torch.version.cuda}
        facts |= {"multiprocessors": properties.multi_processor_count, "GiB": properties.total_memory / 2**30}
        facts |= {"cudnn": torch.backends.cudnn.version(), "capability": list(torch.cuda.get_device_capability(device))}
        asked = "driver_version,clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu"
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        facts |= {asked: printed.stdout.strip() or printed.stderr[:200]}
    x = torch.randn(64, 64, device=device)
    (x @ x).sum().item()
    return facts


def check(
    impl: str,
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    variant: str = "plain",
    position: int = 0,
    samples: list[int] | None = None,
    heads: list[int] | None = None,
    draws: int = 1,
) -> dict[str, Any]:
    """Errors of output and every gradient over those of the standard; see `accuracy`."""
    part = Part(samples, heads) if samples is not None and heads is not None else None
    some = options(case, variant, device)
    ratios = error_ratios(case, impl, device, dtype, some, draws=draws, positions=[position], part=part)
    wrong = beyond_limits(ratios, dtype)
    return {"passes": not wrong, "wrong": wrong, "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()}}


def compile_only(mechanism: str, case: Case, dtype: torch.dtype, device: torch.device, position: int = 0) -> dict:
    """Run both passes once, so that the compiled kernels are on disk, or in this process, when they are timed."""
    from harness.attention.accuracy import blocks_at

    with blocks_at(position if mechanism == "FlashMVPA" else None):
        _both(_contender(mechanism, case), case.inputs(device, dtype))()
    return {}


def measure(
    mechanism: str, case: Case, dtype: torch.dtype, device: torch.device, budget: float = 0.15
) -> dict[str, Any]:
    """Median milliseconds and peak GiB beyond the inputs, of both passes; or why there are none."""
    attend = _contender(mechanism, case)
    inputs = case.inputs(device, dtype)
    answer: dict[str, Any] = {"GFLOP": [work(case, backward) / 1e9 for backward in (False, True)]}
    if mechanism.startswith("MVPA sdpa"):
        answer["called"] = chosen_backend(case, inputs, mechanism)

    def forward() -> None:
        with torch.no_grad():
            attend(inputs)

    try:
        answer[PASSES[0]] = timed(forward, device, budget)
        answer[PASSES[1]] = timed(_both(attend, inputs), device, budget)
    except torch.OutOfMemoryError:  # the forward pass may have been measured before
        answer["failed"] = OUT_OF_MEMORY
    except Exception as error:
        answer |= {"failed": f"{type(error).__name__}: {error}"[:500], "traceback": traceback.format_exc()[-6000:]}
    if mechanism == "FlashMVPA" and device.type == "cuda":
        from mvpa_ts.attention.triton import tuning

        answer["candidates taken"] = sorted(f"{kernel[1][index]}" for kernel, index in tuning._chosen.items())[-8:]
    return answer


def work(case: Case, backward: bool) -> float:
    """The least arithmetic of exact MVPA with a rank-1 far field: operations of the pairs that exist."""
    T, C, W, d = case.segments, case.channels, case.window, case.head_dim
    near = sum(t + 1 if case.dense_last_segment and t == T - 1 else min(t, W) + 1 for t in range(T)) * C * C
    far = sum(t + 1 for t in range(T)) * C * C - near
    rows = case.batch * case.heads
    scores = rows * case.tokens * (T + C)
    forward = rows * (near * 4 + far * 2) * d + 2 * d * scores
    return forward + (rows * (near * 10 + far * 4) * d + 4 * d * scores if backward else 0)


def chosen_backend(case: Case, inputs: dict[str, Tensor], mechanism: str) -> dict[str, Any]:
    """Which attention torch calls for the longer heads, and how long they are."""
    from unittest import mock

    from mvpa_ts import mvpa_attention
    from mvpa_ts.attention import sdpa

    seen: dict[str, Any] = {}

    def look(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        choice = torch._fused_sdp_choice(query, key, value, scale=scale)
        name = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cuDNN"}.get(choice, str(choice))
        seen.update(backend=name, head_width=query.shape[-1], keys=key.shape[2], queries=query.shape[2])
        return query[..., : value.shape[-1]]

    window = {"window": case.window, "dense_last_segment": case.dense_last_segment}
    with (
        mock.patch.object(sdpa, "scaled_dot_product_attention", look),
        mock.patch.object(sdpa, "SPLIT", "rounded once" not in mechanism),
    ):
        mvpa_attention(*inputs.values(), impl="sdpa", **window)  # type: ignore[arg-type]
    return seen


def repeat(mechanism: str, case: Case, dtype: torch.dtype, device: torch.device, times: int = 100) -> dict[str, Any]:
    """How often output and gradients differ in any bit from those of the first run."""
    run = _both(_contender(mechanism, case), case.inputs(device, dtype), with_output=True)
    names = ("output", *case.shapes)
    first = run()
    differing = torch.zeros(len(names), dtype=torch.long, device=device)
    for _ in range(times):
        differing += torch.stack([(one != other).any().long() for one, other in zip(run(), first, strict=True)])
    return {"times": times, "differing": dict(zip(names, differing.tolist(), strict=True))}


class CausalAttention(nn.Module):
    """Plain attention by token, as a block calls it: what the network costs without MVPA."""

    def __init__(self, dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        width = dim // num_heads
        self.shapes = ((num_heads, width), (num_kv_heads, width), (num_kv_heads, width))
        self.projections = nn.ModuleList(nn.Linear(dim, heads * width, bias=False) for heads, width in self.shapes)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, *_codebooks: Tensor | None, **_masks: Any) -> Tensor:
        """Map [B, T, C, D] to [B, T, C, D]."""
        tokens = x.flatten(1, 2)
        heads = (
            projection(tokens).unflatten(-1, shape).transpose(1, 2)
            for projection, shape in zip(self.projections, self.shapes, strict=True)
        )
        grouped = self.shapes[0] != self.shapes[1]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=grouped)
        return self.out(attended.transpose(1, 2).flatten(2)).view_as(x)


def train(
    impl: str, segments: int, channels: int, batch: int, device: torch.device, sizes: dict[str, Any], steps: int = 10
) -> dict[str, Any]:
    """Time of a training step of the block stack with AdamW and autocast to bfloat16, and its peak memory."""
    sizes = SMALL_MODEL | sizes
    torch.manual_seed(0)
    dim, heads = sizes["dim"], (sizes["num_heads"], sizes["num_kv_heads"])

    def attention() -> nn.Module:
        if impl == "plain attention":
            return CausalAttention(dim, *heads)
        kept = {name: sizes[name] for name in ("window", "dense_last_segment", "dropout")}
        return MVPAttention(dim, *heads, impl=impl, **kept)  # type: ignore[arg-type]

    dropout = sizes["dropout"]
    blocks = [
        ParallelBlock(attention(), SwiGLU(dim, sizes["mlp_dim"]), dim, dropout) for _ in range(sizes["num_layers"])
    ]
    model = MVPAStack(blocks, dim, sizes["time_rows"], sizes["channel_rows"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(batch, segments, channels, dim, device=device)
    losses: list[Tensor] = []

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            predicted = model(x)
        loss = (predicted[:, :-1].float() - x[:, 1:]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())

    timing = timed(step, device, 0.5, least=steps)
    rate = batch * segments * channels / timing["ms"] * 1e3
    return timing | {"tokens/s": rate, "loss": [losses[0].item(), losses[-1].item()]}


def profile(mechanism: str, case: Case, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Milliseconds of each kernel in one forward and backward pass."""
    from torch.profiler import ProfilerActivity, profile

    run = _both(_contender(mechanism, case), case.inputs(device, dtype))
    run()
    _wait(device)
    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        for _ in range(3):
            run()
        _wait(device)
    times = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    rows = sorted(profiled.key_averages(), key=lambda row: -getattr(row, times))[:16]
    return {"kernels": [[row.key[:90], row.count / 3, getattr(row, times) / 3e3] for row in rows]}


def timed(run: Callable[[], Any], device: torch.device, budget: float, least: int = 3) -> dict[str, Any]:
    """Repeat for about `budget` seconds, after one run that compiles and one that warms up."""
    if device.type == "cpu":  # of a dry run, whose times nobody reads
        start = time.perf_counter()
        run()
        return {"ms": (time.perf_counter() - start) * 1e3, "GiB": None, "runs": 1}
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    once = _milliseconds(run, 1)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    if once > 1500:  # seconds are measured well enough by one run
        return {"ms": once, "GiB": peak, "runs": 1}
    # Several runs between two events, so that the host works ahead as it does in training.
    together = max(1, min(20, round(5.0 / once)))
    times: list[float] = []
    start_of_all = time.perf_counter()
    while len(times) < least or (time.perf_counter() - start_of_all < budget and len(times) < 100):
        times.append(_milliseconds(run, together))
    return {"ms": statistics.median(times), "least ms": min(times), "GiB": peak, "runs": len(times) * together}


def _contender(mechanism: str, case: Case) -> Attend:
    # With shapes that are not dynamic FlexAttention compiles for each size, and is faster.
    return FlexMVPA(case, dynamic=False) if mechanism == "MVPA FlexAttention" else contenders(case)[mechanism]


def _both(attend: Attend, inputs: dict[str, Tensor], with_output: bool = False) -> Callable[[], tuple[Tensor, ...]]:
    """A function for both passes; a mechanism that is not MVPA has no gradient of some inputs."""
    with torch.no_grad():
        shape = attend(inputs)
    # A transposed copy is not part of any mechanism.
    cotangent = torch.randn_like(shape)
    leaves = list(inputs.values())

    def run() -> tuple[Tensor, ...]:
        output = attend(inputs)
        gradients = torch.autograd.grad(output, leaves, cotangent, allow_unused=not with_output)
        return (output.detach(), *gradients) if with_output else gradients

    return run


def _milliseconds(run: Callable[[], Any], repetitions: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repetitions):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / repetitions


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
