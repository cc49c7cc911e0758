"""Series that stop before their panel."""

import numpy as np
import pytest
import torch

from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.gaps import between, carried_on
from mvpa_ts.forecasting.pretrained.simple_forecasts import filled

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture
def walk() -> torch.Tensor:
    """An AR(1) process of unit variance, 460 steps."""
    draws = torch.randn(460, generator=torch.Generator().manual_seed(3))
    values = [draws[0]]
    for draw in draws[1:]:
        values.append(0.9 * values[-1] + (1 - 0.9**2) ** 0.5 * draw)
    return torch.stack(values)


def stopped(panel: torch.Tensor, gap: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The panel [C, L] whose first series lacks its last steps, as `carried_on` takes it."""
    observed = torch.ones_like(panel, dtype=torch.bool)
    observed[0, -gap:] = False
    return filled(panel, observed)[0][None], observed[None]


@pytest.mark.parametrize("gap", [1, 7, 40])
@pytest.mark.parametrize("lag", [0, 5])
def test_a_sensor_that_followed_another_goes_on_after_it(walk, lag, gap):
    panel = torch.stack([walk[60 - lag : 460 - lag], walk[60:], walk.flip(0)[60:]])
    x, observed = stopped(panel, gap)
    found = carried_on(x, observed)
    last_value = (x[0, 0, -gap:] - panel[0, -gap:]).square().mean()
    assert (found[0, 0, -gap:] - panel[0, -gap:]).square().mean() < 0.02 + 0.1 * last_value
    assert torch.equal(found[0, 1:], x[0, 1:])
    assert torch.equal(found[0, 0, :-gap], panel[0, :-gap])


def test_what_was_ahead_of_the_others_follows_from_what_they_show_later(walk):
    panel = torch.stack([walk[60:], walk[55:455], walk[52:452]])
    x, observed = stopped(panel, 40)
    found = carried_on(x, observed)[0, 0]
    assert (found[-40:-16] - panel[0, -40:-16]).square().mean() < 0.02


def test_panels_without_anything_to_tell_stay_as_they_are(walk):
    alone = filled(walk[None, 60:], torch.arange(400)[None] < 380)[0][None]
    assert torch.equal(carried_on(alone, torch.arange(400)[None, None] < 380), alone)
    short = torch.stack([walk[:80], walk[80:160]])
    x, observed = stopped(short, 30)  # fifty steps are too few
    assert torch.equal(carried_on(x, observed), x)


def test_panels_and_series_do_not_depend_on_those_beside_them(walk):
    first, second = torch.stack([walk[60:], walk[50:450], walk[:400]]), torch.randn(3, 400).cumsum(1)
    x, observed = (torch.cat(parts) for parts in zip(stopped(first, 20), stopped(second, 3), strict=True))
    observed[1, 1, -9:] = False
    x[1] = filled(x[1], observed[1])[0]
    together = carried_on(x, observed)
    alone = torch.cat([carried_on(x[:1], observed[:1]), carried_on(x[1:], observed[1:])])
    torch.testing.assert_close(together, alone)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(carried_on(x[:, order], observed[:, order]), together[:, order])


@pytest.mark.parametrize("gap", [40, 92, 150])
def test_intervals_widen_with_the_steps_since_a_series_stopped(gap):
    """Of walks, which nothing tells of, an 80 % interval holds two thirds at least; before, .45, .16 and .28."""
    walks = torch.from_numpy(np.random.default_rng(gap).standard_normal((40, 536, 1)).cumsum(1)).float()
    history = walks[:, :512].clone()
    history[:, -gap:] = torch.nan
    quantiles = torch.as_tensor(forecast_quantiles(load_base("small"), history, horizon=24))
    truth = walks[:, 512:]
    held = (truth >= quantiles[..., 0]) & (truth <= quantiles[..., -1])
    assert 0.6 < held.float().mean() < 0.95


def test_gaps_are_filled_from_the_season_or_from_the_line_whichever_errs_less():
    steps, draws = torch.arange(210.0), torch.Generator().manual_seed(3)
    week = 5.0 * torch.sin(2 * torch.pi * steps / 7) + 0.1 * steps
    slow = (0.1 * torch.randn(210, generator=draws)).cumsum(0)
    x, observed = torch.stack([week, slow]), torch.rand(2, 210, generator=draws) > 0.3
    observed[:, [0, -1]] = True
    filled = between(x.masked_fill(~observed, 99.0), observed, torch.tensor([[7, 1], [7, 1]]))
    assert torch.equal(filled[observed], x[observed])
    line = np.interp(steps, steps[observed[1]], slow[observed[1]])  # numpy's, as an independent truth
    np.testing.assert_allclose(filled[1], line, atol=1e-5)
    missed = (filled[0] - week).abs()
    assert (missed > 1e-4).float().mean() < 0.05
    assert missed.max() <= 3 * 0.7 + 1e-4  # where one side is all there is; the line misses by 5
    observed[:, :40] = observed[:, 190:] = False
    ends = between(x, observed, torch.tensor([[7, 1], [7, 1]]))
    assert torch.equal(ends[:, :40], x[:, :40])  # what lies outside is not between
    assert torch.equal(ends[:, 190:], x[:, 190:])
    for few in (0, 1, 2):
        seen = torch.arange(5)[None] < few
        assert between(torch.ones(1, 5), seen, torch.tensor([[3, 1]])).isfinite().all()


def test_scattered_gaps_leave_the_season():
    steps, draws = torch.arange(314.0), torch.Generator().manual_seed(0)
    wave = torch.sin(2 * torch.pi * (steps[:, None] / 7 + torch.rand(12, generator=draws)))
    y = 100.0 + 20.0 * wave + 4.0 * torch.randn(314, 12, generator=draws)
    missing = torch.rand(300, 12, generator=draws) < 0.4
    whole, holes = (
        forecast_quantiles(load_base("base"), history[None], horizon=14, season=7)[0, ..., 4]
        for history in (y[:300], y[:300].masked_fill(missing, torch.nan))
    )
    errors = [(forecast - y[300:]).abs().mean() for forecast in (whole, holes)]
    assert errors[1] < 1.25 * errors[0]  # twice the error, were each gap filled by the value before it


@pytest.mark.parametrize("stopped", ["panel", "series"])
@pytest.mark.parametrize("steps", [50, 300])
def test_the_season_goes_on_where_rows_lack_at_the_end(steps, stopped):
    """Of whole panels, and of series that span too few steps to be carried on; before, errors of 1.9 and 0.9."""
    turns = torch.arange(steps + 12.0)[:, None] / 12 + torch.tensor([0.0, 0.3, 0.5])
    y = 40.0 + 6.0 * torch.sin(2 * torch.pi * turns)
    y = y + 0.5 * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    lacking = slice(None) if stopped == "panel" else 0
    histories = y[:steps].repeat(3, 1, 1)
    histories[1, -6:, lacking] = histories[2, -3:, lacking] = torch.nan
    forecasts = load_base("base")(histories, horizon=12, season=12)[..., 4]
    alone = load_base("base")(histories[1:2], horizon=12, season=12)[..., 4]
    assert (forecasts - y[steps:]).abs().mean() < 0.6
    torch.testing.assert_close(forecasts[1:2], alone, rtol=1e-3, atol=1e-3)


def test_a_series_without_any_value_beside_others_that_stopped():
    x = torch.sin(torch.arange(80.0) / 2)[None, :, None].repeat(1, 1, 3)
    x[:, -4:], x[..., 1] = torch.nan, torch.nan
    assert load_base("small")(x, horizon=5).isfinite().all()
    assert load_base("small")(x[..., 1:2], horizon=5).isfinite().all()


def test_a_gap_near_the_end_leaves_the_trend():
    step = torch.arange(162.0)
    y = 40.0 + 6.0 * torch.sin(2 * torch.pi * step / 12) + 0.2 * step
    history = y[:150].clone()
    history[136:148] = torch.nan
    forecast = load_base("base")(history[None, :, None], horizon=12, season=12)[0, :, 0, 4]
    assert (forecast - y[150:]).abs().mean() < 0.5  # 3.7, were the gap filled from the year before alone
