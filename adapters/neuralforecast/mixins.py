"""Training of models of the host: averaged weights, a learning rate for each path, a loss over frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from mvpa_ts.adapters.neuralforecast.losses import levels, scaled_by_host
from mvpa_ts.forecasting.errors import forecast_loss
from mvpa_ts.forecasting.network import ForecastingNetwork
from mvpa_ts.learning_rates import lower_rates, on_linear_path, one_cycle, parameter_groups
from mvpa_ts.weight_averaging import WeightAverage

# Times the learning rate of the attention path: on the earlier years of the airline panel, after 100 steps, an error of
# 22 instead of 32 with one rate for both (experiments/forecasting/short_runs.py).
LINEAR_RATE = 30.0
# Steps for each window that these rates are for; docs/development/forecasting.md has what was tried.
FULL_RATE_STEPS = 1.0


class WeightAveraging:
    """Mix-in for a model of the host: validate with averaged weights, and keep them when training ends.

    With early stopping, the average of the best validation is kept. The average starts at each fit's first step. No
    buffer is saved: after training the weights are the average.
    """

    weight_averaging: float | None
    averaging_warm_up: bool
    early_stop_patience_steps: int
    validated: Callable[[int, float], None] | None = None
    """Called after each validation with the steps done and the loss; what it raises ends the training."""
    _average: WeightAverage | None = None
    _averaged_steps: int = 0
    _best: list[Tensor] | None = None  # weights of the best validation
    _best_loss: float = math.inf

    def on_train_start(self) -> None:
        """Start a new average."""
        module: Any = self
        self._average = None
        if self.weight_averaging is not None:
            self._average = WeightAverage(module, self.weight_averaging, warm_up=self.averaging_warm_up)
        self._averaged_steps = 0
        self._best, self._best_loss = None, math.inf

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the weights after an optimiser step into the average."""
        steps = self.trainer.global_step  # type: ignore[attr-defined]
        if self._average is None or steps == self._averaged_steps:
            return  # gradients are still being accumulated
        self._averaged_steps = steps
        self._average.update()

    def on_validation_start(self) -> None:
        """Validate the average."""
        self._exchange()

    def on_validation_end(self) -> None:
        """Go on training the weights."""
        trainer: Any = self.trainer  # type: ignore[attr-defined]
        loss = None if trainer.sanity_checking else trainer.callback_metrics.get("ptl/val_loss")
        if loss is not None and self.early_stop_patience_steps > 0 and float(loss) < self._best_loss:
            self._best_loss = float(loss)
            self._best = [weight.detach().clone() for weight in self.parameters()]  # type: ignore[attr-defined]
        self._exchange()
        if self.validated is not None and loss is not None:
            self.validated(trainer.global_step, float(loss))

    @torch.no_grad()
    def on_train_end(self) -> None:
        """Keep the average, or that of the best validation."""
        self._exchange()
        self._average = None
        if self._best is not None:
            for weight, best in zip(self.parameters(), self._best, strict=True):  # type: ignore[attr-defined]
                weight.copy_(best)
            self._best = None

    def _exchange(self) -> None:
        if self._average is not None:
            self._average.exchange()


class PathRates:
    """Mix-in for a model of the host: a learning rate for each path, and a single cycle of both by default.

    The cycle is taken where the host is told of no schedule: neither `lr_scheduler` nor `num_lr_decays`. Its peaks are
    lower where there are more steps than windows, and where no series tells of another (`mixing_share`).
    """

    linear_learning_rate: float | None
    learning_rate: float
    max_steps: int
    num_lr_decays: int
    network: ForecastingNetwork
    optimizer: Any
    lr_scheduler: Any
    loss: Any
    _windows: int | None = None  # of the panel to train on, where they were counted
    _full_rate_steps: float | None = FULL_RATE_STEPS
    _mixing_share: float = 1.0

    @property
    def _linear_ratio(self) -> float:
        # Parameters of a distribution are no levels: at 30 times the rate they ran away.
        return 1.0 if scaled_by_host(self.loss) else LINEAR_RATE

    @property
    def _lowers_rates(self) -> bool:
        own_schedule = self.lr_scheduler is None and self.num_lr_decays <= 0
        return own_schedule and self._windows is not None and self._full_rate_steps is not None

    @staticmethod
    def _on_linear_path(name: str) -> bool:
        return on_linear_path(name)

    def largest_deviation(self) -> float | None:
        """The largest deviation of a series that is trained on in its own units; None where that is not known."""
        return None

    def configure_optimizers(self) -> Any:
        """The host's optimiser and schedule, with a group for the linear path if its rate differs."""
        groups = parameter_groups(
            self.network,
            learning_rate=self.learning_rate,
            linear_rate=self.linear_learning_rate or self._linear_ratio * self.learning_rate,
            mixing_share=self._mixing_share,
            others=[
                parameter
                for name, parameter in self.named_parameters()  # type: ignore[attr-defined]
                if not name.startswith("network.")
            ],
            linear=self._on_linear_path,
        )
        kind = self.optimizer or torch.optim.Adam

        @wraps(kind)
        def grouped(params: Any, **settings: Any) -> torch.optim.Optimizer:
            return kind(groups, **settings)

        self.optimizer, before = grouped, self.optimizer
        try:
            configured = super().configure_optimizers()  # type: ignore[misc]
        finally:
            self.optimizer = before
        optimizer = configured["optimizer"]
        if before is None and (largest := self.largest_deviation()) is not None:
            # Gradients have the unit of the series: Adam would take those of 1e-9 for none. Squares stay in float32.
            for group in optimizer.param_groups:
                group["eps"] = max(1e-18, group["eps"] * min(1.0, largest))
        if self.lr_scheduler is None and self.num_lr_decays <= 0:
            if self._windows is not None and self._full_rate_steps is not None:
                lower_rates(optimizer.param_groups, self.max_steps, self._windows, self._full_rate_steps)
            configured["lr_scheduler"]["scheduler"] = one_cycle(optimizer, self.max_steps)
            return configured
        # A warm-up may begin at zero for both; what it multiplies differs.
        rates = {group.get("initial_lr", group["lr"]) for group in optimizer.param_groups}
        rates_differ = self.linear_learning_rate not in (None, self.learning_rate)
        if len(groups) > len(rates) and rates_differ:
            raise ValueError(
                f"lr_scheduler {self.lr_scheduler.__name__} sets one rate for all weights, which leaves "
                f"linear_learning_rate ({self.linear_learning_rate}) without effect: give it a list of two rates, "
                "of the attention path and of the linear path"
            )
        return configured


class FrequencyLoss:
    """Mix-in for a model of the host: part of the training loss is over frequencies, see `forecast_loss`."""

    frequency_weight: float
    _target: tuple[Tensor, Tensor] | None = None
    _forecast: Tensor | None = None  # of the last step, [B, h, N, m]
    loss: Any

    def _parse_windows(self, batch: dict[str, Any], windows: dict[str, Any]) -> Any:
        parsed = super()._parse_windows(batch, windows)  # type: ignore[misc]
        self._target = parsed[2:4] if self.frequency_weight else None
        return parsed

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The host's step; the part over frequencies is added to what it returns."""
        loss: Tensor = super().training_step(batch, batch_idx)  # type: ignore[misc]
        if not self.frequency_weight or self._target is None or self._forecast is None:
            return loss
        (target, mask), forecast = self._target, self._forecast
        self._target = self._forecast = None
        spectrum = forecast_loss(forecast, target, mask > 0, levels=levels(self.loss), frequency_weight=1.0)
        return (1.0 - self.frequency_weight) * loss + self.frequency_weight * spectrum
