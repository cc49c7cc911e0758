"""Roots in which skewed series are forecast."""

import numpy as np
import pytest
import torch
from support.made_up_networks import autoregressive

from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.power_transform import POWERS, PowerTransform


def remembering(length: int, series: int, seed: int = 0) -> torch.Tensor:
    """AR(.9) of unit variance, [1, length, series]."""
    return torch.from_numpy(autoregressive(length, series, 0.9, seed)[None]).float()


@pytest.mark.parametrize("name", ["base", "small"])
def test_far_ahead_a_lognormal_series_has_its_own_quantiles(name):
    """The median is exp(0), where the mean is exp(1/2); nine of ten lie below exp(1.28), 99 % below exp(2.33)."""
    levels = (0.01, 0.1, 0.5, 0.9, 0.99)
    forecasts = [
        forecast_quantiles(load_base(name), remembering(400, 8, seed).exp(), horizon=60, levels=levels)
        for seed in range(6)
    ]
    lowest, low, middle, high, highest = torch.stack(forecasts)[:, 0, 30:].median(1).values.log().mean((0, 1)).tolist()
    assert abs(middle) < 0.25
    assert low == pytest.approx(-1.28, abs=0.35)
    assert high == pytest.approx(1.28, abs=0.35)
    assert highest == pytest.approx(2.33, abs=0.35)
    assert -5.0 < lowest < low - 0.5


@pytest.mark.parametrize("length", [16, 60, 400])
def test_what_is_even_or_changes_its_sign_stays(length):
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(1, length, 40))).float()
    kinds = {"even": 10 + x, "both signs": x.exp() - 1, "constant": torch.full_like(x, 3.0), "zeros": 0 * x}
    for kind, values in kinds.items():
        transform = PowerTransform.fitted(values, torch.ones_like(values, dtype=torch.bool))
        assert (transform.exponent == 1.0).float().mean() >= (0.95 if kind == "even" else 1.0), kind
        stays = transform.exponent[0] == 1.0
        assert torch.equal(transform.apply(values)[..., stays], values[..., stays])


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_roots_are_undone_at_any_scale(sign, scale):
    x = sign * scale * remembering(200, 6).mul(1.5).exp()
    x[0, ::9, 0] = 0.0
    transform = PowerTransform.fitted(x, torch.ones_like(x, dtype=torch.bool))
    assert set(transform.exponent[0].tolist()) <= set(POWERS[1:])
    torch.testing.assert_close(transform.inverse(transform.apply(x)[..., None])[..., 0], x, rtol=1e-5, atol=0.0)


def test_quantiles_of_few_sales_stay_near_what_was_sold():
    """Two of three days have none. The fourth root made 99 % quantiles of up to 18 times the highest value."""
    generator = np.random.default_rng(5)
    sales = generator.poisson(np.exp(remembering(200, 64).numpy() - 1.0)).astype("float32")
    x = torch.from_numpy(sales)
    highest = forecast_quantiles(load_base(), x, horizon=24, levels=(0.99,))[..., 0].amax(1)
    assert (highest < 4 * x.amax(1)).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_lies_on_one_side_of_zero_is_forecast_there(sign):
    """The lowest quantile of such an outbreak was -3.4 times its highest value."""
    x = torch.zeros(1, 200, 1)
    x[0, 150:, 0] = (0.1 * torch.arange(50.0)).exp()
    quantiles = forecast_quantiles(load_base(), sign * x, horizon=500)
    assert (sign * quantiles >= 0.0).all()
    assert (quantiles.diff(dim=3) >= 0.0).all()


def test_what_is_stored_where_nothing_was_observed_does_not_matter():
    x = remembering(300, 5).exp()
    mask = torch.from_numpy(np.random.default_rng(2).random((1, 300, 5)) < 0.7)
    chosen = [PowerTransform.fitted(x.masked_fill(~mask, other), mask) for other in (0.0, 1e6, torch.nan)]
    for transform in chosen[1:]:
        assert torch.equal(transform.exponent, chosen[0].exponent)
        assert torch.equal(transform.unit, chosen[0].unit)


def test_a_promotion_of_skewed_sales_is_a_share_of_them():
    """Sales double on promoted days; the level of the last days is four times the usual one."""
    generator = np.random.default_rng(3)
    promoted = (generator.random((214, 6)) < 0.2).astype("float32")
    promoted[200:] = np.arange(14)[:, None] % 2
    level = remembering(214, 6, seed=4)[0].numpy()
    level[150:] = 1.4
    sales = np.exp(level + generator.normal(0, 0.1, level.shape)) * (1 + promoted)
    x, future = (torch.from_numpy(rows[None].astype("float32")) for rows in (sales[:200], promoted))
    forecast = forecast_quantiles(load_base(), x, horizon=14, levels=(0.5,), future=future[..., None])[0, ..., 0]
    assert (forecast[1::2].mean() / forecast[::2].mean()).item() == pytest.approx(2.0, abs=0.5)
