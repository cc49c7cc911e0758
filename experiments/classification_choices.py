"""Choice of the default configuration: cross-validation inside TRAIN of the defaults and of changes of one thing.

No test data. Each fold is trained on the others with statistics of those; rows are appended as folds end and are not
repeated. A change is given by name, or on the command line as JSON.

    python experiments/classification_choices.py  # results/classification/classification_choices.csv and .md
    python experiments/classification_choices.py --changes "mixup 0.2" --datasets Handwriting
    python experiments/classification_choices.py --quick              # two changes, three steps each, written elsewhere
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from harness.classification.folds import dealt
from harness.command_line import script_parser
from harness.tables import append_row, hardware, read_rows, results_folder, write_page
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.classification import ClassificationConfig, ClassificationNetwork, ClassificationTraining
from mvpa_ts.classification.loop import Part, fit_kernels, train_network
from mvpa_ts.classification.panel import Scaler
from mvpa_ts.datasets.uea import load_uea

FOLDS, SEED = 3, 1
# What is changed: sizes of the network; under "training" of its training, under "augmentation" of that.
CHANGES: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "mixup 0.2": {"training": {"mixup": 0.2}},
    "no augmentation": {
        "augmentation": {"warp": 0.0, "crop": 0.0, "scale": 0.0, "noise": 0.0, "cut": 0.0, "channel_dropout": 0.0}
    },
    "stronger augmentation": {"augmentation": {"warp": 0.5, "crop": 0.3, "scale": 0.3, "noise": 0.1}},
    "128 tokens": {"tokens": 128},
    "three convolutional layers": {"conv_layers": 3},
    "one MVPA block": {"num_layers": 1},
    "three MVPA blocks": {"num_layers": 3},
    "learning rate 4e-3": {"training": {"learning_rate": 4e-3}},
    "dropout 0.3": {"dropout": 0.3, "head_dropout": 0.5},
}


def main() -> None:
    """Run what is not in the table yet, then write the Markdown."""
    parser = script_parser(__doc__, "two changes, three steps each, written elsewhere")
    parser.add_argument("--datasets", nargs="+", default=["Handwriting", "SelfRegulationSCP1", "JapaneseVowels"])
    parser.add_argument("--changes", nargs="+", default=list(CHANGES), help="names, or JSON objects")
    parser.add_argument("--folds", nargs="+", type=int, choices=range(FOLDS), default=list(range(FOLDS)))
    parser.add_argument("--table", type=Path, default=None, help="rows are appended here")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.changes if name not in CHANGES and not name.startswith("{")]:
        parser.error(f"--changes must be JSON objects or of {', '.join(CHANGES)}; got {', '.join(unknown)}")
    torch.set_num_threads(1)
    folder = results_folder("classification", quick=arguments.quick)
    table = arguments.table or folder / "classification_choices.csv"
    if arguments.quick:
        arguments.datasets, arguments.changes, arguments.folds = ["JapaneseVowels"], arguments.changes[:2], [0]
    for name in arguments.changes:
        for dataset in arguments.datasets:
            for fold in arguments.folds:
                known = read_rows(table)
                key = (dataset, name, fold)
                if not known.empty and key in set(
                    known[["dataset", "change", "fold"]].itertuples(index=False, name=None)
                ):
                    continue
                row = run_one(dataset, name, fold, quick=arguments.quick)
                append_row(table, row)
                print(
                    f"{dataset}, {name}, fold {fold}: MVPA path {row['attention_accuracy']:.1%} "
                    f"({row['attention_loss']:.3f}), kernels {row['kernel_accuracy']:.1%} ({row['kernel_loss']:.3f}), "
                    f"both {row['accuracy']:.1%} ({row['loss']:.3f}); {row['seconds']:.0f} s",
                    flush=True,
                )
    write_page(table, markdown(read_rows(table)))


def run_one(dataset: str, name: str, fold: int, *, quick: bool = False) -> dict[str, Any]:
    """Train on the other folds and look at this one."""
    series, texts = load_uea(dataset, "train")
    classes, labels = np.unique(texts, return_inverse=True)
    change = dict(CHANGES[name] if name in CHANGES else json.loads(name))
    training = ClassificationTraining(**change.pop("training", {}))
    training = replace(training, augmentation=replace(training.augmentation, **change.pop("augmentation", {})))
    if quick:
        training = replace(training, steps=3)
    training = training.for_panel(len(series))
    config = ClassificationConfig(len(series[0]), len(classes), max(one.shape[1] for one in series), **change)
    assigned = dealt(labels, FOLDS, SEED)
    rows, held = np.flatnonzero(assigned != fold), np.flatnonzero(assigned == fold)
    scaler = Scaler.fit([series[row] for row in rows])
    part, rest = (
        Part(*scaler.padded([series[row] for row in some]), torch.as_tensor(labels[some]), len(classes))
        for some in (rows, held)
    )
    torch.manual_seed(SEED + fold)
    started, own = time.perf_counter(), time.process_time()
    network = ClassificationNetwork(config, SEED + fold)
    curve: list[tuple[int, float]] = []

    def report(step: int, steps: int, loss: float, _: Any, __: Any, averaged: torch.nn.Module) -> None:
        logits = predicted(averaged, rest)
        curve.append((step, round(F.cross_entropy(logits, rest.labels).item(), 4)))

    train_network(network.attention, part, None, training, steps=training.steps or 0, seed=SEED + fold, report=report)
    attended = predicted(network.attention, rest).softmax(1)
    convolved = torch.full_like(attended, 1.0 / len(classes))
    if network.kernels is not None:
        fit_kernels(network.kernels, part, training, SEED + fold)
        convolved = predicted(network.kernels, rest).softmax(1)
    both = predicted(network, rest).softmax(1)
    result: dict[str, Any] = {"dataset": dataset, "change": name, "fold": fold, "held_out": len(held)}
    for prefix, probability in (("attention_", attended), ("kernel_", convolved), ("", both)):
        result[f"{prefix}accuracy"] = (probability.argmax(1) == rest.labels).double().mean().item()
        result[f"{prefix}loss"] = F.nll_loss(probability.clamp(min=1e-9).log(), rest.labels).item()
    return {
        **result,
        "curve": json.dumps(curve),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(time.process_time() - own, 1),
        "hardware": hardware(),
        "settings": json.dumps({**asdict(config), "training": asdict(training)}, sort_keys=True),
    }


@torch.no_grad()
def predicted(network: torch.nn.Module, part: Part) -> Tensor:
    """Logits of a whole part."""
    return torch.cat([network.eval()(x, mask) for x, mask in zip(part.x.split(64), part.mask.split(64), strict=True)])


def markdown(rows: pd.DataFrame) -> str:
    """One table, a column a dataset."""
    lines = [
        f"Accuracy % (cross-entropy) of both paths together, {FOLDS}-fold cross-validation inside TRAIN, seed {SEED}; "
        "in brackets the MVPA path alone.",
        "",
    ]
    datasets = list(dict.fromkeys(rows["dataset"]))
    lines += ["| change | " + " | ".join(datasets) + " |", "|---|" + "---|" * len(datasets)]
    for name in dict.fromkeys(rows["change"]):
        cells = []
        for dataset in datasets:
            own = rows[(rows["dataset"] == dataset) & (rows["change"] == name)]
            if own.empty:
                cells.append("–")
                continue
            mean = {
                c: np.average(own[c], weights=own["held_out"])
                for c in ("accuracy", "loss", "attention_accuracy", "attention_loss")
            }
            cells.append(
                f"{100 * mean['accuracy']:.1f} ({mean['loss']:.3f}) [{100 * mean['attention_accuracy']:.1f} "
                f"({mean['attention_loss']:.3f})]" + ("" if len(own) == FOLDS else f", {len(own)} fold(s)")
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Measured on {', '.join(rows['hardware'].unique())}.", ""])


if __name__ == "__main__":
    main()
