"""Settings on each dataset: MVPA's as it was chosen for each look-back; peers' as published."""

from __future__ import annotations

from typing import Any

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS

# After a closed-form start: the weights at the end of one cycle of the learning rate are kept.
_CLOSED_FORM: dict[str, Any] = {"batch_size": 64, "weight_averaging": 0.98, "keep": "last"}
# The best of searches with Optuna on the validation part. What is not named, here and below, is the default of
# ForecastingConfig and of ForecasterTraining.
SEARCHED_SETTINGS: dict[str, dict[str, Any]] = {
    "ETTh1": {  # trial 23
        "cycle_length": 24,
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
        "per_channel": ("matrix",),
        "normalise": "reverting",
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
# As validation data choose it on ETTh1: the best of the search with fewer epochs.
FEWER_EPOCHS: dict[str, dict[str, Any]] = {
    "ETTh1": {
        **SEARCHED_SETTINGS["ETTh1"],
        "training": {**SEARCHED_SETTINGS["ETTh1"]["training"], "epochs": 5},
    }
}
# Where each comes from: docs/development/forecasting.md.
MVPA_SETTINGS: dict[str, dict[str, Any]] = {
    "ETTh1": {
        **SEARCHED_SETTINGS["ETTh1"],
        "training": {**FEWER_EPOCHS["ETTh1"]["training"], "frequency_weight": 0.25},
    },
    "ETTh2": {"patch_length": 24, "patch_stride": 12, "training": {"learning_rate": 2e-3, "patience": 5}},
    "Weather": {**SEARCHED_SETTINGS["Weather"], "per_channel": ("matrix", "bounds")},
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
# As the scripts of the long-term forecasting benchmark have them for look-back 96, iTransformer's as its authors' do.
# What a data set changes stands under its name; a value by horizon is a dict of horizons.
PEER_SETTINGS: dict[str, dict[str, Any]] = {
    "PatchTST": {
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
        "ETTh1": {"encoder_layers": 1, "n_heads": {96: 2, 192: 8, 336: 8, 720: 16}},
        "ETTh2": {"encoder_layers": 3, "n_heads": 4},
        "Weather": {
            "encoder_layers": 2,
            "n_heads": {96: 4, 192: 16, 336: 4, 720: 4},
            "training": {"epochs": 3, "batch_size": {96: 32, 192: 32, 336: 128, 720: 128}},
        },
    },
    "iTransformer": {
        "n_heads": 8,
        "dropout": 0.1,
        "ETTh1": {
            "e_layers": 2,
            "hidden_size": {96: 256, 192: 256, 336: 512, 720: 512},
            "d_ff": {96: 256, 192: 256, 336: 512, 720: 512},
        },
        "ETTh2": {"e_layers": 2, "hidden_size": 128, "d_ff": 128},
        "Weather": {"e_layers": 3, "hidden_size": 512, "d_ff": 512},
    },
    "TimeMixer": {
        "d_model": 16,
        "d_ff": 32,
        "down_sampling_layers": 3,
        "down_sampling_window": 2,
        "channel_independence": 1,
        "ETTh1": {"e_layers": 2, "training": {"learning_rate": 1e-2, "batch_size": 128, "patience": 10}},
        "ETTh2": {"e_layers": 2, "training": {"learning_rate": 1e-2}},
        # Beyond 96 a layer and ten epochs less, for an epoch of the script's takes a core 13 minutes. At 96 these had
        # an MSE of .162, the script's .163.
        "Weather": {
            "e_layers": {96: 3, 192: 2, 336: 2, 720: 2},
            "training": {
                "learning_rate": 1e-2,
                "batch_size": 128,
                "epochs": {96: 20, 192: 10, 336: 10, 720: 10},
                "patience": 10,
            },
        },
    },
    "TimeXer": {
        "n_heads": 8,
        "patch_len": 16,
        "ETTh1": {
            "e_layers": {96: 1, 192: 2, 336: 1, 720: 1},
            "hidden_size": {96: 256, 192: 128, 336: 512, 720: 256},
            "d_ff": {96: 2048, 192: 2048, 336: 1024, 720: 1024},
            "training": {"batch_size": {96: 4, 192: 4, 336: 16, 720: 16}},
        },
        "ETTh2": {
            "e_layers": {96: 1, 192: 1, 336: 2, 720: 2},
            "hidden_size": {96: 256, 192: 256, 336: 512, 720: 256},
            "d_ff": 1024,
            "training": {"batch_size": {96: 16, 192: 32, 336: 4, 720: 16}},
        },
        "Weather": {
            "e_layers": {96: 1, 192: 3, 336: 1, 720: 1},
            "hidden_size": {96: 256, 192: 128, 336: 256, 720: 128},
            "d_ff": {96: 512, 192: 1024, 336: 2048, 720: 2048},
            "training": {"batch_size": 4},
        },
    },
    "VanillaTransformer": {
        "hidden_size": 512,
        "conv_hidden_size": 2048,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "n_head": 8,
        "dropout": 0.1,
        "ETTh1": {},
        "ETTh2": {},
        "Weather": {"training": {"epochs": {96: 3, 192: 10, 336: 10, 720: 10}}},
    },
}


def peer_settings(name: str, dataset: str, horizon: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the peer's constructor, and what its training changes of the scripts' defaults."""
    everywhere = {key: value for key, value in PEER_SETTINGS[name].items() if key not in FORECASTING_DATASETS}
    settings = {**everywhere, **PEER_SETTINGS[name][dataset]}
    training = settings.pop("training", {})

    def chosen(values: dict[str, Any]) -> dict[str, Any]:
        # A value by horizon that lacks this one gives that of the nearest.
        return {
            key: value[min(value, key=lambda known: abs(known - horizon))] if isinstance(value, dict) else value
            for key, value in values.items()
        }

    return chosen(settings), chosen(training)
