"""A learning rate of its own for the linear path, whatever optimiser and schedule the host makes."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from mvpa_ts.forecasting.network import ForecastingNetwork, parameter_groups


class LinearRate:
    """Mix-in for a model of the host: its optimiser gets a group of its own for the linear path."""

    linear_learning_rate: float | None
    learning_rate: float
    network: ForecastingNetwork
    optimizer: Any
    lr_scheduler: Any

    def configure_optimizers(self) -> Any:
        """The host's optimiser and schedule, with a group of its own for the linear path if it has its own rate."""
        if self.linear_learning_rate is None:
            return super().configure_optimizers()  # type: ignore[misc]
        groups = parameter_groups(
            self.network,
            learning_rate=self.learning_rate,
            linear_rate=self.linear_learning_rate,
            others=[
                parameter
                for name, parameter in self.named_parameters()  # type: ignore[attr-defined]
                if not name.startswith("network.")
            ],
        )
        chosen = self.optimizer or torch.optim.Adam

        @wraps(chosen)
        def grouped(params: Any, **settings: Any) -> torch.optim.Optimizer:
            return chosen(groups, **settings)

        self.optimizer, given = grouped, self.optimizer
        try:
            configured = super().configure_optimizers()  # type: ignore[misc]
        finally:
            self.optimizer = given
        # A warm-up may begin at zero for both; what it multiplies differs.
        rates = {group.get("initial_lr", group["lr"]) for group in configured["optimizer"].param_groups}
        if len(groups) > len(rates) and self.learning_rate != self.linear_learning_rate:
            raise ValueError(
                f"lr_scheduler {self.lr_scheduler.__name__} sets one rate for all weights, which leaves "
                f"linear_learning_rate ({self.linear_learning_rate}) without effect: give it a list of two rates, "
                "of the attention path and of the linear path"
            )
        return configured
