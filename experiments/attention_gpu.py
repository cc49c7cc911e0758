"""Check and time FlashMVPA on a GPU, against its peers on the same tokens.

First correctness at full sizes against float64; kernels that fail in the precision that is timed are not timed. Then
the grid of sizes: forward and forward + backward, time and peak memory, in one process, so that ratios are of one run.
Running out of memory is a result. What was measured is written at once, and a run that is started again goes on where
it stopped; other failures are tried again then. Needs torch with CUDA, triton, numpy and einops; matplotlib for the
plot. With TRITON_INTERPRET=1, --quick runs the kernels on the CPU.

    PYTHONPATH=. python experiments/attention_gpu.py --minutes 10
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness.attention.accuracy import FULL_SIZES, check, compile_ahead, configurations, name_of
from harness.attention.peers import Attend, Case, FlexMVPA, contenders
from harness.command_line import script_parser
from harness.tables import RESULTS

import mvpa_ts
from mvpa_ts.attention.triton import why_unavailable

PAPER_SIZES = (1, 10, 20, 30, 40, 50)
# Dense 16-bit TFLOP/s and TB/s of the data sheets: what a floor is computed from, not what a kernel reaches.
DATA_SHEETS = {"H200": (989.0, 4.8), "H100": (989.0, 3.35), "A100": (312.0, 2.0)}
PASSES = ("forward", "forward + backward")
OUT_OF_MEMORY = "out of memory"


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
        found["failed"] = OUT_OF_MEMORY
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
    once = _milliseconds(run, 1)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    # Several runs between two events, so that the host works ahead as it does in training.
    together = max(1, min(20, round(5.0 / once)))
    times: list[float] = []
    start_of_all = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start_of_all < seconds and len(times) < 100):
        times.append(_milliseconds(run, together))
    return {"ms": statistics.median(times), "GiB": peak, "runs": len(times) * together}


def _milliseconds(run: Callable[[], None], repetitions: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repetitions):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / repetitions


def main() -> None:
    """Check, then time until the grid is done or the minutes are over."""
    arguments = parse_arguments()
    begun = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() and not arguments.quick else "cpu")
    if device.type == "cpu" and not arguments.quick:
        raise SystemExit("no CUDA device is there; --quick runs what a CPU can")
    interpreted = device.type == "cpu" and why_unavailable(torch.empty(1, 1, 1, 1, 1)) is None
    impl = "triton" if device.type == "cuda" or interpreted else "separable"
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    path = Path(arguments.output) / "attention_gpu.json"
    record = start_record(path, device, arguments)
    if "checks" not in record:
        checked = configurations(list(cases(True)), (dtype,))
        if not arguments.quick:
            checked = configurations(FULL_SIZES, (dtype, torch.float32, torch.float16))
            compile_ahead(checked, device)
        record["checks"] = check(checked, device, impl)
        record["correct"] = all(x["passes"] for x in record["checks"].values() if x["precision"] == name_of(dtype))
        save(path, record, arguments.quick)
    for case in cases(arguments.quick):
        row = record["cases"].setdefault(str(case), {"size": vars(case), "measured": {}})
        row["floor"] = floors(case, record["data sheet"])
        for name, attend in contenders(case).items():
            if name in row["measured"] or (name == "FlashMVPA" and device.type == "cuda" and not record["correct"]):
                continue
            if time.monotonic() - begun > arguments.minutes * 60:
                print("time is over; start again to go on")
                draw(path, record, arguments.quick)
                return
            found = measure(attend, case, device, dtype, arguments.seconds)
            if found.get("failed") not in (None, OUT_OF_MEMORY) and isinstance(attend, FlexMVPA):
                found = measure(FlexMVPA(case, dynamic=False), case, device, dtype, arguments.seconds)
            row["measured"][name] = found
            save(path, record, arguments.quick)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        print(describe(str(case), row), flush=True)
    draw(path, record, arguments.quick)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = script_parser(__doc__, "two tiny sizes on the CPU; write nothing")
    parser.add_argument("--minutes", type=float, default=9.5, help="stop after this many minutes (default 9.5)")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each measurement (default 0.15)")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run measured")
    parser.add_argument("--output", default=str(RESULTS / "attention"), help="folder of the results")
    return parser.parse_args()


def start_record(path: Path, device: torch.device, arguments: argparse.Namespace) -> dict[str, Any]:
    """What an earlier run on the same kind of device, software and kernels left, or an empty record."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    sheet = next((rates for key, rates in DATA_SHEETS.items() if key in name), None)
    software = {"torch": torch.__version__}
    if device.type == "cuda":
        import triton

        sources = sorted((Path(mvpa_ts.__file__).parent / "attention").rglob("*.py"))
        digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]
        software |= {"triton": triton.__version__, "sources of the attention": digest}
    if path.exists() and not arguments.fresh and not arguments.quick:
        record = json.loads(path.read_text())
        if (record["device"], record["software"]) == (name, software):
            for row in record["cases"].values():
                row["measured"] = {k: v for k, v in row["measured"].items() if v.get("failed") in (None, OUT_OF_MEMORY)}
            if any("failed" in found for found in record.get("checks", {}).values()):
                del record["checks"]
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
    """Write the record and the table."""
    text = table(record)
    if quick:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    for file, content in ((path, json.dumps(record, indent=1) + "\n"), (path.with_suffix(".md"), text)):
        unfinished = file.with_name(file.name + ".part")
        unfinished.write_text(content)
        unfinished.replace(file)


def draw(path: Path, record: dict[str, Any], quick: bool) -> None:
    """The plot, where matplotlib is."""
    if quick:
        return
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
        worst: dict[str, float] = {}
        for found in checks.values():
            precision = found["precision"]
            worst[precision] = max([worst.get(precision, 0.0), *found["ratios"].values()])
        errors = ", ".join(f"{ratio:.2f} in {precision}" for precision, ratio in worst.items())
        lines += [f"Largest error of output and gradients, over that of logits in float32: {errors}.", ""]
        for title, found in checks.items():
            if not found["passes"]:
                lines.append(f"FAILS: {title}{': ' + found['failed'] if 'failed' in found else ''}.\n")
        lines += [] if record["correct"] else ["The kernels were not timed.", ""]
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
    from harness.figures import style

    style.apply()
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
    axes[0].legend()
    figure.suptitle(f"{record['device']}, batch 64, 12 heads of 64, bfloat16")
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
