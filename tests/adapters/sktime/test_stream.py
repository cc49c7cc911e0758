"""Streams of sktime's forecaster forecast what the forecaster itself does after `update`."""

import numpy as np
import pandas as pd
import pytest

from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.forecasting import ForecastStream

SMALL = {"max_steps": 2, "dim": 4, "num_heads": 1, "input_size": 24, "random_state": 0}
VALUES = np.random.default_rng(0).standard_normal((120, 3)).cumsum(0)
INDICES = {
    "numbers": pd.RangeIndex(120),
    "hours": pd.date_range("2024-01-01", periods=120, freq="h"),
    "months": pd.period_range("2000-01", periods=120, freq="M"),
}


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("options", [{"sp": 7, "channel_order": ["c", "a", "b"]}, {"pretrained": "base"}])
def test_a_stream_equals_update_and_predict(tmp_path, options, index):
    y = pd.DataFrame(VALUES, columns=["a", "b", "c"], index=INDICES[index])
    forecaster = MVPAForecaster(**(options if "pretrained" in options else SMALL | options))
    forecaster.fit(y[:80], fh=[1, 2, 4])
    stream = forecaster.stream().update(y[80:90])
    stream.save(tmp_path / "stream.npz")
    stream = ForecastStream.load(tmp_path / "stream.npz", stream.forecaster).update(y[90:])
    quantiles = stream.predict()
    forecaster.update(y[80:], update_params=False)
    middle = list(forecaster.fitted_.levels).index(0.5)
    fresh = forecaster.predict()[stream.columns].to_numpy()
    np.testing.assert_allclose(quantiles[[0, 1, 3], :, middle], fresh, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="rows must go on at"):
        stream.update(y[90:])
    with pytest.raises(ValueError, match="columns of the stream"):
        stream.update(y[["a", "b"]])


def test_what_no_stream_can_do_is_an_error():
    y = pd.DataFrame(VALUES, columns=["a", "b", "c"])
    X = pd.DataFrame({"price": np.arange(120.0)})
    with pytest.raises(ValueError, match="a stream takes no X"):
        MVPAForecaster(**SMALL).fit(y, X=X, fh=[1]).stream()
    with pytest.raises(ValueError, match="bounded must be left out"):
        MVPAForecaster(pretrained="base", bounded=True).fit(y, fh=[1]).stream()
