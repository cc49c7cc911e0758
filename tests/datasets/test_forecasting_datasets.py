"""Benchmark data sets: window counts, borders, scaling, and where files come from."""

import functools
import hashlib
import http.server
import os
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pooch
import pytest
import torch

from mvpa_ts.datasets import forecasting as datasets
from mvpa_ts.datasets.forecasting import (
    FORECASTING_DATASETS,
    Borders,
    dataset_path,
    forecasting_windows,
    load_forecasting_frame,
)

ETT_ROWS, WEATHER_ROWS = 17420, 52696


def make_frame(rows: int, channels: int = 2) -> pd.DataFrame:
    values = np.random.default_rng(0).normal(3.0, 2.0, (rows, channels)).cumsum(0)
    frame = pd.DataFrame(values, columns=[f"channel {index}" for index in range(channels)])
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=rows, freq="h"))
    return frame


@functools.cache
def frame_of(name: str) -> pd.DataFrame:
    return make_frame(WEATHER_ROWS if name == "Weather" else ETT_ROWS)


# The counts of the published protocol, with no window dropped.
COUNTS = {
    ("ETTh1", 96): (8449, 2785, 2785),
    ("ETTh1", 192): (8353, 2689, 2689),
    ("ETTh1", 336): (8209, 2545, 2545),
    ("ETTh1", 720): (7825, 2161, 2161),
    ("Weather", 96): (36696, 5175, 10444),
    ("Weather", 192): (36600, 5079, 10348),
    ("Weather", 336): (36456, 4935, 10204),
    ("Weather", 720): (36072, 4551, 9820),
}


@pytest.mark.parametrize(("name", "horizon"), COUNTS)
def test_window_counts(name, horizon):
    windows = forecasting_windows(frame_of(name), name, lookback=96, horizon=horizon)
    assert tuple(len(windows[part]) for part in ("train", "validation", "test")) == COUNTS[name, horizon]


@pytest.mark.parametrize(
    ("name", "rows", "borders"),
    [
        ("ETTh1", ETT_ROWS, ((0, 8640), (8640, 11520), (11520, 14400))),
        ("ETTh2", ETT_ROWS, ((0, 8640), (8640, 11520), (11520, 14400))),
        ("Weather", WEATHER_ROWS, ((0, 36887), (36887, 42157), (42157, 52696))),
    ],
)
def test_borders(name, rows, borders):
    found = Borders.of(name, rows)
    assert (found.train, found.validation, found.test) == borders


@pytest.mark.parametrize("name", ["ETTh1", "Weather"])
def test_forecast_rows_are_those_of_the_part(name):
    # The horizons of a part start at its first row (training: after its first look-back) and end at its last.
    lookback, horizon = 96, 192
    frame = frame_of(name)
    windows = forecasting_windows(frame, name, lookback=lookback, horizon=horizon)
    borders = Borders.of(name, len(frame))
    for part in ("train", "validation", "test"):
        start, stop = getattr(borders, part)
        first, last = int(windows[part].starts[0]), int(windows[part].starts[-1])
        assert first + lookback == max(start, lookback)
        assert last + lookback + horizon == stop
        assert torch.equal(windows[part].starts, torch.arange(first, last + 1))


def test_scaler_sees_train_rows_only():
    frame = frame_of("ETTh1").copy()
    reference = forecasting_windows(frame, "ETTh1", lookback=96, horizon=96)["train"].values
    train = frame.drop(columns="date").to_numpy()[:8640]
    expected = (frame.drop(columns="date").to_numpy() - train.mean(0)) / train.std(0, ddof=0)
    np.testing.assert_allclose(reference, expected, rtol=1e-4, atol=1e-5)

    frame.iloc[8640:, 1:] = 1e6
    changed = forecasting_windows(frame, "ETTh1", lookback=96, horizon=96)["train"].values
    assert torch.equal(changed[:8640], reference[:8640])


def test_constant_channel_stays_finite():
    frame = frame_of("ETTh1").assign(constant=5.0)
    values = forecasting_windows(frame, "ETTh1", lookback=96, horizon=96)["train"].values
    assert torch.equal(values[:, -1], torch.zeros(ETT_ROWS))


def test_missing_values_of_weather_are_known_and_left_in():
    frame = frame_of("Weather").copy()
    frame.iloc[40, 2] = -9999.0
    windows = forecasting_windows(frame, "Weather", lookback=96, horizon=24)["train"]
    assert windows.observed is not None
    assert (~windows.observed).nonzero().tolist() == [[40, 1]]
    scale = frame.iloc[:36887, 2].std(ddof=0)
    expected = (-9999.0 - frame.iloc[:36887, 2].mean()) / scale
    assert windows.values[40, 1].item() == pytest.approx(expected, rel=1e-5)  # published tables count it
    _, _, counted = next(windows.batches(1))
    assert counted is None
    assert len(windows.complete()) == len(windows) - 41
    assert forecasting_windows(frame_of("ETTh1"), "ETTh1", lookback=96, horizon=24)["train"].observed is None


def test_first_row_is_the_phase_of_a_daily_cycle():
    windows = forecasting_windows(frame_of("ETTh1"), "ETTh1", lookback=96, horizon=96)["test"]
    inputs, _, _ = next(windows.batches(3))
    hours = frame_of("ETTh1")["date"].dt.hour[windows.starts[:3].numpy()]
    assert hours.tolist() == (inputs["phase"] % 24).tolist()


def test_too_long_a_horizon_names_the_part_and_too_few_rows_are_named():
    with pytest.raises(ValueError, match=r"lookback \(96\) \+ horizon \(2881\) must fit into the validation part"):
        forecasting_windows(frame_of("ETTh1"), "ETTh1", lookback=96, horizon=2881)
    with pytest.raises(ValueError, match="ETTh1 needs 14400 rows, frame has 14399"):
        forecasting_windows(make_frame(14399), "ETTh1", lookback=96, horizon=96)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no data folder."""
    monkeypatch.delenv("MVPA_TS_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path / "cache" / "mvpa-ts"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """ETTh1 is published on this machine, as a small file; gives the file and the requests that came."""
    folder = tmp_path / "published"
    folder.mkdir()
    file = folder / "ETTh1.csv"
    file.write_text("date,b,a\n2020-01-01,1,2\n")
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, message, *arguments):
            requests.append(message % arguments)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as host:
        checksum = hashlib.sha256(file.read_bytes()).hexdigest()
        url = f"http://127.0.0.1:{host.server_port}/ETTh1.csv"
        monkeypatch.setitem(datasets._FILES, "ETTh1", ("ETT-small/ETTh1.csv", url, checksum))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=host.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield file, requests
        host.shutdown()
        thread.join()


def test_data_folder_comes_first(server, cache, tmp_path, monkeypatch):
    folder = tmp_path / "data" / "ETT-small"
    folder.mkdir(parents=True)
    file, _ = server
    (folder / "ETTh1.csv").write_bytes(file.read_bytes())
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path / "data"))
    assert dataset_path("ETTh1") == folder / "ETTh1.csv"
    assert not cache.exists()


def test_a_file_of_the_data_folder_that_is_not_the_published_one(server, cache, tmp_path, monkeypatch):
    """A weather.csv that was cut short was read, and every border moved; SHA256SUMS says what is meant."""
    path = tmp_path / "data" / "ETT-small" / "ETTh1.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(server[0].read_bytes()[:-5])
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path / "data"))
    with pytest.raises(ValueError, match=r"ETTh1\.csv is not the published file.* sha256sum ETT-small/ETTh1\.csv >>"):
        load_forecasting_frame("ETTh1")
    sums = tmp_path / "data" / "SHA256SUMS"
    for mark in ("  ", " *", "  ./"):
        sums.write_text(
            f"{'0' * 64}  other.csv\n{hashlib.sha256(path.read_bytes()).hexdigest()}{mark}ETT-small/ETTh1.csv\n"
        )
        assert dataset_path("ETTh1") == path
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"does not have the SHA-256 that .*SHA256SUMS states"):
        dataset_path("ETTh1")
    sums.write_text("12  ETT-small/ETTh1.csv\n")
    with pytest.raises(ValueError, match=r"SHA256SUMS, line 1, must hold a SHA-256 of 64 digits"):
        dataset_path("ETTh1")
    assert not cache.exists()


def test_download_goes_to_the_cache_once(server, cache, tmp_path, monkeypatch):
    _, requests = server
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path / "folder without the file"))
    for _ in range(2):
        assert dataset_path("ETTh1") == cache / "ETT-small" / "ETTh1.csv"
    assert len(requests) == 1
    frame = load_forecasting_frame("ETTh1")
    assert list(frame.columns) == ["date", "a", "b"]  # channels by name, as neuralforecast sorts series
    assert frame["date"].dtype.kind == "M"


def test_corrupted_cache_is_replaced_and_without_network_an_error(server, cache, monkeypatch):
    file, _ = server
    corrupted = cache / "ETT-small" / "ETTh1.csv"
    corrupted.parent.mkdir(parents=True)
    corrupted.write_text("date,a\n")
    nobody = "http://127.0.0.1:1/ETTh1.csv"
    with monkeypatch.context() as offline:
        offline.setitem(datasets._FILES, "ETTh1", ("ETT-small/ETTh1.csv", nobody, "0" * 64))
        with pytest.raises(OSError, match=r"ETTh1 could not be downloaded from http://127.0.0.1:1"):
            dataset_path("ETTh1")
    assert dataset_path("ETTh1").read_bytes() == file.read_bytes()


def test_wrong_download_is_refused(server, cache):
    file, _ = server
    file.write_text("not what was published")
    with pytest.raises(OSError, match=r"ETTh1 could not be downloaded from http.*SHA256"):
        dataset_path("ETTh1")
    assert not (cache / "ETT-small" / "ETTh1.csv").exists()


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name must be one of .*'ETTh1'.* got 'ETTm1'"):
        dataset_path("ETTm1")


def published(name: str) -> pd.DataFrame:
    folder = os.environ.get("MVPA_TS_DATA")
    if not folder or not (Path(folder).expanduser() / datasets._FILES[name][0]).is_file():
        pytest.skip(f"{name} is not in MVPA_TS_DATA ({folder or 'unset'})")
    return load_forecasting_frame(name)


@pytest.mark.parametrize("name", FORECASTING_DATASETS)
def test_published_file_has_its_checksum(name):
    published(name)
    assert hashlib.sha256(dataset_path(name).read_bytes()).hexdigest() == datasets._FILES[name][2]


@pytest.mark.parametrize("name", ["ETTh1", "ETTh2"])
def test_published_ett(name):
    frame = published(name)
    assert list(frame.columns) == ["date", "HUFL", "HULL", "LUFL", "LULL", "MUFL", "MULL", "OT"]
    assert len(frame) == ETT_ROWS
    assert frame["date"].iloc[0] == pd.Timestamp("2016-07-01")
    assert (frame["date"].diff().dropna() == pd.Timedelta("1h")).all()
    assert not frame.isna().any(axis=None)


def test_published_weather_keeps_its_sentinels():
    frame = published("Weather")
    assert frame.shape == (WEATHER_ROWS, 22)
    assert sum("\N{REPLACEMENT CHARACTER}" in column for column in frame.columns) == 3
    channels = frame.drop(columns="date")
    assert list(channels.columns) == sorted(channels.columns)
    sentinels = (channels == -9999.0).sum()
    assert sentinels[sentinels > 0].to_dict() == {
        "OT": 50,
        "max. PAR (\N{REPLACEMENT CHARACTER}mol/m\N{REPLACEMENT CHARACTER}/s)": 30,
        "wv (m/s)": 1,
    }
    windows = forecasting_windows(frame, "Weather", lookback=96, horizon=720)
    assert len(windows["test"]) == 9820
    # All lie in the train rows, whose deviation they inflate for everybody.
    train = channels.iloc[: Borders.of("Weather", len(frame)).train[1]]
    assert (train == -9999.0).to_numpy().sum() == 81
    for column, inflated, measured in (("wv (m/s)", 52.1, 1.7), ("OT", 384.0, 18.2)):
        values = train[column]
        assert values.std() == pytest.approx(inflated, abs=0.05)
        assert values[values != -9999.0].std() == pytest.approx(measured, abs=0.05)
    assert windows["test"].values.isfinite().all()


def test_phase_from_the_clock_follows_the_dates_over_repeated_and_missing_rows():
    frame = make_frame(ETT_ROWS)
    later = pd.Series(pd.Timedelta(0), index=frame.index)
    later[100:] -= pd.Timedelta("1h")  # row 100 repeats the hour of row 99
    later[200:] += pd.Timedelta("5h")  # four hours are skipped
    frame["date"] += later
    windows = forecasting_windows(frame, "ETTh1", lookback=96, horizon=24, clock=True)["train"]
    (inputs, _, _), *_ = windows.only(slice(0, None, 50)).batches(5)
    assert inputs["phase"].shape == (5, 120)
    expected = frame["date"].dt.hour.to_numpy()
    for window, phases in enumerate(inputs["phase"] % 24):
        np.testing.assert_array_equal(phases, expected[50 * window : 50 * window + 120])


def test_the_clock_changes_nothing_where_no_row_is_missing():
    by_row, by_clock = (
        forecasting_windows(frame_of("ETTh1"), "ETTh1", lookback=96, horizon=24, clock=clock)["test"]
        for clock in (False, True)
    )
    (rows, _, _), *_ = by_row.batches(7)
    (hours, _, _), *_ = by_clock.batches(7)
    torch.testing.assert_close(rows["phase"], hours["phase"])


def test_published_weather_by_the_clock():
    dates = published("Weather")["date"]
    positions = datasets.clock_positions(dates)
    minutes = dates.dt.hour * 60 + dates.dt.minute
    np.testing.assert_array_equal((positions + minutes.iloc[0] // 10) % 144, minutes // 10)
    assert (np.diff(positions) == 1).sum() == len(dates) - 3
