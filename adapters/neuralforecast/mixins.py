"""Mix-ins for models of the host: averaged weights, a learning rate for each path, missing rows kept out."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from mvpa_ts.forecasting.network import ForecastingNetwork, parameter_groups
from mvpa_ts.weight_averaging import WeightAverage


class WeightAveraging:
    """Mix-in for a LightningModule: validate with averaged weights, and keep them when training ends.

    The average starts at each fit's first step. No buffer is saved: after training the weights are the average.
    """

    weight_averaging: float | None
    _average: WeightAverage | None = None
    _averaged_steps: int = 0

    def on_train_start(self) -> None:
        """Start a new average."""
        self._average = None
        if self.weight_averaging is not None:
            self._average = WeightAverage(self, self.weight_averaging)  # type: ignore[arg-type]
        self._averaged_steps = 0

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
        self._exchange()

    def on_train_end(self) -> None:
        """Keep the average."""
        self._exchange()
        self._average = None

    def _exchange(self) -> None:
        if self._average is not None:
            self._average.exchange()


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


class MaskedWindows:
    """Mix-in for a model of the host: missing rows of its windows are zero, whatever the panel holds there.

    It overrides private methods of the host; tests/adapters/test_host_api.py watches them.
    """

    input_size: int

    def _create_windows(self, batch: dict[str, Any], step: str) -> Any:
        # What is stored on a missing row may be NaN, which no mask of a loss or a scaler would stop.
        columns, temporal = batch["temporal_cols"], batch["temporal"]  # [N, columns, T]
        missing = temporal[:, [columns.get_loc("available_mask")]] == 0
        weight = torch.from_numpy(columns == "sample_weight").to(temporal.device)[:, None]
        temporal = temporal.masked_fill(missing & (~weight | temporal.isnan()), 0.0)
        return super()._create_windows({**batch, "temporal": temporal}, step)  # type: ignore[misc]

    def _parse_windows(self, batch: dict[str, Any], windows: dict[str, Any]) -> Any:
        y, mask, y_ahead, mask_ahead, historic, future, static = super()._parse_windows(  # type: ignore[misc]
            batch, windows
        )
        # A missing row was zeroed before the host scaled it, which made its columns far from their mean: zero it again.
        missing = torch.cat([mask, mask_ahead], 1)[:, None] == 0  # [B, 1, L + h, N]
        historic = None if historic is None else historic.masked_fill(missing[:, :, : self.input_size], 0.0)
        future = None if future is None else future.masked_fill(missing, 0.0)
        return y, mask, y_ahead, mask_ahead, historic, future, static
