"""Bad samples against a loop, and bridges that filters do not notice."""

from __future__ import annotations

import numpy as np
import pytest

from mvpa_ts.ieeg.preprocessing.bad_samples import bad_samples, bridge


def slow_bad(x: np.ndarray, run: int) -> np.ndarray:
    bad = ~np.isfinite(x)
    for channel in range(len(x)):
        start = 0
        for i in range(1, x.shape[1] + 1):
            if i == x.shape[1] or x[channel, i] != x[channel, start]:
                if i - start >= run:
                    bad[channel, start:i] = True
                start = i
    return bad


@pytest.mark.parametrize("seed", range(30))
def test_equals_a_loop(seed):
    rng = np.random.default_rng(seed)
    run = int(rng.integers(2, 40))
    x = rng.normal(0, 1, (3, int(rng.integers(1, 400)))).astype(np.float32)
    for _ in range(4):
        channel, start, length = rng.integers(3), rng.integers(x.shape[1]), rng.integers(1, 60)
        x[channel, start : start + length] = rng.choice([0.0, np.nan, np.inf, 3.0, x[channel, start]])
    found = bad_samples(x, run)
    np.testing.assert_array_equal(np.zeros(x.shape, bool) if found is None else found, slow_bad(x, run))


def test_good_signals_give_none():
    assert bad_samples(np.random.default_rng(0).normal(size=(4, 5000)), 128) is None
    assert bad_samples(np.round(np.random.default_rng(0).normal(size=(4, 5000))), 128) is None


def test_bridge_is_straight_between_near_edges():
    x = np.array([[0.0, np.nan, np.nan, np.nan, 4.0, 5.0]])
    bad = np.isnan(x)
    bridge(x, bad, reach=1000)
    np.testing.assert_allclose(x, [[0, 1, 2, 3, 4, 5]], atol=1e-2)


def test_bridge_holds_a_lonely_edge_and_is_zero_out_of_reach():
    x = np.full((2, 50), np.nan)
    x[0, 10] = 7.0
    bad = np.isnan(x)
    bridge(x, bad, reach=5)
    np.testing.assert_allclose(x[0, 6:15], 7.0)
    np.testing.assert_array_equal(x[0, :6], 0.0)
    np.testing.assert_array_equal(x[0, 15:], 0.0)
    np.testing.assert_array_equal(x[1], 0.0)
