"""Running totals, whose steps the pretrained forecaster forecasts."""

import pytest
import torch

from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.running_totals import signs_of_totals

pytestmark = pytest.mark.usefixtures("no_gradients")

H = 12


@pytest.fixture(scope="module")
def network():
    return load_base("small")


def readings(rows=212, seed=0):
    """A meter that is read every hour, [1, rows, 1]."""
    hour = torch.arange(rows)
    used = (
        1.5
        + torch.sin(hour * 2 * torch.pi / 24)
        + 0.3 * torch.randn(rows, generator=torch.Generator().manual_seed(seed))
    )
    return used.clamp(min=0.0).cumsum(0)[None, :, None]


def forecast(network, x, **options):
    return forecast_quantiles(network, x, horizon=H, season=24, **options)


def test_a_meter_is_forecast_as_well_as_what_it_counts(network):
    x = torch.cat([readings(seed=seed) for seed in range(8)])
    past, truth = x[:, :-H], x[:, -H:, 0]
    ours, steps = forecast(network, past)[:, :, 0], forecast(network, past.diff(dim=1))[:, :, 0]
    level = network(past, horizon=H, season=24)[:, :, 0]
    last = past[:, -1]
    errors = [(median - truth).abs().mean() for median in (ours[..., 4], last + steps[..., 4].cumsum(1), level[..., 4])]
    assert errors[0] < 1.1 * errors[1]
    assert errors[0] < 0.7 * errors[2]
    assert (ours.diff(dim=2) >= 0.0).all()
    assert (ours >= last[..., None]).all()  # none turns back
    assert 0.7 < ((truth >= ours[..., 0]) & (truth <= ours[..., -1])).float().mean() < 0.99


def test_one_that_falls_is_its_mirror_image_and_other_levels_are_those_of_all(network):
    x = readings()[:, :-H]
    torch.testing.assert_close(forecast(network, -x), -forecast(network, x).flip(3), rtol=1e-4, atol=1e-3)
    whole = forecast(network, x)
    torch.testing.assert_close(forecast(network, x, levels=(0.1, 0.9)), whole[..., [0, 8]], rtol=1e-4, atol=1e-2)


def test_a_series_beside_it_stays_as_it_is(network):
    x = torch.cat([readings(), torch.sin(torch.arange(212.0) / 4)[None, :, None]], 2)
    alone = network(x, horizon=H, season=24)
    torch.testing.assert_close(forecast(network, x)[:, :, 1], alone[:, :, 1])


def swinging():
    """A trend with noise about it, which a running maximum makes rise only."""
    noise = torch.randn(200, generator=torch.Generator().manual_seed(1))
    return torch.arange(200.0) * 10 + noise


def test_totals_are_told_from_other_series():
    x = readings()[0, :200, 0]
    rare = (torch.arange(200) // 20).float()
    fallen, late, gap = x.clone(), x.clone(), x.clone()
    fallen[100:] -= 5.0
    late[:150] = 0.0
    late[150:] -= x[149]
    series = torch.stack([x, -x, late, fallen, rare, swinging(), torch.arange(200.0), torch.ones(200), gap], 1)[None]
    mask = torch.ones_like(series, dtype=torch.bool)
    mask[:, -1, -1] = False  # its last value is not known
    mask[:, 50:60] = False
    assert signs_of_totals(series, mask).tolist() == [[1, -1, 1, 0, 0, 0, 0, 0, 0]]
    assert signs_of_totals(series[:, :16], mask[:, :16])[0, 0] == 0  # too short
