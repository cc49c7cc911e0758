"""Data and small models of the files in `tests/fixtures/before_the_move`, for the script that wrote them and the tests.

Only names that were public before and after the move are imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

FORECASTER: dict[str, Any] = {
    "input_size": 12,
    "patch_length": 4,
    "patch_stride": 4,
    "dim": 4,
    "num_heads": 2,
    "mlp_dim": 4,
    "max_channels": 4,
    "sp": 12,
    "quantiles": (0.1, 0.5, 0.9),
    "max_steps": 3,
    "random_state": 0,
}
CLASSIFIER: dict[str, Any] = {
    "dim": 4,
    "num_heads": 2,
    "mlp_dim": 4,
    "num_layers": 1,
    "width": 4,
    "conv_layers": 1,
    "tokens": 4,
    "max_steps": 3,
    "validate_every": 1,
    "kernel_features": 84,
    "random_state": 0,
}
MVPA_MODEL: dict[str, Any] = {
    "h": 3,
    "input_size": 8,
    "n_series": 2,
    "hidden_size": 4,
    "n_heads": 2,
    "linear_hidden_size": 4,
    "patch_len": 4,
    "max_channels": 4,
    "max_steps": 2,
    "windows_batch_size": 8,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}
MVPFORMER: dict[str, Any] = {
    "dim": 4,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "mlp_dim": 4,
    "time_rows": 6,
    "channel_rows": 4,
    "window": 2,
    "dropout": 0.0,
    "context": 4,
}


def waves(rows: int = 40) -> pd.DataFrame:
    """Two monthly columns that wave around 10 and 20."""
    steps = np.arange(rows)
    noise = np.random.default_rng(0).normal(scale=0.1, size=(2, rows))
    return pd.DataFrame(
        {f"c{i}": 10 * (i + 1) + np.sin(2 * np.pi * (steps + i) / 12) + noise[i] for i in range(2)},
        index=pd.period_range("2020-01", periods=rows, freq="M"),
    )


def panel() -> pd.DataFrame:
    """The same columns as neuralforecast has them."""
    frame = waves()
    frame.index = frame.index.to_timestamp()
    return (
        frame.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")[["unique_id", "ds", "y"]]
    )


def labelled_series() -> tuple[np.ndarray, np.ndarray]:
    """Twelve series of two channels and 30 steps, slow waves and quick ones."""
    labels = np.array(["slow", "quick"] * 6)
    noise = np.random.default_rng(1).normal(scale=0.2, size=(12, 2, 30))
    period = np.where(labels == "slow", 15.0, 5.0)[:, None, None]
    return np.sin(2 * np.pi * np.arange(30) / period) + noise, labels


def search_space(trial: Any) -> dict[str, Any]:
    fixed = {name: value for name, value in MVPA_MODEL.items() if name not in ("h", "n_series")}
    return {**fixed, "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)}


def signal(segments: int = 6) -> Any:
    """µV of one recording of 3 channels at 512 Hz, [1, 3, samples]."""
    import torch

    values = np.random.default_rng(2).normal(scale=50.0, size=(1, 3, segments * 2560))
    return torch.from_numpy(values.astype(np.float32))


def recording(subject: str = "S01", seed: int = 3, segments: int = 10) -> Any:
    """Noise of 3 channels and 50 s with one seizure, 20 to 35 s, where a rhythm of 4 Hz is added."""
    from mvpa_ts.ieeg import Recording

    samples = np.random.default_rng(seed).normal(scale=40.0, size=(3, segments * 2560))
    samples[:, 20 * 512 : 35 * 512] += 200 * np.sin(2 * np.pi * 4 * np.arange(15 * 512) / 512)
    return Recording.from_array(
        samples.astype(np.float32),
        512.0,
        ["A1", "A2", "A3"],
        "µV",
        subject=subject,
        name=f"{subject}_before",
        seizures=[(20.0, 35.0)],
    )
