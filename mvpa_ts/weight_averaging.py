"""An exponential moving average of a module's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class WeightAverage:
    """The averaged weights of a module, to validate with and to keep.

    The average starts at the present weights and forgets faster at first, so that the start does not linger in short
    runs: step n has decay ``min(decay, (1 + n) / (10 + n))``.

    Parameters
    ----------
    module : nn.Module
        Its trainable weights are averaged.
    decay : float or None
        None keeps no average; everything then acts on the weights themselves.
    warm_up : bool
        False forgets as fast at first as later, and starts at the weights of the first update.
    """

    def __init__(self, module: nn.Module, decay: float | None, *, warm_up: bool = True) -> None:
        self._weights: list[torch.Tensor] = [] if decay is None else [w for w in module.parameters() if w.requires_grad]
        self._average = [weight.detach().clone() for weight in self._weights]
        self._decay = decay
        self._warm_up = warm_up
        self._steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights after an optimiser step into the average."""
        if self._decay is None or not self._weights:
            return
        self._steps += 1
        if self._warm_up:
            decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        else:
            decay = self._decay if self._steps > 1 else 0.0
        torch._foreach_lerp_(self._average, self._weights, 1.0 - decay)

    @torch.no_grad()
    def exchange(self) -> None:
        """Swap the weights and their average."""
        for average, weight in zip(self._average, self._weights, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module has the averaged weights inside the block."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on later needs."""
        return {"steps": self._steps, "average": self._average}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._steps = state["steps"]
        for average, saved in zip(self._average, state["average"], strict=True):
            average.copy_(saved)

    def keep(self) -> None:
        """Give the module the averaged weights for good."""
        self.exchange()
        self._average, self._weights = [], []
