"""Quantile machinery against scipy and scalar loops."""

import pytest
import torch
from scipy import stats
from torch import nn

from mvpa_ts.forecasting.quantiles import checked_levels, pinball_loss, quantiles_at, rounded_as_counted, start_in_order

LEVELS = (0.05, 0.25, 0.5, 0.9)


def test_pinball_loss_is_its_definition():
    generator = torch.Generator().manual_seed(0)
    forecast = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    target = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    found = pinball_loss(forecast, target, torch.tensor(LEVELS, dtype=torch.float64))
    for b in range(3):
        for t in range(5):
            for q, level in enumerate(LEVELS):
                error = target[b, t].item() - forecast[b, t, q].item()
                expected = level * error if error > 0 else (level - 1) * error
                assert found[b, t, q].item() == pytest.approx(expected)


def test_pinball_loss_is_least_at_the_quantile():
    sample = torch.linspace(0, 1, 2001, dtype=torch.float64) ** 2
    candidates = torch.linspace(0, 1, 501, dtype=torch.float64)[:, None, None]
    for level in LEVELS:
        losses = pinball_loss(candidates.expand(-1, 2001, 1), sample.expand(501, -1), torch.tensor([level]))
        best = candidates[losses.mean((1, 2)).argmin()].item()
        assert best == pytest.approx(level**2, abs=0.005)


def test_start_in_order():
    layer = nn.Linear(7, 3 * 4)
    start_in_order(layer, torch.tensor(LEVELS))
    for row in layer.bias.detach().reshape(3, 4):
        torch.testing.assert_close(row.double(), torch.from_numpy(stats.norm.ppf(LEVELS)), atol=1e-6, rtol=0)


class TestQuantilesAt:
    def test_exact_for_a_normal_distribution(self):
        wanted = (0.001, 0.05, 0.3, 0.5, 0.77, 0.999)
        known = torch.from_numpy(stats.norm.ppf(LEVELS, loc=3.0, scale=2.0)).expand(2, 3, 4)
        expected = torch.from_numpy(stats.norm.ppf(wanted, loc=3.0, scale=2.0)).expand(2, 3, 6)
        torch.testing.assert_close(quantiles_at(known, LEVELS, wanted), expected)

    def test_never_crosses_and_keeps_what_is_known(self):
        forecast = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort(-1).values
        wanted = [0.001 + 0.998 * step / 200 for step in range(201)]
        assert (quantiles_at(forecast, LEVELS, wanted).diff(dim=-1) >= 0).all()
        torch.testing.assert_close(quantiles_at(forecast, LEVELS, LEVELS), forecast)


@pytest.mark.parametrize("levels", [(), (0.1, 0.9), (0.5, 0.1), (0.0, 0.5), (0.5, 1.0), (0.5, 0.5)])
def test_bad_levels(levels):
    with pytest.raises(ValueError, match="levels must"):
        checked_levels(levels)


def _counts(scale: float = 1.0, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts of some 3 pieces, some of them missing, as [1, 60, 1], and where they are observed."""
    counts = torch.poisson(torch.full((1, 60, 1), 3.0), torch.Generator().manual_seed(0))
    return counts * scale + shift, torch.arange(60)[None, :, None] % 7 > 0


@pytest.mark.parametrize(("mean", "deviation"), [(0.3, 0.5), (2.4, 1.1), (7.0, 3.0)])
def test_quantiles_of_counts_are_those_of_the_rounded_variable(mean, deviation):
    normal = stats.norm(mean, deviation)
    exact, places = torch.tensor(normal.ppf(LEVELS)), torch.arange(-20, 40)
    # A count of k is what lies between k - 1/2 and k + 1/2; its quantile is the least one that enough do not exceed.
    reached = torch.tensor(normal.cdf(places + 0.5))
    expected = [max(0, int(places[(reached >= level).nonzero()[0, 0]])) for level in LEVELS]
    assert rounded_as_counted(exact[None, None, None], *_counts()).flatten().tolist() == expected


@pytest.mark.parametrize(("scale", "shift"), [(1000.0, 0.0), (0.001, 0.0), (0.25, 40.0), (1.0, -5.0), (-2.0, 1.0)])
def test_steps_are_found_in_any_unit(scale, shift):
    forecast = torch.tensor([-0.4, 0.6, 2.2, 9.9])
    found = rounded_as_counted(forecast[None, None, None] * scale + shift, *_counts(scale, shift)).flatten()
    torch.testing.assert_close((found - shift) / scale, forecast.round(), rtol=0.0, atol=1e-4)


def test_what_is_not_counted_stays():
    forecast = torch.tensor([0.123, 4.567])[None, None, None]
    counts, observed = _counts()
    between = counts.clone()
    between[0, 11] = 2.31
    for values in (
        torch.randn(1, 60, 1, generator=torch.Generator().manual_seed(0)),
        torch.full((1, 60, 1), 3.0),  # of a constant nobody knows the step
        counts * 40.0 + torch.arange(60.0)[None, :, None],  # more than a hundred steps
        between,
        torch.where(torch.arange(60)[None, :, None] == 8, 1e9, between),  # beside it all others look alike
    ):
        assert torch.equal(rounded_as_counted(forecast, values, observed), forecast)
    assert torch.equal(rounded_as_counted(forecast, between, observed & (between != 2.31)), forecast.round())
    assert torch.equal(rounded_as_counted(forecast, counts[:, :1], observed[:, 1:2]), forecast)
    assert torch.equal(rounded_as_counted(forecast, counts, torch.zeros_like(observed)), forecast)
