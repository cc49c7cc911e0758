"""Frames that a user hands to the host: what it would misread, or answer with words of another library."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from numbers import Complex, Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from neuralforecast.compat import SparkDataFrame
from pandas.api.types import is_numeric_dtype
from utilsforecast import processing
from utilsforecast.compat import DataFrame

from mvpa_ts.adapters.neuralforecast.dates import in_one_unit
from mvpa_ts.adapters.neuralforecast.training import as_trained, asked_levels, levels_of
from mvpa_ts.adapters.options import check_memory, check_whole, meant, temporarily, unchanged_if_refused
from mvpa_ts.checks import listed, warn
from mvpa_ts.forecasting.quantiles import quantiles_at
from mvpa_ts.forecasting.series import check_names

# Three decimal places below the largest number of float32, for sums and differences.
LARGEST = 1e33
_COUNTS = {"n_windows": 1, "step_size": 1, "val_size": 0, "test_size": 1, "h": 1}  # and the least of each
# What a call hands on to the models and to torch's DataLoader, and neither takes for something else.
_HANDED_ON = {"random_seed", "explainer_config", *inspect.signature(torch.utils.data.DataLoader).parameters}
_HANDED_ON -= {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "collate_fn", "drop_last"}
_ROUNDED = {"float64", "double", "int64", "uint64", "int32", "uint32"}  # types whose numbers float32 may round
_NOT_GIVEN = {"self", "data_kwargs", "explainer_config"}  # by a user


def checked_frame(
    argument: str, frame: Any, *, id_col: str, time_col: str | None = None, target_col: str | None = None,
    exogenous: Iterable[str] = (), others: bool = True, categories: Iterable[str] = (),
) -> Any:  # fmt: skip
    """A frame as the host reads it; raises ValueError where neuralforecast would misread rows, ids, dates or numbers.

    `argument` is its name, for messages. `static_df` has no dates, and `futr_df` no target. `exogenous` columns must be
    there too; what is in `categories` may be text, the `others` must be numbers where the host reads them.
    """
    if not isinstance(frame, DataFrame):
        raise ValueError(f"{argument} must be a frame of pandas or polars, got {type(frame).__name__}")
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
    if wrong := sorted({*exogenous} & {*keys, target_col, "available_mask"}):
        raise ValueError(
            "futr_exog_list, hist_exog_list and stat_exog_list must hold columns beside the id, the date and the "
            f"target of df, and not the available_mask, got {wrong}: leave them out, the model reads the target's past "
            "anyway"
        )
    # The host sorts an empty date last, so that forecasts begin there, and an empty id beside none.
    for name in keys:
        if (lost := pd.isna(frame[name].to_numpy())).any():
            raise ValueError(
                f"{argument} must have {'an id' if name == id_col else 'a date'} in each row, got none in column "
                f"{name!r} of row {int(lost.argmax())}: leave the row out"
            )
    for name in [id_col, *(name for name in columns if name in categories)]:
        _check_kinds(argument, frame, name, "ids" if name == id_col else "categories")
    ids = list(dict.fromkeys(frame[id_col].to_list()))  # pandas' unique ends text at a zero character
    check_names(ids, id_col, f"take {argument}[{id_col!r}].astype(str)")
    if not isinstance(frame, pd.DataFrame) and (zoned := [each for each in ids if getattr(each, "tzinfo", None)]):
        raise ValueError(
            f"{id_col} must be moments without a time zone in a frame of polars, since neuralforecast would load "
            f"{zoned[0]} as another moment: take pl.col({id_col!r}).dt.replace_time_zone(None)"
        )
    if time_col is not None:
        _check_dates(argument, frame, time_col)
    for name in (name for name in (columns if others else needed) if name not in (*keys, *categories)):
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
    return _of_numpy(frame, time_col)


def check_twice(argument: str, frame: Any, keys: list[str]) -> None:
    """Raise ValueError for a date that occurs twice in a series; ids and dates are in the columns `keys`."""
    pandas = isinstance(frame, pd.DataFrame)
    if (twice := (frame.duplicated(keys) if pandas else frame[keys].is_duplicated()).to_numpy()).any():
        series, date = (frame[key].to_list()[int(twice.argmax())] for key in keys)
        drop = f"drop_duplicates({keys})" if pandas else f"unique({keys})"
        raise ValueError(
            f"{argument} must hold each date once in a series, got {date} twice in series {series!r}: drop a row, "
            f"as {argument}.{drop} does; where clocks are set back, give dates in UTC instead"
        )


def check_cells(argument: str, frame: Any, keys: list[str]) -> None:
    """Raise ValueError for a cell that is empty or leaves float32 no room, in a row that is not masked.

    The row is named by its id and date, which are in `keys`.
    """
    if len(keys) > 1:
        check_twice(argument, frame, keys)
    names = [name for name in frame.columns if name not in keys]
    counted = frame["available_mask"].to_numpy() != 0 if "available_mask" in names else True
    for name in names:
        cells = frame[name].to_numpy()
        empty = pd.isna(cells)
        # Text of categories has no size.
        large = np.abs(pd.to_numeric(cells, errors="coerce")) > LARGEST
        if not (wrong := (empty | large) & counted).any():
            continue
        row = int(wrong.argmax())
        series, *date = (frame[key].to_list()[row] for key in keys)
        wanted, got, advice = f"a value in column {name!r} for each row", f"none for series {series!r}", "fill it"
        if not empty[row]:
            wanted, advice = "finite numbers", "mend it"
            if np.isfinite(cells[row]):
                wanted, advice = f"numbers up to {LARGEST:g}", "divide the column by a number"
            got = f"{cells[row]} in column {name!r} of series {series!r}"
        if argument == "df":
            advice += ", or set a column available_mask to 0 there, 1 elsewhere"
        elif argument == "futr_df" and empty[row]:
            advice += ", or add the row: make_future_dataframe() has all"
        raise ValueError(f"{argument} must hold {wanted}, got {got}{' at '.join(map(str, ['', *date]))}: {advice}")


def warn_of_rounding(frame: Any, id_col: str, time_col: str, target_col: str) -> None:
    """Warn of columns whose numbers are too large for their changes, or too small, for the host's float32."""
    for column in (name for name in frame.columns if name not in (id_col, time_col)):
        if str(frame[column].dtype).lower().removesuffix("[pyarrow]") not in _ROUNDED:
            continue
        values = pd.Series(np.asarray(frame[column], float))
        values = values.where(values.abs() <= LARGEST)  # on missing rows there may be others
        if not ((largest := values.abs().max()) > 1e4 or largest < 1e-30):
            continue
        lost = values.notna() & (values != values.astype(np.float32))  # whole numbers may fit
        table = pd.DataFrame({"value": values, "size": values.abs(), "lost": lost})
        number, names = pd.factorize(pd.Series(frame[id_col].to_list()))
        of_series = table.groupby(number)
        distances: Any = np.spacing(of_series["size"].max().astype(np.float32)).astype(float)
        deviations = of_series["value"].std(ddof=0)
        rounded = of_series["lost"].any() & (distances > 0.05 * deviations)
        if not rounded.any():
            continue
        worst = distances[rounded].idxmax()
        name, distance, deviation = names[worst], distances[worst], deviations[worst]
        advice = "subtract its level before fit and add it to the forecasts"
        if column != target_col:
            advice = "subtract its level"
        if distance < 1e-30:  # below the least number of float32
            advice = "multiply it by a large number"
        warn(
            f"column {column!r} of series {name!r} is rounded to multiples of {distance:g} and changes by only "
            f"{deviation:.3g}: neuralforecast keeps numbers in float32, which has seven digits; {advice}"
        )


def checked_call(call: Callable[..., Any], host: Any, *args: Any, **options: Any) -> Any:
    """Call a method of `NeuralForecast` after a look at the frames that it is given."""
    signature = inspect.signature(call)
    accepted = {*signature.parameters} | (_HANDED_ON if "data_kwargs" in signature.parameters else set())
    for name in {*options} - accepted:
        raise TypeError(f"{call.__name__} has no option {name!r}: {meant(name, accepted - _NOT_GIVEN)}")
    bound = signature.bind(host, *args, **options)
    given = bound.arguments
    if given.get("distributed_config") is not None or isinstance(given.get("df"), SparkDataFrame):
        raise ValueError(
            "df must be a pandas or polars frame, without distributed_config: Spark splits it by series, and MVPA "
            "attends across all series at once"
        )
    for name, least in _COUNTS.items():
        if name in given and not (given[name] is None and name in ("n_windows", "test_size", "h")):
            check_whole(least, **{name: given[name]})
    if texts := [name for name in ("use_init_models", "verbose", "refit") if isinstance(given.get(name), str)]:
        raise ValueError(f"{texts[0]} must be True or False, got {given[texts[0]]!r}")  # which counts as True
    # What `predict` was not told it takes from the fit.
    usual = {"id_col": "unique_id", "time_col": "ds", "target_col": "y"}
    columns = {name: given.get(name, getattr(host, name, column)) for name, column in usual.items()}
    _check_aliases(host, [*columns.values(), "cutoff"])
    for argument in ("df", "val_df", "static_df", "futr_df"):
        if isinstance(frame := given.get(argument), DataFrame):
            if not isinstance(frame, pd.DataFrame):
                host.freq = in_one_unit(host.freq)
            given[argument] = frame = _checked_argument(host, argument, frame, columns)
            if argument != "futr_df":  # of which the rows to forecast count
                keys = [columns["id_col"], columns["time_col"]]
                check_cells(argument, frame, keys[:1] if argument == "static_df" else keys)
            if argument == "df":
                warn_of_rounding(frame, **columns)
    if isinstance(given.get("futr_df"), DataFrame):
        _check_ahead(host, given["futr_df"], given.get("df"), given.get("h"))
    widths = getattr(host, "_cs_df", None) if given.get("level") or given.get("quantiles") else None
    if call.__name__ == "predict" and widths is not None and given.get("df") is not None:
        fitted_ids, ids = (list(dict.fromkeys(frame[columns["id_col"]])) for frame in (widths, given["df"]))
        if {*fitted_ids} != {*ids}:  # the host would take the widths of others
            raise ValueError(
                f"df must have the series whose errors prediction_intervals read in the fit, {listed(fitted_ids)}, got "
                f"{listed(ids)}: fit with these, or without prediction_intervals"
            )
    if (h := given.get("h")) is not None and h < host.h:
        raise ValueError(
            f"h must be at least {host.h}, that of the models, got {h}: keep the first {h} rows of each series, "
            f"forecast.groupby({columns['id_col']!r}).head({h}), or make models with h={h}"
        )
    if host._fitted and (sizes := [size for size in ("n_paths", "h") if isinstance(given.get(size), Integral)]):
        ids = host.uids if given.get("df") is None else given["df"][columns["id_col"]].unique()
        ahead = max(getattr(model, "bytes_ahead", 100) for model in host.models)
        check_memory(sizes[0], given[sizes[0]], len(ids) * (ahead if sizes[0] == "h" else 100 * host.h))
    # A cross-validation that fits anew asks `predict`, one that does not asks its models for nothing.
    own_quantiles = given.get("refit") or call.__name__ in ("simulate", "explain")
    levels = {} if own_quantiles else asked_levels(given.get("level"), given.get("quantiles"))
    answers = list(_answers(host, levels, handed_on="refit" not in signature.parameters)) if levels else []
    # It takes rows and scalers first, which `predict` would read.
    with ExitStack() as kept, unchanged_if_refused(host), temporarily(host, categories_before=host.categorical_vocab_):
        for model in filter(_is_own, host.models):
            kept.enter_context(as_trained(model.loss))
        table = call(*bound.args, **bound.kwargs)
        if call.__name__ == "cross_validation":
            table = _without_masked_targets(host, table, given.get("df"))
    for answer in answers:
        table = _answered(table, *answer)
    return table


def _without_masked_targets(host: Any, table: Any, frame: Any) -> Any:
    """The table of a cross-validation of a frame, without a target on rows with ``available_mask`` 0."""
    # The host gives back what is stored there, mostly 0, and errors are then counted against it.
    if frame is not None and "available_mask" not in frame.columns:
        return table
    keys, name = [host.id_col, host.time_col], "available_mask"
    if frame is None:
        data = host.dataset
        ids = processing.repeat(host.uids, np.diff(data.indptr))
        mask = data.temporal[:, data.temporal_cols.get_loc(name)].numpy()
        frame = type(table)({host.id_col: ids, host.time_col: host.ds, name: mask})
    missing = processing.join(table[keys], frame[[*keys, name]], on=keys, how="left")[name].to_numpy() == 0
    if not missing.any():
        return table
    target = table[host.target_col].to_numpy().astype(float)
    target[missing] = np.nan
    table = processing.assign_columns(table, host.target_col, target)
    return table if isinstance(table, pd.DataFrame) else table.fill_nan(None)


def _of_numpy(frame: Any, time_col: Any) -> Any:
    """A frame with dates and missing numbers of numpy: the host joins no dates of pyarrow, and stumbles over NA."""
    if not isinstance(frame, pd.DataFrame):
        return frame
    kinds = {name: float for name, column in frame.items() if column.hasnans and is_numeric_dtype(column)}
    frame = frame.astype(kinds)
    if time_col in frame and str(frame[time_col].dtype).startswith("timestamp"):
        frame[time_col] = pd.DatetimeIndex(frame[time_col])
    return frame


def of_this_package(host: Any) -> bool:
    """Whether a model of this package is among the models of a `NeuralForecast`."""
    return any(map(_is_own, host.models))


def _is_own(model: Any) -> bool:
    return type(model).__module__.startswith("mvpa_ts.")


def _answers(
    host: Any, asked: dict[str, float], *, handed_on: bool
) -> Iterator[tuple[list[str], list[float], dict[str, float]]]:
    """Columns of each model that was trained for several quantiles, their levels, and columns and levels asked for."""
    names = iter(host._get_model_names())
    for model in host.models:
        columns = [next(names) for _ in model.loss.output_names]
        stem = columns[0].removesuffix(model.loss.output_names[0])
        trained = levels_of(model.loss)
        if not _is_own(model) or (trained is None and (handed_on or {*asked} <= {*model.loss.output_names})):
            continue
        if trained is None:
            raise ValueError(
                f"level and quantiles of cross_validation need refit=True for {stem}, since neuralforecast hands them "
                f"to no model with loss={type(model.loss).__name__} that it fits once, got {list(asked)}"
            )
        levels = [round(float(level), 6) for level in trained]
        # The median comes with them, as from every such loss that was trained for it.
        wanted = {stem + end: level for end, level in asked.items() if end != "-median" or 0.5 in levels}
        if outside := [level for level in wanted.values() if not min(levels) <= level <= max(levels)]:
            raise ValueError(
                f"level and quantiles of {stem} must lie within those of its loss, the quantiles {sorted(levels)}, got "
                f"{outside}: fit it with them, such as loss=MQLoss(quantiles={sorted({*levels, *outside})})"
            )
        yield columns, levels, wanted


def _answered(table: Any, columns: list[str], levels: list[float], wanted: dict[str, float]) -> Any:
    """The host's table with the quantiles wanted in place of those trained, which it gives whatever is asked for."""
    trained, order = table[columns].to_numpy(), np.argsort(levels)
    values = quantiles_at(torch.from_numpy(trained[:, order]).double(), sorted(levels), list(wanted.values()))
    table = processing.assign_columns(table, list(wanted), values.numpy().astype(trained.dtype))
    replaced = {columns[0]: list(wanted), **dict.fromkeys(columns[1:], ())}
    names = [name for column in table.columns for name in replaced.get(column, () if column in wanted else [column])]
    return table[names]


def _check_aliases(host: Any, taken: list[str]) -> None:
    names = host._get_model_names()
    if clash := [name for name in names if name in taken or names.count(name) > 1]:
        raise ValueError(
            f"alias must differ from those of other models and from {taken}, which stand beside the forecasts, got "
            f"{clash[0]!r}: give the model another alias"
        )


def _checked_argument(host: Any, argument: str, frame: Any, columns: dict[str, Any]) -> Any:
    # Those of a search are in its config, which the host reads.
    futr, categories = host._get_needed_futr_exog(), host._get_categorical_exog()
    if argument == "static_df":
        stat = {name for model in host.models for name in getattr(model, "stat_exog_list", None) or ()}
        return checked_frame(argument, frame, id_col=columns["id_col"], exogenous=sorted(stat), categories=categories)
    if argument == "futr_df":
        keys = {name: columns[name] for name in ("id_col", "time_col")}
        return checked_frame(argument, frame, **keys, exogenous=sorted(futr), categories=categories, others=False)
    frame = checked_frame(argument, frame, **columns, exogenous=sorted(host._get_needed_exog()), categories=categories)
    check_freq(frame[columns["time_col"]], host.freq)
    if isinstance(host.freq, int):
        _check_room(argument, frame, columns["time_col"], host.h * host.freq)
    return frame


def check_freq(dates: Any, freq: Any) -> None:
    """Raise ValueError for a frequency that makes no later dates; the host would say so after the training."""
    first, reason = dates[:1], "which leads to no later date"
    try:
        forward = bool((processing.offset_times(first, freq, 1) > first).all())
        # The host cannot count some steps of pandas, such as the last Friday, nor two units of polars.
        forward &= len(processing.time_ranges(first, freq, 3)) == 3
    except Exception as error:  # pandas and polars have several
        forward, reason = False, str(error)
    if not forward:
        raise ValueError(
            f"freq must be a step of dates of type {dates.dtype}, got {freq!r} ({reason}): give a text such as 'h' or "
            "'ME', for polars '1h' or '1mo', or a whole number for whole numbers"
        )


def _check_ahead(host: Any, frame: Any, df: Any, h: int | None) -> None:
    """Raise ValueError for `futr_df` that lacks a row or a value of the forecast, or names rows in another way."""
    expected, keys = host.make_future_dataframe(df, h), [host.id_col, host.time_col]
    names = sorted(host._get_needed_futr_exog() & {*frame.columns})
    try:
        rows = processing.join(expected, frame[[*keys, *names]], on=keys, how="left")
    except Exception as error:  # pandas and polars have several, for a type or a time zone that df has not
        wanted, got = ([str(table[key].dtype) for key in keys] for table in (expected, frame))
        raise ValueError(
            f"futr_df must be a frame like df, with ids and dates in columns {keys} of the types of a forecast "
            f"{wanted}, got {type(frame).__module__.split('.')[0]} with {got}: begin with make_future_dataframe(). "
            ".dt.tz_localize(None) takes a time zone away, .dt.replace_time_zone(None) in polars"
        ) from error
    check_cells("futr_df", rows, keys)


def _check_room(argument: str, frame: Any, name: str, ahead: int) -> None:
    # Whole numbers of few bits begin anew at the least one when the host counts on.
    kind, last = str(frame[name].dtype).lower().removesuffix("[pyarrow]"), frame[name].max()
    if re.fullmatch(r"u?int\d+", kind) and int(last) + ahead > np.iinfo(kind).max:
        raise ValueError(
            f"{argument} must have dates in column {name!r} of a type that holds those of the forecast, too, got "
            f"{kind} up to {last}: take numbers of 64 bits"
        )


def _check_kinds(argument: str, frame: Any, name: str, what: str) -> None:
    # A column of pandas may hold anything; the host sorts it, which numbers and text together cannot be.
    kinds = {*map(type, pd.Series(frame[name].unique()).dropna())}
    words = listed(sorted(kind.__name__ for kind in kinds))
    cast = "astype(str)" if isinstance(frame, pd.DataFrame) else "cast(pl.String)"
    got = f"in column {name!r}, got {words}: take {argument}[{name!r}].{cast}"
    if len(kinds) > 1:
        raise ValueError(f"{argument} must have {what} of one kind {got}")
    # Of others the host's `save` says, after the training, that it has no words for them.
    if what == "categories" and not all(issubclass(kind, (str, int, float, np.number, np.bool_)) for kind in kinds):
        raise ValueError(f"{argument} must have categories that are text, numbers or flags, which can be saved, {got}")


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
