"""EDF and BDF: what their header promises, and channels that are stored at different rates."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.checks import warn
from mvpa_ts.ieeg.recordings.guards import MAX_RATE, READ_ALL_THE_SAME, check_size, warn_left_out

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import mne

EDF_SUFFIXES = (".edf", ".bdf")
ANNOTATIONS = ("EDF Annotations", "BDF Annotations")
# Seconds by which a record's time stamp may differ from its place in the file; many are rounded to a millisecond.
OFF_PLACE = 0.01
# By how much of the time that passed it may differ too: what quartz clocks keep.
DRIFT = 5e-5


@dataclass(frozen=True)
class Header:
    """What the checks need of an EDF header."""

    size: int  # of the header, bytes
    records: int  # data records of the file; −1 where the amplifier never wrote the number
    labels: tuple[str, ...]  # of the signals, one of which may be "EDF Annotations"
    samples: tuple[int, ...]  # of each signal in one record
    seconds: float  # of one record
    width: int  # bytes of a sample
    discontinuous: bool  # gaps are allowed between records, "EDF+D"; in other files they should lie side by side
    limits: tuple[float, ...]  # physical minimum of each signal, then the maximum of each
    units: tuple[str, ...]  # of the signals, as they are written; MNE keeps those that it knows
    clock: str  # time of day at which the file begins, hh.mm.ss


def read_header(path: Path) -> Header:
    """The header of an EDF or BDF file; raises a ValueError if the file has none."""
    with path.open("rb") as file:
        # Fixed places of a text header; MNE reads the same, but says nothing of what does not add up.
        head = file.read(256)
        # Samples of 16 bits would be read from those of 24, or the other way round.
        by_version = {b"0": ".edf", b"\xffBIOSEMI": ".bdf"}.get(head[:8].strip(), path.suffix.lower())
        if by_version != path.suffix.lower():
            raise ValueError(f"{path} is {by_version[1:].upper()} by its first bytes: give it the ending {by_version}")
        try:
            signals = int(head[252:256])
            labels = tuple(_text(file.read(16)) for _ in range(signals))
            file.seek(256 + 96 * signals)
            units = tuple(_text(file.read(8)) for _ in range(signals))
            limits = tuple(float(file.read(8).replace(b",", b".")) for _ in range(2 * signals))
            file.seek(256 + 216 * signals)
            return Header(
                limits=limits,
                units=units,
                clock=_text(head[176:184]),
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


def _text(field: bytes) -> str:
    """A field of the header, some of which are in UTF-8, or padded with zeros in place of spaces."""
    return in_utf8(field.decode("latin-1")).strip("\0 ")


def in_utf8(text: str) -> str:
    """A text that was read as Latin-1, of which UTF-8 makes fewer letters where it is that."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def check_edf(path: Path, truncated: str = "error") -> Header:
    """The header of a file, after a check for what MNE would take for another recording without a word.

    MNE would read a file that is shorter than its header says as a shorter recording, which "read" accepts, and ignore
    gaps between records.
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
    if not signals:
        raise ValueError(f"{path} holds annotations and no signal: give the file that has the signals")
    if min(header.samples) < 0 or any(header.samples[i] < 1 for i in signals):
        raise ValueError(f"{path} is damaged: a signal has {min(header.samples)} samples in a record")
    clock = [int(field) for field in header.clock.split(".") if field.strip().isdecimal()]
    if len(clock) != 3 or max(clock[0] / 24, clock[1] / 60, clock[2] / 60) >= 1:
        said = f"{path} does not state the time of day at which it begins, bytes 176 to 183, as hh.mm.ss up to 23.59.59"
        if len(clock) == 3:  # at which MNE stumbles
            raise ValueError(f"{said}: correct it, or write 00.00.00")
        warn(f"{said}: midnight is taken")
    # MNE would reserve memory for what the header states before it reads a sample.
    rates = [header.samples[i] / header.seconds if header.seconds > 0 else math.inf for i in signals]
    if not max(rates) <= MAX_RATE:
        raise ValueError(f"{path} is damaged: a record of {header.seconds:g} s holds {max(header.samples)} samples")
    if not all(map(math.isfinite, header.limits)):
        raise ValueError(f"{path} is damaged: a physical minimum or maximum is not a finite number")
    # -1 is allowed: an amplifier that was switched off never wrote the number.
    if header.records >= 0 and truncated != "read":
        check_size(path, header.size + header.records * record, f"{header.records} records", f". {READ_ALL_THE_SAME}")
    if size < header.size + record:
        raise ValueError(f"{path} is truncated: it holds no whole record of {record} bytes after its header")
    # Some writers say "EDF+C" and pause all the same.
    if header.discontinuous or any(label in ANNOTATIONS for label in header.labels):
        _check_gaps(path, header)
    return header


def _check_gaps(path: Path, header: Header) -> None:
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
    if not any(label in ANNOTATIONS for label in header.labels):
        raise ValueError(f"{path} is discontinuous (EDF+D) and has no time stamps: convert it to a continuous EDF file")
    begins, decimals = [], 0
    for record, lists in enumerate(_annotation_lists(path, header)):
        if record == header.records:
            break
        stamp = lists.partition(b"\x14")[0]
        try:
            begins.append(float(stamp))
        except ValueError:
            raise ValueError(f"{path} is damaged: record {record} does not begin with a time stamp") from None
        decimals = max(decimals, len(stamp.strip().partition(b".")[2]))
    return np.array(begins), decimals


def _annotation_lists(path: Path, header: Header) -> Iterator[bytes]:
    """What the annotation signals of each data record hold, one after the other."""
    places = np.cumsum([0, *header.samples]) * header.width
    signals = [i for i, label in enumerate(header.labels) if label in ANNOTATIONS]
    with path.open("rb") as file:
        for start in range(header.size, path.stat().st_size - int(places[-1]) + 1, int(places[-1])) if signals else ():
            lists = b""
            for i in signals:
                file.seek(start + int(places[i]))
                lists += file.read(int(places[i + 1] - places[i])) + b"\0"
            yield lists


def read_annotations(path: Path, channels: Collection[str]) -> list[tuple[float, float, str, tuple[str, ...]]]:
    """Annotations: onset and duration in seconds, text, and those of `channels` that are meant, none for all.

    MNE leaves out, or misplaces, those with several lines of text, an empty or negative duration, or a number that has
    a comma, an exponent or no sign.
    """
    lists = (entry for lists in _annotation_lists(path, read_header(path)) for entry in lists.split(b"\0") if entry)
    annotations: dict[tuple[float, float, str], tuple[str, ...]] = {}
    first, unread, other = 0.0, 0, False
    for number, entry in enumerate(lists):
        if (match := _ENTRY.fullmatch(entry)) is None:
            unread += re.search(rb"[A-Za-z]{2}", entry) is not None
            continue
        onset, duration = float(match[1].replace(b",", b".").replace(b" ", b"")), 0.0
        with suppress(ValueError):
            duration = float((match[2] or b"0").replace(b",", b"."))
        # When the first record begins: its first entry begins with an empty text.
        if number == 0 and match[3][:1] in (b"", b"\x14"):
            first = onset
        for content in filter(None, match[3].split(b"\x14")):
            try:
                text = " ".join(content.decode("utf-8").split())
            except UnicodeDecodeError:  # EDF+ wants UTF-8, and many older programs wrote Latin-1, which any bytes are
                text, other = " ".join(content.decode("latin-1").split()), True
            words, _, channel = text.partition("@@")
            names = (channel,) if channel in channels else ()
            key = onset - first, duration if math.isfinite(duration) else 0.0, words if names else text
            annotations[key] = annotations.get(key, ()) + names
    if other:
        warn("its annotations are not UTF-8 and are read as Latin-1: export it with UTF-8 for words of other alphabets")
    if unread:
        warn_left_out(f"its annotations have {unread} without a time that can be read, which are left out")
    return [(*key, names) for key, names in annotations.items()]


# Onset, duration and texts of an entry in an annotation signal.
_ENTRY = re.compile(rb" *([+-]? *\d+(?:[.,]\d*)?(?:[eE][+-]?\d+)?) *(?:\x15([^\x14]*))?\x14(.*)", re.DOTALL)


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
    names = np.array(raw.ch_names)[list(channels)]
    rates = {f"{share * raw.info['sfreq']:g} Hz": names[shares == share] for share in np.unique(shares).tolist()}
    lowest = next(iter(rates)).removesuffix(" Hz")
    groups = ", ".join(f"{rate} ({len(labels)} channels such as {labels[0]})" for rate, labels in rates.items())
    raise ValueError(
        f"{name}: its EEG channels are stored at {groups}, and MNE would read them at {raw.info['sfreq']:g} Hz: "
        f"read channels of one rate, with --rate {lowest} in a command; in Python as in "
        "Recording.from_raw(mne.io.read_raw(path, include=[...])), or of an EDF file "
        f"read_recording(path, rate={lowest}) (--rate)"
    )
