"""MVPA does what every model of the host does: fit, predict, cross-validate, save, load, explain, simulate."""

import itertools
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from neuralforecast import NeuralForecast
from neuralforecast.core import MODEL_FILENAME_DICT
from neuralforecast.losses.pytorch import MAE, MSE, DistributionLoss, HuberIQLoss, MQLoss, TukeyLoss
from neuralforecast.utils import PredictionIntervals
from support.library import run_python

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.adapters.neuralforecast.base_model import register
from mvpa_ts.random_state import OwnRandomState


@pytest.fixture(autouse=True)
def _forgotten():
    """Subclasses that a test defines are known to the host until its end."""
    registered = dict(MODEL_FILENAME_DICT)
    yield
    MODEL_FILENAME_DICT.clear()
    MODEL_FILENAME_DICT.update(registered)


CYCLE = {"cycle_length": 12, "cycle_column": "phase", "futr_exog_list": ["phase"]}
NO_HEADS = {"network": {"mixing_heads": 0}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"h": 0}, "h must be a whole number of at least 1, got 0"),
        ({"h": 2.5}, "h must be a whole number of at least 1, got 2.5"),
        ({"n_series": None}, "n_series must be a whole number of at least 1, got None"),
        ({"input_size": -1}, "input_size must be a whole number of at least 1, got -1"),
        ({"input_size": 3}, r"patch_len \(4\) must not exceed input_size \(3\)"),
        ({"hidden_size": 10, "n_heads": 4}, r"hidden_size \(10\) must be a multiple of n_heads \(4\)"),
        ({"network": {"patch_stride": 5}}, r"patch_stride \(5\) must not exceed patch_len \(4\)"),
        ({"channel_window": 40}, "channel_window must be None or from 1 to n_series - 1 = 3, got 40"),
        ({"channel_window": "2"}, "channel_window must be a whole number, got '2'"),
        ({"individual": "no"}, "individual must be True or False, got 'no'"),
        ({"network": {"per_channel": "yes"}}, "per_channel must be None or hold vectors or cycle, got 'yes'"),
        ({"network": {"per_channel": ["bounds"]}}, r"got \['bounds'\]; others are arguments here"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1, got 0"),
        ({"val_check_steps": 0}, "val_check_steps must be a whole number of at least 1, got 0"),
        ({"windows_batch_size": 0}, "windows_batch_size must be a whole number of at least 1, got 0"),
        ({"val_check_steps": "often"}, "val_check_steps must be a whole number of at least 1, got 'often'"),
        ({"step_size": 0}, "step_size must be a whole number of at least 1, got 0"),
        ({"learning_rate": "fast"}, "learning_rate must be positive, got 'fast'"),
        ({"network": {"per_channel": ["cycle"]}}, "cycle in per_channel needs cycle_length"),
        ({"training": {"linear_learning_rate": 0.0}}, "linear_learning_rate must be positive or None, got 0.0"),
        (
            {"bounded": (0, None)},
            "bounded must be True .* got .0, None.; limits of your own are for MVPA.from_pretrained",
        ),
        ({"scaler_type": "standard", "training": {"ridge": 1.0}}, "ridge needs windows in the units of the series"),
        (
            {"scaler_type": "standard", "training": {"frequency_weight": 1.0}},
            "frequency_weight needs windows in the un",
        ),
        ({"scaler_type": "standard", "network": {"normalise": "reverting"}}, 'normalise="reverting" needs windows in'),
        ({"bounded": True, "scaler_type": "robust"}, "bounded needs windows in the units .*got scaler_type='robust'"),
        ({"bounded": True, "exclude_insample_y": True}, "bounded needs windows .*exclude_insample_y=True"),
        ({"bounded": True, "loss": DistributionLoss("Normal")}, "bounded needs .*loss=DistributionLoss"),
        ({"cycle_length": 12}, "cycle_length and cycle_column must be given"),
        ({"cycle_column": "phase", "futr_exog_list": ["phase"]}, "cycle_length and cycle_column must be given"),
        ({"cycle_length": 12, "cycle_column": "phase"}, r"cycle_column \('phase'\) must be in futr_exog_list"),
        (CYCLE | {"cat_exog_list": ["phase"], "categorical_cardinalities": {"phase": 12}}, "not in cat_exog_list"),
        ({"encoder_layers": 0, "stat_exog_list": ["z"]}, "encoder_layers must be at least 1 with constant features"),
        (NO_HEADS | {"channel_positions": {"a": 0.0}}, "channel_positions needs mixing_heads of at least 1"),
        ({"network": {"mixing_heads": 0, "per_channel": ["vectors"]}}, "vectors needs mixing_heads of at least 1"),
        # What the host stumbles over late.
        ({"random_seed": -1}, "random_seed must be a whole number of at least 0, got -1"),
        ({"num_lr_decays": "x"}, "num_lr_decays must be a whole number of at least -1, got 'x'"),
        ({"inference_windows_batch_size": 0}, "inference_windows_batch_size must be a whole number of at least 1"),
        ({"optimizer": "adam"}, r"optimizer must be None or a class such as torch\.optim\.AdamW, got 'adam'"),
        ({"scaler_type": "none"}, r"scaler_type must be one of \('identity', .*\), got 'none'"),
        ({"start_padding_enabled": "no"}, "start_padding_enabled must be True or False, got 'no'"),
        ({"val_check_steps": 50.5}, "val_check_steps must be a whole number of at least 1, got 50.5"),
        ({"loss": TukeyLoss()}, "loss must grow with the error, and TukeyLoss of neuralforecast falls"),
    ],
)
def test_bad_arguments_are_named(options, message, tiny):
    with pytest.raises(ValueError, match=message):
        tiny(**options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mixing_heads": 4}, TypeError, 'mixing_heads is no argument of its own: give network={"mixing_heads": …}'),
        ({"stride": 4}, TypeError, 'stride is no argument of its own: give network={"patch_stride": …}'),
        ({"ridge": 0.1}, TypeError, 'ridge is no argument of its own: give training={"ridge": …}'),
        (
            {"accumulate_grad_batches": 4},
            TypeError,
            "the number of windows in a step is the argument windows_batch_size",
        ),
        ({"dim": 4}, TypeError, "dim is no argument of its own: it is the argument hidden_size"),
        ({"network": {"dim": 4}}, ValueError, "network must not hold 'dim': it is the argument hidden_size"),
        ({"network": {"num_channels": 4}}, ValueError, "it follows from the argument n_series"),
        ({"network": {"channel_vectors": False}}, ValueError, 'say per_channel=["vectors"], or [] for none'),
        ({"network": {"mixing_head": 4}}, ValueError, "did you mean 'mixing_heads'?"),
        ({"training": {"steps": 4}}, ValueError, "the number of steps is the argument max_steps"),
        ({"training": "ridge"}, ValueError, "training must be None or a dict of options of ForecasterTraining"),
    ],
    ids=str,
)
def test_options_of_the_core_say_where_they_stand(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        MVPA(h=2, input_size=4, n_series=2, **options)


def test_a_patch_is_no_longer_than_a_short_look_back():
    assert MVPA(h=6, input_size=10, n_series=4).network.config.patch_length == 10


@pytest.mark.parametrize("integer", [False, True], ids=["dates", "integers"])
def test_fit_and_predict(integer, tiny, panel, fit):
    forecast = fit(tiny(), panel(4, integer=integer), 1 if integer else "h", val_size=6).predict()
    assert list(forecast.columns) == ["unique_id", "ds", "MVPA"]
    assert forecast.groupby("unique_id")["ds"].min().nunique() == 1
    np.testing.assert_allclose(forecast.groupby("unique_id")["MVPA"].mean(), [100, 200, 300, 400], rtol=0.1)


@pytest.mark.parametrize("refit", [False, True, 2])
def test_cross_validation(refit, tiny, panel, forecaster):
    frame = panel(4)
    result = forecaster(tiny()).cross_validation(frame, n_windows=3, step_size=6, refit=refit, val_size=6)
    assert result["cutoff"].nunique() == 3
    merged = result.merge(frame, on=["unique_id", "ds"])
    np.testing.assert_allclose(merged["y_x"], merged["y_y"])
    np.testing.assert_allclose(result["MVPA"], result["y"], rtol=0.35)


LOADS = """
import sys
import pandas as pd
import mvpa_ts.adapters.neuralforecast
from neuralforecast import NeuralForecast
forecaster = NeuralForecast.load(sys.argv[1])
forecaster.predict(pd.read_pickle(sys.argv[1] + ".past"), futr_df=pd.read_pickle(sys.argv[1] + ".future")).to_pickle(
    sys.argv[1] + ".forecast"
)
"""


def test_training_that_diverges_says_so(tiny, panel, forecaster):
    with pytest.raises(
        FloatingPointError, match=r"training of MVPA diverged within max_steps=3.* learning_rate \(1e\+30\)"
    ):
        forecaster(tiny(learning_rate=1e30, max_steps=3)).fit(panel(4))


def test_save_and_load_in_a_new_process(tmp_path, tiny, panel, fit):
    frame = panel(4)
    frame["phase"] = frame.groupby("unique_id").cumcount()
    frame["day"] = np.where(frame["phase"] % 5 < 2, "rest", "work")
    model = tiny(
        loss=MQLoss(level=[80]),
        valid_loss=MQLoss(level=[80]),
        components=("time", "channel"),
        channel_order=["s02", "s00", "s03", "s01"],
        cycle_length=12,
        cycle_column="phase",
        network={"per_channel": ["cycle"]},
        futr_exog_list=["phase", "day"],
        cat_exog_list=["day"],
        categorical_cardinalities={"day": 2},
        training={"weight_averaging": 0.9, "linear_learning_rate": 0.01},
        bounded=True,
        alias="mine",
        optimizer=torch.optim.AdamW,
        gradient_clip_val=1.0,
    )
    fitted = fit(model, frame)
    future = fitted.make_future_dataframe().assign(phase=60, day="work")
    future["phase"] += future.groupby("unique_id").cumcount()
    expected = fitted.predict(frame, futr_df=future)
    saved = str(tmp_path / "saved")
    fitted.save(saved)
    frame.to_pickle(f"{saved}.past")
    future.to_pickle(f"{saved}.future")
    run_python(LOADS, saved, timeout=200)
    loaded = pd.read_pickle(f"{saved}.forecast")
    assert "mine-median" in loaded
    pd.testing.assert_frame_equal(loaded, expected)


def test_a_folder_that_lacks_a_model_is_refused(tmp_path, tiny, panel):
    """The host loads the models that it finds."""
    host = NeuralForecast([tiny(2), tiny(2, alias="other")], freq="h")
    host.fit(panel(2))
    host.save(str(tmp_path))
    (tmp_path / "other_0.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="lacks the files of other: copy all that save wrote"):
        NeuralForecast.load(str(tmp_path))


@pytest.mark.parametrize("predicted", [False, True])
@pytest.mark.parametrize("name", ["NegativeBinomial", "Normal"])
def test_distributions_are_saved_and_loaded(name, predicted, tiny, panel, fit, reloaded):
    """Straight after training the host keeps a tensor with its graph in the loss, which it cannot save."""
    frame = panel(4)
    frame["y"] = frame["y"].round()
    fitted = fit(tiny(loss=DistributionLoss(name, num_samples=20)), frame)
    if predicted:
        fitted.predict()
    loaded = reloaded(fitted)
    pd.testing.assert_frame_equal(loaded.predict(), fitted.predict())
    loaded.fit(frame)


def test_subclasses_are_saved_and_loaded(tiny, panel, fit, reloaded):
    class Shallow(MVPA):
        pass

    fitted = fit(tiny(model=Shallow), panel(4))
    assert type(reloaded(fitted).models[0]) is Shallow
    with pytest.raises(ValueError, match="neuralforecast has a model 'NHITS' already"):
        register("NHITS", MVPA)
    assert not issubclass(MODEL_FILENAME_DICT["nhits"], MVPA)


@pytest.mark.parametrize("monitor", ["ptl/val_loss", "valid_loss", "train_loss"])
def test_early_stopping(monitor, tiny, panel, forecaster):
    model = tiny(
        max_steps=40, val_check_steps=1, early_stop_patience_steps=2, learning_rate=5.0, val_monitor=monitor,
        training={"weight_averaging": 0.9 if monitor == "valid_loss" else None},
    )  # fmt: skip
    fitted = forecaster(model)
    for _ in range(2):  # also the second time
        fitted.fit(panel(4), val_size=6)
        assert 0 < len(fitted.models[0].valid_trajectories) < 40
        fitted.models[0].valid_trajectories.clear()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_bf16(precision, tiny, panel, fit):
    fitted = fit(tiny(precision=precision, loss=MQLoss(level=[80])), panel(4), val_size=6)
    forecast = fitted.predict().groupby("unique_id")["MVPA-median"].mean()
    np.testing.assert_allclose(forecast, [100, 200, 300, 400], rtol=0.1)


@pytest.mark.parametrize("method", ["conformal_distribution", "conformal_error"])
def test_prediction_intervals(method, tiny, panel, fit):
    fitted = fit(tiny(), panel(4), prediction_intervals=PredictionIntervals(n_windows=2, method=method))
    forecast = fitted.predict(level=[80])
    assert (forecast["MVPA-lo-80"] <= forecast["MVPA-hi-80"]).all()
    assert fitted.simulate(n_paths=3, seed=1).shape == (4 * 6 * 3, 4)


with OwnRandomState(0):  # its weights would depend on which tests were collected before
    _IMPLICIT = HuberIQLoss()


@pytest.mark.parametrize(
    "loss",
    [MQLoss(level=[80]), DistributionLoss("Normal", level=[80], num_samples=9999), _IMPLICIT],
    ids=["MQ", "Normal", "IQ"],
)
def test_simulate(loss, tiny, panel, fit):
    """Paths lie as the quantiles say, and a call that asks for others changes no later one."""
    fitted = fit(tiny(loss=loss), panel(4))
    columns = list(fitted.predict())
    bounds = np.sort(fitted.predict(level=[80])[["MVPA-lo-80", "MVPA-hi-80"]], axis=1)
    paths = fitted.simulate(n_paths=1000, seed=1).groupby(["unique_id", "ds"])["MVPA"]
    width = (bounds[:, 1] - bounds[:, 0]).mean()
    np.testing.assert_allclose(paths.quantile([0.1, 0.9]).unstack(), bounds, rtol=2e-4, atol=0.2 * width)
    assert list(fitted.predict()) == columns


def test_rows_that_an_earlier_fit_has_seen_are_named(tiny, panel, forecaster, tmp_path):
    fitted = forecaster(tiny())
    with warnings.catch_warnings(record=True) as said:
        fitted.cross_validation(panel(4), n_windows=2)
        fitted.fit(panel(4), val_size=6)
    assert not any("saw rows" in str(each.message) for each in said)
    for refit in (False, True):
        with pytest.warns(UserWarning, match="weights that saw rows up to 2024-01-03 11:00:00: errors on these rows"):
            fitted.cross_validation(panel(4), refit=refit)
        fitted.fit(panel(4))
    fitted.save(str(tmp_path / "saved"))
    with pytest.warns(UserWarning, match="weights that saw rows up to 2024-01-03 11:00:00: errors on these rows"):
        NeuralForecast.load(str(tmp_path / "saved")).cross_validation(panel(4), refit=True)


# Sampling calls the network hundreds of times.
SAMPLING = pytest.param("ShapleyValueSampling", marks=pytest.mark.slow)


@pytest.mark.parametrize("explainer", ["IntegratedGradients", "InputXGradient", SAMPLING])
def test_explain(explainer, tiny, awaken, panel, forecaster):
    pytest.importorskip("captum")
    frame = panel(2, rows=40)
    frame["z"] = np.random.default_rng(1).uniform(0.0, 3.0, size=len(frame))  # one that never varied moves nothing
    model = tiny(2, input_size=4, h=2, futr_exog_list=["z"], hist_exog_list=["w"], stat_exog_list=["kind"])
    fitted = forecaster(model)
    frame["w"] = np.random.default_rng(0).normal(size=len(frame))
    static = pd.DataFrame({"unique_id": ["s00", "s01"], "kind": [1.0, 2.0]})
    fitted.fit(frame, static_df=static)
    awaken(fitted.models[0])
    future = fitted.make_future_dataframe().assign(z=2.0)
    _, explanations = fitted.explain(horizons=[1], series=[0], futr_df=future, explainer=explainer)
    for kind in ("insample", "futr_exog", "hist_exog", "stat_exog"):
        values = explanations["MVPA"][kind].detach().numpy()
        assert np.isfinite(values).all(), kind
        assert np.abs(values).max() > 0, kind


def test_explain_with_a_cycle(tiny, panel, fit):
    """The phase is a whole number that no gradient passes through, and here the only future column."""
    pytest.importorskip("captum")
    frame = panel(2, rows=40)
    frame["phase"] = frame.groupby("unique_id").cumcount()
    model = tiny(2, input_size=6, h=2, patch_len=3, futr_exog_list=["phase"], cycle_length=12, cycle_column="phase")
    fitted = fit(model, frame)
    future = fitted.make_future_dataframe().assign(phase=[40, 41] * 2)
    _, explanations = fitted.explain(horizons=[0], series=[0], futr_df=future)
    assert (explanations["MVPA"]["futr_exog"] == 0).all()
    assert torch.isfinite(explanations["MVPA"]["insample"]).all()


@pytest.mark.parametrize(
    "loss", [MAE(), MQLoss(level=[80]), DistributionLoss("Normal", num_samples=20)], ids=["MAE", "MQ", "Normal"]
)
def test_a_longer_horizon_than_fitted(loss, tiny, panel, fit):
    frame = panel(4)
    frame["phase"] = frame.groupby("unique_id").cumcount()
    model = tiny(loss=loss, futr_exog_list=["phase"], cycle_length=12, cycle_column="phase")
    fitted = fit(model, frame)
    future = fitted.make_future_dataframe(h=15).assign(phase=60)
    future["phase"] += future.groupby("unique_id").cumcount()
    forecast = fitted.predict(futr_df=future, h=15)
    assert len(forecast) == 60
    column = "MVPA" if "MVPA" in forecast else "MVPA-median"
    np.testing.assert_allclose(forecast.groupby("unique_id")[column].mean(), [100, 200, 300, 400], rtol=0.15)
    short = fitted.predict(futr_df=future[future.groupby("unique_id").cumcount() < 6])
    assert np.allclose(short[column], forecast[forecast.groupby("unique_id").cumcount() < 6][column])


def test_a_shorter_horizon_than_fitted_is_told_what_to_do(panel, tiny, forecaster):
    host, words = forecaster(tiny(2)), r"h must be at least 6, .* got 2: .*, forecast.groupby\('unique_id'\).head\(2\)"
    host.fit(panel(2))
    for call in (lambda: host.predict(h=2), lambda: host.cross_validation(panel(2), h=2)):
        with pytest.raises(ValueError, match=words):
            call()


def test_short_series_are_padded(tiny, panel, forecaster, fit):
    frame = panel(4)
    row = frame.groupby("unique_id").cumcount()
    frame = frame[(frame["unique_id"] != "s00") | (row >= 55)]  # five rows; a window has twelve
    with pytest.raises(ValueError, match="requires at least 12 training"):
        forecaster(tiny()).fit(frame)
    fitted = fit(tiny(start_padding_enabled=True, max_steps=5), frame)
    np.testing.assert_allclose(fitted.predict().groupby("unique_id")["MVPA"].mean(), [100, 200, 300, 400], rtol=0.1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rows", [5, 6, 60])
def test_few_rows_to_forecast_from_are_said(rows, masked, tiny, panel, forecaster, recwarn):
    fitted = forecaster(tiny(max_steps=1))  # reads twelve
    fitted.fit(panel(4))
    frame = panel(4)
    row = frame.groupby("unique_id").cumcount()
    late = (frame["unique_id"] != "s01") | (row >= 60 - rows)
    if masked:  # the last rows are missing, in place of the first
        late = (frame["unique_id"] != "s01") | (row < 48 + rows)
        frame, late = frame.assign(available_mask=late.astype(float)), late | True
    fitted.predict(frame[late])
    said = [str(warning.message) for warning in recwarn if "series 's01' of df" in str(warning.message)]
    assert [text[:53] for text in said] == ["series 's01' of df should have values in the last 12 "] * (rows == 5)


def test_a_gap_that_is_longer_than_the_horizon_is_said(tiny, panel, forecaster, recwarn):
    """After h steps from the last value the network has nothing to fill a gap with."""
    host, frame = forecaster(tiny(input_size=24)), panel(4)
    step = frame.groupby("unique_id").cumcount()
    for missing in (6, 7):
        seen = (frame["unique_id"] != "s01") | (step < 60 - missing)
        host.fit(frame.assign(available_mask=seen.astype(float)))
        recwarn.clear()
        host.predict()
        said = [str(warning.message) for warning in recwarn if "series 's01' of df" in str(warning.message)]
        words = "series 's01' of df should lack values in at most the last 6 rows (h), got 7 there: the model"
        assert [text[: len(words)] for text in said] == [words] * (missing == 7)


def test_training_and_validation_losses_may_differ(tiny, panel, dataset):
    model, frame = tiny(loss=MAE(), valid_loss=MSE()), panel(4)
    model.fit(dataset(frame), val_size=6)
    model.test_size = 6
    forecast = model.predict(dataset(frame)).reshape(4, 6)
    error = np.square(forecast - frame["y"].to_numpy().reshape(4, 60)[:, -6:]).mean()
    assert float(model.metrics["ptl/val_loss"]) == pytest.approx(error, rel=1e-4)


def test_validation_frame(tiny, panel, fit):
    frame = panel(4)
    row = frame.groupby("unique_id").cumcount()
    fitted = fit(tiny(), frame[row < 50], val_df=frame[row >= 50])
    np.testing.assert_allclose(fitted.predict().groupby("unique_id")["MVPA"].mean(), [100, 200, 300, 400], rtol=0.1)


def test_a_validation_frame_that_does_not_fit_is_named(tiny, panel, forecaster):
    frame = panel(4)
    row = frame.groupby("unique_id").cumcount()
    trained, held_out = frame[row < 50], frame[row >= 50]
    with pytest.raises(ValueError, match=r"val_df must have at least h \(6\) rows of each series, got 5"):
        forecaster(tiny()).fit(trained, val_df=frame[row >= 55])
    with pytest.raises(ValueError, match=r"val_df must begin after df ends, got 2024-01-01T00.* in series 's00'"):
        forecaster(tiny()).fit(trained, val_df=frame[row < 20])
    with pytest.raises(ValueError, match=r"val_df must hold a value in column 'y' .* for series 's00' at 2024-01-03"):
        forecaster(tiny()).fit(trained, val_df=held_out.assign(y=np.nan))
    renamed = held_out.assign(unique_id=held_out["unique_id"].replace("s02", "s09"))
    with pytest.raises(ValueError, match=r"val_df must hold rows of each series of df, .* got none of 's02'"):
        forecaster(tiny()).fit(trained, val_df=renamed)
    with pytest.raises(ValueError, match=r"val_size must be 0 or at least h \(6\), got 5"):
        forecaster(tiny()).cross_validation(frame, val_size=5)


def test_trainer_arguments_reach_the_trainer(tiny, panel, dataset):
    class Watched(MVPA):
        seen: Any = None

        def on_train_start(self) -> None:
            super().on_train_start()
            Watched.seen = (self.trainer.gradient_clip_val, self.trainer.log_every_n_steps)

    tiny(model=Watched, gradient_clip_val=0.5, log_every_n_steps=3).fit(dataset(panel(4)))
    assert Watched.seen == (0.5, 3)


@pytest.mark.parametrize("warm_up", [True, False])
def test_weight_averaging_validates_and_keeps_the_average(warm_up, tiny, panel, dataset):
    trained, validated = [], []

    class Watched(MVPA):
        def on_train_batch_end(self, *event: Any) -> None:
            trained.append(self.network.linear.weight.detach().clone())
            super().on_train_batch_end(*event)

        def validation_step(self, *event: Any) -> Any:
            validated.append(self.network.linear.weight.detach().clone())
            return super().validation_step(*event)

    model = tiny(
        model=Watched,
        max_steps=6,
        val_check_steps=3,
        training={"weight_averaging": 0.5, "averaging_warm_up": warm_up},
        learning_rate=0.1,
        num_sanity_val_steps=0,
    )
    for refit in range(2):
        trained.clear(), validated.clear()
        average = model.network.linear.weight.detach().clone()
        averages = []
        model.fit(dataset(panel(4)), val_size=6)
        for step, weight in enumerate(trained, start=1):
            decay = min(0.5, (1 + step) / (10 + step)) if warm_up else 0.5 * (step > 1)
            average = decay * average + (1 - decay) * weight
            averages.append(average)
        torch.testing.assert_close(validated, [averages[2], averages[5]], msg=f"fit {refit}")
        torch.testing.assert_close(model.network.linear.weight.detach(), averages[-1])


@pytest.mark.parametrize("patience", [-1, 3])
def test_early_stopping_keeps_the_best_validation(patience, tiny, panel, dataset):
    validated = []

    class Watched(MVPA):
        def validation_step(self, *event: Any) -> Any:
            validated.append(self.network.linear.weight.detach().clone())
            return super().validation_step(*event)

    model = tiny(
        model=Watched, max_steps=12, val_check_steps=1, learning_rate=0.3,
        training={"weight_averaging": 0.5, "linear_learning_rate": 0.3},
        early_stop_patience_steps=patience, num_sanity_val_steps=0,
    )  # fmt: skip
    for _ in range(2):
        validated.clear(), model.valid_trajectories.clear()
        model.fit(dataset(panel(4)), val_size=6)
        losses = [loss for _, loss in model.valid_trajectories]
        best = int(np.argmin(losses))
        assert best < len(losses) - 1, "the last validation is not the best one"
        kept = best if patience > 0 else -1
        torch.testing.assert_close(model.network.linear.weight.detach(), validated[kept])
        assert float(model.metrics["ptl/val_loss"]) == pytest.approx(losses[kept])


@pytest.mark.parametrize("size", [16, 64])
def test_training_takes_each_window_once_before_it_takes_one_again(size, tiny, panel, dataset):
    """43 whole windows, told apart by their first value."""
    seen: list[list[float]] = []

    class Watched(MVPA):
        def forward(self, windows_batch: Any) -> torch.Tensor:
            if self.training:
                seen.append(windows_batch["insample_y"][:, 0, 0].tolist())
            return super().forward(windows_batch)

    frame = panel(2)
    firsts = sorted(frame["y"].astype("float32").iloc[:43])
    a_pass = -(-43 // size)
    model = tiny(
        2, model=Watched, max_steps=a_pass + 1, windows_batch_size=size, training_data_availability_threshold=1.0
    )
    for _ in range(2):  # a second fit begins anew
        seen.clear()
        model.fit(dataset(frame))
        assert sorted(itertools.chain(*seen[:a_pass])) == pytest.approx(firsts)
        assert [len(batch) for batch in seen] == ([16, 16, 11, 16] if size == 16 else [43, 43])
        assert seen[0] != seen[a_pass]


def test_a_misspelt_argument_is_named_when_the_model_is_made():
    with pytest.raises(TypeError, match=r"hiden_size is neither an argument of MVPA .*: did you mean 'hidden_size'\?"):
        MVPA(h=2, input_size=4, n_series=2, hiden_size=8)
    assert MVPA(h=2, input_size=4, n_series=2, gradient_clip_val=1.0).trainer_kwargs["gradient_clip_val"] == 1.0


@pytest.mark.parametrize(
    "options", [{}, {"network": {"mixing_heads": 0}}, {"training": {"ridge": 1.0}, "bounded": True}], ids=str
)
def test_forecasts_have_the_unit_of_the_series(options, tiny, panel, forecaster):
    forecasts = []
    for unit in (1.0, 1e-12, 1e15):
        fitted = forecaster(tiny(max_steps=10, **options))
        frame = panel()
        fitted.fit(frame.assign(y=frame["y"] * unit))
        forecasts.append(fitted.predict()["MVPA"].to_numpy(dtype=float) / unit)
    np.testing.assert_allclose(forecasts[1], forecasts[0], rtol=1e-3)
    np.testing.assert_allclose(forecasts[2], forecasts[0], rtol=1e-5)


def test_a_series_without_a_recent_value_is_forecast_at_its_mean(tiny, panel, fit):
    frame = panel()
    lost = (frame["unique_id"] == "s02") & (frame.groupby("unique_id").cumcount() >= 40)
    fitted = fit(tiny(), frame.assign(available_mask=1.0 - lost, y=frame["y"].mask(lost)))
    forecast = fitted.predict().set_index("unique_id").loc["s02", "MVPA"]
    np.testing.assert_allclose(forecast, 300.0, rtol=0.05)


def test_constant_series_stay_so(tiny, panel, fit):
    for level in (0.0, 3e-12, 280.0):
        np.testing.assert_allclose(fit(tiny(), panel().assign(y=level)).predict()["MVPA"], level, rtol=1e-6)


def test_a_short_training_says_nothing_of_validation_steps(tiny, panel, fit, recwarn):
    fitted = fit(tiny(max_steps=2), panel(4), val_size=6)
    assert not [warning for warning in recwarn if "val_check_steps" in str(warning.message)]
    (model,) = fitted.models
    assert model.val_check_steps == model.hparams["val_check_steps"] == 100
    assert "ptl/val_loss" in model.metrics


def test_bounded_intervals_are_in_the_units_of_the_series(panel, fit):
    """Bounds of 100 and more must not cut off what is compared in units of about 1: intervals would have no width."""
    frame, widths = panel(3, rows=120), []
    for bounded in (False, True):
        options = {"enable_progress_bar": False, "logger": False, "accelerator": "cpu", "max_steps": 30}
        fitted = fit(MVPA(6, 36, n_series=3, loss=MQLoss(level=[80]), bounded=bounded, **options), frame)
        forecast = fitted.predict()
        widths.append((forecast["MVPA-hi-80"] - forecast["MVPA-lo-80"]).mean())
    lowest = frame.groupby("unique_id")["y"].min()
    np.testing.assert_allclose(fitted.models[0].network.lower, lowest, rtol=1e-6)
    assert widths[1] == pytest.approx(widths[0], rel=0.3)
