"""Short runs of models of neuralforecast at their defaults: what a user gets without settings.

The airline panel (2 series, 144 months): the last 12 months are forecast, MAE in its own units. ETTh1: every window of
the test part at horizon 96, look-back 96, MAE in units of the train rows' standard deviation. Set are horizon,
look-back, number of series and steps, and a loss of absolute errors; everything else is each model's default.

    python experiments/forecasting/short_runs.py               # results/forecasting/short_runs.csv and .md; resumable
    python experiments/forecasting/short_runs.py --rows        # README's rows of MVPA in full, host_rows.csv and .md
    python experiments/forecasting/short_runs.py --quick       # two steps, one look-back, written elsewhere
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.quiet import silence
from harness.study import Study, grid, spread
from harness.tables import RESULTS, machines, read_rows

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


def main() -> None:
    """Run what is not in the table yet, then write the page."""
    parser = script_parser(__doc__, "two steps, one look-back, written elsewhere")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rows", action="store_true", help="README's rows of MVPA, trained and tested by the host")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="of these rows")
    arguments = parser.parse_args()
    silence()
    torch.set_num_threads(1)
    first = slice(1 if arguments.quick else None)
    if arguments.rows:
        study = Study("forecasting", "host_rows", ROW_KEY, rows_markdown, quick=arguments.quick)
        cases = [(*row, seed) for row in ROWS[first] for seed in arguments.seeds[first]]
        study.run(cases, partial(readme_row, steps=2 if arguments.quick else None))
        return
    study = Study("forecasting", "short_runs", KEY, markdown, quick=arguments.quick)
    cases = [(model, *case) for case in CASES[first] for model in arguments.models]
    study.run(cases, partial(short_run, quick=arguments.quick))


def short_run(name: str, dataset: str, lookback: int, steps: int, *, quick: bool) -> dict[str, float]:
    """Error of a model after so many steps, and the seconds of processor time."""
    started = time.process_time()
    run = etth1 if dataset == "ETTh1" else airline
    return {"mae": run(name, lookback, 2 if quick else steps), "seconds": round(time.process_time() - started, 1)}


def model_of(name: str, horizon: int, lookback: int, series: int, steps: int, **options: Any) -> Any:
    """A model at its defaults; the loss is of absolute errors for all."""
    from neuralforecast import models
    from neuralforecast.losses.pytorch import MAE

    from mvpa_ts.adapters.neuralforecast import MVPA

    kind = MVPA if name == "MVPA" else getattr(models, name)
    if kind.MULTIVARIATE:
        options["n_series"] = series
    return kind(h=horizon, input_size=lookback, max_steps=steps, loss=MAE(), **options, **QUIET)


def airline(name: str, lookback: int, steps: int) -> float:
    """MAE over the last twelve months."""
    from neuralforecast import NeuralForecast
    from neuralforecast.utils import AirPassengersPanel

    panel = AirPassengersPanel[["unique_id", "ds", "y"]]
    cut = np.sort(panel["ds"].unique())[-YEAR - 1]
    host = NeuralForecast(models=[model_of(name, YEAR, lookback, 2, steps)], freq="ME")
    host.fit(panel[panel["ds"] <= cut])
    ahead = panel[panel["ds"] > cut]
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


def readme_row(dataset: str, horizon: int, seed: int, *, steps: int | None = None) -> dict[str, float]:
    """Errors and number of windows of a row's settings, trained and tested by `cross_validation`."""
    from harness.forecasting.host import host_model, long_frame
    from harness.forecasting.models import LOOKBACK, MVPA_TRAINING
    from harness.forecasting.settings import MVPA_SETTINGS
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MSE

    started = time.process_time()
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
    return {
        "test_mse": float((error**2).mean()),
        "test_mae": float(np.abs(error).mean()),
        "test_windows": len(error) // (horizon * scaled.shape[1]),
        "seconds": round(time.process_time() - started, 1),
    }


def rows_markdown(rows: pd.DataFrame) -> str:
    """One line a row of the README: through the host, and by the experiments' own loop."""
    harness = read_rows(RESULTS / "forecasting" / "forecasting.csv")
    lines = [
        "# README's rows through NeuralForecast",
        "",
        "Made by `experiments/forecasting/short_runs.py --rows`: `NeuralForecast(models=[MVPA(...)])` with the "
        "settings of each row, as many steps as its epochs have, `cross_validation` over all test windows. Beside it "
        "the row of the experiments' own loop (`experiments/forecasting/forecasting.py`), both as mean ± standard "
        "deviation over seeds. ETTh2's rows stop early, in the host by `early_stop_patience_steps`, and keep the "
        "weights of the best validation.",
        "",
    ]
    table = []
    for (dataset, horizon), part in rows.groupby(ROW_KEY[:2]):
        loop = harness[harness["model"].eq("MVPA") & harness["dataset"].eq(dataset) & harness["horizon"].eq(horizon)]
        cells = [spread(runs[name], 4) for name in ("test_mse", "test_mae") for runs in (part, loop)]
        table.append([dataset, horizon, len(part), part["test_windows"].iloc[0], *cells])
    heads = ["data", "horizon", "seeds", "windows", "MSE, host", "MSE, own loop", "MAE, host", "MAE, own loop"]
    lines += grid(heads, table)
    return "\n".join([*lines, "", machines(rows)]) + "\n"


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
    ]
    table = []
    for (dataset, lookback, steps), part in rows.groupby(KEY[1:], sort=False):
        errors = part.set_index("model")["mae"]
        digits = 3 if dataset == "ETTh1" else 1
        cells = [f"{errors[name]:.{digits}f}" if name in errors else "–" for name in models]
        table.append([dataset, lookback, steps, *cells])
    lines += grid(["data", "look-back", "steps", *models], table)
    return "\n".join([*lines, "", machines(rows)]) + "\n"


if __name__ == "__main__":
    main()
