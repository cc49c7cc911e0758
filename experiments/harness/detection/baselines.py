"""Baselines: line length (Esteller 2001), regression on band power, and a published network where it is installed.

The first two compare a channel with its own median over the recording, which a running detector does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mvpa_ts.ieeg import Recording, Segments
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
    from brainmaze_eeg_models.seizure import predict_channel_seizure_probability

    signal = recording.read(0, recording.num_samples).astype(float)
    # The model reads windows of 300 s; of a shorter recording the whole is one window.
    short = {"window_s": np.floor(2 * recording.duration) / 2, "step_s": 0.5, "discard_edges_s": 0.0}
    options = {} if recording.duration >= 300 else short
    traces = [predict_channel_seizure_probability(row, recording.sfreq, model="modelA", **options) for row in signal]
    # At 0 s no channel has a value.
    seconds, trace = traces[0][0][1:], np.nanmean([found[1:] for _, found in traces], axis=0)
    starts = Segments(recording).starts
    means = [np.nanmean(trace[(seconds >= start) & (seconds < start + 5.0)]) for start in starts]
    return np.nan_to_num(np.array(means)), starts


BASELINES: dict[str, Callable[[Sequence[Recording]], Baseline]] = {
    "line length": lambda training: line_length,
    "logistic regression on band power": band_power_regression,
    PUBLISHED: lambda training: brainmaze,
}
"""By name, from the training recordings; nothing about them depends on a seed."""
INSTALLED = [name for name in BASELINES if name != PUBLISHED or find_spec(PUBLISHED.replace("-", "_"))]
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
