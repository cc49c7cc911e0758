"""Tasks whose channels tell about each other, with what is known about them: a floor, a regression, an order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mvpa_ts.forecasting.channel_order import correlation_order
from mvpa_ts.windows import Windows

DELAY, NOISE, MEMORY = 8, 0.3, 0.9  # steps a channel, deviation of the noise, coefficient of the source
ROWS = {"train": 12_000, "validation": 3_000, "test": 4_000}
PARTS = tuple(ROWS)
# Penalties of the ridge regression, of which the best on validation is taken.
PENALTIES = (10.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4)


@dataclass(frozen=True)
class Task:
    """Windows of a part each; `features` says what a covariate is known for; `wider` has more channels to test on."""

    windows: dict[str, Windows]
    features: str | None = None  # "future" or "historic"
    wider: Windows | None = None
    floors: dict[str, float] = field(default_factory=dict)

    @property
    def channels(self) -> int:
        """Channels of the training windows."""
        return self.windows["train"].values.shape[1]


def wave(seed: int, quick: bool = False) -> Task:
    """A wave travels along 12 channels: y[t, c] = (s(t − 8c) + .3 e) / √1.09, s an AR(1) of unit variance."""
    draws = np.random.default_rng([1, seed])
    windows = {part: _windows(_wave(rows // (10 if quick else 1), 12, draws), 96, 48) for part, rows in ROWS.items()}
    wider = _windows(_wave(ROWS["test"] // (10 if quick else 1), 24, draws), 96, 48)
    floors = {"floor": posterior_error(windows["test"]), "floor, 24 channels": posterior_error(wider)}
    return Task(windows, wider=wider, floors=floors)


def leaders(seed: int, quick: bool = False, *, fixed: bool) -> Task:
    """Four of 8 channels follow the others, two channels and 16 steps behind, or a random one at a random lag."""
    draws, pairs = np.random.default_rng([2, seed]), np.random.default_rng([3, seed])
    if fixed:
        leading, lags = {2: 0, 3: 1, 6: 4, 7: 5}, dict.fromkeys((2, 3, 6, 7), 16)
    else:
        order = pairs.permutation(8).tolist()
        leading = dict(zip(order[4:], pairs.permutation(order[:4]).tolist(), strict=True))
        lags = {follower: int(pairs.integers(12, 33)) for follower in leading}

    def values(rows: int) -> np.ndarray:
        rows //= 10 if quick else 1
        sources = np.stack([_source(rows + 64, draws) for _ in range(8)], axis=1)
        clean = sources[64:].copy()
        for follower, leader in leading.items():
            clean[:, follower] = sources[64 - lags[follower] : 64 - lags[follower] + rows, leader]
        return (clean + NOISE * draws.standard_normal(clean.shape)) / (1 + NOISE**2) ** 0.5

    return Task({part: _windows(values(rows), 96, 24) for part, rows in ROWS.items()})


def driven(seed: int, quick: bool = False, *, ahead: bool) -> Task:
    """Four channels follow a covariate by 0–6 steps, known over the horizon, or by 12–21 steps, known in the past.

    Half of a channel's variance comes from the covariate, half is its own.
    """
    draws = np.random.default_rng([4, seed])
    lags = (0, 2, 4, 6) if ahead else (12, 15, 18, 21)

    def part(rows: int) -> Windows:
        rows //= 10 if quick else 1
        driver = _source(rows + 32, draws)
        own = np.stack([_source(rows, draws) for _ in lags], axis=1)
        values = (np.stack([driver[32 - lag : 32 - lag + rows] for lag in lags], axis=1) + own) / 2**0.5
        return _windows(values, 96, 24, driver[32:, None])

    return Task({name: part(rows) for name, rows in ROWS.items()}, features="future" if ahead else "historic")


def macroeconomy(seed: int, quick: bool = False) -> Task:
    """Quarterly growth of four US series, 1959 to 2009; unemployment and interest rate are known of the past."""
    from statsmodels.datasets import macrodata

    frame = macrodata.load_pandas().data
    growth = np.diff(np.log(frame[["realgdp", "realcons", "realinv", "cpi"]].to_numpy(np.float64)), axis=0)
    rates = np.diff(frame[["unemp", "tbilrate"]].to_numpy(np.float64), axis=0)
    ends = [int(share * len(growth)) for share in (0.0, 0.6, 0.8, 1.0)]
    scaled = [(part - part[: ends[1]].mean(0)) / part[: ends[1]].std(0) for part in (growth, rates)]
    spans = {name: slice(max(0, start - 24), stop) for name, start, stop in zip(PARTS, ends, ends[1:], strict=False)}
    return Task(
        {name: _windows(scaled[0][span], 24, 4, scaled[1][span]) for name, span in spans.items()}, features="historic"
    )


def roads(seed: int, quick: bool = False, *, order: str) -> Task:
    """One week of 207 road sensors, in units of their training deviation; 0 is missing. The data has no seed."""
    import pandas as pd

    folder = Path(os.environ.get("MVPA_TS_DATA", "")) / "metr_la"
    speed = pd.read_csv(folder / "los_speed.csv").to_numpy(np.float64)
    links = pd.read_csv(folder / "los_adj.csv", header=None).to_numpy(np.float64)
    ends = [int(share * len(speed)) for share in (0.0, 0.7, 0.8, 1.0)]
    speed[speed == 0.0] = np.nan
    trained = speed[: ends[1]]
    values = (speed - np.nanmean(trained, axis=0)) / np.nanstd(trained, axis=0)
    along = {
        "along the roads": lambda: walk(np.maximum(links, links.T)),
        "in the file's order": lambda: np.arange(values.shape[1]),
        "shuffled": lambda: np.random.default_rng(0).permutation(values.shape[1]),
        "by correlation": lambda: np.array(correlation_order(values[: ends[1]])),
    }[order]()
    values = values[:, along[:16] if quick else along]
    spans = {name: (max(0, start - 48), stop) for name, start, stop in zip(PARTS, ends, ends[1:], strict=False)}
    return Task({name: _windows(values[slice(*span)], 48, 12) for name, span in spans.items()})


def walk(links: np.ndarray) -> np.ndarray:
    """A greedy walk along the strongest links: on from the last place where there is a link left, else further back."""
    links = links.copy()
    np.fill_diagonal(links, 0.0)
    visited = [int(links.sum(1).argmin())]
    left = np.ones(len(links), dtype=bool)
    left[visited] = False
    while left.any():
        strongest = (np.where(left, links[place], -1.0) for place in reversed(visited))
        following = next((int(row.argmax()) for row in strongest if row.max() > 0.0), int(left.argmax()))
        visited.append(following)
        left[following] = False
    return np.array(visited)


TASKS: dict[str, Callable[[int, bool], Task]] = {
    "wave": wave,
    "leaders, fixed": lambda seed, quick: leaders(seed, quick, fixed=True),
    "leaders, random": lambda seed, quick: leaders(seed, quick, fixed=False),
    "METR-LA along the roads": lambda seed, quick: roads(seed, quick, order="along the roads"),
    "METR-LA in the file's order": lambda seed, quick: roads(seed, quick, order="in the file's order"),
    "METR-LA shuffled": lambda seed, quick: roads(seed, quick, order="shuffled"),
    "METR-LA by correlation": lambda seed, quick: roads(seed, quick, order="by correlation"),
    "driver known ahead": lambda seed, quick: driven(seed, quick, ahead=True),
    "driver leads": lambda seed, quick: driven(seed, quick, ahead=False),
    "US macroeconomy": macroeconomy,
}


def ridge_error(task: Task) -> tuple[float, float]:
    """Test error of a ridge regression on all channels' look-backs, and the penalty that validation chose."""
    parts = {name: _design(windows) for name, windows in task.windows.items()}
    past, future = parts["train"]
    variance, covariance = past.mT @ past, past.mT @ future
    found = []
    for penalty in PENALTIES:
        solution = torch.linalg.solve(variance + penalty * torch.eye(len(variance), dtype=torch.float64), covariance)
        errors = [(x @ solution - y).square().mean().item() for x, y in (parts["validation"], parts["test"])]
        found.append((*errors, penalty))
    _, error, penalty = min(found)
    return error, penalty


def posterior_error(windows: Windows) -> float:
    """Error of the Gaussian posterior mean of the wave given the look-back, on these windows."""
    C, L, h = windows.values.shape[1], windows.lookback, windows.horizon
    time = np.arange(L + h)[:, None] - DELAY * np.arange(C)
    seen, ahead = time[:L].ravel(), time[L:].ravel()
    covariance = MEMORY ** np.abs(seen[:, None] - seen) + NOISE**2 * np.eye(len(seen))
    weights = torch.from_numpy(np.linalg.solve(covariance, MEMORY ** np.abs(seen[:, None] - ahead)))
    past, future = _design(windows)
    return (past @ weights - future).square().mean().item()


def _design(windows: Windows) -> tuple[Tensor, Tensor]:
    """Look-backs [n, L·C] and horizons [n, h·C] of all windows."""
    (inputs, target, _), *_ = windows.batches(len(windows))
    assert inputs["x"] is not None
    return inputs["x"].flatten(1).double(), target.flatten(1).double()


def _source(rows: int, draws: np.random.Generator) -> np.ndarray:
    noise = draws.standard_normal(rows) * (1 - MEMORY**2) ** 0.5
    values = np.empty(rows)
    values[0] = draws.standard_normal()
    for t in range(1, rows):
        values[t] = MEMORY * values[t - 1] + noise[t]
    return values


def _wave(rows: int, channels: int, draws: np.random.Generator) -> np.ndarray:
    source = _source(rows + DELAY * channels, draws)
    clean = source[np.arange(rows)[:, None] + DELAY * (channels - np.arange(channels))]
    return (clean + NOISE * draws.standard_normal(clean.shape)) / (1 + NOISE**2) ** 0.5


def _windows(values: np.ndarray, lookback: int, horizon: int, features: np.ndarray | None = None) -> Windows:
    observed = ~np.isnan(values)
    complete = bool(observed.all())
    starts = torch.arange(len(values) - lookback - horizon + 1)
    return Windows(
        torch.tensor(np.nan_to_num(values), dtype=torch.float32),
        starts,
        lookback,
        horizon,
        observed=None if complete else torch.from_numpy(observed),
        features=None if features is None else torch.tensor(features, dtype=torch.float32),
        limits=None if complete else torch.tensor([0, len(values)]).expand(len(starts), 2),
    )
