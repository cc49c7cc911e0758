"""The forecaster's parameters in the words of the core: the sizes of its network and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mvpa_ts.adapters import host_words
from mvpa_ts.forecasting.configuration import ForecastingConfig
from mvpa_ts.forecasting.quantiles import checked_levels
from mvpa_ts.forecasting.training import ForecasterTraining
from mvpa_ts.windows import Series

_HOST_NAMES = {"lookback": "input_size", "cycle_length": "sp", "levels": "quantiles"}


def network_config(parameters: Mapping[str, Any], series: list[Series], horizon: int) -> ForecastingConfig:
    """The network for these series; what the parameters leave open follows from their length."""
    if parameters["phase_weights"] and parameters["sp"] is None:
        raise ValueError("phase_weights needs sp, the steps of the cycle")
    rows, channels = max(len(one.values) for one in series), series[0].values.shape[1]
    lookback = parameters["input_size"]
    if lookback is None:
        lookback = max(1, min(max(96, 2 * horizon), (rows - horizon) * 2 // 3))
    patch = parameters["patch_length"]
    if patch is None:
        patch = min(ForecastingConfig.patch_length, -(-lookback // 2))
    features = series[0].features
    window = parameters["channel_window"]
    if window is not None and window >= channels:
        raise ValueError(
            f"channel_window must be None or from 1 to {channels - 1}, one less than the columns of y, got {window}"
        )
    with host_words(_HOST_NAMES):
        return ForecastingConfig(
            horizon=horizon,
            lookback=lookback,
            patch_length=patch,
            patch_stride=max(1, patch // 2) if parameters["patch_stride"] is None else parameters["patch_stride"],
            dim=parameters["dim"],
            num_heads=parameters["num_heads"],
            mlp_dim=parameters["mlp_dim"],
            num_layers=parameters["num_layers"],
            components=parameters["components"],
            channel_distance=parameters["channel_distance"],
            max_channels=parameters["max_channels"],
            channel_window=parameters["channel_window"],
            dropout=parameters["dropout"],
            attention_dropout=parameters["attention_dropout"],
            head_dropout=parameters["head_dropout"],
            num_outputs=len(checked_levels(parameters["quantiles"])),
            cycle_length=parameters["sp"],
            phase_weights=parameters["phase_weights"],
            individual_channels=channels if parameters["individual"] else None,
            level_reversion=parameters["level_reversion"],
            bounded_channels=channels if parameters["bounded"] else None,
            future_size=0 if features is None else features.shape[1],
            shuffle_channels=parameters["shuffle_channels"],
        )


def training_of(parameters: Mapping[str, Any], steps: int, *, from_scratch: bool) -> ForecasterTraining:
    """How a new network is trained, or, at a tenth of the learning rate, one that is trained already."""
    share, linear = (1.0 if from_scratch else 0.1), parameters["linear_learning_rate"]
    with host_words({"steps": "max_steps" if from_scratch else "finetune_steps"}):
        return ForecasterTraining(
            steps=steps,
            batch_size=parameters["batch_size"],
            learning_rate=share * parameters["learning_rate"],
            linear_learning_rate=None if linear is None else share * linear,
            weight_decay=parameters["weight_decay"],
            weight_averaging=parameters["weight_averaging"],
            horizon_decay=parameters["horizon_decay"],
            frequency_weight=parameters["frequency_weight"],
            ridge=parameters["ridge"],
            cycle_strength=parameters["cycle_strength"],
            reversion_strength=parameters["reversion_strength"],
            validation_fraction=parameters["validation_fraction"],
            patience=parameters["patience"],
        )
