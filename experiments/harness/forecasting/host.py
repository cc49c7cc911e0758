"""README's rows of MVPA as models of neuralforecast: settings in the host's words, panels in its format."""

from __future__ import annotations

from typing import Any

import pandas as pd
from harness.forecasting.models import CYCLES, FIRST, LOOKBACK, MVPA_TRAINING, NETWORK
from harness.forecasting.settings import MVPA_SETTINGS

from mvpa_ts.adapters.neuralforecast import MVPA

CYCLE_COLUMN = "step"
# Options of the core that are arguments of the host's model; the others go into its `network`.
WORDS = {
    "patch_length": "patch_len",
    "dim": "hidden_size",
    "num_heads": "n_heads",
    "num_layers": "encoder_layers",
    "dropout": "dropout",
    "components": "components",
    "individual_channels": "individual",
    "bounded_channels": "bounded",
}


def in_words_of_the_host(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the host's model for options of `ForecastingConfig`."""
    arguments = {WORDS[name]: value for name, value in options.items() if name in WORDS}
    return {**arguments, "network": {name: value for name, value in options.items() if name not in WORDS}}


def host_model(
    dataset: str, horizon: int, channels: int, settings: dict[str, Any], *, lookback: int = LOOKBACK, **options: Any
) -> MVPA:
    """A model with settings written as in `MVPA_SETTINGS`; `options` are the host's, and win."""
    settings = dict(settings)
    if settings.pop("default_network", False):
        settings = {name: value for name, value in settings.items() if name not in NETWORK}
        settings |= {"channel_vectors": True, "regressions": False}
    else:
        settings = {**FIRST, **settings}
    training = dict(settings.pop("training", {}))
    rate = training.get("learning_rate", MVPA_TRAINING.learning_rate)
    chosen: dict[str, Any] = {
        "learning_rate": rate,
        "training": {
            "linear_learning_rate": rate * training.get("linear_rate", 1.0),
            "weight_averaging": training.get("weight_averaging", MVPA_TRAINING.weight_averaging),
            "averaging_warm_up": MVPA_TRAINING.averaging_warm_up,
            **{
                name: training[name]
                for name in ("ridge", "cycle_strength", "reversion_strength", "frequency_weight")
                if name in training
            },
        },
        "windows_batch_size": training.get("batch_size", MVPA_TRAINING.batch_size),
        "gradient_clip_val": MVPA_TRAINING.clip,
        "training_data_availability_threshold": 1.0,  # whole windows only, as in the tables
    }
    if settings.pop("cycle_length", None):
        chosen |= {
            "cycle_length": CYCLES[dataset],
            "cycle_column": CYCLE_COLUMN,
            "futr_exog_list": [CYCLE_COLUMN],
        }
        settings["cycle_channels"] = True
    arguments = {**chosen, **in_words_of_the_host(settings)}
    network = {**arguments["network"], **options.pop("network", {})}
    return MVPA(h=horizon, input_size=lookback, n_series=channels, **{**arguments, **options, "network": network})


def long_frame(values: pd.DataFrame, dataset: str | None = None, observed: Any = None) -> pd.DataFrame:
    """Rows of channels [rows, C] as the host takes them, with the position in the cycle of a data set that has one.

    Where `observed` [rows, C] says that a value is missing, its `available_mask` is 0.
    """
    dates = pd.date_range("2020-01-01", periods=len(values), freq="h").rename("ds")
    long = values.set_index(dates).melt(ignore_index=False, var_name="unique_id", value_name="y").reset_index()
    if dataset in CYCLES and MVPA_SETTINGS[dataset].get("cycle_length"):
        long[CYCLE_COLUMN] = pd.Series(range(len(values)), index=dates)[long["ds"]].to_numpy()
    if observed is not None:
        mask = pd.DataFrame(observed, index=dates, columns=values.columns)
        long["available_mask"] = mask.melt(value_name="mask")["mask"].astype(int).to_numpy()
    return long
