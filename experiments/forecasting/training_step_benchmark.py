"""Time of one training step: MVPA against models of neuralforecast with their published settings, as ratios in one run.

One step is forward, backward and optimizer on 32 windows of ETTh1's shape (96 steps, 7 channels) to horizon 96. Steps
of the models are interleaved, so that whatever slows the machine slows all of them; the median of the ratios is given.

    python experiments/forecasting/training_step_benchmark.py  # results/forecasting/training_step.json and .md
    python experiments/forecasting/training_step_benchmark.py --quick  # two rounds on two windows, written nowhere
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.forecasting.models import LOOKBACK, build
from harness.tables import hardware, results_folder
from torch import nn

from mvpa_ts.files import write_text

MODELS = ("MVPA", "Linear", "PatchTST", "iTransformer", "TimeMixer", "TimeXer", "VanillaTransformer")
BATCH, CHANNELS, HORIZON = 32, 7, 96


def main() -> None:
    """Measure and write the table."""
    parser = script_parser(__doc__, "two rounds on two windows, nothing written")
    parser.add_argument("--rounds", type=int, default=30, help="steps of each model; two more warm up")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds = 2 if arguments.quick else arguments.rounds

    models = {name: build(name, "ETTh1", HORIZON, CHANNELS, seed=1)[0] for name in MODELS}
    batch = 2 if arguments.quick else BATCH
    steps = {name: _Step(model, batch) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in MODELS}
    for index in range(rounds + 2):
        for name, step in steps.items():
            elapsed = step()
            if index >= 2:
                seconds[name].append(elapsed)
    rows = [
        {
            "model": name,
            "milliseconds": 1e3 * statistics.median(seconds[name]),
            "times_mvpa": statistics.median(
                other / own for other, own in zip(seconds[name], seconds["MVPA"], strict=True)
            ),
            "parameters": sum(parameter.numel() for parameter in models[name].parameters()),
        }
        for name in MODELS
    ]
    machine = f"{hardware()}; {arguments.threads} thread(s), torch {torch.__version__}, {rounds} rounds"
    table = "\n".join(
        [
            f"One training step on {batch} windows of 96 × 7, horizon 96, float32; peers at their published settings.",
            "",
            "| model | ms | times MVPA | parameters |",
            "|---|---|---|---|",
            *(
                f"| {r['model']} | {r['milliseconds']:.1f} | {r['times_mvpa']:.2f} | {r['parameters']:,} |"
                for r in rows
            ),
            "",
            f"Measured on {machine}.",
            "",
        ]
    )
    print(table)
    if not arguments.quick:
        folder = results_folder("forecasting")
        write_text(folder / "training_step.json", json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
        write_text(folder / "training_step.md", table)


class _Step:
    """One optimizer step on fresh random windows; returns its seconds."""

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.batch = batch
        self.model = model.train()
        self.optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def __call__(self) -> float:
        x, y = torch.randn(self.batch, LOOKBACK, CHANNELS), torch.randn(self.batch, HORIZON, CHANNELS)
        first_row = torch.zeros(self.batch, dtype=torch.long)
        started = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        (self.model(x, phase=first_row)[..., 0] - y).square().mean().backward()
        self.optimizer.step()
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
