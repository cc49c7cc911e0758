"""Recordings from EDF, BrainVision, FIF and BIDS, real and written here; what cannot be read."""

import os
import pickle
import time
import unicodedata
import warnings
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from support.edf_files import signals_of
from support.reading import refused, refuses, warned

from mvpa_ts.ieeg import Recording, Segments, read_recording, simulate_recording
from mvpa_ts.ieeg.preprocessing.selection import select_channels
from mvpa_ts.ieeg.recordings.finding import find_recordings, warn_of_shared_names
from mvpa_ts.ieeg.simulation.writing import write_edf

mne = pytest.importorskip("mne")
REAL = Path(os.environ.get("MVPA_TS_DATA", "")) / "ieeg"
needs_real_files = pytest.mark.skipif(
    not (REAL / "sample_ecog.edf").is_file(), reason="no ieeg/sample_ecog.edf in MVPA_TS_DATA"
)


def volts(channels: int = 4, seconds: float = 20.0, rate: float = 512.0) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 50e-6, (channels, round(seconds * rate)))


def raw_of(x: np.ndarray, names: list[str], types: list[str] | str = "seeg", rate: float = 512.0):
    return mne.io.RawArray(x, mne.create_info(names, rate, types), verbose="error")


def brainvision(path: Path, *names: str, word: str = "seizure"):
    pytest.importorskip("pybv")
    raw = raw_of(volts(len(names)), [*names])
    raw.set_annotations(mne.Annotations([4.0], [6.5], [word]))
    mne.export.export_raw(path, raw, verbose="error")
    return raw


@needs_real_files
class TestRealFiles:
    def test_ecog(self):
        recording = warned(REAL / "sample_ecog.edf", r"without an end are taken to last: 11\.4\d* s from 10\.2287 s on")
        assert len(recording.channel_names) == 76
        assert recording.sfreq == pytest.approx(999.412, abs=1e-3)
        assert set(recording.dropped) == {"EKGL", "EKGR"}
        assert recording.channel_names[11:15] == ("BTP6", "C1", "C2", "C3")
        ((onset, offset),) = recording.seizures
        assert onset == pytest.approx(10.22874)
        assert offset == recording.duration
        assert "pat01" not in repr(vars(recording))  # the header's patient code
        segments = Segments(recording)
        assert segments.num_segments == 5
        np.testing.assert_array_equal(segments.labels(), [False, False, True, True, True])
        signal, valid = segments.read(0, 5)
        assert valid.all()
        assert 20 < np.median(signal.std(1)) < 200
        assert len(select_channels(segments)) == 32

    def test_seeg(self):
        recording = read_recording(REAL / "sample_seeg.edf")
        assert len(recording.channel_names) == 88
        assert set(recording.dropped) == {*(f"DC0{i}" for i in range(1, 9)), "EKG1", "EKG2"}
        wire = [name for name in recording.channel_names if name.startswith("L'")]
        assert wire == [f"L'{i}" for i in range(1, 15)]  # the file has L'9 after N'7
        raw = mne.io.read_raw_edf(REAL / "sample_seeg.edf", verbose="error")
        expected = raw.get_data(wire, start=7000, stop=7100) * 1e6
        np.testing.assert_allclose(recording.read(7000, 7100, wire), expected, rtol=1e-6)
        assert recording.seizures == ()
        segments = Segments(recording)
        assert segments.num_segments == 4
        assert segments.read(0, 4)[1].all()


class TestEDF:
    def test_round_trip(self, tmp_path):
        made = simulate_recording("S07", num_channels=11, duration=60, num_seizures=1, sfreq=256)
        recording = read_recording(write_edf(made, tmp_path / "own.edf"))
        assert recording.channel_names == made.channel_names
        assert (recording.sfreq, recording.num_samples, recording.subject) == (256, 60 * 256, "own")
        np.testing.assert_allclose(recording.seizures, made.seizures, atol=1e-3)
        # half a step of 16 bits over the range
        np.testing.assert_allclose(recording.read(99, 9999), made.read(99, 9999), atol=0.1)
        copy = pickle.loads(pickle.dumps(recording))
        np.testing.assert_array_equal(copy.read(5, 50), recording.read(5, 50))

    @pytest.mark.parametrize("cut", [100, 300, 4000, -1])
    def test_truncated(self, tmp_path, cut):
        path = write_edf(simulate_recording(num_channels=2, duration=30, num_seizures=0), tmp_path / "cut.edf")
        path.write_bytes(path.read_bytes()[:cut])
        refused(path, r"cut\.edf is (truncated|not an EDF file)")

    def write(self, path: Path, label: str = "A1", unit: str = "uV", count: int = 2) -> Path:
        edfio = pytest.importorskip("edfio")
        signals = signals_of([f"{label}{i or ''}" for i in range(count)], volts(count) * 1e6, unit=unit)
        patient = edfio.Patient(code="X99-KEY", sex="F", birthdate=date(1970, 5, 5), name="Jane_Roe")
        edfio.Edf(signals, patient=patient, recording=edfio.Recording(startdate=date(2020, 5, 4))).write(path)
        return path

    def test_metadata_without_name_or_birth_date(self, tmp_path):
        recording = read_recording(self.write(tmp_path / "p.edf"))
        assert recording.metadata["age"] == 49
        assert recording.metadata["sex"] == "female"
        everything = repr({key: value for key, value in vars(recording).items() if key != "source"})
        for private in ("Jane", "Roe", "1970", "X99"):
            assert private not in everything

    def test_unknown_unit(self, tmp_path):
        path = self.write(tmp_path / "u.edf", unit="furlong")
        refused(path, r"unknown unit .*: name it, --unit µV in a command or unit='µV'")
        np.testing.assert_allclose(read_recording(path, unit="uV").read(0, 2000).std(), 50, rtol=0.1)

    def test_no_eeg_channel(self, tmp_path):
        with pytest.raises(ValueError, match=r"no EEG channel \(EKG: EKG is no EEG by its name.*--channels"):
            read_recording(self.write(tmp_path / "e.edf", label="EKG"))
        with pytest.raises(ValueError, match=r"\(A1: type misc\): give those .* raw\.set_channel_types"):
            Recording.from_raw(raw_of(volts(1), ["A1"], "misc"))

    def test_write_refuses(self, tmp_path):
        refuses(write_edf, r"must end in \.edf", simulate_recording(duration=30), tmp_path / "x.txt")
        odd = Recording.from_array(volts() * 1e6, 512.5, list("ABCD"), "µV")
        refuses(write_edf, "sfreq must be a whole number of Hz", odd, tmp_path / "x.edf")


class TestRaw:
    def test_types_bads_and_names(self):
        names = ["L10", "L2", "EKG1", "T1", "L3", "S1"]
        raw = raw_of(volts(6), names, ["seeg", "seeg", "seeg", "stim", "ecog", "eeg"])
        raw.info["bads"] = ["L3"]
        raw.set_annotations(mne.Annotations([2, 9], [3, 0], ["seizure", "chewing"]))
        with pytest.warns(UserWarning, match="mine: channels of type eeg, S1, are read with those in or on the brain"):
            recording = Recording.from_raw(raw, name="mine", subject="S01")
        assert recording.channel_names == ("L2", "L10", "S1")
        assert recording.dropped == {"EKG1": "EKG is no EEG by its name", "T1": "type stim", "L3": "marked bad"}
        assert recording.seizures == ((2.0, 5.0),)
        np.testing.assert_allclose(recording.read(7, 70, ["L10"]), raw.get_data(["L10"], 7, 70) * 1e6, rtol=1e-6)

    @pytest.mark.parametrize("meas_date", [None, datetime(2020, 1, 1, tzinfo=UTC)])
    def test_annotations_of_a_cut(self, meas_date):
        x = volts(2)
        x[0, 12 * 512 : 15 * 512] = 1e-3  # where the seizure is
        raw = raw_of(x, ["A1", "A2"])
        raw.set_meas_date(meas_date)
        before = raw.copy().set_annotations(mne.Annotations([12.0], [3.0], ["seizure"])).crop(10.0, None)
        after = raw.copy().crop(10.0, None).set_annotations(mne.Annotations([2.0], [3.0], ["seizure"]))
        dated = raw.copy().crop(10.0, None)
        if meas_date is not None:
            dated.set_annotations(mne.Annotations([12.0], [3.0], ["seizure"], orig_time=meas_date))
        twice = before.copy().crop(1.0, 8.0)
        for cut, onset in [(before, 2.0), (after, 2.0), (twice, 1.0), *([(dated, 2.0)] if meas_date else [])]:
            recording = Recording.from_raw(cut)
            assert recording.seizures == ((onset, onset + 3.0),)
            begin = round(onset * 512)
            np.testing.assert_allclose(recording.read(begin, begin + 1536, ["A1"]), 1000.0, rtol=1e-6)
            assert abs(recording.read(begin - 1, begin)[0, 0]) < 400

    def test_annotations_of_a_file_that_begins_later(self, tmp_path):
        raw = raw_of(volts(2), ["A1", "A2"]).crop(5.0, None)
        raw.set_annotations(mne.Annotations([3.0], [2.0], ["seizure"]))
        raw.set_meas_date(datetime(2020, 1, 1, 23, 59, 58, tzinfo=UTC))
        raw.save(tmp_path / "late_raw.fif", verbose="error")
        recording = read_recording(tmp_path / "late_raw.fif")
        assert recording.seizures == ((3.0, 5.0),)
        assert recording.metadata["start"] == "2020-01-02T00:00:03+00:00"


class TestFIF:
    def test_reads_lazily(self, tmp_path):
        raw = raw_of(volts(3), ["A1", "A2", "A10"])
        raw.save(tmp_path / "rec_raw.fif", verbose="error")
        recording = read_recording(tmp_path / "rec_raw.fif")
        assert not recording.source.raw.preload
        np.testing.assert_allclose(recording.read(100, 200), raw.get_data(start=100, stop=200) * 1e6, rtol=1e-5)

    def test_damaged(self, tmp_path):
        raw_of(volts(3), ["A1", "A2", "A10"]).save(tmp_path / "rec_raw.fif", verbose="error")
        content = (tmp_path / "rec_raw.fif").read_bytes()
        (tmp_path / "rec_raw.fif").write_bytes(content[:3000])
        refused(tmp_path / "rec_raw.fif", r"rec_raw\.fif cannot be read.*: truncated, damaged")

    def test_bytes_of_another_kind(self, tmp_path):
        for name in ("other.vhdr", "other.fif", "other.edf"):
            (tmp_path / name).write_bytes(bytes(range(10, 256)) * 40)
            message = r"cannot be read: truncated, damaged or not what its|other\.edf is not an EDF file"
            with pytest.raises(ValueError, match=message) as caught:
                read_recording(tmp_path / name)
            (tmp_path / name).write_bytes(b"")
            refused(tmp_path / name, rf"{name} is empty, it has 0 bytes")
            assert len(str(caught.value)) < 400
            assert "\n" not in str(caught.value)


def test_brainvision(tmp_path):
    raw = brainvision(tmp_path / "rec.vhdr", "A1", "A2", "EKG")
    recording = read_recording(tmp_path / "rec.vhdr")
    assert recording.channel_names == ("A1", "A2")
    np.testing.assert_allclose(recording.seizures, [(4.0, 10.5)], atol=1e-2)
    np.testing.assert_allclose(recording.read(100, 200), raw.get_data([0, 1], 100, 200) * 1e6, atol=0.1)
    # A set whose files were renamed, and whose header still names those of before.
    for kind in ("vhdr", "eeg", "vmrk"):
        (tmp_path / f"new.{kind}").write_bytes((tmp_path / f"rec.{kind}").read_bytes())
    with pytest.warns(UserWarning, match=r"vhdr names rec\.vmrk as its MarkerFile, .* and new\.vmrk lies") as said:
        read_recording(tmp_path / "new.vhdr")
    assert "names rec.eeg as its DataFile, which is read" in str(said[0].message)
    (tmp_path / "rec.eeg").unlink()
    with pytest.raises(FileNotFoundError, match=r"rec\.vhdr names rec\.eeg as its DataFile, which is not there"):
        read_recording(tmp_path / "rec.vhdr")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NumberOfChannels=2", "NumberOfChannels=1", r"states 1 channels \(NumberOfChannels\) and lists 2"),
        ("[Binary Infos]", "Averaged=YES\n[Binary Infos]", "Averaged must be NO, got YES"),
        ("MarkerFile=rec.vmrk", "", r"names no MarkerFile, and rec\.vmrk, which lies beside it, is not read"),
        ("[Binary Infos]", "[Binary Infos]\nUseBigEndianOrder=YES", "UseBigEndianOrder must be NO, got YES"),
        (
            "[Binary Infos]",
            "[Binary Infos]\nDataType=FREQUENCYDOMAIN",
            "DataType must be TIMEDOMAIN, got FREQUENCYDOMAIN",
        ),
        ("Ch2=A2", "Ch2=A1", "the channel A1 more than once, which MNE cannot read: rename one"),
    ],
)
def test_headers_of_brainvision_that_would_be_misread(tmp_path, old, new, message):
    brainvision(tmp_path / "rec.vhdr", "A1", "A2")
    header = (tmp_path / "rec.vhdr").read_text(encoding="utf-8")
    assert old in header
    (tmp_path / "rec.vhdr").write_text(header.replace(old, new), encoding="utf-8")
    match = rf"rec\.vhdr.*{message}"
    with pytest.raises(ValueError, match=match) if new else pytest.warns(UserWarning, match=match):
        read_recording(tmp_path / "rec.vhdr")


def test_units_of_brainvision_that_mne_does_not_know(tmp_path):
    """MNE takes them for volts, and the channels for no EEG; "μV" is written with a Greek letter by many programs."""
    raw = brainvision(tmp_path / "rec.vhdr", "A1", "A2")
    path, microvolts = tmp_path / "rec.vhdr", raw.get_data() * 1e6
    header = path.read_text(encoding="utf-8")
    assert header.count(",µV") == 2
    path.write_text(header.replace(",µV", ",μV"), encoding="utf-8")
    np.testing.assert_allclose(read_recording(path).read(0, 512), microvolts[:, :512], atol=0.1)
    path.write_text(header.replace(",µV", ",% O2", 1), encoding="utf-8")
    assert read_recording(path).dropped == {"A1": "type misc, as its unit is '% O2'"}
    path.write_text(header.replace(",µV", ",µVolt"), encoding="utf-8")
    refused(path, r"rec: unknown unit \['µVolt'\] of channels A1, A2: name it, --unit")
    (tmp_path / "rec_channels.tsv").write_text("name\ttype\tunits\nA1\tSEEG\tmV\nA2\tSEEG\tmV\n")
    np.testing.assert_allclose(read_recording(path).read(0, 512), microvolts[:, :512] * 1e3, atol=100)


def test_an_alphabet_that_ansi_does_not_name_is_said(tmp_path):
    brainvision(tmp_path / "rec.vhdr", "A1")
    marks = (tmp_path / "rec.vmrk").read_text(encoding="utf-8").replace("UTF-8", "ANSI")
    for word, page, codes in (("приступ", "cp1251", 1), ("発作開始", "cp932", 1), ("Anfälle über 10 s", "cp1252", 0)):
        (tmp_path / "rec.vmrk").write_bytes(f"{marks}\nMk99=Comment,{word},700,1,0\n".encode(page))
        with warnings.catch_warnings(record=True, action="always") as said:
            read_recording(tmp_path / "rec.vhdr")
        assert sum("seems to be in another code page" in str(warning.message) for warning in said) == codes


@pytest.mark.parametrize("text", ["sz", "sz start"])
def test_a_mark_of_one_sample_in_brainvision_is_no_seizure_of_two_milliseconds(text, tmp_path):
    brainvision(tmp_path / "rec.vhdr", "A1", word="x")
    with (tmp_path / "rec.vmrk").open("a", encoding="utf-8") as file:
        file.write(f"\nMk99=Comment,{text},513,1,0\n")
    recording = warned(tmp_path / "rec.vhdr", "rec: seizures without an end are taken to last: .* from 1 s on")
    assert recording.seizures == ((pytest.approx(1.0, abs=0.01), recording.duration),)


@pytest.mark.parametrize(("channel", "whole", "missing"), [(0, True, []), (2, False, [1]), (9, True, [])])
def test_a_bad_interval_of_one_channel_in_brainvision(channel, whole, missing, tmp_path):
    brainvision(tmp_path / "rec.vhdr", "A1", "A2", "A3")
    with (tmp_path / "rec.vmrk").open("a", encoding="utf-8") as file:
        file.write(f"\nMk99=Bad Interval,Bad Min-Max,513,512,{channel}\n")
    recording = read_recording(tmp_path / "rec.vhdr")
    assert bool(recording.bad_spans) == whole
    assert np.flatnonzero(np.isnan(recording.read(600, 700)).any(1)).tolist() == missing
    assert not np.isnan(recording.read(1100, 1200)).any()


class TestBIDS:
    @pytest.fixture
    def data_set(self, tmp_path):
        mne_bids = pytest.importorskip("mne_bids")
        raw = raw_of(volts(4), ["LA2", "LA1", "LA10", "DC1"], ["seeg", "seeg", "seeg", "misc"])
        raw.info["line_freq"] = 60
        raw.info["bads"] = ["LA10"]
        raw.info["subject_info"] = {"sex": 2, "hand": 1}
        raw.set_annotations(mne.Annotations([3.0], [4.0], ["seizure"]))
        raw.set_meas_date(datetime(2020, 1, 1, tzinfo=UTC))
        path = mne_bids.BIDSPath(subject="07", task="rest", run="1", datatype="ieeg", root=tmp_path / "bids")
        with warnings.catch_warnings(action="ignore"):
            mne_bids.write_raw_bids(
                raw, path, format="BrainVision", allow_preload=True, overwrite=True, verbose="error"
            )
        (file,) = (tmp_path / "bids").rglob("*.vhdr")
        return file

    def test_channels_events_and_participants(self, data_set):
        recording = read_recording(data_set)
        assert recording.subject == "sub-07"
        assert recording.channel_names == ("LA1", "LA2")
        assert recording.dropped == {"LA10": "marked bad", "DC1": "type misc"}
        np.testing.assert_allclose(recording.seizures, [(3.0, 7.0)], atol=1e-2)
        assert recording.metadata["line_frequency"] == 60.0
        assert (recording.metadata["sex"], recording.metadata["hand"]) == ("female", "right")

    def test_szcore_events(self, data_set):
        events = next(data_set.parent.glob("*_events.tsv"))
        events.write_text(
            "onset\tduration\teventType\tconfidence\tchannels\n9\t5.5\tsz_gen\tn/a\tn/a\n0\t1\tbckg\tn/a\tn/a\n"
        )
        assert read_recording(data_set).seizures == ((9.0, 14.5),)

    @pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo", "UTC"])
    @pytest.mark.parametrize("stated", ["2020-01-01T12:00:00", "2020-01-01T12:00:00Z"])
    def test_a_start_is_the_same_in_every_zone(self, data_set, monkeypatch, zone, stated):
        table = next(data_set.parents[1].glob("*_scans.tsv"))
        heading, name = table.read_text(encoding="utf-8-sig").splitlines()[0], f"ieeg/{data_set.name}"
        table.write_text(f"{heading}\n{name}\t{stated}\n")
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            assert read_recording(data_set).metadata["start"] == "2020-01-01T12:00:00+00:00"
        finally:
            monkeypatch.undo()
            time.tzset()

    def test_tables_count_without_the_description_of_their_data_set(self, data_set):
        (data_set.parents[2] / "dataset_description.json").unlink()
        recording = warned(data_set, "channels.tsv is used as in BIDS, though no dataset_description.json")
        assert (recording.subject, recording.metadata["sex"]) == ("sub-07", "female")
        assert recording.dropped == {"LA10": "marked bad", "DC1": "type misc"}

    def test_a_folder_with_one_recording(self, data_set):
        root = data_set.parents[2]
        assert find_recordings(root) == [data_set]
        assert read_recording(root).name == data_set.stem
        write_edf(simulate_recording(duration=30), root / "second.edf")
        refused(root, "holds 2 recordings")


def test_what_is_not_there(tmp_path):
    refused(tmp_path / "nothing.edf", r"no file or folder .*nothing\.edf", kind=FileNotFoundError)
    refused(tmp_path, "holds no recording", kind=FileNotFoundError)
    (tmp_path / "a.txt").write_text("x")
    for name in ("b.vhdr", "b.eeg", "c_raw.fif.GZ"):
        (tmp_path / name).write_text("x")
    refused(tmp_path / "c_raw.fif.GZ", r"c_raw\.fif\.GZ is packed, and MNE needs \.gz in small letters .* rename it")
    refused(tmp_path / "b.eeg", r"b\.eeg: unknown kind of file, known are .* Did you mean b\.vhdr\?")
    refused(tmp_path / "a.txt", r"a\.txt: unknown kind of file, known are \.edf.*Recording.from_array")


class TestFinding:
    def test_a_split_fif_file_once(self, tmp_path):
        raw = raw_of(volts(16, 60.0), [f"A{i}" for i in range(1, 17)])
        raw.save(tmp_path / "pat_raw.fif", split_size="2MB", verbose="error")
        assert (tmp_path / "pat_raw-1.fif").is_file()
        raw.save(tmp_path / "b_raw.fif", split_size="2MB", split_naming="bids", verbose="error")
        # recordings of their own, though their names look like parts
        for name in ("night.fif", "night-1.fif", "alone-2.fif", "pat_raw-77.fif"):
            raw.copy().crop(0, 5).save(tmp_path / name, verbose="error")
        found = [path.name for path in find_recordings(tmp_path)]
        assert found == [
            "alone-2.fif",
            "b_split-01_raw.fif",
            "night-1.fif",
            "night.fif",
            "pat_raw-77.fif",
            "pat_raw.fif",
        ]
        (tmp_path / "b_events.tsv").write_text("onset\tduration\ttrial_type\n10\t5\tsz\n")
        raw.save(tmp_path / "b_ieeg.fif", split_size="2MB", split_naming="bids", verbose="error")
        assert read_recording(tmp_path / "b_split-01_ieeg.fif").seizures == ((10.0, 15.0),)
        recording = read_recording(tmp_path / "pat_raw.fif")
        assert recording.num_samples == raw.n_times
        # across the seam of the parts
        np.testing.assert_allclose(recording.read(15000, 25000), raw.get_data(None, 15000, 25000) * 1e6, rtol=1e-5)
        with pytest.warns(UserWarning, match=r"pat_raw-1\.fif is a later part of a recording that was split"):
            assert read_recording(tmp_path / "pat_raw-1.fif").num_samples < raw.n_times
        (tmp_path / "pat_raw-1.fif").unlink()
        refused(tmp_path / "pat_raw.fif", r"pat_raw\.fif cannot be read: it is split, and its next part is not")

    def test_epochs_are_no_recording(self, tmp_path):
        raw = mne.io.RawArray(np.zeros((2, 2560)), mne.create_info(2, 256.0, "seeg"), verbose=False)
        mne.make_fixed_length_epochs(raw, 2, verbose=False).save(tmp_path / "pat_epo.fif", verbose=False)
        refused(tmp_path / "pat_epo.fif", r"pat_epo\.fif cannot be read: it holds epochs or averages")

    def test_a_damaged_fif_file_hides_no_other(self, tmp_path):
        for name in ("night.fif", "night-1.fif"):
            (tmp_path / name).write_bytes(b"no FIF file")
        assert [path.name for path in find_recordings(tmp_path)] == ["night-1.fif", "night.fif"]

    def test_not_what_lies_beside_the_data_of_a_bids_data_set(self, tmp_path):
        data = "study/sub-01/ieeg/sub-01_task-x_ieeg.edf"
        others = [f"study/{folder}/pat01.edf" for folder in ("sourcedata", "code", "stimuli", "derivatives/x")]
        elsewhere = ["plain/sourcedata/pat02.edf", "plain/code/pat03.edf", "plain/derivatives/pat04.edf"]
        for name in [data, *others, *elsewhere]:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        (tmp_path / "study" / "dataset_description.json").write_text("{}")
        found = [path.relative_to(tmp_path).as_posix() for path in find_recordings(tmp_path)]
        assert sorted(found) == sorted([data, *elsewhere])
        # asked for by name, they are found
        assert len(find_recordings(tmp_path / "study" / "sourcedata")) == 1

    def test_files_of_one_name(self, tmp_path):
        fine = ["a/x.edf", "b/y.edf", "b/y.fif", "a/part.h5", "b/part.h5"]
        for study, subject in (("one", "sub-01"), ("two", "sub-02"), ("three", "sub-01")):  # BIDS says who was recorded
            (tmp_path / study / subject / "ieeg").mkdir(parents=True)
            (tmp_path / study / "dataset_description.json").write_text("{}")
            fine.append(f"{study}/{subject}/ieeg/{subject}_task-x_ieeg.edf")
        fine, third = fine[:-1], fine[-1]
        with warnings.catch_warnings(action="error"):
            warn_of_shared_names([tmp_path / name for name in fine])
        with pytest.warns(UserWarning, match=r"a/x\.edf and .*b/x\.vhdr count as one subject, 'x', 3 files in all"):
            warn_of_shared_names([tmp_path / name for name in [*fine, "b/x.vhdr", "c/d/x.fif.gz"]])
        with pytest.warns(UserWarning, match=r"^sub-01 of .*one and of .*three counts as one subject: if they are"):
            warn_of_shared_names([tmp_path / name for name in [*fine, third]])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"seizure_words": "Attacke"}, r"^seizure_words must be a list of texts, got 'Attacke': pass \['Attacke'\]$"),
        ({"channels": "12"}, "^channels must be a list of texts, got '12'"),  # not the channels 1 and 2
        ({"open_seconds": "60"}, "^open_seconds must be a number of seconds or None, got '60'"),
        ({"open_seconds": -5.0}, "^open_seconds must be a number of seconds or None, got -5.0"),
        ({"rate": "512"}, "^rate must be a number of Hz, got '512'"),
        ({"unit": "microvolt"}, r"^unit must be µV \(or uV\), mV, V or nV, got 'microvolt'$"),  # no damage of the file
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be(tmp_path, option, message):
    path = write_edf(simulate_recording("S1", num_channels=2, duration=6.0, num_seizures=0), tmp_path / "x.edf")
    refused(path, message, **option)


@pytest.mark.parametrize(
    "name",
    ["events.tsv", "s1.tsv", "s1_events.csv", "s1.csv_bi", "s1.edf.seizures", "S1_Events.tsv", "s01_events.tsv",
     "s1_ieeg_events.tsv", "s1.edf_events.tsv", "s1_annotations.txt", "s1-seizures.xlsx",
     "s1_events.tsv.gz", "s1.xml", "s1.lbl"],
)  # fmt: skip
def test_a_table_of_another_name_is_not_read_and_a_warning_says_so(tmp_path, name):
    made = simulate_recording("S1", num_channels=2, duration=60.0, num_seizures=0).with_seizures(None)
    write_edf(made, tmp_path / "s1.edf")
    (tmp_path / name).write_text("onset\tduration\ttrial_type\n10\t20\tseizure\n")
    message = rf"{name} is not read\. If it lists the seizures of s1\.edf, (call it|write them into) s1_events\.tsv"
    assert not warned(tmp_path / "s1.edf", message).annotated
    (tmp_path / name).rename(tmp_path / "s1_events.tsv")
    with warnings.catch_warnings(action="error"):
        assert read_recording(tmp_path / "s1.edf").seizures == ((10.0, 30.0),)
        (tmp_path / "s1_events.tsv").rename(tmp_path / "s1_2_events.tsv")  # of another recording
        write_edf(made, tmp_path / "s1_2.edf")
        assert not read_recording(tmp_path / "s1.edf").annotated


def test_a_name_that_a_mac_wrote_is_found(tmp_path):
    path = write_edf(simulate_recording("S1", num_channels=2, duration=60.0, num_seizures=0), tmp_path / "Müller.edf")
    table = tmp_path / unicodedata.normalize("NFD", "Müller_events.tsv")
    assert table.name != "Müller_events.tsv"
    table.write_text("onset\tduration\ttrial_type\n10\t20\tseizure\n")
    assert read_recording(path).seizures == ((10.0, 30.0),)


def test_what_a_folder_holds_beside_its_recordings(tmp_path):
    """Linked folders are followed once, and what is not read is listed."""
    inner, outer = tmp_path / "study", tmp_path / "elsewhere"
    for folder, name in ((inner / "a", "x"), (outer, "y")):
        folder.mkdir(parents=True)
        write_edf(simulate_recording(num_channels=2, duration=10, num_seizures=0), folder / f"{name}.edf")
    for name, target in (("b", outer), ("c", outer), ("again", inner / "a"), ("a/loop", inner), ("up", tmp_path)):
        (inner / name).symlink_to(target)
    for name in ("n.TRC", "n.erd", "n.nwb"):
        (inner / "a" / name).touch()
    with pytest.warns(UserWarning, match=r"study: 3 recordings .* a/n\.TRC, a/n\.erd, a/n\.nwb\..*from_raw\(mne"):
        assert find_recordings(inner) == [inner / "a" / "x.edf", inner / "b" / "y.edf"]


@pytest.mark.parametrize("name", ["n.e", "n.21E", "n.xdf", "n.edf.gz", "n.EEG", "n.nedf", "n.tdms"])
def test_recordings_of_more_programs_are_listed(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.warns(UserWarning, match=rf"1 recording of a kind that is not read: {name}\. .*unpack"):
        assert find_recordings(tmp_path) == []


def test_the_samples_of_brainvision_are_no_recording_of_their_own(tmp_path):
    for name in ("samples.eeg", "samples.vhdr"):
        (tmp_path / name).touch()
    with warnings.catch_warnings(action="error"):
        assert find_recordings(tmp_path) == [tmp_path / "samples.vhdr"]
        (tmp_path / "samples.eeg").rename(tmp_path / "renamed.eeg")  # the header may name it
        (tmp_path / "results.e").mkdir()  # is no recording
        find_recordings(tmp_path)
    (tmp_path / "samples.eeg").touch()
    with pytest.warns(UserWarning, match=r"1 recording of a kind that is not read: renamed\.eeg"):
        find_recordings(tmp_path)


@pytest.mark.parametrize("name", ["seizures.tsv", "Annotations.csv", "sz_list.xlsx"])
def test_a_table_beside_the_only_recording_is_named(tmp_path, name):
    file = write_edf(simulate_recording(num_channels=2, duration=10, num_seizures=0), tmp_path / "night.edf")
    (tmp_path / name).touch()
    warned(file, rf"{name} is not read. If it lists the seizures of night\.edf")
    write_edf(simulate_recording(num_channels=2, duration=10, num_seizures=0), tmp_path / "day.edf")
    with warnings.catch_warnings(action="error"):  # which of both it is of, nobody knows
        read_recording(file)


def test_links_to_one_file_are_one_recording(tmp_path):
    (tmp_path / "b.edf").touch()
    for name in ("a.edf", "c.edf"):
        (tmp_path / name).symlink_to(tmp_path / "b.edf")
    with pytest.warns(UserWarning, match=r"are left out: a\.edf \(b\.edf\), c\.edf \(b\.edf\)$"):
        assert find_recordings(tmp_path) == [tmp_path / "b.edf"]


def test_what_was_said_of_a_recording_stays_with_it(tmp_path):
    path = write_edf(simulate_recording("S1", num_channels=2, duration=60.0, num_seizures=0), tmp_path / "x.edf")
    (tmp_path / "x_events.tsv").write_text("onset\tduration\ttrial_type\n5\t-1\tnote\n10\t5\tsz\n-70\t5\tsz\n")
    with pytest.warns(UserWarning, match="left out") as caught:
        recording = read_recording(path)
    said = [str(warning.message) for warning in caught]
    assert said == [*recording.left_out] == [*recording.crop(5.0, 20.0).left_out]
    assert [("line 2" in text, "at -70 s" in text) for text in said] == [(True, False), (False, True)]
    with warnings.catch_warnings(action="error"), pytest.raises(UserWarning, match="line 2"):
        read_recording(path)
    mne.export.export_raw(tmp_path / "loud.edf", raw_of(1000 * volts(2), ["A1", "A2"]), verbose="error")
    (tmp_path / "loud_channels.tsv").write_text("name\ttype\nA1\tSEEG\nA2\tSEEG\n")
    with pytest.warns(UserWarning, match="is the unit right") as caught:
        assert [*read_recording(tmp_path / "loud.edf").notes] == [str(warning.message) for warning in caught]
    assert "is used as in BIDS" in str(caught[0].message)


def test_a_pause_in_brainvision_is_refused(tmp_path):
    brainvision(tmp_path / "rec.vhdr", "A1", "A2", "A3")
    marks = (tmp_path / "rec.vmrk").read_text(encoding="utf-8")
    other_marks = [line for line in marks.splitlines() if "New Segment" not in line]
    for seconds, expected in ((10, None), (610, r"rec\.vmrk is discontinuous: after 10 s .* gap of 600 s")):
        clock = datetime(2020, 1, 1) + timedelta(seconds=seconds)
        segments = [
            "Mk8=New Segment,,1,1,0,20200101000000000000",
            f"Mk9=New Segment,,5121,1,0,{clock:%Y%m%d%H%M%S}000000",
        ]
        (tmp_path / "rec.vmrk").write_text("\n".join([*other_marks, *segments]) + "\n", encoding="utf-8")
        if expected is None:
            assert read_recording(tmp_path / "rec.vhdr").seizures == ((4.0, 10.5),)
        else:
            refused(tmp_path / "rec.vhdr", expected)
    (tmp_path / "rec.vmrk").write_text("Mk1=New Segment,,1,1,0,20230229250000000000\n")
    refused(tmp_path / "rec.vhdr", r"rec\.vmrk has a new segment .* whose time 20230229250000000000 is none")
    (tmp_path / "rec.vmrk").write_text("\n".join([*other_marks, segments[1]]) + "\n", encoding="utf-8")
    warned(tmp_path / "rec.vhdr", r"rec\.vmrk says when its part at 10\.002 s began, which is taken for")


@pytest.mark.parametrize("capitals", [("vhdr",), ("vmrk",), ("vhdr", "vmrk", "eeg")], ids="-".join)
def test_endings_of_brainvision_in_capitals(tmp_path, capitals):
    """As some systems copy files; the signal and the marks are the same."""
    raw = brainvision(tmp_path / "rec.vhdr", "A1", "A2")
    header = (tmp_path / "rec.vhdr").read_text(encoding="utf-8")
    for kind in capitals:
        header = header.replace(f"rec.{kind}", f"rec.{kind.upper()}")
        (tmp_path / f"rec.{kind}").rename(tmp_path / f"rec.{kind.upper()}")
    path = next(file for file in tmp_path.iterdir() if file.suffix.lower() == ".vhdr")
    path.write_text(header, encoding="utf-8")
    with warnings.catch_warnings(action="error"):
        recording = read_recording(path)
    assert recording.seizures == ((4.0, 10.5),)
    np.testing.assert_allclose(recording.read(0, 512), raw.get_data()[:, :512] * 1e6, atol=0.1)


def test_a_comma_in_the_text_of_a_mark(tmp_path):
    brainvision(tmp_path / "rec.vhdr", "A1", "A2", word="WORD")
    marks = (tmp_path / "rec.vmrk").read_text(encoding="utf-8")
    for text, taken in (("seizure, left, 3", True), (r"seizure\1 left", True), ("no seizure, left", False)):
        (tmp_path / "rec.vmrk").write_text(marks.replace("WORD", text), encoding="utf-8")
        recording = read_recording(tmp_path / "rec.vhdr")
        assert (recording.seizures == ((4.0, 10.5),)) is taken
        start = "2020-01-01T00:00:00+00:00"
        assert recording.metadata.get("start", start) == start


def test_marks_of_a_brainvision_set_that_was_renamed_are_checked(tmp_path):
    """MNE reads those beside the header where it names others, as after renaming for BIDS."""
    brainvision(tmp_path / "rec.vhdr", "A1", "A2", word="Anfälle")
    (tmp_path / "rec.vmrk").rename(tmp_path / "new.vmrk")
    (tmp_path / "rec.vhdr").rename(tmp_path / "new.vhdr")
    marks = (tmp_path / "new.vmrk").read_text(encoding="utf-8")
    for encoding in ("utf-8", "cp1252"):
        (tmp_path / "new.vmrk").write_text(marks, encoding=encoding)
        with pytest.warns(UserWarning, match=r"'rec\.vmrk' not found; using 'new\.vmrk'|read as Windows-1252"):
            assert read_recording(tmp_path / "new.vhdr").seizures == ((4.0, 10.5),)
    first, second = "Mk1=New Segment,,1,1,0,20200101000000000000", "Mk9=New Segment,,5121,1,0,20200101001000000000"
    (tmp_path / "new.vmrk").write_text(f"{first}\n{second}\n", encoding="utf-8")
    refused(tmp_path / "new.vhdr", r"new\.vmrk is discontinuous")


@pytest.mark.parametrize(
    ("page", "encoding", "text", "warned"),
    [
        ("ANSI", "cp1252", "Anfälle", False),
        ("1252", "cp1252", "Anfälle", False),
        ("", "cp1252", "Anfälle", True),
        ("UTF-8", "cp1252", "Anfälle", True),
        ("Windows-1251", "cp1251", "приступ", False),
        ("no such page", "cp1252", "Anfälle", False),
    ],
)
def test_brainvision_in_other_code_pages(tmp_path, page, encoding, text, warned, recwarn):
    brainvision(tmp_path / "rec.vhdr", "A1", "A2", "A3", word="TEXT")
    for name in ("rec.vhdr", "rec.vmrk"):
        content = (tmp_path / name).read_text(encoding="utf-8").replace("TEXT", text)
        content = content.replace("Codepage=UTF-8", f"Codepage={page}" if page else "; none")
        (tmp_path / name).write_bytes(content.encode(encoding))
    recording = read_recording(tmp_path / "rec.vhdr", seizure_words=["приступ"])
    named = [str(warning.message) for warning in recwarn if "code page" in str(warning.message)]
    guess = f"{tmp_path / 'rec.vhdr'}: rec.vmrk is not UTF-8 and names no other code page: read as Windows-1252"
    assert named == [guess] * warned
    assert recording.seizures == ((4.0, 10.5),)
    np.testing.assert_allclose(recording.read(0, 512), volts(3)[:, :512] * 1e6, atol=0.1)


def _gain(brain, start, stop, channels, gain):
    """The signal with another gain from `start` to `stop` seconds, away from the middle."""
    changed = brain.copy()
    changed[channels, start * 512 : stop * 512] *= gain
    return changed


LEVELS = {
    "gain": (lambda brain: 300 * brain, r"standard deviation is 15,000 µV, usual are 0\.5 to 2,000 µV"),
    "white noise": (
        lambda brain: np.random.default_rng(1).normal(0, 300, brain.shape),
        r"A1 \(298 µV\), .* white noise",
    ),
    "white noise of one channel": (
        lambda brain: np.vstack([brain[:3], np.random.default_rng(1).normal(0, 300, (1, brain.shape[1]))]),
        r"A4 \((29|30)\d µV\) are white noise \(usual are 0\.5 to 2,000 µV",
    ),
    "one signal": (lambda brain: np.tile(brain[:1], (4, 1)), "all 4 channels hold the same signal"),
    "gain of one channel": (
        lambda brain: brain * [[1], [1], [300], [1]],
        r"A3 have a standard deviation of up to 1\d,\d00 µV where",
    ),
    "lost gain of one channel": (
        lambda brain: brain * [[1], [1], [1e-3], [1]],
        r"A3 have a standard deviation of down to 0\.05 µV where",
    ),
    "two channels of one signal": (
        lambda brain: brain[[0, 1, 0, 3]],
        r"as another one, .*: A3 \(50 µV\) as A1 \(50 µV\); one",
    ),
    "a scaled copy": (
        lambda brain: brain[[0, 1, 0, 3]] * [[1], [1], [-3], [1]] + 7,
        r"A3 \(150 µV\) as A1 \(50 µV\); one signal",
    ),
    "gain of one channel for a while": (
        lambda brain: _gain(brain, 3, 6, [2], 100),
        r"stated seizures: A3 has 1,\d+ µV at \d s and 1\d(\.\d)? µV most",
    ),
    "gain of all channels at the end": (
        lambda brain: _gain(brain, 17, 20, [0, 1, 2, 3], 0.02),
        r"seizures: A1 has .* A2 has .* A3 has .* A4 has ",
    ),
    "clipped": (
        lambda brain: np.where([[1], [0], [0], [0]], np.minimum(brain, np.quantile(brain[0, 2560:7681], 0.9)), brain),
        r"cut off at a limit of the amplifier or file: A1 \(10% of its samples are [\d.-]+ µV\)$",
    ),
    "coarse": (
        lambda brain: 60 * np.rint(brain / 60),
        r"few different values: A1 \(\d values\), .*A4 \(\d values\)",
    ),
}


@pytest.mark.parametrize(("x", "message"), LEVELS.values(), ids=LEVELS)
def test_levels_that_cannot_be(x, message):
    brain = np.cumsum(np.random.default_rng(0).normal(0, 1, (4, 10240)), axis=1)
    brain *= 50 / brain[:, 2560:7681].std(1, keepdims=True)
    with warnings.catch_warnings(action="error"):
        Recording.from_array(brain, 512.0, ["A1", "A2", "A3", "A4"], "µV")
    with pytest.warns(UserWarning, match=message):
        Recording.from_array(x(brain), 512.0, ["A1", "A2", "A3", "A4"], "µV")


def test_muscles_that_are_white_for_a_while_are_no_loose_electrode(recwarn):
    random = np.random.default_rng(0)
    brain = np.cumsum(random.normal(0, 1, (2, 30720)), axis=1)
    brain *= 80 / brain.std(1, keepdims=True)
    brain[1, 12800:17920] = random.normal(0, 300, 5120)  # ten of sixty seconds, in the middle
    brain[0, :10240] = np.nan
    Recording.from_array(brain, 512.0, ["A1", "A2"], "µV")
    assert not [str(item.message) for item in recwarn if "white" in str(item.message)]
    assert not [item for item in recwarn if item.category is RuntimeWarning]


def test_channels_of_an_array_are_sorted_as_all_are():
    x = np.random.default_rng(0).normal(0, 50, (3, 5120))
    recording = Recording.from_array(x, 512.0, ["L10", "A1", "L2"], "µV")
    assert recording.channel_names == ("A1", "L2", "L10")
    np.testing.assert_allclose(recording.read(0, 5120), x[[1, 2, 0]], rtol=1e-6)


def test_an_end_without_a_start_is_no_word_of_none(tmp_path):
    quiet = simulate_recording("S01", num_channels=2, duration=60.0, num_seizures=0, sfreq=256.0)
    write_edf(quiet, tmp_path / "night.edf")  # which states bckg
    assert read_recording(tmp_path / "night.edf").annotated
    (tmp_path / "night_events.tsv").write_text("onset\tduration\ttrial_type\n20\t0\tseizure end\n", encoding="utf-8")
    assert not warned(tmp_path / "night.edf", "ends of seizures without a start are left out: at 20 s").annotated
