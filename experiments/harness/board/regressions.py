"""Rows of the board without a network: the last value, and ridge regressions in closed form.

Legend: B windows, L look-back, h horizon, C channels, S places beside a channel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from harness.board.tasks import Task
from torch import Tensor

from mvpa_ts.forecasting.pretrained.relations import NAMES, relation_forecasts

PENALTIES = (1.0, 10.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4)
BESIDE = 6
"""Neighbours on each side that a pooled regression reads."""
IN_WINDOW = "Ridge fitted in the window, by place"
_TRAIN_EVERY = 4


def windows(task: Task, part: str, every: int) -> tuple[Tensor, Tensor, Tensor]:
    """Look-backs [B, L, C] with 0 for what is missing, whether they were observed, and truths [B, h, C]."""
    steps = task.starts(part, every)[:, None] + np.arange(task.lookback + task.horizon)
    past, truth = task.values[steps[:, : task.lookback]], task.truth[steps[:, task.lookback :]]
    return torch.tensor(np.nan_to_num(past)), torch.tensor(~np.isnan(past)), torch.tensor(truth)


def every_channel(x: Tensor) -> Tensor:
    """All channels' look-backs for all horizons at once: [B, 1, L·C]."""
    return x.flatten(1)[:, None]


def own_channel(x: Tensor) -> Tensor:
    """The look-back of each channel, with weights that all share: [B, C, L]."""
    return x.mT


def by_place(x: Tensor) -> Tensor:
    """Each channel and its neighbours by relative place, zeros beyond the ends, weights shared: [B, C, (2 S + 1) L]."""
    C = x.shape[2]
    padded = torch.nn.functional.pad(x, (BESIDE, BESIDE))
    return torch.cat([padded[:, :, place : place + C].mT for place in range(2 * BESIDE + 1)], dim=2)


REGRESSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Ridge, own channel": own_channel,
    "Ridge, all channels": every_channel,
    "Ridge, by place": by_place,
}


def ridge_errors(task: Task, design: Callable[[Tensor], Tensor]) -> tuple[list[float], float]:
    """Test error, that of the wider panel if weights are shared, and the penalty that validation chose."""
    past, _, future = windows(task, "train", _TRAIN_EVERY if design is by_place else 1)
    target = future.nan_to_num(0.0).flatten(1)[:, None] if design is every_channel else future.nan_to_num(0.0).mT
    solve = _solver([design(piece) for piece in past.split(256)], [*target.split(256)])
    found = []
    for penalty in PENALTIES:
        weights = solve(penalty)
        found.append((_error(task, "validation", design, weights), penalty, weights))
    _, penalty, weights = min(found, key=lambda case: case[0])
    tested = [task] if design is every_channel or task.wider is None else [task, task.wider]
    return [_error(each, "test", design, weights) for each in tested], penalty


def _solver(pieces: list[Tensor], targets: list[Tensor]) -> Callable[[float], Tensor]:
    """Weights [F, outputs] for a penalty, in the smaller of both forms."""
    flat = [(piece.flatten(0, 1), target.flatten(0, 1)) for piece, target in zip(pieces, targets, strict=True)]
    rows, width = sum(len(piece) for piece, _ in flat), flat[0][0].shape[1]
    if rows < width:
        x, y = (torch.cat(parts) for parts in zip(*flat, strict=True))
        values, vectors = torch.linalg.eigh(x @ x.mT)
        return lambda penalty: x.mT @ (vectors @ ((vectors.mT @ y) / (values.clamp(min=0.0) + penalty)[:, None]))
    gram = torch.stack([x.mT @ x for x, _ in flat]).sum(0)
    cross = torch.stack([x.mT @ y for x, y in flat]).sum(0)
    return lambda penalty: torch.linalg.solve(gram + penalty * torch.eye(width, dtype=gram.dtype), cross)


def _error(task: Task, part: str, design: Callable[[Tensor], Tensor], weights: Tensor) -> float:
    past, _, truth = windows(task, part, 4)
    total, count = 0.0, 0
    for x, y in zip(past.split(128), truth.split(128), strict=True):
        forecast = design(x) @ weights
        forecast = forecast.view_as(y) if design is every_channel else forecast.mT
        error = (forecast - y)[~y.isnan()]
        total, count = total + float(error.square().sum()), count + error.numel()
    return total / count


def in_window_error(task: Task) -> float:
    """Test error of a regression on neighbours that is fitted inside each look-back, pooled over channels."""
    past, observed, truth = windows(task, "test", 16)
    total, count = 0.0, 0
    for x, seen, y in zip(past.split(32), observed.split(32), truth.split(32), strict=True):
        mean, deviation = x.mean(1, keepdim=True), x.std(1, keepdim=True).clamp(min=1e-3)
        order = torch.arange(x.shape[2]).expand(len(x), -1)
        scaled = ((x - mean) / deviation).mT.float()
        forecast = relation_forecasts(scaled, seen.mT, [task.horizon], task.horizon, order)
        near = forecast[0, :, :, NAMES.index("neighbours")].mT.double() * deviation + mean
        error = (near - y)[~y.isnan()]
        total, count = total + float(error.square().sum()), count + error.numel()
    return total / count
