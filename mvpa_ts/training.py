"""The training loop of the core's networks: steps, averaged weights, validation, divergence, and a run that goes on."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn

from mvpa_ts.checks import warn
from mvpa_ts.learning_rates import one_cycle
from mvpa_ts.weight_averaging import WeightAverage

_LOOKS = 20  # at the weights during a run
_DIVERGED = 1e6  # times its first value, which is of order one: no training comes back from there
# Seconds from which a training says how long it will take, and steps between which it is timed: the first ones compile.
LONG_TRAINING, TIMED = 300.0, (3, 8)


class TrainingRun:
    """How far the training of a model is, and all that its rest depends on.

    The caller says what is learnt: `over` takes one step for each loss that it is given. Losses come from a generator,
    so that each is computed with the weights that the step before left.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    groups : list of dict
        Parameter groups of AdamW, each with its learning rate ``lr``.
    steps : int
        After so many, the run is finished.
    learning_rate : float
        What the user set, for the advice to lower it.
    cycle_steps : int, optional
        Steps of one cycle of the learning rates, see `one_cycle`; None leaves the rates as they are.
    clip : float, optional
        Largest norm of the gradient.
    average : WeightAverage, optional
        The averaged weights, which are validated and kept. By default the weights themselves.
    validation : callable, optional
        Called with the averaged weights in place. Returns errors, the first of which is compared; or None, if there is
        nothing to choose by.
    validate_every : int, optional
        Steps between two validations. None: only when the caller calls `look`.
    keep_last : bool
        Validate once, at the end, and keep the last weights instead of the best.
    patience : int, optional
        Finish after so many validations without a better one.

    Attributes
    ----------
    step, epoch, validations, best_step : int
        Steps done, passes that the caller counts, validations, and the step of the best one.
    errors : tuple of float
        Errors of the best validation; infinite before any.

    Raises
    ------
    RuntimeError
        This process belongs to a group of several: each would train on all data, and no gradients would be joined.

    Examples
    --------
    >>> import torch
    >>> model = nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> run = TrainingRun(model, [{"params": list(model.parameters()), "lr": 0.1}], steps=100, learning_rate=0.1)
    >>> run.over((model(x) - 2 * x).square().mean() for _ in range(100))
    >>> run.keep()
    >>> bool((model(x) - 2 * x).abs().max() < 0.1), run.finished()
    (True, True)
    """

    # What a state holds beside that of the optimiser and its like.
    _COUNTED = ("weights", "errors", "validations", "best_validation", "best_step", "step", "epoch", "seconds")

    def __init__(
        self,
        model: nn.Module,
        groups: list[dict[str, Any]],
        *,
        steps: int,
        learning_rate: float,
        weight_decay: float = 0.0,
        cycle_steps: int | None = None,
        clip: float | None = None,
        average: WeightAverage | None = None,
        validation: Callable[[], tuple[float, ...] | None] | None = None,
        validate_every: int | None = None,
        keep_last: bool = False,
        patience: int | None = None,
    ) -> None:
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise RuntimeError(
                f"this training runs in one process, and this one belongs to a group of {distributed.get_world_size()} "
                "(torch.distributed): train in one process, or by the MVPA model of neuralforecast with devices and "
                "strategy, which divides batches"
            )
        self.model, self.total, self.clip, self.learning_rate = model, steps, clip, learning_rate
        self.optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay)
        self.rates = [group["lr"] for group in groups]
        self.schedule = one_cycle(self.optimizer, cycle_steps) if cycle_steps else None
        self.average = WeightAverage(model, None) if average is None else average
        self.validation, self.validate_every = validation, validate_every
        self.keep_last, self.patience = keep_last, patience
        self.weights: dict[str, Tensor] | None = None  # of the best validation, or of the last
        self.errors: tuple[float, ...] = (float("inf"), float("inf"))
        self.validations = self.best_validation = self.best_step = self.step = self.epoch = 0
        self.seconds = 0.0
        self.diverged = False
        self._look_every = max(1, steps // _LOOKS)
        self._good = (0, copy.deepcopy(model.state_dict()))  # a step, and its weights, which were finite
        self._largest = 0.0  # that a loss may be, set by the first
        self._loss = torch.tensor(0.0)

    def finished(self) -> bool:
        """Whether all steps are done, validation has not been better for too long, or training diverged."""
        worse = self.validations - self.best_validation
        impatient = not self.keep_last and self.patience is not None and worse >= self.patience
        return self.step >= self.total or impatient or self.diverged

    def over(self, losses: Iterable[Tensor], progress: Callable[[int, float], None] | None = None) -> None:
        """Take a step for each loss, until there is no other or the run is finished.

        `progress` is called with the steps done and the last loss.
        """
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        for loss in losses:
            loss.backward()
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            # Before the next loss is computed, so that gradients take no memory beside its graph.
            self.optimizer.zero_grad(set_to_none=True)
            if self.schedule is not None:
                self.schedule.step()
            self.average.update()
            self.step += 1
            self._loss = loss.detach()
            if progress is not None:
                progress(self.step, float(self._loss))
            last = self.step == self.total
            if self.validate_every is not None and (last or self.step % self.validate_every == 0):
                self.look()
            elif last or self.step == 1 or self.step % self._look_every == 0:
                self._check_weights()
            if self.finished():
                break

    def look(self) -> None:
        """Validate the averaged weights, unless training has diverged, and note them if they are to be kept."""
        self._check_weights()
        if self.diverged or self.validation is None or (self.keep_last and self.step < self.total):
            return
        with self.average.in_place():
            errors = self.validation()
            self.validations += 1
            if errors is not None and (self.keep_last or errors[0] < self.errors[0]):
                self.errors, self.best_validation, self.best_step = errors, self.validations, self.step
                self.weights = copy.deepcopy(self.model.state_dict())
        self.model.train()

    def scale_rates(self, factor: float) -> None:
        """Set the learning rates to so much of what they were at the start."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def keep(self) -> None:
        """Give the model the weights to keep."""
        self.average.keep()
        if self.weights is not None:
            self.model.load_state_dict(self.weights)

    def _check_weights(self) -> None:
        """Note weights that are finite; end the run where they, or the loss, no longer are."""
        value = float(self._loss)
        self._largest = self._largest or _DIVERGED * max(1.0, value)
        finite = torch.stack([weight.detach().isfinite().all() for weight in self.model.parameters()])
        if value < self._largest and bool(finite.all()):
            if self.weights is None:
                with self.average.in_place():
                    self._good = self.step, copy.deepcopy(self.model.state_dict())
            return
        self.diverged = True
        reason = f"training diverged by step {self.step} of {self.total}, where the loss is {value:.3g}"
        advice = f"lower learning_rate ({self.learning_rate:g})"
        if self.weights is not None:
            warn(f"{reason}; the weights of step {self.best_step} are kept: {advice}")
            return
        # Nothing was validated yet: the model gets the last weights that were finite.
        step, weights = self._good
        self.model.load_state_dict(weights)
        raise FloatingPointError(f"{reason}; the model has the weights of step {step}: {advice}")

    def _stateful(self) -> dict[str, Any]:
        objects = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "average": self.average}
        return {name: value for name, value in objects.items() if value is not None}

    def state(self) -> dict[str, Any]:
        """What a run that goes on from here needs, as plain values and tensors; random states are the caller's."""
        states = {name: value.state_dict() for name, value in self._stateful().items()}
        return {name: getattr(self, name) for name in self._COUNTED} | states

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Take up a run where `state` was made."""
        for name, value in self._stateful().items():
            value.load_state_dict(state[name])
        for name in self._COUNTED:
            setattr(self, name, state[name])
        self._good = self.step, copy.deepcopy(self.model.state_dict())


class TrainingClock:
    """Says once, from the time of its first steps, that a training will be long.

    Parameters
    ----------
    advice : str
        What takes less, in the host's words.
    """

    def __init__(self, advice: str) -> None:
        self.advice = advice
        self._begun: float | None = None  # when the timed steps began

    def after_step(self, step: int, steps: int) -> None:
        """Note that `step` of `steps` is done."""
        first, last = TIMED
        if step == first:
            self._begun = time.perf_counter()
        elif step == last and self._begun is not None:
            seconds, self._begun = (time.perf_counter() - self._begun) / (last - first) * steps, None
            if seconds > LONG_TRAINING:
                warn(
                    f"training for {steps} steps will take some {seconds / 60:.0f} minutes on this machine. "
                    f"{self.advice}"
                )
