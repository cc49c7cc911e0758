"""What travels over the places of a panel, against waves whose slowness and course are known."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from mvpa_ts.forecasting.pretrained import load_base
from mvpa_ts.forecasting.pretrained.travelling import MEMORIES, travelling_forecasts
from mvpa_ts.forecasting.pretrained.trust import trust_in_relations

ORIGINS = (4, 8, 24)


def _source(seed, length=2000):
    return lfilter([0.436], [1.0, -0.9], np.random.default_rng([77, seed]).standard_normal(length))


def _wave(seed, place, slowness, steps):
    """A source that every place shows as many steps late as the slowness says, in series and units of its deviation."""
    delay = np.round(place @ np.atleast_1d(slowness)).astype(int)
    delay -= delay.min()
    return np.stack([_source(seed)[500 - late : 500 - late + steps] for late in delay]), delay


@pytest.mark.parametrize("slowness", [[3.0], [-7.3], [2.0, -3.5], [3.0, 1.0, -2.0]], ids=str)
def test_what_others_showed_arrives_at_its_time(slowness):
    """Without noise the steps that others have shown are known, wherever the series lie; so are those of origins."""
    axes = len(slowness)
    place = np.random.default_rng([78, axes]).uniform(0.0, 14.0 if axes == 1 else 3.5, (15, axes))
    values, delay = _wave(axes, place, slowness, 520)
    x, places = torch.tensor(values[None, :, :480]), torch.tensor(place[None])
    for memory, forecast in zip(MEMORIES, travelling_forecasts(x, ORIGINS, 40, places), strict=True):
        for index, back in enumerate((0, *ORIGINS)):
            end, steps = 480 - back, min(40, back or 40)
            missed = forecast[index, 0, :, :steps].numpy() - values[:, end : end + steps]
            # One step more or less belongs to rounding, and means with older rows to the memory.
            shown = np.arange(1, steps + 1) <= delay[:, None] - 2
            assert np.square(missed[shown]).mean() < 0.3 * np.square(values).mean(), (memory, back)


def test_steps_that_nobody_has_shown_fade_like_the_autocorrelation():
    """Of two series that show the same at once: the mean of their last values, by the lag's share of the variance."""
    x = torch.tensor(_source(5)[None, None, :400]).repeat(1, 2, 1)
    forecast = travelling_forecasts(x, ORIGINS, 3, torch.tensor([[[0.0], [1.0]]], dtype=x.dtype))[0][0, 0]
    past = x[0, 0, : 400 - max(ORIGINS)].numpy()
    for lag in (1, 2, 3):
        expected = x[0, 0, -1].item() * (past[lag:] @ past[:-lag]) / (past @ past)
        assert forecast[:, lag - 1].tolist() == pytest.approx([expected] * 2, rel=1e-5)


def test_a_change_of_direction_is_followed_soon():
    """Sixty steps after the wave turned round, the pretrained network goes by the new direction."""
    errors = {"told": [], "not told": []}
    place = np.arange(12.0)[:, None]
    for seed in range(4):
        before, after = (_wave(seed, place, slowness, 560)[0] for slowness in (4.0, -5.0))
        noise = 0.3 * np.random.default_rng(seed).normal(size=(560, 12))
        rows = np.concatenate([before[:, :452], after[:, 452:]], 1).T + noise
        rows = torch.tensor(rows[None], dtype=torch.float32)
        for name, positions in (("told", torch.arange(12)[:, None]), ("not told", None)):
            with torch.no_grad():
                forecast = load_base("base")(rows[:, :512], horizon=24, positions=positions)[..., 4]
            errors[name].append((forecast - rows[:, 512:536]).square().mean().item())
    assert np.mean(errors["told"]) < 0.7 * np.mean(errors["not told"])


def test_what_does_not_travel_gets_no_share():
    """Of series that have nothing to do with each other, nothing beats how each returns to its mean."""
    origins = (4, 8, 12, 24, 48, 96)
    x = torch.tensor(np.stack([_source(seed)[:400] for seed in range(20, 32)])[None])
    travelling = torch.stack(travelling_forecasts(x, origins, 24, torch.arange(12.0).double()[None, :, None]), 3)
    truth = torch.full((6, 12, 24), torch.nan, dtype=x.dtype)
    for index, back in enumerate(origins):
        truth[index, :, :back] = x[0, :, 400 - back :][:, :24]
    own = torch.stack([x[0, :, 399 - back, None] * 0.9 ** torch.arange(1, 25) for back in origins])
    past = torch.cat([own[:, :, None].expand(-1, -1, 5, -1), travelling[1:, 0]], 2)
    share = trust_in_relations(past, truth, torch.zeros(12, 5, 24, dtype=x.dtype), origins, channels=12, chunk=1)
    assert share[:, 4:].sum(1).mean() < 0.15


def test_panels_do_not_see_one_another_and_order_is_no_matter():
    """Odd cases: two series, a history of few steps, a series that stands still."""
    x = torch.tensor(np.stack([_source(seed)[:60] for seed in range(10)]).reshape(2, 5, 60))
    x[1, 2], places = 0.0, torch.tensor(np.random.default_rng(79).uniform(size=(2, 5, 2)))
    together = travelling_forecasts(x, ORIGINS, 9, places)
    turned = torch.tensor([4, 2, 0, 1, 3])
    for fewer in (x[:1], x[..., -12:], x[:, :2]):
        placed = places[: len(fewer), : fewer.shape[1]]
        assert torch.stack(travelling_forecasts(fewer, (4,), 9, placed)).isfinite().all()
    for memory, alone in enumerate(travelling_forecasts(x[1:, turned], ORIGINS, 9, places[1:, turned])):
        torch.testing.assert_close(alone[:, 0], together[memory][:, 1, turned])
