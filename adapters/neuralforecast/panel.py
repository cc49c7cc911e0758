"""The panel that the host hands to `fit` or `predict`: its series and rows, and all that is checked before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mvpa_ts.adapters.neuralforecast.dates import FrameIndex, check_dates, shown
from mvpa_ts.adapters.neuralforecast.frames import LARGEST
from mvpa_ts.checks import listed, warn
from mvpa_ts.forecasting.series import plain
from mvpa_ts.windows import FeatureScaling, Scaling, Series, Windows, observed_range, series_windows

_IN_FILES = "needs df in memory, got parquet files, which are read series by series: pass df as a frame"


class Panel:
    """Series and rows of a data set of the host.

    Tables of rows are counted from the series' ends, as the host counts: the last row of each is the last of all. The
    `unseen` rows at the end of each are not trained on, or not known yet. Raises ValueError where tables beside df do
    not fit to it.
    """

    def __init__(self, dataset: Any, unseen: int, *, fitting: bool) -> None:
        self.dataset, self.unseen, self.fitting = dataset, unseen, fitting
        # Files are read series by series, so nothing can be checked or computed over all of them.
        self.in_memory = hasattr(dataset, "temporal")
        index: FrameIndex | None = getattr(dataset, "frame_index", None)
        # Appended rows are validation rows in a fit, and known as such; in a prediction they are what is forecast.
        self.appended = None if index is None else index.appended
        self.index = index.with_appended() if index is not None and fitting else index
        # The host lays the rows of a static table beside series, and looks at no id.
        static = getattr(dataset, "static", None)
        if static is not None and len(static) != len(self):
            raise ValueError(
                f"static_df must have one row for each of the {len(self)} series of df, got {len(static)} rows"
            )
        if self.index is not None and self.index.static_names is not None:
            self._check_ids("static_df", "one row for", self.index.static_names)
        if index is not None and self.appended is not None and fitting:
            self._check_ids("val_df", "rows of", self.appended.names)
            for name, rows, later in zip(index.names, index.dates or (), self.appended.dates or (), strict=False):
                if (later.dtype == object) != (rows.dtype == object):  # moments of a time zone
                    raise ValueError(
                        f"val_df must have dates with a time zone where df has, got {later[0]} and {rows[-1]} in "
                        f"series {name!r}: take it away in one of them, .dt.tz_localize(None)"
                    )
                if later[0] <= rows[-1]:
                    raise ValueError(
                        f"val_df must begin after df ends, got {later[0]} and {rows[-1]} in series {name!r}: a "
                        "validation looks back from val_df at the last rows of df. Cut df before val_df"
                    )

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def names(self) -> list[Any] | None:
        """Ids of the series in the host's order; None where the data set was made without a frame."""
        if self.index is not None:
            return self.index.names
        indices = getattr(self.dataset, "indices", None)
        return None if indices is None else list(indices)

    def check_count(self, n_series: int) -> None:
        """Raise ValueError unless the panel has `n_series` series; the host trains on any number."""
        if len(self) != n_series:
            raise ValueError(f"n_series ({n_series}) must be the number of series in df, got {len(self)} there")

    def check_dates(self, read: int | None = None, already: FrameIndex | None = None) -> None:
        """Raise ValueError for dates that occur twice, and warn of those that are wrong or absent.

        In `predict` only the last `read` rows count, and nothing is said of a frame that was checked `already`.
        """
        if self.index is None or (read is not None and self.index.same_rows(already)):
            return
        # In cross-validation the rows to forecast are rows of the frame itself.
        if read is not None and self.appended is None:
            read += self.unseen
        check_dates(self.index, read)

    def check_values(self, cycle_column: str | None) -> None:
        """Raise ValueError for a series without a value, for infinite ones, and for a cycle without whole numbers.

        In a prediction the last rows of each series lack their target.
        """
        if not self.in_memory:
            return
        available, owner = self._available, self._owner
        if empty := np.flatnonzero(np.bincount(owner[available], minlength=len(self)) == 0).tolist():
            raise ValueError(
                f"df must hold at least one value of every series, got none of series {self._series(empty)}"
            )
        weighed = self.fitting and "sample_weight" in self.dataset.temporal_cols
        if weighed and not (self.column("sample_weight")[available] > 0).any():
            raise ValueError("df must have a sample_weight above 0 in some row, got none: nothing would be trained on")
        ends = self.dataset.indptr[1:] - (0 if self.fitting else self.unseen)
        has_target = np.arange(len(owner)) < ends[owner]
        for number, column in enumerate(self.dataset.temporal_cols):
            values = self.dataset.temporal[:, number].numpy()
            lost = np.isnan(values) & has_target
            # Cells of frames were looked at before, but not those of missing rows.
            if len(broken := np.flatnonzero(available & (np.isinf(values) | lost))):
                series = self._series([int(self._owner[broken[0]])])
                advice = f", or fill {column!r} on missing rows with any number: it is not read there"
                raise ValueError(
                    f"df must hold finite numbers, got inf or NaN in column {column!r} of series {series}, which "
                    "local_scaler_type spreads over all its rows. Leave local_scaler_type out, since the model scales "
                    f"each series itself{advice if number == self.dataset.y_idx else ''}"
                )
        if cycle_column is not None:
            phase = self.column(cycle_column)[available]
            if not np.array_equal(phase, np.rint(phase)):
                raise ValueError(
                    f"cycle_column={cycle_column!r} must hold whole numbers, the position in the cycle, unscaled: "
                    "local_scaler_type of NeuralForecast scales it, use the model's scaler_type instead"
                )
            phases = pd.DataFrame(self._aligned(np.where(available, self.column(cycle_column), np.nan), np.nan))
            if len(differ := np.flatnonzero(phases.min(axis=1) < phases.max(axis=1))):
                row = phases.iloc[differ[0]]
                raise ValueError(
                    f"cycle_column={cycle_column!r} must hold the same position for all series of a step, got "
                    f"{row.min():g} in series {self._series([int(row.idxmin())])} and {row.max():g} in series "
                    f"{self._series([int(row.idxmax())])}, {len(phases) - differ[0]} rows before the end: fit series "
                    "with other cycles apart"
                )

    def check_length(self, val_size: int, test_size: int, lookback: int, horizon: int) -> None:
        """Raise ValueError unless rows are left for a window; the host says that there is none, not why."""
        if 0 < val_size < horizon:  # the host looks at the val_size of `fit` alone
            if self.appended is not None:
                raise ValueError(f"val_df must have at least h ({horizon}) rows of each series, got {val_size}")
            raise ValueError(f"val_size must be 0 or at least h ({horizon}), got {val_size}")
        left = self.dataset.max_size - val_size - test_size
        if left <= lookback:
            raise ValueError(
                f"df must leave more than input_size ({lookback}) rows to train on, got {left}: its longest series has "
                f"{self.dataset.max_size} rows, less val_size ({val_size}) and test_size ({test_size}). Give a smaller "
                "val_size or input_size, or start_padding_enabled=True"
            )
        if left - lookback < horizon:
            warn(
                f"steps {left - lookback + 1} to {horizon} of h have no target in any of the {left - lookback} windows "
                f"to train on: the longest series has {left} rows, {lookback} of them to look back at. Their forecasts "
                "are little more than a mean. Give more rows, a smaller input_size or a smaller h"
            )
        rows = (np.diff(self.dataset.indptr) - val_size - test_size).clip(0) if self.in_memory else np.empty(0)
        if lookback > 1 and len(short := np.flatnonzero(rows < lookback)):
            warn(
                f"series {self._series(short.tolist())} of df should have input_size ({lookback}) rows before those "
                f"that are held out, got {rows[short].min()}: what is absent before their first row is read as missing"
            )

    def warn_of_rows_seen(self, test_size: int, before: Any) -> Any:
        """Last date to train on, as it is saved; warn where weights that go on from series `before` saw later ones."""
        names, dates = map(plain, self.names or []), (self.index and self.index.dates) or []
        last = max((plain(shown(rows[-1 - test_size])) for rows in dates if len(rows) > test_size), default=None)
        seen: Any = before.last_date if before and {*before.names} & {*names} else None
        if last is not None and type(seen) is type(last) and last < seen:
            warn(
                f"training ends at {last} and goes on from weights that saw rows up to {seen}: errors on these rows "
                "come out too small. Give use_init_models=True, or make a new NeuralForecast"
            )
        return last

    def warn_of_size(self, *, trained: bool) -> None:
        """Warn of series whose changes are too small or large to be read, or for a network to be `trained` on them."""
        # Adam divides by gradients plus 1e-8, and squares them in float32; the host's losses are in the units of y.
        least, most = (1e-12, 1e18) if trained else (1e-29, LARGEST)
        deviation = self.units()[:, 1]
        if len(odd := np.flatnonzero((deviation < least) | (deviation > most))):
            warn(
                f"series {self._series(odd.tolist())} of df should change by {least:g} to {most:g}, the standard "
                f"deviation is {deviation[odd[0]]:.3g}: float32 has no room for it, and forecasts are little more than "
                "a mean. Multiply the target by a number, or give NeuralForecast "
                "local_scaler_type='standard'"
            )

    def warn_of_short_history(self, lookback: int, horizon: int, already: FrameIndex | None) -> None:
        """Warn of series that have no value in half of their look-back, but not of short ones of the fit.

        Nor in the last `horizon` rows: the network forecasts those that are missing, and no more.
        """
        if not self.in_memory or self.index is None:
            return
        observed = [rows[: len(rows) - self.unseen] for rows in np.split(self._available, self.dataset.indptr[1:-1])]
        # Rows before the first value only fill the table up.
        rows = np.array([len(series) - np.argmax(series) for series in observed])
        read = np.array([series[-lookback:].sum() for series in observed])
        trained = {} if already is None else dict(zip(already.names, already.dates or [], strict=False))
        usual = np.array([len(trained.get(name, ())) or lookback for name in self.index.names])
        fewer = (rows < usual) & (not self.index.same_rows(already))
        if len(short := np.flatnonzero((2 * read < lookback) & (fewer | (rows >= lookback)))):
            warn(
                f"series {self._series(short.tolist())} of df should have values in the last {lookback} rows "
                f"(input_size), which the model was trained to read, got {read[short].min()}: its forecast rests on "
                "little. Give more rows, or fit a model with a smaller input_size"
            )
        gaps = np.array([np.argmax(series[::-1]) for series in observed])
        if len(late := np.setdiff1d(np.flatnonzero(gaps > horizon), short)):
            warn(
                f"series {self._series(late.tolist())} of df should lack values in at most the last {horizon} rows "
                f"(h), got {gaps[late].max()} there: the model forecasts {horizon} steps from the last value and takes "
                "the next ones to stay as they are. Give the rows, or fit a model with a larger h"
            )

    def warn_of_long_cycle(self, cycle_length: int | None) -> None:
        """Warn of a cycle no step of which comes twice in the rows to train on, so that it cannot be learnt."""
        if cycle_length is not None and (rows := self.dataset.max_size - self.unseen) <= cycle_length:
            warn(
                f"cycle_length ({cycle_length}) should be smaller than the number of rows to train on, got {rows}: no "
                "step of the cycle comes twice, so it cannot be learnt. Give more rows, a shorter cycle_length, or "
                "leave cycle_length and cycle_column out"
            )

    def column(self, name: str) -> np.ndarray:
        """Values of a column, series after series."""
        return self.dataset.temporal[:, self.dataset.temporal_cols.get_loc(name)].numpy()

    def rows(self, *, weighed: bool = False) -> np.ndarray:
        """Values of the rows to train on, [rows, N]; NaN is missing.

        Rows whose sample weight is 0 count as missing if `weighed`.
        """
        # A weight of zero keeps a row out of the loss, so it must not shape units and starting values either.
        counted = self._available
        if weighed and "sample_weight" in self.dataset.temporal_cols:
            counted = counted & (self.column("sample_weight") > 0)
        y = self.dataset.temporal[:, self.dataset.y_idx].numpy().astype(float)
        return self._trained(self._aligned(np.where(counted, y, np.nan), np.nan))

    def features(self, names: Sequence[str]) -> np.ndarray:
        """Exogenous columns in all rows, [rows, N, F], a static one alike in each; NaN is missing."""
        table = np.full((self.dataset.max_size, len(self), len(names)), np.nan)
        for number, name in enumerate(names):
            if name in self.dataset.temporal_cols:  # what is stored on a missing row may be anything
                table[..., number] = self._aligned(np.where(self._available, self.column(name), np.nan), np.nan)
            else:
                table[..., number] = self.dataset.static[:, self.dataset.static_cols.get_loc(name)].numpy()
        return table

    def units(self) -> np.ndarray:
        """Mean and deviation of each series over the rows to train on, [N, 2].

        NaN for a constant series, which has no unit, and for one in a file.
        """
        if not self.in_memory:
            return np.full((len(self), 2), np.nan)
        mean, deviation = Scaling.mean_and_deviation(self.rows(weighed=True))
        return np.where(deviation[:, None] > 0.0, np.stack([mean, deviation], axis=1), np.nan)

    def feature_scales(self, names: Sequence[str]) -> dict[str, list[float]]:
        """Mean, deviation, least and largest value of exogenous columns in the rows to train on; none for files."""
        if not self.in_memory or not names:
            return {}
        scaling = FeatureScaling.of(self._trained(self.features(names)).reshape(-1, len(names)))
        return dict(zip(names, np.stack([*vars(scaling).values()], axis=1).tolist(), strict=True))

    def warn_of_features(self, scales: Mapping[str, Sequence[float]], lookback: int) -> None:
        """Warn of exogenous columns that lie far from those of the fit, in the rows that a forecast reads."""
        if self.in_memory and (names := list(scales)):
            read = self.features(names)[-self.unseen - lookback :].reshape(-1, len(names))
            for words in FeatureScaling(*np.transpose([*scales.values()])).far_words(read, names):
                warn(words)

    def value_range(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of each series in the rows to train on; infinite for one without any, [N] each."""
        if not self.in_memory:
            raise ValueError(f"bounded=True {_IN_FILES}")
        values = torch.tensor(self.rows(), dtype=torch.float32)
        return observed_range(values, ~values.isnan())

    def windows(
        self, explained: np.ndarray | float = 0.0, *, lookback: int, horizon: int, cycle_column: str | None
    ) -> Windows:
        """Windows of the rows to train on, series as channels; what is `explained` already is subtracted."""
        if not self.in_memory:
            raise ValueError(f"ridge {_IN_FILES}, or ridge=None")
        position = 0 if cycle_column is None else self.cycle_positions(cycle_column)
        values = self.rows() - explained
        largest = np.nanmax(np.abs(values), axis=0, initial=0.0)
        # Zero stays zero: to it the level returns. A series far from zero that hardly varies would leave float32.
        scale = np.maximum(np.nan_to_num(self.units()[:, 1]), 1e-8 * largest)
        scale = np.where(scale > 0.0, scale, 1.0)
        windows = series_windows(
            [Series(values, position=position)], [Scaling(np.zeros(len(self)), scale)], lookback=lookback,
            horizon=horizon,
        )["train"]  # fmt: skip
        return replace(windows, channel_inputs={"units": torch.tensor(self.units() / scale[:, None]).float()})

    def windows_count(self, *, lookback: int, horizon: int) -> int | None:
        """Whole windows of the longest series in the rows to train on; None for parquet files."""
        if not self.in_memory:
            return None
        return max(0, self.dataset.max_size - self.unseen - lookback - horizon + 1)

    def cycle_positions(self, cycle_column: str) -> np.ndarray:
        """Positions in the cycle of the rows to train on, by the clock where the column has it."""
        column = np.where(self._available, np.rint(self.column(cycle_column)), 0).astype(int)
        observed = torch.from_numpy(self._aligned(self._available, False))
        return self._trained(whole_positions(torch.from_numpy(self._aligned(column, 0)), observed.any(1)).numpy())

    @cached_property
    def _owner(self) -> np.ndarray:
        """Which series each row of the data set belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.dataset.indptr))

    @cached_property
    def _available(self) -> np.ndarray:
        return self.column("available_mask") > 0

    def _aligned(self, values: np.ndarray, missing: Any) -> np.ndarray:
        """Rows of the data set as a table [rows, N, …] in which all series end together."""
        longest = self.dataset.max_size
        table = np.full((longest, len(self), *values.shape[1:]), missing, dtype=values.dtype)
        # A short series begins late in the table, so that all end in its last row.
        steps = np.arange(len(values)) - self.dataset.indptr[1:][self._owner] + longest
        table[steps, self._owner] = values
        return table

    def _trained(self, table: np.ndarray) -> np.ndarray:
        return table[: max(0, len(table) - self.unseen)]

    def _check_ids(self, argument: str, rows: str, got: list[Any]) -> None:
        assert self.index is not None
        names, column = self.index.names, self.index.columns[0]
        if got == names:
            return
        if lacking := [repr(name) for name in names if name not in set(got)]:
            raise ValueError(
                f"{argument} must hold {rows} each series of df, by {column!r}, got none of {listed(lacking)}"
            )
        if strange := [repr(name) for name in got if name not in set(names)]:
            raise ValueError(f"{argument} must hold the series of df alone, got {listed(strange)} too: leave them out")
        raise ValueError(
            f"{argument} must have its series in the order of df once both are sorted by {column!r}, got "
            f"{listed(list(map(repr, got)))}, and in df {listed(list(map(repr, names)))}: make {column!r} a column of "
            "strings in both"
        )

    def _series(self, rows: list[int]) -> str:
        names = self.names
        return listed([f"number {row} by name" if names is None else repr(names[row]) for row in rows])


def whole_positions(position: Tensor, observed: Tensor) -> Tensor:
    """Positions [..., T] of a panel whose series [..., T, N] have them on the rows that are not missing, else 0.

    Rows are read where a series has one: `observed`, of the first rows [..., L], says where that may be 0. The others
    are counted from the row before, or back from the first one that can be read.
    """
    largest = position.abs().argmax(-1, keepdim=True)
    position = position.gather(-1, largest)[..., 0]  # [..., T]
    T, L = position.shape[-1], observed.shape[-1]
    # A position of 0 ahead may be that of a missing row. Counting gives the same, except where the clock jumps there.
    readable = torch.cat([observed, position[..., L:] != 0], dim=-1)
    step = torch.arange(T, device=position.device)
    latest = torch.where(readable, step, -1).cummax(-1).values
    first = readable.to(torch.uint8).argmax(-1, keepdim=True)
    origin = torch.where(latest < 0, first, latest)
    return position.gather(-1, origin) + step - origin
