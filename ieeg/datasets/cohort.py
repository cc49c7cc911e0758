"""Subjects to train, validate and test on: the paper's split of SWEC, and splits that do not leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mvpa_ts.checks import check_switches, warn
from mvpa_ts.ieeg.recordings.swec_table import SWEC_DUPLICATES, identity

# The paper's training subjects.
PAPER_TRAIN = tuple(f"ID{i:02d}" for i in range(1, 19))
# The paper's 50 test subjects, 18 of whom are its training subjects under another name.
PAPER_TEST = tuple(f"ID{i:02d}" for i in range(19, 69))
# The 32 test subjects that are truly unseen.
UNSEEN32 = tuple(subject for subject in PAPER_TEST if subject not in SWEC_DUPLICATES)


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
    check_switches(allow_duplicates=allow_duplicates)
    uses = {"train": tuple(train), "validation": tuple(validation), "test": tuple(test)}
    for name in ("train", "test"):
        if not uses[name]:
            raise ValueError(f"{name} must hold at least one subject, got none")
    leaked = []
    seen: dict[str, tuple[str, str]] = {}
    for use, subjects in uses.items():
        for subject in dict.fromkeys(subjects):
            other, first_use = seen.setdefault(identity(subject), (subject, use))
            if first_use == use:
                continue
            if other == subject:
                raise ValueError(f"{subject} is in {first_use} and in {use}: name each subject once")
            # The recordings are identical, so a score on one is a score on training data.
            if not allow_duplicates:
                raise ValueError(
                    f"{subject} ({use}) is the same recording as {other} ({first_use}); pass allow_duplicates=True to "
                    "split anyway (--data.allow_duplicates true)"
                )
            leaked.append((other, subject))
    if leaked:
        warn(
            f"{len(leaked)} subject{' is' if len(leaked) == 1 else 's are'} in two parts under two names, such as "
            f"{leaked[0]}: their scores are scores on training data"
        )
    return Split(uses["train"], uses["validation"], uses["test"], tuple(leaked))


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
