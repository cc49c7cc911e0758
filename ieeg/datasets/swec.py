"""The 68 subjects of the SWEC iEEG data set: the people who appear twice, and how a download differs from the table.

The table itself is in `mvpa_ts.ieeg.recordings.swec_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.ieeg.recordings.swec_table import SwecSubject as SwecSubject
from mvpa_ts.ieeg.recordings.swec_table import differences_from_table, swec_subjects, warn_of_differences

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
        Recordings from other sources, or of subjects that are not in the data set, are ignored. Of one part alone only
        channels and rate are compared.
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
    return differences_from_table(recordings, subjects, swec_subjects())


def warn_of_swec_differences(recordings: Iterable[Recording], subjects: Iterable[str] = ()) -> None:
    """Warn once of all `swec_differences`, if there are any."""
    warn_of_differences(swec_differences(recordings, subjects), stacklevel=2)
