"""Recordings: units, names, ranges, crops."""

import pickle
import warnings

import numpy as np
import pytest
from support.reading import refuses

from mvpa_ts.ieeg import Recording
from mvpa_ts.ieeg.recordings.copies import copies
from mvpa_ts.ieeg.recordings.reading import as_recording


def noise(channels: int = 3, samples: int = 6000, scale: float = 50.0) -> np.ndarray:
    return np.random.default_rng(0).normal(0, scale, (channels, samples))


@pytest.mark.parametrize("seizures", [[(2000.0, 4000.0)], [(1.0, 2.0), (512.0, 1024.0)], [(-9.0, -1.0)]])
def test_seizures_outside_of_a_recording_are_named(seizures):
    """Times in milliseconds or samples would else make a quiet recording."""
    x = np.random.default_rng(0).normal(0, 50, (2, 5120))
    with pytest.warns(UserWarning, match=r"array: seizures outside of the recording, which lasts 10 s, are left out"):
        Recording.from_array(x, 512.0, ["A1", "A2"], "µV", seizures=seizures)
    recording = Recording.from_array(x, 512.0, ["A1", "A2"], "µV", seizures=[(1.0, 2.0), (8.0, 12.0)])
    with warnings.catch_warnings(action="error"):
        assert recording.crop(3.0, 9.0).seizures == ((5.0, 6.0),)


@pytest.mark.parametrize(
    ("unit", "scale"), [("V", 1e6), ("mV", 1e3), ("µV", 1.0), ("μV", 1.0), ("uv", 1.0), ("nV", 1e-3)]
)
def test_units_become_microvolts(unit, scale):
    x = noise(scale=50.0 / scale)
    recording = Recording.from_array(x, 512.0, ["a", "b", "c"], unit)
    np.testing.assert_allclose(recording.read(10, 20), x[:, 10:20] * scale, rtol=1e-6)
    assert recording.read(0, 5).dtype == np.float32


@pytest.mark.parametrize("scale", [1e-4, 1e6])
def test_implausible_amplitude_warns(scale):
    with pytest.warns(UserWarning, match="is the unit right"):
        Recording.from_array(noise() * scale, 512.0, ["a", "b", "c"], "µV")


def test_plausible_amplitude_is_silent_even_with_offsets_and_gaps():
    x = noise() + np.array([[9e4], [0], [-3e3]])
    x[1] = 0
    x[2, 2900:3100] = np.nan
    with warnings.catch_warnings(action="error"):
        Recording.from_array(x, 512.0, ["a", "b", "c"], "µV")


def test_channels_by_name_or_index_keep_the_order_asked_for():
    x = noise()
    recording = Recording.from_array(x, 512.0, ["a", "b", "c"], "µV")
    np.testing.assert_array_equal(recording.read(0, 4, ["c", "a"]), x[[2, 0], :4].astype(np.float32))
    np.testing.assert_array_equal(recording.read(0, 4, [1]), x[[1], :4].astype(np.float32))
    picked = recording.pick(["c", "b"])
    assert picked.channel_names == ("c", "b")
    np.testing.assert_array_equal(picked.read(0, 4, ["b"]), x[[1], :4].astype(np.float32))
    refuses(recording.read, "no channel d; it has a, b, c", 0, 4, ["d"])


def test_range_outside_is_an_error():
    recording = Recording.from_array(noise(), 512.0, ["a", "b", "c"], "µV")
    refuses(recording.read, r"samples \[0, 6000\), asked for \[5999, 6001\)", 5999, 6001)


def test_seizures_are_sorted_and_cut():
    stated = [(5, 9), (-1, 0.5), (2.5, 3), (2, 2.7), (7, 7.5), (8, 9)]
    with pytest.warns(UserWarning, match=r"array: seizures that overlap count as one: at 2\.5 s"):
        recording = Recording.from_array(noise(), 1000.0, ["a", "b", "c"], "µV", seizures=stated)
    assert recording.seizures == ((0.0, 0.5), (2.0, 3.0), (5.0, 6.0))
    assert recording.with_seizures(np.array([[5, 9], [2, 3]])).seizures == ((2.0, 3.0), (5.0, 6.0))
    refuses(recording.with_seizures, "end after it begins", [(3, 2)])


def test_crop_counts_from_its_own_start():
    x = noise()
    recording = Recording.from_array(x, 1000.0, ["a", "b", "c"], "µV", subject="S", seizures=[(1, 3.5)])
    part = recording.crop(2, 5).crop(0.5, 99)
    assert (part.duration, part.seizures, part.subject) == (2.5, ((0.0, 1.0),), "S")
    np.testing.assert_array_equal(part.read(0, 10), x[:, 2500:2510].astype(np.float32))
    refuses(recording.crop, r"lasts 6\.000 s", 7, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preprocessed": "no"}, "preprocessed must be True or False, got 'no'"),
        ({"sfreq": 0.0}, "sfreq must lie between 0.1 and 1e[+]06 Hz, got 0.0"),
        ({"sfreq": float("nan")}, "sfreq must lie between"),
        ({"sfreq": 1e300}, "sfreq must lie between"),
        ({"names": ["a", "b", "a"]}, r"\['a'\] appear twice"),
        ({"names": ["a", "b"]}, "2 channels"),
        ({"seizures": (5.0, 9.0)}, r"seizures must be pairs \(onset, offset\) in seconds, got \(5\.0, 9\.0\)"),
        ({"x": np.zeros((3, 0))}, "must have at least one sample"),
        ({"x": np.zeros((0, 9)), "names": []}, "no channel"),
        ({"x": noise().astype(complex)}, "x must hold real numbers, got "),
        ({"x": noise().astype(str)}, "x must hold real numbers, got "),
        ({"x": np.zeros((100, 3))}, r"x must have shape \(3 channels, samples\), got \(100, 3\): pass x.T"),
        ({"unit": "T"}, r"unit must be µV \(or uV\), mV, V or nV, got 'T'"),
    ],
)
def test_what_makes_no_recording(change, message):
    arguments = {"x": noise(), "sfreq": 512.0, "names": ["a", "b", "c"], "unit": "µV"} | change
    with pytest.raises(ValueError, match=message):
        Recording.from_array(**arguments)


def test_pickles():
    recording = Recording.from_array(noise(), 512.0, ["a", "b", "c"], "µV", seizures=[(1, 2)])
    copy = pickle.loads(pickle.dumps(recording))
    np.testing.assert_array_equal(copy.read(3, 9), recording.read(3, 9))
    assert copy.seizures == recording.seizures


def test_masked_samples_are_missing():
    x = np.ma.masked_greater(noise(), 100.0)
    masked = as_recording((x, 512.0)).read(0, 6000)
    np.testing.assert_allclose(masked, x.filled(np.nan), rtol=1e-6)


def test_seizures_of_no_length_are_named():
    with pytest.warns(UserWarning, match="seizures of no length are left out: at 5 s"):
        Recording.from_array(noise(), 512.0, ["a", "b", "c"], "µV", seizures=[(5.0, 5.0)])
    with pytest.raises(ValueError, match="seizures must be pairs"):
        Recording.from_array(noise(), 512.0, ["a", "b", "c"], "µV", seizures=[("2", "5")])


def test_a_gap_at_the_middle_is_no_channel_of_few_values():
    x = np.random.default_rng(0).normal(0, 50, (2, 60 * 256))
    x[:, 25 * 256 : 34 * 256] = np.nan
    with warnings.catch_warnings(action="error"):
        Recording.from_array(x, 256.0, ["A1", "A2"], "µV")


def test_half_precision_and_pairs_that_are_read_once():
    x = np.random.default_rng(0).normal(0, 50, (1, 5120))
    halves = Recording.from_array((x * 1e-6).astype(np.float16), 512.0, ["A1"], "V", seizures=iter([(2, 3), (5, 6)]))
    # Steps of half precision are 0.06 µV here.
    np.testing.assert_allclose(halves.read(0, 5120), x, atol=0.1)
    assert halves.seizures == ((2.0, 3.0), (5.0, 6.0))
    refuses(Recording.from_array, "sfreq must lie between", x, True, ["A1"], "µV")


@pytest.mark.parametrize("start", ["1", None, [1]])
def test_what_is_no_number_is_named(start):
    recording = as_recording((noise(), 512.0))
    refuses(recording.crop, r"start and stop must be numbers of seconds, got .* and 2", start, 2)
    for odd in (start, 1.5):
        refuses(recording.read, r"start and stop must be whole numbers, got .* and 2", odd, 2)
    assert recording.crop(np.float32(1), np.int64(2)).num_samples == recording.read(np.int64(0), 512).shape[1] == 512


def test_names_that_are_filled_with_zeros():
    recording = Recording.from_array(noise(), 512.0, ["A1\0\0", "A2\0", "A10"], "µV", subject="S1\0")
    assert (recording.channel_names, recording.subject) == (("A1", "A2", "A10"), "S1")


@pytest.mark.parametrize("seconds", [1.0, 600.0])
def test_electrodes_that_settle_alike_are_no_copies(seconds):
    """Amplifiers that pass slow drifts, and the high-pass of all others, begin with the same curve of millivolts."""
    rng, time = np.random.default_rng(0), np.arange(1200 * 128) / 128
    noise = rng.normal(0.0, 30.0, (2, len(time)))
    nights = [Recording.from_array(row[None] + 5000 * np.exp(-time / seconds), 128.0, ["A1"], "µV") for row in noise]
    assert copies(nights) == []
    again = np.round(nights[1].read(0, 150_000) / 1000 - 3.0, 4)
    assert copies([*nights, Recording.from_array(again, 128.0, ["A1"], "mV")]) == [(1, 2)]


def test_constant_channels_and_a_short_recording_are_no_copies():
    constant = [Recording.from_array(np.full((1, 12_800), 1234.567), 128.0, ["A1"], "µV") for _ in range(2)]
    short = [Recording.from_array(np.arange(100.0)[None] % 7, 128.0, ["A1"], "µV") for _ in range(2)]
    assert copies([*constant, *short]) == []
