"""Names of channels: their natural order, which of them are no EEG, bipolar pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from mvpa_ts.checks import grouped

_PREFIX = re.compile(r"^(EEG|SEEG|ECOG|IEEG|POL)[ _-]+", re.IGNORECASE)
_SUFFIX = re.compile(r"[ _-]+(REF|G2|LE|AVG?)$", re.IGNORECASE)
# Amplifiers' names for other signals than the brain's: with a number, a side, a reference or a second name, or the
# exact word (a "PR1" or "HR1" may well be an electrode).
_NOT_EEG = re.compile(
    r"^\$?(?:[LR]?[ _-]?(EKG|ECG|EMG|EOG|HEOG|VEOG|DC|TRIG|TRIGGER|STI|STIM|STATUS|MARK|MARKER|MKR|EVENTS?|VNS|EXG|AUX"
    r"|EDF ANNOTATIONS|BDF ANNOTATIONS|ANNOTATIONS?|PHOTIC|RESP|SPO2|SAO2|(?:ET)?CO2|OSAT|PULSE|PLETH?|THOR|CHIN|BATT"
    r"|SYNC|TTL|GSR|BEAT|PULS|PHOTO(?:[ _-]?DIODE)?|AUDIO|CHEST|UNUSED|ACCEL(?:EROMETER)?|GYRO(?:SCOPE)?)"
    r"[ _-]*(?:\d*|\d*[LR]|[LR]\d*|[+-])(?:[ _(-]\S.*)?"
    r"|(IBI|BURSTS?|SUPPR|ABD|ABDO(?:MEN)?|THORAX|(?:AIR)?FLOW\d?|NASAL(?:[ _]PRESSURE)?|SNORE\d?|PR|HR|HEART[ _]RATE"
    r"|BP|TEMP(?:ERATURE|[ _]RECTAL)?|REF|CO2[ _]?WAVE|POS|MK|LIGHT|SOUND|CRC16|PD|DIODE|MIC(?:ROPHONE)?|ACC[ _-]?[XYZ]"
    r"|PATIENT[ _]EVENT|EVT|NC|EMPTY|DUMMY|GND|GROUND|CAL|PACKET|SPARE|BLANK|CLOCK|TIME ?STAMP|COUNTER|IMPEDANCE"
    r"|POSITION|DIGITAL|ANALOG(?: \d+)?|-+\d*|\.))$",
    re.IGNORECASE,
)

# How the reason begins why a channel that is no electrode in or on the brain was left out; or `not_eeg` says it.
OTHER_TYPE, NO_ELECTRODE = "type", "no electrode by its name"


def plain_name(name: str) -> str:
    """A channel's name without the amplifier's prefix and reference: "EEG A1-Ref" is "A1".

    Examples
    --------
    >>> plain_name("POL L'2"), plain_name("EEG A1-Ref")
    ("L'2", 'A1')
    """
    stripped = _SUFFIX.sub("", _PREFIX.sub("", name.strip()))
    return stripped or name.strip()


def plain_names(names: Iterable[str]) -> frozenset[str]:
    """The names as a set, which shows whether recordings of other amplifiers have the same channels."""
    return frozenset(map(plain_name, names))


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorting key that reads digits as numbers.

    Examples
    --------
    >>> sorted(["L10", "L2", "A1", "l3"], key=natural_key)
    ['A1', 'L2', 'l3', 'L10']
    """
    pieces = re.split(r"(\d+)", plain_name(name).casefold())
    return [(1, int(text), "") if text.isdecimal() else (0, 0, text) for text in pieces if text]


def natural_order(names: Sequence[str]) -> list[int]:
    """Indices that sort channel names naturally, L2 before L10: the model's distance follows the order."""
    return sorted(range(len(names)), key=lambda i: (natural_key(names[i]), i))


def in_recording_order(chosen: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    """The chosen channels, each once, in the order of `names`; unknown ones come last.

    A channel may be called without the amplifier's prefix and reference, or with others, where only one is meant.

    Examples
    --------
    >>> in_recording_order(["A5", "A1", "A3", "A1"], ["A1", "A2", "A3", "A4", "A5"])
    ('A1', 'A3', 'A5')
    >>> in_recording_order(["A2", "A1"], ["EEG A1-Ref", "EEG A2-Ref"])
    ('EEG A1-Ref', 'EEG A2-Ref')
    """
    order = {name: i for i, name in enumerate(names)}
    plain = grouped((plain_name(name), name) for name in names)
    meant = []
    for name in chosen:
        alike = plain.get(plain_name(name), [])
        # Only where one channel is meant: of "A1-Ref" and "A1-Avg" neither is taken for "A1".
        meant.append(alike[0] if name not in order and len(alike) == 1 else name)
    return tuple(sorted(dict.fromkeys(meant), key=lambda name: order.get(name, len(order))))


def not_eeg(name: str) -> str | None:
    """Why a name is no EEG channel, or None.

    Examples
    --------
    >>> not_eeg("EKG1")
    'EKG is no EEG by its name'
    >>> not_eeg("C12"), not_eeg("PR1")
    (None, None)
    """
    match = _NOT_EEG.match(plain_name(name))
    return f"{match[1] or match[2]} is no EEG by its name" if match else None


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
        # "A1-A2" is a pair already.
        if (match := re.fullmatch(r"(.*?)(\d+)", plain_name(name))) and not re.search(r"\d ?[-–]", match[1]):
            # Amplifiers write "a1" beside "A2"; a pair is two contacts of one electrode, whatever the case.
            contact = match[1].casefold(), int(match[2])
            if contact in contacts:
                raise ValueError(
                    f"{names[contacts[contact]]} and {name} are one contact by their names, and a bipolar reference "
                    "needs one of them: choose with channels (--channels)"
                )
            contacts[contact] = i
    return [(i, contacts[wire, n + 1]) for (wire, n), i in contacts.items() if (wire, n + 1) in contacts]
