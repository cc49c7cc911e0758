"""The phase of a learnable cycle: the host passes no dates, so it comes as a column known ahead."""

from __future__ import annotations

import torch
from torch import Tensor


def check_cycle(length: int | None, column: str | None, future: list[str] | None, categories: list[str] | None) -> None:
    """Raise ValueError unless the cycle has a column, known ahead, with each step's position."""
    if (length is None) != (column is None):
        raise ValueError(
            "cycle_length and cycle_column must be given together: the host passes no dates, so a column of "
            f"futr_exog_list must hold each step's position; got cycle_length={length!r}, cycle_column={column!r}"
        )
    if column is not None and (column not in (future or []) or column in (categories or [])):
        raise ValueError(f"cycle_column ({column!r}) must be in futr_exog_list and not in cat_exog_list")


def phase_of(position: Tensor, observed: Tensor) -> Tensor:
    """Position in the cycle of each window's first step, [B].

    Read from the positions [B, L + h, N] at the last row that is not missing; `observed` is [B, L, N].
    """
    L, N = observed.shape[1:]
    steps = torch.arange(1, L + 1, device=observed.device)[:, None]
    last = (observed * steps).flatten(1).argmax(1)  # [B]
    step, series = last // N, last % N
    windows = torch.arange(len(position), device=position.device)
    # A window without any observed row has a position ahead at least.
    step = torch.where(observed.flatten(1).any(1), step, L)
    return position[windows, step, series].detach().round().long() - step
