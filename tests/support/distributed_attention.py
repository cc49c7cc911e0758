"""What each process of tests/attention/test_context_parallel.py runs; importable by name, as new processes need it."""

from pathlib import Path
from typing import Any

import torch
from harness.processes import join, leave
from support.attention_checks import INPUTS, Case
from torch import Tensor

from mvpa_ts.attention.context_parallel import context_parallel_attention

SEGMENTS = 12
CASES = (
    Case((SEGMENTS, 3), window=2),
    Case((SEGMENTS, 3), window=1, dense_last_segment=True, groups=2, masks="token"),
    Case((SEGMENTS, 3), window=5, causal=False, channel_distance="signed"),
    Case((SEGMENTS, 3), causal=False, masks="token"),
    Case((SEGMENTS, 9), window=0, channel_window=1, channel_reach=1, batch=1),
    Case((SEGMENTS, 3), components=("time", "channel")),
)


def cotangent(case: Case) -> Tensor:
    shape = case.inputs()[0].shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def process(rank: int, processes: int, folder: str) -> None:
    join(rank, processes, folder)
    share = slice(rank * SEGMENTS // processes, (rank + 1) * SEGMENTS // processes)
    found = {}
    for number, case in enumerate(CASES):
        inputs = [tensor.detach() for tensor in case.inputs()]
        inputs[:3] = [tensor[:, share] for tensor in inputs[:3]]
        for tensor in inputs:
            tensor.requires_grad_()
        options: dict[str, Any] = case.options()
        if "token_mask" in options:
            options["token_mask"] = options["token_mask"][:, share]
        output = context_parallel_attention(*inputs, **options)
        gradients = torch.autograd.grad(output, inputs, cotangent(case)[:, share], allow_unused=True)
        found |= {f"{number} output": output.detach()}
        found |= {
            f"{number} {name}": torch.zeros_like(tensor) if gradient is None else gradient
            for name, tensor, gradient in zip(INPUTS, inputs, gradients, strict=True)
        }
    torch.save(found, Path(folder) / f"{rank}.pt")
    leave()
