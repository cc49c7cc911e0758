"""The 68 subjects of the SWEC iEEG data set: the published table of them, and the people who appear twice.

``swec_subjects.csv`` is the table of the paper: channels, rate, hours and events of each folder (9328.1 h and 704
events in all, duplicates counted twice). A further column names the folder with the same recording. The published
loader of the authors lists the same numbers of channels (github.com/IBM/multi-variate-parallel-transformer,
``eeg_datasets/longterm.py``). The 18 pairs agree in channels, rate, hours and events.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.ieeg.recordings.swec import SwecSource

HOURS_OFF = 0.01
"""Share by which a recording's length may differ from the table, which rounds to a tenth of an hour."""


@dataclass(frozen=True)
class SwecSubject:
    """A folder of the data set, as stated in the table of the paper.

    Attributes
    ----------
    subject : str
        Name of the folder, "ID01" to "ID68".
    channels : int
    sfreq : float
        Hz.
    hours : float
    events : int
        Seizures.
    same_as : str or None
        The folder that holds the same recording, if there is one.
    """

    subject: str
    channels: int
    sfreq: float
    hours: float
    events: int
    same_as: str | None


@lru_cache(maxsize=1)
def swec_subjects() -> tuple[SwecSubject, ...]:
    """Return the 68 subjects in order.

    Examples
    --------
    >>> subjects = swec_subjects()
    >>> len(subjects), sum(subject.events for subject in subjects)
    (68, 704)
    >>> subjects[0]
    SwecSubject(subject='ID01', channels=88, sfreq=512.0, hours=293.4, events=2, same_as='ID20')
    """
    text = resources.files("mvpa_ts.ieeg.datasets").joinpath("swec_subjects.csv").read_text(encoding="utf-8")
    return tuple(
        SwecSubject(
            subject=row["subject"],
            channels=int(row["channels"]),
            sfreq=float(row["sfreq"]),
            hours=float(row["hours"]),
            events=int(row["events"]),
            same_as=row["same_as"] or None,
        )
        for row in csv.DictReader(text.splitlines())
    )


SWEC_DUPLICATES: Mapping[str, str] = MappingProxyType(
    {s.subject: s.same_as for s in swec_subjects() if s.same_as is not None and s.same_as < s.subject}
)
"""Later name of a recording that is in the data set twice: its first name."""


def identity(subject: str) -> str:
    """Return one name for a person: the same for both folders of a person who appears twice in SWEC.

    Examples
    --------
    >>> identity("ID20"), identity("ID01"), identity("S01")
    ('ID01', 'ID01', 'S01')
    """
    return SWEC_DUPLICATES.get(subject, subject)


def swec_differences(recordings: Iterable[Recording], subjects: Iterable[str] = ()) -> list[str]:
    """Describe how downloaded SWEC recordings differ from the published table.

    A download that stopped early leaves a folder that can be read but is too short. No other check finds that.

    Parameters
    ----------
    recordings : iterable of Recording
        Recordings from other sources, or of subjects that are not in the data set, are ignored.
    subjects : iterable of str
        Subjects that must be there; each one without a recording is named.

    Returns
    -------
    list of str
        A sentence for each difference in channels, rate, hours (by more than 1 %) and events, and for each missing
        subject.

    Examples
    --------
    >>> swec_differences([], ["ID04"])
    ['ID04 is missing: 32 channels, 40.7 h, 14 events']
    """
    table = {subject.subject: subject for subject in swec_subjects()}
    differences: list[str] = []
    present = set()
    for recording in recordings:
        present.add(recording.subject)
        if not isinstance(recording.source, SwecSource) or recording.subject not in table:
            continue
        stated, hours = table[recording.subject], recording.duration / 3600
        for value, expected, unit in (
            (len(recording.channel_names), stated.channels, "channels"),
            (recording.sfreq, stated.sfreq, "Hz"),
            (len(recording.seizures), stated.events, "events"),
        ):
            if value != expected:
                differences.append(f"{recording.subject} has {value:g} {unit}, the data set {expected:g}")
        if abs(hours / stated.hours - 1) > HOURS_OFF:
            short = "short" if hours < stated.hours else "long"
            differences.append(f"{recording.subject} has {hours:.4g} h, too {short}: the data set {stated.hours:g}")
    for subject in subjects:
        if subject not in present:
            size = f": {table[subject].channels} channels, {table[subject].hours:g} h, {table[subject].events} events"
            differences.append(f"{subject} is missing{size}" if subject in table else f"{subject} is missing")
    return differences


def warn_of_swec_differences(recordings: Iterable[Recording], subjects: Iterable[str] = ()) -> None:
    """Warn once of all `swec_differences`, if there are any."""
    if differences := swec_differences(recordings, subjects):
        warnings.warn(
            f"SWEC recordings differ from the data set's published table: {'; '.join(differences)}. Was the download "
            "complete?",
            stacklevel=2,
        )
