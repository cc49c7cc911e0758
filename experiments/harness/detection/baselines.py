"""Baselines: line length (Esteller 2001), regression on band power, and a published network where it is installed.

The first two compare a channel with its own median over the recording, which a running detector does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mvpa_ts.ieeg import Recording, Segments
from mvpa_ts.ieeg.detection.baselines import brainmaze_installed, brainmaze_probabilities
from mvpa_ts.ieeg.events import segment_labels
from mvpa_ts.ieeg.model.amplitude import band_log_power
from mvpa_ts.ieeg.model.wavelet import wavedec

PUBLISHED = "brainmaze-eeg-models"
Baseline = Callable[[Recording], tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]
"""From a recording to a score in (0, 1) of each segment, and where the segments begin (s)."""


def line_length(recording: Recording) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Line length of each segment and where the segments begin (s).

    The mean absolute step of each channel, in robust standard deviations from that channel's median over the recording,
    and of these the largest over channels: seizures are focal. Scores are mapped into (0, 1), so that one search of the
    threshold serves all detectors.
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
    largest = np.nan_to_num(np.nanmax(scores, 1), nan=-np.inf)
    return 1.0 / (1.0 + np.exp(-np.clip(largest / 10.0, -30, 30))), segments.starts


def band_power_regression(training: Sequence[Recording]) -> Baseline:
    """Logistic regression on mean and maximum over channels of the log power of nine wavelet bands."""
    features, labels = [], []
    for recording in training:
        found, starts = _band_powers(recording)
        features.append(found)
        labels.append(segment_labels(starts, recording.seizures or []))
    fitted = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    fitted.fit(np.concatenate(features), np.concatenate(labels))

    def probabilities(recording: Recording) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        found, starts = _band_powers(recording)
        return fitted.predict_proba(found)[:, 1], starts

    return probabilities


@cache
def brainmaze(recording: Recording) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Probability of the published model of brainmaze-eeg-models (Sladky 2022), mean over channels and each segment.

    Nothing of it is trained here. A segment of which the model says nothing has 0. Kept, for its minutes.
    """
    starts = Segments(recording).starts
    return brainmaze_probabilities(recording, recording.channel_names, starts), starts


BASELINES: dict[str, Callable[[Sequence[Recording]], Baseline]] = {
    "line length": lambda training: line_length,
    "logistic regression on band power": band_power_regression,
    PUBLISHED: lambda training: brainmaze,
}
"""By name, from the training recordings; nothing about them depends on a seed."""
INSTALLED = [name for name in BASELINES if name != PUBLISHED or brainmaze_installed()]
"""Those that can be run here."""


def short_name(name: str) -> str:
    """What command lines and columns call a baseline."""
    return name.replace(" ", "-")


def _band_powers(recording: Recording) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Features [n, 18] and where the segments begin."""
    segments = Segments(recording)
    powers = []
    for _, signal, valid in segments:
        power = band_log_power(wavedec(torch.from_numpy(np.asarray(signal))[None]))[0].double().numpy()
        powers.append(np.where(np.asarray(valid)[:, None], power, np.nan))
    relative = np.array(powers)
    relative -= np.nanmedian(relative, 0)
    features = np.concatenate([np.nanmean(relative, 1), np.nanmax(relative, 1)], axis=1)
    return np.nan_to_num(features), segments.starts
