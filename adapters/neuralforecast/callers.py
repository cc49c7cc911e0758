"""What the NeuralForecast object that calls a model knows of its panel, and no dataset does: ids, dates, frequency."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
from neuralforecast.core import NeuralForecast
from neuralforecast.tsdataset import BaseTimeSeriesDataset
from utilsforecast.processing import process_df


def fitting(dataset: BaseTimeSeriesDataset) -> NeuralForecast | None:
    """The NeuralForecast object that fits models to the dataset, where it knows the dates of all rows.

    None where a model is called without NeuralForecast, or with validation rows of their own.
    """
    host = next((host for host, _ in _callers() if getattr(host, "dataset", None) is dataset), None)
    return None if host is None or len(host.ds) != int(dataset.indptr[-1]) else host


def with_validation_rows() -> bool:
    """Whether a call of `NeuralForecast.fit` is under way with validation rows of its own, `val_df`."""
    return any(variables.get("val_df") is not None for _, variables in _callers())


def fitted_dates(dataset: BaseTimeSeriesDataset) -> tuple[NeuralForecast, Any, list[np.ndarray]] | None:
    """Dates of each series of the panel that the NeuralForecast object holds, with their ids."""
    host = fitting(dataset)
    return None if host is None else (host, host.uids, np.split(np.asarray(host.ds), dataset.indptr[1:-1]))


def predicted_dates(dataset: BaseTimeSeriesDataset, read: int) -> tuple[NeuralForecast, Any, list[np.ndarray]] | None:
    """Dates of the last rows of each series of a frame that came with `predict`; None if `fit` has seen the same."""
    for host, variables in _callers():
        if variables.get("use_fitted"):
            return fitted_dates(dataset)  # of cross_validation without a fit
        df = variables.get("df")
        if variables.get("dataset") is dataset and "last_dates" in variables and df is not None:
            columns = [host.id_col, host.time_col, host.target_col]
            panel = process_df(df[columns], *columns)
            dates = df[host.time_col].to_numpy()
            dates = dates if panel.sort_idxs is None else dates[panel.sort_idxs]
            if np.array_equal(dates, getattr(host, "ds", [])) and list(panel.uids) == list(host.uids):
                return None
            return host, panel.uids, [part[-read:] for part in np.split(dates, panel.indptr[1:-1])]
    return None


def table(name: str) -> tuple[NeuralForecast, Any] | None:
    """A table beside df, such as `static_df`, that came with the call, and the NeuralForecast object that has it."""
    told = ((host, variables[name]) for host, variables in _callers() if variables.get(name) is not None)
    return next(told, None)


def frequency() -> Any:
    """The frequency of the NeuralForecast object that calls the model; None without one."""
    return next((getattr(host, "freq", None) for host, _ in _callers()), None)


def ids(dataset: BaseTimeSeriesDataset) -> list[Any] | None:
    """The panel's ids: no dataset holds them, the NeuralForecast object that is calling the model does."""
    for host, variables in _callers():
        if variables.get("dataset") is dataset and "uids" in variables:  # predict
            return list(variables["uids"])
        if getattr(host, "dataset", None) is dataset:  # fit
            return list(host.uids)
    return None


def _callers() -> Iterator[tuple[NeuralForecast, dict[str, Any]]]:
    """NeuralForecast objects among the callers, with the variables of their methods."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), NeuralForecast):
            yield caller, frame.f_locals
        frame = frame.f_back
