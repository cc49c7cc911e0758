"""The closed-form starts against scikit-learn's ridge regression, numpy, plain loops and known answers."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from support.made_up_networks import CHANNELS, LOOKBACK, make_network, make_windows
from torch import Tensor

from mvpa_ts import ForecastingConfig, ForecastingNetwork, least_squares_start
from mvpa_ts.forecasting import LEVELS, FeatureSizes, ForecasterTraining, Series, fit_forecaster
from mvpa_ts.forecasting.network.closed_form import covariate_effects, start_effects
from mvpa_ts.forecasting.quantiles import start_in_order
from mvpa_ts.windows import Scaling, series_windows

L, H, C, P = 13, 5, 3, 6


def _windows(count: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    generator = np.random.default_rng(0)
    steps = np.arange(count + L + H)
    series = np.stack(
        [
            np.sin(2 * np.pi * (steps + shift) / P) * (1 + shift) + 0.3 * generator.standard_normal(len(steps)).cumsum()
            for shift in range(C)
        ],
        axis=1,
    )
    windows = np.stack([series[start : start + L + H] for start in range(count)])
    tensor = torch.tensor(windows, dtype=torch.float32)
    return tensor[:, :L], tensor[:, L:], torch.arange(count)


def _started(*per_channel: str, **options: Any) -> ForecastingNetwork:
    channels = C if per_channel else None
    config = ForecastingConfig(H, L, num_layers=0, num_channels=channels, per_channel=per_channel, **options)
    return ForecastingNetwork(config)


def _halves(data: tuple[Tensor, Tensor, Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [tuple(part[:90] for part in data), tuple(part[90:] for part in data)]  # type: ignore[misc]


def _rows(data: tuple[Tensor, Tensor, Tensor], cycle: np.ndarray | None = None) -> dict[int, list[np.ndarray]]:
    """Normalised past, future and scale of every window, for each channel."""
    rows: dict[int, list[tuple[np.ndarray, np.ndarray, float]]] = {channel: [] for channel in range(C)}
    for x, y, first in zip(*(part.double().numpy() for part in data), strict=True):
        for channel in range(C):
            mean, scale = x[:, channel].mean(), np.sqrt(x[:, channel].var() + 1e-5)
            past, future = (x[:, channel] - mean) / scale, (y[:, channel] - mean) / scale
            if cycle is not None:
                past = past - cycle[(int(first) + np.arange(L)) % P, channel]
                future = future - cycle[(int(first) + L + np.arange(H)) % P, channel]
            rows[channel].append((past, future, scale))
    return {channel: [np.array(part) for part in zip(*values, strict=True)] for channel, values in rows.items()}


def _ridge(past: np.ndarray, future: np.ndarray, scale: np.ndarray, ridge: float) -> np.ndarray:
    weight = scale**2
    model = Ridge(alpha=ridge * weight.sum(), fit_intercept=False, solver="svd")
    return model.fit(past, future, sample_weight=weight).coef_


def test_linear_path_is_the_weighted_ridge_regression():
    data = _windows()
    network = _started()
    least_squares_start(network, lambda: _halves(data), ridge=0.2)
    past, future, scale = (np.concatenate(parts) for parts in zip(*_rows(data).values(), strict=True))
    np.testing.assert_allclose(network.linear.weight.detach(), _ridge(past, future, scale, 0.2), atol=1e-4)
    assert network.linear.bias.abs().max() == 0.0


def test_cycle_is_a_share_of_the_mean_profile_of_each_channel():
    data = _windows()
    network = _started("cycle", cycle_length=P)
    least_squares_start(network, lambda: _halves(data), cycle_strength=0.25)
    rows = _rows(data)
    for channel in range(C):
        for phase in range(P):
            seen = [
                rows[channel][0][window, step]
                for window in range(len(data[0]))
                for step in range(L)
                if (int(data[2][window]) + step) % P == phase
            ]
            assert network.cycle[phase, channel].item() == pytest.approx(0.25 * np.mean(seen), abs=1e-5)
    past, future, scale = (
        np.concatenate(parts) for parts in zip(*_rows(data, network.cycle.detach().numpy()).values(), strict=True)
    )
    np.testing.assert_allclose(network.linear.weight.detach(), _ridge(past, future, scale, 0.1), atol=1e-4)


def test_one_cycle_for_all_channels_is_their_mean():
    data = _windows()
    shared, own = _started(cycle_length=P), _started("cycle", cycle_length=P)
    for network in (shared, own):
        least_squares_start(network, lambda: _halves(data))
    torch.testing.assert_close(shared.cycle, own.cycle.mean(1, keepdim=True))


def test_corrections_are_fitted_to_what_the_common_matrix_leaves():
    data = _windows()
    network = _started("matrix")
    least_squares_start(network, lambda: _halves(data), ridge=0.2)
    common = network.linear.weight.detach().double().numpy()
    for channel, (past, future, scale) in _rows(data).items():
        expected = _ridge(past, future - past @ common.T, scale, 3.0)
        np.testing.assert_allclose(network.corrections[channel].detach(), expected.T, atol=1e-4)


def test_reversion_is_a_share_of_the_regression_on_the_level():
    data = _windows()
    plain, network = (
        _started("matrix"),
        _started("matrix", normalise="reverting"),
    )
    least_squares_start(plain, lambda: _halves(data))
    with torch.no_grad():
        network.reversion.fill_(7.0)  # an earlier value plays no part
    least_squares_start(network, lambda: _halves(data), reversion_strength=0.4)
    x, y, phase = data
    error = (y - plain(x, phase=phase)[..., 0].detach()).double().numpy()
    level = x.mean(1).double().numpy()
    for step in range(H):
        slope = Ridge(alpha=0.0, fit_intercept=False).fit(level.reshape(-1, 1), error[:, step].reshape(-1)).coef_
        assert network.reversion[step].item() == pytest.approx(-0.4 * slope.item(), abs=1e-5)


@pytest.mark.parametrize("normalise", [True, "reverting"])
@pytest.mark.parametrize("options", [{"feature_sizes": FeatureSizes(2, 1)}, {"position_size": 2}], ids=str)
def test_what_is_read_beside_the_series_changes_no_start(options, normalise):
    """Covariates are regressed on before, and weights of channels by place begin with zero."""
    steps = torch.arange(200.0)
    series = torch.stack([torch.sin(steps / 3), torch.cos(steps / 5), steps % 7], 1) + 2.0
    windows = series.unfold(0, 16 + H, 1).mT
    batches = [(windows[:, :16], windows[:, 16:], torch.arange(len(windows)))]
    starts = []
    for given in ({}, options):
        network = ForecastingNetwork(ForecastingConfig(H, 16, num_layers=0, normalise=normalise, **given))
        least_squares_start(network, lambda: batches)
        assert network.regressions is not None
        shares = network.regressions.step_score[:, -1]
        starts.append([network.linear.weight, shares, *([network.reversion] if normalise == "reverting" else [])])
    torch.testing.assert_close(*starts)


def test_quantiles_start_with_the_spread_of_the_errors():
    data, levels = _windows(), torch.tensor([0.1, 0.5, 0.9])
    plain, network = _started(), _started(num_outputs=3)
    start_in_order(network.linear, levels)
    for one in (plain, network):
        least_squares_start(one, lambda: _halves(data), ridge=0.2)
    x, y, phase = data
    scale = x.var(1, correction=0).add(1e-5).sqrt()  # [B, C]
    forecast = network(x, phase=phase)
    torch.testing.assert_close(forecast[..., 1], plain(x, phase=phase)[..., 0])
    # Windows weigh as the variance of their look-back, which is what scaling the errors back comes to.
    spread = ((forecast[..., 1] - y).square().sum((0, 2)) / scale.square().sum()).sqrt()
    offsets = (forecast[..., 2] - forecast[..., 1]) / scale[:, None]
    torch.testing.assert_close(offsets, (1.2815516 * spread)[None, :, None].expand_as(offsets), rtol=1e-3, atol=1e-4)


def test_windows_with_gaps_count_where_their_horizon_is_whole():
    x, y, phase = _windows()
    generator = torch.Generator().manual_seed(0)
    mask, counted = torch.ones_like(x, dtype=torch.bool), torch.ones_like(y, dtype=torch.bool)
    mask[50:60, 3, 1] = False
    mask[60:70, : L // 2 + 1, 0] = False  # less than half is left
    counted[100:120, 2, 2] = False
    garbage = torch.randn(x.shape, generator=generator) * 1e6
    network, expected = _started(), _started()
    least_squares_start(network, lambda: [(torch.where(mask, x, garbage), y, phase, mask, counted)], ridge=0.2)
    rows: list[tuple[np.ndarray, np.ndarray, float]] = []
    for window in range(len(x)):
        for channel in range(C):
            seen = mask[window, :, channel].numpy()
            if not counted[window, :, channel].all() or seen.mean() < 0.5:
                continue
            past, future = x[window, :, channel].double().numpy(), y[window, :, channel].double().numpy()
            mean, scale = past[seen].mean(), np.sqrt(past[seen].var() + 1e-5)
            rows.append((np.where(seen, (past - mean) / scale, 0.0), (future - mean) / scale, scale))
    past, future, scale = (np.array(part) for part in zip(*rows, strict=True))
    np.testing.assert_allclose(network.linear.weight.detach(), _ridge(past, future, scale, 0.2), atol=1e-4)
    everything = torch.ones_like(mask), torch.ones_like(counted)
    least_squares_start(network, lambda: [(x, y, phase, *everything)])
    least_squares_start(expected, lambda: [(x, y, phase)])
    torch.testing.assert_close(network.linear.weight, expected.linear.weight)


def test_what_does_not_fit_is_refused():
    data = _windows(30)
    spread = ForecastingNetwork(ForecastingConfig(H, L, num_layers=0, num_outputs=2), (0,))
    with pytest.raises(ValueError, match="not every output is a level"):
        least_squares_start(spread, lambda: [data])
    with pytest.raises(ValueError, match="at least 0, got -1"):
        least_squares_start(_started(), lambda: [data], ridge=-1.0)
    with pytest.raises(ValueError, match="at least one window whose values vary"):
        least_squares_start(_started(), list)


def test_start_with_the_phase_of_every_step():
    x, y, phase = _windows()
    by_first, by_step = (_started("cycle", cycle_length=P) for _ in range(2))
    least_squares_start(by_first, lambda: [(x, y, phase)])
    least_squares_start(by_step, lambda: [(x, y, phase[:, None] + torch.arange(L + H))])
    torch.testing.assert_close(by_step.linear.weight, by_first.linear.weight)
    torch.testing.assert_close(by_step.cycle, by_first.cycle)


def drawn(n: int, channels: int = 1, size: int = 1, seed: int = 0) -> tuple[torch.Generator, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return generator, torch.randn(n, 1, size, generator=generator).expand(n, channels, size)


def everything(values: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def test_few_rows_are_a_plain_regression():
    """Nine rows leave no room for lags: least squares and the t-value as numpy has them, errors by step."""
    generator, features = drawn(9)
    values = 2.0 * features[..., 0] + torch.randn(9, 1, generator=generator)
    x, y = features[:, 0, 0].double().numpy(), values[:, 0].double().numpy()
    x, y = x - x.mean(), y - y.mean()
    slope = (x @ y) / (x @ x)
    uncertainty = 9 / 7 * (x**2 @ (y - slope * x) ** 2) / (x @ x) ** 2
    expected = slope * max(0.0, 1.0 - 4.0 * uncertainty / slope**2)
    found = covariate_effects(values, everything(values), features)
    assert found.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("errors", ["noise", "season", "walk"])
def test_known_effects_are_found(errors, channels):
    generator, features = drawn(200, channels, 3)
    noise = torch.randn(200, channels, generator=generator)
    season = 8.0 * torch.sin(torch.arange(200) * 2 * torch.pi / 12)[:, None]
    values = features @ torch.tensor([3.0, -1.0, 0.0])
    values = values + {"noise": 0.2 * noise, "season": season + 0.2 * noise, "walk": noise.cumsum(0)}[errors]
    found = covariate_effects(values, everything(values), features)
    torch.testing.assert_close(found, torch.tensor([3.0, -1.0, 0.0]), rtol=0.0, atol=0.25 if errors == "walk" else 0.06)


def test_series_that_drift_alike_have_no_effect():
    """Least squares finds an effect in nearly all pairs of random walks."""
    found, plain = [], []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        walks = torch.randn(150, 2, generator=generator).cumsum(0)
        found.append(covariate_effects(walks[:, :1], everything(walks[:, :1]), walks[:, 1:, None]).abs().item())
        centred = (walks - walks.mean(0)).numpy()
        plain.append(abs(np.linalg.lstsq(centred[:, 1:], centred[:, 0], rcond=None)[0].item()))
    assert np.mean(plain) > 0.3
    assert np.mean(found) < 0.05


def test_missing_values_and_rows_do_not_count():
    generator, features = drawn(300, 2, 1, seed=1)
    values = 3.0 * features[..., 0] + 0.1 * torch.randn(300, 2, generator=generator)
    observed = torch.rand(300, 2, generator=generator) > 0.1
    features = features.clone()
    features[100:120] = torch.nan
    found = covariate_effects(values.masked_fill(~observed, 1e6), observed, features)
    assert found.item() == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize("case", ["few rows", "constant", "unknown", "nothing observed"])
def test_nothing_to_learn_from_gives_zeros(case):
    _, features = drawn(12 if case == "few rows" else 60, 1, 4)
    values, features = features[..., 0].clone(), features.clone()
    observed = everything(values)
    if case == "constant":
        features[...] = 2.5
    elif case == "unknown":
        features[...] = torch.nan
    elif case == "nothing observed":
        observed = ~observed
    assert torch.equal(covariate_effects(values, observed, features), torch.zeros(4))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("units", [False, True])
def test_network_reads_the_series_without_the_effects(masked, units):
    torch.manual_seed(0)
    network = make_network(
        num_layers=1, mixing_heads=2, feature_sizes=FeatureSizes(2), covariates=("maps", "effects")
    ).eval()
    with torch.no_grad():
        for weight in (network.future_map, *network.encoder.future_head.parameters()):
            weight.zero_()
        network.encoder.embed_future.weight.zero_()
    x = make_windows()
    mask = torch.rand_like(x) > 0.2 if masked else None
    x = x if mask is None else x.masked_fill(~mask, 0.0)
    known = torch.tensor([[0.5, 2.0]]).expand(CHANNELS, 2) if units else None
    future = torch.randn(len(x), LOOKBACK + network.config.horizon, CHANNELS, 2)
    effects = network.effects(x, mask, future, known)
    assert effects is not None
    if units:
        torch.testing.assert_close(effects, 2.0 * (future @ network.future_effects))
    found = network(x, mask, future=future, units=known)
    without = network(x - effects[:, :LOOKBACK], mask, future=torch.zeros_like(future), units=known)
    torch.testing.assert_close(found, without + effects[:, LOOKBACK:, :, None], rtol=1e-4, atol=1e-4)


def test_held_out_rows_are_not_read():
    """The last fifth of the series is kept for validation, and there the effect is another one."""
    _, features = drawn(200, seed=2)
    table = features[:, 0].double().numpy()
    values = 3.0 * table
    values[160:] = -50.0 * table[160:]
    parts = series_windows(
        [Series(values, table)], [Scaling(np.zeros(1), np.ones(1))], lookback=24, horizon=12,
        feature_scaling=Scaling(np.zeros(1), np.ones(1)), validation_fraction=0.2,
    )  # fmt: skip
    network = make_network(horizon=12, lookback=24, feature_sizes=FeatureSizes(1))
    torch.nn.init.zeros_(network.future_effects)
    start_effects(network, parts["train"])
    assert network.future_effects.item() == pytest.approx(3.0, abs=1e-3)
    network.future_effects.data.fill_(0.7)
    start_effects(network, parts["train"])  # what was learnt already stays
    assert network.future_effects.item() == pytest.approx(0.7)


@pytest.mark.parametrize("layers", [0, 1])
def test_a_forecaster_finds_what_a_covariate_alone_decides(layers):
    """Without the regression the error of this training is above 2."""
    _, features = drawn(252, seed=3)
    table = features[:, 0].double().numpy()
    values = 5.0 + 3.0 * table
    series = Series(values[:240], table)
    config = ForecastingConfig(12, 24, num_outputs=len(LEVELS), feature_sizes=FeatureSizes(1), num_layers=layers)
    fitted = fit_forecaster([series], config, ForecasterTraining(steps=20, learning_rate=2e-4))
    middle = fitted.predict(series)[:, :, len(LEVELS) // 2]
    assert np.abs(middle - values[240:]).mean() < 0.3
