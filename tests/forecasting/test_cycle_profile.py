"""The shape of the week and of the day from many of them: found where it is, not believed where it is not."""

import pytest
import torch
from torch.nn import functional as F

from mvpa_ts.forecasting.pretrained import load_base
from mvpa_ts.forecasting.pretrained.cycle_profile import FEWEST, MOST, cycle_profile, cycles_of
from mvpa_ts.forecasting.pretrained.pretrained import forecast_quantiles
from mvpa_ts.forecasting.pretrained.seasons import season_of


def of_weeks(steps: int, cycle: int, series: int = 1) -> torch.Tensor:
    """A shape that comes again with every cycle, and tells no two days of it alike; [1, L, C]."""
    generator = torch.Generator().manual_seed(0)
    shape = torch.randn(cycle, series, generator=generator, dtype=torch.float64)
    days = shape.unflatten(0, (7, cycle // 7))
    shape = (days - days.mean(0)).flatten(0, 1)
    return (shape - shape.mean(0))[torch.arange(steps) % cycle][None]


def noise(steps: int, series: int, persistence: float, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shocks = torch.randn(steps, series, generator=generator, dtype=torch.float64)
    values = torch.zeros_like(shocks)
    for step in range(1, steps):
        values[step] = persistence * values[step - 1] + shocks[step]
    return values[None]


@pytest.mark.parametrize(("cycle", "extra"), [(168, 0), (56, 3), (168, 41)])
def test_what_comes_again_is_found(cycle, extra):
    """The mean of the cycles is the shape, at the steps of history and horizon alike."""
    steps = (MOST + 2) * cycle + extra
    x = of_weeks(steps + 30, cycle, series=2)
    history = x[:, :steps] + 0.3 * noise(steps, 2, 0.0)
    profile = cycle_profile(history, torch.ones_like(history, dtype=torch.bool), 30, cycle)
    assert profile.shape == (1, steps + 30, 2)
    assert (profile - x).abs().mean() < 0.1 * x.abs().mean() + 0.05


def test_missing_steps_count_for_nothing():
    steps = 10 * 168
    x = of_weeks(steps + 20, 168)
    mask = torch.rand(1, steps, 1, generator=torch.Generator().manual_seed(3)) > 0.3
    history = x[:, :steps] + 0.3 * noise(steps, 1, 0.0)
    profile = cycle_profile(torch.where(mask, history, 1e6), mask, 20, 168)
    torch.testing.assert_close(profile, cycle_profile(torch.where(mask, history, torch.nan), mask, 20, 168))
    assert (profile - x).abs().mean() < 0.2 * x.abs().mean()


@pytest.mark.parametrize("persistence", [0.0, 0.9, 0.99, 1.0])
def test_noise_has_no_shape(persistence):
    x = torch.cat([noise(6 * 168, 1, persistence, seed) for seed in range(30)])
    profile = cycle_profile(x, torch.ones_like(x, dtype=torch.bool), 8, 168)
    change = (profile[:, -8:] - profile[:, -9:-8]).abs().mean()
    assert change < 0.03 * x.std(1).mean()


@pytest.mark.parametrize("kind", ["trend", "growth", "sunshine", "dead"])
def test_what_only_looks_like_a_shape_is_none(kind):
    """A trend rises in every week; sunshine is a shape times a rest; a sensor that died has no shape any more."""
    steps = 8 * 168
    number = torch.arange(steps + 24, dtype=torch.float64)
    week = of_weeks(steps + 24, 168)[0, :, 0]
    x = {
        "trend": 0.1 * number + noise(steps + 24, 1, 0.5)[0, :, 0],
        "growth": (0.002 * number).exp() + 0.01 * noise(steps + 24, 1, 0.5)[0, :, 0],
        "sunshine": week.clamp(min=0.0) * noise(steps + 24, 1, 0.9)[0, :, 0].sigmoid(),
        "dead": torch.where(number < steps - 100, week, 0.0),
    }[kind][None, :steps, None]
    profile = cycle_profile(x, torch.ones_like(x, dtype=torch.bool), 24, 168)
    assert profile.abs().max() < 0.02 * x.std()


@pytest.mark.parametrize("padding", [168, 3 * 168 + 5])
def test_a_history_that_begins_later_is_read_the_same(padding):
    x = of_weeks(7 * 168, 168, series=2) + 0.5 * noise(7 * 168, 2, 0.5)
    alone = cycle_profile(x, torch.ones_like(x, dtype=torch.bool), 24, 168)
    longer = F.pad(x, (0, 0, padding, 0), value=3.0)
    mask = F.pad(torch.ones_like(x, dtype=torch.bool), (0, 0, padding, 0))
    torch.testing.assert_close(cycle_profile(longer, mask, 24, 168)[:, padding:], alone)


def test_a_day_that_is_like_all_days_is_left_to_the_network():
    hours = torch.arange(8 * 168)
    x = torch.sin(2 * torch.pi * hours / 24).double()[None, :, None]
    assert cycle_profile(x, torch.ones_like(x, dtype=torch.bool), 24, 168).abs().max() < 1e-6


def test_fewer_cycles_tell_nothing():
    x = of_weeks(FEWEST * 168 - 1, 168)
    assert not cycle_profile(x, torch.ones_like(x, dtype=torch.bool), 24, 168).any()


def test_the_calendar_tells_the_cycles():
    """Of minutes the day and the week, of hours the week; what the network sees often enough is its own affair."""
    cycles = {"5min": (288, 2016), "10min": (144, 1008), "15min": (672,), "h": (168,), "3h": (), "D": (), "ME": ()}
    assert {name: cycles_of(season_of(name)) for name in cycles} == cycles
    assert [cycles_of(season) for season in (0, 24, 100, 200, 364)] == [(), (168,), (), (), ()]


def test_the_forecaster_knows_a_week_of_hours_from_many():
    network = load_base("small")
    truth = of_weeks(8 * 168 + 48, 168, series=3)
    x = (truth + 0.7 * noise(8 * 168 + 48, 3, 0.5)).float()
    errors = {}
    with torch.no_grad():
        for season in (0, 168):
            middle = forecast_quantiles(network, x[:, : 8 * 168], horizon=48, season=season)[..., 4]
            errors[season] = float((middle - truth[:, 8 * 168 :]).abs().mean())
    assert errors[168] < 0.8 * errors[0]
