"""Columns of y in the network's order, with what it reads of each: positions, and which learnt vectors are whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from torch import Tensor

    from mvpa_ts.forecasting.fitted import FittedForecaster
    from mvpa_ts.forecasting.series import SeriesBook


@dataclass(frozen=True)
class Columns:
    """Columns of y in the order in which the network sees them."""

    names: list[Any]
    # A row a column: `positions`, `series` and `units`, as `ForecastingNetwork.forward` has them, where there are any.
    channel_inputs: dict[str, Tensor] = field(default_factory=dict)


def book_of(parameters: Mapping[str, Any]) -> SeriesBook:
    """The order and the positions among the parameters of a forecaster; raises ValueError where one is wrong."""
    from mvpa_ts.forecasting.series import SeriesBook, Words

    words = Words("column", "columns", "y")
    return SeriesBook.checked(parameters["channel_order"], parameters["channel_positions"], words=words)


def arranged(y: pd.DataFrame, parameters: Mapping[str, Any], trained: FittedForecaster | None) -> Columns:
    """The columns of y for a network that is new, or `trained` on columns that may be others.

    The columns that the network was trained on keep the order that they had then. Other columns come in the order of
    `channel_order`, or of their position on a line. A column that was not there in training has no vector of its own:
    the network reads it by its distance or position. "correlation" is counted over the rows of y. Raises ValueError
    where an order or positions do not fit the columns.
    """
    import torch

    from mvpa_ts.forecasting.series import plain, rows_of
    from mvpa_ts.windows import Scaling

    book, names = book_of(parameters), list(y.columns)
    # A network with parameters of single columns must find each of them where it was in training.
    trained_names = [] if trained is None else list(trained.channel_names or ())
    by_name = {plain(name): name for name in names}
    if len(by_name) < len(names):
        alike = [name for name in names if by_name[plain(name)] is not name]
        raise ValueError(f"y must have columns that differ as text, got {alike[0]!r} more than once: rename one")
    if trained_names and sorted(map(repr, by_name)) == sorted(map(repr, trained_names)):
        names = [by_name[name] for name in trained_names]
    else:
        names = [names[row] for row in book.arranged(names, y.to_numpy(float))]
    inputs = {}
    if (constant := Scaling.mean_and_deviation(y[names].to_numpy(float))[1] == 0.0).any():
        # Of the unit 1 that it is scaled by, what is read in others would move it by a share.
        inputs["units"] = torch.tensor([[0.0, 1.0]]).repeat(len(names), 1)
        inputs["units"][torch.from_numpy(constant)] = torch.nan
    if book.positions is not None:
        inputs["positions"] = torch.from_numpy(book.coordinates(names)).float()
    if trained is not None:
        size = trained.config.position_size
        if size != book.position_size:
            raise ValueError(
                f"channel_positions must have {size} coordinates for each column, like the trained network, got "
                f"{book.position_size}"
            )
        if "vectors" in trained.config.per_channel and trained_names:
            inputs["series"] = torch.tensor(rows_of(trained_names, names))
    return Columns(names, inputs)
