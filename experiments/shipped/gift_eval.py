"""The pretrained forecaster on the part of GIFT-Eval whose data is at hand, beside what was published there.

These files are for scoring alone. Nothing is trained, chosen or stopped by them. Each run with `--look "why"` counts
as a look, and belongs as a row into results/shipped/gift_eval_looks.csv: date, the weights' SHA-256, reason, result.
Without `--look` only the seasonal naive forecast is scored, which must equal the published one.

    python experiments/shipped/gift_eval.py --look "first look at network X"
"""

from __future__ import annotations

import csv
import datetime
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import torch
from harness.command_line import script_parser

from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.base import LEVELS, MOST_SERIES
from mvpa_ts.windows import FARTHEST_FROM_ZERO

HORIZONS = {"15T": 48, "10T": 48, "H": 48, "D": 30, "W": 8, "M": 12}
SEASONS = {"15T": 96, "10T": 144, "H": 24, "D": 1, "W": 1, "M": 12}
TOLD = {"15T": 96, "10T": 144, "H": 168, "D": 7, "W": 52, "M": 12}
"""What `season_of` says of these frequencies."""
TIMES = {"short": 1, "medium": 10, "long": 15}
Forecast = Callable[[np.ndarray, int, str], np.ndarray]
"""History [n, C], horizon and frequency to quantiles [h, C, 9]."""


def tasks(folder: Path) -> Iterator[tuple[str, str, int, list[np.ndarray]]]:
    """Name, frequency, horizon and panels [n, C] of each configuration at hand."""
    for path in sorted(folder.glob("*.npz")):
        name, frequency = path.stem.rsplit("_", 1)
        stored = np.load(path)
        panels = [stored[key] for key in sorted(stored.files, key=lambda key: int(key[1:]))]
        for term, times in TIMES.items():
            if term == "short" or (frequency in ("15T", "10T", "H") and name != "m4_hourly"):
                yield f"{name}/{frequency}/{term}", frequency, HORIZONS[frequency] * times, panels


def windows(name: str, panels: list[np.ndarray], horizon: int) -> int:
    """How many windows at the end are scored."""
    shortest = min(len(panel) for panel in panels)
    return 1 if name.startswith("m4_") else min(20, max(1, math.ceil(0.1 * shortest / horizon)))


def score(name: str, frequency: str, horizon: int, panels: list[np.ndarray], forecast: Forecast) -> tuple[float, float]:
    """MASE, and the mean weighted quantile loss (CRPS there), as GluonTS computes them."""
    season, levels = SEASONS[frequency], np.array(LEVELS)
    scaled: list[np.ndarray] = []
    losses, total = np.zeros(len(levels)), 0.0
    number = windows(name, panels, horizon)
    for group in _groups(panels):
        for index in range(number):
            histories, truths = [], []
            for panel in group:
                end = len(panel) - (number - index) * horizon
                histories.append(panel[:end])
                truths.append(panel[end : end + horizon])
            quantiles = forecast(histories, horizon, frequency)
            for history, truth, scores in zip(histories, truths, quantiles, strict=True):
                usual = np.nanmean(np.abs(history[season:] - history[:-season]), 0)
                error = np.abs(truth - scores[..., 4])
                with np.errstate(divide="ignore", invalid="ignore"):
                    scaled.append(np.nanmean(error, 0) / usual)
                difference = truth[..., None] - scores
                losses += np.nansum(2.0 * np.maximum(levels * difference, (levels - 1.0) * difference), (0, 1))
                total += np.nansum(np.abs(truth))
    mase = np.concatenate(scaled)
    return float(np.mean(mase[np.isfinite(mase)])), float(np.mean(losses / total))


def _groups(panels: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Panels of equal length together: many single series are forecast at once."""
    for length in sorted({len(panel) for panel in panels}):
        yield [panel for panel in panels if len(panel) == length]


def seasonal_naive(histories: list[np.ndarray], horizon: int, frequency: str) -> list[np.ndarray]:
    """The last season again; missing values take those before."""
    scores = []
    for history in histories:
        last = history[-SEASONS[frequency] :]
        ahead = np.resize(np.arange(len(last)), horizon)
        scores.append(np.repeat(last[ahead][..., None], len(LEVELS), 2))
    return scores


def pretrained(network: torch.nn.Module, *, panel: bool) -> Forecast:
    """The network as a forecaster of lists of histories; `panel`: the series of a table together, or each alone."""

    def forecast(histories: list[np.ndarray], horizon: int, frequency: str) -> list[np.ndarray]:
        kept = np.stack([history[-network.farthest :] for history in histories])  # [B, L, C]
        x = torch.tensor(kept, dtype=torch.float64)
        location = x.nanmean(1, keepdim=True)
        # Large levels keep their digits; where it can, zero stays, because roots are taken of what is skewed.
        location = location * (location.abs() > FARTHEST_FROM_ZERO * (x - location).square().nanmean(1, True).sqrt())
        x = (x - location).float()
        B, _, C = x.shape
        if not panel:
            x = x.movedim(2, 1).reshape(B * C, -1, 1)
        with torch.no_grad():
            parts = [
                forecast_quantiles(network, part, horizon=horizon, season=TOLD[frequency])
                for part in x.split(MOST_SERIES if not panel else max(1, MOST_SERIES // C))
            ]
        scores = torch.cat(parts)[:, :horizon].double()
        if not panel:
            scores = scores.view(B, C, horizon, -1).movedim(1, 2)
        return list((scores + location[..., None]).numpy())

    return forecast


def published(folder: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """MASE and CRPS of each published model by configuration."""
    table: dict[str, dict[str, tuple[float, float]]] = {}
    with (folder / "published.csv").open() as file:
        for row in csv.DictReader(file):
            scores = float(row["eval_metrics/MASE[0.5]"]), float(row["eval_metrics/mean_weighted_sum_quantile_loss"])
            table.setdefault(row["folder"], {})[row["dataset"]] = scores
    return table


def relative(scores: dict[str, tuple[float, float]], naive: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """Geometric means over seasonal naive."""
    logs = np.log([np.array(scores[name]) / np.array(naive[name]) for name in scores])
    mase, crps = np.exp(logs.mean(0))
    return float(mase), float(crps)


def main() -> None:
    """Score, and print what a look has to say."""
    parser = script_parser(__doc__, "seasonal naive on one configuration; write nothing")
    parser.add_argument("--look", help="why this look is taken; without it the network is not run")
    parser.add_argument("--model", default="base")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(os.environ.get("MVPA_TS_DATA", "")) / "gift_eval"
    if not folder.is_dir():
        print("gift_eval is not in MVPA_TS_DATA: nothing to score")
        return
    models: dict[str, Forecast] = {"seasonal naive": seasonal_naive}
    if arguments.look and not arguments.quick:
        network = load_base(arguments.model)
        models |= {"panel": pretrained(network, panel=True), "series by series": pretrained(network, panel=False)}
    table = published(folder)
    results: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in models}
    for name, frequency, horizon, panels in tasks(folder):
        for model, forecast in models.items():
            begun = time.perf_counter()
            results[model][name] = score(name, frequency, horizon, panels, forecast)
            print(f"{name:28} {model:18} {results[model][name][0]:.3f} {results[model][name][1]:.4f}  "
                  f"{time.perf_counter() - begun:.1f} s", flush=True)  # fmt: skip
        print(f"{name:28} published naive    {table['seasonal_naive'][name][0]:.3f} "
              f"{table['seasonal_naive'][name][1]:.4f}", flush=True)  # fmt: skip
        if arguments.quick:
            return
    for term in ("short", ""):
        names = [name for name in results["seasonal naive"] if name.endswith(term)]
        naive = {name: table["seasonal_naive"][name] for name in names}
        board = {model: relative({name: scores[name] for name in names}, naive)
                 for model, scores in table.items() if set(names) <= set(scores)}  # fmt: skip
        for model in results:
            ratios = relative({name: results[model][name] for name in names}, naive)
            ranks = [1 + sum(other[metric] < ratios[metric] for other in board.values()) for metric in (0, 1)]
            print(f"{term or 'all'}: {model} {ratios[0]:.3f} / {ratios[1]:.3f}, rank {ranks[0]} and {ranks[1]} of "
                  f"{len(board)}")  # fmt: skip
    if arguments.look:
        date = datetime.date.today().isoformat()
        print(f"look of {date}: {arguments.look}")


if __name__ == "__main__":
    main()
