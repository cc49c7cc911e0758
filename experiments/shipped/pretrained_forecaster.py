"""The pretrained forecaster, untrained on any of these sets, beside classical forecasts and models that are trained.

Errors by rolling origins: MASE (absolute error over the mean absolute seasonal difference of the history) and the
weighted quantile loss of nine quantiles, each also divided by that of the seasonal naive forecast. Rows are appended as
they come; what the table holds is not repeated. `harness/forecasting/zero_shot_sets.py` states season, horizon and
origins, which were fixed before the first look. AutoETS and AutoTheta need `pip install statsforecast`.

Examples
--------
    python experiments/shipped/pretrained_forecaster.py --sets ETTh1       # the development set
    python experiments/shipped/pretrained_forecaster.py                    # all sets, once
    python experiments/shipped/pretrained_forecaster.py --report           # the page from the rows at hand
    python experiments/shipped/pretrained_forecaster.py --report --use     # also seconds, and a year after finetuning
    python experiments/shipped/pretrained_forecaster.py --report --figure  # also six forecasts of sets looked at before
    python experiments/shipped/pretrained_forecaster.py --quick            # two small sets, in a temporary folder
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.forecasting.zero_shot_models import MODELS, NAIVE, PRETRAINED
from harness.forecasting.zero_shot_report import draw, markdown
from harness.forecasting.zero_shot_sets import CONTEXT, SETS, windows
from harness.quiet import silence
from harness.study import Study
from harness.tables import RESULTS, hardware

from mvpa_ts.files import write_text
from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.base import LEVELS
from mvpa_ts.forecasting.pretrained.pretrained import NAMES

TABLE = RESULTS / "forecasting" / "pretrained.csv"


def main() -> None:
    """Run what the table does not hold, then write the report."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    silence()
    table = arguments.table
    if arguments.quick:
        table, arguments.sets = Path(tempfile.mkdtemp()) / "pretrained.csv", ["shampoo", "lynx"]
        arguments.models = [NAIVE, PRETRAINED]
    used = table.with_suffix(".json")
    if arguments.use:
        write_text(used, json.dumps(use(), indent=2) + "\n")
    if arguments.figure:
        draw(table.with_suffix(".png"), {name: MODELS[name](arguments.base) for name in (NAIVE, PRETRAINED)})

    def page(rows: pd.DataFrame) -> str:
        return markdown(rows, json.loads(used.read_text()) if used.is_file() else {})

    study = Study("forecasting", "pretrained", ["model", "set"], page, table=table)
    cases = [] if arguments.report else [(model, name) for name in arguments.sets for model in arguments.models]
    study.run(cases, partial(run, base=arguments.base))


def run(model: str, name: str, *, base: str) -> dict[str, Any]:
    """Forecast every origin of a set with one model; one row."""
    of = SETS[name]
    forecast = MODELS[model](base)
    begun = time.process_time()
    errors, losses, sizes, inside, scaled = [], [], [], [], []
    for history, truth in windows(of):
        quantiles = forecast(history, of)  # [h, C, Q]
        known = ~np.isnan(truth)
        error = np.abs(truth - quantiles[..., 4])
        past = history[-CONTEXT:]
        scale = np.nanmean(np.abs(past[of.season :] - past[: -of.season]), axis=0)
        usable = known & (scale > 0)
        scaled.append((error / np.where(scale > 0, scale, np.nan))[usable])
        difference = truth[..., None] - quantiles
        pinball = np.maximum(np.array(LEVELS) * difference, (np.array(LEVELS) - 1.0) * difference)
        losses.append(2.0 * np.nansum(pinball) / len(LEVELS))
        sizes.append(np.nansum(np.abs(truth)))
        inside.append(((truth >= quantiles[..., 0]) & (truth <= quantiles[..., -1]))[known])
        errors.append(error[known])
    return {
        "mase": float(np.mean(np.concatenate(scaled))),
        "quantile_loss": float(sum(losses) / sum(sizes)),
        "mae": float(np.mean(np.concatenate(errors))),
        "coverage": float(np.mean(np.concatenate(inside))),
        "forecasts": len(errors),
        "seconds": time.process_time() - begun,
    }


def use() -> dict[str, Any]:
    """Seconds for 100 series by each size, and the airline panel's last year without training and after 100 steps."""
    from neuralforecast.utils import AirPassengersPanel

    from mvpa_ts.adapters.sktime import MVPAForecaster

    history = torch.randn(1, CONTEXT, 100, generator=torch.Generator().manual_seed(0)).cumsum(1)
    seconds: dict[str, float] = {}
    for name, _ in itertools.product(NAMES, range(3)):
        network, begun = load_base(name), time.process_time()
        with torch.no_grad():
            forecast_quantiles(network, history, horizon=64)
        seconds[name] = min(seconds.get(name, math.inf), time.process_time() - begun)
    panel = AirPassengersPanel.pivot(index="ds", columns="unique_id", values="y")
    panel = panel.set_axis(list(panel.columns), axis=1).set_axis(pd.PeriodIndex(panel.index, freq="M"))
    errors = []
    for steps in (0, 100):
        forecaster = MVPAForecaster(pretrained="base", finetune_steps=steps, random_state=1)
        forecast = forecaster.fit(panel[:-12], fh=range(1, 13)).predict()
        errors.append(float((forecast - panel[-12:]).abs().to_numpy().mean()))
    return {"seconds_100_series": seconds, "airline": errors, "hardware": hardware("cpu")}


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = script_parser(__doc__)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--base", default="base", help="name of a shipped forecaster, or a folder")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--report", action="store_true", help="forecast nothing, write the page from the table")
    parser.add_argument("--use", action="store_true", help="measure seconds and finetuning")
    parser.add_argument("--figure", action="store_true", help="draw six forecasts")
    return parser.parse_args()


if __name__ == "__main__":
    main()
