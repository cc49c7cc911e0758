"""Short runs of models of neuralforecast at their defaults: what a user gets without settings.

The airline panel (2 series, 144 months): the last 12 months are forecast, MAE in its own units. ETTh1: every window of
the test part at horizon 96, look-back 96, MAE in units of the train rows' standard deviation. Set are horizon,
look-back, number of series and steps, and a loss of absolute errors; everything else is each model's default.
MVPA's default rates were chosen on the three years before the last of the airline panel (`--validation`).

    python experiments/forecasting/short_runs.py               # results/forecasting/short_runs.csv and .md; resumable
    python experiments/forecasting/short_runs.py --validation  # MVPA on earlier years; prints only
    python experiments/forecasting/short_runs.py --rows        # README's rows of MVPA in full, host_rows.csv and .md
    python experiments/forecasting/short_runs.py --quick       # two steps, one look-back, written elsewhere
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.quiet import silence
from harness.tables import append_row, hardware, machines, read_rows, results_folder, write_page

from mvpa_ts.datasets.forecasting import Borders, forecasting_windows, load_forecasting_frame

MODELS = ("MVPA", "iTransformer", "NHITS", "TSMixerx")
# Data set, look-back, steps.
CASES = [("airline", lookback, steps) for steps in (100, 500) for lookback in (24, 36)] + [("ETTh1", 96, 200)]
YEAR, HORIZON = 12, 96
KEY = ["model", "dataset", "lookback", "steps"]
# README's rows; of Weather, where a run takes minutes, one.
ROWS = [(dataset, horizon) for dataset in ("ETTh1", "ETTh2") for horizon in (96, 192, 336, 720)] + [("Weather", 96)]
ROW_KEY = ["dataset", "horizon", "seed"]
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
# Rates of the attention path and of the linear path.
RATES = ((1e-3, 3e-2), (1e-3, 1e-2), (1e-3, 6e-2), (3e-3, 3e-2), (6e-3, 6e-3))


def main() -> None:
    """Run what is not in the table yet, then write the page."""
    parser = script_parser(__doc__, "two steps, one look-back, written elsewhere")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--validation", action="store_true", help="rates of MVPA on earlier years of the airline panel")
    parser.add_argument("--rows", action="store_true", help="README's rows of MVPA, trained and tested by the host")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="of these rows")
    arguments = parser.parse_args()
    silence()
    torch.set_num_threads(1)
    if arguments.validation:
        validate(quick=arguments.quick)
        return
    if arguments.rows:
        readme_rows(arguments.seeds, quick=arguments.quick)
        return
    table = results_folder("forecasting", quick=arguments.quick) / "short_runs.csv"
    for dataset, lookback, steps in CASES[: 1 if arguments.quick else None]:
        for model in arguments.models:
            known = read_rows(table)
            key = (model, dataset, lookback, steps)
            if not known.empty and key in set(known[KEY].itertuples(index=False, name=None)):
                continue
            taken = 2 if arguments.quick else steps
            started = time.process_time()
            error = etth1(model, lookback, taken) if dataset == "ETTh1" else airline(model, lookback, taken)
            seconds = round(time.process_time() - started, 1)
            machine = {"hardware": hardware(), "threads": 1, "torch": torch.__version__}
            append_row(table, {**dict(zip(KEY, key, strict=True)), "mae": error, "seconds": seconds, **machine})
            print(f"{model}, {dataset}, look-back {lookback}, {steps} steps: MAE {error:.3f}", flush=True)
    write_page(table, markdown(read_rows(table)))


def model_of(name: str, horizon: int, lookback: int, series: int, steps: int, **options: Any) -> Any:
    """A model at its defaults; the loss is of absolute errors for all."""
    from neuralforecast import models
    from neuralforecast.losses.pytorch import MAE

    from mvpa_ts.adapters.neuralforecast import MVPA

    kind = MVPA if name == "MVPA" else getattr(models, name)
    if kind.MULTIVARIATE:
        options["n_series"] = series
    return kind(h=horizon, input_size=lookback, max_steps=steps, loss=MAE(), **options, **QUIET)


def airline(name: str, lookback: int, steps: int, years_back: int = 0, **options: Any) -> float:
    """MAE over the twelve months that end so many years before the last row."""
    from neuralforecast import NeuralForecast
    from neuralforecast.utils import AirPassengersPanel

    panel = AirPassengersPanel[["unique_id", "ds", "y"]]
    dates = np.sort(panel["ds"].unique())
    last = dates[-YEAR * years_back - 1]
    cut = dates[-YEAR * (years_back + 1) - 1]
    host = NeuralForecast(models=[model_of(name, YEAR, lookback, 2, steps, **options)], freq="ME")
    host.fit(panel[panel["ds"] <= cut])
    ahead = panel[(panel["ds"] > cut) & (panel["ds"] <= last)]
    forecast = host.predict().merge(ahead, on=["unique_id", "ds"])
    assert len(forecast) == 2 * YEAR
    return float((forecast[name] - forecast["y"]).abs().mean())


def etth1(name: str, lookback: int, steps: int) -> float:
    """MAE over every window of the test part, trained on the train part."""
    from neuralforecast import NeuralForecast

    frame = load_forecasting_frame("ETTh1")
    borders = Borders.of("ETTh1", len(frame))
    values = frame.set_index("date")
    train = values.iloc[slice(*borders.train)]
    values = ((values - train.mean()) / train.std(ddof=0)).iloc[: borders.test[1]]
    long = values.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    model = model_of(name, HORIZON, lookback, values.shape[1], steps, inference_windows_batch_size=256)
    host = NeuralForecast(models=[model], freq="h")
    held_out = [stop - start for start, stop in (borders.validation, borders.test)]
    forecast = host.cross_validation(long, n_windows=None, val_size=held_out[0], test_size=held_out[1])
    return float((forecast[name] - forecast["y"]).abs().mean())


def readme_rows(seeds: list[int], *, quick: bool) -> None:
    """Run README's rows of MVPA that are not in the table yet, then write the page."""
    table = results_folder("forecasting", quick=quick) / "host_rows.csv"
    for (dataset, horizon), seed in itertools.product(ROWS[: 1 if quick else None], seeds[: 1 if quick else None]):
        known = read_rows(table)
        if not known.empty and (dataset, horizon, seed) in set(known[ROW_KEY].itertuples(index=False, name=None)):
            continue
        started = time.process_time()
        mse, mae, count = readme_row(dataset, horizon, seed, 2 if quick else None)
        row = {"dataset": dataset, "horizon": horizon, "seed": seed, "test_mse": mse, "test_mae": mae}
        machine = {"hardware": hardware(), "threads": 1, "torch": torch.__version__}
        seconds = round(time.process_time() - started, 1)
        append_row(table, {**row, "test_windows": count, "seconds": seconds, **machine})
        print(f"{dataset}, horizon {horizon}, seed {seed}: MSE {mse:.4f}, MAE {mae:.4f}", flush=True)
    write_page(table, rows_markdown(read_rows(table), read_rows(results_folder("forecasting") / "forecasting.csv")))


def readme_row(dataset: str, horizon: int, seed: int, steps: int | None = None) -> tuple[float, float, int]:
    """Test MSE and MAE, and how many windows, of a row's settings trained and tested by `cross_validation`."""
    from harness.forecasting.host import host_model, long_frame
    from harness.forecasting.models import LOOKBACK, MVPA_TRAINING
    from harness.forecasting.settings import MVPA_SETTINGS
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MSE

    frame = load_forecasting_frame(dataset)
    borders = Borders.of(dataset, len(frame))
    whole = forecasting_windows(frame, dataset, lookback=LOOKBACK, horizon=horizon)
    settings = MVPA_SETTINGS[dataset]
    training = {**vars(MVPA_TRAINING), **settings["training"]}
    epoch = -(-len(whole["train"]) // training["batch_size"])
    steps = steps or training["epochs"] * epoch
    validation = {"val_check_steps": steps}
    if training["keep"] == "best":
        validation = {"val_check_steps": epoch, "early_stop_patience_steps": training["patience"], "valid_loss": MSE()}
    rows = slice(borders.test[1])
    scaled = pd.DataFrame(whole["train"].values[rows].numpy(), columns=frame.columns[1:])
    observed = whole["train"].observed
    long = long_frame(scaled, dataset, None if observed is None else observed[rows].numpy())
    model = host_model(
        dataset, horizon, scaled.shape[1], settings, max_steps=steps, random_seed=seed,
        inference_windows_batch_size=256, **validation, **QUIET,
    )  # fmt: skip
    held_out = [stop - start for start, stop in (borders.validation, borders.test)]
    host = NeuralForecast(models=[model], freq="h")
    forecast = host.cross_validation(long, n_windows=None, val_size=held_out[0], test_size=held_out[1])
    error = (forecast["MVPA"] - forecast["y"]).to_numpy(np.float64)
    return float((error**2).mean()), float(np.abs(error).mean()), len(error) // (horizon * scaled.shape[1])


def rows_markdown(rows: pd.DataFrame, harness: pd.DataFrame) -> str:
    """One line a row of the README: through the host, and by the experiments' own loop."""
    lines = [
        "# README's rows through NeuralForecast",
        "",
        "Made by `experiments/forecasting/short_runs.py --rows`: `NeuralForecast(models=[MVPA(...)])` with the "
        "settings of each row, as many steps as its epochs have, `cross_validation` over all test windows. Beside it "
        "the row of the experiments' own loop (`experiments/forecasting/forecasting.py`), both as mean ± standard "
        "deviation over seeds. ETTh2's rows stop early, in the host by `early_stop_patience_steps`, and keep the "
        "weights of the best validation.",
        "",
        "| data | horizon | seeds | windows | MSE, host | MSE, own loop | MAE, host | MAE, own loop |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (dataset, horizon), part in rows.groupby(ROW_KEY[:2]):
        loop = harness[harness["model"].eq("MVPA") & harness["dataset"].eq(dataset) & harness["horizon"].eq(horizon)]
        cells = [
            f"{runs[name].mean():.4f}" + (f" ± {runs[name].std():.4f}" if len(runs) > 1 else "")
            for name in ("test_mse", "test_mae")
            for runs in (part, loop)
        ]
        lines.append(f"| {dataset} | {horizon} | {len(part)} | {part['test_windows'].iloc[0]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", machines(rows)]) + "\n"


def validate(*, quick: bool) -> None:
    """Print MVPA's errors on the three years before the last, for several rates."""
    for rate, linear in RATES[: 1 if quick else None]:
        errors = [
            np.mean(
                [
                    airline(
                        "MVPA", lookback, 2 if quick else 100, back, learning_rate=rate, linear_learning_rate=linear
                    )
                    for back in (1, 2, 3)[: 1 if quick else None]
                ]
            )
            for lookback in (24, 36)
        ]
        print(f"rates {rate:g} and {linear:g}: MAE {errors[0]:.1f} at look-back 24, {errors[1]:.1f} at 36", flush=True)


def markdown(rows: pd.DataFrame) -> str:
    """One row a case, one column a model."""
    models = [name for name in MODELS if name in set(rows["model"])]
    lines = [
        "# Short runs at the defaults",
        "",
        "Made by `experiments/forecasting/short_runs.py`, through `NeuralForecast`, one seed. Airline panel: MAE of "
        "the last 12 months, horizon 12. ETTh1: MAE of every test window, horizon 96, in scaled units. Set are "
        "look-back, number of series, steps and a loss of absolute errors.",
        "",
        f"| data | look-back | steps | {' | '.join(models)} |",
        "|---|---|---|" + "---|" * len(models),
    ]
    for (dataset, lookback, steps), part in rows.groupby(KEY[1:], sort=False):
        errors = part.set_index("model")["mae"]
        digits = 3 if dataset == "ETTh1" else 1
        cells = [f"{errors[name]:.{digits}f}" if name in errors else "–" for name in models]
        lines.append(f"| {dataset} | {lookback} | {steps} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", machines(rows)]) + "\n"


if __name__ == "__main__":
    main()
