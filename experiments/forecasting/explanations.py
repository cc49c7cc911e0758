"""Find the channel and time that a forecast rests on: `explain()` on a wave whose path is known.

A wave travels along twelve channels, eight steps a channel. MVPA is trained through neuralforecast by its defaults and
forecasts channel 8, twenty steps ahead. What has arrived there by then left channel 5 five steps before the look-back's
end, channel 4 thirteen steps before, and so on: the attributions should lie there.

    python experiments/forecasting/explanations.py  # results/structure/explanations.csv, .md and .png; a minute
    python experiments/forecasting/explanations.py --quick  # a few steps, written elsewhere
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.board.models import UNKEPT, long_panel
from harness.command_line import script_parser
from harness.figures import style
from harness.quiet import silence
from harness.structure.tasks import DELAY, wave
from harness.study import grid, paragraphs
from harness.tables import hardware, results_folder, write_table

CHANNELS, LOOKBACK, HORIZON = 12, 96, 48
CHANNEL, STEPS_AHEAD = 8, 20  # of the forecast that is explained
ENDS = range(LOOKBACK, LOOKBACK + 8 * 40, 40)  # of the windows that are averaged


def main() -> None:
    """Train, explain, write the table, the page and the figure."""
    quick = script_parser(__doc__, "a few steps, written to a temporary folder").parse_args().quick
    torch.set_num_threads(1)
    silence()
    attributions = explained(quick=quick)
    table = by_channel(attributions)
    folder = results_folder("structure", quick=quick)
    write_table(folder, "explanations", table, markdown(table))
    print(figure(attributions, folder))


def explained(*, quick: bool) -> np.ndarray:
    """Size of the attributions, mean over windows, [look-back, channels]."""
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MSE

    from mvpa_ts.adapters.neuralforecast import MVPA

    windows = wave(1, quick)
    model = MVPA(
        h=HORIZON,
        input_size=LOOKBACK,
        n_series=CHANNELS,
        max_steps=2 if quick else 400,
        loss=MSE(),
        network={"regressions": False},
        **UNKEPT,
    )
    forecaster = NeuralForecast(models=[model], freq=1)
    forecaster.fit(long_panel(windows["train"].values.numpy()))
    test = windows["test"].values.numpy()
    sizes = []
    for end in ENDS[: 1 if quick else None]:
        window = long_panel(test[end - LOOKBACK : end])
        _, explanations = forecaster.explain(horizons=[STEPS_AHEAD - 1], series=[CHANNEL], df=window, verbose=False)
        values = explanations["MVPA"]["insample"].detach()  # [..., look-back, channels, value and mask]
        sizes.append(values.reshape(LOOKBACK, CHANNELS, 2)[..., 0].abs().numpy())
    return np.mean(sizes, axis=0)


def arrival(channel: int) -> int:
    """Steps before the look-back's end at which the forecast wave passed a channel; below 1 it had not yet."""
    return DELAY * (CHANNEL - channel) - STEPS_AHEAD + 1


def by_channel(attributions: np.ndarray) -> pd.DataFrame:
    """For each channel its share, and where its largest attribution lies."""
    share = attributions.sum(0) / attributions.sum()
    rows = []
    for channel in range(CHANNELS):
        found = LOOKBACK - int(attributions[:, channel].argmax())
        true = arrival(channel)
        known = 1 <= true <= LOOKBACK and channel < CHANNEL
        row = {"channel": channel, "share": round(float(share[channel]), 3)}
        rows.append({**row, "found": found, "true": true if known else None})
    return pd.DataFrame(rows).astype({"true": "Int64"})


def markdown(table: pd.DataFrame) -> str:
    """The table with a sentence."""
    heads = ["channel", "share of all attributions", "most at steps before the end", "the wave passed there"]
    lines = table.assign(share=table["share"].map("{:.3f}".format)).astype(object).fillna("–").to_numpy()
    return paragraphs(
        "# Which channel made the forecast",
        "Made by `experiments/forecasting/explanations.py`: integrated gradients of MVPA's forecast of channel "
        f"{CHANNEL}, {STEPS_AHEAD} steps ahead, on the travelling wave, mean size over {len(ENDS)} windows, one seed.",
        grid(heads, lines),
        f"Measured on {hardware()}; 1 thread, torch {torch.__version__}.",
    )


def figure(attributions: np.ndarray, folder: Any) -> Any:
    """Attributions by channel and step, with the path of the wave."""
    style.apply()
    import matplotlib.pyplot as plt

    drawn, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    steps = np.arange(-LOOKBACK, 0)
    image = axis.pcolormesh(steps, np.arange(CHANNELS), attributions.T, cmap="Blues", shading="nearest")
    path = [channel for channel in range(CHANNEL) if 1 <= arrival(channel) <= LOOKBACK]
    axis.plot(
        [-arrival(channel) for channel in path], path, "o", markersize=11, markerfacecolor="none",
        color=style.ORANGE, label="the wave passed here",
    )  # fmt: skip
    axis.plot([STEPS_AHEAD - 1], [CHANNEL], "*", markersize=11, color=style.RED, label="the forecast")
    axis.axvline(-0.5, color=style.GREY, linewidth=0.8)
    axis.set(
        xlabel="steps from the end of the look-back",
        ylabel="channel",
        yticks=range(CHANNELS),
        xlim=(-64, STEPS_AHEAD + 4),
    )
    axis.invert_yaxis()
    axis.legend(loc="lower left")
    drawn.colorbar(image, ax=axis, label="attribution")
    return style.save(drawn, folder, "explanations")


if __name__ == "__main__":
    main()
