"""The pretrained forecaster, untrained on any of these sets, beside classical forecasts and models that are trained.

Errors by rolling origins: MASE (absolute error over the mean absolute seasonal difference of the history) and the
weighted quantile loss of nine quantiles, each also divided by that of the seasonal naive forecast. Rows are appended as
they come; what the table holds is not repeated. `harness/forecasting/zero_shot_sets.py` states season, horizon and
origins, which were fixed before the first look.

Examples
--------
    python experiments/pretrained_forecaster.py --sets ETTh1        # the development set
    python experiments/pretrained_forecaster.py                     # all sets, once
    python experiments/pretrained_forecaster.py --report            # table and figure from the rows at hand
    python experiments/pretrained_forecaster.py --quick             # two small sets, in a temporary folder
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from harness.forecasting.zero_shot_sets import CONTEXT, SETS, EvaluationSet, windows
from harness.quiet import silence
from harness.tables import RESULTS, append_row, hardware, read_rows

from mvpa_ts.files import write_text
from mvpa_ts.forecasting.base import LEVELS
from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base

TABLE = RESULTS / "forecasting" / "pretrained.csv"
NAIVE = "seasonal naive"
Forecast = Callable[[np.ndarray, EvaluationSet], np.ndarray]


def main() -> None:
    """Run what the table does not hold, then write the report."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    silence()
    table = arguments.table
    if arguments.quick:
        table, arguments.sets = Path(tempfile.mkdtemp()) / "pretrained.csv", ["shampoo", "lynx"]
        arguments.models = [NAIVE, "MVPA, pretrained"]
    rows = read_rows(table)
    done = set() if rows.empty else set(rows[["model", "set"]].itertuples(index=False, name=None))
    for name in arguments.sets:
        for model in arguments.models:
            if (model, name) not in done and not arguments.report:
                row = run(model, name, arguments.base)
                append_row(table, row)
                print(f"{name}, {model}: MASE {row['mase']:.3f}, {row['seconds']:.1f} s", flush=True)
    rows = read_rows(table)
    report = markdown(rows)
    write_text(table.with_suffix(".md"), report)
    print(report)


def run(model: str, name: str, base: str) -> dict[str, Any]:
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
        "model": model,
        "set": name,
        "mase": float(np.mean(np.concatenate(scaled))),
        "quantile_loss": float(sum(losses) / sum(sizes)),
        "mae": float(np.mean(np.concatenate(errors))),
        "coverage": float(np.mean(np.concatenate(inside))),
        "forecasts": len(errors),
        "seconds": time.process_time() - begun,
        "hardware": hardware("cpu"),
    }


def pretrained(base: str) -> Forecast:
    """The shipped network, as it is."""
    network = load_base(base)

    def forecast(history: np.ndarray, of: EvaluationSet) -> np.ndarray:
        x = torch.tensor(history[-CONTEXT:], dtype=torch.float32)[None]
        with torch.no_grad():
            return forecast_quantiles(network, x.nan_to_num(0.0), ~x.isnan(), horizon=of.horizon)[0].double().numpy()

    return forecast


def seasonal_naive(_: str) -> Forecast:
    """The value a season ago, with quantiles from the history's seasonal differences."""

    def forecast(history: np.ndarray, of: EvaluationSet) -> np.ndarray:
        past = pd.DataFrame(history[-CONTEXT:]).ffill().bfill().to_numpy()
        steps = np.arange(of.horizon)
        middle = past[len(past) - of.season + steps % of.season]
        spread = np.nanquantile(past[of.season :] - past[: -of.season], LEVELS, axis=0).T  # [C, Q]
        cycles = np.sqrt(1 + steps // of.season)[:, None, None]
        spread = spread - spread[:, 4:5]
        return middle[..., None] + cycles * spread

    return forecast


def classical(model: str) -> Callable[[str], Forecast]:
    """AutoETS or AutoTheta of statsforecast; a season above 24 is not modelled by ETS, as the library advises."""

    def made(_: str) -> Forecast:
        from statsforecast import models

        def forecast(history: np.ndarray, of: EvaluationSet) -> np.ndarray:
            past = pd.DataFrame(history[-CONTEXT:]).ffill().bfill().to_numpy()
            season = of.season if of.season <= 24 and len(past) > 2 * of.season else 1
            result = np.empty((of.horizon, past.shape[1], len(LEVELS)))
            for channel in range(past.shape[1]):
                fitted = getattr(models, model)(season_length=season)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    out = fitted.forecast(past[:, channel], of.horizon, level=[20, 40, 60, 80])
                columns = [out[f"lo-{level}"] for level in (80, 60, 40, 20)]
                columns += [out["mean"]] + [out[f"hi-{level}"] for level in (20, 40, 60, 80)]
                result[:, channel] = np.stack(columns, 1)
            return np.sort(result, axis=2)

        return forecast

    return made


def trained(model: str) -> Callable[[str], Forecast]:
    """A model of neuralforecast trained for 500 steps on what lies before the first origin; never again."""

    def made(_: str) -> Forecast:
        fitted: dict[int, Any] = {}

        def forecast(history: np.ndarray, of: EvaluationSet) -> np.ndarray:
            from neuralforecast import NeuralForecast, models
            from neuralforecast.losses.pytorch import MQLoss

            from mvpa_ts.adapters.neuralforecast import MVPA

            C = history.shape[1]
            values = pd.DataFrame(history).ffill().bfill().to_numpy()

            def panel(rows: np.ndarray) -> pd.DataFrame:
                dates = np.tile(np.arange(len(rows)), C)
                names = np.repeat([f"{channel:04}" for channel in range(C)], len(rows))
                return pd.DataFrame({"unique_id": names, "ds": dates, "y": rows.T.ravel()})

            if not fitted:
                lookback = int(min(CONTEXT // 2, max(of.horizon, 2 * of.season), len(values) - 2 * of.horizon - 1))
                common = {
                    "h": of.horizon, "input_size": max(lookback, 4), "max_steps": 500, "loss": MQLoss(quantiles=LEVELS),
                    "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
                    "accelerator": "cpu", "random_seed": 1,
                }  # fmt: skip
                if model == "NHITS":
                    chosen = models.NHITS(**common, scaler_type="standard")
                elif model == "iTransformer":
                    chosen = models.iTransformer(**common, n_series=C)
                else:
                    chosen = MVPA(**common, n_series=C)
                fitted[0] = NeuralForecast(models=[chosen], freq=1)
                fitted[0].fit(panel(values))
            out = fitted[0].predict(panel(values[-CONTEXT:]))
            columns = [column for column in out.columns if column not in ("unique_id", "ds")]
            return np.sort(out[columns].to_numpy().reshape(C, of.horizon, len(columns)).transpose(1, 0, 2), axis=2)

        return forecast

    return made


MODELS: dict[str, Callable[[str], Forecast]] = {
    NAIVE: seasonal_naive,
    "MVPA, pretrained": pretrained,
    "AutoETS": classical("AutoETS"),
    "AutoTheta": classical("AutoTheta"),
    "NHITS, trained": trained("NHITS"),
    "iTransformer, trained": trained("iTransformer"),
    "MVPA, trained": trained("MVPA"),
}


def markdown(rows: pd.DataFrame) -> str:
    """MASE of each model and set, and geometric means over seasonal naive, tuned sets apart."""
    lines = ["# The pretrained forecaster on sets that it never saw", ""]
    names = [name for name in MODELS if name in set(rows["model"])]
    lines += ["| MASE | season, horizon | " + " | ".join(names) + " | 80 % interval holds | s |"]
    lines += ["|---|---|" + "---|" * (len(names) + 2)]
    table = rows.pivot_table(index="set", columns="model", values="mase")
    own = rows[rows["model"] == "MVPA, pretrained"].set_index("set")
    for name in SETS:
        if name in table.index:
            cells = [f"{table.loc[name].get(model, math.nan):.3f}" for model in names]
            cover = f"{own.loc[name, 'coverage']:.0%}" if name in own.index else "–"
            seconds = f"{own.loc[name, 'seconds']:.1f}" if name in own.index else "–"
            about = f"{SETS[name].season}, {SETS[name].horizon}"
            lines.append(f"| {name} | {about} | " + " | ".join(cells) + f" | {cover} | {seconds} |")
    for label, wanted in (("sets that others tune on", True), ("other sets", False)):
        some = [name for name in table.index if SETS[name].tuned == wanted]
        if some and NAIVE in table:
            for measure in ("mase", "quantile_loss"):
                values = rows[rows["set"].isin(some)].pivot_table(index="set", columns="model", values=measure)
                ratio = values.div(values[NAIVE], axis=0)
                means = [f"{float(np.exp(np.log(ratio[model].dropna()).mean())):.3f}" for model in names]
                title = "MASE" if measure == "mase" else "quantile loss"
                lines.append(f"| **{title} over seasonal naive, {label}** | | " + " | ".join(means) + " | | |")
    lines += [
        "",
        f"Geometric means over sets. Seconds are of all origins of a set. {', '.join(sorted(set(rows['hardware'])))}.",
    ]
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--base", default="base", help="name of a shipped forecaster, or a folder")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
