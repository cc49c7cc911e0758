"""What must not change a forecast: the order of channels and windows, units, and channels that nobody reads."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mvpa_ts import ForecastingConfig, ForecastingNetwork
from mvpa_ts.forecasting import ForecasterTraining, Series, fit_forecaster

# The first draw reads all imported sources for constants, which takes long on a busy machine.
_SLOW = [HealthCheck.too_slow]
_FEW = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=_SLOW)
_SIZES: dict[str, Any] = {
    "horizon": 4, "lookback": 12, "patch_length": 4, "patch_stride": 4, "dim": 8, "num_heads": 2, "mlp_dim": 8,
    "mixing_heads": 3,
}  # fmt: skip


def _network(**options: Any) -> ForecastingNetwork:
    torch.manual_seed(0)
    network = ForecastingNetwork(ForecastingConfig(**{**_SIZES, **options})).double().eval()
    for parameter in network.parameters():  # maps that start at zero would hide what is read
        nn.init.normal_(parameter, std=0.3)
    return network


def _windows(channels: int, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(channels)
    return torch.randn(count, 12, channels, generator=generator, dtype=torch.float64).cumsum(1)


@_FEW
@given(st.permutations(range(4)))
def test_channels_with_vectors_and_positions_go_by_them(order):
    network = _network(components=("content", "time"), num_channels=4, per_channel=("vectors",), position_size=2)
    x, places = _windows(4), torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    numbers = torch.arange(4)
    expected = network(x, series=numbers, positions=places)[:, :, order]
    got = network(x[..., order], series=numbers[order], positions=places[order])
    torch.testing.assert_close(got, expected)


@_FEW
@given(st.integers(1, 5), st.integers(1, 4))
def test_batches_of_any_size(size, channels):
    network, x = _network(), _windows(channels, 5)
    torch.testing.assert_close(torch.cat([network(part) for part in x.split(size)]), network(x))


@_FEW
@given(st.integers(1, 5))
def test_appended_channels_where_none_is_read(others):
    network, x = _network(num_layers=0, mixing_heads=0), _windows(2)
    together = torch.cat([x, 1e3 * _windows(others)], dim=-1)
    torch.testing.assert_close(network(together)[:, :, :2], network(x))


@pytest.mark.parametrize(("unit", "level"), [(1000.0, 0.0), (1.0, 1e8), (1e-6, -3.0)])
def test_a_fit_in_other_units_forecasts_in_them(unit, level):
    values = np.random.default_rng(0).standard_normal((70, 2)).cumsum(0)
    config, training = ForecastingConfig(**_SIZES, num_outputs=9), ForecasterTraining(steps=5)
    plain = fit_forecaster([Series(values)], config, training).predict(Series(values))
    scaled = Series(values * unit + level)
    forecast = fit_forecaster([scaled], config, training).predict(scaled)
    # Float64 has 16 digits, of which 1e8 takes eight.
    np.testing.assert_allclose((forecast - level) / unit, plain, atol=1e-4)


def test_steps_that_no_row_can_teach_are_named():
    values = np.random.default_rng(0).standard_normal((30, 1)).cumsum(0)
    values[20:] = np.nan
    config = ForecastingConfig(**{**_SIZES, "horizon": 16})
    with pytest.warns(UserWarning, match=r"steps 14 to 16 of the horizon have no target in any of the \d+ windows"):
        fit_forecaster([Series(values)], config, ForecasterTraining(steps=1), levels=(0.5,))
