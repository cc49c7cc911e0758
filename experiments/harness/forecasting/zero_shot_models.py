"""Forecasters that the pretrained one is compared with: seasonal naive, statsforecast's, and models that are trained.

A forecaster takes a history [L, C] and a set, and returns quantiles [h, C, 9].
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from harness.board.models import long_panel
from harness.forecasting.zero_shot_sets import CONTEXT, EvaluationSet
from harness.quiet import QUIET

from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.base import LEVELS
from mvpa_ts.forecasting.pretrained.seasons import season_of

NAIVE = "seasonal naive"
PRETRAINED = "MVPA, pretrained"
SMALL = "MVPA, pretrained, small"
FREQUENCIES = {
    "5 minutes": "5min", "10 minutes": "10min", "half-hourly": "30min", "hourly": "h", "weekly": "W", "monthly": "ME",
    "quarterly": "QE", "yearly": "YE",
}  # fmt: skip
"""Names of pandas, which tell the season to a pretrained forecaster; those of sunspots are years, without a season."""
Forecast = Callable[[np.ndarray, EvaluationSet], np.ndarray]


def pretrained(base: str) -> Forecast:
    """The shipped network, told what a host knows: the values and their frequency."""
    network = load_base(base)

    def forecast(history: np.ndarray, of: EvaluationSet) -> np.ndarray:
        x = torch.tensor(history[-CONTEXT:], dtype=torch.float32)[None]
        season = season_of(FREQUENCIES[of.frequency])
        with torch.no_grad():
            quantiles = forecast_quantiles(network, x.nan_to_num(0.0), ~x.isnan(), horizon=of.horizon, season=season)
        return quantiles[0].double().numpy()

    return forecast


def seasonal_naive(_: str) -> Forecast:
    """The value a season ago, with quantiles from the history's seasonal differences."""

    def forecast(history: np.ndarray, of: EvaluationSet) -> np.ndarray:
        past = pd.DataFrame(history[-CONTEXT:]).ffill().bfill().to_numpy()
        steps = np.arange(of.horizon)
        middle = past[len(past) - of.season + steps % of.season]
        spread = np.nanquantile(past[of.season :] - past[: -of.season], LEVELS, axis=0).T  # [C, Q]
        cycles = np.sqrt(1 + steps // of.season)[:, None, None]
        spread = spread - spread[:, 4:5]
        return middle[..., None] + cycles * spread

    return forecast


def classical(model: str) -> Forecast:
    """AutoETS or AutoTheta of statsforecast; a season above 24 is not modelled by ETS, as the library advises."""
    from statsforecast import models

    def forecast(history: np.ndarray, of: EvaluationSet) -> np.ndarray:
        past = pd.DataFrame(history[-CONTEXT:]).ffill().bfill().to_numpy()
        season = of.season if of.season <= 24 and len(past) > 2 * of.season else 1
        result = np.empty((of.horizon, past.shape[1], len(LEVELS)))
        for channel in range(past.shape[1]):
            fitted = getattr(models, model)(season_length=season)
            with warnings.catch_warnings(action="ignore"):
                out = fitted.forecast(past[:, channel], of.horizon, level=[20, 40, 60, 80])
            columns = [out[f"lo-{level}"] for level in (80, 60, 40, 20)]
            columns += [out["mean"]] + [out[f"hi-{level}"] for level in (20, 40, 60, 80)]
            result[:, channel] = np.stack(columns, 1)
        return np.sort(result, axis=2)

    return forecast


def trained(model: str) -> Forecast:
    """A model of neuralforecast trained for 500 steps on what lies before the first origin; never again."""
    fitted: dict[int, Any] = {}

    def forecast(history: np.ndarray, of: EvaluationSet) -> np.ndarray:
        from neuralforecast import NeuralForecast, models
        from neuralforecast.losses.pytorch import MQLoss

        from mvpa_ts.adapters.neuralforecast import MVPA

        C = history.shape[1]
        values = pd.DataFrame(history).ffill().bfill().to_numpy()
        if not fitted:
            lookback = int(min(CONTEXT // 2, max(of.horizon, 2 * of.season), len(values) - 2 * of.horizon - 1))
            common = {
                "h": of.horizon, "input_size": max(lookback, 4), "max_steps": 500, "loss": MQLoss(quantiles=LEVELS),
                "random_seed": 1, **QUIET,
            }  # fmt: skip
            if model == "NHITS":
                chosen = models.NHITS(**common, scaler_type="standard")
            elif model == "iTransformer":
                chosen = models.iTransformer(**common, n_series=C, scaler_type="standard")
            else:
                chosen = MVPA(**common, n_series=C)
            fitted[0] = NeuralForecast(models=[chosen], freq=1)
            fitted[0].fit(long_panel(values))
        out = fitted[0].predict(long_panel(values[-CONTEXT:]))
        columns = [column for column in out.columns if column not in ("unique_id", "ds")]
        return np.sort(out[columns].to_numpy().reshape(C, of.horizon, len(columns)).transpose(1, 0, 2), axis=2)

    return forecast


MODELS: dict[str, Callable[[str], Forecast]] = {
    NAIVE: seasonal_naive,
    PRETRAINED: pretrained,
    SMALL: lambda _: pretrained("small"),
    "AutoETS": lambda _: classical("AutoETS"),
    "AutoTheta": lambda _: classical("AutoTheta"),
    "NHITS, trained": lambda _: trained("NHITS"),
    "iTransformer, trained": lambda _: trained("iTransformer"),
    "MVPA, trained": lambda _: trained("MVPA"),
}
