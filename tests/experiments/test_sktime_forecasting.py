"""The script that measures MVPAForecaster, on parts whose answer is known."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sktime")

import sktime_forecasting as script


def case(**changes: object) -> script.Case:
    y = pd.DataFrame({"y": np.arange(30.0) % 6})
    return script.Case(**{"y": y, "starts": range(20, 25), "period": 6, **changes})


def test_seasonal_naive_is_exact_on_a_season_and_sees_the_past_only():
    one = case()
    truth = np.stack([one.parts(start, 4)[1].to_numpy() for start in one.starts])
    np.testing.assert_array_equal(script.seasonal_naive(one, 4), truth)
    changed = case(y=one.y.assign(y=one.y["y"].where(one.y.index < 24, 99.0)))
    np.testing.assert_array_equal(script.seasonal_naive(changed, 4), truth)


@pytest.mark.parametrize("refit", [True, False])
def test_every_window_is_forecast_once(refit):
    one = case(refit=refit)
    points, held = script.mvpa(one, 4, seed=0, quick=True)
    assert points.shape == (5, 4, 1)
    assert np.isfinite(points).all()
    assert held[0.9].shape == (5, 4, 1)
    assert (held[0.9] | ~held[0.5]).all()  # the wider interval holds what the narrower one does
