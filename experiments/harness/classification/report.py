"""Tables and plots from the rows of the classification runs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd
from harness.classification.models import COMPONENTS, MODELS
from harness.figures import style
from harness.paper import tables as paper
from harness.study import grid, paragraphs, spread
from harness.tables import machines

# The two paths of MVPA by themselves: row and column. The first holds far more than attention.
PATHS = {
    "MVPA, its trained path alone (convolutions, attention)": "attention_accuracy",
    "MVPA, its fixed kernels alone": "kernel_accuracy",
}
DATASETS = ("JapaneseVowels", "Handwriting", "SelfRegulationSCP1", "SelfRegulationSCP2", "BasicMotions")


def markdown_report(rows: pd.DataFrame) -> str:
    """Accuracy of each model, mean over seeds (± standard deviation)."""
    order = {name: index for index, name in enumerate(MODELS)}
    datasets = [name for name in dict.fromkeys((*DATASETS, *rows["dataset"])) if name in set(rows["dataset"])]
    lead = (
        "Accuracy % on the archive's test file, mean over seeds (± standard deviation where there are several; without "
        "it one seed). The last column counts the seeds of a set, from the set with fewest to that with most. "
        "Validation and all statistics out of TRAIN, test looked at once. MVPA changes its series at random and is the "
        "mean of two networks; the other models read series as they are, and are one network each."
    )
    means, shares, costs = [], [], []
    models = sorted(rows["model"].unique(), key=lambda name: order.get(name, len(order)))
    for model in models:
        runs = rows[rows["model"] == model]
        cells = [accuracy_cell(runs[runs["dataset"] == dataset]["accuracy"]) for dataset in datasets]
        seeds = runs.groupby("dataset")["seed"].nunique()
        count = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
        means.append([model, *cells, count])
    columns = {
        "attention_accuracy": "trained path",
        "kernel_accuracy": "fixed kernels",
        "selected_on_test": "selected on test",
    }
    for model, (column, name) in itertools.product(models, columns.items()):
        runs = rows[(rows["model"] == model) & rows[column].notna()]
        if not runs.empty and (column != "kernel_accuracy" or model == "MVPA"):
            cells = [accuracy_cell(runs[runs["dataset"] == dataset][column]) for dataset in datasets]
            shares.append([model, name, *cells])
    for model in models:
        cells = []
        for dataset in datasets:
            runs = rows[(rows["model"] == model) & (rows["dataset"] == dataset)]
            count = runs["parameters"].dropna()
            size = f", {int(count.iloc[0]):,}" if len(count) else ""
            cells.append("–" if runs.empty else f"{runs['processor_seconds'].mean():.0f} s{size}")
        costs.append([model, *cells])
    return paragraphs(
        lead,
        [*grid(["model", *datasets, "seeds"], means), *(f"{row} |" for row in cited_rows(datasets))],
        "The parts of MVPA by themselves, and its accuracy with the step selected on the test file:",
        grid(["model", "column", *datasets], shares),
        "Processor seconds of training and testing, and parameters that are trained; the first run of MiniRocket and "
        "of DTW compiles:",
        grid(["model", *datasets], costs),
        "All ten sets of the paper. Rows in italics are cited as it prints them, not run:",
        paper_table(rows),
        machines(rows),
    )


def cited_rows(datasets: list[str]) -> list[str]:
    """The paper's model and its three peers on these sets, one row each; not run here."""
    rows = []
    for model, accuracies in paper.classification().iterrows():
        cells = [f"{accuracies[name]:.0f}" if name in accuracies else "–" for name in datasets]
        rows.append(f"| *{model}, paper* | {' | '.join(cells)} |")
    return rows


def paper_table(rows: pd.DataFrame) -> list[str]:
    """The paper's ten sets, cited, with ours on those that were at hand."""
    sets = list(paper.classification().columns)
    runs = rows[rows["model"] == "MVPA"]
    table = [
        [name, *(accuracy_cell(runs[runs["dataset"] == dataset][column]) for dataset in sets)]
        for name, column in {"MVPA": "accuracy", **PATHS}.items()
    ]
    return grid(["model", *sets], table) + cited_rows(sets)


def accuracy_cell(values: pd.Series) -> str:
    """Mean in per cent, with the standard deviation over several seeds."""
    return spread(100 * values, 1)


def plot(rows: pd.DataFrame, path: Path) -> None:
    """Accuracy of each model, one panel a data set; nothing is drawn where matplotlib is not installed."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("matplotlib is not installed: no plot")
        return
    style.apply()

    datasets = [name for name in dict.fromkeys((*DATASETS, *rows["dataset"])) if name in set(rows["dataset"])]
    models = [name for name in MODELS if name in set(rows["model"])][::-1]
    figure, axes = plt.subplots(1, len(datasets), figsize=(2.1 * len(datasets) + 1.5, 3), sharey=True, squeeze=False)
    for axis, dataset in zip(axes[0], datasets, strict=True):
        runs = rows[rows["dataset"] == dataset].groupby("model")["accuracy"]
        mean, deviation = (100 * runs.mean()).reindex(models), (100 * runs.std()).reindex(models).fillna(0.0)
        colours = [style.BLUE if name in COMPONENTS else style.GREY for name in models]
        axis.barh(models, mean.fillna(0.0), xerr=deviation, color=colours)
        axis.set(title=dataset, xlabel="accuracy (%)", xlim=(0, 100))
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(path)
    plt.close(figure)
