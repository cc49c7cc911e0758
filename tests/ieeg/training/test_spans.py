"""Spans, windows and batches."""

import multiprocessing

import numpy as np
import pytest
import torch
from support.made_up_recordings import PLAIN, noise
from support.reading import refuses
from torch.utils.data import DataLoader

from mvpa_ts.ieeg import Recording, Segments
from mvpa_ts.ieeg.detection.features import TrainingFeatures
from mvpa_ts.ieeg.simulation.writing import write_swec
from mvpa_ts.ieeg.training import spans as windows_module
from mvpa_ts.ieeg.training.spans import Span, SpanDataset, collate, cover, unfold_windows


def make(seconds: float, channels: int = 3, subject: str = "S01", seizures=()) -> Recording:
    options = {"subject": subject, "name": f"{subject}_{seconds:g}", "seizures": seizures, "preprocessed": True}
    return noise(seconds, channels=channels, seed=len(subject) + channels, **options)


@pytest.mark.parametrize("num_segments", [1, 2, 3, 7, 12, 13, 100])
@pytest.mark.parametrize(("length", "window"), [(1, 1), (3, 1), (3, 3), (5, 3), (12, 3), (13, 13)])
def test_cover_holds_every_window_once(num_segments, length, window):
    spans = cover(num_segments, length, window)
    assert all(0 <= first < last <= num_segments and last - first <= length for first, last in spans)
    windows = [start for first, last in spans for start in range(first, last - window + 1)]
    assert windows == list(range(max(num_segments - window + 1, 0)))
    assert {i for first, last in spans for i in range(first, last)} == set(range(num_segments))


def test_cover_refuses():
    refuses(cover, r"length \(3\) must be at least window \(4\)", 10, 3, 4)


def test_unfold_windows():
    x = torch.randn(2, 7, 3, 4)
    y = unfold_windows(x, 5)
    assert y.shape == (2, 3, 5, 3, 4)
    for w in range(3):
        torch.testing.assert_close(y[:, w], x[:, w : w + 5])
    assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    mask = torch.rand(2, 7, 3) > 0.5
    assert (unfold_windows(mask, 2)[:, 4] == mask[:, 4:6]).all()
    refuses(unfold_windows, "window must lie between 1 and", x, 8)


def test_items():
    recording = make(33.0, seizures=[(12.0, 14.0)])
    data = SpanDataset([Segments(recording)], length=3, window=2)
    assert data.spans == (Span(0, 0, 3), Span(0, 2, 5), Span(0, 4, 6))  # the overlapping tail is left out
    np.testing.assert_array_equal(data.ictal, [True, True, False])
    item = data[1]
    np.testing.assert_array_equal(item["signal"], recording.read(10 * 512, 25 * 512))
    assert item["ictal"].tolist() == [True, False, False]
    assert (item["subject"], item["recording"], item["start"]) == ("S01", "S01_33", 10.0)
    assert SpanDataset([Segments(make(30.0))], 3, 2).spans[-1] == Span(0, 4, 6)
    refuses(SpanDataset, "segments is empty", [], 3)


def test_recordings_of_one_name_are_told_apart():
    made = [make(10.0, 2, subject) for subject in ("S01", "S02", "S01", "S01", "S01")]
    for one, name in zip(made, ["ieeg", "ieeg", "ieeg", "ieeg (2)", "ieeg"], strict=True):
        one.name = name
    data = SpanDataset([Segments(one) for one in made], length=2)
    names = [(data[i]["subject"], data[i]["recording"]) for i in range(len(data))]
    others = [("S01", f"ieeg{number}") for number in (" (2)", " (2) (2)", " (3)")]
    assert names == [("S01", "ieeg"), ("S02", "ieeg"), *others]


def test_collate_pads_and_masks():
    recordings = [make(20.0, 2, "S01", [(0, 3)]), make(40.0, 4, "S02", [(12, 13)])]
    recordings[0].source.values[1, 5 * 512 : 10 * 512] = 0
    data = SpanDataset([Segments(r) for r in recordings], length=6)
    batch = collate([data[0], data[1], data[2]])
    assert batch["signal"].shape == (3, 4, 6 * 2560)
    assert batch["signal"].dtype == torch.float32
    assert batch["channel_mask"].tolist() == [[True, True, False, False], [True] * 4, [True] * 4]
    assert batch["segment_mask"].tolist() == [[False] * 2 + [True] * 4, [True] * 6, [False] * 4 + [True] * 2]
    assert batch["subject"] == ["S01", "S02", "S02"]
    assert batch["start"].tolist() == [-10.0, 0.0, 10.0]
    assert batch["ictal"][0].tolist() == [False, False, True, False, False, False]
    for row, (channels, missing) in enumerate([(2, 2), (4, 0), (4, 4)]):
        np.testing.assert_array_equal(batch["signal"][row, :channels, missing * 2560 :], data[row]["signal"])
    assert not batch["signal"][0, 2:].any()
    assert not batch["signal"][0, :, : 2 * 2560].any()
    expected = batch["segment_mask"][:, :, None] & batch["channel_mask"][:, None, :]
    expected[0, 3, 1] = False
    assert (batch["token_mask"] == expected).all()
    plain = collate([data[1]])
    np.testing.assert_array_equal(plain["signal"][0], data[1]["signal"])
    for rows, first in (([2], 4), ([0, 2], 2)):
        longer = collate([data[row] for row in rows], segments=6)
        assert longer["signal"].shape[2] == 6 * 2560
        assert longer["segment_mask"][0].tolist() == [False] * first + [True] * (6 - first)
        assert longer["start"][0] == data[rows[0]]["start"] - 5.0 * first
    whole = data[1]
    assert collate([whole], segments=6)["signal"].data_ptr() == whole["signal"].data_ptr()
    refuses(collate, "same rate", [data[0], data[1] | {"segment_samples": 1280}])


@pytest.mark.parametrize(("workers", "start_method"), [(0, None), (1, "fork"), (2, "fork"), (1, "spawn")])
def test_workers_do_not_change_what_comes(tmp_path, workers, start_method):
    folders = [write_swec(make(40.0, 2, f"S0{i}"), tmp_path) for i in range(2)]
    from mvpa_ts.ieeg import read_recording

    data = SpanDataset([Segments(read_recording(folder)) for folder in folders], length=2)
    expected = [data[i]["signal"].numpy() for i in range(len(data))]
    context = multiprocessing.get_context(start_method) if start_method else None
    loader = DataLoader(data, batch_size=3, num_workers=workers, collate_fn=collate, multiprocessing_context=context)
    found = np.concatenate([batch["signal"].numpy() for batch in loader])
    np.testing.assert_array_equal(found, expected)


def test_only_a_few_recordings_stay_open(tmp_path, monkeypatch):
    from mvpa_ts.ieeg import read_recording

    monkeypatch.setattr(windows_module, "OPEN_RECORDINGS", 2)
    segments = [Segments(read_recording(write_swec(make(20.0, 2, f"S0{i}"), tmp_path))) for i in range(4)]
    for one in segments:
        one.release()
    data = SpanDataset(segments, length=2)
    for index in range(len(data)):
        data[index]
        assert sum(bool(one.recording.source._open) for one in segments) <= 2
        assert sum(bool(one._blocks) for one in segments) <= 2


def test_segments_that_are_marked_bad_are_no_targets_and_teach_no_baseline():
    recording = make(40.0, seizures=[(2.0, 4.0), (21.0, 24.0)])
    plain = TrainingFeatures.of([Segments(recording, PLAIN)])
    recording.bad_spans = ((0.0, 4.0), (27.0, 31.0))
    good = [1, 2, 3, 4, 7]
    features = TrainingFeatures.of([Segments(recording, PLAIN)])
    np.testing.assert_array_equal(features.lengths, plain.lengths[good])
    assert features.ictal.tolist() == [False, False, False, True, False]
    data = SpanDataset([Segments(recording, PLAIN)], length=4, before=1, tail=True)
    assert np.flatnonzero(np.concatenate([data[0]["target"], data[1]["target"][1:]])).tolist() == good
    assert data.ictal.tolist() == [False, True]
