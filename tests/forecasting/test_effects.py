"""Effects of covariates equal generalised least squares with the true errors, and their intervals hold."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from support.made_up_networks import QUIET

from mvpa_ts.forecasting.effects import effects_table


def errors(draws: np.random.Generator, rows: int, memory: float) -> np.ndarray:
    values = draws.standard_normal(rows)
    for step in range(1, rows):
        values[step] += memory * values[step - 1]
    return values


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_effects_are_those_of_generalised_least_squares(memory):
    draws = np.random.default_rng(0)
    X = np.stack([errors(draws, 600, 0.8), draws.random(600) < 0.2], 1)
    y = 5.0 + X @ [2.0, -7.0] + errors(draws, 600, memory)
    # The truth: errors of a known memory, whitened by hand.
    design = np.column_stack([X, np.ones(600)])
    white_y, white = y[1:] - memory * y[:-1], design[1:] - memory * design[:-1]
    expected, residual = np.linalg.lstsq(white, white_y, rcond=None)[:2]
    deviation = np.sqrt(residual[0] / 599 * np.linalg.inv(white.T @ white).diagonal())
    table = effects_table(y[:, None], X, ["y"], ["price", "promotion"])
    np.testing.assert_allclose(table["effect"], expected[:2], atol=0.5 * deviation[:2].max())
    half = (table["upper"] - table["lower"]) / 2
    np.testing.assert_allclose(half, 1.2816 * deviation[:2], rtol=0.15)


def test_intervals_hold_what_they_promise_and_units_are_the_users():
    draws = np.random.default_rng(1)
    held, signs = [], []
    for _ in range(40):
        step = np.arange(240)
        temperature = 15 + 10 * np.sin(2 * np.pi * step / 12) + errors(draws, 240, 0.5)
        X = np.stack([100 * errors(draws, 240, 0.7), temperature], 1)
        truth = np.array([[0.02, -1.0], [-0.01, 0.5]])
        season = np.stack([np.sin(2 * np.pi * (step + 2) / 12), np.cos(2 * np.pi * step / 12)], 1)
        noise = np.stack([errors(draws, 240, 0.6), errors(draws, 240, 0.95)], 1)
        y = 1000 + 3 * season + noise + X @ truth.T
        y[draws.random(y.shape) < 0.02] = np.nan
        table = effects_table(y, X, ["a", "b"], ["price", "temperature"], season=12)
        held.append(table["lower"].le(truth.ravel()) & table["upper"].ge(truth.ravel()))
        signs.append(np.sign(table["effect"]) == np.sign(truth.ravel()))
    assert 0.7 <= np.mean(held) <= 0.9
    assert np.mean(signs) > 0.95
    wide = effects_table(y, X, ["a", "b"], ["price", "temperature"], season=12, coverage=0.99)
    assert (wide["lower"] < table["lower"]).all()


def test_what_says_nothing_has_no_effect():
    y = np.random.default_rng(2).standard_normal((100, 1))
    X = np.column_stack([np.ones(100), np.arange(100.0) % 7])
    table = effects_table(y, X, ["y"], ["constant", "week"])
    assert np.isnan(table["effect"][0])
    assert np.isfinite(table["effect"][1])
    with pytest.warns(UserWarning, match="effects of week, other are NaN, for the others and the season tell the same"):
        twice = effects_table(y, np.c_[X, 3.0 - X[:, 1]], ["y"], ["constant", "week", "other"])
    assert twice["effect"].isna().tolist() == [True, True, True]
    with pytest.warns(UserWarning, match="effects of constant are NaN where they never vary: leave the column out"):
        assert effects_table(y[:4], X[:4], ["y"], ["constant", "week"])["effect"].isna().all()
    for coverage in (80, "0.8"):
        with pytest.raises(ValueError, match="coverage must be between 0 and 1"):
            effects_table(y, X, ["y"], ["constant", "week"], coverage=coverage)
    # A solver would give each of two columns that tell the same a part of the effect.
    twice = np.column_stack([X[:, 1], y[:, 0] + np.roll(X[:, 1], 3), 32 + 1.8 * X[:, 1]])
    effects = effects_table(y, twice, ["y"], ["celsius", "other", "fahrenheit"])["effect"]
    assert effects.isna().tolist() == [True, False, True]


@pytest.fixture(scope="module")
def sales() -> tuple[pd.DataFrame, pd.DataFrame]:
    draws = np.random.default_rng(3)
    index = pd.period_range("2010-01", periods=160, freq="M")
    X = pd.DataFrame({"price": draws.random(160)}, index=index)
    y = pd.DataFrame({"a": 9 - 4 * X["price"], "b": 5 + 2 * X["price"]}) + 0.1 * draws.standard_normal((160, 2))
    return y, X


@pytest.mark.parametrize("options", [{"max_steps": 1, "dim": 4, "num_heads": 1}, {"pretrained": "base"}])
def test_in_sktime(sales, options):
    pytest.importorskip("sktime")
    from mvpa_ts.adapters.sktime import MVPAForecaster

    y, X = sales
    table = MVPAForecaster(channel_order=["b", "a"], **options).fit(y, X=X, fh=[1]).effects()
    by_name = table.set_index("unique_id")["effect"]
    assert by_name.to_dict() == pytest.approx({"a": -4.0, "b": 2.0}, abs=0.15)
    with pytest.raises(ValueError, match="effects needs covariates: give X to fit"):
        MVPAForecaster(**options).fit(y, fh=[1]).effects()


def test_in_neuralforecast(sales):
    pytest.importorskip("neuralforecast")
    from mvpa_ts.adapters.neuralforecast import MVPA

    y, X = sales
    df = pd.concat(
        [pd.DataFrame({"unique_id": name, "ds": y.index.to_timestamp(), "y": y[name], **X}) for name in ("b", "a")]
    )
    for model in (
        MVPA(h=1, input_size=12, n_series=2, futr_exog_list=["price"], **QUIET),
        MVPA.from_pretrained("base", h=1, futr_exog_list=["price"], **QUIET),
    ):
        by_name = model.effects(df, freq="MS").set_index("unique_id")["effect"]
        assert by_name.to_dict() == pytest.approx({"a": -4.0, "b": 2.0}, abs=0.15)
        pd.testing.assert_frame_equal(model.effects(df), model.effects(df, freq="MS"))  # the dates tell the season
        pd.testing.assert_frame_equal(model.effects(pl.from_pandas(df)), model.effects(df))
        with pytest.raises(ValueError, match=r"df must hold each date once in a series, got .* twice in series 'b'"):
            model.effects(pd.concat([df, df[:1]]))
        with pytest.raises(ValueError, match=r"the covariates must hold finite numbers, .* in price"):
            model.effects(df.assign(price=np.inf))
        with pytest.warns(UserWarning, match="the dates of df do not follow freq='YS', so each row counts as one step"):
            assert not model.effects(df).equals(model.effects(df, freq="YS"))
        # Rows that all series lack are no steps: the season goes on counting.
        absent = df["ds"].isin(df["ds"][60:100:7])
        masked = model.effects(df.assign(available_mask=1 - absent, y=df["y"].mask(absent, 1e3)), freq="MS")
        pd.testing.assert_frame_equal(model.effects(df[~absent]), masked)
        with pytest.raises(ValueError, match="got none of"):
            model.effects(df.drop(columns="price"))
    with pytest.raises(ValueError, match="has none in futr_exog_list"):
        MVPA.from_pretrained("base", h=1, **QUIET).effects(df)
