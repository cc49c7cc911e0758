"""A stream forecasts what a fresh forecast of all rows does, keeps no more than the look-back, and takes no gaps."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, ForecastStream, Scaling, Series, fit_forecaster

C, LOOKBACK = 3, 24
ROWS = np.random.default_rng(0).standard_normal((200, C)).cumsum(0) + 1000.0
COLUMNS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def fitted():
    config = ForecastingConfig(
        horizon=4, lookback=LOOKBACK, patch_length=8, patch_stride=8, dim=8, num_heads=2, num_outputs=9, cycle_length=7
    )
    return fit_forecaster([Series(ROWS[:100])], config, ForecasterTraining(steps=20))


@pytest.fixture
def stream(fitted):
    return ForecastStream(fitted, COLUMNS, scaling=Scaling.of(ROWS[:100]))


def table(rows: np.ndarray, index: object = None) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS, index=index)


@pytest.mark.parametrize("sizes", [[1] * 130, [130], [5, 60, 1, 64], [3, 4]])
def test_forecasts_equal_those_of_all_rows(fitted, stream, sizes):
    rows = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.1, np.nan, ROWS)
    end = 0
    for size in sizes:
        stream.update(rows[end : end + size])
        end += size
        fresh = fitted.predict(Series(rows[:end]), Scaling.of(ROWS[:100]))
        np.testing.assert_allclose(stream.predict(), fresh, rtol=0, atol=1e-5 * ROWS.std())
        assert len(stream.rows) == min(end, LOOKBACK)
    assert stream._buffer.shape == (2 * LOOKBACK, C)


def test_tables_and_single_rows_by_name(stream, fitted):
    stream.update(table(ROWS[:50])[["c", "a", "b"]])
    stream.update({"b": ROWS[50, 1], "c": ROWS[50, 2], "a": ROWS[50, 0]})
    np.testing.assert_array_equal(stream.rows, ROWS[27:51])
    stream.update(table(ROWS).iloc[51])
    np.testing.assert_array_equal(stream.rows, ROWS[28:52])
    # As many rows as columns: a row for each of the lists would have the right shape, too.
    stream.update(table(ROWS[52:55])[["c", "a", "b"]].to_dict("list"))
    np.testing.assert_array_equal(stream.rows, ROWS[31:55])
    stream.update(pl.from_pandas(table(ROWS[55:56])[["b", "c", "a"]]))
    np.testing.assert_array_equal(stream.rows, ROWS[32:56])
    stream.update(table(ROWS[56:57]).astype("Float64").assign(b=pd.array([None], "Float64")))
    np.testing.assert_array_equal(stream.rows[-1], [ROWS[56, 0], np.nan, ROWS[56, 2]])


def test_a_series_is_a_column_of_a_stream_of_one(fitted):
    stream = ForecastStream(fitted, ["a"], scaling=Scaling.of(ROWS[:, :1]), time=9)
    stream.update(pd.Series(ROWS[:5, 0], index=range(10, 15)))
    np.testing.assert_array_equal(stream.rows, ROWS[:5, :1])
    assert stream.update(ROWS[5, :1], times=15).time == 15


CLOCKS = {
    "numbers": (pd.RangeIndex(100, 200), 1),
    "hours": (pd.date_range("2024-03-30", periods=100, freq="h", tz="Europe/Berlin"), pd.offsets.Hour()),
    "month ends": (pd.date_range("2000-01-31", periods=100, freq="ME"), pd.offsets.MonthEnd()),
    "business days": (pd.bdate_range("2024-01-01", periods=100), pd.offsets.BusinessDay()),
    "quarters": (pd.period_range("2000Q1", periods=100, freq="Q"), 1),
}


@pytest.mark.parametrize("kind", CLOCKS)
def test_times_are_checked_saved_and_loaded(fitted, tmp_path, kind):
    index, step = CLOCKS[kind]
    stream = ForecastStream(
        fitted, COLUMNS, scaling=Scaling.of(ROWS), time=index[0], step=step, position=1,
        channel_inputs={"positions": torch.arange(3.0)[:, None]},
    )  # fmt: skip
    stream.channel_inputs.clear()  # the network has none; they are saved below
    stream.update(table(ROWS[1:40], index[1:40]))
    before = stream.rows.copy()
    for wrong in (index[41:43], index[39:41], index[40:41].repeat(2)):
        with pytest.raises(ValueError, match="rows must go on at"):
            stream.update(table(ROWS[40 : 40 + len(wrong)], wrong))
    with pytest.raises(ValueError, match="times must name each of the 1 rows"):
        stream.update(ROWS[40])
    np.testing.assert_array_equal(stream.rows, before)
    stream.channel_inputs["positions"] = torch.arange(3.0)[:, None]
    stream.save(tmp_path / "stream.npz")
    again = ForecastStream.load(tmp_path / "stream.npz", fitted)
    assert again.channel_inputs.pop("positions").tolist() == [[0.0], [1.0], [2.0]]
    stream.channel_inputs.clear()
    assert again.time == stream.time
    for each in (stream, again):
        each.update(table(ROWS[40:60], index[40:60]))
    np.testing.assert_array_equal(again.predict(), stream.predict())
    fresh = fitted.predict(Series(ROWS[1:60], position=1), Scaling.of(ROWS))
    np.testing.assert_allclose(again.predict(), fresh, rtol=0, atol=1e-5 * ROWS.std())


def test_times_of_numpy_leave_the_clock_as_it_was(fitted, tmp_path):
    index = pd.date_range("2024-01-01", periods=4)
    stream = ForecastStream(fitted, ["a", "b", "c"], scaling=Scaling.of(ROWS), time=index[0], step=index.freq)
    stream.update(ROWS[:2], index[1:3].to_numpy()).save(tmp_path / "stream.npz")
    assert ForecastStream.load(tmp_path / "stream.npz", fitted).update(ROWS[:1], index[3:]).time == index[3]


def test_what_does_not_fit_is_an_error(stream, fitted, tmp_path):
    with pytest.raises(ValueError, match="before predict"):
        stream.predict()
    with pytest.raises(ValueError, match="these are in one of them only: 'c', 'd'"):
        stream.update(table(ROWS[:3]).rename(columns={"c": "d"}))
    with pytest.raises(ValueError, match="'c'"):
        stream.update({"a": 1.0, "b": 2.0})
    with pytest.raises(ValueError, match=r"\(n, 3\)"):
        stream.update(ROWS[:3, :2])
    with pytest.raises(ValueError, match=r"rows must hold numbers, as many in each column, got others: .*'x'"):
        stream.update([1.0, 2.0, "x"])
    with pytest.raises(ValueError, match="got inf"):
        stream.update([1.0, 2.0, np.inf])
    np.savez(tmp_path / "other.npz", rows=ROWS)
    (tmp_path / "other.txt").write_text("rows")
    for name in ("other.npz", "other.txt"):
        with pytest.raises(ValueError, match="must be a whole file of ForecastStream"):
            ForecastStream.load(tmp_path / name, fitted)
    stream.update(ROWS[:3]).save(tmp_path / "stream.npz")
    config = ForecastingConfig(horizon=4, lookback=32, num_outputs=9)
    other = fit_forecaster([Series(ROWS)], config, ForecasterTraining(steps=0))
    with pytest.raises(ValueError, match="looks back at 24 rows, got one of 32"):
        ForecastStream.load(tmp_path / "stream.npz", other)
