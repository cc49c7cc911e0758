"""Choice of the settings by errors of a blocked cross-validation, without test data.

The validation part of ETTh1 and ETTh2 is one summer while the test part is a winter, and settings that are best on
the one need not be on the other. So the rows of the train and the validation part together are cut into four blocks.
Each is forecast by a model trained on windows that do not touch it, zero being the mean of the rows outside. Training
windows are thinned, for neighbours are alike: every third of ETTh, every twelfth of Weather; likewise those that are
forecast. Settings are compared by the mean over blocks and horizons of the change in percent against one of them.

    python experiments/forecasting_choices.py  # results/forecasting/forecasting_choices.csv, .md; resumable
    python experiments/forecasting_choices.py --datasets Weather    # one set, some 40 s a run
    python experiments/forecasting_choices.py --after-search        # around what forecasting_search.py found
    python experiments/forecasting_choices.py --quick               # two settings, one block, three steps, elsewhere
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from harness.command_line import script_parser
from harness.forecasting.blocks import BLOCKS, THINNING, blocks, thinned
from harness.forecasting.models import LOOKBACK, configured
from harness.forecasting.settings import LONG_LOOKBACK_SETTINGS, MVPA_SETTINGS, SEARCHED_SETTINGS
from harness.tables import append_row, hardware, read_rows, results_folder, write_page
from torch import nn

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS
from mvpa_ts.forecasting import ForecasterTraining
from mvpa_ts.forecasting.training import train
from mvpa_ts.windows import Windows

HORIZONS, SEED = (96, 336), 1
HORIZONS_AFTER_SEARCH = (96, 336, 720)
BASE, BEFORE = "closed form alone", "before the search"
# Where the search stood when these changes were tried; one patch a channel on Weather.
START: dict[str, dict[str, Any]] = {
    "ETTh1": {
        **LONG_LOOKBACK_SETTINGS["ETTh2"],
        "individual_channels": True,
        "training": {**LONG_LOOKBACK_SETTINGS["ETTh2"]["training"], "ridge": 1.0},
    },
    "ETTh2": LONG_LOOKBACK_SETTINGS["ETTh2"],
    "Weather": {**SEARCHED_SETTINGS["Weather"], "patch_length": 96, "patch_stride": 96, "attention_dropout": 0.0},
}
# What is changed: settings of the network, under "training" of its training, and whether missing values are masked.
CHANGES: dict[str, dict[str, Any]] = {
    BASE: {"num_layers": 0, "training": {"learning_rate": 1e-12}},
    "no change": {},
    "missing values as if measured": {"masked": False},
    "no level reversion": {"level_reversion": False},
    "level reversion 0.25": {"level_reversion": True, "training": {"reversion_strength": 0.25}},
    "level reversion 0.5": {"level_reversion": True, "training": {"reversion_strength": 0.5}},
    "linear path alone": {"num_layers": 0},
    "MVPA none": {"components": ()},
    "one epoch": {"training": {"epochs": 1}},
    "two epochs": {"training": {"epochs": 2}},
    "dropout 0.2, head 0.3": {"dropout": 0.2, "head_dropout": 0.3},
    "ridge 0.1": {"training": {"ridge": 0.1}},
    "ridge 0.3": {"training": {"ridge": 0.3}},
    "ridge 1": {"training": {"ridge": 1.0}},
    "ridge 3": {"training": {"ridge": 3.0}},
    "channels alike": {"individual_channels": False},
    "channels individual": {"individual_channels": True},
    "no cycle": {"cycle_length": None},
    "cycle of full strength": {"training": {"cycle_strength": 1.0}},
    "patches of 96": {"patch_length": 96, "patch_stride": 96},
    "patches of 24": {"patch_length": 24, "patch_stride": 24},
    "attention dropout 0.2": {"attention_dropout": 0.2},
    "attention dropout 0.4": {"attention_dropout": 0.4},
    "attention dropout 0.2, patches of 48": {"attention_dropout": 0.2, "patch_length": 48, "patch_stride": 48},
    "attention dropout 0.2, patches of 48, within the range": {
        "attention_dropout": 0.2,
        "patch_length": 48,
        "patch_stride": 48,
        "bounded_channels": True,
    },
    "width 64": {"dim": 64, "mlp_dim": 128},
    "width 128": {"dim": 128, "mlp_dim": 256, "num_heads": 8},
    "width 128, level reversion 0.35": {
        "dim": 128,
        "mlp_dim": 256,
        "num_heads": 8,
        "training": {"reversion_strength": 0.35},
    },
    "two layers": {"num_layers": 2},
    "learning rate 2.5e-3": {"training": {"learning_rate": 2.5e-3, "linear_rate": 0.04}},
    "squared error as the loss": {"training": {"loss": "mse"}},
    "half of the loss over frequencies": {"training": {"frequency_weight": 0.5}},
    "start at zero": {"training": {"ridge": None, "linear_rate": 1.0}},
}
# Around what the search found, at look-back 96: its best on ETTh1; on ETTh2 the best of the first 36 of its 50 trials.
FOUND: dict[str, dict[str, Any]] = {
    "ETTh1": SEARCHED_SETTINGS["ETTh1"],
    "ETTh2": {
        **SEARCHED_SETTINGS["ETTh2"],
        "patch_stride": 12,
        "dropout": 0.6,
        "head_dropout": 0.2,
        "training": {**SEARCHED_SETTINGS["ETTh2"]["training"], "learning_rate": 2.3e-3, "linear_rate": 15.2},
    },
}
_BEFORE_ETTH2: dict[str, Any] = {
    **MVPA_SETTINGS["ETTh2"],
    "cycle_length": None,
    "phase_weights": False,
    "dim": 32,
    "mlp_dim": 64,
    "dropout": 0.3,
    "head_dropout": 0.5,
    "training": {
        "learning_rate": 2e-3,
        "patience": 5,
        "linear_rate": 1.0,
        "batch_size": 256,
        "weight_averaging": 0.99,
        "horizon_decay": 0.0,
        "frequency_weight": 0.0,
    },
}
_LESS: dict[str, Any] = {"epochs": 5, "frequency_weight": 0.25}
_BEST_ETTH2 = SEARCHED_SETTINGS["ETTh2"]  # of all 50 trials
AFTER_SEARCH: dict[str, dict[str, dict[str, Any]]] = {
    "ETTh1": {
        BEFORE: {
            "phase_weights": False,
            "patch_length": 48,
            "patch_stride": 48,
            "dim": 16,
            "mlp_dim": 32,
            "dropout": 0.3,
            "head_dropout": 0.5,
            "training": {
                "learning_rate": 1e-3,
                "linear_rate": 20.0,
                "batch_size": 256,
                "weight_averaging": 0.99,
                "frequency_weight": 0.0,
            },
        },
        "best of the search": {},
        "5 epochs": {"training": {"epochs": 5}},
        "5 epochs, wider attention path, less dropout of its head": {
            "dim": 64,
            "mlp_dim": 128,
            "head_dropout": 0.3,
            "training": {"epochs": 5, "learning_rate": 2e-3, "linear_rate": 15.5},
        },
        "5 epochs, a quarter (chosen)": {"training": _LESS},
        "5 epochs, a quarter, without phase weights": {"phase_weights": False, "training": _LESS},
        "5 epochs, no loss over frequencies": {"training": {**_LESS, "frequency_weight": 0.0}},
        "5 epochs, a quarter, rate 2e-3 for the attention path": {
            "training": {**_LESS, "learning_rate": 2e-3, "linear_rate": 15.5}
        },
    },
    "ETTh2": {
        # Of 15 epochs the one with the smallest error on the block is kept, which flatters it.
        BEFORE: {**_BEFORE_ETTH2, "training": {**_BEFORE_ETTH2["training"], "epochs": 15, "keep": "best"}},
        "before the search, 5 epochs to the end": _BEFORE_ETTH2,
        "best of 36 trials": {},
        "1 epoch": {"training": {"epochs": 1}},
        "2 epochs": {"training": {"epochs": 2}},
        "3 epochs": {"training": {"epochs": 3}},
        "2 epochs, without cycle": {"cycle_length": None, "phase_weights": False, "training": {"epochs": 2}},
        "2 epochs, without phase weights": {"phase_weights": False, "training": {"epochs": 2}},
        "2 epochs, no loss over frequencies": {"training": {"epochs": 2, "frequency_weight": 0.0}},
        "2 epochs, rate 1e-2 for the linear path": {"training": {"epochs": 2, "linear_rate": 4.3}},
        "2 epochs, rate 1e-3 for the attention path": {
            "training": {"epochs": 2, "learning_rate": 1e-3, "linear_rate": 35.0}
        },
        "2 epochs, attention dropout 0.2": {"attention_dropout": 0.2, "training": {"epochs": 2}},
        "2 epochs, linear path alone": {"num_layers": 0, "training": {"epochs": 2}},
        "best of the search": _BEST_ETTH2,
    },
}
# Masking and mixing of frequencies (FrAug, arXiv:2302.09292) brought nothing; the code that ran these rows is gone.
NO_LONGER_RUN = tuple(
    f"best of the search, frequencies {name}" for name in ("masked, 0.1", "masked, 0.3", "mixed, 0.1")
)


def main() -> None:
    """Run what is not in the table yet, then write the Markdown."""
    parser = script_parser(__doc__, "two settings, one block, three steps, written elsewhere")
    parser.add_argument("--datasets", nargs="+", choices=FORECASTING_DATASETS, help="(default: all that have a table)")
    parser.add_argument("--changes", nargs="+", metavar="CHANGE", help="rows of the table to run (default: all)")
    parser.add_argument("--after-search", action="store_true", help="around the best of forecasting_search.py")
    arguments = parser.parse_args()
    tables = AFTER_SEARCH if arguments.after_search else dict.fromkeys(FORECASTING_DATASETS, CHANGES)
    datasets = arguments.datasets or list(tables)
    if missing := set(datasets) - set(tables):
        parser.error(f"--after-search has {', '.join(tables)}; got {', '.join(sorted(missing))}")
    known = {name for dataset in datasets for name in tables[dataset]}
    if unknown := set(arguments.changes or []) - known:
        parser.error(f"--changes must be of {', '.join(sorted(known))}; got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    folder = results_folder("forecasting", quick=arguments.quick)
    table = folder / f"forecasting_choices{'_after_search' if arguments.after_search else ''}.csv"
    horizons = HORIZONS_AFTER_SEARCH if arguments.after_search else HORIZONS
    shortened = slice(1 if arguments.quick else None)
    for dataset in datasets[shortened]:
        names = [name for name in tables[dataset] if arguments.changes is None or name in arguments.changes]
        for name in names[: 2 if arguments.quick else None]:
            start, change = (FOUND if arguments.after_search else START)[dataset], tables[dataset][name]
            for horizon in horizons[shortened]:
                for block in range(BLOCKS)[shortened]:
                    run_once(table, dataset, name, horizon, block, start, change, quick=arguments.quick)
    rows = read_rows(table)
    write_page(table, markdown_after_search(rows) if arguments.after_search else markdown(rows))


def run_once(
    table: Path,
    dataset: str,
    name: str,
    horizon: int,
    block: int,
    start: dict[str, Any],
    change: dict[str, Any],
    *,
    quick: bool,
) -> None:
    """Add one row, if it is not there and the change changes something."""
    known, key = read_rows(table), (dataset, name, horizon, block)
    if not known.empty and key in set(known[["dataset", "change", "horizon", "block"]].itertuples(False, None)):
        return
    windows = thinned(blocks(dataset, horizon)[block], THINNING[dataset])
    if quick:
        windows = {part: replace(whole, starts=whole.starts[:64]) for part, whole in windows.items()}
    unchanged = changed(dataset, horizon, windows["train"], start, {})
    torch.manual_seed(SEED)
    model, training, settings = changed(dataset, horizon, windows["train"], start, change)
    if change and (training, settings) == unchanged[1:]:
        return
    # As many steps as on all windows.
    every = THINNING[dataset][0]
    training = replace(training, epochs=training.epochs * every, patience=training.patience * every)
    outcome = train(model, windows, training, seed=SEED, max_steps=3 if quick else None)
    row = dict(zip(("dataset", "change", "horizon", "block"), key, strict=True))
    errors = {"mse": outcome.validation_mse, "mae": outcome.validation_mae}
    append_row(table, {**row, **errors, "seconds": round(outcome.seconds, 1), "hardware": hardware()})


def changed(
    dataset: str, horizon: int, windows: Windows, start: dict[str, Any], change: dict[str, Any]
) -> tuple[nn.Module, ForecasterTraining, dict[str, Any]]:
    """The model, its training and all its settings after a change."""
    change = dict(change)
    masked = change.pop("masked", True)
    training = {**start["training"], **change.pop("training", {})}
    whole = {**start, **change, "training": training}
    model, training, settings = configured(dataset, horizon, windows.values.shape[1], whole)
    if not masked:
        model.register_forward_pre_hook(
            lambda module, arguments, inputs: (arguments, {**inputs, "mask": None}), with_kwargs=True
        )
    return model, training, {**settings, "masked": masked and windows.observed is not None}


def markdown(rows: pd.DataFrame) -> str:
    """Mean change in percent against the closed form, a column for each data set."""
    datasets = [name for name in FORECASTING_DATASETS if name in set(rows["dataset"])]
    horizons = rows.groupby("dataset")["horizon"].unique()
    covered = "; ".join(f"{dataset}: {', '.join(map(str, sorted(horizons[dataset])))}" for dataset in datasets)
    lead = (
        f"the closed form alone, mean over {BLOCKS} blocks and the horizons run ({covered}), seed {SEED}. "
        "Less is better. – is no change, or was not run. On Weather, what is changed has one patch a channel and no "
        "attention dropout; on ETTh it starts in closed form."
    )
    return _table(rows, BASE, list(CHANGES), "dataset", datasets, lead)


def markdown_after_search(rows: pd.DataFrame) -> str:
    """Mean change in percent against the settings before the search, a column for each horizon, and their mean."""
    tables: list[str] = []
    for dataset in [name for name in AFTER_SEARCH if name in set(rows["dataset"])]:
        own = rows[rows["dataset"] == dataset]
        both = pd.concat([own.assign(column=own["horizon"].astype(str)), own.assign(column="mean")])
        training = FOUND[dataset]["training"]
        lead = (
            f"the settings before the search, {dataset}, look-back {LOOKBACK}, mean over {BLOCKS} blocks, seed {SEED}, "
            "a column for each horizon. Less is better. What is changed was the best on the validation "
            f"part: {training.get('epochs', 15)} epochs, {training['frequency_weight']:g} of the loss over frequencies."
        )
        if AFTER_SEARCH[dataset][BEFORE]["training"].get("keep") == "best":
            lead += " Before it, the epoch with the smallest error on the block was kept, which flatters those errors."
        columns = [*map(str, sorted(own["horizon"].unique())), "mean"]
        names = [*AFTER_SEARCH[dataset], *NO_LONGER_RUN]
        tables.append(_table(both, BEFORE, names, "column", columns, lead))
    if rows["change"].isin(NO_LONGER_RUN).any():
        tables.append("Rows with masked or mixed frequencies are a note: the code that ran them is no longer here.\n")
    return "\n".join(tables)


def _table(rows: pd.DataFrame, base: str, changes: list[str], column: str, columns: list[Any], lead: str) -> str:
    keys = [*dict.fromkeys([column, "dataset", "horizon", "block"])]
    errors = rows[rows["change"] == base].set_index(keys)[["mse", "mae"]]
    merged = rows.join(errors, on=keys, rsuffix="_base")
    for error in ("mse", "mae"):
        merged[error] = 100.0 * (merged[error] / merged[f"{error}_base"] - 1.0)
    runs = merged.groupby(["change", column])[["mse", "mae"]]
    means, counts = runs.mean(), runs.size()
    # A change that was not run everywhere is no mean.
    means = means[[counts[change, name] == counts.get((base, name)) for change, name in means.index]]
    lines = [
        f"Blocked cross-validation on the rows before the test part: change of MSE / MAE in percent against {lead}",
        "",
        f"| change | {' | '.join(map(str, columns))} |",
        "|---|" + "---|" * len(columns),
    ]
    for change in [name for name in changes if name in set(rows["change"])]:
        cells = [
            "{mse:+.2f} / {mae:+.2f}".format(**means.loc[(change, name)]) if (change, name) in means.index else "–"
            for name in columns
        ]
        lines.append(f"| {change} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Measured on {', '.join(rows['hardware'].unique())}.", ""])


if __name__ == "__main__":
    main()
