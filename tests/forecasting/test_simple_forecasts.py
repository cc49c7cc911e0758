"""Simple forecasts against scalar loops."""

import math

import numpy as np
import pytest
import torch

from mvpa_ts.forecasting.pretrained.simple_forecasts import (
    NAMES,
    autocorrelation,
    filled,
    likely_period,
    season_shape,
    season_spread,
    seasons_of_panel,
    simple_forecasts,
)


def series(n, length, seed=0):
    return torch.randn(n, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_gaps_take_the_value_before_and_the_start_the_first_value():
    x = torch.tensor([[9.0, 9.0, 1.0, 9.0, 2.0, 9.0], [9.0] * 6])
    mask = torch.tensor([[0, 0, 1, 0, 1, 0], [0] * 6]).bool()
    values, first = filled(x.masked_fill(~mask, torch.nan), mask)
    assert values[0].tolist() == [1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    assert first.tolist() == [2, 5]
    assert values[1].tolist() == [0.0] * 6


@pytest.mark.parametrize(("length", "begin"), [(20, 0), (33, 7)])
def test_autocorrelation_is_that_of_the_detrended_series(length, begin):
    x = series(2, length)
    x[:, :begin] = x[:, begin : begin + 1]
    result = autocorrelation(x, torch.full((2,), begin)).numpy()
    for row in range(2):
        y = x[row, begin:].numpy()
        y = y - np.polyval(np.polyfit(np.arange(len(y)), y, 1), np.arange(len(y)))
        for lag in range(len(y) - 1):
            expected = np.mean(y[lag:] * y[: len(y) - lag]) / np.mean(y * y)
            assert result[row, lag] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("period", [4, 7, 12, 24, 52, 120])
def test_the_period_of_a_season_is_found(period):
    time, first = 2 * math.pi * torch.arange(512.0) / period, torch.tensor([0])
    x = (torch.sin(time) + 0.3 * torch.cos(2 * time))[None] + 0.05 * series(1, 512).float()
    periods, strength = seasons_of_panel(x, first, 1)
    assert periods[0, 0] == likely_period(x, first) == period  # and not twice or three times as long
    assert strength[0, 0] > 0.9


def test_a_straight_line_has_no_season():
    line, first = torch.arange(64.0)[None], torch.tensor([0])
    assert (likely_period(line, first), *map(torch.max, seasons_of_panel(line, first, 1))) == (1, 1, 0.0)


def smoothed(values, share):
    weights = (1 - share) ** np.arange(len(values))[::-1]
    return (weights * values).sum() / weights.sum()


@pytest.mark.parametrize(("length", "begin", "period"), [(30, 0, 7), (50, 11, 12), (16, 0, 1), (25, 20, 3), (64, 3, 9)])
def test_forecasts_equal_scalar_loops(length, begin, period):
    horizon = 11
    x = series(1, length, seed=3)
    x[:, :begin] = x[:, begin : begin + 1]
    first = torch.tensor([begin])
    shapes = season_shape(x, first, torch.tensor([[period]]), horizon).expand(3, -1, -1)
    result = simple_forecasts(x, first, torch.tensor([[period] * 3]), shapes)[0].numpy()
    y = x[0].numpy()
    real = y[begin:]

    cycles = [j for j in range(6) if length - (j + 1) * period >= begin]

    def season(t):  # steps from the end of the history
        values = []
        for j in cycles:
            cycle = y[length - (j + 1) * period : length - j * period]
            values.append(cycle[t % period] - cycle.mean())
        return np.mean(values) if cycles else 0.0

    rest = np.array([y[t] - season(t - length) for t in range(begin, length)])
    trend = real[-32:]
    slope = np.polyfit(np.arange(len(trend)), trend, 1)[0] if len(trend) > 1 else 0.0
    apart = rest - rest.mean()
    memory = np.clip((apart[1:] * apart[:-1]).sum() / max((apart**2).sum(), 1e-9), 0, 0.999)
    for h in range(horizon):
        shape = season(h)
        expected = {
            "last": y[-1],
            "mean": real.mean(),
            "smoothed .05": smoothed(real, 0.05),
            "smoothed .2": smoothed(real, 0.2),
            "smoothed .5": smoothed(real, 0.5),
            "drift": y[-1] + (y[-1] - y[begin]) / max(len(real) - 1, 1) * (h + 1),
            "damped trend": smoothed(real, 0.2) + slope * sum(0.95 ** (k + 1) for k in range(h + 1)),
            "repeated, season 1": y[length - period + h % period],
            "level of the last cycle, season 2": shape + rest[-period:].mean(),
            "smoothed .05, season 1": shape + smoothed(rest, 0.05),
            "smoothed .3, season 3": shape + smoothed(rest, 0.3),
            "returning, season 1": shape + smoothed(rest, 0.05) + memory ** (h + 1) * (rest[-1] - smoothed(rest, 0.05)),
        }
        for name, value in expected.items():
            assert result[NAMES.index(name), h] == pytest.approx(value, abs=1e-9), (name, h)


def test_spread_of_a_season_by_hand():
    """Three of four changes of each time, odd ones missing: the mean over the cycles, over the mean of all times."""
    sizes = np.array([1.0, 1.0, 4.0, 10.0, 4.0])
    x = (np.arange(30) // 5 % 2) * np.tile(sizes, 6)
    x[7] = np.nan
    factor = season_spread(torch.tensor(x)[None], torch.tensor([[5]]), 8)
    np.testing.assert_allclose(factor[0], np.resize(sizes / sizes.mean(), 38), rtol=1e-6)
    assert season_spread(torch.tensor(x)[None], torch.tensor([[9]]), 8).eq(1.0).all()  # two changes tell nothing


def test_spread_without_a_reason_is_even():
    walks = torch.randn(200, 480, generator=torch.Generator().manual_seed(0)).cumsum(1)
    for period in (12, 24, 96):
        factor = season_spread(walks, torch.full((200, 1), period), 24)
        assert (factor == 1.0).all(1).float().mean() > 0.6
        assert (factor - 1.0).abs().mean() < 0.03
