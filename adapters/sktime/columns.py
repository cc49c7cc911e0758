"""What the network is told of single columns: their order, their positions and which learnt vectors are theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from torch import Tensor

    from mvpa_ts.forecasting.fitted import FittedForecaster

CORRELATION = "correlation"
_LARGEST = 1e18  # of a coordinate: distances are squared in float32


@dataclass(frozen=True)
class Columns:
    """Columns of y in the order in which the network sees them.

    Attributes
    ----------
    names : list
    of_channels : dict of str to Tensor, a row a column
        `positions` and `series`, as `ForecastingNetwork.forward` has them, where the network asks for them.
    """

    names: list[Any]
    of_channels: dict[str, Tensor] = field(default_factory=dict)

    def places(self, names: Sequence[Any]) -> list[int]:
        """Where each of these columns stands in the network's order."""
        return [self.names.index(name) for name in names]


def arranged(y: pd.DataFrame, parameters: Mapping[str, Any], trained: FittedForecaster | None) -> Columns:
    """The columns of y for a network that is new, or `trained` on columns that may be others.

    The columns that the network was trained on keep the order that they had then. Other columns come in the order of
    `channel_order`, or of their position on a line. A column that was not there in training has no vector of its own:
    the network reads it by its distance or position.

    Parameters
    ----------
    y : pd.DataFrame
        Rows to forecast from; "correlation" is counted over them.
    parameters : mapping
        Of the forecaster.
    trained : FittedForecaster or None

    Raises
    ------
    ValueError
        An order or positions do not fit the columns.
    """
    names = list(y.columns)
    known = None if trained is None or trained.channel_names is None else list(trained.channel_names)
    positions = checked_positions(parameters["channel_positions"])
    order = checked_order(parameters["channel_order"])
    if known is not None and sorted(map(repr, map(plain, names))) == sorted(map(repr, known)):
        by_name = {plain(name): name for name in names}
        names = [by_name[name] for name in known]
    elif isinstance(order, list):
        if Counter(order) != Counter(map(plain, names)):
            strange = sorted(map(repr, set(order) ^ set(map(plain, names))))
            raise ValueError(
                f"channel_order must name each column of y once, these are in only one of them: {', '.join(strange)}"
            )
        by_name = {plain(name): name for name in names}
        names = [by_name[name] for name in order]
    elif order == CORRELATION:
        from mvpa_ts.forecasting.channel_order import correlation_order

        names = [names[place] for place in correlation_order(y.to_numpy(float))]
    elif positions is not None and len(next(iter(positions.values()))) == 1:
        names = sorted(names, key=lambda name: _position(positions, name))
    return Columns(names, _of_channels(names, positions, trained, known))


def _of_channels(
    names: list[Any],
    positions: dict[Any, list[float]] | None,
    trained: FittedForecaster | None,
    known: list[Any] | None,
) -> dict[str, Tensor]:
    import torch

    told = {}
    if positions is not None:
        # In double precision first: metres of a map grid are too long for float32.
        coordinates = torch.tensor([_position(positions, name) for name in names], dtype=torch.float64)
        told["positions"] = (coordinates - coordinates.mean(0)).float()
    if trained is not None:
        size = trained.config.position_size
        given = 0 if positions is None else told["positions"].shape[1]
        if size != given:
            raise ValueError(
                f"channel_positions must have {size} coordinates for each column, like the trained network, got {given}"
            )
        if trained.config.channel_vectors is not None and known is not None:
            places = {name: place for place, name in enumerate(known)}
            told["series"] = torch.tensor([places.get(plain(name), -1) for name in names])
    return told


def _position(positions: dict[Any, list[float]], name: Any) -> list[float]:
    if plain(name) not in positions:
        raise ValueError(f"channel_positions must hold every column of y, got none of {name!r}")
    return positions[plain(name)]


def checked_order(order: Any) -> list[Any] | str | None:
    """None, "correlation", or names as they are saved; raises ValueError where a column is named twice."""
    if order is None or (isinstance(order, str) and order == CORRELATION):
        return order
    if isinstance(order, str) or not isinstance(order, Iterable):
        raise ValueError(f'channel_order must be None, "correlation" or a list of all columns of y, got {order!r}')
    names = [plain(name) for name in order]
    if twice := [repr(name) for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"channel_order must name each column once, got {', '.join(twice)} more than once")
    return names


def checked_positions(positions: Any) -> dict[Any, list[float]] | None:
    """Coordinates by column, from a dict, a table with a row a column, or pairs.

    Raises
    ------
    ValueError
        A column is named twice, or its coordinates are not finite or not as many as those of others.
    """
    if positions is None:
        return None
    if isinstance(positions, pd.DataFrame):
        pairs = list(zip(positions.index, positions.to_numpy(), strict=True))
    elif isinstance(positions, (Mapping, pd.Series)):
        pairs = list(positions.items())
    elif isinstance(positions, Iterable) and all(isinstance(pair, Sequence) and len(pair) == 2 for pair in positions):
        pairs = [tuple(pair) for pair in positions]
    else:
        raise ValueError(
            "channel_positions must be a dict of coordinates by column, a table with a row for each column, or pairs "
            f"of a column and its coordinates, got {positions!r:.100}"
        )
    if twice := [repr(name) for name, count in Counter(plain(name) for name, _ in pairs).items() if count > 1]:
        raise ValueError(f"channel_positions must name each column once, got {', '.join(twice)} more than once")
    try:
        rows = {plain(name): np.atleast_1d(np.asarray(position, dtype=float)) for name, position in pairs}
    except (TypeError, ValueError) as error:
        raise ValueError(f"channel_positions must hold numbers beside the columns: {error}") from error
    shapes = {row.shape: name for name, row in rows.items()}
    if len(shapes) != 1 or any(len(shape) != 1 or not shape[0] for shape in shapes):
        found = ", ".join(f"shape {shape} of {name!r}" for shape, name in shapes.items()) or "no column"
        raise ValueError(
            f"channel_positions must hold the same number of coordinates, at least one, for each column, got {found}"
        )
    for name, row in rows.items():
        if not (np.abs(row) < _LARGEST).all():
            raise ValueError(
                f"channel_positions must be finite, got {row.tolist()} of {name!r}: coordinates may be up to "
                f"{_LARGEST:g}"
            )
    return {name: row.tolist() for name, row in rows.items()}


def plain(name: Any) -> Any:
    """The name of a column as it is saved: a number or a text."""
    name = name.item() if isinstance(name, np.generic) else name
    return name if isinstance(name, (str, int, float)) else str(name)
