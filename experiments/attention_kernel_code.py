"""Registers, shared memory and instructions of the compiled attention kernels; no GPU is needed.

`compiled_kernels` runs the launch code on tensors without memory, keeps the arguments of each launch, and compiles the
kernels for a GPU that need not be there. Run as a script it writes attention/attention_kernel_code.{json,md}: what each
kernel needs, how many cycles a step of each inner loop keeps the tensor cores, the special-function unit and the
instruction issue of one multiprocessor busy, and what the steps of a whole call add up to. This is arithmetic on
compiled code, without latencies, memory, or what happens outside of the loops. Nothing is timed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import triton
from harness.attention.bounds import HERTZ, MULTIPROCESSORS, Launch
from harness.command_line import script_parser
from harness.tables import results_folder
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from mvpa_ts.attention.triton import launch, launch_scores

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
KERNELS = ("forward", "query_gradient", "far_gradient", "key_gradient")
SCORE_KERNELS = ("score", "score_gradient")
# Shared memory that one block may have, in KB.
SHARED_LIMIT = {80: 163, 90: 227, 100: 227}
_TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int8: "i8"}
# Of one multiprocessor of an H100 or H200: exponentials per cycle, and 16-bit tensor-core operations (one multiply and
# one add each) per cycle. It issues four instructions a cycle, one from each of its schedulers.
EXPONENTIALS, TENSOR_PRODUCTS, SCHEDULERS = 16, 2048, 4


@dataclass(frozen=True)
class Setting:
    """One call of the attention, as far as the compiled code depends on it."""

    segments: int = 50
    channels: int = 50
    head_dim: int = 64
    groups: int = 1
    kv_heads: int = 12
    batch: int = 64
    dtype: torch.dtype = torch.bfloat16
    causal: bool = True
    window: int | None = 10
    dense_last_segment: bool = True
    masked: bool = False
    components: tuple[str, ...] = ("content", "time", "channel")


@dataclass(frozen=True)
class Loop:
    """An innermost loop with tensor-core instructions: one step works on one tile."""

    instructions: dict[str, int]
    tensor_products: int  # multiply-adds of one step, by all warps of the program

    def count(self, *prefixes: str) -> int:
        """Instructions whose name starts with one of the prefixes, per warp and step."""
        return sum(count for name, count in self.instructions.items() if name.startswith(prefixes))


@dataclass(frozen=True)
class Compiled:
    """A kernel for one GPU architecture."""

    name: str
    capability: int
    num_warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    arguments: dict[str, Any] = field(repr=False)


def compiled_kernels(setting: Setting, capability: int = 90, kernels: tuple[str, ...] = KERNELS) -> Iterator[Compiled]:
    """Compile kernels as one call of the attention, forward and backward, would launch them."""
    with mock.patch.object(launch, "compute_capability", return_value=divmod(capability, 10)):
        found = launches(setting)
    for name, kernel, arguments in found:
        if name in kernels:
            yield compiled(name, kernel, arguments, capability)


def launches(setting: Setting) -> list[tuple[str, Any, dict[str, Any]]]:
    """The kernels that a call would launch, with their arguments.

    The kernel of the scores comes first, and that of their gradients last, once for time and once for channel.
    """
    s = setting
    B, T, C, H_kv, d = s.batch, s.segments, s.channels, s.kv_heads, s.head_dim
    H = H_kv * s.groups
    rows, padded = T if s.causal else 2 * T - 1, launch.padded_channels(C)

    def empty(*shape: int, dtype: torch.dtype = s.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    query, key, value = empty(B, T, C, H, d), empty(B, T, C, H_kv, d), empty(B, T, C, H_kv, d)
    inputs = (
        query,
        key,
        value,
        empty(H_kv, d) if "content" in s.components else None,
        empty(H, rows, B * T * C, dtype=torch.float32) if "time" in s.components else None,
        empty(C * H, B * T, padded, dtype=torch.float32) if "channel" in s.components else None,
        empty(B, T, C, dtype=torch.bool) if s.masked else None,
    )
    tables = {False: (empty(H, rows, d), empty(H, rows, 1, dtype=torch.float32))}
    tables[True] = empty(C * H, d, padded), empty(C * H, 1, padded, dtype=torch.float32)
    options = launch.Options(s.causal, s.window, s.dense_last_segment)
    statistics = 2 * [empty(B, H, T * C, dtype=torch.float32)]
    results = query, *statistics, empty(B, T, C, H, d, dtype=torch.int8)
    found: list[tuple[str, Any, dict[str, Any]]] = []
    with ExitStack() as stack:
        for module, names in ((launch, KERNELS), (launch_scores, SCORE_KERNELS)):
            recorders = {f"{name}_kernel": _Recorder(name, module, found) for name in names}
            stack.enter_context(mock.patch.multiple(module, **recorders))
        launch_scores.scores(query, *tables[False], *tables[True])
        launch.forward(*inputs, options, results)
        score_gradients = launch.backward(query, *inputs, results, None, options, (query, key, value))[:2]
        for (of_channel, (table, _)), gradient in zip(tables.items(), score_gradients, strict=True):
            if gradient is not None and launch.sums_fit(query, table.shape[2 if of_channel else 1]):
                launch_scores.score_gradients(query, table, gradient, query, of_channel=of_channel)
    return found


class _Recorder:
    """Stands in for a kernel: keeps what it is launched with."""

    def __init__(self, name: str, module: ModuleType, found: list[tuple[str, Any, dict[str, Any]]]) -> None:
        self.name, self.found = name, found
        self.kernel = getattr(module, f"{name}_kernel")

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda **arguments: self.found.append((self.name, self.kernel, arguments))


def compiled(name: str, kernel: Any, arguments: dict[str, Any], capability: int) -> Compiled:
    """Compile one kernel; integers and pointers are specialised as a launch would do it."""
    options = {option: arguments[option] for option in ("num_warps", "num_stages")}
    signature, constants, attributes = {}, {}, {}
    for position, parameter in enumerate(kernel.arg_names):
        given = arguments[parameter]
        special = not kernel.params[position].do_not_specialize
        if isinstance(given, Tensor):
            signature[parameter] = "*" + _TYPES[given.dtype]
            attributes[(position,)] = [["tt.divisibility", 16]]
        elif isinstance(given, float):
            signature[parameter] = "fp32"
        elif parameter.isupper() or (given == 1 and special):
            signature[parameter] = "constexpr"
            constants[parameter] = given
        else:
            signature[parameter] = "i32"
            if given % 16 == 0 and special:
                attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    cubin = result.asm["cubin"]
    usage = run_tool("cuobjdump", "--dump-resource-usage", cubin)
    registers, stack = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))  # type: ignore[index]
    return Compiled(
        name,
        capability,
        options["num_warps"],
        registers,
        stack,
        result.metadata.shared,
        result.asm["ptx"],
        cubin,
        arguments,
    )


def run_tool(tool: str, option: str, cubin: bytes) -> str:
    """What one of the tools that Triton brings says of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
        file.write(cubin)
    try:
        return subprocess.run([TOOLS / tool, option, file.name], capture_output=True, text=True, check=True).stdout
    finally:
        os.unlink(file.name)


def serialised(kernel: Compiled) -> list[str]:
    """What ptxas says of products that it makes wait for each other (C75…), for the kernel's own PTX and options."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx", delete=False) as file:
        file.write(kernel.ptx)
    target = re.search(r"^\.target (\w+)", kernel.ptx, re.MULTILINE)[1]  # type: ignore[index]
    command = [get_ptxas(kernel.capability).path, "-v", "--regAllocOptLevel=2", f"--gpu-name={target}"]
    try:
        result = subprocess.run([*command, file.name, "-o", os.devnull], capture_output=True, text=True, check=True)
    finally:
        os.unlink(file.name)
    return [line for line in result.stderr.splitlines() if re.search(r"\(C75\d\d\)", line)]


def waits_and_products(kernel: Compiled) -> tuple[int, int]:
    """Waits for warp-group products in the whole kernel, and these products (sm_90)."""
    code = run_tool("cuobjdump", "-sass", kernel.cubin)
    return code.count("WARPGROUP.DEPBAR"), len(re.findall(r"\bHGMMA\.", code))


def inner_loops(kernel: Compiled) -> list[Loop]:
    """Innermost loops with tensor-core instructions, in the order of the code (sm_90)."""
    lines = run_tool("cuobjdump", "-sass", kernel.cubin).splitlines()
    code = [
        match for line in lines if (match := re.search(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z]\S*)(.*);", line))
    ]
    address = {int(match[1], 16): index for index, match in enumerate(code)}
    loops = []
    for index, match in enumerate(code):
        target = re.search(r"0x([0-9a-f]+)\s*$", match[3]) if match[2].startswith("BRA") else None
        start = address.get(int(target[1], 16)) if target else None
        if start is not None and start < index:
            loops.append((start, index))
    innermost = [
        (start, stop)
        for start, stop in loops
        if not any((start, stop) != other and start <= other[0] and other[1] <= stop for other in loops)
    ]
    found = []
    for start, stop in innermost:
        names = Counter(match[2] for match in code[start : stop + 1])
        products = sum(count * _products(name) for name, count in names.items())
        if products:
            # A warp-group instruction is issued by four warps together.
            groups = kernel.num_warps // 4 if any(name.startswith("HGMMA") for name in names) else kernel.num_warps
            found.append(Loop(dict(names), products * groups))
    return found


def _products(name: str) -> int:
    """Multiply-adds of one tensor-core instruction, HGMMA.64x64x16 or HMMA.16816."""
    if match := re.match(r"HGMMA\.(\d+)x(\d+)x(\d+)", name):
        return int(match[1]) * int(match[2]) * int(match[3])
    return 16 * 8 * 16 if name.startswith("HMMA.16816") else 0


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
