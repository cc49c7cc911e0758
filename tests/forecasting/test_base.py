"""The base forecaster: units, gaps, order of series, quantiles, long horizons, files."""

import shutil
import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch

from mvpa_ts.forecasting.pretrained import base, finetuned, forecast_quantiles, load_base, save_base
from mvpa_ts.forecasting.pretrained.base import LEVELS, BaseConfig, BaseForecaster
from mvpa_ts.forecasting.pretrained.configuration import mvpa_forecaster_base
from mvpa_ts.forecasting.pretrained.jumps import shifts, spikes
from mvpa_ts.forecasting.pretrained.layout import layout
from mvpa_ts.forecasting.pretrained.seasons import season_of
from mvpa_ts.forecasting.pretrained.simple_forecasts import seasons_of_panel
from mvpa_ts.forecasting.quantiles import pinball_loss

pytestmark = pytest.mark.usefixtures("no_gradients")

SMALL = BaseConfig(
    lookback=64, patch_length=8, chunk_length=4, most_patches=4, dim=16, num_heads=2, mlp_dim=24, blocks="tp"
)
LINE = torch.arange(5, dtype=torch.float64)[:, None]


@pytest.fixture
def network():
    torch.manual_seed(0)
    network = BaseForecaster(SMALL).double().eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return network


def panel(batch=2, length=64, channels=3):
    return torch.randn(batch, length, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cumsum(
        1
    )


def test_units_and_level_of_the_series_do_not_matter(network):
    x = panel() * 10
    torch.testing.assert_close(network(1e3 * x - 7e4), 1e3 * network(x) - 7e4, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("unit", [1e-12, 1e20])
def test_no_unit_is_too_small_or_too_large(network, unit):
    network, x = network.float(), panel().float()
    torch.testing.assert_close(network(unit * x) / unit, network(x), rtol=1e-4, atol=1e-4)
    assert network(0.0 * x).abs().max() < 1e-30


def test_many_series_are_forecast_in_groups_of_neighbours(network, monkeypatch):
    x = panel(channels=7)
    whole = network(x)
    monkeypatch.setattr(base, "MOST_SERIES", 3)  # groups of 3, 2 and 2
    alone = torch.cat([network(part) for part in x.split([3, 2, 2], dim=2)], dim=2)
    torch.testing.assert_close(network(x), alone)
    assert not torch.allclose(network(x), whole)  # they do attend to one another
    # Along a line, neighbours by place are together.
    order = torch.tensor([6, 2, 0, 1, 5, 3, 4])
    place = torch.arange(7, dtype=torch.float64)[:, None]
    torch.testing.assert_close(network(x[..., order], positions=place[order]), network(x, positions=place)[:, :, order])


@torch.enable_grad()
def test_training_further_on_many_series_draws_some(network, monkeypatch):
    seen = []
    monkeypatch.setattr("mvpa_ts.forecasting.pretrained.pretrained.MOST_SERIES", 3)
    monkeypatch.setattr("mvpa_ts.forecasting.pretrained.pretrained._MOST_TRAINED", 21)
    forecast = BaseForecaster.forecast
    monkeypatch.setattr(
        BaseForecaster,
        "forecast",
        lambda self, reading, **options: seen.append(reading.location.shape) or forecast(self, reading, **options),
    )
    values = panel(batch=1, length=80, channels=7)[0].float()
    finetuned(BaseForecaster(SMALL), values, horizon=4, steps=2)
    assert seen == [(3, 3), (3, 3)]  # 21 // 7 windows, 3 series


def test_quantiles_are_in_order(network):
    assert bool((network(panel()).diff(dim=3) >= 0).all())


def test_series_may_come_in_any_order_and_places_follow_them(network):
    x, order = panel(channels=5), torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(network(x[:, :, order]), network(x)[:, :, order])
    placed = network(x, positions=LINE)
    torch.testing.assert_close(network(x[:, :, order], positions=LINE[order]), placed[:, :, order])
    assert not torch.allclose(network(x[:, :, order], positions=LINE), placed[:, :, order])


def test_places_count_in_units_of_the_usual_gap(network):
    x, plane = panel(channels=5), torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(network(x, positions=1e4 * LINE - 7.0), network(x, positions=LINE))
    turned = plane @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(network(x, positions=turned), network(x, positions=plane))
    with pytest.raises(ValueError, match="the same place for all series"):
        network(x, positions=torch.zeros(5, 1))
    with pytest.raises(ValueError, match="positions must be finite"):
        network(x, positions=torch.full((5, 1), torch.nan))
    for places in (torch.zeros(4, 1), [[0.0]] * 5):
        with pytest.raises(ValueError, match=r"positions must be a tensor \[C, k\] = \[5, k\]"):
            network(x, positions=places)


def test_one_far_value_is_not_read_and_a_new_level_is():
    x = torch.randn(1, 200, 2, generator=torch.Generator().manual_seed(4))
    x[0, -1, 0] = 100.0
    x[0, 180:, 1] += 100.0
    hit = spikes(x, torch.ones_like(x, dtype=torch.bool))
    assert hit.nonzero().tolist() == [[0, 199, 0]]


def test_a_level_that_was_left_is_moved_to_the_last_one_and_nothing_else():
    noise = torch.randn(2, 200, 3, generator=torch.Generator().manual_seed(5))
    mask = torch.rand(noise.shape, generator=torch.Generator().manual_seed(6)) > 0.1
    assert not shifts(noise, mask).any()
    assert not shifts((noise * 0.2 + torch.sin(torch.arange(200.0) / 2)[:, None]).cumsum(1), mask).any()
    shifted = noise.clone()
    shifted[0, 180:, 1] += 10.0
    added = shifts(shifted.masked_fill(~mask, 1e4), mask)
    assert added[0, :180, 1].sub(10.0).abs().max() < 1.0
    added[0, :180, 1] = 0.0
    assert not added.any()
    alternating = noise + 20.0 * (torch.arange(200) // 15 % 2)[:, None]  # a machine that goes on and off
    assert not shifts(alternating, mask).any()


def test_after_a_shift_the_forecast_stays_on_the_new_level():
    network = load_base("base")
    x = torch.randn(20, 200, 1, generator=torch.Generator().manual_seed(7))
    x[:, 180:] += 10.0
    assert (network(x, horizon=16)[..., 4] - 10.0).abs().mean() < 0.4


def test_a_short_history_is_one_whose_beginning_is_missing(network):
    x = panel()
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[:, -20:] = True
    torch.testing.assert_close(network(x.masked_fill(~mask, torch.nan), mask), network(x[:, -20:]))
    long = panel(length=network.farthest + 50)  # no more is read
    torch.testing.assert_close(network(long, horizon=48), network(long[:, -network.farthest :], horizon=48))


@pytest.mark.parametrize("length", [1, 2, 15])
def test_nothing_and_next_to_nothing_give_finite_forecasts(network, length):
    x = torch.zeros(1, length, 2, dtype=torch.float64)
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[..., 1] = False
    forecast = network(x, mask)
    assert bool(forecast.isfinite().all())


@torch.enable_grad()
def test_gradients_are_finite_with_gaps(network):
    x = panel()
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.7
    network(x.masked_fill(~mask, torch.nan), mask).sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in network.parameters() if weight.grad is not None)


def test_horizons_of_any_length(network):
    x = panel()
    for horizon in (1, 16, 40, np.int64(100)):
        forecast = forecast_quantiles(network, x, horizon=horizon)
        assert forecast.shape == (2, horizon, 3, len(LEVELS))
        assert bool(forecast.isfinite().all())
        assert bool((forecast.diff(dim=3) >= 0).all())


def test_what_the_sign_is_does_not_matter(network):
    x = panel()
    torch.testing.assert_close(network(-x), -network(x).flip(3))


def test_what_is_missing_before_all_series_does_not_matter():
    """Long enough that it is cut off before it is read."""
    torch.manual_seed(0)
    network = BaseForecaster(BaseConfig(dim=16, num_heads=2, mlp_dim=24, blocks="p")).double().eval()
    x = panel(length=60)
    longer, mask = torch.zeros(2, 512, 3, dtype=torch.float64), torch.zeros(2, 512, 3, dtype=torch.bool)
    longer[:, -60:], mask[:, -60:] = x, True
    torch.testing.assert_close(network(longer, mask), network(x))
    beside = torch.cat([longer, panel(1, 512)])
    both = network(beside, torch.cat([mask, torch.ones(1, 512, 3, dtype=torch.bool)]))
    torch.testing.assert_close(both[:2], network(x))


def test_a_graph_never_looks_at_values(monkeypatch):
    """Tensors without values run through what a compiler traces."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which knows no such tensors
    with torch.device("meta"):
        network = BaseForecaster(SMALL).eval()
        for length in (10, 48, 64):
            assert network(torch.empty(2, length, 3), horizon=8, season=12).shape == (2, 8, 3, 9)


@pytest.mark.parametrize("length", [10, 48, 64])
def test_a_graph_forecasts_panels_of_any_length_as_they_are_without(network, monkeypatch, length):
    x = panel(length=length)
    forecast = network(x, horizon=8, season=12)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(network(x, horizon=8, season=12), forecast)


NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="torch's default backend needs a C++ compiler")


# Half a minute of tracing, in small: the test above. The C++ compiler takes five minutes.
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=NEEDS_COMPILER)])
def test_one_compiled_graph_gives_the_same(backend):
    """Of short panels with gaps; a missing beginning is cut off only where nothing is compiled."""
    torch.manual_seed(0)
    network = BaseForecaster(SMALL).eval()
    x, mask = panel(length=48).float(), torch.ones(2, 48, 3, dtype=torch.bool)
    mask[0, 30:33, 1] = False
    with torch._inductor.config.patch(compile_threads=1):
        forecast = torch.compile(network, fullgraph=True, backend=backend)(x, mask, horizon=8, season=12)
    torch.testing.assert_close(forecast, network(x, mask, horizon=8, season=12), rtol=1e-4, atol=1e-4)


def test_short_series_are_named(network):
    x = panel(length=30)
    x[0, :18, 1] = torch.nan
    with pytest.warns(UserWarning, match=r"1 of 6 series have fewer than 16 observed steps \(the fewest: 12\)"):
        forecast_quantiles(network, x, horizon=4)
    with warnings.catch_warnings(action="error"):
        forecast_quantiles(network, x[:, -16:, :1], horizon=16)
    with pytest.warns(UserWarning, match=r"the horizon has 17 steps and no series more than 16 observed ones"):
        forecast_quantiles(network, x[:, -16:, :1], horizon=17)


def test_other_levels_lie_between(network):
    x = panel()
    forecast = forecast_quantiles(network, x, horizon=10, levels=(0.05, 0.5, 0.95))
    own = network(x, horizon=10)
    torch.testing.assert_close(forecast[..., 1], own[..., 4])
    assert bool((forecast[..., 0] <= own[..., 0]).all())
    assert bool((forecast[..., 2] >= own[..., -1]).all())


def test_files(network, tmp_path):
    save_base(network, tmp_path / "mine", card="# Mine\n")
    loaded = load_base(tmp_path / "mine")
    x = panel().float()
    torch.testing.assert_close(loaded(x), network.float()(x), rtol=2e-2, atol=2e-2)  # half precision
    (tmp_path / "mine" / "config.json").write_text('{"dim": 16, "width": 3}')
    with pytest.raises(ValueError, match="has fields that BaseConfig does not know"):
        load_base(tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match="take 'base' or 'small', which the package holds, or a folder"):
        load_base(tmp_path / "other")
    network.correction.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"holds NaN or infinite weights in 1 .* such as correction\.weight"):
        save_base(network, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_the_shipped_network_has_the_sizes_of_its_name():
    network = load_base("base")
    assert network.config == mvpa_forecaster_base()
    assert sum(parameter.numel() for parameter in network.parameters()) == 3_293_477


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"lookback": 500}, "lookback .500. must be a multiple of patch_length"), ({"dim": 65}, "multiple of num_heads")],
)
def test_sizes_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        BaseConfig(**arguments)


def test_inputs_that_do_not_fit(network):
    for shape in ((4, 5), (2, 60, 0), (0, 60, 3), (2, 0, 3)):
        with pytest.raises(ValueError, match=r"x must be \[B, L, C\] with no empty axis, got shape"):
            network(torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"x must have the precision of the weights, torch\.float64, got"):
        network(torch.zeros(1, 4, 5))
    with pytest.raises(ValueError, match="mask must be a bool tensor of shape"):
        network(torch.zeros(1, 4, 5).double(), torch.ones(1, 4, 4, dtype=torch.bool))
    x = panel(length=30)
    for horizon in (0, 2.5):
        with pytest.raises(ValueError, match="horizon must be a whole number of at least 1, got"):
            forecast_quantiles(network, x, horizon=horizon)
    with pytest.raises(ValueError, match=r"x must be a torch\.Tensor, got ndarray"):
        forecast_quantiles(network, x.numpy(), horizon=2)
    with pytest.raises(ValueError, match=r"x must be float32 or float64, got torch\.float16: give x\.float"):
        forecast_quantiles(load_base(), x.half(), horizon=2)
    with pytest.raises(ValueError, match=r"network must be a BaseForecaster, such as load_base\('base'\), got 'base'"):
        forecast_quantiles("base", x, horizon=2)
    with pytest.raises(ValueError, match="x must hold finite numbers where they are observed"):
        forecast_quantiles(network, x * torch.nan, torch.ones_like(x, dtype=torch.bool), horizon=2)
    with pytest.raises(ValueError, match=r"levels must be numbers within \(0, 1\), got \[0.5, 1.5\]"):
        forecast_quantiles(network, x, horizon=2, levels=(0.5, 1.5))


@torch.enable_grad()
def test_training_further_lowers_the_error_on_the_panel(network):
    """Values lie near −1 or 1: no quantile lies between, and normal ones do."""
    generator = torch.Generator().manual_seed(3)
    values = torch.where(torch.rand(640, 2, generator=generator) < 0.5, -1.0, 1.0)
    values += 0.05 * torch.randn(values.shape, generator=generator)
    values[5:9, 0] = torch.nan
    torch.manual_seed(0)
    base = BaseForecaster(SMALL).eval()
    trained = finetuned(base, values, horizon=4, steps=40, learning_rate=2e-2)
    assert all(parameter.grad is None for parameter in base.parameters())

    def error(model):
        windows = torch.stack([values[i : i + 68] for i in range(100, 500, 20)])
        return pinball_loss(model(windows[:, :64], horizon=4), windows[:, 64:], torch.tensor(LEVELS)).mean()

    assert error(trained) < 0.9 * error(base)
    with pytest.raises(ValueError, match=r"at least 8 rows, horizon \+ 4, got 6"):
        finetuned(base, values[:6], horizon=4, steps=1)


def test_nan_without_a_mask_is_missing_and_infinity_is_named(network):
    x = panel(length=30)
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[0, 4, 1] = False
    expected = forecast_quantiles(network, x.masked_fill(~mask, 0.0), mask, horizon=10)
    torch.testing.assert_close(forecast_quantiles(network, x.masked_fill(~mask, torch.nan), horizon=10), expected)
    with pytest.raises(ValueError, match="x must hold finite numbers"):
        forecast_quantiles(network, x.masked_fill(~mask, torch.inf), horizon=10)


def test_a_season_that_is_told_may_be_seen_once(network):
    """A cycle and a quarter: nothing in the history says that it comes again."""
    once = torch.randn(48, generator=torch.Generator().manual_seed(5), dtype=torch.float64).cumsum(0)
    x = torch.cat([once, once[:12]])[None]
    first = torch.zeros(1, dtype=torch.long)
    assert int(seasons_of_panel(x, first, 1)[0][0, -1]) != 48
    periods, strength = seasons_of_panel(x, first, 1, torch.tensor([48]))
    assert int(periods[0, -1]) == 48
    assert float(strength[0, -1]) > 0.0
    for useless in (0, 1, 61):  # none, or longer than the history
        told = seasons_of_panel(x, first, 1, torch.tensor([useless]))
        torch.testing.assert_close(told[0], seasons_of_panel(x, first, 1)[0])
    reading = network.read(x[..., None], torch.ones(1, 60, 1, dtype=torch.bool), 16, layout(None, 1, 1), 48)
    repeated = reading.simple[0, 0] * reading.scale[0, 0] + reading.location[0, 0]
    assert float((repeated - once[12:28]).abs().sum(1).min()) < 1e-6
    both = network(torch.stack([x[0], x[0].flip(0)])[..., None], season=torch.tensor([48, 0]))
    torch.testing.assert_close(both[:1], network(x[..., None], season=48))


def test_six_cycles_of_a_long_season_are_read(network):
    """The network reads 64 steps, the simple forecasts more where a season is told that would not be found in them."""
    x = panel(length=300)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.9
    for season, steps in ((None, 64), (6, 64), (40, 64), (41, 246), (45, 270)):
        forecast = network(x, mask, season=season, horizon=8)
        torch.testing.assert_close(forecast, network(x[:, -steps:], mask[:, -steps:], season=season, horizon=8))
        assert not torch.allclose(
            forecast, network(x[:, -steps + 10 :], mask[:, -steps + 10 :], season=season, horizon=8)
        )
    both = network(x, mask, season=torch.tensor([6, 45]), horizon=8)
    torch.testing.assert_close(both[:1], network(x[:1], mask[:1], season=6, horizon=8))
    torch.testing.assert_close(both[1:], network(x[1:], mask[1:], season=45, horizon=8))


def test_a_network_that_looks_back_farther_reads_all_of_it(monkeypatch, network):
    monkeypatch.setattr(base, "FARTHEST", 40)
    x = panel()
    for season in (None, 60):
        forecast = network(x, season=season)
        assert not torch.allclose(forecast, network(x[:, -40:], season=season))
        assert not torch.allclose(forecast, network(x[:, -60:], season=season))


def test_a_season_longer_than_the_networks_look_back(network):
    once = torch.randn(700, generator=torch.Generator().manual_seed(5), dtype=torch.float64).cumsum(0)
    x = torch.cat([once, once[:12]])[None, :, None]
    reading = network.read(x, torch.ones_like(x, dtype=torch.bool), 16, layout(None, 1, 1), 700)
    repeated = reading.simple[0, 0] * reading.scale[0, 0] + reading.location[0, 0]
    assert float((repeated - once[12:28]).abs().sum(1).min()) < 1e-6


@pytest.mark.parametrize(
    ("name", "steps"),
    [("h", 168), ("6h", 28), ("30min", 48), ("10min", 144), ("5m", 288), ("D", 7), ("D ", 7), ("B", 5), ("W-SUN", 52),
     ("ME", 12), ("1mo", 12), ("3MS", 4), ("QE-DEC", 4), ("2QS", 2), ("YE", 0), ("7min", 0), (1, 0), (None, 0),
     ("45s", 1920), (pd.DateOffset(months=1), 12), (pd.DateOffset(hours=6), 28), (pd.DateOffset(2, days=1), 0),
     (pd.DateOffset(months=1, days=1), 0), (pd.offsets.CustomBusinessMonthEnd(), 12), ("WOM-2WED", 12),
     ("7D", 52), ("14d", 26), ("10D", 0)],
)  # fmt: skip
def test_season_of_a_frequency(name, steps):
    assert season_of(name) == steps


def test_sure_times_of_a_season_have_narrow_intervals():
    """Twenty days by the hour, noise of 1 in the first half of each day and of 8 in the second."""
    hour = torch.arange(528)
    size = torch.where(hour % 24 < 12, 1.0, 8.0)[None, :, None]
    noise = torch.randn(24, 528, 1, generator=torch.Generator().manual_seed(0))
    x = 30.0 * torch.sin(hour * 2 * torch.pi / 24)[None, :, None] + size * noise
    forecast = forecast_quantiles(load_base("base"), x[:, :480], horizon=48, levels=(0.1, 0.9), season=24)
    inside = ((x[:, 480:] > forecast[..., 0]) & (x[:, 480:] < forecast[..., 1])).float()
    halves = inside.mean((0, 2)).view(2, 2, 12).mean((0, 2))
    assert ((halves > 0.75) & (halves < 0.95)).all()
