"""Subjects to train, validate and test on: the paper's split of SWEC, and splits that do not leak."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mvpa_ts.ieeg.datasets.swec import SWEC_DUPLICATES, identity, warn_of_swec_differences
from mvpa_ts.ieeg.recordings.reading import find_recordings
from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.ieeg.recordings.swec import read_swec

PAPER_TRAIN = tuple(f"ID{i:02d}" for i in range(1, 19))
"""The paper's training subjects."""
PAPER_TEST = tuple(f"ID{i:02d}" for i in range(19, 69))
"""The paper's 50 test subjects, 18 of whom are its training subjects under another name."""
UNSEEN32 = tuple(subject for subject in PAPER_TEST if subject not in SWEC_DUPLICATES)
"""The 32 test subjects that are truly unseen."""


@dataclass(frozen=True)
class Split:
    """Subjects to train, validate and test on.

    Attributes
    ----------
    train, validation, test : tuple of str
    leaked : tuple of (str, str)
        Pairs of names of one person in two parts; empty unless they were allowed.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    leaked: tuple[tuple[str, str], ...] = ()

    @property
    def unseen(self) -> tuple[str, ...]:
        """Test subjects that are not in another part under any name."""
        seen = {identity(subject) for subject in (*self.train, *self.validation)}
        return tuple(subject for subject in self.test if identity(subject) not in seen)

    def part(self, recordings: Iterable[Recording], name: str) -> list[Recording]:
        """Pick the recordings of a part, "train", "validation" or "test"."""
        if name not in ("train", "validation", "test"):
            raise ValueError(f'name must be "train", "validation" or "test", got {name!r}')
        return [recording for recording in recordings if recording.subject in getattr(self, name)]


def split_subjects(
    train: Sequence[str], test: Sequence[str], validation: Sequence[str] = (), *, allow_duplicates: bool = False
) -> Split:
    """Make a split; refuse it if a person is in two parts, under the same name or under two names.

    Parameters
    ----------
    train, test, validation : sequence of str
        Names of subjects. Names of SWEC folders are compared with the list of people who appear twice.
    allow_duplicates : bool
        Make the split anyway, with a warning and with the pairs in `Split.leaked`, to repeat published numbers. The
        same name in two parts is always refused.

    Raises
    ------
    ValueError
        A part is empty, a name is in two parts, or two names are one person.

    Examples
    --------
    >>> split_subjects(["ID01", "ID02"], ["ID19", "ID20"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ID20 (test) is the same recording as ID01 (train); pass allow_duplicates=True to split anyway (...)
    """
    parts = {"train": tuple(train), "validation": tuple(validation), "test": tuple(test)}
    for name in ("train", "test"):
        if not parts[name]:
            raise ValueError(f"{name} must hold at least one subject, got none")
    leaked = []
    seen: dict[str, tuple[str, str]] = {}
    for part, subjects in parts.items():
        for subject in dict.fromkeys(subjects):
            other, where = seen.setdefault(identity(subject), (subject, part))
            if where == part:
                continue
            if other == subject:
                raise ValueError(f"{subject} is in {where} and in {part}: name each subject once")
            if not allow_duplicates:
                raise ValueError(
                    f"{subject} ({part}) is the same recording as {other} ({where}); pass allow_duplicates=True to "
                    "split anyway (--data.allow_duplicates true)"
                )
            leaked.append((other, subject))
    if leaked:
        warnings.warn(
            f"{len(leaked)} subjects are in two parts under two names, such as {leaked[0]}: their scores are scores "
            "on training data",
            stacklevel=2,
        )
    return Split(parts["train"], parts["validation"], parts["test"], tuple(leaked))


def paper_split(allow_duplicates: bool = False) -> Split:
    """Make the paper's split: train on ID01 to ID18, and test on ID19 to ID68 or on the 32 unseen people among them.

    Parameters
    ----------
    allow_duplicates : bool
        False: the test subjects are `UNSEEN32`. True: they are all 50, and 18 of them also train; report the 32 too.

    Examples
    --------
    >>> len(paper_split().test)
    32
    """
    return split_subjects(PAPER_TRAIN, PAPER_TEST if allow_duplicates else UNSEEN32, allow_duplicates=allow_duplicates)


def subject_folds(subjects: Iterable[str], count: int, seed: int = 0) -> list[Split]:
    """Make folds of a cross-validation: each subject is tested once, and all names of a person are in the same fold.

    Raises
    ------
    ValueError
        There are fewer people than folds, or fewer than two folds.
    """
    names = sorted(set(subjects))
    persons = sorted({identity(name) for name in names})
    if not 2 <= count <= len(persons):
        raise ValueError(f"count must lie between 2 and the number of persons ({len(persons)}), got {count}")
    groups = np.array_split(np.random.default_rng(seed).permutation(persons), count)
    folds = []
    for group in groups:
        test = [name for name in names if identity(name) in group]
        folds.append(split_subjects([name for name in names if name not in test], test))
    return folds


def cohort_table(folder: str | os.PathLike[str], subjects: Iterable[str] = ()) -> list[dict[str, object]]:
    """Tabulate subject, channels, rate, hours and events of every SWEC recording below a folder, read from the files.

    A warning names all differences from the published table; see `swec_differences`.

    Parameters
    ----------
    folder : path
    subjects : iterable of str
        Subjects that must be there, such as `PAPER_TEST`; the warning names missing ones.
    """
    paths = [path for path in find_recordings(folder) if path.is_dir() or path.suffix.lower() in (".h5", ".hdf5")]
    recordings = [read_swec(path) for path in paths]
    warn_of_swec_differences(recordings, subjects)
    return [
        {
            "subject": recording.subject,
            "channels": len(recording.channel_names),
            "rate": recording.sfreq,
            "hours": recording.duration / 3600,
            "events": len(recording.seizures),
        }
        for recording in recordings
    ]
