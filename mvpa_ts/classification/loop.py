"""Train one classification network on a part of a panel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.checks import check_flags, check_not_negative, check_positive, keep_shares, keep_whole
from mvpa_ts.classification.augmentation import Augmentation, mixed
from mvpa_ts.classification.kernels import KernelPath
from mvpa_ts.random_state import OwnRandomState
from mvpa_ts.training import TrainingRun
from mvpa_ts.weight_averaging import WeightAverage

_AUGMENTATION = Augmentation()
_KERNEL_AUGMENTATION = Augmentation(warp=0.2, crop=0.1, scale=0.1, noise=0.0, cut=0.0, channel_dropout=0.0)
# Series and copies that the ridge is fitted to: the time grows with their third power (1 s at 1024).
_KERNEL_ROWS = 1024
_STEPS, _EPOCHS, _EVALUATIONS = 300, 8, 12
# Told step, steps, loss, validation loss, validation accuracy, and the network with averaged weights.
Report = Callable[[int, int, float, float | None, float | None, nn.Module], None]


@dataclass(frozen=True)
class ClassificationTraining:
    """How `fit_classifier` and `fit_regressor` train; the defaults serve every dataset of classes.

    Attributes
    ----------
    steps : int or None
        Most optimiser steps of a network. None: 300, or more if it takes more to show each series 8 times.
    batch_size : int
    learning_rate, weight_decay : float
        Options of AdamW with a one-cycle schedule.
    label_smoothing, mixup : float
        `label_smoothing` is the share of the target given to all classes; it does not apply to numbers. `mixup` is the
        parameter of the Beta distribution that mixes pairs of series; 0 mixes none.
    weight_averaging : float
        Decay of the exponential average of weights that is validated and kept.
    clip : float
        Largest norm of the gradient.
    augmentation : Augmentation
    validation : float
        Share of the training series by which the number of steps is chosen, drawn from each class, or from small and
        large numbers alike. 0 takes all steps.
    evaluate_every, patience : int
        Steps between two validations, and validations without a smaller loss before training stops.
    num_networks : int
        Networks whose probabilities or numbers are averaged.
    refit : bool
        The first network holds out the validation part, and the others are trained on all series for the number of
        steps that was best for it. Otherwise each network holds out a part of its own.
    kernel_copies : int
        Changed copies of each series that the fixed-kernel path is fitted with; fewer where the panel is large.
    class_weights : {"balanced"}, tuple of float or None
        "balanced": every class weighs the same in the loss, whatever its number of series. A tuple has the weight of
        each class, of which only the ratios count.

    Raises
    ------
    ValueError
        A number is out of range.

    Examples
    --------
    >>> ClassificationTraining(batch_size=32).for_panel(4000).steps  # each series is shown 8 times
    1000
    """

    steps: int | None = None
    batch_size: int = 32
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    mixup: float = 0.0
    weight_averaging: float = 0.98
    clip: float = 1.0
    augmentation: Augmentation = _AUGMENTATION
    validation: float = 0.2
    evaluate_every: int = 25
    patience: int = 6
    num_networks: int = 2
    refit: bool = True
    kernel_copies: int = 4
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        keep_whole(self, 1, "steps", "batch_size", "evaluate_every", "patience", "num_networks")
        keep_whole(self, 0, "kernel_copies")
        check_flags(self, "refit")
        check_positive(self, "learning_rate", "clip")
        keep_shares(self, "label_smoothing", "validation", "weight_averaging")
        check_not_negative(self, "weight_decay", "mixup")
        if isinstance(self.class_weights, tuple):
            if min(self.class_weights, default=0.0) < 0 or not 0.0 < sum(self.class_weights) < float("inf"):
                raise ValueError(f"class_weights must be finite, not negative, not all zero, got {self.class_weights}")
        elif self.class_weights not in (None, "balanced"):
            raise ValueError(f"class_weights must be None, 'balanced' or a tuple, got {self.class_weights!r}")

    def for_panel(self, size: int) -> ClassificationTraining:
        """These settings for a panel of that many series: the steps are set, and validations are not too many."""
        if self.steps is not None:
            return self
        steps = max(_STEPS, math.ceil(_EPOCHS * size / self.batch_size))
        return replace(self, steps=steps, evaluate_every=max(self.evaluate_every, steps // _EVALUATIONS))


@dataclass(frozen=True)
class Part:
    """Standardised series x [n, L, C], their mask, and labels [n] in 0 … num_classes − 1, or numbers for one class."""

    x: Tensor
    mask: Tensor
    labels: Tensor
    num_classes: int

    def rows(self, rows: np.ndarray | Tensor) -> Part:
        """Some of the series."""
        return Part(self.x[rows], self.mask[rows], self.labels[rows], self.num_classes)

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers."""
        return self.num_classes == 1

    def targets(self, smoothing: float = 0.0) -> Tensor:
        """What the network's outputs are compared with, [n, num_classes]: shares of classes, or the numbers."""
        if self.regression:
            return self.labels[:, None]
        one_hot = F.one_hot(self.labels, self.num_classes).float()
        return one_hot * (1 - smoothing) + smoothing / self.num_classes

    def weights(self, class_weights: Tensor) -> Tensor:
        """What each series counts, [n]."""
        return torch.ones(len(self.labels)) if self.regression else class_weights[self.labels]

    def class_weights(self, kind: str | tuple[float, ...] | None) -> Tensor:
        """What a series of each class counts; "balanced": the classes count the same."""
        if kind is None or self.regression:
            return torch.ones(self.num_classes)
        if isinstance(kind, tuple):
            # Only their ratios count: a series weighs 1 in the mean.
            weights = torch.tensor(kind, dtype=torch.float32)
            return weights / weights[self.labels].mean().clamp(min=1e-30)
        counts = torch.bincount(self.labels, minlength=self.num_classes).clamp(min=1)
        return len(self.labels) / self.num_classes / counts


def fit_kernels(path: KernelPath, part: Part, training: ClassificationTraining, seed: int) -> Tensor:
    """Fit the fixed-kernel path to a part and to changed copies of it; returns what `KernelPath.fit` does."""
    generator = torch.Generator().manual_seed(seed)
    copies = max(0, min(training.kernel_copies, _KERNEL_ROWS // len(part.labels) - 1))
    forms = [(part.x, part.mask)]
    forms += [_KERNEL_AUGMENTATION(part.x, part.mask, generator) for _ in range(copies)]
    device = path.weight.device
    x, mask = (torch.cat(tensors).to(device) for tensors in zip(*forms, strict=True))
    weights = part.weights(part.class_weights(training.class_weights))
    return path.fit(x, mask, part.labels.to(device), weights.to(device), copies=len(forms), seed=seed)


def train_network(
    network: nn.Module,
    part: Part,
    held: Part | None,
    training: ClassificationTraining,
    *,
    steps: int,
    seed: int,
    report: Report | None = None,
) -> int:
    """Train in place and return the step whose averaged weights the network then holds.

    Parameters
    ----------
    network : nn.Module
        Maps x [B, L, C] and mask [B, L, C] to logits [B, K].
    part, held : Part
        What is trained on; and what the step with the smallest loss is chosen on, None: the last step.
    training : ClassificationTraining
        Its schedule spans `training.steps` (None: `steps`), so that fewer `steps` repeat the beginning of a longer run.
    steps : int
    seed : int
        For batches and augmentation. Dropout begins with torch's random state, which stays as it is.
    report : callable, optional
        Told step, steps, loss, validation loss, validation accuracy and the network with averaged weights.

    Raises
    ------
    FloatingPointError
        Training diverged before any validation. After one there is a warning, and the best weights are kept.
    """
    device = next(network.parameters()).device
    class_weights = part.class_weights(training.class_weights)
    parameters = list(network.parameters())
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    rate = training.learning_rate
    last_loss, random_state = float("nan"), OwnRandomState()

    def losses() -> Iterator[Tensor]:
        """The loss of each batch; series are drawn anew, in another order, when all were shown."""
        nonlocal last_loss
        generator = torch.Generator().manual_seed(seed)
        order = torch.empty(0, dtype=torch.long)
        while True:
            while len(order) < training.batch_size:
                order = torch.cat([order, torch.randperm(len(part.labels), generator=generator)])
            rows, order = order[: training.batch_size], order[training.batch_size :]
            batch = part.rows(rows)
            x, mask = training.augmentation(batch.x, batch.mask, generator)
            target = batch.targets(training.label_smoothing)
            if training.mixup:
                x, target = mixed(x, mask, target, training.mixup, generator)
            with random_state:
                outputs = network(x.to(device), mask.to(device))
            each = series_losses(outputs, target.to(device))
            loss = (each * batch.weights(class_weights).to(device)).mean()
            last_loss = loss.item()
            yield loss

    def errors() -> tuple[float] | None:
        loss, accuracy = (None, None) if held is None else _validate(network.eval(), held, class_weights)
        if report is not None:
            report(run.step, steps, last_loss, loss, accuracy, network.eval())
        return None if loss is None else (loss,)

    run = TrainingRun(
        network,
        [
            {"params": matrices, "lr": rate, "weight_decay": training.weight_decay},
            {"params": vectors, "lr": rate, "weight_decay": 0.0},
        ],
        steps=steps,
        learning_rate=rate,
        cycle_steps=training.steps or steps,
        clip=training.clip,
        average=WeightAverage(network, training.weight_averaging or None),
        validation=errors,
        validate_every=training.evaluate_every,
        patience=None if held is None else training.patience,
    )
    run.over(losses())
    run.keep()
    network.eval()
    return run.best_step or steps


def _validate(network: nn.Module, part: Part, class_weights: Tensor) -> tuple[float, float]:
    """Loss and accuracy: cross-entropy and the share of right labels; of numbers squared error and R²."""
    outputs, weights = logits(network, part), part.weights(class_weights)
    loss = (series_losses(outputs, part.targets()) * weights).sum() / weights.sum()
    if part.regression:
        return loss.item(), 1.0 - loss.item() / max(part.labels.var(correction=0).item(), 1e-12)
    return loss.item(), (outputs.argmax(1) == part.labels).double().mean().item()


def series_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each series, [n]: cross-entropy of logits [n, K] against shares of classes, squared error for K = 1."""
    if outputs.shape[1] == 1:
        return (outputs - targets).square().sum(1)
    return -(targets * outputs.log_softmax(-1)).sum(1)


@torch.no_grad()
def logits(network: nn.Module, part: Part) -> Tensor:
    """What a network says of every series of a part, [n, K], on the CPU."""
    device = next(network.parameters()).device
    parts = zip(part.x.split(64), part.mask.split(64), strict=True)
    return torch.cat([network(x.to(device), mask.to(device)).cpu() for x, mask in parts])
