"""Subjects and recordings that a model was trained on: hashes beside its weights, as no name may go with them."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from mvpa_ts.files import read_config, replaced
from mvpa_ts.ieeg.datasets.swec import identity
from mvpa_ts.ieeg.recordings.recording import Recording

TRAINING_NAME = "training.json"


def subject_hash(subject: str) -> str:
    """SHA-256 of a subject's name, the same for both names of a person whom SWEC holds twice.

    Examples
    --------
    >>> subject_hash("ID20") == subject_hash("ID01") != subject_hash("ID02")
    True
    """
    return hashlib.sha256(identity(subject).encode()).hexdigest()


def recording_hash(recording: Recording) -> str:
    """SHA-256 of a recording's first second, length and rate, which stays when its file is renamed."""
    text = f"{recording.fingerprint()} {recording.num_samples} {recording.sfreq}"
    return hashlib.sha256(text.encode()).hexdigest()


def save_training_subjects(
    folder: str | os.PathLike[str], hashes: Iterable[str], recordings: Iterable[str] | None = None
) -> None:
    """Write training.json beside a model's weights.

    Parameters
    ----------
    folder : path
    hashes : iterable of str
        Of the subjects, by `subject_hash`.
    recordings : iterable of str, optional
        Of the recordings, by `recording_hash`; None where not all are known.
    """
    content = {"subjects_sha256": sorted(hashes)}
    if recordings is not None:
        content["recordings_sha256"] = sorted(recordings)
    with replaced(Path(folder) / TRAINING_NAME) as file:
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_training_subjects(folder: str | os.PathLike[str]) -> frozenset[str] | None:
    """Hashes of the subjects that a model's folder says it was trained on; None where it says nothing.

    Raises ValueError where training.json is damaged.
    """
    return _hashes(Path(folder) / TRAINING_NAME, "subjects_sha256", needed=True)


def read_training_recordings(folder: str | os.PathLike[str]) -> frozenset[str] | None:
    """The same of the recordings; None also where only subjects are named, as in older folders."""
    return _hashes(Path(folder) / TRAINING_NAME, "recordings_sha256", needed=False)


def _hashes(path: Path, key: str, *, needed: bool) -> frozenset[str] | None:
    if not path.is_file():
        return None
    hashes = read_config(path).get(key)
    if hashes is None and not needed:
        return None
    if not isinstance(hashes, list) or not all(isinstance(text, str) for text in hashes):
        raise ValueError(f"{path} must hold a list of hashes, {key}, got {hashes!r}")
    return frozenset(hashes)


def trained_on(recording: Recording, folder: str | os.PathLike[str]) -> bool | None:
    """Whether a model was trained on a recording; None where its folder says nothing.

    Where the folder names subjects alone, a recording of one of them counts.
    """
    recordings, subjects = read_training_recordings(folder), read_training_subjects(folder)
    if recordings is not None:
        return recording_hash(recording) in recordings
    return None if subjects is None else subject_hash(recording.subject or recording.name) in subjects


def refuse_seen(subjects: Iterable[str], seen: frozenset[str], *, allow_duplicates: bool = False) -> None:
    """A ValueError that names the subjects whose hash is among `seen`; a warning with `allow_duplicates`."""
    known = sorted({subject for subject in subjects if subject_hash(subject) in seen})
    if not known:
        return
    message = f"validation_subjects {known} are among those that base was trained on, by their names"
    if not allow_duplicates:
        raise ValueError(
            f"{message}: choose others, or pass allow_duplicates=True to validate on them all the same, or where they "
            "are other people of the same name"
        )
    warnings.warn(f"{message}: what is measured on them is measured on training data", stacklevel=2)


def refuse_seen_recordings(recordings: Iterable[Recording], seen: frozenset[str]) -> None:
    """A ValueError that names the recordings whose hash is among `seen`."""
    if known := sorted(item.name for item in recordings if recording_hash(item) in seen):
        raise ValueError(f"validation_recordings {known} are among those that base was trained on: choose others")
