"""A recording of an MNE Raw: which channels are EEG, what their samples are in, what the header may say of a person."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.checks import grouped, listed, warn
from mvpa_ts.ieeg.events import Floats, Integers
from mvpa_ts.ieeg.recordings.annotations import BOUNDARY, OPEN_SECONDS, bad_spans, stated_seizures
from mvpa_ts.ieeg.recordings.channels import OTHER_TYPE, natural_order, not_eeg, plain_name
from mvpa_ts.ieeg.recordings.edf import check_rates
from mvpa_ts.ieeg.recordings.guards import damage_is_an_error, warn_left_out
from mvpa_ts.ieeg.recordings.levels import warn_if_implausible
from mvpa_ts.ieeg.recordings.recording import Interval, Recording, Signal, with_notes
from mvpa_ts.ieeg.recordings.seizure_words import is_seizure
from mvpa_ts.ieeg.recordings.units import microvolt_scales

if TYPE_CHECKING:
    import mne

EEG_TYPES = ("seeg", "ecog", "dbs", "eeg")
# Why a channel was left out that the caller did not name.
NOT_CHOSEN = "not chosen"


class RawSource:
    """Samples of an MNE Raw, in µV by the `scale` [C] of its channels; NaN where a channel is marked bad.

    `marks` are (channel, first sample, sample after the last).
    """

    def __init__(self, raw: mne.io.BaseRaw, scale: Floats, marks: Sequence[tuple[int, int, int]] = ()) -> None:
        self.raw = raw
        self.scale = scale.astype(np.float32)
        self.marks = tuple(marks)

    def read(self, start: int, stop: int, channels: Integers) -> Signal:
        """See `Source.read`."""
        x = np.empty((len(channels), stop - start), np.float32)
        if start < stop:
            # An array Raw has no file, and an error needs some name.
            files = [str(file) for file in self.raw.filenames if file]
            with damage_is_an_error(files[0] if files else "the Raw", f" at samples [{start}, {stop})"):
                x[:] = self.raw.get_data(picks=channels, start=start, stop=stop, verbose="error")
        x *= self.scale[channels, None]
        for channel, first, last in self.marks:
            x[channels == channel, max(first - start, 0) : max(last - start, 0)] = np.nan
        return x


def check_choices(channels: object, seizure_words: object, open_seconds: object) -> None:
    """Raise a ValueError for text where a list of texts is due, whose letters would count, and for an odd length."""
    # A text is a sequence of letters, and "A1" would quietly ask for the channels "A" and "1".
    for name, texts in (("channels", channels), ("seizure_words", seizure_words)):
        if isinstance(texts, str):
            raise ValueError(f"{name} must be a list of texts, got {texts!r}: pass [{texts!r}]")
    if open_seconds is not None and not (isinstance(open_seconds, numbers.Real) and float(open_seconds) >= 0.0):
        raise ValueError(f"open_seconds must be a number of seconds or None, got {open_seconds!r}")


@with_notes
def recording_from_raw(
    raw: mne.io.BaseRaw,
    *,
    name: str = "raw",
    subject: str | None = None,
    unit: str | None = None,
    units: dict[str, str] | None = None,
    seizures: Sequence[Interval] | None = None,
    open_seconds: float | None = OPEN_SECONDS,
    preprocessed: bool = False,
    channels: Sequence[str] | None = None,
    seizure_words: Sequence[str] = (),
) -> Recording:
    """A recording of an MNE Raw.

    Parameters
    ----------
    raw : mne.io.BaseRaw
        In volts, as MNE keeps signals; types seeg, ecog, dbs and eeg are taken.
    name, subject : str
    unit : str, optional
        Unit of the samples, for channels whose unit the file does not state. MNE takes these for volts.
    units : dict of str, optional
        Units as the file states them, by channel; an unknown one without `unit` is an error. By default they are taken
        from the file of a Raw that is not loaded, and unknown ones are volts.
    seizures : sequence of (onset, offset), optional
        Taken from the annotations by default. Unknown if no annotation says seizure or "bckg".
    open_seconds : float or None
        As for `read_recording`.
    preprocessed : bool
        The signal is already filtered and referenced.
    channels, seizure_words
        As for `read_recording`.

    Returns
    -------
    Recording

    Raises
    ------
    ValueError
        No channel is EEG, a chosen channel is missing, channels are stored at several rates, or a unit is unknown.
    """
    check_choices(channels, seizure_words, open_seconds)
    kept, dropped = eeg_channels(raw, channels, name)
    if not kept:
        reasons = listed((f"{channel}: {reason}" for channel, reason in dropped.items()), 8)
        say = "name those that are EEG (--channels)"
        # Types are set in MNE or BIDS, and naming the channels would not help there.
        if all(reason.startswith(OTHER_TYPE) for reason in dropped.values()):
            say = f"give those that are EEG the type {', '.join(EEG_TYPES)}, by raw.set_channel_types or channels.tsv"
        raise ValueError(f"{name} has no EEG channel ({reasons}): {say}")
    check_rates(raw, kept, name)
    types = raw.get_channel_types()
    scalp = [raw.ch_names[i] for i in kept if types[i] == "eeg"]
    if channels is None and 0 < len(scalp) < len(kept):
        warn(
            f"{name}: channels of type eeg, {listed(scalp)}, are read with those in or "
            "on the brain, and share their reference: leave them out (--channels) if they are on the scalp"
        )
    scale = microvolt_scales(raw, kept, unit, units, name)
    # The attention scores channels by their distance, so neighbours on the electrode must be neighbours here.
    kept = [kept[i] for i in natural_order([raw.ch_names[i] for i in kept])]
    # MNE counts annotations from the start of the measurement, whether or not it knows the date; we from sample 0.
    events = [(a["onset"] - raw.first_time, a["duration"], str(a["description"])) for a in raw.annotations]
    # EEGLAB has one at the start too.
    if joined := sorted({onset for onset, _, text in events if onset > 0 and BOUNDARY.fullmatch(text)}):
        warn(
            f"{name}: recordings were joined at {listed([f'{onset:g}' for onset in joined])} s: times count on as if "
            "nothing lay between them, and filters see a step. Read them one by one if something does"
        )
    if seizures is None:
        duration = raw.n_times / raw.info["sfreq"]
        seizures = stated_seizures(events, duration, open_seconds, name, words=seizure_words)
    bad = [(onset, text) for onset, _, text in events if bad_spans([(0.0, 1.0, text)])]
    if both := [f"{onset:g}" for onset, text in bad if is_seizure(text, seizure_words)]:
        warn(f"{name}: BAD stretches that name a seizure are not scored, and count as seizures: at {listed(both)} s")
    spans, marks = _bad_marks(raw, kept)
    if marks:
        marked = ", ".join(dict.fromkeys(raw.ch_names[channel] for channel, *_ in marks))
        warn_left_out(f"{name}: spans marked bad in single channels are missing there alone: {marked}")
    recording = Recording(
        RawSource(raw, scale, marks),
        sfreq=raw.info["sfreq"],
        channel_names=[raw.ch_names[i] for i in kept],
        num_samples=raw.n_times,
        subject=subject,
        name=name,
        seizures=seizures,
        metadata=subject_metadata(raw),
        preprocessed=preprocessed,
        dropped=dropped,
        channel_indices=kept,
        bad_spans=spans,
    )
    # A packed file is unpacked from its beginning for each piece.
    packed = any(str(file).endswith(".gz") for file in raw.filenames if file) and not raw.preload
    warn_if_implausible(recording, **({"pieces": 8} if packed else {}))
    return recording


def _bad_marks(raw: mne.io.BaseRaw, kept: Sequence[int]) -> tuple[list[Interval], list[tuple[int, int, int]]]:
    """Stretches that are marked bad in all channels, and those of single ones as `RawSource` takes them."""
    spans, marks = [], []
    for mark, channels in zip(raw.annotations, raw.annotations.ch_names, strict=True):
        named = {plain_name(channel) for channel in channels}
        of = [index for index in kept if plain_name(raw.ch_names[index]) in named]
        for onset, offset in bad_spans([(mark["onset"] - raw.first_time, mark["duration"], str(mark["description"]))]):
            if not named or len(of) == len(kept):
                spans.append((onset, offset))
            else:
                first, last = round(onset * raw.info["sfreq"]), round(offset * raw.info["sfreq"])
                marks += [(index, first, last) for index in of]
    return spans, marks


def subject_metadata(raw: mne.io.BaseRaw) -> dict[str, Any]:
    """Age in years, sex, handedness, start, line frequency and filters as stated; no name, id or birth date."""
    info: Any = raw.info["subject_info"] or {}
    metadata: dict[str, Any] = {}
    # The age is kept and the birth date is not.
    birth, start = info.get("birthday"), raw.info["meas_date"]
    if isinstance(birth, date) and isinstance(start, datetime):
        age = start.year - birth.year - ((start.month, start.day) < (birth.month, birth.day))
        if 0 <= age <= 120:
            metadata["age"] = age
    if sex := {1: "male", 2: "female"}.get(info.get("sex")):
        metadata["sex"] = sex
    if hand := {1: "right", 2: "left", 3: "ambidextrous"}.get(info.get("hand")):
        metadata["hand"] = hand
    # Of the measurement, of which the file may hold a later part only. EDF's first moment stands for no date.
    if isinstance(start, datetime) and start != datetime(1985, 1, 1, tzinfo=UTC):
        metadata["start"] = (start + timedelta(seconds=raw.first_time)).isoformat()
    if raw.info["line_freq"] in (50, 60):
        metadata["line_frequency"] = float(raw.info["line_freq"])
    # Without a filter MNE states 0 and half of the rate.
    if 0 < (lowpass := raw.info["lowpass"]) < 0.49 * raw.info["sfreq"]:
        metadata["lowpass"] = float(lowpass)
    if raw.info["highpass"] > 0:
        metadata["highpass"] = float(raw.info["highpass"])
    return metadata


def eeg_channels(
    raw: mne.io.BaseRaw, channels: Sequence[str] | None = None, name: str = "raw"
) -> tuple[list[int], dict[str, str]]:
    """Indices of the channels to keep, and the others with the reason why not.

    With `channels` these are taken, with or without the amplifier's prefix and reference, and no others. A channel that
    is marked bad or is no EEG by its name is taken where it is named there. A ValueError with the recording's `name`
    says which of them is not there, or of another type.
    """
    bad = set(raw.info["bads"])
    chosen: dict[str, str] = {}
    if channels is not None:
        # With or without prefix and reference, as users see the names in their viewer.
        plain = grouped((plain_name(channel), channel) for channel in raw.ch_names)
        for wanted in channels:
            matches = [wanted] if wanted in raw.ch_names else plain.get(plain_name(wanted), [])
            if len(matches) != 1:
                has = ", ".join(raw.ch_names[:200])
                raise ValueError(f"{name} has no channel {wanted!r}: choose among {has} (--channels)")
            chosen[matches[0]] = wanted
    dropped, kept = {}, []
    for index, (channel, kind) in enumerate(zip(raw.ch_names, raw.get_channel_types(), strict=True)):
        reason = f"{OTHER_TYPE} {kind}" if kind not in EEG_TYPES else None
        if channels is not None:
            if channel in chosen and reason is not None:
                raise ValueError(f"{name}: channel {chosen[channel]!r} is no EEG but of type {kind}: leave it out")
            reason = reason or (None if channel in chosen else NOT_CHOSEN)
        elif reason is None:
            reason = not_eeg(channel) or ("marked bad" if channel in bad else None)
        if reason is None:
            kept.append(index)
        else:
            dropped[channel] = reason
    return kept, dropped
