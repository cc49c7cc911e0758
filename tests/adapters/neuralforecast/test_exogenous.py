"""Exogenous columns of every kind reach the forecast, and nothing else of them does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from neuralforecast import NeuralForecast

pytest.importorskip("neuralforecast")

KINDS = {
    "future": {"futr_exog_list": ["z"]},
    "historic": {"hist_exog_list": ["z"]},
    "static": {"stat_exog_list": ["kind"]},
    "future category": {"futr_exog_list": ["z", "day"], "cat_exog_list": ["day"]},
    "historic category": {"hist_exog_list": ["day"], "cat_exog_list": ["day"]},
    "static category": {"stat_exog_list": ["kind", "group"], "cat_exog_list": ["group"]},
}
CHANGED = {
    "future": "z",
    "historic": "z",
    "static": "kind",
    "future category": "day",
    "historic category": "day",
    "static category": "group",
}


@pytest.fixture
def exogenous(panel: Callable) -> Callable:
    """A panel with columns that say nothing of it: (past, future, static); the host wants numbers in unused ones."""

    def make(*columns: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        frame = panel(3, rows=66)
        row = frame.groupby("unique_id").cumcount()
        frame["z"] = np.random.default_rng(1).normal(size=len(frame))
        frame["day"] = np.array(["mon", "tue", "sun"])[row % 3]
        static = pd.DataFrame({"unique_id": ["s00", "s01", "s02"], "kind": [0.0, 1.0, -1.0], "group": ["a", "a", "b"]})
        frame, static = (
            table.drop(columns={"z", "day", "kind", "group"}.intersection(table.columns) - {*columns})
            for table in (frame, static)
        )
        return frame[row < 60], frame[row >= 60].drop(columns="y"), static

    return make


@pytest.mark.parametrize(
    ("name", "scaler", "layers"),
    [
        *((name, scaler, 1) for name in KINDS for scaler in (None, "standard")),
        *((name, None, 0) for name in KINDS if "static" not in name),
    ],
)
def test_each_kind_changes_the_forecast(
    name: str,
    scaler: str | None,
    layers: int,
    tiny: Callable,
    awaken: Callable,
    exogenous: Callable,
    forecaster: Callable,
):
    past, future, static = exogenous(*(column for columns in KINDS[name].values() for column in columns))
    static = static if "static" in name else None
    cardinalities = {"categorical_cardinalities": {"day": 3, "group": 2}} if "category" in name else {}
    model = awaken(
        tiny(3, encoder_layers=layers, scaler_type=scaler, learning_rate=1e-4, **KINDS[name], **cardinalities)
    )
    fitted = forecaster(model)
    fitted.fit(past, static_df=static)
    forecast = fitted.predict(df=past, futr_df=future, static_df=static)["MVPA"].to_numpy()
    assert np.isfinite(forecast).all()
    column = CHANGED[name]
    for frame in (past, future, static):
        if frame is not None and column in frame:
            frame[column] = frame[column].to_numpy()[::-1]
    changed = fitted.predict(df=past, futr_df=future, static_df=static)["MVPA"].to_numpy()
    assert not np.allclose(forecast, changed, rtol=1e-3)


def test_unseen_categories_are_forecast(tiny: Callable, exogenous: Callable, forecaster: Callable):
    past, future, _ = exogenous("day")
    cardinalities = {"cat_exog_list": ["day"], "categorical_cardinalities": {"day": 3}}
    fitted = forecaster(tiny(3, futr_exog_list=["day"], **cardinalities))
    fitted.fit(past)
    assert np.isfinite(fitted.predict(futr_df=future.assign(day="never seen"))["MVPA"]).all()


def test_a_series_driven_by_its_future_column_is_learnt(tiny: Callable, panel: Callable, forecaster: Callable):
    frame = panel(2, rows=200)
    frame["z"] = np.random.default_rng(1).normal(size=len(frame))
    frame["y"] = 10 * frame["z"] + 50
    row = frame.groupby("unique_id").cumcount()
    model = tiny(
        2,
        futr_exog_list=["z"],
        hidden_size=16,
        network={"mlp_dim": 32},
        max_steps=150,
        learning_rate=2e-2,
        windows_batch_size=64,
        scaler_type="standard",
    )
    fitted = forecaster(model)
    fitted.fit(frame[row < 194])
    forecast = fitted.predict(futr_df=frame[row >= 194].drop(columns="y"))["MVPA"].to_numpy()
    error = np.abs(forecast - frame.loc[row >= 194, "y"].to_numpy()).mean()
    assert error < 4, "without the column it is about 8"


def test_missing_columns_are_named(tiny: Callable, panel: Callable, forecaster: Callable):
    with pytest.raises(Exception, match=r"{'z'} future exogenous variables not found"):
        forecaster(tiny(futr_exog_list=["z"])).fit(panel(4))


def test_static_columns_need_a_layer(tiny: Callable):
    with pytest.raises(ValueError, match="encoder_layers must be at least 1 with constant features"):
        tiny(encoder_layers=0, stat_exog_list=["z"])


def test_exclude_insample_y_forecasts_from_columns_alone(tiny: Callable, exogenous: Callable, forecaster: Callable):
    past, future, _ = exogenous("z")
    fitted = forecaster(tiny(3, futr_exog_list=["z"], exclude_insample_y=True))
    fitted.fit(past)
    forecast = fitted.predict(futr_df=future)
    np.testing.assert_allclose(forecast.groupby("unique_id")["MVPA"].mean(), [100, 200, 300], rtol=0.1)
    # The look-back moves the level that the host scales back to, and nothing else.
    row = past.groupby("unique_id").cumcount()
    mirrored = past.assign(
        y=past["y"].where(row < 48, 2 * past.groupby("unique_id")["y"].transform("mean") - past["y"])
    )
    swing = [part.groupby("unique_id")["MVPA"].std() for part in (forecast, fitted.predict(mirrored, futr_df=future))]
    np.testing.assert_allclose(*swing, rtol=1e-3)


def test_static_table_that_lacks_a_series(exogenous: Callable, tiny: Callable, forecaster: Callable):
    past, _, static = exogenous("kind")
    with pytest.raises(ValueError, match="static_df must have one row for each of the 3 series of df, got 2 rows"):
        forecaster(tiny(3, stat_exog_list=["kind"])).fit(past, static_df=static.iloc[:2])


@pytest.mark.parametrize("polars", [False, True])
def test_static_table_of_other_series(polars: bool, exogenous: Callable, tiny: Callable, forecaster: Callable):
    """The host lays its rows beside those of df by their order alone."""
    past, _, static = exogenous("kind")
    if polars:
        past, static = pl.from_pandas(past), pl.from_pandas(static)
    fitted = forecaster(tiny(3, stat_exog_list=["kind"]), "1h" if polars else "h")
    fitted.fit(past, static_df=static[[2, 0, 1]] if polars else static.iloc[[2, 0, 1]])
    expected = fitted.predict(past, static_df=static)["MVPA"].to_numpy()
    np.testing.assert_array_equal(fitted.predict()["MVPA"].to_numpy(), expected)
    names = ["s00", "s02", "x09"]
    other = static.with_columns(unique_id=pl.Series(names)) if polars else static.assign(unique_id=names)
    message = "static_df must hold one row for each series of df, by 'unique_id', got none of 's01'"
    with pytest.raises(ValueError, match=message):
        forecaster(tiny(3, stat_exog_list=["kind"]), fitted.freq).fit(past, static_df=other)
    with pytest.raises(ValueError, match=message):
        fitted.predict(past, static_df=other)


def test_series_that_static_table_sorts_otherwise(exogenous: Callable, tiny: Callable, forecaster: Callable):
    past, _, static = exogenous("kind")
    past["unique_id"] = pd.Categorical(past["unique_id"], ["s02", "s00", "s01"], ordered=True)
    with pytest.raises(ValueError, match=r"static_df must have its series in the order of df .* a column of strings"):
        forecaster(tiny(3, stat_exog_list=["kind"])).fit(past, static_df=static)


def test_future_rows_that_are_there_twice(exogenous: Callable, tiny: Callable, forecaster: Callable):
    past, future, _ = exogenous("z")
    fitted = forecaster(tiny(3, futr_exog_list=["z"]))
    fitted.fit(past)
    twice = pd.concat([future, future.iloc[[8]]])
    with pytest.raises(ValueError, match=r"futr_df must hold each date once .* got 2024-01-03 14:00:00 .* 's01'"):
        fitted.predict(futr_df=twice)


def test_the_unit_of_a_column_does_not_matter(
    exogenous: Callable, tiny: Callable, awaken: Callable, forecaster: Callable, tmp_path
):
    past, future, static = exogenous("z", "kind")
    past, future = (frame.assign(w=frame["z"] ** 2) for frame in (past, future))
    options = {"futr_exog_list": ["z"], "hist_exog_list": ["w"], "stat_exog_list": ["kind"]}
    forecasts = []
    for unit, level in ((1.0, 0.0), (1e6, 3e7)):
        scaled = [
            frame.assign(**{name: unit * frame[name] + level for name in ("z", "w", "kind") if name in frame})
            for frame in (past, future, static)
        ]
        fitted = forecaster(awaken(tiny(3, **options)))
        fitted.fit(scaled[0], static_df=scaled[2])
        forecasts.append(fitted.predict(futr_df=scaled[1])["MVPA"].to_numpy())
    np.testing.assert_allclose(*forecasts, rtol=1e-2)
    fitted.save(str(tmp_path / "saved"))
    loaded = NeuralForecast.load(str(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.predict(futr_df=scaled[1])["MVPA"], forecasts[1])


def test_columns_are_scaled_once(exogenous: Callable, tiny: Callable, forecaster: Callable):
    past, _, _ = exogenous("z")
    fitted = forecaster(tiny(3, futr_exog_list=["z"]))
    model = fitted.models[0]
    fitted.fit(past, val_size=6)
    z = past.groupby("unique_id")["z"].apply(lambda part: part.iloc[:-6])
    np.testing.assert_allclose(model._fitted_series.features["z"], [z.mean(), z.std(ddof=0)], rtol=1e-5)
    before = model._fitted_series.features
    fitted.fit(past.assign(z=100.0 * past["z"]))  # weights are trained further: with the scale that they know
    assert fitted.models[0]._fitted_series.features == before
    told = forecaster(tiny(3, futr_exog_list=["z"], scaler_type="identity"))  # somebody's choice is taken as it is
    told.fit(past)
    assert told.models[0]._fitted_series.features == {}


def test_a_fit_starts_with_the_effect_of_a_covariate(exogenous: Callable, tiny: Callable, forecaster: Callable):
    """The effect is in units of the series; categories and what is held out take no part; it is saved and kept."""
    past, _, _ = exogenous("z", "kind")
    row = past.groupby("unique_id").cumcount()
    past["y"] = 40.0 + 3.0 * past["z"] + 0.01 * np.random.default_rng(0).normal(size=len(past))
    held_out = row >= row.max() - 5
    past.loc[held_out, "y"] = 1000.0 * past.loc[held_out, "z"]
    fitted = forecaster(tiny(3, futr_exog_list=["z"], max_steps=1))
    fitted.fit(past, val_size=6)
    model = fitted.models[0]
    [(_, deviation)] = model._fitted_series.features.values()
    units = np.array(model._fitted_series.units)[:, 1]
    slopes = model.network.future_effects.item() / deviation * units
    np.testing.assert_allclose(slopes.mean(), 3.0, rtol=0.1)
    kept = model.network.future_effects.detach().clone()
    fitted.fit(past.assign(y=-past["y"]), val_size=6)  # trained further: from what was learnt
    assert torch.sign(model.network.future_effects) == torch.sign(kept)
