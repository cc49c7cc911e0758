"""The rate of alarms is kept where nothing is wrong, and what is planted is found, by its series."""

import numpy as np
import pandas as pd
import pytest
import torch

from mvpa_ts.forecasting.pretrained import detect_anomalies
from mvpa_ts.forecasting.pretrained.anomalies import alarms, stillness, surprise


@pytest.mark.parametrize(("rate", "channels"), [(0.01, 5), (0.05, 1), (0.2, 3)])
def test_scores_without_order_give_the_promised_rate(rate, channels):
    draws = np.random.default_rng(0)
    counts = np.zeros(2)
    for _ in range(20):
        scores = draws.standard_cauchy((300, channels))
        anomaly, threshold = alarms(scores, rate)
        counts += anomaly.sum(), np.isfinite(threshold).sum()
    assert counts[0] / counts[1] == pytest.approx(rate, rel=0.12)


def test_a_threshold_is_the_quantile_of_earlier_scores_alone():
    scores = np.array([[3.0], [1.0], [np.nan], [2.0], [10.0], [4.0]])
    anomaly, threshold = alarms(scores, 0.25)
    # Three earlier scores at least; the level of one in four is their largest.
    assert np.isnan(threshold[:4]).all()
    assert threshold[4, 0] == 3.0
    assert anomaly[:, 0].tolist() == [False, False, False, False, True, False]
    assert 3.0 < threshold[5, 0] <= 10.0


def test_stillness_grows_beyond_the_longest_run_that_ended():
    values = np.array([1, 1, 1, 2, 3, 3, 3, 3, 3, 4], dtype=float)[:, None]
    score = stillness(values, np.zeros((10, 1, 9)))[:, 0]
    runs, longest = [0, 1, 2, 0, 0, 1, 2, 3, 4, 0], [0, 0, 0, 2, 2, 2, 2, 2, 2, 4]
    assert score == pytest.approx([(run / (most + 5)) ** 3 for run, most in zip(runs, longest, strict=True)])


def test_surprise_is_counted_in_widths_of_the_interval_on_that_side():
    quantiles = np.broadcast_to(np.array([-1.0, 0, 0, 0, 0, 0, 0, 0, 4.0]), (4, 1, 9))
    values = np.array([[2.0], [-2.0], [0.0], [np.nan]])
    assert surprise(values, quantiles)[:3, 0] == pytest.approx([0.5, 2.0, 0.0], rel=0.1)
    assert np.isnan(surprise(values, quantiles)[3, 0])


@pytest.fixture(scope="module")
def panel():
    draws = np.random.default_rng(1)
    step = np.arange(200)
    wave = np.stack([np.sin(2 * np.pi * (step - lag) / 12) for lag in (0, 2, 4)], 1)
    table = pd.DataFrame(wave + 0.1 * draws.standard_normal(wave.shape), columns=["a", "b", "c"])
    return table.set_axis(pd.date_range("2024-01-01", periods=200, freq="h"))


@pytest.mark.parametrize("kind", ["spike", "shift", "standing still"])
def test_a_broken_sensor_is_found_by_name(panel, kind):
    table = panel.copy()
    table.iloc[150:, 1] += {"spike": 0.0, "shift": 3.0, "standing still": 0.0}[kind]
    if kind == "spike":
        table.iloc[150, 1] += 3.0
    if kind == "standing still":
        table.iloc[150:, 1] = table.iloc[149, 1]
    answer = detect_anomalies(table, rate=0.02)
    assert answer.loc[answer["source"] & (answer["ds"] >= table.index[150]), "unique_id"].iloc[0] == "b"
    before = answer[answer["ds"] < table.index[150]]
    pd.testing.assert_frame_equal(
        before, detect_anomalies(panel, rate=0.02).iloc[: len(before)], check_exact=False, rtol=1e-3, atol=1e-3
    )


def test_frames_of_both_hosts_and_gaps(panel):
    table = panel.iloc[:80].mask(np.random.default_rng(2).random((80, 3)) < 0.05)
    long = table.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    answer = detect_anomalies(table, rate=0.05)
    pd.testing.assert_frame_equal(answer, detect_anomalies(long.sample(frac=1.0, random_state=0), rate=0.05))
    assert answer["y"].notna().all()
    assert answer["ds"].min() > table.index[15]
    assert not (answer["source"] & ~answer["anomaly"]).any()


def test_what_cannot_be_judged_is_an_error(panel):
    for rate in (0, 0.0, 1.0, -0.1, True):
        with pytest.raises(ValueError, match="rate must be a share of values between 0 and 1"):
            detect_anomalies(panel, rate=rate)
    with pytest.raises(ValueError, match=r"at least 117 rows for rate=0.01 of 1 series, got 100"):
        detect_anomalies(panel["a"].iloc[:100], rate=0.01)
    with pytest.raises(ValueError, match="got infinite ones of b"):
        detect_anomalies(panel.replace(panel.iloc[3, 1], np.inf))
    with pytest.raises(ValueError, match="got none of b"):
        detect_anomalies(panel.assign(b=np.nan))


def test_order_gaps_masks_units_and_polars_change_nothing(panel):
    table = panel.iloc[:60].copy()
    table.iloc[40:45] = np.nan
    expected = detect_anomalies(table, rate=0.05)
    long = table.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    masked = long.assign(available_mask=long["y"].notna() * 1.0, y=long["y"].fillna(1e6))
    polars = pytest.importorskip("polars")
    for same in (table.iloc[::-1], table.dropna(), long.dropna(), masked, polars.DataFrame(long.to_dict("list"))):
        pd.testing.assert_frame_equal(detect_anomalies(same, rate=0.05), expected, check_dtype=False)
    for unit in (2.0**-990, 2.0**990):
        answer = detect_anomalies(table * unit, rate=0.05)
        assert answer["score"].tolist() == expected["score"].tolist()
        assert (answer["y"] / unit).tolist() == expected["y"].tolist()


def test_a_series_that_begins_late_does_not_hide_the_others(panel):
    """From a row or two it is forecast without any width, and its scores would be thresholds for long."""
    table = panel.copy()
    table.iloc[:80, 2] = np.nan
    table.iloc[100, 0] += 6.0
    answer = detect_anomalies(table, rate=0.02)
    assert answer.loc[answer["source"] & (answer["ds"] == table.index[100]), "unique_id"].tolist() == ["a"]
    assert answer.loc[answer["unique_id"] == "c", "ds"].min() >= table.index[96]


def test_days_of_polars_are_dates(panel):
    polars = pytest.importorskip("polars")
    days = panel.iloc[:60].set_axis(pd.date_range("2024-01-01", periods=60, freq="D"))
    long = days.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    frame = polars.DataFrame(long.to_dict("list")).with_columns(polars.col("ds").cast(polars.Date))
    expected = detect_anomalies(days, rate=0.05)
    pd.testing.assert_frame_equal(detect_anomalies(frame, rate=0.05), expected, check_dtype=False)


def test_a_series_that_never_moves_is_no_anomaly(panel):
    answer = detect_anomalies(panel.iloc[:60].assign(b=5.0), rate=0.05)
    assert not answer.loc[answer["unique_id"] == "b", "anomaly"].any()


def test_frames_that_would_be_misread_are_errors(panel):
    long = panel.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    for frame, said in (
        (pd.concat([long, long.iloc[[5]]]), "each date once in a series, got 2024-01-01 05:00:00 twice in series 'a'"),
        (long.iloc[:0], "must have rows and columns, got 0 rows and 3 columns"),
        (panel[[]], f"must have rows and columns, got {len(panel)} rows and 0 columns"),
        (long.assign(available_mask=2), "0 or 1 in column 'available_mask', got .*2"),
        (long.assign(available_mask="1"), "0 or 1 in column 'available_mask', got '1'"),
        (long.drop(columns="y"), r"got none of \['y'\]"),
        (long.assign(ds=long["ds"].mask(long.index == 7)), "id and date in each row, got none in row 7"),
        (long.assign(ds=long["ds"].astype(str)), "dates, periods or whole numbers in column 'ds', got"),
        (long.rename(columns={"unique_id": "sensor"}), "or name the columns of a long table unique_id, ds and y"),
        (long.assign(y="x"), "real numbers in column 'y', got .*'x'"),
        (panel.astype(complex), "real numbers in column 'a', got complex128"),
        (panel.set_axis(["a", "a", "b"], axis=1), "each column once, got 'a'"),
        (panel.iloc[[0, 0, 1]], "each once, got 2024-01-01 00:00:00 twice"),
    ):
        with pytest.raises(ValueError, match=said):
            detect_anomalies(frame)
    with pytest.raises(TypeError, match=r"with a column a series, got ndarray: take .*pd\.DataFrame\(df\)"):
        detect_anomalies(panel.to_numpy())
    with pytest.raises(ValueError, match="season must be a whole number of steps"):
        detect_anomalies(panel, season=1.5)
    for network in ("small", torch.nn.Linear(1, 1)):
        with pytest.raises(ValueError, match=r"network must be None or a forecaster, such as .*, got ('small'|Linear)"):
            detect_anomalies(panel, network=network)
    with pytest.warns(UserWarning, match="columns that are not read, beside unique_id, ds and y: 'rain'"):
        detect_anomalies(long.assign(rain=1.0), rate=0.1)
    uneven = panel.index[0] + pd.to_timedelta(np.arange(40) ** 1.9, "s")
    with pytest.warns(UserWarning, match="on a regular grid of dates"):
        detect_anomalies(panel.iloc[:40].set_axis(uneven), rate=0.2)
