"""What is solved on the rows of training stays with the series by name, and comes back from a file."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss, QuantileLoss

from mvpa_ts.adapters.neuralforecast import MVPA

NAMES = ["b", "d", "a", "c", "e"]
"""In the order of the wave, which is not that of the host's rows."""
SMALL = {"max_steps": 2, "encoder_layers": 0, "enable_progress_bar": False, "logger": False}


def make_frame(rows: int = 600, names: list[str] = NAMES) -> pd.DataFrame:
    """White noise that passes each series four rows after the one before, in units of their own."""
    source = np.random.default_rng(0).standard_normal(rows + 20)
    series = [
        pd.DataFrame({"unique_id": name, "ds": np.arange(rows), "y": 10.0**i * source[20 - 4 * i :][:rows] + 3 * 10**i})
        for i, name in enumerate(names)
    ]
    return pd.concat(series).sort_values(["unique_id", "ds"], ignore_index=True)


def fit(frame: pd.DataFrame, **options: Any) -> NeuralForecast:
    model = MVPA(h=4, input_size=32, n_series=5, **{**SMALL, "channel_order": NAMES, **options})
    host = NeuralForecast([model], freq=1)
    host.fit(frame)
    return host


def test_forecasts_of_series_that_lead_and_follow(reloaded):
    frame = make_frame()
    host = fit(frame[frame["ds"] < 560])
    past = frame[frame["ds"] < 580]
    forecast = host.predict(past).merge(frame, on=["unique_id", "ds"]).set_index("unique_id")
    error = ((forecast["MVPA"] - forecast["y"]) / frame.groupby("unique_id")["y"].std()) ** 2
    assert error.drop("b").max() < 0.1  # whose next four rows the series before has shown
    pd.testing.assert_frame_equal(reloaded(host).predict(past), host.predict(past))


def test_as_many_other_series_are_read_by_place_alone():
    frame = make_frame()
    host = fit(frame, channel_order=None)
    others = frame.assign(unique_id=frame["unique_id"].replace({"a": "x"}))
    forecast = host.predict(others)["MVPA"]
    host.models[0].network.fitted.shares[0] = 0.0
    np.testing.assert_allclose(host.predict(others)["MVPA"], forecast)


@pytest.mark.parametrize(
    ("options", "on"),
    [({"loss": MQLoss(level=[80])}, True), ({"loss": QuantileLoss(0.9)}, False), ({"scaler_type": "standard"}, False),
     ({"network": {"regressions": False}}, False)],
    ids=["quantiles", "one quantile", "scaled by the host", "refused"],
)  # fmt: skip
def test_only_for_means_and_medians_in_units_of_the_series(options, on):
    fitted = fit(make_frame(), **options).models[0].network.fitted
    assert on == (fitted is not None and not fitted.off)


def test_the_loss_that_a_search_compares_is_of_what_forecasts():
    """Regressions that are solved at the end count, though no validation during the training sees them."""
    frame, host = make_frame(), NeuralForecast([MVPA(h=4, input_size=32, n_series=5, channel_order=NAMES, **SMALL)], 1)
    host.fit(frame, val_size=4)
    both = host.predict(frame[frame["ds"] < 596]).merge(frame, on=["unique_id", "ds"])
    error = (both["MVPA"] - both["y"]).abs().mean()
    model = host.models[0]
    assert float(model.metrics["ptl/val_loss"]) == pytest.approx(error, rel=1e-3)
    assert model.network.fitted.shares[0] > 0.5
