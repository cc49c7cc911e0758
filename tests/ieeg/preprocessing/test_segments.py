"""Segments: every second in one, masks, labels, the same bits however they are reached."""

import dataclasses
import pickle
import warnings

import numpy as np
import pytest
from support.made_up_recordings import PLAIN, noise
from support.reading import refuses

from mvpa_ts.ieeg import Preprocessing, Recording, Segments
from mvpa_ts.ieeg.preprocessing.selection import with_channels


@pytest.mark.parametrize(
    ("seconds", "starts"), [(5, [0]), (7, [0, 2]), (10, [0, 5]), (10 + 1 / 512, [0, 5, 5 + 1 / 512]), (14, [0, 5, 9])]
)
def test_every_second_is_in_a_segment(seconds, starts):
    recording = noise(seconds)
    segments = Segments(recording, PLAIN)
    np.testing.assert_allclose(segments.starts, starts)
    signal, valid = segments.read(0, len(starts))
    assert valid.shape == (len(starts), 3)
    assert valid.all()
    for i, start in enumerate(starts):
        first = round(start * 512)
        np.testing.assert_array_equal(signal[:, i * 2560 : (i + 1) * 2560], recording.read(first, first + 2560))


@pytest.mark.parametrize("rate", [200.0, 256.0, 500.0, 999.4121105232217, 1000.0, 1024.0, 2048.0, 5000.0])
@pytest.mark.parametrize("seconds", [5.0, 10.0, 12.0])
def test_segment_count_at_other_rates(rate, seconds):
    segments = Segments(noise(seconds, rate), PLAIN)
    assert segments.num_segments == np.ceil(seconds / 5)
    assert segments.read(0, segments.num_segments)[0].shape == (3, segments.num_segments * 2560)


@pytest.mark.parametrize("rate", [512.0, 1000.0])
def test_shorter_than_a_segment(rate):
    refuses(Segments, r"array lasts 4\.990 s, shorter than one segment of 5 s", noise(4.99, rate))


@pytest.mark.parametrize("rate", [512.0, 1024.0])
def test_same_bits_however_reached(rate):
    recording = noise(400.7, rate, channels=4)
    whole, valid = Segments(recording).read(0, 81)
    streamed = Segments(recording)
    for index, signal, ok in streamed:
        np.testing.assert_array_equal(signal, whole[:, index * 2560 : (index + 1) * 2560])
        np.testing.assert_array_equal(ok, valid[index])
    for first, last in [(79, 81), (30, 40), (0, 3), (35, 37), (80, 81), (71, 80)]:
        np.testing.assert_array_equal(streamed.read(first, last)[0], whole[:, first * 2560 : last * 2560])


def test_each_sample_is_read_once_in_sequence():
    recording = noise(2000.0)
    read = []
    original = recording.source.read
    recording.source.read = lambda start, stop, channels: read.append((start, stop)) or original(start, stop, channels)  # type: ignore[method-assign]
    for _ in Segments(recording, PLAIN):
        pass
    assert sum(stop - start for start, stop in read) == recording.num_samples
    assert max(stop - start for start, stop in read) == 180 * 512


def test_masks():
    recording = noise(31.0)
    x = recording.source.values
    x[0, 5 * 512 : 6 * 512] = np.nan  # 20 % of segment 1
    x[1, 10 * 512 : 10 * 512 + 200] = 0.0  # 8 % of segment 2
    x[2, 13 * 512 : 22 * 512] = 3.0  # 40 % of segment 2, all of 3, 40 % of 4
    x[0, 29 * 512 :] = 0.0  # in the tail, and in segment 5
    signal, valid = Segments(recording, PLAIN).read(0, 7)
    expected = np.ones((7, 3), bool)
    expected[1, 0] = expected[2, 2] = expected[3, 2] = expected[4, 2] = expected[5, 0] = expected[6, 0] = False
    np.testing.assert_array_equal(valid, expected)
    assert np.isfinite(signal).all()
    tokens = signal.reshape(3, 7, 2560)
    for segment, channel in np.argwhere(~expected):
        assert not tokens[channel, segment].any()
    assert tokens[1, 2].any()
    strict = Segments(recording, Preprocessing(band=None, notch=None, reference=None, max_bad_share=0.0))
    assert not strict.read(2, 3)[1][0, 1]


def test_chosen_channels():
    recording = noise(20.0)
    segments = Segments(recording, PLAIN, channels=["A3", "A1", "A3"])
    assert segments.channel_names == ("A3", "A1")
    np.testing.assert_array_equal(segments.read(0, 1)[0], recording.read(0, 2560, ["A3", "A1"]))
    refuses(Segments, "no channel Z1; it has A1, A2, A3", recording, PLAIN, channels=["Z1"])
    refuses(Segments, "channels must name at least one channel", recording, PLAIN, channels=[])


@pytest.mark.parametrize(
    ("rate", "band", "said"),
    [
        (200.0, (0.5, 120.0), "at 200 Hz holds nothing above 100 Hz, and the band of preprocessing is 0.5 to 120 Hz"),
        (239.0, (0.5, 120.0), "at 239 Hz holds nothing above 119.5 Hz"),
        (240.0, (0.5, 120.0), None),
        (200.0, (0.5, 100.0), None),
        (200.0, None, None),
    ],
)
def test_a_rate_too_low_for_the_band_is_said_once(rate, band, said):
    settings = Preprocessing(band=band, notch=None, reference=None)
    with warnings.catch_warnings(record=True, action="default") as shown:
        for _ in range(2):
            with_channels(Segments(noise(6, rate), settings), ["A1"]).read(0, 1)
    assert len(shown) == (said is not None)
    assert all(said in str(warning.message) for warning in shown)


@pytest.mark.parametrize(
    ("highpass", "lowpass", "said"), [(None, 40.0, "0 to 40 Hz"), (5.0, None, "5 to 256"), (1, 130, None)]
)
def test_filters_by_the_header_are_said(highpass, lowpass, said):
    import mne

    raw = mne.io.RawArray(noise(20, channels=2).read(0, 10240) * 1e-6, mne.create_info(2, 512, "seeg"), verbose="error")
    raw.filter(highpass, lowpass, picks="all", verbose="error")
    with warnings.catch_warnings(record=True, action="default") as shown:
        Segments(Recording.from_raw(raw), dataclasses.replace(PLAIN, band=(0.5, 120.0)))
    words = [str(warning.message) for warning in shown if "were filtered" in str(warning.message)]
    assert len(words) == (said is not None)
    assert not said or f"filtered to {said}" in words[0]


def test_out_of_range_and_pickling():
    segments = Segments(noise(20.0))
    refuses(segments.read, r"segments \[0, 4\), asked for \[3, 5\)", 3, 5)
    expected = segments.read(0, 4)[0]
    copy = pickle.loads(pickle.dumps(segments))
    np.testing.assert_array_equal(copy.read(0, 4)[0], expected)
    segments.release()
    np.testing.assert_array_equal(segments.read(0, 4)[0], expected)


@pytest.mark.parametrize(("gain", "pattern"), [(20.0, "(99|100)"), (0.05, r"2\.[45]")])
def test_a_gain_that_changes_between_the_pieces_that_opening_looks_at_is_told_of_once(gain, pattern):
    x = np.random.default_rng(0).normal(0, 50, (2, 128 * 1200))
    # Opening looks at a second every 25.5 s.
    x[1, 128 * 614 : 128 * 636] *= gain
    with warnings.catch_warnings(action="error"):
        recording = Recording.from_array(x, 128.0, ["A1", "A2"], "µV")
    segments = Segments(recording, dataclasses.replace(PLAIN, sfreq=128.0))
    segments.read(0, segments.num_segments)
    with pytest.warns(UserWarning, match=rf"array: the standard .* by more than 8 times .*: A2 has {pattern}"):
        segments.warn_of_changes()
    with warnings.catch_warnings(action="error"):
        segments.warn_of_changes()
    assert len(recording.notes) == 1
