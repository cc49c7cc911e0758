"""FlashMVPA: exact attention in Triton kernels with a rank-1 far field; docs/flashmvpa.md derives it.

Triton itself is imported with `operator`, which mvpa_ts.attention.functional loads on first use.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

try:
    _HAS_TRITON = importlib.util.find_spec("triton") is not None
except ImportError:
    _HAS_TRITON = False
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_HEAD_DIM = 128
# Positions of tokens are computed in float32.
MOST_TOKENS = 1 << 20
# Offsets within a sample are 32-bit numbers with a sign.
MOST_NUMBERS = 1 << 31
# Scores of time and channel of a sample, T + C for each query and head, are held in float32: 16 GiB. With few channels
# they would be nearly the N² numbers that the kernels are there to avoid (T = 10,000, C = 10, 12 heads: 45 GiB).
MOST_SCORES = 1 << 32


def why_unavailable(query: Tensor) -> str | None:
    """Say why the kernels cannot run on this query; None if they can."""
    if not _HAS_TRITON:
        return "the package triton is not installed"
    device = query.device
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):
            return f"it needs a GPU of compute capability 8.0 or newer, {device} has {capability[0]}.{capability[1]}"
    elif device.type != "cpu":
        return f"it needs a CUDA device, the query is on {device}"
    elif os.environ.get("TRITON_INTERPRET") != "1":
        return "it needs a CUDA device, the query is on cpu (TRITON_INTERPRET=1, set at start, runs it there, slowly)"
    if query.dtype not in _DTYPES:
        return f"it takes {', '.join(map(str, _DTYPES))}, got {query.dtype}"
    if query.shape[-1] > LARGEST_HEAD_DIM:
        return f"it takes heads up to {LARGEST_HEAD_DIM} wide, got {query.shape[-1]}"
    tokens = query.shape[1] * query.shape[2]
    if tokens >= MOST_TOKENS:
        return f"it takes fewer than {MOST_TOKENS} tokens a sample, got {tokens}"
    if (numbers := tokens * query.shape[3] * query.shape[4]) >= MOST_NUMBERS:
        return f"it takes queries of fewer than {MOST_NUMBERS} numbers a sample, got {numbers}"
    if (scores := tokens * query.shape[3] * sum(query.shape[1:3])) > MOST_SCORES:
        return f"it holds at most {MOST_SCORES} scores of time and channel a sample, this one has {scores}"
    return None
