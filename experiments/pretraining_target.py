"""Should pretraining predict the amplitude of the next segment, or only use that of the past?

The encoder's embedding plus the amplitude map's is what a model of amplitude="bands" reads. In pretraining this sum is
also what its predictions are compared with ("with amplitude", the package's own way). Here the map's part is left out
of positives and negatives, and stays in the input ("without amplitude"). Losses of two targets cannot be compared, so
each pretrained model is finetuned in the same way on the same simulated subjects and tested on others.

    python experiments/pretraining_target.py           # results/detection/pretraining_target.*, resumable
    python experiments/pretraining_target.py --quick   # a few steps, written to a temporary folder
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from harness.command_line import script_parser
from harness.detection.baselines import BASELINES, INSTALLED
from harness.detection.results import begin_study
from harness.detection.simulated import held
from harness.detection.training import Training, augmented, finetune, pretrain, scale_initialisation
from harness.tables import append_row, hardware, read_rows, write_page
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from mvpa_ts.ieeg import Detector, MVPFormer, Recording, Segments, mvpformer_tiny, simulate_cohort
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.events import segment_labels
from mvpa_ts.ieeg.model.lora import Method
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.training.pretraining import PretrainingModule
from mvpa_ts.ieeg.training.spans import HeldSegments

SEEDS = (0, 1, 2)
SUBJECTS, TESTED, CHANNELS, SECONDS, SEIZURES = 16, 8, (4, 6, 8), 1200.0, 3
CONTEXT, BATCH, COPIES = 4, 12, 8
PRETRAINING_STEPS, FINETUNING_STEPS = 200, 150
PRETRAINING_RATE, FINETUNING_RATE = 5e-4, 5e-3
METHODS: dict[str, Method] = {"LoRA, amplitude map, head": "lora", "all but the encoder": "blocks"}


class WithoutAmplitude(PretrainingModule):
    """Pretraining whose targets are the encoder's embeddings alone; the input holds the amplitude as before."""

    def _contrast(self, batch: Mapping[str, Any], embeddings: Tensor, *rest: Any, **options: Any) -> Any:
        segments = rearrange(batch["signal"], "b c (t n) -> b t c n", n=SEGMENT_SAMPLES)
        return super()._contrast(batch, self.model.encoder(segments), *rest, **options)


TARGETS: dict[str, type[PretrainingModule] | None] = {
    "with amplitude": PretrainingModule,
    "without amplitude": WithoutAmplitude,
    "no pretraining": None,
}


def main() -> None:
    """Train and test what the table lacks, and write it."""
    parser = script_parser(__doc__)
    parser.add_argument("--output", type=Path, default=Path("pretraining_target_output"), help="folder of models")
    arguments = parser.parse_args()
    results = begin_study(quick=arguments.quick)
    table = results / "pretraining_target.csv"
    output = results / "models" if arguments.quick else arguments.output
    subjects, tested, seeds = (2, 2, SEEDS[:1]) if arguments.quick else (SUBJECTS, TESTED, SEEDS)
    settings: dict[str, Any] = {"num_channels": CHANNELS, "duration": SECONDS, "num_seizures": SEIZURES}
    if arguments.quick:
        settings |= {"duration": 180.0, "num_seizures": 1}
    study = Targets(
        [held(recording) for recording in simulate_cohort(subjects, **settings)],
        [held(recording) for recording in simulate_cohort(tested, first_subject=61, **settings)],
        output,
        quick=arguments.quick,
    )
    runs = [(name, "–", SEEDS[0]) for name in INSTALLED]
    runs += [(target, method, seed) for method, seed, target in itertools.product(METHODS, seeds, TARGETS)]
    for name, method, seed in runs:
        known = {"target": name, "finetuned": method, "seed": seed}
        rows = read_rows(table)
        if not rows.empty and known in rows[[*known]].to_dict("records"):
            continue
        started = time.process_time()
        scores = study.baseline(name) if name in BASELINES else study.model(name, method, seed)
        spent = {"cpu_s": time.process_time() - started, "hardware": hardware()}
        append_row(table, known | {"subjects": tested} | scores | spent)
        print(f"{name}, {method}, seed {seed}: {scores}", flush=True)
    write_page(table, report(read_rows(table)))


class Targets:
    """Models of both targets on one cohort, below one folder."""

    def __init__(self, train: Sequence[Recording], test: Sequence[Recording], output: Path, *, quick: bool) -> None:
        self.train, self.test, self.output, self.quick = train, test, output, quick
        self._views: tuple[int, list[Segments]] = -1, []
        self._tested: list[Segments] = []

    def baseline(self, name: str) -> dict[str, float]:
        """Scores of a baseline, which has no seed."""
        score = BASELINES[name](self.train)
        return scores_of([(recording, *score(recording)) for recording in self.test])

    def model(self, target: str, method: str, seed: int) -> dict[str, float]:
        """Scores of a model that is pretrained on a target and finetuned."""
        training = self._training(FINETUNING_STEPS, FINETUNING_RATE, seed, "finetuned", target, METHODS[method])
        model, _ = finetune(self.base(target, seed), self.views(seed), METHODS[method], training)
        detector = Detector(model, channels="all", rules="none", batch_size=16)
        self._tested = self._tested or [HeldSegments(detector.segments(recording)) for recording in self.test]
        found = [detector.detect_segments(segments) for segments in self._tested]
        return scores_of([(r, f.probabilities, f.starts) for r, f in zip(self.test, found, strict=True)])

    def base(self, target: str, seed: int) -> MVPFormer:
        """The pretrained model, or one of wide initial weights; both methods begin from the same."""
        config = mvpformer_tiny(context=CONTEXT, dropout=0.0)
        module = TARGETS[target]
        if module is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = MVPFormer(config)
            scale_initialisation(model)
            return model
        training = self._training(PRETRAINING_STEPS, PRETRAINING_RATE, seed, "base", target)
        folder = training.folder / "model"
        if not (folder / "config.json").is_file():
            pretrain(config, self.views(seed), training, module=module).save_pretrained(folder)
        return MVPFormer.from_pretrained(folder)

    def views(self, seed: int) -> list[Segments]:
        """Training recordings with shifted, flipped copies."""
        if self._views[0] != seed:
            self._views = seed, [view for recording in self.train for view in augmented(recording, COPIES, seed)]
        return self._views[1]

    def _training(self, steps: int, rate: float, seed: int, *parts: str) -> Training:
        folder = self.output / "-".join([*(part.replace(" ", "_") for part in parts), str(seed)])
        return Training(2 if self.quick else steps, rate, BATCH, 1, folder, seed, {"accelerator": "cpu", "devices": 1})


def scores_of(scored: Sequence[tuple[Recording, np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Area under the ROC curve and average precision over the segments of all recordings."""
    labels = np.concatenate([segment_labels(starts, recording.seizures) for recording, _, starts in scored])
    values = np.concatenate([probabilities for _, probabilities, _ in scored])
    there = np.isfinite(values)
    labels, values = labels[there], values[there]
    return {
        "AUROC": float(roc_auc_score(labels, values)),
        "average precision": float(average_precision_score(labels, values)),
    }


def report(rows: pd.DataFrame) -> str:
    """Mean over seeds and standard deviation."""
    lines = []
    for (target, method), group in rows.groupby(["target", "finetuned"], sort=False):
        line = {"target of pretraining": target, "finetuned": method}
        for measure in ("AUROC", "average precision"):
            spread = f" ± {group[measure].std():.3f}" if len(group) > 1 else ""
            line[measure] = f"{group[measure].mean():.3f}{spread}"
        lines.append(line | {"seeds": len(group)})
    lead = (
        f"Segments of 5 s of {rows['subjects'].max()} unseen simulated subjects; mean over seeds ± standard deviation, "
        f"which baselines do not have. MVPFormer-tiny with amplitude='bands', context {CONTEXT}, pretrained for "
        f"{PRETRAINING_STEPS} steps on {SUBJECTS} subjects and finetuned on the same for {FINETUNING_STEPS} steps. "
        'Target "without amplitude": the part of the amplitude map is left out of positives and negatives of '
        "pretraining, and stays in the input."
    )
    spent = f"{rows['cpu_s'].sum():.0f} s of processor time: {', '.join(rows['hardware'].unique())}, 1 thread."
    return f"{lead}\n\n{markdown_table(pd.DataFrame(lines))}\n{spent}\n"


if __name__ == "__main__":
    main()
