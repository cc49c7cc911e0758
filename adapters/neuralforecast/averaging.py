"""An exponential moving average of the weights, kept by a LightningModule's own hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class WeightAveraging:
    """Mix-in for a LightningModule: validate with averaged weights, and keep them when training ends.

    The average starts at each fit's first step and forgets faster at first, so that the start does not linger in
    short fits: step n has decay ``min(weight_averaging, (1 + n) / (10 + n))``. No buffer is saved: after training the
    weights are the average.
    """

    weight_averaging: float | None
    _average: list[Tensor] | None = None
    _averaged_steps: int = 0

    def _weights(self) -> list[Tensor]:
        return [weight for weight in self.parameters() if weight.requires_grad]  # type: ignore[attr-defined]

    @torch.no_grad()
    def on_train_start(self) -> None:
        """Start a new average."""
        self._average = None if self.weight_averaging is None else [weight.clone() for weight in self._weights()]
        self._averaged_steps = 0

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the weights after an optimiser step into the average."""
        steps = self.trainer.global_step  # type: ignore[attr-defined]
        if self._average is None or self.weight_averaging is None or steps == self._averaged_steps:
            return  # gradients are still being accumulated
        self._averaged_steps = steps
        decay = min(self.weight_averaging, (1 + steps) / (10 + steps))
        for average, weight in zip(self._average, self._weights(), strict=True):
            average.lerp_(weight, 1 - decay)

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

    @torch.no_grad()
    def _exchange(self) -> None:
        for average, weight in zip(self._average or [], self._weights(), strict=False):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
