"""The training loop of forecasting networks and its settings, for a few series, for many, and for benchmarks."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mvpa_ts.checks import check_flags, check_not_negative, check_positive, keep_shares, keep_whole
from mvpa_ts.forecasting.errors import evaluate, forecast_loss, quantile_error
from mvpa_ts.forecasting.network.closed_form import start_effects, start_in_closed_form
from mvpa_ts.forecasting.network.mixing import mixing_share
from mvpa_ts.forecasting.network.network import ForecastingNetwork
from mvpa_ts.learning_rates import lower_rates, one_cycle, parameter_groups
from mvpa_ts.weight_averaging import WeightAverage
from mvpa_ts.weights import Checkpoint
from mvpa_ts.windows import Windows

_VALIDATIONS = 20  # in a run that is counted in steps
# Times the learning rate of the attention path, at least: what a covariate alone decides is else not learnt in time.
_COVARIATE_RATE = 5.0
_DIVERGED = 1e6  # times its first value, which is of order one: no training comes back from there


@dataclass(frozen=True)
class ForecasterTraining:
    """How a network is trained.

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
        Peak for the linear path and the learnable cycle; None takes `learning_rate`. The maps of covariates in the
        linear path have at least five times `learning_rate`.
    full_rate_steps : float or None
        Most steps for each window at which the learning rates are full. With more `steps` in one cycle the rates are
        lowered, because few windows are soon learnt by heart: with half the windows to a quarter in the attention
        path, to 0.6 in the linear path and to a third in its maps of covariates. The heads that read other channels
        learn more slowly if no channel tells of another, see `mixing_share`. None never lowers a rate. `epochs` and
        other schedules do not lower rates either.
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

    steps: int = 500
    epochs: int | None = None
    batch_size: int = 256
    learning_rate: float = 6e-3
    linear_learning_rate: float | None = None
    full_rate_steps: float | None = 0.3
    schedule: Literal["one-cycle", "halving", "constant"] = "one-cycle"
    weight_decay: float = 0.0
    clip: float | None = 1.0
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
        check_positive(self, "learning_rate", "linear_learning_rate", "full_rate_steps", "clip")
        check_not_negative(
            self, "weight_decay", "horizon_decay", "cycle_strength", "reversion_strength", "ridge", "frequency_weight"
        )
        check_positive(self, "weight_averaging")
        check_flags(self, "averaging_warm_up")
        if self.weight_averaging is not None and self.weight_averaging >= 1.0:
            raise ValueError(f"weight_averaging must be in (0, 1) or None, got {self.weight_averaging}")
        keep_shares(self, "validation_fraction")
        if self.frequency_weight > 1.0:
            raise ValueError(f"frequency_weight must be in [0, 1], got {self.frequency_weight}")
        if self.patience is not None and self.epochs is None and not self.validation_fraction:
            raise ValueError(f"patience ({self.patience}) needs a validation_fraction above 0")
        for name, known in (
            ("schedule", ("one-cycle", "halving", "constant")),
            ("loss", ("l1", "mse")),
            ("keep", ("best", "last")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")


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
        the linear path are for a `ForecastingNetwork`. One with `bounded_channels` and no bounds yet gets the range of
        the windows to train on.
    seed : int
        Seed for the order of the windows; dropout follows torch's global random state.
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
    for part in ("train", "validation"):
        if part in windows and not len(windows[part]):
            raise ValueError(f"windows[{part!r}] must hold at least one window, got none")
    device = windows["train"].values.device
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    started = clock()
    run = _Run(model, windows, training, seed, levels, max_steps)
    if checkpoint is not None and (state := checkpoint.read()) is not None:
        run.go_on_from(state)
        started = clock() - run.seconds
    while not run.finished():
        run.epoch_of_steps(progress, report)
        run.seconds = clock() - started
        if checkpoint is not None:
            checkpoint.write(run.state())
            started = clock() - run.seconds
    run.keep()
    return Outcome(*run.errors, run.epoch, run.seconds, run.seconds / max(run.epoch, 1))


class _Run:
    """How far a training run is, and all that its rest depends on."""

    # What a checkpoint holds beside the state of the parts.
    _COUNTED = ("weights", "errors", "validations", "best_validation", "step", "epoch", "seconds")

    def __init__(
        self,
        model: nn.Module,
        windows: Mapping[str, Windows],
        training: ForecasterTraining,
        seed: int,
        levels: Sequence[float] | None,
        max_steps: int | None,
    ) -> None:
        self.model, self.training = model, training
        self.windows, self.validation = windows["train"], windows.get("validation")
        self.device = self.windows.values.device
        self.levels = None if levels is None else torch.tensor(levels, device=self.device)
        self.generator = torch.Generator().manual_seed(seed)
        epoch = -(-len(self.windows) // training.batch_size)
        self.total = training.steps if training.epochs is None else training.epochs * epoch
        self.total = self.total if max_steps is None else min(max_steps, self.total)
        self.every = None if training.epochs is not None else max(1, training.steps // _VALIDATIONS)
        if isinstance(model, ForecastingNetwork):
            start_effects(model, self.windows)
        if training.ridge is not None:
            start_in_closed_form(
                model,
                self.windows,
                ridge=training.ridge,
                cycle_strength=training.cycle_strength,
                reversion_strength=training.reversion_strength,
            )
        if isinstance(model, ForecastingNetwork) and model.unbounded:
            model.set_bounds(*self.windows.value_range())
        groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr": training.learning_rate}]
        network = next((part for part in model.modules() if isinstance(part, ForecastingNetwork)), None)
        one_cycle_of_steps = training.epochs is None and training.schedule == "one-cycle"
        full_rate_steps = training.full_rate_steps if one_cycle_of_steps else None
        if network is not None:
            inside = set(network.parameters())
            rate = training.linear_learning_rate or training.learning_rate
            groups = parameter_groups(
                network,
                learning_rate=training.learning_rate,
                linear_rate=rate,
                covariate_rate=max(rate, _COVARIATE_RATE * training.learning_rate),
                mixing_share=mixing_share(self.windows) if full_rate_steps and network.mixing is not None else 1.0,
                others=[parameter for parameter in model.parameters() if parameter not in inside],
            )
        if full_rate_steps is not None:
            lower_rates(groups, self.total, len(self.windows), full_rate_steps)
        self.optimizer = torch.optim.AdamW(groups, weight_decay=training.weight_decay)
        self.rates = [group["lr"] for group in groups]
        cycled = training.schedule == "one-cycle" and self.total > 0
        self.schedule = one_cycle(self.optimizer, self.total) if cycled else None
        self.average = WeightAverage(model, training.weight_averaging, warm_up=training.averaging_warm_up)
        self.weights: dict[str, Tensor] | None = None  # of the best validation, or of the last
        self.errors = (float("inf"), float("inf"))
        self.validations = self.best_validation = self.step = self.epoch = 0
        self.seconds = 0.0
        self.watched = max(1, self.total // _VALIDATIONS)
        self.good = (0, copy.deepcopy(model.state_dict()))  # a step and its weights, which were finite
        self.diverged = False
        self.largest = 0.0  # that a loss may be, set by the first

    def finished(self) -> bool:
        """Whether all steps are done, or validation has not been better for too long."""
        training = self.training
        worse = self.validations - self.best_validation
        impatient = training.keep == "best" and training.patience is not None and worse >= training.patience
        return self.step >= self.total or impatient or self.diverged

    def epoch_of_steps(
        self, progress: Callable[[int, float], None] | None, report: Callable[[int, float], None] | None
    ) -> None:
        """One pass over the windows, or what is left of the run."""
        training = self.training
        self.model.train()
        for inputs, target, counted in self.windows.batches(training.batch_size, self.generator):
            self.optimizer.zero_grad(set_to_none=True)
            loss = forecast_loss(
                self.model(**inputs),
                target,
                counted,
                loss=training.loss,
                levels=self.levels,
                horizon_decay=training.horizon_decay,
                frequency_weight=training.frequency_weight,
            )
            loss.backward()
            if training.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            self.average.update()
            self.step += 1
            if progress is not None:
                progress(self.step, float(loss.detach()))
            if self.step == 1 or self.step % self.watched == 0 or self.step == self.total:
                self.watch(loss)
            if self.diverged:
                break
            if self.every is not None and (self.step % self.every == 0 or self.step == self.total):
                self.validate(report)
            if self.finished():
                break
        self.epoch += 1
        if training.schedule == "halving":
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * 0.5 ** (self.epoch - 1)
        if self.every is None and not self.diverged:
            self.watch(loss)  # before a checkpoint is written
            self.validate(report)

    def watch(self, loss: Tensor) -> None:
        """Note weights that are finite; end the run where they, or the loss, no longer are."""
        value = float(loss.detach())
        self.largest = self.largest or _DIVERGED * max(1.0, value)
        finite = torch.stack([weight.detach().isfinite().all() for weight in self.model.parameters()])
        if value < self.largest and bool(finite.all()):
            if self.weights is None:
                with self.average.in_place():
                    self.good = self.step, copy.deepcopy(self.model.state_dict())
            return
        self.diverged = True
        reason = f"training diverged by step {self.step} of {self.total}, where the loss is {value:.3g}"
        advice = f"lower learning_rate ({self.training.learning_rate:g})"
        if self.weights is not None:
            warnings.warn(
                f"{reason}; the weights of validation {self.best_validation} are kept: {advice}", stacklevel=4
            )
            return
        step, weights = self.good
        self.model.load_state_dict(weights)
        raise FloatingPointError(f"{reason}; the model has the weights of step {step}: {advice}")

    def validate(self, report: Callable[[int, float], None] | None) -> None:
        """Look at the averaged weights, and note them if they are to be kept."""
        keep_last = self.training.keep == "last"
        if self.validation is None or (keep_last and self.step < self.total):
            return
        with self.average.in_place():
            if self.levels is None:
                errors = evaluate(self.model, self.validation)
            else:
                errors = (quantile_error(self.model, self.validation, self.levels),) * 2
            self.validations += 1
            if report is not None:
                report(self.epoch + (self.every is not None), errors[0])
            if keep_last or errors[0] < self.errors[0]:
                self.errors, self.best_validation = errors, self.validations
                self.weights = copy.deepcopy(self.model.state_dict())
        self.model.train()

    def keep(self) -> None:
        """Give the model the weights to keep."""
        self.average.keep()
        if self.weights is not None:
            self.model.load_state_dict(self.weights)

    def _parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "average": self.average}
        return {name: part for name, part in parts.items() if part is not None}

    def state(self) -> dict[str, Any]:
        """All that a run which goes on from here needs, as plain values and tensors."""
        random = [self.generator.get_state(), torch.get_rng_state()]
        if self.device.type == "cuda":
            random.append(torch.cuda.get_rng_state(self.device))
        return {name: getattr(self, name) for name in self._COUNTED} | {
            "parts": {name: part.state_dict() for name, part in self._parts().items()},
            "random": random,
        }

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Take up a run where `state` was made."""
        for name, part in self._parts().items():
            part.load_state_dict(state["parts"][name])
        states = state["random"]
        self.generator.set_state(states[0])
        torch.set_rng_state(states[1])
        if len(states) > 2:
            torch.cuda.set_rng_state(states[2], self.device)
        for name in self._COUNTED:
            setattr(self, name, state[name])
        self.good = self.step, copy.deepcopy(self.model.state_dict())
