"""Faster products: oneDNN in place of MKL, where both compute in float32.

torch's builds for x86 call MKL. On processors by AMD it reaches a third of the speed of oneDNN, which torch also holds.
torch lets oneDNN have products in float32 only if it may round their factors to bfloat16. It then does so where the
processor has units for such products (AMX), and computes in float32 elsewhere. So what this processor does is measured.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# oneDNN takes some 20 µs to prepare a product. With fewer multiplications in it, that is more than it saves.
_LEAST_MULTIPLICATIONS = 1 << 23
_lock = threading.Lock()
# How many calls are under way, and the setting to return to when the last one ends.
_calls, _before = 0, "none"


@contextmanager
def faster_products(like: Tensor, multiplications: int) -> Iterator[None]:
    """Let oneDNN have the matrix products in here, if they are large and remain float32."""
    # A tensor of a subclass may have no memory.
    plain = type(like) is Tensor and like.device.type == "cpu" and like.dtype == torch.float32
    if not plain or multiplications < _LEAST_MULTIPLICATIONS or not _remain_float32():
        yield
        return
    with _setting():
        yield


@contextmanager
def _setting() -> Iterator[None]:
    # Threads share the setting, so the last one out puts it back.
    global _calls, _before
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _lock:
        if not _calls:
            _before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
        _calls += 1
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if not _calls:
                matmul.fp32_precision = _before


@functools.cache
def _remain_float32() -> bool:
    with torch.inference_mode(), torch.autocast("cpu", enabled=False), _setting():
        first = torch.arange(2 * 128 * 64, dtype=torch.float64, device="cpu").sin().view(2, 128, 64)
        second = torch.arange(2 * 64 * 256, dtype=torch.float64, device="cpu").cos().view(2, 64, 256)
        error = torch.bmm(first.float(), second.float()).double() - torch.bmm(first, second)
    return bool(error.abs().max() < 1e-4)  # bfloat16 would be off by more than 1e-3
