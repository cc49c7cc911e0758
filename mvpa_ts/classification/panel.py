"""Lists of series of unequal length to padded tensors with masks, on the scale of the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mvpa_ts.windows import Scaling

# Steps × channels of one padded batch when fitted networks read series: 32 MiB in float32.
_BATCH_ELEMENTS = 1 << 23
# Its steps alone: the fixed kernels give 84 responses to each, 84 MiB.
_BATCH_STEPS = 1 << 18


@dataclass(frozen=True)
class Scaler:
    """Mean and standard deviation of each channel over all observed steps of the training series.

    Attributes
    ----------
    location, scale : tuple of float, length C
    """

    location: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def fit(cls, series: Sequence[np.ndarray]) -> Scaler:
        """From series [C, L_i], NaN = missing, as `Scaling.of`."""
        scaling = Scaling.of(*(values.T for values in series))
        return cls(tuple(scaling.location.tolist()), tuple(scaling.scale.tolist()))

    def padded(self, series: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Standardised series [n, L, C], zero where missing or past the end, and mask [n, L, C], True = observed.

        Raises a ValueError that names series and channel of a value too far from the training data for float32.
        """
        scaling = Scaling(np.asarray(self.location), np.asarray(self.scale))
        standard = [
            torch.from_numpy(scaling.apply(values.T, f"channel {{}} of series[{row}]")).float()
            for row, values in enumerate(series)
        ]
        x = pad_sequence(standard, batch_first=True, padding_value=torch.nan)
        return x.nan_to_num(0.0), ~x.isnan()


def checked_series(series: Sequence[Any], num_channels: int | None = None) -> list[np.ndarray]:
    """The series as float64 arrays [C, L_i] with one number of channels.

    Raises a ValueError if the list is empty, a series is not a matrix, has no observed value, holds an infinite value,
    or its number of channels differs from the others' (or from `num_channels`).
    """
    arrays = [np.asarray(values, dtype=np.float64) for values in series]
    if not arrays:
        raise ValueError("series is empty: at least one array [C, L] is needed")
    for row, values in enumerate(arrays):
        if values.ndim != 2 or 0 in values.shape:
            raise ValueError(f"series[{row}] must be a matrix [C, L] with at least one step, got shape {values.shape}")
        expected = arrays[0].shape[0] if num_channels is None else num_channels
        if values.shape[0] != expected:
            source = "series[0] has" if num_channels is None else "the training had"
            raise ValueError(f"series[{row}] must have the {expected} channels that {source}, got {values.shape[0]}")
        if np.isinf(values).any():
            raise ValueError(f"series[{row}] holds infinite values; mark missing values with NaN")
        if np.isnan(values).all():
            raise ValueError(f"series[{row}] must hold at least one value, got only NaN: leave it out")
    return arrays


def batches(series: Sequence[np.ndarray], most: int = 64) -> list[Sequence[np.ndarray]]:
    """Runs of at most that many series, fewer where they are long or have many channels."""
    largest, longest = max(values.size for values in series), max(values.shape[1] for values in series)
    size = max(1, min(most, _BATCH_ELEMENTS // largest, _BATCH_STEPS // longest))
    return [series[start : start + size] for start in range(0, len(series), size)]
