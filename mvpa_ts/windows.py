"""Windows of multivariate series: look-back, horizon, what was observed, and which values are targets.

A window is cut when its batch is made. It may reach past the start or end of its series. The mask marks these steps,
and missing values, as not observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

Batch = tuple[dict[str, Any], Tensor, Tensor | None]

FARTHEST = 1e9
"""Deviations from the mean that a network may read: it squares and sums them in float32."""
FARTHEST_FROM_ZERO = 1e3
"""Usual distances from the median that lie between it and zero, at the most, where zero stays: float32 has 7 digits."""


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of each column, for numbers of a size that float32 can hold.

    Attributes
    ----------
    location, scale : float array, shape (C,)
        A constant column, and one without a value, has scale 1.

    Examples
    --------
    >>> scaling = Scaling.of(np.array([[1.0, 5.0], [3.0, np.nan]]))
    >>> scaling.location.tolist(), scaling.scale.tolist()
    ([2.0, 5.0], [1.0, 1.0])
    >>> scaling.apply(np.array([[4.0, 6.0]])).tolist()
    [[2.0, 1.0]]
    """

    location: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, *tables: np.ndarray) -> Scaling:
        """From the values [n, C] of one table, or of several together, that are not NaN."""
        location, deviation = cls.mean_and_deviation(*tables)
        return cls(location, np.where(deviation > 0.0, deviation, 1.0))

    @staticmethod
    def mean_and_deviation(*tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the values of each column [n, C] that are not NaN, of all tables; a constant has the deviation 0."""
        count = np.maximum(sum((~np.isnan(values)).sum(0) for values in tables), 1)
        largest = np.max([np.nan_to_num(np.abs(values)).max(0, initial=0.0) for values in tables], axis=0)
        # Squares of larger numbers overflow, those of smaller ones vanish.
        unit = np.where((largest > 1e100) | ((largest > 0.0) & (largest < 1e-100)), largest, 1.0)
        location = sum(np.nansum(values / unit, 0) for values in tables) / count
        deviation = np.sqrt(sum(np.nansum((values / unit - location) ** 2, 0) for values in tables) / count)
        # Rounding alone gives a constant column some 1e-16 of its level. Small units are no rounding: MEG in tesla has
        # 1e-13.
        return location * unit, np.where(deviation <= 1e-12 * np.abs(location), 0.0, deviation * unit)

    @classmethod
    def from_zero(cls, values: np.ndarray) -> Scaling:
        """That of a table [n, C] for the pretrained forecaster, which takes roots of what lies on one side of zero.

        Zero stays, but where float32 could not tell values beside it apart: there it becomes the median, because a few
        values, such as -1e20 for missing, would move the mean.
        """
        scaling = cls.of(values)
        median, usual = np.zeros((2, values.shape[1]))
        for column, rows in enumerate(values.T):
            if len(rows := rows[~np.isnan(rows)]):
                median[column] = np.median(rows)
                usual[column] = np.median(np.abs(rows - median[column]))
        far = np.abs(median) > FARTHEST_FROM_ZERO * np.where(usual > 0.0, usual, scaling.scale)
        return cls(np.where(far, median, 0.0), scaling.scale)

    def apply(self, values: np.ndarray, place: str = "column {}") -> np.ndarray:
        """Scale [..., C]; NaN stays. `place` says where a number of `values` stands.

        Raises
        ------
        ValueError
            A value lies too far from the others for float32; its column is named.
        """
        with np.errstate(over="ignore"):
            scaled = (values - self.location) / self.scale
        far = np.abs(scaled) > FARTHEST
        if far.any():
            *row, column = np.argwhere(far)[0]
            value, distance = values[(*row, column)], abs(scaled[(*row, column)])
            raise ValueError(
                f"{place.format(column)} holds {value:.6g}, which lies {distance:.1e} deviations from the mean of the "
                "data that the scale comes from: mark it as missing (NaN) if it is wrong"
            )
        return scaled


@dataclass(frozen=True)
class FeatureScaling(Scaling):
    """Scaling of features, which bounds how far one can move a forecast.

    A map that was learnt where a price varied by a cent says nothing of one that is two euros lower, and a linear map
    would multiply its errors. So a feature is read at most half a trained range beyond the values of the training.

    Attributes
    ----------
    lower, upper : float array, shape (F,)
        Smallest and largest value of each feature in training.

    Examples
    --------
    >>> scaling = FeatureScaling.of(np.array([[1.0], [3.0]]))
    >>> scaling.apply(np.array([[4.0], [900.0]])).tolist()  # 900 is read as 4
    [[2.0], [2.0]]
    >>> scaling.beyond(np.array([[4.0], [900.0]]))
    [(0, 900.0, 448.5)]
    """

    lower: np.ndarray
    upper: np.ndarray

    @classmethod
    def of(cls, *tables: np.ndarray) -> FeatureScaling:
        """From the values [n, F] of one table, or of several together, that are not NaN."""
        scaling, values = Scaling.of(*tables), np.concatenate(tables)
        # Both pass over NaN, and give it for a column without a value.
        lower, upper = (extreme.reduce(values, axis=0, initial=np.nan) for extreme in (np.fmin, np.fmax))
        return cls(scaling.location, scaling.scale, np.nan_to_num(lower), np.nan_to_num(upper))

    def wider(self, other: FeatureScaling) -> FeatureScaling:
        """The same scaling for the values of both trainings."""
        return replace(self, lower=np.minimum(self.lower, other.lower), upper=np.maximum(self.upper, other.upper))

    def apply(self, values: np.ndarray, place: str = "column {}") -> np.ndarray:
        """Scale [..., F], at most half a range beyond the training; NaN stays."""
        return super().apply(np.clip(values, *self.limits()), place)

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Between which numbers features are read, [F] each."""
        # Half a range is what a trend or an unusual season needs.
        room = 0.5 * (self.upper - self.lower)
        return self.lower - room, self.upper + room

    def beyond(self, values: np.ndarray) -> list[tuple[int, float, float]]:
        """Features of [n, F] that `apply` bounds: column, its farthest value, and its distance in trained ranges."""
        outside = np.nan_to_num(np.maximum(self.lower - values, values - self.upper), nan=-np.inf)
        span, (lower, upper) = self.upper - self.lower, self.limits()
        # Rounding in float32 moves a constant by a ten-millionth of its level.
        rounding = 1e-6 * np.maximum(np.abs(self.lower), np.abs(self.upper))
        far = []
        for column in np.flatnonzero(((values < lower - rounding) | (values > upper + rounding)).any(0)).tolist():
            row = outside[:, column].argmax()
            distance = outside[row, column] / span[column] if span[column] > 0.0 else np.inf
            far.append((column, float(values[row, column]), float(distance)))
        return far

    def far_words(self, values: np.ndarray, names: Sequence[Any]) -> Iterator[str]:
        """A warning for each feature of [n, F], by its name, that lies far from what was trained."""
        for column, value, distance in self.beyond(values):
            away = f"{distance:.3g} times that range away" if np.isfinite(distance) else "and never varied"
            yield (
                f"column {names[column]!r} reaches {value:.6g}, where training saw {self.lower[column]:.6g} to "
                f"{self.upper[column]:.6g}, {away}: it is read at most half a range beyond, because what lies further "
                "was never learnt"
            )


@dataclass(frozen=True)
class Series:
    """One series of C channels, sampled regularly.

    Attributes
    ----------
    values : float array, or a list or table that numpy makes one of, shape (n, C)
        NaN = missing.
    features : float array, shape (n + ahead, F), optional
        Columns known ahead, without NaN: the rows of the series, then those of the future. The network reads them
        scaled, minus their mean over the look-back.
    position : int or integer array, shape (n + ahead,)
        Sets the phase of a cycle. One number is the position of the first row, counted from anywhere. If the clock
        jumps, give the position of each row, and of rows ahead if it jumps there; others are counted on.

    Raises
    ------
    ValueError
        There is no value, one is infinite, or features or positions do not have the series' rows.

    Examples
    --------
    >>> series = Series(np.array([[1.0], [np.nan], [3.0]]), position=7)
    >>> series.positions(before=1, after=2).tolist()
    [6, 7, 8, 9, 10, 11]
    """

    values: np.ndarray
    features: np.ndarray | None = None
    position: int | np.ndarray = 0

    def __post_init__(self) -> None:
        for name in ("values", "features"):
            if (table := getattr(self, name)) is not None:
                object.__setattr__(self, name, _real(name, table))
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
        if np.ndim(self.position) and (np.ndim(self.position) > 1 or len(self.position) < len(self.values)):  # type: ignore[arg-type]
            raise ValueError(
                f"position must be one number or one for each of the {len(self.values)} rows, got shape "
                f"{np.shape(self.position)}"
            )

    def positions(self, before: int, after: int) -> np.ndarray:
        """Position of each row, and of some rows before the first and after the last, by counting on."""
        rows = len(self.values)
        position = np.asarray(self.position) if np.ndim(self.position) else self.position + np.arange(rows)
        position = position[: rows + after]
        counted_on = position[-1] + np.arange(1, rows + after - len(position) + 1)
        return np.concatenate([position[0] - np.arange(before, 0, -1), position, counted_on])


def _real(name: str, table: Any) -> np.ndarray:
    """A table in double precision; raises ValueError for what is no real number."""
    try:
        if np.iscomplexobj(table):  # of which torch takes the real part
            raise TypeError("complex ones")
        # NaN for the NA of pandas, which numpy alone does not read.
        return np.asarray(table.astype(float) if hasattr(table, "astype") else table, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold real numbers, or NaN where missing, got others: {error}") from error


@dataclass(frozen=True)
class Windows:
    """Windows cut from one table of rows, which may hold several series one after the other.

    Attributes
    ----------
    values : Tensor, shape (rows, C)
        Scaled values. Where nothing was observed, any number may stand: the network reads the mask.
    starts : Tensor, shape (windows,)
        First look-back row of each window.
    lookback, horizon : int
    observed : bool Tensor, shape (rows, C), optional
        None: everything was observed.
    features : Tensor, shape (rows, F), optional
        Columns known ahead; NaN before and after a series.
    positions : Tensor, shape (rows,), optional
        Position of each row, for the phase of a cycle; by default the number of the row.
    limits : Tensor, shape (windows, 2), optional
        Rows [low, high) of each window whose observed values are targets. None: every value is a target, also where
        nothing was observed. Published tables count so.
    channel_inputs : mapping of str to Tensor, shape (C, ...)
        What the network is told of each channel in every window: `positions` and `series`, as its `forward` has them.

    Examples
    --------
    >>> import torch
    >>> windows = Windows(torch.arange(10.0)[:, None], torch.arange(6), lookback=3, horizon=2)
    >>> (inputs, target, counted), *_ = windows.batches(4)
    >>> inputs["x"].shape, target.shape, counted
    (torch.Size([4, 3, 1]), torch.Size([4, 2, 1]), None)
    """

    values: Tensor
    starts: Tensor
    lookback: int
    horizon: int
    observed: Tensor | None = None
    features: Tensor | None = None
    positions: Tensor | None = None
    limits: Tensor | None = None
    channel_inputs: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts)

    def thinned(self, every: int) -> Windows:
        """Keep one window of every `every`."""
        return self.only(slice(None, None, every))

    def only(self, windows: Tensor | slice) -> Windows:
        """Some of the windows."""
        limits = None if self.limits is None else self.limits[windows]
        return replace(self, starts=self.starts[windows], limits=limits)

    def channels(self, order: Tensor | slice) -> Windows:
        """The channels in another order, or some of them."""
        observed = None if self.observed is None else self.observed[:, order]
        channel_inputs = {name: rows[order] for name, rows in self.channel_inputs.items()}
        return replace(self, values=self.values[:, order], observed=observed, channel_inputs=channel_inputs)

    def to(self, device: str | torch.device) -> Windows:
        """The same windows with their tensors on a device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        channel_inputs = {name: rows.to(device) for name, rows in self.channel_inputs.items()}
        return replace(self, **moved, channel_inputs=channel_inputs)

    def complete(self) -> Windows:
        """The windows without a missing value."""
        if self.observed is None:
            return self
        before = torch.zeros(len(self.values) + 1, dtype=torch.long, device=self.values.device)
        before[1:] = (~self.observed).any(1).cumsum(0)
        return self.only(before[self.starts + self.lookback + self.horizon] == before[self.starts])

    def rows_inside(self) -> Tensor:
        """Which rows lie in the look-back of a window or are targets of it, bool [rows]."""
        ends = self.starts + self.lookback + self.horizon
        if self.limits is not None:
            ends = torch.minimum(ends, self.limits[:, 1])
        # Windows that begin at a row, less those that have ended there.
        change, ones = self.starts.new_zeros(len(self.values) + 1), torch.ones_like(self.starts)
        change.index_add_(0, self.starts, ones).index_add_(0, ends, -ones)
        return change.cumsum(0)[:-1] > 0

    def value_range(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest observed value of each channel in the rows of the windows, [C] each."""
        inside = self.rows_inside()
        values = self.values[inside]
        observed = torch.ones_like(values, dtype=torch.bool) if self.observed is None else self.observed[inside]
        return observed_range(values, observed)

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Batches of windows; shuffled if a generator is given.

        Yields
        ------
        inputs : dict
            The arguments of a `ForecastingNetwork`: `x` and `mask` (B, L, C), `phase` (B,), or (B, L + h) where
            `positions` jump, `future` (B, L + h, C, F), and `units` (C, 2), which are 0 and 1. An argument without
            data is None. Those of `channel_inputs` come too.
        target : Tensor, shape (B, h, C)
        counted : bool Tensor, shape (B, h, C), or None
            Which targets count; None: all.
        """
        order = torch.randperm(len(self), generator=generator) if generator else torch.arange(len(self))
        for chosen in order.to(self.starts.device).split(size):
            yield self.only(chosen)._batch()

    def _batch(self) -> Batch:
        L, h, starts, limits = self.lookback, self.horizon, self.starts, self.limits
        rows = starts[:, None] + torch.arange(L + h, device=starts.device)
        values = self.values[rows]
        observed = None if self.observed is None else self.observed[rows]
        future = None
        if self.features is not None:
            features = self.features[rows]
            # As seen from the window, like its values: a level outside the training data then does no harm.
            features = (features - features[:, :L].nanmean(1, keepdim=True)).nan_to_num(0.0)
            future = features[:, :, None].expand(-1, -1, values.shape[2], -1)
        counted = None
        if limits is not None:
            ahead = rows[:, L:]
            counted = ((ahead >= limits[:, :1]) & (ahead < limits[:, 1:]))[..., None].expand_as(values[:, L:])
            counted = counted if observed is None else counted & observed[:, L:]
        phase = starts
        if self.positions is not None:
            phase = self.positions[rows]
            if bool((phase.diff(dim=1) == 1).all()):
                phase = phase[:, 0]
        inputs = {
            "x": values[:, :L],
            "mask": None if observed is None else observed[:, :L],
            "phase": phase,
            "future": future,
            "units": values.new_tensor([[0.0, 1.0]]).expand(values.shape[2], 2),
            **self.channel_inputs,
        }
        return inputs, values[:, L:], counted


def series_windows(
    series: Sequence[Series],
    scalings: Sequence[Scaling],
    *,
    lookback: int,
    horizon: int,
    feature_scaling: FeatureScaling | None = None,
    validation_fraction: float = 0.0,
) -> dict[str, Windows]:
    """Cut windows of two parts, "train" and "validation", which holds the last rows of each series.

    A window belongs to a part if it has an observed target there. Windows of the validation part may look back at the
    rows before it.

    Parameters
    ----------
    series : sequence of Series
    scalings : sequence of Scaling
        One a series.
    lookback, horizon : int
    feature_scaling : FeatureScaling, optional
        Of the features; None leaves them out.
    validation_fraction : float
        Share of each series, at its end.
    """
    whole, first_rows = _joined(series, scalings, lookback, horizon, feature_scaling)
    spans: dict[str, list[tuple[int, int, int, int]]] = {"train": [], "validation": []}
    for panel, offset in zip(series, first_rows, strict=True):
        rows = len(panel.values)
        end = rows - round(rows * validation_fraction)
        # A short series is looked back at from half of its rows.
        first = max(1, min(lookback, (end - horizon) // 2))
        spans["train"].append((offset + first, offset + end, offset, offset + end))
        if end < rows:
            held = offset + max(first, end - horizon + 1)
            spans["validation"].append((held, offset + rows, offset + end, offset + rows))
    return {name: _with_targets(whole, chosen) for name, chosen in spans.items()}


def last_window(
    series: Series, scaling: Scaling, *, lookback: int, horizon: int, feature_scaling: FeatureScaling | None = None
) -> Windows:
    """The window whose horizon begins after the series' last row."""
    past = max(0, len(series.values) - lookback)
    features = None if series.features is None else series.features[past:]
    rows = series.positions(0, horizon)[past:]
    tail = Series(series.values[past:], features, rows)
    whole, (first_row,) = _joined([tail], [scaling], lookback, horizon, feature_scaling)
    return replace(whole, starts=torch.tensor([first_row + len(tail.values) - lookback]))


def _joined(
    series: Sequence[Series],
    scalings: Sequence[Scaling],
    lookback: int,
    horizon: int,
    feature_scaling: FeatureScaling | None,
) -> tuple[Windows, list[int]]:
    """All series behind one another, each between a look-back and a horizon of missing rows, and their first rows."""
    values, features, positions, first_rows = [], [], [], []
    total = 0
    for panel, scaling in zip(series, scalings, strict=True):
        rows = len(panel.values)
        padding = ((lookback, horizon), (0, 0))
        values.append(np.pad(scaling.apply(panel.values), padding, constant_values=np.nan))
        positions.append(panel.positions(lookback, horizon))
        if panel.features is not None and feature_scaling is not None:
            scaled = feature_scaling.apply(panel.features)[: rows + horizon]
            padding = ((lookback, rows + horizon - len(scaled)), (0, 0))
            features.append(np.pad(scaled, padding, constant_values=np.nan))
        first_rows.append(total + lookback)
        total += lookback + rows + horizon
    stacked = torch.tensor(np.concatenate(values), dtype=torch.float32)
    whole = Windows(
        stacked.nan_to_num(0.0),
        torch.empty(0, dtype=torch.long),
        lookback,
        horizon,
        observed=~stacked.isnan(),
        features=torch.tensor(np.concatenate(features), dtype=torch.float32) if features else None,
        positions=torch.tensor(np.concatenate(positions)),
    )
    return whole, first_rows


def _with_targets(whole: Windows, spans: Sequence[tuple[int, int, int, int]]) -> Windows:
    """Windows whose first target row is in [first, last) and that have a target in [low, high), for each span."""
    assert whole.observed is not None
    rows_so_far = torch.cat([torch.zeros(1, dtype=torch.long), whole.observed.any(1).cumsum(0)])
    starts, limits = [torch.empty(0, dtype=torch.long)], [torch.empty(0, 2, dtype=torch.long)]
    for first, last, low, high in spans:
        targets = torch.arange(first, max(first, last))
        count = rows_so_far[(targets + whole.horizon).clamp(max=high)] - rows_so_far[targets.clamp(min=low)]
        targets = targets[count > 0]
        starts.append(targets - whole.lookback)
        limits.append(torch.tensor([low, high]).expand(len(targets), 2))
    return replace(whole, starts=torch.cat(starts), limits=torch.cat(limits))


def observed_range(values: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest observed value of each column of [..., n, C], [..., C]; infinite for one without any."""
    empty = ~observed.any(-2)
    lower = values.masked_fill(~observed, torch.inf).amin(-2)
    upper = values.masked_fill(~observed, -torch.inf).amax(-2)
    return torch.where(empty, upper, lower), torch.where(empty, lower, upper)
