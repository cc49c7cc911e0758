"""Classification of UEA sets: models × data sets × seeds through one harness, one row for each run.

Protocol: the archive's own training and test files; a validation part and all statistics come out of TRAIN; the test
file is looked at once. The column "selected on test" is the best accuracy on the way, which is what tables report that
validate on the test file; it is there for comparison only. Rows are appended as runs end, and runs that the table holds
are not repeated: after a kill, start the same command again.

Examples
--------
    python experiments/forecasting/classification.py                       # every model, the sets at hand
    python experiments/forecasting/classification.py --models MVPA --datasets Handwriting --seeds 1 2 3
    python experiments/forecasting/classification.py --report              # tables and plot from the rows at hand
    python experiments/forecasting/classification.py --quick               # a smoke run in seconds, written elsewhere
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import torch
from harness.classification.models import MODELS, Problem, run
from harness.classification.report import DATASETS, markdown_report, plot
from harness.command_line import script_parser
from harness.study import Study
from harness.tables import results_folder

from mvpa_ts.datasets.uea import load_uea

KEY = ["model", "dataset", "seed"]
NEIGHBOURS = "1NN-DTW"
# Steps² × pairs of series: beyond that, DTW takes hours.
_DTW_LIMIT = 10_000_000_000


def main() -> None:
    """Run what is asked for and not yet in the table, then write the report."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    study = Study("classification", "classification", KEY, markdown_report, table=arguments.table)
    if arguments.report:
        study.write()
    else:
        runs = itertools.product(arguments.seeds, arguments.datasets, arguments.models)
        cases = [(model, dataset, seed) for seed, dataset, model in runs]
        # Nothing about nearest neighbours depends on a seed.
        done = set() if study.rows.empty else set(study.rows[KEY[:2]].itertuples(index=False, name=None))
        cases = [c for c in cases if c[0] != NEIGHBOURS or (c[2] == min(arguments.seeds) and c[:2] not in done)]
        study.run(cases, partial(run_one, quick=arguments.quick))
    plot(study.rows, study.table.with_suffix(".png"))


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


def run_one(model: str, dataset: str, seed: int, *, quick: bool) -> dict[str, Any] | None:
    """Train one model, test it once, and return its row; none where DTW would take hours."""
    problem = load_problem(dataset)
    if model == NEIGHBOURS and not dtw_is_cheap(problem):
        return None

    def report(text: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\033[K{model}, {dataset}, seed {seed}: {text}", end="", flush=True)

    processor = time.process_time()
    outcome, seconds = run(model, problem, seed, quick=quick, report=report)
    return {
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
        "settings": json.dumps(outcome.settings, sort_keys=True),
    }


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = script_parser(__doc__, "three steps, one small set, written elsewhere")
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), help="sets of the UEA archive")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--threads", type=int, default=1, help="processor threads; 1 makes runs comparable")
    parser.add_argument(
        "--table",
        type=Path,
        default=None,
        help="rows are appended here (default: results/classification/classification.csv)",
    )
    parser.add_argument("--report", action="store_true", help="run nothing, write the report from the table")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.datasets, arguments.seeds = ["BasicMotions"], [1]
        # Each kind of model once; MiniRocket and DTW compile for half a minute before they start.
        arguments.models = arguments.models or ["MVPA", "Transformer"]
        arguments.table = arguments.table or results_folder("classification", quick=True) / "classification.csv"
    arguments.models = arguments.models or list(MODELS)
    arguments.table = arguments.table or results_folder("classification") / "classification.csv"
    return arguments


if __name__ == "__main__":
    main()
