"""Segments of the MAYO and FNUSA data sets (Nejedly et al., Scientific Data 7, 2020): one channel, 3 s at 5 kHz each.

The recordings are interictal: "pathology" means epileptiform activity between seizures, not a seizure.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.preprocessing.signal import PreprocessedSignal
from mvpa_ts.ieeg.recordings.guards import damage_is_an_error, read_text_bytes
from mvpa_ts.ieeg.recordings.recording import Recording, Signal

SFREQ = 5000.0
SAMPLES = 15_000
DATA_SETS = ("DATASET_MAYO", "DATASET_FNUSA")
_COLUMNS = ("category_name", "institution", "patient_id", "segment_id")


@dataclass(frozen=True)
class NejedlySegment:
    """One row of ``segments.csv``; `category` is "physiology", "pathology", "artifacts" or "powerline" noise."""

    path: Path
    segment_id: str
    category: str
    patient: str

    @property
    def pathological(self) -> bool:
        """Whether the segment is of the positive class."""
        return self.category == "pathology"


def nejedly_segments(folder: str | Path) -> list[NejedlySegment]:
    """Read the table of a data set.

    Parameters
    ----------
    folder : path
        ``DATASET_MAYO`` or ``DATASET_FNUSA``, with ``segments.csv`` and ``<segment_id>.mat`` files.

    Returns
    -------
    list of NejedlySegment
        Classes come from ``category_name``, because the numbers in ``category_id`` do not mean the same in both sets.

    Raises
    ------
    FileNotFoundError
        There is no table.
    ValueError
        A column or a value is missing, no row is pathology, or the id of a segment leads out of the folder.
    """
    folder = Path(folder)
    table = folder / "segments.csv"
    if not table.is_file():
        raise FileNotFoundError(f"there is no {table}: folder must be {' or '.join(DATA_SETS)}")
    with damage_is_an_error(table):
        rows = csv.DictReader(io.StringIO(read_text_bytes(table).decode("utf-8-sig"), newline=""))
        if missing := [column for column in _COLUMNS if column not in (rows.fieldnames or [])]:
            raise ValueError(f"{table} lacks the columns {missing}; it has {rows.fieldnames}")
        segments = []
        for row in rows:
            if None in row.values():
                raise ValueError(f"{table}, line {rows.line_num} has fewer values than columns: is the file cut off?")
            name = row["segment_id"]
            # The table names files, and must not lead out of the folder.
            if name != Path(name).name or name in ("", ".", "..") or "\0" in name:
                raise ValueError(f"{table}: segment_id {name!r} is not a file name")
            segments.append(
                NejedlySegment(
                    path=folder / f"{name}.mat",
                    segment_id=name,
                    category=row["category_name"].strip().lower(),
                    patient=f"{row['institution']}-{row['patient_id']}",
                )
            )
    if "pathology" not in (categories := {segment.category for segment in segments}):
        raise ValueError(f"{table} must have rows with category_name pathology, got only {sorted(categories)}")
    return segments


def read_nejedly(segment: NejedlySegment) -> Signal:
    """Read the signal of a segment in the form that the encoder of the model takes.

    It is filtered and resampled like any recording. This gives 1536 samples at 512 Hz. Then 512 mirrored samples are
    added at each end, which makes the 2560 samples of a model segment.

    Returns
    -------
    ndarray of float32, shape (1, 2560)
        µV.
    """
    from scipy.io import loadmat, whosmat

    if not segment.path.is_file():
        raise FileNotFoundError(f"no file {segment.path}, which segments.csv lists")
    with damage_is_an_error(segment.path):
        # The shape first: a file of a few bytes may state any.
        shapes = {name: shape for name, shape, _ in whosmat(segment.path)}
        if "data" not in shapes:
            raise ValueError(f"{segment.path} cannot be read: damaged, or without `data`")
        if shapes["data"] != (1, SAMPLES):
            raise ValueError(f"{segment.path}: data must have shape (1, {SAMPLES}), got {shapes['data']}")
        data = np.asarray(loadmat(segment.path, variable_names=["data"])["data"])
        if data.dtype.kind not in "fiu" or data.shape != (1, SAMPLES):
            raise ValueError(f"{segment.path}: data must be real numbers of shape (1, {SAMPLES}), got {data.dtype}")
    recording = Recording.from_array(data, SFREQ, ["x"], "µV", subject=segment.patient, name=segment.segment_id)
    stream = PreprocessedSignal(recording, Preprocessing(notch=None, reference=None))
    signal, _ = stream.read(0, stream.num_samples)
    return pad_symmetrically(signal, round(SEGMENT_SECONDS * stream.preprocessing.sfreq))


def pad_symmetrically(signal: Signal, samples: int) -> Signal:
    """Mirror [C, n] at both ends, several times if needed, to [C, samples]; an odd sample goes to the end.

    Examples
    --------
    >>> pad_symmetrically(np.array([[1.0, 2.0, 3.0]], np.float32), 7)
    array([[2., 1., 1., 2., 3., 3., 2.]], dtype=float32)
    """
    missing = samples - signal.shape[1]
    if missing < 0:
        raise ValueError(f"the signal has {signal.shape[1]} samples, more than {samples}")
    # Mirrored, because zeros would be a step and a flat stretch, both of which look like faults.
    return np.pad(signal, [(0, 0), (missing // 2, missing - missing // 2)], mode="symmetric")
