"""Tasks of the board: panels whose channels tell about each other, in the same way always or in a way that changes.

In every made-up task a channel at a step shows one moment of one hidden source. With both known, the best possible
forecast is a Gaussian posterior mean, so each of these tasks has a floor. Real panels have no seed: their first 70 % of
rows train, the next 10 % choose, the last 20 % test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from harness.structure import stored
from harness.structure.tasks import MEMORY, NOISE, ROWS, _source, regimes

TRAIN, CHOOSE = 0.7, 0.8
"""Shares of the rows of a real panel, after which training and validation end."""
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
    elsewhere : Task, optional
        The same with other channels, for models that were trained without them; all its rows are test.
    covariates : float array, shape (rows, C, K), optional
        Beside each value, without gaps.
    ahead : bool
        Whether covariates are known for the horizon, too.
    unit : float array, shape (C,), optional
        What 1 is in the unit in which absolute errors are usually given.
    """

    values: np.ndarray
    ends: tuple[int, int]
    lookback: int
    horizon: int
    truth: np.ndarray
    shown: Shown | None = None
    elsewhere: Task | None = None
    covariates: np.ndarray | None = None
    ahead: bool = False
    unit: np.ndarray | None = None

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


def wave(seed: int, quick: bool = False) -> Task:
    """A wave along 12 channels, 8 steps a channel, 48 steps ahead; 24 channels elsewhere."""
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
    for regime in regimes(rows, draws):
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
    for regime in regimes(rows, draws) if kind == "swap" else [slice(rows)]:
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
    for regime in regimes(rows, draws):
        values[regime, draws.permutation(12)[: int(draws.integers(0, 7))]] = np.nan
    return Task(values, ends, 96, 24, whole.truth, whole.shown)


def roads(seed: int, quick: bool = False, *, lookback: int) -> Task:
    """A week of 207 road sensors in the order of a walk along the roads, 12 steps of five minutes; 0 is missing."""
    import pandas as pd

    speed = pd.read_csv(stored.file("metr_la/los_speed.csv")).to_numpy(np.float64)
    links = pd.read_csv(stored.file("metr_la/los_adj.csv"), header=None).to_numpy(np.float64)
    speed[speed == 0.0] = np.nan
    order = walk(np.maximum(links, links.T))
    return _real(speed[:, order[:16] if quick else order], lookback, 12)


def farms(seed: int, quick: bool = False) -> Task:
    """Power of ten wind farms for a day from four; the wind forecast is known ahead: four parts and both speeds."""
    whole = stored.panel("gefcom14_wind")[: 2000 if quick else None].astype(np.float64)
    power, wind = whole[..., 0], whole[..., 1:]
    speed = np.hypot(wind[..., ::2], wind[..., 1::2])
    return _real(power, 96, 24, np.concatenate([wind, speed], axis=2), ahead=True)


def stations(seed: int, quick: bool = False) -> Task:
    """Fine dust at twelve stations in Beijing for a day from four, with the weather of the past."""
    air = stored.panel("beijing_air")[: 2000 if quick else None].astype(np.float64)
    return _real(air[..., 0], 96, 24, air[..., 6:])


def gauges(seed: int, quick: bool = False) -> Task:
    """A year of 126 tide gauges from four, in the order of a walk along the nearest ones."""
    values, place = stored.tide_gauges()
    order = walk(place @ place.T + 1.0)
    return _real(values[:, order[:16] if quick else order].astype(np.float64), 48, 12)


def sea_level(seed: int, quick: bool = False) -> Task:
    """Sea level across the Pacific at 12° N, three months from 24, without season and trend; elsewhere is 15° S."""

    def along(latitude: float) -> Task:
        # The file holds 365 months.
        level = stored.sea_level(latitude, int(TRAIN * 365), west=150.0, east=270.0)
        return _real(level[:, : 16 if quick else None], 24, 3)

    north, south = along(12.375), along(-15.375)
    begin = south.ends[1] - south.lookback
    late = replace(south, values=south.values[begin:], truth=south.truth[begin:], ends=(0, south.lookback))
    return replace(north, elsewhere=late)


def _real(
    measured: np.ndarray, lookback: int, horizon: int, covariates: np.ndarray | None = None, *, ahead: bool = False
) -> Task:
    """Values and covariates in units of the training deviation; gaps of covariates hold the value before."""
    train, choose = int(TRAIN * len(measured)), int(CHOOSE * len(measured))
    deviation = np.nanstd(measured[:train], axis=0)
    values = (measured - np.nanmean(measured[:train], axis=0)) / deviation
    if covariates is not None:
        covariates = (covariates - np.nanmean(covariates[:train], (0, 1))) / np.nanstd(covariates[:train], (0, 1))
        rows = np.where(np.isnan(covariates), 0, np.arange(len(covariates))[:, None, None])
        covariates = np.nan_to_num(np.take_along_axis(covariates, np.maximum.accumulate(rows), axis=0))
    return Task(
        values, (train, choose), lookback, horizon, values, covariates=covariates, ahead=ahead, unit=deviation
    )  # fmt: skip


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
    "METR-LA": partial(roads, lookback=48),
    "METR-LA, 12 from 12": partial(roads, lookback=12),
    "wind farms": farms,
    "stations": stations,
    "tide gauges": gauges,
    "sea level": sea_level,
}
REAL = {
    "METR-LA": "metr_la", "METR-LA, 12 from 12": "metr_la", "wind farms": "panels", "stations": "panels",
    "tide gauges": "panels", "sea level": "sea_level",
}  # fmt: skip
"""Folders of the real panels."""
ELSEWHERE = {"wave": "wave, 24 channels", "sea level": "sea level, 15° S"}


def available(name: str) -> bool:
    """Whether the task's data is at hand."""
    return name not in REAL or stored.file(REAL[name]).is_dir()


def floor_error(task: Task) -> float | None:
    """Test error of the posterior mean that knows what every channel shows, also after a change within the window.

    Every eighth scored window is read. Nothing can be better on average.
    """
    if task.shown is None:
        return None
    solved: dict[bytes, np.ndarray] = {}
    errors = []
    for start in task.starts("test", _FLOOR_EVERY):
        past = slice(start, start + task.lookback)
        ahead = slice(past.stop, past.stop + task.horizon)
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


def _covariance(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Of the sources at moments: an AR(1) each, unrelated to each other."""
    same = one[1][:, None] == other[1]
    return same * MEMORY ** np.abs(one[0][:, None] - other[0])
