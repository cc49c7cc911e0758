"""The pretrained forecaster through neuralforecast."""

import pickle
from importlib import resources

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MAE, MSE, RMSE, DistributionLoss, HuberQLoss, IQLoss, MQLoss, QuantileLoss

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base

QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}


def panel(series, steps=60, seed=0):
    rng = np.random.default_rng(seed)
    dates = pd.date_range("2020-01-01", periods=steps, freq="D")
    season = np.sin(2 * np.pi * np.arange(steps) / 7)
    return pd.concat(
        pd.DataFrame({"unique_id": f"s{i:03}", "ds": dates, "y": 10 * i + season + 0.1 * rng.normal(size=steps)})
        for i in range(series)
    )


def fitted(df, **options):
    forecaster = NeuralForecast(models=[MVPA.from_pretrained("base", **options, **QUIET)], freq="D")
    forecaster.fit(df)
    return forecaster


@pytest.mark.parametrize("series", [1, 2, 64])
def test_forecasts_are_those_of_the_network(series):
    df = panel(series)
    out = fitted(df, h=9, loss=MQLoss(quantiles=[0.1, 0.5, 0.9])).predict()
    x = torch.tensor(df["y"].to_numpy().reshape(series, -1).T, dtype=torch.float32)[None]
    with torch.no_grad():
        expected = forecast_quantiles(load_base("base"), x, horizon=9, levels=(0.1, 0.5, 0.9), season=7)[0]
    got = out.iloc[:, 2:].to_numpy().reshape(series, 9, 3).transpose(1, 0, 2)
    np.testing.assert_allclose(np.sort(got, 2), expected.numpy(), rtol=1e-3, atol=1e-3)


def test_the_season_is_that_of_freq_unless_it_is_told(reloaded):
    df = panel(2, steps=40)
    x = torch.tensor(df["y"].to_numpy().reshape(2, -1).T, dtype=torch.float32)[None]

    def expected(season):
        with torch.no_grad():
            return forecast_quantiles(load_base("base"), x, horizon=5, season=season)[0, :, :, 4].T.ravel()

    assert not np.allclose(expected(7), expected(30), rtol=1e-3)
    for options, season in (({}, 7), ({"season": 30}, 30), ({"season": 0}, 0)):
        forecaster = fitted(df, h=5, **options)
        np.testing.assert_allclose(forecaster.predict().iloc[:, 2], expected(season), rtol=1e-3, atol=1e-3)
        loaded = reloaded(forecaster)
        np.testing.assert_allclose(loaded.predict(df).iloc[:, 2], expected(season), rtol=1e-3, atol=1e-3)
    for season in (2.5, "7"):
        with pytest.raises(ValueError, match="season must be a whole number of steps, 0 for none, or None, got"):
            fitted(df, h=5, season=season)


def test_training_changes_the_forecast_and_is_saved(reloaded):
    df = panel(4)
    trained = fitted(df, h=6, max_steps=3, learning_rate=1e-3)
    forecast = trained.predict()
    assert not np.allclose(forecast.iloc[:, 2], fitted(df, h=6).predict().iloc[:, 2])
    pd.testing.assert_frame_equal(reloaded(trained).predict(df), trained.predict(df))


def test_a_trained_model_from_files_is_trained_on_with_another_number_of_series(reloaded):
    loaded = reloaded(fitted(panel(3), h=7, max_steps=3, learning_rate=1e-3))
    before = loaded.predict(panel(5, seed=1)).iloc[:, 2].to_numpy()
    loaded.fit(panel(5, seed=1), use_init_models=False)
    after = loaded.predict().iloc[:, 2].to_numpy()
    assert len(after) == 5 * 7
    assert np.isfinite(after).all()
    assert not np.allclose(after, before, rtol=1e-4)


def test_the_weights_are_small_enough_for_a_wheel():
    folder = resources.files("mvpa_ts.forecasting.pretrained") / "weights" / "base"
    assert sum(len(path.read_bytes()) for path in folder.iterdir()) < 12e6


@pytest.mark.parametrize("loss", [QuantileLoss, HuberQLoss])
def test_one_quantile(loss):
    df = panel(2)
    low = fitted(df, h=4, loss=loss(0.1)).predict().iloc[:, 2]
    of_three = fitted(df, h=4, loss=MQLoss(level=[80])).predict().iloc[:, 3]
    np.testing.assert_allclose(low, of_three)


def test_what_does_not_fit():
    for loss in (DistributionLoss("Normal"), IQLoss()):  # the second draws its quantile
        with pytest.raises(ValueError, match=f"loss must be a point loss .* got {type(loss).__name__}"):
            MVPA.from_pretrained("base", h=3, loss=loss)
    with pytest.raises(ValueError, match="stat_exog_list must be left out: a pretrained forecaster"):
        MVPA.from_pretrained("base", h=3, stat_exog_list=["area"])
    with pytest.raises(FileNotFoundError, match="no pretrained forecaster 'large': take 'base' or 'small', which"):
        MVPA.from_pretrained("large", h=3)
    with pytest.raises(ValueError, match="name must be 'base', 'small' or a folder, got None"):
        MVPA.from_pretrained(None, h=3)
    for name, value in {"channel_window": 1, "hidden_size": 64, "components": ["content"]}.items():
        with pytest.raises(ValueError, match=f"{name} must be left out: a pretrained forecaster has its network"):
            MVPA.from_pretrained("base", h=3, **{name: value})


def test_covariates_are_read_without_training():
    rng = np.random.default_rng(0)
    df = panel(2, steps=132)
    df["price"], df["leader"] = rng.random(len(df)), rng.random(len(df))
    df["y"] += 5.0 * df["price"]
    past, ahead = df.groupby("unique_id").head(120), df.groupby("unique_id").tail(12)
    plain = fitted(past[["unique_id", "ds", "y"]], h=12).predict().merge(ahead, on=["unique_id", "ds"])
    forecaster = fitted(past, h=12, futr_exog_list=["price"])
    with_price = forecaster.predict(futr_df=ahead.drop(columns="y")).merge(ahead, on=["unique_id", "ds"])
    error = [(table.iloc[:, 2] - table["y"]).abs().mean() for table in (plain, with_price)]
    assert error[1] < 0.3 * error[0], error
    led = fitted(past, h=12, hist_exog_list=["leader"]).predict().iloc[:, 2]
    x, leader = (torch.tensor(past[name].to_numpy().reshape(2, -1).T.copy()).float()[None] for name in ("y", "leader"))
    with torch.no_grad():
        expected = forecast_quantiles(load_base("base"), x, horizon=12, historic=leader[..., None], season=7)[
            0, :, :, 4
        ]
    np.testing.assert_allclose(led, expected.T.ravel(), rtol=1e-3, atol=1e-3)


def test_categories_count_as_columns_of_0_and_1(reloaded):
    """Of text or numbers, beside a column of numbers, saved and loaded; the effect is found without training."""
    df = panel(2, steps=132)
    row = df.groupby("unique_id").cumcount()
    day = np.array(["mon", "tue", "sun"])[np.random.default_rng(3).integers(0, 3, 132)][row]
    df = df.assign(day=day, price=np.sin(row * row))
    df["y"] += 3.0 * (day == "sun") - 3.0 * (day == "tue")
    numbers = df.assign(**{name: (day == name).astype(float) for name in ("mon", "sun", "tue")}).drop(columns="day")
    tables = []
    for table, options in (
        (df, {"futr_exog_list": ["day", "price"], "cat_exog_list": ["day"], "categorical_cardinalities": {"day": 3}}),
        (numbers, {"futr_exog_list": ["price", "mon", "sun", "tue"]}),
    ):
        host, ahead = fitted(table[row < 120], h=12, **options), table[row >= 120].drop(columns="y")
        tables.append(host.predict(futr_df=ahead))
        pd.testing.assert_frame_equal(reloaded(host).predict(futr_df=ahead), tables[-1])
    np.testing.assert_allclose(tables[0].iloc[:, 2], tables[1].iloc[:, 2], rtol=1e-4, atol=1e-4)
    plain = fitted(df.loc[row < 120, ["unique_id", "ds", "y"]], h=12).predict()
    errors = [(table.iloc[:, 2] - df["y"][row >= 120].to_numpy()).abs().mean() for table in (tables[0], plain)]
    assert errors[0] < 0.5 * errors[1], errors


def test_places_are_read_without_training():
    """Only distances on a line count: what is told in another unit, or turned round, forecasts the same."""
    df, names = panel(4), ["s000", "s001", "s002", "s003"]
    place = dict(zip(names, [[0.0], [1.0], [2.5], [3.0]], strict=True))
    plain = fitted(df, h=4).predict().iloc[:, 2]
    placed = fitted(df, h=4, channel_positions=place).predict().iloc[:, 2]
    assert not np.allclose(placed, plain, rtol=1e-6)
    farther = {name: [1000.0 * value - 7.0 for value in point] for name, point in place.items()}
    np.testing.assert_allclose(fitted(df, h=4, channel_positions=farther).predict().iloc[:, 2], placed, rtol=1e-4)
    with pytest.raises(ValueError, match=r"channel_positions must hold every series of df, got none of .s003."):
        fitted(df, h=4, channel_positions={name: place[name] for name in names[:3]}).predict()


def test_the_look_back_is_honoured_up_to_what_the_network_reads():
    df = panel(2, steps=80)
    whole = fitted(df, h=4)
    expected = whole.predict(df.groupby("unique_id").tail(30)).iloc[:, 2]
    assert not np.allclose(expected, whole.predict().iloc[:, 2])
    np.testing.assert_allclose(fitted(df, h=4, input_size=30).predict().iloc[:, 2], expected, rtol=1e-4)
    with pytest.raises(ValueError, match=r"input_size must be left out, or be at most the 8192 steps .*, got 8193"):
        MVPA.from_pretrained("base", h=3, input_size=8193)


def test_a_day_of_minutes_is_read():
    """A day is longer than the network's own look-back, and `freq` tells it."""
    day = 20 * np.random.default_rng(0).normal(size=1440 // 20).repeat(20)
    dates = pd.date_range("2020-01-01", periods=2000, freq="min")
    df = pd.DataFrame({"unique_id": "load", "ds": dates, "y": day[np.arange(2000) % 1440]})
    truth = day[2000 % 1440 :][:60]

    def error(**options):
        forecaster = NeuralForecast(models=[MVPA.from_pretrained("base", h=60, **options, **QUIET)], freq="min")
        forecaster.fit(df)
        return np.abs(forecaster.predict()["PretrainedMVPA"] - truth).mean()

    assert error() < 0.5 * error(season=0)


def test_it_is_not_written_as_onnx(tmp_path):
    with pytest.raises(ValueError, match="PretrainedMVPA cannot be written as ONNX with all that it does"):
        fitted(panel(2), h=4).models[0].to_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_it_is_not_explained():
    with pytest.raises(ValueError, match=r"explain\(\) needs models without PretrainedMVPA: no gradient leads"):
        fitted(panel(2), h=4).explain(horizons=[1], series=[0])


def test_an_order_says_how_many_series_there_are():
    df = panel(3)
    order = ["s002", "s000", "s001"]
    plain, by_name, given = (
        fitted(df, h=4, **options).predict().iloc[:, 2] for options in ({}, {"ordered": True}, {"channel_order": order})
    )
    assert not any(np.allclose(forecast, given) for forecast in (plain, by_name))
    with pytest.raises(ValueError, match=r"channel_order must name each series once, got 's000' more than once"):
        MVPA.from_pretrained("base", h=3, channel_order=["s000", "s000"])


@pytest.mark.parametrize("steps", [0, 3])
def test_forecasts_have_the_unit_of_the_series(steps):
    df = panel(2)
    forecasts = [
        fitted(df.assign(y=df["y"] * unit), h=4, max_steps=steps).predict().iloc[:, 2].to_numpy(dtype=float) / unit
        for unit in (1.0, 1e-12, 1e15)
    ]
    np.testing.assert_allclose(forecasts[1:], forecasts[:1] * 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("covariate_too", [False, True])
def test_covariates_of_missing_rows_are_read_where_they_are_given(covariate_too, fit):
    draws, steps = np.random.default_rng(0), np.arange(112)
    temperature = np.sin(steps / 5)
    y = 10.0 + 3.0 * temperature[:100] + draws.normal(0.0, 0.3, 100)
    gap = (steps >= 60) & (steps < 66)
    known = np.where(gap & covariate_too, np.nan, temperature)
    times = pd.date_range("2026-01-01", periods=112, freq="h")
    rows = pd.DataFrame({"unique_id": "a", "ds": times, "temperature": known})
    past = rows[:100].assign(y=np.where(gap[:100], 1e6, y), available_mask=(~gap[:100]).astype(float))
    model = MVPA.from_pretrained("base", h=12, futr_exog_list=["temperature"], loss=MQLoss(level=[80]), alias="M")
    found = fit(model, past).predict(futr_df=rows[100:])[["M-lo-80", "M-median", "M-hi-80"]].to_numpy()
    x, future = torch.tensor(y, dtype=torch.float32)[None, :, None], torch.tensor(known, dtype=torch.float32)
    expected = forecast_quantiles(
        load_base("base"), x, torch.tensor(~gap[:100])[None, :, None], horizon=12, levels=(0.1, 0.5, 0.9), season=168,
        future=future[None, :, None, None],
    )  # fmt: skip
    np.testing.assert_allclose(found, expected[0, :, 0].detach().numpy(), rtol=1e-4)


def test_past_covariates_of_missing_rows_are_read():
    draws = np.random.default_rng(0)
    leader = 100.0 + draws.normal(size=126).cumsum()
    rows = pd.DataFrame({"unique_id": "a", "ds": pd.date_range("2026-01-01", periods=120, freq="D"), "x": leader[6:]})
    rows["y"] = leader[:-6]  # six days later
    rows.loc[rows.index[-4:], "y"] = np.nan
    forecaster = fitted(rows.assign(available_mask=rows["y"].notna() * 1.0), h=2, hist_exog_list=["x"])
    x, past = (torch.tensor(rows[name].to_numpy(), dtype=torch.float32)[None, :, None] for name in ("y", "x"))
    with torch.no_grad():
        expected = forecast_quantiles(load_base("base"), x, horizon=2, season=7, historic=past[..., None])
    np.testing.assert_allclose(forecaster.predict().iloc[:, 2], expected[0, :, 0, 4], rtol=1e-4)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99), count=st.integers(2, 4), batch=st.sampled_from([1, 3, 32]), unit=st.sampled_from([1, 1e3])
)
def test_what_must_not_change_a_forecast(seed, count, batch, unit):
    """Order of rows and of series by name, batches, units, a second forecast; not the panel, which is read together."""
    rng = np.random.default_rng(seed)
    names = [f"s{row}" for row in range(count)]
    dates = pd.date_range("2024-01-01", periods=50, freq="h")
    rows = pd.concat(
        pd.DataFrame({"unique_id": name, "ds": dates, "y": rng.normal(size=50).cumsum() + 5}) for name in names
    )
    expected = _forecast_of(rows, 32).set_index(["unique_id", "ds"])["PretrainedMVPA"]
    renamed = dict(zip(names, rng.permutation(names), strict=True))
    changed = rows.assign(y=rows["y"] * unit, unique_id=rows["unique_id"].map(renamed))
    changed = changed.sample(frac=1, random_state=seed)
    forecast = _forecast_of(changed, batch)
    back = {new: old for old, new in renamed.items()}
    forecast = forecast.assign(unique_id=forecast["unique_id"].map(back)).set_index(["unique_id", "ds"])
    np.testing.assert_allclose(
        forecast["PretrainedMVPA"][expected.index] / unit, expected, rtol=1e-4, atol=1e-4 * rows["y"].std()
    )


def _forecast_of(rows: pd.DataFrame, batch: int) -> pd.DataFrame:
    model = MVPA.from_pretrained("base", h=4, batch_size=batch, inference_windows_batch_size=batch, **QUIET)
    host = NeuralForecast([model], freq="h")
    host.fit(rows)
    forecast = host.predict()
    pd.testing.assert_frame_equal(host.predict(), forecast, check_exact=True)
    return forecast


def test_a_forecast_leaves_no_folder(tmp_path, monkeypatch, fit):
    monkeypatch.chdir(tmp_path)
    fit(MVPA.from_pretrained("base", h=4), panel(2), "D").predict()
    assert not list(tmp_path.iterdir())


def test_intervals_of_a_longer_horizon_in_predict_grow_with_it():
    """The host would go on from its own forecasts as if they were values."""
    df = panel(2).assign(y=lambda df: np.random.default_rng(0).normal(size=len(df)).cumsum())
    expected = fitted(df, h=12, loss=MQLoss(level=[80])).predict()
    forecaster = fitted(df, h=5, loss=MQLoss(level=[80]))
    pd.testing.assert_frame_equal(forecaster.predict(h=12), expected)
    assert len(forecaster.predict()) == 10


def test_windows_before_the_first_row_are_refused():
    """The host would give back fewer than were asked for, the first ones forecast from nothing."""
    host = NeuralForecast([MVPA.from_pretrained("base", h=5, **QUIET)], freq="D")
    assert host.cross_validation(panel(1), n_windows=11, step_size=5).groupby("cutoff").ngroups == 11
    with pytest.raises(
        ValueError, match=r"df must have rows before those that cross_validation holds out \(60\), got 60"
    ):
        host.cross_validation(panel(1), n_windows=12, step_size=5)


@pytest.mark.parametrize("series", [["s000", "s001", "s002"], ["s002", "s000", "s001"]])
def test_future_rows_are_those_of_their_series_whatever_the_order_of_ids(series, fit):
    """Categories have an order of their own; the host lays rows side by side by their place alone."""
    df = panel(3, steps=64)
    df["price"] = np.random.default_rng(1).normal(size=len(df))
    df["y"] += 3.0 * df["price"]
    past, ahead = df.groupby("unique_id").head(60), df.groupby("unique_id").tail(4).drop(columns="y")
    tables = []
    for ids in (past["unique_id"], pd.Categorical(past["unique_id"], categories=series)):
        model = MVPA.from_pretrained("base", h=4, futr_exog_list=["price"], **QUIET)
        host = fit(model, past.assign(unique_id=ids), "D", local_scaler_type="standard")
        tables.append(host.predict(futr_df=ahead).astype({"unique_id": str}).sort_values(["unique_id", "ds"]))
    np.testing.assert_allclose(tables[1].iloc[:, 2], tables[0].iloc[:, 2], rtol=1e-4)


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["s001", "s000"]), pl.Int16, pl.UInt64])
def test_ids_of_every_type_of_polars_are_saved(kind, reloaded, fit):
    name = pl.col("unique_id")
    text = name if kind == pl.Categorical or isinstance(kind, pl.Enum) else name.str.slice(1)
    df = pl.from_pandas(panel(2)).with_columns(text.cast(kind))
    host = fit(MVPA.from_pretrained("base", h=4, **QUIET), df, "1d")
    assert host.uids.dtype == kind
    expected, loaded = host.predict(), reloaded(host).predict()
    assert loaded["unique_id"].cast(str).to_list() == expected["unique_id"].cast(str).to_list()
    np.testing.assert_array_equal(loaded["PretrainedMVPA"], expected["PretrainedMVPA"])


@pytest.mark.parametrize("loss", [MSE(), RMSE()])
def test_a_loss_of_squares_gives_the_mean(loss):
    skewed = panel(6, steps=300)
    skewed["y"] = np.exp(3.0 + np.random.default_rng(1).normal(size=len(skewed)))
    mean, median = (fitted(skewed, h=12, loss=of).predict().iloc[:, 2].mean() for of in (loss, MAE()))
    assert np.exp(3.0) * 0.9 < median < np.exp(3.0) * 1.15
    assert np.exp(3.5) * 0.8 < mean < np.exp(3.5) * 1.1  # of a log-normal distribution


def test_bounds_in_other_units_are_refused():
    model = MVPA.from_pretrained("base", h=2, bounded=(0, None), **QUIET)
    with pytest.raises(ValueError, match=r"bounded \(\(0, None\)\) is in units of y, and local_scaler_type"):
        NeuralForecast([model], freq="D", local_scaler_type="standard").fit(panel(1))


def test_a_pickled_forecaster_forecasts_the_same():
    forecaster = fitted(panel(2), h=3)
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(forecaster)).predict(), forecaster.predict())


def test_categories_take_their_share_of_the_effects(fit):
    draws = np.random.default_rng(0)
    code = draws.integers(0, 3, 300)
    sales = panel(1, steps=300).assign(
        kind=pd.Categorical(np.array(["a", "b", "c"])[code]),
        x=code + 0.3 * draws.normal(size=300),
        y=10.0 * code + draws.normal(size=300),
    )
    columns = {"futr_exog_list": ["x", "kind"], "cat_exog_list": ["kind"], "categorical_cardinalities": {"kind": 3}}
    model = MVPA.from_pretrained("small", h=12, **columns, **QUIET)
    effects = model.effects(sales).set_index("covariate")["effect"]
    assert effects.to_dict() == pytest.approx({"x": 0.0, "kind=b": 10.0, "kind=c": 20.0}, abs=0.5)
    with pytest.raises(ValueError, match=r"df must have the columns of .* covariates, got none of \['kind'\]"):
        model.effects(sales.drop(columns="kind"))
    forecaster = fit(model, sales[:-12], "D")
    forecast = forecaster.predict(futr_df=sales[-12:].drop(columns="y")).iloc[:, 2].to_numpy()
    assert np.abs(forecast - sales["y"][-12:]).mean() < 2.0


def test_a_covariate_that_is_new_ahead_is_said():
    sales = panel(1).assign(promotion=0.0)
    forecaster = fitted(sales[:-5], h=5, futr_exog_list=["promotion"])
    with pytest.warns(UserWarning, match="never vary in their history have no effect, whatever comes: promotion$"):
        forecaster.predict(futr_df=sales[-5:].drop(columns="y").assign(promotion=1.0))


def test_windows_of_a_cross_validation_are_forecast_as_each_alone():
    df = panel(2, steps=90)
    df = df.assign(p=np.tile(np.random.default_rng(1).uniform(size=90), 2))
    df["y"] += 3.0 * df["p"]
    df = df[(df["unique_id"] == "s000") | (df["ds"] >= df["ds"].iloc[50])]  # the other has 22 rows at the first cutoff
    host = fitted(df, h=6, futr_exog_list=["p"])
    windows = host.cross_validation(df, n_windows=3, step_size=6)
    for cutoff, window in windows.groupby("cutoff"):
        seen, ahead = df[df["ds"] <= cutoff], df[df["ds"] > cutoff]
        alone = host.predict(df=seen, futr_df=ahead.groupby("unique_id").head(6)[["unique_id", "ds", "p"]])
        np.testing.assert_allclose(window["PretrainedMVPA"], alone["PretrainedMVPA"], rtol=1e-4, atol=1e-4)
