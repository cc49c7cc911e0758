"""The linear part of a detector: a regression that withstands drift, beside the networks.

A logistic regression on few examples trusts whatever differs between them, which is most often how strong the recording
is. The penalty here knows how much a feature drifts from day to day, so the regression rather reads what does not: how
fast activity stands to slow activity, and how far some channels stand out.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mvpa_ts.files import read_config, write_json
from mvpa_ts.ieeg.detection.features import BANDS, NUM_FEATURES, TrainingFeatures
from mvpa_ts.ieeg.events import Flags, Floats, Integers
from mvpa_ts.ieeg.model.pretrained import LINEAR, pretrained_file
from mvpa_ts.weights import CONFIG_NAME

# Segments of a recording that `LinearPart.first_minute` scores. Later on, the running level from which the networks
# measure (24 segments) is that of more background than a seizure usually lasts.
FIRST_MINUTE = 12
# Standard deviations of drift, in log amplitude: of the gain (a factor of two), of slow activity against fast, and of
# each feature alone. Chosen on simulated animals, where halves and doubles of them change nothing.
GAIN_DRIFT, TILT_DRIFT, OTHER_DRIFT = 0.7, 0.5, 0.2
# Bands below the middle of the tilt drift with slow activity: band 1 (1 to 2 Hz) wholly, band 6 (32 to 64 Hz) not at
# all.
SLOWEST, FASTEST = 1, 6
# Share of the slow drift that line length sees: it is mostly fast.
LENGTH_TILT = 0.3
# The penalty beside the mean loss. It does not fade with more segments of the same days, as their drift is not seen in
# them.
STRENGTH = 0.4
# Weights of the networks' logit that are tried beside 0.
NETWORK_WEIGHTS = (0.25, 0.5, 1.0)
# Deviations of a feature in quiet beyond which it counts no further (log units), so that one artefact decides nothing.
CUT = 3.0


@dataclasses.dataclass(frozen=True)
class LinearPart:
    """Logit = weights · features + bias + network · (mean logit of the networks); above 0 a segment is positive.

    Attributes
    ----------
    weights : tuple of float
        One for each of the 18 features of `segment_features`.
    bias : float
    network : float
        0: the networks are not asked.
    persistence : int, default 1
        Segments whose mean logit decides: this one and those before it. One loud segment is rarely a seizure.
    first_minute : LinearPart, optional
        Scores the first 12 segments of a recording instead: there the networks have no level to compare with, and a
        file that holds little but a seizure never gives them one.

    Raises
    ------
    ValueError
        A number is missing, not finite or out of range.

    Examples
    --------
    >>> part = LinearPart((0.5,) + (0.0,) * 17, bias=-2.0)
    >>> part.probabilities(np.full((1, 18), 4.0)).tolist()
    [0.5]
    """

    weights: tuple[float, ...]
    bias: float
    network: float = 0.0
    persistence: int = 1
    first_minute: LinearPart | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.weights, dtype=np.float64)
        if values.shape != (NUM_FEATURES,) or not np.isfinite(values).all() or not math.isfinite(self.bias):
            raise ValueError(f"weights must hold {NUM_FEATURES} finite numbers, and bias one, got {self!r:.200}")
        if not (math.isfinite(self.network) and self.network >= 0):
            raise ValueError(f"network must be a weight of 0 or more, got {self.network!r}")
        if not (isinstance(self.persistence, int) and self.persistence >= 1):
            raise ValueError(f"persistence must be a whole number of 1 or more, got {self.persistence!r}")
        object.__setattr__(self, "weights", tuple(values.tolist()))
        if isinstance(self.first_minute, Mapping):  # from JSON
            object.__setattr__(self, "first_minute", LinearPart(**self.first_minute))

    def logits(self, features: Floats) -> Floats:
        """Logit of each row of features, without the networks."""
        return features @ np.asarray(self.weights) + self.bias

    def probabilities(self, features: Floats, network_logits: npt.ArrayLike = 0.0) -> Floats:
        """Probability of all segments of a recording, in order, from their features and the networks' mean logits."""
        return RunningPart(self).probabilities(features, network_logits)

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON values, without those that have their defaults."""
        fields: dict[str, Any] = {"weights": list(self.weights), "bias": self.bias, "network": self.network}
        if self.persistence > 1:
            fields["persistence"] = self.persistence
        if self.first_minute is not None:
            fields["first_minute"] = self.first_minute.to_dict()
        return fields


class RunningPart:
    """A linear part on its way through a recording, which it sees segment after segment.

    Parameters
    ----------
    part : LinearPart
    first : int, default 0
        Segments of the recording before the first that comes.

    Examples
    --------
    >>> running = RunningPart(LinearPart((1.0,) + (0.0,) * 17, bias=0.0, persistence=2))
    >>> [running.probabilities(np.full((1, 18), value)).round(2).tolist() for value in (-2.0, 2.0, 2.0)]
    [[0.12], [0.5], [0.88]]
    """

    def __init__(self, part: LinearPart, first: int = 0) -> None:
        self.part = part
        self._index = first
        self._past: Floats = np.full(part.persistence - 1, math.nan)

    def probabilities(self, features: Floats, network_logits: npt.ArrayLike = 0.0) -> Floats:
        """Probability of the next segments, NaN where features are NaN."""
        part = self.part
        logits = part.logits(features) + part.network * np.asarray(network_logits, dtype=np.float64)
        if part.first_minute is not None:
            early = self._index + np.arange(len(features)) < FIRST_MINUTE
            logits = np.where(early, part.first_minute.logits(features), logits)
        self._index += len(features)
        joined = np.concatenate([self._past, logits])
        self._past = joined[len(joined) - part.persistence + 1 :]
        windows = np.lib.stride_tricks.sliding_window_view(joined, part.persistence)
        # A segment without a signal has no part in the mean of others, and no mean.
        sums = np.nansum(windows, axis=1) / np.maximum((~np.isnan(windows)).sum(1), 1)
        means = np.where(np.isnan(logits), math.nan, sums)
        return 1.0 / (1.0 + np.exp(-np.clip(means, -500.0, 500.0)))


def load_linear(folder: str | Path) -> LinearPart | None:
    """The linear part of a detector in a folder or on the hub, None where it has none; a ValueError if it is damaged.

    Examples
    --------
    >>> load_linear("demo").network
    0.5
    >>> load_linear("demo-base") is None
    True
    """
    path = pretrained_file(os.fspath(folder), CONFIG_NAME)
    fields = read_config(path).get(LINEAR)
    if fields is None:
        return None
    try:
        return LinearPart(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{LINEAR} in {path} cannot be used: {error}") from error


def save_linear(linear: LinearPart, folder: str | Path) -> None:
    """Write a linear part into the configuration of the detector in a folder."""
    path = Path(folder) / CONFIG_NAME
    write_json(path, read_config(path) | {LINEAR: linear.to_dict()})


def drift_covariance() -> Floats:
    """Covariance [18, 18] that is expected of the features of a patient's quiet from day to day.

    Examples
    --------
    >>> drift_covariance().shape
    (18, 18)
    """
    # Log power moves twice as much as log amplitude; the spread over channels does not know the gain.
    amplitude = np.append(np.full(BANDS, 2.0), 1.0)
    slowness = np.clip((FASTEST - np.arange(BANDS)) / (FASTEST - SLOWEST), 0.0, 1.0)
    tilt = amplitude * np.append(slowness, LENGTH_TILT)
    gain, tilt = (np.concatenate([direction, np.zeros(BANDS + 1)]) for direction in (amplitude, tilt))
    other = OTHER_DRIFT**2 * np.eye(NUM_FEATURES)
    return GAIN_DRIFT**2 * np.outer(gain, gain) + TILT_DRIFT**2 * np.outer(tilt, tilt) + other


def fit_linear(training: TrainingFeatures, strength: float = STRENGTH) -> LinearPart:
    """Fit the linear part to the recordings of one patient.

    The bias is such that quiet stretches that were left out are negative: the logit of 0 lies above 99 % of their
    segments, and no lower than halfway from there to the seizures that were left out.

    Examples
    --------
    >>> from mvpa_ts.ieeg import Segments, simulate_recording
    >>> recording = simulate_recording("S01", num_channels=4, duration=300.0, num_seizures=2)
    >>> training = TrainingFeatures.of([Segments(recording)])
    >>> logits = fit_linear(training).logits(training.features)
    >>> bool(np.median(logits[training.ictal]) > np.median(logits[~training.ictal]))
    True
    """
    weights, bias = _fitted(training.features, training.ictal, strength)
    logits = training.features @ weights + bias
    # Left out one by one, because logits of segments that train are too good.
    for out, others in training.left_out():
        other, other_bias = _fitted(others.features, others.ictal, strength)
        logits[out] = training.features[out] @ other + other_bias
    quiet = float(np.quantile(logits[~training.ictal], 0.99))
    seizures = float(np.quantile(logits[training.ictal], 0.25))
    return LinearPart(tuple(weights), bias - max(quiet, 0.5 * (quiet + seizures)))


def choose_network_weight(linear_logits: Floats, network_logits: Floats, ictal: Flags, recording: Integers) -> float:
    """Weight of the networks by recordings that trained neither: 0 unless another one is clearly better.

    Clearly: the mean loss of recordings falls by more than twice the standard error of the differences. All are of
    segments [n]; `recording` is the number of that in which a segment lies.

    Examples
    --------
    >>> ictal, recording = np.arange(60) % 3 == 0, np.arange(60) // 10
    >>> knows, guesses = np.where(ictal, 2.0, -2.0), np.zeros(60)
    >>> choose_network_weight(guesses, knows, ictal, recording), choose_network_weight(knows, guesses, ictal, recording)
    (1.0, 0.0)
    """
    if ictal.all() or not ictal.any() or len(np.unique(recording)) < 2:
        return 0.0
    sign, shares = np.where(ictal, 1.0, -1.0), np.where(ictal, 0.5 / ictal.sum(), 0.5 / (~ictal).sum())

    def losses(weight: float) -> Floats:
        loss = shares * np.logaddexp(0.0, -sign * (linear_logits + weight * network_logits))
        return np.bincount(recording, weights=loss).astype(np.float64)

    gains = {weight: losses(0.0) - losses(weight) for weight in NETWORK_WEIGHTS}
    best = max(gains, key=lambda weight: gains[weight].sum())
    error = gains[best].std(ddof=1) * math.sqrt(len(gains[best]))
    return best if gains[best].sum() > max(2 * error, 0.0) else 0.0


def _fitted(features: Floats, ictal: Flags, strength: float) -> tuple[Floats, float]:
    """Weights w and bias of the least mean loss, both classes alike, with a penalty strength/2 · wᵀ P w."""
    from scipy.optimize import minimize

    middle = np.median(features[~ictal], axis=0)
    x = features - middle
    quiet = np.clip(x[~ictal], -CUT, CUT)
    # P: what drift and the quiet segments themselves do says nothing of seizures.
    penalty = strength * (drift_covariance() + quiet.T @ quiet / len(quiet))
    sign = np.where(ictal, 1.0, -1.0)
    shares = np.where(ictal, 0.5 / ictal.sum(), 0.5 / (~ictal).sum())

    def loss(values: Floats) -> tuple[float, Floats]:
        margins = sign * (x @ values[:-1] + values[-1])
        slopes = -shares * sign / (1.0 + np.exp(np.clip(margins, -500.0, 500.0)))
        gradient = np.append(x.T @ slopes + penalty @ values[:-1], slopes.sum())
        return float(shares @ np.logaddexp(0.0, -margins) + 0.5 * values[:-1] @ penalty @ values[:-1]), gradient

    values = minimize(loss, np.zeros(NUM_FEATURES + 1), jac=True, method="L-BFGS-B").x
    return values[:-1], float(values[-1] - middle @ values[:-1])
