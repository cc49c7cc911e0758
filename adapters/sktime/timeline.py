"""The host's time indices as regular grids, so that gaps become missing rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def frequency_of(index: pd.Index) -> Any:
    """The frequency of an index of dates, inferred where it holds none; None for other indices and where there is none.

    Examples
    --------
    >>> import pandas as pd
    >>> frequency_of(pd.DatetimeIndex(["2024-01-01", "2024-02-01", "2024-03-01"]))
    <MonthBegin>
    """
    if not isinstance(index, pd.DatetimeIndex):
        return None
    if index.freq is None and len(index) > 2 and (name := pd.infer_freq(index)) is not None:
        return pd.tseries.frequencies.to_offset(name)
    return index.freq


def regular(index: pd.Index, end: Any, frequency: Any) -> pd.Index:
    """The grid of all steps from the first row to `end`, or the index as it is where it is on no grid.

    Whole numbers advance by 1, as the host counts them, periods by their frequency, dates by the given one.

    Raises
    ------
    ValueError
        Whole numbers advance by more than 1 throughout: most steps would be missing.
    """
    if isinstance(index, pd.DatetimeIndex):
        if frequency is None:
            return index
        grid = pd.date_range(index[0], end, freq=frequency)
        return grid if index.isin(grid).all() else index
    if isinstance(index, pd.PeriodIndex):
        return pd.period_range(index[0], end, freq=index.freq)
    if pd.api.types.is_integer_dtype(index):
        step = int(np.gcd.reduce(np.diff(index.to_numpy()))) if len(index) > 1 else 1
        if step > 1:
            raise ValueError(
                f"an index of whole numbers must advance by 1, as sktime counts steps, got steps of {step} from "
                f"{index[0]}: take y.reset_index(drop=True), or periods or dates as the index"
            )
        return pd.RangeIndex(int(index[0]), int(end) + 1)
    return index


def position_of(index: pd.Index, frequency: Any) -> int:
    """Where in time the first row lies, in steps from a fixed origin: equal dates have equal phases in a cycle.

    Zero where no step can be counted.
    """
    first = index[:1]
    if isinstance(first, pd.DatetimeIndex):
        first = first.tz_localize(None)
        # pandas is giving up periods of business days.
        if type(frequency) is pd.offsets.BusinessDay and frequency.n == 1:
            return int(np.busday_count("1970-01-01", first.to_numpy().astype("datetime64[D]")[0]))
        try:
            first = pd.DatetimeIndex(first, freq=frequency).to_period()
        except (ValueError, AttributeError):  # a custom offset, or none
            return 0
    if isinstance(first, pd.PeriodIndex) and first.freq is not None:
        return int(first.astype("int64").to_numpy()[0]) // first.freq.n
    return int(first.to_numpy()[0]) if pd.api.types.is_integer_dtype(first) else 0
