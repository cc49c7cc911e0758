"""An exponential moving average of the weights, kept by a LightningModule's own hooks."""

from __future__ import annotations

from typing import Any

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
