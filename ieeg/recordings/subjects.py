"""Which files are of one person: a table for recordings that lie outside a BIDS data set."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from mvpa_ts.checks import listed
from mvpa_ts.ieeg.recordings.bids import read_tsv

COLUMNS = ("file", "subject")


def read_subjects(path: str | Path) -> dict[Path, str]:
    """The subject of each file of a table, such as a ``participants.tsv`` with a column of files.

    Parameters
    ----------
    path : path
        Values between tabs, with a heading. ``file`` is a file or a SWEC folder, given from the table's own folder on;
        ``subject`` says who was recorded. Other columns are left alone.

    Returns
    -------
    dict of Path to str
        By absolute path.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("first.edf", "second.edf"):
    ...     (folder / name).touch()
    >>> lines = ["file\\tsubject", "first.edf\\tAda", "second.edf\\tAda"]
    >>> _ = (folder / "subjects.tsv").write_text("\\n".join(lines))
    >>> {file.name: subject for file, subject in read_subjects(folder / "subjects.tsv").items()}
    {'first.edf': 'Ada', 'second.edf': 'Ada'}
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no table of subjects {path}")
    folder = Path(os.path.abspath(path.parent))
    subjects: dict[Path, str] = {}
    for number, row in enumerate(read_tsv(path, COLUMNS), start=2):
        name, subject = (row[column].strip() for column in COLUMNS)
        line = f"{path}, line {number}"
        # A file without a subject would count as a person of its own, who could be on both sides of a split.
        if "" in (name, subject) or subject == "n/a":
            raise ValueError(f"{line}: a file and its subject are needed, got {name!r} and {subject!r}")
        # A table may come from somebody else, and must not make us read files elsewhere on this machine.
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"{line}: {name} lies outside the table's folder: give files from there on")
        if not (folder / relative).exists():
            raise FileNotFoundError(f"{line}: there is no file or folder {folder / relative}")
        if folder / relative in subjects:
            raise ValueError(f"{line}: {name} is named twice")
        subjects[folder / relative] = subject
    return subjects


def subject_of_each(files: Iterable[Path], path: str | Path) -> dict[Path, str]:
    """The subject of each of `files` by the table `path`; a ValueError where the two do not name the same files."""
    subjects = read_subjects(path)
    # Absolute paths: the table counts from its own folder, the command from where it was started.
    by_path = {Path(os.path.abspath(file)): file for file in files}
    if nameless := [str(file) for path_of_file, file in by_path.items() if path_of_file not in subjects]:
        raise ValueError(f"{path} does not say who was recorded in {listed(nameless, 3)}: add a line for each")
    if unknown := [str(path_of_file) for path_of_file in subjects if path_of_file not in by_path]:
        raise ValueError(f"{path} names files that are no recordings of this run: {listed(unknown, 3)}")
    return {file: subjects[path_of_file] for path_of_file, file in by_path.items()}
