"""Networks of the board, all through `NeuralForecast`: what a trial may draw, and errors on windows of a part."""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np
import pandas as pd
from harness.board.tasks import EVERY, Task
from harness.quiet import QUIET, silence

STEPS, LONG, TRIALS = 400, 1000, 12
BATCH = 32
_MOST_TOKENS = 32 * 64
"""Windows times channels of a training step; wide panels get fewer windows, down to 8."""
_ELSEWHERE_EVERY, _ELSEWHERE_MANY = 64, 1000
"""Of windows elsewhere: each of few rows, else fewer."""
# What a trial draws: a list is drawn from evenly, a pair of numbers is the range of a logarithm. The first trial of
# each model is its defaults, but for a width of 512 of iTransformer and TimeXer, which a CPU trains too slowly.
_WIDE = ("iTransformer", "TimeXer")
_EVERY_MODEL: dict[str, Any] = {"learning_rate": (5e-4, 2e-2), "schedule": ["constant", "one cycle"]}
SPACES: dict[str, dict[str, Any]] = {
    "TSMixer": {"revin": [True, False], "dropout": [0.0, 0.1, 0.3, 0.5], "ff_dim": [64, 128], "n_block": [2, 4]},
    "iTransformer": {
        "use_norm": [True, False], "dropout": [0.0, 0.1, 0.3], "hidden_size": [64, 128], "e_layers": [2, 3],
        "learning_rate": (3e-4, 1e-2),
    },
    "NHITS": {"scaler_type": ["identity", "standard"], "dropout_prob_theta": [0.0, 0.1, 0.3], "units": [64, 256]},
    "TimeXer": {
        "use_norm": [True, False], "dropout": [0.0, 0.1, 0.3], "hidden_size": [64, 128], "e_layers": [2, 3],
        "patch_len": [8, 16, 24], "learning_rate": (3e-4, 1e-2),
    },
    "PatchTST": {
        "revin": [True, False], "dropout": [0.0, 0.1, 0.3], "hidden_size": [32, 64], "encoder_layers": [2, 3],
        "n_heads": [4, 16], "patch_len": [8, 16, 24], "learning_rate": (3e-4, 1e-2),
    },
    "MVPA": {
        "dropout": [0.0, 0.1, 0.3], "hidden_size": [32, 64], "patch_len": [8, 12, 24, 48],
        "normalise": [True, False], "mixing_heads": [4, 12], "linear_rate": [1.0, 5.0, 30.0],
        "learning_rate": (3e-4, 1e-2),
    },
}  # fmt: skip
PEERS = ("TSMixer", "iTransformer", "NHITS", "TimeXer", "PatchTST")
FEWER_TASKS = dict.fromkeys(("TimeXer", "PatchTST"), ("changing wave", "leaders that swap", "stations", "wind farms"))
"""Of peers that are too slow for every task."""
# Parts of MVPA that are switched off, all else as its trials chose it. Besides attention there are mixing heads, which
# are the same in every window, and regressions that are fitted inside the window.
_ALONE: dict[str, Any] = {"network": {"mixing_heads": 0, "regressions": False}}
ARMS: dict[str, dict[str, Any]] = {
    "MVPA": {},
    "MVPA, no regressions in the window": {"network": {"regressions": False}},
    "MVPA, no attention": {"encoder_layers": 0},
    "MVPA, no mixing heads": {"network": {"mixing_heads": 0}},
    "MVPA, attention alone": _ALONE,
    "MVPA, mixing heads alone": {"encoder_layers": 0, "network": {"regressions": False}},
    "MVPA, regressions alone": {"encoder_layers": 0, "network": {"mixing_heads": 0}},
    "MVPA, none of the three": {**_ALONE, "encoder_layers": 0},
    "MVPA, attention alone, without content": {**_ALONE, "components": ("time", "channel")},
    "MVPA, attention alone, without time": {**_ALONE, "components": ("content", "channel")},
    "MVPA, attention alone, without channel": {**_ALONE, "components": ("content", "time")},
}
DEFAULTS, NO_ATTENTION = "MVPA, nothing set", "MVPA, nothing set but no attention"


def drawn(model: str, trial: int) -> dict[str, Any]:
    """Settings of a trial: none for the first, then draws that are the same on every task."""
    if trial == 0:
        return {"hidden_size": 128} if model in _WIDE else {}
    draws = np.random.default_rng([trial, zlib.crc32(model.encode())])
    settings = {}
    for name, choices in {**_EVERY_MODEL, **SPACES[model]}.items():
        if isinstance(choices, tuple):
            settings[name] = float(np.exp(draws.uniform(*np.log(choices))).round(6))
        else:
            settings[name] = choices[int(draws.integers(len(choices)))]
    return settings


def in_words_of_the_host(model: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Arguments of the model for what a trial drew."""
    import torch

    arguments = dict(settings)
    if arguments.pop("schedule", None) == "one cycle":
        rate, share = arguments["learning_rate"], arguments.get("linear_rate", 1.0)
        arguments["lr_scheduler"] = torch.optim.lr_scheduler.OneCycleLR
        rates = [rate, rate * share] if model == "MVPA" else rate
        arguments["lr_scheduler_kwargs"] = {"max_lr": rates, "total_steps": steps}
    elif "learning_rate" in arguments and model == "MVPA":
        arguments |= {"lr_scheduler": torch.optim.lr_scheduler.ConstantLR, "lr_scheduler_kwargs": {"factor": 1.0}}
    if model == "MVPA":
        if "linear_rate" in arguments:
            rate = arguments["learning_rate"] * arguments.pop("linear_rate")
            arguments["training"] = {"linear_learning_rate": rate}
        own = {name: arguments.pop(name) for name in ("normalise", "mixing_heads") if name in arguments}
        arguments["network"] = {**own, **arguments.get("network", {})}
    if model in _WIDE and "hidden_size" in arguments:
        arguments["d_ff"] = 2 * arguments["hidden_size"]
    if "units" in arguments:
        arguments["mlp_units"] = 3 * [[arguments["units"]] * 2]
        del arguments["units"]
    return arguments


def build(model: str, task: Task, settings: dict[str, Any], change: dict[str, Any], steps: int, seed: int) -> Any:
    """The untrained model with a trial's settings, an arm's change over them."""
    from neuralforecast import models
    from neuralforecast.losses.pytorch import MSE

    from mvpa_ts.adapters.neuralforecast import MVPA

    C = task.values.shape[1]
    arguments = in_words_of_the_host(model, settings, steps)
    changed = dict(change)
    arguments["network"] = {**arguments.get("network", {}), **changed.pop("network", {})}
    if model == "MVPA" and "patch_len" in arguments:
        arguments["patch_len"] = min(arguments["patch_len"], task.lookback)
    schedule = arguments.get("lr_scheduler_kwargs", {})
    if arguments["network"].get("mixing_heads") == 0 and changed.get("encoder_layers") == 0 and "max_lr" in schedule:
        schedule["max_lr"] = schedule["max_lr"][1:]  # the linear path alone is left
    if model != "MVPA":
        del arguments["network"]
    name = "TSMixerx" if model == "TSMixer" and task.covariates is not None else model  # the same with covariates
    model_class = MVPA if model == "MVPA" else in_order(getattr(models, name))
    batch = max(8, min(BATCH, _MOST_TOKENS // C))
    sizes = {"n_series": C} if model_class.MULTIVARIATE else {"batch_size": C}
    arguments |= covariates_of(task, model_class)
    arguments["windows_batch_size"] = batch if model_class.MULTIVARIATE else batch * C
    return model_class(
        h=task.horizon, input_size=task.lookback, max_steps=steps, random_seed=seed, loss=MSE(), **sizes, **UNKEPT,
        **{**arguments, **changed},
    )  # fmt: skip


def covariates_of(task: Task, model_class: type) -> dict[str, list[str]]:
    """The model's argument for the task's covariates, if the model takes such."""
    if task.covariates is None:
        return {}
    taken = model_class.EXOGENOUS_FUTR if task.ahead else model_class.EXOGENOUS_HIST
    names = [f"covariate_{index}" for index in range(task.covariates.shape[2])]
    return {"futr_exog_list" if task.ahead else "hist_exog_list": names} if taken else {}


def in_order(model_class: type) -> type:
    """A model of the host that trains on the series in their order.

    The host shuffles the series of every batch of a multivariate model. A mixer of channels whose weights belong to
    places then learns next to nothing: TSMixer's error on the wave is .86 shuffled, .42 in order.
    """
    if not model_class.MULTIVARIATE:
        return model_class

    class InOrder(model_class):
        def _fit(self, *args: Any, **kwargs: Any) -> Any:
            return super()._fit(*args, **{**kwargs, "shuffle_train": False})

    return InOrder


UNKEPT: dict[str, Any] = {**QUIET, "enable_checkpointing": False, "limit_val_batches": 0}


def nothing_set(task: Task, steps: int, seed: int, **change: Any) -> Any:
    """What `NeuralForecast([MVPA(h, input_size, n_series)])` trains; only the number of steps and the seed are told."""
    from mvpa_ts.adapters.neuralforecast import MVPA

    C = task.values.shape[1]
    return MVPA(
        h=task.horizon, input_size=task.lookback, n_series=C, max_steps=steps, random_seed=seed, **UNKEPT,
        **covariates_of(task, MVPA), **change,
    )  # fmt: skip


def long_panel(values: np.ndarray, covariates: np.ndarray | None = None) -> pd.DataFrame:
    """Rows of the host: series by place, a step a row, a mask of what was measured, and covariates."""
    rows, C = values.shape
    columns = {
        "unique_id": np.repeat([f"{channel:03d}" for channel in range(C)], rows),
        "ds": np.tile(np.arange(rows), C),
        "y": np.nan_to_num(values).T.ravel(),
        "available_mask": (~np.isnan(values)).astype(int).T.ravel(),
    }
    if covariates is not None:
        columns |= {f"covariate_{k}": covariates[:rows, :, k].T.ravel() for k in range(covariates.shape[2])}
    return pd.DataFrame(columns)


def trained(model: Any, task: Task, part: str) -> tuple[Any, dict[str, Any]]:
    """Train on the training rows, forecast windows of a part: the host, and error, processor seconds and weights.

    A trial sees the validation part alone; its panel ends there.
    """
    from neuralforecast import NeuralForecast

    silence()
    begin, end = task.ends if part == "validation" else (task.ends[1], len(task.values))
    scored = task.horizon + EVERY * ((end - begin - task.horizon) // EVERY)
    # The host refuses a rest that the steps between windows leave over.
    end = begin + scored
    begun = time.process_time()
    host = NeuralForecast([model], freq=1)
    forecast = host.cross_validation(
        long_panel(task.values[:end], task.covariates), n_windows=None, step_size=EVERY, test_size=scored,
        val_size=begin - task.ends[0],
    )  # fmt: skip
    return host, {
        **errors(forecast, task),
        "seconds": round(time.process_time() - begun, 1),
        "weights": sum(parameter.numel() for parameter in host.models[0].parameters()),
    }


def error_elsewhere(host: Any, task: Task) -> float:
    """Error of a fitted host on other channels, which it reads by `predict(df=…)`."""
    forecasts = []
    for start in task.starts("test", _ELSEWHERE_EVERY if len(task.values) > _ELSEWHERE_MANY else 1):
        past = long_panel(task.values[start : start + task.lookback])
        forecast = host.predict(df=past.assign(ds=past["ds"] + start))
        forecasts.append(forecast)
    return errors(pd.concat(forecasts), task)["mse"]


def errors(forecast: pd.DataFrame, task: Task) -> dict[str, float]:
    """Mean square error of the host's rows, and the absolute one in units; steps without a truth do not count."""
    (name,) = [name for name in forecast if name not in ("unique_id", "ds", "cutoff", "y", "available_mask")]
    channel = forecast["unique_id"].astype(int).to_numpy()
    error = forecast[name].to_numpy() - task.truth[forecast["ds"].to_numpy(), channel]
    absolute = {} if task.unit is None else {"mae": float(np.nanmean(np.abs(error) * task.unit[channel]))}
    return {"mse": float(np.nanmean(np.square(error))), **absolute}
