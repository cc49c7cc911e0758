"""Fit a classifier or a regressor to a panel: networks with a part held out for validation, and the paths' shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mvpa_ts.classification import loop
from mvpa_ts.classification.augmentation import UNCHANGED
from mvpa_ts.classification.configuration import ClassificationConfig
from mvpa_ts.classification.fitted import FittedClassifier, FittedRegressor
from mvpa_ts.classification.loop import ClassificationTraining, Part
from mvpa_ts.classification.network import AttentionPath, ClassificationNetwork
from mvpa_ts.classification.panel import Scaler, checked_series
from mvpa_ts.random_state import OwnRandomState

_PRIOR = 4.0  # series: a validation part of so few says little of which path is better
_STRATA, _STRATUM = 5, 4  # parts by size that a validation part of numbers is drawn from, and the fewest series of one


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told every `evaluate_every` steps, and at the end of each network.

    Attributes
    ----------
    stage : {"validation", "final"}
        Whether the network holds out a validation part or is trained on all series.
    network, num_networks : int
        Counted from 1.
    step, steps : int
    loss : float
        Loss of the last batch.
    validation_loss, validation_accuracy : float or None
        Loss and accuracy of the averaged weights; None if nothing is held out. For numbers the loss is the squared
        error in units of their variance, and R² stands for the accuracy.
    averaged : nn.Module
        The path that is being trained, with its averaged weights; to be read only.

    Examples
    --------
    >>> from mvpa_ts.classification import ClassificationTraining, fit_classifier
    >>> series, steps = [np.full((1, 24), float(row % 2)) for row in range(12)], []
    >>> training = ClassificationTraining(steps=4, evaluate_every=2, num_networks=1)
    >>> _ = fit_classifier(series, [row % 2 for row in range(12)], training=training,
    ...                    progress=lambda progress: steps.append((progress.stage, progress.step)))
    >>> steps
    [('validation', 2), ('validation', 4)]
    """

    stage: Literal["validation", "final"]
    network: int
    num_networks: int
    step: int
    steps: int
    loss: float
    validation_loss: float | None
    validation_accuracy: float | None
    averaged: nn.Module


def fit_classifier(
    series: Sequence[np.ndarray],
    labels: Sequence[int] | np.ndarray,
    *,
    config: ClassificationConfig | None = None,
    training: ClassificationTraining | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    device: str = "cpu",
) -> FittedClassifier:
    """Train on a panel; only what is given here is looked at.

    On a CPU the result depends on the arguments and the number of threads alone, to the bit; the caller's random
    state is left as it was.

    Parameters
    ----------
    series : sequence of float arrays, each of shape (C, L_i)
        NaN = missing. Lengths may differ.
    labels : sequence of int, shape (n,)
        Classes 0 … K−1; each of them occurs.
    config : ClassificationConfig, optional
        Default: the sizes of the panel and the defaults for all else.
    training : ClassificationTraining, optional
    seed : int
    progress : callable, optional
        Told a `Progress` at each validation and at the end of each network.
    device : str
        Where the networks are trained and stay.

    Returns
    -------
    FittedClassifier

    Raises
    ------
    ValueError
        The panel is empty or malformed (see `checked_series`), labels do not fit, there is one class only, or `config`
        is for another number of channels or classes.

    Examples
    --------
    >>> import numpy as np
    >>> from mvpa_ts.classification import ClassificationTraining, fit_classifier
    >>> steps = np.arange(24)
    >>> series = [np.sin(steps * (0.5 + row % 2))[None] for row in range(12)]  # two frequencies
    >>> labels = [row % 2 for row in range(12)]
    >>> fitted = fit_classifier(series, labels, training=ClassificationTraining(steps=5))
    >>> fitted.predict_proba(series).argmax(1).tolist() == labels
    True
    """
    arrays, targets = checked_series(series), np.asarray(labels)
    advice = "give np.unique(labels, return_inverse=True)[1]"
    if targets.shape != (len(arrays),) or not np.issubdtype(targets.dtype, np.integer):
        raise ValueError(f"labels must be {len(arrays)} integers, got {targets.dtype} of {targets.shape}: {advice}")
    classes = np.unique(targets)
    if len(classes) < 2:
        raise ValueError(f"labels must hold at least two classes, got only {classes.tolist()}")
    if not np.array_equal(classes, np.arange(len(classes))):
        raise ValueError(f"labels must be 0 … K−1 without gaps, got {classes.tolist()}: {advice}")
    config = _config_for(arrays, len(classes), config)
    if config.num_classes != len(classes):
        raise ValueError(f"config.num_classes ({config.num_classes}) must be that of labels ({len(classes)})")
    training = (ClassificationTraining() if training is None else training).for_panel(len(arrays))
    if isinstance(training.class_weights, tuple) and len(training.class_weights) != config.num_classes:
        raise ValueError(
            f"class_weights must be {config.num_classes} numbers, one for each class, got {len(training.class_weights)}"
        )
    scaler, networks = _fit(arrays, torch.as_tensor(targets.astype(np.int64)), targets, config, training, seed,
                            progress, device)  # fmt: skip
    return FittedClassifier(config, scaler, networks)


def fit_regressor(
    series: Sequence[np.ndarray],
    targets: Sequence[float] | np.ndarray,
    *,
    config: ClassificationConfig | None = None,
    training: ClassificationTraining | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    device: str = "cpu",
) -> FittedRegressor:
    """Train networks that give a number for each series; all else is as in `fit_classifier`.

    The numbers are standardised. The loss is the squared error; label smoothing and class weights do not apply.

    Parameters
    ----------
    series, seed, progress, device
        As in `fit_classifier`.
    targets : sequence of float, shape (n,)
    config : ClassificationConfig, optional
        A configuration of one class.
    training : ClassificationTraining, optional
        By default series are not changed, because the number may measure speed or size.

    Raises
    ------
    ValueError
        The panel is empty or malformed (see `checked_series`), targets are not n finite numbers, or `config` is for
        another number of channels or for classes.

    Examples
    --------
    >>> import numpy as np
    >>> from mvpa_ts.classification import ClassificationTraining, fit_regressor
    >>> steps, rates = np.arange(24), np.linspace(0.5, 1.5, 12)
    >>> series = [np.sin(steps * rate)[None] for rate in rates]
    >>> fitted = fit_regressor(series, rates, training=ClassificationTraining(steps=5))
    >>> fitted.predict(series).shape
    (12,)
    """
    arrays, values = checked_series(series), np.asarray(targets)
    if values.shape != (len(arrays),) or values.dtype.kind not in "fiub" or not np.isfinite(values).all():
        raise ValueError(
            f"targets must be {len(arrays)} finite numbers, one for each series, got {values.dtype} {values.shape}"
        )
    values = values.astype(np.float64)
    config = _config_for(arrays, 1, config)
    if not config.regression:
        raise ValueError(f"config.num_classes must be 1 for a regression, got {config.num_classes}")
    if training is None:
        training = ClassificationTraining(augmentation=UNCHANGED, kernel_copies=0)
    training = training.for_panel(len(arrays))
    location, scale = float(values.mean()), float(values.std())
    standard = torch.as_tensor((values - location) / (scale or 1.0), dtype=torch.float32)
    strata = max(1, min(_STRATA, len(values) // _STRATUM))
    strata_of = values.argsort().argsort() * strata // len(values)
    scaler, networks = _fit(arrays, standard, strata_of, config, training, seed, progress, device)
    return FittedRegressor(config, scaler, networks, location, scale)


def stratified_split(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows held out: `share` of each class, at least one where it has two or more; none at 0."""
    generator = np.random.default_rng(seed)
    held_out: list[int] = []
    for label in np.unique(labels) if share else ():
        rows = generator.permutation(np.flatnonzero(labels == label))
        held_out += rows[: min(len(rows) - 1, max(1, round(share * len(rows))))].tolist()
    held = np.array(sorted(held_out), dtype=np.int64)
    return np.setdiff1d(np.arange(len(labels)), held), held


def _config_for(
    series: list[np.ndarray], num_classes: int, config: ClassificationConfig | None
) -> ClassificationConfig:
    """The configuration that is given, if it is for so many channels; by default that of the panel's sizes."""
    if config is None:
        return ClassificationConfig(len(series[0]), num_classes, max(values.shape[1] for values in series))
    if config.num_channels != len(series[0]):
        raise ValueError(
            f"config.num_channels ({config.num_channels}) must be the number of channels of the series "
            f"({len(series[0])})"
        )
    return config


def _fit(
    series: list[np.ndarray],
    labels: Tensor,
    strata: np.ndarray,
    config: ClassificationConfig,
    training: ClassificationTraining,
    seed: int,
    progress: Callable[[Progress], None] | None,
    device: str,
) -> tuple[Scaler, list[ClassificationNetwork]]:
    """The scaler and the networks; validation parts are drawn from each stratum."""
    with OwnRandomState(seed) as random_state:
        splits = [stratified_split(strata, training.validation, seed + index) for index in range(training.num_networks)]
        # One scaler for all networks; it has not seen what the first one is validated on.
        scaler = Scaler.fit([series[row] for row in splits[0][0]])
        whole = Part(*scaler.padded(series), labels, config.num_classes)
        assert training.steps is not None  # set by `for_panel`
        networks, most = [], training.steps
        steps, share = most, None
        for index, (rows, held) in enumerate(splits):
            seed_of_network = seed + 1000 * index
            validated = len(held) > 0 and (index == 0 or not training.refit)
            stage: Literal["validation", "final"] = "validation" if validated else "final"
            random_state.manual_seed(seed_of_network)
            network = ClassificationNetwork(config, seed_of_network).to(device)

            def report(*reported: Any, place: tuple[Any, ...] = (stage, index + 1, training.num_networks)) -> None:
                if progress is not None:
                    progress(Progress(*place, *reported))

            best = loop.train_network(
                network.attention,
                whole.rows(rows) if validated else whole,
                whole.rows(held) if validated else None,
                training,
                steps=most if validated else steps,
                seed=seed_of_network,
                report=report,
            )
            steps = best if index == 0 else steps
            if network.kernels is not None:
                left_out = loop.fit_kernels(network.kernels, whole, training, seed_of_network)
                if index == 0 and validated:
                    share = kernel_share(network.attention, left_out[held], whole.rows(held), training)
                if share is not None:
                    network.kernel_share.fill_(share)
            networks.append(network)
        return scaler, networks


def kernel_share(path: AttentionPath, left_out: Tensor, held: Part, training: ClassificationTraining) -> float:
    """Share of the fixed-kernel path with the smallest loss over what was held out.

    Neither path has seen these series: the MVPA path was trained without them, and `left_out` are the other path's
    logits with each of them left out. The share is drawn towards one half, by as much as `_PRIOR` series would.
    """
    weight = held.weights(held.class_weights(training.class_weights))
    outputs = loop.logits(path, held), left_out.cpu()
    shares = torch.arange(1, 20) / 20
    if held.regression:
        mixtures = torch.lerp(outputs[0], outputs[1], shares[:, None, None])  # [shares, n, 1]
        losses = torch.stack([loop.series_losses(mixture, held.targets()) for mixture in mixtures]) * weight
    else:
        probabilities = (logit.softmax(1).gather(1, held.labels[:, None])[:, 0].clamp(min=1e-9) for logit in outputs)
        attended, convolved = probabilities
        losses = -((1 - shares[:, None]) * attended + shares[:, None] * convolved).log() * weight
    return shares[(losses.sum(1) + _PRIOR * (2 * shares - 1).square()).argmin()].item()
