"""Check and time FlashMVPA on a GPU, against its peers on the same tokens.

First correctness at full sizes against float64; a kernel that fails is not timed. Then the grid of sizes: forward and
forward + backward, time and peak memory, in one process, so that ratios are of one run. Running out of memory is a
result. What was measured is written after each size, and a run that is started again goes on where it stopped.
Needs torch with CUDA, triton, numpy and einops; matplotlib for the plot.

    PYTHONPATH=. python experiments/attention_gpu.py --minutes 10
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from attention_peers import Attend, Case, contenders
from torch import Tensor

from mvpa_ts import mvpa_attention

RESULTS = Path(__file__).parent / "results"
PAPER_SIZES = (1, 10, 20, 30, 40, 50)
# Dense 16-bit TFLOP/s and TB/s of the data sheets: what a floor is computed from, not what a kernel reaches.
DATA_SHEETS = {"H200": (989.0, 4.8), "H100": (989.0, 3.35), "A100": (312.0, 2.0)}
PASSES = ("forward", "forward + backward")
# Error over that of the reference in the same precision. In float32 the log-sum-exp, from which the backward pass
# starts, costs one more rounding of the logits.
LIMITS = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0}
# All block sizes that a kernel may choose from are checked; they are at most this many.
MOST_CANDIDATES = 3


def cases(quick: bool) -> Iterator[Case]:
    """Sizes, the telling ones first, should time run out."""
    if quick:
        yield Case(4, 3, batch=1, heads=4, kv_heads=2, head_dim=16, window=1)
        yield Case(3, 17, batch=1, heads=2, kv_heads=2, head_dim=16, window=1, dense_last_segment=False)
        return
    yield Case(50, 50)
    yield Case(50, 50, dense_last_segment=False)
    yield from (Case(T, C) for T, C in ((100, 100), (100, 32), (100, 64), (25, 128)))
    for C in (32, 88):
        yield Case(100, C, heads=12, kv_heads=4)
        yield Case(100, C, heads=16, kv_heads=8, head_dim=128)
    grid = sorted(((T, C) for T in PAPER_SIZES for C in PAPER_SIZES), key=lambda size: -size[0] * size[1])
    yield from (Case(T, C, dense_last_segment=dense) for T, C in grid[1:] for dense in (True, False))


@dataclass(frozen=True)
class Work:
    """The least that exact MVPA with a rank-1 far field must do."""

    flop: float
    gigabytes: float

    def floor(self, sheet: tuple[float, float]) -> float:
        """Milliseconds at the rates of a data sheet: arithmetic or memory, whichever is longer."""
        return max(self.flop / (sheet[0] * 1e12), self.gigabytes / (sheet[1] * 1e3)) * 1e3


def work(case: Case, backward: bool, element_bytes: int = 2) -> Work:
    """Arithmetic of the pairs that exist, and every tensor once; the scores count as read or written once."""
    T, C, W, d = case.segments, case.channels, case.window, case.head_dim
    near = sum(t + 1 if case.dense_last_segment and t == T - 1 else min(t, W) + 1 for t in range(T)) * C * C
    far = sum(t + 1 for t in range(T)) * C * C - near
    rows = case.batch * case.heads
    scores = rows * case.tokens * (T + C)
    flop = rows * (near * 4 + far * 2) * d + 2 * d * scores
    queries = case.batch * case.tokens * case.heads * d
    keys = case.batch * case.tokens * case.kv_heads * d
    moved = 2 * queries + 2 * keys + 2 * scores
    if backward:
        flop += rows * (near * 10 + far * 4) * d + 4 * d * scores
        moved += 4 * queries + 4 * keys + 4 * scores
    return Work(flop, moved * element_bytes / 1e9)


def check(device: torch.device, impl: str, quick: bool) -> dict[str, Any]:
    """Errors (root mean square) of output and gradients against float64, over those of the reference."""
    full = [
        Case(50, 50, batch=1, heads=2, kv_heads=1),
        Case(100, 64, batch=1, heads=1, kv_heads=1),
        Case(50, 7, batch=2, heads=2, kv_heads=1, window=3),
        Case(100, 88, batch=1, heads=1, kv_heads=1, head_dim=128, dense_last_segment=False),
    ]
    found: dict[str, Any] = {}
    dtypes = (torch.float32,) if quick else (torch.bfloat16, torch.float16, torch.float32)
    for case in list(cases(True)) if quick else full:
        generator = torch.Generator().manual_seed(3)
        token_mask = (torch.rand(case.batch, case.segments, case.channels, generator=generator) < 0.9).to(device)
        channel_mask = (torch.rand(case.batch, case.channels, generator=generator) < 0.8).to(device)
        keep = tuple(
            (torch.rand(case.batch, size, generator=generator) < 0.8).to(device)
            for size in (case.segments, case.channels)
        )
        variants: dict[str, dict[str, Any]] = {
            "plain": {},
            "channels masked, dropout": {"channel_mask": channel_mask, "dropout": 0.3, "dropout_masks": keep},
            "tokens masked": {"token_mask": token_mask},
        }
        for name, extra in variants.items():
            options = {"window": case.window, "dense_last_segment": case.dense_last_segment} | extra
            for dtype in dtypes:
                ratios = error_ratios(case, impl, device, dtype, options)
                precision = str(dtype).removeprefix("torch.")
                worst = max(ratios.values())
                found[f"{case}, {name}, {precision}"] = {
                    "passes": worst <= LIMITS[precision],
                    "ratios": {tensor: round(ratio, 3) for tensor, ratio in ratios.items()},
                }
                print(f"{case}, {name}, {precision}: error {worst:.2f}× that of the reference", flush=True)
    return found


def error_ratios(
    case: Case, impl: str, device: torch.device, dtype: torch.dtype, options: dict[str, Any]
) -> dict[str, float]:
    """For the output and every gradient: error over the error of the reference, the worst of all block sizes."""

    def evaluate(which: str, precision: torch.dtype) -> list[Tensor]:
        # All start from the same numbers, those of the low precision.
        inputs = [x.detach().to(precision).requires_grad_() for x in case.inputs(device, dtype).values()]
        output = mvpa_attention(*inputs, impl=which, **options)  # type: ignore[arg-type]
        generator = torch.Generator(device).manual_seed(1)
        cotangent = torch.randn(output.shape, generator=generator, device=device, dtype=torch.float32)
        gradients = torch.autograd.grad(output, inputs, cotangent.to(dtype).to(precision))
        return [output.detach().double(), *(gradient.double() for gradient in gradients)]

    exact, reference = evaluate("reference", torch.float64), evaluate("reference", dtype)
    names = ("output", *case.inputs(torch.device("cpu"), dtype))
    ratios = dict.fromkeys(names, 0.0)
    for position in range(MOST_CANDIDATES if impl == "triton" else 1):
        with blocks_at(position) if impl == "triton" else nullcontext():
            actual = evaluate(impl, dtype)
        for name, true, standard, got in zip(names, exact, reference, actual, strict=True):
            rounding = torch.finfo(dtype).eps * true.abs().max().item() / 2
            allowed = max((standard - true).square().mean().sqrt().item(), rounding)
            error = (got - true).square().mean().sqrt().item()
            ratios[name] = max(ratios[name], error / allowed if math.isfinite(error) else math.inf)
    return ratios


def blocks_at(position: int) -> AbstractContextManager[Any]:
    """Kernels take their candidate at this position, or their last, instead of the fastest one."""
    from mvpa_ts.attention.triton import launch

    def take(_kernel: Any, candidates: Sequence[launch.Blocks], *_: Any) -> launch.Blocks:
        return candidates[min(position, len(candidates) - 1)]

    return mock.patch.object(launch, "fastest", take)


def measure(attend: Attend, case: Case, device: torch.device, dtype: torch.dtype, seconds: float) -> dict[str, Any]:
    """Median milliseconds and peak GiB beyond the inputs, of both passes; or why there are none."""
    found: dict[str, Any] = {}
    try:
        inputs = case.inputs(device, dtype)
        # A transposed copy is not part of any mechanism.
        cotangent = torch.randn_like(attend(inputs))
        leaves = [x for x in inputs.values() if x.requires_grad]

        def forward() -> None:
            with torch.no_grad():
                attend(inputs)

        def both() -> None:
            torch.autograd.grad(attend(inputs), leaves, cotangent, allow_unused=True)

        for name, run in zip(PASSES, (forward, both), strict=True):
            found[name] = timed(run, device, seconds)
    except torch.OutOfMemoryError:
        found["failed"] = "out of memory"
    except Exception as error:  # a peer that cannot run is a result, and its reason is kept
        found["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return found


def timed(run: Callable[[], None], device: torch.device, seconds: float) -> dict[str, Any]:
    """Repeat for about `seconds`, after one run that compiles and one that warms up."""
    run()
    if device.type == "cpu":
        start = time.perf_counter()
        run()
        return {"ms": (time.perf_counter() - start) * 1e3, "GiB": None, "runs": 1}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    times: list[float] = []
    start_of_all = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start_of_all < seconds and len(times) < 100):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return {"ms": statistics.median(times), "GiB": peak, "runs": len(times)}


def main() -> None:
    """Check, then time until the grid is done or the minutes are over."""
    arguments = parse_arguments()
    begun = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() and not arguments.quick else "cpu")
    if device.type == "cpu" and not arguments.quick:
        raise SystemExit("no CUDA device is there; --quick runs what a CPU can")
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    path = Path(arguments.output) / "attention_gpu.json"
    record = start_record(path, device, arguments)
    if "checks" not in record:
        record["checks"] = check(device, "separable" if device.type == "cpu" else "triton", arguments.quick)
        record["correct"] = all(found["passes"] for found in record["checks"].values())
        save(path, record, arguments.quick)
    for case in cases(arguments.quick):
        row = record["cases"].setdefault(str(case), {"size": vars(case), "measured": {}})
        for name, attend in contenders(case).items():
            if name in row["measured"] or (name == "FlashMVPA" and device.type == "cuda" and not record["correct"]):
                continue
            if time.monotonic() - begun > arguments.minutes * 60:
                print("time is over; start again to go on")
                save(path, record, arguments.quick)
                return
            row["measured"][name] = measure(attend, case, device, dtype, arguments.seconds)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        row["floor"] = floors(case, record["data sheet"])
        print(describe(str(case), row), flush=True)
        save(path, record, arguments.quick)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two tiny sizes on the CPU; write nothing")
    parser.add_argument("--minutes", type=float, default=9.5, help="stop after this many minutes (default 9.5)")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each measurement (default 0.15)")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run measured")
    parser.add_argument("--output", default=str(RESULTS), help="folder of the results")
    return parser.parse_args()


def start_record(path: Path, device: torch.device, arguments: argparse.Namespace) -> dict[str, Any]:
    """What an earlier run on the same kind of device and software left, or an empty record."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    sheet = next((rates for key, rates in DATA_SHEETS.items() if key in name), None)
    software = {"torch": torch.__version__}
    if device.type == "cuda":
        import triton

        software["triton"] = triton.__version__
    if path.exists() and not arguments.fresh and not arguments.quick:
        record = json.loads(path.read_text())
        if (record["device"], record["software"]) == (name, software):
            return record
    return {"device": name, "data sheet": sheet, "software": software, "cases": {}}


def floors(case: Case, sheet: tuple[float, float] | None) -> dict[str, dict[str, float | None]]:
    """The work of both passes, and its time at the rates of the data sheet."""
    found = {}
    for name, backward in zip(PASSES, (False, True), strict=True):
        least = work(case, backward)
        found[name] = {"GFLOP": least.flop / 1e9, "GB": least.gigabytes, "ms": least.floor(sheet) if sheet else None}
    return found


def describe(title: str, row: dict[str, Any]) -> str:
    """One line for each contender."""
    lines = [title]
    for name, found in row["measured"].items():
        if "failed" in found:
            lines.append(f"  {name:20} {found['failed']}")
            continue
        parts = [
            f"{found[p]['ms']:9.3f} ms" + (f" {found[p]['GiB']:7.2f} GiB" if found[p]["GiB"] else "") for p in PASSES
        ]
        lines.append(f"  {name:20} " + "   ".join(parts))
    return "\n".join(lines)


def save(path: Path, record: dict[str, Any], quick: bool) -> None:
    """Write the record, the table and the plot."""
    text = table(record)
    if quick:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(text)
    try:
        plot(record, path.with_suffix(".png"))
    except ImportError:
        print("matplotlib is not there: no plot")


def table(record: dict[str, Any]) -> str:
    """Times as ratios to causal flash SDPA, memory, and the fraction of the floor."""
    lines = [
        f"{record['device']}, {', '.join(f'{k} {v}' for k, v in record['software'].items())}, bfloat16, causal.",
        "× is time over that of causal flash SDPA on the same tokens. Floor: arithmetic or memory traffic at the rates",
        "of the data sheet, as a fraction of the time taken.",
        "",
    ]
    if checks := record.get("checks"):
        worst = max(ratio for found in checks.values() for ratio in found["ratios"].values())
        verdict = "passes" if record["correct"] else "FAILS, and was not timed"
        lines += [f"Largest error: {worst:.2f} times that of the reference in the same precision; it {verdict}.", ""]
    for pass_name in PASSES:
        lines += [f"## {pass_name}", "", "| case | mechanism | ms | × | GiB | TFLOP/s | floor |", "|" + " --- |" * 7]
        for title, row in record["cases"].items():
            base = row["measured"].get("flash SDPA causal", {}).get(pass_name, {}).get("ms")
            for name, found in row["measured"].items():
                if pass_name not in found:
                    lines.append(f"| {title} | {name} | {found['failed']} | | | | |")
                    continue
                ms, gib = found[pass_name]["ms"], found[pass_name]["GiB"]
                ratio = f"{ms / base:.2f}" if base else ""
                rate, floor = "", ""
                if name == "FlashMVPA" and "floor" in row:
                    least = row["floor"][pass_name]
                    rate = f"{least['GFLOP'] / ms:.0f}"
                    floor = f"{least['ms'] / ms:.2f}" if least["ms"] else ""
                memory = f"{gib:.2f}" if gib is not None else ""
                lines.append(f"| {title} | {name} | {ms:.3f} | {ratio} | {memory} | {rate} | {floor} |")
        lines.append("")
    return "\n".join(lines)


def plot(record: dict[str, Any], path: Path) -> None:
    """Time against the number of tokens, one line for each mechanism."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), sharex=True)
    for axis, pass_name in zip(axes, PASSES, strict=True):
        points: dict[str, list[tuple[int, float]]] = {}
        for row in record["cases"].values():
            size = row["size"]
            if (size["heads"], size["kv_heads"]) != (12, 12) or not size["dense_last_segment"]:
                continue
            for name, found in row["measured"].items():
                if pass_name in found:
                    points.setdefault(name, []).append((size["segments"] * size["channels"], found[pass_name]["ms"]))
        for name, values in points.items():
            axis.plot(*zip(*sorted(values), strict=True), marker=".", label=name)
        axis.set(xscale="log", yscale="log", xlabel="tokens T·C", ylabel="ms", title=pass_name)
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{record['device']}, batch 64, 12 heads of 64, bfloat16")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
