"""The detector against one full pass a window, at edges, gaps and with other chunks; noise; figures."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from support.made_up_recordings import decided, seeded
from support.reading import refuses

from mvpa_ts.ieeg import (
    Detector,
    MVPFormer,
    Preprocessing,
    Recording,
    Segments,
    embed,
    simulate_recording,
)
from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.detection.detection import Skipped
from mvpa_ts.ieeg.detection.detector import NO_CHANNEL, checked_device
from mvpa_ts.ieeg.detection.plots import channel_rms, plot_channel_map, plot_traces
from mvpa_ts.ieeg.detection.streaming import StreamingDetector
from mvpa_ts.ieeg.recordings.noise import add_noise


@pytest.fixture(scope="module")
def model():
    return decided(num_classes=2, context=6, amplitude="none")


@pytest.fixture(scope="module")
def recording():
    return simulate_recording("S03", seed=1, num_channels=5, duration=83.3, num_seizures=1)


def one_by_one(model, segments):
    """Each window cut from the signal and passed through the model alone, its padding left out instead of masked."""
    expected = []
    for index in range(segments.num_segments):
        signal, valid = segments.read(max(index - model.config.context + 1, 0), index + 1)
        if not valid[-1].any():
            expected.append(math.nan)
            continue
        token_mask = torch.from_numpy(valid)[None]
        with torch.no_grad():
            features = model(torch.from_numpy(signal)[None], token_mask=token_mask)
            logits = model.classify(features, token_mask[:, -1])
        expected.append(float(logits.softmax(-1)[0, 1]))
    return np.array(expected)


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_probabilities_are_those_of_each_window_alone(model, recording, batch_size):
    detection = Detector(model, channels="all", batch_size=batch_size).detect(recording)
    expected = one_by_one(model, Segments(recording))
    assert expected.std() > 1e-3
    np.testing.assert_allclose(detection.probabilities, expected, atol=2e-6)


def test_every_second_is_scored(model, recording):
    detection = Detector(model).detect(recording)
    covered = np.zeros(83300, bool)
    for start in detection.starts:
        covered[round(start * 1000) : round((start + SEGMENT_SECONDS) * 1000)] = True
    assert covered[:-2].all()
    assert detection.starts[-1] == pytest.approx(78.3, abs=1 / 512)
    assert detection.skipped == ()


def with_gap(recording):
    """With NaN on all channels from 20 to 37 s and on one channel throughout."""
    x = recording.read(0, recording.num_samples).copy()
    x[:, 20 * 512 : 37 * 512] = x[2] = np.nan
    return Recording.from_array(x, 512.0, recording.channel_names, "µV", name="gap")


def test_gaps_are_skipped_and_stated_and_do_not_spread(model, recording):
    detection = Detector(model, channels="all").detect(with_gap(recording))
    skipped = np.isnan(detection.probabilities)
    assert skipped[4:7].all()
    assert not skipped[:4].any()
    assert not skipped[8:].any()
    (stretch,) = detection.skipped
    assert stretch == Skipped(20.0, 35.0 if not skipped[7] else 40.0, NO_CHANNEL)
    np.testing.assert_allclose(detection.probabilities, one_by_one(model, Segments(with_gap(recording))), atol=5e-6)


def test_each_segment_is_encoded_once(model, recording, monkeypatch):
    encoded = []
    original = MVPFormer.encode_onward

    def counting(self, signal, *masks):
        encoded.append(signal.shape[-1] // 2560)
        return original(self, signal, *masks)

    monkeypatch.setattr(MVPFormer, "encode_onward", counting)
    detection = Detector(model).detect(recording)
    assert sum(encoded) == len(detection.probabilities)


class NoiseSource:
    """Noise without end that costs no memory."""

    def read(self, start, stop, channels):
        return np.random.default_rng(start).normal(0, 50, (len(channels), stop - start)).astype(np.float32)


def test_memory_does_not_grow_with_the_recording(model):
    def peak(minutes):
        recording = Recording(NoiseSource(), sfreq=512.0, channel_names=["A1", "A2"], num_samples=minutes * 60 * 512)
        tracemalloc.start()
        detection = Detector(model, Preprocessing(notch=None), channels="all", batch_size=8).detect(recording)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(detection.probabilities) == 12 * minutes
        return size

    peak(8)
    assert peak(40) < 1.1 * peak(10)


def test_events_and_annotations(model, recording):
    detector = Detector(model, rules="none")
    probabilities = detector.detect(recording).probabilities
    detector = Detector(model, rules="none", threshold=float(np.sort(probabilities)[-4]))
    detection = detector.detect(recording)
    assert sum(round((b - a) / 5) for a, b in detection.events) >= 2
    assert all(confidence > detector.threshold for confidence in detection.confidences)
    annotations = detection.to_annotations()
    np.testing.assert_allclose(annotations.onset, [onset for onset, _ in detection.events])
    assert set(annotations.description) == {"detected seizure"}


class TestChannels:
    def test_automatic_selection_takes_32_in_order(self, model):
        recording = simulate_recording("S05", num_channels=40, duration=12.0, num_seizures=0)
        names = Detector(model).segments(recording).channel_names
        assert len(names) == 32
        assert list(names) == [name for name in recording.channel_names if name in names]

    def test_list_and_all(self, model, recording):
        chosen = recording.channel_names[1:3]
        assert Detector(model, channels=list(chosen)).detect(recording).channel_names == chosen
        assert Detector(model, channels="all").detect(recording).channel_names == recording.channel_names

    def test_a_list_in_any_order_is_used_in_the_recordings(self, model, recording):
        a, b, c, *_ = recording.channel_names
        expected = Detector(model, channels=[a, b, c]).detect(recording)
        for names in ([c, a, b], [b, c, a, b], np.array([c, a, b])):
            detection = Detector(model, channels=names).detect(recording)
            assert detection.channel_names == (a, b, c)
            np.testing.assert_array_equal(detection.probabilities, expected.probabilities)
        every = Detector(model, channels=recording.channel_names[::-1]).segments(recording)
        assert every.channel_names == recording.channel_names

    def test_too_many_and_unknown(self, recording):
        small = seeded(num_classes=2, channel_rows=3)
        with pytest.raises(ValueError, match=r"has 5 channels, the model knows at most 3: use channels='auto'"):
            Detector(small, channels="all").detect(recording)
        assert len(Detector(small).detect(recording).channel_names) == 3
        refuses(Detector(small, channels=["Z9"]).detect, "Z9", recording)


def test_errors(model, recording):
    refuses(Detector, "a head of two classes, it has 0: finetune it", seeded())
    for wrong in ([], [0, 1], None, "some"):
        refuses(Detector, "channels must be 'auto', 'all' or a list of names, got ", model, channels=wrong)
    refuses(Detector(model).detect, "shorter than one segment", recording.crop(0, 4.0))


@pytest.mark.parametrize("sfreq", [256.0, 500.0, 512.1, 1024.0])
def test_segments_must_be_those_of_the_model(model, recording, sfreq):
    message = f"preprocessing.sfreq must be 512 Hz, so that 5 s are the 2560 samples .* got {sfreq} Hz"
    preprocessing = Preprocessing(sfreq=sfreq, notch=None)
    refuses(Detector, message, model, preprocessing)
    detector = Detector(model)
    detector.preprocessing = preprocessing
    refuses(detector.detect, message, recording)
    refuses(StreamingDetector, message, model, sfreq, ["A1", "A2"], preprocessing)
    refuses(embed, message, model, recording, preprocessing=preprocessing)


def test_device_must_be_there(model, monkeypatch):
    class Gpu:
        type = "cuda"

    assert Detector(model, device=torch.device("cpu")).device == torch.device("cpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    for device in ("cuda", "gpu", "cuda:0", "meta", "", torch.device("cuda")):
        refuses(Detector, f"device must be one of cpu on this machine .* got '{device}'", model, device=device)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: Gpu())
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert [checked_device(name).index for name in ("cuda", "cuda:1")] == [None, 1]
    refuses(checked_device, r"one of cpu, cuda, cuda:0, cuda:1 on this machine .* got 'cuda:2'", "cuda:2")


class TestStore:
    def test_resumed_run_equals_uninterrupted(self, model, recording, tmp_path, monkeypatch):
        detector = Detector(model, batch_size=4)
        whole = detector.detect(recording, store=tmp_path / "whole")

        class StopError(Exception):
            pass

        original = MVPFormer.decode
        calls = []

        def stopping(self, *arguments, **masks):
            calls.append(1)
            if len(calls) == 4:
                raise StopError
            return original(self, *arguments, **masks)

        monkeypatch.setattr(MVPFormer, "decode", stopping)
        with pytest.raises(StopError):
            detector.detect(recording, store=tmp_path / "part")
        monkeypatch.setattr(MVPFormer, "decode", original)
        resumed = detector.detect(recording, store=tmp_path / "part")
        np.testing.assert_array_equal(resumed.probabilities, whole.probabilities)
        assert (tmp_path / "part").read_bytes() == (tmp_path / "whole").read_bytes()

    def test_other_threshold_reuses_and_other_weights_refuse(self, model, recording, tmp_path, monkeypatch):
        store = tmp_path / "store"
        first = Detector(model).detect(recording, store=store)
        monkeypatch.setattr(MVPFormer, "decode", lambda *_, **masks: pytest.fail("scored again"))
        again = Detector(model, threshold=0.2, rules="paper").detect(recording, store=store)
        np.testing.assert_array_equal(again.probabilities, first.probabilities)
        other = MVPFormer(model.config)
        refuses(Detector(other).detect, r"begun with other settings \(weights\)", recording, store=store)
        with pytest.raises(ValueError, match=r"begun with other settings \(preprocessing\)"):
            Detector(model, Preprocessing(notch=60.0)).detect(recording, store=store)
        refuses(Detector(model).detect, "recording", recording.crop(0.0, 80.0), store=store)

    def test_another_recording_with_the_same_beginning_is_refused(self, model, recording, tmp_path):
        store = tmp_path / "store"
        Detector(model).detect(recording, store=store)
        changed = recording.read(0, recording.num_samples).copy()
        changed[:, 4 * 512 : 60 * 512] *= 3
        other = Recording.from_array(changed, 512.0, recording.channel_names, "µV", name=recording.name)
        refuses(Detector(model).detect, r"begun with other settings \(recording\)", other, store=store)

    @pytest.mark.parametrize("kept", [0, 3, 8])
    def test_flat_channels_are_known_whatever_the_store_holds(self, model, tmp_path, kept):
        x = np.random.default_rng(0).normal(0, 50, (4, 40 * 512)).astype(np.float32)
        x[1], x[2, : 35 * 512] = 0.0, 7.0  # A3 has a signal in the last segment only
        recording = Recording.from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV")
        detector, store = Detector(model, batch_size=1), tmp_path / "store"
        fresh = detector.detect(recording, store=store)
        store.write_bytes(b"".join(store.read_bytes().splitlines(keepends=True)[: 1 + kept]))
        opened = detector.detect(recording, store=store)
        assert opened.channel_names == fresh.channel_names == ("A1", "A3", "A4")
        assert opened.provenance.dropped == fresh.provenance.dropped != {}
        np.testing.assert_array_equal(opened.probabilities, fresh.probabilities)

    def test_a_complete_store_needs_no_reading_beyond_the_first_signal(self, model, recording, tmp_path, monkeypatch):
        detector, store = Detector(model), tmp_path / "store"
        detector.detect(recording, store=store)
        read, ranges = Segments.read, []
        monkeypatch.setattr("mvpa_ts.ieeg.preprocessing.segments.BLOCK_SEGMENTS", 2)
        monkeypatch.setattr(Segments, "read", lambda self, *span: ranges.append(span) or read(self, *span))
        detector.detect(recording, store=store)
        assert ranges == [(0, 2)]


class TestNoise:
    @pytest.mark.parametrize("snr", [30.0, 60.0])
    def test_level_is_per_channel_and_whatever_the_reading(self, recording, snr):
        noisy = add_noise(recording, snr, seed=3)
        clean = recording.read(0, recording.num_samples).astype(np.float64)
        noise = noisy.read(0, recording.num_samples) - clean
        measured = 10 * np.log10(clean.var(1) / noise.var(1))
        np.testing.assert_allclose(measured, snr, atol=0.15)
        correlations = np.corrcoef(noise)
        assert np.abs(correlations - np.eye(5)).max() < 0.03
        np.testing.assert_array_equal(noisy.read(4000, 9000), noisy.read(0, 12000)[:, 4000:9000])
        np.testing.assert_array_equal(noisy.read(4000, 9000, channels=[3]), noisy.read(4000, 9000)[[3]])

    def test_gaps_stay_gaps(self, recording):
        assert np.isnan(add_noise(with_gap(recording), 40.0).read(21 * 512, 22 * 512)).all()

    @pytest.mark.parametrize("lost", [[], [3], [0, 1, 2]])
    def test_noise_of_each_channel_goes_by_its_own_samples(self, lost):
        x = np.random.default_rng(0).normal(3000, [[10.0], [50.0], [100.0], [200.0]], (4, 100 * 512))
        x[1, :40000] = np.inf  # the second is known at its end only
        x[lost] = np.nan
        clean = Recording.from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV")
        noise = add_noise(clean, 20.0).read(40000, 51200) - clean.read(40000, 51200)
        kept = [i for i in range(4) if i not in lost]
        np.testing.assert_allclose(noise[kept].std(1), np.array([1.0, 5.0, 10.0, 20.0])[kept], rtol=0.05)
        assert np.isnan(noise[lost]).all()

    def test_noise_of_nothing_is_refused(self):
        nothing = Recording.from_array(np.full((2, 5120), np.nan), 512.0, ["A1", "A2"], "µV", name="empty")
        refuses(add_noise, "empty: every sample is missing", nothing, 20.0)


class TestFigures:
    def test_all_are_drawn(self, model, recording):
        detector = Detector(model, rules="none", channels="all")
        detection = detector.detect(with_gap(recording))
        segments = detector.segments(with_gap(recording))
        assert detection.plot([(10.0, 30.0)]).axes[0].get_ylabel() == "seizure probability"
        lines = plot_traces(segments, 15.0, 42.0, detection.events).axes[0].lines
        assert len(lines) == 5
        assert all(np.isnan(line.get_ydata()).any() for line in lines)
        rms = channel_rms(segments)
        assert rms[2] == 0.0
        assert (rms[[0, 1, 3, 4]] > 1.0).all()

    def test_traces_do_not_go_back_in_time_at_the_tail(self, model, recording):
        line = plot_traces(Segments(recording), 70.0, 83.3).axes[0].lines[0]
        times = line.get_xdata()
        assert (np.diff(times) > 0).all()
        assert times[-1] == pytest.approx(83.3, abs=2 / 512)

    @pytest.mark.parametrize("known", [True, False])
    def test_channel_map(self, known):
        names = ["A1", "A2", "POL B1"]
        positions = {"A1": (0.0, 1.0, 2.0), "A2": (1.0, 1.0, 2.0), "B1": (5.0, 5.0, 5.0)} if known else None
        figure = plot_channel_map(names, [1.0, 2.0, 3.0], {"EKG1": "EKG"}, positions)
        labels = [axis.get_xlabel() for axis in figure.axes]
        assert labels[0] == ("x" if known else "contact")

    @pytest.mark.parametrize("known", [True, False])
    def test_channel_map_shows_electrodes_only(self, known):
        dropped = {"EKG": "EKG is no EEG by its name", "A3": "marked bad", "X1": "type misc", "DC1": "by hand"}
        positions = {name: (i, 1.0, 2.0) for i, name in enumerate(["A1", "A2", *dropped])} if known else None
        axis = plot_channel_map(["A1", "A2"], [1.0, 2.0], dropped, positions).axes[0]
        grey, used = (collection.get_offsets() for collection in axis.collections)
        np.testing.assert_array_equal(used[:, 0], [0, 1] if known else [1, 2])
        np.testing.assert_array_equal(grey[:, 0], [3])
        if not known:
            assert [label.get_text() for label in axis.get_yticklabels()] == ["A"]


def test_channels_without_a_signal_and_samples_beyond_a_volt_are_stated(model):
    x = np.random.default_rng(0).normal(0, 50, (4, 40 * 512)).astype(np.float32)
    x[1], x[2, 5000:5003] = 0.0, 1e12
    recording = Recording.from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV")
    detection = Detector(model).detect(recording)
    run = detection.describe()
    assert detection.channel_names == ("A1", "A3", "A4")
    assert repr(detection).endswith("3 channels>")
    assert run["channels"]["used"] == ["A1", "A3", "A4"]
    assert run["channels"]["dropped"] == {"A2": "no signal: flat or not a number throughout"}
    assert run["recording"]["implausible_samples"] == 3


@pytest.mark.parametrize(
    "wrong", [{"threshold": 3}, {"rules": "strict"}, {"channels": "some"}, {"device": "gpu"}, {"batch_size": 2.5}]
)
def test_wrong_settings_are_said_before_a_model_is_loaded(wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be"):
        Detector("no/such/model", **wrong)
