"""Panels as users have them: gaps, other series at prediction, order, cycles, dates, Spark."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from neuralforecast.losses.pytorch import DistributionLoss, MQLoss
from support.made_up_networks import QUIET

from mvpa_ts.adapters.neuralforecast import MVPA, AutoMVPA, frames
from mvpa_ts.adapters.neuralforecast.dates import jump_of, other_frequency, saved_frequency
from mvpa_ts.adapters.neuralforecast.panel import Panel, whole_positions


def with_gaps(frame: pd.DataFrame, stored: float) -> pd.DataFrame:
    """Every third row of the second series and the last two of the third are missing."""
    row = frame.groupby("unique_id").cumcount()
    last = row.max()
    missing = ((frame["unique_id"] == "s01") & (row % 3 == 0)) | ((frame["unique_id"] == "s02") & (row > last - 2))
    return frame.assign(y=frame["y"].mask(missing, stored), available_mask=(~missing).astype(float))


@pytest.mark.parametrize("loss", [None, DistributionLoss("Normal", num_samples=20)], ids=["MAE", "Normal"])
def test_gaps_train_and_what_is_stored_there_does_not_matter(loss, tiny, panel, fit):
    forecasts = []
    for stored in (np.nan, -1e6):
        frame = with_gaps(panel(4), stored)
        frame["historic"] = frame["y"]
        frame["future"] = frame["y"]
        model = tiny(loss=loss, max_steps=5, hist_exog_list=["historic"], futr_exog_list=["future"])
        fitted = fit(model, frame, val_size=6)
        ahead = fitted.make_future_dataframe().assign(future=1.0)
        forecasts.append(fitted.predict(futr_df=ahead)["MVPA" if loss is None else "MVPA-median"].to_numpy())
    assert np.isfinite(forecasts[0]).all()
    np.testing.assert_allclose(forecasts[0], forecasts[1], rtol=1e-5)


def test_gaps_are_not_read_as_values(tiny, panel, fit):
    fitted = fit(tiny(max_steps=5), panel(4))
    frame = with_gaps(panel(4), np.nan)
    forecast = fitted.predict(frame).groupby("unique_id")["MVPA"].mean()
    np.testing.assert_allclose(forecast, 100.0 * np.arange(1, 5), rtol=0.1)


@pytest.mark.parametrize("kind", ["hist_exog_list", "futr_exog_list"])
def test_gaps_in_columns_are_neutral_after_scaling(kind, tiny, awaken, panel, dataset):
    """A column's own level is scaled away; a gap must not bring it back."""
    forecasts = []
    for level in (0.0, 1000.0):
        frame = with_gaps(panel(4), np.nan)
        column = np.random.default_rng(0).normal(size=len(frame)) + level
        model = awaken(tiny(scaler_type="standard", **{kind: ["z"]}))
        model.test_size = 6
        forecasts.append(model.predict(dataset(frame.assign(z=column))))
    np.testing.assert_allclose(*forecasts, rtol=1e-3)


def test_gaps_with_sample_weights(tiny, panel, fit):
    frame = with_gaps(panel(4), np.nan)
    frame["sample_weight"] = frame["available_mask"].replace(0.0, np.nan)
    assert np.isfinite(fit(tiny(), frame).predict()["MVPA"]).all()


def test_equal_sample_weights_change_nothing(tiny, panel, fit):
    """The host counted the rows that a window lacks as rows of weight 0."""
    forecasts = [
        fit(tiny(max_steps=4), frame).predict()["MVPA"]
        for frame in (with_gaps(panel(4), 0.0), with_gaps(panel(4), 0.0).assign(sample_weight=3.0))
    ]
    np.testing.assert_allclose(*forecasts, rtol=1e-5)


def test_sample_weights_weigh(tiny, panel, fit):
    """Windows that end in the first half count for nothing, so what is there does not matter."""
    forecasts = []
    for level in (0.0, 1000.0):
        frame = panel(2)
        row = frame.groupby("unique_id").cumcount()
        frame["sample_weight"] = (row >= 30) * 1.0
        frame["y"] = frame["y"].mask(row < 13, level)  # no window of 12 + 6 with a weighted row ahead reaches it
        fitted = fit(tiny(2, max_steps=4, windows_batch_size=64), frame[row >= 0])
        forecasts.append(fitted.predict()["MVPA"].to_numpy())
    np.testing.assert_allclose(forecasts[0], forecasts[1], rtol=1e-3)


def test_weights_that_leave_nothing_to_train_on_are_refused(tiny, panel, forecaster):
    with pytest.raises(ValueError, match="df must have a sample_weight above 0 in some row, got none"):
        forecaster(tiny(2)).fit(panel(2).assign(sample_weight=0.0))


def test_a_series_without_values_is_refused(tiny, panel, forecaster):
    frame = panel(4)
    empty = frame["unique_id"] == "s02"
    frame = frame.assign(y=frame["y"].mask(empty), available_mask=(~empty).astype(float))
    with pytest.raises(ValueError, match=r"value of every series, got none of series 's02'"):
        forecaster(tiny()).fit(frame)


@pytest.mark.parametrize(("few", "many"), [(4, 64), (64, 4)])
def test_another_number_of_series_at_prediction(few, many, tiny, panel, fit):
    """The host would cut 64 series into batches of 32 and mix up their rows."""
    fitted = fit(tiny(few, max_steps=3), panel(few))
    forecast = fitted.predict(panel(many)).groupby("unique_id")["MVPA"].mean()
    np.testing.assert_allclose(forecast, 100.0 * np.arange(1, many + 1), rtol=0.1)


def test_few_series_train_with_drop_last(tiny, panel, dataset):
    """The host would find no full batch of 32 series and train not at all."""
    model = tiny(drop_last_loader=True)
    before = model.network.linear.weight.clone()
    model.fit(dataset(panel(4)))
    assert not torch.equal(before, model.network.linear.weight)


def test_training_sees_the_series_in_order(told, tiny, panel, dataset):
    """The host's loader would shuffle the series of every training batch."""
    model = tiny(8, max_steps=4, components=["content", "channel"])
    calls = told(model)
    model.fit(dataset(panel(8)))
    assert len(calls) >= 4
    assert all((call["x"].mean(1).diff(dim=1) > 50).all() for call in calls)


def test_wrong_n_series_is_refused(tiny, panel, forecaster):
    with pytest.raises(ValueError, match=r"n_series \(8\) must be the number of series in df, got 4"):
        forecaster(tiny(8)).fit(panel(4))


@pytest.mark.parametrize("n", [5, 64])
def test_channel_order_equals_renaming(n, tiny, awaken, panel, dataset, forecaster):
    order = np.random.default_rng(1).permutation(n)
    frame = panel(n)
    names = sorted(frame["unique_id"].unique())
    wanted = [names[i] for i in order]
    sorting = frame.assign(unique_id=frame["unique_id"].map({name: f"{wanted.index(name):03d}" for name in names}))
    static = pd.DataFrame({"unique_id": names, "kind": np.arange(n) / n})

    # Without vectors, which are drawn at random for the names as they sort.
    options = {"stat_exog_list": ["kind"], "network": {"per_channel": []}}
    ordered, renamed = (tiny(n, channel_order=given, **options) for given in (wanted, None))
    data = dataset(frame, static_df=static)
    data_renamed = dataset(sorting, static_df=static.assign(unique_id=[f"{wanted.index(name):03d}" for name in names]))
    for model, given in ((ordered, data), (renamed, data_renamed)):
        awaken(model, 0.5).fit(given)
    here = ordered.predict(data).reshape(n, -1)
    there = renamed.predict(data_renamed).reshape(n, -1)
    np.testing.assert_allclose(here[order], there, rtol=1e-4)
    plain = awaken(tiny(n, **options), 0.5)
    plain.fit(data)
    assert not np.allclose(plain.predict(data).reshape(n, -1), here, rtol=1e-4)


@pytest.mark.parametrize("names", [["b", "a", "c", "d"], [10, 9, 100, 1]], ids=["text", "integers"])
def test_channel_order_through_the_host(names, tiny, panel, fit):
    frame = panel(4, names=names)
    fitted = fit(tiny(channel_order=names), frame)
    forecast = fitted.predict().groupby("unique_id")["MVPA"].mean()
    np.testing.assert_allclose(forecast[names], 100.0 * np.arange(1, 5), rtol=0.2)
    other = ["x", *names[1:]] if isinstance(names[0], str) else [11, *names[1:]]
    with pytest.raises(
        ValueError, match=r"channel_order must name each series of df once, .* only one of them: .*(x|11)"
    ):
        fitted.predict(panel(4, names=other))
    with pytest.raises(ValueError, match="channel_order names 4 series, the panel has 2"):
        fitted.predict(panel(2))


def test_categories_may_have_an_order_of_their_own(panel, tiny, fit):
    """The host keeps it; `channel_order` names series, whatever their places in the data set are."""
    frame = panel(4)
    names = sorted(frame["unique_id"].unique())
    for categories in (names, names[::-1]):
        frame["unique_id"] = pd.Categorical(frame["unique_id"], categories=categories)
        fitted = fit(tiny(channel_order=["s02", "s00", "s03", "s01"]), frame)
        seen = []
        fitted.models[0].network.register_forward_pre_hook(lambda module, given, seen=seen: seen.append(given[0]))
        fitted.predict()
        np.testing.assert_allclose(seen[-1].mean((0, 1)), [300, 100, 400, 200], rtol=0.1)


def test_channel_order_of_any_array_can_be_saved(tiny, panel, fit, reloaded):
    frame = panel(4)
    for names in (frame["unique_id"].unique(), np.array(["s03", "s01", "s02", "s00"])):
        fitted = fit(tiny(channel_order=names), frame)
        again = reloaded(fitted, save_dataset=False)
        assert again.models[0].hparams["channel_order"] == list(names)
        pd.testing.assert_frame_equal(again.predict(frame), fitted.predict(frame))


def test_channel_order_must_fit(tiny, panel, forecaster):
    with pytest.raises(ValueError, match=r"these are in only one of them: 's03', 'z'"):
        forecaster(tiny(channel_order=["s00", "s01", "s02", "z"])).fit(panel(4))


CYCLE = {"cycle_length": 12, "cycle_column": "phase", "futr_exog_list": ["phase"]}


def with_cycle(frame: pd.DataFrame, length: int = 12) -> pd.DataFrame:
    """The cycle alone, its position counted over a calendar that starts anywhere."""
    position = frame.groupby("unique_id").cumcount() + 7
    level = 100.0 * (frame["unique_id"].astype("category").cat.codes + 1)
    shape = np.random.default_rng(3).normal(size=length)
    return frame.assign(phase=position, y=level + 10 * shape[position % length])


@pytest.mark.parametrize("loss", [None, DistributionLoss("Normal", num_samples=200)], ids=["MAE", "Normal"])
@pytest.mark.parametrize("per_series", [False, True])
def test_cycle_is_learnt_in_phase(loss, per_series, tiny, panel, forecaster):
    """The look-back is hidden: the phase alone tells what follows."""
    model = tiny(
        2,
        exclude_insample_y=True,
        encoder_layers=0,
        max_steps=100,
        learning_rate=5e-2,
        windows_batch_size=32,
        loss=loss,
        network={"per_channel": ["vectors", "cycle"] if per_series else ["vectors"]},
        **CYCLE,
    )
    frame = with_cycle(panel(2, rows=80))
    fitted = forecaster(model)
    row = frame.groupby("unique_id").cumcount()
    fitted.fit(frame[row < 74])
    forecast = fitted.predict(futr_df=frame[row >= 74][["unique_id", "ds", "phase"]])
    error = np.abs(forecast.iloc[:, 2].to_numpy() - frame.loc[row >= 74, "y"].to_numpy())
    assert error.mean() < 3, "the cycle's own deviation is about 10"


def test_phase_of_missing_rows_is_counted():
    position = torch.arange(7, 25)[None, :, None].expand(3, 18, 2).float()  # 12 + 6 steps, two series
    observed = torch.ones(3, 12, 2, dtype=torch.bool)
    observed[1, 5:] = False
    observed[1, 8, 1] = True  # the other series is there for longer
    observed[2] = False
    hidden = position.clone()
    hidden[:, :12][~observed] = 0.0
    assert whole_positions(hidden.round().long(), observed.any(2)).tolist() == [list(range(7, 25))] * 3


def test_phase_follows_the_clock():
    """A clock that repeats an hour and then skips two; a missing row at the jump is counted from the one before."""
    clock = torch.tensor([3, 4, 4, 5, 8, 9, 9, 10])
    position = clock[None, :, None].expand(2, 8, 2).float().clone()
    observed = torch.ones(2, 5, 2, dtype=torch.bool)
    observed[0, 2, 0] = False  # the other series has it
    observed[1, 4] = False
    position[:, :5][~observed] = 0.0
    expected = [[3, 4, 4, 5, 8, 9, 9, 10], [3, 4, 4, 5, 6, 9, 9, 10]]
    assert whole_positions(position.round().long(), observed.any(2)).tolist() == expected


def test_a_clock_that_jumps_is_read_in_each_row(told, tiny, panel, dataset):
    """Dates skip three hours: the values are the clock's, and so are the phases of windows and closed-form start."""
    clock = (np.arange(60) + 3 * (np.arange(60) >= 31)) % 24
    frame = panel(2).assign(y=np.tile(clock, 2).astype(float), phase=np.tile(clock, 2))
    model = tiny(2, cycle_length=24, cycle_column="phase", futr_exog_list=["phase"], training={"ridge": 0.1})
    calls = told(model)
    model.fit(dataset(frame))
    jumps = 0
    for x, phase in ((call["x"], call["phase"]) for call in calls):
        np.testing.assert_array_equal(x[..., 0], phase[:, :12] % 24)
        jumps += int((x[:, 1:, 0] - x[:, :-1, 0] == 4).sum())
    assert jumps
    np.testing.assert_array_equal(Panel(dataset(frame), 0, fitting=True).cycle_positions("phase"), clock)


def test_phase_is_read_where_it_is_not_missing(tiny, awaken, panel, fit):
    frame = with_cycle(panel(2))
    fitted = fit(awaken(tiny(2, learning_rate=1e-9, max_steps=1, **CYCLE)), frame)
    ahead = fitted.make_future_dataframe().assign(phase=lambda new: new.groupby("unique_id").cumcount() + 67)
    row = frame.groupby("unique_id").cumcount()
    lost = frame.assign(available_mask=(row < 58).astype(float), phase=frame["phase"].mask(row >= 58))
    there = fitted.predict(lost.assign(phase=lost["phase"].fillna(0.0)), futr_df=ahead)["MVPA"]
    np.testing.assert_array_equal(fitted.predict(lost, futr_df=ahead)["MVPA"], there)
    later = fitted.predict(lost.assign(phase=lost["phase"] + 12), futr_df=ahead.assign(phase=ahead["phase"] + 12))
    np.testing.assert_allclose(later["MVPA"], there, rtol=1e-5)
    shifted = fitted.predict(lost.assign(phase=lost["phase"] + 5), futr_df=ahead.assign(phase=ahead["phase"] + 5))
    assert not np.allclose(shifted["MVPA"], there, rtol=1e-3)


@pytest.mark.parametrize("scaler", ["standard", "revin"])
def test_the_cycle_column_is_neither_scaled_nor_a_feature(scaler, told, tiny, panel, dataset):
    frame = with_cycle(panel(2)).assign(known=1.0)
    model = tiny(2, scaler_type=scaler, **CYCLE | {"futr_exog_list": ["known", "phase"]})
    calls = told(model)
    model.fit(dataset(frame))
    assert all(int(call["phase"].min()) >= 7 and call["phase"].dtype == torch.int64 for call in calls)
    assert all(call["future"].shape[-1] == 1 for call in calls)


def test_a_scaled_cycle_column_is_refused(tiny, panel, forecaster):
    model = tiny(2, **CYCLE)
    with pytest.raises(ValueError, match=r"cycle_column='phase' must hold whole numbers.*local_scaler_type"):
        forecaster(model, local_scaler_type="standard").fit(with_cycle(panel(2)))


@pytest.mark.parametrize(
    ("cycle_length", "held_out", "said"),
    [
        (59, 0, []),
        (60, 0, ["cycle_length (60) should be smaller than the number of rows to train on, got 60"]),
        (48, 6, []),
        (48, 12, ["cycle_length (48) should be smaller than the number of rows to train on, got 48"]),
    ],
)
def test_a_cycle_that_no_row_repeats_is_said(cycle_length, held_out, said, tiny, panel, dataset, recwarn):
    model = tiny(2, cycle_length=cycle_length, cycle_column="phase", futr_exog_list=["phase"], max_steps=1)
    model.fit(dataset(with_cycle(panel(2))), val_size=held_out)
    model.finetune(max_steps=2).fit(dataset(with_cycle(panel(2, rows=40))))  # it knows the cycle
    messages = [str(warning.message).partition(":")[0] for warning in recwarn]
    assert [message for message in messages if message.startswith("cycle_length")] == said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": {"per_channel": ["cycle"]}}, r"cycle in per_channel keeps the model to the 2 series \(n_series\)"),
        ({"bounded": True}, r"bounded keeps the model to the 2 series \(n_series\) of its fit, got 3"),
    ],
)
def test_what_belongs_to_series_keeps_their_number(options, message, tiny, panel, dataset):
    with pytest.raises(ValueError, match=message):
        tiny(2, **CYCLE, **options).predict(dataset(with_cycle(panel(3))))


@pytest.mark.parametrize("order", [None, ["s02", "s00", "s03", "s01"]], ids=str)
@pytest.mark.parametrize("local_scaler", [None, "standard"])
def test_forecasts_stay_in_the_range_of_training(order, local_scaler, tiny, panel, forecaster, awaken):
    frame = panel(4)
    frame["available_mask"] = 1.0
    last = frame["ds"] >= frame["ds"].unique()[-12]
    frame.loc[last, "y"] += 500.0  # the validation and test rows
    frame.loc[frame.index[10], ["y", "available_mask"]] = -1e6, 0.0
    seen = frame[~last & (frame["available_mask"] > 0)].groupby("unique_id")["y"]
    outside = []
    for bounded in (False, True):
        fitted = forecaster(
            tiny(bounded=bounded, channel_order=order, loss=MQLoss(level=[80])), local_scaler_type=local_scaler
        )
        fitted.fit(frame, val_size=12)
        awaken(fitted.models[0], 10.0)
        forecast = fitted.predict().set_index("unique_id").drop(columns="ds")
        low, high = (extreme.loc[forecast.index].to_numpy()[:, None] for extreme in (seen.min(), seen.max()))
        outside.append(((forecast < low - 1e-3) | (forecast > high + 1e-3)).to_numpy().mean())
        if bounded:
            assert (np.isclose(forecast, low) | np.isclose(forecast, high)).mean() > 0.5
    assert outside[0] > 0.5
    assert outside[1] == 0.0


def test_unsorted_frames_are_sorted(tiny, panel, fit):
    frame = panel(4)
    forecasts = [fit(tiny(), given).predict() for given in (frame, frame.sample(frac=1.0, random_state=0))]
    pd.testing.assert_frame_equal(*forecasts)


def test_series_that_do_not_share_dates_are_reported(tiny, panel, forecaster):
    frame = panel(4)
    row = frame.groupby("unique_id").cumcount()
    later_start = frame[(frame["unique_id"] != "s01") | (row >= 10)]
    with warnings.catch_warnings(action="error", category=UserWarning):
        warnings.filterwarnings("ignore", message=".*(num_workers|val_check_steps|LeafSpec).*")
        forecaster(tiny()).fit(later_start)
    early = r"dates of series 's01' end before 2024-01-03 11:00:00, so forecasts begin at other dates"
    for lacking, message in ((row == 30, "dates of series 's01' lack some that others have"), (row > 55, early)):
        fitted = forecaster(tiny())
        with pytest.warns(UserWarning, match=message) as caught:
            fitted.fit(frame[(frame["unique_id"] != "s01") | ~lacking])
        assert sum("series 's01'" in str(warning.message) for warning in caught) == 1
        with warnings.catch_warnings(action="error", category=UserWarning):
            fitted.predict()  # fit has said it
    gone = ((frame["unique_id"] == "s01") & (row == 30)) | ((frame["unique_id"] == "s02") & (row > 55))
    with pytest.warns(UserWarning, match="'s02' end before .* at other dates, and dates of series 's01' lack"):
        forecaster(tiny()).fit(frame[~gone])


@pytest.mark.parametrize("model", [MVPA(6, 12, 4), AutoMVPA(6, 4, storage=None)], ids=str)
def test_spark_is_refused(model, panel, forecaster, monkeypatch):
    host, split = forecaster(model), object()
    monkeypatch.setattr(frames, "SparkDataFrame", type(split))
    for call, options in (
        (host.fit, {"distributed_config": object()}), (host.fit, {"df": split}), (host.predict, {"df": split}),
        (host.simulate, {"df": split}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="polars frame, without distributed_config: Spark splits"):
            call(**{"df": panel(4), **options})


def test_dates_that_jump_are_named(tiny, panel, forecaster):
    frame = panel()
    gap = frame[~frame["ds"].isin(frame["ds"].unique()[[20, 21]])]
    with pytest.warns(UserWarning, match=r"do not follow freq='h': after 2024-01-01 19:00:00 comes .* 22:00:00, not"):
        forecaster(tiny()).fit(gap)
    with pytest.raises(ValueError, match=r"do not follow freq='ME': they begin with 2024-01-01"):
        forecaster(tiny(), freq="ME").fit(frame)
    for freq, given in (
        ("h", panel()),
        ("2D", panel().assign(ds=lambda df: df["ds"].iloc[0] + 48 * (df["ds"] - df["ds"].iloc[0]))),
    ):
        with pytest.raises(ValueError, match=rf"counts each row as one step\. Set freq='{freq}'\.$"):
            forecaster(tiny(), freq="D").fit(given)
    with pytest.raises(ValueError, match=r"Set freq='h'\.$"):  # a gap hides no wrong freq
        forecaster(tiny(), freq="D").fit(gap)
    numbered = panel(integer=True)
    with pytest.warns(UserWarning, match="do not follow freq=1: after 19 comes 21, not 20"):
        forecaster(tiny(), freq=1).fit(numbered[numbered["ds"] != 20])


@pytest.mark.parametrize("freq", ["h", pd.offsets.Hour(1), "1h", "B", "ME", "QS-OCT", 1, 5])
@pytest.mark.parametrize("zone", [None, "Europe/Zurich"])
def test_dates_of_a_frequency_are_no_cause_for_a_warning(freq, zone):
    if isinstance(freq, int):
        dates = np.arange(40) * freq + 3
    else:
        dates = np.asarray(pd.date_range("2024-03-25", periods=200, freq=freq, tz=zone))
    assert jump_of(np.unique(dates), freq) is None
    assert jump_of(np.delete(dates, 7), freq) is not None
    assert other_frequency(np.delete(dates, 7), freq) is None
    if isinstance(freq, int):
        assert jump_of(dates, "1i") is None
    else:
        assert (jump_of(dates, "1mo") is None) == (freq == "ME")


@pytest.mark.parametrize(("months", "wrong"), [(1, "MS"), (1, "ME"), (1, "D"), (3, "QS"), (12, "YS")])
def test_months_from_any_day_are_told_their_freq(months, wrong, tiny, panel, forecaster, fit, reloaded):
    """Pandas has no name for them, and MS would date the forecast after 15 April on 1 May."""
    step = pd.DateOffset(months=months)
    dates = pd.date_range("2020-01-15", periods=66, freq=step)
    frame = panel(2).assign(ds=np.tile(dates[:60], 2))
    with pytest.raises(ValueError, match=rf"freq='{wrong}': .* Set freq=pd\.DateOffset\(months={months}\)\.$"):
        forecaster(tiny(2), wrong).fit(frame)
    with pytest.raises(ValueError, match=rf" Set freq=pd\.DateOffset\(months={months}\)\.$"):
        forecaster(tiny(2), wrong).fit(frame[~frame["ds"].isin(dates[[10, 11, 30]])])
    host = fit(tiny(2), frame, step)
    forecast = host.predict()
    assert list(forecast["ds"]) == [*dates[60:]] * 2
    again = reloaded(host)
    assert again.freq == step
    pd.testing.assert_frame_equal(again.predict(), forecast)


def test_gaps_in_steps_of_months_and_days_are_named(tiny, panel, forecaster):
    step = pd.DateOffset(months=1, days=2)
    frame = panel(2).assign(ds=np.tile(pd.date_range("2020-01-01", periods=60, freq=step), 2))
    with pytest.warns(UserWarning, match="after 2021-09-09 00:00:00 comes 2021-11-13 00:00:00, not 2021-10-11"):
        forecaster(tiny(2), step).fit(frame.drop(index=[20, 80]))


@pytest.mark.parametrize("gap", [0, 25])
@pytest.mark.parametrize(
    ("day", "freq", "advice"),
    [
        (29, "D", "'MS' and take df"),
        (30, pd.DateOffset(months=1), "'MS' and take df"),
        (30, "1d", "'1mo' and take pl.col"),
        (30, "1mo", "'1mo' and take pl.col"),
        (31, pd.DateOffset(months=1), "'ME'"),
    ],
)
def test_months_from_a_late_day_are_told_what_to_do(day, freq, advice, gap, tiny, panel, forecaster):
    """A step of a month leads from 28 February to 28 March, so that no freq goes on after it."""
    months = pd.date_range("2020-01-01", periods=60, freq="MS")
    dates = months + pd.to_timedelta(np.minimum(day, months.days_in_month) - 1, unit="D")
    frame = panel(2).assign(ds=np.tile(dates, 2))
    frame = frame[~frame["ds"].isin(dates[gap : gap + 9 : 3])] if gap else frame
    frame = pytest.importorskip("polars").from_pandas(frame) if freq in ("1d", "1mo") else frame
    with pytest.raises(ValueError, match=f"one step. Set freq={advice}"):
        forecaster(tiny(2), freq).fit(frame)


def test_offsets_of_pandas_are_saved(tiny, panel, fit, reloaded):
    for lost in (pd.offsets.CustomBusinessHour(offset=pd.Timedelta("1h")), pd.offsets.Easter()):
        with pytest.raises(ValueError, match="freq must be an offset that can be written as text to be saved, got <"):
            saved_frequency(lost)
    days = pd.offsets.CustomBusinessDay(holidays=["2020-01-06"], weekmask="Sun Mon Tue")
    hours = pd.offsets.CustomBusinessHour(start=["08:00", "13:30"], end=["12:00", "17:00"], holidays=["2020-01-06"])
    afternoons = pd.offsets.BusinessHour(2, start="12:00", end="18:00")
    for offset in (pd.offsets.Hour(), pd.DateOffset(hours=1), days, hours, afternoons):
        dates = np.tile(pd.date_range("2020-01-01", periods=60, freq=offset), 2)
        host = fit(tiny(2), panel(2).assign(ds=dates), offset)
        pd.testing.assert_frame_equal(reloaded(host).predict(), host.predict())


MADE = {"trained": lambda tiny: tiny(max_steps=1), "pretrained": lambda _: MVPA.from_pretrained("base", h=6, **QUIET)}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("method", ["fit", "predict", "cross_validation, fitted"])
def test_dates_are_checked_wherever_a_frame_comes_in(make, method, tiny, panel, forecaster):
    frame = panel(4)
    row = frame.groupby("unique_id").cumcount()

    def give(df: pd.DataFrame) -> None:
        fitted = forecaster(make(tiny))
        if method == "fit":
            fitted.fit(df)
            return
        fitted.fit(frame)
        if method == "cross_validation, fitted":
            fitted.cross_validation(df, use_fitted=True)
        else:
            fitted.predict(df.sample(frac=1.0, random_state=0))

    twice = "each date once in a series, got 2024-01-03 10:00:00 twice in series 's02': drop a row, as df.drop_dup"
    with pytest.raises(ValueError, match=twice):
        give(pd.concat([frame, frame[(frame["unique_id"] == "s02")].iloc[[58]]]))
    with pytest.warns(UserWarning, match="dates of series 's01' lack some that others have"):
        give(frame[(frame["unique_id"] != "s01") | (row != 57)])
    with pytest.warns(UserWarning, match="do not follow freq='h': after 2024-01-03 08:00:00 comes 2024-01-03 10:00:00"):
        give(frame[row != 57])
    advice = r"Set freq='D'\." if method == "fit" else r"were fitted to freq='h': give such rows"
    if "fitted" in method:
        advice = "neuralforecast counts"
    with pytest.raises(ValueError, match=rf"do not follow freq='h'.*{advice}"):
        give(frame.assign(ds=pd.Timestamp("2024-01-01") + 24 * (frame["ds"] - pd.Timestamp("2024-01-01"))))
    with warnings.catch_warnings(action="error", category=UserWarning):
        give(frame)


def test_predict_checks_what_it_reads_and_fit_did_not(tiny, panel, forecaster, fit):
    frame = panel(4)
    gap = frame[(frame["unique_id"] != "s01") | (frame.groupby("unique_id").cumcount() != 20)]
    fitted = forecaster(tiny())
    with pytest.warns(UserWarning, match="dates of series 's01' lack some"):
        fitted.fit(gap)
    with warnings.catch_warnings(action="error", category=UserWarning):
        fitted.predict(gap)
        fit(tiny(), frame).predict(gap)  # the model looks back at 12 rows


@pytest.mark.parametrize("library", ["pandas", "polars", "months", "holidays", "opening hours"])
def test_the_lines_of_the_warning_run_as_they_are_printed(library, tiny, panel, forecaster):
    whole = panel(3).rename(columns={"unique_id": "id", "ds": "at", "y": "sales"})
    freq: Any = pd.offsets.Hour(1)
    if library == "months":
        freq = pd.DateOffset(months=1)
        whole["at"] = np.tile(pd.date_range("2020-01-15", periods=60, freq=freq), 3)
    if library == "holidays":  # those before the frame are not shown
        freq = pd.offsets.CustomBusinessDay(holidays=["2019-12-25", "2020-01-06", "2020-03-02"], weekmask="Sun Mon Tue")
        whole["at"] = np.tile(pd.date_range("2020-01-01", periods=60, freq=freq), 3)
    if library == "opening hours":
        freq = pd.offsets.CustomBusinessHour(holidays=["2019-12-25", "2020-01-06"], start="10:00", end="14:00")
        whole["at"] = np.tile(pd.date_range("2020-01-01", periods=60, freq=freq), 3)
    df: Any = whole[(whole["id"] != "s01") | (whole["at"] < whole["at"][56])]
    if library == "polars":
        df, freq = pytest.importorskip("polars").from_pandas(df), "1h"
    names = {"id_col": "id", "time_col": "at", "target_col": "sales"}
    with pytest.warns(UserWarning, match="Add the missing rows:\n") as caught:
        forecaster(tiny(3), freq=freq).fit(df, **names)
    (message,) = (str(warning.message) for warning in caught if "Add the missing" in str(warning.message))
    known = {"df": df, "pd": pd}
    exec(message.partition("rows:\n")[2], known)
    with warnings.catch_warnings(action="error", category=UserWarning):
        forecaster(tiny(3), freq=freq).fit(known["df"], **names)
