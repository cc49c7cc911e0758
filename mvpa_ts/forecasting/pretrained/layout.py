"""Where the series of a panel lie, as a panel network reads it: a row of a table for each pair, and an order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

STEPS = 13
"""Distances that are told apart, two for each doubling, from the usual gap to 64 of it."""
SAME, UNKNOWN, BEFORE, AFTER, AROUND = 0, 1, 2, 2 + STEPS, 2 + 2 * STEPS
"""First rows of the table: the series itself, no place given, before and after on a line, at a distance in space."""
ROWS = AROUND + STEPS


class Layout(NamedTuple):
    """Places of series.

    Parameters
    ----------
    rows : long Tensor, shape (B, C, C)
        Row of the table of distances for each pair.
    order : long Tensor, shape (B, C)
        Series along a line; −1 where they lie on none.
    places : Tensor, shape (B, C, k), optional
        In usual gaps; None where there are none, or more than three coordinates, which are no place in space.
    """

    rows: Tensor
    order: Tensor
    places: Tensor | None = None

    def of(self, panels: list[int] | Tensor) -> Layout:
        """Some of the panels, by their number."""
        places = None if self.places is None else self.places[panels]
        return Layout(self.rows[panels], self.order[panels], places)


def layout(places: Tensor | None, panels: int, series: int, device: torch.device | None = None) -> Layout:
    """The layout of `panels` panels whose series lie at `places`.

    Parameters
    ----------
    places : Tensor, shape (B, C, k), optional
        One coordinate: places on a line, which then have an order and a direction. Two or three: places in space,
        of which distances count. None: nothing is known. Raises a ValueError if one is not finite, or all are equal.
    panels, series : int
    device : torch.device, optional
    """
    same = torch.eye(series, dtype=torch.bool, device=device)
    if places is None:
        rows = torch.where(same, SAME, UNKNOWN).expand(panels, series, series)
        return Layout(rows, torch.full((panels, series), -1, device=device))
    checked = not torch.compiler.is_compiling()  # a graph cannot look at numbers
    if checked and not places.isfinite().all():
        raise ValueError("positions must be finite numbers; got NaN or infinite ones")
    difference = places[:, None] - places[:, :, None]  # [B, C of the query, C of the key, k]
    distance = difference.square().sum(3).sqrt()
    nearest = distance.masked_fill(same, torch.inf).amin(2)
    # Series at the same place say nothing about the usual gap.
    gap = torch.where(nearest > 0, nearest, torch.nan).nanmedian(1).values[:, None, None]
    if checked and series > 1 and gap.isnan().any():
        raise ValueError("positions must differ; got the same place for all series")
    step = (2.0 * torch.log2((distance / gap).clamp(min=1.0))).round().long().clamp(max=STEPS - 1)
    if places.shape[2] == 1:
        rows = torch.where(difference[..., 0] < 0, BEFORE, AFTER) + step
        order = places[..., 0].argsort(dim=1, stable=True)
    else:
        rows = AROUND + step
        order = torch.full(places.shape[:2], -1, device=places.device)
    return Layout(torch.where(same, SAME, rows), order, places / gap if places.shape[2] <= 3 else None)
