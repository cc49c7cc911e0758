"""Channels: natural order, what is no EEG, bipolar pairs, automatic selection."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mvpa_ts.ieeg.data.segments import Segments

_PREFIX = re.compile(r"^(EEG|SEEG|ECOG|IEEG|POL)[ _-]+", re.IGNORECASE)
_SUFFIX = re.compile(r"[ _-]+(REF|G2|LE|AVG?)$", re.IGNORECASE)
# What amplifiers call that which is no brain signal: with a number or side, and by the exact word (a "PR1" or "HR1" may
# well be an electrode).
_NOT_EEG = re.compile(
    r"^(?:(EKG|ECG|EMG|EOG|HEOG|VEOG|DC|TRIG|TRIGGER|STI|STIM|STATUS|MARK|MARKER|EVENTS?|EDF ANNOTATIONS|ANNOTATIONS?"
    r"|PHOTIC|RESP|SPO2|SAO2|OSAT|PULSE|PLETH|THOR|CHIN|BATT|SYNC)[ _-]*(?:\d*|\d*[LR]|[LR]\d*|[+-])"
    r"|(IBI|BURSTS?|SUPPR|ABD|FLOW|SNORE|PR|HR|BP|TEMP|REF|GND|CAL|AUX|PACKET|SPARE|BLANK|CLOCK|-+))$",
    re.IGNORECASE,
)

OTHER_TYPE, NO_ELECTRODE = "type", "no electrode by its name"
"""How the reason begins why a channel that is no electrode in or on the brain was left out; or `not_eeg` says it."""


def plain_name(name: str) -> str:
    """A channel's name without the amplifier's prefix and reference: "EEG A1-Ref" is "A1".

    Examples
    --------
    >>> plain_name("POL L'2"), plain_name("EEG A1-Ref")
    ("L'2", 'A1')
    """
    stripped = _SUFFIX.sub("", _PREFIX.sub("", name.strip()))
    return stripped or name.strip()


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorting key that reads digits as numbers.

    Examples
    --------
    >>> sorted(["L10", "L2", "A1", "l3"], key=natural_key)
    ['A1', 'L2', 'l3', 'L10']
    """
    parts = re.split(r"(\d+)", plain_name(name).casefold())
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts if part]


def natural_order(names: Sequence[str]) -> list[int]:
    """Indices that sort channel names naturally, L2 before L10: the model's distance follows the order."""
    return sorted(range(len(names)), key=lambda i: (natural_key(names[i]), i))


def in_recording_order(chosen: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    """The chosen channels, each once, in the order of `names`; unknown ones come last.

    Examples
    --------
    >>> in_recording_order(["A5", "A1", "A3", "A1"], ["A1", "A2", "A3", "A4", "A5"])
    ('A1', 'A3', 'A5')
    """
    place = {name: i for i, name in enumerate(names)}
    return tuple(sorted(dict.fromkeys(chosen), key=lambda name: place.get(name, len(place))))


def not_eeg(name: str) -> str | None:
    """Why a name is no EEG channel, or None.

    Examples
    --------
    >>> not_eeg("EKG1")
    'EKG is no EEG by its name'
    >>> not_eeg("C12"), not_eeg("PR1")
    (None, None)
    """
    found = _NOT_EEG.match(plain_name(name))
    return f"{found[1] or found[2]} is no EEG by its name" if found else None


def left_out_electrodes(dropped: Mapping[str, str]) -> list[str]:
    """Channels that were left out though they are electrodes: bad, not selected, without neighbours.

    Parameters
    ----------
    dropped : mapping of name to reason
        As in `Recording.dropped`.

    Examples
    --------
    >>> left_out_electrodes({"A3": "marked bad", "EKG1": "EKG is no EEG by its name", "X1": "type misc"})
    ['A3']
    """
    other = (OTHER_TYPE + " ", NO_ELECTRODE)
    return [name for name, reason in dropped.items() if not_eeg(name) is None and not reason.startswith(other)]


def bipolar_pairs(names: Sequence[str]) -> list[tuple[int, int]]:
    """Neighbouring contacts of one electrode: names that differ by one in their last number.

    Examples
    --------
    >>> bipolar_pairs(["A1", "A2", "A4", "B1", "B2"])
    [(0, 1), (3, 4)]
    """
    contacts: dict[tuple[str, int], int] = {}
    for i, name in enumerate(names):
        if found := re.fullmatch(r"(.*?)(\d+)", plain_name(name)):
            contacts[found[1].casefold(), int(found[2])] = i
    return [(i, contacts[wire, n + 1]) for (wire, n), i in contacts.items() if (wire, n + 1) in contacts]


class Moments:
    """Variance and kurtosis of channels, gathered block by block in bounded memory."""

    def __init__(self, num_channels: int) -> None:
        self.count = np.zeros(num_channels)
        self.sums = np.zeros((4, num_channels))

    def add(self, signal: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
        """Add samples [C, n] of the channels that are `valid` [C]."""
        x = signal[valid].astype(np.float64)
        power = np.ones_like(x)
        for order in range(4):
            power *= x
            self.sums[order, valid] += power.sum(1)
        self.count[valid] += x.shape[1]

    def variance_and_kurtosis(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Population variance and Pearson's kurtosis (3 for a Gaussian) of each channel; NaN without a sample."""
        with np.errstate(invalid="ignore", divide="ignore"):
            m1, m2, m3, m4 = self.sums / self.count
            variance = m2 - m1**2
            fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
            return variance, fourth / variance**2


def select_channels(segments: Segments, count: int = 32, minutes: float = 30.0) -> tuple[str, ...]:
    """The channels that say most, by the paper's rule.

    Variance and kurtosis are taken over the first `minutes`. Channels with a variance outside the 1st to 99th
    percentile or a kurtosis above the 95th are set aside; the others are ranked by variance / (1 + kurtosis), with
    Pearson's kurtosis, which is positive. The best `count` are taken, and those set aside fill up, best first, when
    there are not enough.

    Parameters
    ----------
    segments : Segments
        Preprocessed signal; masked stretches are left out, a channel without any valid segment is taken last.
    count : int
    minutes : float

    Returns
    -------
    tuple of str
        In the recording's order; all channels where there are no more than `count`.
    """
    names = segments.channel_names
    if len(names) <= count:
        return names
    moments = Moments(len(names))
    for index, signal, valid in segments:
        if segments.starts[index] >= 60 * minutes:
            break
        moments.add(signal, valid)
    chosen = rank_channels(*moments.variance_and_kurtosis())[:count]
    return tuple(names[i] for i in sorted(chosen))


def rank_channels(variance: NDArray[np.float64], kurtosis: NDArray[np.float64]) -> list[int]:
    """Indices of channels, best first: those kept by the percentile rules, then those set aside, then those unknown."""
    known = np.isfinite(variance) & np.isfinite(kurtosis)
    if not known.any():
        return list(range(len(variance)))
    low, high = np.percentile(variance[known], [1, 99])
    kept = known & (variance >= low) & (variance <= high) & (kurtosis <= np.percentile(kurtosis[known], 95))
    score = np.where(known, variance / (1 + kurtosis), -np.inf)

    def best(group: Iterable[int]) -> list[int]:
        return sorted(group, key=lambda i: (-score[i], i))

    return [*best(np.flatnonzero(kept)), *best(np.flatnonzero(known & ~kept)), *np.flatnonzero(~known)]
