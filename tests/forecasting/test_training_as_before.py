"""The one training loop against the losses of the two loops before it: 20 steps, one thread, 1e-6.

`fixtures/before_the_move/training_losses.json` was written by the code of before: the experiments' own loop, with the
settings of README's rows and with those of peers, and the package's loop over series.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from harness.forecasting.models import SCRIPT, build
from torch import Tensor, nn

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS, dataset_path, forecasting_windows, load_forecasting_frame
from mvpa_ts.forecasting import LEVELS, ForecasterTraining, ForecastingConfig, Series, fit_forecaster
from mvpa_ts.forecasting.training import train
from mvpa_ts.windows import Windows

FIXTURES = Path(__file__).parents[1] / "fixtures" / "before_the_move"
BEFORE: dict[str, dict[str, Any]] = json.loads((FIXTURES / "training_losses.json").read_text())
STEPS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made_up_frame(name: str) -> pd.DataFrame:
    """Daily waves with noise, one channel cut off at zero; for Weather with the code for missing values."""
    rows, channels = (17420, 3) if name.startswith("ETTh") else (3000, 4)
    generator = np.random.default_rng(0)
    hours = np.arange(rows)[:, None]
    values = np.sin(2 * np.pi * hours / 24 + np.arange(channels)) + 0.2 * generator.standard_normal((rows, channels))
    values[:, -1] = np.maximum(values[:, -1], 0.0)
    if name == "Weather":
        values[generator.random((rows, channels)) < 0.0005] = -9999.0
    frame = pd.DataFrame(values, columns=[f"channel {channel}" for channel in range(channels)])
    frame.insert(0, "date", pd.date_range("2016-07-01", periods=rows, freq="h"))
    return frame


def made_up_windows(name: str) -> dict[str, Windows]:
    """Float64, so that the losses are those of any processor."""
    windows = forecasting_windows(made_up_frame(name), name, lookback=96, horizon=24)
    return {part: replace(whole, values=whole.values.double()).only(slice(700)) for part, whole in windows.items()}


class Plain(nn.Module):
    """A module as peers are: no network of this library."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(96, 24)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, **inputs: Tensor | None) -> Tensor:
        return self.linear(self.dropout(x).mT).mT[..., None]


def check(name: str, model: nn.Module, windows: dict[str, Windows], training: ForecasterTraining) -> None:
    losses: list[float] = []
    torch.manual_seed(7)
    outcome = train(model, windows, training, seed=1, max_steps=STEPS, progress=lambda step, loss: losses.append(loss))
    before = BEFORE[name]
    assert losses == pytest.approx(before["losses"], rel=1e-6)
    assert outcome.validation_mse == pytest.approx(before["validation_mse"], rel=1e-6)
    assert outcome.validation_mae == pytest.approx(before["validation_mae"], rel=1e-6)


@pytest.mark.parametrize("dataset", FORECASTING_DATASETS)
def test_settings_of_each_dataset_on_its_data(dataset: str) -> None:
    try:
        dataset_path(dataset)
    except OSError:
        pytest.skip(f"{dataset} is not on this machine")
    frame = load_forecasting_frame(dataset)
    windows = forecasting_windows(frame, dataset, lookback=96, horizon=96)
    windows["validation"] = windows["validation"].thinned(20)
    model, training, _ = build("MVPA", dataset, 96, frame.shape[1] - 1, 1)
    check(dataset, model, windows, training)


@pytest.mark.parametrize("dataset", FORECASTING_DATASETS)
def test_settings_of_each_dataset_on_made_up_data(dataset: str) -> None:
    windows = made_up_windows(dataset)
    model, training, _ = build("MVPA", dataset, 24, windows["train"].values.shape[1], 1)
    check(f"{dataset}, made-up data", model.double(), windows, training)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("plain module, made-up data", {}),
        (
            "plain module, constant rate, made-up data",
            {
                "schedule": "constant",
                "weight_averaging": 0.9,
                "averaging_warm_up": False,
                "horizon_decay": 0.5,
                "weight_decay": 0.1,
                "clip": 0.5,
                "frequency_weight": 0.25,
            },
        ),
    ],
)
def test_plain_module_with_settings_of_peers(name: str, changes: dict[str, Any]) -> None:
    torch.manual_seed(1)
    training = replace(SCRIPT, learning_rate=1e-2, **changes)
    check(name, Plain().double(), made_up_windows("ETTh1"), training)


def made_up_series(rows: int, seed: int) -> Series:
    generator = np.random.default_rng(seed)
    values = np.sin(np.arange(rows)[:, None] / 3 + np.arange(3)) + 0.1 * generator.normal(size=(rows, 3))
    values[rows // 3 : rows // 3 + 4, 1] = np.nan
    values[:, 2] = np.maximum(values[:, 2], 0.0)
    return Series(values, generator.normal(size=(rows + 6, 2)), 5)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("series", {}),
        (
            "series, validated",
            {
                "validation_fraction": 0.25,
                "patience": 3,
                "linear_learning_rate": 0.03,
                "weight_decay": 0.1,
                "weight_averaging": 0.9,
            },
        ),
        ("series, not averaged", {"weight_averaging": None, "linear_learning_rate": 0.001}),
    ],
)
def test_series_with_gaps_features_cycle_and_bounds(name: str, changes: dict[str, Any]) -> None:
    series = [made_up_series(120, 0), made_up_series(30, 1)]
    config = ForecastingConfig(
        6, 24, patch_length=12, patch_stride=6, dim=16, num_heads=2, mlp_dim=16, num_outputs=len(LEVELS),
        future_size=2, cycle_length=7, phase_weights=True, individual_channels=3, bounded_channels=3,
        channel_distance="absolute", mixing_heads=0, covariate_maps=False,
    )  # fmt: skip
    losses: list[float] = []
    training = ForecasterTraining(steps=STEPS, batch_size=32, **changes)
    fitted = fit_forecaster(series, config, training, seed=3, progress=lambda step, loss: losses.append(loss))
    forecast, before = fitted.predict(series[0]), BEFORE[name]
    # Single precision; that of a product of matrices depends on the processor.
    assert losses == pytest.approx(before["losses"], rel=1e-6, abs=1e-6)
    assert forecast.mean() == pytest.approx(before["forecast_mean"], abs=1e-4)
    assert forecast[-1, :, 4].tolist() == pytest.approx(before["forecast_last"], abs=1e-4)
