"""Checks of the tables beside df: the host lays their rows beside those of df by their order, and looks at no id."""

from __future__ import annotations

from typing import Any

import pandas as pd
from neuralforecast.tsdataset import BaseTimeSeriesDataset
from utilsforecast.processing import sort

from mvpa_ts.adapters.neuralforecast import callers
from mvpa_ts.adapters.neuralforecast.panel import listed


def check_tables(dataset: BaseTimeSeriesDataset) -> None:
    """Raise ValueError for rows of `static_df`, `val_df` or `futr_df` that would come to another series or step."""
    names = callers.ids(dataset)
    if names is None or not hasattr(dataset, "temporal"):
        return
    for argument, rows in (("static_df", "one row for"), ("val_df", "rows of")):
        if (told := callers.table(argument)) is not None:
            host, table = told
            _check_ids(argument, rows, names, table, host.id_col)
    if (told := callers.table("futr_df")) is not None:
        host, table = told
        keys = pd.DataFrame({name: table[name].to_list() for name in (host.id_col, host.time_col)})
        if (twice := keys[keys.duplicated()].to_numpy()).size:
            raise ValueError(
                f"futr_df must hold each date once in a series, got {twice[0, 1]} twice in series {twice[0, 0]!r}: "
                "drop a row"
            )


def _check_ids(argument: str, rows: str, names: list[Any], table: Any, column: str) -> None:
    found = list(dict.fromkeys(sort(table[[column]], by=column)[column].to_list()))
    if found == names:
        return
    if lacking := [repr(name) for name in names if name not in set(found)]:
        raise ValueError(f"{argument} must hold {rows} each series of df, by {column!r}, got none of {listed(lacking)}")
    if strange := [repr(name) for name in found if name not in set(names)]:
        raise ValueError(f"{argument} must hold the series of df alone, got {listed(strange)} too: leave them out")
    raise ValueError(
        f"{argument} must have its series in the order of df once both are sorted by {column!r}, got "
        f"{listed([repr(name) for name in found])}, and in df {listed([repr(name) for name in names])}: make "
        f"{column!r} a column of strings in both"
    )
