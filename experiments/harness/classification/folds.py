"""Folds for cross-validation inside TRAIN."""

from __future__ import annotations

import numpy as np


def dealt(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold of each row; every class is dealt round, so that folds differ by at most one row of it."""
    generator = np.random.default_rng(seed)
    assigned, start = np.empty(len(labels), dtype=np.int64), 0
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        assigned[rows] = (np.arange(len(rows)) + start) % folds
        start += len(rows)
    return assigned
