"""EDF and BDF: what their header promises, and channels that are stored at different rates."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.ieeg.recordings.guards import MAX_RATE
from mvpa_ts.ieeg.recordings.headers import READ_ALL_THE_SAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mne

EDF_SUFFIXES = (".edf", ".bdf")
ANNOTATIONS = ("EDF Annotations", "BDF Annotations")
# Seconds by which a record's time stamp may differ from its place in the file; many are rounded to a millisecond.
OFF_PLACE = 0.01
# By how much of the time that passed it may differ too: what quartz clocks keep.
DRIFT = 5e-5


@dataclass(frozen=True)
class Header:
    """What the checks need of an EDF header.

    Attributes
    ----------
    size : int
        Of the header, bytes.
    records : int
        Data records of the file; −1 where the amplifier never wrote the number.
    labels : tuple of str
        Of the signals, one of which may be "EDF Annotations".
    samples : tuple of int
        Of each signal in one record.
    seconds : float
        Of one record.
    width : int
        Bytes of a sample.
    discontinuous : bool
        Gaps are allowed between records, "EDF+D"; in other files the records should lie side by side.
    limits : tuple of float
        Physical minimum of each signal, then the maximum of each.
    units : tuple of str
        Of the signals, as they are written; MNE keeps those that it knows.
    """

    size: int
    records: int
    labels: tuple[str, ...]
    samples: tuple[int, ...]
    seconds: float
    width: int
    discontinuous: bool
    limits: tuple[float, ...]
    units: tuple[str, ...]


def read_header(path: Path) -> Header:
    """The header of an EDF or BDF file; raises a ValueError if the file has none."""
    with path.open("rb") as file:
        # Fixed places of a text header; MNE reads the same, but says nothing of what does not add up.
        head = file.read(256)
        try:
            signals = int(head[252:256])
            labels = tuple(file.read(16).decode("latin-1").strip() for _ in range(signals))
            file.seek(256 + 96 * signals)
            units = tuple(file.read(8).decode("latin-1").strip() for _ in range(signals))
            limits = tuple(float(file.read(8).replace(b",", b".")) for _ in range(2 * signals))
            file.seek(256 + 216 * signals)
            return Header(
                limits=limits,
                units=units,
                size=int(head[184:192]),
                records=int(head[236:244]),
                labels=labels,
                samples=tuple(int(file.read(8)) for _ in range(signals)),
                seconds=float(head[244:252]),
                discontinuous=head[192:197] in (b"EDF+D", b"BDF+D"),
                width=3 if path.suffix.lower() == ".bdf" else 2,
            )
        except ValueError as error:  # it quotes what stands in the file, so it is only in __cause__
            raise ValueError(f"{path} is not an EDF file, or its header is truncated or damaged") from error


def check_edf(path: Path, truncated: str = "error") -> Header:
    """The header of a file, after a check for what MNE would take for another recording without a word.

    MNE would read a file that is shorter than its header says as a shorter recording, and ignore gaps between records.

    Parameters
    ----------
    truncated : {"error", "read"}
        "read" accepts a file that is shorter than its header says.
    """
    header = read_header(path)
    size, record = path.stat().st_size, sum(header.samples) * header.width
    # A wrong number of signals shifts every sample that follows.
    if header.size != 256 * (len(header.labels) + 1) or not header.labels:
        raise ValueError(
            f"{path} is damaged: a header of {len(header.labels)} signals must have {256 * (len(header.labels) + 1)} "
            f"bytes, it states {header.size}"
        )
    signals = [i for i, label in enumerate(header.labels) if label not in ANNOTATIONS]
    if min(header.samples) < 0 or any(header.samples[i] < 1 for i in signals):
        raise ValueError(f"{path} is damaged: a signal has {min(header.samples)} samples in a record")
    # MNE would reserve memory for what the header states before it reads a sample.
    rates = [header.samples[i] / header.seconds if header.seconds > 0 else math.inf for i in signals]
    if signals and not max(rates) <= MAX_RATE:
        raise ValueError(
            f"{path} is damaged: a record of {header.seconds:g} s holds {max(header.samples)} samples of a signal"
        )
    if not all(map(math.isfinite, header.limits)):
        raise ValueError(f"{path} is damaged: a physical minimum or maximum is not a finite number")
    # -1 is allowed: an amplifier that was switched off never wrote the number.
    if header.records >= 0 and truncated != "read":
        expected = header.size + header.records * record
        if size < expected:
            raise ValueError(
                f"{path} is truncated: its header promises {header.records} records, {expected} bytes, and it has "
                f"{size}. {READ_ALL_THE_SAME}"
            )
    if size < header.size + record:
        raise ValueError(f"{path} is truncated: it holds no whole record of {record} bytes after its header")
    # Some writers say "EDF+C" and pause all the same.
    if header.discontinuous or any(label in ANNOTATIONS for label in header.labels):
        _check_gaps(path, header)
    return header


def _check_gaps(path: Path, header: Header) -> None:
    """Raise a ValueError where records do not follow one another; many files say "EDF+D" and have no gap."""
    # The stamps are the only trace of a pause: MNE joins the records, and every later seizure would be early.
    try:
        begins, decimals = _record_onsets(path, header)
    except ValueError:
        # A continuous file may do without stamps.
        if header.discontinuous:
            raise
        return
    places = header.seconds * np.arange(len(begins))
    late = begins - begins[:1] - places
    # A writer with one decimal cannot state where a record of 0.25 s begins.
    late[np.abs(late) < (np.abs(places - places.round(decimals)) > 1e-6) * 10.0**-decimals] = 0.0
    # A record of 1/3 s is stated as 0.333333 s, and clocks drift: both grow without a gap.
    off = np.flatnonzero((np.abs(np.diff(late, prepend=0.0)) > OFF_PLACE) | (np.abs(late) > OFF_PLACE + DRIFT * places))
    # A writer of "EDF+C" that stamps all records alike says nothing of time.
    if len(off) and (header.discontinuous or np.ptp(begins) > 0):
        kind = "EDF+D" if header.discontinuous else "EDF+C, with time stamps that jump"
        raise ValueError(
            f"{path} is discontinuous ({kind}): after {header.seconds * off[0]:g} s of signal comes a gap of "
            f"{late[off[0]]:g} s. Split the file at its gaps, or convert it to EDF+C with the gaps filled"
        )


def _record_onsets(path: Path, header: Header) -> tuple[NDArray[np.float64], int]:
    """The time stamp of each data record, s: the first entry of the first annotation signal; and their decimals."""
    if not (signals := [i for i, label in enumerate(header.labels) if label in ANNOTATIONS]):
        raise ValueError(f"{path} is discontinuous (EDF+D) and has no time stamps: convert it to a continuous EDF file")
    before, length = sum(header.samples[: signals[0]]) * header.width, header.samples[signals[0]] * header.width
    record = sum(header.samples) * header.width
    present = (path.stat().st_size - header.size) // record
    records = min(header.records, present) if header.records >= 0 else present
    begins, decimals = np.empty(records), 0
    with path.open("rb") as file:
        for i in range(records):
            file.seek(header.size + i * record + before)
            stamp = file.read(length).partition(b"\x14")[0]
            try:
                begins[i] = float(stamp)
            except ValueError:
                raise ValueError(f"{path} is damaged: record {i} does not begin with a time stamp") from None
            decimals = max(decimals, len(stamp.strip().partition(b".")[2]))
    return begins, decimals


def annotations_of_lines(path: Path) -> list[tuple[float, float, str]]:
    """Annotations whose text has several lines, which EDF+ allows and MNE leaves out: onset, duration (s) and text."""
    header = read_header(path)
    signals = [i for i, label in enumerate(header.labels) if label in ANNOTATIONS]
    places = np.cumsum([0, *header.samples]) * header.width
    entries: list[tuple[bytes, bytes, bytes]] = []
    with path.open("rb") as file:
        for record in range((path.stat().st_size - header.size) // int(places[-1]) if signals else 0):
            for i in signals:
                file.seek(header.size + record * int(places[-1]) + int(places[i]))
                lists = file.read(int(places[i + 1] - places[i]))
                entries += _ENTRY.findall(lists)
    first = float(entries[0][0]) if entries else 0.0  # when the first record begins
    return [
        (float(onset) - first, float(duration or 0), " ".join(text.decode("utf-8", "replace").split()))
        for onset, duration, texts in entries
        for text in texts.split(b"\x14")
        if b"\n" in texts and text
    ]


# Onset, duration and texts of an entry in an annotation signal.
_ENTRY = re.compile(rb"([+-]\d+\.?\d*)(?:\x15(\d+\.?\d*))?\x14([^\x00]*?)\x14?\x00")


def relative_rates(raw: mne.io.BaseRaw) -> NDArray[np.float64]:
    """The rate at which the file stores each channel, as a share of the rate at which MNE reads it, [C].

    EDF, BDF and GDF may store channels at different rates. As long as a Raw is not loaded, MNE slices the slower ones
    with sample numbers of the fastest, so that they come out shifted, stretched or as zeros.
    """
    shares = np.ones(len(raw.ch_names))
    if raw.preload:
        return shares
    for extras, picks in zip(raw._raw_extras, raw._read_picks, strict=True):
        if isinstance(extras, dict) and {"n_samps", "sel", "max_samp"} <= extras.keys():
            # MNE keeps samples a record by channel, and reads all at the largest of them.
            shares = np.minimum(shares, extras["n_samps"][extras["sel"][picks]] / extras["max_samp"])
    return shares


def check_rates(raw: mne.io.BaseRaw, channels: Sequence[int], name: str) -> None:
    """Raise a ValueError where MNE would misplace the samples of one of these channels."""
    shares = relative_rates(raw)[list(channels)]
    if (shares == 1).all():
        return
    rates = {
        f"{share * raw.info['sfreq']:g} Hz": [
            raw.ch_names[i] for i, s in zip(channels, shares, strict=True) if s == share
        ]
        for share in sorted(set(shares.tolist()))
    }
    lowest = next(iter(rates)).removesuffix(" Hz")
    groups = ", ".join(f"{rate} ({len(of)} channels such as {of[0]})" for rate, of in rates.items())
    raise ValueError(
        f"{name}: its EEG channels are stored at {groups}, and MNE would read them at {raw.info['sfreq']:g} Hz: "
        f"read channels of one rate, with --rate {lowest} in a command; in Python as in "
        "Recording.from_raw(mne.io.read_raw(path, include=[...])), or of an EDF file "
        f"read_recording(path, rate={lowest}) (--rate)"
    )
