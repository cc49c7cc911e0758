"""Rows of the board without a network: the last value, and ridge regressions in closed form.

Legend: B windows, L look-back, h horizon, C channels, S places beside a channel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from harness.board.tasks import Task
from torch import Tensor

from mvpa_ts.forecasting.network.regressions import regress
from mvpa_ts.forecasting.pretrained.relations import NAMES, relation_forecasts

PENALTIES = (1.0, 10.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4)
ROUNDS, ROUND_PENALTY = 3, 1e3
"""In which missing targets are forecast by the regression of the round before: zeros would draw forecasts to zero."""
BESIDE = 6
"""Neighbours on each side that a pooled regression reads."""
_TRAIN_EVERY = 4


def windows(task: Task, part: str, every: int) -> tuple[Tensor, Tensor, Tensor]:
    """Look-backs [B, L, C] with 0 for what is missing, whether they were observed, and targets [B, h, C]."""
    steps = task.starts(part, every)[:, None] + np.arange(task.lookback + task.horizon)
    # A dead sensor's truth is scored, but nobody learns from it.
    targets = task.values if part == "train" else task.truth
    past, truth = task.values[steps[:, : task.lookback]], targets[steps[:, task.lookback :]]
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
    target = future.flatten(1)[:, None] if design is every_channel else future.mT
    solve = _solver([design(piece) for piece in past.split(256)], [*target.split(256)])
    found = []
    for penalty in PENALTIES:
        weights = solve(penalty)
        found.append((_error(task, "validation", design, weights), penalty, weights))
    _, penalty, weights = min(found, key=lambda case: case[0])
    tested = [task] if design is every_channel or task.wider is None else [task, task.wider]
    return [_error(each, "test", design, weights) for each in tested], penalty


def _solver(pieces: list[Tensor], targets: list[Tensor]) -> Callable[[float], Tensor]:
    """Weights [F, outputs] for a penalty, in the smaller of both forms; missing targets are filled in rounds."""
    flat = [(piece.flatten(0, 1), target.flatten(0, 1)) for piece, target in zip(pieces, targets, strict=True)]
    missing = [target.isnan() for _, target in flat]
    flat = [(x, y.nan_to_num(0.0)) for x, y in flat]
    if any(bool(gaps.any()) for gaps in missing):
        gram = torch.stack([x.mT @ x for x, _ in flat]).sum(0)
        regular = gram + ROUND_PENALTY * torch.eye(len(gram), dtype=gram.dtype)
        for _ in range(ROUNDS):
            weights = torch.linalg.solve(regular, torch.stack([x.mT @ y for x, y in flat]).sum(0))
            flat = [(x, torch.where(gaps, x @ weights, y)) for (x, y), gaps in zip(flat, missing, strict=True)]
    rows, width = sum(len(piece) for piece, _ in flat), flat[0][0].shape[1]
    if rows < width:
        x, y = (torch.cat(parts) for parts in zip(*flat, strict=True))
        values, vectors = torch.linalg.eigh(x @ x.mT)
        return lambda penalty: x.mT @ (vectors @ ((vectors.mT @ y) / (values.clamp(min=0.0) + penalty)[:, None]))
    gram = torch.stack([x.mT @ x for x, _ in flat]).sum(0)
    cross = torch.stack([x.mT @ y for x, y in flat]).sum(0)
    return lambda penalty: torch.linalg.solve(gram + penalty * torch.eye(width, dtype=gram.dtype), cross)


def _error(task: Task, part: str, design: Callable[[Tensor], Tensor], weights: Tensor) -> float:
    def forecast(x: Tensor, _: Tensor, horizon: int) -> Tensor:
        flat = design(x) @ weights
        return flat.view(len(x), horizon, -1) if design is every_channel else flat.mT

    return _mean_square(task, windows(task, part, 4), 128, forecast)


def _mean_square(
    task: Task, data: tuple[Tensor, ...], rows: int, forecast: Callable[[Tensor, Tensor, int], Tensor]
) -> float:
    """Mean square error over what is not missing, so many windows at a time."""
    total, count = 0.0, 0
    for x, seen, y in zip(*(part.split(rows) for part in data), strict=True):
        error = (forecast(x, seen, task.horizon) - y)[~y.isnan()]
        total, count = total + float(error.square().sum()), count + error.numel()
    return total / count


def by_relations(x: Tensor, seen: Tensor, horizon: int) -> Tensor:
    """The pretrained forecaster's regression on neighbours, fitted inside each look-back: [B, h, C]."""
    mean, deviation = x.mean(1, keepdim=True), x.std(1, keepdim=True).clamp(min=1e-3)
    order = torch.arange(x.shape[2]).expand(len(x), -1)
    scaled = ((x - mean) / deviation).mT.float()
    forecast = relation_forecasts(scaled, seen.mT, [horizon], horizon, order)
    return forecast[0, :, :, NAMES.index("neighbours")].mT.double() * deviation + mean


def by_trial(x: Tensor, seen: Tensor, horizon: int) -> Tensor:
    """The regressions that MVPA weighs, without training: of each window the one that did best on its last steps."""
    found = regress(x.float(), seen, torch.tensor([[0.0, 1.0]]).expand(x.shape[2], -1), horizon)
    K = found.forecasts.shape[2]
    best = found.evidence[..., K : 2 * K].argmin(2)[..., None, None].expand(-1, -1, 1, horizon)
    return found.forecasts.gather(2, best)[:, :, 0].mT.double()


WINDOW_REGRESSIONS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "Ridge fitted in the window, by place": by_relations,
    "Ridges fitted in the window, step by step": by_trial,
}


def in_window_error(task: Task, forecast: Callable[[Tensor, Tensor, int], Tensor]) -> float:
    """Test error of a regression that is fitted inside each look-back; every fourth scored window is read."""
    return _mean_square(task, windows(task, "test", 16), 32, forecast)
