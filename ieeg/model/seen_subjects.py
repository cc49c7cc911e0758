"""Subjects, recordings and channels that a model was trained on, beside its weights; people's names as hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from mvpa_ts.checks import listed, warn
from mvpa_ts.files import read_config, write_json
from mvpa_ts.ieeg.recordings.channels import natural_key, plain_name
from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.ieeg.recordings.swec_table import identity

TRAINING_NAME = "training.json"


def subject_hash(subject: str) -> str:
    """Compute the SHA-256 of a subject's name; both names of a person who appears twice in SWEC have the same hash.

    Examples
    --------
    >>> subject_hash("ID20") == subject_hash("ID01") != subject_hash("ID02")
    True
    """
    return hashlib.sha256(identity(subject).encode()).hexdigest()


def recording_hash(recording: Recording) -> str:
    """Compute the SHA-256 of a recording's samples, length and rate; renaming the file does not change it."""
    # Samples and not the name: people rename files, and a name may be that of a patient.
    text = f"{recording.fingerprint()} {recording.num_samples} {recording.sfreq}"
    return hashlib.sha256(text.encode()).hexdigest()


def save_training_subjects(folder: str | Path, hashes: Iterable[str], recordings: Iterable[str] | None = None) -> None:
    """Write training.json beside a model's weights, of hashes by `subject_hash` and by `recording_hash`.

    `recordings` is None if some are unknown.
    """
    content = {"subjects_sha256": sorted(hashes)}
    if recordings is not None:
        content["recordings_sha256"] = sorted(recordings)
    write_json(Path(folder) / TRAINING_NAME, content)


def read_training_subjects(folder: str | Path) -> frozenset[str] | None:
    """Read the hashes of the subjects that a model was trained on from its folder; None if they are not stated.

    Raises a ValueError if training.json is damaged.
    """
    return _hashes(Path(folder) / TRAINING_NAME, "subjects_sha256", needed=True)


def read_training_recordings(folder: str | Path) -> frozenset[str] | None:
    """Read the hashes of the recordings likewise; None also where some of them are unknown."""
    return _hashes(Path(folder) / TRAINING_NAME, "recordings_sha256", needed=False)


def _hashes(path: Path, key: str, *, needed: bool) -> frozenset[str] | None:
    if not path.is_file():
        return None
    # Hashes tell whether a name was there, but not which names were: a model can be shared without naming patients.
    hashes = read_config(path).get(key)
    if hashes is None and not needed:
        return None
    if not isinstance(hashes, list) or not all(isinstance(text, str) for text in hashes):
        raise ValueError(f"{path} must hold a list of hashes, {key}, got {hashes!r}")
    return frozenset(hashes)


def save_training_channels(folder: str | Path, recordings: Iterable[Recording]) -> None:
    """Add to training.json which channels the recordings of one patient have, each kind of recording once."""
    path = Path(folder) / TRAINING_NAME
    channels = {tuple(sorted(map(plain_name, recording.channel_names))) for recording in recordings}
    write_json(path, read_config(path) | {"channels": sorted(channels)})


def other_channels(recording: Recording, folder: str | Path) -> tuple[list[str], list[str]]:
    """Channels that all training recordings have and this one lacks, and those that none has; none if nothing says so.

    Raises a ValueError if training.json is damaged.
    """
    path = Path(folder) / TRAINING_NAME
    kinds = read_config(path).get("channels", []) if path.is_file() else []
    if not isinstance(kinds, list) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in kinds
    ):
        raise ValueError(f"{path} must hold lists of channels' names, channels, got {kinds!r:.100}")
    if not kinds:
        return [], []
    names = {*map(plain_name, recording.channel_names)}
    missing, unknown = set.intersection(*map(set, kinds)) - names, names.difference(*kinds)
    return sorted(missing, key=natural_key), sorted(unknown, key=natural_key)


def warn_of_other_channels(recording: Recording, folder: str | Path) -> None:
    """Name channels in which a recording differs from those that trained one patient's detector."""
    missing, unknown = map(listed, other_channels(recording, folder))
    differences = [f"{missing} missing here" * bool(missing), f"{unknown} unknown there" * bool(unknown)]
    if any(differences):
        recording.warn(
            f"{recording.name} has other channels than the recordings that trained the detector: "
            f"{'; '.join(filter(None, differences))}. It then measures other places, so look at its events with more "
            "doubt, or finetune again with recordings like this one",
        )


def trained_on(recording: Recording, folder: str | Path) -> bool | None:
    """Say whether a model was trained on a recording; None if its folder does not tell.

    If the folder names only subjects, all recordings of these subjects count.
    """
    recordings, subjects = read_training_recordings(folder), read_training_subjects(folder)
    if recordings is not None:
        return recording_hash(recording) in recordings
    return None if subjects is None else subject_hash(recording.subject_name) in subjects


def others_trained(recording: Recording, folder: str | Path) -> bool | None:
    """Say whether other recordings of the subject trained a model, and this one did not; None if nothing tells.

    Outside of BIDS and SWEC nothing tells who was recorded. A detector of one patient may then be that of this one.
    """
    path = Path(folder) / TRAINING_NAME
    subjects = read_training_subjects(folder)
    if subjects is None or trained_on(recording, folder):
        return None if subjects is None else False
    if subject_hash(recording.subject_name) in subjects:
        return True
    return None if "channels" in read_config(path) and not recording.person_known else False


def refuse_seen(subjects: Iterable[str], seen: frozenset[str], *, allow_duplicates: bool = False) -> None:
    """Raise a ValueError that names subjects whose hash is among `seen`; with `allow_duplicates`, only warn."""
    trained = sorted({subject for subject in subjects if subject_hash(subject) in seen})
    if not trained:
        return
    # A score on subjects of the base is a score on training data, which is the most common way to fool oneself.
    message = f"validation_subjects {trained} are among those that base was trained on, by their names"
    if not allow_duplicates:
        raise ValueError(
            f"{message}: choose other subjects. Set --data.allow_duplicates true in a command, or pass "
            "allow_duplicates=True in Python, to validate on them anyway, or if they are other people of the same name"
        )
    warn(f"{message}: their scores are scores on training data")


def refuse_seen_recordings(recordings: Iterable[Recording], seen: frozenset[str]) -> None:
    """Raise a ValueError that names recordings whose hash is among `seen`."""
    if trained := sorted(item.name for item in recordings if recording_hash(item) in seen):
        raise ValueError(f"validation_recordings {trained} were used to train base: choose other recordings")
