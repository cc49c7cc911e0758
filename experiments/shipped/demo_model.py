"""Train the shipped models on simulated subjects only: "demo", which detects, and "demo-base", to be finetuned.

Their subjects are those of seed 7, which no table of this folder tests on. All weights are trained, from random ones,
on segments whose gain, spectrum, channels, polarity and borders vary.

`mvpformer detect` takes "demo" without --model. Its seizures are strong or weak, regular or not; the power of its
segments drifts, and half of its spans begin a recording, as a file does that holds little but a seizure.
`mvpformer finetune --config patient` starts from "demo-base", which has seen larger changes of the gain.

    python experiments/shipped/demo_model.py                    # "demo"; some 5 minutes of a processor
    python experiments/shipped/demo_model.py --model demo-base
    python experiments/shipped/demo_model.py --quick            # a few steps, written to a temporary folder
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.detection.training import scale_initialisation
from torch.nn import functional as F

from mvpa_ts.files import write_text
from mvpa_ts.ieeg import MVPFormer, Recording, Segments, mvpformer_tiny, simulate_cohort
from mvpa_ts.ieeg.model.seen_subjects import recording_hash, save_training_subjects, subject_hash
from mvpa_ts.ieeg.simulation.simulate import Difficulty
from mvpa_ts.ieeg.training.augmentation import Augmentation, augment
from mvpa_ts.ieeg.training.finetuning import FinetuningModule
from mvpa_ts.ieeg.training.module import learning_rate_scale
from mvpa_ts.ieeg.training.sampling import EndlessBatches, SpanSampler
from mvpa_ts.ieeg.training.spans import HeldSegments, SpanDataset, collate

FOLDER = Path(__file__).parents[2] / "ieeg" / "model" / "weights"
SEED = 7
SUBJECTS, CHANNELS, SECONDS, SEIZURES = 32, (4, 6, 8, 16), 1200.0, 3
BATCH, WINDOWS = 16, 4
STEPS, RATE = 700, 3e-3


@dataclass(frozen=True)
class Recipe:
    """What differs between the two models: seizures, changes of batches, and the card's words for them and the dog."""

    difficulty: Difficulty
    augmentation: Augmentation
    purpose: str
    changes: str
    looks: str


BASE = Augmentation(gain=3.0, tilt=1.0, channels=0.3, polarity=True, shift=True, background=0.5)
RECIPES = {
    # Real seizures lift the power of a recording up to ten times, and are not only rhythms.
    "demo": Recipe(
        Difficulty(seizure_amplitude=(0.8, 6.0), irregular=(0.0, 4.0)),
        replace(BASE, gain=1.5, start=0.5, fluctuation=0.6),
        "It is for trying out `mvpformer detect`.",
        " Their power drifts,\n  and half of them begin a recording.",
        "It was chosen among six candidates with the dog's files in view. So the dog is no blind test of it.",
    ),
    "demo-base": Recipe(
        Difficulty(),
        BASE,
        "From it `mvpformer finetune --config patient` makes a detector for one patient.",
        "",
        "It was frozen before these were read, and has not changed since. How it is finetuned was chosen later.",
    ),
}
CARD = """# {name}, a small detector in the box

MVPFormer-tiny with amplitude in its embedding ({weights:,} weights), context 4 segments (20 s).
{purpose}
For research use; not a medical device.

- Trained on: {subjects} simulated subjects (seed {seed}), {hours:.0f} h in all, {seizures} seizures each in 20 minutes,
  {channels} channels; no recording of a person or an animal.
- How: all weights from random ones, {steps} steps of {batch} spans of {windows} segments with random gain, tilt of the
  spectrum, channels, polarity, borders and added background.{changes}
- No pretraining by prediction: on simulated subjects it gains nothing where the encoder trains
  (experiments/results/detection/detection_ablations.md, all weights finetuned, with and without).
- Made by: `python experiments/shipped/demo_model.py --model {name}`.
- How well it does untrained on one dog: docs/detection.md. The dog's files were looked at fifteen times (list in
  docs/development/detection.md).
  {looks}
- Beware: simulated seizures are rhythms and noise in pink noise. Without finetuning on recordings of the patient it
  misses seizures and raises false alarms; its probabilities are not calibrated.
"""


def main() -> None:
    """Train and write the model."""
    parser = script_parser(__doc__)
    parser.add_argument("--model", default="demo", choices=RECIPES, help="which (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder of the model (default: in the package)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    output = arguments.output or (
        Path(tempfile.mkdtemp(prefix="mvpa-ts-")) if arguments.quick else FOLDER / arguments.model
    )
    subjects, seconds, steps = (2, 120.0, 2) if arguments.quick else (SUBJECTS, SECONDS, STEPS)
    recipe = RECIPES[arguments.model]
    started = time.process_time()
    seizures = 1 if arguments.quick else SEIZURES
    cohort = simulate_cohort(
        subjects,
        seed=SEED,
        num_channels=CHANNELS,
        duration=seconds,
        num_seizures=seizures,
        difficulty=recipe.difficulty,
    )
    module = trained(cohort, steps, recipe.augmentation)
    write(module.core.eval(), cohort, steps, arguments.model, output)
    print(f"{output}: {time.process_time() - started:.0f} s of processor time")


def write(model: MVPFormer, cohort: Sequence[Recording], steps: int, name: str, output: Path) -> None:
    """The weights, what they were trained on as hashes, and the card."""
    model.save_pretrained(output)
    hashes = [subject_hash(f"{item.subject} of seed {SEED}") for item in cohort]
    save_training_subjects(output, hashes, [recording_hash(item) for item in cohort])
    card = CARD.format(
        name=name,
        purpose=RECIPES[name].purpose,
        changes=RECIPES[name].changes,
        looks=RECIPES[name].looks,
        weights=sum(p.numel() for p in model.parameters()),
        subjects=len(cohort),
        seed=SEED,
        hours=sum(item.duration for item in cohort) / 3600,
        seizures=len(cohort[0].seizures),
        channels=", ".join(map(str, CHANNELS)),
        steps=steps,
        batch=BATCH,
        windows=WINDOWS,
    )
    write_text(output / "README.md", card)


def trained(cohort: Sequence[Recording], steps: int, augmentation: Augmentation) -> FinetuningModule:
    """All weights from random ones, by AdamW with a warm-up and a cosine."""
    architecture = mvpformer_tiny(context=4, dropout=0.0, prediction_head=False)
    module = FinetuningModule(architecture=architecture, method="full", seed=0)
    scale_initialisation(module.core)
    segments = [HalfPrecision(Segments(item)) for item in cohort]
    dataset = SpanDataset(segments, WINDOWS, before=architecture.context - 1, past=True, tail=True)
    sampler = SpanSampler(dataset.subjects, dataset.ictal, balance="ictal", seed=0)
    weights = list(module.model.parameters())
    groups = [
        {"params": [p for p in weights if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    scale = learning_rate_scale("cosine", max(steps // 10, 1), 0.05, steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    losses: list[float] = []
    for step, indices in zip(range(steps), EndlessBatches(sampler, BATCH), strict=False):
        batch = collate([dataset[index] for index in indices])
        logits, labels = module.logits_and_labels(augment(batch, augmentation, torch.Generator().manual_seed(step)))
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {sum(losses[-100:]) / 100:.3f}", flush=True)
    return module


class HalfPrecision(HeldSegments):
    """Held in half precision, which takes half of the memory; steps are below 0.1 µV where signals are below 100 µV."""

    def read(self, first: int, last: int, again: int = 0) -> tuple:
        """See `Segments.read`."""
        if self._held is None:
            signal, valid = Segments.read(self, 0, self.num_segments)
            self._held = signal.astype("float16"), valid
        return super().read(first, last)[0].astype("float32"), self._held[1][first:last].copy()


if __name__ == "__main__":
    main()
