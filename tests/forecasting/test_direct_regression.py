"""A regression that is fitted on a long history, beside the network."""

import numpy as np
import pytest
import torch
from support.made_up_networks import autoregressive

from mvpa_ts.forecasting.pretrained import load_base
from mvpa_ts.forecasting.pretrained.direct_regression import FREE, HALF_CERTAIN, MEANS, PENALTY, direct_regression

pytestmark = pytest.mark.usefixtures("no_gradients")


def plain(x: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """The regression of one series window by window, and its usual errors at each step ahead."""
    location, scale = x.mean(), x.std()
    z = (x - location) / scale
    widths = [width for number, width in MEANS for _ in range(number)]

    def read(end: int) -> tuple[np.ndarray, float]:
        pieces, stop = [], end
        for width in widths:
            pieces.append(z[stop - width : stop].mean())
            stop -= width
        level = z[stop:end].mean()
        return np.array(pieces) - level, level

    ends = range(sum(widths), len(z) - horizon + 1)
    past = np.stack([read(end)[0] for end in ends])
    ahead = np.stack([z[end : end + horizon] - read(end)[1] for end in ends])
    penalty = np.full(past.shape[1], PENALTY)
    penalty[0] = FREE

    def solved(rows: np.ndarray) -> np.ndarray:
        return np.linalg.solve(past[rows].T @ past[rows] + ridge, past[rows].T @ ahead[rows])

    ridge = np.diag(penalty * np.square(past).sum(0).mean() + 0.5e-6)
    everything = np.arange(len(ends))
    last, level = read(len(z))
    forecast = last @ solved(everything) + level
    quarters = [everything[len(everything) * k // 4 : len(everything) * (k + 1) // 4] for k in range(4)]
    missed = [ahead[rows] - past[rows] @ solved(np.setdiff1d(everything, rows)) for rows in quarters]
    error = np.sqrt(np.square(np.concatenate(missed)).mean(0))
    # The last 24 steps, from three origins: errors beyond those that are usual make the regression doubtful.
    lately = []
    for back in (8, 16, 24):
        inputs, level = read(len(z) - back)
        passed = min(back, horizon)
        ahead_of = (inputs @ solved(everything) + level)[:passed]
        lately += [*((z[len(z) - back :][:passed] - ahead_of) / error[:passed])]
    return forecast * scale + location, error * max(1.0, 0.5 * np.square(lately).mean()) * scale


@pytest.mark.parametrize(("length", "horizon"), [(700, 5), (801, 48)])
def test_it_is_the_ridge_regression_of_all_windows(length, horizon):
    x = 3.0 + 20.0 * autoregressive(length, 1)[:, 0]
    forecast, error = plain(x, horizon)
    values = torch.from_numpy(x)[None, :, None]
    ours, errors, certainty = direct_regression(values, torch.ones_like(values, dtype=torch.bool), horizon)
    np.testing.assert_allclose(ours[0, :, 0], forecast, rtol=1e-6)
    np.testing.assert_allclose(errors[0, :, 0], error, rtol=1e-6)
    horizons = (length - 336 - horizon + 1) / horizon
    assert certainty.item() == pytest.approx(horizons**2 / (horizons**2 + HALF_CERTAIN**2))


def test_errors_of_a_process_that_returns_are_those_of_its_theory():
    """AR(1) with memory m has, s steps ahead, the error √(1 − m²ˢ)."""
    values = torch.from_numpy(autoregressive(4000, 20))[None]
    _, errors, certainty = direct_regression(values, torch.ones_like(values, dtype=torch.bool), 24)
    theory = np.sqrt(1 - 0.97 ** (2 * np.arange(1, 25)))
    np.testing.assert_allclose(errors.median(2).values[0], theory, rtol=0.1)
    assert certainty.min() > 0.9


def test_the_network_forecasts_better_with_a_long_history():
    """How a series returns to its level is learnt from thousands of steps, not from 512 (.93 and .95 when written)."""
    network = load_base("small")
    long, short = 0.0, 0.0
    for seed, memory in enumerate((0.97, 0.99)):
        x = autoregressive(3300, 60, memory=memory, seed=seed)
        for end in (3000, 3100, 3200):
            history = torch.from_numpy(x[:end].T[..., None]).float()
            medians = [network(of, horizon=48)[:, :48, 0, 4].numpy() for of in (history, history[:, -512:])]
            errors = [np.square(x[end : end + 48].T - median).mean() for median in medians]
            long, short = long + errors[0], short + errors[1]
    assert long < 0.97 * short


def test_one_graph():
    """`torch.compile` forecasts long histories in one graph, as without it."""
    x = torch.from_numpy(autoregressive(700, 2)).float()[None]
    mask = torch.ones_like(x, dtype=torch.bool)
    compiled = torch.compile(direct_regression, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, mask, 24), direct_regression(x, mask, 24))


def test_gaps_constants_and_short_histories():
    x = torch.from_numpy(autoregressive(900, 3)).float()[None]
    mask = torch.ones_like(x, dtype=torch.bool)
    x[..., 1] = 7.0
    mask[:, 100:400, 2] = False
    forecast, error, certainty = direct_regression(x, mask, 24)
    assert forecast.isfinite().all()
    assert (error > 0).all()
    torch.testing.assert_close(forecast[..., 1], torch.full((1, 24), 7.0))
    assert certainty[0, 2] < certainty[0, 0]
    mask[..., 2] = False
    assert direct_regression(x, mask, 24)[2][0, 2] == 0.0
    for length in (360, 361, 362, 363):  # no window, one, two, three
        few, wide, certainty = direct_regression(x[:, :length], mask[:, :length], 24)
        assert few.isfinite().all()
        assert (wide > 0).all()
        assert (certainty < 0.001).all()


def test_a_panel_does_not_depend_on_those_beside_it():
    """One begins later: its windows are as if it were alone."""
    x = torch.from_numpy(autoregressive(1500, 4)).float().unflatten(1, (2, 2)).movedim(1, 0).contiguous()
    x[0, :700] = torch.nan
    network = load_base("small")
    together = network(x, horizon=24)
    alone = network(x[:1, 700:], horizon=24)
    torch.testing.assert_close(together[:1], alone, atol=1e-4, rtol=1e-4)


def test_a_level_that_history_never_had_stays():
    """Of a shift 20 steps ago little is taken back; 4.7 times the error if the last steps do not count."""
    x = np.random.default_rng(0).normal(size=(2024, 30)) * 0.5 + 2 * np.sin(np.arange(2024) / 24 * 2 * np.pi)[:, None]
    x[1980:] += 4.0
    x = torch.from_numpy(x.T[..., None]).float()
    network = load_base("base")
    long, short = (network(of, horizon=24, season=24)[:, :24, :, 4] for of in (x[:, :2000], x[:, 1488:2000]))
    assert (long - x[:, 2000:]).abs().mean() < 1.5 * (short - x[:, 2000:]).abs().mean()
