"""Does pretraining help if only one or two seizures are known? One animal, tiny MVPFormer and MV-Llama.

A model is pretrained by prediction on simulated subjects, on the animal's own stretches without seizure that train, or
not at all; then all weights are finetuned on one or two of the three seizures with their stretches, and every other
seizure is tested with its own. Batches, steps and seeds are the same for all. The baselines stand beside them. With all
three seizures there is nothing left to test on. The recordings are those of `real_seizures.py`; where they are missing,
the script says so.

    python experiments/ieeg/few_seizures.py           # results/detection/few_seizures.*, resumable
    python experiments/ieeg/few_seizures.py --quick   # simulated stand-ins, a few steps, written to a temporary folder
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.baselines import INSTALLED, PUBLISHED
from harness.detection.real import Fold, Scores, animal_folder, brainmaze, folds_of, line_length, regression
from harness.detection.results import begin_study
from harness.detection.simulated import pretrained_on_simulated
from harness.detection.training import Training, augmented, finetune, pretrain, scale_initialisation
from harness.study import Study
from sklearn.metrics import roc_auc_score

from mvpa_ts.ieeg import Detector, MVPFormer, Segments, mvpformer_tiny, read_recording
from mvpa_ts.ieeg.scoring.cohort import markdown_table

MODELS = {"MVPFormer-tiny": "mvpa", "MV-Llama-tiny": "llama"}
# A baseline is made of the seizures and of the stretches that train; nothing about it depends on a seed.
BASELINES: dict[str, Callable[[Sequence[Path], Sequence[Path]], Scores]] = {
    "line length": lambda seizures, stretches: line_length,
    "logistic regression": regression,
    PUBLISHED: lambda seizures, stretches: brainmaze,
}
PRETRAINING = ("none", "simulated subjects", "own stretches without seizure")
SEEDS = (0, 1, 2)
CONTEXT, COPIES = 4, 4
PRETRAINING_STEPS, FINETUNING_STEPS = 100, 60


def main() -> None:
    """Train what the table lacks, and write it."""
    parser = script_parser(__doc__)
    parser.add_argument("--output", type=Path, default=Path("few_seizures_output"), help="folder of models")
    arguments = parser.parse_args()
    results = begin_study(quick=arguments.quick)
    output = results / "models" if arguments.quick else arguments.output
    data = animal_folder(output, quick=arguments.quick)
    if data is None:
        return
    few = FewSeizures(folds_of(data), output, quick=arguments.quick)
    # The stand-ins are shorter than a window of pretraining.
    seeds, bases = (SEEDS[:1], PRETRAINING[:2]) if arguments.quick else (SEEDS, PRETRAINING)
    runs = [*itertools.product(seeds, few.choices(), MODELS, bases)]
    baselines = [name for name in BASELINES if name != PUBLISHED or PUBLISHED in INSTALLED]
    runs += itertools.product(SEEDS[:1], few.choices(), baselines, ["–"])
    choices = {str(used): used for used in few.choices()}

    def measure(name: str, base: str, count: int, used: str, seed: int) -> dict[str, Any]:
        started = time.process_time()
        return few.run(name, base, choices[used], seed) | {"cpu_s": time.process_time() - started}

    key = ["model", "pretraining", "seizures", "used", "seed"]
    study = Study("detection", "few_seizures", key, report, table=results / "few_seizures.csv")
    study.run([(name, base, len(used), str(used), seed) for seed, used, name, base in runs], measure)


class FewSeizures:
    """Models of one animal, from one or two of its seizures."""

    def __init__(self, folds: Sequence[Fold], output: Path, *, quick: bool) -> None:
        self.folds = {fold.number: fold for fold in folds}
        self.output, self.quick = output, quick
        self._views: dict[tuple[Path, int], list[Segments]] = {}

    def choices(self) -> Iterator[tuple[int, ...]]:
        """Which seizures train: each alone, and each pair; the first of both in a quick run."""
        for count in (1, 2):
            yield from itertools.islice(itertools.combinations(sorted(self.folds), count), 1 if self.quick else None)

    def run(self, name: str, pretraining: str, used: tuple[int, ...], seed: int) -> dict[str, Any]:
        """AUROC of the segments of each other seizure with its own stretches, and their mean."""
        folds = [self.folds[number] for number in used]
        scores = self._baseline(name, folds) if name in BASELINES else self._finetuned(name, pretraining, folds, seed)
        values = {}
        for number in sorted(set(self.folds) - set(used)):
            fold = self.folds[number]
            ictal = scores(fold.seizure)
            quiet = np.concatenate([scores(file) for file in fold.stretches])
            labels = np.repeat([1, 0], [len(ictal), len(quiet)])
            values[f"seizure {number}"] = float(roc_auc_score(labels, np.concatenate([ictal, quiet])))
        return values | {"auroc": float(np.mean([*values.values()]))}

    @staticmethod
    def _baseline(name: str, folds: Sequence[Fold]) -> Callable[[Path], np.ndarray]:
        stretches = [file for fold in folds for file in fold.stretches]
        return partial(BASELINES[name]([fold.seizure for fold in folds], stretches), gain=1.0)

    def _finetuned(self, name: str, pretraining: str, folds: Sequence[Fold], seed: int) -> Callable[[Path], np.ndarray]:
        used = tuple(fold.number for fold in folds)
        base = self.base(name, pretraining, used, seed)
        training = self._training(FINETUNING_STEPS, 2e-3, seed, "finetuned", name, pretraining, str(used))
        files = [file for fold in folds for file in (fold.seizure, *fold.stretches)]
        model, _ = finetune(base, [view for file in files for view in self._augmented(file, seed)], "full", training)
        return partial(_scores, Detector(model, rules="none"))

    def base(self, name: str, pretraining: str, used: tuple[int, ...], seed: int) -> MVPFormer:
        """A pretrained model, or one of wide initial weights."""
        config = mvpformer_tiny(context=CONTEXT, attention=MODELS[name], dropout=0.0)
        if pretraining == "none":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = MVPFormer(config)
            scale_initialisation(model)
            return model
        key = "simulated" if pretraining.startswith("simulated") else str(used)
        training = self._training(PRETRAINING_STEPS, 5e-4, seed, "base", name, key)
        if key == "simulated":
            return pretrained_on_simulated(config, training, quick=self.quick)
        folder = training.folder / "model"
        if not (folder / "config.json").is_file():
            files = [file for number in used for file in self.folds[number].stretches]
            segments = [view for file in files for view in self._augmented(file, seed)]
            pretrain(config, segments, training).save_pretrained(folder)
        return MVPFormer.from_pretrained(folder)

    def _augmented(self, file: Path, seed: int) -> list[Segments]:
        if (file, seed) not in self._views:
            self._views[file, seed] = augmented(read_recording(file), COPIES, seed)
        return self._views[file, seed]

    def _training(self, steps: int, rate: float, seed: int, *parts: str) -> Training:
        folder = self.output / "-".join([*(part.replace(" ", "_") for part in parts), str(seed)])
        trainer = {"accelerator": "cpu", "devices": 1}
        return Training(2 if self.quick else steps, rate, 8, 1, folder, seed, trainer)


def _scores(detector: Detector, file: Path) -> np.ndarray:
    detection = detector.detect(file)
    return detection.probabilities[detection.scored]


def report(rows: pd.DataFrame) -> str:
    """Mean and spread over choices of seizures and seeds."""
    lines = []
    for (name, pretraining), part in rows.groupby(["model", "pretraining"], sort=False):
        line: dict[str, Any] = {"": name, "pretrained on": pretraining}
        for count, values in part.groupby("seizures")["auroc"]:
            line[f"{count} seizure{'s' if count > 1 else ''}"] = f"{values.mean():.3f} ± {values.std(ddof=0):.3f}"
            line[f"lowest, {count}"] = f"{values.min():.3f}"
        lines.append(line)
    return (
        "One dog; finetuned on one or two of three seizures with their stretches, tested on every other seizure with "
        "its own. AUROC of segments of 5 s, mean ± standard deviation over choices of seizures and "
        f"{rows['seed'].nunique()} seed(s), which baselines do not have. All weights are finetuned for "
        f"{FINETUNING_STEPS} steps, pretraining takes {PRETRAINING_STEPS}.\n\n{markdown_table(pd.DataFrame(lines))}\n"
        f"{rows['cpu_s'].sum():.0f} s of processor time; {', '.join(rows['hardware'].unique())}; 1 thread.\n"
    )


if __name__ == "__main__":
    main()
