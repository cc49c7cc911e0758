"""Brain TreeBank (Wang et al. 2024): recordings of people watching films, and four decoding tasks with their protocols.

Layout below the root: ``sub_X_trialYYY.h5`` with ``data/electrode_{i}`` at 2048 Hz, ``electrode_labels/sub_X/``,
``subject_timings/sub_X_trialYYY_timings.csv`` (``movie_time``, ``index``), transcripts with ``features.csv``, and the
lists ``corrupted_elec.json`` and ``clean_laplacian.json``.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mvpa_ts.ieeg.events import Floats, Integers
from mvpa_ts.ieeg.recordings.channels import NO_ELECTRODE
from mvpa_ts.ieeg.recordings.guards import damage_is_an_error, read_text_bytes
from mvpa_ts.ieeg.recordings.hdf5 import local_dataset, open_hdf5
from mvpa_ts.ieeg.recordings.levels import warn_if_implausible
from mvpa_ts.ieeg.recordings.recording import Recording, Signal

SFREQ = 2048.0


def clean_label(label: str) -> str:
    """Remove from an electrode's label the marks that some files add.

    Examples
    --------
    >>> clean_label("RT2aA11#"), clean_label("F1*0Fa5")
    ('RT2aA11', 'F10Fa5')
    """
    return label.translate(str.maketrans("", "", "*#_")).strip()


def electrode_labels(root: str | Path, subject: int) -> list[str]:
    """Read the clean labels of all electrodes, in the order of ``electrode_{i}``."""
    path = Path(root) / "electrode_labels" / f"sub_{subject}" / "electrode_labels.json"
    return _labels(path, _json(path))


def electrode_list(path: str | Path, subject: int) -> list[str]:
    """Read a subject's clean labels in ``corrupted_elec.json`` or ``clean_laplacian.json``; keys: subject1, sub_1."""
    lists = _json(Path(path))
    if not isinstance(lists, dict):
        raise ValueError(f"{path} must hold an object with a list for each subject")
    for key in (f"subject{subject}", f"sub_{subject}"):
        if key in lists:
            return _labels(Path(path), lists[key])
    raise ValueError(f"{path} has no subject {subject}; it has {[*lists]}")


def laplacian_neighbours(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Find the two neighbours on the same wire, for each electrode that has two.

    Examples
    --------
    >>> laplacian_neighbours(["A1", "A2", "A3", "B1", "B3"])
    {'A2': ('A1', 'A3')}
    """
    present = set(labels)
    neighbours = {}
    for label in labels:
        if match := re.fullmatch(r"(.*?)(\d+)", label):
            wire, number = match[1], int(match[2])
            before, after = f"{wire}{number - 1}", f"{wire}{number + 1}"
            # The Laplacian needs a neighbour on both sides; at a wire's end there is none.
            if before in present and after in present:
                neighbours[label] = before, after
    return neighbours


class TreebankSource:
    """Electrodes of an HDF5 file, each minus the mean of two others; each process opens the file by itself."""

    def __init__(self, path: Path, electrodes: Sequence[int], neighbours: Sequence[tuple[int, int]]) -> None:
        self.path = path
        self.electrodes = tuple(electrodes)
        self.neighbours = tuple(neighbours)
        self._file: h5py.File | None = None
        self._process = os.getpid()

    def read(self, start: int, stop: int, channels: Integers) -> Signal:
        """See `Source.read`."""
        # A handle that a fork inherited would read from its parent's place.
        if self._process != os.getpid():
            self._file, self._process = None, os.getpid()
        if self._file is None:
            self._file = open_hdf5(self.path)
        file = self._file

        @cache
        def electrode(number: int) -> Floats:
            with damage_is_an_error(self.path, f" at samples [{start}, {stop})"):
                return np.asarray(file[f"data/electrode_{number}"][start:stop], dtype=np.float64)

        x = np.empty((len(channels), stop - start), np.float32)
        for row, channel in enumerate(channels):
            before, after = self.neighbours[channel]
            x[row] = electrode(self.electrodes[channel]) - (electrode(before) + electrode(after)) / 2
        return x

    def close(self) -> None:
        """Close the file; the next `read` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}


def read_treebank(root: str | Path, subject: int, trial: int) -> Recording:
    """Read a trial as a recording: each electrode minus the mean of its two neighbours on the same wire.

    Parameters
    ----------
    root : path
    subject, trial : int
        Files are ``sub_1_trial000.h5`` and so on.

    Returns
    -------
    Recording
        In µV. DC and TRIG channels are dropped, and electrodes without two neighbours, those that
        ``corrupted_elec.json`` lists, and those that ``clean_laplacian.json`` does not list.

    Raises
    ------
    FileNotFoundError
        A file is missing.
    ValueError
        The labels name an electrode that is not in the file, the file is damaged, or no electrode is left.
    """
    root = Path(root)
    path = root / f"sub_{subject}_trial{trial:03d}.h5"
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    labels = electrode_labels(root, subject)
    corrupted = electrode_list(root / "corrupted_elec.json", subject)
    listed = electrode_list(root / "clean_laplacian.json", subject)
    neighbours = laplacian_neighbours(labels)
    number_of = {label: i for i, label in enumerate(labels)}
    kept, dropped = [], {}
    for label in labels:
        if label.startswith(("DC", "TRIG")):
            dropped[label] = NO_ELECTRODE
        elif label in corrupted:
            dropped[label] = "corrupted by the data set's list"
        elif label not in neighbours:
            dropped[label] = "no two neighbours on its wire"
        elif label not in listed:
            dropped[label] = "not in the data set's list of clean electrodes"
        else:
            kept.append(label)
    if not kept:
        raise ValueError(f"{path}: no electrode is left; dropped: {dropped}")
    pairs = [(number_of[before], number_of[after]) for before, after in map(neighbours.__getitem__, kept)]
    used = {number_of[label] for label in kept}.union(*pairs)
    with damage_is_an_error(path), open_hdf5(path) as file:
        sets = [local_dataset(file, f"data/electrode_{number}") for number in sorted(used)]
        if any(dataset.ndim != 1 for dataset in sets):
            raise ValueError(f"{path}: each data/electrode_… must be a row of samples")
        # Electrodes of some files differ by a few samples.
        samples = min(len(dataset) for dataset in sets)
    recording = Recording(
        TreebankSource(path, [number_of[label] for label in kept], pairs),
        sfreq=SFREQ,
        channel_names=kept,
        num_samples=samples,
        subject=f"sub_{subject}",
        name=f"sub_{subject}_trial{trial:03d}",
        dropped=dropped,
    )
    warn_if_implausible(recording)
    return recording


def trigger_samples(times: Floats, movie_time: Floats, index: NDArray[Any]) -> NDArray[np.int64]:
    """Convert times [n] of the film (s) to samples: that of the nearest trigger, plus 2048 for each second from there.

    `movie_time` and `index` are the film time and the sample of each trigger, in rising order.

    Examples
    --------
    >>> trigger_samples(np.array([1.0, 9.5]), np.array([0.0, 10.0]), np.array([500, 30000]))
    array([ 2548, 28976])
    """
    if len(movie_time) == 0 or (np.diff(movie_time) < 0).any():
        raise ValueError("movie_time must hold triggers in rising order")
    after = np.clip(np.searchsorted(movie_time, times), 1, max(len(movie_time) - 1, 1))
    after = np.minimum(after, len(movie_time) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(times - movie_time[before]) <= np.abs(movie_time[after] - times), before, after)
    return np.rint(index[nearest] + (times - movie_time[nearest]) * SFREQ).astype(np.int64)


def read_words(features: str | Path, timings: str | Path) -> pd.DataFrame:
    """Read the words of ``features.csv`` of a film, with their samples in a trial, ``est_idx`` and ``est_end_idx``.

    Words without a start or end are left out. `timings` needs the columns ``movie_time`` and ``index``, `features` the
    columns ``start`` and ``end``. Other columns (``text``, ``is_onset``, ``rms``, ``pitch``) are kept.
    """
    words, triggers = _table(features), _table(timings)
    check_columns(words, ("start", "end"), features)
    check_columns(triggers, ("movie_time", "index"), timings)
    triggers = triggers.dropna(subset=["movie_time", "index"])
    words = words.dropna(subset=["start", "end"]).reset_index(drop=True)
    movie, index = (_numbers(triggers, column, timings) for column in ("movie_time", "index"))
    # Some tables of triggers are not in order, and the search needs one.
    order = np.argsort(movie, kind="stable")
    movie, index = movie[order], index[order]
    return words.assign(
        est_idx=trigger_samples(_numbers(words, "start", features), movie, index),
        est_end_idx=trigger_samples(_numbers(words, "end", features), movie, index),
    )


def check_columns(frame: pd.DataFrame, columns: Sequence[str], name: object) -> None:
    """Raise a ValueError where a table lacks columns."""
    if missing := [column for column in columns if column not in frame]:
        raise ValueError(f"{name} lacks the columns {missing}; it has {[*frame]}")


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from error


def _labels(path: Path, labels: Any) -> list[str]:
    """Clean labels; raise a ValueError if they are not a list of texts."""
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"{path} must hold a list of labels")
    return [clean_label(label) for label in labels]


def _table(path: str | Path) -> pd.DataFrame:
    with damage_is_an_error(Path(path)):
        return pd.read_csv(io.BytesIO(read_text_bytes(Path(path))))


def _numbers(frame: pd.DataFrame, column: str, path: str | Path) -> Floats:
    """Return a column as numbers; raise a ValueError that names the file if a value is not a finite number."""
    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(float)
    if not np.isfinite(values).all():
        raise ValueError(f"{path}: {column} must hold numbers")
    return values
