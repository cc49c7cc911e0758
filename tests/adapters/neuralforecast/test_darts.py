"""MVPA inside darts, which wraps models of neuralforecast."""

import numpy as np
import pytest
import torch

pytest.importorskip("darts")
from darts import TimeSeries
from darts.models import NeuralForecastModel
from darts.utils.likelihood_models import GaussianLikelihood, QuantileRegression

from mvpa_ts.adapters.neuralforecast import MVPA, PretrainedMVPA
from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}


def season(steps, series):
    time = np.arange(steps)[:, None] - 3 * np.arange(series)
    return TimeSeries.from_values(np.sin(2 * np.pi * time / 12).astype(np.float32))


@pytest.mark.parametrize("use", ["points", "quantiles", "future", "past"])
def test_fit_and_predict(use):
    covariates = {"future": {"future_covariates": season(160, 1)}, "past": {"past_covariates": season(148, 1)}}
    likelihood = {"likelihood": QuantileRegression([0.1, 0.5, 0.9])} if use == "quantiles" else {}
    model = NeuralForecastModel(
        input_chunk_length=36, output_chunk_length=12, model=MVPA, n_epochs=1, batch_size=32, random_state=0,
        pl_trainer_kwargs=QUIET, **likelihood,
    )  # fmt: skip
    model.fit(season(148, 3), **covariates.get(use, {}))
    forecast = model.predict(12, num_samples=20 if use == "quantiles" else 1).all_values()
    assert forecast.shape == (12, 3, 20 if use == "quantiles" else 1)
    assert np.isfinite(forecast).all()


def test_a_distribution_has_a_location_and_a_scale():
    """Its parameters were sorted as if they were quantiles, and both began at the level of the series."""
    rows = np.random.default_rng(0).normal(1000.0, 10.0, (200, 2)).astype(np.float32)
    model = NeuralForecastModel(
        input_chunk_length=24, output_chunk_length=4, model=MVPA, n_epochs=10, random_state=0, pl_trainer_kwargs=QUIET,
        likelihood=GaussianLikelihood(),
    )  # fmt: skip
    fitted = model.fit(TimeSeries.from_values(rows)).predict(4, predict_likelihood_parameters=True).values()
    np.testing.assert_allclose(fitted[:, ::2], 1000.0, atol=20.0)
    np.testing.assert_allclose(fitted[:, 1::2], 10.0, atol=10.0)


def test_the_pretrained_forecaster_trains_nothing_and_forecasts_what_its_network_does():
    model = NeuralForecastModel(
        input_chunk_length=60, output_chunk_length=12, model=PretrainedMVPA, model_kwargs={"season": 12}, n_epochs=0,
        pl_trainer_kwargs=QUIET,
    )  # fmt: skip
    panel = season(148, 3)
    forecast = model.fit(panel).predict(12).values()
    rows = torch.tensor(panel.values()[None, -60:])
    median = forecast_quantiles(load_base("base"), rows, None, horizon=12, levels=[0.5], season=12)[0, ..., 0]
    np.testing.assert_allclose(forecast, median.detach().numpy(), atol=1e-5)


def test_steps_that_begin_later_are_refused_where_nothing_is_trained():
    """They were those after the last row, named as later ones."""
    sizes = {"input_chunk_length": 36, "output_chunk_length": 12, "output_chunk_shift": 3, "pl_trainer_kwargs": QUIET}
    with pytest.raises(ValueError, match="output_chunk_shift must be 0 with PretrainedMVPA, got 3: add it to"):
        NeuralForecastModel(model=PretrainedMVPA, n_epochs=0, **sizes).fit(season(148, 3))
    forecast = NeuralForecastModel(model=MVPA, n_epochs=1, **sizes).fit(season(148, 3)).predict(12)
    assert forecast.start_time() == 151


@pytest.mark.parametrize(("model", "epochs"), [(MVPA, 1), (PretrainedMVPA, 0)])
def test_missing_values_that_darts_does_not_mark_are_named(model, epochs):
    panel = season(148, 2)
    model = NeuralForecastModel(
        input_chunk_length=36, output_chunk_length=12, model=model, n_epochs=epochs, pl_trainer_kwargs=QUIET
    ).fit(panel)
    values = panel.values()
    values[-5, 0] = np.nan
    with pytest.raises(ValueError, match="which this host does not mark as missing: in darts fill_missing_values"):
        model.predict(12, series=TimeSeries.from_values(values))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", ["channel_order", "channel_positions"])
def test_places_of_columns_that_darts_names_to_nobody_are_said(given):
    places = {"channel_order": ["b", "a"], "channel_positions": {"b": 0.0, "a": 3.0}}[given]
    model = NeuralForecastModel(
        input_chunk_length=24, output_chunk_length=2, model=PretrainedMVPA, model_kwargs={given: places}, n_epochs=0,
        pl_trainer_kwargs=QUIET,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="in the order of their names, 'a', 'b', since this host hands on no names"):
        model.fit(season(60, 2)).predict(2)
