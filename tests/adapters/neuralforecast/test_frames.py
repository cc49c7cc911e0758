"""Frames that the host would misread, or answer with words of another library."""

import datetime
import decimal
import io
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss
from support.made_up_networks import QUIET

from mvpa_ts.adapters.neuralforecast import MVPA

_ROW = 5


def _without(name: str, value: Any) -> Callable:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        values = frame[name].astype(object).tolist()
        values[_ROW] = value
        return frame.assign(**{name: pd.Series(values, dtype=frame[name].dtype if value is pd.NaT else object)})

    return change


_PANDAS: dict[str, tuple[Callable, str]] = {
    "id None": (_without("unique_id", None), "df must have an id in each row, got none in column 'unique_id' of row 5"),
    "id NaN": (_without("unique_id", np.nan), "df must have an id in each row, got none in column 'unique_id' of row"),
    "id NA": (_without("unique_id", pd.NA), "df must have an id in each row, got none in column 'unique_id' of row 5"),
    "ids of two kinds": (_without("unique_id", 7), "df must have ids of one kind in column 'unique_id', got int, str"),
    "date NaT": (_without("ds", pd.NaT), "df must have a date in each row, got none in column 'ds' of row 5: leave"),
    "complex": (lambda df: df.assign(y=df["y"] + 1j), "df must hold real numbers in column 'y', got "),
    "a covariate that is complex": (lambda df: df.assign(x=1j), "df must hold real numbers in column 'x', got 1j in"),
    "decimals": (_without("y", decimal.Decimal(1)), "column 'y', got object: take df['y'].astype(float)"),
    "a comma": (_without("y", "0,5"), "hold real numbers in column 'y', got '0,5' in row 5: give numbers alone"),
    "text": (lambda df: df.assign(note="a"), "column 'note', got 'a' in row 0: leave the column out, df.drop(columns="),
    "dates as text": (lambda df: df.assign(ds=df["ds"].astype(str)), "column 'ds', got str such as '2024-01-01"),
    "dates of Python": (lambda df: df.assign(ds=datetime.date(2024, 1, 1)), "take pd.to_datetime(df['ds'])"),
    "dates of pyarrow": (lambda df: df.assign(ds=df["ds"].astype("date32[pyarrow]")), "take pd.to_datetime(df['ds'])"),
    "periods": (lambda df: df.assign(ds=df["ds"].dt.to_period("h")), "take df['ds'].dt.to_timestamp()"),
    "no rows": (lambda df: df.iloc[:0], "df must have rows, got none"),
    "a column twice": (lambda df: pd.concat([df, df[["y"]]], axis=1), "df must have each column once, got 'y'"),
    "no target": (lambda df: df.drop(columns="y"), "got none of ['y'] among ['unique_id', 'ds']"),
    "a mask of 2": (lambda df: df.assign(available_mask=2), "df must hold 0 or 1 in column 'available_mask', got 2 in"),
}
_POLARS: dict[str, tuple[Callable, str]] = {
    "id": (lambda df: df.with_columns(unique_id=pl.Series(["a", None] * 60)), "an id in each row, got none in column"),
    "date": (lambda df: df.with_columns(ds=df["ds"].shift(1)), "a date in each row, got none in column 'ds' of row 0"),
    "decimals": (lambda df: df.with_columns(df["y"].cast(pl.Decimal(10, 3))), "take pl.col('y').cast(pl.Float64)"),
    "flags": (lambda df: df.with_columns(df["y"] > 0), "'y', got Boolean: take pl.col('y').cast(pl.Float64)"),
    "a mask of flags": (lambda df: df.with_columns(available_mask=True), "'available_mask', got Boolean: take pl.col("),
    "a zone": (lambda df: df.with_columns(df["ds"].dt.replace_time_zone("Asia/Tokyo")), "in UTC, got Asia/Tokyo: take"),
    "text": (lambda df: df.with_columns(note=pl.lit("a")), "got 'a' in row 0: leave the column out, df.drop('note')"),
    "dates as text": (lambda df: df.with_columns(df["ds"].cast(str)), "take pl.col('ds').str.to_datetime()"),
    "no rows": (lambda df: df.head(0), "df must have rows, got none"),
}


@pytest.mark.parametrize("case", [*_PANDAS, *(f"polars, {name}" for name in _POLARS)])
def test_frames_that_would_be_misread_are_refused(case, panel, tiny, forecaster):
    library, _, name = case.rpartition(", ")
    change, words = (_POLARS if library else _PANDAS)[name]
    frame = pl.from_pandas(panel(2)) if library else panel(2)
    host = forecaster(tiny(2), "1h" if library else "h")
    calls: tuple[Callable, ...] = (host.fit, host.cross_validation, host.predict)
    for call in calls:
        if call == host.predict:
            host.fit(frame)
        with pytest.raises(ValueError, match=re.escape(words)):
            call(change(frame))


def test_dates_that_would_begin_anew_are_named(panel, tiny, forecaster, fit):
    df = panel(2, rows=40, integer=True)
    df["ds"] = (df["ds"] + 85).astype("int8")  # the last is 124, and the largest number 127
    for frame in (df, pl.from_pandas(df)):
        with pytest.raises(ValueError, match="'ds' of a type that holds those of the forecast, too, got int8 up to 12"):
            forecaster(tiny(2), 1).fit(frame)
    assert fit(tiny(2, h=3), df, 1).predict()["ds"].to_list() == [125, 126, 127] * 2


def test_other_tables_are_named(panel, tiny, forecaster):
    frame = panel(2).assign(x=1.0)
    static = pd.DataFrame({"unique_id": ["s00", "s01"], "z": [1.0, 2.0]})
    host = forecaster(tiny(2, futr_exog_list=["x"], stat_exog_list=["z"]))
    with pytest.raises(ValueError, match=r"static_df must hold real numbers in column 'z', got 'a' in row 0"):
        host.fit(frame, static_df=static.assign(z=["a", "b"]))
    with pytest.raises(ValueError, match=r"val_df must hold real numbers in column 'note', got 'a' in row 0"):
        host.fit(frame, static_df=static, val_df=frame.assign(note="a"))
    host.fit(frame, static_df=static)
    ahead = host.make_future_dataframe().assign(x=1.0, note="not read")
    expected = host.predict(futr_df=ahead)["MVPA"]
    for change, words in (
        (ahead.assign(x=1j), "futr_df must hold real numbers in column 'x', got 1j in row 0"),
        (ahead.drop(columns="x"), r"got none of \['x'\] among \['unique_id', 'ds', 'note'\]"),
        (ahead.assign(x=np.inf), "finite numbers, got inf in column 'x' of series 's00' at 2024-01-03 12:00:00: mend"),
    ):
        with pytest.raises(ValueError, match=words):
            host.predict(futr_df=change)
    numbers_of_another_kind = ahead.assign(x=decimal.Decimal(1))
    np.testing.assert_array_equal(host.predict(futr_df=numbers_of_another_kind)["MVPA"], expected)


def test_models_of_the_host_alone_are_left_to_the_host(panel):
    from neuralforecast.models import MLPMultivariate

    host = NeuralForecast([MLPMultivariate(h=6, input_size=12, n_series=2, max_steps=1, **QUIET)], freq="h")
    with pytest.raises(ValueError, match="could not convert string to float"):
        host.fit(panel(2).assign(note="a"))


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("refit", [False, True])
def test_cross_validation_has_no_target_on_masked_rows(refit, library, panel, tiny, forecaster):
    """What is stored on such a row is no truth, so no error may be counted against it."""
    frame = panel(2)
    masked = [57, 58, 117]
    frame = frame.assign(available_mask=1.0 * ~frame.index.isin(masked))
    expected = frame["y"].mask(frame.index.isin(masked)).to_numpy()
    frame.loc[masked, "y"] = 0.0
    shuffled = frame.sample(frac=1, random_state=0)
    host = forecaster(tiny(2), "h" if library == "pandas" else "1h")
    given = shuffled if library == "pandas" else pl.from_pandas(shuffled)
    table = host.cross_validation(given, n_windows=2, step_size=3, refit=refit)
    if library == "polars":
        assert table["y"].null_count() == 3
        table = table.to_pandas()
    rows = pd.Series(expected, index=pd.MultiIndex.from_frame(frame[["unique_id", "ds"]]))
    np.testing.assert_array_equal(table["y"], rows[list(zip(table["unique_id"], table["ds"], strict=True))])
    assert table["MVPA"].notna().all()
    if not refit:
        again = host.cross_validation(None, n_windows=2, step_size=3)
        again = again if library == "pandas" else again.to_pandas()
        np.testing.assert_allclose(again["y"], table["y"], rtol=1e-6)


def test_effects_refuse_and_take_what_fit_does(panel):
    model = MVPA.from_pretrained("base", h=3, futr_exog_list=["x"])
    frame = panel(2).assign(x=lambda df: np.arange(len(df)) % 7.0)
    with pytest.raises(ValueError, match="df must hold real numbers in column 'x', got 1j in row 0"):
        model.effects(frame.assign(x=1j))
    frame["ds"] = np.tile(pd.date_range("2024-01-01", periods=60), 2)
    days = pl.from_pandas(frame).with_columns(pl.col("ds").cast(pl.Date))
    pyarrow = frame.assign(ds=frame["ds"].astype("timestamp[ns][pyarrow]"))
    for same in (days, pyarrow):  # which fit takes, too
        pd.testing.assert_frame_equal(model.effects(same), model.effects(frame))


def test_categories_of_numbers_are_no_numbers(panel, tiny, forecaster):
    """The host reads their codes: 0, 1, 2 for .1, .2, .3."""
    frame = panel(2).assign(x=lambda df: pd.Categorical(np.arange(len(df)) % 3 / 10))
    with pytest.raises(ValueError, match=r"df must hold real numbers in column 'x', got category: take df\['x'\]"):
        forecaster(tiny(2, futr_exog_list=["x"])).fit(frame)


def test_infinite_static_numbers_are_named(panel, tiny, forecaster):
    frame = panel(2)
    static = pd.DataFrame({"unique_id": frame["unique_id"].unique(), "size": [1.0, np.inf]})
    with pytest.raises(ValueError, match="static_df must hold finite numbers, got inf in column 'size' of series"):
        forecaster(tiny(2, stat_exog_list=["size"])).fit(frame, static_df=static)


@pytest.mark.parametrize(
    "option", [{"step_size": 0}, {"step_size": 1.5}, {"n_windows": 0}, {"val_size": -5}, {"test_size": "6"}]
)
def test_windows_are_counted(option, panel, tiny, forecaster):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be a whole number of at least [01], got"):
        forecaster(tiny(2)).cross_validation(panel(2), **option)


def test_unknown_options_are_named(panel, tiny, forecaster):
    host, frame = forecaster(tiny(2)), panel(2)
    with pytest.raises(TypeError, match=r"cross_validation has no option 'nwindows': did you mean 'n_windows'?"):
        host.cross_validation(frame, nwindows=2)
    with pytest.raises(TypeError, match=r"fit has no option 'valsize': did you mean 'val_size'?"):
        host.fit(frame, valsize=6)
    with pytest.raises(ValueError, match="use_init_models must be True or False, got 'no'"):
        host.fit(frame, use_init_models="no")
    host.fit(frame)
    with pytest.raises(TypeError, match=r"explain has no option 'horizon': did you mean 'horizons'?"):
        host.explain(horizon=[1])
    with pytest.raises(TypeError, match=r"predict has no option 'batch_size': it has df, .*, h, .*quantiles, random_s"):
        host.predict(batch_size=2)
    pd.testing.assert_frame_equal(host.predict(pin_memory=False, random_seed=1), host.predict())


def test_what_leaves_no_memory_is_refused(panel, fit):
    host = fit(MVPA.from_pretrained("small", h=6, loss=MQLoss(level=[80]), **QUIET), panel(2))
    for df, series in ((None, 2), (panel(3), 3)):
        with pytest.raises(ValueError, match=f"n_paths .* got {10**12}, which needs {series * 600_000} GB of memory"):
            host.simulate(df, n_paths=10**12)
        with pytest.raises(ValueError, match=f"h must be .* got {10**9}, which needs {series * 20_000} GB of memory"):
            host.predict(df, h=10**9)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_empty_cells_and_other_moments_are_named(library, panel, tiny):
    frame = panel(2).assign(x=1.0)
    given: Callable = pl.from_pandas if library == "polars" else lambda df: df
    host = NeuralForecast([tiny(2, futr_exog_list=["x"])], freq="1h" if library == "polars" else "h")
    for column in ("y", "x"):
        empty = frame.assign(**{column: frame[column].mask(frame.index == 3)})
        with pytest.raises(ValueError, match=f"'{column}' for each row, got none for series 's00' at 2024-01-01 03:00"):
            host.fit(given(empty))
    host.fit(given(frame))
    ahead = host.make_future_dataframe()
    ahead = (ahead.to_pandas() if library == "polars" else ahead).assign(x=1.0)
    zoned = ahead.assign(ds=ahead["ds"].dt.tz_localize("UTC"))
    unknown, named = ahead["x"].mask(ahead.index == 3), "got none for series 's00' at 2024-01-03 15:00:00: fill it"
    another = "futr_df must be a frame like df, with ids and dates in columns"
    for change, words in (
        (given(ahead.assign(x=unknown)), named),
        (given(ahead.drop(index=3)), named),
        (given(zoned), r"'ds'\] of the types of a forecast \[.*UTC.*\.dt\.tz_localize\(None\) takes a time zone away"),
        (given(ahead.assign(unique_id=1)), another),
        (ahead if library == "polars" else pl.from_pandas(ahead), another),
    ):
        for call in (host.predict, host.simulate):
            with pytest.raises(ValueError, match=words):
                call(futr_df=change)
    if library == "polars":  # whose NaN is no null, and made forecasts NaN
        with pytest.raises(ValueError, match=named):
            host.predict(futr_df=given(ahead.assign(x=unknown)).with_columns(pl.col("x").fill_null(np.nan)))


def test_val_df_in_another_zone_is_named(panel, tiny, forecaster):
    frame = panel(2)
    later = frame.groupby("unique_id").tail(6)
    zoned = later.assign(ds=later["ds"].dt.tz_localize("UTC"))
    with pytest.raises(ValueError, match="val_df must have dates with a time zone where df has, got 2024-01-03 06"):
        forecaster(tiny(2)).fit(frame.drop(later.index), val_df=zoned)


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["red", "blue", "green"])])
def test_text_categories_of_polars_are_those_of_pandas(kind, panel, tiny, fit):
    frame = panel(2).assign(c=lambda df: np.array(["red", "blue", "green"])[df.index % 3])
    options = {"futr_exog_list": ["c"], "cat_exog_list": ["c"], "categorical_cardinalities": {"c": 3}}
    forecasts = []
    for freq, given in (("h", frame), ("1h", pl.from_pandas(frame).with_columns(pl.col("c").cast(kind)))):
        host = fit(tiny(2, **options), given, freq)
        ahead = host.make_future_dataframe()
        text = pl.lit("red", dtype=kind)
        ahead = ahead.assign(c="red") if freq == "h" else ahead.with_columns(c=text)
        forecasts.append(host.predict(futr_df=ahead)["MVPA"].to_numpy())
    np.testing.assert_array_equal(*forecasts)


def test_sizes_of_categories_are_asked_for(panel, tiny, forecaster):
    options: dict[str, Any] = {"futr_exog_list": ["c"], "cat_exog_list": ["c"]}
    for sizes in (None, {}, {"c": 0}, {"c": "3"}, {"c": ["a", "b"]}, 3):
        with pytest.raises(ValueError, match="categorical_cardinalities must"):
            tiny(2, **options, categorical_cardinalities=sizes)
    model = tiny(2, **options, categorical_cardinalities={"c": 3})
    days = panel(2).assign(c=lambda df: df["ds"].dt.normalize())
    for freq, same in (("h", days), ("1h", pl.from_pandas(days))):
        with pytest.raises(ValueError, match=r"categories that are text, .* in column 'c', got Timestamp: take"):
            forecaster(model, freq).fit(same)
    mixed = panel(2).assign(c=["a", 1] * 60)
    with pytest.raises(ValueError, match="df must have categories of one kind in column 'c', got int, str: take df"):
        forecaster(tiny(2, **options, categorical_cardinalities={"c": 2})).fit(mixed)


@pytest.mark.parametrize("freq", [None, "month", pd.Timedelta("1h"), 1.5, "0h", "-1h", "LWOM-FRI"])
def test_a_freq_that_makes_no_dates_is_named_before_the_training(freq, panel, tiny):
    words = r"freq must be a step of dates of type datetime64.*, got .* such as 'h' or"
    with pytest.raises(ValueError, match=words):
        NeuralForecast([tiny(2)], freq=freq).fit(panel(2))
    if freq is not None:  # there it follows from the dates
        with pytest.raises(ValueError, match=words):
            tiny(2, futr_exog_list=["x"]).effects(panel(2).assign(x=lambda df: np.arange(len(df)) % 7.0), freq=freq)


def test_dates_of_pyarrow_are_those_of_numpy(panel, tiny):
    frame, forecasts = panel(2).assign(x=1.0), []
    for kind in ("datetime64[us]", "timestamp[us][pyarrow]"):
        same, host = frame.astype({"ds": kind}), NeuralForecast([tiny(2, futr_exog_list=["x"])], freq="h")
        tested = host.cross_validation(same, n_windows=2, step_size=6)
        ahead = host.make_future_dataframe().assign(x=1.0).astype({"ds": kind})
        forecasts.append([tested, host.predict(futr_df=ahead), host.predict(same, futr_df=ahead)])
    for expected, forecast in zip(*forecasts, strict=True):
        pd.testing.assert_frame_equal(expected, forecast, check_dtype=False)


@pytest.mark.parametrize("kind", ["Float64", "Float32", "Int64", "double[pyarrow]"])
@pytest.mark.parametrize("maker", ["MVPA", "base"])
def test_missing_numbers_of_every_type_are_those_of_numpy(maker, kind, panel, tiny):
    """The host has no float of pandas' own NA."""
    frame = panel(2).assign(x=lambda df: df.index % 7, z=lambda df: df.index % 5)
    missing = frame.index.isin([5, 17, 80])
    frame = frame.round({"y": 0}).astype({"x": float, "z": float}).assign(available_mask=np.where(missing, 0.0, 1.0))
    frame.loc[missing, ["y", "x", "z"]] = np.nan
    results = []
    for same in (frame, frame.astype({"y": kind, "x": kind, "z": kind, "available_mask": kind})):
        options: dict[str, Any] = {"futr_exog_list": ["x"], "hist_exog_list": ["z"]}
        model = tiny(2, **options) if maker == "MVPA" else MVPA.from_pretrained("small", h=6, alias="MVPA", **options)
        host = NeuralForecast([model], freq="h")
        tested = host.cross_validation(same, n_windows=2, step_size=30)
        ahead = host.make_future_dataframe().assign(x=1.0)
        results.append([tested, host.predict(same, futr_df=ahead), model.effects(same)])
    for expected, result in zip(*results, strict=True):
        pd.testing.assert_frame_equal(expected, result, check_dtype=False)


def test_nothing_is_printed_between_the_results_of_a_script(panel, fit, monkeypatch):
    stream = io.StringIO()  # as a pipe, no terminal
    monkeypatch.setattr(sys, "stdout", stream)
    for piped in (True, False):
        monkeypatch.setattr(sys, "__stdout__", stream if piped else None)  # else as in a notebook
        host = fit(MVPA(h=6, input_size=12, n_series=2, hidden_size=16, max_steps=1, logger=False), panel(2))
        host.predict()
        assert (stream.getvalue() == "") == piped
