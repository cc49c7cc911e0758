"""Files that are whole or not there."""

import json
import os
from pathlib import Path

import pytest
from support.made_up_recordings import disk_of

from mvpa_ts.files import replaced, write_bytes, write_csv, write_json, write_text


def test_replaces_and_makes_folders(tmp_path):
    path = tmp_path / "new" / "file"
    write_bytes(path, b"first")
    write_bytes(path, b"second")
    assert path.read_bytes() == b"second"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize(("place", "step"), [(Path, "write_bytes"), (os, "replace")])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, place, step):
    path = tmp_path / "file"
    write_text(path, "old")

    def fail(*_: object) -> None:
        raise OSError("disk")

    with monkeypatch.context() as patched:
        patched.setattr(place, step, fail)
        with pytest.raises(OSError, match="disk"):
            write_text(path, "new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_is_reported_with_the_files_name(tmp_path):
    """A limit on the size of files stands for it."""
    write_text(tmp_path / "file", "old")
    with disk_of(1000), pytest.raises(OSError, match=r"so it was not written and an older one is whole: '.*file'"):
        write_text(tmp_path / "file", "x" * 5000)
    assert (tmp_path / "file").read_text() == "old"


def test_the_temporary_file_lies_beside_and_keeps_the_suffix(tmp_path):
    with replaced(tmp_path / "plot.png") as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".png")


@pytest.mark.parametrize("name", ["x" * 251 + ".txt", "\N{GRINNING FACE}" * 62 + ".txt"])
def test_a_name_as_long_as_systems_take_is_written(tmp_path, name):
    (tmp_path / name).write_text("old")
    write_text(tmp_path / name, "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "new")]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_permissions_are_those_of_any_new_file(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_text_is_utf8_with_unchanged_line_ends(tmp_path):
    write_text(tmp_path / "file", "µV\n")
    assert (tmp_path / "file").read_bytes() == b"\xc2\xb5V\n"


def test_json_refuses_nan(tmp_path):
    write_json(tmp_path / "file", {"a": [1, None]})
    assert json.loads((tmp_path / "file").read_text()) == {"a": [1, None]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "file", {"a": float("nan")})
    assert json.loads((tmp_path / "file").read_text()) == {"a": [1, None]}


def test_no_text_of_a_table_is_a_formula(tmp_path):
    pd = pytest.importorskip("pandas")
    names = ["=cmd|'/c calc'!A1", "+1", "-S1", "@x", "\tx", "S=1", "", None]
    write_csv(tmp_path / "x.csv", pd.DataFrame({"subject": names, "value": [-1.5, 2, 3, 4, 5, 6, 7, 8]}))
    read = pd.read_csv(tmp_path / "x.csv", keep_default_na=False)
    assert read["subject"].tolist() == ["'=cmd|'/c calc'!A1", "'+1", "'-S1", "'@x", "'\tx", "S=1", "", ""]
    assert read["value"].tolist()[0] == -1.5
    write_csv(tmp_path / "x.csv", pd.DataFrame([[1, 2]], columns=["=1+1", 5]))  # names of classes, for example
    assert (tmp_path / "x.csv").read_text() == "'=1+1,5\n1,2\n"
