"""The baseline: a threshold on line length, the oldest feature in seizure detection (Esteller 2001)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mvpa_ts.ieeg import Recording, Segments


def line_length(recording: Recording) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Line length of each segment and where the segments begin (s).

    The mean absolute step of each channel, in robust standard deviations from that channel's median over the recording,
    and of these the largest over channels: seizures are focal. It knows the whole recording, which a running detector
    does not.
    """
    segments = Segments(recording)
    rows = []
    for _, signal, valid in segments:
        steps = np.abs(np.diff(signal, axis=1)).mean(1)
        rows.append(np.where(valid, steps, np.nan))
    lengths = np.array(rows)
    median = np.nanmedian(lengths, 0)
    spread = 1.4826 * np.nanmedian(np.abs(lengths - median), 0)
    scores = (lengths - median) / np.maximum(spread, 1e-9)
    return np.nan_to_num(np.nanmax(scores, 1), nan=-np.inf), segments.starts


def as_probability(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A monotone map of scores into (0, 1), so that one threshold search serves all detectors."""
    return 1.0 / (1.0 + np.exp(-np.clip(scores / 10.0, -30, 30)))
