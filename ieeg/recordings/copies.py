"""Recordings that hold the same signal, such as one file in two formats: by their samples, as names may differ."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mvpa_ts.ieeg.recordings.channels import plain_name
from mvpa_ts.ieeg.recordings.recording import Recording

# Seconds at which the compared pieces begin: the same ones in a copy that is a little longer or shorter.
STARTS = (0.3, 3.3, 10.3, 30.3, 100.3, 300.3, 1000.3, 3000.3, 10000.3, 30000.3)
# Values of a piece of a second.
VALUES = 64
# Correlation from which on signals are the same: 16 bits, or another unit, leave more than 0.99999 of it.
SAME = 0.999


def copies(recordings: Sequence[Recording]) -> list[tuple[int, int]]:
    """Pairs of recordings (first, copy) of which a channel of one name holds the same signal up to unit and rounding.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(0, 50, (2, 5120))
    >>> names = ["A1", "A2"]
    >>> night = Recording.from_array(noise, 512.0, names, "µV")
    >>> copy = Recording.from_array(np.round(noise[:, :5000], 1) / 1000, 512.0, names, "mV")
    >>> copies([night, Recording.from_array(noise[::-1], 512.0, names, "µV"), copy])
    [(0, 2)]
    """
    vectors: list[tuple[Hashable, int, NDArray[np.float64]]] = []
    for index, recording in enumerate(recordings):
        for name, values in _pieces(recording):
            # With the last piece and without it: a copy may end just before it.
            for count in {len(values), max(len(values) - 1, 1)}:
                vectors.append(((name, recording.sfreq, count), index, values[:count].ravel()))
    return same(vectors)


def same(vectors: Iterable[tuple[Hashable, int, ArrayLike]]) -> list[tuple[int, int]]:
    """Pairs of indices (first, second) of which vectors with the same key and length correlate by `SAME` or more.

    Examples
    --------
    >>> same([("a", 0, [1, 2, 4]), ("a", 1, [2, 4, 8]), ("b", 2, [1, 2, 4]), ("a", 3, [1, 1, 1])])
    [(0, 1)]
    """
    groups: dict[Hashable, list[tuple[int, NDArray[np.float64]]]] = {}
    for key, index, values in vectors:
        vector: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
        centred = vector - vector.mean()
        unit = centred / max(float(np.linalg.norm(centred)), 1e-300)
        groups.setdefault((key, len(unit)), []).append((index, unit))
    pairs = set()
    for items in groups.values():
        indices, units = np.array([index for index, _ in items]), np.stack([unit for _, unit in items])
        for row in range(1, len(items)):
            alike = indices[:row][units[:row] @ units[row] > SAME]
            pairs |= {(int(first), int(indices[row])) for first in alike if first != indices[row]}
    return sorted(pairs)


def _pieces(recording: Recording) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Name and pieces [n, values] of each channel with a signal."""
    length = int(recording.sfreq)
    first_samples = [round(start * recording.sfreq) for start in STARTS]
    read = [recording.read(i, i + length) for i in first_samples if 0 < length <= recording.num_samples - i]
    if not read:
        return
    step = max(length // VALUES, 1)
    for name, *pieces in zip(recording.channel_names, *(piece[:, ::step] for piece in read), strict=True):
        values = np.nan_to_num(np.array(pieces, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        loudest = np.abs(values).max()
        # Without offset and slope of each piece: electrodes that settle drift alike, and far more than they record.
        lines = np.stack([np.ones(values.shape[-1]), np.linspace(-1.0, 1.0, values.shape[-1])])
        values -= (values @ lines.T / (lines**2).sum(1)) @ lines
        if values.std() > 1e-9 * loudest:  # more than what rounding leaves of a constant
            yield plain_name(name), values
