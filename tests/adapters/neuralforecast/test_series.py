"""What a model knows of single series: positions, order, vectors and units, by name, on other panels, after loading."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from neuralforecast.losses.pytorch import DistributionLoss
from support.made_up_networks import QUIET

from mvpa_ts.adapters.neuralforecast import AutoMVPA
from mvpa_ts.adapters.neuralforecast.base_model import SERIES, FittedSeries
from mvpa_ts.forecasting import ForecastingConfig
from mvpa_ts.forecasting.channel_order import correlation_order
from mvpa_ts.forecasting.series import SeriesBook

NAMES = ["d", "a", "c", "b"]  # along a shaft, 1 mm apart


def shaft(names: list[Any] = NAMES, spacing: float = 1.0) -> dict[Any, float]:
    return {name: spacing * place for place, name in enumerate(names)}


@pytest.mark.parametrize("kind", ["dict", "pandas", "polars", "two coordinates"])
def test_positions_of_any_kind_reach_the_series_they_name(told, kind, tiny, panel, forecaster):
    given: Any = shaft()
    if kind == "pandas":
        given = pd.DataFrame({"unique_id": NAMES, "mm": range(4)})
    elif kind == "polars":
        given = pytest.importorskip("polars").DataFrame({"mm": range(4), "unique_id": NAMES})
    elif kind == "two coordinates":
        given = {name: (place, 10.0 * place) for place, name in enumerate(NAMES)}
    fitted = forecaster(tiny(channel_positions=given))
    calls = told(fitted.models[0])
    fitted.fit(panel(4, names=NAMES))
    levels = calls[-1]["x"].mean((0, 1))  # series i of the panel lies at 100·(i + 1), and at place i
    places = calls[-1]["positions"][:, 0]
    np.testing.assert_allclose((levels - 100) / 100, places - places.min(), atol=0.1)
    if kind != "two coordinates":
        assert (places.diff() > 0).all()  # one coordinate orders the series for attention too


def test_positions_are_saved_and_another_panel_gets_its_own(tiny, panel, fit, awaken, reloaded):
    fitted = fit(tiny(channel_positions=shaft()), panel(4, names=NAMES))
    awaken(fitted.models[0], 0.3)
    loaded = reloaded(fitted, save_dataset=False)
    here = panel(4, names=NAMES)
    pd.testing.assert_frame_equal(loaded.predict(here), fitted.predict(here))

    other = panel(3, names=["x", "y", "z"])
    lacking = "channel_positions must hold every series of df, got none of 'x', 'y', 'z': add them"
    with pytest.raises(ValueError, match=f"{lacking}, or give those of another panel to finetune"):
        loaded.predict(other)
    with pytest.raises(ValueError, match=f"{lacking}$"):
        fit(tiny(3, channel_positions=shaft()), other)
    with pytest.raises(ValueError, match="must have 1 coordinates for each series, like those of the model, got 2"):
        loaded.models[0].finetune(channel_positions={"x": [1, 2]})
    forecasts = []
    for spacing in (1.0, 1000.0):  # places count in distances to the nearest
        loaded.models[0].finetune(channel_positions=shaft(["x", "y", "z"], spacing))
        forecasts.append(loaded.predict(other)["MVPA"].to_numpy())
    np.testing.assert_allclose(*forecasts, rtol=1e-4)
    loaded.models[0].finetune(channel_positions=shaft(["y", "x", "z"]))
    assert not np.allclose(loaded.predict(other)["MVPA"], forecasts[0], rtol=1e-4)

    loaded.models[0].finetune(n_series=3, max_steps=1)
    loaded.fit(other)
    pd.testing.assert_frame_equal(reloaded(loaded, save_dataset=False).predict(other), loaded.predict(other))


def test_a_part_of_the_series_with_positions_is_enough(tiny, panel, fit):
    fitted = fit(tiny(2, channel_positions={**shaft(), 5: 9.0}), panel(2, names=["a", "b"]))
    assert len(fitted.predict(panel(4, names=NAMES))) == 24


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ({"a": 0.0, "b": float("nan")}, r"channel_positions must be finite, .*, got \[nan\] of 'b'"),
        ({"a": [1.0, 2.0], "b": [1, 2]}, "channel_positions must differ; got the same place for all series"),
        ({"a": 0.0, "b": 1e300}, r"channel_positions must be finite, up to 1e\+18, got \[1e\+300\] of 'b'"),
        ({"a": [0.0, 1.0], "b": [1.0]}, r"at least one, for each series, got shape \(2,\) of 'a', shape \(1,\) of 'b'"),
        ({}, "channel_positions must hold as many coordinates, at least one, for each series, got no series"),
        ({"a": [], "b": []}, r"at least one, for each series, got shape \(0,\)"),
        (pd.DataFrame({"unique_id": ["a", "a"], "km": [0, 1]}), "must name each series once, got 'a' more than once"),
        ({"a": "north", "b": "south"}, "must hold numbers beside the names: could not convert string to float"),
        (np.arange(2), "must be a dict of coordinates by series, .* or a table with a column 'unique_id', got ndarray"),
        (pd.DataFrame({"id": ["a"], "km": [0]}), r"must have a column 'unique_id', got \['id', 'km'\]"),
    ],
    ids=["NaN", "equal", "huge", "lengths", "empty", "no coordinates", "twice", "text", "array", "no ids"],
)
def test_positions_must_fit(positions, message, tiny):
    with pytest.raises(ValueError, match=message):
        tiny(2, channel_positions=positions)


@pytest.mark.parametrize("option", ["channel_positions", "vectors"])
def test_what_compares_all_pairs_takes_a_window_over_few_series_only(option, tiny, monkeypatch):
    monkeypatch.setattr(ForecastingConfig, "max_channels", 2)
    options: dict[str, Any] = {"network": {"per_channel": ["vectors"]}}
    if option == "channel_positions":
        options = {option: {f"s{i}": float(i) for i in range(17)}}
    options["channel_window"] = 2
    tiny(16, **options)
    tiny(17, channel_window=2)
    with pytest.raises(ValueError, match=f"{option} with channel_window needs at most 16 channels, got 17"):
        tiny(17, **options)


def shuffled_waves(count: int = 6, rows: int = 90, prefix: str = "s") -> pd.DataFrame:
    """A walk passes along series whose order by name is not the order of their places."""
    source = np.random.default_rng(0).standard_normal(rows + 3 * count).cumsum()
    places = np.random.default_rng(1).permutation(count)
    dates = pd.date_range("2024-01-01", periods=rows, freq="h")
    return pd.concat(
        pd.DataFrame({"unique_id": f"{prefix}{i:02d}", "ds": dates, "y": source[3 * place : 3 * place + rows]})
        for i, place in enumerate(places)
    ).reset_index(drop=True)


def test_order_by_correlation_is_that_of_the_training_rows(told, tiny, fit, awaken, reloaded):
    frame = shuffled_waves()
    values = frame.pivot(index="ds", columns="unique_id", values="y")
    expected = correlation_order(values.iloc[:-12].to_numpy())
    assert expected != correlation_order(values.iloc[-30:].to_numpy())  # which the look-back alone would give
    spoilt = frame.assign(y=frame["y"].mask(frame["ds"] >= values.index[-12], 1e3 * np.arange(len(frame)) % 7919))
    fitted = fit(tiny(6, channel_order="correlation"), spoilt, val_size=12)  # the held-out rows do not count
    model = awaken(fitted.models[0], 0.3)
    assert model._fitted_series.order == expected
    loaded = reloaded(fitted, save_dataset=False)
    last = frame[frame["ds"] >= values.index[-30]]
    calls = told(loaded.models[0])
    pd.testing.assert_frame_equal(loaded.predict(last), fitted.predict(last))
    first = calls[-1]["x"][0]
    np.testing.assert_allclose(first, values.to_numpy()[-12:, expected], rtol=1e-5)

    other = shuffled_waves(5, prefix="t")  # unseen series have the order of their own rows
    loaded.predict(other)
    own = other.pivot(index="ds", columns="unique_id", values="y").to_numpy()
    np.testing.assert_allclose(calls[-1]["x"][0], own[-12:, correlation_order(own)], rtol=1e-5)


def test_order_that_is_wrong(tiny):
    with pytest.raises(
        ValueError, match=r'channel_order must be None, "correlation" or the names of all series, got .corr'
    ):
        tiny(channel_order="corr")
    for order in (3, [["a"], ["b"]]):
        with pytest.raises(ValueError, match=r"channel_order must be None, .* the names of all series, got"):
            tiny(2, channel_order=order)
    with pytest.raises(ValueError, match="channel_order must name each series once, got 'a' more than once"):
        tiny(2, channel_order=["a", "a"])
    model = tiny(2, channel_order=["a", "b"])
    with pytest.raises(ValueError, match=r"channel_order must name each of the 3 series \(n_series\) once, got 2"):
        model.finetune(n_series=3, channel_order=["a", "b"])
    assert model.finetune(n_series=3, channel_order=["a", "c", "b"]).hparams["channel_order"] == ["a", "c", "b"]


@pytest.mark.parametrize("option", ["individual", "bounded"])
def test_what_belongs_to_single_series_is_not_lent_to_others(option, tiny, panel, fit, reloaded):
    fitted = fit(tiny(3, **{option: True}), panel(3, names=["a", "b", "c"]))
    loaded = reloaded(fitted, save_dataset=False)
    loaded.predict(panel(3, names=["a", "b", "c"]))
    with pytest.raises(ValueError, match=f"{option} keeps the model to the series of its fit, got 'x', 'y', which"):
        loaded.predict(panel(3, names=["a", "x", "y"]))


def test_vectors_belong_to_names(told, tiny, panel, forecaster, awaken, reloaded):
    fitted = forecaster(tiny(3, network={"per_channel": ["vectors"]}))
    frame = panel(3, names=["a", "b", "c"])
    fitted.fit(frame)
    model = awaken(fitted.models[0], 0.3)
    loaded = reloaded(fitted, save_dataset=False)
    pd.testing.assert_frame_equal(loaded.predict(frame), fitted.predict(frame))
    calls = told(loaded.models[0])
    loaded.predict(panel(4, names=["0", "c", "a", "z"]))
    assert calls[-1]["series"].tolist() == [-1, 0, 2, -1]  # the host sorts: 0, a, c, z
    loaded.predict(panel(3, names=["x", "y", "z"]))
    assert calls[-1]["series"].tolist() == [-1, -1, -1]

    before = model.network.mixing.channel_query.detach().clone()
    maps = model.network.mixing.maps.detach().clone()
    model.finetune(n_series=4, max_steps=1, learning_rate=1e-12)
    fitted.fit(panel(4, names=["0", "c", "a", "z"]))
    after = model.network.mixing.channel_query.detach()
    assert after.shape[0] == model.network.config.channels_with("vectors") == 4
    torch.testing.assert_close(after[[1, 2]], before[[0, 2]])
    torch.testing.assert_close(model.network.mixing.maps.detach(), maps)
    again = reloaded(fitted, save_dataset=False)
    other = panel(4, names=["0", "c", "a", "z"])
    pd.testing.assert_frame_equal(again.predict(other), fitted.predict(other))


def test_weights_of_covariates_belong_to_names(tiny, panel, fit):
    """They follow their series to another panel."""

    def driven(*names: str) -> pd.DataFrame:
        frame = panel(len(names), names=list(names))
        return frame.assign(driver=np.sin(frame.groupby("unique_id").cumcount()))

    fitted = fit(tiny(3, hist_exog_list=["driver"]), driven("a", "b", "c"))
    model = fitted.models[0]
    before = model.network.features["historic"].channel_weight.detach().clone()
    model.finetune(n_series=2, max_steps=1, learning_rate=1e-12)
    fitted.fit(driven("c", "z"))
    after = model.network.features["historic"].channel_weight.detach()
    assert after.shape[0] == 2
    torch.testing.assert_close(after[0], before[2])


@pytest.mark.parametrize(
    ("count", "options", "expected"),
    [
        (2, {}, 2),
        (256, {}, 256),
        (1, {}, None),
        (257, {}, None),
        (2, {"network": {"mixing_heads": 0}}, None),
        (2, {"components": ("time", "channel")}, None),
        (2, {"network": {"per_channel": []}}, None),
        (300, {"network": {"per_channel": ["vectors"]}}, 300),
    ],
)
def test_vectors_are_learnt_where_they_pay(count, options, expected, tiny):
    model = tiny(count, **options)
    assert model.network.config.channels_with("vectors") == expected
    assert model.hparams["network"]["per_channel"] == (["vectors"] if expected else [])


@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 1)])
def test_what_was_chosen_by_default_stays_on_another_panel(first, then, tiny, panel, fit, reloaded):
    fitted = fit(tiny(first), panel(first))
    fitted.models[0].finetune(n_series=then, max_steps=1)
    fitted.fit(panel(then))
    loaded = reloaded(fitted, save_dataset=False)
    assert loaded.models[0].network.config.channels_with("vectors") == (then if first > 1 else None)
    pd.testing.assert_frame_equal(loaded.predict(panel(then)), fitted.predict(panel(then)))


def test_vectors_go_by_name_where_no_call_announces_the_panel(tiny, panel, fit):
    """As darts calls `forward`: the order of the panel is the host's, attention's is another."""
    model = fit(tiny(3, channel_order=["b", "c", "a"]), panel(3, names=["a", "b", "c"])).models[0]
    model._view = None
    assert model.view(3, torch.device("cpu")).inputs["series"].tolist() == [1, 2, 0]
    model._book = SeriesBook()
    assert model.view(4, torch.device("cpu")).inputs["series"].tolist() == [-1] * 4


@pytest.mark.parametrize("host_scaled", [False, True])
def test_units_are_those_of_the_training_rows(told, host_scaled, tiny, panel, forecaster):
    frame = panel(3)
    frame.loc[frame["ds"] >= frame["ds"].unique()[-12], "y"] += 500.0
    options = {"local_scaler_type": "standard"} if host_scaled else {}
    fitted = forecaster(tiny(3), **options)
    calls = told(fitted.models[0])
    fitted.fit(frame, val_size=12)
    seen = frame[frame["ds"] < frame["ds"].unique()[-12]].groupby("unique_id")["y"]
    expected = np.stack([seen.mean(), seen.std(ddof=0)], axis=1)
    if not host_scaled:
        np.testing.assert_allclose(calls[-1]["units"], expected, rtol=1e-4)
        fitted.predict(panel(2, names=["s01", "new"]))
        rows = panel(2, names=["s01", "new"]).query("unique_id == 'new'")["y"]
        np.testing.assert_allclose(calls[-1]["units"], [[rows.mean(), rows.std(ddof=0)], expected[1]], rtol=1e-4)
    else:
        assert 0.0 < calls[-1]["units"][:, 1].max() < 1.0


def test_scaled_windows_have_units_of_their_own(told, tiny, panel, forecaster):
    for options in (
        {"scaler_type": "standard"},
        {"loss": DistributionLoss("Normal")},
        {"network": {"normalise": False}},
    ):
        fitted = forecaster(tiny(3, **options))
        calls = told(fitted.models[0])
        fitted.fit(panel(3))
        assert "units" not in calls[-1]


def test_constant_and_short_series_have_units_of_their_windows(told, tiny, panel, forecaster):
    frame = panel(3)
    frame.loc[frame["unique_id"] == "s01", "y"] = 7.0
    fitted = forecaster(tiny(3))
    calls = told(fitted.models[0])
    fitted.fit(frame)
    assert calls[-1]["units"].isnan().any(1).tolist() == [False, True, False]
    assert np.isfinite(fitted.predict()["MVPA"]).all()


def test_a_damaged_file_is_named(tiny):
    model = tiny()
    for text in (b"[1]", b"{", b'{"names": null}'):
        with pytest.raises(ValueError, match="series of the last fit"):
            model.load_state_dict({**model.state_dict(), "_extra_state": torch.tensor(list(text), dtype=torch.uint8)})


def test_searches_take_positions_with_any_ids(tmp_path, panel, fit):
    names = [10, 9, 11]
    model = AutoMVPA(
        6, 3, num_samples=1, storage=f"sqlite:///{tmp_path}/sweep.sqlite",
        config=lambda trial: {"input_size": 12, "max_steps": 1, "channel_positions": shaft(names), **QUIET},
    )  # fmt: skip
    fitted = fit(model, panel(3, names=names), val_size=6)
    assert fitted.models[0].model.hparams["channel_positions"] == [[10, [0.0]], [9, [1.0]], [11, [2.0]]]


def test_positions_of_arrays_are_plain():
    def checked_positions(positions: Any) -> Any:
        return SeriesBook.checked(None, positions, words=SERIES, id_column="unique_id").pairs

    given = {np.str_("a"): np.array([1, 2], dtype=np.float32), np.int64(3): (0, 1)}
    assert checked_positions(given) == [["a", [1.0, 2.0]], [3, [0.0, 1.0]]]
    table = pd.DataFrame({"unique_id": ["a", "b"], "km": [1, 2]})
    assert checked_positions(pd.Series({"a": 1, "b": 2})) == checked_positions(table)
    assert checked_positions(table.set_index("unique_id")) == checked_positions(table) == [["a", [1.0]], ["b", [2.0]]]


def _training(spread, count=12):
    """Units of series whose means vary by that much and whose deviations are some 2."""
    alternate = np.resize([-1.0, 1.0], count)
    units = np.stack([5.0 + spread * alternate, 2.0 * np.exp(0.01 * alternate)], axis=1)
    return FittedSeries(None, units.tolist(), list(range(count)))


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_few_rows_of_new_series_are_read_in_the_units_that_are_usual(spread):
    draws = np.random.default_rng(6)
    means = 5.0 + spread * draws.standard_normal(400)
    shown = np.stack([means + draws.standard_normal(400), 2.0 * np.exp(0.3 * draws.standard_normal(400))], axis=1)
    location, deviation = _training(spread).units_of_new(shown).T
    # What remains of the chance of 1 is at least that of the best linear rule, and hardly more.
    best = spread**2 / (spread**2 + 1.0)
    assert np.mean((location - means) ** 2) == pytest.approx(best, abs=0.12)
    assert np.mean((shown[:, 0] - means) ** 2) > 0.9
    np.testing.assert_allclose(deviation, 2.0, rtol=0.1)


@pytest.mark.parametrize(
    "shown", [[[5000.0, 2000.0]], [[5.0, 0.3]], [[500.0, 2.0]], [[np.nan, np.nan]]], ids=["1000", "0.15", "far", "flat"]
)
def test_units_of_another_kind_stay(shown):
    np.testing.assert_array_equal(_training(0.3).units_of_new(np.array(shown)), shown)


def test_new_series_that_vary_as_those_of_the_training_keep_their_units():
    shown = np.stack([5.0 + np.random.default_rng(7).uniform(-0.2, 0.2, 9), np.full(9, 2.0)], axis=1)
    np.testing.assert_allclose(_training(0.3).units_of_new(shown)[:, 0], shown[:, 0])
