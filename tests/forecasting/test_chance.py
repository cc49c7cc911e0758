"""Series that chance rules: lumps and steps, against exact distributions; and what is told is left to the network."""

import numpy as np
import pytest
import torch
from scipy import stats

from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.chance import with_chance

LEVELS = (0.1, 0.5, 0.9)
NOTHING = torch.nan  # what with_chance leaves as it was


def forecast(panel: np.ndarray, horizon: int = 12, mask: np.ndarray | None = None, levels=LEVELS) -> np.ndarray:
    """Quantiles [h, C, Q] of a panel [L, C]; NaN where nothing was replaced."""
    x = torch.as_tensor(panel, dtype=torch.float64)[None]
    seen = torch.ones_like(x, dtype=torch.bool) if mask is None else torch.as_tensor(mask)[None]
    nothing = torch.full((1, horizon, x.shape[2], len(levels)), NOTHING, dtype=torch.float64)
    return with_chance(nothing, x, seen, levels)[0].numpy()


def prices(generator: np.random.Generator, length: int, series: int, often: float = 0.08) -> np.ndarray:
    """Prices that change now and then, by amounts that never come again."""
    changes = (generator.random((length, series)) < often) * generator.normal(size=(length, series))
    return 10.0 + changes.cumsum(0)


def lumps(generator: np.random.Generator, length: int, series: int, often: float = 0.3) -> np.ndarray:
    return (generator.random((length, series)) < often) * (1.0 + generator.poisson(3.0, (length, series)))


def test_steps_have_the_quantiles_of_a_binomial_walk():
    """Changes by one piece up or down: the exact distribution after h steps is a convolution."""
    generator = np.random.default_rng(0)
    signs = generator.choice([-1.0, 1.0], size=200)
    price = 50.0 + np.cumsum((generator.random(200) < 0.1) * signs)
    quantiles = forecast(price[:, None], 40)[:, 0]
    changes = np.diff(price)
    often = (np.count_nonzero(changes) + 0.5) / 200
    up = (np.sum(changes > 0) + 1) / (np.count_nonzero(changes) + 2)
    step = np.array([often * (1 - up), 1 - often, often * up])
    exact = np.ones(1)
    for ahead in range(1, 41):
        exact = np.convolve(exact, step)
        values = price[-1] + np.arange(-ahead, ahead + 1)
        low, high = (values[np.searchsorted(exact.cumsum(), level)] for level in (0.1, 0.9))
        assert abs(quantiles[ahead - 1, 0] - low) <= 1.0
        assert abs(quantiles[ahead - 1, 2] - high) <= 1.0
    assert quantiles[0, 1] == price[-1]


def test_intervals_of_prices_hold_and_the_median_is_the_last_price():
    panel = prices(np.random.default_rng(0), 412, 60)
    quantiles = forecast(panel[:400])
    replaced = ~np.isnan(quantiles[0, :, 0])
    assert replaced.mean() > 0.9
    inside = (panel[400:] >= quantiles[..., 0]) & (panel[400:] <= quantiles[..., 2])
    assert 0.75 < inside[:, replaced].mean() < 0.92
    np.testing.assert_array_equal(quantiles[0, replaced, 1], panel[399, replaced])


def test_lumps_have_the_quantiles_of_their_values():
    panel = lumps(np.random.default_rng(1), 412, 60)
    quantiles = forecast(panel[:400])
    replaced = ~np.isnan(quantiles[0, :, 0])
    assert replaced.mean() > 0.7
    sorted_values = np.sort(panel[:400, replaced], axis=0)
    np.testing.assert_array_equal(quantiles[5, replaced, 2], sorted_values[359])  # nine tenths of 399 steps
    exact = stats.poisson(3.0).isf(0.1 / 0.3) + 1.0  # of lumps on 30 % of the days
    assert set(quantiles[5, replaced, 2]) == {exact - 1.0, exact}  # 0.106 and 0.056 of the values are larger
    above = (panel[400:] > quantiles[..., 2])[:, replaced].mean()
    assert 0.05 < above < 0.12


def foretold() -> dict[str, np.ndarray]:
    """Series that look like lumps or steps, and in which something tells what comes."""
    generator, step = np.random.default_rng(2), np.arange(240)
    switch = (generator.random(240) < 0.1).cumsum() % 2
    return {
        "a week of five days": (step % 7 < 5) * 3.0,
        "sales at weekends": (step % 7 > 4) * lumps(generator, 240, 1, 0.9)[:, 0],
        "sun": np.round(100.0 * np.maximum(0.0, np.sin(2 * np.pi * step / 24)) * generator.random(240)),
        "rents that rise each year": np.repeat(np.linspace(5.0, 9.0, 20) ** 2, 12),
        "sales that end": lumps(generator, 240, 1, 1.0)[:, 0] * (generator.random(240) < np.linspace(0.6, 0.05, 240)),
        "a switch": switch * 4.0,
        "a sensor that got stuck": np.where(step < 130, np.random.default_rng(0).normal(size=240), 0.0),
        "a constant": np.full(240, 3.0),
        "noise": generator.normal(size=240),
        "a walk": generator.normal(size=240).cumsum(),
        "few rows": prices(generator, 15, 1)[:, 0],
    }


@pytest.mark.parametrize("name", foretold())
def test_what_is_told_is_left_to_the_network(name):
    assert np.isnan(forecast(foretold()[name][:, None])).all()


def test_a_told_season_counts_where_it_comes_again():
    x = torch.tensor(prices(np.random.default_rng(9), 1440, 1)[np.arange(2000) % 1440])[None]
    nothing = torch.full((1, 4, 1, 3), NOTHING, dtype=torch.float64)
    assert with_chance(nothing, x, x == x, LEVELS, season=1440).isnan().all()
    without = with_chance(nothing, x, x == x, LEVELS)
    assert not without.isnan().any()
    # A week tells nothing, though prices are mostly what they were a week ago; so does a year that was not yet seen.
    for season in (7, 1995):
        torch.testing.assert_close(with_chance(nothing, x, x == x, LEVELS, season=season), without)


@pytest.mark.parametrize("kind", [prices, lumps])
def test_what_another_series_told_is_left_to_the_network(kind):
    """The second series follows the first by three steps; the others are alone."""
    panel = kind(np.random.default_rng(5), 303, 6)
    panel = np.concatenate([panel[3:, :1], panel[:-3, :1], panel[3:, 2:]], 1)
    replaced = ~np.isnan(forecast(panel)[0, :, 0])
    assert not replaced[1]
    assert replaced[[0, 2, 3, 4, 5]].sum() >= 4


def test_a_gap_and_a_missing_end_are_left_to_the_network():
    panel = prices(np.random.default_rng(3), 300, 3)
    mask = np.ones((300, 3), dtype=bool)
    mask[200, 0], mask[299, 1], mask[:100, 2] = False, False, False
    both = forecast(panel, mask=mask)
    assert np.isnan(both[:, :2]).all()
    np.testing.assert_array_equal(both[:, 2], forecast(panel[100:, 2:])[:, 0])


@torch.no_grad()
def test_forecasts_follow_units_and_do_not_depend_on_the_order_of_series():
    network = load_base("small")
    panel = torch.tensor(
        np.concatenate([prices(np.random.default_rng(6), 120, 2), lumps(np.random.default_rng(7), 120, 2)], 1)
    )
    x = panel[None].float()
    quantiles = forecast_quantiles(network, x, horizon=8)
    torch.testing.assert_close(forecast_quantiles(network, 8.0 * x, horizon=8), 8.0 * quantiles)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(forecast_quantiles(network, x[..., order], horizon=8), quantiles[:, :, order])
    torch.testing.assert_close(quantiles[0, 0, :2, 4], x[0, -1, :2])


@torch.no_grad()
def test_with_covariates_the_network_keeps_the_word():
    """A discount that is known ahead tells when the price falls."""
    network = load_base("small")
    generator = np.random.default_rng(8)
    discount = np.repeat(generator.random(40) < 0.3, 8)[:312].astype(np.float32)
    price = torch.tensor(prices(generator, 300, 1, 0.02)[:, 0], dtype=torch.float32) - 5 * torch.tensor(discount[:300])
    future = torch.tensor(discount)[None, :, None, None]
    quantiles = forecast_quantiles(network, price[None, :, None], horizon=12, future=future)[0, :, 0]
    change = quantiles[:, 4] - quantiles[0, 4]
    expected = -5.0 * torch.tensor(discount[300:] - discount[300])
    torch.testing.assert_close(change, expected, atol=1.0, rtol=0.0)
    # A past covariate may tell as well; of one without rows the price is forecast as without any.
    alone, empty, beside = (
        forecast_quantiles(network, price[None, :, None], horizon=12, historic=past)
        for past in (None, torch.zeros(1, 300, 1, 0), torch.tensor(generator.normal(size=(1, 300, 1, 1))).float())
    )
    torch.testing.assert_close(empty, alone)
    assert not torch.equal(beside, alone)
