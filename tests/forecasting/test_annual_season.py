"""The wave of the year, against waves that were put in, and where there is none."""

import math

import pytest
import torch

from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.annual_season import FEWEST, MOST, annual_season
from mvpa_ts.forecasting.pretrained.seasons import season_of, week_of

YEAR = 365.25


def years(days: int, series: int) -> torch.Tensor:
    """[1, days, series] waves of the year, each with its own size and phase."""
    phase = torch.arange(series) * 2.0 * math.pi / series
    return ((2.0 + torch.arange(series)) * torch.sin(2.0 * math.pi * torch.arange(days)[:, None] / YEAR + phase))[None]


def noise(days: int, series: int, persistence: float = 0.0) -> torch.Tensor:
    steps = torch.randn(days, series, generator=torch.Generator().manual_seed(0)).double()
    for day in range(1, days):
        steps[day] += persistence * steps[day - 1]
    return steps[None]


@pytest.mark.parametrize("days", [250, 331, 700])
def test_the_wave_is_found_beside_noise(days):
    wave = years(days + 30, 5).double()
    x = wave[:, :days] + 0.3 * noise(days, 5)
    fitted = annual_season(x, torch.ones_like(x, dtype=torch.bool), 30, week=7)
    missed = (fitted - wave)[:, days:] - (fitted - wave)[:, days - 14 : days].mean(1, keepdim=True)
    change = wave[:, days:] - wave[:, days - 14 : days].mean(1, keepdim=True)
    assert missed.square().mean() < 0.1 * change.square().mean()


def test_missing_weeks_units_and_steps_change_nothing_else():
    x = years(400, 3).double() + 0.3 * noise(400, 3)
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[:, 100:121, 1] = False
    fitted = annual_season(x[:, :370], mask[:, :370], 30, week=7)
    torch.testing.assert_close(
        annual_season(x[:, :370].masked_fill(~mask[:, :370], torch.nan), mask[:, :370], 30, week=7), fitted
    )
    torch.testing.assert_close(annual_season(1e3 * x[:, :370] + 1e5, mask[:, :370], 30, week=7), 1e3 * fitted)
    hours = x[:, :370].repeat_interleave(24, 1)
    of_hours = annual_season(hours, mask[:, :370].repeat_interleave(24, 1), 720, week=168)
    torch.testing.assert_close(of_hours.unflatten(1, (400, 24)).mean(2), fitted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("persistence", [0.0, 0.9])
def test_noise_and_trends_have_no_year(persistence):
    x = noise(350, 64, persistence)
    mask = torch.ones_like(x, dtype=torch.bool)
    assert annual_season(x, mask, 30, week=7).std() < 0.05 * x.std()
    x = x + torch.linspace(0.0, 10.0 * float(x.std()), 350)[:, None]
    assert annual_season(x, mask, 30, week=7).std() < 0.05 * x.std()


def test_of_a_random_walk_little_is_believed():
    walks = noise(380, 64, 1.0)
    x, later = walks[:, :350], walks[:, 350:]
    wave = annual_season(x, torch.ones_like(x, dtype=torch.bool), 30, week=7)
    moved = x[:, -1:] + wave[:, 350:] - wave[:, 349:350]
    assert (later - moved).abs().mean() < 1.08 * (later - x[:, -1:]).abs().mean()


@pytest.mark.parametrize("padding", [100, 700])
def test_histories_before_which_others_begin_are_as_alone(padding):
    x = years(250, 2).double() + 0.3 * noise(250, 2)
    alone = annual_season(x, torch.ones_like(x, dtype=torch.bool), 30, week=7)
    longer = torch.cat([torch.randn(1, padding, 2, dtype=torch.float64), x], 1)
    mask = (torch.arange(padding + 250) >= padding)[None, :, None].expand_as(longer)
    together = annual_season(longer, mask, 30, week=7)[:, padding:]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("days", [7 * FEWEST - 4, 7 * MOST + 7])
def test_other_histories_are_left_alone(days):
    """What is shorter tells too little, and in what is longer the network sees two years."""
    x = years(days, 2)
    assert not annual_season(x, torch.ones_like(x, dtype=torch.bool), 30, week=7).any()


def test_the_calendar_tells_the_week():
    frequencies = {"D": 7, "B": 5, "h": 168, "6h": 28, "W": 1, "ME": 0, "QE": 0, "5min": 0, "15min": 0, "30min": 0}
    assert {name: week_of(season_of(name)) for name in frequencies} == frequencies
    assert [week_of(season) for season in (0, 24, 364, 260)] == [0, 168, 7, 5]


def test_the_forecaster_knows_the_year_before_it_repeats():
    network = load_base("small")
    truth = years(330, 4)
    x = (truth + 0.5 * noise(330, 4, 0.5)).float()
    errors = {}
    with torch.no_grad():
        for season in (0, 7):
            middle = forecast_quantiles(network, x[:, :270], horizon=60, season=season)[..., 4]
            errors[season] = float((middle - truth[:, 270:]).abs().mean())
    assert errors[7] < 0.6 * errors[0]
