"""Simulated stand-ins for data sets that were not at hand: subjects to pretrain on, MAYO and FNUSA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from harness.detection.settings import Cohort, Effort
from scipy.io import savemat

from mvpa_ts.ieeg import Recording, simulate_cohort, simulate_recording
from mvpa_ts.ieeg.datasets.nejedly import DATA_SETS, SAMPLES, SFREQ
from mvpa_ts.ieeg.simulation.simulate import Difficulty

SIMULATED = Effort(
    context=4,
    pretraining_steps=60,
    finetuning_steps=200,
    pretraining_rate=5e-4,
    finetuning_rate=5e-3,
    full_rate=3e-3,
    batch_size=8,
    recipe="small",
    copies=6,
    model={"dropout": 0.0},
    accelerator="cpu",
    precision="32-true",
    devices=1,
    rules="paper",
)
QUICK = replace(SIMULATED, pretraining_steps=2, finetuning_steps=2, batch_size=2, copies=1)


def simulated_swec(quick: bool = False) -> Cohort:
    """Subjects to pretrain on, where there are no recordings of SWEC."""
    count, seconds, seizures = (2, 120.0, 1) if quick else (6, 900.0, 3)
    cohort = simulate_cohort(count, num_channels=(8, 12), duration=seconds, num_seizures=seizures)
    subjects = [held(recording) for recording in cohort]
    return Cohort("simulated", {"pretraining": subjects, "finetuning": subjects})


def held(recording: Recording, change: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Recording:
    """The recording with its signal, or a change of it, in memory: a simulated one is computed at every reading."""
    return Recording.from_array(
        change(recording.read(0, recording.num_samples)),
        recording.sfreq,
        recording.channel_names,
        "µV",
        subject=recording.subject,
        name=recording.name,
        seizures=recording.seizures,
    )


def five_seizures(name: str, seed: int, random: np.random.Generator) -> Recording:
    """A quarter of an hour of an animal; how many channels and how strong its seizures are is drawn."""
    amplitude = random.uniform(0.8, 2.0)
    return simulate_recording(
        name,
        seed=seed,
        num_channels=int(random.choice([8, 16, 32])),
        duration=900.0,
        num_seizures=5,
        sfreq=400.0,
        difficulty=Difficulty(seizure_amplitude=(amplitude, 1.3 * amplitude), irregular=(0.5, 3.0)),
    )


def write_nejedly(folder: Path, patients: int, segments: int, seed: int = 0) -> None:
    """MAYO and FNUSA in their layout, `segments` for each patient, a quarter of each category.

    In all categories lie waves of the same spectrum, at gains that differ between patients by a factor of up to 25:
    spikes with a slow wave behind them are pathology, the same waves backwards an artefact, and a run without peaks is
    harmless, with the line's hum or without. So band power says little, and a peak is not enough. As in MAYO, most
    patients have no pathology after the first four.
    """
    for number, name in enumerate(DATA_SETS):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = []
        for patient in range(1, patients + 1):
            generator = np.random.default_rng((seed, number, patient))
            gain = 5.0 ** generator.uniform(-1, 1)
            for index in range(segments):
                category = ("pathology", "physiology", "artifacts", "powerline")[index % 4]
                if name == "DATASET_MAYO" and category == "pathology" and patient > 4 and patient % 2:
                    category = "physiology"
                identity = f"{number}_{patient}_{index}"
                savemat(folder / name / f"{identity}.mat", {"data": gain * _segment(category, generator)})
                rows.append([category, "A1", "depth", name[8:], patient, identity, "0"])
        columns = ["category_name", "channel", "electrode_type", "institution", "patient_id", "segment_id", "soz"]
        pd.DataFrame(rows, columns=columns).to_csv(folder / name / "segments.csv", index=False)


def _segment(category: str, generator: np.random.Generator) -> np.ndarray:
    """One channel of 3 s at 5 kHz, µV, at a gain of one."""
    seconds = np.arange(SAMPLES) / SFREQ
    signal = np.cumsum(generator.normal(0, 1.0, SAMPLES))
    signal = 30.0 * (signal - signal.mean()) / signal.std() + generator.normal(0, 5.0, SAMPLES)
    waves = np.zeros(SAMPLES)
    for place in generator.uniform(0.3, 2.4, generator.integers(2, 5)):
        spike, slow = np.exp(-0.5 * ((seconds - place) / 0.015) ** 2), (seconds - place - 0.2) / 0.07
        waves += generator.uniform(70, 140) * (0.5 * np.exp(-0.5 * slow**2) - spike)
    if category == "artifacts":
        waves = waves[::-1]
    elif category != "pathology":
        size = np.abs(np.fft.rfft(waves))
        waves = np.fft.irfft(size * np.exp(2j * np.pi * generator.random(len(size))), SAMPLES)
    if category == "powerline":
        waves = waves + generator.uniform(2, 20) * np.sin(2 * np.pi * 50.0 * seconds)
    return (signal + waves)[None]
