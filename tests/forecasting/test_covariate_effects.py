"""Effects of covariates at the same step: known answers, numpy's least squares, and what networks do with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.made_up_networks import CHANNELS, LOOKBACK, make_network, make_windows

from mvpa_ts.forecasting import LEVELS, ForecasterTraining, ForecastingConfig, Series, fit_forecaster
from mvpa_ts.forecasting.closed_form import covariate_effects
from mvpa_ts.forecasting.training import start_effects
from mvpa_ts.windows import Scaling, series_windows


def drawn(n: int, channels: int = 1, size: int = 1, seed: int = 0) -> tuple[torch.Generator, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return generator, torch.randn(n, 1, size, generator=generator).expand(n, channels, size)


def everything(values: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def test_few_rows_are_a_plain_regression() -> None:
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
def test_known_effects_are_found(errors: str, channels: int) -> None:
    generator, features = drawn(200, channels, 3)
    noise = torch.randn(200, channels, generator=generator)
    season = 8.0 * torch.sin(torch.arange(200) * 2 * torch.pi / 12)[:, None]
    values = features @ torch.tensor([3.0, -1.0, 0.0])
    values = values + {"noise": 0.2 * noise, "season": season + 0.2 * noise, "walk": noise.cumsum(0)}[errors]
    found = covariate_effects(values, everything(values), features)
    torch.testing.assert_close(found, torch.tensor([3.0, -1.0, 0.0]), rtol=0.0, atol=0.25 if errors == "walk" else 0.06)


def test_series_that_drift_alike_have_no_effect() -> None:
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


def test_missing_values_and_rows_do_not_count() -> None:
    generator, features = drawn(300, 2, 1, seed=1)
    values = 3.0 * features[..., 0] + 0.1 * torch.randn(300, 2, generator=generator)
    observed = torch.rand(300, 2, generator=generator) > 0.1
    features = features.clone()
    features[100:120] = torch.nan
    found = covariate_effects(values.masked_fill(~observed, 1e6), observed, features)
    assert found.item() == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize("case", ["few rows", "constant", "unknown", "nothing observed"])
def test_nothing_to_learn_from_gives_zeros(case: str) -> None:
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
def test_network_reads_the_series_without_the_effects(masked: bool, units: bool) -> None:
    torch.manual_seed(0)
    network = make_network(num_layers=1, mixing_heads=2, future_size=2, covariate_heads=0).eval()
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


def test_held_out_rows_are_not_read() -> None:
    """The last fifth of the series is kept for validation, and there the effect is another one."""
    _, features = drawn(200, seed=2)
    table = features[:, 0].double().numpy()
    values = 3.0 * table
    values[160:] = -50.0 * table[160:]
    parts = series_windows(
        [Series(values, table)], [Scaling(np.zeros(1), np.ones(1))], lookback=24, horizon=12,
        feature_scaling=Scaling(np.zeros(1), np.ones(1)), validation_fraction=0.2,
    )  # fmt: skip
    network = make_network(horizon=12, lookback=24, future_size=1)
    torch.nn.init.zeros_(network.future_effects)
    start_effects(network, parts["train"])
    assert network.future_effects.item() == pytest.approx(3.0, abs=1e-3)
    network.future_effects.data.fill_(0.7)
    start_effects(network, parts["train"])  # what was learnt already stays
    assert network.future_effects.item() == pytest.approx(0.7)


def test_a_forecaster_finds_what_a_covariate_alone_decides() -> None:
    """Without the regression the error of this training is above 2."""
    _, features = drawn(252, seed=3)
    table = features[:, 0].double().numpy()
    values = 5.0 + 3.0 * table
    series = Series(values[:240], table)
    config = ForecastingConfig(12, 24, num_outputs=len(LEVELS), future_size=1)
    fitted = fit_forecaster([series], config, ForecasterTraining(steps=20))
    middle = fitted.predict(series)[:, :, len(LEVELS) // 2]
    assert np.abs(middle - values[240:]).mean() < 0.3
