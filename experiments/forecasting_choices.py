"""What the settings rest on: errors of a blocked cross-validation, or on the validation part; no test data.

Settings of closed-form starts, on Weather and for longer look-backs: the validation part of ETTh1 and ETTh2 is one
summer while the test part is a winter, and settings that are best on the one need not be on the other. So the rows of
the train and the validation part together are cut into four blocks. Each is forecast by a model trained on windows that
do not touch it, zero being the mean of the rows outside. Training windows are thinned, for neighbours are alike: every
third of ETTh, every twelfth of Weather; likewise those that are forecast. Settings are compared by the mean over blocks
and horizons of the change in percent against the closed-form start alone, without any gradient step.

Settings of ETTh1 at look-back 96, which start at zero: errors on its validation part.

    python experiments/forecasting_choices.py                       # results/forecasting_choices.csv, .md; resumable
    python experiments/forecasting_choices.py --datasets Weather    # one set, some 40 s a run
    python experiments/forecasting_choices.py --validation          # ETTh1: forecasting_choices_validation.csv, .md
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
from forecasting_models import LONG_LOOKBACK_SETTINGS, LOOKBACK, MVPA_SETTINGS, configured
from forecasting_report import RESULTS, append_row, read_rows
from torch import nn
from training import Training, train

from mvpa_ts.datasets import FORECASTING_DATASETS, Borders, WindowSet, forecasting_windows, load_forecasting_frame
from mvpa_ts.files import write_text

HORIZONS, SEED, BLOCKS = (96, 336), 1, 4
VALIDATION_HORIZONS = (96, 336, 720)
BASE = "closed form alone"
# Every how many-th window is trained on, and forecast.
THINNING = {"ETTh1": (3, 12), "ETTh2": (3, 12), "Weather": (12, 48)}
# Where the search stood when these changes were tried; one patch a channel on Weather.
START: dict[str, dict[str, Any]] = {
    "ETTh1": {
        **LONG_LOOKBACK_SETTINGS["ETTh2"],
        "individual_channels": True,
        "training": {**LONG_LOOKBACK_SETTINGS["ETTh2"]["training"], "ridge": 1.0},
    },
    "ETTh2": LONG_LOOKBACK_SETTINGS["ETTh2"],
    "Weather": {**MVPA_SETTINGS["Weather"], "patch_length": 96, "patch_stride": 96, "attention_dropout": 0.0},
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
# The search on ETTh1's validation part: settings of the network, and under "training" of its training.
_NO_ATTENTION: dict[str, Any] = {"cycle_length": 24, "num_layers": 0}
_RATES = {"learning_rate": 1e-3, "linear_rate": 20.0}  # 1e-3 for the attention path, 2e-2 for the linear one
_NARROW: dict[str, Any] = {"cycle_length": 24, "dim": 16, "mlp_dim": 32, "training": _RATES}
VALIDATED: dict[str, dict[str, Any]] = {
    "linear path alone, rate 1e-3": {**_NO_ATTENTION, "training": {"learning_rate": 1e-3}},
    "linear path alone, rate 2e-3, patience 5": {**_NO_ATTENTION, "training": {"learning_rate": 2e-3, "patience": 5}},
    "linear path alone, rate 6e-3": _NO_ATTENTION,
    "linear path alone, rate 6e-3, half of the loss over frequencies": {
        **_NO_ATTENTION,
        "training": {"frequency_weight": 0.5},
    },
    "linear path alone, rate 2e-2": {**_NO_ATTENTION, "training": {"learning_rate": 2e-2}},
    "linear path alone, rate 5e-2": {**_NO_ATTENTION, "training": {"learning_rate": 5e-2}},
    "linear path alone, rate 1e-1": {**_NO_ATTENTION, "training": {"learning_rate": 1e-1}},
    "linear path alone, rate 2e-2, 30 epochs": {
        **_NO_ATTENTION,
        "training": {"learning_rate": 2e-2, "epochs": 30, "patience": 30},
    },
    "linear path alone, rate 2e-2, batches of 64": {
        **_NO_ATTENTION,
        "training": {"learning_rate": 2e-2, "batch_size": 64},
    },
    "linear path alone, rate 2e-2, closed-form start": {
        **_NO_ATTENTION,
        "training": {"learning_rate": 2e-2, "ridge": 0.3, "cycle_strength": 0.75},
    },
    "linear path alone, rate 2e-2, channels individual": {
        **_NO_ATTENTION,
        "individual_channels": True,
        "training": {"learning_rate": 2e-2},
    },
    "first settings: rate 6e-3 for all": {"cycle_length": 24},
    "rate 6e-3, linear path 3e-2": {"cycle_length": 24, "training": {"linear_rate": 5.0}},
    "rate 2e-3, linear path 2e-2": {"cycle_length": 24, "training": {"learning_rate": 2e-3, "linear_rate": 10.0}},
    "rate 1e-3, linear path 2e-2": {"cycle_length": 24, "training": _RATES},
    "rate 5e-4, linear path 2e-2": {"cycle_length": 24, "training": {"learning_rate": 5e-4, "linear_rate": 40.0}},
    "rate 1e-3, linear path 2e-2, dropout 0.5, head 0.7": {
        "cycle_length": 24,
        "dropout": 0.5,
        "head_dropout": 0.7,
        "training": _RATES,
    },
    "rate 1e-3, linear path 2e-2, half of the loss over frequencies": {
        "cycle_length": 24,
        "training": {**_RATES, "frequency_weight": 0.5},
    },
    "width 16, one patch of 96": {**_NARROW, "patch_length": 96, "patch_stride": 96},
    "width 16, two patches of 48": {**_NARROW, "patch_stride": 48},
    "width 16, two patches of 48, attention dropout 0.2 (chosen)": {
        **_NARROW,
        "patch_stride": 48,
        "attention_dropout": 0.2,
    },
    "width 16, two patches of 48, attention dropout 0.2, 30 epochs": {
        **_NARROW,
        "patch_stride": 48,
        "attention_dropout": 0.2,
        "training": {**_RATES, "epochs": 30, "patience": 30},
    },
}


def main() -> None:
    """Run what is not in the table yet, then write the Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(FORECASTING_DATASETS), choices=FORECASTING_DATASETS)
    parser.add_argument("--changes", nargs="+", default=list(CHANGES), choices=list(CHANGES), metavar="CHANGE")
    parser.add_argument("--validation", action="store_true", help="the search on the validation part of ETTh1")
    parser.add_argument("--quick", action="store_true", help="two settings, one block, three steps, written elsewhere")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="mvpa-ts-")) if arguments.quick else RESULTS
    if arguments.validation:
        search_on_validation(folder / "forecasting_choices_validation.csv", quick=arguments.quick)
        return
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
    start = changed(dataset, horizon, windows["train"], {})
    torch.manual_seed(SEED)
    model, training, settings = changed(dataset, horizon, windows["train"], CHANGES[name])
    if CHANGES[name] and (training, settings) == start[1:]:
        return
    # As many steps as on all windows.
    training = replace(training, epochs=training.epochs * THINNING[dataset][0])
    outcome = train(model, windows, training, seed=SEED, max_steps=3 if quick else None)
    row = dict(zip(("dataset", "change", "horizon", "block"), key, strict=True))
    errors = {"mse": outcome.validation_mse, "mae": outcome.validation_mae}
    append_row(table, {**row, **errors, "seconds": round(outcome.seconds, 1), "hardware": hardware("cpu")})


def search_on_validation(table: Path, *, quick: bool) -> None:
    """Train each setting on the train part of ETTh1 and write its errors on the validation part."""
    frame = load_forecasting_frame("ETTh1")
    for name in list(VALIDATED)[: 2 if quick else None]:
        for horizon in VALIDATION_HORIZONS[: 1 if quick else None]:
            known = read_rows(table)
            if not known.empty and (name, horizon) in set(known[["settings", "horizon"]].itertuples(False, None)):
                continue
            windows = forecasting_windows(frame, "ETTh1", lookback=LOOKBACK, horizon=horizon)
            torch.manual_seed(SEED)
            model, training, _ = configured("ETTh1", horizon, frame.shape[1] - 1, VALIDATED[name])
            if quick:
                windows = {part: replace(whole, starts=whole.starts[:64]) for part, whole in windows.items()}
            outcome = train(model, windows, training, seed=SEED, max_steps=3 if quick else None)
            row = {"settings": name, "horizon": horizon, "mse": outcome.validation_mse, "mae": outcome.validation_mae}
            append_row(table, {**row, "seconds": round(outcome.seconds, 1), "hardware": hardware("cpu")})
    text = validation_markdown(read_rows(table))
    write_text(table.with_suffix(".md"), text)
    print(text)


def validation_markdown(rows: pd.DataFrame) -> str:
    """Errors of each setting, a column for each horizon and their mean."""
    horizons = sorted(rows["horizon"].unique())
    lines = [
        f"MSE / MAE on the validation part of ETTh1, look-back {LOOKBACK}, seed {SEED}, in scaled units.",
        "",
        f"| settings | {' | '.join(map(str, horizons))} | mean |",
        "|---|" + "---|" * (len(horizons) + 1),
    ]
    for name, own in rows.groupby("settings", sort=False):
        errors = own.set_index("horizon")[["mse", "mae"]].loc[horizons]
        cells = [f"{mse:.4f} / {mae:.4f}" for mse, mae in [*errors.itertuples(index=False), errors.mean()]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Measured on {', '.join(rows['hardware'].unique())}.", ""])


def changed(
    dataset: str, horizon: int, windows: WindowSet, change: dict[str, Any]
) -> tuple[nn.Module, Training, dict[str, Any]]:
    """The model, its training and all its settings after a change."""
    change = dict(change)
    missing = windows.missing if change.pop("masked", True) else None
    training = {**START[dataset]["training"], **change.pop("training", {})}
    whole = {**START[dataset], **change, "training": training}
    model, training, settings = configured(dataset, horizon, windows.values.shape[1], whole, missing=missing)
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
    means = means[[counts[change, dataset] == counts.get((BASE, dataset)) for change, dataset in means.index]]
    datasets = [name for name in FORECASTING_DATASETS if name in set(rows["dataset"])]
    horizons = rows.groupby("dataset")["horizon"].unique()
    covered = "; ".join(f"{dataset}: {', '.join(map(str, sorted(horizons[dataset])))}" for dataset in datasets)
    lines = [
        f"Blocked cross-validation on the rows before the test part: change of MSE / MAE in percent against the "
        f"closed form alone, mean over {BLOCKS} blocks and the horizons run ({covered}), seed {SEED}. "
        "Less is better. – is no change, or was not run. On Weather, what is changed has one patch a channel and no "
        "attention dropout; on ETTh it starts in closed form.",
        "",
        f"| change | {' | '.join(datasets)} |",
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
