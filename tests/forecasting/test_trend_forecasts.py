"""Forecasts of series that grow: exact where the series is, against loops of numpy elsewhere."""

import numpy as np
import pytest
import torch

from mvpa_ts.forecasting.pretrained.simple_forecasts import season_shape, seasons_of_panel
from mvpa_ts.forecasting.pretrained.trend_forecasts import NAMES, trend_forecasts

AHEAD = 30
SEASON = torch.tensor([0.0, 1.0, -0.4, 0.3, 0.8, -1.2, -0.5], dtype=torch.float64)


def noise(n, length, seed=0):
    return torch.randn(n, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def forecast(x, period=7, first=0):
    periods, begins = torch.full((len(x), 3), period), torch.full((len(x),), first)
    shapes = season_shape(x, begins, periods[:, :1], AHEAD).expand(3, -1, -1)
    result = trend_forecasts(x, begins, periods, shapes)
    assert result.shape == (len(x), len(NAMES), AHEAD)
    return {name: result[:, index] for index, name in enumerate(NAMES)}


@pytest.mark.parametrize("length", [35, 80, 81])
def test_a_season_on_a_line_goes_on(length):
    time = torch.arange(length + AHEAD, dtype=torch.float64)
    x = (0.02 * time + SEASON[time.long() % 7])[None]
    found = forecast(x[:, :length])
    for name in ("repeated with the last change", "repeated with the mean change", "on the trend"):
        torch.testing.assert_close(found[f"{name}, season 2"], x[:, length:], atol=1e-6, rtol=0)


def test_a_line_goes_on():
    time = torch.arange(60 + AHEAD, dtype=torch.float64)[None] / 30
    torch.testing.assert_close(forecast(time[:, :60])["trend of 32 steps"], time[:, 60:])


def test_a_season_that_grows_goes_on_growing():
    time = torch.arange(84 + AHEAD, dtype=torch.float64)
    x = (0.03 * time + (0.3 + 0.02 * time) * (SEASON - SEASON.mean())[time.long() % 7])[None]
    found = forecast(x[:, :84])
    error = {name: float((values - x[:, 84:]).abs().mean()) for name, values in found.items()}
    assert error["growing with the trend, season 1"] < 0.3 * error["on the trend, season 1"]
    assert error["lags 1, 2 and season 1"] < error["on the trend, season 1"]


@pytest.mark.parametrize(("name", "lags", "prior"), [
    ("lags 1 to 3", [1, 2, 3], [1.0, 0.0, 0.0]),
    ("lags 1 to 12", list(range(1, 13)), [1.0] + 11 * [0.0]),
    ("lags 1, 2 and season 1", [1, 2, 5, 6], [0.5, 0.0, 1.0, -0.5]),
])  # fmt: skip
def test_regressions_are_ridge_regressions(name, lags, prior):
    x = noise(1, 50, seed=3).cumsum(1) * 0.2
    y, begin = x[0].numpy(), 12 if len(lags) < 4 else max(lags)  # that of three lags reads the rows of that of twelve
    columns = np.stack([[y[t - lag] for lag in lags] for t in range(begin, 50)])
    target = y[begin:]
    all_columns = columns if len(lags) > 3 else np.stack([[y[t - lag] for lag in range(1, 13)] for t in range(12, 50)])
    variance = np.append(all_columns.var(0), target.var()).mean() + 1e-3
    centred, rest = columns - columns.mean(0), target - target.mean()
    ridge = 0.5 * len(lags) * variance * np.eye(len(lags))
    weights = np.linalg.solve(centred.T @ centred + ridge, centred.T @ rest + ridge @ np.array(prior))
    constant = target.mean() - weights @ columns.mean(0)
    values = list(y)
    for _ in range(AHEAD):
        values.append(constant + sum(weight * values[-lag] for weight, lag in zip(weights, lags, strict=True)))
    np.testing.assert_allclose(forecast(x, period=5)[name][0], values[50:], atol=1e-6)


def test_a_series_upside_down_is_forecast_upside_down_and_what_is_before_its_start_does_not_matter():
    x = noise(2, 70, seed=4).cumsum(1) * 0.2
    found = forecast(x, first=20)
    other = torch.cat([x[:, 20:21].expand(2, 20), x[:, 20:]], 1)
    for name, values in forecast(-x, first=20).items():
        torch.testing.assert_close(values, -found[name])
        torch.testing.assert_close(forecast(other, first=20)[name], found[name])
        torch.testing.assert_close(forecast(x[:, 20:])[name], found[name])


def test_a_slow_curve_does_not_hide_the_season():
    time = torch.arange(240, dtype=torch.float64)
    x = (3.0 * torch.sin(time / 60) + 0.3 * torch.sin(2 * torch.pi * time / 12))[None] + 0.05 * noise(1, 240)
    periods, strength = seasons_of_panel(x, torch.tensor([0]), 1)
    assert periods[0, 1] == 12
    assert strength[0, 1] > 0.1


def test_the_last_season_is_that_of_the_panel():
    time = torch.arange(200, dtype=torch.float64)
    x = torch.sin(2 * torch.pi * time / 24).expand(8, 200) + 0.5 * noise(8, 200)
    x[3] = noise(1, 200, seed=9)[0]
    alone = torch.stack([x[3], noise(1, 200, seed=8)[0]])
    periods, strength = seasons_of_panel(torch.cat([x, alone, alone, alone, alone]), torch.zeros(16, dtype=int), 8)
    assert periods[:8, 2].tolist() == [24] * 8
    assert strength[8, 2] < strength[3, 2]  # a panel of noise alone
