"""The page and the figure of the pretrained forecaster."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from harness.forecasting.zero_shot_models import FORMER, MODELS, NAIVE, PRETRAINED, Forecast
from harness.forecasting.zero_shot_sets import SETS, windows

# A set and a column of each; the last two fail: a season longer than the network can see, and nights without sun.
SHOWN = {
    "AirPassengers panel": 0, "CO2": 0, "US changes": 0, "El Niño": 0, "METR-LA week": 0, "solar power": 0,
}  # fmt: skip
# What the looks before gave is in docs/development/forecasting.md.
FOURTH_LOOK = "**This is the fourth look at the sets.** "


def markdown(rows: pd.DataFrame, use: dict[str, Any]) -> str:
    """MASE of each model and set, and geometric means over seasonal naive, tuned sets apart."""
    lines = ["# The pretrained forecaster on sets that it never saw", ""]
    names = [name for name in MODELS if name in set(rows["model"])]
    lines += ["| MASE | season, horizon | " + " | ".join(names) + " | 80 % interval holds | s |"]
    lines += ["|---|---|" + "---|" * (len(names) + 2)]
    table = rows.pivot_table(index="set", columns="model", values="mase")
    shipped = rows[rows["model"] == PRETRAINED].set_index("set")
    for name in SETS:
        if name in table.index:
            values = [table.loc[name].get(model, math.nan) for model in names]
            cells = ["–" if math.isnan(value) else f"{value:.3f}" for value in values]
            cover = f"{shipped.loc[name, 'coverage']:.0%}" if name in shipped.index else "–"
            seconds = f"{shipped.loc[name, 'seconds']:.1f}" if name in shipped.index else "–"
            about = f"{SETS[name].season}, {SETS[name].horizon}"
            lines.append(f"| {name} | {about} | " + " | ".join(cells) + f" | {cover} | {seconds} |")
    for label, wanted in (("sets that others tune on", True), ("other sets", False), ("all sets", None)):
        some = [name for name in table.index if wanted is None or SETS[name].tuned == wanted]
        for measure in ("mase", "quantile_loss"):
            values = rows[rows["set"].isin(some)].pivot_table(index="set", columns="model", values=measure)
            cells = [_mean_ratio(values, model, NAIVE) for model in names]
            title = "MASE" if measure == "mase" else "quantile loss"
            lines.append(f"| **{title} over seasonal naive, {label}** | | " + " | ".join(cells) + " | | |")
    better = int((table[PRETRAINED] < table[NAIVE]).sum())
    looks = FOURTH_LOOK if all(name in table for name in FORMER) else ""
    held = [name for name in shipped.index if 0.75 <= shipped.loc[name, "coverage"] <= 0.85]
    others = [name for name in names if name not in (NAIVE, PRETRAINED)]
    beside = [f"{_mean_ratio(table, PRETRAINED, name)} of {name}'s" for name in others]
    lines += [
        "",
        "Geometric means over sets; in brackets the number of sets where it is not all, because the others were not "
        f"run. {PRETRAINED}, is better than the last season on {better} of {len(table)} sets. {looks}"
        f"Its 80 % interval holds 75 to 85 % of the values on {len(held)} sets. Where both were run, its "
        f"MASE is {', '.join(beside)}. Trained models see what lies before the first origin, for 500 steps. "
        "Seconds are of all origins of a set; they were taken beside other work.",
        "",
    ]
    if use:
        before, after = use["airline"]
        lines += [
            f"100 series of 512 steps, 64 steps ahead: {use['seconds_100_series']:.2f} s on one core. Airline panel, "
            f"the last 12 months: MAE {before:.1f} without training, {after:.1f} after 100 steps "
            'of fine-tuning (`MVPAForecaster(pretrained="base", finetune_steps=100)`).',
            "",
        ]
    hardware = sorted(set(rows["hardware"]))
    return "\n".join([*lines, f"{', '.join(hardware)}."]) + "\n"


def _mean_ratio(values: pd.DataFrame, model: str, beside: str) -> str:
    """Geometric mean of a model's values over another's, on the sets that have both."""
    if model not in values or beside not in values:
        return "–"
    ratio = (values[model] / values[beside]).dropna()
    count = "" if len(ratio) == len(values) else f" ({len(ratio)})"
    return f"{float(np.exp(np.log(ratio).mean())):.3f}{count}" if len(ratio) else "–"


def draw(path: Path, forecasts: dict[str, Forecast]) -> None:
    """Six forecasts at the last origin of a set, beside what came and the last season; two of them fail."""
    from harness.figures import style

    style.apply()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5))
    for axes, (name, column) in zip(figure.subplots(2, 3).flat, SHOWN.items(), strict=True):
        of = SETS[name]
        history, truth = list(windows(of))[-1]
        quantiles = {kind: forecast(history, of)[:, column] for kind, forecast in forecasts.items()}
        past = history[-min(len(history), max(4 * of.horizon, 2 * of.season)) :, column]
        ahead = np.arange(of.horizon)
        axes.plot(np.arange(-len(past), 0), past, color="0.4", linewidth=0.8)
        axes.plot(ahead, truth[:, column], color="0.1", linewidth=1.0, label="truth")
        axes.plot(ahead, quantiles[NAIVE][:, 4], color=style.RED, linewidth=0.9, label=NAIVE)
        axes.plot(ahead, quantiles[PRETRAINED][:, 4], color=style.BLUE, linewidth=1.2, label="median forecast")
        band = quantiles[PRETRAINED]
        axes.fill_between(ahead, band[:, 0], band[:, -1], color=style.BLUE, alpha=0.25, label="80 % interval")
        errors = {kind: np.nanmean(np.abs(values[:, 4] - truth[:, column])) for kind, values in quantiles.items()}
        verdict = "better" if errors[PRETRAINED] < errors[NAIVE] else "worse"
        axes.set_title(f"{name}: {verdict} than the last season")
    axes.legend()
    figure.savefig(path)
