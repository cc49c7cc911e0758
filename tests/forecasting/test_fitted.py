"""Regressions that are solved on the rows of training, beside the network."""

import pickle

import numpy as np
import pytest
import torch

from mvpa_ts import ForecastingConfig, ForecastingNetwork
from mvpa_ts.forecasting.network import fitted as module
from mvpa_ts.forecasting.training import ForecasterTraining, train
from mvpa_ts.windows import Windows

LOOKBACK, HORIZON = 32, 6


def make_wave(channels: int = 5, rows: int = 900, delay: int = 4) -> torch.Tensor:
    source = torch.from_numpy(np.random.default_rng(0).standard_normal(rows + delay * channels)).float()
    return torch.stack([source[delay * (channels - c) :][:rows] for c in range(channels)], dim=1)


def make_windows(values: torch.Tensor, **options) -> Windows:
    starts = torch.arange(len(values) - LOOKBACK - HORIZON + 1)
    return Windows(values, starts, LOOKBACK, HORIZON, **options)


def make_network(channels: int | None = 5, **options) -> ForecastingNetwork:
    torch.manual_seed(0)
    vectors = () if channels is None else ("vectors",)
    config = ForecastingConfig(HORIZON, LOOKBACK, num_layers=0, num_channels=channels, per_channel=vectors, **options)
    return ForecastingNetwork(config).eval()


def finished(values: torch.Tensor, channels: int | None = 5, **options) -> ForecastingNetwork:
    network = make_network(channels, **options)
    network.fitted.finish(network, make_windows(values), middle=network.middle, power=2.0)
    return network


@torch.no_grad()
def error(network: ForecastingNetwork, values: torch.Tensor) -> float:
    (inputs, target, _), *_ = make_windows(values).batches(10_000)
    return float((network(inputs.pop("x"), **inputs)[..., network.middle] - target).square().mean())


def test_the_solution_is_that_of_scikit_learn():
    from sklearn.linear_model import Ridge

    values, penalty = make_wave(), 0.1
    windows = make_windows(values)
    gram, cross = module._sums(module._all, LOOKBACK * 5, [windows])
    weights = module._ridge(gram, cross, penalty)
    (inputs, target, _), *_ = windows.batches(10_000)
    x = inputs["x"].flatten(1).double().numpy()
    ridge = Ridge(alpha=penalty * float((x**2).sum(0).mean()), fit_intercept=False).fit(x, target.flatten(1).numpy())
    np.testing.assert_allclose(weights.mT.numpy(), ridge.coef_, atol=1e-5)


def test_neighbours_lie_by_relative_place():
    z = torch.arange(2 * 3 * 4.0).reshape(1, 6, 4)  # [B, L, C]
    read = module._near(z, 13 * 2).unflatten(2, (13, 2))
    assert read[0, 1, 6].tolist() == z[0, -2:, 1].tolist()  # itself in the middle
    assert read[0, 1, 7].tolist() == z[0, -2:, 2].tolist()
    assert read[0, 0, 5].tolist() == [0.0, 0.0]  # beyond the end


@pytest.mark.parametrize("channels", [5, None], ids=["known", "unknown"])
def test_a_wave_is_forecast_by_those_it_passed_before(channels):
    values = make_wave()
    network = finished(values[:700], channels)
    (_, target, _), *_ = make_windows(values[700:]).batches(10_000)
    # White noise that comes four steps later in each channel: nobody has shown the six steps of channel 0 and the last
    # two of channel 1.
    least = float((target[:, :, 0].square().sum() + target[:, 4:, 1].square().sum()) / target.numel())
    assert not network.fitted.off
    assert 0.95 * least < error(network, values[700:]) < 1.15 * least + 0.02
    assert error(make_network(channels), values[700:]) > 3 * least


def test_more_channels_are_read_by_place():
    network = finished(make_wave(16, 1500)[:, 3:13], 10)
    longer = make_wave(16)
    assert error(network, longer) < 0.2 < 0.7 < error(make_network(10), longer)


@pytest.mark.parametrize(
    "values",
    [torch.randn(600, 5, generator=torch.Generator().manual_seed(0)).cumsum(0), torch.ones(600, 5),
     make_wave(1), torch.randn(40, 5, generator=torch.Generator().manual_seed(0))],
    ids=["walks", "constant", "one channel", "few rows"],
)  # fmt: skip
def test_without_relations_nothing_changes(values):
    network = make_network(values.shape[1] if values.shape[1] > 1 else None)
    if len(values) > 100 and values.std() > 0:  # the last value is what a walk asks for
        train(network, {"train": make_windows(values)}, ForecasterTraining(steps=1, ridge=0.01), seed=0)
    network.fitted.clear()
    network.fitted.finish(network, make_windows(values), middle=network.middle, power=2.0)
    assert network.fitted.off
    assert not network.fitted.of_all.numel() + network.fitted.by_place.numel()


@pytest.mark.parametrize("seed", range(3))
def test_relations_by_chance_cost_nothing(seed):
    noise = torch.randn(1800, 5, generator=torch.Generator().manual_seed(seed))
    network = make_network()
    train(network, {"train": make_windows(noise[:600])}, ForecasterTraining(steps=1, ridge=0.01), seed=0)
    network.fitted.clear()
    before = error(network, noise[600:])
    network.fitted.finish(network, make_windows(noise[:600]), middle=network.middle, power=2.0)
    assert error(network, noise[600:]) <= 1.001 * before


def test_another_panel_of_as_many_series_is_read_by_place_alone():
    values = make_wave()
    network = finished(values)
    x = values[None, :LOOKBACK]
    in_training = network(x, series=torch.arange(5))
    torch.testing.assert_close(in_training, network(x))
    outside = network(x, series=torch.tensor([-1, 1, 2, 3, 4]))
    network.fitted.shares[0] = 0.0
    torch.testing.assert_close(outside, network(x, series=torch.tensor([-1, 1, 2, 3, 4])))
    assert (in_training - outside).abs().max() > 0.01
    # By place as well as if there had never been another one.
    unnamed = finished(values, None)
    torch.testing.assert_close(network.fitted.shares[2], unnamed.fitted.shares[1])


@pytest.mark.parametrize(("design", "size"), [(module._all, LOOKBACK * 5), (module._near, LOOKBACK * 13)])
def test_missing_targets_do_not_draw_forecasts_to_zero(design, size):
    values, draws = make_wave(), np.random.default_rng(1)
    observed = torch.ones(values.shape, dtype=torch.bool)
    for start in draws.integers(0, len(values), 10):  # a sensor that is dead for a while
        observed[start : start + 60, 2] = False
    limits = torch.tensor([[0, len(values)]]).expand(len(values) - LOOKBACK - HORIZON + 1, 2)
    windows = make_windows(values.masked_fill(~observed, 0.0), observed=observed, limits=limits)
    weights = module._ridge(*module._sums(design, size, [windows]), 0.01)
    rows, target, _ = next(module._batches(make_windows(values)))
    forecast = module._forecast(design, weights, *rows)
    shown = target[:, :, 2]  # channel 2 is channel 1 four steps later, so six steps ahead are in what was read
    slope = (forecast[:, :, 2] * shown).sum() / shown.square().sum()
    assert 0.4 < observed[:, 2].float().mean() < 0.6
    assert slope > 0.8


def test_what_is_missing_longer_remains_less():
    values, observed = torch.full((40, 2), 0.5), torch.ones(40, 2, dtype=torch.bool)
    observed[10:, 1] = False
    (inputs, _, _), *_ = Windows(values, torch.tensor([0]), LOOKBACK, HORIZON, observed=observed).batches(1)
    z, *_ = module.standardised(inputs["x"], inputs["mask"], torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    np.testing.assert_allclose(z[0, 10:, 1], 0.5 * 0.9 ** np.arange(1, LOOKBACK - 9), rtol=1e-5)
    np.testing.assert_allclose(z[0, :, 0], 0.5, rtol=1e-5)


def test_gaps_and_units():
    values = make_wave() * torch.tensor([1.0, 1e3, 1e-3, 5.0, 1.0]) + torch.tensor([0.0, 1e4, 0.0, -7.0, 3.0])
    observed = torch.rand(values.shape, generator=torch.Generator().manual_seed(1)) > 0.1
    units = torch.stack([values.mean(0), values.std(0)], 1)
    torch.manual_seed(0)
    network = make_network()
    limits = torch.tensor([[0, len(values)]]).expand(len(values) - LOOKBACK - HORIZON + 1, 2)
    windows = make_windows(
        torch.where(observed, values, torch.nan), observed=observed, limits=limits, channel_inputs={"units": units}
    )
    network.fitted.finish(network, windows, middle=network.middle, power=2.0)
    x, mask = windows.values[None, :LOOKBACK].nan_to_num(9e9), observed[None, :LOOKBACK]
    forecast = network(x, mask, units=units)[0, :, :, 0]
    missed = ((forecast - values[LOOKBACK : LOOKBACK + HORIZON]) / units[:, 1]).square()
    assert not network.fitted.off
    assert missed[:4, 1:].mean() < 0.4


def test_intervals_become_narrower():
    values = make_wave()
    network = make_network(num_outputs=3)
    with torch.no_grad():
        network.linear.bias.copy_(torch.tensor([-1.0, 0.0, 1.0]).repeat(HORIZON))
    before = network(values[None, :LOOKBACK])
    network.fitted.finish(network, make_windows(values), middle=network.middle, power=2.0)
    after, width = network(values[None, :LOOKBACK]), network.fitted.narrowing
    assert 0.4 < width < 0.8  # the root of the error that is left
    torch.testing.assert_close(after[..., 2] - after[..., 0], width * (before[..., 2] - before[..., 0]))


def test_pickle_gives_the_same_forecasts():
    network, values = finished(make_wave(), regressions=True), make_wave()
    again = pickle.loads(pickle.dumps(network))
    assert not again.fitted.off
    assert error(again, values) == error(network, values)


def test_weights_are_saved_and_those_of_before_still_load():
    network, values = finished(make_wave()), make_wave()
    again = make_network()
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again(values[None, :LOOKBACK]), network(values[None, :LOOKBACK]))
    again.load_state_dict({k: v for k, v in network.state_dict().items() if not k.startswith("fitted.")})
    assert again.fitted.off


@pytest.mark.parametrize("transform", ["compile", "export", "vmap"])
def test_transforms(transform):
    network, x = finished(make_wave()), make_wave()[None, :LOOKBACK]
    expected = network(x)
    if transform == "compile":
        output = torch.compile(network, fullgraph=True, backend="eager")(x)
    elif transform == "export":
        output = torch.export.export(network, (x,)).module()(x)
    else:
        output = torch.func.vmap(lambda one: network(one[None])[0])(x)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)


def test_training_ends_with_them_and_further_training_begins_without():
    values, network = make_wave(), make_network()
    training = ForecasterTraining(steps=3)
    outcome = train(
        network, {"train": make_windows(values[:600]), "validation": make_windows(values[600:])}, training, seed=0
    )
    assert not network.fitted.off
    assert outcome.validation_mse == pytest.approx(error(network.eval(), values[600:]), rel=1e-4)
    train(network, {"train": make_windows(torch.randn(600, 5))}, training, seed=0)
    assert network.fitted.off
