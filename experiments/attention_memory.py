"""Memory that attention allocates, forward and backward, counted on tensors without memory: no GPU is needed.

`counted` runs `mvpa_attention` with the launch code of FlashMVPA on the meta device. The kernels themselves, which
allocate nothing, are left out. After each operation of torch the tensors that are alive are added up; the largest sum
is the peak. Not seen: the work space of cuBLAS and the fragments of torch's allocator. Flash attention is counted as
what it cannot do without: query, key, value, output, log-sum-exp and the gradients of the first four. Its kernel in
PyTorch takes more, the gradient of the queries in float32.

Writes results/attention/attention_memory.{json,md}; nothing is measured.

    PYTHONPATH=. python experiments/attention_memory.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any
from unittest import mock

import torch
from harness.attention.peers import Case
from harness.command_line import script_parser
from harness.tables import results_folder
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mvpa_ts import mvpa_attention
from mvpa_ts.attention import functional
from mvpa_ts.attention.triton import launch, launch_scores, operator

CASES = (
    Case(50, 50),
    Case(100, 32),
    Case(25, 128),
    Case(100, 100),
    Case(100, 88, heads=12, kv_heads=4),
    Case(100, 88, heads=16, kv_heads=8, head_dim=128),
)
# What is counted; inputs are counted in every one.
STAGES = ("forward alone", "kept for backward", "forward + backward")


class _NoKernel:
    """Stands in for a kernel; keeps nothing of what it is launched with."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda **arguments: None


class _Alive(TorchDispatchMode):
    """Bytes of the tensors that are alive, now and at most; operators of the kernels run as on a GPU, without them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def now(self) -> int:
        self.seen = {reference: size for reference, size in self.seen.items() if not reference.expired()}
        return sum(self.seen.values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        for name in ("flash_attention", "flash_attention_backward"):
            if function is getattr(torch.ops.mvpa_ts, name).default:
                with self:
                    return getattr(operator, name)._init_fn(*args, **(kwargs or {}))
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.seen[StorageWeakRef(leaf.untyped_storage())] = leaf.untyped_storage().nbytes()
        self.peak = max(self.peak, self.now())
        return result


def counted(case: Case, dtype: torch.dtype = torch.bfloat16, **options: Any) -> dict[str, int]:
    """Bytes of FlashMVPA in each stage."""
    found = {}
    with ExitStack() as stack:
        kernels = [(launch, name) for name in ("forward", "query_gradient", "far_gradient", "key_gradient")]
        kernels += [(launch_scores, name) for name in ("score", "score_gradient")]
        for target, name, stand_in in (
            (functional, "why_unavailable", lambda query: None),
            (torch, "is_autocast_enabled", lambda *_: False),
            (torch, "autocast", lambda *_, **__: nullcontext()),
            *((module, f"{name}_kernel", _NoKernel()) for module, name in kernels),
        ):
            stack.enter_context(mock.patch.object(target, name, stand_in))

        def attend(inputs: list[Tensor]) -> Tensor:
            switches = {"window": case.window, "dense_last_segment": case.dense_last_segment} | options
            return mvpa_attention(*inputs, impl="triton", **switches)  # type: ignore[arg-type]

        with _Alive() as alive:
            inputs = [torch.empty(shape, dtype=dtype, device="meta") for shape in case.shapes.values()]
            alive.peak = alive.now()
            attend(inputs)
            found[STAGES[0]] = alive.peak
            inputs = [x.requires_grad_() for x in inputs]
            output = attend(inputs)
            found[STAGES[1]] = alive.now()
            cotangent = torch.empty_like(output)
            alive.peak = alive.now()
            gradients = torch.autograd.grad(output, inputs, cotangent)
            found[STAGES[2]] = alive.peak
            del gradients
    return found


def of_flash_attention(case: Case, element_bytes: int = 2) -> dict[str, int]:
    """Bytes of softmax attention that keeps no weights, in each stage."""
    tokens = case.batch * case.tokens
    queries = tokens * case.heads * case.head_dim * element_bytes
    keys = tokens * case.kv_heads * case.head_dim * element_bytes
    statistics = tokens * case.heads * 4
    forward = 2 * queries + 2 * keys + statistics
    return dict(zip(STAGES, (forward, forward, 2 * forward), strict=True))


def rows() -> list[dict[str, Any]]:
    """GiB of both, and their ratio, of each case and stage."""
    found = []
    for case in CASES:
        ours, flash = counted(case), of_flash_attention(case)
        for stage in STAGES:
            # A benchmark on a GPU sees what a call adds to its inputs and the gradient of its output.
            given = ("query", "key", "value", *(("query",) if stage == STAGES[2] else ()))
            given_bytes = 2 * sum(math.prod(case.shapes[name]) for name in given)
            numbers = {
                "FlashMVPA GiB": ours[stage] / 2**30,
                "flash attention GiB": flash[stage] / 2**30,
                "×": ours[stage] / flash[stage],
                "× beyond the inputs": (ours[stage] - given_bytes) / (flash[stage] - given_bytes),
            }
            found.append({"case": str(case), "stage": stage} | {name: round(x, 2) for name, x in numbers.items()})
    return found


def table(found: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "Counted on tensors without memory, not measured; bfloat16, causal, window 10. Inputs are part of every",
        "number, and the gradient of the output of the last stage. Flash attention: its inputs, outputs, gradients.",
        "",
        "| " + " | ".join(found[0]) + " |",
        "|" + " --- |" * len(found[0]),
        *("| " + " | ".join(map(str, row.values())) + " |" for row in found),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Count, print, write."""
    parser = script_parser(__doc__, "write nothing")
    quick = parser.parse_args().quick
    found = rows()
    print(table(found))
    if not quick:
        folder = results_folder("attention")
        (folder / "attention_memory.json").write_text(json.dumps(found, indent=1) + "\n")
        (folder / "attention_memory.md").write_text(table(found))


if __name__ == "__main__":
    main()
