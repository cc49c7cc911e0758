"""Long-term forecasting: models × datasets × horizons × seeds through one harness, one row a run.

Every model sees the same windows, the same loop and the same full test set; the weights of the epoch with the smallest
validation error are tested once. Rows are appended to a table as runs end, and runs that the table holds are not
repeated: after a kill, start the same command again.

Examples
--------
    python experiments/forecasting.py                               # MVPA and the linear models, ETTh1 and ETTh2
    python experiments/forecasting.py --models iTransformer --horizons 96
    python experiments/forecasting.py --report                      # tables and plot from the rows at hand
    python experiments/forecasting.py --quick                       # a smoke run in seconds, written elsewhere
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from forecasting_models import LOOKBACK, MODELS, PEERS, build
from training import evaluate, train

from mvpa_ts.datasets import FORECASTING_DATASETS, forecasting_windows, load_forecasting_frame

RESULTS = Path(__file__).parent / "results"
HORIZONS = (96, 192, 336, 720)
KEY = ["model", "dataset", "horizon", "seed"]


def main() -> None:
    """Run what is asked for and not yet in the table, then write the report."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    table = arguments.table
    runs = itertools.product(arguments.models, arguments.datasets, arguments.horizons, arguments.seeds)
    known = read_rows(table)
    done = set() if known.empty else set(known[KEY].itertuples(index=False, name=None))
    pending = [] if arguments.report else [run for run in runs if run not in done]
    started = time.perf_counter()
    for index, (model, dataset, horizon, seed) in enumerate(pending):
        label = f"[{index + 1}/{len(pending)}] {model}, {dataset}, horizon {horizon}, seed {seed}"
        row = run_one(model, dataset, horizon, seed, arguments, label)
        append_row(table, row)
        start = "\r\033[K" if sys.stdout.isatty() else ""
        left = (time.perf_counter() - started) / (index + 1) * (len(pending) - index - 1)
        print(
            f"{start}{label}: test MSE {row['test_mse']:.4f}, MAE {row['test_mae']:.4f}, "
            f"{row['seconds']:.0f} s; {left / 60:.0f} min left",
            flush=True,
        )
    rows = read_rows(table)
    if rows.empty:
        raise SystemExit(f"{table} holds no run yet")
    print(write_report(rows, table))


def run_one(
    model_name: str, dataset: str, horizon: int, seed: int, arguments: argparse.Namespace, label: str
) -> dict[str, Any]:
    """Train one model, test it once, and return its row."""
    frame = load_forecasting_frame(dataset)
    windows = forecasting_windows(frame, dataset, lookback=LOOKBACK, horizon=horizon, device=arguments.device)
    if arguments.quick:
        windows = {part: replace(whole, starts=whole.starts[:64]) for part, whole in windows.items()}
    model, training, settings = build(model_name, dataset, horizon, frame.shape[1] - 1, seed)
    model.to(arguments.device)

    def report(epoch: int, mse: float) -> None:
        if sys.stdout.isatty():
            print(f"\r{label}: epoch {epoch}/{training.epochs}, validation MSE {mse:.4f}", end="", flush=True)

    outcome = train(model, windows, training, seed=seed, max_steps=3 if arguments.quick else None, report=report)
    test_mse, test_mae = evaluate(model, windows["test"])
    return {
        "model": model_name,
        "dataset": dataset,
        "horizon": horizon,
        "seed": seed,
        "test_mse": test_mse,
        "test_mae": test_mae,
        "validation_mse": outcome.validation_mse,
        "validation_mae": outcome.validation_mae,
        "test_windows": len(windows["test"]),
        "epochs": outcome.epochs,
        "seconds": round(outcome.seconds, 1),
        "seconds_per_epoch": round(outcome.seconds_per_epoch, 2),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "hardware": hardware(arguments.device),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "settings": json.dumps({**settings, "training": vars(training)}, sort_keys=True),
    }


def hardware(device: str) -> str:
    """The name of the processor or the graphics card."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def read_rows(table: Path) -> pd.DataFrame:
    """The rows written so far, or an empty frame."""
    return pd.read_csv(table) if table.is_file() else pd.DataFrame()


def append_row(table: Path, row: dict[str, Any]) -> None:
    """Add one row; the file is replaced as a whole, so that a kill leaves the old or the new one."""
    write_atomically(table, pd.concat([read_rows(table), pd.DataFrame([row])]).to_csv(index=False))


def write_atomically(path: Path, text: str) -> None:
    """Write beside the file, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=path.suffix, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def write_report(rows: pd.DataFrame, table: Path) -> str:
    """Write the Markdown table and the plot beside the rows; return the table."""
    text = markdown_report(rows)
    write_atomically(table.with_suffix(".md"), text)
    plot(rows, table.with_suffix(".png"))
    return text


def markdown_report(rows: pd.DataFrame) -> str:
    """MSE / MAE of each model, mean over seeds (± standard deviation), and the average where all horizons are there."""
    order = {name: index for index, name in enumerate(MODELS)}
    lines = [
        "Error on the full test set, MSE / MAE in scaled units, look-back 96; mean over seeds, "
        "± standard deviation of the MSE where there are several.",
        "Average: over the four horizons, where all were run. Parameters at the shortest horizon.",
        "",
    ]
    for dataset in [name for name in FORECASTING_DATASETS if name in set(rows["dataset"])]:
        part = rows[rows["dataset"] == dataset]
        horizons = sorted(part["horizon"].unique())
        lines += [
            f"**{dataset}**",
            "",
            "| model | " + " | ".join(map(str, horizons)) + " | average | seeds | parameters |",
            "|---|" + "---|" * (len(horizons) + 3),
        ]
        for model in sorted(part["model"].unique(), key=lambda name: order.get(name, len(order))):
            own = part[part["model"] == model]
            cells = [_cell(own[own["horizon"] == horizon]) for horizon in horizons]
            per_horizon = own.groupby("horizon")[["test_mse", "test_mae"]].mean()
            complete = set(HORIZONS) <= set(per_horizon.index)
            mean = per_horizon.loc[list(HORIZONS)].mean() if complete else None
            average = "–" if mean is None else f"**{mean['test_mse']:.3f} / {mean['test_mae']:.3f}**"
            shortest = own[own["horizon"] == own["horizon"].min()]
            lines.append(
                f"| {model} | {' | '.join(cells)} | {average} | {own['seed'].nunique()} "
                f"| {shortest['parameters'].iloc[0]:,} |"
            )
        lines.append("")
    lines.append(machines(rows))
    return "\n".join(lines) + "\n"


def machines(rows: pd.DataFrame) -> str:
    """One sentence for each kind of machine that the rows were measured on."""
    kinds = rows.groupby(["hardware", "threads", "torch"]).size().index
    return " ".join(f"Measured on {name}; {threads} thread(s), torch {version}." for name, threads, version in kinds)


def _cell(runs: pd.DataFrame) -> str:
    if runs.empty:
        return "–"
    spread = f" ± {runs['test_mse'].std():.3f}" if len(runs) > 1 else ""
    return f"{runs['test_mse'].mean():.3f}{spread} / {runs['test_mae'].mean():.3f}"


def plot(rows: pd.DataFrame, path: Path) -> None:
    """Test MSE against the horizon, one panel a dataset; nothing is drawn where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no plot")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    datasets = [name for name in FORECASTING_DATASETS if name in set(rows["dataset"])]
    figure, axes = plt.subplots(1, len(datasets), figsize=(5 * len(datasets), 4), squeeze=False, layout="constrained")
    for axis, dataset in zip(axes[0], datasets, strict=True):
        part = rows[rows["dataset"] == dataset]
        for model in [name for name in MODELS if name in set(part["model"])]:
            error = part[part["model"] == model].groupby("horizon")["test_mse"]
            mean, spread = error.mean(), error.std().fillna(0.0)
            style = "--" if model in PEERS else ":" if model.startswith("Linear") else "-"
            axis.errorbar(mean.index, mean, spread, label=model, marker="o", linestyle=style, capsize=2)
        axis.set(title=dataset, xlabel="horizon (steps)", ylabel="test MSE (scaled units)", xticks=HORIZONS)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", default=["MVPA", "Linear", "Linear + cycle"], choices=MODELS, metavar="MODEL",
        help=f"of {', '.join(MODELS)}",
    )  # fmt: skip
    parser.add_argument("--datasets", nargs="+", default=["ETTh1", "ETTh2"], choices=FORECASTING_DATASETS)
    parser.add_argument("--horizons", nargs="+", type=int, default=list(HORIZONS), help="steps to forecast")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="processor threads; 1 makes runs comparable")
    parser.add_argument(
        "--table", type=Path, default=None, help="rows are appended here (default: results/forecasting.csv)"
    )
    parser.add_argument("--report", action="store_true", help="run nothing, write the report from the table")
    parser.add_argument(
        "--quick", action="store_true", help="three steps on few windows, one dataset and horizon, another table"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.datasets, arguments.horizons, arguments.seeds = ["ETTh1"], [96], [1]
        arguments.table = arguments.table or Path(tempfile.mkdtemp(prefix="mvpa-ts-")) / "forecasting.csv"
    arguments.table = arguments.table or RESULTS / "forecasting.csv"
    return arguments


if __name__ == "__main__":
    main()
