"""Tables of who was recorded in which file."""

from pathlib import Path

import pytest
from support.reading import refuses

from mvpa_ts.ieeg.recordings.subjects import read_subjects, subject_of_each


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "night").mkdir()
    for name in ("a.edf", "b.edf", "night/c.edf"):
        (tmp_path / name).touch()
    return tmp_path


def table(folder: Path, *rows: str, heading: str = "file\tsubject") -> Path:
    path = folder / "subjects.tsv"
    path.write_text("\n".join([heading, *rows]) + "\n")
    return path


def test_files_of_one_person(folder, monkeypatch):
    path = table(
        folder, "34\tAda\ta.edf", "34\tAda\tnight/c.edf", "n/a\tEmil\tb.edf", heading="\ufeffage\tsubject\tfile"
    )
    expected = {folder / "a.edf": "Ada", folder / "night/c.edf": "Ada", folder / "b.edf": "Emil"}
    assert read_subjects(path) == expected
    monkeypatch.chdir(folder)
    files = [Path("b.edf"), Path("night/../a.edf"), folder / "night/c.edf"]
    assert subject_of_each(files, "subjects.tsv") == dict(zip(files, ["Emil", "Ada", "Ada"], strict=True))


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ("absent.edf\tAda", FileNotFoundError, r"line 3: there is no file or folder .*absent\.edf"),
        ("../a.edf\tAda", ValueError, r"line 3: \.\./a\.edf lies outside the table's folder"),
        ("night/../../a.edf\tAda", ValueError, "outside the table's folder"),
        ("/etc/hosts\tAda", ValueError, "outside the table's folder"),
        ("a.edf\tEmil", ValueError, "line 3: a.edf is named twice"),
        ("night/c.edf", ValueError, r"line 3: a file and its subject are needed, got 'night/c\.edf' and ''"),
        ("\tAda", ValueError, "a file and its subject are needed"),
        ("b.edf\tn/a", ValueError, "a file and its subject are needed"),
    ],
)
def test_wrong_rows(folder, row, error, message):
    refuses(read_subjects, message, table(folder, "a.edf\tAda", row), kind=error)


def test_wrong_tables(folder):
    refuses(read_subjects, r"no table of subjects .*subjects\.tsv", folder / "subjects.tsv", kind=FileNotFoundError)
    with pytest.raises(ValueError, match=r"no column 'file'; its columns are participant_id, subject"):
        read_subjects(table(folder, "a.edf\tAda", heading="participant_id\tsubject"))
    (folder / "subjects.tsv").write_bytes(b"")
    refuses(read_subjects, "no column 'file'", folder / "subjects.tsv")
    (folder / "subjects.tsv").write_bytes(b"file\tsubject\na.edf\t" + b"x" * 200_000)
    refuses(read_subjects, "is not a text table", folder / "subjects.tsv")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_other_encodings(folder, encoding, recwarn):
    (folder / "subjects.tsv").write_bytes("file\tsubject\na.edf\tJörg\n".encode(encoding))
    assert read_subjects(folder / "subjects.tsv") == {folder / "a.edf": "Jörg"}
    assert ["is read as Windows-1252" in str(warning.message) for warning in recwarn] == [True] * (encoding == "cp1252")


def test_table_and_recordings_name_the_same_files(folder):
    path = table(folder, "a.edf\tAda", "b.edf\tAda")
    with pytest.raises(ValueError, match=r"does not say who was recorded in .*c\.edf: add a line for each"):
        subject_of_each([folder / name for name in ("a.edf", "b.edf", "night/c.edf")], path)
    refuses(subject_of_each, r"no recordings of this run: .*b\.edf", [folder / "a.edf"], path)
