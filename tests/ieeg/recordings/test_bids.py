"""channels.tsv in any order, where each channel's amplitude says which contact it really is; and electrodes.tsv."""

import re
import warnings
from pathlib import Path

import edfio
import numpy as np
import pytest
from support.reading import refused, warned

from mvpa_ts.ieeg import read_recording
from mvpa_ts.ieeg.recordings.bids import beside, electrode_positions, rows_of_channels

NAMES = tuple(f"A{i}" for i in range(1, 11))
RATE = 256


def contact(number: int, label: str, rate: int = RATE) -> object:
    """Contact `number` is a sine of its own frequency with an amplitude of that many times 10 µV."""
    x = 10 * number * np.sin(2 * np.pi * (4 + number) * np.arange(20 * rate) / rate)
    return edfio.EdfSignal(x, rate, label=label, physical_dimension="uV", physical_range=(-200, 200))


def data_set(folder: Path, labels: list[str], rows: list[str], others: tuple[object, ...] = ()) -> Path:
    """A BIDS data set whose file has contacts 1, 2, … of these labels, and `rows` of name, type and state."""
    place = folder / "sub-01" / "ieeg"
    place.mkdir(parents=True)
    (folder / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.9.0"}')
    heading = "name\ttype\tunits\tstatus\n"
    (place / "sub-01_task-x_channels.tsv").write_text(heading + "".join("\t".join(row.split()) + "\n" for row in rows))
    path = place / "sub-01_task-x_ieeg.edf"
    edfio.Edf([*(contact(i, label) for i, label in enumerate(labels, 1)), *others]).write(path)
    return path


def row(name: str, kind: str = "SEEG", state: str = "good") -> str:
    return f"{name} {kind} uV {state}"


def contacts(recording) -> dict[str, int]:
    """Which contact each channel really is, by its amplitude."""
    amplitudes = np.abs(recording.read(0, 2000)).max(1)
    return dict(zip(recording.channel_names, (int(a) for a in np.rint(amplitudes / 10)), strict=True))


@pytest.mark.parametrize("label", ["{}", "EEG {}-Ref", "POL {}"])
@pytest.mark.parametrize("order", ["as in the file", "alphabetical", "first two swapped"])
def test_rows_in_any_order(tmp_path, label, order):
    listed = {
        "as in the file": list(NAMES),
        "alphabetical": sorted(NAMES),
        "first two swapped": ["A2", "A1", *NAMES[2:]],
    }[order]
    rows = [row(name, state="bad" if name == "A10" else "good") for name in listed]
    with warnings.catch_warnings(action="error"):
        recording = read_recording(data_set(tmp_path, [label.format(name) for name in NAMES], rows))
    assert recording.dropped == {"A10": "marked bad"}
    assert contacts(recording) == {f"A{i}": i for i in range(1, 10)}
    assert not recording.source.raw.preload


@pytest.mark.parametrize(
    ("tables", "onset"),
    [
        (["task-x_events.tsv"], 1.0),
        (["task-x_events.tsv", "sub-01/sub-01_events.tsv"], 2.0),
        (["sub-01/sub-01_events.tsv", "sub-01/ieeg/sub-01_events.tsv", "sub-01/ieeg/sub-01_task-x_events.tsv"], 3.0),
        (["sub-01/ieeg/sub-01_events.tsv"], 1.0),
        # Of another recording, by an entity that this one does not have, or has with another value.
        (["sub-01/ieeg/sub-01_task-x_run-2_events.tsv", "task-y_events.tsv", "sub-01/ieeg/sub-1_events.tsv"], None),
    ],
)
def test_a_table_speaks_of_recordings_that_have_all_its_entities(tmp_path, tables, onset):
    """The inheritance principle of BIDS: the nearest folder, and there the most entities, win."""
    path = data_set(tmp_path, ["A1", "A2"], [row("A1"), row("A2")])
    for number, name in enumerate(tables, 1):
        (tmp_path / name).write_text(f"onset\tduration\ttrial_type\n{number}\t5\tseizure\n")
    assert read_recording(path).seizures == (() if onset is None else ((onset, onset + 5.0),))


@pytest.mark.parametrize("entity", ["run-1", "split-01"])
def test_a_table_that_several_recordings_inherit_is_named(tmp_path, entity):
    path = data_set(tmp_path, ["A1", "A2"], [row("A1"), row("A2")])
    runs = [path.with_name(f"sub-01_task-x_{entity[:-1]}{number}_ieeg.edf") for number in (1, 2)]
    for run in runs:
        run.write_bytes(path.read_bytes())
    table = path.with_name("sub-01_task-x_events.tsv")
    table.write_text("onset\tduration\ttrial_type\n5\t5\tseizure\n")
    # The recording with the table's own name is one of three.
    for run in runs:
        with pytest.warns(UserWarning, match=rf"events\.tsv is the table of .* such as sub-01_task-x_{entity}_events"):
            assert read_recording(run).seizures == ((5.0, 10.0),)
    runs[0].with_name(f"sub-01_task-x_{entity}_events.tsv").write_text("onset\tduration\ttrial_type\n9\t5\tsz\n")
    with warnings.catch_warnings(action="error"):
        assert read_recording(runs[0]).seizures == ((9.0, 14.0),)


def test_order_is_all_there_is(tmp_path):
    rows = [row("LA1"), row("LA2", state="bad"), row("X", "MISC")]
    with pytest.warns(UserWarning, match=r"channels\.tsv names none of the file's channels, such as 'c1'; its rows"):
        recording = read_recording(data_set(tmp_path, ["c1", "c2", "c3"], rows))
    assert contacts(recording) == {"LA1": 1}
    assert recording.dropped == {"LA2": "marked bad", "X": "type misc"}


def test_names_of_which_some_are_unknown(tmp_path):
    rows = [row("A3", state="bad"), row("B9", state="bad"), row("A1")]
    with pytest.warns(UserWarning, match=r"only the table has \['B9'\], only the file has \['EEG A2'\]"):
        recording = read_recording(data_set(tmp_path, ["EEG A1", "EEG A2", "EEG A3"], rows))
    assert contacts(recording) == {"A1": 1, "EEG A2": 2}
    assert recording.dropped == {"A3": "marked bad"}


def test_more_channels_than_rows(tmp_path):
    with pytest.warns(UserWarning, match=r"only the file has \['A2'\]"):
        recording = read_recording(data_set(tmp_path, ["A1", "A2", "A3"], [row("A3", state="bad"), row("A1")]))
    assert contacts(recording) == {"A1": 1, "A2": 2}


def test_types_that_bids_does_not_have_are_said(tmp_path):
    rows = [row("A1", "DEPTH"), row("A2", "n/a"), row("A3", "seeg"), row("A4", "temp")]
    with pytest.warns(UserWarning, match="another one of BIDS, got 'DEPTH', 'n/a': such a channel is left out"):
        recording = read_recording(data_set(tmp_path, ["A1", "A2", "A3", "A4"], rows))
    assert contacts(recording) == {"A3": 3}


def test_names_that_appear_twice(tmp_path):
    recording = read_recording(data_set(tmp_path, ["A1", "A1", "A2"], [row("A2"), row("A1"), row("A1", state="bad")]))
    assert contacts(recording) == {"A1-0": 1, "A2": 3}
    assert recording.dropped == {"A1-1": "marked bad"}


@pytest.mark.parametrize("labels", [("EEG A1", "EEG A2"), ("c1", "c2")])
def test_with_a_faster_channel_too(tmp_path, labels):
    rows = [row("A1", state="bad"), row("A2"), row("pulse", "MISC")]
    path = data_set(tmp_path, list(labels), rows, (contact(9, "c3" if labels[0] == "c1" else "pulse", 4 * RATE),))
    with warnings.catch_warnings(action="ignore"):
        recording = read_recording(path)
    assert recording.sfreq == RATE
    assert contacts(recording) == {"A2": 2}
    assert recording.dropped == {"A1": "marked bad", "pulse": "type misc"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("name\tunits\nA1\tuV\n", r"sub-01_task-x_channels\.tsv has no column 'type'; its columns are name"),
        ("label\ttype\nA1\tSEEG\n", r"sub-01_task-x_channels\.tsv has no column 'name'"),
        ("", r"sub-01_task-x_channels\.tsv has no column 'name'; its columns are none"),
    ],
)
def test_odd_tables_are_named(tmp_path, table, message):
    path = data_set(tmp_path, ["A1"], [])
    (path.parent / "sub-01_task-x_channels.tsv").write_text(table)
    refused(path, message)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_micro_sign_in_any_encoding(tmp_path, encoding):
    path = data_set(tmp_path, ["A1", "A2"], [])
    table = "name\ttype\tunits\tstatus\nA2\tSEEG\tµV\tgood\nA1\tSEEG\tµV\tbad\n"
    (path.parent / "sub-01_task-x_channels.tsv").write_text(table, encoding=encoding)
    recording = read_recording(path)
    assert contacts(recording) == {"A2": 2}
    assert recording.dropped == {"A1": "marked bad"}


def test_two_names_that_are_one_without_their_prefix():
    table = [{"name": "A1", "type": "SEEG"}, {"name": "A2", "type": "SEEG"}]
    with pytest.warns(UserWarning, match=r"only the table has \['A1'\], only the file has \['EEG A1', 'POL A1'\]"):
        rows = rows_of_channels(["EEG A1", "POL A1", "A2"], table, "channels.tsv")
    assert rows == {"A2": table[1]}


@pytest.mark.parametrize("name", ["night", "sub-02_task-x_ieeg"])
def test_a_table_beside_a_file_of_no_data_set(tmp_path, name):
    """Bad channels stay out, and a unit that only the table states is taken."""
    path = tmp_path / f"{name}.edf"
    edfio.Edf([edfio.EdfSignal(np.sin(np.arange(5120)), 256, label=f"A{i}") for i in (1, 2, 3)]).write(path)
    rows = ["A1\tSEEG\tmV\tgood", "A2\tSEEG\tuV\tbad", "A3\tSEEG\tµV\tgood"]
    table = tmp_path / f"{name.removesuffix('_ieeg')}_channels.tsv"
    table.write_text("name\ttype\tunits\tstatus\n" + "\n".join(rows) + "\n", encoding="utf-8")
    recording = warned(path, "is used as in BIDS")
    assert recording.dropped == {"A2": "marked bad"}
    assert recording.subject == name.partition("_")[0]
    np.testing.assert_allclose(np.abs(recording.read(0, 5120)).max(1), [1000, 1], rtol=1e-3)


def test_the_subject_of_a_data_set_without_its_description(tmp_path):
    """A session of somebody: the names, participants.tsv, scans.tsv and tables of the folders above still count."""
    folder = tmp_path / "sub-07" / "ses-2" / "ieeg"
    folder.mkdir(parents=True)
    path = folder / "sub-07_ses-2_task-x_ieeg.edf"
    edfio.Edf([contact(number, f"A{number}") for number in (1, 2, 3)]).write(path)
    (tmp_path / "participants.tsv").write_text("participant_id\tage\tsex\n07\t41\tf\n")  # without "sub-", too
    (folder.parent / "sub-07_ses-2_scans.tsv").write_text(f"filename\tacq_time\nieeg\\{path.name}\t2021-03-01T10:00\n")
    (folder.parent / "sub-07_ses-2_events.tsv").write_text("onset\tduration\ttrial_type\n3\t4\tsz\n")
    recording = warned(path, r"sub-… in the names of .* no dataset_description\.json lies above it$")
    assert (recording.subject, recording.seizures) == ("sub-07", ((3.0, 7.0),))
    assert recording.metadata == {"age": 41.0, "sex": "female", "start": "2021-03-01T10:00:00+00:00"}
    scans = folder.parent / "sub-07_ses-2_scans.tsv"
    (header, scan), other = scans.read_text().splitlines(), f"ieeg/{path.name}\t2021-03-01T11:00:00"
    scans.write_text("\n".join([header, scan, other]))
    with pytest.warns(UserWarning, match=r"scans\.tsv: sub-07_.*_ieeg\.edf has several rows whose acq_time differ, of"):
        assert "start" not in read_recording(path).metadata  # EDF's first moment, 1985, is no date
    scans.write_text("\n".join([header, scan, scan]).replace("T10:00", ""))  # no midnight
    assert "start" not in warned(path, "_ieeg.edf is no date with a time and is not used").metadata


def test_a_table_whose_name_does_not_say_whose_it_is(tmp_path):
    path = data_set(tmp_path, ["A1"], [row("A1", state="bad")])
    for name in ("channels.tsv", "sub-01_task-X_Channels.tsv", "sub-1_task-x_channels.tsv"):
        next(path.parent.glob("*hannels.tsv")).rename(path.with_name(name))
        assert warned(path, rf"{name} is not read\. .* channels of .*, call it sub-01_task-x_ch").dropped == {}


@pytest.mark.parametrize(("unit", "scale"), [("microV", 1), ("mV", 1000), ("nV", 0.001)])
def test_units_that_only_the_table_states(tmp_path, unit, scale):
    edfio.Edf([edfio.EdfSignal(np.sin(np.arange(5120)), 256, label="A1")]).write(tmp_path / "night.edf")
    (tmp_path / "night_channels.tsv").write_text(f"name\ttype\tunits\nA1\tSEEG\t{unit}\n")
    recording = warned(tmp_path / "night.edf", "is used as in BIDS")
    np.testing.assert_allclose(np.abs(recording.read(0, 5120)).max(), scale, rtol=1e-3)


def test_units_of_file_and_table_that_differ(tmp_path):
    edfio.Edf([contact(1, "A1")]).write(tmp_path / "night.edf")
    (tmp_path / "night_channels.tsv").write_text("name\ttype\tunits\nA1\tSEEG\tmV\n")
    with pytest.warns(UserWarning, match=r"other units than the file, which is believed: A1 in mV \(µV in the file\)"):
        recording = read_recording(tmp_path / "night.edf")
    np.testing.assert_allclose(np.abs(recording.read(0, 5120)).max(), 10, rtol=1e-2)


def test_filters_that_only_the_table_states(tmp_path):
    edfio.Edf([contact(n, f"A{n}") for n in (1, 2, 3)]).write(tmp_path / "night.edf")
    cutoffs = "A1\tSEEG\t0.5\t100\nA2\tSEEG\tn/a\t30\nA3\tECG\t8\t20\n"
    (tmp_path / "night_channels.tsv").write_text(f"name\ttype\tlow_cutoff\thigh_cutoff\n{cutoffs}")
    recording = read_recording(tmp_path / "night.edf")
    assert {key: recording.metadata[key] for key in ("lowpass", "highpass")} == {"lowpass": 30.0, "highpass": 0.5}


def test_another_rate_in_the_table_is_said_and_names_are_stripped(tmp_path):
    edfio.Edf([contact(1, "A1"), contact(2, "A2")]).write(tmp_path / "night.edf")
    table = "name\ttype\tsampling_frequency\n A1\tSEEG\t256\nA2 \tSEEG\t512\n"
    (tmp_path / "night_channels.tsv").write_text(table)
    with pytest.warns(UserWarning, match=r"another sampling_frequency .*: A2 at 512 Hz \(256 Hz in the file\)\. If"):
        assert read_recording(tmp_path / "night.edf").channel_names == ("A1", "A2")


def test_states_by_another_heading_and_odd_ones(tmp_path):
    path = data_set(tmp_path, ["A1", "A2"], [row("A1", state="bad"), row("A2", state="noisy")])
    table = path.with_name("sub-01_task-x_channels.tsv")
    text = table.read_text().replace("status", "Status ")
    for written in (text, re.sub(r"[^\t\n]+", r'"\g<0>"', text)):  # R puts texts between quotation marks
        table.write_text(written)
        with pytest.warns(UserWarning, match="must be good, bad or n/a, got 'noisy': such a channel is read"):
            assert read_recording(path).dropped == {"A1": "marked bad"}


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("{bad", r"_ieeg\.json holds no object of JSON"),
        ('{"SamplingFrequency": 512}', "SamplingFrequency of 512, and .* has 256"),
        ('{"RecordingType": "Discontinuous"}', "calls the recording discontinuous, and .* is read as one stretch"),
        ('{"RecordingDuration": 600}', "RecordingDuration of 600, and .* has 20"),
    ],
)
def test_a_description_that_contradicts_the_file(tmp_path, stated, said):
    path = data_set(tmp_path, ["A1"], [row("A1")])
    path.with_suffix(".json").write_text(stated)
    warned(path, said)


def test_what_files_of_json_say_is_inherited_key_by_key(tmp_path):
    """The inheritance principle: a nearer file changes the keys that it has, and no others."""
    path = data_set(tmp_path, ["A1"], [row("A1")])
    (tmp_path / "task-x_ieeg.json").write_text('{"PowerLineFrequency": 60, "SamplingFrequency": 512}')
    path.with_suffix(".json").write_text('{"SamplingFrequency": 256}')
    path.with_name("sub-01_task-x_events.tsv").write_text("onset\tduration\ttrial_type\n1\t5\t7\n9\t5\tb\n")
    levels = '{"trial_type": {"Levels": {"7": "seizure"}, "HED": {"b": "Seizure, Focal"}}}'
    (tmp_path / "task-x_events.json").write_text(levels)
    path.with_name("sub-01_task-x_events.json").write_text('{"onset": {"Units": "s"}}')
    with pytest.warns(UserWarning, match="are not taken for seizures: 7, b, which .* says are some") as said:
        assert read_recording(path).metadata["line_frequency"] == 60.0
    assert not any("SamplingFrequency" in str(each.message) for each in said)


def test_names_of_another_case_are_matched_by_name_and_not_by_order():
    table = [{"name": name, "type": "SEEG"} for name in ("b1", "A2", "a1", "B1")]
    names = ["EEG A1-Ref", "EEG A2-Ref", "B1", "b1"]
    with warnings.catch_warnings(action="error"):
        rows = rows_of_channels(names, table, "channels.tsv")
    assert [rows[name]["name"] for name in names] == ["a1", "A2", "B1", "b1"]


def test_zeros_before_numbers_and_kinds_of_primes_are_no_other_names():
    """The EKG has one name in both, so that the order says nothing."""
    table = [{"name": name, "type": "SEEG"} for name in ("A’2", "EKG", "A01", "A10")]
    with warnings.catch_warnings(action="error"):
        rows = rows_of_channels(["A1", "EEG A'2", "A10", "EKG"], table, "channels.tsv")
    assert {name: row["name"] for name, row in rows.items()} == {
        "A1": "A01",
        "EEG A'2": "A’2",
        "A10": "A10",
        "EKG": "EKG",
    }


def test_tables_beside_files_and_folders():
    names = {"s1.edf": "s1", "s1_raw.fif.gz": "s1_raw", "sub-1_task-x_ieeg.vhdr": "sub-1_task-x", "ID01": "ID01"}
    for name, stem in names.items():
        assert beside(Path("data") / name, "events.tsv") == Path("data") / f"{stem}_events.tsv"


def test_a_subject_of_several_rows_and_errors_in_tables_of_the_folders_above(tmp_path):
    """In BIDS a participant_id is there once; of two that differ neither counts."""
    path, table = data_set(tmp_path, ["A1"], [row("A1")]), tmp_path / "participants.tsv"
    for rows, age in (("sub-01\t30\nsub-01 \t30\n", 30.0), ("sub-02\t9\nsub-01\0\t30\n", 30.0)):
        table.write_text(f"participant_id\tage\n{rows}")
        assert read_recording(path).metadata["age"] == age
    for text in ("participant_id\tage\nsub-01\t30\nsub-01\t45\n", "participant_id\tage\tage\nsub-01\t3\t4\n"):
        table.write_text(text)
        assert "age" not in warned(path, r"age, sex and handedness are not read: .*participants\.tsv has").metadata
    scans = path.parents[1] / "sub-01_scans.tsv"
    for text in ("", "filename,acq_time\n", "filename\tfilename\n"):
        scans.write_text(text)
        warned(path, r"the start is not read: .*sub-01_scans\.tsv has")
    scans.unlink()
    place = '{"InstitutionName": "Zürich", "PowerLineFrequency": 50}'
    for encoding in ("cp1252", "utf-16", "utf-8-sig"):
        (tmp_path / "task-x_ieeg.json").write_text(place, encoding=encoding)
        assert read_recording(path).metadata["line_frequency"] == 50.0
    (tmp_path / "task-x_events.tsv").write_text("when\ttrial_type\n1\tsz\n")
    refused(path, r"task-x_events\.tsv has no column 'onset'")


# Positions from odd tables: read where they can be, else named in a warning, and never in the way.
PLACES = "name\tx\ty\tz\tnote\nA1\t1\t2\t3\tn\u00e9\nA2\tn/a\t2\t3\t\nEEG B1-Ref\t4\t5\t6\n"


def placed(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    (folder / "sub-01_space-ACPC_electrodes.tsv").write_text(text, encoding=encoding)
    return folder / "sub-01_task-x_ieeg.edf"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_positions_of_electrodes_in_any_encoding(tmp_path, encoding, recwarn):
    positions = electrode_positions(placed(tmp_path, PLACES, encoding))
    assert ["is read as Windows-1252" in str(said.message) for said in recwarn] == [True] * (encoding == "latin-1")
    assert positions == {"A1": (1.0, 2.0, 3.0), "B1": (4.0, 5.0, 6.0)}


@pytest.mark.parametrize("text", [PLACES.replace("name", "label"), "name\tx\ty\nA1\t1\t2\n", "", "name\tx\ty\n\rz\r"])
def test_an_odd_table_of_electrodes_is_named(tmp_path, text):
    file = placed(tmp_path, text)
    with pytest.warns(UserWarning, match=r"no positions of electrodes: .*sub-01_space-ACPC_electrodes\.tsv has no col"):
        assert electrode_positions(file) == {}


def test_a_row_of_electrodes_that_is_too_short_or_too_long(tmp_path):
    assert electrode_positions(placed(tmp_path, "name\tx\ty\tz\nA1\t1\nA2\t1\t2\t3\t4\t5\n")) == {"A2": (1.0, 2.0, 3.0)}


@pytest.mark.parametrize("missing", ["n/a", "NaN", "nan", "inf", ""])
def test_contacts_without_numbers_are_left_out(tmp_path, missing):
    text = f"name\tx\ty\tz\nA1\t{missing}\t2\t3\nA2\t4\t5\t6\n"
    assert electrode_positions(placed(tmp_path, text)) == {"A2": (4.0, 5.0, 6.0)}


def test_of_several_tables_of_electrodes_none_is_taken_and_it_is_said(tmp_path):
    file = placed(tmp_path, PLACES)
    (tmp_path / "sub-01_space-MNI_electrodes.tsv").write_text(PLACES)
    with pytest.warns(UserWarning, match="several tables of them, sub-01_space-ACPC_electrodes.tsv, sub-01_space-MNI"):
        assert electrode_positions(file) == {}


def test_of_two_positions_of_a_contact_none_is_taken_and_it_is_said(tmp_path):
    with pytest.warns(UserWarning, match="no positions of A1: .* has several of them, which differ"):
        assert electrode_positions(placed(tmp_path, f"{PLACES}A1\t9\t9\t9\nB1\t4\t5\t6\n")) == {"B1": (4.0, 5.0, 6.0)}
