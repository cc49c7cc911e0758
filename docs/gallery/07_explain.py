"""
Explain a forecast
==================

Which hours of which series did a forecast use? neuralforecast computes attributions by captum, and MVPA gives them for
all series at once.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast

from mvpa_ts.adapters.neuralforecast import MVPA

# %%
# The second sensor sees what the first one saw five hours before. A forecast of the second should use the first.

draws = np.random.default_rng(0)
hours = pd.date_range("2024-01-01", periods=1200, freq="h")
signal = np.zeros(1205)
for step in range(1, 1205):
    signal[step] = 0.9 * signal[step - 1] + draws.standard_normal()
upstream, downstream = signal[5:], signal[:-5] + 0.1 * draws.standard_normal(1200)
panel = pd.concat(
    [
        pd.DataFrame({"unique_id": "1 upstream", "ds": hours, "y": upstream}),
        pd.DataFrame({"unique_id": "2 downstream", "ds": hours, "y": downstream}),
    ]
)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
model = MVPA(h=6, input_size=24, patch_len=6, n_series=2, max_steps=300, **quiet)
forecaster = NeuralForecast(models=[model], freq="h")
forecaster.fit(panel)

# %%
# Attributions of the third hour ahead, downstream: one number for each hour of the look-back and each series.

_, explanations = forecaster.explain(horizons=[2], series=[1], verbose=False)
attribution = explanations["MVPA"]["insample"].detach().numpy()[0, 0, 0, 0, :, :, 0]  # (hours, series)
print(attribution.shape)

# %%
# The forecast is three hours ahead and the delay is five hours. So what downstream will see was upstream two hours ago.

figure, axis = plt.subplots(figsize=(8, 3.5))
for series, name in enumerate(("upstream", "downstream")):
    axis.plot(np.arange(-23, 1), np.abs(attribution[:, series]), "o-", markersize=4, label=name)
axis.set_xlabel("hours before now")
axis.set_ylabel("size of the attribution")
axis.legend()
plt.show()
