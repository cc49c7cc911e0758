"""Waves as series and panels of sktime, and a small forecaster fitted to them."""

from typing import Any

import numpy as np
import pandas as pd
import torch

from mvpa_ts.adapters.sktime import MVPAForecaster

SMALL: dict[str, Any] = {
    "input_size": 12, "dim": 8, "num_heads": 2, "network": {"mlp_dim": 8}, "max_steps": 4, "finetune_steps": 2,
    "random_state": 0,
}  # fmt: skip

# Of a classifier or a regressor of panels.
SMALL_PANEL: dict[str, Any] = {
    "dim": 8, "num_layers": 1, "max_steps": 6, "kernel_features": 84, "random_state": 0,
    "network": {"num_heads": 2, "mlp_dim": 8, "width": 8, "conv_layers": 1, "tokens": 8},
    "training": {"evaluate_every": 2},
}  # fmt: skip


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Parameters with some others; what is changed within `network` and `training` leaves the rest of them."""
    groups = {
        group: {**base.get(group, {}), **changes[group]}
        for group in ("network", "training")
        if isinstance(changes.get(group), dict)
    }
    return {**base, **changes, **groups}


def waves(rows: int = 60, columns: int = 2, start: str = "2020-01") -> pd.DataFrame:
    """Monthly columns that wave around 10, 20, …"""
    steps = np.arange(rows)
    noise = np.random.default_rng(0).normal(scale=0.1, size=(columns, rows))
    return pd.DataFrame(
        {f"c{i}": 10 * (i + 1) + np.sin(2 * np.pi * (steps + i) / 12) + noise[i] for i in range(columns)},
        index=pd.period_range(start, periods=rows, freq="M"),
    )


def panel(instances: int = 3, rows: int = 40, columns: int = 1) -> pd.DataFrame:
    parts = [waves(rows + 3 * i, columns) + i for i in range(instances)]  # lengths differ
    return pd.concat(parts, keys=range(instances), names=["instance", "time"])


def fitted(y: pd.DataFrame | pd.Series, fh: Any = (1, 2, 3, 4, 5), X: pd.DataFrame | None = None, **changes: Any):
    return MVPAForecaster(**changed(SMALL, changes)).fit(y, X=X, fh=list(fh))


def weights(forecaster: MVPAForecaster) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in forecaster.fitted_.network.parameters()])
