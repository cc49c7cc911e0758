"""Which subjects a model was trained on: kept beside its weights as hashes, as no subject's name may go with them."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from mvpa_ts.files import read_config, replaced
from mvpa_ts.ieeg.datasets.swec import identity

TRAINING_NAME = "training.json"


def subject_hash(subject: str) -> str:
    """SHA-256 of a subject's name, the same for both names of a person whom SWEC holds twice.

    Examples
    --------
    >>> subject_hash("ID20") == subject_hash("ID01") != subject_hash("ID02")
    True
    """
    return hashlib.sha256(identity(subject).encode()).hexdigest()


def save_training_subjects(folder: str | os.PathLike[str], hashes: Iterable[str]) -> None:
    """Write training.json beside a model's weights; `hashes` are those of `subject_hash`."""
    with replaced(Path(folder) / TRAINING_NAME) as file:
        file.write_text(json.dumps({"subjects_sha256": sorted(hashes)}, indent=2) + "\n", encoding="utf-8")


def read_training_subjects(folder: str | os.PathLike[str]) -> frozenset[str] | None:
    """Hashes of the subjects that a model's folder says it was trained on; None where it says nothing.

    Raises ValueError where training.json is damaged.
    """
    path = Path(folder) / TRAINING_NAME
    if not path.is_file():
        return None
    hashes = read_config(path).get("subjects_sha256")
    if not isinstance(hashes, list) or not all(isinstance(text, str) for text in hashes):
        raise ValueError(f"{path} must hold a list of hashes, subjects_sha256, got {hashes!r}")
    return frozenset(hashes)


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
