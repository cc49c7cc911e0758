"""Regressions that are fitted inside the history, against loops over series and rows in numpy."""

import numpy as np
import pytest
import torch

from mvpa_ts.forecasting.pretrained.relations import (
    LATELY,
    LEADERS,
    NEIGHBOURS,
    PENALTIES,
    lagged_correlation,
    relation_forecasts,
)
from mvpa_ts.forecasting.pretrained.trust import trust_in_relations

C, L, ORIGINS = 4, 90, (4, 24, 30)


def _features(x, c, others, end, own_lags, other_lags):
    """Of series `c` at `end`; zeros lie before the beginning and where there is no other."""
    past = np.concatenate([np.zeros((C, 32)), x[:, : end + 1]], 1)
    nearest = past[c, -own_lags:]
    lags = [past[other, -other_lags:] if other >= 0 else np.zeros(other_lags) for other in others]
    return np.concatenate([[1.0, nearest[-1]], nearest[:-1] - nearest[-1], *lags])


def _forecast(x, observed, others, lags, block, horizon, *, pooled, memory):
    """From the end, with the penalty that did best at the origins."""
    every = np.stack([[_features(x, c, others[c], end, *lags) for end in range(L)] for c in range(C)])

    def weights(back, penalty, group):
        stop = L - max(back, 24 if back else 0) - block
        rows = every[group, :stop].reshape(-1, every.shape[2])
        targets = np.concatenate([[x[c, end + 1 : end + 1 + block] for end in range(stop)] for c in group])
        fading = np.exp((np.arange(stop) - stop) / memory) if memory else np.ones(stop)
        weighted = rows * (observed[group, :stop] * fading).reshape(-1, 1)
        size = np.array([0.1, 0.1, *[penalty] * (rows.shape[1] - 2)]) + 1e-3
        return np.linalg.solve(weighted.T @ rows + np.diag(size), weighted.T @ targets)

    def result(back, penalty):
        values = x[:, : L - back]
        of_series = [weights(back, penalty, [*range(C)] if pooled else [c]) for c in ([0] if pooled else range(C))]
        of_series = of_series * C if pooled else of_series
        while values.shape[1] < L - back + horizon:
            end = values.shape[1] - 1
            step = [_features(values, c, others[c], end, *lags) @ of_series[c] for c in range(C)]
            values = np.concatenate([values, np.clip(step, -20, 20)], 1)
        return values[:, L - back : L - back + horizon]

    errors = np.zeros((len(PENALTIES), C))
    for index, penalty in enumerate(PENALTIES):
        for back in ORIGINS:
            near = slice(L - back, L - back + min(back, block, horizon))
            missed = result(back, penalty)[:, : near.stop - near.start] - x[:, near]
            errors[index] += (missed**2 * observed[:, near]).mean(1)
    best = np.tile(errors.mean(1).argmin(), C) if pooled else errors.argmin(0)
    return np.stack([result(0, PENALTIES[best[c]])[c] for c in range(C)])


@pytest.mark.parametrize("horizon", [5, 70])
def test_forecasts_are_those_of_loops(horizon):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((C, L + 9))
    x = np.stack([x[0, 9 - 3 * c : L + 9 - 3 * c] for c in range(C)]) + 0.3 * x[:, :L]  # a wave
    observed = generator.random((C, L)) > 0.2
    order = np.array([2, 0, 1, 3])
    values = torch.tensor(x, dtype=torch.float32)[None]
    result = relation_forecasts(values, torch.tensor(observed)[None], ORIGINS, horizon, torch.tensor(order)[None])
    places, S = np.argsort(order), min(NEIGHBOURS, C - 1)
    offsets = [*range(-S, 0), *range(1, S + 1)]
    others = [[order[p + o] if 0 <= p + o < C else -1 for o in offsets] for p in places]
    leaders = lagged_correlation(values[:, :, : L - 30]).topk(min(LEADERS, C - 1), dim=2).indices[0].tolist()
    block = min(horizon, L // 4)
    expected = [
        _forecast(x, observed, [[]] * C, (32, 16), block, horizon, pooled=True, memory=None),
        _forecast(x, observed, others, (32, 16), block, horizon, pooled=True, memory=None),
        _forecast(x, observed, others, (32, 16), block, horizon, pooled=True, memory=LATELY),
        _forecast(x, observed, leaders, (16, 32), block, horizon, pooled=False, memory=None),
    ]
    np.testing.assert_allclose(result[0, 0].movedim(1, 0).numpy(), np.stack(expected), atol=2e-4)


@pytest.mark.parametrize(("series", "power"), [(2, 1), (72, 1.5), (100, 2)])
def test_a_regression_is_trusted_as_far_as_origins_agree(series, power):
    """The simple forecast is 0, a regression 3 / 4 of the truth; then one of three origins says the opposite."""
    truth = torch.ones(3, series, 1)
    past = torch.stack([torch.zeros_like(truth), *[0.75 * truth] * 4], 2)
    past[0, :, 1:] *= -1.0
    share = trust_in_relations(past, truth, torch.zeros(series, 5, 1), channels=series, chunk=1)
    least_squares = 0.75 / 3 / (0.75**2 + 1e-3)
    assert share.sum().item() == pytest.approx(least_squares * (1 - (1 / 3) ** power) * 3**power / (3**power + 1))
