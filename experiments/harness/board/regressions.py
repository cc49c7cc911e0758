"""Rows of the board without a network: the last value, and ridge regressions in closed form.

Legend: B windows, L look-back, h horizon, C channels, N neighbours on a side, K covariates at S steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from harness.board.tasks import EVERY, Task
from torch import Tensor

from mvpa_ts.forecasting.network.regressions import regress
from mvpa_ts.forecasting.pretrained.relations import NAMES, relation_forecasts

PENALTIES = (1.0, 10.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4)
ROUNDS, ROUND_PENALTY = 3, 1e3
"""In which missing targets are forecast by the regression of the round before: zeros would draw forecasts to zero."""
BESIDE = 6
"""Neighbours on each side that a pooled regression reads."""
_TRAIN_EVERY, _FEW_WINDOWS = 4, 80


def windows(task: Task, part: str, every: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Look-backs [B, L, C] with 0 for what is missing, whether observed, targets [B, h, C], covariates [B, C, S K]."""
    steps = task.starts(part, every)[:, None] + np.arange(task.lookback + task.horizon)
    # A dead sensor's truth is scored, but nobody learns from it.
    targets = task.values if part == "train" else task.truth
    past, truth = task.values[steps[:, : task.lookback]], targets[steps[:, task.lookback :]]
    beside = np.zeros((len(steps), past.shape[2], 0))
    if task.covariates is not None:
        known = steps[:, task.lookback :] if task.ahead else steps[:, : task.lookback]
        beside = task.covariates[known].transpose(0, 2, 1, 3).reshape(*beside.shape[:2], -1)
    return torch.tensor(np.nan_to_num(past)), torch.tensor(~np.isnan(past)), torch.tensor(truth), torch.tensor(beside)


def every_channel(x: Tensor, beside: Tensor) -> Tensor:
    """All channels' look-backs and covariates for all horizons at once: [B, 1, C (L + S K)]."""
    return torch.cat([x.flatten(1), beside.flatten(1)], dim=1)[:, None]


def own_channel(x: Tensor, beside: Tensor) -> Tensor:
    """The look-back and covariates of each channel, with weights that all share: [B, C, L + S K]."""
    return torch.cat([x.mT, beside], dim=2)


def by_place(x: Tensor, beside: Tensor) -> Tensor:
    """The same with neighbours by relative place, zeros beyond the ends: [B, C, (2 N + 1) L + S K]."""
    C = x.shape[2]
    padded = torch.nn.functional.pad(x, (BESIDE, BESIDE))
    return torch.cat([*(padded[:, :, place : place + C].mT for place in range(2 * BESIDE + 1)), beside], dim=2)


REGRESSIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Ridge, own channel": own_channel,
    "Ridge, all channels": every_channel,
    "Ridge, by place": by_place,
}


def ridge_errors(task: Task, design: Callable[[Tensor, Tensor], Tensor]) -> tuple[list[dict[str, float]], float]:
    """Test errors, those elsewhere if weights are shared, and the penalty that validation chose."""
    past, _, future, beside = windows(task, "train", _TRAIN_EVERY if design is by_place else 1)
    target = future.flatten(1)[:, None] if design is every_channel else future.mT
    pieces = zip(past.split(256), beside.split(256), strict=True)
    solve = _solver([design(*piece) for piece in pieces], [*target.split(256)])
    tried = []
    for penalty in PENALTIES:
        weights = solve(penalty)
        tried.append((_errors(task, "validation", design, weights)["mse"], penalty, weights))
    _, penalty, weights = min(tried, key=lambda case: case[0])
    tested = [task] if design is every_channel or task.elsewhere is None else [task, task.elsewhere]
    return [_errors(each, "test", design, weights) for each in tested], penalty


def _solver(pieces: list[Tensor], targets: list[Tensor]) -> Callable[[float], Tensor]:
    """Weights [F, outputs] for a penalty, in the smaller of both forms; missing targets are filled in rounds."""
    flat = [(piece.flatten(0, 1), target.flatten(0, 1)) for piece, target in zip(pieces, targets, strict=True)]
    missing = [target.isnan() for _, target in flat]
    flat = [(x, y.nan_to_num(0.0)) for x, y in flat]
    if any(bool(gaps.any()) for gaps in missing):
        gram = sum(x.mT @ x for x, _ in flat)
        regular = gram + ROUND_PENALTY * torch.eye(len(gram), dtype=gram.dtype)
        for _ in range(ROUNDS):
            weights = torch.linalg.solve(regular, sum(x.mT @ y for x, y in flat))
            flat = [(x, torch.where(gaps, x @ weights, y)) for (x, y), gaps in zip(flat, missing, strict=True)]
    rows, width = sum(len(piece) for piece, _ in flat), flat[0][0].shape[1]
    if rows < width:
        x, y = (torch.cat(parts) for parts in zip(*flat, strict=True))
        values, vectors = torch.linalg.eigh(x @ x.mT)
        return lambda penalty: x.mT @ (vectors @ ((vectors.mT @ y) / (values.clamp(min=0.0) + penalty)[:, None]))
    gram, cross = sum(x.mT @ x for x, _ in flat), sum(x.mT @ y for x, y in flat)
    return lambda penalty: torch.linalg.solve(gram + penalty * torch.eye(width, dtype=gram.dtype), cross)


def _errors(
    task: Task, part: str, design: Callable[[Tensor, Tensor], Tensor], weights: Tensor
) -> dict[str, float]:  # fmt: skip
    def forecast(x: Tensor, _: Tensor, beside: Tensor) -> Tensor:
        flat = design(x, beside) @ weights
        return flat.view(len(x), task.horizon, -1) if design is every_channel else flat.mT

    return _mean_errors(task, windows(task, part, 4), 128, forecast)


def _mean_errors(
    task: Task, data: tuple[Tensor, ...], rows: int, forecast: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> dict[str, float]:
    """Mean errors over what is not missing, squared and absolute in units, so many windows at a time."""
    unit = None if task.unit is None else torch.tensor(task.unit)
    squared, absolute, count = 0.0, 0.0, 0
    for x, seen, y, beside in zip(*(part.split(rows) for part in data), strict=True):
        error = (forecast(x, seen, beside) - y).nan_to_num()
        squared, count = squared + float(error.square().sum()), count + int((~y.isnan()).sum())
        absolute += 0.0 if unit is None else float((error.abs() * unit).sum())
    return {"mse": squared / count, **({} if unit is None else {"mae": absolute / count})}


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


def in_window_errors(task: Task, forecast: Callable[[Tensor, Tensor, int], Tensor]) -> dict[str, float]:
    """Test errors of a regression that is fitted inside each look-back, of many scored windows every fourth is read."""
    every = 4 * EVERY if len(task.starts("test")) > _FEW_WINDOWS else EVERY
    return _mean_errors(task, windows(task, "test", every), 32, lambda x, seen, _: forecast(x, seen, task.horizon))
