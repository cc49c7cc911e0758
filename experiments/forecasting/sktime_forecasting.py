"""MVPAForecaster with its defaults through sktime's own interface, beside the seasonal naive forecast.

ETTh1: fitted on the train and validation rows, then each window of the test part is forecast without fitting again.
The others: fitted anew before each of the last windows. Runs that the table holds are not repeated.

Examples
--------
    python experiments/forecasting/sktime_forecasting.py            # about 20 minutes on one core
    python experiments/forecasting/sktime_forecasting.py --quick    # a smoke run in seconds, written elsewhere
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
from harness.command_line import script_parser
from harness.study import Study, grid, paragraphs, spread
from harness.tables import machines
from sktime.datasets import load_airline, load_longley

from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.datasets.forecasting import Borders, load_forecasting_frame

KEY = ["case", "horizon", "model", "seed"]
COVERAGES = (0.5, 0.9)


@dataclass(frozen=True)
class Case:
    """A series, the rows that windows to forecast start at, and how their errors are scaled."""

    y: pd.DataFrame
    starts: range
    period: int
    X: pd.DataFrame | None = None
    refit: bool = True
    unit: Any = None  # divides errors; None: absolute percentage errors

    def parts(self, start: int, horizon: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows before a window and the rows in it."""
        return self.y.iloc[:start], self.y.iloc[start : start + horizon]


def cases(quick: bool) -> dict[tuple[str, int], Case]:
    """What is run, by name and horizon."""
    frame = load_forecasting_frame("ETTh1").drop(columns="date")
    borders = Borders.of("ETTh1", len(frame))
    found, horizon = dict[tuple[str, int], Case](), 96
    starts = range(1000, 1001) if quick else range(borders.test[0], borders.test[1] - horizon + 1)
    unit = frame.iloc[slice(*borders.train)].std(ddof=0).to_numpy()
    found["ETTh1", horizon] = Case(frame, starts, 24, refit=False, unit=unit)
    kept = slice(-1 if quick else None, None)
    airline = load_airline().to_frame()
    for horizon in (12,) if quick else (12, 24, 36):
        found["airline", horizon] = Case(airline, range(120 - horizon, 145 - horizon, 12)[kept], 12)
    y, X = load_longley()
    for horizon in (2,) if quick else (2, 4):
        starts = range(len(y) - horizon - 2, len(y) - horizon + 1)[kept]
        found["longley", horizon] = Case(y.to_frame(), starts, 1)
        found["longley with X", horizon] = Case(y.to_frame(), starts, 1, X)
    sales, offers = made_up_sales()
    for name, X in (("made-up sales", None), ("made-up sales with X", offers)):
        found[name, 12] = Case(sales, range(204, 229, 12)[kept], 12, X)
    return found


def made_up_sales() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Twenty years of months: a season, five per offer, and noise whose mean size is 1.6 % of the level."""
    random, months = np.random.default_rng(0), pd.period_range("2000-01", periods=240, freq="M")
    offers = random.normal(size=240)
    sales = 50.0 + 10.0 * np.sin(2 * np.pi * np.arange(240) / 12) + 5.0 * offers + random.normal(size=240)
    return pd.DataFrame({"sales": sales}, months), pd.DataFrame({"offers": offers}, months)


def mvpa(case: Case, horizon: int, seed: int, quick: bool) -> tuple[np.ndarray, dict[float, np.ndarray]]:
    """Point forecasts [windows, h, C], and which values the intervals of each coverage hold."""
    points: list[np.ndarray] = []
    held: dict[float, list[np.ndarray]] = {coverage: [] for coverage in COVERAGES}
    forecaster = MVPAForecaster(random_state=seed, **({"max_steps": 2} if quick else {}))
    told = 0
    for start in case.starts:
        past, ahead = case.parts(start, horizon)
        X, X_ahead = (None, None) if case.X is None else (case.X.loc[past.index], case.X.loc[ahead.index])
        if case.refit or not points:
            forecaster.fit(past, X=X, fh=range(1, horizon + 1))
        else:
            forecaster.update(past.iloc[told:], update_params=False)
        told = start
        levels = sorted({0.5, *((1 + sign * coverage) / 2 for coverage in COVERAGES for sign in (-1, 1))})
        quantiles = forecaster.predict_quantiles(X=X_ahead, alpha=levels).to_numpy()
        quantiles = quantiles.reshape(horizon, -1, len(levels))
        points.append(quantiles[..., levels.index(0.5)])
        for coverage in COVERAGES:
            low, high = (quantiles[..., levels.index((1 + sign * coverage) / 2)] for sign in (-1, 1))
            held[coverage].append((ahead.to_numpy() >= low) & (ahead.to_numpy() <= high))
    return np.stack(points), {coverage: np.stack(parts) for coverage, parts in held.items()}


def seasonal_naive(case: Case, horizon: int) -> np.ndarray:
    """The last period again and again, [windows, h, C]."""
    values = case.y.to_numpy()
    steps = np.arange(horizon) % case.period - case.period
    return np.stack([values[start + steps] for start in case.starts])


def run_one(case: Case, horizon: int, model: str, seed: int, quick: bool) -> dict[str, Any]:
    """Forecast all windows of a case with one model and return its row."""
    truth = np.stack([case.parts(start, horizon)[1].to_numpy() for start in case.starts])
    started, held = time.perf_counter(), None
    if model == "MVPAForecaster":
        points, held = mvpa(case, horizon, seed, quick)
    else:
        points = seasonal_naive(case, horizon)
    error = (points - truth) / (truth if case.unit is None else case.unit)
    return {
        "mae": abs(error).mean(),
        "mse": (error**2).mean(),
        **{f"coverage_{coverage}": None if held is None else held[coverage].mean() for coverage in COVERAGES},
        "windows": len(case.starts),
        "seconds": round(time.perf_counter() - started, 1),
    }


def report(rows: pd.DataFrame) -> str:
    """The page: one table, means over seeds."""
    lead = (
        "Made by `experiments/forecasting/sktime_forecasting.py`, through sktime's interface. ETTh1: MAE and MSE in "
        "units of the train rows' standard deviation, every window of the test part, fitted once on the rows before "
        "it. The others: mean absolute percentage error of the last windows, fitted anew before each. Made-up sales "
        "are a season, five times a covariate, and noise of 1.6 % that nothing forecasts. Seasonal naive repeats the "
        "last period (24 hours, 12 months; for Longley's yearly rows the last value). Mean over seeds, "
        "± standard deviation."
    )
    table = []
    for (case, horizon), part in rows.groupby(["case", "horizon"], sort=False):
        forecaster, naive = part[part["model"] == "MVPAForecaster"], part[part["model"] == "seasonal naive"]
        if forecaster.empty or naive.empty:
            continue
        if case.startswith("ETT"):
            errors = [f"MAE {spread(runs['mae'])}, MSE {runs['mse'].mean():.3f}" for runs in (forecaster, naive)]
        else:
            # The unit stands behind the mean, and what follows it is the deviation.
            errors = [
                " % ±".join(spread(100 * runs["mae"], 1).split(" ±")) + (" %" if len(runs) == 1 else "")
                for runs in (forecaster, naive)
            ]
        covered = [f"{100 * forecaster[f'coverage_{coverage}'].mean():.0f} %" for coverage in COVERAGES]
        table.append([case, horizon, forecaster["windows"].iloc[0], len(forecaster), *errors, *covered])
    shares = [f"in {100 * coverage:.0f} % interval" for coverage in COVERAGES]
    heads = ["case", "horizon", "windows", "seeds", "MVPAForecaster", "seasonal naive", *shares]
    return paragraphs("# MVPAForecaster with its defaults", lead, grid(heads, table), machines(rows))


def main() -> None:
    """Run what is asked for and not yet in the table, then write the page."""
    parser = script_parser(__doc__, "two steps on few windows, another table")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parser.parse_args()
    series = cases(arguments.quick)
    seeds = arguments.seeds[:1] if arguments.quick else arguments.seeds
    models = [("seasonal naive", 0), *(("MVPAForecaster", seed) for seed in seeds)]
    study = Study("forecasting", "sktime_forecasting", KEY, report, quick=arguments.quick)
    study.run(
        [(*case, *model) for case in series for model in models],
        lambda name, horizon, *model: run_one(series[name, horizon], horizon, *model, arguments.quick),
    )


if __name__ == "__main__":
    main()
