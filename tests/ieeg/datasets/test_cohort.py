"""The duplicates of SWEC and splits that do not leak."""

import re
import warnings

import numpy as np
import pytest

from mvpa_ts.ieeg import Recording, RecordingDataModule, read_recording, simulate_recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.datasets.cohort import UNSEEN32, paper_split, split_subjects
from mvpa_ts.ieeg.recordings import swec_table
from mvpa_ts.ieeg.recordings.swec_table import SWEC_DUPLICATES, identity, swec_differences, swec_subjects
from mvpa_ts.ieeg.simulation.writing import write_swec


def test_the_map():
    assert len(SWEC_DUPLICATES) == 18
    assert SWEC_DUPLICATES["ID20"] == "ID01"
    assert SWEC_DUPLICATES["ID24"] == "ID04"
    assert SWEC_DUPLICATES["ID34"] == "ID12"
    assert SWEC_DUPLICATES["ID40"] == "ID18"
    assert set(SWEC_DUPLICATES.values()) == {f"ID{i:02d}" for i in range(1, 19)}
    assert not {"ID19", "ID23", "ID26", "ID33"} & set(SWEC_DUPLICATES)
    assert len({identity(s.subject) for s in swec_subjects()}) == 50


def test_the_table_agrees_with_the_map():
    table = {s.subject: s for s in swec_subjects()}
    assert list(table) == [f"ID{i:02d}" for i in range(1, 69)]
    for later, first in SWEC_DUPLICATES.items():
        for field in ("channels", "sfreq", "hours", "events"):
            assert getattr(table[later], field) == getattr(table[first], field)
        assert (table[later].same_as, table[first].same_as) == (first, later)
    assert sum(s.same_as is not None for s in swec_subjects()) == 36


def test_the_table_adds_up_to_what_the_paper_states():
    subjects = swec_subjects()
    assert sum(s.hours for s in subjects) == pytest.approx(9328.1)
    assert sum(s.events for s in subjects) == 704
    # The paper's rows ID01 to ID18; the page of the earlier long-term data set states 116 for its 18 patients.
    assert sum(s.events for s in subjects[:18]) == 244
    assert sum(s.hours for s in subjects[:18]) == pytest.approx(2655.9)
    assert {s.sfreq for s in subjects} == {512.0, 1024.0}


def test_papers_split():
    clean = paper_split()
    assert (len(clean.train), len(clean.test), clean.leaked) == (18, 32, ())
    assert clean.test == UNSEEN32
    assert UNSEEN32[:5] == ("ID19", "ID23", "ID26", "ID33", "ID41")
    with pytest.warns(UserWarning, match="18 subjects are in two parts under two names"):
        leaky = paper_split(allow_duplicates=True)
    assert len(leaky.test) == 50
    assert len(leaky.leaked) == 18


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((["ID01"], ["ID20"]), r"ID20 \(test\) is the same recording as ID01 \(train\)"),
        ((["ID25", "S"], ["ID05"]), r"ID05 \(test\) is the same recording as ID25 \(train\)"),
        ((["S1"], ["S2"], ["S1"]), "S1 is in train and in validation"),
        ((["S1"], ["S2"], ["S2"]), "S2 is in validation and in test"),
        (([], ["S2"]), "train must hold at least one subject"),
        ((["S2"], []), "test must hold at least one subject"),
    ],
)
def test_overlaps_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        split_subjects(*parts)


def test_one_name_in_two_parts_is_never_allowed_and_two_names_in_one_are_no_leak():
    with pytest.raises(ValueError, match="S1 is in train and in test"):
        split_subjects(["S1"], ["S1"], allow_duplicates=True)
    assert split_subjects(["ID01", "ID20"], ["ID02"]).leaked == ()


def test_a_downloaded_folder_is_compared_with_the_table(tmp_path, monkeypatch):
    """Folders as the simulator writes them, and a table that states them: whole, cut short, with a seizure less."""
    names = ("ID01", "ID02", "ID03", "ID04")
    stated = [swec_table.SwecSubject(name, channels=2, sfreq=512, hours=0.1, events=2, same_as=None) for name in names]
    monkeypatch.setattr(swec_table, "swec_subjects", lambda: tuple(stated))
    seizures = [(10.0, 20.0), (100.0, 120.0)]
    for name, seconds, events in (("ID01", 360.9, 2), ("ID02", 300.0, 2), ("ID03", 360.0, 1)):
        recording = simulate_recording(name, num_channels=2, duration=seconds, num_seizures=0)
        write_swec(recording.with_seizures(seizures[:events]), tmp_path)
    recordings = [read_recording(tmp_path / name) for name in ("ID01", "ID02", "ID03")]
    assert [swec_differences(recording) for recording in recordings] == [
        [],
        ["ID02 has 0.08333 h, too short: the data set 0.1"],
        ["ID03 has 1 events, the data set 2"],
    ]
    slower = simulate_recording("ID04", num_channels=2, duration=360.0, num_seizures=0, sfreq=1024.0)
    write_swec(slower.with_seizures(seizures), tmp_path)
    assert swec_differences(read_recording(tmp_path / "ID04")) == ["ID04 has 1024 Hz, the data set 512"]
    cropped = Recording.from_array(np.ones((3, 512 * 9)), 512.0, ["a", "b", "c"], "mV", subject="ID01")
    assert swec_differences(cropped) == []  # a recording of another source may bear any name


def test_training_names_a_short_download(tmp_path):
    for name in ("ID19", "S01"):
        write_swec(simulate_recording(name, num_channels=4, duration=150, num_seizures=0), tmp_path)
    data = RecordingDataModule([tmp_path], validation_subjects=["S01"], context=2, windows=1)
    with pytest.warns(UserWarning, match=r"ID19 has 0\.04167 h, too short"):
        data.setup()


def test_reading_compares_with_the_table(tmp_path):
    folder = write_swec(simulate_recording("ID05", num_channels=3, duration=60, num_seizures=0), tmp_path)
    with pytest.warns(UserWarning, match="published table: ID05 has 3 channels") as caught:
        read_recording(folder)
    (warning,) = caught
    assert "ID05 has 0.01667 h, too short" in str(warning.message)
    # One part is always shorter and holds no seizures: what it must share are channels and rate.
    with pytest.warns(UserWarning, match="ID05 has 3 channels") as caught:
        read_recording(folder / "ID05_part_1.h5")
    assert not any("short" in str(warning.message) or "events" in str(warning.message) for warning in caught)
    with warnings.catch_warnings(action="error"):
        read_recording(folder, subject="P07")  # of no subject of the table


MISSING = r"66 of the 68 SWEC subjects are missing: ID01 to ID18, ID20 to ID49, ID51 to ID68\. Was the download"


def of_missing(caught) -> list[str]:
    return [str(warning.message) for warning in caught if "SWEC subjects are missing" in str(warning.message)]


@pytest.fixture
def two_subjects(tmp_path):
    for name in ("ID19", "ID50"):
        write_swec(simulate_recording(name, num_channels=4, duration=150, num_seizures=0), tmp_path / "swec")
    return tmp_path / "swec"


def test_detect_names_missing_subjects_once(two_subjects, tmp_path):
    with pytest.warns(UserWarning, match=MISSING) as caught:
        assert main(["detect", str(two_subjects), "-o", str(tmp_path / "out")]) == 0
    assert len(of_missing(caught)) == 1
    with warnings.catch_warnings(record=True, action="always") as caught:
        subjects = [str(two_subjects / name) for name in ("ID19", "ID50")]
        assert main(["detect", *subjects, "-o", str(tmp_path / "single")]) == 0
    assert of_missing(caught) == []


def test_training_names_missing_subjects_once(two_subjects):
    def setup(*sources):
        data = RecordingDataModule(sources, validation_subjects=["ID50"], context=2, windows=1)
        with warnings.catch_warnings(record=True, action="always") as caught:
            data.setup()
        return of_missing(caught)

    (message,) = setup(str(two_subjects))
    assert re.match(MISSING, message)
    assert setup(two_subjects / "ID19", two_subjects / "ID50") == []
