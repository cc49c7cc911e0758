"""The protocol on real seizures in single files: folds, features of files, and scores of a fold."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from harness.detection.baselines import INSTALLED, PUBLISHED, read
from harness.detection.simulated import held
from scipy.signal import resample
from sklearn.metrics import roc_auc_score

from mvpa_ts.ieeg import Detector, MVPFormer, Recording, Segments, read_recording, simulate_recording
from mvpa_ts.ieeg.commands.main import main as mvpformer
from mvpa_ts.ieeg.detection.baselines import brainmaze_probabilities, fit_baselines
from mvpa_ts.ieeg.detection.features import BANDS, TrainingFeatures
from mvpa_ts.ieeg.detection.rules import probabilities_to_events
from mvpa_ts.ieeg.recordings.finding import find_recordings
from mvpa_ts.ieeg.simulation.simulate import Difficulty
from mvpa_ts.ieeg.simulation.writing import write_edf

STRETCHES = ((6, 7), (8, 9), (10, 11, 12))
"""Runs without seizure that are tested with each seizure. The background drifts from run to run."""
QUICK_ANIMAL: dict[str, Any] = {"num_channels": 4, "seconds": 240.0}
QUICK_FINETUNING = ("--trainer.max_steps", "2", "--trainer.val_check_interval", "1")
"""What a smoke run simulates, and its options of `mvpformer finetune`."""
Scores = Callable[[Path, float], np.ndarray]
"""From a file, times a gain, to a score of each segment."""


@dataclass(frozen=True)
class Fold:
    """Files of one fold.

    Attributes
    ----------
    number : int
        Of the seizure that is tested.
    seizure : Path
    stretches : tuple of Path
    train, validation : tuple of Path
        The other two seizures with their stretches.
    """

    number: int
    seizure: Path
    stretches: tuple[Path, ...]
    train: tuple[Path, ...]
    validation: tuple[Path, ...]

    @property
    def others(self) -> tuple[list[Path], list[Path]]:
        """Seizures and stretches that are not tested."""
        files = (*self.train, *self.validation)
        seizures, stretches = (
            [file for file in files if task in file.name] for task in ("task-ictal", "task-interictal")
        )
        return seizures, stretches


def folds_of(folder: Path, *, reverse: bool = False) -> list[Fold]:
    """The folds of the files below a folder; with `reverse` the stretches go with the seizures in reverse order."""
    files = {(file.name.split("task-")[1].split("_")[0], _run(file)): file for file in find_recordings(folder)}
    pairs = STRETCHES[::-1] if reverse else STRETCHES
    parts = [(files["ictal", n], *(files["interictal", run] for run in runs)) for n, runs in enumerate(pairs, 1)]
    return [
        Fold(n + 1, parts[n][0], parts[n][1:], train=parts[(n + 1) % 3], validation=parts[(n + 2) % 3])
        for n in range(3)
    ]


def _run(file: Path) -> int:
    return int(file.name.split("run-")[1].split("_")[0])


@cache
def features_of(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 18] of the library's regression, and line length [n] (µV), over channels."""
    return read(read_recording(file))[:2]


def line_length(file: Path, gain: float) -> np.ndarray:
    """Line length [n] of the segments."""
    return features_of(file)[1] * gain


def regression(seizures: Sequence[Path], stretches: Sequence[Path]) -> Scores:
    """The library's regression, fitted to these files."""
    files = [*seizures, *stretches]
    features, lengths = map(np.concatenate, zip(*map(features_of, files), strict=True))
    number = np.repeat(np.arange(len(files)), [len(features_of(file)[1]) for file in files])
    _, fitted = fit_baselines(TrainingFeatures(features, lengths, number < len(seizures), number))
    # Power grows with the square of a gain; how far channels differ does not know it.
    moved = np.concatenate([np.full(BANDS, 2.0), [1.0], np.zeros(BANDS + 1)])
    return lambda file, gain: fitted.of_features(features_of(file)[0] + np.log(gain) * moved)


def best_threshold(fold: Fold, scores: Scores) -> float:
    """The threshold of the highest balanced accuracy on the files that are not tested."""
    ictal, quiet = (np.concatenate([scores(file, 1.0) for file in files]) for files in fold.others)
    candidates = np.unique([*ictal, *quiet])
    balanced = [(ictal > value).mean() + (quiet <= value).mean() for value in candidates]
    return float(candidates[int(np.argmax(balanced))])


def background_of(source: Path | Recording, gain: float) -> Recording:
    """A recording times a factor."""
    recording = source if isinstance(source, Recording) else read_recording(source)
    return recording if gain == 1.0 else held(recording, lambda signal: gain * signal)


@cache
def brainmaze(file: Path, gain: float) -> np.ndarray:
    """Probability [n] of the published model of brainmaze-eeg-models, mean over channels and over each segment."""
    recording = background_of(file, gain)
    # The model takes whole rates; those of the files are a little off 400 Hz.
    signal = resample(recording.read(0, recording.num_samples).astype(float), round(400 * recording.duration), axis=1)
    whole = Recording.from_array(signal, 400.0, list(recording.channel_names), "µV")
    return brainmaze_probabilities(whole, whole.channel_names, Segments(read_recording(file)).starts)


BASELINES: dict[str, Callable[[Fold], tuple[Scores, float]]] = {
    "line length": lambda fold: (line_length, best_threshold(fold, line_length)),
    "logistic regression": lambda fold: (regression(*fold.others), 0.5),
} | ({PUBLISHED: lambda fold: (brainmaze, 0.5)} if PUBLISHED in INSTALLED else {})
"""By name, scores and threshold from the files of a fold that are not tested; no seed, no settings."""


def finetuned(fold: Fold, seed: int, folder: Path, options: Sequence[str], members: int = 3) -> str:
    """The folder of a model by the documented command, from the fold's training and validation files.

    No two seeds share a network.
    """
    if not (folder / "model" / "config.json").is_file():
        arguments = ["finetune", "--config", "patient", "--output", str(folder)]
        arguments += ["--members", str(members), "--seed_everything", str(members * seed)]
        arguments += ["--data.recordings", f"[{','.join(map(str, fold.train))}]"]
        arguments += ["--data.validation_recordings", f"[{','.join(map(str, fold.validation))}]"]
        if mvpformer([*arguments, "--trainer.enable_progress_bar", "false", *options]):
            raise RuntimeError("mvpformer finetune failed, see above")
    return str(folder / "model")


def detected(model: str | MVPFormer) -> Scores:
    """Probabilities as ``mvpformer detect`` gives them, of segments that it scores."""
    detector = Detector(model, rules="none")

    def scores(file: Path, gain: float) -> np.ndarray:
        detection = detector.detect(background_of(file, gain))
        return detection.probabilities[detection.scored]  # a segment without a signal has none

    return scores


def evaluate(
    fold: Fold, score: Callable[[Path, float], np.ndarray], threshold: float, gains: Sequence[float]
) -> dict[str, Any]:
    """AUROC of a fold's segments, also with stronger backgrounds; what was found and alarmed, and how late."""
    ictal = score(fold.seizure, 1.0)
    values: dict[str, Any] = {}
    for gain in gains:
        quiet = [score(file, gain) for file in fold.stretches]
        values["auroc" if gain == 1.0 else f"auroc ×{gain:g}"] = _auroc(ictal, np.concatenate(quiet))
        if gain == 1.0:
            values["low"], values["high"] = _interval(ictal, quiet)
            values["alarmed"] = sum(int((part > threshold).any()) for part in quiet)
            values["alarmed_by_paper"] = sum(_is_event(part > threshold) for part in quiet)
    positive = np.flatnonzero(ictal > threshold)
    values["found"] = int(len(positive) > 0)
    values["found_by_paper"] = _is_event(ictal > threshold)
    values["latency"] = 5.0 * (positive[0] + 1) if len(positive) else np.nan
    return values | {"threshold": threshold}


def _is_event(positive: np.ndarray) -> bool:
    """Whether the paper's rules make an event of these segments: five or more must be positive."""
    return len(probabilities_to_events(positive.astype(float), 5.0 * np.arange(len(positive)), "paper")) > 0


def _auroc(ictal: np.ndarray, quiet: np.ndarray) -> float:
    return float(roc_auc_score(np.repeat([1, 0], [len(ictal), len(quiet)]), np.concatenate([ictal, quiet])))


def _interval(ictal: np.ndarray, quiet: Sequence[np.ndarray], draws: int = 500) -> tuple[float, float]:
    """95 % of a bootstrap over the stretches; there is one seizure, whose segments are drawn."""
    generator = np.random.default_rng(0)
    values = []
    for _ in range(draws):
        stretches = generator.integers(len(quiet), size=len(quiet))
        drawn = ictal[generator.integers(len(ictal), size=len(ictal))]
        values.append(_auroc(drawn, np.concatenate([quiet[i] for i in stretches])))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def animal_folder(output: Path, *, quick: bool) -> Path | None:
    """The folder of the animal's files; if they are missing, None and a printed line. A quick run simulates some."""
    if quick:
        return simulated_animal(output / "data", 0, **QUICK_ANIMAL)
    folder = Path(os.environ.get("MVPA_TS_DATA", "data")) / "dog_seizures"
    if folder.is_dir():
        return folder
    print(f"skipped: {folder} is not there; set MVPA_TS_DATA to the folder that holds dog_seizures")
    return None


def simulated_animal(folder: Path, seed: int, *, num_channels: int = 16, seconds: float = 480.0) -> Path:
    """Simulated files of the same names and layout: seizures of up to 36 s, stretches of 38 s whose gain drifts."""
    if folder.is_dir():
        return folder
    random = np.random.default_rng(seed)
    difficulty = Difficulty(seizure_amplitude=(0.8, 4.0), irregular=(0.5, 3.0))
    whole = simulate_recording(
        "dog",
        seed=seed,
        num_channels=num_channels,
        duration=seconds,
        num_seizures=3,
        sfreq=400.0,
        difficulty=difficulty,
    )
    parts = {
        f"ictal_run-{n:02d}": (onset, min(offset, onset + 36)) for n, (onset, offset) in enumerate(whole.seizures, 1)
    }
    gains = dict.fromkeys(parts, 1.0)
    for runs in STRETCHES:
        drift = random.uniform(np.log(0.6), np.log(1.8))
        for run in runs:
            first = random.uniform(0, seconds - 40)
            while any(first < offset + 3 and first + 38 > onset - 3 for onset, offset in whole.seizures):
                first = random.uniform(0, seconds - 40)
            name = f"interictal_run-{run:02d}"
            parts[name], gains[name] = (first, first + 38), np.exp(drift + random.normal(0, 0.08))
    for name, (first, last) in parts.items():
        stretch = background_of(whole.crop(first, first + int(last - first)), gains[name])
        write_edf(stretch, folder / f"sub-dog_task-{name}_ieeg.edf")
    return folder
