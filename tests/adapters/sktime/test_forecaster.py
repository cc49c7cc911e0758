"""MVPAForecaster beyond sktime's conformance suite."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("sktime")

from sktime.split import ExpandingWindowSplitter

from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.adapters.sktime import forecaster as module
from mvpa_ts.adapters.sktime.timeline import frequency_of, position_of, regular
from mvpa_ts.forecast_windows import Series

SMALL: dict[str, Any] = {
    "input_size": 12, "dim": 8, "num_heads": 2, "mlp_dim": 8, "max_steps": 4, "finetune_steps": 2, "random_state": 0,
}  # fmt: skip


def waves(rows: int = 60, columns: int = 2, start: str = "2020-01") -> pd.DataFrame:
    """Monthly columns that wave around 10, 20, …"""
    steps = np.arange(rows)
    noise = np.random.default_rng(0).normal(scale=0.1, size=(columns, rows))
    return pd.DataFrame(
        {f"c{i}": 10 * (i + 1) + np.sin(2 * np.pi * (steps + i) / 12) + noise[i] for i in range(columns)},
        index=pd.period_range(start, periods=rows, freq="M"),
    )


def panel(instances: int = 3, rows: int = 40, columns: int = 1) -> pd.DataFrame:
    parts = [waves(rows + 3 * i, columns) + i for i in range(instances)]  # lengths differ
    return pd.concat(parts, keys=range(instances), names=["instance", "time"])


def fitted(y: pd.DataFrame | pd.Series, fh: Any = (1, 2, 3, 4, 5), X: pd.DataFrame | None = None, **changes: Any):
    return MVPAForecaster(**{**SMALL, **changes}).fit(y, X=X, fh=list(fh))


def weights(forecaster: MVPAForecaster) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in forecaster.fitted_.network.parameters()])


class TestQuantiles:
    def test_never_cross(self):
        alpha = [0.001, 0.01, 0.05, 0.3, 0.5, 0.51, 0.77, 0.95, 0.999]
        quantiles = fitted(waves()).predict_quantiles(alpha=alpha)
        for column in ("c0", "c1"):
            assert (np.diff(quantiles[column][alpha].to_numpy(), axis=1) > 0).all()

    def test_intervals_hold_narrower_ones(self):
        intervals = fitted(waves()).predict_interval(coverage=[0.2, 0.9])["c1"]
        assert (intervals[0.9]["lower"] < intervals[0.2]["lower"]).all()
        assert (intervals[0.9]["upper"] > intervals[0.2]["upper"]).all()

    def test_median_is_the_point_forecast(self):
        forecaster = fitted(waves())
        median = forecaster.predict_quantiles(alpha=[0.5])
        np.testing.assert_allclose(median.to_numpy(), forecaster.predict().to_numpy(), rtol=1e-12)

    def test_the_median_alone_gives_no_interval(self):
        forecaster = fitted(waves(), quantiles=(0.5,))
        np.testing.assert_array_equal(forecaster.predict_quantiles(alpha=[0.5]), forecaster.predict())
        with pytest.raises(ValueError, match="need at least two levels to lie between, got"):
            forecaster.predict_interval(coverage=0.9)


class TestReproducibility:
    def test_same_seed_same_bits(self):
        first, second = (fitted(waves()).predict().to_numpy() for _ in range(2))
        assert np.array_equal(first, second)
        assert not np.array_equal(first, fitted(waves(), random_state=1).predict().to_numpy())

    def test_global_generators_are_left_alone(self):
        before = torch.get_rng_state(), np.random.get_state()[1].copy()
        fitted(waves())
        assert torch.equal(before[0], torch.get_rng_state())
        assert np.array_equal(before[1], np.random.get_state()[1])

    def test_units_do_not_matter(self):
        y = waves()
        plain, scaled = fitted(y).predict(), fitted(1e3 * y - 1e6).predict()
        np.testing.assert_allclose(scaled.to_numpy(), 1e3 * plain.to_numpy() - 1e6, rtol=0, atol=0.2)


def test_steps_in_between_change_nothing():
    y = waves()
    np.testing.assert_array_equal(
        fitted(y, [2, 5]).predict().to_numpy(), fitted(y, range(1, 6)).predict().iloc[[1, 4]].to_numpy()
    )


class TestMissing:
    @pytest.mark.parametrize("kind", ["period", "integer"])
    def test_absent_rows_are_missing_rows(self, kind):
        y = waves()
        y.index = y.index if kind == "period" else pd.RangeIndex(len(y))
        missing = y.copy()
        missing.iloc[[20, 21, 55]] = np.nan
        expected, found = fitted(missing, [1, 2]).predict(), fitted(y.drop(y.index[[20, 21, 55]]), [1, 2]).predict()
        assert np.isfinite(expected.to_numpy()).all()
        np.testing.assert_array_equal(expected.to_numpy(), found.to_numpy())

    def test_dates_and_periods_give_the_same(self):
        y = waves()
        y.iloc[[20, 21, 55]] = np.nan
        dates = y.set_axis(y.index.to_timestamp())
        np.testing.assert_array_equal(fitted(y, sp=5).predict().to_numpy(), fitted(dates, sp=5).predict().to_numpy())

    def test_nan_moves_the_forecast_less_than_zero_would(self):
        y = waves()
        missing, zero = y.copy(), y.copy()
        missing.iloc[[40, 50]], zero.iloc[[40, 50]] = np.nan, 0.0
        plain = fitted(y).predict().to_numpy()
        change = abs(fitted(missing).predict().to_numpy() - plain).max()
        assert 0 < change < 0.2 * abs(fitted(zero).predict().to_numpy() - plain).max()


class TestExogenous:
    def test_what_is_known_ahead_is_used(self):
        X = pd.DataFrame({"x": np.random.default_rng(1).normal(size=240)})
        y = pd.DataFrame({"y": 5 + 3 * X["x"]})
        changes = {"max_steps": 150, "dropout": 0.0, "head_dropout": 0.0}
        with_x = fitted(y[:-4], range(1, 5), X[:-4], **changes).predict(X=X[-4:])
        without = fitted(y[:-4], range(1, 5), **changes).predict()
        truth = y[-4:].to_numpy()
        assert abs(with_x.to_numpy() - truth).mean() < 0.3 * abs(without.to_numpy() - truth).mean()

    def test_rows_between_those_of_fh_are_interpolated(self):
        y = waves()
        X = pd.DataFrame({"x": np.arange(60.0)}, index=y.index)
        forecaster = fitted(y[:-5], [1, 5], X[:-5])
        np.testing.assert_array_equal(forecaster.predict(X=X.iloc[[-5, -1]]), forecaster.predict(X=X[-5:]))

    def test_without_a_layer_they_are_refused(self):
        y = waves()
        assert np.isfinite(fitted(y, num_layers=0).predict().to_numpy()).all()
        with pytest.raises(ValueError, match="num_layers must be at least 1 with exogenous features, got 0"):
            fitted(y, X=pd.DataFrame({"x": np.arange(60.0)}, index=y.index), num_layers=0)

    def test_errors_name_what_is_missing(self):
        y = waves()
        X = pd.DataFrame({"a": np.arange(60.0), "b": 1.0}, index=y.index)
        forecaster = fitted(y[:-5], [1, 5], X[:-5])
        with pytest.raises(ValueError, match=r"X must hold the rows of fh in predict.*\['a', 'b'\].*2024-12"):
            forecaster.predict()
        with pytest.raises(ValueError, match=r"X must have the columns of fit.*without \['b'\]"):
            forecaster.predict(X=X[-5:][["a"]])
        with pytest.raises(ValueError, match="X must be given to update"):
            forecaster.update(y[-5:])
        with pytest.raises(ValueError, match=r"X must hold a value of each column, got none of \['b'\]"):
            fitted(y, [1], X.assign(b=np.nan))
        with pytest.raises(ValueError, match="X must be left out: the forecaster was fitted without it"):
            fitted(y[:-5], [1]).predict(X=X[-5:])


class TestUpdate:
    def test_without_parameters_only_the_look_back_moves(self):
        y = waves()
        forecaster = fitted(y[:-5])
        before, early = weights(forecaster), forecaster.predict()
        forecaster.update(y[-5:], update_params=False)
        assert torch.equal(before, weights(forecaster))
        expected = forecaster.fitted_.predict(Series(y.to_numpy()), forecaster._scaling)[..., 4]
        np.testing.assert_allclose(forecaster.predict().to_numpy(), expected, rtol=1e-6)
        assert forecaster.predict().index[0] == y.index[-1] + 1
        assert early.index[0] == y.index[-6] + 1

    def test_with_parameters_the_weights_move_a_little(self):
        y = waves()
        forecaster = fitted(y[:-5])
        before = weights(forecaster)
        forecaster.update(y[-5:])
        moved = (weights(forecaster) - before).abs().max()
        assert 0 < moved < 0.01

    def test_columns_are_known_by_name(self):
        y = waves(columns=3)
        forecaster, other = (fitted(y[:-5], individual=True) for _ in range(2))
        forecaster.update(y[-5:], update_params=False)
        other.update(y[-5:][["c2", "c0", "c1"]], update_params=False)
        pd.testing.assert_frame_equal(other.predict(), forecaster.predict())
        with pytest.raises(ValueError, match=r"y must have the columns of fit.*without \['c1'\]"):
            other.update(y[-5:].rename(columns={"c1": "other"}))

    def test_one_column_may_have_another_name(self):
        y = waves(columns=1)["c0"]
        forecaster = fitted(y[:-5]).update(y[-5:].rename("other"), update_params=False)
        assert forecaster.predict().index[0] == y.index[-1] + 1

    def test_a_moving_cutoff_sees_nothing_behind_it(self):
        y = waves()
        forecaster = fitted(y, [1, 2])
        cv = ExpandingWindowSplitter(initial_window=20, step_length=5, fh=[1, 2])
        first = forecaster.update_predict(y[:30], cv=cv, update_params=False)
        forecaster._cur_y.iloc[30:] = 1e3  # what it has been told of later
        pd.testing.assert_frame_equal(forecaster.update_predict(y[:30], cv=cv, update_params=False), first)
        assert first.max(axis=None) < 100


class TestPretraining:
    def test_fit_starts_from_the_common_network_each_time(self):
        forecaster = MVPAForecaster(**SMALL).pretrain(panel(), fh=range(1, 6))
        common = forecaster.pretrained_
        y = waves(columns=3)
        fresh = forecaster.clone().fit(y, fh=range(1, 6)).predict()
        forecaster.fit(y * 2, fh=range(1, 6))
        assert forecaster.pretrained_ is common
        np.testing.assert_array_equal(forecaster.fit(y, fh=range(1, 6)).predict(), fresh)
        assert not torch.equal(weights(forecaster), torch.cat([w.flatten() for w in common.network.parameters()]))

    def test_network_as_it_is_on_a_series_too_short_to_train_on(self):
        forecaster = MVPAForecaster(**{**SMALL, "finetune_steps": 0}).pretrain(panel(), fh=range(1, 6))
        y = waves(3, columns=2)
        found = forecaster.fit(y, fh=[1, 5]).predict()
        expected = forecaster.pretrained_.predict(Series(y.to_numpy()))[[0, 4], :, 4]
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-6)

    def test_second_pretraining_goes_on(self):
        forecaster = MVPAForecaster(**SMALL).pretrain(panel(), fh=range(1, 6))
        first = forecaster.pretrained_
        forecaster.pretrain(panel(5))
        assert forecaster.pretrained_ is not first
        assert forecaster.pretrained_.config == first.config

    def test_pretraining_helps_a_new_series(self):
        changes = {**SMALL, "max_steps": 150, "input_size": 24, "finetune_steps": 0}
        forecaster = MVPAForecaster(**changes).pretrain(panel(4, 80), fh=range(1, 7))
        y = waves(40, columns=1, start="2021-05")
        found = forecaster.fit(y[:30], fh=range(1, 7)).predict()
        mean = y[:30].to_numpy()[-24:].mean()
        assert abs(found - y[30:36]).to_numpy().mean() < 0.5 * abs(mean - y[30:36]).to_numpy().mean()

    def test_errors(self):
        forecaster = MVPAForecaster(**SMALL)
        with pytest.raises(ValueError, match="fh must be given to pretrain"):
            forecaster.pretrain(panel())
        forecaster.pretrain(panel(), fh=[1, 2, 3])
        y = waves()
        with pytest.raises(ValueError, match="fh must not go past the 3 steps of pretrain, got step 4"):
            forecaster.clone().fit(y, fh=[4])
        with pytest.raises(ValueError, match="X must have the 0 columns of pretrain, got 1"):
            forecaster.clone().fit(y, X=y[["c0"]], fh=[1])
        with pytest.raises(ValueError, match="X must be left out of pretrain"):
            forecaster.clone().pretrain(panel(), X=panel(), fh=[1])
        with pytest.raises(ValueError, match="fh must be relative in pretrain"):
            forecaster.clone().pretrain(panel(), fh=pd.period_range("2024-01", periods=2, freq="M"))
        for option in ("individual", "bounded"):
            tied = MVPAForecaster(**SMALL, **{option: True}).pretrain(panel(), fh=[1, 2, 3])
            with pytest.raises(ValueError, match=rf"y must have the 1 columns of pretrain \({option}=True\), got 2"):
                tied.fit(y, fh=[1])


class TestBounded:
    def test_no_quantile_leaves_the_range(self):
        y, alpha = waves().sub([10, 0]).clip(lower=0.0), [1e-6, 0.01, 0.5, 0.99, 1 - 1e-6]
        for bounded in (False, True):
            forecaster = fitted(y[:-5], bounded=bounded, max_steps=30, learning_rate=0.1)
            for rows in (y[-5:-2], y[-2:]):
                forecaster.update(rows)
                known = y[: rows.index[-1]]
                quantiles = forecaster.predict_quantiles(alpha=alpha)
                low, high = (np.repeat(extreme.to_numpy(), len(alpha)) for extreme in (known.min(), known.max()))
                outside = (quantiles < low) | (quantiles > high)
                assert outside.to_numpy().any() != bounded

    def test_a_pretrained_network_takes_the_range_of_what_it_is_fitted_to(self):
        forecaster = MVPAForecaster(**{**SMALL, "finetune_steps": 0}, bounded=True)
        forecaster.pretrain(panel(), fh=[1, 2, 3])
        y = waves(columns=1) * 7
        network, scaling = forecaster.fit(y, fh=[1, 2, 3]).fitted_.network, forecaster._scaling
        bounds = np.stack([network.lower.numpy(), network.upper.numpy()]) * scaling.scale + scaling.location
        np.testing.assert_allclose(bounds, [y.min(), y.max()], rtol=1e-6)

    def test_the_limit_itself_is_not_rounded(self):
        above = []
        for share in np.linspace(0.65, 0.85, 8):
            y = waves(columns=1)
            y = y.clip(lower=y.quantile(share), axis=1)
            forecast = fitted(y, bounded=True, max_steps=30, learning_rate=0.1).predict_quantiles(alpha=[0.25])
            above += [*(forecast.to_numpy() - y.to_numpy().min()).ravel()]
        assert min(above) == 0.0

    def test_files_and_parameters_must_agree(self, tmp_path):
        y = waves()
        fitted(y, bounded=True).to_files(tmp_path)
        assert MVPAForecaster.from_files(tmp_path).bounded
        with pytest.raises(ValueError, match=r"bounded \(False\) must be that of pretrain"):
            MVPAForecaster.from_files(tmp_path, bounded=False).fit(y, fh=[1])


class TestFiles:
    def test_come_back_as_pretrained(self, tmp_path):
        y = waves()
        forecaster = fitted(y, X=y[["c0"]] + 1.0, sp=12)
        forecaster.to_files(tmp_path / "new")
        again = MVPAForecaster.from_files(tmp_path / "new", finetune_steps=0)
        assert again.state == "pretrained"
        again.fit(y, X=y[["c0"]] + 1.0, fh=range(1, 6))
        ahead = pd.DataFrame({"c0": 3.0}, index=pd.period_range("2025-01", periods=5, freq="M"))
        np.testing.assert_array_equal(again.predict(X=ahead), forecaster.predict(X=ahead))

    def test_exogenous_columns_are_known_by_name(self, tmp_path):
        X = pd.DataFrame(np.random.default_rng(1).normal(size=(60, 2)), columns=["a", "b"], index=waves().index)
        y = pd.DataFrame({"y": 3 * X["a"]})
        fitted(y, X=X).to_files(tmp_path)
        forecasts = [
            MVPAForecaster.from_files(tmp_path, finetune_steps=0)
            .fit(y[:-5], X=X[columns][:-5], fh=range(1, 6))
            .predict(X=X[columns][-5:])
            for columns in (["a", "b"], ["b", "a"])
        ]
        pd.testing.assert_frame_equal(*forecasts)
        with pytest.raises(ValueError, match=r"X must have the columns of fit, \['a', 'b'\], got"):
            MVPAForecaster.from_files(tmp_path).fit(y, X=X.rename(columns={"a": "c"}), fh=[1])

    def test_parameters_may_be_numbers_of_numpy(self, tmp_path):
        numbers = {"dim": np.int64(8), "max_steps": np.int64(2), "sp": np.int32(12), "dropout": np.float32(0.5)}
        forecaster = fitted(waves(), **numbers)
        forecaster.to_files(tmp_path)
        assert MVPAForecaster.from_files(tmp_path).pretrained_.config == forecaster.fitted_.config

    def test_other_files_are_refused(self, tmp_path):
        (tmp_path / "forecaster.json").write_text('{"format": "something else"}')
        with pytest.raises(ValueError, match="must have format 'mvpa-ts forecaster 1', got 'something else'"):
            MVPAForecaster.from_files(tmp_path)


class TestBadInput:
    def test_infinite_values(self):
        y = waves()
        y.iloc[3, 1] = np.inf
        with pytest.raises(ValueError, match=r"y must be finite, or NaN where missing, got inf in columns \['c1'\]"):
            fitted(y)

    def test_a_column_without_any_value(self):
        with pytest.raises(ValueError, match=r"y must hold a value in each column, got none in \['c1'\]"):
            fitted(waves().assign(c1=np.nan))

    def test_whole_numbers_advance_by_one(self):
        y = waves().set_axis(np.arange(1900, 2500, 10))
        with pytest.raises(ValueError, match=r"must advance by 1.*got steps of 10 from 1900: take y.reset_index"):
            fitted(y)

    def test_short_series(self):
        with pytest.raises(ValueError, match=r"y must have at least 7 rows, 5 to forecast \(fh\).*got 6"):
            fitted(waves(6))
        assert np.isfinite(fitted(waves(7)).predict().to_numpy()).all()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"quantiles": (0.1, 0.9)}, "quantiles must hold 0.5"),
            ({"quantiles": ()}, "quantiles must be increasing numbers"),
            ({"input_size": 10, "patch_length": 11}, r"patch_length \(11\) must not exceed input_size \(10\)"),
            ({"patch_length": 0}, "patch_length must be at least 1, got 0"),
            ({"patch_stride": 0}, "patch_stride must be at least 1, got 0"),
            ({"sp": 0}, "sp must be at least 1, got 0"),
            ({"phase_weights": True}, "phase_weights needs sp, the steps of the cycle"),
            ({"dim": 9}, r"dim \(9\) must be a multiple of num_heads"),
            ({"patience": 2}, "needs a validation_fraction"),
            ({"max_steps": -1}, "max_steps must be at least 0"),
            ({"max_steps": 2.0}, r"max_steps must be a whole number, got 2\.0"),
        ],
    )
    def test_parameters(self, changes, message):
        with pytest.raises(ValueError, match=message):
            fitted(waves(), **changes)


def test_every_parameter_arrives(monkeypatch):
    told: dict[str, Any] = {}

    def catch(series, config, training, **rest):
        told.update(dataclasses.asdict(config) | dataclasses.asdict(training) | rest)
        raise InterruptedError

    monkeypatch.setattr(module, "fit_forecaster", catch)
    changes = {
        "input_size": 13, "patch_length": 7, "patch_stride": 3, "dim": 6, "num_heads": 3, "mlp_dim": 5, "num_layers": 2,
        "components": ("time",), "channel_distance": "signed", "max_channels": 9, "dropout": 0.01,
        "attention_dropout": 0.02, "head_dropout": 0.03, "shuffle_channels": True, "sp": 11, "phase_weights": True,
        "quantiles": (0.2, 0.5),
        "max_steps": 17, "batch_size": 19, "learning_rate": 0.04, "linear_learning_rate": 0.3, "weight_decay": 0.05,
        "weight_averaging": 0.6, "validation_fraction": 0.7, "patience": 23, "device": "meta",
    }  # fmt: skip
    with pytest.raises(InterruptedError):
        MVPAForecaster(**changes, individual=True, bounded=True).fit(waves(), fh=[3])
    renamed = {"input_size": "lookback", "sp": "cycle_length", "quantiles": "levels", "max_steps": "steps"}
    assert {name: told[renamed.get(name, name)] for name in changes} == changes
    assert set(changes) | {"individual", "bounded", "finetune_steps", "random_state", "verbose"} == set(
        MVPAForecaster.get_param_names()
    )
    assert told["horizon"] == 3
    assert told["individual_channels"] == told["bounded_channels"] == 2


def test_update_keeps_the_scaling_and_trains_gently(monkeypatch):
    y = waves()
    forecaster = fitted(y[:-5], linear_learning_rate=0.2)
    told: dict[str, Any] = {}

    def catch(series, config, training, **rest):
        told.update(dataclasses.asdict(training) | rest)
        return rest["start"]

    monkeypatch.setattr(module, "fit_forecaster", catch)
    forecaster.update(y[-5:])
    assert told["learning_rate"] == pytest.approx(0.1 * forecaster.learning_rate)
    assert told["linear_learning_rate"] == pytest.approx(0.02)
    assert told["steps"] == SMALL["finetune_steps"]
    assert told["scalings"] == [forecaster._scaling]
    assert told["start"] is forecaster.fitted_


def test_silent_unless_verbose(capfd):
    fitted(waves())
    assert capfd.readouterr() == ("", "")
    fitted(waves(), verbose=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "fit: 100%" in shown.err


class TestTimeline:
    def test_grids(self):
        dates = pd.DatetimeIndex(["2024-01-01", "2024-02-01", "2024-05-01"])
        month = frequency_of(pd.date_range("2024-01-01", periods=3, freq="MS"))
        assert len(regular(dates, dates[-1], month)) == 5
        assert regular(dates, dates[-1], None) is dates
        assert regular(dates, dates[-1], pd.offsets.MonthEnd()) is dates  # on another grid
        assert regular(pd.Index([3, 5, 6]), 8, None).tolist() == [3, 4, 5, 6, 7, 8]

    @pytest.mark.parametrize(
        ("index", "phase"),
        [
            (pd.period_range("1970-03", periods=2, freq="M"), 2),
            (pd.date_range("1970-03-01", periods=2, freq="MS"), 2),
            (pd.date_range("1970-01-02 05:00", periods=2, freq="h"), 29),
            (pd.period_range("1970-01-01 01:00", periods=2, freq="15min"), 4),
            (pd.RangeIndex(7, 9), 7),
            (pd.bdate_range("1970-01-12", periods=4), 7),
            (pd.bdate_range("1970-01-12", periods=4, tz="Pacific/Auckland"), 7),
            (pd.DatetimeIndex(["2024-01-01", "2024-01-05", "2024-01-06"]), 0),
        ],
    )
    def test_position(self, index, phase):
        assert position_of(index, frequency_of(index)) == phase
