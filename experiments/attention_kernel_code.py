"""Registers, shared memory and instructions of the compiled attention kernels; no GPU is needed.

Writes attention/attention_kernel_code.{json,md}: what each kernel needs, how many cycles a step of each inner loop
keeps the tensor cores, the special-function unit and the instruction issue of one multiprocessor busy, and what the
steps of a whole call add up to. This is arithmetic on compiled code, without latencies, memory, or what happens outside
of the loops. Nothing is timed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch
import triton
from harness.attention.bounds import HERTZ, MULTIPROCESSORS, Launch
from harness.attention.compiled import KERNELS, SCORE_KERNELS, Compiled, Loop, Setting, compiled_kernels, inner_loops
from harness.command_line import script_parser
from harness.tables import results_folder

from mvpa_ts.attention.triton import launch

# Of one multiprocessor of an H100 or H200: exponentials per cycle, and 16-bit tensor-core operations (one multiply and
# one add each) per cycle. It issues four instructions a cycle, one from each of its schedulers.
EXPONENTIALS, TENSOR_PRODUCTS, SCHEDULERS = 16, 2048, 4


def cycles(loop: Loop, num_warps: int) -> dict[str, float]:
    """Cycles that one step keeps parts of a multiprocessor busy; the largest is what the step takes at the least."""
    return {
        "tensor cores": loop.tensor_products / TENSOR_PRODUCTS,
        "exponentials": loop.count("MUFU") * num_warps * 32 / EXPONENTIALS,
        "issue": sum(loop.instructions.values()) * num_warps / SCHEDULERS,
    }


def steps(kernel: Compiled, setting: Setting) -> dict[str, int]:
    """How often a call takes a step of the far and of the near loop, all samples and heads together."""
    a, T, C = kernel.arguments, setting.segments, setting.channels
    if kernel.name == "score_gradient":
        groups = setting.kv_heads * setting.groups * (C if a["OF_CHANNEL"] else 1)
        return {"near": groups * -(-a["rows"] // a["BLOCK_M"])}
    if kernel.name == "score":
        tiles = -(-C // a["CHANNELS"]) * a["CHANNELS"] * -(-a["rows"] // a["BLOCK_M"]) * a["heads"]
        stops, held = [a["lags"]], a["BLOCK_M"] // a["CHANNELS"]
        if setting.causal:  # up to the longest lag of the segments that a tile of time scores holds
            starts = range(0, a["rows"], held)
            stops = [max((start + row) % T + 1 for row in range(held)) for start in starts]
        lag_tiles = sum(-(-stop // a["BLOCK_N"]) for stop in stops) / len(stops)
        return {"far": round(lag_tiles * tiles), "near": -(-a["columns"] // a["BLOCK_N"]) * tiles}
    assert a["TILE_CHANNELS"], "few channels are not counted here"
    tokens, block, tiles = T * C, a["BLOCK_M"], -(-C // a["BLOCK_N"])
    window = T if setting.window is None else setting.window
    far = near = 0

    def dense(last: int) -> bool:
        return setting.dense_last_segment and last == T - 1

    if kernel.name in ("forward", "query_gradient"):
        for start in range(0, tokens, block):
            first, last = start // C, (min(start + block, tokens) - 1) // C
            stop = last + 1 if setting.causal else T
            first_near, last_near = (0, stop) if dense(last) else (max(first - window, 0), min(last + window + 1, stop))
            near += tiles * (last_near - first_near)
            far += tiles * (stop - (last_near - first_near))
        return {"far": far * setting.batch * a["heads"], "near": near * setting.batch * a["heads"]}
    for key_start in range(0, T, a["TILES"]):
        key_stop = min(key_start + a["TILES"], T)
        # Segments of the queries that have no far key in this program.
        no_first = 0 if setting.causal else max(key_stop - 1 - window, 0)
        no_last = key_start + window + 1
        for start in range(0, tokens, block):
            first, last = start // C, (min(start + block, tokens) - 1) // C
            in_window = first < key_stop + window and last >= key_start - (0 if setting.causal else window)
            near += tiles * (in_window or dense(last))
            far += tiles * (
                (last >= no_last or first < no_first) and not (setting.dense_last_segment and first == T - 1)
            )
    count = setting.batch * a["heads"]
    return {"far": far * count, "near": 0} if kernel.name == "far_gradient" else {"far": 0, "near": near * count}


def main() -> None:
    """Compile for sm_90, count, and write the report."""
    parser = script_parser(__doc__, "the forward kernel only, and write nothing")
    quick = parser.parse_args().quick
    settings = {"T = C = 50, heads of 64": Setting()}
    if not quick:
        settings["T = C = 100, heads of 64"] = Setting(segments=100, channels=100)
        settings["T = 100, C = 32, 16/8 heads of 128"] = Setting(
            segments=100, channels=32, head_dim=128, groups=2, kv_heads=8
        )
    rows, sums = [], []
    for title, setting in settings.items():
        parts: dict[str, list[dict[str, Any]]] = {}
        calls: dict[str, Launch] = {}
        for kernel in compiled_kernels(setting, kernels=KERNELS[:1] if quick else (*KERNELS, *SCORE_KERNELS)):
            parts.setdefault(kernel.name, []).extend(report(title, kernel, setting))
            calls[kernel.name] = launch_of(kernel, setting)
        for name, part in parts.items():
            if name in SCORE_KERNELS:  # the query kernel's tiles decide how the score gradients are stored
                calls[name] = replace(calls[name], keys=calls["query_gradient"].keys)
            rows += part
            sums.append(summed(part, calls[name]))
    text = table(rows, sums)
    print(text)
    if not quick:
        folder = results_folder("attention")
        record = {"triton": triton.__version__, "target": "sm_90", "loops": rows, "calls": sums}
        (folder / "attention_kernel_code.json").write_text(json.dumps(record, indent=1) + "\n")
        (folder / "attention_kernel_code.md").write_text(text)


def report(title: str, kernel: Compiled, setting: Setting) -> list[dict[str, Any]]:
    """One row for each inner loop; the far one comes first in the code, and in `score` that of the time scores.

    The loops of `key_gradient` and `score_gradient` have one kind of step; the table calls it near.
    """
    rows = []
    taken = steps(kernel, setting)
    loops = inner_loops(kernel)
    one_kind = kernel.name in ("key_gradient", "score_gradient")
    near_loops = len(loops) - (not one_kind)
    for number, loop in enumerate(loops):
        a = kernel.arguments
        name = "near" if number or one_kind else "far"
        tiles = a.get("TILES", 1)
        rows.append(
            {
                "case": title,
                "kernel": kernel.name + {True: ", channel", False: ", time", None: ""}[a.get("OF_CHANNEL")],
                "tile": f"{a['BLOCK_M']} × {a['BLOCK_N']}" + (f" × {tiles}" if tiles > 1 else ""),
                "warps": kernel.num_warps,
                "registers": kernel.registers,
                "spilled": kernel.stack_bytes,
                "shared KB": round(kernel.shared_bytes / 1024, 1),
                "loop": name,
                "tensor instructions": loop.count("HGMMA", "HMMA"),
                "exponentials": loop.count("MUFU"),
                "loads": loop.count("LDG", "LDS", "UTMA"),
                "of these LDSM": loop.count("LDSM"),
                "STS": loop.count("STS"),
                "barriers": loop.count("BAR"),
                "instructions": sum(loop.instructions.values()),
                "cycles": {part: round(value) for part, value in cycles(loop, kernel.num_warps).items()},
                "steps": taken[name] // (1 if name == "far" else near_loops),
            }
        )
    return rows


def launch_of(kernel: Compiled, setting: Setting) -> Launch:
    """The sizes that the formulas of `harness.attention.bounds` need."""
    barriers = [loop.count("BAR") for loop in inner_loops(kernel)]
    if kernel.name in ("key_gradient", "score_gradient"):
        barriers.insert(0, 0)
    rows = setting.segments if setting.causal else 2 * setting.segments - 1
    columns = rows, launch.padded_channels(setting.channels)
    query = torch.empty(setting.head_dim, dtype=setting.dtype, device="meta")
    time_once, channel_once = (launch.sums_fit(query, count) for count in columns)
    return Launch.of(kernel, setting, {"far": 0} | steps(kernel, setting), barriers, (time_once, channel_once))


def summed(rows: list[dict[str, Any]], call: Launch) -> dict[str, Any]:
    """Bounds of one kernel in ms on an H100 at 1.755 GHz, and the largest of them."""
    rate = MULTIPROCESSORS * HERTZ / 1e3
    parts = {part: sum(row["steps"] * row["cycles"][part] for row in rows) / rate for part in rows[0]["cycles"]}
    parts |= call.milliseconds()
    largest = max(parts, key=lambda part: parts[part])
    found = {"case": rows[0]["case"], "kernel": call.name} | {name: round(ms, 2) for name, ms in parts.items()}
    found |= {"L2 GB": round(call.l2_bytes / 1e9, 2), "HBM GB": round(call.hbm_bytes / 1e9, 2)}
    waste = round(call.waste, 2) if call.name in KERNELS else ""
    return found | {"tile waste": waste, "programs at a time": call.resident, "largest": largest}


def table(rows: list[dict[str, Any]], sums: list[dict[str, Any]]) -> str:
    """The rows as Markdown tables."""
    names = [name for name in rows[0] if name != "cycles"]
    parts = list(rows[0]["cycles"])
    lines = [
        f"Compiled for sm_90 with Triton {triton.__version__}; nothing was timed. Counts are per warp and step of a",
        "loop. Cycles: how long one step keeps a part of one multiprocessor busy, at the least. Steps: of a call with",
        "batch 64, causal, window 10, dense last segment, all heads together.",
        "",
        "| " + " | ".join([*names, *(f"cycles: {part}" for part in parts)]) + " |",
        "|" + " --- |" * (len(names) + len(parts)),
    ]
    for row in rows:
        cells = [*(row[name] for name in names), *row["cycles"].values()]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        "What a call takes in ms, if 132 multiprocessors at 1.755 GHz (an H100) were kept busy by one part alone:",
        "bounds from below, not predictions. Tensor cores, exponentials and issue from the steps; the others by the",
        "formulas in experiments/harness/attention/bounds.py, where L2's rate, its latency and the wait at a barrier",
        "are assumed. Prologue and barriers count as if nothing ran beside them in a program.",
        "",
        "| " + " | ".join(sums[0]) + " |",
        "|" + " --- |" * len(sums[0]),
    ]
    lines += ["| " + " | ".join(map(str, row.values())) + " |" for row in sums]
    lines += [
        "",
        "Sum over the kernels of the largest bound; the scores are made in the forward and in the backward pass:",
        "",
        "| case | forward, attention | with scores | with backward, attention | with scores and their gradients |",
        "|---|--:|--:|--:|--:|",
    ]
    for case in dict.fromkeys(row["case"] for row in sums):
        largest = {row["kernel"]: row[row["largest"]] for row in sums if row["case"] == case}
        forward, attention = largest["forward"], sum(largest.get(name, 0.0) for name in KERNELS)
        scores, gradients = (largest.get(name, 0.0) for name in SCORE_KERNELS)
        cells = (forward, forward + scores, attention, attention + 2 * scores + gradients)
        lines.append(f"| {case} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
