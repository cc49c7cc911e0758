"""The fastest of a few block sizes on this GPU, timed once for each kind of call and remembered on disk.

The choice lies in Triton's own cache, beside the compiled kernels. Its key holds the source of the kernel, the GPU and
the candidates: if one of them changes, the candidates are timed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.runtime.cache import get_cache_manager

SWITCH = "MVPA_TS_TUNE"
"""Environment variable; with "0" the first candidate is taken, which was chosen by counting instructions."""

_FILE = "blocks.json"
_chosen: dict[tuple[Hashable, ...], int] = {}


@dataclass(frozen=True)
class Blocks:
    """Sizes of one program: query tokens and keys of a tile, warps, pipeline stages, number of tiles."""

    query_tokens: int
    keys: int
    num_warps: int
    num_stages: int = 2
    tiles: int = 1


def fastest(
    kernel: Any,
    candidates: Sequence[Blocks],
    arguments: dict[str, Any],
    device: torch.device,
    run: Callable[[Blocks], None],
) -> Blocks:
    """Return the candidate with the smallest median time of ``run(candidate)``; the first if timing is not allowed.

    `run` must give the same result each time. Candidates that are too large for the GPU are left out.
    """
    if len(candidates) == 1 or not may_choose(device):
        return candidates[0]
    # What the choice depends on. Each launch looks it up, so this must be quick.
    # Sizes by powers of two, so that recordings with 61 and 63 channels are timed once.
    sizes = (arguments[name].bit_length() for name in ("batch", "segments", "channels", "heads"))
    switches = (value for name, value in arguments.items() if name.isupper())
    call = kernel.cache_key, tuple(candidates), arguments["p_query"].dtype, device, *sizes, *switches
    if call not in _chosen:
        if torch.cuda.is_current_stream_capturing():
            return candidates[0]  # a captured stream cannot be timed
        key = _key(call, device)
        index = _remembered(key, len(candidates))
        if index is None:
            index = _time(candidates, run)
            if index is None:
                return candidates[0]
            get_cache_manager(key).put(json.dumps(index), _FILE, binary=False)
        _chosen[call] = index
    return candidates[_chosen[call]]


def may_choose(device: torch.device) -> bool:
    """Say whether the clock may decide: not without a GPU, nor if results must not depend on a clock."""
    return (
        device.type == "cuda"
        and os.environ.get(SWITCH) != "0"
        and os.environ.get("TRITON_INTERPRET") != "1"
        and not torch.are_deterministic_algorithms_enabled()
    )


def milliseconds(run: Callable[[], None]) -> float:
    """Return the median time of a launch."""
    return triton.testing.do_bench(run, warmup=5, rep=20, return_mode="median")


def _time(candidates: Sequence[Blocks], run: Callable[[Blocks], None]) -> int | None:
    """Return the position of the fastest; None if nothing could be timed, as when memory is short for a while."""
    times = []
    for blocks in candidates:
        try:
            times.append(milliseconds(lambda blocks=blocks: run(blocks)))  # type: ignore[misc]
        except (triton.runtime.errors.OutOfResources, torch.OutOfMemoryError):
            times.append(float("inf"))
    return None if min(times) == float("inf") else times.index(min(times))


def _key(call: tuple[Hashable, ...], device: torch.device) -> str:
    """Return the key on disk, the same for all processes and all GPUs of one kind."""
    described = (triton.__version__, torch.cuda.get_device_name(device), *(x for x in call if x != device))
    return hashlib.sha256(repr(described).encode()).hexdigest()


def _remembered(key: str, candidates: int) -> int | None:
    path = get_cache_manager(key).get_file(_FILE)
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            index = json.load(file)
    except (OSError, ValueError):
        return None  # a damaged file is written anew
    return index if isinstance(index, int) and 0 <= index < candidates else None
