"""What must not change a detection: units, order of channels, pieces, streams, the start, time zones, file formats."""

import time
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_up_recordings import SMALL, seeded

from mvpa_ts.ieeg import Detector, Recording, StreamingDetector, read_recording
from mvpa_ts.ieeg.datasets.cohort import split_subjects
from mvpa_ts.ieeg.detection.baselines import BaselineDetector
from mvpa_ts.ieeg.simulation.writing import write_swec

NAMES, RATE = ["A1", "A2", "A3", "B1"], 512
few = settings(max_examples=4, deadline=None, derandomize=True)


def brain(seconds: int = 60) -> np.ndarray:
    """Steps of 0.1 µV, which every format can hold, with a fast rhythm from 20 to 40 s."""
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(0, 1, (len(NAMES), seconds * RATE)), axis=1)
    x = 50 * (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    place = np.arange(seconds * RATE) / RATE
    x += 80 * np.sin(2 * np.pi * 15 * place) * ((place >= 20) & (place < 40))
    return np.round(x * 10) / 10


NETWORK = seeded(**SMALL)


def recording(x: np.ndarray, names: list[str] = NAMES, unit: str = "µV", **options: object) -> Recording:
    return Recording.from_array(x, RATE, names, unit, **options)  # type: ignore[arg-type]


@cache
def usual() -> np.ndarray:
    return Detector(NETWORK).detect(recording(brain())).probabilities


@pytest.mark.parametrize(("unit", "scale"), [("mV", 1e-3), ("V", 1e-6), ("nV", 1e3)])
def test_units(unit, scale):
    np.testing.assert_allclose(
        Detector(NETWORK).detect(recording(brain() * scale, unit=unit)).probabilities, usual(), rtol=1e-4
    )


@few
@given(order=st.permutations(range(len(NAMES))))
def test_order_of_channels(order):
    """Of a file or a Raw; samples in memory are taken in the order in which they are given."""
    mne = pytest.importorskip("mne")
    info = mne.create_info([NAMES[index] for index in order], RATE, "seeg")
    detection = Detector(NETWORK).detect(mne.io.RawArray(brain()[list(order)] * 1e-6, info, verbose="error"))
    assert detection.channel_names == tuple(NAMES)
    np.testing.assert_allclose(detection.probabilities, usual(), atol=1e-5)


@few
@given(sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=8))
def test_streamed_as_it_comes(sizes):
    """The first window: after it a stream forgets what is old, see `StreamingMVPFormer`."""
    x = brain()[:, : 20 * RATE]
    stream = StreamingDetector(NETWORK, RATE, NAMES, unit="µV")
    decisions, place, turn = [], 0, 0
    while place < x.shape[1]:
        size = sizes[turn % len(sizes)] + 2000
        decisions += stream.feed(x[:, place : place + size])
        place, turn = place + size, turn + 1
    decisions += stream.finish()
    whole = Detector(NETWORK).detect(recording(x)).probabilities
    np.testing.assert_allclose([decision.probability for decision in decisions], whole, atol=1e-5)


@few
@given(start=st.integers(1, 6))
def test_a_later_start(start):
    """Of a signal that needs no filter, and a detector that looks at 5 s alone."""
    whole = recording(brain(), preprocessed=True, seizures=[(20.0, 40.0)])
    detector = BaselineDetector("line-length")
    later = detector.detect(whole.crop(5.0 * start, 60.0))
    np.testing.assert_allclose(later.probabilities, detector.detect(whole).probabilities[start:], rtol=1e-6)
    assert later.reference == [(max(20.0 - 5 * start, 0.0), 40.0 - 5 * start)]


def files(folder: Path) -> dict[str, Path]:
    """The same signal, seizure and date as EDF, BrainVision and FIF."""
    mne, edfio, pybv = pytest.importorskip("mne"), pytest.importorskip("edfio"), pytest.importorskip("pybv")
    x, date = brain(), datetime(2020, 3, 29, 1, 30, tzinfo=UTC)  # half an hour before clocks change in Europe
    signals = [
        edfio.EdfSignal(row, RATE, label=name, physical_dimension="uV", physical_range=(-3276.8, 3276.7))
        for row, name in zip(x, NAMES, strict=True)
    ]
    edf = edfio.Edf(signals, annotations=[edfio.EdfAnnotation(20, 20, "seizure")], starttime=date.time(),
                    recording=edfio.Recording(startdate=date.date()))  # fmt: skip
    edf.write(folder / "x.edf")
    events = [{"onset": 20 * RATE, "duration": 20 * RATE, "description": "seizure", "type": "Comment"}]
    pybv.write_brainvision(
        data=x * 1e-6, sfreq=RATE, ch_names=NAMES, fname_base="x", folder_out=str(folder), events=events,
        meas_date=date, fmt="binary_float32")  # fmt: skip
    raw = mne.io.RawArray(x * 1e-6, mne.create_info(NAMES, RATE, "seeg"), verbose="error")
    raw.set_meas_date(date).set_annotations(mne.Annotations([20], [20], ["seizure"], orig_time=date))
    raw.save(folder / "x_raw.fif", verbose="error")
    return {"EDF": folder / "x.edf", "BrainVision": folder / "x.vhdr", "FIF": folder / "x_raw.fif"}


def test_file_formats_and_time_zones(tmp_path, monkeypatch):
    tables = set()
    for number, (kind, path) in enumerate(files(tmp_path).items()):
        monkeypatch.setenv("TZ", ("America/New_York", "Asia/Tokyo", "Europe/Zurich")[number])
        time.tzset()
        read = read_recording(path)
        assert (read.channel_names, read.seizures) == (tuple(NAMES), ((20.0, 40.0),)), kind
        assert read.metadata["start"] == "2020-03-29T01:30:00+00:00", kind
        np.testing.assert_allclose(read.read(0, read.num_samples), brain(), atol=2e-3, err_msg=kind)
        detection = Detector(NETWORK).detect(read)
        np.testing.assert_allclose(detection.probabilities, usual(), atol=1e-4, err_msg=kind)
        detection.save(tmp_path / kind, clock=True)
        tables.add((tmp_path / kind / "reference_events.tsv").read_text())
    monkeypatch.undo()
    time.tzset()
    (table,) = tables
    assert "\n20.000\t20.000\tsz\tn/a\tall\t2020-03-29 01:30:00\t60.000\n" in table


def test_a_text_is_no_switch(tmp_path):
    """As True, "no" would write dates, replace files, and let a person train and test."""
    calls = {
        "clock": Detector(NETWORK).detect(recording(brain(10))).save,
        "overwrite": partial(write_swec, recording(brain(10))),
        "allow_duplicates": partial(split_subjects, ["S1"]),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name} must be True or False, got 'no'"):
            call(tmp_path, **{name: "no"})
