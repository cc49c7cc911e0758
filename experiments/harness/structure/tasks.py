"""Made-up panels whose channels tell about each other, as explanations, the board and unseen panels draw them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mvpa_ts.windows import Windows

DELAY, NOISE, MEMORY = 8, 0.3, 0.9  # steps a channel, deviation of the noise, coefficient of the source
ROWS = {"train": 12_000, "validation": 3_000, "test": 4_000}


def wave(seed: int, quick: bool) -> dict[str, Windows]:
    """A wave travels along 12 channels: y[t, c] = (s(t − 8c) + .3 e) / √1.09, s an AR(1) of unit variance."""
    draws = np.random.default_rng([1, seed])
    return {part: _windows(_wave(rows // (10 if quick else 1), 12, draws), 96, 48) for part, rows in ROWS.items()}


def leaders(seed: int) -> dict[str, Windows]:
    """Four of 8 channels follow a random one at a random lag."""
    draws, pairs = np.random.default_rng([2, seed]), np.random.default_rng([3, seed])
    order = pairs.permutation(8).tolist()
    leading = dict(zip(order[4:], pairs.permutation(order[:4]).tolist(), strict=True))
    lags = {follower: int(pairs.integers(12, 33)) for follower in leading}

    def values(rows: int) -> np.ndarray:
        sources = np.stack([_source(rows + 64, draws) for _ in range(8)], axis=1)
        clean = sources[64:].copy()
        for follower, leader in leading.items():
            clean[:, follower] = sources[64 - lags[follower] : 64 - lags[follower] + rows, leader]
        return (clean + NOISE * draws.standard_normal(clean.shape)) / (1 + NOISE**2) ** 0.5

    return {part: _windows(values(rows), 96, 24) for part, rows in ROWS.items()}


def regimes(rows: int, draws: np.random.Generator) -> Iterator[slice]:
    """Stretches of 250 to 400 rows, one after the other."""
    begin = 0
    while begin < rows:
        stop = min(rows, begin + int(draws.integers(250, 401)))
        yield slice(begin, stop)
        begin = stop


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


def _windows(values: np.ndarray, lookback: int, horizon: int) -> Windows:
    starts = torch.arange(len(values) - lookback - horizon + 1)
    return Windows(torch.tensor(values, dtype=torch.float32), starts, lookback, horizon)
