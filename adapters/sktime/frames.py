"""Data frames of the host to series of the core, on regular grids, so that gaps become missing rows."""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sktime.forecasting.base import ForecastingHorizon

from mvpa_ts.adapters.options import check_memory
from mvpa_ts.checks import listed, warn

if TYPE_CHECKING:
    from mvpa_ts.windows import Series


_BYTES_AHEAD = 20_000  # of a shipped network, for a step of a column


def columns_of(frame: pd.DataFrame, names: list[Any] | None, argument: str = "X") -> pd.DataFrame:
    """The columns that `fit` saw, in its order."""
    if names is None:
        raise ValueError("X must be left out: the forecaster was fitted without X; to use X, give it to fit")
    if missing := [name for name in names if name not in frame.columns]:
        raise ValueError(
            f"{argument} must have the columns of fit, {names}, got {list(frame.columns)} without {missing}"
        )
    return frame[names]


def series_of(
    y: pd.DataFrame, X: pd.DataFrame | None, grid: pd.Index, ahead: pd.Index | None, position: int | np.ndarray
) -> Series:
    """Rows of y on their grid, and of X there and ahead.

    What y lacks is NaN, what X lacks is interpolated. Raises ValueError for infinite values, and for dates that occur
    twice and empty columns in X.
    """
    from mvpa_ts.windows import Series

    for name, frame in (("y", y), ("X", X)):
        if frame is not None and (columns := [each for each in frame if np.isinf(frame[each].to_numpy(float)).any()]):
            raise ValueError(f"{name} must be finite, or NaN where missing, got inf in columns {columns}")
    for column in y.select_dtypes("integer").columns:  # float64 has 53 bits
        whole = y[column].dropna().to_numpy()
        if not np.array_equal(whole.astype(float).astype(whole.dtype), whole):
            warn(
                f"column {column!r} of y has whole numbers beyond 2**53, which are rounded to multiples of "
                f"{np.spacing(np.abs(whole.astype(float)).max()):g}: subtract its level before fit and add it to the "
                "forecasts"
            )
    values = y.reindex(grid).to_numpy(float)
    features = None
    if X is not None:
        rows = grid if ahead is None else grid.append(ahead)
        if X.index.has_duplicates:
            raise ValueError(
                f"X must have each date once, got {X.index[X.index.duplicated()][0]} more than once: keep the first "
                "row of each, X = X[~X.index.duplicated()]"
            )
        X = X.reindex(rows).astype(float)
        if ahead is not None and (lacking := X.loc[ahead].isna()).any(axis=None):
            step = ahead[lacking.any(axis=1)][0]
            warn(
                f"X must hold a value at each step of the forecast, got none of {list(X.columns[lacking.any()])} at "
                f"{step}: the values beside it are taken"
            )
        filled = X.interpolate(limit_direction="both")
        if filled.isna().any(axis=None):
            empty = list(filled.columns[filled.isna().any()])
            raise ValueError(f"X must hold at least one value in each column, got none in {empty}")
        features = filled.to_numpy(float)
    return Series(values, features, position)


def panel_of(y: pd.DataFrame, cycle: int | None = None) -> list[Series]:
    """The instances of a panel, each on its own grid; raises ValueError where one has none, or none for a cycle."""
    levels: list[Any] = list(range(y.index.nlevels - 1))
    series = []
    for name, part in y.groupby(level=levels):
        instance = part.droplevel(levels)
        frequency = checked_frequency(instance.index, f"instance {', '.join(map(str, name))} of y")
        grid = regular(instance.index, instance.index[-1], frequency)
        position = positions_of(grid, None, frequency, cycle)
        series.append(series_of(instance, None, grid, None, position))
    return series


def frequency_of(index: pd.Index) -> Any:
    """The frequency of an index of dates, inferred where it holds none; None for other indices and where there is none.

    Dates with gaps have the frequency with the fewest steps whose grid holds them all, some of them as neighbours. It
    may be every n-th step of another.
    """
    if not isinstance(index, pd.DatetimeIndex):
        return None
    if index.freq is not None or len(index) < 2:
        return index.freq
    if len(index) > 2 and (name := pd.infer_freq(index)) is not None:
        return pd.tseries.frequencies.to_offset(name)
    return _frequency_with_gaps(index)


def checked_frequency(index: pd.Index, owner: str = "y") -> Any:
    """The frequency of an index, as `frequency_of` gives it.

    Raises ValueError, which names the owner of the index, where steps ahead could not be counted: for dates on no grid,
    a date that occurs twice, and distances in time.
    """
    if isinstance(index, pd.TimedeltaIndex):
        raise ValueError(
            f"{owner} must have dates, periods or whole numbers as its index, got distances in time (timedelta)"
        )
    if index.has_duplicates:
        raise ValueError(
            f"{owner} must have each date once, got {index[index.duplicated()][0]} more than once: keep the first row "
            "of each, y = y[~y.index.duplicated()]"
        )
    frequency = frequency_of(index)
    if isinstance(index, pd.DatetimeIndex) and frequency is None and len(index) > 1:
        shortest = (index[1:] - index[:-1]).min()
        # On a day that some months lack, or the last on which business is done.
        unit = next((unit for unit, days in {"Y": 360, "Q": 88, "M": 28}.items() if shortest.days >= days), None)
        advice = f"y.set_axis(y.index.to_period({unit!r}))" if unit else "y.resample('h').mean()"
        raise ValueError(
            f"{owner} must have dates on a regular grid, got distances from {shortest} to "
            f"{(index[1:] - index[:-1]).max()}: take {advice}, or another grid"
        )
    return frequency


def check_on_grid(index: pd.Index, frequency: Any) -> None:
    """Raise ValueError for dates that `update` would bring between the steps of `fit`."""
    if isinstance(index, pd.DatetimeIndex) and frequency is not None:
        off = index[~index.isin(pd.date_range(index[0], index[-1], freq=frequency))]
        if len(off):
            raise ValueError(
                f"y must have its dates on the grid of fit ({frequency.freqstr}), got {off[0]}: resample y, or call "
                "fit with all rows"
            )


def check_new_rows(y: Any, X: Any = None, seen: pd.DataFrame | None = None) -> None:
    """Raise ValueError for rows after those `seen` in `fit` that have no times, or times of another kind, or twice."""
    if isinstance(y, np.ndarray):
        raise ValueError(
            "y must come with an index after fit, as a Series or a data frame, got an array: its rows would count "
            "from 0 and take the place of the first rows. After n rows, take pd.Series(y, index=range(n, n + len(y)))"
        )
    check_same_rows(y, X)
    for argument, table in (("y", y), ("X", X)):
        index = getattr(table, "index", None)
        if not isinstance(index, pd.Index) or isinstance(index, pd.MultiIndex) or not len(index):
            continue
        if index.has_duplicates:
            raise ValueError(f"{argument} must have each date once, got {index[index.duplicated()][0]} more than once")
        # The host would sort numbers before all periods, and count on from them.
        if seen is not None and _kind(index) != _kind(seen.index):
            raise ValueError(
                f"{argument} must have an index of the kind that y had in fit, {seen.index.inferred_type} such as "
                f"{seen.index[-1]}, got {index.inferred_type} such as {index[0]}"
            )
        # The host's forecasters go back to the last row of an update.
        if argument == "y" and seen is not None and index[-1] < seen.index[-1]:
            warn(
                f"y ends at {index[-1]}, before the rows seen so far, which end at {seen.index[-1]}: forecasts now "
                f"begin after {index[-1]} and read no later row, as with every forecaster of sktime. Let y end with "
                "the last row"
            )


def check_same_rows(y: Any, X: Any) -> None:
    """Raise ValueError for tables that cannot be read, and where X lacks a row of y; the host does not say which."""
    check_table("y", y)
    check_table("X", X)
    rows, index = (getattr(table, "index", None) for table in (y, X))
    if isinstance(X, np.ndarray) and isinstance(rows, pd.Index) and rows.nlevels == 1 and rows[:1].tolist() != [0]:
        raise ValueError(
            f"X must have the index of y, which begins at {rows[0]}, got an array: take pd.DataFrame(X, index=y.index)"
        )
    if not isinstance(rows, pd.Index) or not isinstance(index, pd.Index) or rows.nlevels != index.nlevels:
        return
    if len(lacking := rows[~rows.isin(index)]):
        raise ValueError(
            f"X must have each row of y, got {len(index)} rows and none at {lacking[0]!r}: take X.reindex(y.index), "
            "whose empty cells are interpolated, if its dates are of the kind of those of y"
        )


def check_instances(fitted: Any, y: Any = None, X: Any = None, **_: Any) -> None:
    """Raise ValueError for a panel with other instances than that of `fit`, or in another order.

    The host finds the forecaster of an instance by its place, and one would go on with the rows of another.
    """
    names = list(fitted.get_iter_indices()[0])
    for argument, table in (("y", y), ("X", X)):
        instances = getattr(table, "get_iter_indices", lambda: [None])()[0]
        # X of one series is that of every instance.
        if table is None or (argument == "X" and instances is None):
            continue
        if (got := [] if instances is None else list(instances)) != names:
            raise ValueError(
                f"{argument} must have the instances of y in fit, in that order, for sktime pairs them by their place: "
                f"{listed(list(map(repr, names)))}, got {listed(list(map(repr, got))) or 'one series'}. Give both "
                "as .sort_index(), with the same instances"
            )


def _kind(index: pd.Index) -> tuple[Any, ...]:
    """What two indices must share so that their times can be compared."""
    return index.inferred_type, getattr(index, "tz", None) is None, isinstance(index, pd.PeriodIndex) and index.freq


def _frequency_with_gaps(index: pd.DatetimeIndex) -> Any:
    clock = index.tz_localize(None)  # days are equally long by it, hours are not
    shortest, by_clock = (index[1:] - index[:-1]).min(), (clock[1:] - clock[:-1]).min()
    names = [f"{kind}-{index[0].month_name():.3}".upper() for kind in ("YS", "YE", "QS", "QE")]
    names += ["MS", "ME", f"W-{index[0]:%a}".upper(), "B"]
    offsets = [pd.tseries.frequencies.to_offset(name) for name in names]
    whole_days = by_clock > pd.Timedelta(0) and by_clock % pd.Timedelta("1D") == pd.Timedelta(0)
    offsets.append(pd.offsets.Day(by_clock.days) if whole_days else pd.tseries.frequencies.to_offset(shortest))
    offsets += [pd.DateOffset(months=12), pd.DateOffset(months=3), pd.DateOffset(months=1)]  # from any day
    hours = pd.Timestamp(0) + (clock - clock.normalize())
    opened, closed = (f"{moment:%H:%M}" for moment in (hours.min(), hours.max() + shortest))
    if opened != closed:
        offsets += [pd.offsets.BusinessHour(start=opened, end=closed)]
    best, fewest = None, (math.inf, 0)
    for offset in offsets:
        if shortest > pd.Timedelta(0) and offset.is_on_offset(index[0]):
            grid = pd.date_range(index[0], index[-1], freq=offset)
            steps = np.diff(grid.get_indexer(index))
            n = int(np.gcd.reduce(steps))
            # Of equally many steps, those that need not be multiplied: two days on, a Wednesday is no business matter.
            if index.isin(grid).all() and n in steps and (number := (steps.sum() / n, n)) < fewest:
                best, fewest = offset * n, number
    return best


def check_table(argument: str, table: Any) -> None:
    """Raise ValueError for a table that the host misreads, or answers by naming all formats that it knows.

    Rows are not in order of time or have no times, or a column is there twice. As the host does, raises TypeError for a
    column of something else than real numbers.
    """
    if np.iscomplexobj(table) and isinstance(table, np.ndarray):
        raise ValueError(f"{argument} must hold real numbers, got {table.dtype}: {_REAL}")
    frame = table.to_frame() if isinstance(table, pd.Series) else table
    if not isinstance(frame, pd.DataFrame):
        return
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"{argument} must have each column once, got {twice!r} more than once: rename one")
    # pandas finds a column by None under NaN or not at all.
    if any(np.ndim(name) == 0 and pd.isna(name) for name in frame.columns):
        raise ValueError(
            f"{argument} must have a name for each column, got {list(frame.columns)}: take {argument}.set_axis([…], "
            "axis=1)"
        )
    if not isinstance(frame.index, pd.MultiIndex):
        _check_times(argument, frame.index)
    elif not frame.index.is_monotonic_increasing:
        for _, rows in frame.groupby(level=list(range(frame.index.nlevels - 1))):
            _check_times(argument, rows.index.get_level_values(-1))
    for name, column in frame.items():
        kind = column.dtype
        if pd.api.types.is_complex_dtype(kind) or not pd.api.types.is_numeric_dtype(kind):
            advice = f"take {argument}[{name!r}].astype(float), or leave it out"
            if pd.to_numeric(column.astype(object), errors="coerce").isna().any():
                advice = f"pd.get_dummies({argument}, columns=[{name!r}], dtype=float) makes a column of each value"
            if pd.api.types.is_complex_dtype(kind):
                advice = f"{_REAL}, or leave it out"
            elif pd.api.types.is_datetime64_any_dtype(kind):
                advice = (
                    f"make it the index, {argument}.set_index({name!r}); of a table with a row for each series and "
                    f"date, {argument}.pivot(index={name!r}, columns=…, values=…) makes a column of each series"
                )
            raise TypeError(
                f"{argument} must hold real numbers in column {name!r}, nothing categorical, got {kind} such as "
                f"{next(iter(column), None)!r}: {advice}"
            )


_REAL = "take its size (np.abs), or its parts as columns of their own"


def _check_times(argument: str, index: pd.Index) -> None:
    times = (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex)
    if index.hasnans:
        row = int(np.argmax(index.isna()))
        raise ValueError(f"{argument} must have a date in each row of its index, got none in row {row}: leave it out")
    if not isinstance(index, times) and not pd.api.types.is_integer_dtype(index) and len(index):
        numbers = pd.api.types.is_float_dtype(index)
        advice = f"{argument}.index.astype(int)" if numbers else f"pd.to_datetime({argument}.index)"
        raise ValueError(
            f"{argument} must have dates, periods or whole numbers as its index, got {index.dtype} such as "
            f"{index[0]!r}: set {argument}.index = {advice}"
            + ("" if numbers else ", with dayfirst=True where the day comes first")
        )
    if not index.is_monotonic_increasing:
        values = list(index)
        late = next(row for row in range(1, len(values)) if values[row] < values[row - 1])
        raise ValueError(
            f"{argument} must have its rows in order of time, got {values[late]} after {values[late - 1]}: take "
            f"{argument}.sort_index()"
        )


def regular(index: pd.Index, end: Any, frequency: Any) -> pd.Index:
    """The grid of all steps from the first row to `end`, or the index as it is where it is on no grid.

    Whole numbers advance by 1, as the host counts them, periods by their frequency, dates by the given one. Raises
    ValueError for whole numbers that advance by more throughout: most steps would be missing.
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


def steps_ahead(fh: ForecastingHorizon, cutoff: pd.Index, frequency: Any) -> np.ndarray:
    """Steps from the cutoff to each moment of a horizon; raises ValueError for dates off the grid."""
    if isinstance(fh.to_pandas(), pd.TimedeltaIndex):
        fh = fh.to_absolute(cutoff)
    dates = fh.to_pandas()
    if not isinstance(dates, pd.DatetimeIndex) or frequency is None:
        steps = np.asarray(fh.to_relative(cutoff)).astype(int)
    else:
        dates = dates if dates.tz is None else dates.tz_convert(getattr(cutoff, "tz", None))
        if isinstance(frequency, pd.offsets.Tick):  # before all steps are listed
            check_memory("fh", (dates.max() - cutoff[0]) // pd.Timedelta(frequency), _BYTES_AHEAD)
        steps = pd.date_range(cutoff[0], dates.max(), freq=frequency).get_indexer(dates)
        if (steps < 1).any():
            raise ValueError(
                f"fh must be on the grid of y ({frequency.freqstr}) after {cutoff[0]}, got {listed(dates, 3)}"
            )
    check_memory("fh", int(steps.max(initial=0)), _BYTES_AHEAD)
    return steps


def check_fh(fh: Any, cutoff: Any) -> None:
    """Raise ValueError for a horizon too long for the memory, or of moments of another kind than those of y.

    The host lists all steps up to a number first, and has no words for such moments.
    """
    if isinstance(fh, Integral):
        check_memory("fh", int(fh), _BYTES_AHEAD)
    steps = fh.to_pandas() if isinstance(fh, ForecastingHorizon) else fh
    if not isinstance(steps, pd.Index) or not isinstance(cutoff, pd.Index) or not len(steps):
        return
    right = _kind(steps) == _kind(cutoff)
    if isinstance(steps, pd.TimedeltaIndex):
        right = isinstance(cutoff, (pd.DatetimeIndex, pd.PeriodIndex))
    elif pd.api.types.is_integer_dtype(steps):
        right |= getattr(fh, "is_relative", True)
    if not right:
        raise ValueError(
            f"fh must be steps ahead, or moments of the kind that y has, {cutoff.dtype} such as {cutoff[0]}, got "
            f"{steps.dtype} such as {steps[0]}"
        )


def index_ahead(cutoff: pd.Index, frequency: Any, horizon: int) -> pd.Index:
    """The index of all steps from the first after the cutoff to the horizon."""
    if isinstance(cutoff, pd.DatetimeIndex) and frequency is not None:
        # One more: of months with days pandas counts too few, where months end.
        return pd.date_range(cutoff[0], periods=horizon + 2, freq=frequency)[1 : horizon + 1]
    return ForecastingHorizon(np.arange(1, horizon + 1), freq=frequency).to_absolute_index(cutoff)


def position_of(index: pd.Index, frequency: Any) -> int | None:
    """Where in time the first row lies, in steps from a fixed origin: equal dates have equal phases in a cycle.

    None where no step can be counted.
    """
    first = index[:1]
    if isinstance(first, pd.PeriodIndex):
        return int(first.astype("int64").to_numpy()[0]) // first.freq.n  # type: ignore[union-attr]
    if isinstance(first, pd.DatetimeIndex):
        positions = _positions(first, frequency)
        return None if positions is None else int(positions[0])
    return int(first.to_numpy()[0]) if pd.api.types.is_integer_dtype(first) else None


def positions_of(index: pd.Index, ahead: pd.Index | None, frequency: Any, cycle: int | None) -> int | np.ndarray:
    """As `position_of`; where a local clock may jump, the position of each row and of those ahead by that clock.

    Raises ValueError where a cycle would have no phase, and is 0 where there is no cycle.
    """
    if isinstance(index, pd.DatetimeIndex) and index.tz is not None and isinstance(frequency, pd.offsets.Tick):
        positions: Any = _positions(pd.DatetimeIndex(index if ahead is None else index.append(ahead)), frequency)
    else:
        positions = position_of(index, frequency)
    if positions is None and cycle is not None:
        raise ValueError(
            f"sp ({cycle}) needs an index whose steps can be counted, got {type(index).__name__} with the frequency "
            f"{frequency!r}: take periods, whole numbers or dates of a plain frequency, or leave sp out"
        )
    return 0 if positions is None else positions


def _positions(dates: pd.DatetimeIndex, frequency: Any) -> np.ndarray | None:
    """Steps from a fixed origin to each date, by its own clock; None for steps that cannot be counted."""
    offsets = pd.offsets
    dates = dates.tz_localize(None)
    days = dates.normalize()
    count: Any
    if isinstance(frequency, offsets.Tick):
        return _spans(dates, pd.Timedelta(frequency))
    if type(frequency) is pd.DateOffset:
        return _positions_by_parts(dates, frequency)
    if isinstance(frequency, offsets.BusinessHour):
        count = _business_hours(dates, frequency)
    elif isinstance(frequency, offsets.BusinessDay):  # custom ones too
        count = _business_days(days, frequency)
    elif isinstance(frequency, (offsets.Day, offsets.Week)):
        count = _spans(days, pd.Timedelta(7 if isinstance(frequency, offsets.Week) else 1, "D"))
    elif frequency is None:
        return None
    else:
        # There are few months, quarters and years since 1970, so pandas can count them.
        origin = pd.Timestamp("1970-01-01")
        steps = pd.date_range(min(origin, days[0]), max(origin, days[-1]), freq=frequency.base)
        count = steps.searchsorted(days) - steps.searchsorted(origin)
    # A grid of every n-th step meets the same remainder at each.
    return np.asarray(count).astype(np.int64) // frequency.n


def _positions_by_parts(dates: pd.DatetimeIndex, frequency: pd.DateOffset) -> np.ndarray | None:
    """As `_positions`, for an offset of months and years, or of days and shorter; None for both together."""
    parts = dict(frequency.kwds) or {"days": 1}
    months = 12 * parts.pop("years", 0) + parts.pop("months", 0)
    try:
        span = pd.Timedelta(**parts) if parts else pd.Timedelta(0)
    except (TypeError, ValueError):  # "the 5th day of a month" is no step
        return None
    if months and not span:
        return dates.to_period("M").asi8 // (months * frequency.n)
    return None if months or not span else _spans(dates, span * frequency.n)


def _spans(dates: pd.DatetimeIndex, span: pd.Timedelta) -> np.ndarray:
    """Whole spans of time from 1970 to each date."""
    # This way round pandas keeps the unit of the dates where it is fine enough: nanoseconds end in the year 2262.
    return np.asarray((dates - pd.Timestamp("1970-01-01")) // span)


def _business_days(days: pd.DatetimeIndex, frequency: Any) -> np.ndarray:
    calendar = getattr(frequency, "calendar", None) or np.busdaycalendar()
    # Counted backwards, numpy counts the other end: so from a date that comes before all others.
    far, dates = "0001-01-01", days.to_numpy().astype("datetime64[D]")
    counted: np.ndarray = np.busday_count(far, dates, busdaycal=calendar)
    return counted - np.busday_count(far, "1970-01-01", busdaycal=calendar)


def _business_hours(dates: pd.DatetimeIndex, frequency: Any) -> np.ndarray:
    opened, closed = ([time.hour + time.minute / 60 for time in times] for times in (frequency.start, frequency.end))
    lengths = [(end - start) % 24 or 24 for start, end in zip(opened, closed, strict=True)]
    hour = np.asarray((dates - dates.normalize()) / pd.Timedelta(1, "h"))
    # A night that began the day before belongs to that day.
    night = hour < opened[0]
    days = _business_days(dates.normalize() - pd.to_timedelta(night.astype(int), "D"), frequency)
    hour = hour + 24 * night
    passed = sum(np.clip(hour - start, 0, length) for start, length in zip(opened, lengths, strict=True))
    return np.floor(days * sum(lengths) + passed + 1e-9)
