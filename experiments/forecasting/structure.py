"""Tasks with structure between channels: MVPA with its defaults, variants of it and other models, with equal steps.

The tasks are a travelling wave whose best possible error is known, channels that follow others, road sensors, and
covariates. Errors are in units of the training data's standard deviation. Rows are appended as runs end, and runs
that the table holds are not repeated: after a kill, start the same command again.

    python experiments/forecasting/structure.py           # results/structure/, hours on one core for all of it
    python experiments/forecasting/structure.py --tasks wave --seeds 1
    python experiments/forecasting/structure.py --report  # table and figure from the rows at hand
    python experiments/forecasting/structure.py --quick   # three steps, few rows, written elsewhere
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
import torch
from harness.command_line import script_parser
from harness.figures import style
from harness.structure.models import ARMS, COVARIATE_ARMS, TRAINING, Arm, build, models_of, score_statistics
from harness.structure.tasks import TASKS, Task, ridge_error
from harness.study import Study, grid, spread
from harness.tables import machines
from torch import nn

from mvpa_ts.files import write_bytes
from mvpa_ts.forecasting.training import train
from mvpa_ts.windows import Windows

STEPS, LONG = 400, 1500
# Tasks of the first table, and rows of an earlier network.
MAIN, EARLIER = ("wave", "leaders", "METR-LA along"), "MVPA, heads that must read"
KEY = ["task", "model", "steps", "seed"]
# What is run first, so that a stop leaves a table that can be read: the models that the text compares.
FIRST = ("MVPA", "MVPA, own channel only", "Linear", "MVPA, before", "TSMixer", "iTransformer", "TSMixerx", "TimeXer")
# The same roads in other orders, for MVPA alone.
ORDERS = ("METR-LA in the file's order", "METR-LA shuffled", "METR-LA by correlation")
LONG_MODELS = ("MVPA", "MVPA, own channel only", "Linear", "TSMixer", "iTransformer")


def main() -> None:
    """Run what is asked for and not yet in the table, then write table and figure."""
    parser = script_parser(__doc__, "three steps on few rows, written elsewhere")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--models", nargs="+", help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, help="start no run after that long")
    parser.add_argument("--report", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study = Study("structure", "structure", KEY, markdown, quick=arguments.quick)
    if arguments.report:
        study.write()
        return
    study.run(planned(arguments), partial(run, quick=arguments.quick), minutes=arguments.minutes)
    picture = study.table.with_name("wave.png")
    if not picture.is_file():
        figure(picture, quick=arguments.quick)


def planned(arguments: argparse.Namespace) -> list[tuple[str, str, int, int]]:
    """Runs in the order of what is needed first."""
    runs = []
    for task_name in arguments.tasks:
        if not available(task_name):
            print(f"{task_name} is left out: metr_la is not in MVPA_TS_DATA, or statsmodels is missing", flush=True)
            continue
        names = ["MVPA"] if task_name in ORDERS else models_of(TASKS[task_name](1, True))
        names = [name for name in names if arguments.models is None or name in arguments.models]
        for seed in arguments.seeds[:1] if arguments.quick else arguments.seeds:
            if not task_name.startswith("METR") and (arguments.models is None or "Ridge" in arguments.models):
                runs.append((task_name, "Ridge", 0, seed))
            runs += [(task_name, name, STEPS, seed) for name in names[: 2 if arguments.quick else None]]
            if task_name == "wave" and not arguments.quick:
                runs += [(task_name, name, LONG, seed) for name in names if name in LONG_MODELS]

    def rank(run: tuple[str, str, int, int]) -> tuple[bool, int, bool]:
        task_name, name, _, seed = run
        return name not in (*FIRST, "Ridge"), seed, task_name in ORDERS

    return sorted(runs, key=rank)


def available(task_name: str) -> bool:
    """Whether the task's data is at hand."""
    if task_name == "US macroeconomy":
        return importlib.util.find_spec("statsmodels") is not None
    folder = Path(os.environ.get("MVPA_TS_DATA", "")) / "metr_la"
    return not task_name.startswith("METR") or (folder / "los_speed.csv").is_file()


def run(task_name: str, name: str, steps: int, seed: int, *, quick: bool = False) -> list[dict[str, Any]]:
    """Train one model, test it once; a second row for the channels that it was not trained on."""
    task = TASKS[task_name](seed, quick)
    if name == "Ridge":
        error, penalty = ridge_error(task)
        floors = [
            {"task": task_name + where.removeprefix("floor"), "model": "Floor", "test_mse": value}
            for where, value in task.floors.items()
        ]
        return [{"test_mse": error, "settings": json.dumps({"penalty": penalty})}, *floors]
    model, seconds = trained(name, task, steps, seed, quick)
    row = {
        "test_mse": masked_error(model, task.windows["test"]),
        "validation_mse": masked_error(model, task.windows["validation"]),
        "seconds": round(seconds, 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    if isinstance(model, Arm) and model.network.encoder is not None and not model.alone:
        inputs, _, _ = next(task.windows["test"].thinned(97).batches(4))
        row["settings"] = json.dumps({key: round(value, 3) for key, value in score_statistics(model, inputs).items()})
    if task.wider is None or (name not in ARMS and name != "PatchTST"):
        return [row]
    return [row, {**row, "task": f"{task_name}, 24 channels", "test_mse": masked_error(model, task.wider)}]


def trained(name: str, task: Task, steps: int, seed: int, quick: bool = False) -> tuple[nn.Module, float]:
    """A trained model and the processor time that it took."""
    torch.manual_seed(seed)
    model, rate = build(name, task)
    training = TRAINING.__class__(**{**vars(TRAINING), "steps": 3 if quick else steps, "learning_rate": rate})
    outcome = train(model, {"train": task.windows["train"]}, training, seed=seed)
    return model.eval(), outcome.seconds


@torch.no_grad()
def masked_error(model: nn.Module, windows: Windows) -> float:
    """Mean squared error over the observed targets."""
    total, count = 0.0, 0
    for inputs, target, counted in windows.batches(64):
        error = model(**inputs)[..., 0] - target
        counted = torch.ones_like(error, dtype=torch.bool) if counted is None else counted
        total += error[counted].double().square().sum().item()
        count += int(counted.sum())
    return total / count


def markdown(rows: pd.DataFrame) -> str:
    """A line for each model, a column for each task and number of steps."""
    rows = rows.copy()
    rows["column"] = rows["task"]
    rows.loc[rows["steps"] == LONG, "column"] += f", {LONG} steps"
    # What has no steps stands beside every number of steps.
    fixed = rows[(rows["steps"] == 0) & rows["task"].str.startswith("wave")]
    rows = pd.concat([rows, fixed.assign(column=fixed["task"] + f", {LONG} steps")])
    earlier = rows["model"].str.startswith(EARLIER)
    lines = [
        f"Test MSE, {STEPS} steps of batch 32 unless said; mean ± standard deviation over three seeds, and "
        "of one seed where there is no deviation. Wave and leaders are drawn anew for each seed, and the "
        "floor and the ridge regression are those of the same draws.",
        "",
    ]
    main = [name for name in _columns() if name.startswith(MAIN)]
    others = [name for name in _columns() if name not in main]
    lines += _table(rows[~earlier], main)
    lines += ["Other orders of the roads, and tasks with covariates:", "", *_table(rows[~earlier], others)]
    lines += ["TimeXer takes no covariates that are known ahead, iTransformer no others (neuralforecast).", ""]
    if earlier.any():
        lines += ["MVPA before its heads could read nothing, with and without the levels of channels:", ""]
        lines += _table(rows[earlier], main)
    penalties = rows[(rows["model"] == "Ridge") & (rows["seed"] == 1)].drop_duplicates("task")
    said = "; ".join(f"{row.task}: {json.loads(row.settings)['penalty']:g}" for row in penalties.itertuples())
    lines += [f"Penalty of the ridge regression, chosen on validation, seed 1: {said}.", ""]
    lines += [*_scores(rows), machines(rows), ""]
    return "\n".join(lines)


def _table(rows: pd.DataFrame, columns: list[str]) -> list[str]:
    """A line for each model that has a value in one of the columns, and a column where there is one."""
    rows = rows[rows["column"].isin(columns)]
    columns = [name for name in columns if name in set(rows["column"])]
    models = [name for name in ("Floor", "Ridge", *ARMS, *COVARIATE_ARMS) if name in set(rows["model"])]
    models += sorted(set(rows["model"]) - set(models))
    errors = dict(iter(rows.groupby(["model", "column"])["test_mse"]))
    none = rows["test_mse"].iloc[:0]
    return [*grid(["model", *columns], ([n, *(spread(errors.get((n, c), none)) for c in columns)] for n in models)), ""]


def _columns() -> list[str]:
    columns = []
    for name in TASKS:
        columns += [name, f"{name}, {LONG} steps", f"{name}, 24 channels", f"{name}, 24 channels, {LONG} steps"]
    return columns


def _scores(rows: pd.DataFrame) -> list[str]:
    """How far the terms of the logit spread, for the full model."""
    full = rows[(rows["model"] == "MVPA") & (rows["seed"] == 1) & (rows["steps"] == STEPS)]
    full = full[full["settings"].notna() & full["task"].isin(TASKS)]
    if full.empty:
        return []
    found = {row.task: json.loads(row.settings) for row in full.itertuples()}
    names = list(next(iter(found.values())))
    lines = [
        "Standard deviation over keys of each term of the logit, and entropy of the weights as a share of that of "
        'equal weights, after training (MVPA, seed 1); "mixing" is the linear path. Where one patch is the whole '
        "look-back, there is no time to tell apart (–).",
        "",
    ]
    cells = {task: [values.get(name, math.nan) for name in names] for task, values in found.items()}
    table = [[task, *("–" if math.isnan(v) else f"{v:.2f}" for v in values)] for task, values in cells.items()]
    return [*lines, *grid(["task", *names], table), ""]


def figure(path: Path, *, quick: bool = False) -> None:
    """The wave as it came, forecast by all channels together, and forecast by each channel alone."""
    import io

    import matplotlib.pyplot as plt

    task = TASKS["wave"](1, quick)
    windows = task.windows["test"]
    inputs, target, _ = next(windows.only(torch.tensor([len(windows) // 3])).batches(1))
    x = inputs["x"]
    assert x is not None
    shown = {"truth": target}
    for title, name in (
        ("MVPA", "MVPA"),
        ("MVPA, each channel alone", "MVPA, own channel only"),
    ):
        model, _ = trained(name, task, STEPS, 1, quick)
        with torch.no_grad():
            shown[title] = model(**inputs)[..., 0]
    L, h, C = windows.lookback, windows.horizon, x.shape[2]
    style.apply()
    fig, axes = plt.subplots(1, 3, figsize=(10, 2.9), sharey=True)
    for axis, (title, forecast) in zip(axes, shown.items(), strict=True):
        picture = torch.cat([x, forecast], dim=1)[0].mT
        image = axis.imshow(
            picture, aspect="auto", cmap="RdBu_r", vmin=-2.5, vmax=2.5, extent=(-L, h, C + 0.5, 0.5),
            interpolation="nearest",
        )  # fmt: skip
        axis.axvline(0, color="black", linewidth=1)
        axis.set(title=title, xlabel="step (0: the forecast begins)")
    axes[0].set_ylabel("channel")
    fig.colorbar(image, ax=axes, shrink=0.8)
    file = io.BytesIO()
    fig.savefig(file, format="png", dpi=130)
    plt.close(fig)
    write_bytes(path, file.getvalue())


if __name__ == "__main__":
    main()
