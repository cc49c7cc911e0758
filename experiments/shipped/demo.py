"""MVPA through neuralforecast on real data: error against two baselines, a forecast with intervals, an HTML report.

Takes ETTh1 (seven channels of an electricity transformer, hourly) from MVPA_TS_DATA, the cache or a download; where
none of them works, US economic quarters that ship inside sktime. The last part of the series is held out;
learning rate and steps were chosen on validation rows before it.

Examples
--------
    python experiments/shipped/demo.py              # trains for a minute or two, writes demo_output/
    python experiments/shipped/demo.py --quick      # a few steps on few rows, written to a temporary folder
"""

from __future__ import annotations

import base64
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import matplotlib

sys.path.append(str(Path(__file__).parents[1]))  # the harness

matplotlib.use("Agg")
import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.figures import style
from harness.quiet import silence
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.datasets.forecasting import dataset_path, load_forecasting_frame

LEVELS = (80, 95)
BASELINES = {"seasonal naive": "the last season, repeated", "linear": "least squares from look-back to horizon"}


@dataclass(frozen=True)
class Panel:
    """A real multi-channel series and how it is forecast."""

    title: str
    origin: str
    frame: pd.DataFrame  # one row a step, one column a channel, indexed by date
    labels: dict[str, str]  # axis label of each channel, with its unit
    freq: str
    step: str
    season: int
    lookback: int
    horizon: int
    test_rows: int  # held out at the end
    stride: int  # steps between forecast origins
    settings: dict[str, int | float]  # of MVPA

    @property
    def values(self) -> np.ndarray:
        """All rows, [steps, channels]."""
        return self.frame.to_numpy(np.float64)

    @property
    def train(self) -> np.ndarray:
        """The rows that models may learn from."""
        return self.values[: -self.test_rows]


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
        panel = shortened(panel)
    print(f"{panel.title}: {panel.frame.shape[1]} channels, {panel.origin}")
    print(f"training on {len(panel.train)} {panel.step}s, the last {panel.test_rows} are held out", flush=True)
    started = time.perf_counter()
    forecasts = forecast(panel, progress=not arguments.quick)
    seconds = time.perf_counter() - started
    for name, baseline in (("seasonal naive", seasonal_naive), ("linear", linear)):
        forecasts[name] = baseline(panel, forecasts)

    errors, per_channel, coverage = scores(panel, forecasts)
    summary = (
        f"{panel.horizon} {panel.step}s ahead from {forecasts['cutoff'].nunique()} origins in the held-out part; "
        "unit: standard deviation of the channel in the training rows"
    )
    print(f"\n{summary}\n\n{errors.to_string(float_format='{:.3f}'.format)}\n")
    for level, share in coverage.items():
        print(f"{level} % interval of MVPA: {share:.1%} of the held-out values lie in it")
    picture = plot(panel, forecasts, output / "forecast.png")
    report = write_report(panel, output / "report.html", picture, summary, errors, per_channel, coverage, seconds)
    print(f"\ntrained and forecast in {seconds:.0f} s; see {report} and {picture}")


def load_panel() -> Panel:
    """ETTh1, or what ships with sktime where ETTh1 is not to be had."""
    try:
        path = dataset_path("ETTh1")
    except OSError as error:
        print(f"{error}\nETTh1 is not to be had: using a series that ships inside sktime instead")
        return us_change()
    frame = load_forecasting_frame("ETTh1").set_index("date").iloc[:14400]  # the rows of the benchmark's three parts
    side, use = {"H": "high", "M": "middle", "L": "low"}, {"F": "useful", "L": "useless"}
    labels = {name: f"{name}: {side[name[0]]} {use[name[2]]} load (no unit given)" for name in frame.columns.drop("OT")}
    return Panel(
        title="ETTh1, an electricity transformer",
        origin=f"hourly, from {path}",
        frame=frame,
        labels={**labels, "OT": "OT: oil temperature (°C)"},
        freq="h",
        step="hour",
        season=24,
        lookback=96,
        horizon=96,
        test_rows=2880,
        stride=24,
        settings={"max_steps": 400, "windows_batch_size": 128, "learning_rate": 2e-3, "weight_averaging": 0.98},
    )


def us_change() -> Panel:
    """Quarterly changes of five parts of the US economy, 1970–2016, from the files of sktime."""
    from sktime.datasets import load_uschange

    consumption, others = load_uschange()
    frame = pd.concat([consumption, others], axis=1)
    frame.index = pd.period_range("1970Q1", periods=len(frame), freq="Q").to_timestamp()
    return Panel(
        title="US economy",
        origin="quarterly changes 1970–2016, shipped inside sktime",
        frame=frame[sorted(frame.columns)],
        labels={name: f"{name} (change, {'points' if name == 'Unemployment' else '%'})" for name in frame.columns},
        freq="QS",
        step="quarter",
        season=4,
        lookback=24,
        horizon=8,
        test_rows=40,
        stride=1,
        settings={
            "max_steps": 50,
            "windows_batch_size": 64,
            "patch_len": 8,
            "stride": 4,
            "learning_rate": 2e-3,
            "weight_averaging": 0.95,
        },
    )


def shortened(panel: Panel) -> Panel:
    """The same, small enough for a smoke run."""
    test_rows = panel.horizon + 2 * panel.stride
    return replace(
        panel,
        frame=panel.frame.iloc[-10 * (panel.lookback + panel.horizon) :],
        test_rows=test_rows,
        settings={**panel.settings, "max_steps": 10},
    )


def forecast(panel: Panel, *, progress: bool) -> pd.DataFrame:
    """Train MVPA once on the training rows and forecast from every origin; one row a forecast value."""
    long = panel.frame.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    steps, rate = int(panel.settings["max_steps"]), panel.settings["learning_rate"]
    model = MVPA(
        h=panel.horizon,
        input_size=panel.lookback,
        n_series=panel.frame.shape[1],
        loss=MQLoss(level=list(LEVELS)),
        lr_scheduler=torch.optim.lr_scheduler.OneCycleLR,
        lr_scheduler_kwargs={"max_lr": rate, "total_steps": steps + 1, "pct_start": 0.2},
        enable_progress_bar=progress,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        **panel.settings,
    )
    forecaster = NeuralForecast(models=[model], freq=panel.freq)
    return forecaster.cross_validation(
        long, n_windows=None, test_size=panel.test_rows, step_size=panel.stride, verbose=0
    ).rename(columns={"MVPA-median": "MVPA"})


def seasonal_naive(panel: Panel, forecasts: pd.DataFrame) -> np.ndarray:
    """The last season before each origin, repeated over the horizon."""
    ahead = np.arange(panel.horizon) % panel.season
    return by_origin(panel, forecasts, lambda past: past[-panel.season :][ahead])


def linear(panel: Panel, forecasts: pd.DataFrame) -> np.ndarray:
    """One least-squares map from look-back to horizon for all channels, around the mean of each look-back."""
    length = panel.lookback + panel.horizon
    windows = np.lib.stride_tricks.sliding_window_view(panel.train, length, axis=0).reshape(-1, length)
    windows = windows / np.tile(panel.train.std(0), len(windows) // panel.frame.shape[1])[:, None]
    windows = windows - windows[:, : panel.lookback].mean(1, keepdims=True)
    past, future = windows[:, : panel.lookback], windows[:, panel.lookback :]
    # The mean is taken out, so the look-backs span one dimension less; a little ridge keeps the system solvable.
    ridge = 1e-3 * len(windows) * np.eye(panel.lookback)
    weights = np.linalg.solve(past.T @ past + ridge, past.T @ future)

    def predict(past: np.ndarray) -> np.ndarray:
        mean = past[-panel.lookback :].mean(0)
        return weights.T @ (past[-panel.lookback :] - mean) + mean

    return by_origin(panel, forecasts, predict)


def by_origin(panel: Panel, forecasts: pd.DataFrame, predict: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply a forecaster of [steps, channels] to the rows up to each origin, in the row order of `forecasts`."""
    columns = list(panel.frame.columns)
    parts = {}
    for origin in forecasts["cutoff"].unique():
        last = panel.frame.index.get_loc(origin)
        parts[origin] = pd.DataFrame(
            predict(panel.values[: last + 1]),
            index=panel.frame.index[last + 1 : last + 1 + panel.horizon],
            columns=columns,
        ).stack()
    predicted = pd.concat(parts)
    return predicted.loc[pd.MultiIndex.from_frame(forecasts[["cutoff", "ds", "unique_id"]])].to_numpy()


def scores(panel: Panel, forecasts: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, dict[int, float]]:
    """Errors over all held-out values, mean absolute error of each channel in its unit, and coverage of intervals."""
    names = ["MVPA", *BASELINES]
    deviation = forecasts["unique_id"].map(dict(zip(panel.frame.columns, panel.train.std(0), strict=True)))
    residual = forecasts[names].sub(forecasts["y"], axis=0)
    scaled = residual.div(deviation, axis=0)
    errors = pd.DataFrame({"MAE": scaled.abs().mean(), "MSE": scaled.pow(2).mean()})
    per_channel = residual.abs().groupby(forecasts["unique_id"]).mean()
    coverage = {
        level: float(forecasts["y"].between(forecasts[f"MVPA-lo-{level}"], forecasts[f"MVPA-hi-{level}"]).mean())
        for level in LEVELS
    }
    return errors, per_channel.rename(index=panel.labels).rename_axis("channel"), coverage


def plot(panel: Panel, forecasts: pd.DataFrame, path: Path) -> Path:
    """The forecast from the last origin: every channel with its history, median, intervals and what came."""
    last = forecasts[forecasts["cutoff"] == forecasts["cutoff"].max()]
    origin = panel.frame.index.get_loc(last["cutoff"].iloc[0])
    shown = panel.frame.iloc[origin + 1 - panel.lookback : origin + 1 + panel.horizon]
    channels = list(panel.frame.columns)
    rows = -(-(len(channels) + 1) // 2)  # one more cell for the legend
    style.apply()
    figure, axes = plt.subplots(rows, 2, figsize=(11, 2.3 * rows), sharex=True)
    for axis, channel in zip(axes.flat, channels, strict=False):
        own = last[last["unique_id"] == channel]
        for level, alpha in ((95, 0.18), (80, 0.32)):
            axis.fill_between(
                own["ds"], own[f"MVPA-lo-{level}"], own[f"MVPA-hi-{level}"],
                color=style.BLUE, alpha=alpha, linewidth=0, label=f"{level} % interval",
            )  # fmt: skip
        axis.plot(own["ds"], own["MVPA"], color=style.BLUE, linewidth=1.6, label="MVPA, median")
        axis.plot(own["ds"], own["linear"], color=style.RED, linewidth=0.9, label="linear")
        axis.plot(shown.index, shown[channel], color="black", linewidth=0.9, label="observed")
        axis.axvline(last["cutoff"].iloc[0], color="grey", linewidth=0.8, linestyle="--", label="forecast origin")
        axis.set_title(panel.labels[channel], fontsize="medium", loc="left")
        axis.grid(alpha=0.25)
        axis.margins(x=0.01)
    for axis in axes.flat[len(channels) :]:
        axis.axis("off")
    axes.flat[len(channels)].legend(*axes.flat[0].get_legend_handles_labels(), loc="center")
    for column in range(2):  # the lowest axis that is in use carries the dates
        axis = axes.flat[max(index for index in range(len(channels)) if index % 2 == column)]
        locator = mdates.AutoDateLocator()
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(f"date ({panel.lookback} {panel.step}s of look-back, {panel.horizon} ahead)")
    figure.suptitle(f"{panel.title}: forecast from the last origin of the held-out part")
    figure.savefig(path)
    plt.close(figure)
    return path


def write_report(
    panel: Panel,
    path: Path,
    picture: Path,
    summary: str,
    errors: pd.DataFrame,
    per_channel: pd.DataFrame,
    coverage: dict[int, float],
    seconds: float,
) -> Path:
    """One HTML file with everything in it."""
    described = errors.rename(index={name: f"{name} ({text})" for name, text in BASELINES.items()})
    image = base64.b64encode(picture.read_bytes()).decode()
    intervals = "; ".join(f"{level} % interval: {share:.1%}" for level, share in coverage.items())
    settings = ", ".join(f"{name} {value}" for name, value in panel.settings.items())
    path.write_text(
        f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>MVPA: {escape(panel.title)}</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
  table {{ border-collapse: collapse; margin: 1rem 0 }}
  th, td {{ padding: .25rem .9rem; border-bottom: 1px solid #ddd; text-align: right }}
  th:first-child {{ text-align: left; font-weight: normal }}
  thead th {{ border-bottom: 2px solid #222 }}
  img {{ width: 100% }}
</style>
<h1>Forecast with MVPA: {escape(panel.title)}</h1>
<p>{panel.frame.shape[1]} channels, {escape(panel.origin)}. Trained on {len(panel.train)} {panel.step}s; the last
{panel.test_rows} were held out.</p>
<h2>Error</h2>
<p>{escape(summary)}.</p>
{described.to_html(float_format="{:.3f}".format, border=0)}
<p>Share of the held-out values inside the intervals of MVPA: {intervals}.</p>
<h2>Forecast</h2>
<img alt="Forecast and observations of every channel" src="data:image/png;base64,{image}">
<h2>Mean absolute error of each channel, in its own unit</h2>
{per_channel.to_html(float_format="{:.3g}".format, border=0)}
<h2>How</h2>
<p><code>NeuralForecast(models=[MVPA(…)])</code>, quantile loss, look-back {panel.lookback} {panel.step}s; {settings}.
Trained and forecast in {seconds:.0f} s on {os.cpu_count()} cores ({escape(platform.machine())}), Python
{platform.python_version()}, torch {torch.__version__}.</p>
</html>
""",
        encoding="utf-8",
    )
    return path


if __name__ == "__main__":
    main()
