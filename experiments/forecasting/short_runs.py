"""Small panels with nothing set: what a user gets, beside simple forecasts and the forecaster that is trained already.

Each model is trained once on the rows before the first origin, through `NeuralForecast`, and forecasts from every
origin. Set are horizon, look-back (two horizons), number of series and steps; everything else is each model's default.

    python experiments/forecasting/short_runs.py               # results/forecasting/short_runs.csv and .md; resumable
    python experiments/forecasting/short_runs.py --panels PBS  # any set of zero_shot_sets.py, for development
    python experiments/forecasting/short_runs.py --quick       # two steps, one panel, written elsewhere
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.forecasting.zero_shot_models import FREQUENCIES
from harness.forecasting.zero_shot_sets import CONTEXT, SETS, EvaluationSet
from harness.quiet import QUIET, silence
from harness.structure import stored
from harness.study import Study, grid, paragraphs
from harness.tables import machines

NAIVE, THETA, PRETRAINED, AVERAGE = "seasonal naive", "Theta", "MVPA, pretrained", "mean of both MVPA"
# Model and steps; simple forecasts and those from a trained forecaster have none.
MODELS = [
    (NAIVE, 0),
    (THETA, 0),
    ("NHITS", 200),
    ("MVPA", 200),
    ("MVPA", 1000),
    (PRETRAINED, 0),
    (PRETRAINED, 20),
    (AVERAGE, 200),
]
PANELS = ("AirPassengers panel", "recipes' wave", "ETTh1", "METR-LA week, 40 sensors")
# On these other designs were tried: they may flatter what ships. Of files: what is read of them, and season, horizon,
# origins and stride.
FILES = {
    "tide gauges": ("tide_gauges", np.s_[:, ::10], "monthly", 12, 12, 5, 12),
    "air of 12 stations": ("beijing_air", np.s_[2000:4000, :, 0], "hourly", 24, 24, 10, 24),
    "wind farms": ("gefcom14_wind", np.s_[:2000, :, 0], "hourly", 24, 24, 10, 24),
}
DEVELOPMENT = ("electrical equipment", "El Niño", "US changes", "PBS", *FILES)
SEEDS, MOST_ROWS = (1,), 10 * CONTEXT  # to train on; as for the table of the pretrained forecaster
KEY = ["panel", "model", "steps", "seed"]


def main() -> None:
    """Run what is not in the table yet, then write the page."""
    parser = script_parser(__doc__, "two steps, one panel, written elsewhere")
    parser.add_argument("--panels", nargs="+", choices=[*PANELS, *FILES, *SETS], default=PANELS, metavar="PANEL")
    parser.add_argument("--table", type=Path, help="of development, in place of the committed one")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    arguments = parser.parse_args()
    silence()
    torch.set_num_threads(1)
    first = slice(1 if arguments.quick else None)
    study = Study("forecasting", "short_runs", KEY, markdown, quick=arguments.quick, table=arguments.table)
    trained = [(model, steps, seed) for model, steps in MODELS if steps for seed in arguments.seeds[first]]
    cases = [(model, steps, 0) for model, steps in MODELS if not steps] + trained
    study.run(
        [(panel, *case) for panel in arguments.panels[first] for case in cases],
        partial(small_panel, quick=arguments.quick),
    )


def panel_of(name: str) -> EvaluationSet:
    """A set of zero_shot_sets.py, the first 40 of its road sensors, or the made-up table of docs/guides/recipes.md."""
    if name == "METR-LA week, 40 sensors":
        week = SETS["METR-LA week"]
        return replace(week, read=lambda: week.read().iloc[:, :40])
    if name == "recipes' wave":
        return EvaluationSet("hourly", 24, 12, 5, 12, False, recipes_wave)
    if name in FILES:
        file, cells, *numbers = FILES[name]
        return EvaluationSet(*numbers, False, lambda: pd.DataFrame(stored.panel(file)[cells].astype(float)))
    return SETS[name]


def recipes_wave() -> pd.DataFrame:
    """The four made-up series of the recipes, with which each page goes on."""
    draws = np.random.default_rng(0)
    source = draws.standard_normal(300).cumsum() * 0.3
    return pd.DataFrame(
        {f"s{late}": source[40 - 4 * late : 280 - 4 * late] + draws.normal(0, 0.1, 240) for late in range(4)}
    )


def small_panel(name: str, model: str, steps: int, seed: int, *, quick: bool) -> dict[str, float]:
    """MASE of all origins, and seconds of processor time."""
    panel, started = panel_of(name), time.process_time()
    held_out = panel.horizon + (panel.origins - 1) * panel.stride
    values = panel.read().astype(float).iloc[-held_out - MOST_ROWS :].reset_index(drop=True)
    past = values[:-held_out].to_numpy()
    unit = np.nanmean(np.abs(past[panel.season :] - past[: -panel.season]), axis=0)
    origins = [len(values) - held_out + index * panel.stride for index in range(panel.origins)]
    if model in (NAIVE, THETA):
        forecast = np.stack([simple(model, values[:origin], panel) for origin in origins])
    else:
        forecast = by_host(model, values, panel, held_out, 2 if quick and steps else steps, seed)
    truth = np.stack([values[origin : origin + panel.horizon] for origin in origins])
    error = float(np.nanmean(np.abs(forecast - truth)[..., unit > 0] / unit[unit > 0]))
    return {"mase": error, "seconds": round(time.process_time() - started, 1)}


def simple(model: str, history: pd.DataFrame, panel: EvaluationSet) -> np.ndarray:
    """The last season, or Theta of statsmodels on the last rows, [h, C]."""
    past = history.ffill().bfill().to_numpy()
    steps = len(past) - panel.season + np.arange(panel.horizon) % panel.season
    if model == NAIVE:
        return past[steps]
    from statsmodels.tsa.forecasting.theta import ThetaModel

    past = past[-max(CONTEXT, 4 * panel.season) :]
    season = panel.season if len(past) > 2 * panel.season else 1
    fits = [ThetaModel(column, period=season, deseasonalize=season > 1, method="additive").fit() for column in past.T]
    return np.stack([fit.forecast(panel.horizon) for fit in fits], axis=1)


def by_host(name: str, values: pd.DataFrame, panel: EvaluationSet, held_out: int, steps: int, seed: int) -> np.ndarray:
    """Forecasts [origins, h, C] of a model of the host, trained once on the rows before the first origin."""
    from neuralforecast import NeuralForecast, models

    from mvpa_ts.adapters.neuralforecast import MVPA

    C, h, frequency = values.shape[1], panel.horizon, FREQUENCIES[panel.frequency]
    filled = values.ffill().bfill()
    dates = pd.date_range("2000-01-01", periods=len(values), freq=frequency)
    long = pd.DataFrame({
        "unique_id": np.repeat([f"{channel:03}" for channel in range(C)], len(values)), "ds": np.tile(dates, C),
        "y": filled.to_numpy().T.ravel(), "available_mask": values.notna().to_numpy().astype(float).T.ravel(),
    })  # fmt: skip
    # As many as the rows give: a dozen windows, where two horizons would leave none.
    lookback = max(4, min(2 * h, len(values) - held_out - h - 11))
    common = {"h": h, "input_size": lookback, "max_steps": steps, "random_seed": seed, **QUIET}
    finetuning = steps if name == PRETRAINED else 0
    shipped = MVPA.from_pretrained("base", h=h, max_steps=finetuning, random_seed=seed, alias=PRETRAINED, **QUIET)
    chosen = [shipped] if name in (PRETRAINED, AVERAGE) else []
    if name != PRETRAINED:
        chosen.append(models.NHITS(**common) if name == "NHITS" else MVPA(n_series=C, **common))
    forecast = NeuralForecast(chosen, freq=frequency).cross_validation(
        long, n_windows=None, test_size=held_out, step_size=panel.stride, verbose=0
    )
    columns = [c for c in forecast if c not in ("unique_id", "ds", "cutoff", "y", "available_mask")]
    return forecast[columns].mean(axis=1).to_numpy().reshape(C, panel.origins, h).transpose(1, 2, 0)


def markdown(rows: pd.DataFrame) -> str:
    """One row a panel, one column a model, and geometric means over the last season's."""
    names = [f"{model}, {steps} steps" if steps else model for model, steps in MODELS]
    titles = rows["model"].where(rows["steps"] == 0, rows["model"] + ", " + rows["steps"].astype(str) + " steps")
    mase = rows.assign(title=titles).pivot_table(index="panel", columns="title", values="mase", sort=False)
    columns = [name for name in names if name in mase]
    lead = (
        "Made by `experiments/forecasting/short_runs.py`, through `NeuralForecast`, trained once on the rows before "
        "the first origin, at most 5120: MASE, means over all origins, one seed. Season, horizon and origins are those "
        "of [the pretrained forecaster's sets](pretrained.md), look-back two horizons. Set are horizon, look-back, "
        "number of series and steps. Theta is that of statsmodels. On the second group other designs of MVPA were "
        "tried; the first was looked at ten times."
    )
    table = []
    for group, panels in (("first group", PANELS), ("second group", DEVELOPMENT)):
        errors = mase.reindex([name for name in panels if name in mase.index])[columns]
        for name, row in errors.iterrows():
            of = panel_of(str(name))
            cells = ["–" if np.isnan(value) else f"{value:.3f}" for value in row]
            table.append([f"{name} ({of.season}, {of.horizon}, {of.origins})", *cells])
        ratios = np.exp(np.log(errors.div(errors[NAIVE], axis=0)).mean(skipna=False))
        means = ["–" if np.isnan(value) else f"**{value:.3f}**" for value in ratios]
        table.append([f"**{group}: over the last season's, geometric mean**", *means])
    errors_of = grid(["panel (season, horizon, origins)", *columns], table)
    return paragraphs("# Small panels with nothing set", lead, errors_of, machines(rows))


if __name__ == "__main__":
    main()
