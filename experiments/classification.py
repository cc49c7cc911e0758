"""Classification of UEA sets: models × data sets × seeds through one harness, one row a run.

Protocol: the archive's own training and test files; a validation part and all statistics come out of TRAIN; the test
file is looked at once. The column "selected on test" is the best accuracy on the way, which is what tables report that
validate on the test file; it is there for comparison only. Rows are appended as runs end, and runs that the table holds
are not repeated: after a kill, start the same command again.

Examples
--------
    python experiments/classification.py                       # every model, the sets at hand
    python experiments/classification.py --models MVPA --datasets Handwriting --seeds 1 2 3
    python experiments/classification.py --report              # tables and plot from the rows at hand
    python experiments/classification.py --quick               # a smoke run in seconds, written elsewhere
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from forecasting import hardware
from harness.classification.models import COMPONENTS, MODELS, Problem, run
from harness.forecasting.report import RESULTS, append_row, machines, read_rows

from mvpa_ts.datasets.uea import load_uea
from mvpa_ts.files import write_text

DATASETS = ("JapaneseVowels", "Handwriting", "SelfRegulationSCP1", "BasicMotions")
KEY = ["model", "dataset", "seed"]
# Steps² × pairs of series: beyond that, DTW takes hours.
_DTW_LIMIT = 10_000_000_000
# Printed by their authors (benchmarks of docs/classification.md); not run here.
CITED = {
    "MVPFormer, as published": {"JapaneseVowels": 95, "Handwriting": 21, "SelfRegulationSCP1": 86},
}


def main() -> None:
    """Run what is asked for and not yet in the table, then write the report."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    table = arguments.table
    known = read_rows(table)
    done = set() if known.empty else set(known[KEY].itertuples(index=False, name=None))
    runs = itertools.product(arguments.seeds, arguments.datasets, arguments.models)
    pending = [] if arguments.report else [(m, d, s) for s, d, m in runs if (m, d, s) not in done]
    started = time.perf_counter()
    for index, (model, dataset, seed) in enumerate(pending):
        label = f"[{index + 1}/{len(pending)}] {model}, {dataset}, seed {seed}"
        problem = load_problem(dataset)
        # Nothing about it depends on a seed.
        again = seed != min(arguments.seeds) or (model, dataset) in {run[:2] for run in done}
        if model == "1NN-DTW" and (again or not dtw_is_cheap(problem)):
            continue
        row = run_one(model, dataset, problem, seed, arguments, label)
        append_row(table, row)
        start = "\r\033[K" if sys.stdout.isatty() else ""
        left = (time.perf_counter() - started) / (index + 1) * (len(pending) - index - 1)
        print(
            f"{start}{label}: accuracy {row['accuracy']:.1%}, {row['seconds']:.0f} s; {left / 60:.0f} min left",
            flush=True,
        )
    rows = read_rows(table)
    if rows.empty:
        raise SystemExit(f"{table} holds no run yet")
    text = markdown_report(rows)
    write_text(table.with_suffix(".md"), text)
    plot(rows, table.with_suffix(".png"))
    print(text)


def load_problem(dataset: str) -> Problem:
    """Both parts of a set; raises ValueError where TEST has a class that TRAIN has not."""
    (train, names), (test, test_names) = (load_uea(dataset, split) for split in ("train", "test"))
    classes, labels = np.unique(names, return_inverse=True)
    if unknown := set(test_names) - set(classes):
        raise ValueError(f"{dataset}: TEST has classes that TRAIN has not: {', '.join(sorted(unknown))}")
    return Problem(train, labels, test, np.searchsorted(classes, test_names))


def dtw_is_cheap(problem: Problem) -> bool:
    """Whether nearest neighbours under DTW take minutes rather than hours."""
    return problem.length**2 * len(problem.train) * len(problem.test) < _DTW_LIMIT


def run_one(
    model: str, dataset: str, problem: Problem, seed: int, arguments: argparse.Namespace, label: str
) -> dict[str, Any]:
    """Train one model, test it once, and return its row."""

    def report(text: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\033[K{label}: {text}", end="", flush=True)

    processor = time.process_time()
    outcome, seconds = run(model, problem, seed, quick=arguments.quick, report=report)
    return {
        "model": model,
        "dataset": dataset,
        "seed": seed,
        "accuracy": outcome.accuracy,
        "selected_on_test": outcome.selected_on_test,
        "attention_accuracy": outcome.parts.get("attention_accuracy"),
        "kernel_accuracy": outcome.parts.get("kernel_accuracy"),
        "kernel_share": outcome.parts.get("kernel_share"),
        "validation_accuracy": outcome.validation,
        "train_series": len(problem.train),
        "test_series": len(problem.test),
        "steps": outcome.steps,
        "seconds": round(seconds, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
        "parameters": outcome.parameters,
        "hardware": hardware("cpu"),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "settings": json.dumps(outcome.settings, sort_keys=True),
    }


def markdown_report(rows: pd.DataFrame) -> str:
    """Accuracy of each model, mean over seeds (± standard deviation)."""
    order = {name: index for index, name in enumerate(MODELS)}
    datasets = [name for name in dict.fromkeys((*DATASETS, *rows["dataset"])) if name in set(rows["dataset"])]
    lines = [
        "Accuracy % on the archive's test file, mean over seeds (± standard deviation where there are several). "
        "Validation and all statistics out of TRAIN, test looked at once.",
        "",
        "| model | " + " | ".join(datasets) + " | seeds |",
        "|---|" + "---|" * (len(datasets) + 1),
    ]
    models = sorted(rows["model"].unique(), key=lambda name: order.get(name, len(order)))
    for model in models:
        own = rows[rows["model"] == model]
        cells = [accuracy_cell(own[own["dataset"] == dataset]["accuracy"]) for dataset in datasets]
        lines.append(f"| {model} | {' | '.join(cells)} | {own['seed'].nunique()} |")
    for source, accuracies in CITED.items():
        lines.append(f"| *{source}* | {' | '.join(str(accuracies.get(name, '–')) for name in datasets)} | |")
    lines += ["", "The parts of MVPA by themselves, and its accuracy with the step selected on the test file:", ""]
    lines += ["| model | column | " + " | ".join(datasets) + " |", "|---|---|" + "---|" * len(datasets)]
    columns = {
        "attention_accuracy": "MVPA path",
        "kernel_accuracy": "kernel path",
        "selected_on_test": "selected on test",
    }
    for model, (column, name) in itertools.product(models, columns.items()):
        own = rows[(rows["model"] == model) & rows[column].notna()]
        if not own.empty and (column != "kernel_accuracy" or model == "MVPA"):
            cells = [accuracy_cell(own[own["dataset"] == dataset][column]) for dataset in datasets]
            lines.append(f"| {model} | {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "Processor seconds of training and testing, and parameters that are trained; the first run of MiniRocket and "
        "of DTW compiles:",
        "",
    ]
    lines += ["| model | " + " | ".join(datasets) + " |", "|---|" + "---|" * len(datasets)]
    for model in models:
        cells = []
        for dataset in datasets:
            own = rows[(rows["model"] == model) & (rows["dataset"] == dataset)]
            count = own["parameters"].dropna()
            size = f", {int(count.iloc[0]):,}" if len(count) else ""
            cells.append("–" if own.empty else f"{own['processor_seconds'].mean():.0f} s{size}")
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", machines(rows), ""])


def accuracy_cell(values: pd.Series) -> str:
    """Mean in per cent, with the standard deviation over several seeds."""
    if values.empty:
        return "–"
    spread = f" ± {100 * values.std():.1f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.1f}{spread}"


def plot(rows: pd.DataFrame, path: Path) -> None:
    """Accuracy of each model, one panel a data set; nothing is drawn where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no plot")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    datasets = [name for name in dict.fromkeys((*DATASETS, *rows["dataset"])) if name in set(rows["dataset"])]
    models = [name for name in MODELS if name in set(rows["model"])][::-1]
    figure, axes = plt.subplots(1, len(datasets), figsize=(3.5 * len(datasets) + 1.5, 3.5), sharey=True, squeeze=False)
    for axis, dataset in zip(axes[0], datasets, strict=True):
        own = rows[rows["dataset"] == dataset].groupby("model")["accuracy"]
        mean, spread = (100 * own.mean()).reindex(models), (100 * own.std()).reindex(models).fillna(0.0)
        colours = ["C0" if name in COMPONENTS else "0.6" for name in models]
        axis.barh(models, mean.fillna(0.0), xerr=spread, color=colours)
        axis.set(title=dataset, xlabel="accuracy on TEST (%)", xlim=(0, 100))
        axis.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", default=list(MODELS), choices=MODELS, metavar="MODEL", help=f"of {', '.join(MODELS)}"
    )
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), help="sets of the UEA archive")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--threads", type=int, default=1, help="processor threads; 1 makes runs comparable")
    parser.add_argument(
        "--table", type=Path, default=None, help="rows are appended here (default: results/classification.csv)"
    )
    parser.add_argument("--report", action="store_true", help="run nothing, write the report from the table")
    parser.add_argument("--quick", action="store_true", help="three steps, one small set, written elsewhere")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.datasets, arguments.seeds = ["BasicMotions"], [1]
        # MiniRocket compiles for half a minute before it starts.
        arguments.models = [name for name in arguments.models if name != "MiniRocket"]
        arguments.table = arguments.table or Path(tempfile.mkdtemp(prefix="mvpa-ts-")) / "classification.csv"
    arguments.table = arguments.table or RESULTS / "classification.csv"
    return arguments


if __name__ == "__main__":
    main()
