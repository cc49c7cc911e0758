"""Stretches that are marked BAD_ are not scored, and are listed; figures reach to the end of an event."""

import edfio
import mne
import numpy as np
import pytest
from support.edf_files import signals_of

from mvpa_ts.ieeg import Recording, read_recording, simulate_recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.baselines import BaselineDetector
from mvpa_ts.ieeg.detection.detection import read_detection
from mvpa_ts.ieeg.detection.onsets import onset_map
from mvpa_ts.ieeg.detection.plots import _envelope, plot_traces
from mvpa_ts.ieeg.detection.report import _model_in_words
from mvpa_ts.ieeg.recordings.noise import add_noise


def write(path, annotations):
    recording = simulate_recording("S01", num_channels=4, duration=60.0, num_seizures=0)
    x = np.clip(recording.read(0, recording.num_samples).astype(float), -3000, 3000)
    signals = signals_of(recording.channel_names, x, most=3000)
    edfio.Edf(signals, annotations=[edfio.EdfAnnotation(*annotation) for annotation in annotations]).write(path)


def test_marks_of_the_file_and_of_the_table_beside_it(tmp_path):
    write(tmp_path / "night.edf", [(12.0, 6.0, "BAD_movement"), (30.0, 5.0, "badge")])
    (tmp_path / "night_events.tsv").write_text(
        "onset\tduration\ttrial_type\n41\t2\tBAD_pop\n0\t60\tbckg\n", encoding="utf-8"
    )
    recording = read_recording(tmp_path / "night.edf")
    assert recording.bad_spans == ((12.0, 18.0), (41.0, 43.0))
    assert recording.seizures == ()
    assert recording.crop(15.0, 42.0).bad_spans == ((0.0, 3.0), (26.0, 27.0))
    assert add_noise(recording, 40.0).bad_spans == recording.bad_spans
    words = ["detect", str(tmp_path / "night.edf"), "--model", "line-length"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    detection = read_detection(tmp_path / "out" / "night")
    # Segments from 10 and 15 s, and from 40 s.
    assert np.flatnonzero(np.isnan(detection.probabilities)).tolist() == [2, 3, 8]
    assert [(s.onset, s.offset, s.reason) for s in detection.skipped] == [
        (10.0, 20.0, "a mark of bad signal (BAD_)"),
        (40.0, 45.0, "a mark of bad signal (BAD_)"),
    ]
    assert "15 s with a mark of bad signal" in (tmp_path / "out" / "night" / "report.html").read_text(encoding="utf-8")
    assert main([*words, "-o", str(tmp_path / "all"), "--score-bad"]) == 0
    assert read_detection(tmp_path / "all" / "night").skipped == ()


def test_a_bad_stretch_that_names_a_seizure_is_said(tmp_path):
    write(tmp_path / "night.edf", [(12.0, 6.0, "BAD_seizure")])
    with pytest.warns(UserWarning, match="BAD stretches that name a seizure are not scored, .*: at 12 s"):
        recording = read_recording(tmp_path / "night.edf")
    assert (recording.bad_spans, recording.seizures) == (((12.0, 18.0),), ((12.0, 18.0),))


def test_other_marks_keep_what_was_stored(tmp_path):
    recording = simulate_recording("S01", num_channels=2, duration=60.0, num_seizures=0)
    detector = BaselineDetector("line-length")
    whole = detector.detect(recording, store=tmp_path / "store").probabilities
    recording.bad_spans = ((0.0, 4.0),)
    marked = detector.detect(recording, store=tmp_path / "store").probabilities
    np.testing.assert_array_equal(marked, [np.nan, *whole[1:]])


def test_an_event_is_drawn_to_its_end():
    recording = simulate_recording("S01", num_channels=2, duration=200.0, num_seizures=0)
    detection = BaselineDetector("line-length", threshold=0.0, rules="none").detect(recording)
    assert detection.events == [(0.0, 200.0)]
    maps = [onset_map(detection.segments, event) for event in detection.events]
    figures = {heading: figure for heading, _, figure in detection._figures(None, maps)}
    assert figures["Event 1: 0 to 200 s"].axes[0].get_xlim() == (0.0, 200.0)
    # At 400 pixels a letter of 8 points is 8 pixels high and more.
    assert min(8 / 72 * 400 / figure.get_figwidth() for figure in figures.values()) >= 8.0


def test_missed_seizures_are_drawn_where_nothing_was_found():
    recording = simulate_recording("S01", num_channels=2, duration=200, num_seizures=0).with_seizures([(150.0, 160.0)])
    detection = BaselineDetector("line-length", threshold=1.0, rules="none").detect(recording)
    assert detection.events == []
    headings = [heading for heading, *_ in detection._figures(None, ())]
    assert "No event was detected; a seizure that is marked, 150 to 160 s" in headings
    quiet = BaselineDetector("line-length", threshold=1.0, rules="none").detect(recording.with_seizures([]))
    assert "No event was detected; the beginning" in [heading for heading, *_ in quiet._figures(None, ())]


@pytest.mark.parametrize(("weight", "words"), [(0.0, "decides alone, networks have no weight"), (0.5, "decides with")])
def test_the_report_says_what_decides(weight, words):
    assert words in _model_in_words({"model": {"linear": {"network": weight}, "num_layers": 1, "dim": 8, "context": 2}})


def test_a_long_trace_keeps_its_spikes_and_gaps():
    values = np.zeros(200_000, np.float32)
    values[123_456], values[:5000] = 70.0, np.nan
    times, drawn = _envelope(np.arange(200_000) / 512, values)
    assert len(drawn) <= 20_000
    assert np.nanmax(drawn) == 70.0
    assert times[np.nanargmax(drawn)] == pytest.approx(123_456 / 512, abs=0.1)
    assert np.isnan(drawn[:200]).all()
    x = np.random.default_rng(0).normal(0, 50, (4, 512 * 120))
    figure = plot_traces(
        BaselineDetector("line-length").segments(Recording.from_array(x, 512.0, list("ABCD"), "µV")), 0.0, 120.0
    )
    assert len(figure.axes[0].lines[0].get_xdata()) <= 20_000


def test_marks_of_a_joined_recording_outlive_the_export_to_brainvision(tmp_path):
    pytest.importorskip("pybv")
    x = np.random.default_rng(0).normal(0, 50e-6, (2, 256 * 60))
    raw = mne.io.RawArray(x, mne.create_info(["A1", "A2"], 256.0, "eeg"), verbose="error")
    raw.set_annotations(mne.Annotations([20.0], [5.0], ["BAD_movement"]))
    raw = mne.concatenate_raws([raw.copy().crop(0, 30), raw.crop(30)], verbose="error")
    mne.export.export_raw(tmp_path / "x.vhdr", raw, verbose="error")
    with pytest.warns(UserWarning, match=r"x: recordings were joined at 30\.0"):
        assert read_recording(tmp_path / "x.vhdr").bad_spans[0] == (20.0, 25.0)
