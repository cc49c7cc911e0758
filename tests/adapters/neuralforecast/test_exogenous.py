"""Exogenous columns of every kind reach the forecast, and nothing else of them does."""

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

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
def test_each_kind_changes_the_forecast(name, scaler, layers, tiny, awaken, exogenous, fit):
    past, future, static = exogenous(*(column for columns in KINDS[name].values() for column in columns))
    static = static if "static" in name else None
    cardinalities = {"categorical_cardinalities": {"day": 3, "group": 2}} if "category" in name else {}
    model = awaken(
        tiny(3, encoder_layers=layers, scaler_type=scaler, learning_rate=1e-4, **KINDS[name], **cardinalities)
    )
    fitted = fit(model, past, static_df=static)
    forecast = fitted.predict(df=past, futr_df=future, static_df=static)["MVPA"].to_numpy()
    assert np.isfinite(forecast).all()
    column = CHANGED[name]
    for frame in (past, future, static):
        if frame is not None and column in frame:
            frame[column] = frame[column].to_numpy()[::-1]
    changed = fitted.predict(df=past, futr_df=future, static_df=static)["MVPA"].to_numpy()
    assert not np.allclose(forecast, changed, rtol=1e-3)


def test_unseen_categories_are_forecast(tiny, exogenous, fit):
    past, future, _ = exogenous("day")
    cardinalities = {"cat_exog_list": ["day"], "categorical_cardinalities": {"day": 3}}
    fitted = fit(tiny(3, futr_exog_list=["day"], **cardinalities), past)
    with pytest.warns(UserWarning, match="column 'day' has categories that the fit did not have, 'never seen': they"):
        assert np.isfinite(fitted.predict(futr_df=future.assign(day="never seen"))["MVPA"]).all()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="column 'day'")
        fitted.predict(futr_df=future)


def test_a_series_driven_by_its_future_column_is_learnt(tiny, panel, fit):
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
    fitted = fit(model, frame[row < 194])
    forecast = fitted.predict(futr_df=frame[row >= 194].drop(columns="y"))["MVPA"].to_numpy()
    error = np.abs(forecast - frame.loc[row >= 194, "y"].to_numpy()).mean()
    assert error < 4, "without the column it is about 8"


def test_missing_columns_are_named(tiny, panel, forecaster):
    with pytest.raises(
        ValueError, match=r"target and covariates, got none of \['z'\] among \['unique_id', 'ds', 'y'\]"
    ):
        forecaster(tiny(futr_exog_list=["z"])).fit(panel(4))


def test_exclude_insample_y_forecasts_from_columns_alone(tiny, exogenous, fit):
    past, future, _ = exogenous("z")
    fitted = fit(tiny(3, futr_exog_list=["z"], exclude_insample_y=True), past)
    forecast = fitted.predict(futr_df=future)
    np.testing.assert_allclose(forecast.groupby("unique_id")["MVPA"].mean(), [100, 200, 300], rtol=0.1)
    # The look-back moves the level that the host scales back to, and nothing else.
    row = past.groupby("unique_id").cumcount()
    mirrored = past.assign(
        y=past["y"].where(row < 48, 2 * past.groupby("unique_id")["y"].transform("mean") - past["y"])
    )
    swing = [part.groupby("unique_id")["MVPA"].std() for part in (forecast, fitted.predict(mirrored, futr_df=future))]
    np.testing.assert_allclose(*swing, rtol=1e-3)


def test_static_table_that_lacks_a_series(exogenous, tiny, forecaster):
    past, _, static = exogenous("kind")
    with pytest.raises(ValueError, match="static_df must have one row for each of the 3 series of df, got 2 rows"):
        forecaster(tiny(3, stat_exog_list=["kind"])).fit(past, static_df=static.iloc[:2])


@pytest.mark.parametrize("polars", [False, True])
def test_static_table_of_other_series(polars, exogenous, tiny, forecaster):
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


def test_series_that_static_table_sorts_otherwise(exogenous, tiny, forecaster):
    past, _, static = exogenous("kind")
    past["unique_id"] = pd.Categorical(past["unique_id"], ["s02", "s00", "s01"], ordered=True)
    with pytest.raises(ValueError, match=r"static_df must have its series in the order of df .* a column of strings"):
        forecaster(tiny(3, stat_exog_list=["kind"])).fit(past, static_df=static)


def test_future_rows_that_are_there_twice(exogenous, tiny, fit):
    past, future, _ = exogenous("z")
    fitted = fit(tiny(3, futr_exog_list=["z"]), past)
    twice = pd.concat([future, future.iloc[[8]]])
    with pytest.raises(ValueError, match=r"futr_df must hold each date once .* got 2024-01-03 14:00:00 .* 's01'"):
        fitted.predict(futr_df=twice)


def test_the_unit_of_a_column_does_not_matter(exogenous, tiny, awaken, fit, reloaded):
    past, future, static = exogenous("z", "kind")
    past, future = (frame.assign(w=frame["z"] ** 2) for frame in (past, future))
    options = {"futr_exog_list": ["z"], "hist_exog_list": ["w"], "stat_exog_list": ["kind"]}
    forecasts = []
    for unit, level in ((1.0, 0.0), (1e6, 3e7)):
        scaled = [
            frame.assign(**{name: unit * frame[name] + level for name in ("z", "w", "kind") if name in frame})
            for frame in (past, future, static)
        ]
        fitted = fit(awaken(tiny(3, **options)), scaled[0], static_df=scaled[2])
        forecasts.append(fitted.predict(futr_df=scaled[1])["MVPA"].to_numpy())
    np.testing.assert_allclose(*forecasts, rtol=1e-2)
    np.testing.assert_array_equal(reloaded(fitted).predict(futr_df=scaled[1])["MVPA"], forecasts[1])


def test_columns_are_scaled_once(exogenous, tiny, forecaster, fit):
    past, _, _ = exogenous("z")
    fitted = forecaster(tiny(3, futr_exog_list=["z"]))
    model = fitted.models[0]
    fitted.fit(past, val_size=6)
    z = past.groupby("unique_id")["z"].apply(lambda part: part.iloc[:-6])
    expected = [z.mean(), z.std(ddof=0), z.min(), z.max()]
    np.testing.assert_allclose(model._fitted_series.features["z"], expected, rtol=1e-5)
    fitted.fit(past.assign(z=100.0 * past["z"]))  # weights are trained further: with the scale that they know
    expected[2:] = [100.0 * past["z"].min(), 100.0 * past["z"].max()]
    np.testing.assert_allclose(fitted.models[0]._fitted_series.features["z"], expected, rtol=1e-5)
    as_it_is = tiny(3, futr_exog_list=["z"], scaler_type="identity")  # somebody's choice
    host = fit(as_it_is, past)
    values = torch.tensor([[2.0, 1e6]])
    scaled = host.models[0].scaled_columns(values, pd.Index(["z"]), 1)
    assert scaled[0, 0] == 2.0
    assert scaled[0, 1] == pytest.approx(1.5 * past["z"].max() - 0.5 * past["z"].min())


def test_a_fit_starts_with_the_effect_of_a_covariate(exogenous, tiny, fit):
    """The effect is in units of the series; categories and what is held out take no part; it is saved and kept."""
    past, _, _ = exogenous("z", "kind")
    row = past.groupby("unique_id").cumcount()
    past["y"] = 40.0 + 3.0 * past["z"] + 0.01 * np.random.default_rng(0).normal(size=len(past))
    held_out = row >= row.max() - 5
    past.loc[held_out, "y"] = 1000.0 * past.loc[held_out, "z"]
    fitted = fit(tiny(3, futr_exog_list=["z"], max_steps=1), past, val_size=6)
    model = fitted.models[0]
    [(_, deviation, *_)] = model._fitted_series.features.values()
    units = np.array(model._fitted_series.units)[:, 1]
    slopes = model.network.future_effects.item() / deviation * units
    np.testing.assert_allclose(slopes.mean(), 3.0, rtol=0.1)
    kept = model.network.future_effects.detach().clone()
    fitted.fit(past.assign(y=-past["y"]), val_size=6)  # trained further: from what was learnt
    assert torch.sign(model.network.future_effects) == torch.sign(kept)


def _prices(change: float, effect: float) -> pd.DataFrame:
    """A week of 100 ± 3 and a price around 10, 160 days and 12 ahead."""
    generator, rows = np.random.default_rng(0), np.arange(172)
    price = 10 + generator.uniform(-change, change, len(rows))
    y = 100 + 3 * np.sin(rows * 2 * np.pi / 7) + generator.standard_normal(len(rows)) + effect * (price - 10)
    return pd.DataFrame(
        {"unique_id": "a", "ds": pd.date_range("2024-01-01", periods=len(rows), freq="D"), "y": y, "price": price}
    )


@pytest.mark.parametrize("scaler", [None, "standard"])
def test_a_price_that_was_never_seen_moves_no_forecast_far(tiny, fit, scaler):
    frame = _prices(0.01, 0.0)
    model = tiny(1, h=12, input_size=24, futr_exog_list=["price"], max_steps=60, scaler_type=scaler)
    host = fit(model, frame[:160], "D")
    ahead = frame[160:].drop(columns="y")
    with warnings.catch_warnings(action="error", category=UserWarning):
        warnings.filterwarnings("ignore", message="(?!column).*")
        host.predict(futr_df=ahead)
    for price in (8.0, 12.0, -1e5):
        with pytest.warns(UserWarning, match=f"column 'price' reaches {price:g}, where training saw 9.99") as caught:
            forecast = host.predict(futr_df=ahead.assign(price=price))["MVPA"]
        assert sum("price" in str(each.message) for each in caught) == 1
        assert forecast.between(91, 109).all()


def test_an_effect_reaches_half_the_trained_range_beyond(tiny, fit, reloaded):
    frame = _prices(1.0, -5.0)
    host = fit(tiny(1, h=12, input_size=24, futr_exog_list=["price"], max_steps=60), frame[:160], "D")
    again = reloaded(host, save_dataset=True)
    season = 100 + 3 * np.sin(np.arange(160, 172) * 2 * np.pi / 7)
    for price, expected in ((8.0, season + 10), (12.0, season - 10)):
        ahead = frame[160:].drop(columns="y").assign(price=price)
        forecast = host.predict(futr_df=ahead)["MVPA"].to_numpy()
        assert np.abs(forecast - expected).mean() < 2.5  # noise of 1 and a slope from 160 days
        np.testing.assert_array_equal(again.predict(futr_df=ahead)["MVPA"].to_numpy(), forecast)


def test_historic_and_static_columns_are_bounded_too(exogenous, tiny, fit, awaken):
    past, _, static = exogenous("z", "kind")
    host = fit(tiny(3, hist_exog_list=["z"], stat_exog_list=["kind"]), past, static_df=static)
    awaken(host.models[0], 0.1)
    late = past.groupby("unique_id").cumcount() >= 55
    farther = [past.assign(z=past["z"].where(~late, value)) for value in (1e3, 1e6)]
    with pytest.warns(UserWarning, match="column 'z' reaches 1000, where training saw"):
        first = host.predict(df=farther[0], static_df=static)["MVPA"]
    np.testing.assert_array_equal(host.predict(df=farther[1], static_df=static)["MVPA"], first)
    with pytest.warns(UserWarning, match="column 'kind' reaches 50, where training saw -1 to 1, 24.5 times"):
        first = host.predict(df=past, static_df=static.assign(kind=[50.0, 0.0, 0.0]))["MVPA"]
    second = host.predict(df=past, static_df=static.assign(kind=[3.0, 0.0, 0.0]))["MVPA"]
    np.testing.assert_array_equal(second, first)
