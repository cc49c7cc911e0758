"""Page and figure of the board."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from harness.board import models
from harness.board.regressions import REGRESSIONS, WINDOW_REGRESSIONS
from harness.board.tasks import ELSEWHERE, REAL, TASKS
from harness.study import grid, spread
from harness.tables import machines

FLOOR = "Floor"
ROWS = (FLOOR, *REGRESSIONS, *WINDOW_REGRESSIONS, *models.PEERS, *models.ARMS)
EARLIER_LOOKS = {
    "METR-LA": 47, "changing wave": 6, "leaders that swap": 6, "wave": 27, "wave, 24 channels": 24,
    "leaders, random": 9, "leaders, fixed": 9, "failing sensors": 86, "METR-LA, 12 from 12": 2, "tide gauges": 2,
    "sea level": 4,
}  # fmt: skip
"""Rows that are gone. METR-LA: 41 of a table before this one, 6 of defaults. The others: peers that the host had
trained on shuffled series, defaults before regressions were solved on all rows and before gaps were filled, and ridge
regressions that had learnt from what dead sensors did not show; on failing sensors also networks that did not yet
forecast the rows missing at the end. Of the last three: regressions in the window, on
16 channels or on five windows."""
LONG_SUFFIX = ", 1000 steps"
ALL_ROWS = (*ROWS, models.DEFAULTS, models.NO_ATTENTION, models.DEFAULTS + LONG_SUFFIX)
WHOLE_MODELS = (*models.PEERS, "MVPA", models.DEFAULTS, models.DEFAULTS + LONG_SUFFIX)
PAGE_ROWS = (
    FLOOR, *REGRESSIONS, "Ridges fitted in the window, step by step", *WHOLE_MODELS, "MVPA, no attention",
    "MVPA, attention alone", "MVPA, mixing heads alone",
)  # fmt: skip
"""Rows of the docs page; the results page has all."""


def columns(rows: pd.DataFrame) -> list[str]:
    """Tasks that have a row, each with its panel elsewhere behind it."""
    names = [name for task in TASKS for name in (task, ELSEWHERE.get(task))]
    return [name for name in names if name in set(rows["task"])]


def tested(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with a test error; those of the long trainings under a name of their own."""
    rows = rows[rows["test_mse"].notna()].copy()
    rows.loc[rows["steps"] == models.LONG, "model"] += LONG_SUFFIX
    return rows


def markdown(rows: pd.DataFrame) -> str:
    """Errors, seconds and weights, looks."""
    tests, names = tested(rows), columns(rows)
    lines = [
        "# The board",
        "",
        "Made by `experiments/forecasting/panels.py`. Test mean square error, variance 1; mean ± standard deviation "
        f"over {tests['seed'].nunique()} draws of panel and network (real panels: of the network). All networks run "
        f"through `NeuralForecast`, on series in their order, {models.STEPS} steps unless said, batches of 32 windows, "
        f"of panels with more than 64 channels fewer. Squared error; settings: the best of {models.TRIALS} trials of "
        "one random sampler for each model and task, by validation rows of another draw (real panels: of the rows "
        "after those of training); the table of all rows holds every trial. *Nothing set* has the host's defaults and "
        "its loss of absolute errors.",
        "",
        *error_tables(tests, ALL_ROWS),
        *missing(tests),
    ]
    if "test_mae" in tests:
        units = [name for name in names if name in set(tests.loc[tests["test_mae"].notna(), "task"])]
        lines += ["Mean absolute error in miles an hour (roads), shares of the capacity (farms), µg/m³ and mm:", ""]
        lines += [*error_table(tests, (*REGRESSIONS, *WHOLE_MODELS), units, "test_mae"), ""]
    networks = tests[tests["weights"].notna() & tests["task"].isin(TASKS)]
    if not networks.empty:
        cost = {key: f"{own['seconds'].mean():.0f} s, {own['weights'].iloc[0]:,.0f}"
                for key, own in networks.groupby(["model", "task"])}  # fmt: skip
        tasks = [name for name in names if name in TASKS]
        trained = [name for name in WHOLE_MODELS if name in set(networks["model"])]
        lines += ["Processor seconds of training and testing, and weights:", ""]
        lines += [*grid(["model", *tasks], ([m, *(cost.get((m, t), "–") for t in tasks)] for m in trained)), ""]
    return "\n".join([*lines, looks(tests), "", machines(rows), ""])


def error_tables(tests: pd.DataFrame, shown: Sequence[str]) -> list[str]:
    """One table of the made-up tasks, one of the real ones."""
    lines = []
    real = {*REAL, *(ELSEWHERE.get(name) for name in REAL)}
    for names in ([name for name in columns(tests) if (name in real) == is_real] for is_real in (False, True)):
        lines += [*error_table(tests, shown, names), ""] if names else []
    return lines


def error_table(
    tests: pd.DataFrame, shown: Sequence[str], names: Sequence[str], column: str = "test_mse"
) -> list[str]:  # fmt: skip
    """A line for each model that has a row, a column for each task."""
    tests = tests[tests["task"].isin(names) & tests[column].notna()]
    errors = dict(iter(tests.groupby(["model", "task"])[column]))
    present, none = [name for name in shown if name in set(tests["model"])], tests[column].iloc[:0]
    return grid(["model", *names], ([m, *(spread(errors.get((m, t), none)) for t in names)] for m in present))


def missing(tests: pd.DataFrame) -> list[str]:
    """Which rows are not run yet on some of the tasks."""
    tasks = [name for name in TASKS if name in set(tests["task"])]
    counts = tests[tests["task"].isin(tasks)].groupby("model")["task"].nunique()
    planned = {name: len(models.FEWER_TASKS.get(name, tasks)) for name in WHOLE_MODELS}
    lacking = [
        f"{name} ({counts.get(name, 0)} of {count})" for name, count in planned.items() if counts.get(name, 0) < count
    ]
    if any(counts.get(name, 0) < len(tasks) for name in models.ARMS):
        lacking.append("parts of MVPA")
    absent = [name for name in TASKS if name not in tasks]
    sentences = [f"Not run on all tasks yet: {', '.join(lacking)}."] if lacking else []
    sentences += [f"No row yet: {', '.join(absent)}."] if absent else []
    return [" ".join([*sentences, "The same command goes on."]), ""] if sentences else []


def page_table(rows: pd.DataFrame) -> str:
    """The tables of the page, and what is missing."""
    tests = tested(rows)
    lines = [*error_tables(tests, PAGE_ROWS), *missing(tests), looks(tests)]
    return "".join(f"{line}\n" for line in lines)


def sentence(rows: pd.DataFrame, task: str = "changing wave") -> str:
    """The errors of one task in words, the least first: floor, best regression, peers, ours and its parts."""
    means = tested(rows).query("task == @task").groupby("model")["test_mse"].mean().sort_values()
    regressions = [name for name in means.index if name in (*REGRESSIONS, *WINDOW_REGRESSIONS)]
    parts = ("MVPA, attention alone", "MVPA, mixing heads alone", models.DEFAULTS, models.NO_ATTENTION)
    shown = {FLOOR, *regressions[:1], *models.PEERS, *parts} - {"PatchTST", "NHITS"}  # which read each by itself
    said = "; ".join(f"{name} {error:.3f}" for name, error in means.items() if name in shown)
    text = f"Test MSE on {task} of [the board](docs/panels.md), where relations change and peers are tuned: {said}."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def looks(tests: pd.DataFrame) -> str:
    """How often the test part of each task was looked at."""
    counts = tests.groupby("task").size()
    said = [f"{name} {counts[name] + EARLIER_LOOKS.get(name, 0)}" for name in columns(tests)]
    return (
        f"Looks at the test parts, one for each row: {', '.join(said)}. The rows of "
        f"{sum(EARLIER_LOOKS.values())} of them are gone: of a table before this one, of peers on shuffled series, of "
        "defaults before regressions on all rows and before gaps were filled, of networks that did not forecast rows "
        "missing at the end, of regressions on part of a panel."
    )


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Test errors as dots, a line for each task: floor, best regression, tuned networks, MVPA and its parts."""
    import matplotlib.pyplot as plt
    from harness.figures import style

    tests = tested(rows)
    if tests.empty:
        return
    style.apply()
    means = tests.groupby(["task", "model"])["test_mse"].mean().unstack()
    names = [name for name in columns(tests) if name in means.index and name in TASKS]
    marks = {
        "best regression": ("s", "0.45"), "TSMixer": ("v", "C1"), "iTransformer": ("^", "C2"), "NHITS": ("x", "C4"),
        "TimeXer": ("<", "C6"), "PatchTST": (">", "C8"),
        "MVPA, attention alone": ("P", "tab:brown"), "MVPA, mixing heads alone": ("D", "C3"),
        "MVPA, regressions alone": ("*", "C5"),
        models.DEFAULTS: ("d", "black"), "MVPA": ("o", "C0"),
    }  # fmt: skip
    means["best regression"] = means[[name for name in (*REGRESSIONS, *WINDOW_REGRESSIONS) if name in means]].min(
        axis=1
    )
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(names) + 2.0), layout="constrained")
    for place, name in enumerate(reversed(names)):
        if FLOOR in means and pd.notna(means.loc[name, FLOOR]):
            axes.plot([means.loc[name, FLOOR]] * 2, [place - 0.35, place + 0.35], color="black", linewidth=2)
    for model, (mark, colour) in marks.items():
        if model in means:
            errors = means.loc[list(reversed(names)), model]
            axes.plot(errors, range(len(names)), mark, color=colour, label=model, markersize=7)
    axes.plot([], [], color="black", linewidth=2, label="floor")
    axes.set(yticks=range(len(names)), yticklabels=list(reversed(names)), xlabel="test mean square error (variance 1)")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, bbox_inches="tight", dpi=130)
    plt.close(figure)
