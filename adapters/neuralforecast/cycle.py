"""The phase of a learnable cycle: the host passes no dates, so it comes as a column known ahead, perhaps of a clock."""

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
    """Position in the cycle of each step of each window, [B, L + h].

    Read from the positions [B, L + h, N], which are 0 on missing rows; `observed` is [B, L, N].
    """
    position = position.detach().round().long()
    return whole_positions(position, observed.any(2))


def whole_positions(position: Tensor, known: Tensor) -> Tensor:
    """Positions [..., T] of a panel whose series [..., T, N] have them on the rows that are not missing, else 0.

    Rows are read where a series has one: `known`, of the first rows [..., L], says where that may be 0. The others are
    counted from the row before, or back from the first one that can be read.
    """
    largest = position.abs().argmax(-1, keepdim=True)
    position = position.gather(-1, largest)[..., 0]  # [..., T]
    T, L = position.shape[-1], known.shape[-1]
    # A position of 0 ahead may be that of a missing row. Counting gives the same, except where the clock jumps there.
    readable = torch.cat([known, position[..., L:] != 0], dim=-1)
    step = torch.arange(T, device=position.device)
    latest = torch.where(readable, step, -1).cummax(-1).values
    first = readable.to(torch.uint8).argmax(-1, keepdim=True)
    origin = torch.where(latest < 0, first, latest)
    return position.gather(-1, origin) + step - origin
