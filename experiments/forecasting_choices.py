"""What the settings of closed-form starts rest on: errors of a blocked cross-validation, no test data.

The validation part of ETTh1 and ETTh2 is one summer while the test part is a winter, and settings that are best on the
one are not on the other. So the rows of the train and the validation part together are cut into four blocks. Each is
forecast by a model trained on windows that do not touch it, zero being the mean of the rows outside. Training windows
are thinned, for neighbours are alike: every third of ETTh, every twelfth of Weather; likewise those that are forecast.
Settings are compared by the mean over blocks and horizons of the change in percent against the closed-form start alone,
without any gradient step. What is changed are the settings of Weather, and on ETTh those of the longer look-backs.

    python experiments/forecasting_choices.py                       # results/forecasting_choices.csv, .md; resumable
    python experiments/forecasting_choices.py --datasets Weather    # one set, some 40 s a run
    python experiments/forecasting_choices.py --quick               # two settings, one block, three steps, elsewhere
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from forecasting import hardware
from forecasting_models import LONG_LOOKBACK_SETTINGS, LOOKBACK, MVPA_SETTINGS, mvpa
from forecasting_report import RESULTS, append_row, read_rows
from torch import nn
from training import Training, train

from mvpa_ts.datasets import FORECASTING_DATASETS, Borders, WindowSet, forecasting_windows, load_forecasting_frame
from mvpa_ts.files import write_text

HORIZONS, SEED, BLOCKS = (96, 336), 1, 4
BASE = "closed form alone"
# Every how many-th window is trained on, and forecast.
THINNING = {"ETTh1": (3, 12), "ETTh2": (3, 12), "Weather": (12, 48)}
CHOSEN = {
    "ETTh1": {"patch_length": 48, **LONG_LOOKBACK_SETTINGS["ETTh1"]},
    "ETTh2": {"patch_length": 48, **LONG_LOOKBACK_SETTINGS["ETTh2"]},
    "Weather": MVPA_SETTINGS["Weather"],
}
# What is changed: settings of the network, under "training" of its training, and whether missing values are masked.
CHANGES: dict[str, dict[str, Any]] = {
    BASE: {"num_layers": 0, "training": {"learning_rate": 1e-12}},
    "as chosen": {},
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
    "width 64": {"dim": 64, "mlp_dim": 128},
    "width 128": {"dim": 128, "mlp_dim": 256, "num_heads": 8},
    "two layers": {"num_layers": 2},
    "learning rate 2.5e-3": {"training": {"learning_rate": 2.5e-3, "linear_rate": 0.04}},
    "squared error as the loss": {"training": {"loss": "mse"}},
    "half of the loss over frequencies": {"training": {"frequency_weight": 0.5}},
    "start at zero": {"training": {"ridge": None, "linear_rate": 1.0}},
}


def main() -> None:
    """Run what is not in the table yet, then write the Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(FORECASTING_DATASETS), choices=FORECASTING_DATASETS)
    parser.add_argument("--changes", nargs="+", default=list(CHANGES), choices=list(CHANGES), metavar="CHANGE")
    parser.add_argument("--quick", action="store_true", help="two settings, one block, three steps, written elsewhere")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="mvpa-ts-")) if arguments.quick else RESULTS
    table = folder / "forecasting_choices.csv"
    shortened = slice(1 if arguments.quick else None)
    for name in arguments.changes[: 2 if arguments.quick else None]:
        for dataset in arguments.datasets[shortened]:
            for horizon in HORIZONS[shortened]:
                for block in range(BLOCKS)[shortened]:
                    run_once(table, dataset, name, horizon, block, quick=arguments.quick)
    text = markdown(read_rows(table))
    write_text(table.with_suffix(".md"), text)
    print(text)


def run_once(table: Path, dataset: str, name: str, horizon: int, block: int, *, quick: bool) -> None:
    """Add one row, if it is not there and the change changes something."""
    known, key = read_rows(table), (dataset, name, horizon, block)
    if not known.empty and key in set(known[["dataset", "change", "horizon", "block"]].itertuples(False, None)):
        return
    windows = thinned(blocks(dataset, horizon)[block], THINNING[dataset])
    if quick:
        windows = {part: replace(whole, starts=whole.starts[:64]) for part, whole in windows.items()}
    torch.manual_seed(SEED)
    model, training, settings = changed(dataset, horizon, windows["train"], CHANGES[name])
    chosen = changed(dataset, horizon, windows["train"], {})
    if CHANGES[name] and (training, settings) == chosen[1:]:
        return
    # As many steps as on all windows.
    training = replace(training, epochs=training.epochs * THINNING[dataset][0])
    outcome = train(model, windows, training, seed=SEED, max_steps=3 if quick else None)
    row = dict(zip(("dataset", "change", "horizon", "block"), key, strict=True))
    errors = {"mse": outcome.validation_mse, "mae": outcome.validation_mae}
    append_row(table, {**row, **errors, "seconds": round(outcome.seconds, 1), "hardware": hardware("cpu")})


def changed(
    dataset: str, horizon: int, windows: WindowSet, change: dict[str, Any]
) -> tuple[nn.Module, Training, dict[str, Any]]:
    """The model, its training and all its settings after a change."""
    change = dict(change)
    missing = windows.missing if change.pop("masked", True) else None
    training = {**CHOSEN[dataset]["training"], **change.pop("training", {})}
    whole = {**CHOSEN[dataset], **change, "training": training}
    model, training, settings = mvpa(dataset, horizon, windows.values.shape[1], whole, missing=missing)
    return model, training, {**settings, "masked": missing is not None}


def blocks(dataset: str, horizon: int) -> list[dict[str, WindowSet]]:
    """Windows of each block to forecast, and those to train on, whose rows all lie outside of it."""
    frame = load_forecasting_frame(dataset)
    whole = forecasting_windows(frame, dataset, lookback=LOOKBACK, horizon=horizon)["train"]
    stop, length = Borders.of(dataset, len(frame)).validation[1], LOOKBACK + horizon
    starts = torch.arange(stop - length + 1)
    folds = []
    for first, last in itertools.pairwise(np.linspace(0, stop, BLOCKS + 1).astype(int).tolist()):
        outside = (starts + length <= first) | (starts >= last)
        forecast = (starts + LOOKBACK >= first) & (starts + length <= last)
        # Zero is the mean of what is trained on, as in the test.
        mean = torch.cat([whole.values[:first], whole.values[last:stop]]).mean(0)
        missing = None if whole.missing is None else whole.missing - mean
        folds.append(
            {
                part: replace(whole, values=whole.values - mean, starts=starts[rows], missing=missing)
                for part, rows in (("train", outside), ("validation", forecast))
            }
        )
    return folds


def thinned(windows: dict[str, WindowSet], every: tuple[int, int]) -> dict[str, WindowSet]:
    """Every so many-th window of "train" and of "validation"."""
    return {
        part: replace(windows[part], starts=windows[part].starts[::step])
        for part, step in zip(("train", "validation"), every, strict=True)
    }


def markdown(rows: pd.DataFrame) -> str:
    """Mean change in percent against the closed form, a column for each data set and error; the base in its unit."""
    keys = ["dataset", "horizon", "block"]
    base = rows[rows["change"] == BASE].set_index(keys)[["mse", "mae"]]
    merged = rows.join(base, on=keys, rsuffix="_base")
    for error in ("mse", "mae"):
        merged[error] = 100.0 * (merged[error] / merged[f"{error}_base"] - 1.0)
    runs = merged.groupby(["change", "dataset"])[["mse", "mae"]]
    means, counts = runs.mean(), runs.size()
    # A change that was not run everywhere is no mean.
    means = means[[counts[change, dataset] == counts[BASE, dataset] for change, dataset in means.index]]
    datasets = [name for name in FORECASTING_DATASETS if name in set(rows["dataset"])]
    horizons = rows.groupby("dataset")["horizon"].unique()
    covered = "; ".join(f"{dataset}: {', '.join(map(str, sorted(horizons[dataset])))}" for dataset in datasets)
    lines = [
        f"Blocked cross-validation on the rows before the test part: change of MSE / MAE in percent against the "
        f"closed form alone, mean over {BLOCKS} blocks and the horizons run ({covered}), seed {SEED}. "
        "Less is better. – is no change to what was chosen, or was not run.",
        "",
        f"| change to what was chosen | {' | '.join(datasets)} |",
        "|---|" + "---|" * len(datasets),
    ]
    for change in [name for name in CHANGES if name in set(rows["change"])]:
        cells = [
            "{mse:+.2f} / {mae:+.2f}".format(**means.loc[(change, dataset)])
            if (change, dataset) in means.index
            else "–"
            for dataset in datasets
        ]
        lines.append(f"| {change} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Measured on {', '.join(rows['hardware'].unique())}.", ""])


if __name__ == "__main__":
    main()
