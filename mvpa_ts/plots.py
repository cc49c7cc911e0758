"""Pictures of a forecast and of what the channels of a panel read of each other. They need matplotlib."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts._lazy import library_of
from mvpa_ts.checks import listed
from mvpa_ts.forecasting.channel_weights import ChannelWeights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 12  # series that are drawn unless more are named
_SHADES = (0.15, 0.3)  # of the widest interval and of the narrowest


def forecast(df: Any, forecast: Any, pred_interval: Any = None, *, series: Iterable[Any] | None = None) -> Figure:
    """Draw each series, its forecast and its intervals.

    Parameters
    ----------
    df : pandas.DataFrame or Series
        What was observed. As neuralforecast takes it, with columns `unique_id`, `ds` and `y`; or as sktime takes it,
        a column a series. Rows with `available_mask = 0` are left out.
    forecast : pandas.DataFrame or Series
        What `predict`, `cross_validation` or `predict_quantiles` of the same host gave.
    pred_interval : pandas.DataFrame, optional
        What sktime's `predict_interval` gave. Frames of neuralforecast hold their intervals already.
    series : iterable, optional
        Names of the series to draw, by default the first 12, as the title then says.

    Returns
    -------
    matplotlib.figure.Figure
        An axis a series. The observed rows are the last ones, four horizons at the most.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        The frames are not of one host, or a series is in one of them only.

    Examples
    --------
    >>> from neuralforecast.utils import AirPassengersPanel
    >>> from mvpa_ts import plots
    >>> panel = AirPassengersPanel[["unique_id", "ds", "y"]]
    >>> future = panel.groupby("unique_id").tail(12).rename(columns={"y": "naive"})
    >>> figure = plots.forecast(panel.groupby("unique_id").head(132), future)
    >>> [axis.get_title() for axis in figure.axes]
    ['Airline1', 'Airline2']
    """
    frames = {"df": _of_pandas(df), "forecast": _of_pandas(forecast)}
    for name, frame in frames.items():
        if not hasattr(frame, "to_numpy"):
            raise ValueError(f"{name} must be a frame, or a series of pandas, got {type(frame).__name__}")
    panels = [name for name, frame in frames.items() if "unique_id" in getattr(frame, "columns", ())]
    if len(panels) == 1:
        raise ValueError(
            f"df and forecast must be frames of one host, got the column unique_id in {panels[0]} alone: give both as "
            "neuralforecast has them, or both with a column a series, as sktime has them"
        )
    columns = () if panels else getattr(frames["df"], "columns", ())
    if texts := [name for name in columns if getattr(frames["df"].dtypes[name], "kind", "O") not in "biuf"]:
        raise ValueError(
            f"df must have the columns unique_id, ds and y as neuralforecast has them, or numbers as sktime has them, "
            f"got {listed(map(repr, texts))}: rename the columns of both frames"
        )
    read = _of_neuralforecast if panels else _of_sktime
    observed, lines = read(frames["df"], frames["forecast"], pred_interval)
    names = _chosen(series, forecast=lines, df=observed)
    figure, axes = _figure(len(names), len(lines) if series is None else 0)
    for axis, name in zip(axes, names, strict=True):
        steps, levels = lines[name]
        past, truth = observed[name]
        keep = max(24, 4 * len(steps))
        axis.plot(past[-keep:], truth[-keep:], color="black", linewidth=1.0, label="observed")
        middle, intervals = _middle_and_intervals(levels)
        for rank, (label, (lower, upper)) in enumerate(intervals.items()):
            alpha = np.interp(rank, (0, max(1, len(intervals) - 1)), _SHADES)
            axis.fill_between(steps, lower, upper, color="tab:blue", alpha=alpha, linewidth=0, label=label)
        for label, values in middle.items():
            axis.plot(steps, values, label=label)
        axis.set_title(str(name))
    _finish(figure, axes)
    return figure


def anomalies(found: Any, *, series: Iterable[Any] | None = None) -> Figure:
    """Draw each series, what was expected of it, and the values that nobody would expect.

    Parameters
    ----------
    found : pandas.DataFrame
        What `detect_anomalies` gave.
    series : iterable, optional
        Names of the series to draw, by default the first 12, as the title then says.

    Returns
    -------
    matplotlib.figure.Figure
        An axis a series. Points are anomalies, full where this series is the source of its row.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        A series is not in the table.

    Examples
    --------
    >>> import pandas as pd
    >>> from mvpa_ts import plots
    >>> row = {"unique_id": "a", "y": 9.0, "forecast": 1.0, "anomaly": True, "source": True}
    >>> figure = plots.anomalies(pd.DataFrame([row | {"ds": 1}, row | {"ds": 2, "y": 1.0, "anomaly": False}]))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['observed', 'expected', 'anomaly', 'anomaly and its source']
    """
    rows = {name: row.sort_values("ds") for name, row in _of_pandas(found).groupby("unique_id", sort=False)}
    names = _chosen(series, found=rows)
    figure, axes = _figure(len(names), len(rows) if series is None else 0)
    for axis, name in zip(axes, names, strict=True):
        row = rows[name]
        axis.plot(row["ds"], row["y"], color="black", linewidth=1.0, label="observed")
        axis.plot(row["ds"], row["forecast"], color="tab:blue", linewidth=0.8, label="expected")
        for label, chosen, fill in (
            ("anomaly", row["anomaly"] & ~row["source"], "none"),
            ("anomaly and its source", row["anomaly"] & row["source"], "tab:red"),
        ):
            axis.plot(row["ds"][chosen], row["y"][chosen], "o", color="tab:red", markerfacecolor=fill, label=label)
        axis.set_title(str(name))
    _finish(figure, axes)
    return figure


def channels(forecaster: Any, *, model: int = 0, **predict: Any) -> Figure:
    """Draw how much the channels attend to each other while a fitted model forecasts.

    Parameters
    ----------
    forecaster : NeuralForecast or MVPAForecaster
        Fitted, with `MVPA`, `MVPA.from_pretrained` or, in sktime, `MVPAForecaster`.
    model : int, default 0
        Which of the models of `NeuralForecast`.
    **predict
        What `predict` needs, such as `df`, `futr_df` or `X`.

    Returns
    -------
    matplotlib.figure.Figure
        A map, where each channel has two coordinates or more (`channel_positions`): a line for each of the largest
        weights, as wide as the weight. Else a matrix in the order in which the network sees the channels: a row reads
        a column. Weights are means over heads, layers and segments; those of a row sum to 1.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        The model has no attention between channels, or the panel more than 128 series.

    Notes
    -----
    A weight says where the attention looks, not what a forecast rests on: the linear path and the regressions read
    other channels, too. `docs/guides/explanations.md` has the latter.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from mvpa_ts import plots
    >>> from mvpa_ts.adapters.sktime import MVPAForecaster
    >>> y = pd.DataFrame(np.random.default_rng(0).standard_normal((60, 3)), columns=["a", "b", "c"])
    >>> figure = plots.channels(MVPAForecaster(max_steps=2, random_state=0).fit(y, fh=[1]))
    >>> figure.axes[0].images[0].get_array().sum(1).round(3).tolist()
    [1.0, 1.0, 1.0]
    """
    several = hasattr(forecaster, "models")
    if several and model not in range(-len(forecaster.models), len(forecaster.models)):
        raise ValueError(f"model must be the number of a model, 0 to {len(forecaster.models) - 1}, got {model!r}")
    fitted: Any = forecaster.models[model] if several else getattr(forecaster, "fitted_", None)
    fitted = getattr(fitted, "model", fitted)  # of a search the best
    if not hasattr(fitted, "network"):
        raise ValueError(
            "forecaster must be a fitted NeuralForecast with MVPA, or a fitted MVPAForecaster of one panel, got "
            f"{type(forecaster).__name__}"
        )
    with ChannelWeights(fitted.network) as recorded:
        ahead = forecaster.predict(**predict)
    if several:
        ids = list(dict.fromkeys(ahead[forecaster.id_col]))  # unique() of polars has no order
        view = fitted.view(len(ids), next(fitted.network.parameters()).device)
        names, positions = [ids[row] for row in view.order.tolist()], view.inputs.get("positions")
    else:
        names, positions = forecaster._columns.names, forecaster._columns.channel_inputs.get("positions")
    weights = recorded.of(len(names))
    figure, (axis,) = _figure(1)
    if positions is not None and positions.shape[1] > 1:
        _map(axis, names, weights, positions)
        return figure
    image = axis.imshow(weights, vmin=0.0)
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="read channel", ylabel="forecast channel", title="attention between channels")
    figure.colorbar(image, ax=axis, label="weight")
    return figure


def _of_pandas(frame: Any) -> Any:
    """A frame of polars as one of pandas; others as they are."""
    if not hasattr(frame, "to_dicts"):
        return frame
    import pandas as pd

    return pd.DataFrame(frame.to_dict(as_series=False))


def _chosen(series: Iterable[Any] | None, **tables: dict[Any, Any]) -> list[Any]:
    argument, given = next(iter(tables.items()))
    names = list(given if series is None else series)
    # The letters of a text would be looked for as names.
    if isinstance(series, str):
        raise ValueError(f"series must be a list of names, got {series!r}: pass [{series!r}]")
    if not names:
        raise ValueError(f"{argument} and series must hold at least one series, got none")
    if strange := [repr(name) for name in names if not all(name in table for table in tables.values())]:
        has = listed(map(repr, given))
        raise ValueError(f"series must be in {' and in '.join(tables)}, got {listed(strange)}; {argument} has {has}")
    # A panel of hundreds would be a wall of stamps; who wants others names them.
    return names[: _MOST if series is None else None]


def _figure(count: int, available: int = 0) -> tuple[Figure, list[Any]]:
    """A figure with so many axes, two beside each other; its title says if more series are available."""
    # Loaded here, so that whoever draws nothing needs no matplotlib.
    with library_of("plots", __name__):
        from matplotlib import pyplot
    columns = min(count, 2)
    rows = -(-count // columns)
    size = (5 * columns, (2.5 if count > 1 else 4) * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:  # dates of hours would lie over each other
        axis.tick_params("x", rotation=30)
    for empty in axes.flat[count:]:
        empty.remove()
    if available > count:
        figure.suptitle(f"{count} of {available} series: series=[…] draws others")
    return figure, list(axes.flat[:count])


def _finish(figure: Figure, axes: list[Any]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    # Below the axes, where it covers no value.
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    for axis in axes:
        if isinstance(locator := axis.xaxis.get_major_locator(), AutoDateLocator):  # whole dates would touch
            axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))
            axis.tick_params("x", rotation=0)


# Of each series: steps, and the columns of its forecast by what they are.
_Lines = dict[Any, tuple[Any, dict[Any, np.ndarray]]]


def _of_neuralforecast(df: Any, forecast: Any, pred_interval: Any) -> tuple[dict[Any, Any], _Lines]:
    if pred_interval is not None:
        raise ValueError("pred_interval is for sktime: a forecast of neuralforecast holds its intervals")
    for name, frame, needed in (("df", df, {"ds", "y"}), ("forecast", forecast, {"ds"})):
        if lacking := sorted(needed - {*frame.columns}):
            raise ValueError(
                f"{name} must have the columns unique_id, ds and y as neuralforecast has them, no {lacking}"
            )
    if "available_mask" in df.columns:
        df = df.assign(y=df["y"].where(df["available_mask"] > 0))
    series = df.sort_values("ds").groupby("unique_id")
    observed = {name: (rows["ds"].to_numpy(), rows["y"].to_numpy()) for name, rows in series}
    columns = [
        name
        for name, kind in forecast.dtypes.items()
        if name not in ("unique_id", "ds", "cutoff", "y") and kind.kind in "biuf"
    ]
    # Windows of cross-validation may overlap: the last forecast of a date is drawn.
    forecast = forecast.sort_values([name for name in ("ds", "cutoff") if name in forecast.columns])
    forecast = forecast.drop_duplicates(["unique_id", "ds"], keep="last")
    lines: _Lines = {}
    for name, rows in forecast.groupby("unique_id"):
        lines[name] = rows["ds"].to_numpy(), {_level(column): rows[column].to_numpy(float) for column in columns}
    return observed, lines


def _level(column: str) -> Any:
    """A column's name in neuralforecast's frames, or ("MODEL", 80.0, "lo") for MODEL-lo-80."""
    named = re.fullmatch(r"(.+)-(lo|hi)-(\d+(?:\.\d+)?)", column)
    return (named[1], float(named[3]), named[2]) if named else column


def _of_sktime(y: Any, forecast: Any, pred_interval: Any) -> tuple[dict[Any, Any], _Lines]:
    # matplotlib draws dates, not periods.
    def steps(index: Any) -> Any:
        return (index.to_timestamp() if hasattr(index, "to_timestamp") else index).to_numpy()

    y = (y.to_frame() if not hasattr(y, "columns") else y).sort_index()
    names = list(y.columns)
    observed = {name: (steps(y.index), y[name].to_numpy(float)) for name in names}
    forecast = forecast.to_frame() if not hasattr(forecast, "columns") else forecast
    lines: _Lines = {}
    for frame in (forecast, pred_interval):
        for column in () if frame is None else frame.columns:
            name, *rest_of_name = column if isinstance(column, tuple) else (column,)
            # A series without a name is column 0 of both, or has the name of a number.
            name = names[0] if len(names) == 1 else name
            _, levels = lines.setdefault(name, (steps(frame.index), {}))
            label: Any = "forecast"
            if len(rest_of_name) == 2:
                label = ("", round(100 * float(rest_of_name[0]), 6), "lo" if rest_of_name[1] == "lower" else "hi")
            elif rest_of_name and rest_of_name[0] != 0.5:
                label = ("", round(200 * abs(float(rest_of_name[0]) - 0.5), 6), "lo" if rest_of_name[0] < 0.5 else "hi")
            levels[label] = frame[column].to_numpy(float)
    return observed, lines


def _middle_and_intervals(levels: dict[Any, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Point forecasts by name, and pairs of bounds by name, the widest first."""
    middle = {name: values for name, values in levels.items() if isinstance(name, str)}
    lower = {name[:2]: values for name, values in levels.items() if name[-1] == "lo"}
    upper = {name[:2]: values for name, values in levels.items() if name[-1] == "hi"}
    # The widest first, so that narrower ones are drawn over it.
    widest = sorted(lower.keys() & upper.keys(), key=lambda pair: (-pair[1], pair[0]))
    return middle, {
        f"{model} {share:g} %".strip(): (lower[model, share], upper[model, share]) for model, share in widest
    }


def _map(axis: Any, names: list[Any], weights: np.ndarray, positions: Any) -> None:
    """Channels at their first two coordinates, joined by the largest weights."""
    places = positions.cpu().numpy()[:, :2]
    others = weights - np.diag(weights.diagonal())
    # Of a hundred channels, ten thousand arrows would hide what matters.
    order = np.argsort(others, axis=None)[::-1][: 3 * len(names)]
    for row, column in zip(*np.unravel_index(order, others.shape), strict=True):
        width = 4.0 * others[row, column] / others.max()
        axis.annotate("", places[row], places[column], arrowprops={"arrowstyle": "->", "lw": width, "alpha": 0.6})
    axis.scatter(*places.T, s=200.0 * len(names) * weights.mean(0), zorder=2)
    for name, place in zip(names, places, strict=True):
        axis.annotate(str(name), place, xytext=(4, 4), textcoords="offset points")
    axis.set(title="attention between channels: from read to forecast", aspect="equal")
