"""Pathology against everything else in MAYO and FNUSA: the first four patients train and the others are scored.

Of the four, three fit and the fourth chooses the threshold, for models and baselines alike.

The recordings are interictal, so this is no seizure detection, though the paper counts it as such. For the same reason
the published seizure detector is not among the baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from harness.detection.baselines import short_name
from harness.detection.paper_rows import line
from harness.detection.pipeline import Study
from harness.detection.settings import Configuration
from harness.detection.training import finetune_on_trials, trial_item
from harness.paper import tables as paper
from harness.study import grid, spread
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import precision_recall_curve
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mvpa_ts.ieeg import MVPFormer
from mvpa_ts.ieeg.datasets.nejedly import NejedlySegment, nejedly_segments, read_nejedly
from mvpa_ts.ieeg.model.amplitude import band_log_power
from mvpa_ts.ieeg.model.wavelet import wavedec
from mvpa_ts.ieeg.recordings.channels import natural_key
from mvpa_ts.ieeg.scoring.scores import score_segments
from mvpa_ts.ieeg.training.spans import collate

MEASURES = ("F1", "sensitivity", "specificity")
BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "line length": lambda signals: signals.diff(dim=2).abs().mean(2).log(),
    "logistic regression": lambda signals: band_log_power(wavedec(signals))[:, 0],
}
"""By name, from signals [n, 1, samples] to features [n, k] of a logistic regression, for line length too."""
_read = lru_cache(maxsize=4096)(read_nejedly)  # a finetuning reads each some times


class NejedlyDataset(Dataset[dict[str, Any]]):
    """Segments as items for `collate`: one channel, one model segment; "ictal" means pathology here."""

    def __init__(self, segments: Sequence[NejedlySegment]) -> None:
        self.segments = list(segments)
        self.subjects = tuple(segment.patient for segment in segments)
        self.ictal = np.array([segment.pathological for segment in segments])

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See `SpanDataset.__getitem__`."""
        segment = self.segments[index]
        return trial_item(_read(segment), segment.pathological, segment.patient, segment.segment_id)


def parts_of(folder: Path, count: int = 4) -> list[NejedlyDataset]:
    """Segments of a data set that fit, choose the threshold, and are scored: all but one of the first, it, the others.

    The first are those `count` patients whose numbers are lowest, so that everybody's split is the same.
    """
    segments = nejedly_segments(folder)
    patients = sorted({segment.patient for segment in segments}, key=natural_key)
    if not 1 < count < len(patients):
        raise ValueError(f"count must lie between 2 and {len(patients) - 1}, got {count}")
    groups = patients[: count - 1], patients[count - 1 : count], patients[count:]
    return [NejedlyDataset([segment for segment in segments if segment.patient in group]) for group in groups]


def run(study: Study, configuration: Configuration, folders: Sequence[Path]) -> dict[str, Any] | None:
    """F1 pooled over segments, and sensitivity and specificity averaged over patients, as the paper does.

    A patient without pathology has no sensitivity, one with nothing else no specificity, and is left out of that mean.
    """
    at_hand = [folder for folder in folders if folder.is_dir()]
    if not at_hand or not configuration.groups() - {configuration.test} <= set(study.cohort.groups):
        return None
    base = study.base(configuration)
    # Segments of one channel and 3 s need no second process, and the paper states none for them.
    alone = Study(study.cohort, replace(study.effort, devices=1), study.folder, study.seed)
    row: dict[str, Any] = {"row": configuration.row, "configuration": configuration.name, "seed": study.seed}
    for folder in at_hand:
        train, *tested = parts_of(folder)
        place = study.folder / "interictal" / f"{configuration.name}-{folder.name}-{study.seed}"
        training = replace(alone.training(configuration, "finetuning", place), windows=1)
        model, _ = finetune_on_trials(base, train, configuration.finetuning, training)
        row |= thresholded(folder, *tested, partial(probabilities, model))
    return row


def baseline(name: str, folders: Sequence[Path]) -> dict[str, Any] | None:
    """The row of a baseline; it has no seed."""
    row: dict[str, Any] = {"row": name, "configuration": short_name(name), "seed": 0}
    for folder in (at_hand := [folder for folder in folders if folder.is_dir()]):
        train, *tested = parts_of(folder)
        row |= thresholded(folder, *tested, fitted(name, train))
    return row if at_hand else None


def fitted(name: str, train: NejedlyDataset) -> Callable[[NejedlyDataset], np.ndarray]:
    """Fit a baseline; it gives the probability of pathology of each segment."""
    regression = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    regression.fit(_features(name, train), train.ictal)
    return lambda dataset: regression.predict_proba(_features(name, dataset))[:, 1]


def probabilities(model: MVPFormer, dataset: NejedlyDataset) -> np.ndarray:
    """The same of a network."""
    loader = DataLoader(dataset, batch_size=64, collate_fn=collate)
    model.eval()
    with torch.inference_mode():
        return torch.cat([model.classify(model(batch["signal"])).softmax(-1)[:, 1] for batch in loader]).numpy()


def thresholded(
    folder: Path, validation: NejedlyDataset, test: NejedlyDataset, model: Callable[[NejedlyDataset], np.ndarray]
) -> dict[str, float]:
    """Scores of a model that gives probabilities, with the threshold of the validation segments."""
    positive = model(test) >= best_threshold(validation.ictal, model(validation))
    return scores(folder.name.removeprefix("DATASET_"), test.ictal, positive, test.subjects)


def best_threshold(truth: np.ndarray, values: np.ndarray) -> float:
    """The threshold with the best F1, midway to the next lower value; one half where nothing is pathology."""
    if not truth.any():
        return 0.5
    precision, sensitivity, thresholds = precision_recall_curve(truth, values)
    best = int((2 * precision * sensitivity / np.maximum(precision + sensitivity, 1e-9))[:-1].argmax())
    return float(thresholds[max(best - 1, 0) : best + 1].mean())


def scores(name: str, truth: np.ndarray, positive: np.ndarray, patients: Sequence[str]) -> dict[str, float]:
    """Pooled F1, and both rates averaged over patients."""
    each = pd.DataFrame({"patient": patients, "truth": truth.astype(bool), "right": positive == truth.astype(bool)})
    rates = each.groupby(["truth", "patient"])["right"].mean()
    averages = {bool(kind): float(part.mean()) for kind, part in rates.groupby(level="truth")}
    return {
        f"{name} F1": score_segments(truth, positive, segment=3.0).f1,
        f"{name} sensitivity": averages.get(True, float("nan")),
        f"{name} specificity": averages.get(False, float("nan")),
    }


def markdown(rows: pd.DataFrame, configurations: list[Configuration]) -> str:
    """Means over seeds, with the paper's rows."""
    names = [name for name in ("MAYO", "FNUSA") if f"{name} F1" in rows]
    columns = [f"{name} {measure}" for name in names for measure in MEASURES]
    printed = paper.seizure_summary()
    lines = grid(["", *columns], [])
    names_of_rows = {short_name(name): name for name in BASELINES} | {c.name: c.row for c in configurations}
    for configuration, row in names_of_rows.items():
        own = rows[rows["configuration"] == configuration]
        if not own.empty:
            lines.append(f"| {row} | {' | '.join(spread(own[column], 2) for column in columns)} |")
    for model in printed.index[printed[columns].notna().any(axis=1)]:
        lines.append(line(f"*the paper: {model}*", printed.loc[model].to_dict(), columns))
    lead = (
        "Segments of 3 s, pathology against all else: three patients fit, the fourth chooses the threshold, the others "
        "test. F1 is pooled over segments, sensitivity and specificity are averages over patients; ± over seeds. "
        "Baselines are logistic regressions, of line length or of band power. "
    )
    if rows["row"].str.contains("tiny|small").any():
        lead += (
            "Ours are on simulated segments in the layout of both sets, in which all categories have waves of the same "
            "spectrum and differ by their shape; the paper's, in italics, on the sets. Unlike the paper's encoder, "
            "that of our models reads the amplitude, too (amplitude='bands')."
        )
    machines = ", ".join(rows["hardware"].unique())
    return lead + "\n\n" + "\n".join(lines) + f"\n\nMeasured on {machines}; one thread.\n"


def _features(name: str, dataset: NejedlyDataset) -> np.ndarray:
    return BASELINES[name](torch.stack([dataset[index]["signal"] for index in range(len(dataset))])).numpy()
