"""Series of any length to windows with masks, for the training of forecasting networks.

Where a window reaches past a series' start or end, and where a value is missing, the mask says so; nothing is
truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mvpa_ts.forecasting.configuration import ForecastingConfig
from mvpa_ts.forecasting.network import observed_range


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of each column, for numbers of a size that float32 can hold."""

    location: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Scaling:
        """From the values [n, C] that are not NaN."""
        observed = ~np.isnan(values)
        count = np.maximum(observed.sum(0), 1)
        location = np.where(observed, values, 0.0).sum(0) / count
        deviation = np.sqrt(np.where(observed, values - location, 0.0).__pow__(2).sum(0) / count)
        # A constant column keeps its unit; rounding alone gives it a deviation of some 1e-16 of its level.
        constant = deviation <= 1e-12 * np.abs(location)
        return cls(location, np.where(constant | (deviation == 0.0), 1.0, deviation))

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Scale [..., C]."""
        return (values - self.location) / self.scale


@dataclass(frozen=True)
class Series:
    """One series of C channels, sampled regularly.

    Attributes
    ----------
    values : float array, shape (n, C)
        NaN = missing.
    features : float array, shape (n + ahead, F), optional
        Known ahead: rows of the series, then rows of the future. No NaN. The network sees them scaled, and less their
        mean over the look-back.
    position : int
        Of the first row, counted from anywhere; sets the phase of a cycle.
    """

    values: np.ndarray
    features: np.ndarray | None = None
    position: int = 0

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not self.values.size:
            raise ValueError(f"values must be [n, C] with at least one row, got shape {self.values.shape}")
        if np.isinf(self.values).any():
            raise ValueError("values must be finite, or NaN where missing, got inf")
        if self.features is not None and (
            self.features.ndim != 2 or len(self.features) < len(self.values) or not np.isfinite(self.features).all()
        ):
            raise ValueError(
                f"features must be finite and [n + ahead, F] with at least {len(self.values)} rows, "
                f"got shape {self.features.shape}"
            )


class Windows:
    """All series behind one another, each with a look-back of missing rows before and a horizon of them after."""

    def __init__(
        self,
        series: Sequence[Series],
        scalings: Sequence[Scaling],
        config: ForecastingConfig,
        feature_scaling: Scaling | None,
    ) -> None:
        self.config = config
        self.device = "cpu"
        L, h = config.lookback, config.horizon
        values, features, positions = [], [], []
        self.first_rows: list[int] = []  # of each series, after its padding
        self.lengths = [len(one.values) for one in series]
        total = 0
        for one, scaling in zip(series, scalings, strict=True):
            n = len(one.values)
            values.append(np.pad(scaling.apply(one.values), ((L, h), (0, 0)), constant_values=np.nan))
            positions.append(np.arange(-L, n + h) + one.position)
            if one.features is not None and feature_scaling is not None:
                scaled = feature_scaling.apply(one.features)[: n + h]
                features.append(np.pad(scaled, ((L, n + h - len(scaled)), (0, 0)), constant_values=np.nan))
            self.first_rows.append(total + L)
            total += L + n + h
        stacked = torch.tensor(np.concatenate(values), dtype=torch.float32)
        self.observed = ~stacked.isnan()
        self.values = stacked.nan_to_num(0.0)
        self.features = torch.tensor(np.concatenate(features), dtype=torch.float32) if features else None
        self.positions = torch.tensor(np.concatenate(positions))

    def to(self, device: str) -> Windows:
        """Where batches go."""
        self.device = device
        return self

    def value_range(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest scaled value of each channel, [C] each; infinite for a channel without any."""
        return observed_range(self.values, self.observed)

    def at(self, starts: Tensor) -> tuple[dict[str, Tensor | None], Tensor, Tensor]:
        """The network's inputs, the targets [B, h, C] and which of them are observed."""
        L, h = self.config.lookback, self.config.horizon
        rows = starts[:, None] + torch.arange(L + h)
        values, observed = self.values[rows].to(self.device), self.observed[rows].to(self.device)
        future = None
        if self.features is not None:
            features = self.features[rows]  # [B, L + h, F], NaN off the series
            # As seen from the window, like its values: a level outside the training data then does no harm.
            features = (features - features[:, :L].nanmean(1, keepdim=True)).nan_to_num(0.0)
            future = features.to(self.device)[:, :, None].expand(-1, -1, values.shape[2], -1)
        inputs = {
            "x": values[:, :L],
            "mask": observed[:, :L],
            "phase": self.positions[starts].to(self.device),
            "future": future,
        }
        return inputs, values[:, L:], observed[:, L:]


class Part:
    """Windows of a training or validation part: their starts, and the rows [low, high) whose values are targets."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._starts: list[Tensor] = []
        self._limits: list[Tensor] = []

    def add(self, series: int, first: int, last: int, low: int, high: int) -> None:
        """Windows of a series whose first target row is in [first, last)."""
        offset, config = self.windows.first_rows[series], self.windows.config
        targets = torch.arange(first, max(first, last)) + offset
        limits = torch.tensor([low, high]) + offset
        known = torch.cat([torch.zeros(1, dtype=torch.long), self.windows.observed.any(1).cumsum(0)])
        count = known[(targets + config.horizon).clamp(max=limits[1])] - known[targets.clamp(min=limits[0])]
        targets = targets[count > 0]
        self._starts.append(targets - config.lookback)
        self._limits.append(limits.expand(len(targets), 2))

    def __len__(self) -> int:
        return sum(map(len, self._starts))

    def batches(
        self, size: int, generator: torch.Generator | None = None
    ) -> Iterator[tuple[dict[str, Tensor | None], Tensor, Tensor]]:
        """Inputs, targets [B, h, C] and which of them count; shuffled if a generator is given."""
        starts, limits = torch.cat(self._starts), torch.cat(self._limits)
        order = torch.randperm(len(starts), generator=generator) if generator else torch.arange(len(starts))
        steps = torch.arange(self.windows.config.horizon) + self.windows.config.lookback
        for chosen in order.split(size):
            inputs, target, observed = self.windows.at(starts[chosen])
            rows = starts[chosen, None] + steps
            inside = (rows >= limits[chosen, :1]) & (rows < limits[chosen, 1:])
            yield inputs, target, observed & inside[..., None].to(observed.device)
