"""A forecaster that is fed row by row: it keeps the rows of its look-back, and nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from mvpa_ts.checks import listed
from mvpa_ts.files import write_bytes
from mvpa_ts.forecasting.series import plain
from mvpa_ts.windows import Scaling, Series

_FORMAT = "mvpa-ts stream 1"


class Forecasts(Protocol):
    """What a stream asks of a forecaster: `FittedForecaster` has it."""

    @property
    def lookback(self) -> int:
        """Rows that a forecast reads at the most."""

    def predict(self, series: Series, scaling: Scaling | None, channel_inputs: Mapping[str, Tensor] | None) -> Any:
        """Quantiles (h, C, Q) of the steps after the series' last row."""


class ForecastStream:
    """Rows come in by `update`, forecasts come out by `predict`; nothing is trained.

    A forecast equals one that is made of all rows anew. `MVPAForecaster.stream()` makes a stream of a fitted forecaster
    of sktime.

    Parameters
    ----------
    forecaster : FittedForecaster, or another with `lookback` and `predict`
    columns : sequence
        Names of the channels, in the network's order.
    scaling : Scaling
        Of the series in training.
    channel_inputs : mapping of str to Tensor, optional
        As in `FittedForecaster.predict`.
    time : int, pandas.Timestamp or pandas.Period, optional
        Of the last row before the first update; each row's time is then checked. None counts rows only.
    step : int or pandas offset, default 1
        From row to row. Of periods, 1.
    position : int, default 0
        Phase of the first row in a cycle, counted from anywhere.

    Raises
    ------
    ValueError
        An update has other columns, leaves a gap in time, or holds an infinite value; nothing is then appended.

    Examples
    --------
    >>> import numpy as np
    >>> from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, ForecastStream, Scaling, Series
    >>> from mvpa_ts.forecasting import fit_forecaster
    >>> rows = np.sin(np.arange(200) / 4)[:, None] + np.zeros(2)
    >>> config = ForecastingConfig(horizon=12, lookback=48, num_outputs=9)
    >>> fitted = fit_forecaster([Series(rows)], config, ForecasterTraining(steps=2))
    >>> stream = ForecastStream(fitted, ["a", "b"], scaling=Scaling.of(rows))
    >>> for row in rows:
    ...     stream = stream.update(row)
    >>> bool(np.allclose(stream.predict(), fitted.predict(Series(rows)), atol=1e-5))
    True
    """

    def __init__(
        self,
        forecaster: Forecasts,
        columns: Sequence[Any],
        *,
        scaling: Scaling,
        channel_inputs: Mapping[str, Tensor] | None = None,
        time: Any = None,
        step: Any = 1,
        position: int = 0,
    ) -> None:
        self.forecaster, self.columns, self.scaling = forecaster, list(columns), scaling
        self.channel_inputs = dict(channel_inputs or {})
        self.time, self.step = time, step
        self._position = position  # of the next row
        # Twice as long as needed, so that rows are moved to the front once in a look-back.
        self._buffer = np.full((2 * forecaster.lookback, len(self.columns)), np.nan)
        self._end = 0

    @property
    def rows(self) -> np.ndarray:
        """The rows that the next forecast reads, (at most look-back, C)."""
        return self._buffer[max(0, self._end - self.forecaster.lookback) : self._end]

    def update(self, rows: Any, times: Any = None) -> Self:
        """Append rows that follow on the last one.

        Parameters
        ----------
        rows : DataFrame, mapping of column to value or values, or array of shape (n, C) or (C,)
            NaN is missing. Columns of a table may come in any order. A Series is the column of a stream of one, or a
            row.
        times : sequence, optional
            Of each row; by default the index of a table.
        """
        # All checks come before the first row is kept, so that an error leaves the stream as it was.
        values, times = self._checked(rows, times)
        last = self._time_after(times, len(values))
        lookback = self.forecaster.lookback
        for first in range(0, len(values), lookback):
            block = values[first : first + lookback]
            if self._end + len(block) > len(self._buffer):
                kept = self.rows.copy()
                self._buffer[: len(kept)], self._end = kept, len(kept)
            self._buffer[self._end : self._end + len(block)] = block
            self._end += len(block)
        self.time = last
        self._position += len(values)
        return self

    def predict(self) -> np.ndarray:
        """Quantiles of the steps after the last row, (h, C, Q)."""
        if not self._end:
            raise ValueError("update must bring a row before predict: the stream holds none")
        series = Series(self.rows, position=self._position - len(self.rows))
        return self.forecaster.predict(series, self.scaling, self.channel_inputs)

    def save(self, path: str | Path) -> None:
        """Write rows, time and scaling as npz, whole or not at all; the forecaster has files of its own."""
        about = {
            "format": _FORMAT,
            "lookback": self.forecaster.lookback,
            "columns": [plain(name) for name in self.columns],
            "position": self._position,
            "clock": _clock_as_text(self.time, self.step),
        }
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in self.channel_inputs.items()}
        content = io.BytesIO()
        np.savez(
            content, about=np.array(json.dumps(about)), rows=self.rows, location=self.scaling.location,
            scale=self.scaling.scale, **arrays,
        )  # fmt: skip
        write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: str | Path, forecaster: Forecasts) -> ForecastStream:
        """The stream that `save` wrote, with its forecaster; nothing in the file is executed.

        Raises ValueError for another file, and for a forecaster that looks back at another number of rows.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            rows, location, scale, about = (arrays.pop(name) for name in ("rows", "location", "scale", "about"))
            if (about := json.loads(str(about)))["format"] != _FORMAT:
                raise ValueError(f"its format is {about['format']!r}")
        except (ValueError, TypeError, KeyError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"{path} must be a whole file of ForecastStream.save ({_FORMAT}), got another ({error})"
            ) from error
        if about["lookback"] != forecaster.lookback:
            raise ValueError(
                f"{path} holds a stream of a forecaster that looks back at {about['lookback']} rows, got one of "
                f"{forecaster.lookback}: give the forecaster that it was saved with"
            )
        inputs = {name: torch.from_numpy(values) for name, values in arrays.items()}
        stream = cls(
            forecaster, about["columns"], scaling=Scaling(location, scale), channel_inputs=inputs,
            position=about["position"] - len(rows),
        )  # fmt: skip
        stream.update(rows)
        stream.time, stream.step = _clock_of_text(about["clock"])
        return stream

    def _checked(self, rows: Any, times: Any) -> tuple[np.ndarray, Any]:
        """Rows [n, C] in the network's order, and their times."""
        names: Any = None
        if hasattr(rows, "to_frame"):  # a series of pandas: a column, or a row of a table
            rows = rows.to_frame(self.columns[0]) if len(self.columns) == 1 else dict(rows.items())
        if hasattr(rows, "columns"):
            names, times = list(rows.columns), getattr(rows, "index", None) if times is None else times
        elif isinstance(rows, Mapping):
            names = list(rows)
        if names is not None and names != self.columns:
            if set(names) != set(self.columns) or len(names) != len(self.columns):
                columns = listed(list(map(repr, self.columns)))
                unequal = sorted(map(repr, set(names) ^ set(self.columns)))
                raise ValueError(
                    f"rows must have the columns of the stream, {columns}, each once; these are in one of them only: "
                    f"{listed(unequal) or 'none, but one comes twice'}"
                )
            rows = rows[self.columns] if hasattr(rows, "columns") else {name: rows[name] for name in self.columns}
        try:
            rows = rows.astype(float) if hasattr(rows, "astype") else rows  # NaN for the NA of pandas
            values = np.asarray(list(rows.values()) if isinstance(rows, Mapping) else rows, dtype=float)
        except (TypeError, ValueError) as error:
            raise ValueError(f"rows must hold numbers, as many in each column, got others: {error}") from error
        values = values.T if isinstance(rows, Mapping) else values  # several rows in each column
        values = values[None] if values.ndim == 1 else values
        if values.ndim != 2 or values.shape[1] != len(self.columns):
            raise ValueError(f"rows must be (n, {len(self.columns)}), a column a channel, got shape {values.shape}")
        if np.isinf(values).any():
            raise ValueError("rows must be finite, or NaN where missing, got inf")
        return values, times

    def _time_after(self, times: Any, count: int) -> Any:
        """Time of the last of so many rows; raises ValueError unless each follows the one before it."""
        if self.time is None:
            return None
        times = times if times is None or np.ndim(times) else [times]
        if times is None or len(times) != count:
            raise ValueError(f"times must name each of the {count} rows, the next is {self.time + self.step}, got none")
        last = self.time
        for time in times:
            last = last + self.step  # as it was told first, whatever numpy or a table makes of it
            if time != last:
                got = repr(time) if isinstance(time, str) else time
                advice = "give rows that are missing in between as NaN, and no row twice"
                raise ValueError(f"rows must go on at {last}, got {got}: {advice}")
        return last


def _clock_as_text(time: Any, step: Any) -> list[str] | None:
    """Kind, last time, step and zone, as JSON can hold them."""
    if time is None:
        return None
    if hasattr(time, "isoformat"):
        return ["date", time.isoformat(), step.freqstr, str(time.tz or "")]
    if hasattr(time, "freqstr"):
        return ["period", str(time), time.freqstr, ""]
    return ["number", str(int(time)), str(int(step)), ""]


def _clock_of_text(clock: list[str] | None) -> tuple[Any, Any]:
    if clock is None:
        return None, 1
    # Dates are rebuilt from their frequency, because months and business days have no fixed length.
    kind, time, step, zone = clock
    if kind == "number":
        return int(time), int(step)
    import pandas as pd

    if kind == "period":
        return pd.Period(time, freq=step), 1
    date = pd.Timestamp(time)
    return (date.tz_convert(zone) if zone else date), pd.tseries.frequencies.to_offset(step)
