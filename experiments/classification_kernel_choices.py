"""Choice of the features of the fixed-kernel path: cross-validation inside TRAIN of each group of features.

No test data, no network: ridge classifiers only.

    python experiments/classification_kernel_choices.py  # results/classification/; .csv and .md
    python experiments/classification_kernel_choices.py --quick    # one small set, written elsewhere
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from harness.classification.folds import dealt
from harness.command_line import script_parser
from harness.tables import hardware, results_folder
from torch import Tensor

from mvpa_ts.classification import ClassificationTraining
from mvpa_ts.classification.kernels import KernelPath
from mvpa_ts.classification.panel import Scaler
from mvpa_ts.classification.ridge import fit_ridge
from mvpa_ts.datasets.uea import load_uea
from mvpa_ts.files import write_text

FOLDS, SEEDS, FEATURES = 5, (1, 2), 5000


def main() -> None:
    """Measure every group on every set, then write both tables."""
    parser = script_parser(__doc__, "one small set, written elsewhere")
    parser.add_argument("--datasets", nargs="+", default=["Handwriting", "SelfRegulationSCP1", "JapaneseVowels"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    datasets = ["BasicMotions"] if arguments.quick else arguments.datasets
    folder = results_folder("classification", quick=arguments.quick)
    rows = []
    for dataset in datasets:
        for seed in SEEDS[: 1 if arguments.quick else None]:
            for group, accuracy, loss in measured(dataset, seed):
                rows.append({"dataset": dataset, "seed": seed, "features": group, "accuracy": accuracy, "loss": loss})
                print(f"{dataset}, seed {seed}, {group}: {accuracy:.1%} ({loss:.3f})", flush=True)
    table = pd.DataFrame(rows)
    write_text(folder / "classification_kernel_choices.csv", table.to_csv(index=False))
    text = markdown(table)
    write_text(folder / "classification_kernel_choices.md", text)
    print(text)


def measured(dataset: str, seed: int) -> Iterator[tuple[str, float, float]]:
    """Accuracy and cross-entropy of each group of features over all folds."""
    series, texts = load_uea(dataset, "train")
    classes, labels = np.unique(texts, return_inverse=True)
    assigned, length = dealt(labels, FOLDS, seed), max(one.shape[1] for one in series)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for fold in range(FOLDS):
        kept, held = np.flatnonzero(assigned != fold), np.flatnonzero(assigned == fold)
        x, mask = Scaler.fit([series[row] for row in kept]).padded(series)
        path = KernelPath(len(series[0]), len(classes), length, FEATURES, seed)
        own = torch.as_tensor(labels[kept])
        path.fit(x[kept], mask[kept], own, torch.ones(len(kept)), seed=seed)
        copies = ClassificationTraining().kernel_augmentation(x[kept], mask[kept], torch.Generator().manual_seed(seed))
        parts = [(x[kept], mask[kept]), copies, (x[held], mask[held])]
        kept_features, copied, held_features = (_features(path, *part) for part in parts)
        first = path.level_bank.num_features
        last = kept_features.shape[1] - path.num_intervals
        everything = torch.ones(kept_features.shape[1])
        level, shares, equal = everything.clone(), everything.clone(), everything.clone()
        level[first:], shares[last:] = 0.0, 0.0
        equal[last:] = 0.5  # they count twice by default
        groups = {
            "shares of level": (level, False),
            "shares of level and shape": (shares, False),
            "intervals": (everything - shares, False),
            "shares and intervals, weighted alike": (equal, False),
            "shares and intervals (default)": (everything, False),
            "default and one warped copy": (everything, True),
        }
        for group, (weight, copied_too) in groups.items():
            rows = torch.cat([kept_features, copied]) if copied_too else kept_features
            ridge = fit_ridge(rows * weight, own, torch.ones(len(own)), num_classes=len(classes), copies=1 + copied_too)
            logits = (held_features * weight) @ ridge.weight.T + ridge.bias
            found.setdefault(group, []).append((logits, torch.as_tensor(labels[held])))
    for group, parts in found.items():
        logits, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        accuracy = (logits.argmax(1) == targets).double().mean().item()
        yield group, accuracy, torch.nn.functional.cross_entropy(logits, targets).item()


@torch.no_grad()
def _features(path: KernelPath, x: Tensor, mask: Tensor) -> Tensor:
    parts = [path.features(*part) for part in zip(x.split(32), mask.split(32), strict=True)]
    return (torch.cat(parts) - path.location) / path.scale


def markdown(rows: pd.DataFrame) -> str:
    """One table, a column a data set."""
    datasets, mean = (
        list(dict.fromkeys(rows["dataset"])),
        rows.groupby(["features", "dataset"])[["accuracy", "loss"]].mean(),
    )
    lines = [
        f"Accuracy % (cross-entropy) of the fixed-kernel path alone, {FOLDS}-fold cross-validation inside TRAIN, mean "
        f"over {rows['seed'].nunique()} seed(s).",
        "",
        "| features | " + " | ".join(datasets) + " |",
        "|---|" + "---|" * len(datasets),
    ]
    for group in dict.fromkeys(rows["features"]):
        cells = [
            f"{100 * mean.loc[(group, name), 'accuracy']:.1f} ({mean.loc[(group, name), 'loss']:.3f})"
            for name in datasets
        ]
        lines.append(f"| {group} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Measured on {hardware()}; one thread, torch {torch.__version__}.", ""])


if __name__ == "__main__":
    main()
