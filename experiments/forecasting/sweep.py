"""Search MVPA's hyperparameters on ETTh1, in a database, and draw what mattered.

Interrupt it and start it again: it goes on where it stopped. Start it on several machines with the same --storage:
they share one search. The rows that published tables test on are never read.

    python experiments/forecasting/sweep.py --quick                       # some seconds, to see it work
    python experiments/forecasting/sweep.py --trials 50                   # sqlite file in the results folder
    python experiments/forecasting/sweep.py --trials 200 --storage postgresql://user@host/sweeps

Writes <output>/sweep-<dataset>-<horizon>.json (best arguments, losses, importance), -history.png and -importance.png.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

from harness.command_line import script_parser
from harness.quiet import silence
from harness.tables import results_folder

from mvpa_ts.files import write_json


def arguments() -> argparse.Namespace:
    """Parse the command line; nothing heavy is imported before."""
    parser = script_parser(__doc__, "few steps, few trials, few rows; written to a temporary folder")
    parser.add_argument("--dataset", choices=["ETTh1", "ETTh2"], default="ETTh1")
    parser.add_argument("--horizon", type=int, default=96, help="steps to forecast (default: 96)")
    parser.add_argument("--trials", type=int, default=30, help="finished trials to have, all workers together")
    parser.add_argument("--storage", help="database URL (default: sqlite file in the output folder)")
    parser.add_argument("--study", help="name of the search (default: made of data, space and split)")
    parser.add_argument("--output", type=Path, help="folder of the results (default: experiments/results/forecasting)")
    options = parser.parse_args()
    if options.output is None:
        options.output = results_folder("forecasting", quick=options.quick)
    return options


def panel(name: str, *, quick: bool) -> tuple[Any, int]:
    """Train and validation rows as neuralforecast takes them, scaled on the train rows, and validation's length."""
    from mvpa_ts.datasets.forecasting import Borders, load_forecasting_frame

    frame = load_forecasting_frame(name)
    borders = Borders.of(name, len(frame))
    values = frame.set_index("date").iloc[: borders.validation[1]]
    train = values.iloc[slice(*borders.train)]
    values = (values - train.mean()) / train.std(ddof=0)
    rows = borders.validation[1] - borders.validation[0]
    if quick:
        values, rows = values.tail(1500), 300
    long = values.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    return long, rows


def search_space(*, quick: bool) -> Any:
    """What is tried: a function of a trial that returns MVPA's arguments. It is also called without a trial."""

    def config(trial: Any) -> dict[str, Any]:
        chosen = {
            "input_size": 96,
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.5),
            "val_check_steps": 5 if quick else 100,
            "early_stop_patience_steps": 5,
            "inference_windows_batch_size": 256,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": False,
        }
        if quick:
            return {**chosen, "max_steps": 10, "hidden_size": 8, "patch_len": 48}
        return {
            **chosen,
            "max_steps": 3000,
            "patch_len": trial.suggest_categorical("patch_len", [12, 24, 48]),
            "hidden_size": trial.suggest_categorical("hidden_size", [16, 32, 64]),
            "encoder_layers": trial.suggest_categorical("encoder_layers", [1, 2, 3]),
            "network": {"regressions": False, "head_dropout": trial.suggest_float("head_dropout", 0.0, 0.6)},
            "training": {"weight_averaging": trial.suggest_categorical("weight_averaging", [None, 0.9, 0.99])},
            "windows_batch_size": trial.suggest_categorical("windows_batch_size", [64, 256]),
        }

    return config


def draw(losses: list[float], importance: dict[str, float], stem: Path) -> None:
    """Draw the history and, once there is something to compare, the importance of each argument."""
    from harness.figures import style
    from matplotlib import pyplot as plt

    style.apply()
    best = [min(losses[: i + 1]) for i in range(len(losses))]
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(range(1, len(losses) + 1), losses, "o", color="0.6", label="trial")
    axes.step(range(1, len(best) + 1), best, where="post", color="C0", label="best so far")
    axes.set(xlabel="finished trials", ylabel="validation loss (MAE, scaled units)")
    axes.legend()
    figure.savefig(f"{stem}-history.png")
    plt.close(figure)

    if not importance:
        return
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.barh(list(importance)[::-1], list(importance.values())[::-1], color="C0")
    axes.set(xlabel="share of the loss's variance that the argument explains")
    figure.savefig(f"{stem}-importance.png")
    plt.close(figure)


def main() -> None:
    """Run the search and write what it found."""
    options = arguments()
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MAE
    from optuna.importance import get_param_importances

    from mvpa_ts.adapters.neuralforecast import AutoMVPA

    silence()
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"sweep-{options.dataset}-{options.horizon}{'-quick' if options.quick else ''}"
    frame, validation_rows = panel(options.dataset, quick=options.quick)
    model = AutoMVPA(
        h=options.horizon,
        n_series=frame["unique_id"].nunique(),
        loss=MAE(),
        config=search_space(quick=options.quick),
        num_samples=min(options.trials, 3) if options.quick else options.trials,
        storage=options.storage or f"sqlite:///{stem}.db",
        study_name=options.study,
    )
    forecaster = NeuralForecast(models=[model], freq="h")
    forecaster.fit(frame, val_size=validation_rows)

    study = forecaster.models[0].results
    losses = [trial.value for trial in study.trials if trial.state.name == "COMPLETE"]
    importance = get_param_importances(study) if len(set(losses)) > 1 else {}
    best = {
        "loss": study.best_value,
        "trials": len(losses),
        "arguments": study.best_trial.user_attrs["ALL_PARAMS"],
        "losses": losses,
        "importance": importance,
    }
    write_json(f"{stem}.json", best)
    draw(losses, importance, stem)
    print(f"best validation MAE {study.best_value:.4f} after {len(losses)} trials; see {stem}.json")


if __name__ == "__main__":
    main()
