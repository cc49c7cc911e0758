"""Panels of 1, 2, 64 and 300 series, in pandas and in polars, and beside models that cannot take NaN."""

import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from neuralforecast import NeuralForecast
from neuralforecast.models import NHITS
from support.made_up_networks import QUIET
from utilsforecast.preprocessing import fill_gaps


@pytest.mark.parametrize(
    ("count", "library"), [(1, "pandas"), (2, "polars"), (64, "pandas"), (64, "polars"), (300, "pandas")]
)
def test_every_series_is_forecast_at_its_level(count, library, tiny, panel, reloaded, fit):
    frame = panel(count, rows=40, names=[f"s{i:03d}" for i in range(count)])
    freq: Any = "h"
    if library == "polars":
        frame, freq = pl.from_pandas(frame), "1h"
    model = tiny(count, max_steps=1, network={"per_channel": ["vectors"] if count == 64 else []})
    fitted = fit(model, frame, freq, val_size=6)
    forecast = fitted.predict()
    assert type(forecast).__module__.startswith(library)
    levels = np.asarray(forecast["MVPA"]).reshape(count, 6).mean(1)
    np.testing.assert_allclose(levels, 100.0 * np.arange(1, count + 1), rtol=0.1)
    np.testing.assert_allclose(reloaded(fitted).predict()["MVPA"], forecast["MVPA"], rtol=1e-5)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_printed_lines_fill_gaps_for_all_models(library, tiny, panel):
    """A row in the middle, and the last rows of a series, are absent."""
    frame = panel(3)
    row = frame.groupby("unique_id").cumcount()
    frame = frame[(frame["unique_id"] != "s01") | ((row != 30) & (row < 57))]
    other = NHITS(h=6, input_size=12, max_steps=2, scaler_type="standard", **QUIET)
    if library == "polars":
        filled = fill_gaps(pl.from_pandas(frame), freq="1h", end="global")
        filled = filled.with_columns(available_mask=filled["y"].is_not_null().cast(float), y=filled["y"].fill_null(0.0))
    else:
        filled = fill_gaps(frame, freq="h", end="global")
        filled["available_mask"] = filled["y"].notna().astype(float)
        filled["y"] = filled["y"].fillna(0.0)
    fitted = NeuralForecast([tiny(3, max_steps=5), other], freq="1h" if library == "polars" else "h")
    with warnings.catch_warnings(action="error"):
        warnings.filterwarnings("ignore", message=".*(num_workers|val_check_steps|LeafSpec|writable|log_every).*")
        fitted.fit(filled)
        forecast = fitted.predict()
    assert len(set(forecast["ds"])) == 6
    for name in ("MVPA", "NHITS"):
        assert np.isfinite(np.asarray(forecast[name])).all()
    levels = np.asarray(forecast["MVPA"]).reshape(3, 6).mean(1)
    np.testing.assert_allclose(levels, [100.0, 200.0, 300.0], rtol=0.1)


@pytest.mark.parametrize("scaler", [None, "standard"])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_values_are_named(value, scaler, tiny, panel, fit):
    frame = panel(3)
    frame.loc[(frame["unique_id"] == "s01") & (frame["ds"] == "2024-01-02 03:00"), "y"] = value
    fitted = fit(tiny(3), panel(3), local_scaler_type=scaler)
    for call in (fitted.fit, fitted.predict):
        with pytest.raises(ValueError, match=rf"got {value} in column 'y' of series 's01' at 2024-01-02 03:00:00"):
            call(frame)
    frame["available_mask"] = np.isfinite(frame["y"]).astype(float)  # as the message says
    if scaler is not None:
        with pytest.raises(ValueError, match="inf or NaN in column 'y' of series 's01', which local_scaler_type"):
            fitted.fit(frame)
        return
    fitted.fit(frame)
    assert np.isfinite(fitted.predict()["MVPA"]).all()


def test_infinite_columns_are_named(tiny, panel):
    frame = panel(2).assign(z=1.0)
    frame.loc[70, "z"] = np.inf
    with pytest.raises(ValueError, match=r"got inf in column 'z' of series 's01' at 2024-01-01 10:00:00"):
        NeuralForecast([tiny(2, hist_exog_list=["z"])], freq="h").fit(frame)
