"""
Missing data
============

Missing values are masked, in training and in the look-back. Nothing is filled in. Here a sensor breaks for a while, and
every fifth value is lost.
"""

import matplotlib.pyplot as plt
import torch

from mvpa_ts import ForecastingConfig
from mvpa_ts.forecasting.fitted import fit_forecaster
from mvpa_ts.forecasting.training import ForecasterTraining
from mvpa_ts.windows import Series

torch.manual_seed(0)
steps = torch.arange(1000.0)
clean = torch.stack([torch.sin(2 * torch.pi * (steps - 6 * c) / 24) for c in range(3)], dim=1)
noisy = clean + 0.1 * torch.randn(clean.shape)
noisy[300:420, 0] = torch.nan  # a broken sensor
noisy[torch.rand(noisy.shape) < 0.2] = torch.nan  # and every fifth value lost

# %%
# `fit_forecaster` reads NaN as missing.

config = ForecastingConfig(horizon=24, lookback=96, num_outputs=9)  # nine quantiles
fitted = fit_forecaster([Series(noisy[:976].numpy())], config, ForecasterTraining(steps=100))
forecast = fitted.predict(Series(noisy[:976].numpy()))
print("mean absolute error:", float(abs(forecast[..., len(fitted.levels) // 2] - clean[976:].numpy()).mean().round(3)))

# %%
figure, axis = plt.subplots(figsize=(8, 3.5))
for c in range(3):
    axis.plot(steps[880:976], noisy[880:976, c] + 3 * c, ".", color="0.5", markersize=4)
    axis.plot(steps[976:], clean[976:, c] + 3 * c, color="0.3")
    axis.plot(steps[976:], forecast[:, c, len(fitted.levels) // 2] + 3 * c, color=f"C{c}")
axis.set_xlabel("step")
axis.set_yticks([0, 3, 6], ["sensor 1", "sensor 2", "sensor 3"])
axis.set_title("Dots: what was measured. Grey: the truth. Colours: the forecast")
plt.show()
