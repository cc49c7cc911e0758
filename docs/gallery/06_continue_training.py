"""
Continue training
=================

A model is trained on a panel and saved. Months later there is another panel, with another number of series. The same
weights are trained further on it, at a lower rate.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast

from mvpa_ts.adapters.neuralforecast import MVPA

draws = np.random.default_rng(0)
days = pd.date_range("2024-01-01", periods=300)


def sales(names: list[str], rhythm: int) -> pd.DataFrame:
    """Daily sales that peak every so many days."""
    tables = []
    for name in names:
        level = draws.uniform(50, 150)
        peaks = np.arange(len(days)) % rhythm == 0
        sold = level * (1 + 0.5 * peaks + 0.05 * draws.standard_normal(len(days)))
        tables.append(pd.DataFrame({"unique_id": name, "ds": days, "y": sold}))
    return pd.concat(tables)


first, second = sales(["north", "south", "west"], rhythm=7), sales(["barge", "ferry"], rhythm=5)
past, future = second[second["ds"] < days[-14]], second[second["ds"] >= days[-14]]

# %%
# Train on three shops and save. The folder holds safetensors and JSON.

quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
model = MVPA(h=14, input_size=56, n_series=3, max_steps=200, **quiet)
forecaster = NeuralForecast(models=[model], freq="D")
forecaster.fit(first)
folder = Path(tempfile.mkdtemp()) / "shops"
forecaster.save(str(folder))

# %%
# Load the model, and forecast for two boats. They sell most every fifth day, and the shops every seventh. First
# forecast with the weights as they are, then after sixty steps on the boats' past.

forecaster = NeuralForecast.load(str(folder))
before = forecaster.predict(df=past)
forecaster.models[0].finetune(n_series=2, max_steps=60, learning_rate=5e-4)
forecaster.fit(past)
after = forecaster.predict()
for name, forecast in (("before", before), ("after", after)):
    merged = forecast.merge(future, on=["unique_id", "ds"])
    print(name, "mean absolute error:", round(float((merged["MVPA"] - merged["y"]).abs().mean()), 1))

# %%
figure, axis = plt.subplots(figsize=(8, 3.5))
truth = second[second["unique_id"] == "ferry"].tail(42)
axis.plot(truth["ds"], truth["y"], color="0.4", label="sales")
for label, forecast, line in (("before", before, "--"), ("after sixty steps", after, "-")):
    rows = forecast[forecast["unique_id"] == "ferry"]
    axis.plot(rows["ds"], rows["MVPA"], line, label=label)
axis.set_ylabel("sales on the ferry a day")
axis.tick_params("x", rotation=30)
figure.legend(loc="outside upper center", ncols=3)
plt.show()
