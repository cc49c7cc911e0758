"""MVPA through neuralforecast takes the first steps that the core takes, with the options of README's rows."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from harness.board.models import long_panel
from harness.forecasting.models import MVPA_SETTINGS, configured
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MAE, MSE, MQLoss

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.adapters.neuralforecast import model as adapter
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
    "no mixing heads": {"mixing_heads": 0, "num_channels": None, "per_channel": ()},
    "no attention": {"num_layers": 0},
    "content alone": {"components": ("content",)},
    "no channel vectors": {"num_channels": None, "per_channel": ()},
}


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
    host = NeuralForecast(models=[model], freq=1)
    host.fit(frame)
    assert found == pytest.approx(expected, rel=1e-4)
    for kept, wanted in zip(host.models[0].network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(kept, wanted, rtol=1e-3, atol=1e-4)


def in_host(config: ForecastingConfig, training: ForecasterTraining) -> MVPA:
    """The host's model with every option of the core's."""
    sizes, settings = asdict(config), asdict(training)
    options = {name: value for name, value in sizes.items() if name not in adapter.NETWORK_ELSEWHERE}
    arguments = {name: sizes[field] for field, name in adapter._OWN.items()}
    if config.cycle_length is not None:
        arguments |= {"cycle_column": "step", "futr_exog_list": ["step"]}
    return MVPA(
        **arguments, n_series=CHANNELS, loss={"l1": MAE, "mse": MSE}[training.loss](),
        individual="matrix" in config.per_channel, bounded="bounds" in config.per_channel,
        network={**options, "per_channel": [name for name in config.per_channel if name in ("vectors", "cycle")]},
        training={name: value for name, value in settings.items() if name not in adapter.TRAINING_ELSEWHERE},
        learning_rate=training.learning_rate, gradient_clip_val=training.clip, max_steps=STEPS,
        windows_batch_size=None, training_data_availability_threshold=1.0, random_seed=1, **QUIET,
    )  # fmt: skip


@pytest.mark.parametrize("row", [*PARTS, *MVPA_SETTINGS])
def test_first_steps_are_those_of_the_core(row, monkeypatch):
    torch.manual_seed(1)
    if row in PARTS:
        config, training = (
            ForecastingConfig(H, L, **{"num_channels": CHANNELS, "per_channel": ("vectors",), **PARTS[row]}),
            TRAINING,
        )
    else:
        tuned, training, _ = configured(row, H, CHANNELS, MVPA_SETTINGS[row])
        config = tuned.config
    config = replace(config, **STILL)
    frame = long_panel(values())
    if config.cycle_length is not None:
        frame["step"] = frame["ds"]
    compare_first_steps(ForecastingNetwork(config), training, in_host(config, training), frame, monkeypatch)


@pytest.mark.parametrize("loss", [MAE(), MQLoss(level=[80])])
def test_closed_form_start_is_where_training_begins(loss, fit):
    """A regression has the answer before the first step: a wave is forecast without training."""
    steps = np.arange(300)
    frame = long_panel(np.stack([np.sin(2 * np.pi * (steps + i) / 12) for i in range(2)], axis=1))
    errors = []
    for ridge in (None, 1e-4):
        model = MVPA(
            h=12, input_size=24, n_series=2, max_steps=1, learning_rate=1e-9, loss=loss,
            training={"ridge": ridge, "linear_learning_rate": 1e-9},
            # Else the regressions inside the window would forecast the wave before training, too.
            network={"regressions": ridge is not None}, **QUIET,
        )  # fmt: skip
        host = fit(model, frame[frame["ds"] < frame["ds"].max() - 11], 1)
        forecast = host.predict().merge(frame, on=["unique_id", "ds"])
        name = next(column for column in forecast.columns if column.startswith("MVPA") and "lo" not in column)
        errors.append((forecast[name] - forecast["y"]).abs().mean())
    assert len(forecast) == 24
    assert errors[1] < 0.02 < 0.5 < errors[0]
