"""Frames that a user hands to the host: what it would misread, or answer with words of another library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Complex
from typing import Any

import numpy as np
import pandas as pd
from utilsforecast import processing

from mvpa_ts.adapters.options import check_whole
from mvpa_ts.checks import listed
from mvpa_ts.forecasting.series import check_names

_COUNTS = {"n_windows": 1, "step_size": 1, "val_size": 0}  # and the least of each
_ARGUMENTS = ("df", "val_df", "static_df", "futr_df")


def check_frame(
    argument: str,
    frame: Any,
    *,
    id_col: str,
    time_col: str | None = None,
    target_col: str | None = None,
    exogenous: Iterable[str] = (),
    others: bool = True,
    categories: Iterable[str] = (),
) -> None:
    """Raise ValueError for a frame whose rows, ids, dates or numbers neuralforecast would misread.

    Parameters
    ----------
    argument : str
        Its name, for the message.
    frame : DataFrame of pandas or polars
    id_col, time_col, target_col : str
        Its columns; `static_df` has no dates, and `futr_df` no target.
    exogenous : iterable of str, default ()
        Columns that must be there too.
    others : bool, default True
        Whether the host reads the other columns too, which then must hold numbers.
    categories : iterable of str, default ()
        Columns that may hold text.
    """
    keys = [id_col] if time_col is None else [id_col, time_col]
    needed = [*([] if target_col is None else [target_col]), *exogenous]
    columns = list(frame.columns)
    # Of two columns of one name, frame[name] is a table in pandas.
    if twice := [name for row, name in enumerate(columns) if name in columns[:row]]:
        raise ValueError(f"{argument} must have each column once, got {twice[0]!r} more than once: rename one")
    if lacking := [name for name in dict.fromkeys([*keys, *needed]) if name not in columns]:
        raise ValueError(
            f"{argument} must have the columns of ids, dates, target and covariates, got none of {lacking} among "
            f"{columns}"
        )
    if not len(frame):
        raise ValueError(f"{argument} must have rows, got none")
    # The host sorts an empty date last, so that forecasts begin there, and an empty id beside none.
    for name in keys:
        column = frame[name]
        lost = np.asarray(pd.isna(column) if isinstance(column, pd.Series) else column.is_null())
        if lost.any():
            raise ValueError(
                f"{argument} must have {'an id' if name == id_col else 'a date'} in each row, got none in column "
                f"{name!r} of row {int(lost.argmax())}: leave the row out"
            )
    _check_ids(argument, frame, id_col)
    if time_col is not None:
        _check_dates(argument, frame, time_col)
    for name in (name for name in columns if name not in (*keys, *categories)) if others else needed:
        objects = time_col is not None and name != target_col
        _check_numbers(argument, frame, name, objects=objects, needed=name in needed)
    # The host multiplies losses by it.
    if "available_mask" in columns:
        mask = frame["available_mask"].to_numpy()
        if (other := ~np.isin(mask, (0, 1)) & ~pd.isna(mask)).any():  # of NaN the host says so
            raise ValueError(
                f"{argument} must hold 0 or 1 in column 'available_mask', got {mask[other.argmax()]} in row "
                f"{int(other.argmax())}"
            )


def checked(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of `NeuralForecast` that looks at its frames first, where a model of this package is among the models."""
    signature = inspect.signature(call)

    @wraps(call)
    def checked_call(self: Any, *args: Any, **options: Any) -> Any:
        given = signature.bind(self, *args, **options).arguments
        for name, least in _COUNTS.items() if of_this_package(self) else ():
            if given.get(name) is not None:
                check_whole(least, **{name: given[name]})
        for argument in _ARGUMENTS if of_this_package(self) else ():
            if (frame := given.get(argument)) is not None and _is_frame(frame):
                _check_argument(self, argument, frame, given)
        return call(self, *args, **options)

    return checked_call


def without_masked_targets(cross_validation: Callable[..., Any]) -> Callable[..., Any]:
    """`NeuralForecast.cross_validation` whose table has no target on rows with ``available_mask`` 0.

    The host gives back what is stored there, mostly 0, and errors are then counted against it.
    """
    signature = inspect.signature(cross_validation)

    @wraps(cross_validation)
    def cross_validation_of_observed_rows(self: Any, *args: Any, **options: Any) -> Any:
        table = cross_validation(self, *args, **options)
        frame = signature.bind(self, *args, **options).arguments.get("df")
        if not of_this_package(self) or (frame is not None and "available_mask" not in frame.columns):
            return table
        keys, name = [self.id_col, self.time_col], "available_mask"
        if frame is None:
            data = self.dataset
            ids = processing.repeat(self.uids, np.diff(data.indptr))
            mask = data.temporal[:, data.temporal_cols.get_loc(name)].numpy()
            frame = type(table)({self.id_col: ids, self.time_col: self.ds, name: mask})
        missing = processing.join(table[keys], frame[[*keys, name]], on=keys, how="left")[name].to_numpy() == 0
        if not missing.any():
            return table
        target = table[self.target_col].to_numpy().astype(float)
        target[missing] = np.nan
        table = processing.assign_columns(table, self.target_col, target)
        return table if isinstance(table, pd.DataFrame) else table.fill_nan(None)

    return cross_validation_of_observed_rows


def of_this_package(host: Any) -> bool:
    """Whether a model of this package is among the models of a `NeuralForecast`."""
    return any(type(model).__module__.startswith("mvpa_ts.") for model in host.models)


def _check_argument(host: Any, argument: str, frame: Any, given: dict[str, Any]) -> None:
    # What `predict` was not told it takes from the fit.
    usual = {"id_col": "unique_id", "time_col": "ds", "target_col": "y"}
    columns = {name: given.get(name, getattr(host, name, column)) for name, column in usual.items()}
    futr, hist, stat = (
        {name for model in host.models for name in getattr(model, f"{kind}_exog_list", None) or ()}
        for kind in ("futr", "hist", "stat")
    )
    categories = host._get_categorical_exog()
    if argument == "static_df":
        check_frame(argument, frame, id_col=columns["id_col"], exogenous=sorted(stat), categories=categories)
    elif argument == "futr_df":
        del columns["target_col"]
        check_frame(argument, frame, **columns, exogenous=sorted(futr - {*categories}), others=False)
    else:
        check_frame(argument, frame, **columns, exogenous=sorted(futr | hist), categories=categories)


def _check_ids(argument: str, frame: Any, name: str) -> None:
    # A column of pandas may hold anything; the host sorts it, which numbers and text together cannot be.
    ids = frame[name]
    if isinstance(ids, pd.Series) and ids.dtype == object and len(kinds := {*map(type, ids)}) > 1:
        words = listed(sorted(kind.__name__ for kind in kinds))
        raise ValueError(
            f"{argument} must have ids of one kind in column {name!r}, got {words}: take {argument}[{name!r}]"
            ".astype(str)"
        )
    if isinstance(ids, pd.Series) and ids.dtype == object:  # the host would sort them, in words of its own
        check_names(ids.unique().tolist(), name, f"take {argument}[{name!r}].astype(str)")


def _check_dates(argument: str, frame: Any, name: str) -> None:
    dates = frame[name]
    if isinstance(dates, pd.Series):
        right = pd.api.types.is_datetime64_any_dtype(dates) or pd.api.types.is_integer_dtype(dates)
        right &= not str(dates.dtype).startswith(("date32", "date64"))  # of pyarrow: objects once they leave the frame
        advice = f"pd.to_datetime({argument}[{name!r}]), with dayfirst=True where the day comes first"
        if isinstance(dates.dtype, pd.PeriodDtype):
            advice = f"{argument}[{name!r}].dt.to_timestamp()"
        elif pd.api.types.is_float_dtype(dates):
            advice = f"{argument}[{name!r}].astype(int)"
    else:
        right = dates.dtype.is_integer() or str(dates.dtype).startswith("Date")
        advice = f"pl.col({name!r}).str.to_datetime()"
        if (zone := getattr(dates.dtype, "time_zone", None)) not in (None, "UTC"):
            raise ValueError(
                f"{argument} must have dates without a time zone in column {name!r} of a frame of polars, since "
                f"neuralforecast would give those of forecasts in UTC, got {zone}: take "
                f"pl.col({name!r}).dt.convert_time_zone('UTC'), or .dt.replace_time_zone(None) for the local clock"
            )
    if not right:
        raise ValueError(
            f"{argument} must have dates or whole numbers in column {name!r}, got {dates.dtype} such as "
            f"{dates.to_list()[0]!r}: take {advice}"
        )


def _check_numbers(argument: str, frame: Any, name: str, *, objects: bool, needed: bool) -> None:
    column = frame[name]
    if isinstance(column, pd.Series):
        right, imaginary = pd.api.types.is_numeric_dtype(column), pd.api.types.is_complex_dtype(column)
        advice = f"take {argument}[{name!r}].astype(float)"
    else:
        right, imaginary = column.dtype.is_integer() or column.dtype.is_float(), False
        advice = f"take pl.col({name!r}).cast(pl.Float64)"
    if right and not imaginary:
        return
    if needed and str(column.dtype).lower().startswith(("categor", "enum")):
        # The host reads the numbers of its categories, 0, 1 and 2 for 0.1, 0.2 and 0.3.
        raise ValueError(
            f"{argument} must hold real numbers in column {name!r}, got {column.dtype}: {advice}, or name it in "
            "cat_exog_list"
        )
    # Decimal, object and text columns may hold numbers all the same.
    row, value = next(((row, value) for row, value in enumerate(column) if not _is_number(value)), (0, None))
    if value is None and objects and str(column.dtype) != "Boolean":  # numbers of another kind, which the host reads
        return
    if value is not None:
        drop = f"{argument}.drop({'columns=' if isinstance(column, pd.Series) else ''}{name!r})"
        advice = "give numbers alone" if needed else f"leave the column out, {drop}"
        if isinstance(value, Complex):
            advice = "a forecast has real parts alone: take its size (np.abs) or its parts as series of their own"
    raise ValueError(
        f"{argument} must hold real numbers in column {name!r}, got "
        f"{column.dtype if value is None else f'{value!r} in row {row}'}: {advice}"
    )


def _is_number(value: Any) -> bool:
    if value is None or value is pd.NA:  # missing, of which the host says so
        return True
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    # Of those of numpy it takes the real part, with a warning.
    return not np.iscomplexobj(value)


def _is_frame(frame: Any) -> bool:
    return isinstance(frame, pd.DataFrame) or f"{type(frame).__module__}.{type(frame).__name__}" == (
        "polars.dataframe.frame.DataFrame"
    )
