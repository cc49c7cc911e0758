"""Every model of the forecasting tables, with its settings, behind one call: ``model(x, first_row) -> forecast``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from training import Training

from mvpa_ts import ForecastingConfig, ForecastingNetwork

LOOKBACK = 96
HORIZONS = (96, 192, 336, 720)
CYCLES = {"ETTh1": 24, "ETTh2": 24, "Weather": 144}  # one day, in steps
# After a closed-form start: the weights at the end of one cycle of the learning rate are kept.
_CLOSED_FORM: dict[str, Any] = {"batch_size": 64, "weight_averaging": 0.98, "keep": "last"}
# The best of the searches on the validation part (forecasting_search.py), here and below what is not named being the
# default of ForecastingConfig and of Training.
SEARCHED_SETTINGS: dict[str, dict[str, Any]] = {
    "ETTh1": {  # trial 23
        "cycle_length": 24,
        "phase_weights": True,
        "patch_length": 96,
        "patch_stride": 96,
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "head_dropout": 0.8,
        "training": {
            "learning_rate": 4.3e-4,
            "linear_rate": 72.0,
            "batch_size": 64,
            "weight_averaging": 0.995,
            "frequency_weight": 0.5,
            "keep": "last",
        },
    },
    "ETTh2": {  # trial 41
        "cycle_length": 24,
        "phase_weights": True,
        "patch_length": 24,
        "patch_stride": 24,
        "dim": 16,
        "mlp_dim": 32,
        "dropout": 0.7,
        "head_dropout": 0.1,
        "attention_dropout": 0.0,
        "training": {
            "learning_rate": 4.3e-3,
            "linear_rate": 7.2,
            "batch_size": 64,
            "epochs": 5,
            "weight_averaging": 0.995,
            "horizon_decay": 0.5,
            "frequency_weight": 0.5,
            "keep": "last",
        },
    },
    "Weather": {  # trial 0
        "cycle_length": 144,
        "individual_channels": True,
        "level_reversion": True,
        "patch_stride": 48,
        "dim": 64,
        "mlp_dim": 128,
        "dropout": 0.1,
        "attention_dropout": 0.2,
        "head_dropout": 0.1,
        "training": {
            **_CLOSED_FORM,
            "learning_rate": 5e-3,
            "epochs": 2,
            "linear_rate": 0.02,
            "ridge": 1.0,
            "cycle_strength": 1.0,
            "reversion_strength": 0.5,
        },
    },
}
# The best of the searches for one horizon each (forecasting_search.py --horizon): a wide attention path at the shorter
# ones, few epochs at the longer ones.
_ONE_PATCH: dict[str, Any] = {"cycle_length": 24, "phase_weights": True, "patch_length": 96, "patch_stride": 96}
_TRAINED: dict[str, Any] = {"batch_size": 64, "weight_averaging": 0.995, "frequency_weight": 0.5, "keep": "last"}
SETTINGS_OF_A_HORIZON: dict[str, dict[int, dict[str, Any]]] = {
    "ETTh1": {
        96: {  # trial 15
            **_ONE_PATCH,
            "dim": 64,
            "mlp_dim": 128,
            "dropout": 0.1,
            "attention_dropout": 0.4,
            "head_dropout": 0.3,
            "training": {**_TRAINED, "learning_rate": 4.5e-3, "linear_rate": 8.9, "epochs": 5, "horizon_decay": 0.25},
        },
        192: {  # trial 13
            **_ONE_PATCH,
            "dim": 64,
            "mlp_dim": 128,
            "dropout": 0.1,
            "attention_dropout": 0.2,
            "head_dropout": 0.4,
            "training": {**_TRAINED, "learning_rate": 1.1e-3, "linear_rate": 21.8, "epochs": 5, "horizon_decay": 0.25},
        },
        336: {  # trial 1, the best of the other search with fewer epochs
            **SEARCHED_SETTINGS["ETTh1"],
            "training": {**SEARCHED_SETTINGS["ETTh1"]["training"], "epochs": 2, "weight_averaging": 0.99},
        },
        720: {  # trial 13
            **_ONE_PATCH,
            "phase_weights": False,
            "dim": 64,
            "mlp_dim": 128,
            "dropout": 0.4,
            "attention_dropout": 0.0,
            "head_dropout": 0.8,
            "training": {
                **_TRAINED,
                "learning_rate": 7.8e-3,
                "linear_rate": 5.9,
                "batch_size": 128,
                "epochs": 1,
                "weight_averaging": 0.98,
                "horizon_decay": 0.75,
                "frequency_weight": 0.25,
            },
        },
    },
}
# The best of one search for all horizons of ETT in blocks (forecasting_search.py --blocks).
SETTINGS_OF_BLOCKS: dict[str, dict[str, Any]] = {
    "ETTh1": {  # trial 24
        "cycle_length": 24,
        "phase_weights": True,
        "dim": 16,
        "mlp_dim": 32,
        "dropout": 0.7,
        "attention_dropout": 0.4,
        "head_dropout": 0.3,
        "training": {
            **_TRAINED,
            "learning_rate": 9.1e-4,
            "linear_rate": 17.6,
            "epochs": 2,
            "weight_averaging": 0.99,
            "horizon_decay": 1.0,
        },
    },
    "ETTh2": {  # trial 16
        "cycle_length": 24,
        "phase_weights": True,
        "patch_stride": 48,
        "dim": 16,
        "mlp_dim": 32,
        "dropout": 0.5,
        "attention_dropout": 0.2,
        "head_dropout": 0.2,
        "training": {
            **_TRAINED,
            "learning_rate": 4.7e-3,
            "linear_rate": 0.468,
            "epochs": 2,
            "weight_averaging": 0.99,
            "horizon_decay": 1.0,
            "frequency_weight": 0.25,
        },
    },
}
# Where each comes from: docs/forecasting.md.
MVPA_SETTINGS: dict[str, dict[str, Any]] = {
    "ETTh1": {
        **SEARCHED_SETTINGS["ETTh1"],
        "training": {**SEARCHED_SETTINGS["ETTh1"]["training"], "epochs": 5, "frequency_weight": 0.25},
    },
    "ETTh2": {"patch_length": 24, "patch_stride": 12, "training": {"learning_rate": 2e-3, "patience": 5}},
    "Weather": {**SEARCHED_SETTINGS["Weather"], "bounded_channels": True},
}
# For look-backs longer than 96.
LONG_LOOKBACK_SETTINGS: dict[str, dict[str, Any]] = {
    "ETTh1": {
        "cycle_length": 24,
        "patch_length": 96,
        "patch_stride": 96,
        "dim": 16,
        "mlp_dim": 32,
        "attention_dropout": 0.2,
        "dropout": 0.5,
        "head_dropout": 0.7,
        "training": {"learning_rate": 5e-4, "linear_rate": 40.0},
    },
    "ETTh2": {
        "cycle_length": 24,
        "patch_stride": 48,
        "dropout": 0.5,
        "head_dropout": 0.7,
        "training": {
            **_CLOSED_FORM,
            "learning_rate": 1e-3,
            "epochs": 1,
            "linear_rate": 0.3,
            "ridge": 3.0,
            "cycle_strength": 0.75,
        },
    },
    "Weather": {
        **SEARCHED_SETTINGS["Weather"],
        "patch_length": 96,
        "patch_stride": 96,
        "dropout": 0.3,
        "head_dropout": 0.5,
        "training": {**SEARCHED_SETTINGS["Weather"]["training"], "ridge": 3.0, "epochs": 1},
    },
}
# The ablation, on the settings of each data set: terms of the score, all keys alike, no attention path at all.
MVPA_MODELS: dict[str, dict[str, Any]] = {
    "MVPA": {},
    "MVPA content-only": {"components": ("content",)},
    "MVPA time-only": {"components": ("time",)},
    "MVPA channel-only": {"components": ("channel",)},
    "MVPA none": {"components": ()},
    "MVPA linear path alone": {"num_layers": 0},
}
# The long-term forecasting benchmark's scripts for ETTh1 at look-back 96 and horizon 96, MSE loss, Adam, rate halved
# after every epoch (there after every one but the first), 10 epochs, patience 3.
_SCRIPT = Training(1e-4, 32, 10, 3, "mse", "halving", weight_averaging=None, clip=None)


@dataclass(frozen=True)
class Peer:
    """A model of neuralforecast and its published settings."""

    settings: dict[str, Any]
    training: Training = field(default_factory=lambda: _SCRIPT)


PEERS = {
    "PatchTST": Peer(
        {
            "encoder_layers": 1,
            "n_heads": 2,
            "hidden_size": 512,
            "linear_hidden_size": 2048,
            "patch_len": 16,
            "stride": 8,
            "dropout": 0.1,
            "fc_dropout": 0.1,
            "head_dropout": 0.1,
            "attn_dropout": 0.1,
            "revin_subtract_last": False,
            "res_attention": False,
            "batch_normalization": True,
        }
    ),
    "iTransformer": Peer({"hidden_size": 256, "d_ff": 256, "e_layers": 2, "n_heads": 8, "dropout": 0.1}),
    "TimeMixer": Peer(
        {
            "d_model": 16,
            "d_ff": 32,
            "e_layers": 2,
            "down_sampling_layers": 3,
            "down_sampling_window": 2,
            "channel_independence": 1,
        },
        Training(1e-2, 128, 10, 10, "mse", "halving", weight_averaging=None, clip=None),
    ),
    "TimeXer": Peer(
        {"hidden_size": 256, "d_ff": 2048, "e_layers": 1, "n_heads": 8, "patch_len": 16},
        Training(1e-4, 4, 10, 3, "mse", "halving", weight_averaging=None, clip=None),
    ),
    "VanillaTransformer": Peer(
        {
            "hidden_size": 512,
            "conv_hidden_size": 2048,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "n_head": 8,
            "dropout": 0.1,
        }
    ),
}
ENSEMBLE, MEMBERS = "MVPA, mean of 5 networks", 5  # differently seeded; not a single model, so a row of its own
SEARCHED, SEARCHED_EACH = "MVPA, best of the search", "MVPA, best of a search for each horizon"
SEARCHES: dict[str, dict[str, Any]] = {
    SEARCHED: SEARCHED_SETTINGS,
    "MVPA, best of a search in blocks": SETTINGS_OF_BLOCKS,
    SEARCHED_EACH: SETTINGS_OF_A_HORIZON,
}
MODELS = ("Linear", "Linear + cycle", *MVPA_MODELS, *SEARCHES, ENSEMBLE, *PEERS)


class Core(nn.Module):
    """A network of this library; the first row of a window is its phase, and the code for a missing value is masked."""

    def __init__(self, config: ForecastingConfig, missing: Tensor | None = None) -> None:
        super().__init__()
        self.network = ForecastingNetwork(config)
        self.register_buffer("missing", missing)

    def forward(self, x: Tensor, first_row: Tensor) -> Tensor:
        """Map [B, L, C] to [B, h, C]."""
        mask = None if self.missing is None else x != self.missing
        return self.network(x, mask, phase=first_row)[..., 0]


class Mean(nn.Module):
    """The mean of the forecasts of several networks."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor, first_row: Tensor) -> Tensor:
        """Map [B, L, C] to [B, h, C]."""
        return torch.stack([member(x, first_row) for member in self.members]).mean(0)


class Host(nn.Module):
    """A model of neuralforecast called by its ``forward(windows_batch)``; a univariate one gets channels as samples."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, first_row: Tensor) -> Tensor:
        """Map [B, L, C] to [B, h, C]."""
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
        return forecast if self.model.MULTIVARIATE else forecast.reshape(B, C, -1).transpose(1, 2)


def available(name: str) -> bool:
    """Whether the model can be built here: peers need neuralforecast."""
    return name not in PEERS or importlib.util.find_spec("neuralforecast") is not None


def build(
    name: str,
    dataset: str,
    horizon: int,
    channels: int,
    seed: int,
    lookback: int = LOOKBACK,
    missing: Tensor | None = None,
) -> tuple[nn.Module, Training, dict[str, Any]]:
    """The untrained model, how to train it, and its settings as data; `missing` as in `WindowSet`."""
    torch.manual_seed(seed)
    if name in PEERS:
        import neuralforecast.models as host
        from quiet import silence

        silence()

        peer = PEERS[name]
        settings = {"h": horizon, "input_size": lookback, **peer.settings}
        model_class: Callable[..., Any] = getattr(host, name)
        if model_class.MULTIVARIATE:
            settings["n_series"] = channels
        return Host(model_class(**settings, random_seed=seed)), peer.training, settings
    if name.startswith("Linear"):
        config = ForecastingConfig(horizon, lookback, num_layers=0, **_cycle(dataset, channels, "cycle" in name))
        return Core(config, missing), Training(learning_rate=2e-2), asdict(config)
    if name in MVPA_MODELS:
        return mvpa(dataset, horizon, channels, MVPA_MODELS[name], lookback, missing)
    if name in SEARCHES:
        if dataset not in SEARCHES[name]:
            raise ValueError(f"{name!r} exists for {', '.join(SEARCHES[name])}, got {dataset}")
        found = SEARCHES[name][dataset]
        if name == SEARCHED_EACH:
            found = found[min(found, key=lambda searched: abs(searched - horizon))]
        return configured(dataset, horizon, channels, found, lookback, missing)
    if name == ENSEMBLE:
        members = [
            build("MVPA", dataset, horizon, channels, MEMBERS * seed + index, lookback, missing)
            for index in range(MEMBERS)
        ]
        return Mean([model for model, _, _ in members]), *members[0][1:]
    raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")


def mvpa(
    dataset: str,
    horizon: int,
    channels: int,
    change: dict[str, Any],
    lookback: int = LOOKBACK,
    missing: Tensor | None = None,
) -> tuple[nn.Module, Training, dict[str, Any]]:
    """MVPA with the settings chosen for the dataset, some of them changed."""
    chosen = (MVPA_SETTINGS if lookback == LOOKBACK else LONG_LOOKBACK_SETTINGS)[dataset]
    training = {**chosen.get("training", {}), **change.get("training", {})}
    return configured(dataset, horizon, channels, {**chosen, **change, "training": training}, lookback, missing)


def configured(
    dataset: str,
    horizon: int,
    channels: int,
    settings: dict[str, Any],
    lookback: int = LOOKBACK,
    missing: Tensor | None = None,
) -> tuple[nn.Module, Training, dict[str, Any]]:
    """MVPA with settings written as in `MVPA_SETTINGS`."""
    settings = dict(settings)
    training = Training(**settings.pop("training", {}))
    settings |= _cycle(dataset, channels, bool(settings.pop("cycle_length", None)))
    for name in ("individual_channels", "bounded_channels"):
        settings[name] = channels if settings.pop(name, False) else None
    config = ForecastingConfig(horizon, lookback, **settings)
    return Core(config, missing), training, asdict(config)


def _cycle(dataset: str, channels: int, wanted: bool) -> dict[str, int]:
    return {"cycle_length": CYCLES[dataset], "cycle_channels": channels} if wanted else {}
