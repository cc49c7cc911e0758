"""Decoding of short trials, such as what a person hears, from frozen features: linear probe, splits, channel sweep.

Scores are ROC-AUC and balanced accuracy. Both are always given, because published tables mix them: the paper prints
its baselines' AUCs in a column of accuracies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch

from mvpa_ts.ieeg.configuration import SEGMENT_SAMPLES

if TYPE_CHECKING:
    from mvpa_ts.ieeg.model import MVPFormer

CHANNEL_COUNTS = (10, 20, 30, 40, 50)
"""Channels of the paper's sweep."""
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of the probe's penalty; the validation part chooses."""


@dataclass(frozen=True)
class Split:
    """Rows of trials for training, validation and test.

    Attributes
    ----------
    train, validation, test : int array
    """

    train: npt.NDArray[np.intp]
    validation: npt.NDArray[np.intp]
    test: npt.NDArray[np.intp]


@dataclass(frozen=True)
class DecodingScores:
    """Scores on the test rows.

    Attributes
    ----------
    roc_auc, balanced_accuracy : float
    trials : int
        Test rows.
    channels : int
    penalty : float
        Chosen on the validation rows.
    """

    roc_auc: float
    balanced_accuracy: float
    trials: int
    channels: int
    penalty: float


def split_trials(
    times: npt.ArrayLike,
    labels: npt.ArrayLike,
    kind: Literal["random", "blocked"] = "blocked",
    *,
    length: float = 5.0,
    blocks: int = 10,
    seed: int = 0,
) -> Split:
    """80 % of the trials for training, 10 % for validation, 10 % for test.

    Parameters
    ----------
    times : array, shape (n,)
        Middle of each trial (s).
    labels : array, shape (n,)
        Class of each trial.
    kind : {"random", "blocked"}, default "blocked"
        "random" as published, stratified by class: trials longer than their distance overlap, so test samples lie in
        training trials too. "blocked" cuts time into `blocks` stretches, gives whole stretches to each part, and leaves
        out of training and validation every trial that overlaps one of a later part.
    length : float, default 5
        Seconds of a trial.
    blocks : int, default 10
        At least 3; a tenth of them, and at least one, validate, as many test.
    seed : int, default 0

    Raises
    ------
    ValueError
        A part would hold one class only, or an option is out of its range.

    Examples
    --------
    >>> times = np.arange(1000.0)
    >>> split = split_trials(times, times % 2, "blocked", length=5.0)
    >>> gap = np.abs(times[split.train][:, None] - times[split.test]).min()
    >>> len(split.test), bool(gap >= 5.0)
    (100, True)
    """
    middle, classes = np.asarray(times, dtype=np.float64), np.asarray(labels)
    if middle.ndim != 1 or middle.shape != classes.shape:
        raise ValueError(f"times and labels must be [n] alike, got {middle.shape} and {classes.shape}")
    if kind not in ("random", "blocked"):
        raise ValueError(f"kind must be 'random' or 'blocked', got {kind!r}")
    if blocks < 3:
        raise ValueError(f"blocks must be at least 3, got {blocks}")
    generator = np.random.default_rng(seed)
    if kind == "random":
        part = np.empty(len(middle), int)
        for label in np.unique(classes):
            rows = generator.permutation(np.flatnonzero(classes == label))
            part[rows] = np.searchsorted([0.8, 0.9], np.arange(len(rows)) / len(rows), side="right")
    else:
        part = _blocked(middle, blocks, length, generator)
    split = Split(*(np.flatnonzero(part == index) for index in range(3)))
    for name in ("train", "validation", "test"):
        if len(np.unique(classes[getattr(split, name)])) < 2:
            raise ValueError(f"the {name} part of the {kind} split holds fewer than two classes: give more trials")
    return split


def _blocked(
    middle: npt.NDArray[np.float64], blocks: int, length: float, generator: np.random.Generator
) -> npt.NDArray[np.int_]:
    """Part of each trial: 0 train, 1 validation, 2 test, −1 left out."""
    order = np.argsort(middle, kind="stable")
    block = np.empty(len(middle), int)
    block[order] = np.arange(len(middle)) * blocks // len(middle)
    share = max(round(blocks / 10), 1)
    names = generator.permutation(blocks)
    kinds = np.zeros(blocks, int)
    kinds[names[:share]], kinds[names[share : 2 * share]] = 2, 1
    part = kinds[block]
    for lower, higher in ((1, 2), (0, 2), (0, 1)):
        edges = np.sort(middle[part == higher])
        rows = np.flatnonzero(part == lower)
        after = np.searchsorted(edges, middle[rows])
        left = np.where(after > 0, middle[rows] - edges[np.maximum(after - 1, 0)], np.inf)
        right = np.where(after < len(edges), edges[np.minimum(after, len(edges) - 1)] - middle[rows], np.inf)
        part[rows[np.minimum(left, right) < length]] = -1
    return part


@torch.inference_mode()
def trial_features(
    model: MVPFormer, signals: npt.ArrayLike, *, batch_size: int = 16, device: str | torch.device = "cpu"
) -> npt.NDArray[np.float32]:
    """Features of trials, each a window of its own.

    Parameters
    ----------
    model : MVPFormer
    signals : array, shape (n, C, T·2560) or shorter
        µV at 512 Hz. A trial that is no whole number of 5 s is padded with zeros, as much before as after it.
    batch_size : int, default 16
    device : str, default "cpu"

    Returns
    -------
    array of float32, shape (n, C, D)
        Of the last segment, after the final norm.
    """
    values = np.asarray(signals)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"signals must be [n, C, samples], got shape {values.shape}")
    model = model.to(device).eval()
    parts = []
    for first in range(0, len(values), batch_size):
        batch = torch.from_numpy(centred(values[first : first + batch_size])).to(device)
        parts.append(model(batch)[:, -1].float().cpu().numpy())
    return np.concatenate(parts)


def centred(signals: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Signals [..., samples] in the middle of as many whole segments of 2560 samples as they need, zeros around.

    Examples
    --------
    >>> centred(np.ones((2, 1536))).shape, int(centred(np.ones(1536))[:512].sum())
    ((2, 2560), 0)
    """
    missing = -signals.shape[-1] % SEGMENT_SAMPLES
    widths = [(0, 0)] * (signals.ndim - 1) + [(missing // 2, missing - missing // 2)]
    return np.pad(signals, widths).astype(np.float32)


def decode(
    features: npt.NDArray[np.floating],
    labels: npt.ArrayLike,
    split: Split,
    channels: Sequence[int] | None = None,
) -> DecodingScores:
    """Fit a linear probe on the concatenated features of the channels and score it on the test rows.

    Logistic regression with balanced classes on standardised features; the validation rows choose the penalty, and the
    test rows are looked at once.

    Parameters
    ----------
    features : array, shape (n, C, D)
    labels : array of {0, 1}, shape (n,)
    split : Split
    channels : sequence of int, optional
        All by default.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    chosen = features if channels is None else features[:, list(channels)]
    rows = chosen.reshape(len(chosen), -1)
    classes = np.asarray(labels).astype(int)
    best = (-np.inf, np.nan, None)
    for penalty in PENALTIES:
        probe = make_pipeline(
            StandardScaler(), LogisticRegression(C=penalty, class_weight="balanced", max_iter=2000)
        ).fit(rows[split.train], classes[split.train])
        score = roc_auc_score(classes[split.validation], probe.decision_function(rows[split.validation]))
        if score > best[0]:
            best = (score, penalty, probe)
    _, penalty, probe = best
    assert probe is not None
    truth, decisions = classes[split.test], probe.decision_function(rows[split.test])
    return DecodingScores(
        float(roc_auc_score(truth, decisions)),
        float(balanced_accuracy_score(truth, decisions > 0)),
        len(truth),
        chosen.shape[1],
        float(penalty),
    )


def rank_by_decoding(features: npt.NDArray[np.floating], labels: npt.ArrayLike, split: Split) -> list[int]:
    """Channels by how well each alone decodes the validation rows after training, best first; the test is not used."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classes = np.asarray(labels).astype(int)
    scores = []
    for channel in range(features.shape[1]):
        rows = features[:, channel]
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=1e-2, class_weight="balanced", max_iter=2000))
        probe.fit(rows[split.train], classes[split.train])
        scores.append(roc_auc_score(classes[split.validation], probe.decision_function(rows[split.validation])))
    return sorted(range(len(scores)), key=lambda channel: (-scores[channel], channel))


def channel_sweep(
    features: npt.NDArray[np.floating],
    labels: npt.ArrayLike,
    split: Split,
    counts: Sequence[int] = CHANNEL_COUNTS,
) -> list[DecodingScores]:
    """Scores with the best 10, 20, … channels, in the recording's order; counts beyond what there is are left out.

    With fewer channels than the least count, all of them are used once.
    """
    ranking = rank_by_decoding(features, labels, split)
    possible = [count for count in counts if count <= len(ranking)] or [len(ranking)]
    return [decode(features, labels, split, sorted(ranking[:count])) for count in possible]
