"""Fill the README's results from the tables in results/.

python experiments/readme.py            # rewrites README.md between its markers
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from forecasting import HORIZONS, RESULTS, machines, read_rows, write_atomically
from forecasting_models import MODELS

README = Path(__file__).parents[1] / "README.md"
# Averages over the four horizons as printed by their authors; not run here.
CITED = {
    "MVPFormer, as published": {"ETTh1": "0.453 / 0.445", "ETTh2": "0.380 / 0.408"},
    "PatchTST, as published there": {"ETTh1": "0.45 / 0.45", "ETTh2": "0.39 / 0.41"},
}


def main() -> None:
    """Rewrite the README."""
    write_atomically(README, filled(README.read_text()))


def filled(text: str) -> str:
    """The README with what stands between its markers made anew."""
    table = forecasting_summary(read_rows(RESULTS / "forecasting.csv"))
    pattern = r"(<!-- results:forecasting -->\n).*?(<!-- /results -->)"
    return re.sub(pattern, lambda found: found[1] + table + found[2], text, flags=re.DOTALL)


def forecasting_summary(rows: pd.DataFrame) -> str:
    """Averages of the models that were run at every horizon of every dataset, above what was published."""
    datasets = [name for name in ("ETTh1", "ETTh2") if name in set(rows["dataset"])]
    lines = [f"| test MSE / MAE, average of horizons {', '.join(map(str, HORIZONS))} | " + " | ".join(datasets) + " |"]
    lines.append("|---|" + "---|" * len(datasets))
    for model in MODELS:
        cells = [_average(rows[(rows["model"] == model) & (rows["dataset"] == dataset)]) for dataset in datasets]
        if all(cells):
            lines.append(f"| {model} | {' | '.join(cells)} |")
    for source, averages in CITED.items():
        lines.append(f"| *{source}* | {' | '.join(averages[dataset] for dataset in datasets)} |")
    seeds = sorted(rows.groupby("model")["seed"].nunique().unique())
    counted = f"{seeds[0]} seed(s)" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    lines += [
        "",
        "Look-back 96, full test sets (no window dropped), scaled units; settings chosen on validation data, "
        f"test data looked at once; {counted}. {machines(rows)} Rows in italics are cited, not run.",
        "",
    ]
    return "\n".join(lines)


def _average(runs: pd.DataFrame) -> str:
    per_horizon = runs.groupby("horizon")[["test_mse", "test_mae"]].mean()
    if not set(HORIZONS) <= set(per_horizon.index):
        return ""
    mean = per_horizon.loc[list(HORIZONS)].mean()
    return f"{mean['test_mse']:.3f} / {mean['test_mae']:.3f}"


if __name__ == "__main__":
    main()
