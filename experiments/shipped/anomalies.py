"""Anomalies that are planted in real panels: what `detect_anomalies` finds, and whether it keeps its rate of alarms.

Windows of the 17 development sets of the pretrained forecaster, and what is planted in them, are drawn by a fixed seed
before any detector runs. False alarms are counted where nothing was planted; the sets may hold anomalies of their own.
Beside it: a robust z-score (distance to the median of the last 64 rows, over their median deviation) with the same
conformal threshold and with the usual one of 3.5, and sktime's STRAY.

    python experiments/shipped/anomalies.py            # results/shipped/anomalies.csv and .md; five minutes on a core
    python experiments/shipped/anomalies.py --quick    # two small sets, written to a temporary folder
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.forecasting.zero_shot_sets import SETS
from harness.study import grid, paragraphs
from harness.tables import hardware, results_folder, write_table

from mvpa_ts.forecasting.pretrained import load_base
from mvpa_ts.forecasting.pretrained.anomalies import alarms, rolling_quantiles, stillness, surprise

SEED, WINDOWS, ROWS, SERIES, RATES = 53, 3, 384, 6, (0.01, 0.05)
DEVELOPMENT = [name for name in SETS if name not in ("ETTh1", "ETTh2", "Weather")]
# Rows after the beginning within which an alarm of the sensor counts as found.
SPANS = {"spike": 1, "shift": 8, "noise": 8, "standing still": 24}


class Window(NamedTuple):
    """A window [L, C]; what was planted, from which row on and in which series; nothing where `kind` is empty."""

    name: str
    values: np.ndarray
    kind: str = ""
    row: int = 0
    series: int = 0


def drawn(names: list[str]) -> list[Window]:
    """All windows, as they are and with each anomaly."""
    windows = []
    for name in names:
        values = SETS[name].read().to_numpy(dtype=float)
        draws = np.random.default_rng([SEED, DEVELOPMENT.index(name)])
        for number in range(WINDOWS):
            series = np.sort(draws.permutation(values.shape[1])[:SERIES])
            first = int(draws.integers(0, max(1, len(values) - ROWS + 1)))
            calm = values[first : first + ROWS][:, series]
            # A set that is no larger than a window is the same each time.
            if number == 0 or values.size > calm.size:
                windows.append(Window(name, calm))
            windows += [planted(name, calm, kind, draws) for kind in SPANS]
    return windows


def planted(name: str, calm: np.ndarray, kind: str, draws: np.random.Generator) -> Window:
    """A copy with one anomaly, of sizes in standard deviations of its series."""
    row, series = int(draws.integers(int(0.6 * len(calm)), len(calm) - 8)), int(draws.integers(calm.shape[1]))
    values, size, sign = calm.copy(), np.nanstd(calm[:, series]), draws.choice([-1.0, 1.0])
    if kind == "spike":
        values[row, series] += 4.0 * sign * size
    elif kind == "shift":
        values[row:, series] += 3.0 * sign * size
    elif kind == "noise":
        values[row : row + 16, series] += 2.0 * size * draws.standard_normal(len(values[row : row + 16]))
    else:
        values[row:, series] = values[row - 1, series]
    return Window(name, values, kind, row, series)


def robust_z(values: np.ndarray) -> np.ndarray:
    """Distance to the median of up to 64 earlier rows, over their median absolute deviation, [L, C]."""
    score = np.full(values.shape, np.nan)
    for row in range(16, len(values)):
        past = values[max(0, row - 64) : row]
        median = np.nanmedian(past, 0)
        spread = 1.4826 * np.nanmedian(np.abs(past - median), 0) + 1e-3 * np.nanstd(past, 0) + 1e-12
        score[row] = np.abs(values[row] - median) / spread
    return score


def stray(values: np.ndarray, rate: float) -> np.ndarray:
    """Alarms of sktime's STRAY on each series, which it sees whole, [L, C]."""
    from sktime.detection.stray import STRAY

    scaled = (values - np.nanmin(values, 0)) / np.where(np.ptp(values, axis=0) > 0, np.nanstd(values, 0), 1.0)
    return np.column_stack([STRAY(alpha=rate).fit_transform(series[:, None]) for series in scaled.T]).astype(bool)


def judged(window: Window, network: torch.nn.Module, rates: tuple[float, ...]) -> Iterator[dict[str, object]]:
    """A row for each detector and rate."""
    values = window.values
    quantiles = rolling_quantiles(network, values)
    score = np.fmax(surprise(values, quantiles), stillness(values, quantiles))
    z = robust_z(values)
    for rate in rates:
        ours, threshold = alarms(score, rate)
        counted = np.isfinite(threshold) & np.isfinite(score)
        detectors = {
            "MVPA, pretrained": (ours, score),
            "robust z-score, conformal": (alarms(z, rate)[0], z),
            "robust z-score over 3.5": (z > 3.5, z),
            "STRAY": (stray(values, rate), z),
        }
        for detector, (anomaly, strength) in detectors.items():
            row = {"detector": detector, "rate": rate, "set": window.name, "kind": window.kind or "nothing"}
            if not window.kind:
                yield {**row, "judged": int(counted.sum()), "alarms": int((anomaly & counted).sum())}
                continue
            span = slice(window.row, window.row + SPANS[window.kind])
            if not counted[span, window.series].any():
                continue
            hits = (anomaly & counted)[span]
            row |= {"judged": 1, "alarms": int(hits[:, window.series].any())}
            if values.shape[1] > 1 and hits.any():
                largest = np.where(hits, strength[span], -np.inf).max(0)
                row |= {"blamed": 1, "rightly": int(largest.argmax() == window.series)}
            yield row


def markdown(table: pd.DataFrame) -> str:
    """Shares by detector and rate."""
    sums = table.groupby(["detector", "rate", "kind"], sort=False)[["judged", "alarms", "blamed", "rightly"]].sum()
    lines = []
    for detector, rate in dict.fromkeys(zip(table["detector"], table["rate"], strict=True)):
        of = sums.loc[detector, rate]
        share = of["alarms"] / of["judged"]
        planted_only = of.drop("nothing")
        lines.append(
            [f"{rate:g}", detector, f"{share['nothing']:.4f}", f"{share['nothing'] / rate:.2f}"]
            + [f"{share[kind]:.0%}" for kind in SPANS]
            + [f"{planted_only['rightly'].sum() / max(1.0, planted_only['blamed'].sum()):.0%}"]
        )
    header = ["rate", "detector", "false alarms", "over the rate", *SPANS, "right sensor"]
    counts = sums.loc[lines[0][1], RATES[-1]]["judged"].astype(int)
    return paragraphs(
        "# Anomalies planted in real panels",
        f"Made by `experiments/shipped/anomalies.py` on {hardware('cpu')}: {table['set'].nunique()} development sets, "
        f"{counts['nothing']} values without and {counts.drop('nothing').sum()} windows with a planted anomaly at the "
        f"rate {RATES[-1]:g}. Found is an alarm of the sensor at the spike, or within 8 rows of a shift or of noise "
        "and within 24 of standing still. The right sensor is that of the largest score among all alarms there.",
        grid(header, lines),
    )


def main() -> None:
    """Draw, judge, write."""
    quick = script_parser(__doc__, "two small sets, written to a temporary folder").parse_args().quick
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    windows, network = drawn(["shampoo", "Danish money"] if quick else DEVELOPMENT), load_base()
    rates = RATES[-1:] if quick else RATES
    table = pd.DataFrame([row for window in windows for row in judged(window, network, rates)])
    table = table.sort_values("rate", kind="stable", ignore_index=True)
    for column in ("blamed", "rightly"):
        table[column] = table[column].fillna(0).astype(int)
    totals = table.groupby(["detector", "rate", "set", "kind"], sort=False, as_index=False).sum()
    write_table(results_folder("shipped", quick=quick), "anomalies", totals, markdown(table))


if __name__ == "__main__":
    main()
