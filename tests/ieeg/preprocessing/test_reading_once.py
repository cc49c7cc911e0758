"""What spans share is read once, gaps are the same however they are reached, and batches that are held stay so."""

import numpy as np
import pytest
from torch.utils.data import DataLoader

from mvpa_ts.ieeg import Preprocessing, Recording, Segments, read_recording
from mvpa_ts.ieeg.simulation.writing import write_swec
from mvpa_ts.ieeg.training.spans import SpanDataset, collate

pytest.importorskip("hdf5plugin")
CHUNK = 180 * 512


def make(seconds: float, subject: str = "S01", gaps: int = 0) -> Recording:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 50, (3, round(seconds * 512))).astype(np.float32)
    for _ in range(gaps):
        channel, start, length = rng.integers(3), rng.integers(x.shape[1]), rng.integers(100, 5000)
        x[channel, start : start + length] = rng.choice([0.0, 3.0, x[channel, start]])
    for cut in range(CHUNK, x.shape[1] if gaps else 0, CHUNK):  # flat on both sides of a chunk's end
        x[0, cut - 70 : cut + 70] = 1.5
    return Recording.from_array(x, 512.0, ["A1", "A2", "A3"], "µV", subject=subject, preprocessed=True)


@pytest.mark.parametrize(("length", "window"), [(144, 25), (150, 100), (36, 1), (7, 7), (20, 3)])
def test_overlapping_spans_read_every_chunk_once(length, window):
    recording = make(1000.0)
    read = []
    original = recording.source.read
    recording.source.read = lambda start, stop, channels: read.append((start, stop)) or original(start, stop, channels)  # type: ignore[method-assign]
    data = SpanDataset([Segments(recording)], length, window)
    for index, span in enumerate(data.spans):
        expected = original(span.first * 2560, span.last * 2560, np.arange(3))
        np.testing.assert_array_equal(data[index]["signal"], expected)
    assert sorted(read) == [(start, min(start + CHUNK, 512_000)) for start in range(0, 512_000, CHUNK)]


@pytest.mark.parametrize("settings", [None, Preprocessing(band=None, notch=None, reference="median")])
def test_gaps_are_the_same_however_reached(tmp_path, settings):
    recording = read_recording(write_swec(make(613.7, gaps=60), tmp_path, part_hours=400 / 3600))
    segments = Segments(recording, settings)
    one_by_one = [(signal.copy(), valid.copy()) for _, signal, valid in segments]
    assert len(one_by_one) == 123
    assert not all(valid.all() for _, valid in one_by_one)
    rng = np.random.default_rng(1)
    for _ in range(20):
        first = int(rng.integers(122))
        last = int(rng.integers(first + 1, 124))
        signal, valid = segments.read(first, last, int(rng.integers(0, 60)))
        np.testing.assert_array_equal(signal, np.concatenate([one_by_one[i][0] for i in range(first, last)], axis=1))
        np.testing.assert_array_equal(valid, np.stack([one_by_one[i][1] for i in range(first, last)]))


def test_batches_that_are_kept_stay_as_they_are(tmp_path):
    folders = [write_swec(make(700.0, f"S0{i}"), tmp_path) for i in range(2)]
    data = SpanDataset([Segments(read_recording(folder)) for folder in folders], 40, 5)
    batches = list(DataLoader(data, collate_fn=collate))
    expected = make(700.0).read(0, 700 * 512)
    for span, batch in zip(data.spans, batches, strict=True):
        np.testing.assert_array_equal(batch["signal"][0], expected[:, span.first * 2560 : span.last * 2560])


def test_reading_5_s_at_a_time_decompresses_a_chunk_once(tmp_path, monkeypatch):
    import h5py

    recording = read_recording(write_swec(make(400.0), tmp_path))
    expected = make(400.0).read(0, 400 * 512)
    read = []
    original = h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, at: read.append(at) or original(self, at))
    for start in range(0, 400 * 512, 2560):
        low, high = max(start - 100, 0), min(start + 2660, 400 * 512)
        np.testing.assert_array_equal(recording.read(low, high), expected[:, low:high])
    assert len(read) == 3
    assert len(recording.source._chunks) == 2
    recording.close()
    assert not recording.source._chunks
