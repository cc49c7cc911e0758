"""Train classification networks on a panel, with a validation part held out of it, and keep them with their scaler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.classification.augmentation import Augmentation
from mvpa_ts.classification.fitted import FittedClassifier
from mvpa_ts.classification.network import ClassificationConfig, ClassificationNetwork
from mvpa_ts.classification.panel import Scaler, checked_series


@dataclass(frozen=True)
class ClassificationTraining:
    """How `fit_classifier` trains; the defaults serve every dataset.

    Attributes
    ----------
    steps : int
        Most optimiser steps of a network.
    batch_size : int
    learning_rate, weight_decay : float
        Of AdamW with a one-cycle schedule.
    label_smoothing, mixup : float
        Share of the target given to all classes; parameter of the Beta distribution that mixes pairs of series, 0: no
        mixing.
    weight_averaging : float
        Decay of the exponential average of weights that is validated and kept.
    clip : float
        Largest norm of the gradient.
    augmentation : Augmentation
    validation : float
        Share of the training series, drawn from each class, that the number of steps is chosen on; 0: all steps.
    evaluate_every, patience : int
        Steps between two validations, and validations without a smaller loss before training stops.
    num_networks : int
        Networks whose probabilities are averaged.
    refit : bool
        Train the networks on all series for the chosen number of steps. Otherwise each network keeps the weights
        of its best validation, on a split of its own.
    class_weights : {"balanced"}, tuple of float or None
        "balanced": every class weighs the same in the loss, whatever its number of series. Numbers: one a class.
    """

    steps: int = 400
    batch_size: int = 32
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    mixup: float = 0.3
    weight_averaging: float = 0.98
    clip: float = 1.0
    augmentation: Augmentation = field(default_factory=Augmentation)
    validation: float = 0.2
    evaluate_every: int = 25
    patience: int = 6
    num_networks: int = 1
    refit: bool = True
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "patience", "num_networks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_rate <= 0 or self.clip <= 0:
            raise ValueError(f"learning_rate and clip must be positive, got {self.learning_rate} and {self.clip}")
        for name in ("label_smoothing", "validation", "weight_averaging"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("weight_decay", "mixup"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if isinstance(self.class_weights, tuple):
            if min(self.class_weights) < 0 or not 0.0 < sum(self.class_weights) < float("inf"):
                raise ValueError(
                    f"class_weights must be finite, not negative, and not all zero, got {self.class_weights}"
                )
        elif self.class_weights not in (None, "balanced"):
            raise ValueError(f"class_weights must be None, 'balanced' or a tuple, got {self.class_weights!r}")


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told after each validation, and at the end of each network.

    Attributes
    ----------
    stage : {"validation", "final"}
        Choosing the number of steps, or training what is kept.
    network, num_networks : int
        Counted from 1 within the stage.
    step, steps : int
    loss : float
        Of the last batch.
    validation_loss, validation_accuracy : float or None
        Of the averaged weights; None where nothing is held out.
    """

    stage: Literal["validation", "final"]
    network: int
    num_networks: int
    step: int
    steps: int
    loss: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None


@dataclass
class _Part:
    """Standardised series of one part on one device."""

    x: Tensor
    mask: Tensor
    labels: Tensor

    @classmethod
    def of(cls, series: Sequence[np.ndarray], labels: np.ndarray, rows: np.ndarray, scaler: Scaler) -> _Part:
        return cls(*scaler.padded([series[row] for row in rows]), torch.as_tensor(labels[rows]))


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
    config = _checked_config(arrays, targets, config)
    training = ClassificationTraining() if training is None else training
    if isinstance(training.class_weights, tuple) and len(training.class_weights) != config.num_classes:
        raise ValueError(f"class_weights must be {config.num_classes} numbers, got {len(training.class_weights)}")
    with torch.random.fork_rng(devices=[device] if torch.device(device).type == "cuda" else []):
        return _fit(arrays, targets.astype(np.int64), config, training, seed, progress or (lambda _: None), device)


def stratified_split(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows held out, `share` of each class and at least one where a class has two or more."""
    generator = np.random.default_rng(seed)
    held_out: list[int] = []
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        held_out += rows[: min(len(rows) - 1, max(1, round(share * len(rows))))].tolist()
    held = np.array(sorted(held_out), dtype=np.int64)
    return np.setdiff1d(np.arange(len(labels)), held), held


def _checked_config(
    series: list[np.ndarray], labels: np.ndarray, config: ClassificationConfig | None
) -> ClassificationConfig:
    if labels.shape != (len(series),) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be {len(series)} integers, one a series, got {labels.dtype} of {labels.shape}")
    classes = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(f"labels must hold at least two classes, got only {classes.tolist()}")
    if not np.array_equal(classes, np.arange(len(classes))):
        raise ValueError(f"labels must be 0 … K−1 without gaps, got {classes.tolist()}")
    if config is None:
        length = max(one.shape[1] for one in series)
        return ClassificationConfig(num_channels=len(series[0]), num_classes=len(classes), length=length)
    if config.num_channels != len(series[0]):
        raise ValueError(f"config.num_channels ({config.num_channels}) must be that of the series ({len(series[0])})")
    if config.num_classes != len(classes):
        raise ValueError(f"config.num_classes ({config.num_classes}) must be that of the labels ({len(classes)})")
    return config


def _fit(
    series: list[np.ndarray],
    labels: np.ndarray,
    config: ClassificationConfig,
    training: ClassificationTraining,
    seed: int,
    progress: Callable[[Progress], None],
    device: str,
) -> FittedClassifier:
    everything, steps, count = np.arange(len(series)), training.steps, training.num_networks
    splits = [stratified_split(labels, training.validation, seed + index) for index in range(count)]
    held_out = training.validation > 0 and all(len(held) for _, held in splits)
    if held_out and training.refit:
        rows, held = splits[0]
        scaler = Scaler.fit([series[row] for row in rows])
        parts = (_Part.of(series, labels, rows, scaler), _Part.of(series, labels, held, scaler))
        tell = lambda report: progress(Progress("validation", 1, 1, *report))  # noqa: E731
        _, steps = _train(config, training, *parts, steps, seed, tell, device)

    scaler, networks = Scaler.fit(series), []
    for index in range(count):
        own = seed + 1000 * (index + 1)
        tell = lambda report, index=index: progress(Progress("final", index + 1, count, *report))  # noqa: E731
        if held_out and not training.refit:
            rows, held = splits[index]
            parts = (_Part.of(series, labels, rows, scaler), _Part.of(series, labels, held, scaler))
            network, _ = _train(config, training, *parts, steps, own, tell, device)
        else:
            network, _ = _train(
                config, training, _Part.of(series, labels, everything, scaler), None, steps, own, tell, device
            )
        networks.append(network)
    return FittedClassifier(config, scaler, networks)


def _train(
    config: ClassificationConfig,
    training: ClassificationTraining,
    part: _Part,
    held: _Part | None,
    steps: int,
    seed: int,
    tell: Callable[[tuple[int, int, float, float | None, float | None]], None],
    device: str,
) -> tuple[ClassificationNetwork, int]:
    """One network, and the step whose weights it holds: the best validated one, or the last."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = ClassificationNetwork(config, seed).to(device)
    sizes = torch.bincount(part.labels, minlength=config.num_classes)
    class_weight = torch.ones(config.num_classes)
    if training.class_weights == "balanced":
        class_weight = len(part.labels) / config.num_classes / sizes.clamp(min=1)
    elif training.class_weights is not None:
        class_weight = torch.tensor(training.class_weights)
    if network.kernels is not None:
        views = network.views(part.x.to(device), part.mask.to(device))
        labels = part.labels.to(device)
        network.kernels.fit(*views, labels, class_weight.to(device)[labels], seed)
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [one for one in parameters if one.ndim > 1], "weight_decay": training.weight_decay},
            {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
        ],
        training.learning_rate,
    )
    # The schedule spans all steps that training may take, so that a shorter run repeats its beginning.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, training.learning_rate, total_steps=training.steps + 1, pct_start=0.2
    )
    averaged = copy.deepcopy(network).eval()
    best_loss, best_step, best_state = float("inf"), steps, None
    order = torch.empty(0, dtype=torch.long)
    for step in range(1, steps + 1):
        network.train()
        while len(order) < training.batch_size:
            order = torch.cat([order, torch.randperm(len(part.labels), generator=generator)])
        rows, order = order.split([training.batch_size, len(order) - training.batch_size])
        x, mask = training.augmentation(part.x[rows], part.mask[rows], generator)
        target = F.one_hot(part.labels[rows], config.num_classes).float()
        weight = class_weight[part.labels[rows]]
        if training.mixup:
            x, target = _mixed(x, mask, target, training.mixup, generator)
        target = target * (1 - training.label_smoothing) + training.label_smoothing / config.num_classes
        log_probability = network.attention_logits(x.to(device), mask.to(device)).log_softmax(-1)
        losses = -(target.to(device) * log_probability).sum(1)
        loss = (losses * weight.to(device)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, training.clip)
        optimizer.step()
        schedule.step()
        # The average forgets faster at first: the random start would outlive a short training.
        _average(averaged, network, min(training.weight_averaging, step / (step + 9)))
        if held is not None and (step % training.evaluate_every == 0 or step == steps):
            validation_loss, accuracy = _validate(averaged, held, class_weight, device)
            tell((step, steps, loss.item(), validation_loss, accuracy))
            if validation_loss < best_loss:
                best_loss, best_step, best_state = validation_loss, step, copy.deepcopy(averaged.state_dict())
            elif step - best_step >= training.patience * training.evaluate_every:
                break
        elif step == steps:
            tell((step, steps, loss.item(), None, None))
    if best_state is not None:
        averaged.load_state_dict(best_state)
    return averaged, best_step


def _mixed(
    x: Tensor, mask: Tensor, target: Tensor, strength: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Each series with a share of another where both are observed, and its target likewise (Zhang et al. 2018)."""
    first, second = torch._standard_gamma(torch.full((2,), strength), generator=generator)
    share = (first / (first + second).clamp(min=1e-9)).item()
    share = max(share, 1 - share)
    other = torch.randperm(len(x), generator=generator)
    mixed = torch.where(mask & mask[other], share * x + (1 - share) * x[other], x)
    return mixed, share * target + (1 - share) * target[other]


@torch.no_grad()
def _average(averaged: nn.Module, network: nn.Module, decay: float) -> None:
    for kept, current in zip(averaged.parameters(), network.parameters(), strict=True):
        kept.lerp_(current, 1.0 - decay)


@torch.no_grad()
def _validate(network: ClassificationNetwork, part: _Part, class_weight: Tensor, device: str) -> tuple[float, float]:
    """Cross-entropy and accuracy of the MVPA path, which alone is trained step by step."""
    logits = torch.cat(
        [
            network.attention_logits(x.to(device), mask.to(device)).cpu()
            for x, mask in zip(part.x.split(64), part.mask.split(64), strict=True)
        ]
    )
    loss = F.cross_entropy(logits, part.labels, class_weight).item()
    return loss, (logits.argmax(1) == part.labels).double().mean().item()
