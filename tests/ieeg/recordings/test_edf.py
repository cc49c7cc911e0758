"""EDF files whose channels have rates of their own, against sines of known frequency and MNE's preloaded signal."""

import datetime
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.fuzzing.recordings import make_gdf
from support.reading import refused, refuses, warned

from mvpa_ts.ieeg import Recording, read_recording
from mvpa_ts.ieeg.recordings.edf import check_edf

mne = pytest.importorskip("mne")
edfio = pytest.importorskip("edfio")

SECONDS = 40


def sine(hertz: float, rate: float, seconds: float = SECONDS) -> np.ndarray:
    """A sine of 100 µV that grows by 1 µV per second, so that every moment looks different."""
    time = np.arange(round(seconds * rate)) / rate
    return (100 + time) * np.sin(2 * np.pi * hertz * time)


def signal(name: str, x: np.ndarray, rate: float, unit: str = "uV") -> object:
    return edfio.EdfSignal(x, rate, label=name, physical_dimension=unit, physical_range=(-200, 200))


def electrodes(rate: float = 256, names: tuple[str, ...] = ("A1", "A2", "A3")) -> list[object]:
    return [signal(name, sine(3 + i, rate), rate) for i, name in enumerate(names)]


def assert_sines(recording: Recording, start: int, stop: int) -> None:
    time = np.arange(start, stop) / recording.sfreq
    expected = [(100 + time) * np.sin(2 * np.pi * hertz * time) for hertz in (3, 4, 5)]
    np.testing.assert_allclose(recording.read(start, stop), expected, atol=0.01)


class TestRates:
    def write(self, path: Path, others: list[object], record: float = 1) -> Path:
        edfio.Edf([*electrodes(), *others], data_record_duration=record).write(path)
        return path

    @pytest.mark.parametrize("record", [1, 10])
    @pytest.mark.parametrize("rate", [1024, 64, 256, None])
    def test_of_another_channel_do_not_move_the_eeg(self, tmp_path, record, rate):
        others = [] if rate is None else [signal("EKG1", sine(1, rate), rate)]
        path = self.write(tmp_path / "mixed.edf", others, record)
        recording = read_recording(path)
        assert (recording.sfreq, recording.num_samples) == (256, 256 * SECONDS)
        assert recording.channel_names == ("A1", "A2", "A3")
        assert recording.dropped == ({} if rate is None else {"EKG1": "EKG is no EEG by its name"})
        assert not recording.source.raw.preload
        for start, stop in [(0, 256 * SECONDS), (77, 9000), (5 * 256, 8 * 256), (3000, 3001), (10239, 10240)]:
            assert_sines(recording, start, stop)
        whole = mne.io.read_raw_edf(path, include=["A1", "A2", "A3"], preload=True, verbose="error").get_data() * 1e6
        np.testing.assert_allclose(recording.read(1111, 7777), whole[:, 1111:7777], rtol=1e-6)

    def test_of_several_others_and_labels_that_appear_twice(self, tmp_path):
        others = [signal("EKG", sine(1, 1024), 1024), signal("EKG", sine(1, 512), 512), signal("DC1", sine(1, 8), 8)]
        named = electrodes(names=("A1", "B1", "B1"))
        edfio.Edf([others[0], named[0], others[1], *named[1:], others[2]]).write(tmp_path / "mixed.edf")
        recording = read_recording(tmp_path / "mixed.edf")
        assert recording.channel_names == ("A1", "B1-0", "B1-1")
        assert set(recording.dropped) == {"EKG-0", "EKG-1", "DC1"}
        assert_sines(recording, 100, 2100)

    def test_annotations_stay_where_they_are(self, tmp_path):
        edf = edfio.Edf(
            [signal("EKG1", sine(1, 1024), 1024), *electrodes()], annotations=[edfio.EdfAnnotation(12.5, 5, "seizure")]
        )
        edf.write(tmp_path / "mixed.edf")
        recording = read_recording(tmp_path / "mixed.edf")
        assert recording.seizures == ((12.5, 17.5),)
        assert_sines(recording, 3200, 4480)

    def test_of_the_eeg_itself_that_differ(self, tmp_path):
        path = self.write(tmp_path / "mixed.edf", [signal("M1", sine(3, 1024), 1024)])
        refused(path, r"mixed: .* stored at 256 Hz \(3 channels such as A1\), 1024 Hz \(1 .*M1")
        # what the message says to do
        recording = Recording.from_raw(mne.io.read_raw(path, include=["A1", "A2", "A3"], verbose="error"))
        assert_sines(recording, 100, 2100)

    def test_of_a_raw_that_is_not_loaded(self, tmp_path):
        path = self.write(tmp_path / "mixed.edf", [signal("EKG1", sine(1, 1024), 1024)])
        raw = mne.io.read_raw_edf(path, verbose="error")
        renamed = raw.copy().pick(["A2", "EKG1"]).rename_channels({"A2": "left"}).crop(3, 9)
        for lazy in (raw, renamed):
            with pytest.raises(ValueError, match=r"stored at 256 Hz .* MNE would read them at 1024 Hz: read channels"):
                Recording.from_raw(lazy)
        loaded = Recording.from_raw(raw.load_data(verbose="error"))
        expected = (100 + np.arange(5120, 20480) / 1024) * np.sin(2 * np.pi * 3 * np.arange(5120, 20480) / 1024)
        np.testing.assert_allclose(loaded.read(5120, 20480, ["A1"])[0], expected, atol=0.5)

    def test_in_a_bids_data_set(self, tmp_path):
        folder = tmp_path / "sub-01" / "ieeg"
        folder.mkdir(parents=True)
        (tmp_path / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.9.0"}')
        path = self.write(folder / "sub-01_task-x_ieeg.edf", [signal("X1", sine(1, 1024), 1024)])
        rows = ["name\ttype\tunits\tstatus", *(f"A{i}\tSEEG\tuV\tgood" for i in (1, 2, 3)), "X1\tMISC\tuV\tgood"]
        (folder / "sub-01_task-x_channels.tsv").write_text("\n".join(rows) + "\n")
        recording = read_recording(path)
        assert recording.dropped == {"X1": "type misc"}
        assert recording.sfreq == 256
        assert_sines(recording, 100, 2100)


class TestUnits:
    """The file's numbers are a sine of 100 to 140; the unit that they are in is what counts."""

    def write(self, path: Path, units: list[str]) -> Path:
        edfio.Edf([signal(f"A{i}", sine(3, 256), 256, unit) for i, unit in enumerate(units, 1)]).write(path)
        return path

    def amplitudes(self, recording: Recording) -> np.ndarray:
        return np.abs(recording.read(0, 256 * SECONDS)).max(1)

    @pytest.mark.filterwarnings("ignore:.*is the unit right")
    @pytest.mark.parametrize("stated", [["uV"] * 3, ["mV"] * 3, ["V"] * 3, ["UV", "nV", "MV"]])
    def test_stated_ones_are_taken_as_they_are(self, tmp_path, stated):
        scale = [{"nv": 1e-3, "uv": 1.0, "mv": 1e3, "v": 1e6}[unit.lower()] for unit in stated]
        path = self.write(tmp_path / "stated.edf", stated)
        expected = np.abs(sine(3, 256)).max() * np.array(scale)
        np.testing.assert_allclose(self.amplitudes(read_recording(path)), expected, rtol=1e-3)
        if len(set(stated)) == 1:  # saying the same again changes nothing
            again = read_recording(path, unit=stated[0].replace("u", "µ"))
            np.testing.assert_allclose(self.amplitudes(again), expected, rtol=1e-3)

    def test_a_contradiction(self, tmp_path):
        path = self.write(tmp_path / "stated.edf", ["uV"] * 7)
        refused(path, "got unit='mV', but the file states .V for A1, A2, A3, A4, A5 and 2 more: leave", unit="mV")

    @pytest.mark.filterwarnings("ignore:.*is the unit right")
    @pytest.mark.parametrize(("unit", "scale"), [("µV", 1.0), ("mV", 1e3)])
    @pytest.mark.parametrize("stated", [["uV", "uV", "uV", ""], ["uV", "", "furlong", ""]])
    def test_those_that_are_missing_are_said(self, tmp_path, stated, unit, scale):
        path = self.write(tmp_path / "some.edf", stated)
        others = [f"A{i}" for i, text in enumerate(stated, 1) if text != "uV"]
        recording = warned(path, f"of no known unit are left out: {', '.join(others)}. If EEG")
        assert [*recording.dropped] == others
        assert recording.channel_names == tuple(f"A{i}" for i, text in enumerate(stated, 1) if text == "uV")
        assert np.isclose(self.amplitudes(recording), np.abs(sine(3, 256)).max(), rtol=1e-3).all()
        refused(path, r"unknown unit .* of channels .*: name it, --unit", channels=["A1", others[0]])
        expected = np.abs(sine(3, 256)).max() * np.array([1.0 if one == "uV" else scale for one in stated])
        np.testing.assert_allclose(self.amplitudes(read_recording(path, unit=unit)), expected, rtol=1e-3)

    def test_one_with_a_number_is_named(self, tmp_path):
        path = self.write(tmp_path / "some.edf", ["10uV"] * 7)
        refused(
            path,
            r"unknown unit \['10uV'\] of channels A1, A2, A3, A4, A5 and 2 more: name it",
            channels=[f"A{n}" for n in range(1, 8)],
        )
        warned(path, r"channels in \['10uV'\] are read as µV, as unit \(--unit\) says", unit="µV")

    @pytest.mark.filterwarnings("ignore:.*is the unit right")
    @pytest.mark.parametrize("rate", [256, 8])
    def test_fields_that_are_filled_with_zeros_or_in_utf8(self, tmp_path, rate):
        """As C programs write them; the seizure of a list whose name ends in a zero is not lost."""
        path, utf8 = tmp_path / "zeros.edf", "µV".encode()
        signals = [signal("A1", sine(3, rate), rate), signal("A2", sine(3, rate), rate), signal("EKG", sine(3, 64), 64)]
        edfio.Edf(signals, annotations=[edfio.EdfAnnotation(3, 4, "seizure")]).write(path)
        content = path.read_bytes()
        for text in ("A1", "A2", "EKG", "EDF Annotations"):
            content = content.replace(text.encode().ljust(16), text.encode().ljust(16, b"\0"), 1)
        content = content.replace(b"uV".ljust(8), b"mV".ljust(8, b"\0"), 1).replace(b"uV".ljust(8), utf8.ljust(8), 1)
        path.write_bytes(content)
        recording = read_recording(path)
        assert (recording.channel_names, [*recording.dropped]) == (("A1", "A2"), ["EKG"])
        assert recording.seizures == ((3.0, 7.0),)
        truth = np.abs(sine(3, rate)).max()
        np.testing.assert_allclose(np.abs(recording.read(0, rate * SECONDS)).max(1), [1e3 * truth, truth], rtol=1e-3)

    @pytest.mark.parametrize("rate", [256, 512])  # of the EKG; without it the others are read again
    def test_names_twice_with_zeros(self, tmp_path, rate):
        path, x = tmp_path / "twice.edf", sine(3, 256)
        signals = [signal("A1", x, 256), signal("A1", x / 2, 256), signal("EKG", sine(3, rate), rate)]
        edfio.Edf(signals).write(path)
        path.write_bytes(path.read_bytes().replace(b"A1".ljust(16), b"A1".ljust(16, b"\0")))
        recording = warned(path, "A1 is read as A1-0, A1-1", channels=["A1-0", "A1-1"])
        levels = np.abs(recording.read(0, 256 * SECONDS)).max(1)
        np.testing.assert_allclose(levels, [np.abs(x).max(), np.abs(x).max() / 2], rtol=1e-2)

    def test_of_a_raw(self, tmp_path):
        raw = mne.io.read_raw_edf(self.write(tmp_path / "stated.edf", ["uV", "uV"]), verbose="error")
        truth = np.abs(sine(3, 256)).max()
        np.testing.assert_allclose(self.amplitudes(Recording.from_raw(raw, unit="µV")), truth, rtol=1e-3)
        rescaled = raw.copy().load_data(verbose="error").apply_function(lambda x: 1e6 * x)
        np.testing.assert_allclose(self.amplitudes(Recording.from_raw(rescaled, unit="µV")), truth, rtol=1e-3)


def handmade(path: Path, kind: str, stamps: list[str], event: str = "", rate: int = 256) -> Path:
    """A file written byte by byte: two channels with one level per record, 1 s each, and annotations."""
    width, name = (3, "BDF Annotations") if kind.startswith("BDF") else (2, "EDF Annotations")
    labels, samples = ["A1", "A2", name], [rate, rate, 30]
    fields = [
        (16, labels),
        (80, [""] * 3),
        (8, ["uV", "uV", ""]),
        (8, ["-1000", "-1000", "-1"]),
        (8, ["1000", "1000", "1"]),
        (8, ["-1000", "-1000", "-32768"]),
        (8, ["1000", "1000", "32767"]),
        (80, [""] * 3),
        (8, [str(n) for n in samples]),
        (32, [""] * 3),
    ]
    start = "\xffBIOSEMI" if width == 3 else "0"
    head = (
        f"{start:8}{'X X X X':80}{'Startdate X X X X':80}01.01.2001.01.01{1024:<8}{kind:44}{len(stamps):<8}{1:<8}{3:<4}"
    )
    head += "".join(f"{value:{size}}" for size, values in fields for value in values)
    assert len(head) == 1024
    with path.open("wb") as file:
        file.write(head.encode("latin-1"))
        for i, stamp in enumerate(stamps):
            for level in (i, -i):
                file.write(level.to_bytes(width, "little", signed=True) * rate)
            entries = f"{stamp}\x14\x14\x00" + (event if i == 0 else "")
            file.write(entries.encode().ljust(30 * width, b"\x00"))
    return path


@pytest.mark.filterwarnings("ignore:.*is the unit right")
@pytest.mark.parametrize("order", [("mV", "uV"), ("uV", "mV"), ("uV", "uV"), ("nV", "nV")])
def test_joined_files_have_the_units_that_mne_gives_them(tmp_path, order):
    for number, unit in enumerate(order):
        edfio.Edf([signal("A1", sine(3, 256), 256, unit)]).write(tmp_path / f"{number}.edf")
    files = [mne.io.read_raw(tmp_path / f"{number}.edf", verbose="error") for number in range(2)]
    joined = mne.concatenate_raws(files)
    # MNE takes "nV" for volts; we read it.
    expected = joined.get_data() * (1e-3 if order[0] == "nV" else 1e6)
    with pytest.warns(UserWarning, match="raw: recordings were joined at 40 s: times count on"):
        recording = Recording.from_raw(joined)
    np.testing.assert_allclose(recording.read(0, recording.num_samples), expected, rtol=1e-5)
    joined.set_annotations(mne.Annotations([0, 41], [0, 0], ["boundary", "boundary"]))  # as EEGLAB calls it
    with pytest.warns(UserWarning, match="raw: recordings were joined at 41 s: times count on"):
        Recording.from_raw(joined)
    (tmp_path / "0_events.tsv").write_text("onset\tduration\tvalue\n12\t0\tboundary\n")
    warned(tmp_path / "0.edf", "0.edf: recordings were joined at 12 s|0: recordings were joined at 12 s")


@pytest.mark.parametrize("order", [("V", "nV"), ("nV", "V"), ("uV", "nV")])
def test_joined_files_of_which_mne_misreads_one_are_refused(tmp_path, order):
    for number, unit in enumerate(order):
        edfio.Edf([signal("A1", sine(3, 256), 256, unit)]).write(tmp_path / f"{number}.edf")
    joined = mne.concatenate_raws([mne.io.read_raw(tmp_path / f"{number}.edf", verbose="error") for number in range(2)])
    with pytest.raises(ValueError, match=r"files that were joined .* units of A1 .* take 0\.edf, 1\.edf one by one"):
        Recording.from_raw(joined)


class TestDiscontinuous:
    EVENT = "+3.5\x152\x14seizure\x14\x00"

    @pytest.mark.parametrize("gap", [10, 600])
    def test_a_continuous_file_whose_time_stamps_jump_is_refused(self, tmp_path, gap):
        path = handmade(tmp_path / "x.edf", "EDF+C", [f"+{i + gap * (i >= 30)}" for i in range(60)])
        refused(path, rf"\(EDF\+C, with time stamps that jump\): after 30 s .* gap of {gap} s")

    @pytest.mark.parametrize("kind", ["EDF+C", "EDF+D"])
    @pytest.mark.parametrize(("seconds", "true"), [("1", 1 + 2e-6), ("1", 1 - 4e-5), ("0.333333", 1 / 3)])
    def test_what_grows_by_summing_is_no_gap(self, tmp_path, kind, seconds, true):
        path = handmade(tmp_path / "x.edf", kind, [f"+{i * true:.6f}" for i in range(32_000)], rate=1)
        content = path.read_bytes()
        path.write_bytes(content[:244] + seconds.encode().ljust(8) + content[252:])
        assert check_edf(path).records == 32_000

    def test_stamps_with_too_few_decimals_are_no_gap(self, tmp_path):
        path = handmade(tmp_path / "x.edf", "EDF+C", [f"+{i / 4:.1f}" for i in range(240)], rate=64)
        content = path.read_bytes()
        path.write_bytes(content[:244] + b"0.25    " + content[252:])
        assert check_edf(path).records == 240
        path = handmade(tmp_path / "y.edf", "EDF+C", [f"+{i / 4 + (i > 99):.1f}" for i in range(240)], rate=64)
        path.write_bytes(path.read_bytes()[:244] + b"0.25    " + content[252:256] + path.read_bytes()[256:])
        refuses(check_edf, "after 25 s of signal comes a gap of 1", path)

    def test_a_file_without_time_stamps_of_its_own_is_read(self, tmp_path):
        assert check_edf(handmade(tmp_path / "x.edf", "EDF+C", ["+0"] * 12)).records == 12
        assert check_edf(handmade(tmp_path / "y.edf", "EDF+C", [""] * 12)).records == 12

    @pytest.mark.filterwarnings("ignore:.*is the unit right")
    @pytest.mark.parametrize(
        ("kind", "stamps"),
        [
            ("EDF+C", [f"+{i}" for i in range(12)]),
            ("EDF+D", [f"+{i}" for i in range(12)]),
            ("EDF+D", [f"+{i + 0.25:.3f}" for i in range(12)]),
            ("EDF+D", [f"+{i + 0.001 * (i % 2):.3f}" for i in range(12)]),
            ("BDF+D", [f"+{i}" for i in range(12)]),
        ],
    )
    def test_without_a_gap_is_read(self, tmp_path, kind, stamps):
        path = handmade(tmp_path / f"whole.{kind[:3].lower()}", kind, stamps, self.EVENT)
        recording = read_recording(path)
        begin = 3.5 - float(stamps[0])  # times in the file count from its start date, ours from the first sample
        np.testing.assert_allclose(recording.seizures, [(begin, begin + 2)])
        levels = np.repeat(np.arange(12.0), 256)
        np.testing.assert_allclose(recording.read(0, 12 * 256), [levels, -levels], atol=1e-4)
        assert not recording.source.raw.preload

    @pytest.mark.parametrize("suffix", ["edf", "bdf"])
    @pytest.mark.parametrize(("gap", "place"), [(1000, 7), (0.25, 7), (-0.5, 3), (1000, 1)])
    def test_with_a_gap_is_refused(self, tmp_path, suffix, gap, place):
        stamps = [f"+{i + gap * (i >= place):g}" for i in range(12)]
        path = handmade(tmp_path / f"gap.{suffix}", f"{suffix.upper()}+D", stamps)
        message = rf"gap\.{suffix} is discontinuous .*: after {place} s of signal comes a gap of {gap:g} s\. Split"
        refused(path, message)

    def test_without_a_time_stamp_is_refused(self, tmp_path):
        path = handmade(tmp_path / "odd.edf", "EDF+D", ["+0", "one", "+2"])
        refused(path, r"odd\.edf is damaged: record 1 does not begin with a time stamp")
        content = handmade(tmp_path / "none.edf", "EDF+D", ["+0", "+1"]).read_bytes()
        (tmp_path / "none.edf").write_bytes(content.replace(b"EDF Annotations", b"DC1            "))
        refused(tmp_path / "none.edf", r"none\.edf is discontinuous \(EDF\+D\) and has no time stamps: convert")


def test_annotations_around_the_recording_are_cut_and_named(tmp_path):
    event = "-10\x14sz start\x14\x00+5\x14sz end\x14\x00+200\x1510\x14seizure\x14\x00"
    path = handmade(tmp_path / "x.edf", "EDF+C", [f"+{i}" for i in range(60)], event)
    with pytest.warns(UserWarning, match="^x: seizures outside of the recording, .* 60 s, are left out: at 200 s"):
        assert read_recording(path).seizures == ((0.0, 5.0),)


@pytest.mark.parametrize("faster", [False, True])
def test_labels_in_utf_8(tmp_path, faster):
    """MNE reads labels in UTF-8, or all of the file in another encoding, which then has letters that it cannot read."""
    x = np.random.default_rng(0).normal(0, 50, 10 * 512)
    signals = [("FpX1..", x[::2], 256), ("A2", x[1::2], 256), *([("EKG", x, 512)] * faster)]
    options = {"physical_dimension": "uV", "physical_range": (-500, 500)}
    edfio.Edf([edfio.EdfSignal(y, rate, label=name, **options) for name, y, rate in signals]).write(tmp_path / "x.edf")
    (tmp_path / "x.edf").write_bytes((tmp_path / "x.edf").read_bytes().replace(b"FpX1..", "Fpü1 ".encode()))
    recording = read_recording(tmp_path / "x.edf", channels=["Fpü1"])
    assert recording.channel_names == ("Fpü1",)
    np.testing.assert_allclose(recording.read(0, 2560)[0], x[::2], atol=0.02)


def test_annotations_in_latin_1(tmp_path):
    path = handmade(tmp_path / "x.edf", "EDF+C", [f"+{i}" for i in range(60)], "+5\x1510\x14AnfQlle\x14\x00")
    path.write_bytes(path.read_bytes().replace(b"AnfQlle", "Anfälle".encode("latin-1")))
    assert warned(path, r"x\.edf: its annotations are not UTF-8 and are read as Latin-1").seizures == ((5.0, 15.0),)


@pytest.mark.parametrize(
    ("entry", "span"),
    [
        ("+5\x15\x14Anfall\x14\0+9\x14Anfallsende\x14\0", (5.0, 9.0)),  # an empty duration
        ("+5,5\x153,5\x14seizure\x14\0", (5.5, 9.0)),
        ("+5\x151e1\x14seizure\x14\0", (5.0, 15.0)),
        ("+5\x15-1\x14sz start\x14\0+9\x14sz end\x14\0", (5.0, 9.0)),
        ("5\x153\x14seizure\x14\0", (5.0, 8.0)),  # no sign
        ("+5\x153\x14seizure\0+30\x152\x14clapping\x14\0", (5.0, 8.0)),  # the text is not closed
        ("+5\x153\x14left arm\nseizure@@A1\x14\0", (5.0, 8.0)),
    ],
)
def test_annotations_that_mne_leaves_out_or_misplaces(tmp_path, entry, span):
    path = handmade(tmp_path / "x.edf", "EDF+C", [f"+{i}.25" for i in range(60)], entry)
    assert read_recording(path).seizures == (tuple(time - 0.25 for time in span),)


def test_annotations_without_stamps_or_a_time_and_letters_of_two_encodings(tmp_path):
    entry = "+7\x152\x14QQ\x14\0+20\x155\x14Anfälle\x14\0soon\x14seizure\x14\0"
    path = handmade(tmp_path / "x.edf", "EDF+C", [""] * 60, entry)
    path.write_bytes(path.read_bytes().replace(b"QQ", "äö".encode("latin-1")))
    with pytest.warns(UserWarning, match=r"have 1 without a time that can be read, which are left out") as caught:
        assert read_recording(path).seizures == ((20.0, 25.0),)
    assert any("read as Latin-1" in str(warning.message) for warning in caught)


def test_samples_of_16_and_of_24_bits_are_told_apart(tmp_path):
    x = np.random.default_rng(0).normal(0, 50, 60 * 256)
    limits = {"label": "A1", "physical_dimension": "uV", "physical_range": (-400, 400)}
    edfio.Bdf([edfio.BdfSignal(x, 256, **limits)]).write(tmp_path / "night.bdf")
    edfio.Edf([edfio.EdfSignal(x, 256, **limits)]).write(tmp_path / "day.edf")
    (tmp_path / "night.bdf").rename(tmp_path / "night.edf")
    (tmp_path / "day.edf").rename(tmp_path / "day.BDF")
    for name, kind in (("night.edf", "BDF"), ("day.BDF", "EDF")):
        message = rf"{name} is {kind} by its first bytes: give it the ending \.{kind.lower()}"
        refused(tmp_path / name, message, truncated="read")


def test_warnings_of_the_reader_reach_the_user_once(tmp_path):
    path = handmade(tmp_path / "x.edf", "EDF+C", [f"+{i}" for i in range(60)])
    content = bytearray(path.read_bytes())
    content[600:608] = content[576:584]  # the physical maximum of A2 is its minimum
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="Physical range") as caught:
        read_recording(path)
    (message,) = (str(warning.message) for warning in caught if "Physical range" in str(warning.message))
    assert message.startswith(str(path))
    assert "A2" in message
    assert "\n" not in message


class TestGDF:
    """A GDF 1.25 file written byte by byte: channels of one level, 5 records of 1 s."""

    def write(self, path: Path, levels: list[int], units: list[str], rates: list[int]) -> Path:
        number = len(levels)
        head = b"GDF 1.25" + b"X X".ljust(160) + b"2001010101010100" + struct.pack("<q", 256 * (number + 1))
        head += bytes(44) + struct.pack("<qIII", 5, 1, 1, number)
        head += b"".join(f"A{i + 1}".encode().ljust(16, b"\0") for i in range(number)) + bytes(80 * number)
        head += b"".join(unit.encode().ljust(8, b"\0") for unit in units)
        head += struct.pack(f"<{2 * number}d", *[-1000] * number, *[1000] * number)
        head += struct.pack(f"<{2 * number}q", *[-1000] * number, *[1000] * number) + bytes(80 * number)
        head += struct.pack(f"<{2 * number}i", *rates, *[3] * number) + bytes(32 * number)
        assert len(head) == 256 * (number + 1)
        record = b"".join(struct.pack("<h", level) * rate for level, rate in zip(levels, rates, strict=True))
        path.write_bytes(head + 5 * record + bytes(8))
        return path

    def test_units(self, tmp_path):
        path = self.write(tmp_path / "x.gdf", [100, 200], ["uV", "uV"], [256, 256])
        for unit in (None, "µV"):
            recording = read_recording(path, unit=unit)
            np.testing.assert_allclose(recording.read(7, 9), [[100, 100], [200, 200]], rtol=1e-6)
        refused(path, r"got unit='mV', but the file states µV for A1, A2", unit="mV")
        for unit, microvolts in (("mV", 1e3), ("V", 1e6), ("nV", 1e-3), ("µV", 1.0)):  # MNE knows none of them
            with warnings.catch_warnings(action="ignore"):
                recording = read_recording(self.write(tmp_path / "x.gdf", [100, 200], [unit, unit], [256, 256]))
            np.testing.assert_allclose(recording.read(7, 8)[:, 0], [100 * microvolts, 200 * microvolts], rtol=1e-6)
        path = self.write(tmp_path / "y.gdf", [100, 200], ["uV", "?"], [256, 256])
        refused(path, r"y: unknown unit \['\?'\] of channels A2:", channels=["A1", "A2"])
        assert read_recording(path).dropped == {"A2": "its unit, '?', is no known voltage"}
        np.testing.assert_allclose(read_recording(path, unit="nV").read(7, 8), [[100], [0.2]], rtol=1e-6)

    @pytest.mark.parametrize(("code", "microvolts"), [(4256, 1e6), (4274, 1e3), (4275, 1.0), (4276, 1e-3)])
    def test_units_of_version_2(self, tmp_path, code, microvolts):
        """Codes of ISO/IEEE 11073-10101, which GDF 2 names: 4256 is the volt, and its last five bits are the prefix."""
        make_gdf(tmp_path)
        content = bytearray((tmp_path / "x.gdf").read_bytes())
        content[256 + 102 * 2 : 256 + 104 * 2] = struct.pack("<HH", code, code)
        (tmp_path / "x.gdf").write_bytes(content)
        stored = np.frombuffer(content, "<i2", 64, 256 * 3)  # from -32768 to 32767, as the limits say of ±3000
        with warnings.catch_warnings(action="ignore"):
            recording = read_recording(tmp_path / "x.gdf")
        np.testing.assert_allclose(recording.read(0, 64)[0], stored * microvolts, rtol=1e-5)

    def test_rates_that_differ_are_refused(self, tmp_path):
        path = self.write(tmp_path / "x.gdf", [100, 200], ["uV", "uV"], [256, 512])
        refused(path, r"x: its EEG channels are stored at 256 Hz .* MNE would read them at 512")


def test_annotations_of_several_lines_are_read(tmp_path):
    texts = [
        (2.5, 4, "sz\nfocal"),
        (10, None, "sz\r\nstart"),
        (15, None, "sz end\nEEG"),
        (20, 5, "seizure"),
        (30, 1, "x\ny"),
    ]
    for start in (0, 0.25):
        annotations = [edfio.EdfAnnotation(*text) for text in texts]
        starttime = None if not start else datetime.time(12, 0, 0, 250000)
        edfio.Edf(electrodes(), annotations=annotations, starttime=starttime).write(tmp_path / "lines.edf")
        assert read_recording(tmp_path / "lines.edf").seizures == ((2.5, 6.5), (10.0, 15.0), (20.0, 25.0))
