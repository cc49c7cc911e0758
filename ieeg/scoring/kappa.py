"""Cohen's kappa between a detector and an annotator: over a whole recording, or over random draws as in the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

# Agreement between human experts, the paper's bar for expert level.
EXPERT_KAPPA = 0.53

Scheme = Literal["uniform", "stratified"]
# Upper end of each band (Landis & Koch 1977, table in section 3); below 0 is poor.
_BANDS = ((0.2, "slight"), (0.4, "fair"), (0.6, "moderate"), (0.8, "substantial"), (math.inf, "almost perfect"))


def cohen_kappa(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Compute Cohen's kappa of two binary sequences; NaN if both hold only one class, the same.

    Examples
    --------
    >>> cohen_kappa([1, 1, 0, 0], [1, 0, 0, 0])
    0.5
    """
    truth, positive = _pair(labels, predictions)
    return float(_kappa(truth[None], positive[None])[0])


def kappa_interval(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> tuple[float, float, float]:
    """Compute kappa of a whole recording, and its 95 % interval by the standard error of Fleiss, Cohen, Everitt (1969).

    The standard error assumes independent segments. Neighbouring segments are alike, so the true interval is wider.
    For an interval over subjects use the bootstrap of the cohort report.

    Returns
    -------
    kappa, low, high : float
        NaN where kappa is not defined.

    Examples
    --------
    >>> kappa, low, high = kappa_interval([1] * 20 + [0] * 80, [1] * 15 + [0] * 85)
    >>> print(f"{kappa:.3f} {low:.3f} {high:.3f}")
    0.828 0.682 0.973
    """
    truth, positive = _pair(labels, predictions)
    kappa = cohen_kappa(truth, positive)
    if math.isnan(kappa):
        return math.nan, math.nan, math.nan
    joint = np.array([[np.mean((truth == i) & (positive == j)) for j in (0, 1)] for i in (0, 1)])
    rows, columns = joint.sum(1), joint.sum(0)
    expected = float(rows @ columns)
    observed = float(np.trace(joint))
    diagonal = sum(joint[i, i] * (1 - expected - (rows[i] + columns[i]) * (1 - observed)) ** 2 for i in (0, 1))
    off_diagonal = sum(joint[i, 1 - i] * (columns[i] + rows[1 - i]) ** 2 for i in (0, 1)) * (1 - observed) ** 2
    correction = (observed * expected - 2 * expected + observed) ** 2
    variance = max(diagonal + off_diagonal - correction, 0.0) / (len(truth) * (1 - expected) ** 4)
    margin = float(stats.norm.ppf(0.975)) * math.sqrt(variance)
    return kappa, max(kappa - margin, -1.0), min(kappa + margin, 1.0)


@dataclass(frozen=True)
class KappaEstimate:
    """Kappa over random draws of segments.

    Attributes
    ----------
    values : array, shape (draws,)
        Kappa of each draw; NaN where it is undefined.
    prevalence : float
        Share of seizure segments in a draw, mean over the draws. Kappa depends on it: compare the estimate with the
        kappa of the recording only if both have about the same share of seizure segments.
    undefined : int
        Draws in which labels and predictions hold only one class, the same.
    scheme : str
    low, high : float
        Percentile interval of the draws.
    whole, whole_low, whole_high : float
        Kappa over all segments and its interval; see `kappa_interval`.
    """

    values: npt.NDArray[np.float64]
    prevalence: float
    undefined: int
    scheme: Scheme
    low: float
    high: float
    whole: float
    whole_low: float
    whole_high: float

    @property
    def mean(self) -> float:
        """Mean of kappa over the draws in which it is defined."""
        defined = self.values[~np.isnan(self.values)]
        return float(defined.mean()) if defined.size else math.nan

    @property
    def label(self) -> str:
        """Word of Landis and Koch for the mean."""
        return landis_koch(self.mean)


def sampled_kappa(
    labels: npt.ArrayLike,
    predictions: npt.ArrayLike,
    *,
    segments: int = 300,
    draws: int = 250,
    scheme: Scheme = "uniform",
    seed: int = 0,
) -> KappaEstimate:
    """Compute kappa over random draws of segments, without repetition within a draw.

    Kappa is 0/0 in a draw in which labels and predictions hold only one class. Such draws are counted and left out.

    Parameters
    ----------
    labels, predictions : bool array, shape (n,)
        One entry for each segment.
    segments, draws : int
        Segments in a draw, and number of draws: 300 and 250 in the paper. If a recording has fewer segments, every draw
        takes all of them.
    scheme : {"uniform", "stratified"}, default "uniform"
        "uniform" is the scheme of the paper: if seizures are rare, most draws hold none. "stratified" draws seizure and
        other segments in the ratio of the recording, but at least one of each kind that it holds. If less than one in
        `segments` is a seizure segment, this makes seizures more frequent than they are, and kappa higher. Such a kappa
        holds for the `prevalence` of the estimate; do not compare it with the kappa of the recording.
    seed : int, default 0

    Raises
    ------
    ValueError
        Shapes differ, there is no segment, or an option is unknown.

    Examples
    --------
    >>> labels = np.arange(2000) % 100 < 2
    >>> estimate = sampled_kappa(labels, labels, scheme="stratified")
    >>> estimate.mean, estimate.undefined, estimate.label
    (1.0, 0, 'almost perfect')
    """
    truth, positive = _pair(labels, predictions)
    if segments < 1 or draws < 1:
        raise ValueError(f"segments and draws must be at least 1, got {segments} and {draws}")
    generator = np.random.default_rng(seed)
    size = min(segments, len(truth))
    if scheme == "uniform":
        groups = [(np.arange(len(truth)), size)]
    elif scheme == "stratified":
        groups = _strata(truth, size)
    else:
        raise ValueError(f"scheme must be 'uniform' or 'stratified', got {scheme!r}")
    chosen = np.empty((draws, size), np.intp)
    for draw in chosen:
        draw[:] = np.concatenate([generator.choice(group, count, replace=False) for group, count in groups])
    values = _kappa(truth[chosen], positive[chosen])
    undefined = int(np.isnan(values).sum())
    defined = values[~np.isnan(values)]
    low, high = np.percentile(defined, [2.5, 97.5]).tolist() if defined.size else (math.nan, math.nan)
    prevalence = float(truth[chosen].mean())
    return KappaEstimate(values, prevalence, undefined, scheme, low, high, *kappa_interval(truth, positive))


def landis_koch(kappa: float) -> str:
    """Return the word of Landis and Koch for an agreement.

    Examples
    --------
    >>> [landis_koch(kappa) for kappa in (-0.1, 0.2, 0.53, 0.7, 0.9)]
    ['poor', 'slight', 'moderate', 'substantial', 'almost perfect']
    """
    if math.isnan(kappa):
        return "undefined"
    return "poor" if kappa < 0 else next(name for end, name in _BANDS if kappa <= end)


def convergence(values: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the running mean over draws and half the width of its 95 % interval, [draws, 2], without undefined draws.

    Examples
    --------
    >>> convergence([0.5, 0.7]).round(3)
    array([[0.5  ,   nan],
           [0.6  , 0.196]])
    """
    so_far = pd.Series(values, dtype=np.float64).dropna().expanding()
    return np.stack([so_far.mean(), 1.96 * so_far.std() / np.sqrt(so_far.count())], axis=1)


def _strata(truth: npt.NDArray[np.bool_], size: int) -> list[tuple[npt.NDArray[np.intp], int]]:
    ictal, other = np.flatnonzero(truth), np.flatnonzero(~truth)
    if not len(ictal) or not len(other) or size < 2:
        return [(np.arange(len(truth)), size)]
    # At least one of each kind, or kappa is undefined; this makes rare seizures more frequent than they are.
    count = min(max(round(size * len(ictal) / len(truth)), 1), size - 1)
    return [(ictal, count), (other, size - count)]


def _kappa(truth: npt.NDArray[np.bool_], positive: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Compute kappa of each row, [draws, n] to [draws]."""
    # Counts stay exact, so that chance agreement is 0 and not 1e-16.
    agreed, neither = (truth & positive).sum(1), (~truth & ~positive).sum(1)
    missed, false = (truth & ~positive).sum(1), (~truth & positive).sum(1)
    chance = (agreed + missed) * (missed + neither) + (agreed + false) * (false + neither)
    return np.where(chance == 0, np.nan, 2.0 * (agreed * neither - missed * false) / np.where(chance == 0, 1, chance))


def _pair(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    truth, positive = np.asarray(labels, dtype=bool), np.asarray(predictions, dtype=bool)
    if truth.ndim != 1 or truth.shape != positive.shape:
        raise ValueError(f"labels and predictions must both have shape (n,), got {truth.shape} and {positive.shape}")
    if not len(truth):
        raise ValueError("labels must hold at least one segment, got none")
    return truth, positive
