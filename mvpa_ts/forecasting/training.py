"""Training of forecasting networks and its settings, for a few series, for many, and for benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mvpa_ts.checks import check_choices, check_flags, check_not_negative, check_positive, keep_shares, keep_whole
from mvpa_ts.forecasting.errors import evaluate, forecast_loss, quantile_error
from mvpa_ts.forecasting.network.closed_form import start_effects, start_in_closed_form
from mvpa_ts.forecasting.network.mixing import mixing_share
from mvpa_ts.forecasting.network.network import ForecastingNetwork
from mvpa_ts.learning_rates import lower_rates, parameter_groups
from mvpa_ts.random_state import OwnRandomState
from mvpa_ts.training import TrainingRun
from mvpa_ts.weight_averaging import WeightAverage
from mvpa_ts.weights import Checkpoint
from mvpa_ts.windows import Windows

_VALIDATIONS = 20  # in a run that is counted in steps
# Times the learning rate of the attention path: on the earlier years of the airline panel, after 100 steps, an error of
# 22 instead of 32 with one rate for both (experiments/forecasting/short_runs.py).
LINEAR_RATE = 30.0


@dataclass(frozen=True)
class ForecasterTraining:
    """How a network is trained. The defaults are also those of the adapters to neuralforecast and sktime.

    Attributes
    ----------
    steps : int
        Optimiser steps, one cycle of the learning rate.
    epochs : int or None
        Passes over all windows, in place of `steps`.
    batch_size : int
        Windows in a step; all windows where there are fewer.
    learning_rate : float
        Peak of the cycle.
    linear_learning_rate : float or None
        Peak for the linear path and the learnable cycle; None takes 30 times `learning_rate`.
    full_rate_steps : float or None
        Most steps for each whole window at which the learning rates are full. With more `steps` in one cycle the rates
        are lowered, because few windows are soon learnt by heart: with half the windows to a quarter in the attention
        path and to half in the linear path. The heads that read other channels learn more slowly if no channel tells of
        another, see `mixing_share`. None never lowers a rate. `epochs` and other schedules do not lower rates either.
    schedule : {"one-cycle", "halving", "constant"}
        How the learning rates change; "halving" begins after the second epoch and is done after every epoch.
    weight_decay : float
    clip : float or None
        Largest norm of the gradient.
    weight_averaging : float or None
        Decay of the averaged weights, which are validated and kept.
    averaging_warm_up : bool
        Whether the average forgets faster at first, see `WeightAverage`.
    loss : {"l1", "mse"}
        Loss of a network with one output; quantiles have the pinball loss.
    horizon_decay, frequency_weight : float
        Weight of near steps, and share of the loss that is over frequencies, as in `forecast_loss`.
    ridge : float or None
        Start the linear path and the cycle in closed form with this ridge, see `least_squares_start`; None starts
        them at zero.
    cycle_strength, reversion_strength : float
        Options of the closed-form start.
    validation_fraction : float
        Share of each series, at its end, that is kept out of training to choose among the weights on the way;
        0 trains on everything and keeps the last weights.
    keep : {"best", "last"}
        The weights of the best validation, or those at the end.
    patience : int or None
        Stop after so many validations without a better one. Training that is counted in `epochs` validates after each
        epoch, other training 20 times.

    Raises
    ------
    ValueError
        A number is out of range, an option is unknown, or `patience` has nothing to validate with.

    Examples
    --------
    >>> ForecasterTraining(steps=2000, validation_fraction=0.2, patience=5).keep
    'best'
    """

    steps: int = 1000
    epochs: int | None = None
    batch_size: int = 32
    learning_rate: float = 1e-3
    linear_learning_rate: float | None = None
    full_rate_steps: float | None = 1.0
    schedule: Literal["one-cycle", "halving", "constant"] = "one-cycle"
    weight_decay: float = 0.0
    clip: float | None = None
    weight_averaging: float | None = 0.99
    averaging_warm_up: bool = True
    loss: Literal["l1", "mse"] = "l1"
    horizon_decay: float = 0.0
    frequency_weight: float = 0.0
    ridge: float | None = None
    cycle_strength: float = 0.5
    reversion_strength: float = 0.25
    validation_fraction: float = 0.0
    keep: Literal["best", "last"] = "best"
    patience: int | None = None

    def __post_init__(self) -> None:
        keep_whole(self, 0, "steps")
        keep_whole(self, 1, "epochs", "batch_size", "patience")
        check_positive(self, "learning_rate", "linear_learning_rate", "full_rate_steps", "clip", "weight_averaging")
        check_not_negative(
            self, "weight_decay", "horizon_decay", "cycle_strength", "reversion_strength", "ridge", "frequency_weight"
        )
        check_flags(self, "averaging_warm_up")
        if self.weight_averaging is not None and self.weight_averaging >= 1.0:
            raise ValueError(f"weight_averaging must be in (0, 1) or None, got {self.weight_averaging}")
        keep_shares(self, "validation_fraction")
        if self.frequency_weight > 1.0:
            raise ValueError(f"frequency_weight must be in [0, 1], got {self.frequency_weight}")
        if self.patience is not None and self.epochs is None and not self.validation_fraction:
            raise ValueError(f"patience ({self.patience}) needs a validation_fraction above 0")
        check_choices(self, schedule=("one-cycle", "halving", "constant"), loss=("l1", "mse"), keep=("best", "last"))


@dataclass(frozen=True)
class Outcome:
    """What a training run gave.

    Attributes
    ----------
    validation_mse, validation_mae : float
        Means over all windows, steps and channels, in scaled units, of the weights that were kept. For quantiles, the
        pinball loss stands in both. Infinite without a validation.
    epochs : int
        Passes over the windows, the last of which may not be whole.
    seconds, seconds_per_epoch : float
        Processor time of this process on a CPU, which other work on the machine changes little; wall-clock time on a
        GPU.
    """

    validation_mse: float
    validation_mae: float
    epochs: int
    seconds: float
    seconds_per_epoch: float


def train(
    model: nn.Module,
    windows: Mapping[str, Windows],
    training: ForecasterTraining,
    *,
    seed: int,
    levels: Sequence[float] | None = None,
    max_steps: int | None = None,
    progress: Callable[[int, float], None] | None = None,
    report: Callable[[int, float], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Train a model in place.

    Parameters
    ----------
    model : nn.Module
        Called with the inputs that `Windows.batches` gives; returns (B, h, C, m).
    windows : dict of Windows
        "train", and "validation" if any; on the device of the model.
    training : ForecasterTraining
        `validation_fraction` is not read here: the windows are cut already. Closed-form start and learning rate of
        the linear path are for a `ForecastingNetwork`. One with room for bounds and none set yet gets the
        range of the windows to train on.
    seed : int
        Seed for the order of the windows. Dropout begins with torch's random state, which stays as it is.
    levels : sequence of float, optional
        The outputs are quantiles of these levels.
    max_steps : int, optional
        End the training after that many steps.
    progress : callable, optional
        Told the steps done and the last loss.
    report : callable, optional
        Told the epoch and its validation error.
    checkpoint : Checkpoint, optional
        A file that is written after each epoch. If it is there, training continues from it and ends as a run without a
        stop. The caller removes it.

    Raises
    ------
    ValueError
        There are no windows to train on or to validate with, the checkpoint is of other settings or damaged, or `ridge`
        is set for a model without a linear path.
    FloatingPointError
        Training diverged before any validation; the model has the last finite weights. After a validation there is a
        warning, and the best weights are kept.
    """
    for name, chosen in windows.items():
        if name in ("train", "validation") and not len(chosen):
            raise ValueError(f"windows[{name!r}] must hold at least one window, got none")
    inputs, validation = windows["train"], windows.get("validation")
    device = inputs.values.device
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    started = clock()
    generator, random_state = torch.Generator().manual_seed(int(seed)), OwnRandomState()
    quantiles = None if levels is None else torch.tensor(levels, device=device)
    total = training.steps if training.epochs is None else training.epochs * -(-len(inputs) // training.batch_size)
    total = total if max_steps is None else min(max_steps, total)
    _start(model, inputs, training)

    def losses() -> Iterator[Tensor]:
        for batch, target, counted in inputs.batches(training.batch_size, generator):
            with random_state:
                forecast = model(**batch)
            yield forecast_loss(
                forecast,
                target,
                counted,
                loss=training.loss,
                levels=quantiles,
                horizon_decay=training.horizon_decay,
                frequency_weight=training.frequency_weight,
            )

    def errors() -> tuple[float, float]:
        assert validation is not None
        if quantiles is None:
            mse, mae = evaluate(model, validation)
        else:
            mse = mae = quantile_error(model, validation, quantiles)
        if report is not None:
            report(run.epoch + (training.epochs is None), mse)
        return mse, mae

    run = TrainingRun(
        model,
        _groups(model, inputs, training, total),
        steps=total,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        cycle_steps=total if training.schedule == "one-cycle" else None,
        clip=training.clip,
        average=WeightAverage(model, training.weight_averaging, warm_up=training.averaging_warm_up),
        validation=None if validation is None else errors,
        validate_every=max(1, training.steps // _VALIDATIONS) if training.epochs is None else None,
        keep_last=training.keep == "last",
        patience=training.patience,
    )
    if checkpoint is not None and (state := checkpoint.read()) is not None:
        run.go_on_from(state)
        generator.set_state(state["random"][0])
        random_state.set_states(state["random"][1:], device)
        started = clock() - run.seconds
    while not run.finished():
        run.over(losses(), progress)
        run.epoch += 1
        if training.schedule == "halving":
            run.scale_rates(0.5 ** (run.epoch - 1))
        if training.epochs is not None and not run.diverged:
            run.look()
        run.seconds = clock() - started
        if checkpoint is not None:
            checkpoint.write(run.state() | {"random": [generator.get_state(), *random_state.states(device)]})
            started = clock() - run.seconds
    run.keep()
    if _finish(model, inputs, training, levels) and validation is not None:
        run.errors = errors()
    mse, mae = run.errors
    return Outcome(mse, mae, run.epoch, run.seconds, run.seconds / max(run.epoch, 1))


def _finish(model: nn.Module, windows: Windows, training: ForecasterTraining, levels: Sequence[float] | None) -> bool:
    """Solve the regressions beside a trained network, where its middle is a mean or a median; whether any are used."""
    central = levels is None or levels[(len(levels) - 1) // 2] == 0.5
    if not isinstance(model, ForecastingNetwork) or model.fitted is None or not central:
        return False
    power = 2.0 if levels is None and training.loss == "mse" else 1.0
    model.fitted.finish(model, windows, middle=model.middle, power=power)
    return not model.fitted.off


def _start(model: nn.Module, windows: Windows, training: ForecasterTraining) -> None:
    """Set what needs no gradient: effects of covariates, the linear path if `ridge` is set, and bounds."""
    if isinstance(model, ForecastingNetwork):
        start_effects(model, windows)
        if model.fitted is not None:
            model.fitted.clear()  # trained further, the network learns by itself; they are solved again at the end
        if model.regressions is not None:
            model.regressions.start(windows)
    start_in_closed_form(model, windows, training)
    if isinstance(model, ForecastingNetwork) and model.unbounded:
        model.set_bounds(*windows.value_range())


def _groups(model: nn.Module, windows: Windows, training: ForecasterTraining, steps: int) -> list[dict[str, Any]]:
    """Parameter groups with their learning rates; those of a `ForecastingNetwork` differ by path."""
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr": training.learning_rate}]
    network = next((module for module in model.modules() if isinstance(module, ForecastingNetwork)), None)
    lowers = training.epochs is None and training.schedule == "one-cycle" and training.full_rate_steps is not None
    if network is not None:
        inside = set(network.parameters())
        groups = parameter_groups(
            network,
            learning_rate=training.learning_rate,
            linear_rate=training.linear_learning_rate or LINEAR_RATE * training.learning_rate,
            mixing_share=mixing_share(windows) if lowers and network.mixing is not None else 1.0,
            others=[parameter for parameter in model.parameters() if parameter not in inside],
        )
    if lowers and training.full_rate_steps is not None:
        ends = windows.starts + windows.lookback + windows.horizon
        whole = len(windows) if windows.limits is None else int((ends <= windows.limits[:, 1]).sum())
        lower_rates(groups, steps, whole, training.full_rate_steps)
    return groups
