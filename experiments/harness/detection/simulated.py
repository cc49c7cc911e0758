"""Simulated stand-ins for data sets that were not at hand: subjects to pretrain on, MAYO and FNUSA."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from harness.detection.settings import Cohort, Effort
from harness.detection.training import Training, pretrain
from scipy.io import savemat

from mvpa_ts.ieeg import MVPFormer, MVPFormerConfig, Recording, Segments, simulate_cohort, simulate_recording
from mvpa_ts.ieeg.datasets.nejedly import DATA_SETS, SAMPLES, SFREQ
from mvpa_ts.ieeg.simulation.simulate import Difficulty
from mvpa_ts.ieeg.training.spans import HeldSegments

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


def pretrained_on_simulated(config: MVPFormerConfig, training: Training, *, quick: bool) -> MVPFormer:
    """A model that has learned to predict 12 simulated subjects of 10 minutes; read from the folder if it is there."""
    folder = training.folder / "model"
    if not (folder / "config.json").is_file():
        number, seconds = (2, 120.0) if quick else (12, 600.0)
        cohort = simulate_cohort(number, seed=8, num_channels=(8, 16), duration=seconds, num_seizures=1)
        pretrain(config, [HeldSegments(Segments(r)) for r in cohort], training).save_pretrained(folder)
    return MVPFormer.from_pretrained(folder)


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


def write_nejedly(folder: Path, patients: int, segments: int) -> None:
    """MAYO and FNUSA in their layout: sharp waves as pathology, background, and noise; `segments` for each patient.

    As in MAYO, most patients have no pathology after the first four; in both, noise makes about half.
    """
    for number, name in enumerate(DATA_SETS):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = []
        for patient in range(1, patients + 1):
            generator = np.random.default_rng((number, patient))
            for index in range(segments):
                category = ("pathology", "physiology", "artifacts", "powerline")[index % 4]
                if name == "DATASET_MAYO" and category == "pathology" and patient > 4 and patient % 2:
                    category = "physiology"
                identity = f"{number}_{patient}_{index}"
                savemat(folder / name / f"{identity}.mat", {"data": _segment(category, generator)})
                rows.append([category, "A1", "depth", name[8:], patient, identity, "0"])
        with (folder / name / "segments.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["category_name", "channel", "electrode_type", "institution", "patient_id", "segment_id", "soz"]
            )
            writer.writerows(rows)


def _segment(category: str, generator: np.random.Generator) -> np.ndarray:
    """One channel of 3 s at 5 kHz, µV."""
    seconds = np.arange(SAMPLES) / SFREQ
    signal = np.cumsum(generator.normal(0, 1.0, SAMPLES))
    signal = 30.0 * (signal - signal.mean()) / signal.std() + generator.normal(0, 5.0, SAMPLES)
    if category == "pathology":
        for place in generator.uniform(0.3, 2.7, generator.integers(3, 7)):
            signal += generator.uniform(80, 200) * np.exp(-0.5 * ((seconds - place) / 0.02) ** 2)
    elif category == "artifacts":
        signal += 300.0 * np.sign(np.sin(2 * np.pi * generator.uniform(0.3, 2.0) * seconds))
    elif category == "powerline":
        signal += generator.uniform(50, 200) * np.sin(2 * np.pi * 50.0 * seconds)
    return signal[None]
