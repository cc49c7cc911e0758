"""Every classifier of the classification tables behind one call: a training and a test part in, an outcome out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from harness.classification.peers import PatchTransformer, StepTransformer, dtw_neighbours, minirocket_scores
from torch import nn

from mvpa_ts.classification import Augmentation, ClassificationConfig, ClassificationTraining, Progress, fit_classifier
from mvpa_ts.classification.loop import Part, train_network
from mvpa_ts.classification.panel import Scaler
from mvpa_ts.classification.training import stratified_split

COMPONENTS = {
    "MVPA": ("content", "time", "channel"),
    "MVPA content-only": ("content",),
    "MVPA time-only": ("time",),
    "MVPA channel-only": ("channel",),
    "MVPA none": (),
}
_UNCHANGED = Augmentation(warp=0.0, crop=0.0, scale=0.0, noise=0.0, cut=0.0, channel_dropout=0.0)
# The peers' usual settings: cross-entropy, a peak learning rate of 1e-3, series as they are.
_PEER_TRAINING = ClassificationTraining(
    learning_rate=1e-3, weight_decay=0.0, label_smoothing=0.0, mixup=0.0, augmentation=_UNCHANGED
)
TRANSFORMERS: dict[str, type[PatchTransformer] | type[StepTransformer]] = {
    "PatchTST-style": PatchTransformer,
    "Transformer": StepTransformer,
}
MODELS = (*COMPONENTS, *TRANSFORMERS, "MiniRocket", "1NN-DTW")


@dataclass
class Problem:
    """A data set, its labels counted from 0 in the order of their names."""

    train: list[np.ndarray]
    train_labels: np.ndarray
    test: list[np.ndarray]
    test_labels: np.ndarray

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.train_labels.max()) + 1

    @property
    def length(self) -> int:
        """Steps of the longest training series."""
        return max(one.shape[1] for one in self.train)


@dataclass
class Outcome:
    """What a run found; accuracies as shares of 1.

    `accuracy` is the honest one. `selected_on_test` is the best accuracy on the way, as tables that validate on the
    test file report it; None for methods that are not trained in steps.
    """

    accuracy: float
    parts: dict[str, float] = field(default_factory=dict)
    selected_on_test: float | None = None
    validation: float | None = None
    steps: int | None = None
    parameters: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def run(
    model: str, problem: Problem, seed: int, *, quick: bool, report: Callable[[str], None]
) -> tuple[Outcome, float]:
    """Train, test once; the outcome and the seconds of training and testing."""
    started = time.perf_counter()
    if model in COMPONENTS:
        outcome = run_mvpa(problem, COMPONENTS[model], seed, quick=quick, report=report)
    elif model in TRANSFORMERS:
        outcome = run_transformer(problem, TRANSFORMERS[model], seed, quick=quick, report=report)
    elif model == "MiniRocket":
        scores = minirocket_scores(problem.train, problem.train_labels, problem.test, seed)
        outcome = Outcome(_accuracy(scores, problem.test_labels))
    else:
        neighbours = dtw_neighbours(problem.train, problem.test)
        outcome = Outcome(float((problem.train_labels[neighbours] == problem.test_labels).mean()))
    return outcome, time.perf_counter() - started


def run_mvpa(
    problem: Problem, components: tuple[str, ...], seed: int, *, quick: bool, report: Callable[[str], None]
) -> Outcome:
    """The default configuration, but for the components of the attention score."""
    training = ClassificationTraining().for_panel(len(problem.train))
    if quick:
        training = replace(training, steps=3, kernel_copies=0)
    config = ClassificationConfig(
        num_channels=len(problem.train[0]),
        num_classes=problem.num_classes,
        length=problem.length,
        components=components,
    )
    rows, _ = stratified_split(problem.train_labels, training.validation, seed)
    scaler = Scaler.fit([problem.train[row] for row in rows])  # as `fit_classifier` has it
    test = Part(*scaler.padded(problem.test), torch.as_tensor(problem.test_labels), config.num_classes)
    on_the_way: dict[int, list[torch.Tensor]] = {}
    validation: list[tuple[float, float]] = []
    steps = 0

    def progress(told: Progress) -> None:
        nonlocal steps
        report(f"{told.stage}, network {told.network}/{told.num_networks}, step {told.step}/{told.steps}")
        if told.validation_loss is not None and told.validation_accuracy is not None:
            validation.append((told.validation_loss, told.validation_accuracy))
        steps = told.step
        # For the column "selected on test" only: nothing that is kept depends on it.
        on_the_way.setdefault(told.step, []).append(_probabilities(told.averaged, test))

    fitted = fit_classifier(
        problem.train, problem.train_labels, config=config, training=training, seed=seed, progress=progress
    )
    probabilities = fitted.predict_proba(problem.test)
    attended = np.mean([_probabilities(network.attention, test).numpy() for network in fitted.networks], 0)
    parts = {"attention_accuracy": _accuracy(attended, problem.test_labels)}
    share, convolved = 0.0, np.zeros_like(attended)
    if fitted.networks[0].kernels is not None:
        share = fitted.networks[0].kernel_share.item()
        parts["kernel_share"] = share
        kernels = [network.kernels for network in fitted.networks if network.kernels is not None]
        convolved = np.mean([_probabilities(kernel, test).numpy() for kernel in kernels], 0)
        parts["kernel_accuracy"] = _accuracy(convolved, problem.test_labels)
    selected = max(
        _accuracy((1 - share) * torch.stack(at_step).mean(0).numpy() + share * convolved, problem.test_labels)
        for at_step in on_the_way.values()
        if len(at_step) == training.num_networks
    )
    return Outcome(
        _accuracy(probabilities, problem.test_labels),
        parts,
        selected,
        min(validation)[1] if validation else None,
        steps,
        sum(parameter.numel() for network in fitted.networks for parameter in network.parameters()),
        {**asdict(config), "training": asdict(training)},
    )


def run_transformer(
    problem: Problem,
    kind: type[PatchTransformer] | type[StepTransformer],
    seed: int,
    *,
    quick: bool,
    report: Callable[[str], None],
) -> Outcome:
    """A peer, by the same protocol: the number of steps from a validation part, then all of TRAIN, one look at test."""
    training = (replace(_PEER_TRAINING, steps=3) if quick else _PEER_TRAINING).for_panel(len(problem.train))
    K, C = problem.num_classes, len(problem.train[0])

    def part(series: list[np.ndarray], labels: np.ndarray, scaler: Scaler) -> Part:
        return Part(*scaler.padded(series), torch.as_tensor(labels), K)

    def train(used: Part, held: Part | None, steps: int, watch: Callable[..., None]) -> tuple[nn.Module, int]:
        torch.manual_seed(seed)
        network = kind(C, K, problem.length)
        return network, train_network(network, used, held, training, steps=steps, seed=seed, report=watch)

    rows, held = stratified_split(problem.train_labels, training.validation, seed)
    scaler = Scaler.fit([problem.train[row] for row in rows])
    pick = [part([problem.train[row] for row in some], problem.train_labels[some], scaler) for some in (rows, held)]
    seen: list[tuple[float, float]] = []

    def watch_validation(step: int, steps: int, _: float, loss: float, accuracy: float, __: nn.Module) -> None:
        report(f"validation, step {step}/{steps}")
        seen.append((loss, accuracy))

    _, steps = train(*pick, training.steps or 0, watch_validation)
    scaler = Scaler.fit(problem.train)
    test = part(problem.test, problem.test_labels, scaler)
    on_the_way: list[float] = []

    def watch_test(step: int, steps: int, _: float, __: None, ___: None, averaged: nn.Module) -> None:
        report(f"final, step {step}/{steps}")
        on_the_way.append(_accuracy(_probabilities(averaged, test).numpy(), problem.test_labels))

    network, _ = train(part(problem.train, problem.train_labels, scaler), None, steps, watch_test)
    return Outcome(
        _accuracy(_probabilities(network, test).numpy(), problem.test_labels),
        {},
        max(on_the_way),
        min(seen)[1],
        steps,
        sum(parameter.numel() for parameter in network.parameters()),
        {"training": asdict(training)},
    )


@torch.no_grad()
def _probabilities(network: nn.Module, part: Part) -> torch.Tensor:
    network.eval()
    parts = zip(part.x.split(64), part.mask.split(64), strict=True)
    return torch.cat([network(x, mask).softmax(-1) for x, mask in parts])


def _accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    return float((scores.argmax(1) == labels).mean())
