"""Positions of electrodes from odd tables: read where they can be, else named in a warning, and never in the way."""

import pytest

from mvpa_ts.ieeg.recordings.bids import electrode_positions

GOOD = "name\tx\ty\tz\tnote\nA1\t1\t2\t3\tn\u00e9\nA2\tn/a\t2\t3\t\nEEG B1-Ref\t4\t5\t6\n"


def write(folder, text, encoding="utf-8"):
    (folder / "sub-01_space-ACPC_electrodes.tsv").write_text(text, encoding=encoding)
    return folder / "sub-01_task-x_ieeg.edf"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_any_encoding(tmp_path, encoding, recwarn):
    positions = electrode_positions(write(tmp_path, GOOD, encoding))
    assert ["is read as Windows-1252" in str(said.message) for said in recwarn] == [True] * (encoding == "latin-1")
    assert positions == {"A1": (1.0, 2.0, 3.0), "B1": (4.0, 5.0, 6.0)}


@pytest.mark.parametrize("text", [GOOD.replace("name", "label"), "name\tx\ty\nA1\t1\t2\n", "", "name\tx\ty\n\rz\r"])
def test_an_odd_table_is_named(tmp_path, text):
    file = write(tmp_path, text)
    with pytest.warns(UserWarning, match=r"no positions of electrodes: .*sub-01_space-ACPC_electrodes\.tsv has no col"):
        assert electrode_positions(file) == {}


def test_a_row_that_is_too_short_or_too_long(tmp_path):
    assert electrode_positions(write(tmp_path, "name\tx\ty\tz\nA1\t1\nA2\t1\t2\t3\t4\t5\n")) == {"A2": (1.0, 2.0, 3.0)}


@pytest.mark.parametrize("missing", ["n/a", "NaN", "nan", "inf", ""])
def test_contacts_without_numbers_are_left_out(tmp_path, missing):
    text = f"name\tx\ty\tz\nA1\t{missing}\t2\t3\nA2\t4\t5\t6\n"
    assert electrode_positions(write(tmp_path, text)) == {"A2": (4.0, 5.0, 6.0)}


def test_of_several_tables_none_is_taken_and_it_is_said(tmp_path):
    file = write(tmp_path, GOOD)
    (tmp_path / "sub-01_space-MNI_electrodes.tsv").write_text(GOOD)
    with pytest.warns(UserWarning, match="several tables of them, sub-01_space-ACPC_electrodes.tsv, sub-01_space-MNI"):
        assert electrode_positions(file) == {}


def test_of_two_positions_of_a_contact_none_is_taken_and_it_is_said(tmp_path):
    with pytest.warns(UserWarning, match="no positions of A1: .* has several of them, which differ"):
        assert electrode_positions(write(tmp_path, f"{GOOD}A1\t9\t9\t9\nB1\t4\t5\t6\n")) == {"B1": (4.0, 5.0, 6.0)}
