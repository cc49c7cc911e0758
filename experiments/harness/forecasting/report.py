"""Tables and plots from the rows of the forecasting runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from harness.figures import style
from harness.forecasting.models import HORIZONS, LOOKBACK, MODELS, TRANSFORMERS
from harness.forecasting.settings import PEER_SETTINGS
from harness.paper import tables as paper
from harness.study import grid, paragraphs, spread
from harness.tables import machines

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS

HIDDEN = {f"MVPA {term}" for term in ("content-only", "time-only", "channel-only", "none")}
# Averages over the horizons as their papers print them, MSE / MAE; trained and tuned there, on other machines.
CITED = {
    "CycleNet/Linear, its authors": {"ETTh1": "0.433 / 0.428", "ETTh2": "0.384 / 0.405", "Weather": "0.255 / 0.279"},
    "CycleNet/MLP, its authors": {"ETTh1": "0.457 / 0.441", "ETTh2": "0.388 / 0.410", "Weather": "0.243 / 0.271"},
    "TQNet, its paper": {"ETTh1": "0.441 / 0.434", "ETTh2": "0.378 / 0.402", "Weather": "0.242 / 0.269"},
    "TimeXer, its paper": {"ETTh1": "0.437 / 0.437", "ETTh2": "0.367 / 0.396", "Weather": "0.241 / 0.271"},
    "SimpleTM, a rerun": {"ETTh1": "–", "ETTh2": "0.356 / 0.392", "Weather": "–"},
    "OLinear, its paper": {"ETTh1": "0.424 / 0.424", "ETTh2": "0.367 / 0.388", "Weather": "0.237 / 0.260"},
}
# MSE at a free look-back, quoted at second hand.
CITED_FREE = {
    "xLSTM-Mixer": {"ETTh1": "0.397", "ETTh2": "0.340", "Weather": "0.219"},
    "TimeAlign": {"ETTh1": "0.418", "ETTh2": "0.347", "Weather": "0.216"},
    "AMD": {"ETTh1": "0.412", "ETTh2": "0.366", "Weather": "0.225"},
}
# CycleNet: means over the five seeds of result.txt in the authors' repository (ACAT-SCUT/CycleNet, commit fcde875),
# which has the same look-back, horizons and split, and drops no test window.
CITED_HORIZONS = {
    "CycleNet/Linear, its authors": {
        "ETTh1": ("0.378 / 0.391", "0.427 / 0.419", "0.464 / 0.439", "0.462 / 0.461"),
        "ETTh2": ("0.286 / 0.335", "0.373 / 0.392", "0.422 / 0.433", "0.454 / 0.458"),
        "Weather": ("0.170 / 0.216", "0.222 / 0.259", "0.276 / 0.297", "0.350 / 0.345"),
    },
    "CycleNet/MLP, its authors": {
        "ETTh1": ("0.375 / 0.395", "0.437 / 0.428", "0.497 / 0.455", "0.520 / 0.484"),
        "ETTh2": ("0.298 / 0.345", "0.373 / 0.396", "0.431 / 0.439", "0.451 / 0.459"),
        "Weather": ("0.159 / 0.203", "0.207 / 0.248", "0.263 / 0.290", "0.345 / 0.345"),
    },
}


def draw(rows: pd.DataFrame, table: Path) -> None:
    """Draw the plots that lie beside the rows."""
    plot(rows, table.with_suffix(".png"))
    plot_cost(rows, table.with_name(f"{table.stem}_cost.png"))


def markdown_report(rows: pd.DataFrame) -> str:
    """Errors and cost of each model, mean over seeds (± standard deviation), averaged where all horizons are there."""
    lookback = int(rows["lookback"].iloc[0]) if "lookback" in rows else LOOKBACK
    # Others' numbers stand once, beside the shipped model at the look-back that they use.
    cited = lookback == LOOKBACK and "MVPA" in set(rows["model"])
    lead = [
        f"Error on the full test set, MSE / MAE in scaled units, look-back {lookback}; mean over seeds, "
        "± standard deviation of the MSE where there are several.",
        "Average: over the four horizons, where all were run; its deviation is that of the averages of the seeds. "
        "Parameters at the shortest horizon; seconds are processor time on a CPU, mean over the runs.",
    ]
    parts: list[str | list[str]] = [lead]
    for dataset in [name for name in FORECASTING_DATASETS if name in set(rows["dataset"])]:
        part = rows[rows["dataset"] == dataset]
        horizons = sorted(part["horizon"].unique())
        columns = [*map(str, horizons), "average", "seeds", "parameters", "s to train"]
        table = []
        for model in [name for name in MODELS if name in set(part["model"])]:
            runs = part[part["model"] == model]
            mean = average(runs)
            table.append(
                [
                    model,
                    *(_cell(runs[runs["horizon"] == horizon]) for horizon in horizons),
                    f"**{mean}**" if mean else "–",
                    runs["seed"].nunique(),
                    f"{runs[runs['horizon'] == runs['horizon'].min()]['parameters'].iloc[0]:,}",
                    f"{runs['seconds'].mean():.0f}",
                ]
            )
        parts += [f"**{dataset}**", grid(["model", *columns], table) + (cited_rows(dataset, horizons) if cited else [])]
    if cited:
        parts.append(
            "Rows in italics are cited and were not run: as the paper prints them, with its two digits; of TQNet, "
            "TimeXer and OLinear, their own papers' averages; of SimpleTM, a rerun over all test "
            "windows, the strongest of the reruns on ETTh2; of CycleNet, means over five seeds of the authors' "
            "result file (github.com/ACAT-SCUT/CycleNet)."
        )
    return paragraphs(*parts, machines(rows))


def cited_rows(dataset: str, horizons: list[int]) -> list[str]:
    """The paper's model and its five peers at the look-back of 96 that it uses, then averages of other papers."""
    rows, averages = paper.forecasting(), paper.forecasting_averages()
    lines = []
    for model, name in zip(dict.fromkeys(rows["model"]), averages, strict=True):
        cited = rows[(rows["model"] == model) & (rows["dataset"] == dataset)].set_index("horizon")
        text = "{mse:.2f} / {mae:.2f}"
        cells = [text.format(**cited.loc[step]) if step in cited.index else "–" for step in horizons]
        lines.append(f"| *{name}, paper* | {' | '.join(cells)} | {averages[name][dataset]} | | | |")
    for name, mean in CITED.items():
        printed = dict(zip(HORIZONS, CITED_HORIZONS.get(name, {}).get(dataset, ()), strict=False))
        cells = [printed.get(horizon, "–") for horizon in horizons]
        lines.append(f"| *{name}* | {' | '.join(cells)} | {mean[dataset]} | | | |")
    return lines


def average(runs: pd.DataFrame) -> str:
    """MSE ± deviation / MAE of one model averaged over the horizons; empty where a horizon is missing."""
    per_horizon = runs.groupby("horizon")[["test_mse", "test_mae"]].mean()
    if not set(HORIZONS) <= set(per_horizon.index):
        return ""
    mean = per_horizon.loc[list(HORIZONS)].mean()
    runs = runs[runs["horizon"].isin(HORIZONS)]
    complete = runs.groupby("seed").filter(lambda seed: seed["horizon"].nunique() == len(HORIZONS))
    of_seeds = complete.groupby("seed")["test_mse"].mean()
    spread = f" ± {of_seeds.std():.3f}" if len(of_seeds) > 1 else ""
    return f"{mean['test_mse']:.3f}{spread} / {mean['test_mae']:.3f}"


def _cell(runs: pd.DataFrame) -> str:
    return "–" if runs.empty else f"{spread(runs['test_mse'])} / {runs['test_mae'].mean():.3f}"


def plot(rows: pd.DataFrame, path: Path) -> None:
    """Test MSE against the horizon, one panel a dataset; nothing is drawn where matplotlib is not installed."""
    if (axes := _panels(rows)) is None:
        return
    for dataset, axis in axes.items():
        labels = []
        for index, (model, runs) in enumerate(_shown(rows[rows["dataset"] == dataset])):
            error = runs.groupby("horizon")["test_mse"]
            mean, spread = error.mean(), error.std().fillna(0.0)
            line = "--" if model in PEER_SETTINGS else ":" if model.startswith("Linear") else "-"
            axis.errorbar(mean.index, mean, spread, marker="osD^v<>"[index // 7], linestyle=line, capsize=2)
            labels.append((mean.index[-1], mean.iloc[-1], model))
        axis.set(title=dataset, xlabel="horizon (steps)", ylabel="test MSE (scaled units)", xticks=HORIZONS)
        style.label_beside(axis, labels)
    axis.figure.savefig(path)


def plot_cost(rows: pd.DataFrame, path: Path) -> None:
    """Test MSE at the shortest horizon against the time to train; the area of a dot follows the parameters."""
    if (axes := _panels(rows)) is None:
        return
    for dataset, axis in axes.items():
        labels = []
        part = rows[(rows["dataset"] == dataset) & (rows["horizon"] == rows["horizon"].min())]
        for model, runs in _shown(part):
            seconds, error = max(runs["seconds"].mean(), 0.01), runs["test_mse"].mean()
            axis.scatter(seconds, error, s=2 * runs["parameters"].iloc[0] ** 0.4, alpha=0.7)
            labels.append((seconds, error, model))
        axis.set(
            title=f"{dataset}, horizon {rows['horizon'].min()}",
            xlabel="time to train (s)",
            ylabel="test MSE (scaled units)",
            xscale="log",
        )
        axis.margins(0.1)
        style.label_beside(axis, labels)
    axis.figure.savefig(path)


def _shown(part: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Models of a figure with their rows.

    Models that only leave out terms of the score lie on MVPA, and a Transformer's error would squash all others.
    """
    names = [name for name in MODELS if name in set(part["model"]) and name not in TRANSFORMERS]
    if "MVPA" in names:
        names = [name for name in names if name not in HIDDEN]
    return [(name, part[part["model"] == name]) for name in names]


def _panels(rows: pd.DataFrame) -> dict[str, Any] | None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not installed: no plot")
        return None
    style.apply()
    datasets = [name for name in FORECASTING_DATASETS if name in set(rows["dataset"])]
    figure = Figure(figsize=(4.6 * len(datasets), 3.6))
    axes = figure.subplots(1, len(datasets), squeeze=False)[0]
    for axis in axes:
        axis.grid(alpha=0.3)
    return dict(zip(datasets, axes, strict=True))
