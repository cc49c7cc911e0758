"""Reading recordings: EDF, BrainVision, FIF and BIDS-iEEG through MNE and mne-bids; SWEC files by their own reader."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.ieeg.recordings.annotations import OPEN_SECONDS, read_events, seizures_from_events
from mvpa_ts.ieeg.recordings.bids import apply_rows, read_channel_table, read_tsv, rows_of_channels
from mvpa_ts.ieeg.recordings.channels import OTHER_TYPE, natural_order, not_eeg
from mvpa_ts.ieeg.recordings.edf import EDF_SUFFIXES, check_edf, check_rates, relative_rates
from mvpa_ts.ieeg.recordings.recording import Interval, Recording, Signal, warn_if_implausible
from mvpa_ts.ieeg.recordings.units import microvolt_scales, stated_units

if TYPE_CHECKING:
    import mne

SUFFIXES = (".edf", ".bdf", ".gdf", ".vhdr", ".fif", ".fif.gz")
"""Files that MNE reads; an .h5 file or a folder of them is a SWEC recording."""
EEG_TYPES = ("seeg", "ecog", "dbs", "eeg")
NOT_BIDS_DATA = {"sourcedata", "code", "stimuli"}
"""Folders of a BIDS data set that may hold other copies of its recordings, or files of none."""


class RawSource:
    """Samples of an MNE Raw, in µV by the `scale` [C] of its channels."""

    def __init__(self, raw: mne.io.BaseRaw, scale: NDArray[np.float64]) -> None:
        self.raw = raw
        self.scale = scale.astype(np.float32)

    def read(self, start: int, stop: int, channels: NDArray[np.intp]) -> Signal:
        """See `Source.read`."""
        x = np.empty((len(channels), stop - start), np.float32)
        if start < stop:
            files = [str(file) for file in self.raw.filenames if file]
            with _damage_is_an_error(files[0] if files else "the Raw", f" at samples [{start}, {stop})"):
                x[:] = self.raw.get_data(picks=channels, start=start, stop=stop, verbose="error")
        x *= self.scale[channels, None]
        return x


def read_recording(
    path: str | os.PathLike[str],
    *,
    subject: str | None = None,
    unit: str | None = None,
    open_seconds: float | None = OPEN_SECONDS,
) -> Recording:
    """A recording from a file, read lazily.

    Parameters
    ----------
    path : path
        An EDF, BDF, GDF, BrainVision (.vhdr) or FIF file, alone or in a BIDS data set (then channels.tsv, events.tsv
        and participants.tsv are used too); a SWEC file (.h5) or subject folder; a folder with one such file.
    subject : str, optional
        By default the BIDS entity or SWEC folder, else the file's name; never taken from a header, which may hold
        names.
    unit : str, optional
        Of the channels of which the file does not say it ("µV", "mV", "V").
    open_seconds : float or None
        Length given to a seizure whose end is not marked; None leaves such seizures out. See `seizures_from_events`.

    Returns
    -------
    Recording
        Channels in natural order (L2 before L10); what is no EEG or marked bad is in `dropped` with the reason.

    Raises
    ------
    FileNotFoundError
        There is no such file, or none that can be read in the folder.
    ValueError
        The file is truncated or damaged, holds no EEG channel, its unit or rate is unknown, it states another unit than
        `unit`, or the folder holds several recordings.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}")
    if _is_swec(path):
        from mvpa_ts.ieeg.recordings.swec import read_swec

        return read_swec(path, subject=subject)
    if path.is_dir():
        found = find_recordings(path)
        if not found:
            raise FileNotFoundError(f"{path} holds no recording ({', '.join(SUFFIXES)} or SWEC .h5)")
        if len(found) > 1:
            raise ValueError(f"{path} holds {len(found)} recordings, such as {found[0]}: name one")
        return read_recording(found[0], subject=subject, unit=unit, open_seconds=open_seconds)
    if not path.name.lower().endswith(SUFFIXES):
        raise ValueError(f"{path.name}: unknown kind of file, known are {', '.join(SUFFIXES)} and SWEC .h5")
    if path.suffix.lower() in EDF_SUFFIXES:
        check_edf(path)
    bids = _bids_path(path)
    raw, dropped = _read_raw(path, bids)
    recording = recording_from_raw(
        raw,
        name=_stem(path),
        subject=subject or (f"sub-{bids.subject}" if bids is not None else _stem(path)),
        unit=unit,
        units=stated_units(raw),
        seizures=_sidecar_seizures(path, raw, open_seconds),
        open_seconds=open_seconds,
    )
    recording.dropped = dropped
    if bids is not None:
        recording.metadata |= _participant(Path(bids.root), f"sub-{bids.subject}")
    return recording


def find_recordings(folder: str | os.PathLike[str]) -> list[Path]:
    """Files and SWEC subject folders below a folder that `read_recording` reads, sorted.

    A FIF file that MNE split counts once, by its first part. Hidden files and derivatives are left out, and of a BIDS
    data set also what is no data of its own: sourcedata, code and stimuli.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"no file or folder {folder}")
    if folder.is_file() or _is_swec(folder):
        return [folder]
    found: set[Path] = set()
    for parent, folders, files in os.walk(folder):
        others = {"derivatives"} | (NOT_BIDS_DATA if "dataset_description.json" in files else set())
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in others)
        if _is_swec(Path(parent)):
            found.add(Path(parent))
            continue
        names = {name for name in files if name.lower().endswith(SUFFIXES) and not name.startswith(".")}
        found |= {Path(parent) / name for name in names if not _is_later_part(Path(parent), name, names)}
    return sorted(found)


def warn_of_shared_names(files: Iterable[Path]) -> None:
    """Warn where files of one name lie in different folders outside BIDS: they count as one subject."""
    named: dict[str, list[Path]] = {}
    for file in files:
        if not _is_swec(file):
            named.setdefault(_stem(file), []).append(file)
    for name, alike in named.items():
        alike = [file for file in alike if _bids_path(file) is None] if len(alike) > 1 else alike
        if len({file.parent for file in alike}) > 1:
            warnings.warn(
                f"{alike[0]} and {alike[1]} count as one subject, {name!r}, {len(alike)} files in all, because the "
                "subject outside BIDS is the file's name: if they are of different people, give the files different "
                "names or say who was recorded",
                stacklevel=3,
            )


def _is_later_part(folder: Path, name: str, beside: set[str]) -> bool:
    """Whether a file is a part, but not the first, of a FIF file that MNE split: "-1" or BIDS's "_split-02"."""
    if "_split-" in name and ".fif" in name:
        return "_split-01" not in name
    part = re.fullmatch(r"(.+)-\d+(\.fif(?:\.gz)?)", name)
    if part is None or part[1] + part[2] not in beside:
        return False
    import mne

    # "night-1.fif" may also be a recording of its own: the first part knows which files follow it.
    try:
        first = mne.io.read_raw_fif(folder / (part[1] + part[2]), verbose="error")
    except Exception:  # damaged: reading it will say so
        return False
    return folder.resolve() / name in [Path(file).resolve() for file in first.filenames if file]


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
) -> Recording:
    """A recording of an MNE Raw.

    Parameters
    ----------
    raw : mne.io.BaseRaw
        In volts, as MNE keeps signals; types seeg, ecog, dbs and eeg are taken.
    name, subject : str
    unit : str, optional
        What the samples really are in, of the channels of which the file did not say it, so that MNE took volts.
    units : dict of str, optional
        Units as the file states them, by channel; an unknown one without `unit` is an error. By default what MNE knows
        of the file of a Raw that is not loaded, and unknown ones are volts.
    seizures : sequence of (onset, offset), optional
        Taken from the annotations by default.
    open_seconds : float or None
        As for `read_recording`.
    preprocessed : bool
        The signal is already filtered and referenced.
    """
    kept, dropped = _eeg_channels(raw)
    if not kept:
        raise ValueError(f"{name}: no EEG channel; dropped: {dropped}")
    check_rates(raw, kept, name)
    scale = microvolt_scales(raw, kept, unit, units, name)
    kept = [kept[i] for i in natural_order([raw.ch_names[i] for i in kept])]
    if seizures is None:
        events = [(a["onset"], a["duration"], str(a["description"])) for a in raw.annotations]
        # MNE counts annotations from the start of the measurement, whether or not it knows the date; we from sample 0.
        seizures = seizures_from_events(
            [(onset - raw.first_time, length, text) for onset, length, text in events],
            raw.n_times / raw.info["sfreq"],
            open_seconds,
            name,
        )
    recording = Recording(
        RawSource(raw, scale),
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
    )
    warn_if_implausible(recording)
    return recording


def subject_metadata(raw: mne.io.BaseRaw) -> dict[str, Any]:
    """Age in years, sex, handedness, start and line frequency as the file states them; no name, id or birth date."""
    info: Any = raw.info["subject_info"] or {}
    metadata: dict[str, Any] = {}
    birth, start = info.get("birthday"), raw.info["meas_date"]
    if isinstance(birth, date) and isinstance(start, datetime):
        age = start.year - birth.year - ((start.month, start.day) < (birth.month, birth.day))
        if 0 <= age <= 120:
            metadata["age"] = age
    if sex := {1: "male", 2: "female"}.get(info.get("sex")):
        metadata["sex"] = sex
    if hand := {1: "right", 2: "left", 3: "ambidextrous"}.get(info.get("hand")):
        metadata["hand"] = hand
    if isinstance(start, datetime):
        metadata["start"] = start.isoformat()
    if raw.info["line_freq"] in (50, 60):
        metadata["line_frequency"] = float(raw.info["line_freq"])
    return metadata


def _is_swec(path: Path) -> bool:
    if path.is_dir():
        return any(path.glob("*_total.h5")) or any(path.glob("*_part_*.h5"))
    return path.suffix.lower() in (".h5", ".hdf5")


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[0]


@contextmanager
def _damage_is_an_error(path: str | Path, where: str = "") -> Iterator[None]:
    """MNE's many exceptions for a damaged file, and its warning for a short one, as one ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=RuntimeWarning)
            yield
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]  # some hold the file's own bytes
        raise ValueError(
            f"{path} cannot be read{where}: truncated, damaged or not what its name says ({said})"
        ) from error


def _read_raw(path: Path, bids: Any) -> tuple[mne.io.BaseRaw, dict[str, str]]:
    """The file as a Raw whose EEG channels are read at their own rate, and what is left out of the file and why."""
    sidecar = None if bids is None else bids.find_matching_sidecar("channels", ".tsv", on_error="ignore")
    table = [] if sidecar is None else read_channel_table(Path(sidecar))
    raw = _open_raw(path, bids)
    stored_names = list(raw.ch_names)
    rows = rows_of_channels(stored_names, table, str(sidecar)) if table else {}
    apply_rows(raw, rows)
    kept, dropped = _eeg_channels(raw)
    shares = relative_rates(raw)
    own = set(shares[kept].tolist())
    if path.suffix.lower() in EDF_SUFFIXES and len(own) == 1 and own != {1.0}:
        # A faster channel, such as an EKG, is no EEG; without it MNE reads the others right.
        raw = _open_raw(path, bids, [name for name, share in zip(stored_names, shares, strict=True) if share in own])
        apply_rows(raw, rows)
    return raw, dropped


def _open_raw(path: Path, bids: Any, include: Sequence[str] | None = None) -> mne.io.BaseRaw:
    """The file as a lazy Raw; of an EDF file these channels only, by the names that MNE gave them."""
    import mne

    options = {} if include is None else {"include": list(include), "exclude_after_unique": True}
    with _damage_is_an_error(path, "" if bids is None else " with the tables beside it"):
        if bids is not None:
            import mne_bids

            # mne-bids matches channels.tsv by exact names or by order alone; we do it by `rows_of_channels`.
            return mne_bids.read_raw_bids(bids, options, verbose="error", on_ch_mismatch="warn")
        return mne.io.read_raw(path, preload=False, verbose="error", **options)


def _eeg_channels(raw: mne.io.BaseRaw) -> tuple[list[int], dict[str, str]]:
    """Places of the channels to keep, and the others with the reason why not."""
    bad = set(raw.info["bads"])
    dropped, kept = {}, []
    for i, (channel, kind) in enumerate(zip(raw.ch_names, raw.get_channel_types(), strict=True)):
        reason = f"{OTHER_TYPE} {kind}" if kind not in EEG_TYPES else not_eeg(channel)
        if reason is None and channel in bad:
            reason = "marked bad"
        if reason is None:
            kept.append(i)
        else:
            dropped[channel] = reason
    return kept, dropped


def _bids_path(path: Path) -> Any:
    """The file as a BIDSPath when it lies in a BIDS data set, else None."""
    if path.parent.name not in ("ieeg", "eeg") or not path.name.startswith("sub-"):
        return None
    roots = [folder for folder in path.parents if (folder / "dataset_description.json").is_file()]
    if not roots:
        return None
    import mne_bids

    bids = mne_bids.get_bids_path_from_fname(path, check=False)
    return bids.update(root=roots[0])


def _participant(root: Path, subject: str) -> dict[str, Any]:
    """Age, sex and handedness of a BIDS subject from participants.tsv."""
    table = root / "participants.tsv"
    if not table.is_file():
        return {}
    row = next((row for row in read_tsv(table, ()) if row.get("participant_id") == subject), {})
    found: dict[str, Any] = {key: row[key] for key in ("sex", "hand") if row.get(key) not in (None, "", "n/a")}
    with suppress(KeyError, TypeError, ValueError):
        found["age"] = float(row["age"])
    for key, words in (("sex", {"M": "male", "F": "female"}), ("hand", {"R": "right", "L": "left"})):
        if key in found:
            found[key] = words.get(found[key], found[key])
    return found


def _sidecar_seizures(path: Path, raw: mne.io.BaseRaw, open_seconds: float | None) -> list[Interval] | None:
    """Seizures of the events.tsv beside the file, or None without one."""
    stem = _stem(path)
    table = path.parent / f"{stem.removesuffix('_ieeg').removesuffix('_eeg')}_events.tsv"
    if not table.is_file():
        return None
    return seizures_from_events(read_events(table), raw.n_times / raw.info["sfreq"], open_seconds, path.name)
