"""Made-up subjects in whom amplitude lies: what is loud is harmless, and seizures are weak, focal and spread.

Movement lifts all channels, gains jump and drift, rhythms and spikes last as long as seizures. A seizure begins weak at
one contact, reaches its neighbours later, and changes as it goes on. The most frequent trap is a harmless run of the
same discharge, as strong and in as many contacts, which begins in all at once: spectra do not tell it from a seizure,
spread does. In half of the subjects the order of the channels does not show who is a neighbour.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import signal as scipy_signal

from mvpa_ts.ieeg.recordings.recording import Signal
from mvpa_ts.ieeg.simulation.source import SimulatedSource

# Factor by which the gain drifts over a day, up and down.
DAY_DRIFT = 5.0
# Weak: standard deviations of the background in the contacts where the seizure is strongest.
SEIZURE_AMPLITUDE = (0.7, 1.3)
# Seconds from a contact to its neighbour, and contacts to either side that a seizure reaches.
SPREAD_SECONDS, SPREAD_CONTACTS = (0.5, 2.0), (2.0, 8.0)
# Share of its strength with which a seizure begins, and seconds until it has all of it.
WEAK_ONSET, GROWTH_SECONDS = 0.4, 8.0
# Seconds of a seizure's middle that a harmless run repeats.
RUN_PERIOD = 4.0
# In standard deviations of the background: fast and slow activity of movement.
MOVEMENT = (1.0, 4.0)


class HardSource(SimulatedSource):
    """Samples of a subject of the hard cohort; see `simulate_recording` with ``cohort="hard"``."""

    seizure_seconds = (10.0, 90.0)
    _discharge: Signal | None = None
    events_an_hour: ClassVar[dict[str, tuple[float, tuple[float, float]]]] = {
        "movement": (10.0, (5.0, 60.0)),
        "amplifier": (4.0, (10.0, 90.0)),
        "rhythm": (10.0, (8.0, 60.0)),
        "run": (9.0, (10.0, 90.0)),
        "spindle": (60.0, (0.5, 2.0)),
        "train": (6.0, (8.0, 60.0)),
        "pop": (20.0, (4.0, 4.0)),
        "muscle": (6.0, (2.0, 20.0)),
    }

    def read(self, start: int, stop: int, channels: NDArray[np.intp]) -> Signal:
        """See `Source.read`."""
        x = super().read(start, stop, self._order[channels])
        seconds = (start + np.arange(stop - start)) / self.sfreq
        phase, period = self._generator(10).uniform(0.0, 2 * np.pi), 86400.0
        gain = DAY_DRIFT ** (0.5 * np.sin(2 * np.pi * seconds / period + phase))
        return x * gain.astype(np.float32)

    @property
    def _order(self) -> NDArray[np.intp]:
        """Contact of each channel: in every other subject in an order that says nothing."""
        random = np.random.default_rng([*self._key[:2], 11])
        order = np.arange(self.num_channels)
        return random.permutation(order) if random.random() < 0.5 else order

    def _seizure(self, index: int) -> Signal:
        """A wave that begins at one contact and reaches the others later and weaker."""
        subject, random = np.random.default_rng([*self._key[:2], 12]), self._generator(7, index)
        center = subject.uniform(0, self.num_channels) + random.normal(0.0, 0.5)
        delay, reach = subject.uniform(*SPREAD_SECONDS), subject.uniform(*SPREAD_CONTACTS)
        wave = self._waveforms[index][0]
        seconds = np.arange(len(wave)) / self.sfreq
        growing = wave * np.minimum(WEAK_ONSET + (1.0 - WEAK_ONSET) * seconds / GROWTH_SECONDS, 1.0)
        gains, distances = self._focus(center, reach, subject.uniform(*SEIZURE_AMPLITUDE) * random.uniform(0.8, 1.2))
        x = np.zeros((self.num_channels, len(wave)), np.float32)
        for contact, (gain, distance) in enumerate(zip(gains, distances, strict=True)):
            late = round(distance * delay * self.sfreq)
            if gain > 0 and late < len(wave):
                x[contact, late:] = gain * growing[: len(wave) - late]
        # The end is the same in all contacts: a wave that is cut there would be a click.
        return x * np.clip((seconds[-1] - seconds) / 0.5, 0.0, 1.0).astype(np.float32)

    def _focus(self, center: float, reach: float, amplitude: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Gain (µV) of each contact around a place, and its distance from there in contacts."""
        distances = np.abs(np.arange(self.num_channels) + 0.5 - center)
        gains = amplitude * self._traits.scale * np.exp(-0.5 * (distances / reach) ** 2)
        return np.where(distances < 3 * reach, gains, 0.0), distances

    def _run(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """The discharge of a seizure in as many neighbours, in all of them at once, unchanged as long as it lasts."""
        if self._discharge is None:
            (discharge,) = self._integrate(np.array([10.0]), self._generator(13))
            middle, half = discharge.shape[1] // 2, round(RUN_PERIOD * self.sfreq / 2)
            self._discharge = discharge[0, middle - half : middle + half]
        wave = np.resize(np.concatenate([self._discharge, self._discharge[::-1]]), len(t)) * _envelope(len(t))
        amplitude = rng.uniform(*SEIZURE_AMPLITUDE) * rng.uniform(0.8, 1.2)
        gains, _ = self._focus(rng.uniform(0, self.num_channels), rng.uniform(*SPREAD_CONTACTS), amplitude)
        return np.outer(gains, wave).astype(np.float32)

    def _movement(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """Slow swings and fast activity in all channels at once."""
        noise = rng.standard_normal((self.num_channels + 1, len(t)), np.float32)
        noise = 0.6 * noise[:-1] + 0.8 * noise[-1]
        slow = scipy_signal.lfilter([0.02], [1.0, -0.98], noise, axis=1)
        fast = scipy_signal.sosfilt(scipy_signal.butter(2, 8.0, "highpass", fs=self.sfreq, output="sos"), noise, axis=1)
        wave = slow / slow.std() * rng.uniform(0.5, 1.0) + fast / fast.std() * rng.uniform(0.3, 1.0)
        gains = self._traits.scale * rng.uniform(*MOVEMENT) * rng.uniform(0.5, 1.5, self.num_channels)
        return (gains[:, None] * wave * _envelope(len(t))).astype(np.float32)

    def _amplifier(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """The background, again: the gain is higher for a while."""
        first = round(start * self.sfreq)
        background = self._background(first, first + len(t))
        return (rng.uniform(0.5, 2.0) * background * _envelope(len(t))).astype(np.float32)

    def _spindle(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """Twelve to fifteen hertz for a second, in all channels of one side."""
        wave = np.sin(2 * np.pi * rng.uniform(11.0, 15.0) * t + rng.uniform(0, 2 * np.pi)) * np.sin(np.pi * t / t[-1])
        gains = self._traits.scale * rng.uniform(0.8, 2.0) * rng.uniform(0.2, 1.0, self.num_channels)
        return np.outer(gains, wave).astype(np.float32)

    def _train(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """Spikes one after the other, where seizures begin."""
        spike = self._spike(start, t[: round(0.6 * self.sfreq)], rng)
        x = np.zeros((self.num_channels, len(t)), np.float32)
        place = 0.0
        while (first := round(place * self.sfreq)) + spike.shape[1] < x.shape[1]:
            x[:, first : first + spike.shape[1]] += rng.uniform(0.5, 1.0) * spike
            place += rng.uniform(0.3, 1.2)
        return x


def _envelope(length: int) -> NDArray[np.float64]:
    """A slow rise and fall."""
    return np.sin(np.pi * (np.arange(length) + 0.5) / length) ** 0.3
