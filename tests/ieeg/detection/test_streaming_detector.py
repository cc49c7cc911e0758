"""The stream against the detector on the whole recording; chunks, rates, gaps, memory, end."""

import numpy as np
import pytest
import torch
from support.made_up_recordings import PLAIN, decided, seeded

from mvpa_ts.ieeg import Detector, MVPFormer, Preprocessing, Recording, simulate_recording
from mvpa_ts.ieeg.detection.rules import OnlineRule
from mvpa_ts.ieeg.detection.streaming import StreamingDetector, _Buffer, _Offsets


@pytest.fixture(scope="module")
def model():
    return decided(num_classes=2, context=20)


def recording_at(sfreq, gap=None, channels=5, duration=83.3):
    made = simulate_recording("S03", seed=1, num_channels=channels, duration=duration, sfreq=sfreq, num_seizures=1)
    samples = made.read(0, made.num_samples)
    if gap:
        samples[:, round(gap[0] * sfreq) : round(gap[1] * sfreq)] = np.nan
    return Recording.from_array(samples, sfreq, made.channel_names, "µV")


def streamed(model, recording, preprocessing, sizes, **options):
    stream = StreamingDetector(model, recording.sfreq, recording.channel_names, preprocessing, **options)
    samples, position, decisions, size = recording.read(0, recording.num_samples), 0, [], 0
    while position < samples.shape[1]:
        chunk = samples[:, position : position + sizes[size % len(sizes)]]
        decisions += stream.feed(chunk)
        position, size = position + chunk.shape[1], size + 1
    return decisions + stream.finish(), stream


def assert_streams(model, recording, preprocessing, sizes, atol=2e-5):
    """A stream says what the detector says of the whole recording; gives the stream."""
    expected = Detector(model, preprocessing, channels="all").detect(recording).probabilities
    decisions, stream = streamed(model, recording, preprocessing, sizes)
    np.testing.assert_allclose([d.probability for d in decisions], expected, atol=atol, equal_nan=True)
    return stream


CASES = {
    "512 Hz": (512.0, Preprocessing(notch=50.0), None),
    "1024 Hz, gap": (1024.0, Preprocessing(notch=50.0), (30.0, 47.0)),
    "999.41 Hz, bipolar": (999.4121105232217, Preprocessing(notch=None, reference="bipolar"), None),
    "SWEC, gap": (512.0, PLAIN, (30.0, 47.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_whole_recording_while_the_context_fits(model, name):
    sfreq, preprocessing, gap = CASES[name]
    recording = recording_at(sfreq, gap)
    expected = Detector(model, preprocessing, channels="all").detect(recording)
    decisions, stream = streamed(model, recording, preprocessing, sizes=(100, 7, 5000))
    assert len(decisions) <= model.config.context
    np.testing.assert_allclose([d.start for d in decisions], expected.starts)
    got = np.array([decision.probability for decision in decisions])
    np.testing.assert_allclose(got, expected.probabilities, atol=1e-4 if gap else 2e-5, equal_nan=True)
    assert np.nanstd(expected.probabilities) > 1e-2
    assert np.isnan(got).any() == bool(gap)
    assert stream.delay < 30.0


@pytest.mark.parametrize(
    ("start", "stop", "value"),
    [(20.0 - 60 / 512, 20.0 + 100 / 512, 0.0), (19.8, 20.1, np.nan), (24.8, 31.0, np.nan)],
    ids=["flat", "short-gap", "gap-longer-than-the-lookahead"],
)
def test_gap_over_a_border_without_filters(model, start, stop, value):
    """The path of SWEC recordings: what is bridged at the end of a segment waits for the gap's far edge."""
    x = np.random.default_rng(0).normal(0, 50, (4, 90 * 512))
    x[1, round(start * 512) : round(stop * 512)] = value
    recording = Recording.from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV")
    stream = assert_streams(model, recording, PLAIN, sizes=(512,))
    assert stream.delay == 5.25


def test_offset_of_a_stream_that_begins_disconnected(model):
    """5 mV of offset, nothing in the first 8 s, and a gap so long that it is filled with the offset."""
    x = np.random.default_rng(0).normal(0, 50, (4, 90 * 256)) + 5000
    x[0, 40 * 256 : 54 * 256] = np.nan
    for value in (np.nan, 0.0):
        x[:, : 8 * 256] = value
        recording = Recording.from_array(x, 256.0, ["A1", "A2", "A3", "A4"], "µV")
        assert_streams(model, recording, Preprocessing(notch=50.0), sizes=(256,), atol=1e-4)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_offsets_are_medians_of_the_first_good_samples(size):
    generator = np.random.default_rng(0)
    x = generator.normal(0, 1, (5, 1000)).astype(np.float32) + np.float32(100)
    x[1, :300] = np.nan  # disconnected at first
    x[2, :150] = 0.0  # flat, then an infinite stretch within what counts
    x[2, 200:220] = np.inf
    x[3] = 3.0  # never connected
    x[4, 500:] += 1000  # a drift after the first good samples is not seen
    offsets, buffer = _Offsets(5, count=400, run=20), _Buffer(5)
    known = []
    for start in range(0, 1000, size):
        buffer.append(x[:, start : start + size])
        known.append(offsets.measure(buffer))
        buffer.forget(buffer.stop - 200)
    expected = [np.median(x[0, :400]), np.median(x[1, 300:700]), np.median(np.r_[x[2, 150:200], x[2, 220:570]])]
    np.testing.assert_allclose(known[-1], [*expected, 0.0, np.median(x[4, :400])])
    if size == 1:
        # At 340 samples 320 are judged, 20 of them good in the second channel.
        np.testing.assert_allclose(known[339][1], np.median(x[1, 300:320]))
        assert known[318][1] == known[10][0] == 0.0


def test_drift_and_a_long_gap_stay_close(model):
    """The one case in which a stream is not the whole recording; see the class."""
    x = np.random.default_rng(0).normal(0, 50, (4, 90 * 256)) + np.linspace(0, 20_000, 90 * 256)
    x[1, 40 * 256 : 54 * 256] = np.nan
    recording = Recording.from_array(x, 256.0, ["A1", "A2", "A3", "A4"], "µV")
    assert_streams(model, recording, Preprocessing(notch=50.0), sizes=(256,), atol=0.05)


def test_without_lookahead_decisions_come_at_once(model):
    recording = recording_at(512.0)
    stream = StreamingDetector(model, 512.0, recording.channel_names, Preprocessing(notch=50.0), lookahead=0.0)
    assert stream.delay == 0.0
    samples = recording.read(0, recording.num_samples)
    came = [(end, len(stream.feed(samples[:, end - 512 : end]))) for end in range(512, samples.shape[1], 512)]
    assert [end / 512 for end, count in came if count] == list(range(5, 84, 5))


def test_full_lookahead_is_needed_for_exactness(model):
    recording = recording_at(512.0)
    preprocessing = Preprocessing(notch=50.0)
    expected = Detector(model, preprocessing, channels="all").detect(recording).probabilities
    got, _ = streamed(model, recording, preprocessing, sizes=(2560,), lookahead=0.0)
    assert np.abs([d.probability for d in got] - expected).max() > 1e-4


def test_memory_does_not_grow(model):
    stream = StreamingDetector(model, 512.0, ["A1", "A2"], Preprocessing(notch=50.0))
    generator = np.random.default_rng(0)
    sizes = []
    for _ in range(60):
        stream.feed(generator.normal(0, 50, (2, 2560)))
        sizes.append(stream._buffer._values.shape[1])
    assert max(sizes[40:]) <= max(sizes[:40])
    assert max(sizes) < 120 * 512


def test_chosen_channels_are_referenced_to_all(model):
    recording = recording_at(512.0)
    chosen = recording.channel_names[1:3]
    preprocessing = Preprocessing(notch=50.0)
    expected = Detector(model, preprocessing, channels=list(chosen)).detect(recording)
    decisions, _ = streamed(model, recording, preprocessing, sizes=(4000,), channels=chosen[::-1])
    np.testing.assert_allclose([d.probability for d in decisions], expected.probabilities, atol=2e-5)


def test_alarm_follows_the_online_rule(model):
    recording = recording_at(512.0)
    rule = OnlineRule(k=2, n=3)
    decisions, _ = streamed(model, recording, Preprocessing(notch=50.0), sizes=(4000,), online=rule)
    assert [d.alarm for d in decisions] == rule.alarms([d.probability for d in decisions]).tolist()


def test_volts(model):
    recording = recording_at(512.0)
    volts = Recording.from_array(recording.read(0, 20 * 512) * 1e-6, 512.0, recording.channel_names, "V")
    ours, _ = streamed(model, recording.crop(0, 20), Preprocessing(notch=None), sizes=(999,))
    stream = StreamingDetector(model, 512.0, recording.channel_names, Preprocessing(notch=None), unit="V")
    theirs = stream.feed(volts.read(0, volts.num_samples) * 1e-6) + stream.finish()
    np.testing.assert_allclose([d.probability for d in theirs], [d.probability for d in ours], atol=1e-5)


def test_a_short_stream_gives_nothing_and_one_that_is_over_takes_no_samples(model):
    stream = StreamingDetector(model, 512.0, ["A1"], Preprocessing(notch=None, reference=None))
    assert stream.feed(np.ones((1, 2000))) == []
    for _ in range(2):
        assert stream.finish() == []
    with pytest.raises(ValueError, match=r"^the stream is over since finish\(\): make another StreamingDetector"):
        stream.feed(np.ones((1, 2000)))


def test_weights_that_are_not_numbers_are_named(model):
    broken = MVPFormer(model.config)
    broken.load_state_dict(model.state_dict())
    torch.nn.init.constant_(broken.head.weight, torch.nan)
    stream = StreamingDetector(broken, 512.0, ["A1", "A2"], lookahead=0.0)
    with pytest.raises(ValueError, match=r"1 of its tensors hold NaN or infinite values, such as head\.weight"):
        stream.feed(np.random.default_rng(0).normal(0, 50, (2, 4000)))


@pytest.mark.parametrize("channels", [3, 5])
def test_default_preprocessing_is_that_of_a_recording_without_a_notch(model, channels):
    recording = recording_at(512.0, channels=channels, duration=31.0)
    reference = "median" if channels >= 4 else None
    for given, notch in ((None, None), ({"notch": 50.0}, 50.0)):
        expected, stream = streamed(model, recording, Preprocessing(notch=notch, reference=reference), sizes=(4000,))
        decisions, ours = streamed(model, recording, given, sizes=(4000,))
        assert ours.preprocessing == stream.preprocessing
        assert decisions == expected
    assert StreamingDetector(model, 512.0, recording.channel_names).preprocessing.notch is None


def test_a_rate_too_low_for_the_band_is_said_once(model):
    recording = recording_at(200.0, duration=36.0)
    said = r"at 200 Hz holds nothing above 100 Hz, and the band of preprocessing is 0\.5 to 120 Hz: a model"
    with pytest.warns(UserWarning, match=said) as shown:
        streamed(model, recording, None, [500])
    assert len(shown) == 1
    with pytest.warns(UserWarning, match=said) as shown:
        Detector(model).detect(recording)
    assert len(shown) == 1


@pytest.mark.parametrize("kind", [Detector, lambda model: StreamingDetector(model, 512.0, ["A1", "A2"])])
def test_no_model_is_named(kind):
    with pytest.raises(TypeError, match="model must be an MVPFormer, or the folder or name of one, got NoneType"):
        kind(None)


def test_the_demo_is_known_by_its_name():
    recording = recording_at(512.0, channels=4, duration=31.0)
    expected = Detector("demo", {"notch": None}, channels="all").detect(recording)
    decisions, _ = streamed("demo", recording, None, sizes=(4000,))
    got = [decision.probability for decision in decisions]
    np.testing.assert_allclose(got[:4], expected.probabilities[:4], atol=2e-5)  # its context


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preprocessing": {"notch": "auto"}}, r"preprocessing\.notch must be Hz or None in a stream"),
        ({"preprocessing": Preprocessing()}, r"preprocessing\.notch must be Hz or None in a stream"),
        ({"preprocessing": {"hum": 50.0}}, "preprocessing has no field hum; its fields are sfreq, band, notch"),
        ({"sfreq": "512"}, r"sfreq must lie between 0\.1 and 1e[+]06 Hz, got '512'"),
        ({"channel_names": "A1"}, "channel_names must be a list of names, got "),
        ({"channel_names": [1, 2]}, "channel_names must be a list of names, got "),
        ({"lookahead": -1.0}, "lookahead must not be negative"),
        ({"lookahead": float("inf")}, r"lookahead .* must be a finite number, got inf"),
        ({"lookahead": "0"}, "lookahead must .* be a finite number, got '0'"),
        ({"threshold": "0.5"}, "threshold must be a number, got '0.5'"),
        ({"channels": "A1"}, "channels must be a list of names, or None for all, got 'A1'"),
        ({"online": "1of2"}, r"online must be an OnlineRule, such as OnlineRule\(k=1, n=2\), got '1of2'"),
        ({"model": seeded()}, "two classes, it has 0"),
    ],
)
def test_errors(model, options, message):
    with pytest.raises(ValueError, match=message):
        StreamingDetector(**({"model": model, "sfreq": 512.0, "channel_names": ["A1", "A2"]} | options))


@pytest.mark.parametrize(
    ("samples", "message"),
    [(np.zeros((3, 5)), r"samples must be \[C, n\] with C = 2, got shape \(3, 5\)"), ("abc", "real numbers, got <U3")],
)
def test_samples_that_do_not_fit(model, samples, message):
    with pytest.raises(ValueError, match=message):
        StreamingDetector(model, 512.0, ["A1", "A2"]).feed(samples)
