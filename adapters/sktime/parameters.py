"""The forecaster's parameters in the words of the core: the sizes of its network and how it is trained."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mvpa_ts.adapters.options import host_words
from mvpa_ts.adapters.sktime.columns import checked_positions
from mvpa_ts.checks import check_flags

if TYPE_CHECKING:
    from mvpa_ts.forecasting.network.configuration import ForecastingConfig
    from mvpa_ts.forecasting.training import ForecasterTraining
    from mvpa_ts.windows import Series

_HOST_NAMES = {
    "lookback": "input_size", "cycle_length": "sp", "levels": "quantiles", "position_size": "channel_positions",
}  # fmt: skip

_SERIES_OF_STEP = 8192  # windows times columns that a training step reads, unless it is told


def checked_device(name: str) -> str:
    """The name of a device that torch has; raises ValueError where it knows none of this name or sees none."""
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise ValueError(f"device must be a name that torch knows, such as 'cpu' or 'cuda', got {name!r}") from error
    seen = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not seen.get(kind, True):
        raise ValueError(f"device is {name!r}, but torch finds no such device on this machine: set device='cpu'")
    return name


def network_config(parameters: Mapping[str, Any], series: list[Series], horizon: int) -> ForecastingConfig:
    """The network for these series; what the parameters leave open follows from their length."""
    from mvpa_ts.forecasting.network.configuration import ForecastingConfig
    from mvpa_ts.forecasting.quantiles import checked_levels

    check_flags(SimpleNamespace(**parameters), "channel_vectors", "individual", "bounded", "phase_weights")
    if parameters["phase_weights"] and parameters["sp"] is None:
        raise ValueError("phase_weights needs sp, the number of steps in a cycle: set sp, or leave phase_weights out")
    rows, channels = max(len(part.values) for part in series), series[0].values.shape[1]
    lookback = parameters["input_size"]
    if lookback is None:
        lookback = max(1, min(max(96, 2 * horizon), (rows - horizon) * 2 // 3))
    patch = parameters["patch_length"]
    if patch is None:
        half = -(-int(lookback) // 2) if isinstance(lookback, Integral) else 1  # the network names what is no number
        patch = min(ForecastingConfig.patch_length, half)
    features = series[0].features
    window, positions = parameters["channel_window"], checked_positions(parameters["channel_positions"])
    if isinstance(window, Integral) and window >= channels:
        raise ValueError(
            f"channel_window must be None or from 1 to {channels - 1}, one less than the columns of y, got {window}"
        )
    with host_words(_HOST_NAMES):
        config = ForecastingConfig(
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
            channel_window=window,
            mixing_heads=parameters["mixing_heads"],
            channel_vectors=channels if parameters["channel_vectors"] else None,
            position_size=0 if positions is None else len(next(iter(positions.values()))),
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
        config.check_cost("position_size", channels)
    warn_of_short_series(rows, parameters)
    return config.with_vectors(channels) if parameters["channel_vectors"] is None else config


def warn_of_short_series(rows: int, parameters: Mapping[str, Any]) -> None:
    """Warn of an `sp` that no series repeats, and of an `input_size` that no series fills."""
    sp, lookback = parameters["sp"], parameters["input_size"]
    if sp is not None and rows <= sp:
        warnings.warn(
            f"sp ({sp}) should be smaller than the number of rows of y, got {rows}: no step of the cycle comes twice, "
            "so it cannot be learnt. Give more rows, a shorter sp, or leave sp out",
            stacklevel=2,
        )
    if lookback is not None and rows < lookback:
        warnings.warn(
            f"input_size ({lookback}) should be at most the number of rows of y, got {rows}: steps before the first "
            "row count as missing. Give more rows, a smaller input_size, or leave input_size out",
            stacklevel=2,
        )


def training_of(parameters: Mapping[str, Any], steps: int, columns: int, *, from_scratch: bool) -> ForecasterTraining:
    """How a new network is trained, or, at a tenth of the learning rate, one that is trained already."""
    from mvpa_ts.forecasting.training import ForecasterTraining

    windows = parameters["batch_size"]
    if windows is None:
        windows = min(ForecasterTraining.batch_size, max(8, _SERIES_OF_STEP // columns))
    with host_words({"steps": "max_steps" if from_scratch else "finetune_steps"}):
        training = ForecasterTraining(
            steps=steps,
            batch_size=windows,
            learning_rate=parameters["learning_rate"],
            linear_learning_rate=parameters["linear_learning_rate"],
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
    if from_scratch:
        return training
    linear = training.linear_learning_rate
    return replace(
        training,
        learning_rate=0.1 * training.learning_rate,
        linear_learning_rate=None if linear is None else 0.1 * linear,
        full_rate_steps=None,
    )
