"""The board: what attention is worth on panels, beside regressions and models that were tuned as hard.

Every network runs through `NeuralForecast`. Twelve trials of one random sampler, 400 steps each, are scored on the
validation rows of a draw of their own; the best settings are then trained on three other draws and tested once each.
Trials and rows stand in one table. Runs that it holds are not repeated: after a kill, start the same command again.

    python experiments/forecasting/panels.py                    # results/board/panels.csv, .md and .png: hours
    python experiments/forecasting/panels.py --models TSMixer --tasks wave
    python experiments/forecasting/panels.py --report           # page and figure from the rows at hand
    python experiments/forecasting/panels.py --quick            # two steps, two trials, few rows, written elsewhere
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.board import models
from harness.board.regressions import REGRESSIONS, WINDOW_REGRESSIONS, in_window_errors, ridge_errors
from harness.board.report import FLOOR, draw, markdown
from harness.board.tasks import ELSEWHERE, REAL, TASKS, available, floor_error
from harness.command_line import script_parser
from harness.study import Study

KEY = ["task", "model", "steps", "trial", "seed"]
TESTED = -1
"""In the place of a trial's number: a row that was tested."""
DEVELOPMENT, SEEDS = 0, (11, 12, 13)
"""Draws of the made-up panels: of all trials, and of the rows. Nobody looked at the latter before this table."""
REGRESSION = "regressions"
Case = tuple[str, str, int, int, int]


def main() -> None:
    """Run what is asked for and not in the table yet, then write page and figure."""
    parser = script_parser(__doc__, "two steps and trials on few rows, written elsewhere")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    names = [REGRESSION, *models.PEERS, "MVPA", models.DEFAULTS]
    parser.add_argument("--models", nargs="+", default=names, choices=names, metavar="MODEL", help=", ".join(names))
    parser.add_argument("--minutes", type=float, help="start no run after that long")
    parser.add_argument("--report", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study = Study("board", "panels", KEY, markdown, quick=arguments.quick)
    if arguments.quick:
        arguments.tasks, arguments.models = ["leaders that swap"], [REGRESSION, "TSMixer", "MVPA"]
    if arguments.report:
        study.write()
    else:
        study.run(planned(arguments), partial(measured, study, quick=arguments.quick), minutes=arguments.minutes)
    draw(study.rows, study.table.with_suffix(".png"))


def planned(arguments: argparse.Namespace) -> list[Case]:
    """One task after another: the trials of a model, then its rows."""
    cases: list[Case] = []
    trials, seeds = (2, SEEDS[:1]) if arguments.quick else (models.TRIALS, SEEDS)
    for task in filter(available, arguments.tasks):
        for name in arguments.models:
            if name == REGRESSION:
                rows = [FLOOR, *REGRESSIONS, *WINDOW_REGRESSIONS]
                cases += [(task, row, 0, TESTED, seed) for row in rows for seed in seeds[: 1 if task in REAL else 3]]
            elif name == models.DEFAULTS:
                steps = ((name, models.STEPS), (models.NO_ATTENTION, models.STEPS), (name, models.LONG))
                cases += [(task, *each, TESTED, seed) for each in steps for seed in seeds]
            elif task in models.FEWER_TASKS.get(name, TASKS):
                cases += [(task, name, models.STEPS, trial, DEVELOPMENT) for trial in range(trials)]
                rows = list(models.ARMS) if name == "MVPA" else [name]
                cases += [(task, row, models.STEPS, TESTED, seed) for row in rows for seed in seeds]
    return cases


def measured(
    study: Study, task_name: str, name: str, steps: int, trial: int, seed: int, *, quick: bool = False
) -> list[dict[str, Any]] | None:
    """Rows of one run: a trial's validation error, or a test error, with one more for other channels."""
    task = TASKS[task_name](seed, quick)
    if steps == 0:
        return regression(task_name, name, task)
    model, arm = name.partition(",")[0], models.ARMS.get(name, {})
    length = 2 if quick else steps
    if trial != TESTED:
        settings = models.drawn(model, trial)
        _, row = models.trained(models.build(model, task, settings, {}, length, seed), task, "validation")
        row.pop("mae", None)
        return [{"validation_mse": row.pop("mse"), **row, "settings": json.dumps(settings)}]
    if name in (models.DEFAULTS, models.NO_ATTENTION):
        change = {} if name == models.DEFAULTS else {"encoder_layers": 0}
        settings, network = {}, models.nothing_set(task, length, seed, **change)
    else:
        settings = chosen(study, task_name, model)
        network = models.build(model, task, settings, arm, length, seed)
    host, row = models.trained(network, task, "test")
    rows: list[dict[str, Any]] = [{**as_tested(row), "settings": json.dumps(settings)}]
    if task.elsewhere is not None and model in ("MVPA", "NHITS"):  # the others are made for one number of channels
        error = models.error_elsewhere(host, task.elsewhere)
        rows.append({**rows[0], "task": ELSEWHERE[task_name], "test_mse": error, "test_mae": None})
    return rows


def as_tested(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose errors are named for the test part."""
    return {f"test_{name}" if name in ("mse", "mae") else name: value for name, value in row.items()}


def chosen(study: Study, task: str, model: str) -> dict[str, Any]:
    """Settings of the trial with the least validation error."""
    rows = study.rows
    trials = rows[(rows["task"] == task) & (rows["model"] == model) & (rows["trial"] != TESTED)]
    return json.loads(trials.loc[trials["validation_mse"].idxmin(), "settings"])


def regression(task_name: str, name: str, task: Any) -> list[dict[str, Any]] | None:
    """Rows of the floor or of a regression in closed form."""
    elsewhere = ELSEWHERE.get(task_name, "")
    if name == FLOOR:
        floors = {task_name: floor_error(task), elsewhere: task.elsewhere and floor_error(task.elsewhere)}
        return [{"task": where, "test_mse": error} for where, error in floors.items() if error is not None] or None
    if name in WINDOW_REGRESSIONS:
        return [as_tested(in_window_errors(task, WINDOW_REGRESSIONS[name]))]
    errors, penalty = ridge_errors(task, REGRESSIONS[name])
    settings = json.dumps({"penalty": penalty})
    return [
        {"task": where, **as_tested(error), "settings": settings}
        for where, error in zip((task_name, elsewhere), errors, strict=False)
    ]


if __name__ == "__main__":
    main()
