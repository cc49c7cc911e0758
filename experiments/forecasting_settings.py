"""MVPA's settings on each dataset, as they were chosen: of searches, by hand, for longer look-backs."""

from __future__ import annotations

from typing import Any

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
