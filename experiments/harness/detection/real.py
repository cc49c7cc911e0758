"""The protocol on real seizures in single files: folds, features of files, and scores of a fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from mvpa_ts.ieeg import Recording, Segments, simulate_recording
from mvpa_ts.ieeg.model.amplitude import band_log_power
from mvpa_ts.ieeg.model.wavelet import wavedec
from mvpa_ts.ieeg.recordings.reading import find_recordings, read_recording
from mvpa_ts.ieeg.simulation.writing import write_edf

STRETCHES = ((6, 7), (8, 9), (10, 11, 12))
"""Runs without seizure that are tested with each seizure. The background drifts from run to run."""


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
    def other_seizures(self) -> list[Path]:
        """Seizures that are not tested."""
        return [file for file in (*self.train, *self.validation) if "task-ictal" in file.name]

    @property
    def other_stretches(self) -> list[Path]:
        """Stretches that are not tested."""
        return [file for file in (*self.train, *self.validation) if "task-interictal" in file.name]


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
def _segments(file: Path) -> np.ndarray:
    """Preprocessed segments [n, C, 2560]."""
    segments = Segments(read_recording(file))
    return np.stack([signal for _, signal, _ in segments])


@cache
def band_powers(file: Path) -> np.ndarray:
    """Log power [n, C, 9] of the segments' wavelet bands."""
    return band_log_power(wavedec(torch.from_numpy(_segments(file)))).numpy()


@cache
def line_lengths(file: Path) -> np.ndarray:
    """Mean absolute step [n, C] of the segments."""
    return np.abs(np.diff(_segments(file), axis=2)).mean(2)


def background_of(file: Path, gain: float) -> Recording:
    """A recording times a factor."""
    recording = read_recording(file)
    if gain == 1.0:
        return recording
    signal = gain * recording.read(0, recording.num_samples)
    return Recording.from_array(
        signal, recording.sfreq, list(recording.channel_names), "µV", name=recording.name, subject=recording.subject
    )


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
    positive = np.flatnonzero(ictal > threshold)
    values["found"] = int(len(positive) > 0)
    values["latency"] = 5.0 * (positive[0] + 1) if len(positive) else np.nan
    return values | {"threshold": threshold}


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


def stand_ins(folder: Path) -> Path:
    """Simulated files of the same names and layout."""
    files = {f"ictal_run-{n:02d}": True for n in (1, 2, 3)} | {f"interictal_run-{n:02d}": False for n in range(6, 13)}
    for number, (name, ictal) in enumerate(files.items()):
        recording = simulate_recording("dog", seed=number, num_channels=4, duration=60.0, num_seizures=1)
        onset, offset = recording.seizures[0]
        first, last = (onset, offset) if ictal else (0.0, min(onset, 20.0))
        part = recording.crop(first, last) if last - first >= 5 else recording.crop(0.0, 10.0)
        write_edf(part, folder / f"sub-dog1_task-{name}_ieeg.edf")
    return folder
