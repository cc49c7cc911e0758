"""Regressions inside windows: against loops in numpy, and what they must find, ignore and survive."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from mvpa_ts import ForecastingConfig, ForecastingNetwork
from mvpa_ts.forecasting.network.regressions import FARTHEST, NAMES, START, RegressionShares, regress, regressions_pay
from mvpa_ts.windows import Windows

OWN, NEAR, LATELY, LED = range(len(NAMES))


def travelling(speed: int, rows: int = 120, channels: int = 7, seed: int = 0) -> Tensor:
    """Noise that reaches each channel `speed` steps after the one before it, [1, rows, channels]."""
    source = np.random.default_rng(seed).standard_normal(rows + 200)
    late = speed * np.arange(channels)
    return torch.tensor(source[100 + np.arange(rows)[:, None] - late], dtype=torch.float32)[None]


def standard(channels: int) -> Tensor:
    """Units that leave windows as they are."""
    return torch.tensor([[0.0, 1.0]]).expand(channels, 2)


def by_loops(window: np.ndarray, neighbours: int, lags: int, first: int, horizon: int) -> np.ndarray:
    """A ridge regression shared by the channels, one step ahead, carried on step by step."""
    C = window.shape[1]

    def row(values: np.ndarray, end: int, channel: int) -> list[float]:
        places = sorted(range(-neighbours, neighbours + 1), key=abs)
        inside = [channel + place for place in places]
        return [
            values[end - lag, place] if 0 <= place < C else 0.0 for place in inside for lag in reversed(range(lags))
        ]

    ends = [(end, channel) for end in range(first, len(window) - 1) for channel in range(C)]
    design = np.array([row(window, *each) for each in ends])
    target = np.array([window[end + 1, channel] for end, channel in ends])
    weights = np.linalg.solve(design.T @ design + 30.0 * np.eye(design.shape[1]), design.T @ target)
    values = window
    for _ in range(horizon):
        step = np.array([row(values, len(values) - 1, channel) for channel in range(C)]) @ weights
        step = np.clip(step, window.min(0) - 2.0, window.max(0) + 2.0)
        values = np.vstack([values, step])
    return values[len(window) :]


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_pooled_regressions_against_loops(channels):
    x = torch.randn(1, 48, channels, generator=torch.Generator().manual_seed(channels)).cumsum(1) / 4
    forecasts = regress(x, None, standard(channels), 5).forecasts[0].mT.double().numpy()  # [C, h, K]
    window = x[0].double().numpy()
    near = min(2, channels - 1)
    for name, arguments in ((OWN, (0, 12, 11)), (NEAR, (near, 12, 11)), (LATELY, (near, 12, 24))):
        np.testing.assert_allclose(forecasts[..., name].T, by_loops(window, *arguments, 5), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("speed", [-4, 3])
def test_a_wave_is_forecast_from_its_neighbours_in_either_direction(speed):
    y = travelling(speed)
    found = regress(y[:, :96], None, standard(7), 4).forecasts[0].mT  # [C, h, K]
    error = (found - y[0, 96:100].mT[..., None]).square()
    reached = slice(2, None) if speed > 0 else slice(None, -2)  # the first channels have nobody to hear it from
    assert error[reached, :, NEAR].mean() < 0.2
    assert error[reached, :, OWN].mean() > 0.8


def test_the_evidence_tells_the_better_regression():
    evidence = regress(travelling(3)[:, :96], None, standard(7), 24).evidence
    of_channel, of_all, least = evidence[0].split([len(NAMES), len(NAMES), 2], 1)
    assert (of_channel[2:, NEAR] < of_channel[2:, OWN]).all()
    assert of_all[0].argmin() in (NEAR, LATELY)
    assert (of_all == of_all[0]).all()
    assert (of_channel.amin(1) == 0.0).all()
    assert least.isfinite().all()


def test_leaders_are_found_in_no_order():
    draws = np.random.default_rng(3)
    sources = draws.standard_normal((140, 6))
    sources[20:, 1], sources[30:, 4] = sources[:-20, 5].copy(), sources[:-30, 0].copy()
    x = torch.tensor(sources[None, 40:], dtype=torch.float32)
    forecasts = regress(x[:, :88], None, standard(6), 12).forecasts[0]
    error = (forecasts[:, LED] - x[0, 88:].mT).square().mean(1)
    assert (error[[1, 4]] < 0.5).all()  # a penalty of 30 shrinks what 40 rows tell
    assert (error[[0, 2, 3, 5]] > 0.5).all()


def test_units_of_the_series_do_not_matter():
    x, units = travelling(3)[:, :96], standard(7)
    expected = regress(x, None, units, 24)
    factor, level = torch.linspace(1e-3, 1e3, 7), torch.linspace(-1e2, 1e2, 7)
    scaled = regress(x * factor + level, None, torch.stack([level, factor], 1), 24)
    torch.testing.assert_close((scaled.forecasts - level[:, None, None]) / factor[:, None, None], expected.forecasts,
                               rtol=1e-2, atol=1e-2)  # fmt: skip
    far = regress(x + 1e4, None, units, 24).forecasts - 1e4
    assert far.abs().max() < 20.0, "a window far from its series is read around itself"


def test_what_is_stored_where_nothing_was_observed_does_not_matter():
    x = travelling(3)[:, :96]
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.8
    mask[:, :, 2] = False
    found = [regress(x.masked_fill(~mask, 0.0), mask, units, 24) for units in (standard(7), None)]
    assert all(tensor.isfinite().all() for each in found for tensor in each[:2])
    unknown = torch.full((7, 2), torch.nan)
    torch.testing.assert_close(regress(x.masked_fill(~mask, 0.0), mask, unknown, 24), found[1])


def test_all_observed_is_as_without_a_mask():
    x = travelling(3)[:, :96]
    torch.testing.assert_close(regress(x, torch.ones_like(x).bool(), None, 5)[:2], regress(x, None, None, 5)[:2])


@pytest.mark.parametrize(("channels", "lookback", "horizon"), [(1, 16, 1), (3, 17, 30), (70, 24, 2), (2, 96, 130)])
def test_odd_sizes(channels, lookback, horizon):
    network = ForecastingNetwork(ForecastingConfig(horizon, lookback, patch_length=8, patch_stride=8, num_outputs=3))
    x = torch.randn(2, lookback, channels, generator=torch.Generator().manual_seed(0))
    output = network.eval()(x)
    assert output.shape == (2, horizon, channels, 3)
    assert output.isfinite().all()
    moved = output[..., 1] != x.mean(1, keepdim=True)
    assert moved[:, :FARTHEST].any()
    assert not (output[:, FARTHEST:, :, 1] - x.mean(1, keepdim=True)).abs().gt(1e-5).any()
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_short_windows_are_read_without():
    assert ForecastingNetwork(ForecastingConfig(4, 15, patch_length=5, patch_stride=5)).regressions is None


def test_at_first_nearly_all_is_left_to_the_network():
    regressed = regress(travelling(3)[:, :96], None, standard(7), 24)
    forecast = torch.zeros(1, 24, 7)
    evidence = torch.zeros_like(regressed.evidence)
    evidence[..., [OWN, LATELY, LED]] = 50.0  # neighbours were far better than all else
    moved = RegressionShares(24)(forecast, regressed._replace(evidence=evidence), 0.0)
    torch.testing.assert_close(moved, regressed.forecasts[:, :, NEAR].mT / (1.0 + np.exp(START)))


def test_copies_of_another_regression_have_no_share():
    """A single channel has its own lags, all and lately; what stands for neighbours and leaders is a copy."""
    regressed = regress(travelling(3, channels=1)[:, :96], None, standard(1), 24)
    assert regressed.usable == (True, False, True, False)
    shares = RegressionShares(24)
    shares(torch.zeros(1, 24, 1), regressed, 0.0).square().sum().backward()
    assert (shares.step_score.grad[:, [NEAR, LED]] == 0.0).all()
    assert (shares.step_score.grad[:, [OWN, LATELY]] != 0.0).any()


def seasonal(rows: int = 96) -> Windows:
    """Two series with trend and season, as airlines have them: windows of three years, a year ahead."""
    month = torch.arange(float(rows))[:, None]
    values = 0.02 * month + torch.sin(2 * torch.pi * month / 12 + torch.tensor([0.0, 0.4]))
    values = values + 0.1 * torch.randn(rows, 2, generator=torch.Generator().manual_seed(4))
    return Windows(values, torch.arange(rows - 47), lookback=36, horizon=12)


def test_regressions_that_do_not_pay_are_as_if_they_were_not_there():
    windows = seasonal()
    config = ForecastingConfig(12, 36, dropout=0.0)
    network = ForecastingNetwork(config)
    network.regressions.start(windows)
    assert network.regressions.off
    without = ForecastingNetwork(replace(config, regressions=False))
    without.load_state_dict(network.state_dict(), strict=False)
    ((inputs, _, _),) = windows.batches(100)
    x = inputs["x"] + 1.0
    torch.testing.assert_close(network.eval()(x), without.eval()(x))
    # Data-parallel training waits for a gradient of every parameter.
    network.train()(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    again = ForecastingNetwork(config)
    again.load_state_dict(network.state_dict())
    assert again.regressions.off


def test_regressions_that_pay_stay_and_trained_shares_are_left_alone():
    wave = travelling(3, rows=700)[0]
    windows = Windows(wave, torch.arange(500), lookback=96, horizon=24)
    shares = RegressionShares(24)
    shares.start(windows)
    assert not shares.off
    with torch.no_grad():
        shares.step_score[0, 0] = 0.5
    shares.start(seasonal())
    assert not shares.off


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_what_is_missing_does_not_decide(missing):
    wave = travelling(3, rows=700)[0]
    observed = torch.rand(wave.shape, generator=torch.Generator().manual_seed(2)) >= missing
    starts = torch.arange(500)
    limits = torch.stack([starts + 96, starts + 120], 1)
    found = [
        regressions_pay(Windows(wave.masked_fill(~observed, value), starts, 96, 24, observed=observed, limits=limits))
        for value in (0.0, 1e4)
    ]
    assert found == [True, True]


@pytest.mark.parametrize(("lookback", "horizon"), [(150, 12), (150, 110), (60, 110)])
def test_they_pay_on_a_wave_whatever_is_longer_than_they_reach(lookback, horizon):
    wave = travelling(3, rows=900, channels=12)[0]
    windows = Windows(wave, torch.arange(900 - lookback - horizon + 1), lookback, horizon)
    assert regressions_pay(windows) == (horizon < FARTHEST)  # the wave tells of 33 steps: little of 110
    network = ForecastingNetwork(ForecastingConfig(horizon, lookback))
    network.regressions.start(windows)
    ((inputs, target, _),) = windows.only(slice(4)).batches(4)
    assert network(inputs["x"]).shape == (*target.shape, 1)
