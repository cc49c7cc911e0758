"""The published table of the SWEC iEEG data set: its subjects, the people who appear twice, and what a download lacks.

``swec_subjects.csv`` is the table of the paper: channels, rate, hours and events of each folder (9328.1 h and 704
events in all, duplicates counted twice). A further column names the folder with the same recording. The published
loader of the authors lists the same numbers of channels (github.com/IBM/multi-variate-parallel-transformer,
``eeg_datasets/longterm.py``). The 18 pairs agree in channels, rate, hours and events.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from mvpa_ts.checks import warn
from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.ieeg.recordings.swec import SwecSource, prefix_of


@dataclass(frozen=True)
class SwecSubject:
    """A folder of the data set, as stated in the table of the paper."""

    subject: str  # name of the folder, "ID01" to "ID68"
    channels: int
    sfreq: float  # Hz
    hours: float
    events: int  # seizures
    same_as: str | None  # the folder that holds the same recording, if there is one


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
    text = resources.files("mvpa_ts.ieeg.recordings").joinpath("swec_subjects.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(text.splitlines())
    return tuple(
        SwecSubject(subject, int(channels), float(sfreq), float(hours), int(events), same_as or None)
        for subject, channels, sfreq, hours, events, same_as in rows
    )


# Later name of a recording that is in the data set twice: its first name.
SWEC_DUPLICATES: Mapping[str, str] = MappingProxyType(
    {s.subject: s.same_as for s in swec_subjects() if s.same_as is not None and s.same_as < s.subject}
)


def identity(subject: str) -> str:
    """Return one name for a person: the same for both folders of a person who appears twice in SWEC.

    Examples
    --------
    >>> identity("ID20"), identity("ID01"), identity("S01")
    ('ID01', 'ID01', 'S01')
    """
    return SWEC_DUPLICATES.get(subject, subject)


def swec_differences(recording: Recording) -> list[str]:
    """Describe how a downloaded SWEC recording differs from the published table.

    A download that stopped early leaves a folder that can be read but is too short. No other check finds that. There is
    a sentence for each difference in channels, rate, hours (by more than 1 %) and events; of one part alone only
    channels and rate are compared. What is not of the data set has no differences.
    """
    table = {subject.subject: subject for subject in swec_subjects()}
    if not isinstance(recording.source, SwecSource) or recording.subject not in table:
        return []
    stated, hours = table[recording.subject], recording.duration / 3600
    values = [(len(recording.channel_names), stated.channels, "channels"), (recording.sfreq, stated.sfreq, "Hz")]
    # One part of a recording has its number in the name, and neither its length nor its events say anything.
    whole = recording.name == recording.subject
    if whole and recording.annotated:
        values.append((len(recording.seizures), stated.events, "events"))
    differences = [
        f"{recording.subject} has {value:g} {unit}, the data set {expected:g}"
        for value, expected, unit in values
        if value != expected
    ]
    # Too long is a sign as well: parts of another recording may lie in the folder.
    # The table rounds to a tenth of an hour, so a hundredth may be missing.
    if whole and abs(hours / stated.hours - 1) > 0.01:
        short = "short" if hours < stated.hours else "long"
        differences.append(f"{recording.subject} has {hours:.4g} h, too {short}: the data set {stated.hours:g}")
    return differences


def warn_of_differences(recording: Recording) -> None:
    """Warn once of all `swec_differences`, if there are any."""
    if differences := swec_differences(recording):
        warn(f"SWEC recordings differ from the published table: {'; '.join(differences)}. Was the download complete?")


def warn_of_missing_subjects(paths: Iterable[str | Path], files: Iterable[Path]) -> None:
    """Warn once of the subjects that a folder of the data set lacks, by the files that were found in the paths.

    Who names subjects' folders one by one wants only these, and is not warned.
    """
    subject_of = {file: subject for file in files if (subject := prefix_of(file)) is not None}
    whole = {Path(path) for path in paths}
    # Only a folder of the whole data set can lack subjects. One that is named by itself is meant to be alone.
    names = [subject.subject for subject in swec_subjects()]
    present = {subject for file, subject in subject_of.items() if subject in names and whole & set(file.parents)}
    if present and (missing := [name for name in names if name not in subject_of.values()]):
        warn(
            f"{len(missing)} of the {len(names)} SWEC subjects are missing: {_ranges(missing, names)}. Was the "
            "download complete? Naming subjects' folders one by one takes only these"
        )


def _ranges(some: Sequence[str], names: Sequence[str]) -> str:
    """Neighbours among `names` as "first to last"."""
    # The place among the missing minus the place in the table stays the same within a run of neighbours.
    runs = itertools.groupby(enumerate(some), key=lambda item: names.index(item[1]) - item[0])
    ends = [[name for _, name in run] for _, run in runs]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in ends)
