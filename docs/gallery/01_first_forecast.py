"""
A first forecast with intervals
===============================

Monthly passengers of two airlines, twelve months ahead, with an 80 % interval.
"""

import matplotlib.pyplot as plt
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.utils import AirPassengersPanel

from mvpa_ts.adapters.neuralforecast import MVPA

panel = AirPassengersPanel[["unique_id", "ds", "y"]]
past, future = panel[panel["ds"] < "1960"], panel[panel["ds"] >= "1960"]

# %%
# All series of the panel are read together. `input_size` is how far back the model looks.

quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
model = MVPA(h=12, input_size=36, n_series=2, loss=MQLoss(level=[80]), max_steps=200, **quiet)
forecaster = NeuralForecast(models=[model], freq="ME")
forecaster.fit(past)
forecast = forecaster.predict()
print(forecast.head())

# %%
# The last year was not used for training.

figure, axes = plt.subplots(1, 2, figsize=(10, 3.5))
for axis, name in zip(axes, panel["unique_id"].unique(), strict=True):
    truth, ahead = panel[panel["unique_id"] == name].tail(60), forecast[forecast["unique_id"] == name]
    axis.plot(truth["ds"], truth["y"], color="0.3", label="passengers")
    axis.plot(ahead["ds"], ahead["MVPA-median"], color="C0", label="forecast")
    axis.fill_between(ahead["ds"], ahead["MVPA-lo-80"], ahead["MVPA-hi-80"], color="C0", alpha=0.25, label="80 %")
    axis.set_title(name)
    axis.tick_params("x", rotation=30)
axes[0].set_ylabel("thousand passengers a month")
axes[0].legend(loc="upper left")
plt.show()
