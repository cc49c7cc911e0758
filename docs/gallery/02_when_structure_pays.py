"""
When structure pays, and when it does not
=========================================

MVPA reads all channels together. That helps where channels tell about each other, and where there are enough rows to
learn how. Here are five cases, beside the same network when it reads each channel by itself.
"""

import matplotlib.pyplot as plt
import numpy as np

from mvpa_ts import ForecastingConfig
from mvpa_ts.forecasting.channel_order import correlation_order
from mvpa_ts.forecasting.fitted import fit_forecaster
from mvpa_ts.forecasting.training import ForecasterTraining
from mvpa_ts.windows import Series

LOOKBACK, HORIZON, CHANNELS = 48, 12, 8
draws = np.random.default_rng(0)


def source(rows: int) -> np.ndarray:
    """A slow random signal with a standard deviation of about 1."""
    values = np.zeros(rows)
    for row in range(1, rows):
        values[row] = 0.9 * values[row - 1] + 0.44 * draws.standard_normal()
    return values


def wave(rows: int) -> np.ndarray:
    """One signal travels along the channels, four steps for each, with noise on top."""
    delay = 4 * np.arange(CHANNELS)
    signal = source(rows + delay.max())
    clean = np.stack([signal[delay.max() - d : len(signal) - d] for d in delay], axis=1)
    return clean + 0.3 * draws.standard_normal(clean.shape)


# %%
# One function trains a network and returns its squared error on rows that it has not seen. Given the channels as series
# of their own, the network reads each by itself.


def error(channels: list[np.ndarray], test_rows: int = 240) -> float:
    """Mean squared error over series of one or more channels."""
    config = ForecastingConfig(HORIZON, LOOKBACK, patch_length=8, patch_stride=4, num_outputs=9)
    # As many values in each step, whether they come as one series or as eight.
    training = ForecasterTraining(steps=80, batch_size=32 * CHANNELS // channels[0].shape[1])
    fitted = fit_forecaster([Series(values[:-test_rows]) for values in channels], config, training)
    squared = []
    for values in channels:
        for end in range(len(values) - test_rows, len(values) - HORIZON, HORIZON):
            forecast = fitted.predict(Series(values[end - LOOKBACK : end]))[..., len(fitted.levels) // 2]
            squared.append(np.mean((forecast - values[end : end + HORIZON]) ** 2))
    return float(np.mean(squared))


# %%
# The cases. In the second, the channels of the wave are shuffled, so that neighbours mean nothing. In the third,
# `correlation_order` finds an order again. In the fourth, channels have nothing to do with each other. In the last, the
# wave is in order, but there are only 80 rows to learn from.

ordered = wave(3000)
shuffled = ordered[:, draws.permutation(CHANNELS)]
cases = {
    "a wave, channels in order": ordered,
    "the same, shuffled": shuffled,
    "shuffled, then put in order": shuffled[:, correlation_order(shuffled[:-240])],
    "channels without relation": np.stack([source(3000) for _ in range(CHANNELS)], axis=1),
    "a wave, 80 rows": ordered[-320:],
}
together = [error([values]) for values in cases.values()]
# Read by itself, a channel is the same in whatever order.
in_order = {name: error(np.split(cases[name], CHANNELS, axis=1)) for name in cases if "shuffled" not in name}
alone = [in_order.get(name, in_order["a wave, channels in order"]) for name in cases]
for name, *errors in zip(cases, together, alone, strict=True):
    print("{}: {:.2f} together, {:.2f} each by itself".format(name, *errors))

# %%
figure, axis = plt.subplots(figsize=(8, 3.5))
places = np.arange(len(cases))
axis.barh(places - 0.2, together, 0.38, label="MVPA, all channels together")
axis.barh(places + 0.2, alone, 0.38, label="each channel by itself")
axis.set_yticks(places, list(cases))
axis.invert_yaxis()
axis.set_xlabel("squared error on unseen rows; lower is better")
figure.legend(loc="outside upper center", ncols=2)
plt.show()

# %%
# If your series have no known order, try `correlation_order` or leave the channel term out
# (`components=("content", "time")`). If validation does not prefer MVPA over a model of single series, take the simpler
# one. With hundreds of series, set `channel_window`: see :doc:`/guides/growing`.
