"""What was wrong without a word in public reports: each is right now, or said."""

import datetime
import decimal
import enum
import random
import uuid
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from neuralforecast.losses.pytorch import MQLoss, QuantileLoss
from neuralforecast.utils import PredictionIntervals
from support.library import run_python
from support.made_up_networks import QUIET
from utilsforecast.preprocessing import fill_gaps

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.adapters.neuralforecast.dates import jump_of


def test_threads_give_what_one_run_alone_gives(panel, tiny, fit):
    frame = panel(3)

    def forecast() -> np.ndarray:
        host = fit(tiny(3, dropout=0.3, max_steps=5), frame)
        values: np.ndarray = host.predict()["MVPA"].to_numpy()
        return values

    alone = forecast()
    torch.manual_seed(11), random.seed(11), np.random.seed(11)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr, index]
    with ThreadPoolExecutor(2) as pool:
        together = [running.result() for running in [pool.submit(forecast) for _ in range(2)]]
    for each in together:
        np.testing.assert_array_equal(each, alone)
    forecast()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[union-attr, index]


@pytest.mark.skipif(not hasattr(torch.distributed, "ProcessGroupGloo"), reason="this torch has no gloo")
def test_two_processes_train_as_one(panel, tiny, fit):
    """Each takes half of every batch, and windows at the end, with fewer targets, count as in the whole batch."""
    frame, forecasts = panel(3), []
    for options in ({"windows_batch_size": 8}, {"windows_batch_size": 4, "devices": 2, "strategy": "ddp_fork"}):
        host = fit(tiny(3, max_steps=6, accelerator="cpu", **options), frame, val_size=6)
        forecasts.append(host.predict()["MVPA"].to_numpy())
    assert np.abs(forecasts[1] - forecasts[0]).max() < 1e-6 * frame["y"].std()  # 8e-4 with means of halves


_MOMENTS = [datetime.datetime(2024, 1, day, tzinfo=datetime.UTC) for day in (1, 2, 3)]
_IDS: dict[str, list[Any]] = {
    "whole numbers": [7, 1, 3],
    "numbers": [0.5, 0.25, 4.0],
    "moments": [pd.Timestamp("2024-03-01"), pd.Timestamp("2024-01-01"), pd.Timestamp("2024-02-01 05:00:00.000001")],
    "moments with zones": [pd.Timestamp(moment).tz_convert("Europe/Zurich") for moment in _MOMENTS],
    "numpy's moments": list(np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[D]")),
}


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("kind", _IDS)
def test_a_loaded_model_knows_its_series(kind, library, panel, tiny, forecaster, awaken, reloaded):
    frame = panel(3, names=_IDS[kind])
    host = forecaster(tiny(3), "h" if library == "pandas" else "1h")
    if library == "polars":
        frame = pl.from_pandas(frame)
    if kind == "moments with zones" and library == "polars":
        with pytest.raises(ValueError, match="must be moments without a time zone in a frame of polars, since"):
            host.fit(frame)
        return
    host.fit(frame)
    awaken(host.models[0], 0.3)
    expected = host.predict()["MVPA"].to_numpy()
    again = reloaded(host, save_dataset=True)
    for given in (None, frame):
        np.testing.assert_array_equal(again.predict(given)["MVPA"].to_numpy(), expected)


_LOAD = """
import sys
from pathlib import Path
import numpy as np
from neuralforecast import NeuralForecast
import mvpa_ts.adapters.neuralforecast  # makes MVPA known to the host
for folder in sorted(Path(sys.argv[1]).iterdir()):
    host, expected = NeuralForecast.load(str(folder / "host")), np.load(folder / "expected.npy")
    same = [np.array_equal(host.predict()["MVPA"].to_numpy(), expected) for _ in range(2)]
    print(folder.name, *same, sep="|", file=sys.stderr)
"""


def test_a_new_process_forecasts_the_same_for_ids_of_every_kind(panel, tiny, fit, awaken, tmp_path):
    for kind, names in _IDS.items():
        host = fit(tiny(3), panel(3, names=names))
        awaken(host.models[0], 0.3)
        folder = tmp_path / "".join(letter for letter in kind if letter.isalnum())
        host.save(str(folder / "host"), save_dataset=True, overwrite=True)
        np.save(folder / "expected.npy", host.predict()["MVPA"].to_numpy())
    compared = [line for line in run_python(_LOAD, tmp_path).stderr.splitlines() if line.count("|") == 2]
    assert compared == [f"{folder.name}|True|True" for folder in sorted(tmp_path.iterdir())]
    assert len(compared) == len(_IDS)


_REFUSED_IDS: dict[str, tuple[Sequence[object], str]] = {
    **{type(name).__name__: ([name], "be text, numbers or dates with times, which can be saved, got") for name in (
        datetime.date(2024, 1, 1), uuid.UUID(int=5), decimal.Decimal("1.10"), b"a", (1, "a"), datetime.time(5),
        pd.Period("2024-01", "M"), pd.Interval(0, 1), 2**64,
    )},
    "saved as another": (("a", "a\0"), r"not end in a zero character, got 'a\\x00'"),
    "not sorted": ([*enum.Enum("Ward", "A B")], ".* got <Ward.A: 1>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", _REFUSED_IDS)
def test_ids_that_cannot_be_saved_are_refused(kind, panel, tiny, forecaster):
    names, words = _REFUSED_IDS[kind]
    frame = panel(len(names))
    frame["unique_id"] = pd.Series([names[int(name[1:])] for name in frame["unique_id"]], dtype=object)
    with pytest.raises(ValueError, match=f"unique_id must {words}"):
        forecaster(tiny(len(names))).fit(frame)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_levels_that_float32_rounds_are_named(library, panel, tiny, forecaster):
    frame = panel(2)
    frame["y"] += 1e8
    frame = frame if library == "pandas" else pl.from_pandas(frame)
    host = forecaster(tiny(2), "h" if library == "pandas" else "1h")
    with pytest.warns(
        UserWarning, match=r"column 'y' of series 's00' is rounded to multiples of 8 and changes by only"
    ):
        host.fit(frame)
    large = panel(2)["y"] + 1e8
    for held in (large.astype("int32"), large.astype("double[pyarrow]"), large.mask(large.index == 3)):
        with pytest.warns(UserWarning, match="is rounded to multiples of 8"):
            forecaster(tiny(2)).fit(panel(2).assign(y=held, available_mask=held.notna().astype(float)))
    with pytest.warns(UserWarning, match="multiples of 524288 .* subtract its level before fit"):
        forecaster(tiny(1)).fit(panel(1).assign(y=5e12))
    values = panel(2)["y"]
    for held in (values, values + 1e4, 8.0 * np.rint(values) + 1e8):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*is rounded")
            forecaster(tiny(2)).fit(panel(2).assign(y=held))


def test_steps_that_no_row_can_teach_are_named(panel, tiny, forecaster):
    with pytest.warns(UserWarning, match=r"steps 49 to 60 of h have no target in any of the 48 windows to train on"):
        forecaster(tiny(2, h=60, start_padding_enabled=False)).fit(panel(2, rows=60))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*have no target")
        forecaster(tiny(2, h=48)).fit(panel(2, rows=60))


def test_calibration_by_missing_rows_is_refused(panel, tiny, forecaster, fit):
    frame = panel(2)
    short = frame[~((frame["unique_id"] == "s01") & (frame.groupby("unique_id").cumcount() >= 55))]
    filled = fill_gaps(short, "h", end="global")
    filled["available_mask"] = filled["y"].notna().astype(float)
    filled["y"] = filled["y"].fillna(0.0)
    intervals = PredictionIntervals(n_windows=2)
    host = forecaster(tiny(2))
    with pytest.raises(ValueError, match=r"the last 7 rows of each series, got some with available_mask = 0 in"):
        host.fit(filled, prediction_intervals=intervals)
    early = filled.assign(available_mask=(filled.groupby("unique_id").cumcount() != 3).astype(float))
    early = early[early.groupby("unique_id").cumcount() < 55]
    host = fit(tiny(2), early, prediction_intervals=intervals)
    bounds = host.predict(level=[80])
    assert bounds.filter(like="-").notna().all(axis=None)
    host = forecaster(tiny(2, loss=MQLoss(level=[80])))  # the advice
    host.fit(filled)
    assert host.predict().notna().all(axis=None)


def test_a_save_takes_away_what_a_killed_one_left(panel, tiny, fit, tmp_path):
    host = fit(tiny(2), panel(2))
    for name in (".[a]-killed_8/new", ".[a]-killed_9/older", ".[a]-of_mine8/mine", ".[a]-mine/new", ".a-killed_8/new"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".[a]-afile_88").touch()
    host.save(str(tmp_path / "[a]"))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"[a]", ".[a]-of_mine8", ".[a]-mine", ".a-killed_8", ".[a]-afile_88"}
    assert (tmp_path / ".[a]-of_mine8" / "mine").is_dir()


@pytest.mark.parametrize(
    ("word", "step"),
    [("1h30m", "90min"), ("5m", "5min"), ("2d", "2D"), ("1w", "7D"), ("1d12h", "36h"), ("30s", "30s"), ("1h", "1h")],
)
def test_frequencies_in_the_words_of_polars(word, step):
    dates = pd.date_range("2024-01-01", periods=6, freq=step).to_numpy()
    assert jump_of(dates, word) is None
    assert "comes" in (jump_of(np.delete(dates, 3), word) or "")


@pytest.mark.parametrize(("word", "months"), [("1mo", 1), ("1q", 3), ("1y", 12), ("2mo", 2)])
def test_calendar_steps_of_polars_are_not_read_as_those_of_pandas(word, months):
    """They go from any day to that day of a later month, or to its end where it is shorter."""
    for first in ("2024-01-01", "2023-12-31"):
        dates = np.array([pd.Timestamp(first) + pd.DateOffset(months=months * step) for step in range(6)], "M8[s]")
        assert jump_of(dates, word) is None
        assert "comes" in (jump_of(np.delete(dates, 3), word) or "")
    assert "comes" in (jump_of(pd.date_range("2024-01-01", periods=3, freq="D").to_numpy(), word) or "")


def test_a_frequency_of_polars_forecasts(panel, tiny, forecaster, fit):
    frame = panel(2)
    frame["ds"] = pd.Timestamp("2024-01-01") + frame.groupby("unique_id").cumcount() * pd.Timedelta("90min")
    with pytest.raises(ValueError, match=r"freq must be a step of dates of type .*, got '1mo1d'"):
        forecaster(tiny(2), "1mo1d").fit(pl.from_pandas(frame))
    # Of two units the host multiplies the first alone, and had two dates for six steps.
    for word, table in (("1h30m", pl.from_pandas(frame)), ("90m", pl.from_pandas(frame)), ("1h30min", frame)):
        assert fit(tiny(2), table, word).predict()["ds"].diff()[1] == datetime.timedelta(minutes=90)


def made(maker, tiny, **options):
    return tiny(2, **options) if maker == "MVPA" else MVPA.from_pretrained("base", h=3, **options)


@pytest.mark.parametrize("option", ["futr_exog_list", "hist_exog_list"])
@pytest.mark.parametrize("maker", ["MVPA", "base"])
def test_the_target_is_no_exogenous_column(maker, option, panel, tiny, forecaster):
    message = (
        r"must hold columns beside the id, the date and the target of df, and not the available_mask, got \['{}'\]"
    )
    for name in ("y", "available_mask"):
        with pytest.raises(ValueError, match=message.format(name)):
            forecaster(made(maker, tiny, **{option: [name]})).fit(panel(2).assign(available_mask=1.0))


def test_missing_rows_under_a_local_scaler_get_the_right_advice(panel, tiny, forecaster):
    frame = panel(2)
    frame["available_mask"] = (frame.index != 20).astype(float)
    frame.loc[20, "y"] = np.nan
    host = forecaster(tiny(2), local_scaler_type="standard")
    with pytest.raises(ValueError, match=r"Leave local_scaler_type out, .*, or fill 'y' on missing rows") as caught:
        host.fit(frame)
    assert "mark the row" not in str(caught.value)
    host.fit(frame.fillna({"y": 0.0}))
    # Of a covariate every row became missing, and a forecast went on without it.
    frame = frame.fillna({"y": 0.0}).assign(x=frame["y"] % 7)
    for option in ("futr_exog_list", "hist_exog_list"):
        for maker in ("MVPA", "base"):
            host = forecaster(made(maker, tiny, **{option: ["x"]}), local_scaler_type="standard")
            with pytest.raises(ValueError, match=r"in column 'x' of series 's00', which local_scaler_type .* itself$"):
                host.fit(frame)


def test_making_a_model_leaves_the_random_state_of_the_process():
    before = torch.get_rng_state()
    MVPA(h=3, input_size=6, n_series=2)
    MVPA.from_pretrained("base", h=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("option", ["futr_exog_list", "hist_exog_list"])
@pytest.mark.parametrize("maker", ["MVPA", "base"])
def test_a_column_is_named_once_and_in_a_list(maker, option, tiny):
    for names, message in (
        (["x", "z", "x"], rf"{option} must name each column once, got 'x' more than once"),
        ([1], rf"{option} must hold names that are text, got 1: rename the column"),
        ("price", rf"{option} must be a list of columns, got the text 'price': write \['price'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            made(maker, tiny, **{option: names})


@pytest.mark.parametrize("bounded", [(5, 1), (float("nan"), 1), (0, float("nan")), (1,)])
def test_bounds_are_refused_before_a_forecast(bounded):
    with pytest.raises(ValueError, match="bounded must be True, False or a pair"):
        MVPA.from_pretrained("base", h=3, bounded=bounded)


def test_numbers_that_leave_float32_no_room_are_refused(panel, fit):
    forecasts = []
    for scale in (1.0, 1e30):
        frame = panel(2).assign(y=lambda rows, scale=scale: rows["y"] * scale)
        host = fit(MVPA.from_pretrained("base", h=3, **QUIET), frame)
        forecasts.append(host.predict().iloc[:, -1].to_numpy(float) / scale)
    np.testing.assert_allclose(*forecasts, rtol=1e-5)
    with pytest.raises(ValueError, match=r"df must hold numbers up to 1e\+33, got .*e\+3\d in column 'y' of series"):
        host.fit(panel(2).assign(y=lambda rows: rows["y"] * 1e34))


@pytest.mark.parametrize(
    ("scale", "trained", "said"),
    [
        (1e-60, False, "rounded to multiples of 1.4013e-45 .* multiply it by a large number"),
        (1e-33, False, r"should change by 1e-29 to 1e\+33"),
        (1e-20, True, r"should change by 1e-12 to 1e\+18"),
        (1e25, True, r"should change by 1e-12 to 1e\+18"),
    ],
)
def test_numbers_of_a_size_that_no_loss_can_have(panel, forecaster, scale, trained, said):
    quiet = QUIET | {"h": 3}
    model = MVPA(input_size=8, n_series=2, max_steps=1, **quiet) if trained else MVPA.from_pretrained("base", **quiet)
    with pytest.warns(UserWarning, match=said):
        forecaster(model).fit(panel(2).assign(y=lambda rows: rows["y"] * scale))


@pytest.mark.parametrize("maker", ["MVPA", "base"])
def test_quantiles_outside_of_0_and_1_are_refused(maker, tiny):
    for loss in (MQLoss(quantiles=[1.5]), MQLoss(level=[100]), MQLoss(level=[-5, 200]), QuantileLoss(0.0)):
        with pytest.raises(ValueError, match="loss must have quantiles between 0 and 1, and levels between 0 and 100"):
            made(maker, tiny, loss=loss)
    with pytest.warns(UserWarning, match=r"loss has quantiles \[0.496, 0.504\]: if level is meant, it is in percent"):
        made(maker, tiny, loss=MQLoss(level=[0.8]))


def test_a_series_shorter_than_the_look_back_is_named_in_cross_validation(panel, tiny, forecaster):
    frame = panel(2)
    late = frame[~((frame["unique_id"] == "s01") & (frame.groupby("unique_id").cumcount() < 45))]
    with pytest.warns(
        UserWarning, match=r"series 's01' of df should have input_size \(12\) rows before .*, got 9: what"
    ):
        forecaster(tiny(2)).cross_validation(late, n_windows=1)


def test_intervals_beyond_the_trained_horizon_are_said_to_be_too_narrow(panel, tiny, fit):
    host = fit(tiny(2, loss=MQLoss(level=[80])), panel(2))
    with pytest.warns(
        UserWarning, match=r"intervals of MVPA beyond its h \(6\) are too narrow, got h=9: neuralforecast"
    ):
        host.predict(h=9)


@pytest.mark.parametrize("maker", ["MVPA", "base"])
def test_quantiles_asked_of_a_multi_quantile_loss_lie_between_those_trained(maker, panel, tiny, forecaster, fit):
    frame, trained = panel(2), [0.9, 0.1, 0.5]
    host = fit(made(maker, tiny, alias="M", loss=MQLoss(quantiles=trained)), frame)
    given, rank = host.predict().iloc[:, [3, 4, 2]].to_numpy(), NormalDist().inv_cdf
    expected = [np.interp(rank(0.3), [*map(rank, sorted(trained))], row) for row in given]
    np.testing.assert_allclose(host.predict(quantiles=[0.3])["M_ql0.3"], expected, rtol=1e-6)
    both = host.predict(level=[40, 80])
    assert list(both.columns[2:]) == ["M-median", "M-lo-80", "M-lo-40", "M-hi-40", "M-hi-80"]
    np.testing.assert_allclose(both[["M-lo-80", "M-median", "M-hi-80"]], given, rtol=1e-6)
    np.testing.assert_allclose(both["M-lo-40"], expected, rtol=1e-6)
    for refit in (False, True):
        columns = host.cross_validation(frame, level=[40, 80], refit=refit).columns
        assert list(columns[3:]) == [*both.columns[2:], "y"]
    with pytest.raises(ValueError, match=r"of M must lie within .* the quantiles \[0.1, 0.5, 0.9\], got \[0.95\]: fit"):
        host.predict(quantiles=[0.95])
    with pytest.raises(ValueError, match="level must be a list of numbers between 0 and 100, got 80"):
        host.predict(level=80)
    with pytest.raises(ValueError, match=r"quantiles must be a list of numbers between 0 and 1, got \[1.5\]"):
        host.predict(quantiles=[1.5])
    with pytest.raises(ValueError, match="level and quantiles of cross_validation need refit=True for MVPA"):
        forecaster(tiny(2)).cross_validation(frame, level=[80])


@pytest.mark.parametrize("alias", ["y", "ds", "unique_id", "cutoff"])
def test_an_alias_that_is_another_column_of_the_tables_is_refused(alias, panel, tiny, forecaster):
    with pytest.raises(ValueError, match=f"alias must differ from .* got '{alias}': give the model another"):
        forecaster(tiny(2, alias=alias)).cross_validation(panel(2))


def test_arguments_of_another_kind_are_named(panel, tiny, forecaster):
    with pytest.raises(ValueError, match='alias must be None or an object such as "mine", got 5'):
        tiny(2, alias=5)
    with pytest.raises(ValueError, match=r"futr_exog_list must be a list of columns, got a set: write \['a', 'b'\]"):
        tiny(2, futr_exog_list={"a", "b"})  # whose order differs between processes
    for name in ("fit", "cross_validation"):
        with pytest.raises(ValueError, match="val_size must be a whole number of at least 0, got None"):
            getattr(forecaster(tiny(2)), name)(panel(2), val_size=None)


def test_whole_numbers_of_numpy_are_whole_numbers(panel, tiny, fit):
    """Lightning took none of them for `max_steps`, and said that 3 is not positive."""
    given = {"max_steps": 2, "windows_batch_size": 8, "random_seed": 3, "h": 6}
    forecasts = []
    for kind in (int, np.int64):
        host = fit(tiny(2, **{name: kind(number) for name, number in given.items()}), panel(2))
        forecasts.append(host.predict()["MVPA"].to_numpy())
    np.testing.assert_array_equal(*forecasts)


@pytest.mark.parametrize("maker", ["MVPA", "base"])
def test_a_refused_call_leaves_the_host_as_it_was(maker, panel, tiny, fit):
    """The host takes rows and scalers before a model sees them, and would forecast from what was refused."""
    frame, broken = panel(2), panel(2).assign(y=lambda rows: rows["y"].mask(rows.index == 3, np.inf))
    host = fit(made(maker, tiny), frame, local_scaler_type="standard")
    expected = host.predict()
    for call in (host.fit, host.predict, host.cross_validation):
        with pytest.raises(ValueError, match="df must hold finite numbers"):
            call(broken)
        pd.testing.assert_frame_equal(host.predict(), expected)


def test_more_steps_ahead_than_the_memory_holds_are_refused(panel, tiny, fit):
    host = fit(tiny(2), panel(2))
    with pytest.raises(ValueError, match=r"h must be at most .* here, got 1000000000000, which needs"):
        host.predict(h=np.int64(10**12))


def test_a_horizon_between_whole_ones_is_that_of_its_own_steps(fit):
    """The host gives the rows beyond the last whole horizon the forecasts of earlier steps."""
    days = pd.date_range("2023-01-01", periods=280, freq="D")
    week = np.array([0, 5, -3, 8, 1, -6, 2.0])
    frame = pd.concat([pd.DataFrame({"unique_id": name, "ds": days, "y": week[days.dayofweek]}) for name in "ab"])
    model = MVPA(h=7, input_size=21, n_series=2, max_steps=5, enable_progress_bar=False, logger=False)
    host = fit(model, frame, "D")
    for steps in (7, 10, 14, 17):
        forecast = host.predict(h=steps)
        assert len(forecast) == 2 * steps
        np.testing.assert_allclose(forecast["MVPA"], week[forecast["ds"].dt.dayofweek], atol=0.1)


def test_series_that_disagree_on_their_place_in_the_cycle_are_named(panel, tiny, forecaster):
    frame = panel(2).assign(phase=lambda rows: rows["ds"].rank(method="dense") % 4)
    options = {"cycle_length": 4, "cycle_column": "phase", "futr_exog_list": ["phase"]}
    host = forecaster(tiny(2, **options))
    shifted = frame.assign(phase=np.where(frame["unique_id"] == "s01", (frame["phase"] + 1) % 4, frame["phase"]))
    with pytest.raises(ValueError, match=r"cycle_column='phase' must hold the same position for all series .*'s01'"):
        host.fit(shifted)
    host.fit(frame)
    ahead = host.make_future_dataframe().assign(phase=lambda rows: (rows["ds"].rank(method="dense") + 1) % 4)
    host.predict(futr_df=ahead)
    ahead.loc[0, "phase"] += 1
    with pytest.raises(ValueError, match="the same position for all series of a step"):
        host.predict(futr_df=ahead)


def test_conformal_widths_are_those_of_the_series_of_the_fit(panel, tiny, fit):
    frame = panel(2)
    host = fit(tiny(2), frame, prediction_intervals=PredictionIntervals(n_windows=2))
    others = frame.assign(unique_id=frame["unique_id"].replace({"s00": "x"}))
    with pytest.raises(ValueError, match="df must have the series whose errors prediction_intervals read in the fit"):
        host.predict(others, level=[80])
    assert len(host.predict(others)) == len(host.predict(frame.sample(frac=1, random_state=0), level=[80]))


def test_rows_that_the_host_scales_are_not_those_of_an_onnx_file(panel, tiny, tmp_path, fit, reloaded):
    host = fit(tiny(2), panel(2), local_scaler_type="standard")
    for each in (host, reloaded(host)):
        with pytest.raises(ValueError, match="local_scaler_type of NeuralForecast"):
            each.models[0].to_onnx(tmp_path / "model.onnx")


def test_a_search_may_leave_covariates_out(panel, fit):
    from mvpa_ts.adapters.neuralforecast import AutoMVPA

    def config(trial: Any) -> dict[str, Any]:
        names = trial.suggest_categorical("futr_exog_list", [["x"], None])
        return {"input_size": 8, "max_steps": 1, "futr_exog_list": names, "logger": False}

    host = fit(AutoMVPA(2, 2, config=config, num_samples=1, storage=None), panel(2).assign(x=1.0), val_size=4)
    assert host.models[0].model.futr_exog_list in ([], ["x"])
