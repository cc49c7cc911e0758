"""SWEC files: what is written is read, and every trap of the layout."""

import os
import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.made_up_recordings import noise
from support.reading import change, refused, refuses

from mvpa_ts.ieeg import Recording, Segments, read_recording, simulate_recording
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.preprocessing.signal import PreprocessedSignal
from mvpa_ts.ieeg.recordings.swec import read_swec
from mvpa_ts.ieeg.simulation.writing import write_swec

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")


def simple(subject: str = "ID04", seconds: float = 30.0, seed: int = 0) -> Recording:
    return noise(seconds, seed=seed, subject=subject, seizures=[(4.0, 9.5), (20.0, 22.0)], preprocessed=True)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three parts of 12, 12 and 6 s."""
    return write_swec(simple(), tmp_path, part_hours=12 / 3600)


def expected(start: int, stop: int) -> np.ndarray:
    return simple().read(start, stop)


def test_layout(folder):
    assert sorted(file.name for file in folder.iterdir()) == [
        "ID04_part_1.h5", "ID04_part_2.h5", "ID04_part_3.h5", "ID04_total.h5",
    ]  # fmt: skip
    with h5py.File(folder / "ID04_total.h5") as total, h5py.File(folder / "ID04_part_1.h5") as part:
        assert total["data/ieeg"].is_virtual
        assert total["data/ieeg"].shape == (3, 30 * 512)
        np.testing.assert_array_equal(total["data/ieeg"][:, 6100:6200], expected(6100, 6200))  # as others would read it
        assert total["data/seizures"].shape == (2, 1)
        assert total["data/seizures"].dtype.names == ("onsets", "offsets")
        assert dict(part.attrs) == {"sampling_rate": 512, "patient": "ID04", "channels": 3}
        assert part["data/ieeg"].chunks[0] == 3
        assert list(part["data/ieeg"]._filters) == ["32001"]  # Blosc
    assert not [file for file in folder.parent.iterdir() if file != folder]


def test_folder_total_and_part(folder):
    for path in (folder, folder / "ID04_total.h5"):
        recording = read_recording(path)
        assert (recording.subject, recording.preprocessed, recording.sfreq) == ("ID04", True, 512.0)
        assert recording.seizures == ((4.0, 9.5), (20.0, 22.0))
        assert recording.channel_names == ("ch1", "ch2", "ch3")
        for start, stop in [(0, 30 * 512), (6000, 6300), (6144, 6144), (12_287, 12_289), (15_359, 15_360)]:
            np.testing.assert_array_equal(recording.read(start, stop), expected(start, stop))
        np.testing.assert_array_equal(recording.read(6000, 6300, ["ch3", "ch1"]), expected(6000, 6300)[[2, 0]])
    part = read_recording(folder / "ID04_part_2.h5")
    assert (part.num_samples, part.seizures, part.name) == (12 * 512, (), "ID04_part_2")
    np.testing.assert_array_equal(part.read(0, 100), expected(12 * 512, 12 * 512 + 100))
    assert read_recording((folder / "ID04_total.h5").rename(folder / "ID04_total.H5")).subject == "ID04"


@pytest.mark.parametrize("form", ["(n,)", "group", "none", "numbers"])
def test_seizure_tables(folder, form):
    def rewrite(total):
        rows = np.array([(4.0, 9.5), (20.0, 22.0)], [("onsets", "f8"), ("offsets", "f8")])
        del total["data/seizures"]
        if form == "(n,)":
            total["data/seizures"] = rows
        elif form == "group":
            total["data/seizures/onsets"] = rows["onsets"][:, None]
            total["data/seizures/offsets"] = rows["offsets"][:, None]
        elif form == "numbers":
            total["data/seizures"] = np.zeros((2, 2))

    change(folder / "ID04_total.h5", rewrite)
    if form == "none":
        with pytest.warns(UserWarning, match="has no data/seizures, so its seizures are unknown"):
            assert read_swec(folder).seizures == ()
    elif form == "numbers":
        refuses(read_swec, "must hold onsets and offsets", folder)
    else:
        assert read_swec(folder).seizures == ((4.0, 9.5), (20.0, 22.0))


def test_a_missing_part_is_an_error_not_zeros(folder):
    (folder / "ID04_part_2.h5").unlink()
    with h5py.File(folder / "ID04_total.h5") as total:  # the trap itself
        assert not total["data/ieeg"][:, 12 * 512 : 24 * 512].any()
    refuses(read_swec, "part 2 is missing", folder, kind=FileNotFoundError)


def test_a_missing_last_part(folder):
    (folder / "ID04_part_3.h5").unlink()
    refuses(read_swec, r"ID04_part_3\.h5", folder, kind=FileNotFoundError)
    change(folder / "ID04_total.h5", lambda total: total.pop("info/files"))
    with pytest.raises(FileNotFoundError, match=r"30\.?\d* ?|15360 samples, the parts beside it have 12288"):
        read_swec(folder / "ID04_total.h5")
    for part in folder.glob("*_part_*.h5"):
        part.unlink()
    with pytest.raises(FileNotFoundError):
        read_swec(folder)


def test_sources_in_another_folder_are_not_followed(folder, tmp_path):
    """The total file of ID04 points at another subject's parts, of the same length and other samples."""
    other = write_swec(simple("ID05", seed=5), tmp_path, part_hours=12 / 3600)
    layout = h5py.VirtualLayout((3, 30 * 512), "f4")
    for number, (low, high) in enumerate([(0, 6144), (6144, 12_288), (12_288, 15_360)], 1):
        layout[:, low:high] = h5py.VirtualSource(f"../ID05/ID05_part_{number}.h5", "data/ieeg", (3, high - low))

    def point_elsewhere(total):
        del total["data/ieeg"]
        total.create_virtual_dataset("data/ieeg", layout)

    change(folder / "ID04_total.h5", point_elsewhere)
    with h5py.File(folder / "ID04_total.h5") as total:  # the trap itself
        np.testing.assert_array_equal(total["data/ieeg"][:, :99], read_swec(other).read(0, 99))
    with pytest.warns(UserWarning, match=r"points at \.\./ID05/ID05_part_1\.h5; the 3 parts beside it are read"):
        recording = read_swec(folder)
    np.testing.assert_array_equal(recording.read(0, 15_360), expected(0, 15_360))


@pytest.mark.parametrize("kind", ["external link", "soft link", "raw file", "virtual part"])
def test_links_in_a_part_are_not_followed(folder, tmp_path, kind):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["data/ieeg"] = np.ones((3, 6144), "f4")
    (tmp_path / "secret.bin").write_bytes(bytes(3 * 6144 * 4))

    def redirect(part):
        del part["data/ieeg"]
        if kind == "external link":
            part["data/ieeg"] = h5py.ExternalLink("../secret.h5", "data/ieeg")
        elif kind == "soft link":
            part["copy"] = np.ones((3, 6144), "f4")
            part["data/ieeg"] = h5py.SoftLink("/copy")
        elif kind == "raw file":
            part.create_dataset(
                "data/ieeg", (3, 6144), "f4", external=[(str(tmp_path / "secret.bin"), 0, h5py.h5f.UNLIMITED)]
            )
        else:
            layout = h5py.VirtualLayout((3, 6144), "f4")
            layout[:] = h5py.VirtualSource("../secret.h5", "data/ieeg", (3, 6144))
            part.create_virtual_dataset("data/ieeg", layout)

    change(folder / "ID04_part_1.h5", redirect)
    refuses(read_swec, "not followed", folder)


@pytest.mark.parametrize("rate", [500, 0, None, [512, 512]])
def test_wrong_rate(folder, rate):
    def write(part):
        del part.attrs["sampling_rate"]
        if rate is not None:
            part.attrs["sampling_rate"] = rate

    change(folder / "ID04_part_1.h5", write)
    refuses(read_swec, r"ID04_part_1\.h5: sampling_rate must be 512 or 1024 Hz", folder)


@pytest.mark.parametrize("file", ["ID04_part_2.h5", "ID04_total.h5"])
def test_rates_that_disagree(folder, file):
    change(folder / file, lambda opened: opened.attrs.modify("sampling_rate", 1024))
    refuses(read_swec, rf"{file} has .*1024 Hz", folder)


def test_channel_counts_that_disagree(folder):
    change(folder / "ID04_part_1.h5", lambda opened: opened.attrs.modify("channels", 4))
    refuses(read_swec, "states 4 channels and holds 3", folder)


@pytest.mark.parametrize("cut", [0, 50, 3000])
def test_truncated(folder, cut):
    path = folder / "ID04_part_2.h5"
    path.write_bytes(path.read_bytes()[:cut])
    refuses(read_swec, r"ID04_part_2\.h5 cannot be opened: truncated", folder)


def test_damaged_samples(folder):
    path = folder / "ID04_part_3.h5"
    recording = read_swec(folder)
    recording.close()
    with h5py.File(path) as file:
        place = file["data/ieeg"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 16] = bytes(16)  # the header of the compressed chunk
    path.write_bytes(content)
    refuses(recording.read, r"ID04_part_3\.h5 cannot be read at samples \[0, 3072\)", 24 * 512, 30 * 512)


def test_not_this_layout(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["other"] = 1
    refused(tmp_path / "x.h5", r"has no data/ieeg; it holds \['other'\]")
    refuses(read_swec, "no file or folder", tmp_path / "ID99", kind=FileNotFoundError)


def test_parts_alone_have_no_seizures(folder):
    (folder / "ID04_total.h5").unlink()
    with pytest.warns(UserWarning, match="no total file, so its seizures are unknown"):
        recording = read_recording(folder)
    np.testing.assert_array_equal(recording.read(0, 15_360), expected(0, 15_360))


def test_ten_parts_are_in_numerical_order(tmp_path):
    folder = write_swec(simple(), tmp_path, part_hours=2.7 / 3600)
    assert len([*folder.glob("*_part_*")]) == 12
    np.testing.assert_array_equal(read_swec(folder).read(0, 15_360), expected(0, 15_360))


def test_a_moved_or_renamed_recording_still_reads(folder, tmp_path):
    moved = shutil.move(folder, tmp_path / "elsewhere")
    with warnings.catch_warnings(action="error"):
        np.testing.assert_array_equal(read_swec(moved).read(0, 15_360), expected(0, 15_360))


def test_handles_are_opened_by_the_process_that_reads(folder):
    recording = read_swec(folder)
    recording.read(0, 10)
    assert recording.source._open
    copy = pickle.loads(pickle.dumps(recording))
    assert not copy.source._open
    np.testing.assert_array_equal(copy.read(0, 10), expected(0, 10))
    child = os.fork()
    if child == 0:
        recording.read(0, 10)
        os._exit(0 if recording.source._process == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_written_signal_is_preprocessed_once(tmp_path):
    made = simulate_recording("ID30", num_channels=4, duration=40, sfreq=1000.0, num_seizures=1)
    folder = write_swec(made, tmp_path)
    recording = read_swec(folder)
    assert (recording.sfreq, recording.num_samples) == (512.0, 40 * 512)
    assert recording.seizures == made.seizures
    stream = PreprocessedSignal(made, Preprocessing())
    np.testing.assert_allclose(recording.read(0, 40 * 512), stream.read(0, 40 * 512)[0], atol=1e-3)
    assert Segments(recording).preprocessing == Preprocessing(512.0, None, None, None)
    with pytest.raises(FileExistsError, match="ID30 exists already"):
        write_swec(made, tmp_path)


def test_bad_stretches_are_written_as_zeros_and_masked_again(tmp_path):
    x = np.random.default_rng(0).normal(0, 40, (4, 30 * 512))
    x[1, 10 * 512 : 15 * 512] = np.nan
    made = Recording.from_array(x, 512.0, list("ABCD"), "µV", subject="ID50")
    recording = read_swec(write_swec(made, tmp_path))
    assert not recording.read(10 * 512, 15 * 512)[1].any()
    np.testing.assert_array_equal(Segments(recording).read(0, 6)[1], Segments(made).read(0, 6)[1])
