"""Every model of the forecasting tables, with its settings, behind the call of a `ForecastingNetwork`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from harness.forecasting.settings import (
    FEWER_EPOCHS,
    LONG_LOOKBACK_SETTINGS,
    MVPA_SETTINGS,
    PEER_SETTINGS,
    SEARCHED_SETTINGS,
    peer_settings,
)
from harness.forecasting.transformer import MixingTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, ForecastingNetwork
from mvpa_ts.forecasting.network.network import phase_of_steps

LOOKBACK = 96
HORIZONS = (96, 192, 336, 720)
CYCLES = {"ETTh1": 24, "ETTh2": 24, "Weather": 144}  # one day, in steps
# The ablation, on the settings of each data set: terms of the score, all keys alike, no attention path at all.
MVPA_MODELS: dict[str, dict[str, Any]] = {
    "MVPA": {},
    "MVPA content-only": {"components": ("content",)},
    "MVPA time-only": {"components": ("time",)},
    "MVPA channel-only": {"components": ("channel",)},
    "MVPA none": {"components": ()},
    "MVPA linear path alone": {"num_layers": 0},
    "MVPA, default network": {"default_network": True},
    "MVPA, phase from the clock": {},
    "MVPA, one matrix for all channels": {"per_channel": ("bounds",)},  # Weather alone has a matrix for each
}
# What is read with the clock's phase; all other rows count rows. It makes a difference on Weather alone.
CLOCK = ("MVPA, phase from the clock",)
# The paper's question of the terms, with four patches and the same settings for all; each also without the linear path,
# so that the attention has to forecast alone. The settings were not chosen by any error.
FOUR_PATCHES: dict[str, Any] = {
    "patch_length": 24, "patch_stride": 24, "cycle_length": None,
    "dropout": 0.1, "attention_dropout": 0.0, "head_dropout": 0.1,
    "training": {"learning_rate": 2e-3, "linear_rate": 1.0, "batch_size": 256, "epochs": 5, "frequency_weight": 0.0,
                 "ridge": None, "weight_averaging": 0.99, "keep": "best"},
}  # fmt: skip
TERMS: dict[str, tuple[str, ...]] = {
    "all terms": ("content", "time", "channel"), "content": ("content",), "time": ("time",), "channel": ("channel",),
    "no term": (),
}  # fmt: skip
TERM_MODELS: dict[str, dict[str, Any]] = {
    f"MVPA, 4 patches, {name}{suffix}": {**FOUR_PATCHES, "components": terms, "linear_path": path}
    for path, suffix in ((True, ""), (False, ", no linear path"))
    for name, terms in TERMS.items()
}
# The benchmarks' Transformer at their size, and one that a CPU can train.
TRANSFORMERS: dict[str, dict[str, int]] = {"Transformer": {}, "Transformer, 64 wide": {"width": 64, "inner": 256}}
# The network that the settings of each data set change, as it was before it had heads in the linear path, and what the
# default of today decides instead in the row "MVPA, default network".
FIRST: dict[str, Any] = {
    "patch_length": 48, "patch_stride": 24, "channel_distance": "absolute", "mixing_heads": 0, "covariates": (),
    "regressions": False,
}  # fmt: skip
NETWORK = (*FIRST, "dim", "mlp_dim", "dropout", "attention_dropout", "head_dropout")
# What the settings of each data set change; one cycle of the rate is best seen to its end. All is named that rows of
# the tables state, `steps` too, which epochs leave without effect.
MVPA_TRAINING = ForecasterTraining(
    steps=500,
    epochs=15,
    patience=15,
    batch_size=256,
    learning_rate=6e-3,
    linear_learning_rate=6e-3,
    full_rate_steps=0.3,
    clip=1.0,
    averaging_warm_up=False,
)
# Defaults of the long-term forecasting benchmark's scripts, which peers are trained by: MSE loss, Adam, 10 epochs, the
# rate halved after every epoch but the first.
SCRIPT = ForecasterTraining(
    steps=500,
    full_rate_steps=0.3,
    learning_rate=1e-4,
    batch_size=32,
    epochs=10,
    patience=3,
    loss="mse",
    schedule="halving",
    weight_averaging=None,
    clip=None,
)
ENSEMBLE, MEMBERS = "MVPA, mean of 5 networks", 5  # differently seeded; not a single model, so a row of its own
SEARCHED, FEWER = "MVPA, best of the search", "MVPA, half of the loss over frequencies"
SEARCHES: dict[str, dict[str, Any]] = {SEARCHED: SEARCHED_SETTINGS, FEWER: FEWER_EPOCHS}
# A peer that has what MVPA has beside its network: absolute errors as the loss and the hour of the day, as a cycle that
# learns at CycleNet's rate.
ALIKE, ALIKE_RATE = "iTransformer + cycle, absolute errors", 1e-2
MODELS = (
    "Linear",
    "Linear + cycle",
    *MVPA_MODELS,
    *SEARCHES,
    ENSEMBLE,
    *TRANSFORMERS,
    *PEER_SETTINGS,
    ALIKE,
    *TERM_MODELS,
)


class Mean(nn.Module):
    """The mean of the forecasts of several networks."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor, **inputs: Tensor | None) -> Tensor:
        """Map [B, L, C] to [B, h, C, 1]."""
        return torch.stack([member(x, **inputs) for member in self.members]).mean(0)


class Host(nn.Module):
    """A model of neuralforecast called by its ``forward(windows_batch)``; a univariate one gets channels as samples."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, **inputs: Tensor | None) -> Tensor:
        """Map [B, L, C] to [B, h, C, 1]; what was not observed is read as it stands there."""
        B, L, C = x.shape
        windows = x if self.model.MULTIVARIATE else x.transpose(1, 2).reshape(B * C, L, 1)
        batch = {
            "insample_y": windows,
            "insample_mask": torch.ones_like(windows),
            "futr_exog": None,
            "hist_exog": None,
            "stat_exog": None,
        }
        forecast = self.model(batch)
        forecast = forecast if self.model.MULTIVARIATE else forecast.reshape(B, C, -1).transpose(1, 2)
        return forecast[..., None]


def project_first(model: nn.Module) -> None:
    """Let TimeMixer take its last two linear maps in the other order: the same forecasts in half the time at 720 steps.

    The host maps every feature to the horizon and then sums the features, so it writes 16 times the forecast.
    """
    if not isinstance(model, Host) or type(model.model).__name__ != "TimeMixer":
        return

    def future_multi_mixing(batch: int, encoded: list[Tensor], _: Any) -> list[Tensor]:
        project, forecasts = model.model.projection_layer, []
        for predict, features in zip(model.model.predict_layers, encoded, strict=False):
            read = F.linear(features, project.weight).squeeze(-1)
            forecast = F.linear(read, predict.weight) + predict.bias * project.weight.sum() + project.bias
            forecasts.append(forecast.reshape(batch, -1, forecast.shape[-1]).mT)
        return forecasts

    model.model.future_multi_mixing = future_multi_mixing


class WithCycle(nn.Module):
    """A network that forecasts what a learnt cycle leaves of normalised windows, as in CycleNet."""

    def __init__(self, network: nn.Module, length: int, channels: int, horizon: int) -> None:
        super().__init__()
        self.horizon = horizon
        self.encoder = network  # by this name it does not learn at the cycle's rate
        self.cycle = nn.Parameter(torch.zeros(length, channels))

    def forward(self, x: Tensor, phase: Tensor, **inputs: Tensor | None) -> Tensor:
        """Map [B, L, C] to [B, h, C, 1]; `phase` is the row of the first step."""
        L = x.shape[1]
        mean, deviation = x.mean(1, keepdim=True), (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        cycle = self.cycle[phase_of_steps(phase, L + self.horizon) % len(self.cycle)]
        forecast = self.encoder((x - mean) / deviation - cycle[:, :L], **inputs)[..., 0] + cycle[:, L:]
        return (forecast * deviation + mean)[..., None]


def available(name: str) -> bool:
    """Whether the model can be built here: peers need neuralforecast."""
    return name not in (*PEER_SETTINGS, ALIKE) or importlib.util.find_spec("neuralforecast") is not None


def build(
    name: str,
    dataset: str,
    horizon: int,
    channels: int,
    seed: int,
    lookback: int = LOOKBACK,
    **changes: Any,
) -> tuple[nn.Module, ForecasterTraining, dict[str, Any]]:
    """The untrained model, how to train it, and its settings as data; `changes` are a peer's."""
    torch.manual_seed(seed)
    if name == ALIKE:
        # The windows are normalised before the cycle is taken off, so not again in the peer.
        peer, training, settings = build("iTransformer", dataset, horizon, channels, seed, lookback, use_norm=False)
        training = replace(training, loss="l1", linear_learning_rate=ALIKE_RATE)
        model = WithCycle(peer, CYCLES[dataset], channels, horizon)
        return model, training, {**settings, "cycle_length": CYCLES[dataset]}
    if name in PEER_SETTINGS:
        import neuralforecast.models as host
        from harness.quiet import silence

        silence()

        own, changed = peer_settings(name, dataset, horizon)
        settings = {"h": horizon, "input_size": lookback, **own, **changes}
        model_class: Callable[..., Any] = getattr(host, name)
        if model_class.MULTIVARIATE:
            settings["n_series"] = channels
        return Host(model_class(**settings, random_seed=seed)), replace(SCRIPT, **changed), settings
    if name.startswith("Linear"):
        cycle = {"cycle_length": CYCLES[dataset], "num_channels": channels, "per_channel": ("cycle",)}
        config = ForecastingConfig(horizon, lookback, **FIRST, num_layers=0, **(cycle if "cycle" in name else {}))
        training = replace(MVPA_TRAINING, learning_rate=2e-2, linear_learning_rate=2e-2)
        return ForecastingNetwork(config), training, asdict(config)
    if name in MVPA_MODELS or name in TERM_MODELS:
        return mvpa(dataset, horizon, channels, {**MVPA_MODELS, **TERM_MODELS}[name], lookback)
    if name in TRANSFORMERS:
        model = MixingTransformer(dataset, channels, lookback, horizon, **TRANSFORMERS[name])
        settings = {"horizon": horizon, "lookback": lookback, "products": "bfloat16", **TRANSFORMERS[name]}
        return model, SCRIPT, settings
    if name in SEARCHES:
        if dataset not in SEARCHES[name]:
            raise ValueError(f"{name!r} exists for {', '.join(SEARCHES[name])}, got {dataset}")
        return configured(dataset, horizon, channels, SEARCHES[name][dataset], lookback)
    if name == ENSEMBLE:
        members = [
            build("MVPA", dataset, horizon, channels, MEMBERS * seed + index, lookback) for index in range(MEMBERS)
        ]
        return Mean([model for model, _, _ in members]), *members[0][1:]
    raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")


def mvpa(
    dataset: str,
    horizon: int,
    channels: int,
    change: dict[str, Any],
    lookback: int = LOOKBACK,
) -> tuple[nn.Module, ForecasterTraining, dict[str, Any]]:
    """MVPA with the settings chosen for the dataset, some of them changed."""
    chosen = (MVPA_SETTINGS if lookback == LOOKBACK else LONG_LOOKBACK_SETTINGS)[dataset]
    training = {**chosen.get("training", {}), **change.get("training", {})}
    return configured(dataset, horizon, channels, {**chosen, **change, "training": training}, lookback)


def configured(
    dataset: str,
    horizon: int,
    channels: int,
    settings: dict[str, Any],
    lookback: int = LOOKBACK,
) -> tuple[nn.Module, ForecasterTraining, dict[str, Any]]:
    """MVPA with settings written as in `MVPA_SETTINGS`."""
    settings = dict(settings)
    alone = not settings.pop("linear_path", True)
    changed = dict(settings.pop("training", {}))
    share = changed.pop("linear_rate", 1.0)
    rate = changed.get("learning_rate", MVPA_TRAINING.learning_rate)
    training = replace(MVPA_TRAINING, **changed, linear_learning_rate=rate * share)
    if settings.get("cycle_length"):
        settings |= {"cycle_length": CYCLES[dataset], "per_channel": ("cycle", *settings.get("per_channel", ()))}
    if settings.pop("default_network", False):
        settings = {name: value for name, value in settings.items() if name not in NETWORK}
        settings |= {"per_channel": ("vectors", *settings.get("per_channel", ())), "regressions": False}
    else:
        settings = {**FIRST, **settings}
    config = ForecastingConfig(
        horizon, lookback, num_channels=channels if settings.get("per_channel") else None, **settings
    )
    network = ForecastingNetwork(config)
    if alone:
        network.linear = NoLinearPath(horizon * config.num_outputs)  # type: ignore[assignment]
    return network, training, asdict(config) | ({"linear_path": False} if alone else {})


class NoLinearPath(nn.Module):
    """In place of the linear path: zero, which is the window's mean."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.register_buffer("weight", torch.empty(0), persistent=False)  # the network asks for its precision

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., L] to zeros [..., outputs]."""
        return x.new_zeros(*x.shape[:-1], self.outputs)
