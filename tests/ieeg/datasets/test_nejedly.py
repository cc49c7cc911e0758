"""MAYO and FNUSA segments, in files of their layout written here."""

import numpy as np
import pytest
from harness.detection.interictal import NejedlyDataset, parts_of
from scipy.io import savemat
from support.fuzzing.tables import write_nejedly
from support.reading import refuses
from torch.utils.data import DataLoader

from mvpa_ts.ieeg import simulate_recording
from mvpa_ts.ieeg.datasets.nejedly import nejedly_segments, pad_symmetrically, read_nejedly
from mvpa_ts.ieeg.training.spans import collate

CATEGORIES = ("physiology", "pathology", "artifacts", "powerline")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nejedly") / "DATASET_MAYO"
    folder.mkdir()
    x = simulate_recording(duration=30, num_channels=1, sfreq=5000.0, num_seizures=0).read(0, 150_000)
    # The numbers of the classes are misleading on purpose.
    rows = [(3 - i % 4, CATEGORIES[i % 4], 20 - 2 * i) for i in range(10)]
    write_nejedly(folder, x.reshape(10, 15_000), rows)
    return folder


def test_table(folder):
    segments = nejedly_segments(folder)
    assert [s.category for s in segments[:4]] == list(CATEGORIES)
    assert [s.pathological for s in segments] == [i % 4 == 1 for i in range(10)]
    assert segments[3].patient == "mayo-14"


def test_first_patients_by_number(folder):
    train, validation, test = parts_of(folder)
    assert (set(train.subjects), set(validation.subjects)) == ({"mayo-2", "mayo-4", "mayo-6"}, {"mayo-8"})
    assert len(set(test.subjects)) == 6
    refuses(parts_of, "count must lie between 2 and 9", folder, 10)


def test_signal_is_mirrored_to_a_model_segment(folder):
    x = read_nejedly(nejedly_segments(folder)[1])
    assert x.shape == (1, 2560)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x[0, :512], x[0, 1023:511:-1])
    np.testing.assert_array_equal(x[0, 2048:], x[0, 2047:1535:-1])
    assert 5 < x.std() < 300


def test_padding():
    x = np.arange(5, dtype=np.float32)[None]
    np.testing.assert_array_equal(pad_symmetrically(x, 5), x)
    assert pad_symmetrically(x, 22).shape == (1, 22)
    refuses(pad_symmetrically, "more than 4", x, 4)


def test_batches(folder):
    data = NejedlyDataset(nejedly_segments(folder))
    batch = next(iter(DataLoader(data, batch_size=4, collate_fn=collate)))
    assert batch["signal"].shape == (4, 1, 2560)
    assert batch["ictal"][:, 0].tolist() == [False, True, False, False]
    assert batch["subject"][0] == "mayo-20"
    assert data.ictal.sum() == 3


def test_failures(folder, tmp_path):
    refuses(nejedly_segments, "DATASET_MAYO or DATASET_FNUSA", tmp_path, kind=FileNotFoundError)
    header, *rows = (folder / "segments.csv").read_text().splitlines()
    table = tmp_path / "segments.csv"
    table.write_text("\n".join([header.replace("category_name", "x"), *rows]))
    refuses(nejedly_segments, r"lacks the columns \['category_name'\]", tmp_path)
    table.write_text("\n".join([header, *rows]).replace("pathology", "other"))
    refuses(nejedly_segments, "must have rows with category_name pathology", tmp_path)
    table.write_text("\n".join([header, *rows]).replace("seg3", "../secret"))
    refuses(nejedly_segments, r"'\.\./secret' is not a file name", tmp_path)
    table.write_text("\n".join([header, *rows])[:-12])
    refuses(nejedly_segments, r"segments\.csv, line 11 has fewer values than columns", tmp_path)
    table.write_text("\n".join([header, *rows]))
    segments = nejedly_segments(tmp_path)
    refuses(read_nejedly, r"seg0\.mat, which segments\.csv lists", segments[0], kind=FileNotFoundError)
    (tmp_path / "seg1.mat").write_bytes((folder / "seg1.mat").read_bytes()[:500])
    refuses(read_nejedly, r"seg1\.mat cannot be read: truncated, damaged", segments[1])
    savemat(tmp_path / "seg2.mat", {"data": np.ones((1, 99))})
    refuses(read_nejedly, r"must have shape \(1, 15000\), got \(1, 99\)", segments[2])
    savemat(tmp_path / "seg3.mat", {"other": np.ones((1, 99))})
    refuses(read_nejedly, "without `data`", segments[3])
