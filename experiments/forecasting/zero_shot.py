"""Zero-shot across numbers of channels: train on ETTh1 (7 channels), forecast ETTh2 (7) and Weather (21) as they are.

Nothing of the other sets is trained on; each is scaled by its own train rows, as everywhere. MVPA has its settings for
ETTh1 but no cycle and no parameters of single channels, for those belong to a data set. Beside it are its linear
path alone, the last value repeated, and the last day repeated (for Weather 144 steps, more than the others see).

    python experiments/forecasting/zero_shot.py          # results/forecasting/zero_shot.csv and .md; resumable
    python experiments/forecasting/zero_shot.py --quick  # three training steps, one horizon, written elsewhere
"""

from __future__ import annotations

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
from harness.forecasting.models import CYCLES, HORIZONS, LOOKBACK, MVPA_MODELS, mvpa
from harness.study import Study, grid, spread
from torch import Tensor, nn

from mvpa_ts.datasets.forecasting import forecasting_windows, load_forecasting_frame
from mvpa_ts.forecasting.errors import evaluate
from mvpa_ts.forecasting.training import train
from mvpa_ts.windows import Windows

SOURCE, TARGETS = "ETTh1", ("ETTh2", "Weather")
# What belongs to the channels of the source is left out.
SHARED = {"cycle_length": None, "phase_weights": False, "individual_channels": False}
TRAINED, NAIVE = ("MVPA", "MVPA linear path alone"), ("last value", "last day")


def main() -> None:
    """Train and test what is not in the table yet, then write the Markdown."""
    parser = script_parser(__doc__, "three training steps, one horizon, written elsewhere")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    horizons, seeds = (HORIZONS[:1], [1]) if arguments.quick else (HORIZONS, arguments.seeds)
    study = Study("forecasting", "zero_shot", ["model", "horizon", "seed"], markdown, quick=arguments.quick)
    cases = [(name, horizon, 1) for horizon in horizons for name in NAIVE]
    cases += [(name, horizon, seed) for seed in seeds for name in TRAINED for horizon in horizons]
    study.run(cases, partial(measure, quick=arguments.quick))


def measure(name: str, horizon: int, seed: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Train one model on the source, or take a naive one; a row for each target."""
    targets = {target: windows_of(target, horizon, quick=quick)["test"] for target in TARGETS}
    if name in TRAINED:
        source = windows_of(SOURCE, horizon, quick=quick)
        torch.manual_seed(seed)
        settings = {**MVPA_MODELS[name], **SHARED}
        model, training, _ = mvpa(SOURCE, horizon, source["train"].values.shape[1], settings)
        train(model, source, training, seed=seed, max_steps=3 if quick else None)
    for target, windows in targets.items():
        if name in NAIVE:
            model = LastSeason(windows, 1 if name == "last value" else CYCLES[target])
        mse, mae = evaluate(model, windows)
        yield {"target": target, "test_mse": mse, "test_mae": mae, "test_windows": len(windows)}


def windows_of(name: str, horizon: int, *, quick: bool) -> dict[str, Windows]:
    """Windows of a data set, few of them in a smoke run."""
    windows = forecasting_windows(load_forecasting_frame(name), name, lookback=LOOKBACK, horizon=horizon)
    return {part: replace(whole, starts=whole.starts[:64]) for part, whole in windows.items()} if quick else windows


class LastSeason(nn.Module):
    """The last `season` rows before each horizon, repeated.

    Reads the series itself, for a season may be longer than the look-back.
    """

    def __init__(self, windows: Windows, season: int) -> None:
        super().__init__()
        self.windows = windows
        self.ahead = torch.arange(windows.horizon) % season - season

    def forward(self, phase: Tensor, **inputs: Tensor | None) -> Tensor:
        """Rows before the horizon, [B, h, C, 1]; the phase of a window is its first row."""
        return self.windows.values[(phase + self.windows.lookback)[:, None] + self.ahead][..., None]


def markdown(rows: pd.DataFrame) -> str:
    """One table a target; mean over seeds."""
    lines = [
        f"Trained on {SOURCE} alone, tested on all test windows of the set named: MSE / MAE in scaled units, look-back "
        f"{LOOKBACK}, mean over seeds ± standard deviation of the MSE.",
        "",
    ]
    for target in TARGETS:
        part = rows[rows["target"] == target]
        horizons = sorted(part["horizon"].unique())
        table = []
        for name in [*TRAINED, *NAIVE]:
            runs = part[part["model"] == name]
            if runs.empty:
                continue
            by_horizon = [runs[runs["horizon"] == horizon] for horizon in horizons]
            cells = [f"{spread(each['test_mse'])} / {each['test_mae'].mean():.3f}" for each in by_horizon]
            mean = runs.groupby("horizon")[["test_mse", "test_mae"]].mean().mean()
            average = f"**{mean['test_mse']:.3f} / {mean['test_mae']:.3f}**" if len(horizons) == len(HORIZONS) else "–"
            table.append([name, *cells, average, runs["seed"].nunique() if name in TRAINED else "–"])
        heads = ["model", *map(str, horizons), "average", "seeds"]
        lines += [f"**{SOURCE} → {target}**", "", *grid(heads, table), ""]
    return "\n".join([*lines, f"Measured on {', '.join(rows['hardware'].unique())}.", ""])


if __name__ == "__main__":
    main()
