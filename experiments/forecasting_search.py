"""Search MVPA's settings without test data: on the validation part, or in blocked cross-validation.

On the validation part, one search serves all horizons. A trial is compared with the linear path alone, channel by
channel: the mean over channels and horizons of the change in percent of MSE and MAE. One mean over all channels would
be that of the few whose level drifts in the validation part: four of ETTh1's seven make 70 to 84 % of the squared
error there.

With ``--blocks``, trials are judged on the four blocks of `harness.forecasting.blocks`, which cover all seasons. Drift
averages out there, and what is compared is the mean over channels, as in the test. With ``--horizon``, that horizon has
a search of its own, in blocks.

Every run is a row of a table. Trials that the table holds are told to the search again instead of being run, so that a
killed search goes on where it was.

    python experiments/forecasting_search.py  # ETTh1: forecasting/forecasting_search_ETTh1.csv, .md
    python experiments/forecasting_search.py --dataset ETTh2 --trials 40
    python experiments/forecasting_search.py --blocks --trials 30       # forecasting_search_ETTh1_blocks.csv, .md
    python experiments/forecasting_search.py --horizon 96 --trials 20  # …_ETTh1_96.csv, .md
    python experiments/forecasting_search.py --quick             # two trials of three steps, written elsewhere
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.forecasting.blocks import BLOCKS, THINNING, blocks, thinned
from harness.forecasting.models import CYCLES, LOOKBACK, configured
from harness.forecasting.models import HORIZONS as ALL_HORIZONS
from harness.forecasting.settings import MVPA_SETTINGS, SEARCHED_SETTINGS
from harness.tables import append_row, hardware, read_rows, results_folder, write_page

from mvpa_ts.datasets.forecasting import forecasting_windows, load_forecasting_frame
from mvpa_ts.forecasting.errors import errors_by_channel
from mvpa_ts.forecasting.training import train

SEED, REFERENCE = 1, -1
# A run of Weather takes several times as long as one of ETT.
HORIZONS = {"ETTh1": (96, 336, 720), "ETTh2": (96, 336, 720), "Weather": (96, 336)}
# Where the search starts: the settings before it, and others that were tried.
_ETTH1: dict[str, Any] = {
    "learning_rate": 1e-3,
    "linear_learning_rate": 2e-2,
    "batch_size": 256,
    "epochs": 15,
    "weight_averaging": 0.99,
    "horizon_decay": 0.0,
    "frequency_weight": 0.0,
    "phase_weights": False,
    "dim": 16,
    "patches": "48/48",
    "dropout": 0.3,
    "head_dropout": 0.5,
    "attention_dropout": 0.2,
}
_FIRST = {"learning_rate": 6e-3, "linear_learning_rate": 6e-3, "dim": 32, "patches": "48/24", "attention_dropout": 0.0}
_ETTH2: dict[str, Any] = {
    **_ETTH1,
    **_FIRST,
    "learning_rate": 2e-3,
    "linear_learning_rate": 2e-3,
    "cycle": False,
    "patches": "24/12",
}
_LIKE_ETTH1 = {
    "learning_rate": 4.3e-4,
    "linear_learning_rate": 3.1e-2,
    "batch_size": 64,
    "epochs": 5,
    "weight_averaging": 0.995,
    "frequency_weight": 0.25,
    "phase_weights": True,
    "cycle": True,
    "patches": "96/96",
    "dropout": 0.2,
    "head_dropout": 0.8,
    "attention_dropout": 0.2,
}
_WEATHER: dict[str, Any] = {
    "learning_rate": 5e-3,
    "linear_learning_rate": 1e-4,
    "batch_size": 64,
    "epochs": 2,
    "weight_averaging": 0.98,
    "frequency_weight": 0.0,
    "dim": 64,
    "patches": "48/48",
    "dropout": 0.1,
    "head_dropout": 0.1,
    "attention_dropout": 0.2,
    "ridge": 1.0,
    "cycle_strength": 1.0,
    "reversion_strength": 0.5,
}
STARTS: dict[str, list[dict[str, Any]]] = {
    "ETTh1": [_ETTH1, {**_ETTH1, **_FIRST}],
    "ETTh2": [_ETTH2, {**_ETTH2, **_LIKE_ETTH1}],
    "Weather": [_WEATHER, {**_WEATHER, "patches": "96/96"}],
}
# Of a search in blocks: few epochs, fewer still, a wider attention path.
_FEW = {**_ETTH1, **_LIKE_ETTH1, "dim": 32, "frequency_weight": 0.5}
_FEWER, _WIDE = {"epochs": 2, "weight_averaging": 0.99}, {"dim": 64, "head_dropout": 0.3, "learning_rate": 2e-3}
STARTS_IN_BLOCKS: dict[str, list[dict[str, Any]]] = {
    "ETTh1": [_FEW, {**_FEW, **_FEWER}, {**_FEW, **_WIDE}],
    "ETTh2": [_FEW, {**_FEW, **_FEWER}, _ETTH2],
}
Part = tuple[int, int | None]  # a horizon, and the block to forecast (None: the validation part)


def main() -> None:
    """Run the trials that are not in the table yet, then write the Markdown."""
    parser = script_parser(__doc__, "two trials, one horizon, three steps, written elsewhere")
    parser.add_argument("--dataset", choices=list(STARTS), default="ETTh1")
    parser.add_argument("--blocks", action="store_true", help="judge by blocked cross-validation; not on Weather")
    parser.add_argument("--horizon", type=int, choices=ALL_HORIZONS, help="search for that one, in blocks")
    parser.add_argument("--trials", type=int, default=50, help="trials to have in the table, pruned ones counted")
    arguments = parser.parse_args()
    in_blocks = arguments.blocks or arguments.horizon is not None
    if in_blocks and arguments.dataset not in STARTS_IN_BLOCKS:
        parser.error(f"--blocks and --horizon need --dataset {' or '.join(STARTS_IN_BLOCKS)}, got {arguments.dataset}")
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = results_folder("forecasting", quick=arguments.quick)
    suffix = f"_{arguments.horizon or 'blocks'}" if in_blocks else ""
    table = folder / f"forecasting_search_{arguments.dataset}{suffix}.csv"
    trials = 2 if arguments.quick else arguments.trials
    search(table, arguments.dataset, trials, in_blocks=in_blocks, horizon=arguments.horizon, quick=arguments.quick)
    write_page(table, markdown(read_rows(table)))


def search(
    table: Path, dataset: str, trials: int, *, in_blocks: bool = False, horizon: int | None = None, quick: bool = False
) -> optuna.Study:
    """Run trials until the table holds that many; without a `horizon`, for several at once."""
    horizons = (horizon,) if horizon else HORIZONS[dataset]
    # Block by block, so that a trial that is pruned early has been seen at every horizon.
    places: tuple[int | None, ...] = tuple(range(BLOCKS)) if in_blocks else (None,)
    parts: list[Part] = [(each, place) for place in places for each in horizons][: 1 if quick else None]
    starts = (STARTS_IN_BLOCKS if in_blocks else STARTS)[dataset]
    without_attention = {
        "num_layers": 0,
        "cycle_length": CYCLES[dataset] if in_blocks else MVPA_SETTINGS[dataset].get("cycle_length"),
        "training": {"learning_rate": 2e-2, "keep": "last"},
    }
    if dataset == "Weather":
        without_attention = {**SEARCHED_SETTINGS[dataset], "num_layers": 0}
    reference = {part: run(table, dataset, part, REFERENCE, {}, without_attention, quick=quick) for part in parts}

    def objective(trial: optuna.Trial) -> float:
        settings = suggested(trial, dataset, in_blocks=in_blocks)
        scores: list[float] = []
        for part in parts:
            errors = run(table, dataset, part, trial.number, trial.params, settings, quick=quick)
            scores.append(change(errors, reference[part], part))
            trial.report(sum(scores) / len(scores), len(scores))
            if trial.should_prune():
                raise optuna.TrialPruned
        return sum(scores) / len(scores)

    known = read_rows(table)
    told = [json.loads(text) for text in known[known["trial"] != REFERENCE].groupby("trial")["arguments"].first()]
    # Trials that are told draw nothing: with the same seed, a search that goes on would draw the first ones again.
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(
            seed=SEED + len(told), multivariate=True, n_startup_trials=8 if in_blocks else 12
        ),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=8, n_warmup_steps=2 * len(horizons) if in_blocks else 0),
    )
    for chosen in [*told, *starts[len(told) :]]:
        study.enqueue_trial(chosen)
    study.optimize(objective, n_trials=trials, callbacks=[say])
    return study


def suggested(trial: optuna.Trial, dataset: str, *, in_blocks: bool = False) -> dict[str, Any]:
    """Settings of one trial, written as in `MVPA_SETTINGS`; on Weather they start in closed form."""
    closed_form = dataset == "Weather"
    dims, epochs = ([32, 64, 128], [1, 2, 3]) if closed_form else ([16, 32], [5, 10, 15])
    if in_blocks:
        dims, epochs = [16, 32, 64], [1, 2, 3, 5, 8, 15]
    settings: dict[str, Any] = dict(SEARCHED_SETTINGS["Weather"]) if closed_form else {}
    if not closed_form:
        cycle = CYCLES[dataset] if dataset == "ETTh1" or trial.suggest_categorical("cycle", [False, True]) else None
        phase_weights = trial.suggest_categorical("phase_weights", [False, True])
        settings |= {"cycle_length": cycle, "phase_weights": phase_weights and cycle is not None}
    rate = two_digits(trial.suggest_float("learning_rate", 3e-4, 1e-2, log=True))
    slowest = {"ETTh1": 5e-3, "ETTh2": 1e-3, "Weather": 1e-5}[dataset]
    linear_rate = two_digits(trial.suggest_float("linear_learning_rate", slowest, 5e-2, log=True))
    dim = trial.suggest_categorical("dim", dims)
    patches = ["24/24", "48/24", "48/48", "96/96"] + ["24/12"] * (dataset == "ETTh2")
    length, stride = trial.suggest_categorical("patches", patches).split("/")
    training = {
        "learning_rate": rate,
        "linear_rate": linear_rate / rate,
        "batch_size": trial.suggest_categorical("batch_size", [64, 128, 256]),
        "epochs": trial.suggest_categorical("epochs", epochs),
        "weight_averaging": trial.suggest_categorical("weight_averaging", [0.98, 0.99, 0.995]),
        "frequency_weight": trial.suggest_float("frequency_weight", 0.0, 0.5, step=0.25),
        # The weights at the end of the cycle: an epoch picked on these data would flatter their errors.
        "keep": "last",
    }
    if closed_form:
        training["ridge"] = two_digits(trial.suggest_float("ridge", 0.1, 10.0, log=True))
        training["cycle_strength"] = trial.suggest_float("cycle_strength", 0.5, 1.0, step=0.25)
        training["reversion_strength"] = trial.suggest_float("reversion_strength", 0.0, 0.75, step=0.25)
    else:
        training["horizon_decay"] = trial.suggest_float("horizon_decay", 0.0, 1.0, step=0.25)
    return {
        **settings,
        "dim": dim,
        "mlp_dim": 2 * dim,
        "patch_length": int(length),
        "patch_stride": int(stride),
        "dropout": trial.suggest_float("dropout", 0.1, 0.7, step=0.1),
        "head_dropout": trial.suggest_float("head_dropout", 0.1, 0.8, step=0.1),
        "attention_dropout": trial.suggest_float("attention_dropout", 0.0, 0.4, step=0.2),
        "training": training,
    }


def two_digits(number: float) -> float:
    """A number that can be written down."""
    return float(f"{number:.1e}")


def run(
    table: Path,
    dataset: str,
    part: Part,
    trial: int,
    arguments: dict[str, Any],
    settings: dict[str, Any],
    *,
    quick: bool,
) -> torch.Tensor:
    """Errors [2, C] on the validation part or a block: of the table, or trained for and added to it."""
    known, (horizon, block) = read_rows(table), part
    if not known.empty:
        own = known[(known["trial"] == trial) & (known["horizon"] == horizon)]
        errors = own["errors"] if block is None else own.loc[own["block"] == block, "errors"]
        if len(errors):
            return torch.tensor(json.loads(errors.iloc[0]))
    frame, every = load_forecasting_frame(dataset), 1
    if block is None:
        windows = forecasting_windows(frame, dataset, lookback=LOOKBACK, horizon=horizon)
    else:
        windows, every = thinned(blocks(dataset, horizon)[block], THINNING[dataset]), THINNING[dataset][0]
    if quick:
        windows = {name: replace(whole, starts=whole.starts[:64]) for name, whole in windows.items()}
    torch.manual_seed(SEED)
    model, training, _ = configured(dataset, horizon, frame.shape[1] - 1, settings)
    training = replace(training, epochs=training.epochs * every)  # as many steps as on all windows
    outcome = train(model, windows, training, seed=SEED, max_steps=3 if quick else None)
    errors = errors_by_channel(model, windows["validation"])
    row = {
        "trial": trial,
        "horizon": horizon,
        **({} if block is None else {"block": block}),
        "arguments": json.dumps(arguments, sort_keys=True),
        "mse": outcome.validation_mse,
        "mae": outcome.validation_mae,
        "errors": json.dumps([[round(number, 6) for number in error] for error in errors.tolist()]),
        "seconds": round(outcome.seconds, 1),
        "hardware": hardware(),
    }
    append_row(table, row)
    return torch.tensor(json.loads(row["errors"]))


def change(errors: torch.Tensor, reference: torch.Tensor, part: Part) -> float:
    """Change of errors [2, C] in percent, mean over both: channel by channel, or in a block that of all channels."""
    if part[1] is not None:
        errors, reference = errors.mean(1), reference.mean(1)
    return 100.0 * (errors / reference - 1.0).mean().item()


def say(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """One line a trial."""
    value = "pruned" if trial.state is optuna.trial.TrialState.PRUNED else f"{trial.value:+.2f} %"
    print(f"trial {trial.number}: {value}", flush=True)


def ranked(rows: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """Change in percent and rows of the trials that were run on every part, the best first."""
    parts: list[Part] = [
        (horizon, int(block) if "block" in rows else None)
        for horizon, block in zip(rows["horizon"], rows.get("block", rows["horizon"]), strict=True)
    ]
    rows = rows.assign(part=parts, errors=[torch.tensor(json.loads(text)) for text in rows["errors"]])
    reference = rows[rows["trial"] == REFERENCE].set_index("part")
    trials: list[tuple[float, pd.DataFrame]] = []
    for _, own in rows[rows["trial"] != REFERENCE].groupby("trial"):
        if len(own) == len(reference):
            changes = [
                change(errors, reference.at[part, "errors"], part)
                for part, errors in zip(own["part"], own["errors"], strict=True)
            ]
            trials.append((sum(changes) / len(changes), own))
    return sorted(trials, key=lambda trial: trial[0])


def markdown(rows: pd.DataFrame) -> str:
    """Trials that were run on every part, the best first, with their errors and arguments."""
    reference, in_blocks = rows[rows["trial"] == REFERENCE], "block" in rows
    horizons, trials, best_first = reference["horizon"].unique(), rows[rows["trial"] != REFERENCE], ranked(rows)
    names = sorted(json.loads(trials["arguments"].iloc[0]))
    finished, count = len(best_first), trials["trial"].nunique()
    where, over, parts, some = "Validation part", "channels, horizons", "horizons", "after a horizon or two"
    what = "horizons" if len(horizons) > 1 else "horizon"
    if in_blocks:
        where, over, parts, some = "Blocked cross-validation", f"{BLOCKS} blocks", "blocks", "after some blocks"
        if len(horizons) > 1:
            over, parts = f"{BLOCKS} blocks, horizons", "blocks and horizons"
    ended = "" if finished == count else f" of {count}; the others were pruned {some}"
    lines = [
        f"{where}, look-back {LOOKBACK}, {what} {', '.join(map(str, horizons))}, seed {SEED}. "
        f"Change: against the linear path alone, mean over {over}, MSE and MAE, in percent; less is better. "
        f"MSE / MAE: mean over the {parts}, in scaled units. "
        f"{finished} trials{ended}.",
        "",
        f"| trial | change | MSE / MAE | {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---|---|---|" + "---|" * len(names),
        f"| linear path alone | 0 | {reference['mse'].mean():.4f} / {reference['mae'].mean():.4f} |"
        + " – |" * len(names),
    ]
    for score, own in best_first:
        chosen = json.loads(own["arguments"].iloc[0])
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in map(chosen.get, names)]
        errors = f"{own['mse'].mean():.4f} / {own['mae'].mean():.4f}"
        lines.append(f"| {own['trial'].iloc[0]} | {score:+.2f} | {errors} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Measured on {', '.join(rows['hardware'].unique())}.", ""])


if __name__ == "__main__":
    main()
