"""Huge values and training that diverges: a named error or finite forecasts, and the last good weights."""

import numpy as np
import pytest
import torch
from torch import nn

from mvpa_ts.forecasting import ForecastingConfig
from mvpa_ts.forecasting.fitted import fit_forecaster
from mvpa_ts.forecasting.training import ForecasterTraining, train
from mvpa_ts.windows import Scaling, Series, Windows

CONFIG = ForecastingConfig(6, 24, patch_length=8, patch_stride=8, dim=8, mlp_dim=8, num_outputs=3)
LEVELS = (0.1, 0.5, 0.9)
WAVE = np.sin(np.arange(120)[:, None] / np.array([4.0, 6.0]))


def fit(values: np.ndarray, **settings):
    training = ForecasterTraining(**{"steps": 5, **settings})
    return fit_forecaster([Series(values)], CONFIG, training, levels=LEVELS)


@pytest.mark.parametrize("size", [1e9, 1e20, 1e155, 1e300])
def test_huge_values_in_training_give_finite_forecasts(size):
    spike = WAVE.copy()
    spike[-3, 1] = size
    for values in (spike, WAVE * size):
        assert np.isfinite(fit(values).predict(Series(values))).all()


@pytest.mark.parametrize("size", [1e10, 1e40, 1.7e308])
def test_value_far_from_the_training_data_is_named(size):
    fitted, scaling = fit(WAVE), Scaling.of(WAVE)
    later = WAVE.copy()
    later[-3, 1] = -size
    with pytest.raises(ValueError, match=r"column 1 holds -1(\.7)?e\+\d+, which lies .* missing \(NaN\)"):
        fitted.predict(Series(later), scaling)
    later[-3, 1] = np.nan
    assert np.isfinite(fitted.predict(Series(later), scaling)).all()


def test_scale_of_huge_values_is_that_of_ordinary_ones():
    ordinary, huge = Scaling.of(WAVE), Scaling.of(WAVE * 2.0**1000)
    np.testing.assert_allclose(huge.location / 2.0**1000, ordinary.location, rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(huge.scale / 2.0**1000, ordinary.scale, rtol=1e-12)


@pytest.mark.parametrize(
    "counted", [{"steps": 40}, {"epochs": 40, "batch_size": 256}, {"steps": 40, "validation_fraction": 0.3}]
)
def test_training_that_diverges_says_so(counted):
    with pytest.raises(FloatingPointError, match=r"diverged by step \d+ of 40, where .* learning_rate \(1e\+30\)"):
        fit(WAVE, learning_rate=1e30, **counted)


def test_network_that_training_went_on_from_stays_as_it_was():
    start = fit(WAVE)
    before = {name: tensor.clone() for name, tensor in start.network.state_dict().items()}
    with pytest.raises(FloatingPointError):
        fit_forecaster(
            [Series(WAVE)], CONFIG, ForecasterTraining(steps=40, learning_rate=1e30), levels=LEVELS, start=start
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in start.network.state_dict().items())


class Breaking(nn.Module):
    """A forecast of one number, which is NaN after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(()))
        self.steps = steps

    def forward(self, x: torch.Tensor, **_: object) -> torch.Tensor:
        self.steps -= self.training
        broken = torch.nan if self.steps < 0 else 0.0
        return (self.level + broken).expand(len(x), 6, 2, 1)


def windows() -> Windows:
    return Windows(torch.ones(60, 2), torch.arange(30), lookback=24, horizon=6)


PLAIN = ForecasterTraining(steps=40, batch_size=8, learning_rate=0.01, weight_averaging=None, schedule="constant")


def test_best_weights_of_a_validation_are_kept():
    model = Breaking(30)
    with pytest.warns(UserWarning, match=r"diverged by step 32 of 40.*the weights of step 30 are kept"):
        outcome = train(model, {"train": windows(), "validation": windows()}, PLAIN, seed=0)
    assert outcome.validation_mae == pytest.approx(1 - model.level.item())
    assert model.level.item() == pytest.approx(0.3, abs=0.01)  # AdamW's steps are of the learning rate


def test_last_finite_weights_are_kept_without_a_validation():
    model = Breaking(30)
    with pytest.raises(FloatingPointError, match="the model has the weights of step 30"):
        train(model, {"train": windows()}, PLAIN, seed=0)
    assert model.level.item() == pytest.approx(0.3, abs=0.01)
