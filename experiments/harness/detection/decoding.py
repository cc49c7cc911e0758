"""Decoding of short trials, such as sounds that a person hears, from frozen features: linear probe and channel sweep.

Scores are ROC-AUC and balanced accuracy. Both are always reported, because published tables mix them: the paper prints
AUCs of its baselines in a column of accuracies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mvpa_ts.ieeg.datasets.treebank_tasks import ExampleSplit
from mvpa_ts.ieeg.model.mvpformer import MVPFormer

CHANNEL_COUNTS = (10, 20, 30, 40, 50)
"""Channels of the paper's sweep."""
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of the probe's penalty; the validation part chooses."""
_RANKING_PENALTY = 1e-2  # the middle: one for all channels, so that they are ranked alike


@dataclass(frozen=True)
class DecodingScores:
    """Scores on the test rows."""

    roc_auc: float
    balanced_accuracy: float
    trials: int  # test rows
    channels: int
    penalty: float  # chosen on the validation rows


def trial_features(
    model: MVPFormer, signals: npt.ArrayLike, *, batch_size: int = 16, device: str | torch.device | None = None
) -> npt.NDArray[np.float32]:
    """Features of the last segment of trials, after the final norm, [n, C, D]; each trial is one window.

    `signals`, [n, C, T·2560], are in µV at 512 Hz, as `read_examples` yields them. The model's mode and device are the
    same afterwards. Raises ValueError where there are no signals, or not three axes.
    """
    values = np.asarray(signals)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"signals must be [n, C, samples], got shape {values.shape}")
    original, training = next(model.parameters()).device, model.training
    target = original if device is None else torch.device(device)
    parts = []
    try:
        model.to(target).eval()
        for first in range(0, len(values), batch_size):
            batch = torch.from_numpy(values[first : first + batch_size].astype(np.float32)).to(target)
            with torch.inference_mode():  # not around `to`: weights that move in it cannot be trained
                parts.append(model(batch)[:, -1].float().cpu().numpy())
    finally:
        model.to(original).train(training)
    return np.concatenate(parts)


def decode(
    features: npt.NDArray[np.floating],
    labels: npt.ArrayLike,
    split: ExampleSplit,
    channels: Sequence[int] | None = None,
) -> DecodingScores:
    """Fit a linear probe on the concatenated features of the channels and score it on the test rows.

    The probe is a logistic regression with balanced classes on standardised features. The validation rows choose the
    penalty; the test rows are used once, for the scores. `channels` of the features, [n, C, D], are all by default.
    Raises ValueError where a part of the split lacks one of the two classes.
    """
    chosen = features if channels is None else features[:, list(channels)]
    rows = chosen.reshape(len(chosen), -1)
    classes = np.asarray(labels).astype(int)
    split.check_classes(classes)
    fits = [(*_fitted(penalty, rows, classes, split), penalty) for penalty in PENALTIES]
    _, probe, penalty = max(fits, key=lambda fit: fit[0])
    truth, decisions = classes[split.test], probe.decision_function(rows[split.test])
    return DecodingScores(
        float(roc_auc_score(truth, decisions)),
        float(balanced_accuracy_score(truth, decisions > 0)),
        len(truth),
        chosen.shape[1],
        float(penalty),
    )


def _fitted(
    penalty: float, rows: npt.NDArray[np.floating], classes: npt.NDArray[np.int_], split: ExampleSplit
) -> tuple[float, Any]:
    """Fit a logistic regression with balanced classes on standardised features; first its AUC on validation rows."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, class_weight="balanced", max_iter=2000))
    probe.fit(rows[split.train], classes[split.train])
    return roc_auc_score(classes[split.validation], probe.decision_function(rows[split.validation])), probe


def rank_by_decoding(features: npt.NDArray[np.floating], labels: npt.ArrayLike, split: ExampleSplit) -> list[int]:
    """Rank channels by how well each one alone decodes the validation rows, best first; test rows are not used."""
    classes = np.asarray(labels).astype(int)
    split.check_classes(classes)
    channels = range(features.shape[1])
    scores = [_fitted(_RANKING_PENALTY, features[:, channel], classes, split)[0] for channel in channels]
    return sorted(channels, key=lambda channel: (-scores[channel], channel))


def channel_sweep(
    features: npt.NDArray[np.floating],
    labels: npt.ArrayLike,
    split: ExampleSplit,
    counts: Sequence[int] = CHANNEL_COUNTS,
) -> list[DecodingScores]:
    """Score the best 10, 20, … channels, in the order of the recording, as far as there are so many channels.

    If there are fewer channels than the smallest count, all of them are scored once.
    """
    ranking = rank_by_decoding(features, labels, split)
    possible = [count for count in counts if count <= len(ranking)] or [len(ranking)]
    return [decode(features, labels, split, sorted(ranking[:count])) for count in possible]
