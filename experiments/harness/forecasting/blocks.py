"""Blocked cross-validation on the rows before the test part.

The validation part of ETTh1 and ETTh2 is one summer while the test part is a winter. Settings that are best on the one
need not be best on the other. So the rows of the train and the validation part together are cut into four blocks, and
each block is forecast by a model trained on windows that do not touch it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch
from harness.forecasting.models import LOOKBACK

from mvpa_ts.datasets.forecasting import Borders, forecasting_windows, load_forecasting_frame
from mvpa_ts.windows import Windows

BLOCKS = 4
# Every how many-th window is trained on, and forecast.
THINNING = {"ETTh1": (3, 12), "ETTh2": (3, 12), "Weather": (12, 48)}


def blocks(dataset: str, horizon: int) -> list[dict[str, Windows]]:
    """Windows of each block to forecast, and those to train on, whose rows all lie outside of it."""
    frame = load_forecasting_frame(dataset)
    whole = forecasting_windows(frame, dataset, lookback=LOOKBACK, horizon=horizon)["train"]
    stop, length = Borders.of(dataset, len(frame)).validation[1], LOOKBACK + horizon
    starts = torch.arange(stop - length + 1)
    folds = []
    for first, last in itertools.pairwise(np.linspace(0, stop, BLOCKS + 1).astype(int).tolist()):
        outside = (starts + length <= first) | (starts >= last)
        forecast = (starts + LOOKBACK >= first) & (starts + length <= last)
        # Zero is the mean of what is trained on, as in the test.
        mean = torch.cat([whole.values[:first], whole.values[last:stop]]).mean(0)
        folds.append(
            {
                part: replace(whole, values=whole.values - mean, starts=starts[rows])
                for part, rows in (("train", outside), ("validation", forecast))
            }
        )
    return folds


def thinned(windows: dict[str, Windows], every: tuple[int, int]) -> dict[str, Windows]:
    """Every so many-th window of "train" and of "validation"."""
    return {part: windows[part].thinned(step) for part, step in zip(("train", "validation"), every, strict=True)}
