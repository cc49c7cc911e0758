"""
Covariates
==========

Two shops sell more when there is an offer, and offers are known in advance. A model can forecast their effect only if
it knows of them.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast

from mvpa_ts.adapters.neuralforecast import MVPA

rng = np.random.default_rng(0)
days = pd.date_range("2024-01-01", periods=400)
tables = []
for shop in ("north", "south"):
    offer = (rng.random(400) < 0.15).astype(float)
    week = 5 * np.sin(2 * np.pi * np.arange(400) / 7)
    tables.append(
        pd.DataFrame(
            {"unique_id": shop, "ds": days, "y": 50 + week + 20 * offer + rng.normal(size=400), "offer": offer}
        )
    )
sales = pd.concat(tables)
past, future = sales[sales["ds"] < days[-14]], sales[sales["ds"] >= days[-14]]

# %%
# `futr_exog_list` names the columns that are known ahead.

quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
settings = {"h": 14, "input_size": 56, "n_series": 2, "max_steps": 300, **quiet}
told = MVPA(**settings, futr_exog_list=["offer"], alias="told of offers")
untold = MVPA(**settings, alias="not told")
forecaster = NeuralForecast(models=[told, untold], freq="D")
forecaster.fit(past)
forecast = forecaster.predict(futr_df=future.drop(columns="y"))

# %%
one = forecast[forecast["unique_id"] == "north"]
truth = sales[sales["unique_id"] == "north"].tail(42)
figure, axis = plt.subplots(figsize=(8, 3.5))
axis.plot(truth["ds"], truth["y"], color="0.3", label="sales")
axis.plot(one["ds"], one["told of offers"], color="C0", label="told of offers")
axis.plot(one["ds"], one["not told"], color="C1", linestyle="--", label="not told")
axis.set_ylabel("sales a day")
axis.legend(loc="upper left")
plt.show()
