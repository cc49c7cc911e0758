"""What should the embedding know of amplitude: log band power, its distance from a running level, both, or neither?

Tiny models are trained on simulated subjects and tested on others. Every recording is multiplied by a gain of its own
between 1/3 and 3, because nobody knows the gain of the next recording. Three tests: whole recordings of 20 minutes;
clips that hold a seizure from their first to their last second, or nothing of it; and the same clips with two minutes
of background before them. Half of the spans in training are made to begin a recording. Baselines stand beside them.

    python experiments/amplitude_centring.py           # results/detection/amplitude_centring.*, resumable
    python experiments/amplitude_centring.py --quick   # a few steps, written to a temporary folder
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.baselines import INSTALLED, PUBLISHED, Baseline, band_power_regression, brainmaze, line_length
from harness.detection.real import background_of
from harness.detection.results import begin_study
from harness.detection.training import scale_initialisation
from harness.tables import append_row, hardware, read_rows, write_page
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from mvpa_ts.ieeg import Detector, MVPFormer, Recording, Segments, mvpformer_tiny, simulate_cohort
from mvpa_ts.ieeg.events import segment_labels
from mvpa_ts.ieeg.model.amplitude import NUM_BANDS
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.training.augmentation import Augmentation, augment
from mvpa_ts.ieeg.training.finetuning import FinetuningModule
from mvpa_ts.ieeg.training.module import learning_rate_scale
from mvpa_ts.ieeg.training.sampling import EndlessBatches, SpanSampler
from mvpa_ts.ieeg.training.spans import HeldSegments, SpanDataset, collate

KNOWN = {"neither": (0.0, 0.0), "power": (1.0, 0.0), "distance": (0.0, 1.0), "both": (1.0, 1.0)}
"""Factors of log power and of its distance from the running level, before the map to the embedding."""
TESTS = ("whole recordings", "clips", "clips after background")
SEEDS = (0, 1, 2)
SUBJECTS, TESTED, CHANNELS, SECONDS = 16, 8, (4, 6, 8), 1200.0
CONTEXT, WINDOWS, BATCH, STEPS, RATE = 4, 2, 12, 120, 3e-3
GAIN, BEFORE = 3.0, 120.0


def main() -> None:
    """Train and test what the table lacks, and write it."""
    quick = script_parser(__doc__).parse_args().quick
    table = begin_study(quick=quick) / "amplitude_centring.csv"
    subjects, tested, steps, seeds = (2, 2, 2, SEEDS[:1]) if quick else (SUBJECTS, TESTED, STEPS, SEEDS)
    settings: dict[str, Any] = {"num_channels": CHANNELS, "duration": SECONDS, "num_seizures": 3}
    recordings = simulate_cohort(subjects, **settings)
    train = [HeldSegments(Segments(item)) for item in recordings]
    test = [*pieces(simulate_cohort(tested, first_subject=61, **settings))]
    sizes = {"steps": steps, "subjects": tested, "tested clips": sum(name == TESTS[1] for name, *_ in test)}
    rivals = [name for name in RIVALS if name != PUBLISHED or PUBLISHED in INSTALLED]
    for known, seed in [*((name, SEEDS[0]) for name in rivals), *((k, s) for s, k in itertools.product(seeds, KNOWN))]:
        rows = read_rows(table)
        if not rows.empty and ((rows["known"] == known) & (rows["seed"] == seed)).any():
            continue
        started = time.process_time()
        scores = areas(scorer(known, seed, steps, train, recordings), test)
        spent = {"cpu_s": time.process_time() - started, "hardware": hardware()}
        append_row(table, {"known": known, "seed": seed} | sizes | scores | spent)
        print(f"{known}, seed {seed}: {scores}", flush=True)
    write_page(table, report(read_rows(table)))


def pieces(recordings: Sequence[Recording]) -> Iterator[tuple[str, Recording, float]]:
    """Test, recording times its gain, and the second from which on its segments count."""
    generator = np.random.default_rng(0)
    for recording in recordings:
        gains = GAIN ** generator.uniform(-1, 1, 1 + 2 * len(recording.seizures))
        yield TESTS[0], background_of(recording, gains[0]), 0.0
        ends = [0.0, *(offset for _, offset in recording.seizures)]
        for number, (onset, offset) in enumerate(recording.seizures):
            quiet = onset - (offset - onset) - 10.0
            if quiet - BEFORE < ends[number]:
                continue
            for gain, first in zip(gains[1 + 2 * number :], (onset, quiet), strict=False):
                last = first + offset - onset
                yield TESTS[1], background_of(recording.crop(first, last), gain), 0.0
                yield TESTS[2], background_of(recording.crop(first - BEFORE, last), gain), BEFORE


def trained(segments: Sequence[Segments], known: str, seed: int, steps: int) -> MVPFormer:
    """All weights from random ones, with a random gain for each span."""
    architecture = mvpformer_tiny(context=CONTEXT, dropout=0.0, prediction_head=False)
    module = FinetuningModule(architecture=architecture, method="full", seed=seed)
    scale_initialisation(module.core)
    factors = torch.tensor(KNOWN[known]).repeat_interleave(NUM_BANDS)
    module.core.amplitude.projection.register_forward_pre_hook(lambda _, inputs: (inputs[0] * factors,))
    dataset = SpanDataset(segments, WINDOWS, before=CONTEXT - 1, past=True, tail=True)
    sampler = SpanSampler(dataset.subjects, dataset.ictal, balance="ictal", seed=seed)
    optimizer = torch.optim.AdamW(module.model.parameters(), lr=RATE, weight_decay=0.05)
    scale = learning_rate_scale("cosine", max(steps // 10, 1), 0.05, steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    changes = Augmentation(gain=GAIN, start=0.5, polarity=True)
    for step, indices in zip(range(steps), EndlessBatches(sampler, BATCH), strict=False):
        batch = collate([dataset[index] for index in indices])
        logits, labels = module.logits_and_labels(augment(batch, changes, torch.Generator().manual_seed(step)))
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        torch.nn.utils.clip_grad_norm_(module.model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return module.core.eval()


def plain_line_length(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Mean absolute step of each segment over channels, and where the segments begin (s)."""
    segments = Segments(recording)
    return np.array([np.abs(np.diff(signal, axis=1)).mean() for _, signal, _ in segments]), segments.starts


RIVALS: dict[str, Callable[[Sequence[Recording]], Baseline]] = {
    "line length": lambda training: plain_line_length,
    "line length, against the median": lambda training: line_length,
    "logistic regression on band power, against the median": band_power_regression,
    PUBLISHED: lambda training: brainmaze,
}
"""Baselines by name, from the training recordings."""


def scorer(known: str, seed: int, steps: int, train: Sequence[Segments], recordings: Sequence[Recording]) -> Baseline:
    """A baseline, or a trained model."""
    if known in RIVALS:
        return RIVALS[known](recordings)
    detector = Detector(trained(train, known, seed, steps), channels="all", batch_size=16)

    def probabilities(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
        detection = detector.detect_segments(detector.segments(recording))
        return detection.probabilities, detection.starts

    return probabilities


def areas(score: Baseline, test: Sequence[tuple[str, Recording, float]]) -> dict[str, float]:
    """Area under the ROC curve over all segments of a test."""
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in TESTS}
    for name, recording, first in test:
        scores, starts = score(recording)
        counted = starts >= first - 0.01
        found[name].append((segment_labels(starts, recording.seizures)[counted], scores[counted]))
    joined = {name: [np.concatenate(part) for part in zip(*parts, strict=True)] for name, parts in found.items()}
    return {name: float(roc_auc_score(labels, scores)) for name, (labels, scores) in joined.items()}


def report(rows: pd.DataFrame) -> str:
    """Mean over seeds and standard deviation, which baselines do not have."""
    groups = rows.groupby("known", sort=False)[[*TESTS]]
    mean, deviation = groups.mean(), groups.std().fillna(0.0)
    lines = []
    for known in sorted(mean.index, key=[*KNOWN, *RIVALS].index):
        spread = {name: "" if known in RIVALS else f" ± {deviation.loc[known, name]:.3f}" for name in TESTS}
        cells = {name: f"{mean.loc[known, name]:.3f}{spread[name]}" for name in TESTS}
        lines.append({"the embedding knows": f"– ({known})" if known in RIVALS else known} | cells)
    lead = (
        f"AUROC of segments on {rows['subjects'].max()} unseen simulated subjects, with {rows['tested clips'].max()} "
        f"clips, half of them a seizure; mean of {rows['seed'].nunique()} seed(s) ± standard deviation. Each file has "
        f"a random gain between 1/{GAIN:g} and {GAIN:g}. The running level is the median of its last two minutes. "
        f"MVPFormer-tiny, all weights, {rows['steps'].max()} steps. The last rows are baselines. Those against "
        "the median compare a channel with its own median over the whole file, which a running detector does not know."
    )
    spent = f"{rows['cpu_s'].sum():.0f} s of processor time: {rows['hardware'].iloc[0]}, 1 thread."
    return f"{lead}\n\n{markdown_table(pd.DataFrame(lines))}\n{spent}\n"


if __name__ == "__main__":
    main()
