"""Processes on one machine: what one holds, the answer of a fresh one, and several that compute together over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import distributed


def status(field: str) -> int:
    """A size in bytes from this process's status; its own peak, where `getrusage` would include the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def answer(script: str, *arguments: object) -> dict[str, Any]:
    """What a script, run in a fresh process, prints last."""
    command = [sys.executable, script, *map(str, arguments)]
    print(" ".join(command[2:]), file=sys.stderr)
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def join(rank: int, processes: int, folder: str | Path) -> None:
    """Meet the others by a file in the folder: a port that was free may be taken by then."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)


def leave() -> NoReturn:
    """End this process when all are here. Torch 2.13 sometimes aborts when it takes down gloo after a backward pass."""
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)
