"""
A sweep with Optuna
===================

`AutoMVPA` tries settings, keeps every trial in a database, and fits the best. You can stop it at any time. The same
script then continues the search.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from neuralforecast import NeuralForecast
from neuralforecast.utils import AirPassengersPanel

from mvpa_ts.adapters.neuralforecast import AutoMVPA

panel = AirPassengersPanel[["unique_id", "ds", "y"]]
folder = Path(tempfile.mkdtemp())
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}

# %%
# `config` is a function that draws the settings of a trial. Without `config`, `AutoMVPA` searches a space of its own.


def config(trial):
    """Settings of one trial."""
    return {
        "input_size": trial.suggest_categorical("input_size", [12, 24, 36]),
        "learning_rate": trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True),
        "max_steps": 40,
        "random_seed": 1,
        **quiet,
    }


model = AutoMVPA(h=12, n_series=2, config=config, num_samples=8, storage=f"sqlite:///{folder / 'sweep.db'}")
forecaster = NeuralForecast(models=[model], freq="ME")
forecaster.fit(panel, val_size=24)
print(forecaster.models[0].results.best_params)

# %%
# The result is an ordinary study of Optuna, so its tables and plots work. The loss is measured on the last 24 months,
# which the trials did not train on.

trials = forecaster.models[0].results.trials_dataframe()
figure, axis = plt.subplots(figsize=(8, 3.5))
for size, rows in trials.groupby("params_input_size"):
    axis.semilogx(rows["params_learning_rate"], rows["value"], "o", markersize=8, label=f"looks back {size} months")
axis.set_xlabel("learning rate")
axis.set_ylabel("validation loss")
axis.legend()
plt.show()
