"""What a model knows of single series: their order, their positions, their vectors and their units, kept by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mvpa_ts.adapters.neuralforecast import callers, panel
from mvpa_ts.forecasting.channel_order import correlation_order
from mvpa_ts.forecasting.network import ForecastingNetwork

CORRELATION = "correlation"
_LARGEST = 1e18  # of a coordinate: distances are squared in float32
Positions = list[list[Any]]  # pairs of an id and its coordinates, as JSON has them


@dataclass(frozen=True)
class FittedSeries:
    """The series of the last fit, as the host sorts them.

    Attributes
    ----------
    names : list or None
        None where the model was called without `NeuralForecast`, which alone knows names.
    units : list of lists
        Mean and deviation of each series over its training rows; NaN where they are not known.
    order : list of int
        The series in the order in which attention sees them.
    features : dict of str to list
        Mean and deviation of exogenous columns over the training rows of all series, by which they are scaled.
    """

    names: list[Any] | None
    units: list[list[float]]
    order: list[int]
    features: dict[str, list[float]] = field(default_factory=dict)

    def rows(self, names: list[Any] | None, count: int) -> list[int]:
        """Which series of the fit each of `count` series is, −1 for a new one; without names the number decides."""
        if names is None or self.names is None:
            return list(range(count)) if count == len(self.order) else [-1] * count
        by_name = {name: row for row, name in enumerate(self.names)}
        return [by_name.get(name, -1) for name in names]


@dataclass(frozen=True)
class ShownSeries:
    """What the network is told of the series of the panel at hand, in the order in which it sees them."""

    order: Tensor
    vectors: Tensor | None = None
    positions: Tensor | None = None
    units: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Arguments of `ForecastingNetwork.forward`."""
        inputs = {"series": self.vectors, "positions": self.positions, "units": self.units}
        return {name: tensor for name, tensor in inputs.items() if tensor is not None}

    def to(self, device: torch.device) -> ShownSeries:
        """The same on a device."""
        return ShownSeries(*(None if t is None else t.to(device) for t in vars(self).values()))  # type: ignore[arg-type]


class SeriesKnowledge:
    """Mix-in for a model of the host: what it knows of single series is looked up by name and saved with it.

    A series that was not there in training has no vector, and its units come from its rows in the panel at hand.
    """

    channel_order: list[Any] | str | None
    channel_positions: Positions | None
    network: ForecastingNetwork
    test_size: int
    _reads_units: bool
    _own_units: bool
    _scales_features: bool
    futr_exog_list: list[str]
    hist_exog_list: list[str]
    stat_exog_list: list[str]
    cat_exog_list: list[str]
    cycle_column: str | None
    _fitted_series: FittedSeries | None = None
    _shown: ShownSeries | None = None

    def learn_series(self, dataset: Any, held_out: int) -> None:
        """Note the series of a panel to train on, all rows but the last `held_out`."""
        names, count = callers.ids(dataset), len(dataset)
        rows = None if self._fitted_series is None else self._fitted_series.rows(names, count)
        self._keep_vectors(rows, count)
        order = self._order(names, count, dataset, held_out)
        features: dict[str, list[float]] = {}
        if self._scales_features:
            # Weights that are trained further keep the scale that they were trained with.
            known = {} if self._fitted_series is None else self._fitted_series.features
            features = {**panel.feature_scales(dataset, held_out, self._numbers), **known}
        self._fitted_series = FittedSeries(
            None if names is None else _plain(names), panel.units(dataset, held_out).tolist(), order, features
        )
        self.show_series(dataset)

    def show_series(self, dataset: Any) -> None:
        """Look up the series of a panel to forecast, the last `test_size` rows of which are not known."""
        names, count, fitted = callers.ids(dataset), len(dataset), self._fitted_series
        rows = [-1] * count if fitted is None else fitted.rows(names, count)
        ahead = getattr(self, "test_size", 0)
        if self.channel_order == CORRELATION and fitted is not None and rows == list(range(len(fitted.order))):
            order = fitted.order
        else:
            order = self._order(names, count, dataset, ahead)
        vectors, units = None, None
        if self._has_vectors:
            vectors = torch.tensor(rows)[order]
        if self._reads_units and fitted is not None:
            here = panel.units(dataset, ahead).tolist() if -1 in rows else []
            units = torch.tensor([here[i] if row < 0 else fitted.units[row] for i, row in enumerate(rows)])[order]
        positions = None if self.channel_positions is None else self._positions(names, count)[order].float()
        self._shown = ShownSeries(torch.tensor(order), vectors, positions, units)

    def shown(self, count: int, device: torch.device) -> ShownSeries:
        """What the network is told of `count` series; of a panel that no call announced, what follows from names."""
        if self._shown is None or len(self._shown.order) != count:
            # Hosts of hosts, such as darts, call `forward` alone.
            positions = None if self.channel_positions is None else self._positions(None, count)
            order = torch.tensor(self._order(None, count, None, 0))
            fitted = self._fitted_series
            vectors = torch.tensor([-1] * count if fitted is None else fitted.rows(None, count))[order]
            self._shown = ShownSeries(
                order,
                vectors if self._has_vectors else None,
                None if positions is None else positions[order].float(),
            )
        if self._shown.order.device != device:
            self._shown = self._shown.to(device)
        return self._shown

    @property
    def _numbers(self) -> list[str]:
        """Exogenous columns that are neither categories nor the phase of the cycle."""
        columns = [*self.futr_exog_list, *self.hist_exog_list, *self.stat_exog_list]
        return sorted({*columns} - {*self.cat_exog_list, self.cycle_column})

    def scaled_columns(self, values: Tensor, columns: Any, dim: int) -> Tensor:
        """Values of a batch with their exogenous columns, which lie along `dim`, scaled as at the last fit."""
        known = {} if self._fitted_series is None else self._fitted_series.features
        scales = values.new_tensor([known.get(column, (0.0, 1.0)) for column in columns])
        location, scale = (part.reshape(-1, *[1] * (values.ndim - 1 - dim)) for part in scales.unbind(1))
        return (values - location) / scale if known else values

    def largest_deviation(self) -> float | None:
        """The largest deviation of a series of the last fit, if the loss is in the units of the series; else None."""
        units = [] if self._fitted_series is None or not self._own_units else self._fitted_series.units
        return max((deviation for _, deviation in units if np.isfinite(deviation)), default=None)

    def get_extra_state(self) -> Tensor:
        """What is saved beside the weights: the series of the last fit, as JSON."""
        known = None if self._fitted_series is None else asdict(self._fitted_series)
        return torch.frombuffer(bytearray(json.dumps(known, default=str).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Read what `get_extra_state` gave."""
        try:
            known = json.loads(bytes(state.tolist()))
            self._fitted_series = None if known is None else FittedSeries(**known)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the file's series of the last fit (_extra_state) cannot be read: {error}") from error
        self._shown = None

    @property
    def _has_vectors(self) -> bool:
        return getattr(self.network.config, "channel_vectors", None) is not None  # pretrained networks have other sizes

    def _order(self, names: list[Any] | None, count: int, dataset: Any, held_out: int) -> list[int]:
        """The host's series in the order that attention shall see."""
        if self.channel_order == CORRELATION:
            values = None if dataset is None else panel.rows(dataset, held_out, weighed=True)
            return list(range(count)) if values is None else correlation_order(values)
        if self.channel_order is not None:
            by_name = {name: row for row, name in enumerate(sorted(self.channel_order))}  # as the host sorts them
            return [by_name[name] for name in self.channel_order]
        if self.channel_positions is not None and len(self.channel_positions[0][1]) == 1:
            return torch.argsort(self._positions(names, count)[:, 0], stable=True).tolist()
        return list(range(count))

    def _positions(self, names: list[Any] | None, count: int) -> Tensor:
        """Coordinates of the host's series, [N, k], counted from their middle."""
        assert self.channel_positions is not None
        known: dict[Any, list[float]] = {name: point for name, point in self.channel_positions}  # noqa: C416
        names = sorted(known) if names is None else names
        if missing := [repr(name) for name in names if name not in known]:
            raise ValueError(
                f"channel_positions must hold every series of df, got none of {panel.listed(missing)}: add "
                "them, or give those of another panel to finetune(channel_positions=…)"
            )
        if len(names) != count:
            raise ValueError(f"channel_positions must hold the {count} series of the panel, got {len(names)}")
        # In double precision: metres of a map grid are too long for float32.
        coordinates = torch.tensor([known[name] for name in names], dtype=torch.float64)
        return coordinates - coordinates.mean(0)

    def _keep_vectors(self, rows: list[int] | None, count: int) -> None:
        """Give the vectors of the last fit to the series that had them, new ones to the others."""
        if not self._has_vectors or rows is None:
            return
        config = self.network.config
        if rows == list(range(config.channel_vectors or 0)):
            return
        state = self.network.state_dict()
        self.network = ForecastingNetwork(replace(config, channel_vectors=count)).to(next(iter(state.values())).device)
        drawn = self.network.state_dict()
        for name in (name for name in drawn if name.endswith((".channel_query", ".channel_key", ".channel_weight"))):
            kept = [i for i, row in enumerate(rows) if row >= 0]
            drawn[name][kept] = state[name][[rows[i] for i in kept]]
            state[name] = drawn[name]
        self.network.load_state_dict(state)


def checked_order(order: Sequence[Any] | str | None, n_series: int | None) -> list[Any] | str | None:
    """Plain ids, of whatever array they come in, for they are saved.

    Raises
    ------
    ValueError
        A series is named twice, or the list does not hold `n_series` of them.
    """
    if order is None or (isinstance(order, str) and order == CORRELATION):
        return order
    listing = not isinstance(order, str) and isinstance(order, Iterable)
    if not listing or any(not isinstance(name, Hashable) for name in order):
        raise ValueError(f'channel_order must be None, "correlation" or a list of all ids, got {order!r}')
    names = _plain(order)
    if twice := [repr(name) for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"channel_order must name each of the {n_series} series (n_series) once, got {panel.listed(twice)} more "
            "than once"
        )
    if n_series is not None and len(names) != n_series:
        raise ValueError(
            f"channel_order must name each of the {n_series} series (n_series) once, got {len(names)}: {names}"
        )
    return names


def checked_positions(positions: Any) -> Positions | None:
    """Ids with their coordinates, of a dict, a table with a column `unique_id`, or pairs of both, for they are saved.

    Raises
    ------
    ValueError
        A series is named twice, or its coordinates are not finite or not as many as those of others.
    """
    if positions is None:
        return None
    if isinstance(positions, (Mapping, pd.Series)):
        pairs = list(positions.items())
    elif hasattr(positions, "columns"):
        if getattr(getattr(positions, "index", None), "name", None) == "unique_id":
            positions = positions.reset_index()
        if "unique_id" not in positions.columns:
            raise ValueError(f"channel_positions must have a column 'unique_id', got {list(positions.columns)}")
        columns = [column for column in positions.columns if column != "unique_id"]
        coordinates = zip(*(positions[column].to_list() for column in columns), strict=True)
        pairs = list(zip(positions["unique_id"].to_list(), coordinates, strict=True)) if columns else []
    elif isinstance(positions, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in positions):
        pairs = positions  # of a saved model
    else:
        raise ValueError(
            "channel_positions must be a dict of coordinates by unique_id, a pandas Series with the ids as its index, "
            f"or a table with a column 'unique_id', got {type(positions).__name__}"
        )
    names = _plain([name for name, _ in pairs])
    if twice := [repr(name) for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"channel_positions must name each series once, got {panel.listed(twice)} more than once")
    try:
        rows = [np.atleast_1d(np.asarray(position, dtype=float)) for _, position in pairs]
    except (TypeError, ValueError) as error:
        raise ValueError(f"channel_positions must hold numbers beside the ids: {error}") from error
    sizes = {row.shape: name for name, row in zip(names, rows, strict=True)}
    if not rows or len(sizes) > 1 or rows[0].ndim != 1 or not len(rows[0]):
        shapes = ", ".join(f"shape {shape} of {name!r}" for shape, name in sizes.items()) or "no series"
        raise ValueError(
            f"channel_positions must hold the same number of coordinates, at least one, for each series, got {shapes}"
        )
    for name, row in zip(names, rows, strict=True):
        if not (np.abs(row) < _LARGEST).all():
            raise ValueError(
                f"channel_positions must be finite, got {row.tolist()} of series {name!r}: coordinates may be up to "
                f"{_LARGEST:g}"
            )
    return [[name, row.tolist()] for name, row in zip(names, rows, strict=True)]


def _plain(names: Sequence[Any]) -> list[Any]:
    return [name.item() if isinstance(name, np.generic) else name for name in names]
