"""Effect of dropping the last test batch on a forecasting result: one model, one training, six ways to count.

Many published tables were made with ``drop_last=True`` on the test data: windows at the end of the test part are left
out, more of them the larger the batch. Here a linear model is trained once for each horizon, and its error is averaged
over all test windows, and over those that whole batches of some size would keep.

    python experiments/forecasting/drop_last.py  # results/forecasting/drop_last.csv and .md, minutes on one core
    python experiments/forecasting/drop_last.py --quick  # three training steps, one horizon, written elsewhere
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
import torch
from harness.command_line import script_parser
from harness.forecasting.models import HORIZONS, LOOKBACK, build
from harness.study import Study, grid
from torch import Tensor, nn

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS, forecasting_windows, load_forecasting_frame
from mvpa_ts.forecasting.training import train
from mvpa_ts.windows import Windows

# "Linear" of the forecasting table has a higher rate.
MODEL, RATE, SEED = "Linear, rate 6e-3", 6e-3, 1
BATCH_SIZES = (1, 32, 128, 256, 512, 2048)  # 1 drops nothing


def main() -> None:
    """Train what is not in the table yet, then write the Markdown."""
    parser = script_parser(__doc__, "three training steps, one horizon, written elsewhere")
    parser.add_argument("--datasets", nargs="+", default=["ETTh1", "ETTh2"], choices=FORECASTING_DATASETS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    horizons = HORIZONS[: 1 if arguments.quick else None]
    study = Study("forecasting", "drop_last", ["dataset", "horizon"], markdown, quick=arguments.quick)
    cases = itertools.product(arguments.datasets[: 1 if arguments.quick else None], horizons)
    study.run(cases, partial(audit, max_steps=3 if arguments.quick else None))


def audit(dataset: str, horizon: int, max_steps: int | None = None) -> Iterator[dict[str, Any]]:
    """Train once; a row for each batch size."""
    frame = load_forecasting_frame(dataset)
    windows = forecasting_windows(frame, dataset, lookback=LOOKBACK, horizon=horizon)
    model, training, _ = build("Linear", dataset, horizon, frame.shape[1] - 1, SEED)
    train(model, windows, replace(training, learning_rate=RATE), seed=SEED, max_steps=max_steps)
    squared, absolute = window_errors(model, windows["test"])
    for size in BATCH_SIZES:
        kept = kept_windows(len(squared), size)
        yield {
            "batch_size": size,
            "windows": len(squared),
            "kept": kept,
            "test_mse": squared[:kept].mean().item(),
            "test_mae": absolute[:kept].mean().item(),
        }


def kept_windows(windows: int, batch_size: int) -> int:
    """Windows in whole batches; they come in the order of time."""
    return windows // batch_size * batch_size


@torch.no_grad()
def window_errors(model: nn.Module, windows: Windows) -> tuple[Tensor, Tensor]:
    """Mean squared and mean absolute error of each window, in the order of time."""
    model.eval()
    errors = [(model(**inputs)[..., 0] - target).double() for inputs, target, _ in windows.batches(128)]
    squared = torch.cat([error.square().mean((1, 2)) for error in errors])
    return squared, torch.cat([error.abs().mean((1, 2)) for error in errors])


def markdown(rows: pd.DataFrame) -> str:
    """One table a dataset: the batch size against the horizon, and the average where all horizons are there."""
    lines = [
        f'Test MSE / MAE of one trained model ("{MODEL}", look-back {LOOKBACK}, seed {SEED}) counted over the windows '
        "that whole batches keep, and how many windows of each horizon that leaves out.",
        "",
    ]
    for dataset in dict.fromkeys(rows["dataset"]):
        part = rows[rows["dataset"] == dataset]
        horizons = sorted(part["horizon"].unique())
        table = []
        for size in BATCH_SIZES:
            kept = part[part["batch_size"] == size].set_index("horizon").loc[horizons]
            cells = [f"{row.test_mse:.3f} / {row.test_mae:.3f}" for row in kept.itertuples()]
            mean = kept[["test_mse", "test_mae"]].mean()
            average = f"**{mean['test_mse']:.3f} / {mean['test_mae']:.3f}**" if len(horizons) == len(HORIZONS) else "–"
            lost = ", ".join(str(count) for count in kept["windows"] - kept["kept"])
            table.append(["nothing dropped" if size == 1 else f"batch {size}", *cells, average, lost])
        heads = ["last batch dropped at", *map(str, horizons), "average", "windows left out"]
        lines += [f"**{dataset}**", "", *grid(heads, table), ""]
    return "\n".join([*lines, f"Measured on {', '.join(rows['hardware'].unique())}.", ""])


if __name__ == "__main__":
    main()
