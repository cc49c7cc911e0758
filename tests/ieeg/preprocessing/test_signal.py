"""Streamed preprocessing against the whole signal and against SciPy; nothing bad spreads."""

import itertools

import numpy as np
import pytest
from scipy import signal as scipy_signal
from support.made_up_recordings import PLAIN

from mvpa_ts.ieeg import Preprocessing, Recording
from mvpa_ts.ieeg.preprocessing.settings import default_preprocessing, line_frequency
from mvpa_ts.ieeg.preprocessing.signal import PreprocessedSignal

ECOG = 999.4121105232217
OFFSETS = np.array([[0.0], [3000.0], [-500.0], [9000.0], [20.0]])
NAMES = ["A1", "A2", "A3", "B1", "B2"]


def signal(rate: float, seconds: float, gaps: bool = True) -> np.ndarray:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 50, (5, int(rate * seconds))) + OFFSETS
    if gaps:
        x[1, int(30 * rate) : int(33 * rate)] = np.nan
        x[2, int(50 * rate) : int(75 * rate)] = 0.0
        x[4, int(10 * rate) : int(10.1 * rate)] = np.inf
        x[3, -int(2 * rate) :] = x[3, -int(2 * rate)]
    return x


def recording(x: np.ndarray, rate: float, **options) -> Recording:
    return Recording.from_array(x, rate, NAMES, "µV", **options)


@pytest.mark.parametrize("rate", [250.0, 512.0, ECOG, 1024.0])
@pytest.mark.parametrize("reference", ["median", "bipolar", None])
def test_streamed_equals_whole(rate, reference):
    stream = PreprocessedSignal(recording(signal(rate, 100), rate), Preprocessing(reference=reference, notch=50.0))
    whole, bad = stream.read(0, stream.num_samples)
    cuts = [0, 1, 700, 5120, 17_003, 30_000, 36_001, 36_002, stream.num_samples]
    pieces = [stream.read(a, b) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate([x for x, _ in pieces], 1), whole, atol=1e-3)
    masks = [np.zeros(x.shape, bool) if b is None else b for x, b in pieces]
    np.testing.assert_array_equal(np.concatenate(masks, 1), bad)


def test_resampling_alone_bridges_across_cuts():
    x = signal(1024.0, 60) * 0.01 + np.linspace(0, 4000, 61_440)  # a steep drift, so that a bridge needs both edges
    stream = PreprocessedSignal(recording(x, 1024.0), PLAIN)
    whole, _ = stream.read(0, stream.num_samples)
    cut = int(31.5 * 512)  # within the gap of A2
    pieces = [stream.read(0, cut)[0], stream.read(cut, stream.num_samples)[0]]
    np.testing.assert_allclose(np.concatenate(pieces, 1), whole, atol=1e-3)
    np.testing.assert_allclose(whole[1, cut], 4000 * 31.5 / 60 + 30, atol=3)


def test_unfiltered_stream_finds_flat_stretches_across_cuts():
    x = signal(512.0, 100)
    stream = PreprocessedSignal(recording(x, 512.0), PLAIN)
    _, bad = stream.read(0, stream.num_samples)
    cuts = [0, 26_000, 26_040, 38_380, 38_390, stream.num_samples - 100, stream.num_samples]
    pieces = [stream.read(a, b) for a, b in itertools.pairwise(cuts)]
    masks = [np.zeros(y.shape, bool) if b is None else b for y, b in pieces]
    np.testing.assert_array_equal(np.concatenate(masks, 1), bad)
    good = np.concatenate([y for y, _ in pieces], 1)
    np.testing.assert_array_equal(good[~bad], x.astype(np.float32)[~bad])
    assert np.isfinite(good).all()
    assert bad[2, 50 * 512 : 75 * 512].all()
    assert bad[1, 30 * 512 : 33 * 512].all()


GAPS = {
    "over-the-cut": [(5.0 - 60 / 512, 5.0 + 100 / 512, np.nan)],
    "ends-at-the-cut": [(4.8, 5.0, np.nan)],
    "begins-at-the-cut": [(5.0, 5.2, np.nan)],
    "flat-over-the-cut": [(4.8, 5.2, 7.0)],
    "longer-than-the-reach": [(3.0, 14.0, np.nan)],
    "flat-at-the-end-of-the-reach": [(5.05, 9.9, np.nan), (9.9, 10.3, 7.0)],
    "whole-pieces": [(4.0, 11.0, 0.0), (11.0, 16.0, np.inf)],
    "at-both-ends": [(0.0, 0.4, np.nan), (19.5, 20.0, np.nan)],
}


@pytest.mark.parametrize("reference", [None, "median", "bipolar"])
@pytest.mark.parametrize("gaps", GAPS.values(), ids=[*GAPS])
def test_unfiltered_stream_bridges_across_cuts(gaps, reference):
    """Pieces of 5 s, as a stream has them, are those of the whole recording to the bit."""
    x = signal(512.0, 20, gaps=False)
    for start, stop, value in gaps:
        x[1, round(start * 512) : round(stop * 512)] = value
    settings = Preprocessing(band=None, notch=None, reference=reference)
    stream = PreprocessedSignal(recording(x, 512.0), settings)
    whole, bad = stream.read(0, stream.num_samples)
    for size in (2560, 512):
        pieces = [stream.read(start, start + size) for start in range(0, stream.num_samples, size)]
        np.testing.assert_array_equal(np.concatenate([y for y, _ in pieces], 1), whole)
        masks = [np.zeros(y.shape, bool) if b is None else b for y, b in pieces]
        np.testing.assert_array_equal(np.concatenate(masks, 1), bad)


def test_bridge_over_a_cut_leads_from_edge_to_edge():
    x = np.random.default_rng(0).normal(0, 50, (1, 12 * 512))
    x[0, 2500:2661], x[0, 2499], x[0, 2661] = np.nan, 100.0, 262.0
    stream = PreprocessedSignal(Recording.from_array(x, 512.0, ["A1"], "µV"), PLAIN)
    pieces = np.concatenate([stream.read(0, 2560)[0], stream.read(2560, 5120)[0]], 1)
    # 162 steps from 100 to 262, a little bent as far edges weigh 1 / distance − 1 / reach.
    np.testing.assert_allclose(pieces[0, 2499:2662], np.arange(100.0, 263.0), atol=2.5)
    np.testing.assert_allclose(pieces[0, 2580], 181.0, atol=1e-4)


def test_equals_scipy_away_from_the_ends():
    x = signal(512.0, 60, gaps=False)
    stream = PreprocessedSignal(recording(x, 512.0), Preprocessing(reference=None, notch=60.0))
    y, bad = stream.read(0, stream.num_samples)
    expected = scipy_signal.sosfiltfilt(
        scipy_signal.butter(4, (0.5, 120), "bandpass", fs=512.0, output="sos"), x - np.median(x, 1, keepdims=True)
    )
    for harmonic in (60, 120, 180, 240):
        expected = scipy_signal.filtfilt(*scipy_signal.iirnotch(harmonic, harmonic / 2, fs=512.0), expected)
    assert bad is None
    np.testing.assert_allclose(y[:, 8000:-8000], expected[:, 8000:-8000], atol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_what_stands_in_a_gap_does_not_matter(value):
    """The signal around a gap is that of the same signal with a gap of other content, and close to that without."""
    x = signal(512.0, 100, gaps=False)
    good, _ = PreprocessedSignal(recording(x, 512.0), Preprocessing(reference=None, notch=None)).read(0, 51_200)
    results = []
    for content in (value, 1e6):
        broken = x.copy()
        broken[:, 20_000:23_000] = content
        stream = PreprocessedSignal(recording(broken, 512.0), Preprocessing(reference=None, notch=None))
        y, bad = stream.read(0, 51_200)
        assert bad is not None
        assert bad[:, 20_000:23_000].all()
        assert bad.sum() == 5 * 3000
        results.append(np.where(bad, 0, y))
    np.testing.assert_array_equal(results[0], results[1])
    assert np.isfinite(results[0]).all()
    far = np.r_[0:19_000, 24_000:51_200]
    assert np.abs(results[0] - good)[:, far].max() < 20  # of a signal with 34 µV: the low frequencies of the gap
    np.testing.assert_allclose(results[0][:, :12_000], good[:, :12_000], atol=1e-3)


def test_median_leaves_out_bad_channels():
    x = signal(512.0, 100)
    plain, bad = PreprocessedSignal(recording(x, 512.0), Preprocessing(reference=None, notch=None)).read(0, 51_200)
    referenced, _ = PreprocessedSignal(recording(x, 512.0), Preprocessing(notch=None)).read(0, 51_200)
    values = np.where(bad, np.nan, plain)
    np.testing.assert_allclose(referenced, plain - np.nanmedian(values, axis=0), atol=1e-4)


def test_a_channel_that_is_left_alone_is_not_subtracted_from_itself():
    x = signal(512.0, 20, gaps=False)
    x[1:, 5 * 512 :] = 7.0
    plain, bad = PreprocessedSignal(recording(x, 512.0), Preprocessing(reference=None, notch=None)).read(0, 10_240)
    referenced, _ = PreprocessedSignal(recording(x, 512.0), Preprocessing(notch=None)).read(0, 10_240)
    assert bad is not None
    assert bad[1:, 5 * 512 :].all()
    np.testing.assert_array_equal(referenced[0, 5 * 512 :], plain[0, 5 * 512 :])
    assert referenced[0, 5 * 512 :].std() > 10


def test_channels_do_not_change_the_median():
    data = recording(signal(512.0, 30, gaps=False), 512.0)
    every, _ = PreprocessedSignal(data, Preprocessing()).read(0, 5000)
    some = PreprocessedSignal(data, Preprocessing(), ("B2", "A1"))
    np.testing.assert_array_equal(some.read(0, 5000)[0], every[[4, 0]])
    assert some.channel_names == ("B2", "A1")


def test_bipolar_is_the_difference_and_bad_where_either_contact_is():
    x = signal(512.0, 100)
    stream = PreprocessedSignal(recording(x, 512.0), Preprocessing(512.0, None, None, "bipolar"))
    assert stream.channel_names == ("A1-A2", "A2-A3", "B1-B2")
    y, bad = stream.read(0, 51_200)
    assert bad is not None
    expected = (x[[0, 1, 3]] - x[[1, 2, 4]]).astype(np.float32)
    np.testing.assert_allclose(y[~bad], expected[~bad], atol=1e-3)
    assert bad[0, 30 * 512 : 33 * 512].all()  # A2 is NaN
    assert bad[1, 50 * 512 : 75 * 512].all()  # A3 is zero, so the difference alone would look alive
    assert not bad[2, 50 * 512 : 75 * 512].any()
    assert PreprocessedSignal(recording(x, 512.0), Preprocessing(reference="bipolar"), ("B1-B2",)).channel_names == (
        "B1-B2",
    )


@pytest.mark.parametrize(("hum", "found"), [((50.0, 30.0), 50.0), ((60.0, 30.0), 60.0), ((50.0, 0.3), None)])
def test_automatic_notch(hum, found):
    x = signal(1000.0, 40)
    x = x + hum[1] * np.sin(2 * np.pi * hum[0] * np.arange(x.shape[1]) / 1000)
    data = recording(x, 1000.0)
    assert line_frequency(data) == found
    stream = PreprocessedSignal(data, Preprocessing())
    assert stream.preprocessing.notch == found
    if found:
        y, _ = stream.read(0, stream.num_samples)
        frequencies, power = scipy_signal.welch(y[0, 5000:15000], 512.0, nperseg=1024)
        at = power[np.argmin(np.abs(frequencies - found))]
        assert at < 0.2 * power[np.argmin(np.abs(frequencies - found + 10))]


@pytest.mark.parametrize("rate", [0.1, 1.0, 100.0])
def test_a_low_rate_holds_no_line(rate):
    assert line_frequency(recording(np.random.default_rng(0).normal(0, 50, (5, 200)), rate)) is None


def test_a_stated_line_frequency_wins():
    data = recording(signal(512.0, 30, gaps=False), 512.0)
    data.metadata["line_frequency"] = 60.0
    assert Preprocessing().resolve(data).notch == 60.0


def test_defaults_follow_the_recording():
    x = signal(512.0, 10, gaps=False)
    assert default_preprocessing(recording(x, 512.0)) == Preprocessing()
    assert default_preprocessing(recording(x, 512.0, preprocessed=True)) == Preprocessing(512.0, None, None, None)
    assert default_preprocessing(recording(x, 512.0).pick([0, 1, 2])).reference is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sfreq": -1.0}, "sfreq"),
        ({"notch": True}, 'notch must be "auto", Hz or None, got True'),
        ({"band": (5.0, 2.0)}, "band"),
        ({"band": [0.5]}, r"band must be \(low, high\) in Hz with 0 ≤ low < high < 256, half of sfreq, got \[0.5\]"),
        ({"band": (1.0, 300.0)}, r"0 ≤ low < high < 256, half of sfreq, got \(1.0, 300.0\)"),
        ({"band": (1.0, 256.0)}, "band"),
        ({"band": [0.5, 60.0, 120.0]}, "band"),
        ({"band": 40.0}, "band"),
        ({"band": ["low", "high"]}, "band"),
        ({"band": (0.5, float("nan"))}, "band"),
        ({"notch": "50"}, "notch"),
        ({"notch": 300.0}, "notch"),
        *(
            ({"notch": notch}, "notch must be one number between 0 and 256 Hz, its harmonics go too")
            for notch in ((50.0, 100.0), [50.0], 0.0, 256.0)
        ),
        ({"reference": "car"}, "reference"),
        ({"max_bad_share": 1.0}, "max_bad_share"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**settings)


def test_references_that_cannot_be():
    data = recording(signal(512.0, 10, gaps=False), 512.0)
    with pytest.raises(ValueError, match="two channels or more"):
        PreprocessedSignal(data.pick(["A1"]), Preprocessing())
    with pytest.raises(ValueError, match="neighbouring contacts"):
        PreprocessedSignal(data.pick(["A1", "A3", "B1"]), Preprocessing(reference="bipolar"))
    with pytest.raises(ValueError, match="no channel A1; it has A1-A2, A2-A3, B1-B2"):
        PreprocessedSignal(data, Preprocessing(reference="bipolar"), ("A1",))
