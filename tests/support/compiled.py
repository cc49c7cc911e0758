"""Compiles the attention kernels for a GPU that need not be there, and reads what the compiler made.

`compiled_kernels` runs the launch code on tensors without memory, keeps the arguments of each launch, and compiles the
kernels. `inner_loops`, `serialised` and `waits_and_products` read their code.
"""

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import triton
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
    inputs = launch.Inputs(
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
        launch_scores.scores(query, launch_scores.Tables(*tables[False], *tables[True]))
        launch.forward(inputs, options, results)
        score_gradients = launch.backward(query, inputs, results, None, options, (query, key, value))[:2]
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
