"""Forecast two airlines without training and with it, beside the last season and Theta: errors, a picture, a report.

The panel ships inside neuralforecast: passengers of 144 months. Its last four years are held out, and forecast from
four origins, twelve months each.

    python experiments/shipped/demo.py          # less than a minute, writes demo_output/
    python experiments/shipped/demo.py --quick  # two training steps, written to a temporary folder
"""

from __future__ import annotations

import base64
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from harness.command_line import script_parser
from harness.figures import style
from harness.quiet import QUIET, silence
from harness.tables import hardware
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.utils import AirPassengersPanel
from statsmodels.tsa.forecasting.theta import ThetaModel

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.files import write_text

SEASON, ORIGINS, STEPS = 12, 4, 200
UNTRAINED, TRAINED, THETA, NAIVE = "MVPA, no training", f"MVPA, {STEPS} steps", "Theta", "last season"
REPORT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>mvpa-ts: two airlines</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
  table {{ border-collapse: collapse }} th, td {{ padding: .25rem .9rem; text-align: right }} img {{ width: 100% }}
</style>
<h1>Two airlines, twelve months ahead</h1>
<p>{summary}</p>
{errors}
<img alt="Forecasts without training, their intervals, and what came" src="data:image/png;base64,{image}">
<p>{seconds:.0f} s on {hardware}.</p>
</html>
"""


def main() -> None:
    """Forecast, compare, report."""
    parser = script_parser(__doc__, "a smoke run: two training steps")
    parser.add_argument("--output", type=Path, help="folder to write to (default: demo_output)")
    arguments = parser.parse_args()
    silence()
    output = arguments.output or (Path(tempfile.mkdtemp(prefix="mvpa-ts-")) if arguments.quick else Path("demo_output"))
    output.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    forecasts = forecast(2 if arguments.quick else STEPS)
    seconds = time.perf_counter() - started
    table = errors(forecasts)
    summary = (
        f"Passengers of two airlines, from {ORIGINS} origins in the four years that are held out. MASE: mean absolute "
        "error over that of the last season before them; an 80 % interval should hold 80 % of the months."
    )
    shown = table.to_string(float_format="{:.2f}".format, na_rep="")
    print(f"\n{summary}\n\n{shown}\n")
    picture = plot(forecasts, output / "forecast.png")
    report = REPORT.format(
        summary=summary,
        errors=table.to_html(float_format="{:.2f}".format, na_rep="", border=0),
        image=base64.b64encode(picture.read_bytes()).decode(),
        seconds=seconds,
        hardware=hardware(),
    )
    write_text(output / "report.html", report)
    print(f"{seconds:.0f} s; see {output / 'report.html'} and {picture}")


def forecast(steps: int) -> pd.DataFrame:
    """Forecasts of all models from all origins, a row for each month and airline."""
    panel = AirPassengersPanel[["unique_id", "ds", "y"]]
    quiet = QUIET | {"enable_checkpointing": False}
    loss = MQLoss(level=[80])
    untrained = MVPA.from_pretrained("base", h=SEASON, loss=loss, alias=UNTRAINED, **quiet)
    trained = MVPA(h=SEASON, input_size=36, n_series=2, loss=loss, max_steps=steps, alias=TRAINED, **quiet)
    found = NeuralForecast([untrained, trained], freq="ME").cross_validation(
        panel, n_windows=None, test_size=ORIGINS * SEASON, step_size=SEASON, verbose=0
    )
    for (name, cutoff), rows in found.groupby(["unique_id", "cutoff"]):
        past = panel[(panel["unique_id"] == name) & (panel["ds"] <= cutoff)].set_index("ds")["y"]
        found.loc[rows.index, NAIVE] = past.to_numpy()[-SEASON:]
        found.loc[rows.index, THETA] = ThetaModel(past, period=SEASON).fit().forecast(SEASON).to_numpy()
    return found.rename(columns={f"{name}-median": name for name in (UNTRAINED, TRAINED)})


def errors(forecasts: pd.DataFrame) -> pd.DataFrame:
    """MASE of each model, and the share of months that its 80 % interval holds."""
    panel = AirPassengersPanel
    first = forecasts["ds"].min()
    usual = {
        name: np.abs(series[SEASON:] - series[:-SEASON]).mean()
        for name, series in ((n, rows["y"].to_numpy()) for n, rows in panel[panel["ds"] < first].groupby("unique_id"))
    }
    units = forecasts["unique_id"].map(usual)
    rows = {}
    for name in (UNTRAINED, TRAINED, THETA, NAIVE):
        row = {"MASE": ((forecasts[name] - forecasts["y"]).abs() / units).mean()}
        if f"{name}-lo-80" in forecasts:
            inside = forecasts["y"].between(forecasts[f"{name}-lo-80"], forecasts[f"{name}-hi-80"])
            row["80 % interval holds, %"] = 100 * inside.mean()
        rows[name] = row
    return pd.DataFrame(rows).T


def plot(forecasts: pd.DataFrame, path: Path) -> Path:
    """Both airlines: what came, the forecast without training and its interval, and the last season."""
    style.apply()
    figure, axes = plt.subplots(2, 1, figsize=(10, 6), sharex=True)
    for axis, (name, ahead) in zip(axes, forecasts.groupby("unique_id"), strict=True):
        past = AirPassengersPanel[AirPassengersPanel["unique_id"] == name].tail((ORIGINS + 2) * SEASON)
        low, high = ahead[f"{UNTRAINED}-lo-80"], ahead[f"{UNTRAINED}-hi-80"]
        axis.fill_between(ahead["ds"], low, high, color=style.BLUE, alpha=0.25, linewidth=0, label="80 %")
        axis.plot(ahead["ds"], ahead[UNTRAINED], color=style.BLUE, label=UNTRAINED)
        axis.plot(ahead["ds"], ahead[NAIVE], color="0.6", linestyle=":", label=NAIVE)
        axis.plot(past["ds"], past["y"], color="black", linewidth=0.9, label="passengers")
        axis.set_title(name, loc="left")
        axis.set_ylabel("thousands a month")
    axes[0].legend(loc="upper left", ncols=4)
    figure.savefig(path)
    plt.close(figure)
    return path


if __name__ == "__main__":
    main()
