"""Tasks of the board: panels whose channels tell about each other, in the same way always or in a way that changes.

In every made-up task a channel at a step shows one moment of one hidden source. With both known, the best possible
forecast is a Gaussian posterior mean, so each of these tasks has a floor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness.structure.tasks import MEMORY, NOISE, _source

ROWS = {"train": 12_000, "validation": 3_000, "test": 4_000}
EVERY = 4
"""Of the windows that are scored: the next begins so many steps later."""
_FLOOR_EVERY = 32


@dataclass(frozen=True)
class Shown:
    """What a made-up panel shows: for each row and channel, a source and its moment, [rows, C]."""

    source: np.ndarray
    moment: np.ndarray


@dataclass(frozen=True)
class Task:
    """One panel, cut into rows for training, validation and test.

    Attributes
    ----------
    values : float array, shape (rows, C)
        In units of the training deviation; NaN is missing.
    ends : tuple of int
        Where training and validation end.
    lookback, horizon : int
        Steps that are read and forecast.
    truth : float array, shape (rows, C)
        What a forecast is scored by, NaN where nothing was measured.
    shown : Shown, optional
        Of a made-up panel.
    wider : Task, optional
        The same with more channels, for models that were trained on fewer; all its rows are test.
    """

    values: np.ndarray
    ends: tuple[int, int]
    lookback: int
    horizon: int
    truth: np.ndarray
    shown: Shown | None = None
    wider: Task | None = None

    def starts(self, part: str, every: int = EVERY) -> np.ndarray:
        """First rows of the windows whose horizon lies in a part, every so many steps."""
        bounds = dict(zip(ROWS, ((0, self.ends[0]), self.ends, (self.ends[1], len(self.values))), strict=True))
        begin, end = bounds[part]
        first = max(0, begin - self.lookback)
        return np.arange(first, end - self.lookback - self.horizon + 1, every)


def _rows(quick: bool) -> tuple[int, tuple[int, int]]:
    train, validation, test = (count // (20 if quick else 1) for count in ROWS.values())
    return train + validation + test, (train, train + validation)


def _made_up(shown: Shown, horizon: int, ends: tuple[int, int], draws: np.random.Generator) -> Task:
    first = int(shown.moment.min())
    length = int(shown.moment.max()) - first + 1
    sources = np.stack([_source(length, draws) for _ in range(int(shown.source.max()) + 1)], axis=1)
    clean = sources[shown.moment - first, shown.source]
    values = (clean + NOISE * draws.standard_normal(clean.shape)) / (1 + NOISE**2) ** 0.5
    return Task(values, ends, 96, horizon, values, shown)


def _regimes(rows: int, draws: np.random.Generator) -> Iterator[slice]:
    begin = 0
    while begin < rows:
        stop = min(rows, begin + int(draws.integers(250, 401)))
        yield slice(begin, stop)
        begin = stop


def wave(seed: int, quick: bool = False) -> Task:
    """A wave along 12 channels, 8 steps a channel, 48 steps ahead; `wider` has 24."""
    draws = np.random.default_rng([21, seed])
    rows, ends = _rows(quick)

    def along(channels: int, count: int) -> Shown:
        moment = np.arange(count)[:, None] - 8 * np.arange(channels)
        return Shown(np.zeros_like(moment), moment)

    narrow = _made_up(along(12, rows), 48, ends, draws)
    wider = _made_up(along(24, rows - ends[1] + 96), 48, (0, 96), draws)
    return Task(narrow.values, ends, 96, 48, narrow.truth, narrow.shown, wider)


def changing_wave(seed: int, quick: bool = False) -> Task:
    """A wave along 12 channels, 24 steps ahead; direction and speed (3 to 10) are drawn anew every 250 to 400 steps."""
    draws = np.random.default_rng([22, seed])
    rows, ends = _rows(quick)
    moment = np.repeat(np.arange(rows)[:, None], 12, axis=1)
    for regime in _regimes(rows, draws):
        moment[regime] -= int(draws.integers(3, 11)) * int(draws.choice([-1, 1])) * np.arange(12)
    return _made_up(Shown(np.zeros_like(moment), moment), 24, ends, draws)


def leaders(seed: int, quick: bool = False, *, kind: str) -> Task:
    """Four of 8 channels follow others, 24 steps ahead.

    "fixed": two channels and 16 steps behind. "random": a drawn one at a lag of 12 to 32. "swap": as random, but drawn
    anew every 250 to 400 steps.
    """
    draws = np.random.default_rng([23, seed, ("fixed", "random", "swap").index(kind)])
    rows, ends = _rows(quick)
    moment = np.repeat(np.arange(rows)[:, None], 8, axis=1)
    source = np.repeat(np.arange(8)[None], rows, axis=0)
    for regime in _regimes(rows, draws) if kind == "swap" else [slice(rows)]:
        order = draws.permutation(8)
        pairs = zip(order[4:], draws.permutation(order[:4]), strict=True)
        for follower, leader in zip((2, 3, 6, 7), (0, 1, 4, 5), strict=True) if kind == "fixed" else pairs:
            moment[regime, follower] -= 16 if kind == "fixed" else int(draws.integers(12, 33))
            source[regime, follower] = leader
    return _made_up(Shown(source, moment), 24, ends, draws)


def failing(seed: int, quick: bool = False) -> Task:
    """The wave of 12 channels, 24 steps ahead; every 250 to 400 steps other sensors are dead, up to half of them.

    A dead sensor shows nothing, but what it would have shown is scored.
    """
    draws = np.random.default_rng([24, seed])
    rows, ends = _rows(quick)
    moment = np.arange(rows)[:, None] - 8 * np.arange(12)
    whole = _made_up(Shown(np.zeros_like(moment), moment), 24, ends, draws)
    values = whole.values.copy()
    for regime in _regimes(rows, draws):
        values[regime, draws.permutation(12)[: int(draws.integers(0, 7))]] = np.nan
    return Task(values, ends, 96, 24, whole.truth, whole.shown)


def roads(seed: int, quick: bool = False) -> Task:
    """A week of 207 road sensors in the order of a walk along the roads, 12 steps of five minutes from 48.

    0 is missing. The data has no seed.
    """
    import pandas as pd

    folder = Path(os.environ.get("MVPA_TS_DATA", "")) / "metr_la"
    speed = pd.read_csv(folder / "los_speed.csv").to_numpy(np.float64)
    links = pd.read_csv(folder / "los_adj.csv", header=None).to_numpy(np.float64)
    speed[speed == 0.0] = np.nan
    ends = int(0.7 * len(speed)), int(0.8 * len(speed))
    values = (speed - np.nanmean(speed[: ends[0]], axis=0)) / np.nanstd(speed[: ends[0]], axis=0)
    order = walk(np.maximum(links, links.T))
    values = values[:, order[:16] if quick else order]
    return Task(values, ends, 48, 12, values)


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
    "changing wave": changing_wave,
    "leaders that swap": lambda seed, quick: leaders(seed, quick, kind="swap"),
    "wave": wave,
    "leaders, random": lambda seed, quick: leaders(seed, quick, kind="random"),
    "leaders, fixed": lambda seed, quick: leaders(seed, quick, kind="fixed"),
    "failing sensors": failing,
    "METR-LA": roads,
}


def available(name: str) -> bool:
    """Whether the task's data is at hand."""
    folder = Path(os.environ.get("MVPA_TS_DATA", "")) / "metr_la"
    return name != "METR-LA" or (folder / "los_speed.csv").is_file()


def floor_error(task: Task) -> float | None:
    """Test error of the posterior mean that knows what every channel shows, also after a change within the window.

    Every eighth scored window is read. Nothing can be better on average.
    """
    if task.shown is None:
        return None
    solved: dict[bytes, np.ndarray] = {}
    errors = []
    for start in task.starts("test", _FLOOR_EVERY):
        past, ahead = slice(start, start + task.lookback), slice(start + task.lookback, start + _length(task))
        source, moment = task.shown.source, task.shown.moment
        seen = ~np.isnan(task.values[past])
        pattern = np.concatenate([(moment[start : ahead.stop] - start).ravel(), source[start : ahead.stop].ravel()])
        key = pattern.tobytes() + seen.tobytes()
        if key not in solved:
            before = moment[past][seen], source[past][seen]
            after = moment[ahead].ravel(), source[ahead].ravel()
            noisy = _covariance(before, before) + NOISE**2 * np.eye(len(before[0]))
            solved[key] = np.linalg.solve(noisy, _covariance(before, after))
        forecast = task.values[past][seen] @ solved[key]
        errors.append(np.square(forecast - task.truth[ahead].ravel()).mean())
    return float(np.mean(errors))


def _length(task: Task) -> int:
    return task.lookback + task.horizon


def _covariance(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Of the sources at moments: an AR(1) each, unrelated to each other."""
    same = one[1][:, None] == other[1]
    return same * MEMORY ** np.abs(one[0][:, None] - other[0])
