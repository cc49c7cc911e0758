"""An order by correlation."""

import numpy as np
import pytest

from mvpa_ts.forecasting.channel_order import correlation_order


def test_a_shuffled_line_is_found_again():
    draws = np.random.default_rng(0)
    steps = draws.standard_normal((2000, 12)) * 0.4
    line = np.cumsum(steps, axis=1)  # each channel is its neighbour and something new
    shuffled = draws.permutation(12)
    order = correlation_order(line[:, shuffled])
    places = shuffled[order].tolist()
    assert sorted(order) == list(range(12))
    assert places in (list(range(12)), list(range(11, -1, -1)))


def test_missing_and_constant_channels_have_a_place():
    values = np.random.default_rng(0).standard_normal((50, 4))
    values[:, 1] = 3.0
    values[:, 2] = np.nan
    values[:10, 0] = np.nan
    assert sorted(correlation_order(values)) == [0, 1, 2, 3]


def test_bad_values():
    with pytest.raises(ValueError, match=r"values must be \[n, C\]"):
        correlation_order(np.zeros(5))
