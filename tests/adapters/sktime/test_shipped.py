"""The forecaster of the package in sktime: forecasts without training."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sktime.datasets import load_airline
from support.made_up_series import waves

from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.forecasting import pretrained
from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base


def base(**changes) -> MVPAForecaster:
    return MVPAForecaster(**{"pretrained": "base", **changes})


@pytest.mark.parametrize("horizon", [1, 12, 70])
def test_the_forecast_is_the_network_s(horizon):
    y = waves(columns=3)
    y.iloc[[7, 20]] = np.nan
    forecaster = base().fit(y, fh=range(1, horizon + 1))
    x = torch.tensor(y.to_numpy(), dtype=torch.float32)[None]
    with torch.no_grad():
        expected = forecast_quantiles(load_base("base"), x.nan_to_num(0.0), ~x.isnan(), horizon=horizon, season=12)[0]
    np.testing.assert_allclose(forecaster.predict(), expected[..., 4], rtol=1e-3)
    found = forecaster.predict_quantiles(alpha=[0.1, 0.9]).to_numpy().reshape(horizon, 3, 2)
    np.testing.assert_allclose(found, expected[..., [0, -1]], rtol=1e-3, atol=1e-2)


def test_the_season_is_that_of_the_index_unless_sp_tells_it():
    y = waves(rows=40)
    monthly, dated, plain = y, y.set_axis(y.index.to_timestamp()), y.reset_index(drop=True)
    forecasts = [
        base(**changes).fit(table, fh=[1, 2, 3]).predict().to_numpy()
        for table, changes in ((monthly, {}), (dated, {}), (plain, {"sp": 12}), (plain, {}), (monthly, {"sp": 25}))
    ]
    np.testing.assert_allclose(forecasts[0], forecasts[1])
    np.testing.assert_allclose(forecasts[0], forecasts[2])
    assert not np.allclose(forecasts[0], forecasts[4], rtol=1e-4)
    for sp in (2.5, "12"):
        with pytest.raises(ValueError, match="sp must be a whole number of steps above 0, or None, got"):
            base(sp=sp).fit(y, fh=[1])


def test_an_update_trains_by_the_positions_too(monkeypatch):
    trained = []
    monkeypatch.setattr(pretrained, "finetuned", lambda network, *_, **given: trained.append(given) or network)
    y = waves(columns=3)
    forecaster = base(finetune_steps=1, channel_positions=dict(zip(y, (0, 5, 7), strict=True))).fit(y[:-2], fh=[1])
    forecaster.update(y[-2:])
    torch.testing.assert_close(*[given["positions"][:, 0] for given in trained])


def test_better_than_the_last_season_without_training():
    y = load_airline()
    forecast = base().fit(y[:-12], fh=range(1, 13)).predict()
    naive = y[-24:-12].to_numpy()
    assert abs(forecast - y[-12:]).mean() < 0.9 * abs(y[-12:].to_numpy() - naive).mean()


def test_large_levels_lose_nothing():
    y = waves()
    np.testing.assert_allclose(
        base().fit(1e6 + y, fh=[1, 2]).predict() - 1e6, base().fit(y, fh=[1, 2]).predict(), atol=1e-3
    )


def test_new_rows_are_read_and_fine_tuning_is_asked_for():
    y = waves()
    forecaster = base().fit(y[:-5], fh=[1, 2])
    before = forecaster.fitted_.network
    forecaster.update(y[-5:])
    assert forecaster.fitted_.network is before
    pd.testing.assert_frame_equal(forecaster.predict(), base().fit(y, fh=[1, 2]).predict(), rtol=1e-3)
    tuned = [base(finetune_steps=2, random_state=0).fit(y, fh=[1, 2]).predict() for _ in range(2)]
    pd.testing.assert_frame_equal(*tuned)
    assert not np.allclose(tuned[0], forecaster.predict())


def test_an_order_makes_neighbours_count():
    y = waves(columns=3)
    plain, ordered = base().fit(y, fh=[1, 2]).predict(), base(channel_order=list(y)).fit(y, fh=[1, 2]).predict()
    assert not np.allclose(plain, ordered)


def test_columns_known_ahead_are_read():
    y = waves(rows=120, columns=2)
    X = pd.DataFrame({"x": np.random.default_rng(0).random(120)}, index=y.index)
    y += 4.0 * X[["x"]].to_numpy()
    plain = base().fit(y[:-12], fh=range(1, 13)).predict()
    for changes in ({}, {"finetune_steps": 2, "random_state": 0}):
        with_x = base(**changes).fit(y[:-12], X=X[:-12], fh=range(1, 13)).predict(X=X[-12:])
        assert (with_x - y[-12:]).abs().mean().mean() < 0.5 * (plain - y[-12:]).abs().mean().mean()
    with pytest.raises(ValueError, match="X must hold the rows of fh in predict"):
        base().fit(y[:-12], X=X[:-12], fh=[1, 2]).predict(X=X[:-12])


def test_files_come_back(tmp_path):
    y = waves()
    forecaster = base(finetune_steps=3, random_state=0).fit(y, fh=[1, 2])
    forecaster.to_files(tmp_path)
    for again in (MVPAForecaster.from_files(tmp_path), base(pretrained=tmp_path), base(pretrained=str(tmp_path))):
        np.testing.assert_allclose(again.fit(y, fh=[1, 2]).predict(), forecaster.predict(), rtol=1e-3)


def test_what_it_does_not_use_is_refused():
    y = waves()
    for changes, message in (
        ({"dim": 8}, r"dim must be left out with pretrained='base'.*got 8; to train a network with dim"),
        ({"quantiles": (0.5,)}, "quantiles must be left out"),
        ({"device": "cuda"}, r"device must be 'cpu' with pretrained, .* \(7 megabytes as shipped\), got 'cuda'"),
    ):
        with pytest.raises(ValueError, match=message):
            base(**changes).fit(y, fh=[1])
    with pytest.raises(
        FileNotFoundError,
        match=r"no pretrained forecaster 'bases': take 'base' or 'small', which .* or a folder",
    ):
        base(pretrained="bases").fit(y, fh=[1])
    with pytest.raises(ValueError, match="pretrained must be 'base', 'small' or a folder, got True"):
        base(pretrained=True).fit(y, fh=[1])


def test_places_are_read_without_training():
    y = waves(columns=3)
    table = pd.DataFrame({"depth": [1.0, 2.0, 4.0]}, index=list(y))
    placed = base(channel_positions=table).fit(y, fh=[1, 2]).predict()
    assert not np.allclose(placed, base().fit(y, fh=[1, 2]).predict(), rtol=1e-6)
    pd.testing.assert_frame_equal(base(channel_positions=table["depth"].to_dict()).fit(y, fh=[1, 2]).predict(), placed)
    with pytest.raises(ValueError, match="channel_positions must hold every column of y"):
        base(channel_positions=table[:2]).fit(y, fh=[1])


def test_the_horizon_may_be_told_in_predict():
    y = waves()
    forecaster = base().fit(y)
    for fh in ([1, 3], range(1, 80), [2]):
        pd.testing.assert_frame_equal(forecaster.predict(fh=fh), base().fit(y, fh=fh).predict())
    assert len(forecaster.predict_interval(fh=[1, 2])) == 2
    updated = base().fit(y[:-1]).update(y[-1:])
    pd.testing.assert_frame_equal(updated.predict(fh=[1, 2]), base().fit(y, fh=[1, 2]).predict())
    with pytest.raises((ValueError, NotImplementedError), match=r"insample|in-sample|in sample"):
        forecaster.predict(fh=[-1, 1])
    with pytest.raises(ValueError, match="`fh` must be passed"):
        base(finetune_steps=2).fit(y)


def test_pretrain_goes_on_training_it():
    parts = [waves(40 + 3 * i, columns=1) for i in range(3)]
    panel = pd.concat(parts, keys=range(3), names=["instance", "time"])
    forecaster = base(finetune_steps=3, random_state=0).pretrain(panel, fh=[1, 2])
    common, y = forecaster.pretrained_.network, waves()
    assert not torch.equal(common.weights.weight, load_base("base").weights.weight)
    tuned = forecaster.fit(y, fh=[1, 2])
    assert tuned.pretrained_.network is common
    assert not np.allclose(tuned.predict(), base(finetune_steps=3, random_state=0).fit(y, fh=[1, 2]).predict())
    plain = base().pretrain(panel, fh=[1, 2]).fit(y, fh=[1, 2]).predict()
    pd.testing.assert_frame_equal(plain, base().fit(y, fh=[1, 2]).predict())


def test_bounds_of_counts():
    y = pd.DataFrame({"count": np.random.default_rng(0).poisson(0.3, 80).astype(float)})
    plain = base().fit(y, fh=[1, 2, 3]).predict_quantiles(alpha=[0.05, 0.5, 0.95]).to_numpy()
    bounded = base(bounded=(0, None)).fit(y, fh=[1, 2, 3]).predict_quantiles(alpha=[0.05, 0.5, 0.95]).to_numpy()
    np.testing.assert_allclose(bounded, np.maximum(plain, 0.0), atol=1e-6)
    assert base(bounded=True).fit(y, fh=[1]).predict_quantiles(alpha=[0.999]).to_numpy() <= y.to_numpy().max()
    for wrong in ("no", (1, 0), (0,), (None, float("nan"))):
        with pytest.raises(ValueError, match=r"bounded must be True, False or a pair \(lower, upper\) in order"):
            base(bounded=wrong).fit(y, fh=[1])


@pytest.mark.parametrize("code", [1e9, -1e20, 1e30])
@pytest.mark.parametrize("row", [20, -1])
def test_a_code_for_missing_values_is_read_as_one(code, row):
    y = waves(rows=60).astype(float)
    missing, coded = y.copy(), y.copy()
    missing.iloc[row, 0], coded.iloc[row, 0] = np.nan, code
    expected = base().fit(missing, fh=range(1, 7)).predict()
    np.testing.assert_allclose(base().fit(coded, fh=range(1, 7)).predict(), expected, rtol=1e-3)


def test_whole_numbers_that_float64_rounds_are_named():
    y = waves(rows=40).round().astype("int64")
    with pytest.warns(UserWarning, match=r"column 'c0' of y has whole numbers beyond 2\*\*53, .* to multiples of 256"):
        base().fit(y + 2**60, fh=[1])
    with warnings.catch_warnings(action="error"):
        base().fit(y + 2**52, fh=[1])


def test_columns_known_ahead_are_named_where_they_lack_values_or_go_far():
    y = waves(rows=60)
    steps = pd.period_range(y.index[0], periods=66, freq=y.index.freq)
    X = pd.DataFrame({"heat": np.sin(np.arange(66)), "price": np.cos(np.arange(66))}, index=steps)
    forecaster = base().fit(y, X=X[:60], fh=range(1, 7))
    lacking, far = X[60:].copy(), X[60:].copy()
    lacking.iloc[2, 1], far.iloc[2, 1] = np.nan, 50.0
    with pytest.warns(UserWarning, match=rf"X must hold a value .*, got none of \['price'\] at {steps[62]}"):
        forecaster.predict(X=lacking)
    with pytest.warns(UserWarning, match="the covariate price goes .* times its range"):
        forecaster.predict(X=far)


@pytest.mark.parametrize("freq", ["h", "30min"])
@pytest.mark.parametrize(
    ("begins", "rows"), [("2024-03-20", 11), ("2024-03-20", 8), ("2024-10-16", 11), ("2024-10-16", 10)]
)
def test_a_day_follows_the_local_clock_where_it_changes(begins, rows, freq):
    day = 24 if freq == "h" else 48
    hours = pd.date_range(begins, periods=(rows + 3) * day, freq=freq, tz="Europe/Berlin")  # in the history, or ahead
    clock = hours.hour + hours.minute / 60
    load = pd.Series(10.0 + 5.0 * np.sin(2 * np.pi * clock / 24) + np.where(hours.hour == 8, 4.0, 0.0), hours)
    load += np.random.default_rng(0).normal(0.0, 0.05, len(load))
    told = pd.DataFrame({"noise": np.cos(np.arange(len(load)))}, hours)
    cut = rows * day
    for X in (None, told):
        forecaster = base().fit(load[:cut], X=None if X is None else X[:cut], fh=range(1, 3 * day + 1))
        forecast = forecaster.predict(X=None if X is None else X[cut:])
        assert forecast.index.equals(load.index[cut:])
        assert (forecast - load[cut:]).abs().mean() < 0.1  # an hour off, 1.0
