"""Short made-up panels, of series that tell of each other and that do not: errors and intervals.

Models of neuralforecast at their defaults, trained once for 200 steps. Eight series of 220, 300 or 600 rows, look-back
48, horizon 12; the last five horizons are forecast.

    python experiments/forecasting/short_panels.py --seeds 1 2 3  # results/forecasting/short_panels.*; resumable
    python experiments/forecasting/short_panels.py --quick        # two steps, two runs, written elsewhere
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.quiet import silence
from harness.study import Study, grid
from harness.tables import machines

PANELS, ROWS = ("walks", "memory", "counts", "followers", "wave"), (220, 300, 600)
ERROR, INTERVAL = "MAE", "80 % interval holds"
MODELS = {
    ERROR: ("last value", "MVPA", "MVPA, full rates", "MVPA, bounded", "iTransformer", "TSMixer", "NHITS"),
    INTERVAL: ("MVPA", "TSMixer", "NHITS"),
}
SERIES, LOOKBACK, HORIZON, ORIGINS, STEPS = 8, 48, 12, 5, 200
KEY = ["measure", "panel", "rows", "seed", "model"]


def main() -> None:
    """Run what is not in the table yet, then write the page."""
    parser = script_parser(__doc__, "two steps, four runs, written elsewhere")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parser.parse_args()
    silence()
    torch.set_num_threads(1)
    cases = [
        (measure, *case, model)
        for measure, models in MODELS.items()
        for *case, model in itertools.product(PANELS, ROWS, arguments.seeds, models)
        if model != "MVPA, bounded" or case[0] == "counts"  # for values that often lie at a limit
    ]
    study = Study("forecasting", "short_panels", KEY, markdown, quick=arguments.quick)
    steps = 2 if arguments.quick else STEPS
    study.run(cases[:1] + cases[-1:] if arguments.quick else cases, lambda *case: {"value": result(*case, steps=steps)})


def made_up(panel: str, rows: int, seed: int) -> np.ndarray:
    """Eight series [rows, 8]: unrelated walks, noise with a memory, rare counts; followers of others, or a wave."""
    draws = np.random.default_rng([PANELS.index(panel), seed])
    if panel == "walks":
        return draws.standard_normal((rows, SERIES)).cumsum(0)
    if panel == "counts":
        return draws.poisson(2.0, (rows, SERIES)) * (draws.random((rows, SERIES)) < 0.3).astype(float)
    sources = draws.standard_normal((rows + 200, SERIES))
    for t in range(1, len(sources)):
        sources[t] += 0.9 * sources[t - 1]
    if panel == "memory":
        return sources[200:]
    if panel == "followers":  # half of the series follow the other half
        lags = draws.integers(6, 30, SERIES // 2)
        followers = [sources[200 - lag : 200 - lag + rows, leader] for leader, lag in enumerate(lags)]
        values = np.stack([*sources[200:, : SERIES // 2].T, *followers], axis=1)
    else:
        values = np.stack([sources[200 - 3 * late : 200 - 3 * late + rows, 0] for late in range(SERIES)], axis=1)
    return values + 0.3 * draws.standard_normal((rows, SERIES))


def result(measure: str, panel: str, rows: int, seed: int, name: str, *, steps: int) -> float:
    """MAE of a model's forecasts, or how many truths its intervals hold."""
    held_out = ORIGINS * HORIZON
    values = made_up(panel, rows + held_out, seed)
    if name == "last value":
        ends = range(rows, rows + held_out, HORIZON)
        return float(np.mean([np.abs(values[end : end + HORIZON] - values[end - 1]).mean() for end in ends]))
    forecast = forecasts(measure, values, seed, name, steps)
    kind, truth = name.partition(", ")[0], forecast["y"]
    if measure == INTERVAL:
        return float(truth.between(forecast[f"{kind}-lo-80"], forecast[f"{kind}-hi-80"]).mean())
    return float((forecast[kind] - truth).abs().mean())


def forecasts(measure: str, values: np.ndarray, seed: int, name: str, steps: int) -> pd.DataFrame:
    """Forecasts of the last rows by a model that was trained once on the rows before."""
    from neuralforecast import NeuralForecast, models
    from neuralforecast.losses.pytorch import MAE, MQLoss

    from mvpa_ts.adapters.neuralforecast import MVPA
    from mvpa_ts.adapters.neuralforecast import model as adapter

    dates = pd.date_range("2020-01-01", periods=len(values), freq="h", name="ds")
    long = pd.DataFrame(values, index=dates).reset_index().melt("ds", var_name="unique_id", value_name="y")
    kind, _, variant = name.partition(", ")
    model_class = MVPA if kind == "MVPA" else getattr(models, kind)
    options: dict[str, Any] = {"n_series": SERIES} if model_class.MULTIVARIATE else {}
    if kind == "MVPA":
        options["network"] = {"regressions": False}
    if variant == "bounded":
        options["bounded"] = True
    model = model_class(
        h=HORIZON, input_size=LOOKBACK, max_steps=steps, random_seed=seed, **options,
        loss=MQLoss(level=[80]) if measure == INTERVAL else MAE(),
        enable_progress_bar=False, enable_model_summary=False, logger=False, accelerator="cpu",
    )  # fmt: skip
    share = adapter.mixing_share
    if variant == "full rates":
        adapter.mixing_share = lambda windows: 1.0
    try:
        return NeuralForecast([model], freq="h").cross_validation(
            long.astype({"unique_id": str}), n_windows=None, test_size=ORIGINS * HORIZON, step_size=HORIZON
        )
    finally:
        adapter.mixing_share = share


def markdown(rows: pd.DataFrame) -> str:
    """A table of errors and one of intervals; one row a panel and length, one column a model."""
    lines = [
        "# Short panels of related and unrelated series",
        "",
        "Made by `experiments/forecasting/short_panels.py`, through `NeuralForecast`: 8 made-up series, look-back 48, "
        "horizon 12, 200 steps, trained once, the last five horizons, mean over the seeds. Walks, noise with a "
        "memory (AR of .9) and rare counts are unrelated. Half of the followers follow the other half by 6 to 29 "
        "steps, and the wave reaches each series three steps after the last. `MVPA, full rates` does not ask whether "
        "the series tell of each other (`mixing_share`): its heads that read other series learn at the full rate. "
        "`MVPA, bounded` has `bounded=True`. For intervals the loss is `MQLoss(level=[80])`.",
    ]
    for measure, part in rows.groupby("measure", sort=False):
        models = [name for name in MODELS[str(measure)] if name in set(part["model"])]
        form = "{:.0%}" if measure == INTERVAL else "{:.3f}"
        table = []
        for (panel, length), case in part.groupby(["panel", "rows"], sort=False):
            means = case.groupby("model")["value"].mean()
            cells = [form.format(means[name]) if name in means else "–" for name in models]
            table.append([panel, length, case["seed"].nunique(), *cells])
        lines += ["", *grid([str(measure), "rows", "seeds", *models], table)]
    return "\n".join([*lines, "", machines(rows)]) + "\n"


if __name__ == "__main__":
    main()
