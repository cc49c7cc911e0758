"""An exponential moving average of a module's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    """

    def __init__(self, module: nn.Module, decay: float | None) -> None:
        self._weights: list[torch.Tensor] = [] if decay is None else [w for w in module.parameters() if w.requires_grad]
        self._average = [weight.detach().clone() for weight in self._weights]
        self._decay = decay
        self._steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights after an optimiser step into the average."""
        if self._decay is None or not self._weights:
            return
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
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

    def keep(self) -> None:
        """Give the module the averaged weights for good."""
        self.exchange()
        self._average, self._weights = [], []
