"""Continued training on other panels, and panels whose series do not share their dates."""

import warnings

import numpy as np
import pandas as pd
import pytest
from neuralforecast import NeuralForecast
from utilsforecast.preprocessing import fill_gaps

from mvpa_ts.adapters.neuralforecast import MVPA

QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}


def fitted(panel, series=4, **options):
    forecaster = NeuralForecast([MVPA(6, 12, series, max_steps=2, **options, **QUIET)], freq="h")
    forecaster.fit(panel(series))
    return forecaster


@pytest.mark.parametrize("series", [1, 2, 7])
def test_another_panel_and_another_number_of_steps(panel, reloaded, monkeypatch, series):
    forecaster = fitted(panel)
    loaded = reloaded(forecaster)
    before = {name: weight.clone() for name, weight in loaded.models[0].network.named_parameters()}
    loaded.models[0].finetune(n_series=series, max_steps=3, learning_rate=1e-4)
    steps = []
    kept = MVPA.on_train_batch_end
    monkeypatch.setattr(MVPA, "on_train_batch_end", lambda self, *args: (steps.append(args), kept(self, *args))[1])
    loaded.fit(panel(series))
    assert len(steps) == 3
    after = dict(loaded.models[0].network.named_parameters())
    moved = 0.0
    for name, weight in before.items():  # of vectors, those of series that were there before; the host sorts them
        kept = min(4, series) if "channel_" in name else None
        moved = max(moved, float((weight[:kept] - after[name][:kept]).detach().abs().max()))
    assert 0 < moved < 0.1  # it went on from the weights of the file
    again = reloaded(loaded)
    assert (again.models[0].n_series, again.models[0].max_steps) == (series, 3)
    pd.testing.assert_frame_equal(again.predict(panel(series)), loaded.predict(panel(series)))


def test_steps_may_be_given_to_load(panel, tmp_path):
    fitted(panel).save(str(tmp_path / "first"), overwrite=True)
    loaded = NeuralForecast.load(str(tmp_path / "first"), max_steps=3, n_series=2)
    assert (loaded.models[0].max_steps, loaded.models[0].hparams["n_series"]) == (3, 2)
    loaded.fit(panel(2))
    with pytest.raises(TypeError, match=r"Unexpected keyword arguments .*: steps"):
        NeuralForecast.load(str(tmp_path / "first"), steps=3)


def trained_on(first, second, tmp_path, **options):
    """A model of one table after a nearly empty step on another, and how far the step moved its forecasts of that."""
    model = MVPA(7, 28, 1, max_steps=60, **options, **QUIET)
    forecaster = NeuralForecast([model], freq="D")
    forecaster.fit(first)
    past, ahead = second[:-7], second[-7:].drop(columns="y")
    before = forecaster.predict(past, futr_df=ahead).iloc[:, 2]
    forecaster.save(str(tmp_path), overwrite=True)
    loaded = NeuralForecast.load(str(tmp_path), max_steps=1, learning_rate=1e-9)
    loaded.fit(past)
    return loaded, (loaded.predict(futr_df=ahead).iloc[:, 2] - before).abs().mean()


def driven(columns, effect, seed):
    days = pd.date_range("2026-01-01", periods=len(effect), freq="D")
    noise = 0.3 * np.random.default_rng(seed).normal(size=len(effect))
    return pd.DataFrame({"unique_id": "a", "ds": days, "y": 40.0 + effect + noise, **columns})


def test_a_learnt_effect_stays_where_the_covariate_varies_more(tmp_path):
    x = np.random.default_rng(0).normal(size=300)
    tables = [driven({"x": size * x}, 3.0 * size * x, seed=1) for size in (1.0, 3.0)]
    _, moved = trained_on(*tables, tmp_path, futr_exog_list=["x"])
    assert moved < 2.0  # 13, were the effect three times as large as the first fit found


def test_categories_keep_their_numbers(tmp_path):
    codes, sizes = np.random.default_rng(0).integers(0, 4, 300), np.array([0.0, 8.0, -5.0, 3.0])
    kinds = np.array(["a", "b", "c", "d"])
    fewer = np.maximum(codes, 1)  # the second table never has "a"
    tables = [driven({"kind": kinds[of]}, sizes[of], seed=1) for of in (codes, fewer)]
    columns = {"futr_exog_list": ["kind"], "cat_exog_list": ["kind"], "categorical_cardinalities": {"kind": 4}}
    loaded, moved = trained_on(*tables, tmp_path, **columns)
    assert moved < 2.0  # 7, were "b" read as "a"
    with pytest.raises(
        ValueError, match=r"has room for 4 values of 'kind', and with those of the first fit there are 5"
    ):
        loaded.fit(tables[1].assign(kind="e"))


def test_the_rate_of_the_linear_path_keeps_its_ratio():
    model = MVPA(6, 12, 2, learning_rate=1e-3, training={"linear_learning_rate": 1e-2})
    assert model.finetune(learning_rate=1e-4).hparams["training"]["linear_learning_rate"] == pytest.approx(1e-3)
    assert model._training.settings.linear_learning_rate == pytest.approx(1e-3)


def test_what_cannot_be_continued():
    with pytest.raises(ValueError, match="individual keeps the model to the 2 series"):
        MVPA(6, 12, 2, individual=True).finetune(n_series=3)
    with pytest.raises(ValueError, match="channel_order names the series of the first panel: give finetune"):
        MVPA(6, 12, 2, channel_order=["a", "b"]).finetune(n_series=3)
    with pytest.raises(ValueError, match="max_steps must be a whole number of at least 1, got 0"):
        MVPA(6, 12, 2).finetune(max_steps=0)
    with pytest.raises(ValueError, match="learning_rate must be positive, got -1"):
        MVPA(6, 12, 2).finetune(learning_rate=-1)
    with pytest.raises(ValueError, match="learning_rate must be positive, got 'slow'"):
        MVPA(6, 12, 2).finetune(learning_rate="slow")


def test_series_that_end_early_are_named_and_the_printed_lines_mend_them(panel):
    forecaster = fitted(panel, 3)
    whole = panel(3)
    short = whole.drop(whole[whole["unique_id"] == "s01"].index[-4:])
    with pytest.warns(UserWarning, match=r"(?s)series 's01' end before .*fill_gaps"):
        assert forecaster.predict(short)["ds"].nunique() > 6
    mended = fill_gaps(short, "h", end="global")
    mended["available_mask"] = mended["y"].notna().astype(float)
    with warnings.catch_warnings(action="error", category=UserWarning):
        forecast = forecaster.predict(mended)
    assert forecast["ds"].nunique() == 6
    assert np.isfinite(forecast["MVPA"]).all()
