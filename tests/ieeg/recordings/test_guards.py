"""Files that are damaged or made to do harm: an error that names the file, no link followed, no memory taken."""

import os
import re
import struct
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from support import reading
from support.edf_files import signals_of
from support.made_up_recordings import noise
from support.reading import change

from mvpa_ts.ieeg import Recording, read_recording, simulate_recording
from mvpa_ts.ieeg.recordings.swec import read_swec
from mvpa_ts.ieeg.simulation.writing import write_edf, write_swec

mne = pytest.importorskip("mne")
h5py = pytest.importorskip("h5py")
edfio = pytest.importorskip("edfio")
pytest.importorskip("hdf5plugin")
pytest.importorskip("pybv")


def recording(seconds: float = 20.0, channels: int = 2) -> Recording:
    return noise(seconds, channels=channels, subject="ID90", seizures=[(4.0, 9.5)], preprocessed=True)


def raw(channels: int = 2) -> mne.io.RawArray:
    info = mne.create_info([f"A{i + 1}" for i in range(channels)], 512.0, "seeg")
    return mne.io.RawArray(recording(channels=channels).read(0, 20 * 512) * 1e-6, info, verbose="error")


def replace(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def refused(path: Path, message: str, kind: type[Exception] = ValueError) -> str:
    """The error of reading, which comes without much memory."""
    tracemalloc.start()
    try:
        said = reading.refused(path, message, kind)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    return said


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_swec(recording(), tmp_path, part_hours=12 / 3600)


TIMES = [("onsets", "f8"), ("offsets", "f8")]


def with_seizures(rows=None, **columns):
    """A change of a total file: other seizures, as rows or as columns."""

    def action(file):
        del file["data/seizures"]
        if isinstance(rows, tuple):
            file["data"].create_dataset("seizures", rows, **columns)
            return
        if rows is not None:
            file["data/seizures"] = rows
        for name, values in columns.items():
            if values is None:
                file.create_group(f"data/seizures/{name}")
            else:
                file[f"data/seizures/{name}"] = values

    return action


class TestSwec:
    @pytest.mark.parametrize(
        ("action", "message"),
        [
            (lambda f: f["data/seizures"].attrs.create("x", 1) or f.attrs.__setitem__("age", np.zeros(0)), None),
            (with_seizures(offsets=[1.0]), "onsets and offsets"),
            (with_seizures(onsets=None, offsets=[1.0]), "onsets must be an array"),
            (lambda f: f.move("data/seizures", "data/seizurws"), r"its data names seizurws: is"),
            (with_seizures(np.array([(np.nan, 1.0)], TIMES)), "not a finite number"),
            (with_seizures((10**10,), dtype=TIMES, chunks=(2**20,)), "at most 100000 values"),
            (lambda f: f.__delitem__("info/files") or f.create_group("info/files"), "info/files must be an array"),
        ],
        ids=["empty age", "onsets missing", "onsets a group", "name damaged", "NaN", "10¹⁰ rows", "files a group"],
    )
    def test_odd_total_files(self, folder, action, message):
        total = folder / "ID90_total.h5"
        change(total, action)
        if message is None:
            assert read_swec(folder).metadata == {}
        else:
            assert str(total) in refused(folder, message)

    @pytest.mark.parametrize("link", [h5py.SoftLink("/other"), h5py.ExternalLink("../secret.h5", "/x")])
    @pytest.mark.parametrize("place", ["data/seizures", "info/files", "info", "data/seizures/onsets"])
    def test_links_are_not_followed(self, folder, link, place):
        with h5py.File(folder.parent / "secret.h5", "w") as secret:
            secret["x"] = np.array([(1.0, 2.0)], TIMES)

        def lead(file):
            if place == "data/seizures/onsets":
                del file["data/seizures"]
                file["data/seizures/offsets"] = [2.0]
            else:
                del file[place]
            file[place] = link

        change(folder / "ID90_total.h5", lead)
        message = refused(folder, "is a link to elsewhere, which is not followed")
        assert "ID90_total.h5" in message

    @pytest.mark.parametrize(
        ("shape", "chunks", "message"),
        [
            ((2000, 2**19), (2000, 2**19), "a chunk of data/ieeg has 4194304000 bytes"),
            ((10**7, 512), (100, 512), "has 0 of its 100000 chunks"),
            ((3, 10**12), (3, 92160), "chunks, and HDF5 would read zeros"),
            ((10**7, 1), (10**7, 1), "at most 10000 channels"),
        ],
    )
    def test_small_files_that_ask_for_much(self, tmp_path, shape, chunks, message):
        with h5py.File(tmp_path / "ID90_total.h5", "w") as file:
            data = file.create_dataset("data/ieeg", shape, np.float32, chunks=chunks, compression="gzip")
            if shape == (10**7, 1):
                data[:] = 0
            file.attrs.update(sampling_rate=512, channels=shape[0])
        assert (tmp_path / "ID90_total.h5").stat().st_size < 10e6
        refused(tmp_path / "ID90_total.h5", message)

    def test_a_part_that_lacks_chunks(self, folder):
        """What a download that broke off, or a writer that was killed, leaves: HDF5 reads zeros there."""

        def rewrite(file):
            del file["data/ieeg"]
            data = file.create_dataset("data/ieeg", (2, 12 * 512), np.float32, chunks=(2, 512))
            data[:, : 5 * 512] = 1.0

        change(folder / "ID90_part_1.h5", rewrite)
        refused(folder, r"ID90_part_1\.h5 is truncated: data/ieeg has 5 of its 12 chunks")

    @pytest.mark.parametrize(
        ("offset", "content"),
        [(0, bytes(8)), (1, (2**62).to_bytes(8, "little")), (-8, b"\xff\xff\xff"), (-8, b"\x10")],
        ids=["no source", "2⁶² sources", "larger than the heap", "smaller than it is"],
    )
    def test_a_damaged_list_of_sources(self, folder, offset, content):
        """HDF5 2.0 waits for ever for the end of such a list, or is killed."""
        total = folder / "ID90_total.h5"
        place = total.read_bytes().index(b"\x01\x02\0\0\0\0\0\0\0\0ID90_part_1.h5")
        with total.open("r+b") as file:
            file.seek(place + offset)
            file.write(content)
        assert "ID90_total.h5" in refused(folder, "is damaged: a list of texts|cannot be read: truncated, damaged")

    def test_a_file_that_is_a_pipe(self, folder):
        (folder / "ID90_part_2.h5").unlink()
        os.mkfifo(folder / "ID90_part_2.h5")
        refused(folder, r"ID90_part_2\.h5 is not a regular file")


class TestBrainVision:
    @pytest.fixture
    def header(self, tmp_path) -> Path:
        (tmp_path / "in").mkdir()
        mne.export.export_raw(tmp_path / "in" / "rec.vhdr", raw(), verbose="error")
        return tmp_path / "in" / "rec.vhdr"

    @pytest.mark.parametrize("name", [b"../rec.eeg", b"/etc/hosts", rb"..\rec.eeg", rb"C:\rec.eeg", b"x/../../rec.eeg"])
    @pytest.mark.parametrize("key", [b"DataFile", b"MarkerFile"])
    def test_a_name_outside_the_folder(self, header, name, key):
        (header.parent.parent / "rec.eeg").write_bytes((header.parent / "rec.eeg").read_bytes())
        own = b"rec.eeg" if key == b"DataFile" else b"rec.vmrk"
        replace(header, key + b"=" + own, key + b"=" + name)
        message = refused(header, rf"names a file outside its own folder as its {key.decode()}, which is not followed")
        assert "passwd" not in message

    def test_a_pipe_or_a_device_as_data(self, header):
        os.mkfifo(header.parent / "pipe.eeg")
        replace(header, b"DataFile=rec.eeg", b"DataFile=pipe.eeg")
        refused(header, r"pipe\.eeg is not a regular file")
        os.mkfifo(header.parent / "pipe.vhdr")
        refused(header.parent / "pipe.vhdr", r"pipe\.vhdr is not a regular file")

    @pytest.mark.parametrize("number", [b"4000000000", b"-1", b"0", b"1e400", b"2.5", b"two"])
    def test_numbers_of_channels(self, header, number):
        replace(header, b"NumberOfChannels=2", b"NumberOfChannels=" + number)
        refused(header, "NumberOfChannels (must lie from 1 to 10000|is not a number)")

    @pytest.mark.parametrize("cut", [1, 5, 4096 + 3])
    def test_no_whole_number_of_samples(self, header, cut):
        data = header.parent / "rec.eeg"
        content = data.read_bytes()
        data.write_bytes(content[:-cut])
        refused(
            header,
            rf"rec\.eeg has {len(content) - cut} bytes, which is not a whole number of samples .*--truncated read",
        )
        part = read_recording(header, truncated="read")
        assert part.num_samples == (len(content) - cut) // 8
        np.testing.assert_allclose(part.read(0, 99), recording().read(0, 99), atol=0.1)

    def test_shorter_than_the_header_says(self, header):
        replace(header, b"NumberOfChannels=2", b"NumberOfChannels=2\nDataPoints=10240")
        data = header.parent / "rec.eeg"
        assert read_recording(header).num_samples == 10240
        data.write_bytes(data.read_bytes()[: 5120 * 8])
        refused(header, r"rec\.eeg is truncated: rec\.vhdr promises 10240 samples, it has 5120")
        assert read_recording(header, truncated="read").num_samples == 5120

    def test_a_mark_behind_the_last_sample(self, header):
        marks = header.with_suffix(".vmrk")
        marks.write_text(marks.read_text() + "Mk9=Comment,sz,10752,1,0\n")
        assert read_recording(header).num_samples == 10240  # clocks differ by a second
        marks.write_text(marks.read_text().replace("10752", "10753"))
        refused(header, r"rec\.eeg is truncated: a mark is at sample 10753 of 10240.*--truncated read")
        assert read_recording(header, truncated="read").num_samples == 10240


class TestEDF:
    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            (244, b"0       ", "a record of 0 s holds 512 samples"),
            (244, b"1e-300  ", "a record of 1e-300 s holds 512 samples"),
            (244, b"nan     ", "a record of nan s"),
            (244, b"-1      ", "a record of -1 s"),
            (256 + 3 * 104 + 24, b"inf     ", "a physical minimum or maximum is not a finite number"),
            (256 + 3 * 104, b"nan     ", "a physical minimum or maximum is not a finite number"),
            (252, b"9999", "not an EDF file, or its header is truncated"),
            (176, b"24.00.00", "does not state the time of day at which it begins, bytes 176 to 183, as hh.mm.ss"),
            (252, b"-1  ", "a header of 0 signals must have 256 bytes"),
            (256 + 3 * 216, b"99999999", "a record of 1 s holds 99999999 samples"),
            (256 + 3 * 216, b"-5      ", "a signal has -5 samples in a record"),
        ],
    )
    def test_numbers_that_cannot_be(self, tmp_path, place, value, message):
        path = write_edf(recording(), tmp_path / "x.edf")
        content = bytearray(path.read_bytes())
        content[place : place + len(value)] = value
        path.write_bytes(content)
        assert str(path) in refused(path, message)

    def test_a_time_of_day_that_is_none(self, tmp_path):
        """MNE takes midnight, which `detect --clock` would write."""
        path = write_edf(recording(), tmp_path / "x.edf")
        content = path.read_bytes()
        path.write_bytes(content[:176] + b"12:30:00" + content[184:])
        with pytest.warns(UserWarning, match="as hh.mm.ss up to 23.59.59: midnight is taken"):
            read_recording(path)

    def test_cut_short(self, tmp_path):
        path = write_edf(recording(), tmp_path / "x.edf")
        whole = read_recording(path)
        path.write_bytes(path.read_bytes()[:-3000])
        refused(path, r"x\.edf is truncated: its header promises 20 records.*--truncated read")
        with pytest.warns(UserWarning, match=r"x\.edf is truncated: 18 s of 20 s are read"):
            part = read_recording(path, truncated="read")
        assert (part.num_samples, part.seizures) == (18 * 512, whole.seizures)
        np.testing.assert_array_equal(part.read(0, 18 * 512), whole.read(0, 18 * 512))
        with pytest.raises(ValueError, match='truncated must be "error" or "read"'):
            read_recording(path, truncated="yes")  # type: ignore[arg-type]

    def test_texts_of_the_file_are_not_quoted(self, tmp_path):
        """A header and annotations may hold names of people."""
        path = write_edf(recording(), tmp_path / "x.edf")
        content = path.read_bytes()
        path.write_bytes(content[:252] + b"Jane" + content[256:])
        assert "Jane" not in refused(path, "not an EDF file")
        signal = edfio.EdfSignal(recording().read(0, 5120)[0], 512, label="A1", physical_dimension="uV")
        edfio.Edf([signal], annotations=[edfio.EdfAnnotation(3, 0, "Jane Roe seizure over")]).write(path)
        with pytest.warns(UserWarning, match="ends of seizures without a start are left out: at 3 s") as caught:
            read_recording(path)
        assert not any("Jane" in str(warning.message) for warning in caught)
        table = tmp_path / "x_events.tsv"
        table.write_text("onset\tduration\ttrial_type\nsoon\t2\tJane's seizure\n")
        assert "Jane" not in refused(path, r"x_events\.tsv, line 2, a seizure: onset must be a number")

    def test_names_that_stand_twice(self, tmp_path):
        edfio.Edf(signals_of(["A1", "A1"], recording().read(0, 5120))).write(tmp_path / "x.edf")
        with pytest.warns(UserWarning, match="1 channel names more than once: A1 is read as A1-0, A1-1"):
            assert read_recording(tmp_path / "x.edf").channel_names == ("A1-0", "A1-1")

    def test_one_of_several_rates(self, tmp_path):
        signals = []
        for number, (name, rate) in enumerate([("A1", 256), ("B1", 1024), ("A2", 256), ("EKG1", 512)], 1):
            signals += signals_of([name], [50 * np.sin(np.arange(10 * rate) / rate * number)], rate, most=60)
        path = tmp_path / "x.edf"
        edfio.Edf(signals).write(path)
        refused(path, r"stored at 256 Hz .* 1024 Hz .*read_recording\(path, rate=256\) \(--rate\)")
        slow = read_recording(path, rate=256)
        assert (slow.sfreq, slow.channel_names, slow.num_samples) == (256, ("A1", "A2"), 2560)
        assert slow.dropped == {"EKG1": "EKG is no EEG by its name", "B1": "stored at 1024 Hz"}
        time = np.arange(2560) / 256
        np.testing.assert_allclose(slow.read(0, 2560), [50 * np.sin(time), 50 * np.sin(3 * time)], atol=0.01)
        fast = read_recording(path, rate=1024.0)
        assert (fast.sfreq, fast.channel_names) == (1024, ("B1",))
        np.testing.assert_allclose(fast.read(0, 9)[0], 50 * np.sin(2 * np.arange(9) / 1024), atol=0.01)
        with pytest.raises(ValueError, match="has no EEG channel at 512 Hz, it has some at 1024, 256 Hz"):
            read_recording(path, rate=512)

    def test_chosen_channels(self, tmp_path):
        names = ["EEG A1-Ref", "EEG A2-Ref", "EKG1", "B1"]
        x = np.random.default_rng(0).normal(0, 50, (4, 5120))
        edfio.Edf(signals_of(names, x)).write(tmp_path / "x.edf")
        chosen = read_recording(tmp_path / "x.edf", channels=["B1", "A2"])
        assert chosen.channel_names == ("EEG A2-Ref", "B1")
        assert chosen.dropped == {"EEG A1-Ref": "not chosen", "EKG1": "not chosen"}
        np.testing.assert_allclose(chosen.read(0, 99), x[[1, 3], :99], atol=0.1)
        assert read_recording(tmp_path / "x.edf", channels=["EKG1"]).channel_names == ("EKG1",)
        with pytest.raises(ValueError, match=r"has no channel 'Z9': choose among EEG A1-Ref, .* \(--channels\)"):
            read_recording(tmp_path / "x.edf", channels=["Z9"])
        folder = write_swec(recording(channels=3), tmp_path)
        some = read_recording(folder, channels=["ch3", "ch1"])
        assert (some.channel_names, some.dropped) == (("ch1", "ch3"), {"ch2": "not chosen"})
        with pytest.raises(ValueError, match="has no channel"):
            read_recording(folder, channels=["ch4"])


class TestFIF:
    def parts(self, folder: Path) -> list[Path]:
        folder.mkdir()
        with warnings.catch_warnings(action="ignore"):
            raw(40).save(folder / "x_raw.fif", split_size="2MB", verbose="error")
        return sorted(folder.iterdir())

    def test_parts_outside_the_folder(self, tmp_path):
        second, *_, first = self.parts(tmp_path / "in")
        assert read_recording(first).num_samples == 20 * 512
        (tmp_path / second.name).write_bytes(second.read_bytes())
        # A name of the same length, so that no tag moves.
        content = first.read_bytes()
        name = second.name.encode()
        place = content.index(struct.pack(">iIii", 118, 10, len(name), 0) + name)
        tags = struct.pack(">iIii", 118, 10, len(name), 0) + b"../" + name[3:]
        first.write_bytes(content[:place] + tags + content[place + len(tags) :])
        refused(first, "names a file outside its own folder as its next part, which is not followed")

    @pytest.mark.parametrize("size", [2**31 - 1, -5])
    def test_tags_larger_than_the_file(self, tmp_path, size):
        raw().save(tmp_path / "x_raw.fif", verbose="error")
        content = bytearray((tmp_path / "x_raw.fif").read_bytes())
        content[36 + 20 + 8 : 36 + 20 + 12] = struct.pack(">i", size)  # of the third tag
        (tmp_path / "x_raw.fif").write_bytes(content)
        refused(tmp_path / "x_raw.fif", "cannot be read: truncated, damaged")

    def test_a_chain_of_tags_without_end(self, tmp_path):
        head = struct.pack(">iIii", 100, 31, 20, 0) + bytes(20) + struct.pack(">iIii", 101, 3, 4, 0)
        (tmp_path / "x_raw.fif").write_bytes(head + struct.pack(">i", -1) + struct.pack(">iIii", 102, 0, 0, 56))
        refused(tmp_path / "x_raw.fif", "a tag points back")

    def test_a_chain_of_tags_that_points_back_and_ends(self, tmp_path):
        """As MNE reads it: the last tag lies before the one that names it."""
        path = tmp_path / "x_raw.fif"
        raw().save(path, verbose="error")
        content = path.read_bytes()
        tags, pos = [], 0
        while pos + 16 <= len(content):
            _, _, length, following = struct.unpack_from(">iIii", content, pos)
            tags.append(pos)
            if following < 0:
                break
            pos = following or pos + 16 + length
        # The third tag moves to the end of the file, and its copy there points back to the fourth.
        moved = content[tags[2] : tags[3]]
        changed = bytearray(content)
        struct.pack_into(">i", changed, tags[1] + 12, len(content))
        changed += moved[:12] + struct.pack(">i", tags[3]) + moved[16:]
        path.write_bytes(changed)
        expected = mne.io.read_raw_fif(path, verbose="error").get_data() * 1e6
        np.testing.assert_allclose(read_recording(path).read(0, 1000), expected[:, :1000], rtol=1e-5)

    def test_bytes_that_unpack_to_many(self, tmp_path):
        import gzip

        with gzip.open(tmp_path / "x_raw.fif.gz", "wb") as file:
            for _ in range(100):
                file.write(bytes(2**22))
        refused(tmp_path / "x_raw.fif.gz", "unpacks to more than 1000 times its size")


def test_gdf(tmp_path):
    head = bytearray(b"GDF 2.20" + bytes(248 + 256))
    struct.pack_into("<H", head, 184, 2)
    struct.pack_into("<qIIH", head, 236, 4, 1, 1, 1)
    head[256:258] = b"A1"
    struct.pack_into("<H", head, 256 + 102, 4275)
    struct.pack_into("<4d", head, 256 + 104, -3000.0, 3000.0, -3000.0, 3000.0)
    struct.pack_into("<2i", head, 256 + 216, 512, 3)
    samples = np.random.default_rng(0).normal(0, 50, 4 * 512).astype("<i2")
    path = tmp_path / "x.gdf"
    path.write_bytes(bytes(head) + samples.tobytes())
    np.testing.assert_allclose(read_recording(path).read(0, 99)[0], samples[:99], atol=0.01)
    for place, form, value, message in [
        (252, "<H", 65535, "between 1 and 10000 channels, got 65535"),
        (236, "<q", 10**12, "is truncated: its header promises 1000000000000 records"),
        (236, "<q", -1, "is damaged: -1 records"),
        (244, "<I", 0, "records of 0/1 s"),
        (256 + 104, "<d", np.inf, "not a finite number"),
        (256 + 216, "<i", -1, "samples a record"),
        (256 + 220, "<i", 9, "no known type"),
    ]:
        other = bytearray(head)
        struct.pack_into(form, other, place, value)
        path.write_bytes(bytes(other) + samples.tobytes())
        refused(path, message)
    events = bytes([1]) + (2**24 - 1).to_bytes(3, "little") + struct.pack("<f", 512.0)
    path.write_bytes(bytes(head) + samples.tobytes() + events)
    refused(path, "its header promises 16777215 events")


def test_tables_that_are_no_files(tmp_path):
    """A pipe beside a recording is not waited for."""
    path = write_edf(simulate_recording(num_channels=2, duration=30, num_seizures=0), tmp_path / "x.edf")
    os.mkfifo(tmp_path / "x_events.tsv")
    assert read_recording(path).seizures == ()


def test_seizure_words(tmp_path):
    signal = edfio.EdfSignal(recording().read(0, 5120)[0], 512, label="A1", physical_dimension="uV")
    annotations = [edfio.EdfAnnotation(3, 2, "Attacke links"), edfio.EdfAnnotation(6, 1, "Anfall")]
    edfio.Edf([signal], annotations=annotations).write(tmp_path / "x.edf")
    assert read_recording(tmp_path / "x.edf").seizures == ((6.0, 7.0),)
    both = read_recording(tmp_path / "x.edf", seizure_words=["attacke"])
    assert both.seizures == ((3.0, 5.0), (6.0, 7.0))
    assert re.fullmatch(r"<Recording x: .* 2 seizures>", repr(both))
