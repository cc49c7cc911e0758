"""The page and the figure of the pretrained forecaster."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from harness.forecasting.zero_shot_models import MODELS, NAIVE, PRETRAINED, Forecast
from harness.forecasting.zero_shot_sets import SETS, windows
from harness.study import grid, paragraphs

# A set and a column of each. The last three fail.
SHOWN = {
    "AirPassengers panel": 0, "CO2": 0, "US changes": 0, "El Niño": 0, "METR-LA week": 0, "solar power": 0,
}  # fmt: skip
# What the looks before gave is in docs/development/forecasting.md.
SEEN = (
    "The weights have seen none of these sets. The design has: 17 of the sets are development sets, on which this "
    "network was looked at 61 times. ETTh1, ETTh2 and Weather are rows of GIFT-Eval, too; on them it was looked "
    "at twenty times, and no setting was chosen by them."
)
GROUPS = {
    "minutes and hours": ("5 minutes", "10 minutes", "half-hourly", "hourly"),
    "weeks and months": ("weekly", "monthly"),
    "quarters": ("quarterly",),
    "years": ("yearly",),
}
"""Frequencies over which means are taken together."""


def markdown(rows: pd.DataFrame, use: dict[str, Any]) -> str:
    """Goals, MASE and quantile loss of each model and set, with geometric means by frequency, tuned sets apart."""
    names = [name for name in MODELS if name in set(rows["model"])]
    mase, loss = (
        rows.pivot_table(index="set", columns="model", values=measure) for measure in ("mase", "quantile_loss")
    )
    shipped = rows[rows["model"] == PRETRAINED].set_index("set").reindex([name for name in SETS if name in mase.index])
    table = [
        [name, *(_cell(mase.loc[name].get(model, math.nan)) for model in names), f"{row['coverage']:.0%}"]
        for name, row in shipped.iterrows()
    ]
    low, high = bootstrap_interval((mase[PRETRAINED] / mase[NAIVE]).to_numpy())
    others = [name for name in names if name not in (NAIVE, PRETRAINED)]
    beside = [f"{_mean_ratio(mase, PRETRAINED, name)} of {name}'s" for name in others]
    text = (
        "Geometric means over sets; in brackets the number of sets where it is not all, because the others were not "
        f"run. If other sets had been drawn, the mean of {PRETRAINED}, could as well be {low:.2f} to {high:.2f} (95 %, "
        f"bootstrap over sets). Where both were run, its MASE is {', '.join(beside)}. Trained models learn, for 500 "
        "steps, from what lies before the first origin, at most 5120 rows. A forecast of any model reads at most the "
        "last 512. Season, horizon and origins of each set are in `experiments/harness/forecasting/zero_shot_sets.py`, "
        "its quantile losses in the rows beside this page."
    )
    means = _means(mase, names, "MASE over seasonal naive, ", " | |")
    parts = [
        f"# The pretrained forecaster on {len(mase)} sets",
        SEEN if len(mase) == len(SETS) else "",
        _goals(mase, shipped["coverage"], use),
        grid(["MASE", *names, "80 % interval holds"], table) + means,
        text,
        grid(["weighted quantile loss over seasonal naive", *names], []) + _means(loss, names, "", " |"),
    ]
    if use:
        before, after = use["airline"]
        parts.append(
            f"100 series of 512 steps, 64 steps ahead: {use['seconds_100_series']['base']:.2f} s on one core, "
            f'{use["seconds_100_series"]["small"]:.2f} s with "small". Airline panel, the '
            f"last 12 months: MAE {before:.1f} without training, {after:.1f} after 100 steps "
            'of finetuning (`MVPAForecaster(pretrained="base", finetune_steps=100)`).'
        )
    return paragraphs(*filter(None, parts), f"{', '.join(sorted(set(rows['hardware'])))}.")


def _goals(mase: pd.DataFrame, coverage: pd.Series, use: dict[str, Any]) -> list[str]:
    """What was to be reached, as it was set before the work, beside what was."""
    if NAIVE not in mase or "AutoETS" not in mase:
        return []
    other = mase[[not SETS[str(name)].tuned for name in mase.index]]
    seasonal = mase[[SETS[str(name)].season <= 24 for name in mase.index]]
    naive, apart, classical, modelled = (
        float(np.exp(np.log(table[PRETRAINED] / table[beside]).mean()))
        for table, beside in ((mase, NAIVE), (other, NAIVE), (mase, "AutoETS"), (seasonal, "AutoETS"))
    )
    better, held = int((mase[PRETRAINED] < mase[NAIVE]).sum()), int(coverage.between(0.75, 0.85).sum())
    goals = [
        ("MASE at most 0.80 of seasonal naive's, the least to be reached", f"{naive:.4f}", naive <= 0.80),
        ("MASE at most 0.75 of seasonal naive's", f"{naive:.4f}", naive <= 0.75),
        ("the same, on the sets that others do not tune on", f"{apart:.3f}", apart <= 0.75),
        ("MASE at most that of AutoETS", f"{classical:.3f} of it", classical <= 1.0),
        ("the same, where AutoETS models the season (at most 24)", f"{modelled:.3f} of it", modelled <= 1.0),
        ("better than seasonal naive on 80 % of the sets", f"{better} of {len(mase)}", better >= 0.8 * len(mase)),
        ("80 % intervals hold 75 to 85 %, mean over sets", f"{coverage.mean():.1%}", 0.75 <= coverage.mean() <= 0.85),
        ("the same, of each set alone", f"{held} of {len(coverage)} sets", held == len(coverage)),
    ]
    if use:
        seconds, (_, after) = use["seconds_100_series"]["base"], use["airline"]
        goals += [
            ("100 series of 512 steps in less than 2 s on one core", f"{seconds:.2f} s", seconds < 2.0),
            ("airline panel: MAE at most 26 after 100 steps of finetuning", f"{after:.1f}", after <= 26.0),
        ]
    return grid(["goal", "found", "reached"], [(*goal, "yes" if met else "**no**") for *goal, met in goals])


def _means(values: pd.DataFrame, names: list[str], title: str, end: str) -> list[str]:
    """Rows of geometric means over seasonal naive: by frequency, of sets that others tune on and of others, of all."""
    groups = {
        f"{len(sets)} sets of {label}": sets
        for label, frequencies in GROUPS.items()
        if (sets := [name for name in values.index if SETS[str(name)].frequency in frequencies])
    }
    groups |= {
        label: [name for name in values.index if SETS[str(name)].tuned == tuned]
        for label, tuned in (("sets that others tune on", True), ("other sets", False))
    }
    # Here AutoETS and AutoTheta model the season.
    groups["sets with a season of at most 24"] = [name for name in values.index if SETS[str(name)].season <= 24]
    groups["all sets"] = list(values.index)
    return [
        f"| **{title}{label}** | {' | '.join(_mean_ratio(values.loc[sets], name, NAIVE) for name in names)}{end}"
        for label, sets in groups.items()
    ]


def bootstrap_interval(ratios: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """Where 95 % of the geometric means of sets that are drawn with replacement lie."""
    drawn = np.random.default_rng(0).choice(np.log(ratios), (draws, len(ratios))).mean(1)
    low, high = np.exp(np.quantile(drawn, (0.025, 0.975)))
    return float(low), float(high)


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _mean_ratio(values: pd.DataFrame, model: str, beside: str) -> str:
    """Geometric mean of a model's values over another's, on the sets that have both."""
    if model not in values or beside not in values:
        return "–"
    ratio = (values[model] / values[beside]).dropna()
    count = "" if len(ratio) == len(values) else f" ({len(ratio)})"
    return f"{float(np.exp(np.log(ratio).mean())):.3f}{count}" if len(ratio) else "–"


def draw(path: Path, forecasts: dict[str, Forecast]) -> None:
    """Six forecasts at the last origin of a set, beside what came and the last season; three of them fail."""
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
