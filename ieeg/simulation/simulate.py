"""Simulated intracranial recordings: seizures of a neural-mass model in pink noise, with what makes detection hard.

No download is needed: every loader, command and demo runs on it. A recording is drawn from a seed and rendered only
where it is read, so its length costs no memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from mvpa_ts.ieeg.constants import SAMPLING_RATE
from mvpa_ts.ieeg.recordings.guards import MAX_RATE
from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.ieeg.simulation.hard import HardSource
from mvpa_ts.ieeg.simulation.source import SimulatedSource
from mvpa_ts.ieeg.simulation.subject import Difficulty

__all__ = ["Difficulty", "simulate_cohort", "simulate_recording"]


def simulate_recording(
    subject: str = "S01",
    *,
    seed: int = 0,
    num_channels: int = 8,
    duration: float = 3600.0,
    sfreq: float = float(SAMPLING_RATE),
    num_seizures: int | None = None,
    session: int = 0,
    difficulty: Difficulty | None = None,
    cohort: Literal["usual", "hard"] = "usual",
) -> Recording:
    """A recording of a made-up subject, the same for the same arguments.

    Parameters
    ----------
    subject : str
        Decides, with `seed`, what the subject's background, seizures and their place are like.
    seed : int
    num_channels : int
    duration : float
        Seconds.
    sfreq : float
        Samples per second.
    num_seizures : int, optional
        One an hour by default, at least one.
    session : int
        Other sessions of a subject hold other events.
    difficulty : Difficulty, optional
    cohort : {"usual", "hard"}, default "usual"
        "hard": subjects in whom amplitude lies, see `mvpa_ts.ieeg.simulation.hard`. Of `difficulty` they take the
        factor on artefacts and the hum.

    Returns
    -------
    Recording
        Unfiltered, as an amplifier gives it, with contacts "A1" … on electrodes of up to eight contacts.

    Raises
    ------
    ValueError
        A size is not positive, or the seizures do not fit: each needs 30 s.

    Examples
    --------
    >>> recording = simulate_recording("S01", num_channels=4, duration=120, num_seizures=1)
    >>> recording
    <Recording S01_session0: 4 channels, 120.0 s at 512 Hz, 1 seizure>
    >>> recording.read(0, 2).shape
    (4, 2)
    """
    if num_channels < 1 or not 0 < duration < math.inf or not 0 < sfreq <= MAX_RATE:
        raise ValueError(f"num_channels, duration and sfreq must be positive, got {num_channels}, {duration}, {sfreq}")
    if min(seed, session) < 0:
        raise ValueError(f"seed and session must be at least 0, got {seed} and {session}")
    # One an hour, as in monitoring before surgery, and one at least, so that there is something to find.
    count = max(round(duration / 3600), 1) if num_seizures is None else num_seizures
    if count < 0 or duration < 30.0 * count:
        raise ValueError(f"num_seizures ({count}) must be at least 0, and each needs 30 s of the {duration:g} s")
    if cohort not in ("usual", "hard"):
        raise ValueError(f"cohort must be 'usual' or 'hard', got {cohort!r}")
    source = (HardSource if cohort == "hard" else SimulatedSource)(
        subject, seed, num_channels, duration, sfreq, count, session, difficulty if difficulty else Difficulty()
    )
    return Recording(
        source,
        sfreq=sfreq,
        channel_names=_contact_names(num_channels),
        num_samples=round(duration * sfreq),
        subject=subject,
        name=f"{subject}_session{session}",
        seizures=source.seizures,
        metadata={"simulated": True, "seed": seed},
    )


def simulate_cohort(
    num_subjects: int, *, seed: int = 0, num_channels: int | Sequence[int] = 8, first_subject: int = 1, **settings: Any
) -> list[Recording]:
    """One recording each of subjects "S01", "S02", …

    Parameters
    ----------
    num_subjects : int
    seed : int
    num_channels : int or sequence of int
        One number for all, or numbers that are taken in turn.
    first_subject : int
        Number of the first subject, so that training and test cohorts of one seed do not share any.
    **settings
        As for `simulate_recording`.

    Raises
    ------
    ValueError
        There is no subject, or a size cannot be.

    Examples
    --------
    >>> [r.subject for r in simulate_cohort(2, first_subject=7, duration=60)]
    ['S07', 'S08']
    """
    counts = [num_channels] if isinstance(num_channels, int) else [*num_channels]
    if num_subjects < 1 or first_subject < 0:
        raise ValueError(f"num_subjects must be at least 1 and first_subject 0, got {num_subjects} and {first_subject}")
    if not counts:
        raise ValueError("num_channels must be a number, or a list of one number or more, got an empty list")
    return [
        simulate_recording(f"S{first_subject + i:02d}", seed=seed, num_channels=counts[i % len(counts)], **settings)
        for i in range(num_subjects)
    ]


def _contact_names(count: int) -> list[str]:
    wires = -(-count // 8)
    # Electrodes of about equal length, as a last one of a single contact would have no neighbour.
    per_wire = -(-count // wires)
    return [f"{_wire(i // per_wire)}{i % per_wire + 1}" for i in range(count)]


def _wire(index: int) -> str:
    return ("" if index < 26 else _wire(index // 26 - 1)) + chr(ord("A") + index % 26)
