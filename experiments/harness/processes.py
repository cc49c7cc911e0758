"""Processes on one machine: what one holds, calls in turns, a fresh one's answer, several that compute over gloo."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import distributed

Name = TypeVar("Name")


def status(field: str) -> int:
    """A size in bytes from this process's status; its own peak, where `getrusage` would include the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak_gib(run: Callable[[], Any], limit: float) -> float | None:
    """Peak memory of a run beyond what the process held before it.

    Nothing where the address space would have to grow by more than `limit` GiB, which ends in an out-of-memory error.
    """
    before = status("VmRSS")
    most = status("VmSize") + int(limit * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        run()
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return None
    return round((status("VmHWM") - before) / 2**30, 3)


def interleaved(
    calls: Mapping[Name, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[Name, list[float]]:
    """Seconds of each call by round; in another order each time, for what one leaves in caches, the next one finds."""
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
    order, shuffled = [*calls], random.Random(0)
    for _ in range(rounds):
        shuffled.shuffle(order)
        for name in order:
            started = clock()
            calls[name]()
            seconds[name].append(clock() - started)
    return seconds


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
