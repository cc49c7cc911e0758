"""Onset maps: the index against its formula, value by value, and the truth of simulated seizures."""

import csv
import dataclasses
import math

import numpy as np
import pytest
import scipy.ndimage

from mvpa_ts.ieeg import Detector, Recording, Segments, simulate_recording
from mvpa_ts.ieeg.detection.baselines import BaselineDetector
from mvpa_ts.ieeg.detection.onsets import (
    EDGES,
    channel_scores,
    delays,
    energy_ratio,
    epileptogenicity,
    onset_map,
    rises,
    without_common,
    write_onsets,
)
from mvpa_ts.ieeg.detection.plots import plot_onset_map


def scalar_index(ratio, step, bias, threshold, horizon=5.0, tau=1.0):
    """Bartolomei et al. 2008, equations 1 to 4, one number after the other."""
    detected = []
    for channel in ratio:
        total, low, low_place, alarm, mean_sum = 0.0, math.inf, None, False, 0.0
        for n, value in enumerate(channel):
            mean_sum += value
            total += value - mean_sum / (n + 1) - bias
            if total < low:
                low, low_place = total, n
            if total - low > threshold:
                alarm = True
                break
        detected.append(low_place if alarm else None)
    times = [place for place in detected if place is not None]
    index = []
    for channel, place in zip(ratio, detected, strict=True):
        if place is None:
            index.append(0.0)
            continue
        energy = 0.0
        for n in range(place, min(place + round(horizon / step), len(channel) - 1) + 1):
            energy += channel[n]
        index.append(energy / ((place - min(times)) * step + tau))
    return [value / max(index) for value in index], detected


@pytest.mark.parametrize("seed", range(5))
def test_the_index_equals_its_formula(seed):
    random = np.random.default_rng(seed)
    ratio = random.gamma(2.0, 0.5, (7, 180))
    for channel, place in zip(ratio[:5], random.integers(40, 150, 5), strict=True):
        channel[place:] *= random.uniform(2, 8)
    index, times = epileptogenicity(ratio, 0.25, bias=0.4, threshold=8.0)
    expected, places = scalar_index(ratio, 0.25, 0.4, 8.0)
    np.testing.assert_allclose(index, expected, atol=1e-6)
    assert [None if math.isnan(time) else round(time / 0.25) for time in times] == places
    assert max(expected) == 1.0
    assert min(expected) == 0.0


def test_without_fast_discharges_there_is_no_index():
    index, times = epileptogenicity(np.ones((3, 100)))
    assert index.tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(times).all()


def test_the_ratio_is_of_the_paper_s_bands():
    low = np.array(EDGES[:-1])
    energy = np.ones((1, len(low), 2))
    energy[0, :, 0] = np.select([low < 3.4, low < 12.4], [100.0, 0.5], 1.2)  # delta counts nowhere
    np.testing.assert_allclose(energy_ratio(energy), [[3.0, 1.25]])


def test_what_all_channels_do_at_once_is_no_rise():
    random = np.random.default_rng(0)
    energy = random.gamma(8.0, 1 / 8, (8, 6, 200))
    energy[:, :, 100:] *= 5.0
    energy[3, :, 120:] *= 4.0
    place, strength, _ = rises(without_common(energy), np.arange(-100, 100) / 4)
    assert strength.argmax() == 3
    assert abs(place[3] - 119.5) <= 2


def test_a_change_long_before_the_event_or_in_another_band_counts_less():
    """Three channels change in one band at the onset, two as much: one 15 s before it, one in another band."""
    energy = np.random.default_rng(0).gamma(8.0, 1 / 8, (5, 6, 200))
    energy[:3, 1, 100:] *= 4.0
    energy[3, 1, 40:] *= 4.0
    energy[4, 4, 100:] *= 4.0
    _, strength, pattern = rises(energy, np.arange(-100, 100) / 4)
    assert pattern.argmax() == 1
    assert strength[3:].max() < 0.5 * strength[:3].min()


def test_delays_are_those_by_which_a_course_was_shifted():
    shifts, middle, count = np.array([0.0, 1.5, 3.25, 6.0]), 80, 240
    time = (np.arange(count) - middle) / 4  # windows of a quarter second
    bands = len(EDGES) - 2
    log_energy = np.random.default_rng(0).normal(0.0, 0.1, (6, bands, count))  # two channels have no part in it
    for channel, shift in enumerate(shifts):
        # A chirp that is as strong in each channel, from band to band in 15 s.
        at = (time - shift)[None, :] / 15 * bands - np.arange(bands)[:, None]
        log_energy[channel] += 3.0 * np.exp(-(at**2)) * (time >= shift)
    delay, share = delays(np.exp(log_energy), middle, np.ones(bands), np.array([1.0, 1.0, 1.0, 1.0, 0.1, 0.1]))
    np.testing.assert_allclose(delay[:4] - delay[0], shifts, atol=0.25)
    assert share[4:].max() < 0.4 * share[:4].min()


def test_an_onset_that_spreads():
    """Ten hertz in noise that falls with frequency: first in one channel, in the next one 1 s later, and so on."""
    errors, hits = [], 0
    for seed in range(5):
        random = np.random.default_rng(seed)
        x = np.cumsum(random.normal(0.0, 1.0, (8, 512 * 90)), axis=1)
        x = 40 * (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) + random.normal(0, 4.0, x.shape)
        onset, first = random.uniform(40.0, 44.0), int(random.integers(8))
        seconds = np.arange(x.shape[1]) / 512
        for channel in range(8):
            distance = abs(channel - first)
            gain = 20.0 * 0.7**distance * (seconds > onset + distance)
            x[channel] += gain * np.sin(2 * np.pi * 10 * seconds + channel)
        recording = Recording.from_array(x, 512.0, [f"A{n + 1}" for n in range(8)], "µV")
        onsets = onset_map(Segments(recording), (5.0 * (onset // 5.0), 80.0))
        errors.append(abs(onsets.start - onset))
        hits += first in onsets.ranked[:2]
    assert np.median(errors) <= 1.0
    assert hits == 5


def test_scores_of_channels_are_those_of_the_detector_on_each_alone():
    recording = simulate_recording("S01", num_channels=3, duration=60.0, num_seizures=0)
    segments = Segments(recording)
    scores = channel_scores(BaselineDetector("line-length"), segments, (20.0, 40.0))
    signal = segments.read(0, segments.num_segments)[0].reshape(3, -1, 2560).astype(float)
    lengths = np.abs(np.diff(signal[:, 4:8], axis=-1)).mean(-1)
    np.testing.assert_allclose(scores, (lengths / (lengths + 10.0)).mean(1), rtol=1e-5)


@pytest.mark.parametrize("event", [(350.0, 375.0), (20.0, 45.0)], ids=["late", "in the first minute"])
def test_scores_of_channels_are_those_in_the_whole_recording(event):
    """Demo has a rule of its own for a first minute, and a level of two minutes."""
    recording = simulate_recording("S01", seed=9, num_channels=2, duration=402.0, num_seizures=1)
    segments = Segments(recording)
    signal = [segments.read(0, segments.num_segments - 1)[0], segments.read(80, 81)[0][:, -2 * 512 :]]
    unchanged = Detector("demo", {"band": None, "notch": None, "reference": None})
    alone = [
        unchanged.detect(Recording.from_array(row[None], 512.0, [name], "µV")).probabilities
        for row, name in zip(np.concatenate(signal, axis=1), recording.channel_names, strict=True)
    ]
    rows = slice(round(event[0] / 5), round(event[1] / 5))
    scores = channel_scores(Detector("demo"), segments, event)
    np.testing.assert_allclose(scores, np.array(alone)[:, rows].mean(1), rtol=1e-4)


def theta(duration, onsets, seed=0):
    """Six channels whose background falls with frequency; some get 6 Hz, four times as strong, from their onset on."""
    x = np.cumsum(np.random.default_rng(seed).normal(0.0, 3.0, (6, round(duration * 512))), axis=1)
    x -= scipy.ndimage.uniform_filter1d(x, 512, axis=1)
    x *= 20.0 / x.std(1, keepdims=True)
    seconds = np.arange(x.shape[1]) / 512
    for channel, onset in onsets.items():
        x[channel] += (seconds >= onset) * (seconds < onset + 30) * 80 * np.sin(2 * np.pi * 6 * seconds)
    return x


def theta_map(x, event):
    names = [f"A{number}" for number in range(1, 7)]
    return onset_map(Segments(Recording.from_array(x, 512.0, names, "µV")), event)


@pytest.mark.parametrize("late", [0.0, 12.0, 18.0, 25.0])
def test_a_late_detection_still_tells_the_first_channel(late):
    maps = [theta_map(theta(150.0, {2: 60.0}, seed), (60.0 + late, 95.0)) for seed in range(3)]
    assert [onsets.ranked[0] for onsets in maps] == [2, 2, 2]
    assert np.median([abs(onsets.onsets[2] - 60.0) for onsets in maps]) <= 1.0


@pytest.mark.parametrize("duration", [120.0, 122.4])
@pytest.mark.parametrize("left", [8.0, 4.0, 2.0])
def test_an_event_at_the_end_is_dated_to_a_second(duration, left):
    true = duration - left
    onsets = theta_map(theta(duration, {2: true}), (true, duration))
    assert onsets.ranked[0] == 2
    assert abs(onsets.onsets[2] - true) <= 1.0


@pytest.mark.parametrize("gap", [(0.0, 120.0), (50.0, 56.0), (54.0, 62.0), (61.0, 66.0), (30.0, 50.0)])
def test_a_channel_whose_change_may_lie_in_a_gap_is_unknown(gap, tmp_path):
    x = theta(120.0, {2: 60.0, 1: 64.0})
    x[2, round(gap[0] * 512) : round(gap[1] * 512)] = math.nan
    onsets = theta_map(x, (60.0, 90.0))
    assert np.isnan(onsets.onsets).tolist() == [False, False, True, False, False, False]
    assert (onsets.ranked[0], onsets.ranked[-1]) == (1, 2)
    assert abs(onsets.start - 64.0) <= 1.5
    write_onsets(tmp_path / "onsets.tsv", [onsets])
    rows = [line.split("\t")[3:] for line in (tmp_path / "onsets.tsv").read_text().splitlines()]
    assert rows[-1] == ["n/a", "A3", *["n/a"] * 4]
    assert [row[0] for row in rows[1:-1]] == ["1", "2", "3", "4", "5"]
    shown = [text.get_text() for text in plot_onset_map(onsets).axes[0].get_yticklabels()]
    assert len(shown) == 5
    assert not any("A3" in text for text in shown)


def test_a_gap_long_after_the_change_hides_nothing():
    x = theta(120.0, {2: 60.0})
    x[2, 75 * 512 : 80 * 512] = math.nan
    onsets = theta_map(x, (60.0, 90.0))
    assert onsets.ranked[0] == 2
    assert abs(onsets.onsets[2] - 60.0) <= 1.0


def test_masked_stretches_and_short_recordings():
    recording = simulate_recording("S01", num_channels=4, duration=64.0, num_seizures=0)
    x = recording.read(0, recording.num_samples)
    x[2, 10 * 512 : 40 * 512] = np.nan
    holed = type(recording).from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV")
    onsets = onset_map(Segments(holed), (30.0, 50.0))
    assert np.isfinite(onsets.rise).all()
    assert onsets.ranked[0] != 2
    short = onset_map(Segments(recording.crop(0, 6.0)), (0.0, 5.0))
    assert np.isfinite(short.rise).all()
    with pytest.raises(ValueError, match=r"event must lie in S01_session0, which lasts 64 s, got \(70.0, 80.0\)"):
        onset_map(Segments(recording), (70.0, 80.0))


def test_an_event_at_the_beginning_says_that_its_first_channel_is_unknown(tmp_path):
    """Nothing lies before it that it could differ from."""
    recording = simulate_recording("S01", num_channels=4, duration=60.0, num_seizures=0)
    x = recording.read(0, recording.num_samples)
    x[:, : 15 * 512] = np.nan
    late = Recording.from_array(x, 512.0, recording.channel_names, "µV")
    for name, item, onset in (("whole", recording, 5.0), ("connected late", late, 20.0)):
        detection = BaselineDetector("line-length").detect(item)
        dataclasses.replace(detection, events=[(onset, 40.0)]).save(tmp_path / name)
        rows = [line.split("\t")[3:] for line in (tmp_path / name / "onsets.tsv").read_text().splitlines()[1:]]
        assert rows == [["n/a", channel, *["n/a"] * 4] for channel in recording.channel_names]
        page = (tmp_path / name / "report.html").read_text(encoding="utf-8")
        assert "where it begins" not in page
        assert "cannot be told: less than 10 s of signal lie before it" in page


def test_detect_writes_a_table_and_positions_of_other_channels_are_named(tmp_path):
    recording = simulate_recording("S01", num_channels=4, duration=120.0, num_seizures=1)
    whole = BaselineDetector("line-length", threshold=0.0).detect(recording)
    detection = dataclasses.replace(whole, events=[(20.0, 40.0), (90.0, 100.0)])
    detection.save(tmp_path, detector=BaselineDetector("line-length"))
    with (tmp_path / "onsets.tsv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file, delimiter="\t")]
    assert len(rows) == 4 * len(detection.events)
    assert {row["channel"] for row in rows} == {*recording.channel_names}
    assert [row["rank"] for row in rows[:4]] == ["1", "2", "3", "4"]
    assert all(0 <= float(row["score"]) <= 1 for row in rows)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "where it begins" in page
    assert "Not a diagnosis" in page
    with pytest.raises(ValueError, match="they name X1, X2, X3, X4, X5 and 2 more, the recording has A1, A2, A3, A4"):
        detection.save(tmp_path, positions={f"X{n}": (0.0, 0.0, 0.0) for n in range(1, 8)})
    with pytest.warns(UserWarning, match="not drawn at their positions, for some have none: A3, A4"):
        detection.save(tmp_path, positions={"A1": (0.0, 0.0, 0.0), "A2": (1.0, 0.0, 0.0)})
    onsets = onset_map(detection.segments, detection.events[0])
    figure = plot_onset_map(onsets, {f"A{n}": (n, 0.0, 0.0) for n in range(1, 5)})
    assert len(figure.axes) == 3
    with pytest.raises(ValueError, match="the positions are of other channels"):
        plot_onset_map(onsets, {"X1": (0.0, 0.0, 0.0)})
