"""Quantile machinery against scipy and scalar loops."""

import pytest
import torch
from scipy import stats
from torch import nn

from mvpa_ts.forecasting.quantiles import checked_levels, pinball_loss, quantiles_at, start_in_order

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
