"""Effects of covariates on made-up panels whose effects are known: sign, size, and what the intervals hold.

Each panel has six series with seasons, common and own errors that are autoregressive (up to .98 from step to step), and
three covariates: a price that drifts, a promotion on one step in seven, and a temperature with the season of the
series. An effect is .3 to 2 times a usual step of the errors. Beside `effects_table`: without the season told, and
plain least squares with errors that are taken as independent.

    python experiments/shipped/effects.py            # results/shipped/effects.csv and .md; a minute on one core
    python experiments/shipped/effects.py --quick    # three panels, written to a temporary folder
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.study import grid, paragraphs
from harness.tables import hardware, results_folder, write_table

from mvpa_ts.forecasting.effects import effects_table

PANELS, LENGTHS, SERIES = 100, (200, 400, 1000), 6
COVARIATES = ["price", "promotion", "temperature"]
Z = 1.2815515655446004  # of an interval of 80 %


def autoregressive(memory: float, shape: tuple[int, ...], draws: np.random.Generator) -> np.ndarray:
    """Values that remember so much of the step before, [n, ...]."""
    values = draws.standard_normal((shape[0] + 100, *shape[1:]))
    for step in range(1, len(values)):
        values[step] += memory * values[step - 1]
    return values[100:]


def panel(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Values [n, C], covariates [n, F], true effects [C, F] and the season."""
    draws = np.random.default_rng([53, seed, rows])
    season = int(draws.choice([7, 12, 24]))
    angle = 2 * np.pi * np.arange(rows)[:, None] / season
    price = autoregressive(draws.uniform(0.5, 0.95), (rows,), draws)
    temperature = 2 * np.sin(angle[:, 0]) + autoregressive(0.8, (rows,), draws)
    X = np.stack([price, draws.random(rows) < 1 / 7, temperature], 1)
    effects = draws.choice([-1.0, 1.0], (SERIES, 3)) * draws.uniform(0.3, 2.0, (SERIES, 3))
    size = draws.uniform(0.5, 2.0, SERIES)
    errors = size * autoregressive(draws.uniform(0.0, 0.98), (rows, SERIES), draws)
    errors = errors + draws.uniform(0.0, 0.7) * autoregressive(0.7, (rows, 1), draws)
    wave = draws.uniform(0.0, 3.0, SERIES) * np.sin(angle + draws.uniform(0.0, 2 * np.pi, SERIES))
    return draws.normal(0.0, 20.0, SERIES) + wave + errors + X @ effects.T, X, effects, season


def least_squares(values: np.ndarray, X: np.ndarray) -> pd.DataFrame:
    """Ordinary regression, errors taken as independent."""
    design = np.column_stack([X, np.ones(len(X))])
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ design.T @ values
    variance = np.square(values - design @ coefficients).sum(0) / (len(X) - design.shape[1])
    effect, error = coefficients[:3].T, np.sqrt(np.outer(variance, inverse.diagonal()[:3]))
    bounds = {"effect": effect, "lower": effect - Z * error, "upper": effect + Z * error}
    return pd.DataFrame({name: numbers.ravel() for name, numbers in bounds.items()})


def main() -> None:
    """Estimate, compare, write."""
    quick = script_parser(__doc__, "three panels, written to a temporary folder").parse_args().quick
    torch.set_num_threads(1)
    parts = []
    for rows in LENGTHS[:1] if quick else LENGTHS:
        for seed in range(3 if quick else PANELS):
            values, X, effects, season = panel(seed, rows)
            tables = {
                "effects": effects_table(values, X, range(SERIES), COVARIATES, season=season),
                "effects, season not told": effects_table(values, X, range(SERIES), COVARIATES),
                "least squares": least_squares(values, X),
            }
            for method, table in tables.items():
                row = {"method": method, "rows": rows, "panel": seed, "covariate": COVARIATES * SERIES}
                parts.append(table[["effect", "lower", "upper"]].assign(**row, truth=effects.ravel()))
    every = pd.concat(parts, ignore_index=True)
    every["sign"] = np.sign(every["effect"]) == np.sign(every["truth"])
    every["held"] = every["truth"].between(every["lower"], every["upper"])
    every["size"] = every["effect"] / every["truth"]
    every["missed"] = (every["size"] - 1.0).abs()
    groups = every.groupby(["rows", "method"], sort=False)
    summary = groups.agg(
        sign=("sign", "mean"), size=("size", "median"), missed=("missed", "median"), held=("held", "mean")
    )
    by_covariate = every.pivot_table(index=["rows", "method"], columns="covariate", values="held", sort=False)
    table = summary.join(by_covariate).reset_index().round(4)
    lines = [
        (row.rows, row.method, f"{row.sign:.1%}", f"{row.size:.3f}", f"{row.missed:.1%}", f"{row.held:.1%}",
         f"{row.price:.0%}, {row.promotion:.0%}, {row.temperature:.0%}")
        for row in table.itertuples()
    ]  # fmt: skip
    heads = ["rows", "method", "right sign", "size", "median error", "80 % holds", "of price, promotion, temperature"]
    page = paragraphs(
        "# Effects of covariates",
        f"Made by `experiments/shipped/effects.py` on {hardware('cpu')}: {PANELS} made-up panels of each length, "
        f"{SERIES} series and three covariates each. Size is the median of effect over truth.",
        grid(heads, lines),
    )
    write_table(results_folder("shipped", quick=quick), "effects", table, page)


if __name__ == "__main__":
    main()
