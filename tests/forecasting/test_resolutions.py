"""Forecasts of means of several steps, beside those of the steps."""

import numpy as np
import pandas as pd
import pytest
import torch

from mvpa_ts.forecasting.pretrained import load_base
from mvpa_ts.forecasting.pretrained.resolutions import at_steps, means, widths


def test_means_of_observed_steps_are_those_of_pandas():
    x = torch.randn(2, 50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    found, observed = means(x, mask, 8)
    table = pd.DataFrame(x[1].masked_fill(~mask[1], torch.nan).numpy())
    expected = table.groupby((np.arange(50) - 50) // 8).mean()  # counted from the end; the first of two steps
    np.testing.assert_allclose(found[1].masked_fill(~observed[1], torch.nan), expected)


def test_a_forecast_of_means_keeps_what_lies_within_them():
    steps = torch.arange(22, dtype=torch.float64)
    fine = (steps / 7 + torch.sin(steps))[None, :, None, None].repeat(1, 1, 2, 3)
    coarse = torch.nn.functional.pad(fine[0, :, 0, 1], (0, 2), value=float(fine[0, -1, 0, 1])).view(6, 4).mean(1)
    same = at_steps(coarse[None, :, None, None].repeat(1, 1, 2, 3), fine, 4)
    torch.testing.assert_close(same, fine)
    raised = at_steps(coarse[None, :, None, None].repeat(1, 1, 2, 3) + 5.0, fine, 4)
    torch.testing.assert_close(raised, fine + 5.0)
    tilted = at_steps(coarse[None, :, None, None].repeat(1, 1, 2, 3) + torch.arange(6.0)[:, None, None], fine, 4)
    torch.testing.assert_close(tilted[0, 2:18, 0, 1] - fine[0, 2:18, 0, 1], (steps[2:18] - 1.5) / 4)


def test_short_horizons_and_histories_stay_as_they_are():
    assert widths(2048, 12, 512) == widths(512, 480, 512) == widths(100, 480, 64) == ()
    assert widths(2048, 720, 512) == (4, 8, 24)


@torch.no_grad()
@pytest.mark.parametrize("season", [None, 24])
def test_missing_beginnings_and_panels_beside_change_nothing(season):
    network = load_base()
    x = torch.randn(2, 700, 2, generator=torch.Generator().manual_seed(2)).cumsum(1)
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[1, :595] = False  # 105 steps: too few for means
    both = network(x, mask, horizon=48, season=season)
    alone = network(x[:1, :], horizon=48, season=season)
    short = network(x[1:, 595:], horizon=48, season=season)
    torch.testing.assert_close(both, torch.cat([alone, short]), rtol=1e-3, atol=1e-3)
    hidden = torch.cat([torch.full((1, 37, 2), 1e6), x[:1]], 1)
    shown = torch.cat([torch.zeros(1, 37, 2, dtype=torch.bool), mask[:1]], 1)
    torch.testing.assert_close(network(hidden, shown, horizon=48, season=season), alone, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_cycle_longer_than_the_look_back_is_forecast():
    """Of a noisy wave of 1200 steps, 512 steps show less than half; means of 24 steps show it nearly twice."""
    step = torch.arange(2048 + 480)
    clean = torch.sin(2 * torch.pi * step / 1200)
    noisy = clean + torch.randn(len(step), generator=torch.Generator().manual_seed(3))
    network = load_base()
    errors = [
        (network(noisy[None, 2048 - rows : 2048, None], horizon=480)[0, :, 0, 4] - clean[2048:]).square().mean()
        for rows in (2048, 512)
    ]
    assert errors[0] < 0.6 * errors[1]
