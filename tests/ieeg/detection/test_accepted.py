"""What is taken for a recording, and what a detection gives back to MNE."""

import datetime

import mne
import numpy as np
import pytest
import torch
from support.made_up_recordings import SMALL, recording, seeded

from mvpa_ts.ieeg import (
    Detector,
    Preprocessing,
    Recording,
    RecordingDataModule,
    Segments,
    StreamingDetector,
    embed,
    read_recording,
)
from mvpa_ts.ieeg.detection.plots import plot_channel_map
from mvpa_ts.ieeg.recordings.noise import add_noise
from mvpa_ts.ieeg.recordings.reading import as_recording
from mvpa_ts.ieeg.simulation.writing import write_edf, write_swec


@pytest.fixture(scope="module")
def model():
    return seeded(**SMALL, amplitude="none")


@pytest.fixture
def made():
    return recording("S1", 1, segments=8)


def raw_of(made, first_samp=0, date=None):
    info = mne.create_info(list(made.channel_names), made.sfreq, "seeg")
    raw = mne.io.RawArray(made.read(0, made.num_samples) * 1e-6, info, first_samp=first_samp, verbose="error")
    if date is not None:
        raw.set_meas_date(date)
    return raw


@pytest.mark.parametrize("kind", ["raw", "path", "samples"])
def test_what_stands_for_a_recording(model, made, kind, tmp_path):
    preprocessing = Preprocessing(notch=50.0, reference=None)
    raw_of(made).save(tmp_path / "a_raw.fif", fmt="double", verbose="error")
    samples = made.read(0, made.num_samples)
    given = {"raw": raw_of(made), "path": tmp_path / "a_raw.fif", "samples": (samples, 512.0)}[kind]
    expected = Segments(made, preprocessing)
    np.testing.assert_allclose(Segments(given, preprocessing).read(0, 2)[0], expected.read(0, 2)[0], atol=1e-3)
    detection = Detector(model, preprocessing, channels="all").detect(given)
    wanted = Detector(model, preprocessing, channels="all").detect(made).probabilities
    np.testing.assert_allclose(detection.probabilities, wanted, atol=1e-4)
    rows = embed(model, given, preprocessing=preprocessing)
    torch.testing.assert_close(
        rows.features, embed(model, made, preprocessing=preprocessing).features, atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("kind", ["raw", "path", "samples"])
def test_noise_and_files_take_what_stands_for_a_recording(made, kind, tmp_path):
    raw_of(made).save(tmp_path / "a_raw.fif", fmt="double", verbose="error")
    samples = made.read(0, made.num_samples)
    given = {"raw": raw_of(made), "path": str(tmp_path / "a_raw.fif"), "samples": (samples, 512.0)}[kind]
    noisy = add_noise(given, 40.0).read(0, 5120)
    np.testing.assert_allclose(noisy, add_noise(made, 40.0).read(0, 5120), atol=1e-2)
    written = read_recording(write_edf(given, tmp_path / "written.edf"))
    np.testing.assert_allclose(written.read(0, 5120), samples[:, :5120], atol=0.1)
    folder = write_swec(given, tmp_path / "swec")
    assert read_recording(folder).num_samples == made.num_samples


def test_training_takes_a_raw(made):
    other = recording("S2", 2, segments=40)
    data = RecordingDataModule(
        recordings=[raw_of(recording("S1", 1, segments=40)), other], validation_subjects=["S2"], context=4
    )
    data.setup()
    assert next(iter(data.train_dataloader()))["signal"].shape[1] == 3


def test_samples_without_a_rate_are_refused(model, made):
    with pytest.raises(TypeError, match=r"\(samples, sfreq\) with samples \[C, n\] in µV, got ndarray"):
        Detector(model).detect(made.read(0, 5120))
    assert as_recording((np.ones((2, 5120)) * np.arange(5120) % 50, 512.0)).channel_names == ("1", "2")
    with pytest.raises(ValueError, match=r"got shape \(5120, 2\), more channels than samples: pass samples\.T"):
        as_recording((np.ones((5120, 2)), 512.0))
    with pytest.raises(ValueError, match=r"samples must be \[C, n\], got shape \(5120,\)$"):
        as_recording((np.ones(5120), 512.0))


@pytest.mark.parametrize("first_samp", [0, 1024])
def test_annotations_are_added_to_those_of_a_raw(model, made, first_samp):
    raw = raw_of(made, first_samp, datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC))
    detector = Detector(model, Preprocessing(notch=50.0), channels="all", rules="none", threshold=0.0)
    detection = detector.detect(raw)
    raw.set_annotations(raw.annotations + detection.to_annotations())
    onsets = [onset - raw.first_time for onset in raw.annotations.onset]
    np.testing.assert_allclose(onsets, [onset for onset, _ in detection.events], atol=1e-6)
    assert set(raw.annotations.description) == {"detected seizure"}
    assert detector.detect(raw).reference is None  # what was detected before is no reference


@pytest.mark.parametrize("first_samp", [0, 1024])
def test_the_clock_of_a_part_is_its_own(model, made, first_samp, tmp_path):
    raw = raw_of(made, first_samp, datetime.datetime(2024, 5, 6, 23, 59, 50, tzinfo=datetime.UTC))
    detector = Detector(model, Preprocessing(notch=50.0), channels="all")
    for part, seconds in ((Recording.from_raw(raw), 0), (Recording.from_raw(raw).crop(9.0, 20.0), 9)):
        detector.detect(part).save_events(tmp_path / "events.tsv", clock=True)
        begin = datetime.datetime(2024, 5, 6, 23, 59, 50) + datetime.timedelta(seconds=seconds + first_samp // 512)
        assert f"\t{begin:%Y-%m-%d %H:%M:%S}\t" in (tmp_path / "events.tsv").read_text()


def test_epochs_are_refused_as_arrays_are(model):
    epochs = mne.EpochsArray(np.zeros((3, 2, 512)), mne.create_info(2, 512.0, "eeg"), verbose="error")
    with pytest.raises(TypeError, match=r"a recording must be a Recording, an MNE Raw, .* got EpochsArray"):
        Detector(model).detect(epochs)


class TestStream:
    def test_a_folder_is_a_model(self, model, tmp_path):
        model.save_pretrained(tmp_path)
        stream = StreamingDetector(str(tmp_path), 512.0, ["A1"], Preprocessing(notch=None, reference=None), lookahead=0)
        assert len(stream.feed(np.random.default_rng(0).normal(0, 50, (1, 6000)))) == 2

    @pytest.mark.parametrize(("scale", "warned"), [(50.0, False), (50e-6, True), (5e7, True)])
    def test_implausible_units_are_said_once(self, model, scale, warned, recwarn):
        stream = StreamingDetector(model, 512.0, ["A1"], Preprocessing(notch=None, reference=None), lookahead=0)
        samples = np.random.default_rng(0).normal(0, scale, (1, 12000))
        stream.feed(samples[:, :6000])
        stream.feed(samples[:, 6000:])
        messages = [str(warning.message) for warning in recwarn if "is the unit right?" in str(warning.message)]
        assert len(messages) == int(warned)


def test_a_grid_is_drawn_as_a_grid():
    names = [f"C{n}" for n in range(1, 65)] + ["A1", "A2"]
    figure = plot_channel_map(names, np.arange(66.0))
    offsets = np.concatenate([collection.get_offsets() for collection in figure.axes[0].collections])
    assert offsets[:, 0].max() == 8
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["A", "C"]
    assert len(np.unique(offsets[:, 1])) == 9
