"""Long-term forecasting: models × datasets × horizons × seeds through one harness, one row for each run.

Every model sees the same windows, the same loop and the same full test set, and is tested once. Rows are appended to a
table as runs end, and runs that the table holds are not repeated: after a kill, start the same command again. A run
that was under way then goes on after its last whole epoch, which is kept beside the table.

Examples
--------
    python experiments/forecasting/forecasting.py  # MVPA and the linear models, ETTh1 and ETTh2
    python experiments/forecasting/forecasting.py --models iTransformer --horizons 96
    python experiments/forecasting/forecasting.py --lookback 336  # the longer look-back, in a table of its own
    python experiments/forecasting/forecasting.py --device cuda --minutes 9  # start no run after nine minutes
    python experiments/forecasting/forecasting.py --report                   # tables and plots from the rows at hand
    python experiments/forecasting/forecasting.py --quick  # a smoke run in seconds, written elsewhere
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.forecasting.models import (
    CLOCK,
    HORIZONS,
    LOOKBACK,
    MODELS,
    SEARCHES,
    Mean,
    available,
    build,
    project_first,
)
from harness.forecasting.report import draw, markdown_report
from harness.study import Study
from harness.tables import hardware, results_folder

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS, forecasting_windows, load_forecasting_frame
from mvpa_ts.forecasting.errors import evaluate
from mvpa_ts.forecasting.training import Checkpoint, train

KEY = ["model", "dataset", "horizon", "seed"]


def main() -> None:
    """Run what is asked for and not yet in the table, then write the report."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    study = Study("forecasting", "forecasting", KEY, markdown_report, table=arguments.table)
    names = [name for name in arguments.models if available(name)]
    if missing := [name for name in arguments.models if name not in names]:
        print(f"not available here, for neuralforecast is not installed: {', '.join(missing)}", flush=True)
    if arguments.report:
        study.write()
    else:
        lookbacks = set() if study.rows.empty else set(study.rows["lookback"])
        if others := lookbacks - {arguments.lookback}:
            message = f"{study.table} holds runs at look-back {others.pop()}, not {arguments.lookback}"
            raise SystemExit(f"{message}: name another --table")
        # One data set after another, and all models of one seed before the next: a stop leaves rows to compare.
        runs = itertools.product(arguments.datasets, arguments.seeds, names, arguments.horizons)
        cases = [(model, dataset, horizon, seed) for dataset, seed, model, horizon in runs]
        study.run(cases, partial(run_one, arguments=arguments), minutes=arguments.minutes, device=arguments.device)
    draw(study.rows, study.table)


def run_one(model_name: str, dataset: str, horizon: int, seed: int, *, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one model, test it once, and return its row."""
    frame = load_forecasting_frame(dataset)
    windows = forecasting_windows(
        frame, dataset, lookback=arguments.lookback, horizon=horizon, device=arguments.device, clock=model_name in CLOCK
    )
    if arguments.quick:
        windows = {part: replace(whole, starts=whole.starts[:64]) for part, whole in windows.items()}
    model, training, settings = build(model_name, dataset, horizon, frame.shape[1] - 1, seed, arguments.lookback)
    model.to(arguments.device)
    project_first(model)

    def report(epoch: int, mse: float) -> None:
        if sys.stdout.isatty():
            label = f"{model_name}, {dataset}, horizon {horizon}, seed {seed}"
            print(f"\r{label}: epoch {epoch}/{training.epochs}, validation MSE {mse:.4f}", end="", flush=True)

    members = list(model.members) if isinstance(model, Mean) else [model]
    steps = 3 if arguments.quick else None
    machine = {"hardware": hardware(arguments.device), "threads": arguments.threads, "torch": torch.__version__}
    stated = json.dumps({**settings, "training": vars(training)}, sort_keys=True)
    identity = json.dumps([model_name, dataset, horizon, seed, arguments.lookback, steps, machine, stated])
    folder = arguments.table.with_name(f"{arguments.table.stem}_checkpoints")
    checkpoints = [
        Checkpoint(folder / f"{model_name}-{dataset}-{horizon}-{seed}-{index}.pt", identity)
        for index in range(len(members))
    ]
    outcomes = [
        train(member, windows, training, seed=seed + 100 * index, max_steps=steps, report=report, checkpoint=checkpoint)
        for index, (member, checkpoint) in enumerate(zip(members, checkpoints, strict=True))
    ]
    errors = [outcomes[0].validation_mse, outcomes[0].validation_mae]
    if len(members) > 1:
        errors = list(evaluate(model, windows["validation"]))
    test_mse, test_mae = evaluate(model, windows["test"])
    row = {
        "lookback": arguments.lookback,
        "test_mse": test_mse,
        "test_mae": test_mae,
        "validation_mse": errors[0],
        "validation_mae": errors[1],
        "test_windows": len(windows["test"]),
        "epochs": outcomes[0].epochs,
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 2),
        "seconds_per_epoch": round(sum(outcome.seconds_per_epoch for outcome in outcomes), 2),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "settings": stated,
    }
    for checkpoint in checkpoints:  # before the row is written: a kill in between costs the run, never a wrong row
        checkpoint.path.unlink(missing_ok=True)
    return row


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = script_parser(__doc__, "three steps on few windows, one dataset and horizon, another table")
    parser.add_argument(
        "--models", nargs="+", default=["MVPA", "Linear", "Linear + cycle"], choices=MODELS, metavar="MODEL",
        help=f"of {', '.join(MODELS)}",
    )  # fmt: skip
    parser.add_argument("--datasets", nargs="+", default=["ETTh1", "ETTh2"], choices=FORECASTING_DATASETS)
    parser.add_argument("--horizons", nargs="+", type=int, default=list(HORIZONS), help="steps to forecast")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--lookback", type=int, default=LOOKBACK, help=f"steps to look at (default: {LOOKBACK})")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--minutes", type=float, help="start no run after that long")
    parser.add_argument("--threads", type=int, default=1, help="processor threads; 1 makes runs comparable")
    parser.add_argument(
        "--table",
        type=Path,
        help="rows are appended here (default: results/forecasting/forecasting.csv, forecasting_L.csv at look-back L)",
    )
    parser.add_argument("--report", action="store_true", help="run nothing, write the report from the table")
    arguments = parser.parse_args()
    for name in set(SEARCHES) & set(arguments.models):
        if others := set(arguments.datasets) - set(SEARCHES[name]):
            parser.error(f"{name!r} was not searched on {', '.join(sorted(others))}: name other --datasets")
    if arguments.quick:
        arguments.datasets, arguments.horizons, arguments.seeds = arguments.datasets[:1], [96], [1]
        arguments.table = arguments.table or results_folder("forecasting", quick=True) / "forecasting.csv"
    suffix = "" if arguments.lookback == LOOKBACK else f"_{arguments.lookback}"
    arguments.table = arguments.table or results_folder("forecasting") / f"forecasting{suffix}.csv"
    return arguments


if __name__ == "__main__":
    main()
