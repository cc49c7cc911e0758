"""The paper's five efficiency grids on a CPU: time and peak memory of a forward pass, T and C from 1 to 50.

The paper measures batch 64 in bfloat16 on an A100. Here it is batch 1 in float32 on one thread, so that only the growth
with T and C compares. In place of its kernels stand what does the same on a CPU: the separable MVPA for FlashMVPA,
PyTorch's fused attention for FlashAttention-2. MVPA and attention as they are written, and Nyströmformer with its
convolution, are the same. 12 heads of 64, keys and values for each head.

Each cell runs in a process of its own that is forked from one with everything loaded; its peak is that of its memory
less what it began with. The smallest of its times counts. Cells that the record holds are not run again.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from harness.attention.peers import Case, contenders
from harness.paper import tables as paper
from harness.processes import status
from harness.study import grid, paragraphs
from harness.tables import hardware, write_page

from mvpa_ts.files import write_text

GRID = (1, 10, 20, 30, 40, 50)
# Our name: the paper's title, its table, the contender here.
GRIDS = {
    "MVPA as written": ("mvpa_perf", "MVPA reference"),
    "attention as written": ("naive_perf", "softmax attention"),
    "MVPA, linear memory": ("flashmvpa_perf", "MVPA separable"),
    "fused attention": ("flashatt_perf", "flash SDPA"),
    "Nyströmformer": ("linear_perf", "Nyströmformer"),
}
_SECONDS = 0.3  # of repetitions of a small cell


def measure_grids(path: Path, sizes: Sequence[int] = GRID) -> None:
    """Measure the cells that the record lacks, and write the tables."""
    record: dict[str, Any] = {"machine": f"{hardware()}; 1 thread, torch {torch.__version__}", "cells": {}}
    if path.is_file():
        record = json.loads(path.read_text(encoding="utf-8"))
    for name in GRIDS:
        for T, C in itertools.product(sizes, sizes):
            if (key := f"{name} {T}x{C}") not in record["cells"]:
                record["cells"][key] = {"name": name, "T": T, "C": C, **measured(name, T, C)}
                write_text(path, json.dumps(record, indent=1) + "\n")
        print(f"{name}: done", flush=True)
    write_page(path, markdown(record))


def measured(name: str, T: int, C: int) -> dict[str, float]:
    """Milliseconds and GiB of one cell, from a forked process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(there, name, T, C))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError as error:
        raise RuntimeError(f"{name} at T = {T}, C = {C} ended without a result: out of memory?") from error
    finally:
        process.join()


@torch.no_grad()
def _measure(pipe: Connection, name: str, T: int, C: int) -> None:
    case = Case(T, C, batch=1, dense_last_segment=False)
    before = status("VmRSS")
    inputs = {key: tensor.detach() for key, tensor in case.inputs(torch.device("cpu"), torch.float32).items()}
    attend = contenders(case)[GRIDS[name][1]]
    times: list[float] = []
    while not times or (sum(times) < _SECONDS and len(times) < 20):
        started = time.process_time()  # of the processor: other work on the machine does not count
        attend(inputs)
        times.append(time.process_time() - started)
    pipe.send({"ms": 1e3 * min(times), "GiB": max(status("VmHWM") - before, 0) / 2**30})
    pipe.close()


def markdown(record: dict[str, Any]) -> str:
    """One table for each grid, and how much each grows beside the paper's."""
    cells = list(record["cells"].values())
    sizes = sorted({cell["T"] for cell in cells})
    parts: list[str | list[str]] = [
        "Forward pass of one attention, batch 1, float32, 12 heads of 64, content of MVPA within 10 segments: "
        "milliseconds of processor time / GiB of peak memory, inputs included."
    ]
    for name in GRIDS:
        of_name = {(cell["T"], cell["C"]): cell for cell in cells if cell["name"] == name}
        table = []
        for T in sizes:
            row = [of_name.get((T, C)) for C in sizes]
            table.append([T, *("–" if cell is None else f"{cell['ms']:.3g} / {cell['GiB']:.3f}" for cell in row)])
        parts += [f"**{name}**", grid(["T \\ C", *sizes], table)]
    parts.append(
        "How many times longer T = C = 50 takes than T = C = 20 (6.25 times the tokens, 39 times the pairs), and how "
        "many times more memory; the paper's from its tables (batch 64, bfloat16, A100; it prints µs where its sizes "
        "say ms):"
    )
    table = []
    for name, (file, _) in GRIDS.items():
        of_name = {(cell["T"], cell["C"]): cell for cell in cells if cell["name"] == name}
        printed = paper.efficiency(file).set_index(["T", "C"])
        if (50, 50) in of_name:
            large, small = of_name[50, 50], of_name[20, 20]
            theirs = printed.loc[(50, 50)] / printed.loc[(20, 20)]
            ratios = large["ms"] / small["ms"], theirs["ms"], large["GiB"] / small["GiB"], theirs["GB"]
            table.append([name, *(f"{ratio:.1f}" for ratio in ratios)])
    ratios_of = grid(["", "time, here", "time, the paper", "memory, here", "memory, the paper"], table)
    return paragraphs(*parts, ratios_of, f"Measured on {record['machine']}, beside other work.")
