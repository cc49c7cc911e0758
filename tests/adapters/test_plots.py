"""Pictures hold the numbers of the frames that they were given."""

import builtins
import sys

import numpy as np
import pandas as pd
import polars
import pytest
from neuralforecast import NeuralForecast
from support.made_up_networks import QUIET

from mvpa_ts import plots
from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.adapters.sktime import MVPAForecaster

pytest.importorskip("matplotlib").use("Agg")


STEPS = pd.date_range("2024-01-01", periods=10, freq="D")


def long_frame(values: dict[str, np.ndarray], steps: pd.DatetimeIndex, column: str = "y") -> pd.DataFrame:
    parts = [pd.DataFrame({"unique_id": name, "ds": steps, column: each}) for name, each in values.items()]
    return pd.concat(parts)


@pytest.fixture(autouse=True)
def closed():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def lines_of(axis):
    return {line.get_label(): line.get_ydata().tolist() for line in axis.lines}


def bands_of(axis):
    return {
        band.get_label(): (band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max())
        for band in axis.collections
    }


def test_a_forecast_of_neuralforecast_has_its_intervals():
    df = long_frame({"a": np.arange(10.0), "b": -np.arange(10.0)}, STEPS)
    ahead = pd.date_range("2024-01-11", periods=2, freq="D")
    forecast = long_frame({"a": np.array([10.0, 11.0]), "b": np.array([-10.0, -11.0])}, ahead, "MVPA-median")
    for share, width in ((80.0, 4), (50, 2)):
        forecast[f"MVPA-lo-{share}"] = forecast["MVPA-median"] - width
        forecast[f"MVPA-hi-{share}"] = forecast["MVPA-median"] + width
    figure = plots.forecast(df, forecast)
    assert [axis.get_title() for axis in figure.axes] == ["a", "b"]
    assert lines_of(figure.axes[1]) == {"observed": (-np.arange(10.0)).tolist(), "MVPA-median": [-10.0, -11.0]}
    assert bands_of(figure.axes[0]) == {"MVPA 80 %": (6.0, 15.0), "MVPA 50 %": (8.0, 13.0)}
    renamed = forecast.rename(columns=lambda name: name.replace("MVPA", "A-lo-fi"))
    assert [*bands_of(plots.forecast(df, renamed).axes[0])] == ["A-lo-fi 80 %", "A-lo-fi 50 %"]
    assert len(plots.forecast(df, forecast, series=["b"]).axes) == 1
    other = df.rename(columns={"unique_id": "store"})
    with pytest.raises(ValueError, match=r"unique_id, ds and y .* got 'store', 'ds': rename"):
        plots.forecast(other, forecast.rename(columns={"unique_id": "store"}))


@pytest.mark.parametrize("period", [False, True])
def test_a_forecast_of_sktime_has_its_intervals(period):
    index = STEPS.to_period() if period else STEPS
    y = pd.DataFrame({"a": np.arange(10.0), "b": -np.arange(10.0)}, index=index)
    ahead = index[-1:] + (1 if period else pd.Timedelta(days=1))
    point = pd.DataFrame({"a": [10.0], "b": [-10.0]}, index=ahead)
    columns = pd.MultiIndex.from_tuples([("a", 0.9, "lower"), ("a", 0.9, "upper")])
    figure = plots.forecast(y, point, pd.DataFrame([[7.0, 12.0]], index=ahead, columns=columns))
    assert lines_of(figure.axes[0])["forecast"] == [10.0]
    assert bands_of(figure.axes[0]) == {"90 %": (7.0, 12.0)}
    assert bands_of(figure.axes[1]) == {}
    columns = pd.MultiIndex.from_product([["a"], [0.1, 0.5, 0.9]])
    figure = plots.forecast(y[["a"]], pd.DataFrame([[1.0, 2.0, 4.0]], index=ahead, columns=columns))
    assert lines_of(figure.axes[0])["forecast"] == [2.0]
    assert bands_of(figure.axes[0]) == {"80 %": (1.0, 4.0)}


def test_what_cannot_be_drawn_is_an_error(monkeypatch):
    df = long_frame({"a": np.arange(10.0)}, STEPS)
    with pytest.raises(ValueError, match="frames of one host, got the column unique_id in df alone"):
        plots.forecast(df, pd.DataFrame({"a": [1.0]}))
    with pytest.raises(ValueError, match=r"series must be in forecast and in df, got 'c'; forecast has 'a'"):
        plots.forecast(df, df.rename(columns={"y": "naive"}), series=["c"])
    with pytest.raises(ValueError, match=r"df must be a frame, or a series of pandas, got ndarray"):
        plots.forecast(np.zeros((3, 2)), df)
    with pytest.raises(ValueError, match="pred_interval is for sktime"):
        plots.forecast(df, df.rename(columns={"y": "naive"}), pd.DataFrame())
    with pytest.raises(ValueError, match="must be a fitted NeuralForecast"):
        plots.channels(object())

    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(ImportError, match=r'needs matplotlib: pip install "\.\[plots\]"'):
        plots.forecast(df, df.rename(columns={"y": "naive"}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("coordinates", [0, 1, 2])
def test_channels_come_by_name_in_the_networks_order(coordinates):
    names = ["a", "b", "c"]
    y = pd.DataFrame(np.random.default_rng(0).standard_normal((50, 3)), columns=names)
    places = {name: [float(-place)] * coordinates for place, name in enumerate(names)} if coordinates else None
    forecaster = MVPAForecaster(max_steps=1, dim=8, channel_positions=places, random_state=0).fit(y, fh=[1])
    axis = plots.channels(forecaster).axes[0]
    if coordinates == 2:
        places = {text.get_text(): text.xy for text in axis.texts if text.get_text()}
        assert places["a"][0] > places["c"][0]
        return
    assert [label.get_text() for label in axis.get_yticklabels()] == (["c", "b", "a"] if coordinates else names)
    np.testing.assert_allclose(axis.images[0].get_array().sum(1), 1.0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_channels_of_the_pretrained_forecaster_in_neuralforecast():
    df = long_frame({"a": np.arange(10.0) % 3, "b": np.arange(10.0) % 2}, STEPS)
    forecaster = NeuralForecast([MVPA.from_pretrained("base", h=2, channel_order=["b", "a"], **QUIET)], freq="D")
    rows = pd.concat([df, df.assign(ds=df["ds"] + pd.Timedelta(days=10))])
    forecaster.fit(rows.rename(columns={"unique_id": "sensor"}), id_col="sensor")
    axis = plots.channels(forecaster).axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["b", "a"]
    with pytest.raises(ValueError, match="model must be the number of a model, 0 to 0, got 'MVPA'"):
        plots.channels(forecaster, model="MVPA")


def test_anomalies_are_points_and_full_where_their_source_is():
    values = {"a": np.array([1.0, 9.0, 1.0, 7.0]), "b": np.zeros(4)}
    found = long_frame(values, STEPS[:4]).assign(forecast=1.0)
    found["anomaly"] = found["y"] > 5.0
    found["source"] = found["y"] > 8.0
    figure = plots.anomalies(found)
    assert [axis.get_title() for axis in figure.axes] == ["a", "b"]
    drawn = lines_of(figure.axes[0])
    assert (drawn["observed"], drawn["expected"]) == ([1.0, 9.0, 1.0, 7.0], [1.0] * 4)
    assert (drawn["anomaly"], drawn["anomaly and its source"]) == ([7.0], [9.0])
    assert lines_of(figure.axes[1])["anomaly"] == []
    assert len(plots.anomalies(found, series=["b"]).axes) == 1
    with pytest.raises(ValueError, match=r"series must be in found, got 'c'; found has 'a', 'b'"):
        plots.anomalies(found, series=["c"])


def test_the_title_says_that_more_series_could_be_drawn():
    df = long_frame({f"s{number:02}": np.ones(10) for number in range(30)}, STEPS)
    judged = df.assign(forecast=0.0, anomaly=False, source=False)
    for draw, frames in ((plots.forecast, (df, df.rename(columns={"y": "naive"}))), (plots.anomalies, (judged,))):
        assert draw(*frames).get_suptitle() == "12 of 30 series: series=[…] draws others"
        assert draw(*frames, series=["s20"]).get_suptitle() == ""


def test_what_is_marked_as_missing_is_not_drawn():
    df = long_frame({"a": np.array([1.0, 0.0, 3.0])}, STEPS[:3]).assign(available_mask=[1, 0, 1])
    (axis,) = plots.forecast(df, long_frame({"a": np.ones(2)}, STEPS[3:5], "MVPA")).axes
    np.testing.assert_array_equal(lines_of(axis)["observed"], [1.0, np.nan, 3.0])


def test_rows_in_any_order_and_overlapping_windows():
    df, future = long_frame({"a": np.arange(10.0)}, STEPS), STEPS[-1] + pd.to_timedelta([1, 2, 3], "D")
    windows = [
        long_frame({"a": 10 * row + np.arange(2.0)}, future[row : row + 2], "m").assign(cutoff=future[row])
        for row in (0, 1)
    ]
    expected = {"observed": np.arange(10.0).tolist(), "m": [0.0, 10.0, 11.0]}
    forecast = pd.concat(windows)
    for frames in ((df, forecast), (df[::-1], forecast[::-1]), (polars.from_pandas(df), polars.from_pandas(forecast))):
        assert lines_of(plots.forecast(*frames).axes[0]) == expected
    with pytest.raises(ValueError, match="series must be a list of names, got 'a': pass"):
        plots.forecast(df, forecast, series="a")
    with pytest.raises(ValueError, match=r"df must have the columns unique_id, ds and y as .*, no \['y'\]"):
        plots.forecast(df.drop(columns="y"), forecast)
