"""Ids and dates of the rows of a frame, and what their frequency says of a panel."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mvpa_ts.checks import listed, warn


@dataclass(frozen=True)
class FrameIndex:
    """What a data set of the host lacks of the frame that it was made of; `host_overrides` keeps it there."""

    names: list[Any]  # ids of the series, as the host sorts them
    dates: list[np.ndarray] | None  # of each series
    columns: tuple[str, str, str] = ("unique_id", "ds", "y")  # of ids, dates and target
    polars: bool = False  # whether the frame is one of polars
    freq: Any = None  # that the user gave to `NeuralForecast`: a text, a whole number or an offset
    scaled: bool = False  # whether `NeuralForecast` scales each series (local_scaler_type)
    static_names: list[Any] | None = None  # ids of `static_df`, sorted
    # Of the frame whose rows follow in the data set: `val_df` in a fit, `futr_df` in a prediction.
    appended: FrameIndex | None = None

    def with_appended(self) -> FrameIndex:
        """The same with the appended rows as rows of its own."""
        # Without dates of both there is nothing to check, but names still hold.
        if self.appended is None or self.dates is None or self.appended.dates is None:
            return self
        dates = [np.concatenate(pair) for pair in zip(self.dates, self.appended.dates, strict=True)]
        return replace(self, dates=dates, appended=None)

    def same_rows(self, other: FrameIndex | None) -> bool:
        """Whether another frame has the same series at the same dates."""
        if other is None or self.dates is None or other.dates is None or self.names != other.names:
            return False
        return all(np.array_equal(*pair) for pair in zip(self.dates, other.dates, strict=True))


# Offsets of pandas with months, holidays or opening hours, which their texts lack.
_BUSINESS = ("BusinessHour", *(f"CustomBusiness{unit}" for unit in ("Hour", "Day", "MonthBegin", "MonthEnd")))
_KINDS = ("DateOffset", *_BUSINESS)
_UNITS = {"d": pd.Timedelta("1D"), "h": pd.Timedelta("1h"), "m": pd.Timedelta("1min"), "s": pd.Timedelta("1s")}


def check_dates(index: FrameIndex, last_rows: int | None = None) -> None:
    """Raise a ValueError where all dates follow another freq; warn where some do, and of rows that are absent.

    The host counts steps from each series' end and gives models no dates: a series that lacks some would be put
    beside the wrong steps of the others, and where all lack some, steps are not as far apart as they seem.
    `last_rows` is the number of rows that `predict` reads; None in `fit`, which reads all.
    """
    if index.dates is None or index.freq is None:
        return
    all_dates = index.dates if last_rows is None else [dates[-last_rows:] for dates in index.dates]
    grid = np.unique(np.concatenate(all_dates))
    jump = jump_of(grid, index.freq)
    written = _written(index.freq, index)
    fact = f"the dates of df do not follow freq={written}: {jump}. neuralforecast counts each row as one step."
    if jump is not None and (other := other_frequency(grid, index.freq)) is not None:
        # What pandas infers is no word of polars.
        tells = other and (type(other) is pd.DateOffset or not index.polars)
        to_set = f"freq={_written(other, index)}" if tells else "freq to that of the dates"
        if late := _late_months(pd.DatetimeIndex(grid)) if other == "" else 0:
            month, first = pd.offsets.MonthBegin(late).freqstr, "df[{!r}].dt.to_period('M').dt.to_timestamp()"
            if index.polars:
                month, first = f"{late}mo", "pl.col({!r}).dt.truncate('1mo')"
            first = first.format(index.columns[1])
            to_set = f"freq={month!r} and take {first} for dates: some months lack this day, so no freq has them"
        advice = f"The models were fitted to freq={written}: give such rows." if last_rows else f"Set {to_set}."
        # The forecast's dates would be wrong; a few dates alone may as well have gaps.
        if len(grid) >= 8 and (late or (other and on_steps(grid, other))):
            raise ValueError(f"{fact} {advice}")
        warn(f"{fact} {advice}")
        return
    # Both faults shift a series against the others, and the same three lines mend both.
    named, facts = list(zip(map(repr, index.names), all_dates, strict=True)), []
    if early := [name for name, dates in named if dates[-1] != grid[-1]]:
        facts.append(f"dates of series {listed(early)} end before {shown(grid[-1])}, so forecasts begin at other dates")
    punctual = ((name, dates) for name, dates in named if dates[-1] == grid[-1])
    if lacking := [name for name, dates in punctual if not np.array_equal(dates, grid[-len(dates) :])]:
        facts.append(f"dates of series {listed(lacking)} lack some that others have")
    if facts:
        fact = (
            f"{', and '.join(facts)}. neuralforecast counts steps from the end of each series, so MVPA reads the wrong "
            "steps side by side."
        )
    if facts or jump is not None:
        warn(f"{fact} {_lines_that_mend(index)}")


def _lines_that_mend(index: FrameIndex) -> str:
    ids, dates, y = (f"df[{name!r}]" for name in index.columns)
    freq, keys = _written(index.freq, index), [*index.columns[:2]]
    columns = "" if keys == ["unique_id", "ds"] else ", id_col={!r}, time_col={!r}".format(*keys)
    mask = f'df["available_mask"] = {y}.notna().astype(float)'
    if index.polars:
        mask = f"df = df.with_columns(available_mask={y}.is_not_null().cast(float))"
    fill = f'from utilsforecast.preprocessing import fill_gaps\ndf = fill_gaps(df, {freq}, end="global"{columns})'
    if "(" in freq:  # which fill_gaps does not take
        fill = (
            f"dates = pd.date_range({dates}.min(), {dates}.max(), freq={freq})\n"
            f"rows = pd.MultiIndex.from_product([{ids}.unique(), dates], names={keys})\n"
            f"df = df.set_index({keys}).reindex(rows).reset_index()"
        )
    return f"Add the missing rows:\n{fill}\n{mask}"


def jump_of(dates: Any, freq: Any) -> str | None:
    """Where sorted dates leave the grid of a frequency; None where they do not, or where it cannot be told."""
    freq = _step(freq, dates)
    if freq is None:
        return None
    if np.issubdtype(dates.dtype, np.number):
        grid = np.arange(len(dates)) * freq + dates[0]
    else:
        dates = pd.DatetimeIndex(dates)
        grid = pd.date_range(dates[0], periods=1, freq=freq).append(_following(dates, freq))
    wrong = np.flatnonzero(np.asarray(dates != grid))
    if not len(wrong):
        return None
    if (first := wrong[0]) == 0:
        return f"they begin with {dates[0]}"
    return f"after {dates[first - 1]} comes {dates[first]}, not {grid[first]}"


def _following(days: pd.DatetimeIndex, freq: Any) -> Any:
    """The dates one step after all but the last."""
    with warnings.catch_warnings(action="ignore"):  # that some offsets are slow to add
        return days[:-1] + pd.tseries.frequencies.to_offset(freq)


def on_steps(dates: np.ndarray, freq: Any) -> bool:
    """Whether sorted dates lie on the steps of a frequency, of which some may be absent."""
    if np.issubdtype(dates.dtype, np.number):
        return not ((dates - dates[0]) % freq).any()
    days, step = pd.DatetimeIndex(dates), pd.tseries.frequencies.to_offset(freq)
    if isinstance(step, pd.offsets.Tick):  # of which there may be too many to list
        return not ((days - days[0]) % pd.Timedelta(step)).any()
    return bool(days.isin(pd.date_range(days[0], days[-1], freq=step)).all())


def saved_frequency(freq: Any) -> Any:
    """A frequency that JSON can hold: the text of an offset of pandas, or the arguments of one that has none."""
    if (arguments := _arguments_of(freq)) is None:
        return getattr(freq, "freqstr", freq)
    saved = {"kind": type(freq).__name__, "n": freq.n, **arguments}
    if type(freq).__name__ in _KINDS and loaded_frequency(saved) == freq:
        return saved
    raise ValueError(
        f"freq must be an offset that can be written as text to be saved, got {freq!r}: set the freq of NeuralForecast "
        "to 'D' before save, and to this one again after load"
    )


def loaded_frequency(saved: Any) -> Any:
    """What `saved_frequency` was given."""
    if not isinstance(saved, dict):
        return saved
    arguments = dict(saved)
    kind = arguments.pop("kind", "DateOffset")
    return getattr(pd.offsets, kind if kind in _KINDS else "DateOffset")(**arguments)


def _arguments_of(freq: Any) -> dict[str, Any] | None:
    """Arguments of an offset whose text does not tell all, such as holidays, as lists of texts; None of others."""
    text = getattr(freq, "freqstr", freq)
    with suppress(ValueError):  # it has no text, such as Easter
        if text is freq or (type(freq) is not pd.DateOffset and pd.tseries.frequencies.to_offset(text) == freq):
            return None
    return {
        name: value if isinstance(value, (str, int, float)) else [str(each).removesuffix(":00") for each in value]
        for name, value in freq.kwds.items()
        if name not in ("calendar", "offset")
    }


def _written(freq: Any, index: FrameIndex) -> str:
    """A frequency as one writes it in Python for the frame."""
    kind = type(freq).__name__
    if kind == "DateOffset" and index.polars:
        return f"'{freq.kwds['months']}mo'"
    if kind not in _KINDS or (arguments := _arguments_of(freq)) is None:
        return repr(getattr(freq, "freqstr", freq))
    if "holidays" in arguments:
        # Of calendars, which hold those of a hundred years, the holidays of the frame.
        first, last = (str(end(dates[row] for dates in index.dates or ())) for end, row in ((min, 0), (max, -1)))
        arguments["holidays"] = [day for day in arguments["holidays"] if first[:10] <= day <= last[:10]]
    texts = [str(freq.n)] * (freq.n != 1) + [f"{name}={value!r}" for name, value in arguments.items()]
    return f"{'pd' if kind == 'DateOffset' else 'pd.offsets'}.{kind}({', '.join(texts)})"


def pandas_frequency(freq: Any) -> Any:
    """A frequency as pandas takes it, from pandas' or polars' word; None for months and years of polars."""
    if not isinstance(freq, str):
        return freq
    if re.fullmatch(r"(\d+(ns|us|ms|s|m|h|d|w))+", freq):
        return pd.Timedelta(freq.replace("d", "D").replace("w", "W"))
    # Of these pandas has others of the same name, or none.
    return None if re.fullmatch(r"(\d+(ns|us|ms|s|m|h|d|w|mo|q|y|i))+(_saturating)?", freq) else freq


def in_one_unit(freq: Any) -> Any:
    """A step of polars such as "1h30m" in one unit, "90m": of two the host multiplies the first alone."""
    step = pandas_frequency(freq) if re.fullmatch(r"(\d+[a-z]+){2,}", str(freq)) else None
    if not isinstance(step, pd.Timedelta):
        return freq
    return next((f"{step // unit}{name}" for name, unit in _UNITS.items() if not step % unit), freq)


def _step(freq: Any, dates: Any) -> Any:
    """`pandas_frequency` for these dates, by which months of polars are known as well: "1mo", "1q" and "1y"."""
    if not (named := re.fullmatch(r"(\d+)(mo|q|y)", freq) if isinstance(freq, str) else None):
        return pandas_frequency(freq)
    months = int(named[1]) * {"mo": 1, "q": 3, "y": 12}[named[2]]
    # The host goes from the last day of a month to the last of a later one where all dates are last days.
    ends = pd.DatetimeIndex(dates).is_month_end.all()
    return pd.offsets.MonthEnd(months) if ends else pd.DateOffset(months=months)


def _months_passed(days: pd.DatetimeIndex) -> np.ndarray:
    return np.diff(12 * np.asarray(days.year) + np.asarray(days.month))


def other_frequency(dates: np.ndarray, freq: Any) -> Any:
    """The frequency of dates that jump, if `freq` is not theirs; "" where it cannot be told.

    None where rows are absent: most dates follow the one before, at other distances than all the same.
    """
    if np.issubdtype(dates.dtype, np.number):
        steps, counts = np.unique(np.diff(dates), return_counts=True)
        usual = int(steps[counts.argmax()])
        return None if usual == freq else usual
    days = pd.DatetimeIndex(dates)
    offset = pd.tseries.frequencies.to_offset(_step(freq, dates))
    follows = np.asarray(days[1:] == _following(days, offset))
    whole = pd.infer_freq(days) if len(days) > 2 else None
    if whole is None and follows.sum() * 2 >= len(follows) > 0 and on_steps(dates, offset):
        return None
    name = whole or inferred_frequency(days)
    return None if name and pd.tseries.frequencies.to_offset(name) == offset else name


def _late_months(days: pd.DatetimeIndex) -> int:
    """Months from one of sorted dates to the next, on a day that some lack and for which they have their last; or 0."""
    late, usual = days.day.max() > 28, np.minimum(days.day.max(), days.days_in_month)
    months = int(min(_months_passed(days), default=1))
    return months if late and (days.day == usual).all() and not days.is_month_end.all() else 0


def inferred_frequency(days: pd.DatetimeIndex) -> Any:
    """The frequency of sorted dates, of which some may be absent; "" where it cannot be told."""
    # Rows may be absent anywhere, so some stretch without a gap must tell.
    stretches = (days[start : start + 8] for start in range(0, min(len(days) - 7, 400), 4))
    names = (pd.infer_freq(stretch) for stretch in (days, *stretches) if len(stretch) > 2)
    if name := next(filter(None, names), ""):
        return name
    # Pandas has no name for months that begin on another day than the first.
    months, alike = int(_months_passed(days).min(initial=13)), len({*zip(days.day, days.time, strict=True)}) == 1
    return pd.DateOffset(months=months) if len(days) > 2 and 1 <= months <= 12 and alike else ""


def on_grid(table: pd.DataFrame, freq: Any) -> pd.DataFrame:
    """A table with a row for each step of its frequency, empty where it has none; a warning where it follows none."""
    dates = table.index
    grid: pd.Index
    if isinstance(dates, pd.DatetimeIndex):
        step = _step(freq, dates)
        grid = pd.date_range(dates[0], dates[-1], freq=step) if step else dates[:1]
    else:
        step = freq if isinstance(freq, int) else int(np.diff(dates).min(initial=dates[-1] - dates[0] + 1))
        grid = pd.RangeIndex(dates[0], dates[-1] + 1, step)
    if dates.isin(grid).all():
        return table.reindex(grid)
    if step is not None:  # rows that polars counts
        one = f"freq={freq!r}" if freq else "a frequency"
        warn(f"the dates of df do not follow {one}, so each row counts as one step: give the freq of df")
    return table


def split_dates(dates: Any, bounds: np.ndarray) -> list[np.ndarray] | None:
    """Dates of each series; None where they are not those of all rows."""
    dates = np.asarray(dates)
    # The host keeps no dates of validation rows that came in a frame of their own.
    return np.split(dates, bounds[1:-1]) if len(dates) == int(bounds[-1]) else None


def shown(date: Any) -> Any:
    """A date as messages name it."""
    return pd.Timestamp(date) if isinstance(date, np.datetime64) else date
