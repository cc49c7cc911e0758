"""Small forecasting networks whose every path does something, and windows for them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mvpa_ts import ForecastingConfig, ForecastingNetwork
from mvpa_ts.windows import Scaling, Series

# Options with which a model in neuralforecast prints and logs nothing, and those of a quick MVPA.
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
SMALL = {
    "input_size": 12,
    "hidden_size": 8,
    "n_heads": 2,
    "network": {"mlp_dim": 8},
    "windows_batch_size": 8,
    **QUIET,
}

# Of a small network that classifies.
SMALL_CLASSIFIER = {
    "token_channels": 4,
    "tokens": 16,
    "positions": 32,
    "width": 8,
    "dim": 16,
    "mlp_dim": 16,
    "kernel_features": 300,
}

HORIZON, LOOKBACK, CHANNELS, BATCH = 10, 24, 5, 3


def make_config(**options: object) -> ForecastingConfig:
    defaults = {
        "horizon": HORIZON,
        "lookback": LOOKBACK,
        "patch_length": 8,
        "patch_stride": 4,
        "dim": 16,
        "mlp_dim": 24,
        "regressions": False,
    }
    return ForecastingConfig(**{**defaults, **options})  # type: ignore[arg-type]


def make_network(*, fresh: bool = False, **options: object) -> ForecastingNetwork:
    """A network in evaluation mode whose linear path is filled; unless fresh, also its head, codebooks enlarged."""
    torch.manual_seed(0)
    location_outputs = options.pop("location_outputs", None)
    network = ForecastingNetwork(make_config(**options), location_outputs)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("linear") or (not fresh and ("codebook" in name or not parameter.any())):
                nn.init.normal_(parameter, std=0.5)
    return network.eval()


def make_windows(channels: int = CHANNELS, steps: int = LOOKBACK, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn(BATCH, steps, channels, generator=generator) + 5.0


def series(rows: int = 40, channels: int = 2, features: int = 0, ahead: int = 0, seed: int = 0) -> Series:
    """Waves in noise, and features in noise that reach so many rows ahead."""
    generator = np.random.default_rng(seed)
    values = np.sin(np.arange(rows)[:, None] / 3 + np.arange(channels)) + 0.05 * generator.normal(size=(rows, channels))
    return Series(values, generator.normal(size=(rows + ahead, features)) if features else None)


def autoregressive(length: int, count: int, memory: float = 0.97, seed: int = 0) -> np.ndarray:
    """AR(1) of unit variance, [length, count]."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(length + 200, count))
    for step in range(1, len(x)):
        x[step] = memory * x[step - 1] + np.sqrt(1 - memory**2) * x[step]
    return x[200:]


def identity(channels: int) -> Scaling:
    return Scaling(np.zeros(channels), np.ones(channels))


def make_mask(missing: float = 0.3) -> Tensor:
    mask = torch.rand(BATCH, LOOKBACK, CHANNELS, generator=torch.Generator().manual_seed(2)) >= missing
    mask[0, :, 1] = False  # a channel that was never observed
    mask[1, :8, :] = False  # patches without any observed step
    return mask


def damage(path: Path, change: Mapping[str, object]) -> None:
    """Change fields of a network's JSON file: by name, of its configuration ("config.dim"), or away ("-levels")."""
    description = json.loads(path.read_text())
    for name, value in change.items():
        if name.startswith("-"):
            del description[name[1:]]
        elif name.startswith("config."):
            description["config"][name.partition(".")[2]] = value
        else:
            description[name] = value
    path.write_text(json.dumps(description))
