"""Reading recordings: EDF, BrainVision, FIF and BIDS-iEEG through MNE and mne-bids; SWEC files by their own reader."""

from __future__ import annotations

import math
import numbers
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union

from numpy.typing import ArrayLike

from mvpa_ts.checks import listed, warn
from mvpa_ts.ieeg.recordings import bids, brainvision, edf, events_table, finding, headers
from mvpa_ts.ieeg.recordings.annotations import BOUNDARY, OPEN_SECONDS, bad_spans, class_spans, stated_seizures
from mvpa_ts.ieeg.recordings.channels import in_recording_order
from mvpa_ts.ieeg.recordings.guards import LeftOutWarning, check_regular, damage_is_an_error, warn_left_out
from mvpa_ts.ieeg.recordings.raw import NOT_CHOSEN, check_choices, eeg_channels, recording_from_raw, subject_metadata
from mvpa_ts.ieeg.recordings.recording import Interval, Recording, known_unit, microvolts, real_numbers, with_notes
from mvpa_ts.ieeg.recordings.seizure_words import is_background, is_seizure
from mvpa_ts.ieeg.recordings.units import stated_units, types_by_units, with_units_of_table

if TYPE_CHECKING:
    import mne

# What is taken wherever a recording is, see `as_recording`.
AnyRecording: TypeAlias = Union[Recording, "mne.io.BaseRaw", str, os.PathLike[str], tuple[ArrayLike, float]]
# Parts of MNE's warnings about what this library handles, or says itself.
HANDLED_HERE = ("mixed sampling", "naming conv", "not unique", "physical dim", "No coordinate", "Not setting position")


@with_notes
def read_recording(
    path: str | os.PathLike[str],
    *,
    subject: str | None = None,
    unit: str | None = None,
    rate: float | None = None,
    channels: Sequence[str] | None = None,
    truncated: Literal["error", "read"] = "error",
    open_seconds: float | None = OPEN_SECONDS,
    seizure_words: Sequence[str] = (),
) -> Recording:
    """A recording from a file, read lazily.

    Parameters
    ----------
    path : path
        An EDF, BDF, GDF, BrainVision (.vhdr) or FIF file, alone or in a BIDS data set (then channels.tsv, events.tsv
        and participants.tsv are used too); a SWEC file (.h5) or subject folder, which is compared with the published
        table; a folder with one such file.
    subject : str, optional
        By default the BIDS entity or SWEC folder, otherwise the file's name. Never taken from a header, which may hold
        names.
    unit : str, optional
        Unit of channels whose unit the file does not state ("µV", "mV", "V"); ``--unit`` in commands.
    rate : float, optional
        Read the EEG channels at this rate (Hz), for an EDF or BDF file with several rates; ``--rate``. The others are
        listed in `dropped`.
    channels : sequence of str, optional
        Read only these, named as in the file, with or without the amplifier's prefix and reference; ``--channels``. By
        default all EEG channels that are not marked bad.
    truncated : {"error", "read"}
        Refuse an EDF, BDF or BrainVision file that is shorter than its header says, or read what is there, with a
        warning; ``--truncated read``.
    open_seconds : float or None
        Length given to a seizure whose end is not marked; None leaves such seizures out. See `seizures_from_events`.
    seizure_words : sequence of str
        Further words that mean a seizure in annotations and in events.tsv; ``--seizure-words``.

    Returns
    -------
    Recording
        Channels in natural order (L2 before L10). `dropped` names the channels that are left out, and why.

    Raises
    ------
    FileNotFoundError
        The file, or one that it names, is not there, or the folder holds none that can be read.
    ValueError
        The file is truncated, damaged or not a regular file, names files outside its folder, holds no EEG channel, has
        an unknown unit or rate, or states another unit than `unit`; or the folder holds several recordings. The message
        names the file and quotes none of its texts. What the reading library said is in ``__cause__``.

    Examples
    --------
    >>> import tempfile
    >>> from mvpa_ts.ieeg import simulate_recording
    >>> from mvpa_ts.ieeg.simulation.writing import write_edf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_edf(simulate_recording("S01", num_channels=4, duration=60), Path(folder) / "night.edf")
    ...     recording = read_recording(path)
    ...     recording.close()
    >>> recording
    <Recording night: 4 channels, 60.0 s at 512 Hz, 1 seizure>
    """
    if truncated not in ("error", "read"):
        raise ValueError(f'truncated must be "error" or "read", got {truncated!r}')
    # A wrong unit is named before a file is opened, which for a folder may take minutes.
    if unit is not None:
        microvolts(unit)
    if rate is not None and not isinstance(rate, numbers.Real):
        raise ValueError(f"rate must be a number of Hz, got {rate!r}")
    check_choices(channels, seizure_words, open_seconds)
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}")
    if path.is_dir():
        recordings = finding.find_recordings(path)
        if not recordings:
            raise FileNotFoundError(f"{path} holds no recording ({', '.join(finding.SUFFIXES)} or SWEC .h5)")
        if len(recordings) > 1:
            raise ValueError(f"{path} holds {len(recordings)} recordings, such as {recordings[0]}: name one")
        path = recordings[0]
    # SWEC's files are HDF5 and have a layout of their own, which MNE does not know.
    if finding.is_swec(path):
        from mvpa_ts.ieeg.recordings.swec import read_swec
        from mvpa_ts.ieeg.recordings.swec_table import warn_of_differences

        recording = read_swec(path, subject=subject)
        warn_of_differences(recording)
        if channels is not None:
            chosen = recording.pick(in_recording_order(channels, recording.channel_names))
            others = [name for name in recording.channel_names if name not in chosen.channel_names]
            chosen.dropped |= dict.fromkeys(others, NOT_CHOSEN)
            recording = chosen
        return recording
    finding.check_kind(path)
    _check_header(path, truncated)
    with damage_is_an_error(path):
        location = bids.bids_path(path)
        raw, dropped, kept, units = _read_raw(path, location, rate, channels, unit)
        # A damaged count of samples would make days of a file of seconds, and every step after this would read them.
        stored = sum(os.path.getsize(file) for file in raw.filenames if file)
        if raw.n_times * len(raw.ch_names) > 1000 * stored:
            raise ValueError(f"{path} states {raw.times[-1]:.0f} s of signal, which its {stored} bytes cannot hold")
        recording = recording_from_raw(
            raw,
            name=finding.stem_of(path),
            subject=subject or (f"sub-{location.subject}" if location is not None else finding.stem_of(path)),
            unit=unit,
            units=units,
            seizures=_sidecar_seizures(path, location, raw, open_seconds, seizure_words, cut_short=truncated == "read"),
            open_seconds=open_seconds,
            channels=kept if channels is not None or rate is not None else None,
            seizure_words=seizure_words,
        )
        # Of the whole file, not of what `recording_from_raw` was given: the slower channels were left out before.
        recording.dropped = dropped
        if (table := bids.sidecar(path, location, "channels.tsv")) is not None:
            # The narrower of what table and header state.
            for key, value in bids.stated_filters(table, recording.sfreq).items():
                header = recording.metadata.get(key, value)
                recording.metadata[key] = min(value, header) if key == "lowpass" else max(value, header)
        if location is not None:
            recording.metadata |= bids.read_participant(Path(location.root), f"sub-{location.subject}")
            recording.metadata |= bids.read_start_and_line(path, location, recording.sfreq, recording.duration)
    return recording


def _check_header(path: Path, truncated: str) -> None:
    """Raise a ValueError for a file that MNE would misread, wait for or need too much memory for."""
    check_regular(path)
    if not os.path.getsize(path):
        raise ValueError(f"{path} is empty, it has 0 bytes: was it copied to its end?")
    kind = path.suffix.lower()
    # MNE renames repeated channels; only the header knows that they were one name.
    names: Sequence[str] = ()
    if kind in edf.EDF_SUFFIXES:
        header = edf.check_edf(path, truncated)
        names = [label for label in header.labels if label not in edf.ANNOTATIONS]
        record = sum(header.samples) * header.width
        present = (os.path.getsize(path) - header.size) // record
        if truncated == "read" and present < header.records:
            length, stated = present * header.seconds, header.records * header.seconds
            warn_left_out(f"{path} is truncated: {length:g} s of {stated:g} s are read")
    elif kind == ".vhdr":
        names = brainvision.check_brainvision(path, truncated)
    elif kind == ".gdf":
        names, _ = headers.check_gdf(path)
    else:
        headers.check_fif(path)
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        examples = listed((f"{name} is read as {name}-0, {name}-1" for name in repeated), 3)
        warn(f"{path} has {len(repeated)} channel names more than once: {examples}. The channels cannot be told apart")


def as_recording(recording: AnyRecording) -> Recording:
    """A recording from itself, from an MNE Raw, from a file, or from samples and their rate.

    Parameters
    ----------
    recording : Recording, Raw, path, or (samples, sfreq)
        Samples [C, n] are µV, their channels are called "1", "2", …; `Recording.from_array` takes names and units.

    Examples
    --------
    >>> import numpy as np
    >>> as_recording((np.random.default_rng(0).normal(0, 50, (2, 5120)), 512.0))
    <Recording array: 2 channels, 10.0 s at 512 Hz, 0 seizures>
    """
    if isinstance(recording, Recording):
        return recording
    if isinstance(recording, (str, os.PathLike)):
        return read_recording(recording)
    if isinstance(recording, tuple) and len(recording) == 2:
        samples, sfreq = recording
        values = real_numbers(samples, "samples")
        # More channels than samples: MATLAB users keep time in rows.
        if values.ndim != 2 or len(values) > values.shape[1] > 0:
            turned = ", more channels than samples: pass samples.T" * (values.ndim == 2)
            raise ValueError(f"samples must be [C, n], got shape {values.shape}{turned}")
        return Recording.from_array(values, sfreq, [str(number + 1) for number in range(len(values))], "µV")
    if hasattr(recording, "get_data") and hasattr(recording, "info"):
        import mne

        if isinstance(recording, mne.io.BaseRaw):  # Epochs and Evoked have both too
            return recording_from_raw(recording)
    raise TypeError(
        f"a recording must be a Recording, an MNE Raw, a path, or (samples, sfreq) with samples [C, n] in µV, got "
        f"{type(recording).__name__}: pass samples together with their rate, or use Recording.from_array"
    )


def _read_raw(
    path: Path, location: Any, rate: float | None, channels: Sequence[str] | None, unit: str | None
) -> tuple[mne.io.BaseRaw, dict[str, str], list[str], dict[str, str] | None]:
    """The file as a Raw with EEG channels at their own rate, what is left out and why, what is kept, stated units."""
    table = bids.sidecar(path, location, "channels.tsv")
    if table is None:
        finding.warn_of_unread_tables(path, "channels.tsv", "lists the channels")
    if (table is not None or location is not None) and bids.bids_root(path) is None:
        # Without the file's name, so that it is said once for a folder.
        source = f"sub-… in the names of {path.parent}" if table is None else str(table)
        warn(f"{source} is used as in BIDS, though no dataset_description.json lies above it")
    raw = _open_raw(path)
    stored_names = list(raw.ch_names)
    texts = brainvision.brainvision_units(path) if path.suffix.lower() == ".vhdr" else []
    no_voltage = types_by_units(raw, texts)
    rows = {} if table is None else bids.rows_of_channels(stored_names, bids.read_channel_table(table), str(table))
    bids.apply_rows(raw, rows)
    kept, dropped = eeg_channels(raw, channels, path.name)
    for name in dropped.keys() & no_voltage.keys() - rows.keys():
        dropped[name] += f", as its unit is {no_voltage[name]!r}"
    shares = edf.relative_rates(raw)
    bids.warn_of_other_rate(rows, dict(zip(stored_names, shares * raw.info["sfreq"], strict=True)), str(table))
    if rate is not None:
        rates = shares * raw.info["sfreq"]
        other = [index for index in kept if not math.isclose(rates[index], rate, rel_tol=1e-6)]
        dropped |= {raw.ch_names[index]: f"stored at {rates[index]:g} Hz" for index in other}
        kept = [index for index in kept if index not in other]
        if not kept:
            stored = ", ".join(sorted({f"{rates[index]:g}" for index in other}))
            raise ValueError(f"{path} has no EEG channel at {rate:g} Hz, it has some at {stored} Hz (--rate)")
    # MNE misplaces channels that are slower than the fastest one it reads: those of one rate are read together.
    own_shares = set(shares[kept].tolist())
    slower = len(own_shares) == 1 and own_shares != {1.0}
    names = [raw.ch_names[index] for index in kept]
    if path.suffix.lower() in edf.EDF_SUFFIXES and (slower or (rate is not None and own_shares != {1.0})):
        # A faster channel, such as an EKG, is no EEG; without it MNE reads the others right.
        own_rate = [name for name, share in zip(stored_names, shares, strict=True) if share in own_shares]
        raw = _open_raw(path, own_rate)
        bids.apply_rows(raw, rows)
    units = stated_units(raw)
    if units is not None:
        if path.suffix.lower() in edf.EDF_SUFFIXES:
            header = edf.read_header(path)
            labelled = zip(header.units, header.labels, strict=True)
            texts = [text for text, label in labelled if label not in edf.ANNOTATIONS]
        elif path.suffix.lower() == ".gdf":
            _, texts = headers.check_gdf(path)
        # What MNE does not know it calls n/a, and the user could not tell "10uV" from none.
        if texts:
            names_of = [rows.get(name, {"name": name})["name"] for name in stored_names]
            written = dict(zip(names_of, texts, strict=False))
            units = {name: written.get(name, "") if text in ("n/a", "") else text for name, text in units.items()}
        units = with_units_of_table(units, {row["name"]: row.get("units", "") for row in rows.values()}, str(table))
        odd = [name for name in names if known_unit(units.get(name, "")) is None]
        # Where the caller names channels or their unit, the error of `microvolt_scales` says what is wrong with these.
        if channels is None and unit is None and 0 < len(odd) < len(names):
            warn_left_out(f"{path.name}: channels of no known unit are left out: {listed(odd)}. If EEG, give --unit")
            raw.set_channel_types(dict.fromkeys(odd, "misc"), on_unit_change="ignore", verbose="error")
            dropped |= {name: f"its unit, {units.get(name, '')!r}, is no known voltage" for name in odd}
            names = [name for name in names if name not in odd]
    return raw, dropped, names, units


def _open_raw(path: Path, include: Sequence[str] | None = None) -> mne.io.BaseRaw:
    """The file as a lazy Raw; of an EDF file these channels only, by the names that MNE gave them."""
    import mne

    options: dict[str, Any] = {}
    if include is not None:  # by names as here, and as they stand in a file that pads them with zeros
        names = [*include, *(name.ljust(16, "\0") for name in include)]
        names += [name.encode().decode("latin-1") for name in include]
        names += [re.sub(r"^(.*)(-\d+)$", lambda found: found[1].ljust(16, "\0") + found[2], name) for name in include]
        options = {"include": names, "exclude_after_unique": True}
    is_edf = path.suffix.lower() in edf.EDF_SUFFIXES
    # Which any bytes are; the annotations are read anew below.
    options |= {"encoding": "latin1"} if is_edf else {}
    with damage_is_an_error(path), warnings.catch_warnings(record=True, action="always") as caught:
        try:
            raw = mne.io.read_raw(path, preload=False, verbose="warning", **options)
        except Exception:
            if path.suffix.lower() != ".vhdr":
                raise
            # MNE reads marks in UTF-8 alone, knows few names of code pages, and wants endings in small letters and
            # commas in texts of marks as the format has them.
            with tempfile.TemporaryDirectory() as folder:
                raw = mne.io.read_raw(brainvision.in_utf8(path, Path(folder)), preload=False, verbose="warning")
        if is_edf:
            # Of a name that is padded with zeros MNE does not see that it is of the annotations.
            raw.rename_channels({name: edf.in_utf8(name.replace("\0", "").strip()) for name in raw.ch_names})
            raw.drop_channels([name for name in raw.ch_names if name in edf.ANNOTATIONS])
            # MNE also cuts annotations to the recording; `stated_seizures` does so too, but says what it leaves out.
            raw.annotations.delete(range(len(raw.annotations)))
            if marks := edf.read_annotations(path, raw.ch_names):
                onsets, durations, texts, channels_of = zip(*marks, strict=True)
                raw.annotations.append(onsets, durations, texts, ch_names=[*channels_of])
        messages = {str(warning.message): warning.category for warning in caught}
        if path.suffix.lower() == ".vhdr" and (intervals := brainvision.bad_intervals(path)):
            for place, mark in enumerate(raw.annotations):
                channels = intervals.get(round(mark["onset"] * raw.info["sfreq"]) + 1, ())
                if channels and mark["description"].startswith("Bad Interval") and max(channels) <= len(raw.ch_names):
                    raw.annotations.ch_names[place] = tuple(raw.ch_names[number - 1] for number in sorted(channels))
    # Opened a second time, the file has nothing new to say.
    for text, kind in messages.items() if include is None else ():
        outside = is_edf and "annotation" in text and "outside" in text
        if not outside and not any(handled in text for handled in HANDLED_HERE):
            left_out = kind is LeftOutWarning or text.startswith("Omitted")
            (warn_left_out if left_out else warn)(f"{path}: {' '.join(text.split())}")
    return raw


def read_classes(
    path: Path, recording: Recording, classes: Sequence[str], truncated: str = "error"
) -> dict[str, list[Interval]]:
    """Intervals (s) of each class in the table beside a file, or where that names none in its own annotations."""
    with recording.noting():
        table, raw = bids.sidecar(path, bids.bids_path(path), "events.tsv"), getattr(recording.source, "raw", None)
        spans: dict[str, list[Interval]] = {label: [] for label in classes}
        if table is not None:
            settings = recording.name, recording.duration, recording.sfreq
            spans = events_table.read_spans(table, classes, *settings, cut_short=truncated == "read")
            finding.warn_of_shared_table(table, path)
        if raw is None:
            return spans
        marks = [
            (mark["onset"] - raw.first_time, mark["duration"], str(mark["description"])) for mark in raw.annotations
        ]
        if not any(spans.values()):
            return class_spans(marks, classes, recording.name, recording.duration)
        with warnings.catch_warnings(action="ignore"):
            marked = class_spans(marks, classes, recording.name, recording.duration)
        differ = [
            f"{label} at {max(on, onset):g} s"
            for label, mine in marked.items()
            for on, off in mine
            for other, theirs in spans.items()
            for onset, offset in theirs
            if other != label and on < offset and off > onset
        ]
        if differ:
            warn_left_out(f"{table} is believed, and contradicts the annotations in the file: {listed(differ)}")
        return spans


def _sidecar_seizures(
    path: Path, location: Any, raw: mne.io.BaseRaw, open_seconds: float | None, words: Sequence[str], *, cut_short: bool
) -> list[Interval] | None:
    """Seizures of the table beside the file, or None if there is none or it says nothing of seizures."""
    table = bids.sidecar(path, location, "events.tsv")
    if table is None:
        finding.warn_of_unread_tables(path, "events.tsv", "lists the seizures")
        return None
    duration = raw.n_times / raw.info["sfreq"]
    rows = events_table.read_rows(table, words)
    events = [event for event, *_ in rows]
    # The table of a file that was cut short speaks of the whole.
    if not cut_short:
        start = subject_metadata(raw).get("start", "n/a")
        events_table.warn_of_contradictions(rows, duration, raw.info["sfreq"], table, start)
        events_table.check_times(events, duration, raw.info["sfreq"], table, words)
    marks = [(mark["onset"] - raw.first_time, mark["duration"], str(mark["description"])) for mark in raw.annotations]
    # With those of the file itself, so that `recording_from_raw` finds both.
    for event, channels, *_ in rows:
        if BOUNDARY.fullmatch(event[2]):
            raw.annotations.append(event[0] + raw.first_time, 0.0, event[2])
        for onset, offset in bad_spans([event]):
            raw.annotations.append(onset + raw.first_time, offset - onset, "BAD_", ch_names=[channels])
    columns = bids.read_json(path, location, "events.json")
    events_table.warn_of_codes(*columns, [text for _, _, text in events], path.name, words)
    seizures = stated_seizures(events, duration, open_seconds, path.name, words=words)
    if seizures is None and any(is_seizure(text, words) for _, _, text in events):
        # The table knows of one somewhere. What the file says of none is not believed.
        texts = [str(mark["description"]) for mark in raw.annotations]
        raw.annotations.delete([number for number, text in enumerate(texts) if is_background(text)])
    if seizures:
        finding.warn_of_shared_table(table, path)
    if seizures is not None:
        events_table.warn_of_other_seizures(marks, seizures, duration, table, words)
    return seizures
