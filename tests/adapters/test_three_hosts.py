"""One training, one set of defaults: the core, neuralforecast and sktime learn the same from the same rows."""

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from neuralforecast import NeuralForecast

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.adapters.sktime.parameters import network_config, training_of
from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, fit_forecaster
from mvpa_ts.windows import Series

H, L, STEPS, SEED = 4, 24, 30, 3
DRAWN = int(np.random.RandomState(SEED).randint(2**31))  # what sktime's estimators make of their random_state
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "enable_checkpointing": False}


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """The second series follows the first by three steps. In units of their own both count as much in every loss."""
    first = np.sin(np.arange(63) / 3) + 0.3 * np.random.default_rng(0).normal(size=63)
    rows = np.stack([first[3:], first[:-3]], 1)
    return (rows - rows.mean(0)) / rows.std(0)


@pytest.mark.parametrize(
    ("network", "tolerance"),
    [
        ({"mixing_heads": 0, "regressions": False}, 1e-4),
        # Of a map that hardly matters rounding decides the sign, and so the first step of Adam.
        ({}, 0.06),
    ],
)
def test_they_learn_the_same(rows: np.ndarray, network, tolerance):
    """All windows in each step and no dropout, so that nothing random is left but the first weights."""
    network, size = {**network, "head_dropout": 0.0}, {"batch_size": 64}
    config = ForecastingConfig(H, L, dropout=0.0, **network).with_vectors(2)
    training = ForecasterTraining(steps=STEPS, **size)
    core = fit_forecaster([Series(rows)], config, training, levels=(0.5,), seed=DRAWN).predict(Series(rows))[..., 0]

    panel = pd.DataFrame(rows).melt(var_name="unique_id", value_name="y", ignore_index=False)
    model = MVPA(h=H, input_size=L, n_series=2, dropout=0.0, network=network, windows_batch_size=64, max_steps=STEPS,
                 random_seed=DRAWN, **QUIET)  # fmt: skip
    host = NeuralForecast([model], freq=1)
    host.fit(panel.rename_axis("ds").reset_index())
    np.testing.assert_allclose(host.predict()["MVPA"].to_numpy().reshape(2, H).T, core, atol=tolerance)

    forecaster = MVPAForecaster(input_size=L, dropout=0.0, network=network, training=size, max_steps=STEPS,
                                quantiles=(0.5,), random_state=SEED)  # fmt: skip
    forecast = forecaster.fit(pd.DataFrame(rows), fh=range(1, H + 1)).predict()
    np.testing.assert_allclose(forecast, core, atol=1e-4)


def test_they_have_the_same_defaults(rows: np.ndarray):
    model, parameters = MVPA(h=H, input_size=L, n_series=2), MVPAForecaster(input_size=L).get_params(deep=False)
    network = network_config(parameters, [Series(rows)], H)
    assert replace(network, num_outputs=1) == model.network.config == ForecastingConfig(H, L).with_vectors(2)
    training = training_of(parameters, parameters["max_steps"], from_scratch=True)
    assert asdict(training) == asdict(model._training.settings) == asdict(ForecasterTraining())
    assert (model.max_steps, model.windows_batch_size) == (training.steps, training.batch_size)
