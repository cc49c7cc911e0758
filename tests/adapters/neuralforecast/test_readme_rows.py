"""README's rows of MVPA through neuralforecast: the first steps are those of the experiments' loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("neuralforecast")
from harness.forecasting.host import host_model, in_words_of_the_host, long_frame
from harness.forecasting.models import MVPA_MODELS, MVPA_SETTINGS, configured
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MAE, MSE, MQLoss

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, ForecastingNetwork
from mvpa_ts.forecasting.network import mixing
from mvpa_ts.forecasting.training import train
from mvpa_ts.windows import Windows

ROWS, L, H, CHANNELS, STEPS = 700, 96, 24, 3, 6
# The order of windows is drawn at random; all of them in each step, and no dropout, make steps comparable.
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0}
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
TRAINING = ForecasterTraining(batch_size=32, loss="mse", keep="last")
PARTS: dict[str, dict[str, Any]] = {
    "all": {},
    "no mixing heads": {"mixing_heads": 0, "channel_vectors": None},
    "no attention": {"num_layers": 0},
    "content alone": {"components": ("content",)},
    "no channel vectors": {"channel_vectors": None},
}
STILL_IN_HOST = {**QUIET, "dropout": 0.0, "network": {"attention_dropout": 0.0, "head_dropout": 0.0}}


def values() -> np.ndarray:
    generator = np.random.default_rng(0)
    hours = np.arange(ROWS)[:, None]
    waves = np.sin(2 * np.pi * hours / 24 + np.arange(CHANNELS)) + 0.3 * generator.standard_normal((ROWS, CHANNELS))
    waves[:, -1] = np.maximum(waves[:, -1], 0.0)
    return ((waves - waves.mean(0)) / waves.std(0)).astype(np.float32)


def compare_first_steps(
    network: ForecastingNetwork,
    training: ForecasterTraining,
    model: MVPA,
    frame: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the same weights, the losses of the first steps, of all windows in one batch, and the averages agree."""
    monkeypatch.setattr(mixing, "_WITHOUT_VECTORS", 0.0)  # drawn at random
    assert model.network.config == network.config
    model.network.load_state_dict(network.state_dict())
    data = torch.from_numpy(frame.pivot(index="ds", columns="unique_id", values="y").to_numpy())
    windows = {"train": Windows(data, torch.arange(ROWS - L - H + 1), L, H)}
    expected: list[float] = []
    training = replace(training, epochs=None, patience=None, steps=STEPS, batch_size=ROWS)
    train(network, windows, training, seed=1, progress=lambda step, loss: expected.append(loss))
    found: list[float] = []
    step = MVPA.training_step

    def noted(self: MVPA, *arguments: Any) -> torch.Tensor:
        loss = step(self, *arguments)
        found.append(float(loss.detach()))
        return loss

    monkeypatch.setattr(MVPA, "training_step", noted)
    host = NeuralForecast(models=[model], freq="h")
    host.fit(frame)
    assert found == pytest.approx(expected, rel=1e-4)
    for kept, wanted in zip(host.models[0].network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(kept, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("row", ["MVPA", "MVPA, default network"])
@pytest.mark.parametrize("dataset", MVPA_SETTINGS)
def test_first_steps_are_those_of_the_harness(dataset: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**MVPA_SETTINGS[dataset], **MVPA_MODELS[row]}
    torch.manual_seed(1)
    network, training, _ = configured(dataset, H, CHANNELS, settings)
    network = ForecastingNetwork(replace(network.config, **STILL))
    model = host_model(
        dataset, H, CHANNELS, settings, max_steps=STEPS, windows_batch_size=None, random_seed=1, **STILL_IN_HOST
    )
    frame = long_frame(pd.DataFrame(values(), columns=list("abc")), dataset)
    compare_first_steps(network, training, model, frame, monkeypatch)


@pytest.mark.parametrize("row", PARTS)
def test_first_steps_without_parts_are_those_of_the_core(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**PARTS[row], **STILL}
    torch.manual_seed(1)
    network = ForecastingNetwork(ForecastingConfig(H, L, **{"channel_vectors": CHANNELS, **options}))
    options["channel_vectors"] = options.get("channel_vectors", CHANNELS) is not None
    model = MVPA(
        H, L, CHANNELS, loss=MSE(), learning_rate=TRAINING.learning_rate, gradient_clip_val=TRAINING.clip,
        training={
            "weight_averaging": TRAINING.weight_averaging,
            "linear_learning_rate": TRAINING.learning_rate,
        },
        max_steps=STEPS, windows_batch_size=None, training_data_availability_threshold=1.0,
        **in_words_of_the_host(options), **QUIET,
    )  # fmt: skip
    frame = long_frame(pd.DataFrame(values(), columns=list("abc")))
    compare_first_steps(network, TRAINING, model, frame, monkeypatch)


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("ridge", {"training": {"ridge": 1.0}}),
        ("frequency_weight", {"training": {"frequency_weight": 1.0}}),
        ("level_reversion", {"network": {"level_reversion": True}}),
    ],
)
def test_options_in_units_of_the_series_refuse_a_scaler(option: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{option} needs windows in the units of the series"):
        MVPA(h=2, input_size=4, n_series=2, scaler_type="standard", **options)


@pytest.mark.parametrize("loss", [MAE(), MQLoss(level=[80])])
def test_closed_form_start_is_where_training_begins(loss: Any) -> None:
    """A regression has the answer before the first step: a wave is forecast without training."""
    steps = np.arange(300)
    frame = long_frame(pd.DataFrame({name: np.sin(2 * np.pi * (steps + i) / 12) for i, name in enumerate("ab")}))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    errors = []
    for ridge in (None, 1e-4):
        model = MVPA(
            h=12, input_size=24, n_series=2, max_steps=1, learning_rate=1e-9, loss=loss,
            training={"ridge": ridge, "linear_learning_rate": 1e-9},
            # Else the regressions inside the window would forecast the wave before training, too.
            network={"regressions": ridge is not None}, **quiet,
        )  # fmt: skip
        host = NeuralForecast(models=[model], freq="h")
        host.fit(frame[frame["ds"] < frame["ds"].max() - pd.Timedelta("11h")])
        forecast = host.predict().merge(frame, on=["unique_id", "ds"])
        name = next(column for column in forecast.columns if column.startswith("MVPA") and "lo" not in column)
        errors.append((forecast[name] - forecast["y"]).abs().mean())
    assert len(forecast) == 24
    assert errors[1] < 0.02 < 0.5 < errors[0]
