"""MVPAForecaster beyond sktime's conformance suite."""

import decimal
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sktime.forecasting.base import ForecastingHorizon
from sktime.forecasting.naive import NaiveForecaster
from sktime.split import ExpandingWindowSplitter
from support.library import run_python
from support.made_up_series import SMALL, fitted, panel, waves, weights

from mvpa_ts.adapters import options
from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.windows import Series


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


class TestDistribution:
    """skpro's distribution against the quantiles that it is made of."""

    @pytest.mark.parametrize("kind", ["period", "dates", "integer"])
    def test_its_quantiles_are_those_trained(self, kind):
        pytest.importorskip("skpro")
        y = waves()
        if kind != "period":
            y.index = y.index.to_timestamp() if kind == "dates" else pd.RangeIndex(len(y))
        forecaster = fitted(y, [1, 3])
        distribution = forecaster.predict_proba()
        quantiles = forecaster.predict_quantiles(alpha=[0.001, 0.025, 0.25, 0.5, 0.9, 0.99])
        for alpha in (0.001, 0.025, 0.25, 0.5, 0.9, 0.99):
            found = distribution.ppf(alpha)
            pd.testing.assert_index_equal(found.index, forecaster.predict().index)
            assert list(found.columns) == ["c0", "c1"]
            np.testing.assert_allclose(found, quantiles.xs(alpha, axis=1, level=1), rtol=1e-6)
            np.testing.assert_allclose(distribution.cdf(found), alpha, atol=1e-6)
        between = distribution.ppf(0.3).to_numpy()
        assert ((between > quantiles.xs(0.25, axis=1, level=1)) & (between < quantiles.xs(0.5, axis=1, level=1))).all(
            axis=None
        )
        mean = distribution.mean()
        assert (abs(mean - forecaster.predict()) < distribution.var() ** 0.5).all(axis=None)
        assert np.isfinite(distribution.log_pdf(forecaster.predict())).all(axis=None)

    def test_quantiles_on_a_bound(self):
        pytest.importorskip("skpro")
        y = waves(columns=1).sub(10.5).clip(lower=0.0)
        distribution = fitted(y, bounded=True, max_steps=30, learning_rate=0.1).predict_proba()
        found = np.stack([distribution.ppf(alpha) for alpha in (0.01, 0.1, 0.5, 0.9)])
        assert np.isfinite(found).all()
        assert found.min() == pytest.approx(0.0, abs=1e-6)
        assert (np.diff(found, axis=0) >= 0).all()

    def test_without_skpro_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "skpro.distributions", None)
        monkeypatch.delitem(sys.modules, "mvpa_ts.adapters.sktime.distribution", raising=False)
        with pytest.raises(ImportError, match="skpro"):
            fitted(waves()).predict_proba()


class TestIndices:
    @pytest.mark.parametrize(
        "freq",
        [*("D", "h", "10min", "MS", "ME", "QS", "QE-NOV", "YS", "YE-MAR", "B", "bh", "W-WED"),
         pd.offsets.BusinessHour(start="07:30", end="19:30")],
    )  # fmt: skip
    @pytest.mark.parametrize("gaps", [False, True])
    def test_dates_without_a_frequency(self, freq, gaps):
        """As they come from a file: the forecast is that of dates with one."""
        y = waves(columns=1)
        known = y.set_axis(pd.date_range("2024-01-01", periods=60, freq=freq))
        rows = np.delete(np.arange(60), [7, 8, 30]) if gaps else np.arange(60)
        expected = fitted(known.iloc[rows].reindex(known.index), [1, 4]).predict()
        unknown = known.iloc[rows].set_axis(pd.DatetimeIndex(known.index[rows].to_numpy()))
        forecaster = fitted(unknown, [1, 4])
        pd.testing.assert_frame_equal(forecaster.predict(), expected, check_freq=False)
        assert forecaster.predict_interval().index.equals(expected.index)
        forecaster.update(unknown[-3:].shift(3, freq=known.index.freq), update_params=False)
        assert forecaster.predict().index[0] == (known.index[-1:] + 4 * known.index.freq)[0]

    def test_months_from_a_late_day_become_periods(self):
        y = waves(40)["c0"]
        y.index = y.index.to_timestamp() + pd.to_timedelta(np.minimum(30, y.index.days_in_month) - 1, unit="D")
        with pytest.raises(ValueError, match=r"regular grid, .*: take y\.set_axis\(y\.index\.to_period\('M'\)\), or"):
            MVPAForecaster(pretrained="base").fit(y, fh=[1])

    def test_one_date_needs_a_frequency(self):
        y = pd.Series([3.0], index=pd.DatetimeIndex(["2024-01-31"]))
        with pytest.raises(ValueError, match="y must have a frequency where it has one row, 2024-01-31 00:00:00"):
            MVPAForecaster(pretrained="base").fit(y)
        with pytest.warns(UserWarning, match="fewer than 16 observed steps"):
            forecast = MVPAForecaster(pretrained="base").fit(y.asfreq("ME")).predict(fh=[1, 2])
        assert list(forecast.index) == list(pd.date_range("2024-02", periods=2, freq="ME"))


IMPORTS_LAZILY = """
import sys
import sklearn.utils, sktime.classification.base, sktime.forecasting.base, sktime.regression.base  # noqa: E401
HIDDEN = ("torch", "skpro", "tqdm", "safetensors")

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise AssertionError(f"{name} is imported")

for name in [name for name in sys.modules if name.partition(".")[0] in HIDDEN]:
    del sys.modules[name]  # sktime has tried to import it
sys.meta_path.insert(0, Finder())
from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster, MVPARegressor
for estimator in (MVPAClassifier, MVPAForecaster, MVPARegressor):
    assert estimator().get_tag("python_dependencies")[0] == "mvpa-ts"
    assert estimator().get_params()
"""


def test_soft_dependencies_are_imported_where_they_are_used():
    run_python(IMPORTS_LAZILY)


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


def test_steps_in_between_change_nothing():
    y = waves()
    np.testing.assert_array_equal(
        fitted(y, [2, 5]).predict().to_numpy(), fitted(y, range(1, 6)).predict().iloc[[1, 4]].to_numpy()
    )


@pytest.mark.parametrize("pretrained", [None, "base"])
def test_steps_as_distances_in_time(pretrained):
    y = waves().set_axis(pd.date_range("2024-01-01", periods=60, freq="12h"))
    options = SMALL if pretrained is None else {"pretrained": pretrained}
    by_number, by_time = (
        MVPAForecaster(**options).fit(y, fh=fh).predict() for fh in ([2, 4], pd.timedelta_range("1D", periods=2))
    )
    pd.testing.assert_frame_equal(by_time, by_number)


def test_steps_as_dates_of_another_zone():
    y = waves().set_axis(pd.date_range("2024-01-01", periods=60, freq="h", tz="UTC"))
    ahead = pd.DatetimeIndex(["2024-01-03 14:00"]).tz_localize("Europe/Zurich")
    by_date, by_number = (MVPAForecaster(**SMALL).fit(y, fh=fh).predict() for fh in (ahead, [2]))
    pd.testing.assert_frame_equal(by_date, by_number)


@pytest.mark.parametrize(
    "fh",
    [
        pd.period_range("2024-03-02", periods=1, freq="D"), pd.date_range("2024-03-02", periods=1, tz="UTC"),
        ForecastingHorizon([62], is_relative=False),
    ],
    ids=["periods", "another clock", "numbers"],
)  # fmt: skip
def test_steps_as_moments_of_another_kind_are_named(fh):
    y = waves().set_axis(pd.date_range("2024-01-01", periods=60))
    with pytest.raises(ValueError, match=r"fh must be steps ahead, or moments .* y has, datetime64.* got "):
        MVPAForecaster(**SMALL).fit(y, fh=fh)
    with pytest.raises(ValueError, match="got timedelta64"):
        MVPAForecaster(**SMALL).fit(y.reset_index(drop=True), fh=pd.timedelta_range("1D", periods=1))


@pytest.mark.parametrize("fh", [10**12, [10**12], pd.DatetimeIndex(["9999-01-01"], dtype="datetime64[s]")], ids=str)
def test_steps_that_leave_no_memory_are_refused(fh, monkeypatch, tmp_path):
    y = waves(columns=1).set_axis(pd.date_range("2024-01-01", periods=60, freq="h").as_unit("s"))
    # As in a container that may take a gigabyte.
    (tmp_path / "memory.max").write_text("1000000000")
    monkeypatch.setattr(options, "_LIMITS", (tmp_path / "memory.max", tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"fh must be at most 50000 here, got .* and there are 1 GB"):
        MVPAForecaster(pretrained="small").fit(y).predict(fh=fh)


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
        changes = {"max_steps": 60, "learning_rate": 0.01, "dropout": 0.0, "network": {"head_dropout": 0.0}}
        with_x = fitted(y[:-4], range(1, 5), X[:-4], **changes).predict(X=X[-4:])
        without = fitted(y[:-4], range(1, 5), **changes).predict()
        truth = y[-4:].to_numpy()
        assert abs(with_x.to_numpy() - truth).mean() < 0.3 * abs(without.to_numpy() - truth).mean()

    def test_rows_between_those_of_fh_are_interpolated(self):
        y = waves()
        X = pd.DataFrame({"x": np.arange(60.0)}, index=y.index)
        forecaster = fitted(y[:-5], [1, 5], X[:-5])
        np.testing.assert_array_equal(forecaster.predict(X=X.iloc[[-5, -1]]), forecaster.predict(X=X[-5:]))

    def test_without_a_layer_the_linear_path_reads_them(self):
        y = waves()
        x = np.random.default_rng(0).normal(size=len(y))
        X = pd.DataFrame({"x": x}, index=y.index)
        forecaster = fitted(y.add(5.0 * x, axis=0), X=X, num_layers=0)
        future = pd.DataFrame({"x": [1.0]}, index=forecaster.fh.to_absolute_index(forecaster.cutoff)[:1])
        future = pd.concat([future] * len(forecaster.fh)).set_axis(forecaster.fh.to_absolute_index(forecaster.cutoff))
        more = forecaster.predict(X=future).to_numpy() - forecaster.predict(X=0.0 * future).to_numpy()
        np.testing.assert_allclose(more, 5.0, atol=0.7)

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
        with pytest.raises(ValueError, match=r"X must hold at least one value in each column, got none in \['b'\]"):
            fitted(y, [1], X.assign(b=np.nan))
        with pytest.raises(ValueError, match="X must be left out: the forecaster was fitted without X"):
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

    def test_update_predict_without_a_splitter_takes_the_steps_of_fh(self):
        y = waves(columns=1)["c0"]
        forecaster = fitted(y[:-6], [1, 2, 3])
        found = forecaster.update_predict(y[-6:], update_params=False)
        assert found.shape == (5, 3)  # months that are forecast, and the last month known
        direct = forecaster.update(y[-6:-5], update_params=False).predict()
        np.testing.assert_allclose(found.iloc[:, 0].dropna(), direct)
        assert fitted(y[:-6], [1]).update_predict(y[-6:], update_params=False).shape == (5,)

    @pytest.mark.parametrize("timezone", [None, "Europe/Zurich"])
    def test_update_predict_takes_a_horizon_in_days_or_dates(self, timezone):
        y = waves(columns=1)["c0"].set_axis(pd.date_range("2024-03-01", periods=60, tz=timezone))
        expected = fitted(y[:-6], [1, 3]).update_predict(y[-6:], update_params=False)
        for fh in (pd.to_timedelta([1, 3], "D"), y.index[[-6, -4]]):
            forecaster = MVPAForecaster(**SMALL).fit(y[:-6], fh=fh)
            pd.testing.assert_frame_equal(forecaster.update_predict(y[-6:], update_params=False), expected)
            assert forecaster.fh.to_pandas().equals(fh)

    @pytest.mark.parametrize("method", ["update", "update_predict", "update_predict_single"])
    def test_an_array_of_new_rows_is_refused(self, method):
        """Its rows would count from 0 again: forecasts would begin after the fifth row, without a word."""
        y = waves(columns=1)["c0"].to_numpy()
        forecaster = fitted(y[:-5])
        with pytest.raises(ValueError, match=r"y must come with an index after fit, .* got an array"):
            getattr(forecaster, method)(y[-5:])
        forecaster.update(pd.Series(y[-5:], index=range(55, 60)), update_params=False)
        assert forecaster.predict().index[0] == 60

    def test_new_rows_between_the_steps_are_named(self):
        y = waves().set_axis(pd.date_range("2024-01-01", periods=60))
        forecaster = fitted(y[:-5])
        with pytest.raises(ValueError, match=r"dates on the grid of fit \(D\), got 2024-02-25 06:00:00: resample y"):
            forecaster.update(y[-5:].shift(6, freq="h"), update_params=False)


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
            forecast = fitted(y, bounded=True, max_steps=10, learning_rate=0.1).predict_quantiles(alpha=[0.25])
            above += [*(forecast.to_numpy() - y.to_numpy().min()).ravel()]
        assert min(above) == 0.0

    def test_files_and_parameters_must_agree(self, tmp_path):
        y = waves()
        fitted(y, bounded=True).to_files(tmp_path)
        assert MVPAForecaster.from_files(tmp_path).bounded
        with pytest.raises(ValueError, match=r"bounded \(False\) must be the same as in pretrain"):
            MVPAForecaster.from_files(tmp_path, bounded=False).fit(y, fh=[1])


def test_short_series():
    with pytest.raises(ValueError, match=r"y must have at least 7 rows, 5 to forecast \(fh\).*got 6"):
        fitted(waves(6))
    assert np.isfinite(fitted(waves(7)).predict().to_numpy()).all()


_TABLES: dict[str, tuple[Any, str]] = {
    "complex": (lambda y: y + 1j, "hold real numbers in column 'c0', .* got complex128 such as .*: take its size"),
    "an array of complex": (lambda y: y.to_numpy() + 1j, "hold real numbers, got complex128: take its size"),
    "decimals": (
        lambda y: y.map(decimal.Decimal),
        r"column 'c0', .* got object such as Decimal.*\['c0'\].astype\(float",
    ),
    "no name": (lambda y: y.set_axis([None, *y.columns[1:]], axis=1), r"a name for each column, got \[(None|nan), "),
    "text": (lambda y: y.assign(c1="a"), r"column 'c1', .* got (str|object) such as 'a'"),
    "dates as text": (lambda y: y.set_axis(y.index.strftime("%d/%m/%Y")), r"as its index, got .* '01/01/2024': set"),
    "numbers as dates": (
        lambda y: y.set_axis(np.arange(len(y)) / 1.0),
        r"as its index, got float64 .*index.astype\(int",
    ),
    "no date": (
        lambda y: y.set_axis(y.index.where(y.index != y.index[3])),
        "a date in each row .* none in row 3: leave",
    ),
    "out of order": (
        lambda y: y[::-1],
        r"y must have its rows in order of time, got 2024-02-28 .* after 2024-02-29 .*: take y.sort_index\(\)",
    ),
    "a date twice": (
        lambda y: pd.concat([y, y.iloc[[7]]]).sort_index(),
        r"each date once, got 2024-01-08 00:00:00 more than once: .* y = y\[~y.index.duplicated\(\)\]",
    ),
    "no grid": (
        lambda y: y.set_axis(y.index + pd.to_timedelta(np.arange(60) % 7, "h")),
        r"dates on a regular grid.*18:00:00 to 1 days 01:00:00: take",
    ),
    "distances": (
        lambda y: y.set_axis(pd.timedelta_range("0h", periods=60, freq="h")),
        "dates, periods or whole numbers.*got distances in time",
    ),
    "tens": (lambda y: y.set_axis(np.arange(0, 600, 10)), r"advance by 1.*got steps of 10 from 0: take y.reset_index"),
    "infinite": (
        lambda y: y.replace(y.iloc[3, 1], np.inf),
        r"finite, or NaN .*, got inf in columns \['c1'\]",
    ),
    "no value": (lambda y: y.assign(c1=np.nan), r"y must hold a value in each column, got none in \['c1'\]"),
    "a column twice": (lambda y: y.set_axis(["a", "a"], axis=1), "must have each column once, got 'a' more than once"),
}


@pytest.mark.parametrize("options", [{}, {"pretrained": "base"}], ids=["trained", "pretrained"])
@pytest.mark.parametrize("case", _TABLES)
def test_tables_that_would_be_misread_are_refused(case, options):
    y = waves().set_axis(pd.date_range("2024-01-01", periods=len(waves()), freq="D"))
    change, words = _TABLES[case]
    with pytest.raises((ValueError, TypeError), match=words):
        MVPAForecaster(**options).fit(change(y), fh=[1])
    with pytest.raises((ValueError, TypeError), match=r"^X must "):
        MVPAForecaster(**options).fit(y, X=change(y), fh=[1])


def test_rows_of_covariates_out_of_order_or_twice_are_named():
    y = waves()
    with pytest.raises(ValueError, match=r"X must have each date once, got 2020-03 more than once: keep .* X = X\["):
        MVPAForecaster(**SMALL).fit(y, X=y.iloc[[0, 1, 2, 2, *range(3, len(y))]], fh=[1])
    with pytest.raises(ValueError, match="X must have its rows in order of time"):
        MVPAForecaster(**SMALL).fit(y, X=y[::-1], fh=[1])
    forecaster = MVPAForecaster(**SMALL).fit(y[:50], X=y[:50], fh=[1])
    with pytest.raises(ValueError, match="X must have its rows in order of time"):
        forecaster.predict(X=y[50:][::-1])
    with pytest.raises(ValueError, match=r"X must have the index of y, which begins at .* got an array"):
        MVPAForecaster(**SMALL).fit(y, X=y.to_numpy(), fh=[1])


def test_a_new_column_in_update_is_refused():
    forecaster = fitted(waves())
    rows = waves(len(waves()) + 3)[-3:]
    message = r"y must have the columns of fit, \['c0', 'c1'\], got \['new'\] too: to forecast them, call fit"
    with pytest.raises(ValueError, match=message):
        forecaster.update(rows.assign(new=1.0))


def test_rows_from_before_in_update_go_back_to_them_as_in_sktime_and_are_named():
    y = waves()
    forecaster, peer = fitted(y[20:]), NaiveForecaster().fit(y[20:], fh=[1, 2, 3, 4, 5])
    with pytest.warns(UserWarning, match=r"y ends at 2021-08, before the rows seen so far, which end at 2024-12"):
        forecaster.update(y[:20], update_params=False)
    peer.update(y[:20])
    assert forecaster.predict().index.equals(peer.predict().index)


@pytest.mark.parametrize("kind", ["zone", "period"])
def test_times_of_another_kind_in_update_are_named(kind):
    y = waves()["c0"] if kind == "period" else waves()["c0"].to_timestamp()
    rows = y[-3:].asfreq("W") if kind == "period" else y[-3:].tz_localize("UTC")
    with pytest.raises(ValueError, match="y must have an index of the kind that y had in fit, "):
        fitted(y[:-3]).update(rows)


@pytest.mark.parametrize("method", ["update", "update_predict_single"])
@pytest.mark.parametrize("options", [{}, {"pretrained": "base"}], ids=["trained", "base"])
def test_rows_that_are_refused_leave_the_forecaster_as_it_was(options, method):
    """The host has moved the cutoff by then, from which the next forecasts would begin."""
    y = waves(columns=1)["c0"].to_timestamp()
    forecaster = MVPAForecaster(**options or SMALL).fit(y[:-5], fh=[1, 2])
    expected = forecaster.predict()
    for rows, said in ((y[-5:] * np.inf, "finite"), (y[-5:].shift(freq="12h"), "grid of fit")):
        with pytest.raises(ValueError, match=said):
            getattr(forecaster, method)(rows, update_params=False)
        pd.testing.assert_series_equal(forecaster.predict(), expected)


def test_an_instance_that_is_refused_leaves_the_others_as_they_were():
    y = pd.concat({"a": waves(columns=1), "b": 5.0 + waves(columns=1)}, names=["instance", "time"])
    begin, new = y.groupby(level=0, group_keys=False).head(-5), y.groupby(level=0, group_keys=False).tail(5).copy()
    forecaster = MVPAForecaster(pretrained="base").fit(begin, fh=[1, 2])
    expected = forecaster.predict()
    new.loc["b"] = np.inf  # "a" is updated first
    with pytest.raises(ValueError, match="finite"):
        forecaster.update(new, update_params=False)
    pd.testing.assert_frame_equal(forecaster.predict(), expected)


def test_instances_of_a_panel_are_told_apart():
    """The host pairs them by place: rows of one instance would be appended to another, or read as its covariates."""
    y = pd.concat({name: waves(40)[["c0"]] + level for name, level in (("a", 0.0), ("b", 1000.0))})
    X, new = y.set_axis(["x"], axis=1), y.groupby(level=0).tail(3)
    new.index = new.index.set_levels(new.index.levels[1] + 3, level=1)
    swapped, renamed = pd.concat([new.loc[["b"]], new.loc[["a"]]]), new.rename(index={"a": "c"}, level=0)
    for rows, got in ((swapped, "'b', 'a'"), (renamed, "'c', 'b'"), (new.loc[["a"]], "'a'"), (new.loc["a"], "one")):
        forecaster = MVPAForecaster(pretrained="base").fit(y, fh=[1, 2])
        before = forecaster.predict()
        for call in (forecaster.update, forecaster.update_predict_single):
            with pytest.raises(ValueError, match=f"y must have the instances of y in fit, .*: 'a', 'b', got {got}"):
                call(rows)
        pd.testing.assert_frame_equal(forecaster.predict(), before)
    with_X = MVPAForecaster(pretrained="base").fit(y, X=X, fh=[1, 2])
    with pytest.raises(ValueError, match=r"X must have the instances of y in fit, .* got 'b', 'a'"):
        with_X.predict(X=swapped.set_axis(["x"], axis=1))
    with pytest.raises(ValueError, match=r"X must have the instances of y in fit, .* got 'b', 'a'"):
        with_X.clone().fit(y, X=pd.concat([X.loc[["b"]], X.loc[["a"]]]), fh=[1])
    for table, place in ((X.iloc[1:], r"\('a', Period"), (X.set_axis(X.index.set_levels([9, 8], level=0)), r"\('a'")):
        with pytest.raises(ValueError, match=rf"X must have each row of y, got \d+ rows and none at {place}"):
            with_X.clone().fit(y, X=table, fh=[1])
    with pytest.raises(ValueError, match=r"y must have its rows in order of time, got .* take y\.sort_index"):
        with_X.clone().fit(y.iloc[::-1], fh=[1])
    for call in (with_X.stream, with_X.effects, lambda: with_X.to_onnx("x.onnx")):
        with pytest.raises(ValueError, match="needs the forecaster of one series, and that of a panel holds one for"):
            call()


@pytest.mark.parametrize("update_params", [True, False])
def test_update_predict_single_gives_a_series_for_a_series(update_params):
    y = waves()["c0"]
    one, other = fitted(y[:-3]), fitted(y[:-3])
    forecast = one.update_predict_single(y[-3:], update_params=update_params)
    pd.testing.assert_series_equal(forecast, other.update(y[-3:], update_params=update_params).predict())
    pd.testing.assert_series_equal(one.predict(), forecast)


def test_silent_unless_verbose(capfd):
    fitted(waves())
    assert capfd.readouterr() == ("", "")
    fitted(waves(), verbose=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "fit: 100%" in shown.err


def test_regressions_that_were_solved_are_saved_to_the_bit(tmp_path):
    rows = np.arange(200)
    noise = 0.05 * np.random.default_rng(0).standard_normal((200, 2))
    y = pd.DataFrame(np.sin(rows[:, None] / 3 + [0, 1]) + noise, pd.date_range("2020", periods=200), ["a", "b"])
    forecaster = MVPAForecaster(max_steps=3, random_state=0).fit(y, fh=[1, 2])
    forecaster.to_files(tmp_path)
    assert load_file(tmp_path / "forecaster.safetensors")["fitted.by_place"].numel()
    again = MVPAForecaster.from_files(tmp_path, finetune_steps=0).fit(y, fh=[1, 2])
    pd.testing.assert_frame_equal(again.predict(), forecaster.predict(), rtol=0, atol=0)


class TestFarCovariates:
    """Columns of X that lie far from what was trained."""

    def test_a_price_that_was_never_seen_moves_no_forecast_far(self, tmp_path):
        rows = np.arange(172)
        index = pd.date_range("2024-01-01", periods=len(rows), freq="D")
        generator = np.random.default_rng(0)
        X = pd.DataFrame({"price": 10 + generator.uniform(-0.01, 0.01, len(rows)), "calm": 7.0}, index=index)
        y = pd.Series(100 + 3 * np.sin(rows * 2 * np.pi / 7) + generator.standard_normal(len(rows)), index=index)
        forecaster = fitted(y[:160], range(1, 13), X[:160], max_steps=60, input_size=24)
        forecaster.to_files(tmp_path)
        for price in (8.0, 12.0, -1e5):
            with pytest.warns(
                UserWarning, match=f"column 'price' reaches {price:g}, where training saw 9.99"
            ) as caught:
                forecast = forecaster.predict(X=X[160:].assign(price=price))
            assert len(caught) == 1
            assert forecast.between(91, 109).all()
        with pytest.warns(UserWarning, match="column 'calm' reaches 8, where training saw 7 to 7, and never varied"):
            forecaster.predict(X=X[160:].assign(calm=8.0))

    def test_an_effect_reaches_half_the_trained_range_beyond(self):
        generator, index = np.random.default_rng(0), pd.date_range("2024-01-01", periods=172, freq="D")
        X = pd.DataFrame({"price": 10 + generator.uniform(-1, 1, len(index))}, index=index)
        y = 100 - 5 * (X["price"] - 10) + generator.standard_normal(len(index))
        forecaster = fitted(y[:160], range(1, 13), X[:160], max_steps=60, input_size=24)
        assert np.abs(forecaster.predict(X=X[160:].assign(price=8.0)) - 110).mean() < 2.5


@pytest.mark.parametrize("larger", [1.0, 10.0])
def test_an_effect_from_files_stays_in_units_where_a_column_varies_more_by_now(larger, tmp_path):
    """It was learnt in deviations of the rows then, and grew with them. A column of another name has its own size."""
    draws = np.random.default_rng(0).standard_normal((306, 2))
    X = pd.DataFrame({"price": draws[:, 0]})
    y = (3.0 * X["price"] + np.where(np.arange(306) < 100, 1.0, larger) * draws[:, 1]).rename("sales")

    def effect(forecaster, end):
        low, high = (forecaster.predict(X=X[end : end + 6] + step) for step in (0.0, 1.0))
        return (high - low).mean()

    forecaster = fitted(y[:100], range(1, 7), X[:100], max_steps=60, input_size=24)
    before = effect(forecaster, 100)
    forecaster.to_files(tmp_path)
    again = MVPAForecaster.from_files(tmp_path, finetune_steps=0)
    assert effect(again.fit(y[:300], X[:300], range(1, 7)), 300) == pytest.approx(3.0, abs=1.5)
    other = MVPAForecaster.from_files(tmp_path, finetune_steps=0)
    other.fit(1000.0 * y[:100].rename("costs"), X[:100], range(1, 7))
    assert effect(other, 100) == pytest.approx(1000.0 * before, rel=1e-3)


@pytest.mark.parametrize("change", ["2024-10-27", "2024-03-31"])
@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "behind"])
def test_a_season_of_hours_follows_the_local_clock(change, ahead):
    """The peak is at six in the evening, before and after the clock change."""
    middle = pd.Timestamp(change, tz="Europe/Zurich")
    first, last = middle - pd.Timedelta(15, "D"), middle + pd.Timedelta(2 if ahead else 5, "D")
    index = pd.date_range(first, last, freq="h", inclusive="left")
    y = pd.Series((index.hour == 18).astype(float), index=index)
    steps = 72
    forecaster = fitted(
        y[:-steps], range(1, steps + 1), sp=24, training={"ridge": 1.0, "cycle_strength": 1.0}, max_steps=20
    )
    forecast = forecaster.predict()
    assert forecast.index.equals(index[-steps:])
    days = forecast.groupby(forecast.index.date)
    assert [hours.idxmax().hour for _, hours in days if len(hours) > 20] == [18] * sum(len(d) > 20 for _, d in days)


def test_a_long_training_says_how_long_it_will_take(monkeypatch, slow_clock):
    monkeypatch.setattr(slow_clock, "LONG_TRAINING", 1.0)
    with pytest.warns(UserWarning, match=r"training for 20 steps will take some 4 minutes on this machine\. Fewer"):
        fitted(waves(), max_steps=20)
