"""MVPA through neuralforecast on real data: error beside two simpler forecasts, a picture, an HTML report.

Takes ETTh1 (seven channels of an electricity transformer, hourly) from MVPA_TS_DATA, the cache or a download; where
none of them works, US economic quarters that ship inside sktime. The last part of the series is held out; learning
rate and steps were chosen on validation rows before it.

    python experiments/shipped/demo.py          # trains for a minute or two, writes demo_output/
    python experiments/shipped/demo.py --quick  # a few steps on few rows, written to a temporary folder
"""

from __future__ import annotations

import base64
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.figures import style
from harness.quiet import silence
from harness.tables import hardware
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.models import NLinear

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.datasets.forecasting import load_forecasting_frame
from mvpa_ts.files import write_text

LEVELS = (80, 95)
NAIVE = "last season"
MODELS = {"MVPA": "all channels together", "NLinear": "each channel alone", NAIVE: "repeated"}
REPORT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>MVPA: {title}</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
  table {{ border-collapse: collapse }} th, td {{ padding: .25rem .9rem; text-align: right }} img {{ width: 100% }}
</style>
<h1>Forecast with MVPA: {title}</h1>
<p>{summary}</p>
{errors}
<p>{coverage}</p>
<h2>Forecast from the last origin</h2>
<img alt="Forecast and observations of every channel" src="data:image/png;base64,{image}">
<h2>Mean absolute error of each channel, in its own unit</h2>
{channels}
<p><code>NeuralForecast(models=[MVPA(…)])</code>, {settings}. {seconds:.0f} s on {hardware}, torch {torch}.</p>
</html>
"""


@dataclass(frozen=True)
class Panel:
    """A real series of several channels, indexed by date, and how it is forecast."""

    title: str
    frame: pd.DataFrame
    freq: str
    season: int
    lookback: int
    horizon: int
    test_rows: int  # held out at the end
    stride: int  # steps between forecast origins
    settings: dict[str, Any]  # of MVPA


def main() -> None:
    """Load, forecast, compare, report."""
    parser = script_parser(__doc__, "a smoke run: few rows, few training steps")
    parser.add_argument("--output", type=Path, help="folder to write to (default: demo_output)")
    arguments = parser.parse_args()
    silence()
    output = arguments.output or (Path(tempfile.mkdtemp(prefix="mvpa-ts-")) if arguments.quick else Path("demo_output"))
    output.mkdir(parents=True, exist_ok=True)
    panel = load_panel()
    if arguments.quick:
        frame, test_rows = panel.frame.iloc[-10 * (panel.lookback + panel.horizon) :], panel.horizon + 2 * panel.stride
        panel = replace(panel, frame=frame, test_rows=test_rows, settings={**panel.settings, "max_steps": 10})
    started = time.perf_counter()
    forecasts = forecast(panel, progress=not arguments.quick)
    seconds = time.perf_counter() - started
    residuals = forecasts[[*MODELS]].sub(forecasts["y"], axis=0)
    units = forecasts["unique_id"].map(panel.frame.iloc[: -panel.test_rows].std(ddof=0))
    scaled = residuals.div(units, axis=0)
    errors = pd.DataFrame({"": MODELS, "MAE": scaled.abs().mean(), "MSE": scaled.pow(2).mean()})
    summary = (
        f"{panel.title}, {panel.frame.shape[1]} channels. Trained on {len(panel.frame) - panel.test_rows} rows; the "
        f"last {panel.test_rows} are held out, {panel.horizon} steps are forecast from "
        f"{forecasts['cutoff'].nunique()} origins in them. Unit: standard deviation of the channel in training."
    )
    held = {
        level: forecasts["y"].between(forecasts[f"MVPA-lo-{level}"], forecasts[f"MVPA-hi-{level}"]).mean()
        for level in LEVELS
    }
    coverage = "; ".join(f"the {level} % interval of MVPA holds {share:.1%}" for level, share in held.items())
    print(f"\n{summary}\n\n{errors.to_string(float_format='{:.3f}'.format)}\n\n{coverage}")
    picture = plot(panel, forecasts, output / "forecast.png")
    report = REPORT.format(
        title=panel.title,
        summary=summary,
        errors=errors.to_html(float_format="{:.3f}".format, border=0),
        coverage=coverage,
        image=base64.b64encode(picture.read_bytes()).decode(),
        channels=residuals.abs().groupby(forecasts["unique_id"]).mean().to_html(float_format="{:.3g}".format, border=0),
        settings=", ".join(f"{name} {value}" for name, value in panel.settings.items()),
        seconds=seconds,
        hardware=hardware(),
        torch=torch.__version__,
    )
    write_text(output / "report.html", report)
    print(f"\ntrained and forecast in {seconds:.0f} s; see {output / 'report.html'} and {picture}")


def load_panel() -> Panel:
    """ETTh1, or what ships with sktime where ETTh1 is not to be had."""
    try:
        frame = load_forecasting_frame("ETTh1").set_index("date").iloc[:14400]  # the rows of the benchmark's parts
    except OSError as error:
        from sktime.datasets import load_uschange

        print(f"{error}\nETTh1 is not to be had: using a series that ships inside sktime instead")
        frame = pd.concat(load_uschange(), axis=1)
        frame.index = pd.period_range("1970Q1", periods=len(frame), freq="Q").to_timestamp()
        settings: dict[str, Any] = {"max_steps": 50, "windows_batch_size": 64, "patch_len": 8, "learning_rate": 2e-3}
        settings["network"] = {"patch_stride": 4}
        return Panel("US economy, quarterly changes 1970–2016", frame, "QS", 4, 24, 8, 40, 1, settings)
    settings = {"max_steps": 400, "windows_batch_size": 128, "learning_rate": 2e-3}
    settings["training"] = {"weight_averaging": 0.98}
    return Panel("ETTh1, an electricity transformer, hourly", frame, "h", 24, 96, 96, 2880, 24, settings)


def forecast(panel: Panel, *, progress: bool) -> pd.DataFrame:
    """Train once on the training rows and forecast from every origin; one row a forecast value."""
    long = panel.frame.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    steps, rate = panel.settings["max_steps"], panel.settings["learning_rate"]
    quiet = {"enable_model_summary": False, "enable_checkpointing": False, "logger": False}
    mvpa = MVPA(
        h=panel.horizon,
        input_size=panel.lookback,
        n_series=panel.frame.shape[1],
        loss=MQLoss(level=list(LEVELS)),
        lr_scheduler=torch.optim.lr_scheduler.OneCycleLR,
        lr_scheduler_kwargs={"max_lr": rate, "total_steps": steps + 1, "pct_start": 0.2},
        enable_progress_bar=progress,
        **panel.settings,
        **quiet,
    )
    linear = NLinear(h=panel.horizon, input_size=panel.lookback, max_steps=steps, enable_progress_bar=progress, **quiet)
    forecasts = NeuralForecast(models=[mvpa, linear], freq=panel.freq).cross_validation(
        long, n_windows=None, test_size=panel.test_rows, step_size=panel.stride, verbose=0
    )
    origin = panel.frame.index.get_indexer(forecasts["cutoff"])
    ahead = panel.frame.index.get_indexer(forecasts["ds"]) - origin - 1
    channel = panel.frame.columns.get_indexer(forecasts["unique_id"])
    past = panel.frame.to_numpy()[origin + 1 - panel.season + ahead % panel.season, channel]
    return forecasts.rename(columns={"MVPA-median": "MVPA"}).assign(**{NAIVE: past})


def plot(panel: Panel, forecasts: pd.DataFrame, path: Path) -> Path:
    """Every channel from the last origin: history, median, intervals and what came."""
    last = forecasts[forecasts["cutoff"] == forecasts["cutoff"].max()]
    stop = panel.frame.index.get_loc(last["ds"].max()) + 1
    shown = panel.frame.iloc[stop - panel.lookback - panel.horizon : stop]
    style.apply()
    figure, axes = plt.subplots(shown.shape[1], 1, figsize=(10, 1.9 * shown.shape[1]), sharex=True)
    for axis, (name, values) in zip(axes, shown.items(), strict=True):
        ahead = last[last["unique_id"] == name]
        for level, alpha in ((95, 0.18), (80, 0.32)):
            low, high = ahead[f"MVPA-lo-{level}"], ahead[f"MVPA-hi-{level}"]
            axis.fill_between(ahead["ds"], low, high, color=style.BLUE, alpha=alpha, linewidth=0, label=f"{level} %")
        axis.plot(ahead["ds"], ahead["MVPA"], color=style.BLUE, label="MVPA, median")
        axis.plot(values.index, values, color="black", linewidth=0.9, label="observed")
        axis.set_title(name, loc="left")
    axes[0].legend(loc="upper left", ncols=4)
    axes[-1].set_xlabel("date")
    figure.savefig(path)
    plt.close(figure)
    return path


if __name__ == "__main__":
    main()
