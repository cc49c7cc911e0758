"""Networks that are trained before fit: by pretrain, or read from files."""

import numpy as np
import pandas as pd
import pytest
import torch
from support.made_up_series import SMALL, fitted, panel, waves, weights

from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.windows import Series


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
        with pytest.warns(UserWarning, match=r"y should have values in the last \d+ rows, .* got 3 in ") as said:
            found = forecaster.fit(y, fh=[1, 5]).predict()
        assert len(said) == 1
        expected = forecaster.pretrained_.predict(Series(y.to_numpy()))[[0, 4], :, 4]
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-6)

    def test_a_gap_that_is_longer_than_the_horizon_is_said(self, recwarn):
        """After as many steps from the last value the network has nothing to fill a gap with."""
        forecaster = MVPAForecaster(**{**SMALL, "max_steps": 1, "input_size": 24})
        for missing in (3, 4):
            y = waves(60)
            y.iloc[-missing:, 1] = np.nan
            recwarn.clear()
            forecaster.fit(y, fh=[1, 2, 3])
            said = [str(each.message) for each in recwarn if each.category is UserWarning]
            words = "y should lack values in at most the last 3 rows (the largest fh), got more in 'c1'"
            assert [text[: len(words)] for text in said] == [words] * (missing == 4)

    def test_a_horizon_that_leaves_no_memory_is_refused(self):
        with pytest.raises(ValueError, match=r"fh must be at most \d+ here, got 1000000000, which needs 20000 GB of"):
            MVPAForecaster(pretrained="small").fit(waves(60), fh=[1, 10**9])

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

    @pytest.mark.parametrize(
        ("days", "message"),
        [
            (np.cumsum([1, 4.5, 2.25, 7] * 10), "on a regular grid, got distances from 1 days .* to 7 days"),
            ([0, *range(39)], "each date once, got 2024-01-01 00:00:00 more than once"),
        ],
        ids=["no grid", "twice"],
    )
    def test_dates_of_an_instance_are_checked_as_those_of_a_series(self, days, message):
        even = waves(40).set_axis(pd.date_range("2024-01-01", periods=40))
        odd = even.set_axis(pd.Timestamp("2024-01-01") + pd.to_timedelta(days, "D"))
        y = pd.concat({"even": even, "odd": odd}, names=["instance", "time"])
        with pytest.raises(ValueError, match=f"instance odd of y must have (dates )?{message}"):
            MVPAForecaster(**SMALL).pretrain(y, fh=[1, 2])

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
        for fh in (pd.period_range("2024-01", periods=2, freq="M"), pd.timedelta_range("1D", periods=2)):
            with pytest.raises(ValueError, match="fh must be relative in pretrain"):
                forecaster.clone().pretrain(panel(), fh=fh)
        for option in ("individual", "bounded"):
            tied = MVPAForecaster(**SMALL, **{option: True}).pretrain(panel(), fh=[1, 2, 3])
            with pytest.raises(ValueError, match=rf"y must have the 1 columns of pretrain \({option}=True\), got 2"):
                tied.fit(y, fh=[1])
        # Parameters of c0 would be those of c1, without a word.
        tied = MVPAForecaster(**SMALL, individual=True).pretrain(panel(columns=2), fh=[1])
        with pytest.raises(ValueError, match=r"y must have the columns of pretrain, .*got \['c1', 'c2'\]"):
            tied.fit(waves(columns=3)[["c1", "c2"]], fh=[1])


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

    def test_other_exogenous_columns_are_named(self, tmp_path):
        X = pd.DataFrame(np.random.default_rng(1).normal(size=(60, 2)), columns=["a", "b"], index=waves().index)
        y = pd.DataFrame({"y": 3 * X["a"]})
        fitted(y, X=X).to_files(tmp_path)
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
