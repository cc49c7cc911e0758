"""Validation errors behind the defaults: the chosen settings of MVPA, and each with one thing changed.

Horizon 96, one seed, no test data. Rows are appended as runs end and are not repeated.

    python experiments/forecasting_choices.py            # results/forecasting_choices.csv and .md
    python experiments/forecasting_choices.py --quick    # two changes, three steps each, written elsewhere
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from forecasting import hardware
from forecasting_models import CYCLES, LOOKBACK, MVPA_SETTINGS, mvpa
from forecasting_report import RESULTS, append_row, read_rows, write_atomically
from training import train

from mvpa_ts.datasets import forecasting_windows, load_forecasting_frame

HORIZON, SEED = 96, 1
# What is changed: settings of the network, and under "training" of its training.
CHANGES: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "patches of 24, stride 12": {"patch_length": 24, "patch_stride": 12},
    "one patch of 96": {"patch_length": 96, "patch_stride": 96},
    "cycle": {"cycle_length": 24},
    "no cycle": {"cycle_length": None},
    "width 16": {"dim": 16, "mlp_dim": 32},
    "width 32": {"dim": 32, "mlp_dim": 64},
    "width 64": {"dim": 64, "mlp_dim": 128},
    "two layers": {"num_layers": 2},
    "dropout 0.3, head 0.5": {"dropout": 0.3, "head_dropout": 0.5},
    "dropout 0.5, head 0.7": {"dropout": 0.5, "head_dropout": 0.7},
    "learning rate 2e-3": {"training": {"learning_rate": 2e-3}},
    "learning rate 6e-3": {"training": {"learning_rate": 6e-3}},
    "squared error as the loss": {"training": {"loss": "mse"}},
    "no averaging of weights": {"training": {"weight_averaging": None}},
    "no attention (linear path alone)": {"num_layers": 0},
}


def main() -> None:
    """Run what is not in the table yet, then write the Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["ETTh1", "ETTh2"], choices=list(MVPA_SETTINGS))
    parser.add_argument("--quick", action="store_true", help="two changes, three steps each, written elsewhere")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="mvpa-ts-")) if arguments.quick else RESULTS
    table = folder / "forecasting_choices.csv"
    names = list(CHANGES)[:2] if arguments.quick else list(CHANGES)
    for dataset in arguments.datasets[: 1 if arguments.quick else None]:
        for name in names:
            known = read_rows(table)
            if not known.empty and ((known["dataset"] == dataset) & (known["change"] == name)).any():
                continue
            if (row := run_one(dataset, name, quick=arguments.quick)) is not None:
                append_row(table, row)
                print(f"{dataset}, {name}: validation MSE {row['validation_mse']:.4f}", flush=True)
    text = markdown(read_rows(table))
    write_atomically(table.with_suffix(".md"), text)
    print(text)


def run_one(dataset: str, name: str, *, quick: bool) -> dict[str, Any] | None:
    """Train with one change; None where the change changes nothing."""
    frame = load_forecasting_frame(dataset)
    windows = forecasting_windows(frame, dataset, lookback=LOOKBACK, horizon=HORIZON)
    if quick:
        windows = {part: replace(whole, starts=whole.starts[:64]) for part, whole in windows.items()}
    channels = frame.shape[1] - 1
    torch.manual_seed(SEED)
    _, chosen_training, chosen = mvpa(dataset, HORIZON, channels, {})
    torch.manual_seed(SEED)
    change = dict(CHANGES[name])
    if change.get("cycle_length"):
        change["cycle_length"] = CYCLES[dataset]
    model, training, settings = mvpa(dataset, HORIZON, channels, change)
    if change and settings == chosen and training == chosen_training:
        return None
    outcome = train(model, windows, training, seed=SEED, max_steps=3 if quick else None)
    return {
        "dataset": dataset,
        "change": name,
        "validation_mse": outcome.validation_mse,
        "validation_mae": outcome.validation_mae,
        "hardware": hardware("cpu"),
    }


def markdown(rows: pd.DataFrame) -> str:
    """One table, a column a dataset."""
    lines = [
        f"Validation MSE / MAE of MVPA at horizon {HORIZON}, seed {SEED}, settings of each dataset with one change.",
        "",
    ]
    datasets = list(dict.fromkeys(rows["dataset"]))
    lines += ["| change | " + " | ".join(datasets) + " |", "|---|" + "---|" * len(datasets)]
    for name in [name for name in CHANGES if name in set(rows["change"])]:
        cells = []
        for dataset in datasets:
            found = rows[(rows["dataset"] == dataset) & (rows["change"] == name)]
            cells.append("–" if found.empty else "{validation_mse:.4f} / {validation_mae:.4f}".format(**found.iloc[0]))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Measured on {', '.join(rows['hardware'].unique())}; – is no change.", ""])


if __name__ == "__main__":
    main()
