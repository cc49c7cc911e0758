"""A made-up subject: how hard the seizures are to tell from the rest, and what stays the same between recordings."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy import fft as scipy_fft

from mvpa_ts.ieeg.recordings.recording import Signal

NODES = 4
"""Coupled Epileptors in a seizure; the first two begin it, the others are recruited."""


@dataclasses.dataclass(frozen=True)
class Difficulty:
    """How hard the seizures are to tell from the rest. The defaults are what all committed results use.

    Amplitudes are standard deviations in units of the background's, which has 40 µV on average; rates are per hour.
    Each pair is a range that subjects or events are drawn from uniformly.

    Attributes
    ----------
    seizure_amplitude : (low, high)
        Of a subject's seizures where they are strongest. Single seizures have 0.7 to 1.3 times that.
    seizure_duration : (low, high)
        Seconds.
    seizure_speed : (low, high)
        Epileptor time per second, a subject's morphology: 30 gives polyspikes of 8 Hz, 90 of 22 Hz.
    rhythm_rate : float
        Rhythmic bursts of 3 to 22 Hz that are no seizures.
    rhythm_amplitude : (low, high)
        As strong as seizures.
    rhythm_duration : (low, high)
        Seconds; as long as short seizures.
    muscle_rate : float
        Broadband bursts over many channels, 2 to 20 s long.
    muscle_amplitude : (low, high)
    pop_rate : float
        Steps of one electrode that decay.
    pop_amplitude : (low, high)
    spike_rate : float
        Interictal spikes in the seizure-onset zone.
    spike_amplitude : (low, high)
    line_frequency : float
        Hum with two harmonics, Hz.
    line_amplitude : (low, high)
    """

    seizure_amplitude: tuple[float, float] = (0.8, 2.5)
    seizure_duration: tuple[float, float] = (20.0, 70.0)
    seizure_speed: tuple[float, float] = (30.0, 90.0)
    rhythm_rate: float = 12.0
    rhythm_amplitude: tuple[float, float] = (0.8, 2.5)
    rhythm_duration: tuple[float, float] = (5.0, 40.0)
    muscle_rate: float = 8.0
    muscle_amplitude: tuple[float, float] = (0.3, 2.0)
    pop_rate: float = 6.0
    pop_amplitude: tuple[float, float] = (5.0, 20.0)
    spike_rate: float = 60.0
    spike_amplitude: tuple[float, float] = (2.0, 6.0)
    line_frequency: float = 50.0
    line_amplitude: tuple[float, float] = (0.05, 0.5)


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
            speed=rng.uniform(*difficulty.seizure_speed),
            line=(scale * rng.uniform(*difficulty.line_amplitude) * rng.uniform(0.3, 1.0, channels)).astype(np.float32),
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
