"""Time and memory of MVPA on a CPU, against causal `scaled_dot_product_attention` on the same tokens.

All contenders of a size run in turns in one process, and a ratio is the median of the ratios of the turns, so that a
machine that is busy or changes its clock slows all of them alike. Gradients are taken for all inputs: three tensors for
scaled_dot_product_attention (SDPA), eight for MVPA. A second table has what `impl` can be. Peak memory is that of a
fresh process for each case, less what the process held before. Nothing is timed before it has been checked against the
reference in float64. The results hold one part for each kind of processor: a run replaces that of its own.

With --grids: the paper's five efficiency grids, forward, T and C from 1 to 50 (`harness.attention.grids`).

    python experiments/attention/attention_cpu.py --quick --output /tmp/attention
    python experiments/attention/attention_cpu.py          # about 10 minutes, up to 4 GiB
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.attention.grids import measure_grids
from harness.command_line import script_parser
from harness.processes import answer, interleaved, peak_gib
from harness.study import grid, paragraphs
from harness.tables import hardware, results_folder, write_record
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mvpa_ts import mvpa_attention

SIZES = ((50, 50), (100, 32), (12, 21))
HEADS, HEAD_DIM, WINDOW = 12, 64, 10
LIMIT_GIB = 8.0
# B, T, C, H, d: a forecaster's at first, up to the sizes above.
SHAPES = (
    (1, 7, 7, 4, 16), (16, 4, 7, 4, 16), (1, 7, 21, 4, 16), (32, 7, 7, 4, 16), (256, 7, 21, 4, 16),
    (1, 10, 10, 12, 64), *((1, T, C, HEADS, HEAD_DIM) for T, C in reversed(SIZES)),
)  # fmt: skip
IMPLEMENTATIONS = ("reference", "separable", "sdpa")

Run = Callable[[bool], Any]


def main() -> None:
    """Check, time, measure memory, and write the results."""
    arguments = parse_arguments()
    if arguments.memory_of:
        implementation, T, C = arguments.memory_of
        print(json.dumps(peak_memory(implementation, int(T), int(C))))
        return
    torch.set_num_threads(arguments.threads)
    if arguments.call:
        (ordinary(50, 50) if arguments.call == "SDPA" else mvpa(arguments.call, (1, 50, 50, HEADS, HEAD_DIM)))(False)
        return
    if arguments.grids or arguments.quick:
        path = arguments.output / "attention_grids.json"
        measure_grids(path, (1, 10)) if arguments.quick else measure_grids(path)
        if arguments.grids:
            return
    check_correctness()
    print("separable and sdpa agree with the reference in float64")
    turns = 3 if arguments.quick else 11
    sizes, shapes = (SIZES[-1:], SHAPES[:1]) if arguments.quick else (SIZES, SHAPES)
    results = {
        "hardware": {
            "cpu": hardware().rpartition(",")[0],
            "capability": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "load_average_at_start": round(os.getloadavg()[0], 1),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "libraries": {name: libraries(name) for name in ("SDPA", "separable", "sdpa")[: 1 if arguments.quick else 3]},
        "setting": f"float32, batch 1, {HEADS} heads of {HEAD_DIM}, causal, window {WINDOW}",
        "sizes": [timed(T, C, dense, turns) for T, C in sizes for dense in (False, True)],
        "implementations": [implementations(shape, turns) for shape in shapes],
        "memory": [answer(__file__, "--memory-of", name, *size) for size, name in memory_cases(arguments.quick)],
    }
    path = arguments.output / "attention_cpu.json"
    machines = json.loads(path.read_text()) if path.exists() else []
    machines = [machine for machine in machines if machine["hardware"]["cpu"] != results["hardware"]["cpu"]]
    machines.append(results)
    write_record(arguments.output, "attention_cpu", machines, markdown(machines))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = script_parser(__doc__, "small sizes, few turns, no large memory case: seconds")
    parser.add_argument("--grids", action="store_true", help="the paper's five grids instead; minutes, 3 GiB")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for torch (default: 1)")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for the results (default: experiments/results/attention; --quick: a temporary one)",
    )
    parser.add_argument("--memory-of", nargs=3, metavar=("IMPL", "T", "C"), help=argparse.SUPPRESS)
    parser.add_argument("--call", metavar="IMPL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.output is None:
        arguments.output = results_folder("attention", quick=arguments.quick)
    return arguments


def mvpa_inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Random leaves for the eight inputs of `mvpa_attention`; `shape` is B, T, C, H, d."""
    generator = torch.Generator().manual_seed(0)
    _, T, C, H, d = shape
    shapes = [*3 * [shape], (T, H, d), (C, H, d), *3 * [(H, d)]]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def mvpa(impl: Any, shape: tuple[int, ...], dense: bool = False, dtype: torch.dtype = torch.float32) -> Run:
    """A function that runs MVPA, with the gradients of all inputs on demand."""
    inputs = mvpa_inputs(shape, dtype)
    cotangent = torch.ones_like(inputs[0])

    def run(backward: bool) -> Any:
        with torch.set_grad_enabled(backward):
            output = mvpa_attention(*inputs, window=WINDOW, dense_last_segment=dense, impl=impl)
        return (output, *torch.autograd.grad(output, inputs, cotangent)) if backward else output

    return run


def ordinary(T: int, C: int) -> Run:
    """The same for causal `scaled_dot_product_attention` over the T·C tokens."""
    inputs = [torch.randn(1, HEADS, T * C, HEAD_DIM).requires_grad_() for _ in range(3)]
    cotangent = torch.ones_like(inputs[0])

    def run(backward: bool) -> Any:
        with torch.set_grad_enabled(backward):
            output = scaled_dot_product_attention(*inputs, is_causal=True)
        return (output, *torch.autograd.grad(output, inputs, cotangent)) if backward else output

    return run


def by_onednn(run: Run) -> Run:
    """The same where torch hands products in float32 to oneDNN, as impl="separable" lets it."""
    matmul = torch.backends.mkldnn.matmul

    def faster(backward: bool) -> Any:
        before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
        try:
            return run(backward)
        finally:
            matmul.fp32_precision = before

    return faster


def check_correctness() -> None:
    """Compare output and all gradients with the reference."""
    for T, C, dense in ((14, 9, False), (14, 9, True), (25, 4, False)):
        shape = (1, T, C, HEADS, HEAD_DIM)
        expected, *others = (mvpa(impl, shape, dense, torch.float64)(True) for impl in IMPLEMENTATIONS)
        for actual in others:
            torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-9)


def libraries(name: str) -> str:
    """Name the libraries that a call in a fresh process gave its products to, as they say themselves."""
    command = [sys.executable, __file__, "--call", name]
    told = {"MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    lines = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | told).stdout
    products = {"MKL": "MKL_VERBOSE SGEMM", "oneDNN": ",primitive,exec,cpu,matmul"}
    counts = {library: lines.count(mark) for library, mark in products.items()}
    return " and ".join(f"{count} by {library}" for library, count in counts.items() if count)


def timed(T: int, C: int, dense: bool, turns: int) -> dict[str, Any]:
    """Milliseconds of each contender, and of each its median ratio to SDPA in the same turn."""
    contenders = {"sdpa": ordinary(T, C), "separable": mvpa("separable", (1, T, C, HEADS, HEAD_DIM), dense)}
    faster = by_onednn(contenders["sdpa"])
    if (faster(False) - contenders["sdpa"](False)).abs().max() < 1e-4:  # where it rounds to bfloat16, it is no peer
        contenders["sdpa_onednn"] = faster
    row: dict[str, Any] = {"T": T, "C": C, "dense_last_segment": dense, "turns": turns}
    for name, backward in (("forward", False), ("forward_backward", True)):
        for contender, values in (seconds := in_turns(contenders, backward, turns)).items():
            ratios = [value / peer for value, peer in zip(values, seconds["sdpa"], strict=True)]
            row[f"{name}_{contender}_ms"] = round(1e3 * statistics.median(values), 3)
            row[f"{name}_{contender}_ratio"] = round(statistics.median(ratios), 3)
    print(f"timed T={T} C={C}", file=sys.stderr)
    return row


def in_turns(contenders: dict[str, Run], backward: bool, turns: int) -> dict[str, list[float]]:
    """Seconds of each contender in each turn; one more, the first, warms up."""
    seconds = interleaved({name: partial(run, backward) for name, run in contenders.items()}, turns + 1)
    return {name: values[1:] for name, values in seconds.items()}


def implementations(shape: tuple[int, ...], turns: int) -> dict[str, Any]:
    """Milliseconds of each implementation, and which of them impl="auto" gives the very numbers of."""
    contenders = {name: mvpa(name, shape) for name in IMPLEMENTATIONS}
    picked = mvpa("auto", shape)(False)
    row: dict[str, Any] = dict(zip("BTCHd", shape, strict=True))
    row["auto"] = [name for name, run in contenders.items() if torch.equal(run(False), picked)]
    turns = max(1, turns // 4) if row["B"] * row["H"] * (row["T"] * row["C"]) ** 2 > 1e7 else turns
    for name, backward in (("forward", False), ("forward_backward", True)):
        for contender, values in in_turns(contenders, backward, turns).items():
            row[f"{name}_{contender}_ms"] = round(1e3 * statistics.median(values), 2)
    print(f"timed the implementations at {shape}", file=sys.stderr)
    return row


def memory_cases(quick: bool) -> list[tuple[tuple[int, int], str]]:
    """Sizes and implementations whose peak memory is measured."""
    if quick:
        return [((12, 21), "reference"), ((12, 21), "separable")]
    pairs = [((T, C), name) for T, C in ((25, 20), (50, 50)) for name in ("reference", "separable")]
    return [*pairs, ((100, 64), "separable"), ((100, 64), "reference")]


def peak_memory(implementation: str, T: int, C: int) -> dict[str, Any]:
    """Peak memory of one forward and backward pass, beyond what the process held before its inputs were made."""
    torch.set_num_threads(1)
    mvpa(implementation, (1, 2, 2, HEADS, HEAD_DIM))(True)  # load the libraries
    peak = peak_gib(lambda: mvpa(implementation, (1, T, C, HEADS, HEAD_DIM))(True), LIMIT_GIB)
    case = {"implementation": implementation, "T": T, "C": C, "limit_gib": LIMIT_GIB, "peak_gib": peak}
    return case | ({"weights_gib": round(4 * HEADS * (T * C) ** 2 / 2**30, 2)} if peak is None else {})


def markdown(machines: list[dict[str, Any]]) -> str:
    """The results of each machine as tables."""
    parts: list[str | list[str]] = [
        "# MVPA on a CPU",
        f"{machines[0]['setting']}. Ratios are medians over turns, to causal scaled_dot_product_attention (SDPA) on "
        "the same tokens. They depend on the library that torch gives the products of SDPA to: so there is a table for "
        'each machine, and columns "oneDNN" are SDPA under the setting that gives them to oneDNN, where it stays in '
        "float32. Written by `experiments/attention/attention_cpu.py`.",
    ]
    for results in machines:
        machine = results["hardware"]
        parts += [
            f"## {machine['cpu']} ({machine['capability']})",
            f"{machine['threads']} thread(s), torch {machine['torch']}; load average at the start "
            f"{machine['load_average_at_start']} on {machine['cores']} cores (other work makes times long). "
            f"Products of a forward call at T = C = 50: "
            + "; ".join(f"{name} {which}" for name, which in results["libraries"].items())
            + ".",
            against_sdpa(results["sizes"]),
            *implementation_table(results.get("implementations", [])),
            f"Peak memory of forward and backward in a fresh process, inputs and gradients included, under a limit of "
            f"{LIMIT_GIB:g} GiB of address space:",
            grid(
                ["T", "C", "implementation", "GiB"],
                (
                    [row["T"], row["C"], row["implementation"], f"out of memory (one tensor of weights is "
                     f"{row.get('weights_gib')} GiB)" if row["peak_gib"] is None else f"{row['peak_gib']:.3f}"]
                    for row in results["memory"]
                ),
            ),
        ]  # fmt: skip
    return paragraphs(*parts)


def against_sdpa(rows: list[dict[str, Any]]) -> list[str]:
    """The separable path beside torch's attention; its ratio to the faster of the two ways to call that."""
    first = ["forward: SDPA ms", "SDPA, oneDNN ms", "separable ms", "ratio", "to the faster SDPA"]
    heads = ["T", "C", "dense last segment", *first, "forward + backward: SDPA ms", *first[1:]]
    table = []
    for row in rows:
        cells = [row["T"], row["C"], "yes" if row["dense_last_segment"] else "no"]
        for name in ("forward", "forward_backward"):
            times = [row.get(f"{name}_{which}_ms") for which in ("sdpa", "sdpa_onednn", "separable")]
            cells += ["–" if ms is None else f"{ms:.1f}" for ms in times]
            cells += [f"{ratio:.2f}" for ratio in ratios(row, name)]
        table.append(cells)
    return grid(heads, table)


def ratios(row: dict[str, Any], name: str) -> tuple[float, float]:
    """Time of the separable path over that of SDPA as torch calls it, and as it is fastest."""
    ratio = row[f"{name}_separable_ratio"]
    return ratio, ratio / min(1.0, row.get(f"{name}_sdpa_onednn_ratio", 1.0))


def implementation_table(rows: list[dict[str, Any]]) -> list[str | list[str]]:
    """All that `impl` can be on a CPU."""
    if not rows:
        return []
    passes = ("forward", "forward_backward")
    first, *others = IMPLEMENTATIONS
    table = []
    for row in rows:
        times = [f"{row[f'{name}_{impl}_ms']:.1f}" for name in passes for impl in IMPLEMENTATIONS]
        table.append([*(row[size] for size in "BTCHd"), *times, " = ".join(row["auto"])])
    heads = [*"BTCHd", f"forward: {first}", *others, f"forward + backward: {first}", *others, "auto"]
    lead = 'What `impl` can be, in ms, batch B, H heads of d, and which of them `impl="auto"` takes:'
    return [lead, grid(heads, table)]


if __name__ == "__main__":
    main()
