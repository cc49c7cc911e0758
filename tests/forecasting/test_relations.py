"""Regressions that are fitted inside the history, against loops over series and rows in numpy."""

import numpy as np
import pytest
import torch

from mvpa_ts.forecasting.pretrained.relations import (
    BLOCK,
    BLOCK_ALONE,
    BLOCK_OF_EACH,
    DELAYS_LATELY,
    DIFFERENT_LAGS,
    DIFFERENT_PENALTIES,
    FARTHEST_DELAY,
    LATELY,
    LEADER_LAGS,
    LEADERS,
    NEARBY,
    NEIGHBOUR_LAGS,
    NEIGHBOURS,
    PENALTIES,
    lagged_correlation,
    relation_forecasts,
)
from mvpa_ts.forecasting.pretrained.trust import trust_in_relations

C, L, ORIGINS = 4, 90, (4, 24, 30)


def _features(x, c, others, end, own_lags, other_lags):
    """Of series `c` at `end`; zeros lie before the beginning and where there is no other.

    Others are pairs: the series, and how many of the latest steps are skipped.
    """
    past = np.concatenate([np.zeros((C, 64)), x[:, : end + 1]], 1)
    nearest = past[c, -own_lags:]
    lags = [
        past[other, : past.shape[1] - skipped][-other_lags:] if other >= 0 else np.zeros(other_lags)
        for other, skipped in others
    ]
    return np.concatenate([[1.0, nearest[-1]], nearest[:-1] - nearest[-1], *lags])


def _rows(x, observed, every, block, c, begin, stop):
    """Features, what follows them, and whether a row counts, of series `c`."""
    ends = range(begin, stop)
    return every[c, begin:stop], np.array([x[c, end + 1 : end + 1 + block] for end in ends]), observed[c, begin:stop]


def _stop(back, block):
    return L - max(back, 24 if back else 0) - block


def _forecast(x, observed, others, lags, block, horizon, *, pooled, memory):
    """From the end; the penalty is that which did best at the origins, or of one series on all rows after a fit."""
    every = np.stack([[_features(x, c, others[c], end, *lags) for end in range(L)] for c in range(C)])

    def weights(back, penalty, group):
        stop = _stop(back, block)
        read = [_rows(x, observed, every, block, c, 0, stop) for c in group]
        rows, targets, counted = (np.concatenate(parts) for parts in zip(*read, strict=True))
        fading = np.exp((np.arange(stop) - stop) / memory) if memory else np.ones(stop)
        weighted = rows * (counted * np.tile(fading, len(group)))[:, None]
        size = np.array([0.1, 0.1, *[penalty] * (rows.shape[1] - 2)]) + 1e-3
        return np.linalg.solve(weighted.T @ rows + np.diag(size), weighted.T @ targets)

    def result(back, penalties):
        values = x[:, : L - back]
        of_series = [weights(back, penalties[c], [*range(C)] if pooled else [c]) for c in range(1 if pooled else C)]
        of_series = of_series * C if pooled else of_series
        while values.shape[1] < L - back + horizon:
            end = values.shape[1] - 1
            step = [_features(values, c, others[c], end, *lags) @ of_series[c] for c in range(C)]
            low, high = x.min(1)[:, None], x.max(1)[:, None]
            values = np.concatenate([values, np.clip(step, 2 * low - high, 2 * high - low)], 1)
        return values[:, L - back : L - back + horizon]

    errors = np.zeros((len(PENALTIES), C))
    for index, penalty in enumerate(PENALTIES):
        for back in ORIGINS:
            near = slice(L - back, L - back + min(back, block, horizon))
            missed = result(back, [penalty] * C)[:, : near.stop - near.start] - x[:, near]
            errors[index] += (missed**2 * observed[:, near]).mean(1)
        if not pooled:
            for c in range(C):
                rows, targets, counted = _rows(x, observed, every, block, c, _stop(30, block), _stop(0, block))
                missed = targets - rows @ weights(30, penalty, [c])
                errors[index, c] = (missed**2 * counted[:, None]).sum()
    best = np.tile(errors.mean(1).argmin(), C) if pooled else errors.argmin(0)
    return result(0, [PENALTIES[option] for option in best])


def _difference(x, observed, others, place, block):
    """What each series differs by from weights that all share, at the first steps."""
    every = np.stack([[_features(x, c, others[c], end, *[DIFFERENT_LAGS] * 2) for end in range(L)] for c in range(C)])
    F = every.shape[2]
    alike = np.exp(-(((place[:, None] - place) / NEARBY) ** 2) / 2)

    def left(back, begin, stop):
        """Features and what shared weights, fitted `back` steps before the end, leave over."""
        read = [_rows(x, observed, every, block, c, 0, _stop(back, block)) for c in range(C)]
        rows, targets, counted = (np.concatenate(parts) for parts in zip(*read, strict=True))
        size = np.diag([0.101, 0.101, *[PENALTIES[0] + 1e-3] * (F - 2)])
        shared = np.linalg.solve((rows * counted[:, None]).T @ rows + size, (rows * counted[:, None]).T @ targets)
        read = [_rows(x, observed, every, block, c, begin, stop) for c in range(C)]
        return [(rows * counted[:, None], rows, targets - rows @ shared) for rows, targets, counted in read]

    def weights(back, penalty, c):
        sums = [(a.T @ rows, a.T @ rest) for a, rows, rest in left(back, 0, _stop(back, block))]
        gram, cross = (
            sum(w * part for w, part in zip(alike[c], parts, strict=True)) for parts in zip(*sums, strict=True)
        )
        return np.linalg.solve(gram + (penalty + 1e-3) * np.eye(F), cross) if penalty else np.zeros_like(cross)

    later = left(30, _stop(30, block), _stop(0, block))
    errors = []
    for penalty in (None, *DIFFERENT_PENALTIES):
        missed = [(rest - rows @ weights(30, penalty, c))[a[:, 0] > 0] for c, (a, rows, rest) in enumerate(later)]
        error = (np.concatenate(missed) ** 2).sum(0)
        errors.append([error[3 * s // 4 : min(block, (4 * s + 2) // 3)].sum() for s in range(1, block + 1)])
    best = [(None, *DIFFERENT_PENALTIES)[option] for option in np.argmin(errors, 0)]
    return np.stack([[every[c, -1] @ weights(0, best[s], c)[:, s] for s in range(block)] for c in range(C)])


def _lagged_correlation(x, memory):
    """Largest weighted correlation with an earlier value, and the first lag with nearly that."""
    z = (x - x.mean(1, keepdims=True)) * np.exp((np.arange(x.shape[1]) - x.shape[1] + 1) / memory / 2)
    z /= np.sqrt((z**2).sum(1, keepdims=True))
    best, delay = -np.eye(C), np.zeros((C, C), dtype=int)
    for c, other in ((c, other) for c in range(C) for other in range(C) if c != other):
        products = [abs(z[c, lag:] @ z[other, : x.shape[1] - lag]) for lag in range(min(49, (x.shape[1] + 1) // 2))]
        best[c, other], delay[c, other] = np.max(products), np.argmax(products >= 0.95 * np.max(products))
    return best, delay


def _skipped(others, delay, lags, block):
    """Others with what is skipped of each: the lags lie around those that a block needs."""
    latest = block + (lags - block) // 2
    return [
        [(other, min(max(delay[c, other] - latest, 0), FARTHEST_DELAY)) for other in of_series]
        for c, of_series in enumerate(others)
    ]


@pytest.mark.parametrize("horizon", [5, 70])
def test_forecasts_are_those_of_loops(horizon):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((C, L + 30))
    x = np.stack([x[0, 30 - 9 * c : L + 30 - 9 * c] for c in range(C)]) + 0.3 * x[:, :L]  # a wave
    observed = generator.random((C, L)) > 0.2
    order = np.array([2, 0, 1, 3])
    values = torch.tensor(x, dtype=torch.float32)[None]
    result = relation_forecasts(values, torch.tensor(observed)[None], ORIGINS, horizon, torch.tensor(order)[None])
    places, S = np.argsort(order), min(NEIGHBOURS, C - 1)
    offsets = [*range(-S, 0), *range(1, S + 1)]
    others = [[order[p + o] if 0 <= p + o < C else -1 for o in offsets] for p in places]
    block = min(horizon, BLOCK)
    correlation, delay = _lagged_correlation(x, DELAYS_LATELY)
    for found, expected in zip(lagged_correlation(values, DELAYS_LATELY), (correlation, delay), strict=True):
        np.testing.assert_allclose(found[0][~np.eye(C, dtype=bool)], expected[~np.eye(C, dtype=bool)], atol=1e-5)
    near = _skipped(others, delay, NEIGHBOUR_LAGS, block)
    correlation, delay = _lagged_correlation(x[:, : L - 30], DELAYS_LATELY)
    leaders = _skipped(np.argsort(-correlation)[:, : min(LEADERS, C - 1)], delay, LEADER_LAGS, BLOCK_OF_EACH)
    expected = [
        _forecast(x, observed, [[]] * C, (32, 0), min(horizon, BLOCK_ALONE, L // 4), horizon, pooled=True, memory=None),
        _forecast(x, observed, near, (32, 12), block, horizon, pooled=True, memory=None),
        _forecast(x, observed, near, (32, 12), block, horizon, pooled=True, memory=LATELY),
        _forecast(x, observed, leaders, (16, 10), BLOCK_OF_EACH, horizon, pooled=False, memory=None),
    ]
    assert max(skipped for of_series in [*near, *leaders] for _, skipped in of_series) > 5
    others = _skipped(others, _lagged_correlation(x, DELAYS_LATELY)[1], DIFFERENT_LAGS, block)
    expected[1][:, :block] += _difference(x, observed, others, places, block)
    among = min(horizon, 30)  # beyond the earliest origin what others show fades
    for of_others in expected[1:]:
        apart = (of_others - expected[0])[:, among - 1 : among]
        of_others[:, among:] = expected[0][:, among:] + apart * np.exp(-np.arange(1, horizon - among + 1) / among)
    np.testing.assert_allclose(result[0, 0].movedim(1, 0).numpy(), np.stack(expected), atol=2e-4)


@pytest.mark.parametrize(("series", "power"), [(2, 1), (72, 1.5), (100, 2)])
def test_a_regression_is_trusted_as_far_as_origins_agree(series, power):
    """The simple forecast is 0, a regression 3 / 4 of the truth; then one of three origins says the opposite."""
    truth = torch.ones(3, series, 1)
    past = torch.stack([torch.zeros_like(truth), *[0.75 * truth] * 4], 2)
    past[0, :, 1:] *= -1.0
    share = trust_in_relations(past, truth, torch.zeros(series, 5, 1), (4, 16, 36), channels=series, chunk=1)
    least_squares = 0.75 * (4 + 6 - 2) / 12 / (0.75**2 + 1e-3)  # origins count by the root of their steps
    assert share.sum().item() == pytest.approx(least_squares * (1 - (1 / 3) ** power) * 3**power / (3**power + 1))


def test_regressions_that_miss_apart_share_the_trust():
    """One is right about even series, another about odd ones, the first regression reads no others: the mean wins."""
    truth = torch.ones(3, 10, 1)
    even = (torch.arange(10) % 2 == 0)[:, None] * 0.8
    past = torch.stack([torch.zeros_like(truth), truth, *(truth - part for part in (even, 2.0 + even, 0.8 - even))], 2)
    share = trust_in_relations(past, truth, torch.zeros(10, 5, 1), (4, 8, 12), channels=10, chunk=1)
    assert share[0, :, 0].tolist() == pytest.approx([0.0, 0.375, 0.0, 0.375])  # together 3 / 4, of three origins


@pytest.mark.parametrize("seed", [3, 6])
def test_what_goes_on_from_forecasts_does_not_explode(seed):
    """Of twelve series that hardly return, 480 steps ahead: no forecast leaves what was seen far behind."""
    generator = np.random.default_rng([7, seed])
    own, common = generator.standard_normal((1500, 12)), generator.standard_normal((1500, 3))
    drive, x = common @ generator.standard_normal((3, 12)) + 0.3 * own, np.zeros((1500, 12))
    for step in range(1, len(x)):
        x[step] = 0.995 * x[step - 1] + drive[step]
    x = torch.tensor(((x - x.mean(0)) / x.std(0))[-512:].T[None], dtype=torch.float32)
    result = relation_forecasts(x, torch.ones_like(x, dtype=torch.bool), (4, 8, 12, 24, 48, 96), 480, None)
    assert result[0].abs().amax() < 2 * x.abs().amax()
