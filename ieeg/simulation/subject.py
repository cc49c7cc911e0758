"""A made-up subject: how hard the seizures are to tell from the rest, and what stays the same between recordings."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from scipy import fft as scipy_fft

from mvpa_ts.ieeg.recordings.recording import Signal

# Coupled Epileptors in a seizure; the first two begin it, the others are recruited.
NODES = 4


# Epileptor time per second, a subject's morphology: 30 gives polyspikes of 8 Hz, 90 of 22 Hz.
SPEED = (30.0, 90.0)
# Of the hum, in standard deviations of the background.
LINE_AMPLITUDE = (0.05, 0.5)


@dataclasses.dataclass(frozen=True)
class Difficulty:
    """How hard the seizures are to tell from the rest. The defaults are what all committed results use.

    Parameters
    ----------
    seizure_amplitude : (low, high)
        Amplitude of a subject's seizures at their strongest, in standard deviations of the background (40 µV on
        average). Subjects are drawn uniformly from this range. Single seizures have 0.7 to 1.3 times that.
    irregular : (low, high)
        Amplitude of irregular activity of all frequencies that grows during a seizure, as in many patients, in the same
        unit; 0 leaves it out.
    artefacts : float
        Factor on the number of artefacts. By default an hour has 12 rhythmic bursts as strong as seizures, 8 bursts of
        muscle, 6 pops of an electrode and 60 interictal spikes. 0 leaves them out.
    line_frequency : float or None
        Frequency of the hum (Hz), which has two harmonics. None: no hum.

    Raises
    ------
    ValueError
        A value is out of range.

    Examples
    --------
    >>> Difficulty(seizure_amplitude=(0.5, 1.0), artefacts=2.0)
    Difficulty(seizure_amplitude=(0.5, 1.0), artefacts=2.0, line_frequency=50.0, irregular=(0.0, 0.0))
    """

    seizure_amplitude: tuple[float, float] = (0.8, 2.5)
    artefacts: float = 1.0
    line_frequency: float | None = 50.0
    irregular: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        for name in ("seizure_amplitude", "irregular"):
            low, high = getattr(self, name)
            if not 0 <= low <= high < math.inf:
                raise ValueError(f"{name} must be (low, high) with 0 ≤ low ≤ high, got {getattr(self, name)}")
        if not 0 <= self.artefacts < math.inf:
            raise ValueError(f"artefacts must be 0 or more, got {self.artefacts}")
        if self.line_frequency is not None and not 0 < self.line_frequency < math.inf:
            raise ValueError(f"line_frequency must be a positive number of Hz or None, got {self.line_frequency}")


@dataclasses.dataclass(frozen=True)
class Traits:
    """What stays the same for a subject: background, place and look of the seizures."""

    scale: NDArray[np.float64]  # [C] standard deviation of the background, µV
    exponent: NDArray[np.float64]  # [C] of the power spectrum 1 / f^exponent
    rhythm: NDArray[np.float64]  # [C] strength of the subject's own rhythm in the background
    frequency: float  # of that rhythm, Hz
    common: NDArray[np.float32]  # [C, sources] what neighbouring channels share
    zone: NDArray[np.float64]  # [C] nearness to the seizure-onset zone, 0 to 1
    seizure_gains: NDArray[np.float64]  # [C, K] µV
    speed: float  # Epileptor time per second
    line: NDArray[np.float32]  # [C] µV

    @classmethod
    def draw(cls, rng: np.random.Generator, channels: int, difficulty: Difficulty) -> Traits:
        """Draw a subject."""
        scale = 40.0 * np.exp(rng.normal(0, 0.35, channels))
        places = rng.uniform(0, channels, 4)  # of shared sources
        position = np.arange(channels)[:, None] + 0.5
        common = np.exp(-np.abs(position - places) / max(channels / 4, 1.0)) * rng.choice([-1, 1], 4)
        # The nodes of a seizure: two near the zone, two anywhere.
        center = rng.uniform(0, channels)
        nodes = np.concatenate([center + rng.normal(0, channels / 16, 2), rng.uniform(0, channels, 2)])
        width = np.array([0.15, 0.15, 0.25, 0.25]) * max(channels, 4)
        gains = np.exp(-0.5 * ((position - nodes) / width) ** 2) * rng.uniform(0.7, 1.3, (channels, NODES))
        gains /= np.sqrt((gains**2).sum(1)).max()
        zone = gains[:, :2].sum(1)
        amplitude = rng.uniform(*difficulty.seizure_amplitude)
        return cls(
            scale=scale,
            exponent=rng.uniform(1.2, 2.2) + rng.normal(0, 0.1, channels),
            rhythm=rng.uniform(0, 1.5) * rng.uniform(0, 1, channels),
            frequency=rng.uniform(5.0, 12.0),
            common=common.astype(np.float32),
            zone=zone / zone.max(),
            seizure_gains=gains * 40.0 * amplitude,
            speed=rng.uniform(*SPEED),
            line=(scale * rng.uniform(*LINE_AMPLITUDE) * rng.uniform(0.3, 1.0, channels)).astype(np.float32),
        )

    def spectrum(self, length: int, sfreq: float) -> Signal:
        """Factors [C, bins] that turn complex white noise into the background's Fourier coefficients."""
        frequency = scipy_fft.rfftfreq(length, 1 / sfreq)
        power = 1.0 / np.maximum(frequency, 1.0) ** self.exponent[:, None]
        power *= 1 + 4 * self.rhythm[:, None] * np.exp(-0.5 * ((frequency - self.frequency) / 1.0) ** 2)
        power[:, frequency < 0.3] = 0.0  # an amplifier couples by alternating current
        # The variance that counts is that below 120 Hz, so that it does not depend on the rate.
        variance = power[:, frequency <= 120.0].sum(1)
        mixing = 1.0 + (self.common**2).sum(1)
        factor = np.sqrt(power / (variance * mixing)[:, None]) * self.scale[:, None]
        return (factor * length / 2).astype(np.float32)
