"""Samples of a made-up recording, rendered where they are read."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import OrderedDict
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft as scipy_fft
from scipy import signal as scipy_signal

from mvpa_ts.ieeg.recordings.recording import Interval, Signal
from mvpa_ts.ieeg.simulation import epileptor
from mvpa_ts.ieeg.simulation.subject import NODES, Difficulty, Traits

_BLOCK_SECONDS = 16.0
# Standard deviations of the background.
_RHYTHM_AMPLITUDE, _MUSCLE_AMPLITUDE, _POP_AMPLITUDE, _SPIKE_AMPLITUDE = (0.8, 2.5), (0.3, 2.0), (5.0, 20.0), (2.0, 6.0)


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that begins at `start` seconds, lasts, and is drawn from its own seed when it is rendered."""

    kind: str
    start: float
    duration: float
    index: int


class SimulatedSource:
    """Renders samples of a made-up recording; see `simulate_recording`."""

    seizure_seconds = (20.0, 70.0)
    # What comes an hour and is no seizure, and how long it lasts (s). A rhythm lasts as long as a short seizure.
    events_an_hour: ClassVar[dict[str, tuple[float, tuple[float, float]]]] = {
        "rhythm": (12.0, (5.0, 40.0)),
        "muscle": (8.0, (2.0, 20.0)),
        "pop": (6.0, (4.0, 4.0)),
        "spike": (60.0, (0.6, 0.6)),
    }

    def __init__(
        self,
        subject: str,
        seed: int,
        num_channels: int,
        duration: float,
        sfreq: float,
        num_seizures: int,
        session: int,
        difficulty: Difficulty,
    ) -> None:
        self.sfreq, self.num_channels, self.difficulty = sfreq, num_channels, difficulty
        self._key = (seed, zlib.crc32(subject.encode()), session)
        # Without the session, so that all recordings of a subject share its background and its seizures.
        self._traits = Traits.draw(np.random.default_rng([*self._key[:2], 1]), num_channels, difficulty)
        self.seizures = self._place_seizures(duration, num_seizures)
        self._events = self._place_events(duration)
        self._starts = np.array([event.start for event in self._events])
        self._longest = max((event.duration for event in self._events), default=0.0)
        self._noise: OrderedDict[int, Signal] = OrderedDict()
        self._block = 2 * round(_BLOCK_SECONDS * sfreq / 2)
        self._shape = self._traits.spectrum(self._block, sfreq)
        ramp = np.sin(np.pi * (np.arange(self._block) + 0.5) / self._block)
        self._window = ramp.astype(np.float32)  # of overlapping blocks, squares add up to one

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([*self._key, *key])

    def _place_seizures(self, duration: float, count: int) -> tuple[Interval, ...]:
        """One in each of `count` equal stretches, away from its ends."""
        rng = self._generator(2)
        seizures = []
        for i in range(count):
            slot = duration / count
            # Half of the stretch at most, so that background is left around a seizure in a short recording.
            length = min(rng.uniform(*self.seizure_seconds), 0.5 * slot)
            margin = min(10.0, 0.2 * slot)
            onset = i * slot + rng.uniform(margin, slot - length - margin)
            seizures.append((round(onset, 3), round(onset + length, 3)))
        return tuple(seizures)

    def _place_events(self, duration: float) -> list[Event]:
        rng = self._generator(3)
        events: list[Event] = []
        for kind, (rate, lengths) in self.events_an_hour.items():
            for _ in range(rng.poisson(self.difficulty.artefacts * rate * duration / 3600)):
                events.append(Event(kind, rng.uniform(0, duration), rng.uniform(*lengths), len(events)))
        return sorted(events, key=lambda event: event.start)

    def read(self, start: int, stop: int, channels: NDArray[np.intp]) -> Signal:
        """See `Source.read`."""
        x = self._background(start, stop)
        self._add_line(x, start)
        begin, end = start / self.sfreq, stop / self.sfreq
        first = np.searchsorted(self._starts, begin - self._longest)
        for event in self._events[first : np.searchsorted(self._starts, end)]:
            # Events are rendered where they are read, each from its own seed: any cut of the recording gives the same
            # samples.
            if event.start + event.duration > begin:
                render = getattr(self, f"_{event.kind}")  # such as `_rhythm`
                t = np.arange(round(event.duration * self.sfreq)) / self.sfreq
                self._add(x, start, event.start, render(event.start, t, self._generator(4, event.index)))
        for i, (onset, offset) in enumerate(self.seizures):
            if onset < end and offset > begin:
                self._add(x, start, onset, self._seizure(i))
        return x[channels]

    def _add(self, x: Signal, start: int, onset: float, values: Signal) -> None:
        """Add values [C, n] that begin `onset` seconds after the recording's start to x, which begins at `start`."""
        first = round(onset * self.sfreq) - start
        low, high = max(first, 0), min(first + values.shape[1], x.shape[1])
        if low < high:
            x[:, low:high] += values[:, low - first : high - first]

    def _background(self, start: int, stop: int) -> Signal:
        """Pink noise: blocks with half an overlap, faded so that their variances add up to a constant."""
        half = self._block // 2
        x = np.zeros((self.num_channels, stop - start), np.float32)
        for index in range(start // half - 1, (stop - 1) // half + 1):
            first = index * half
            low, high = max(first, start), min(first + self._block, stop)
            if low < high:
                x[:, low - start : high - start] += self._noise_block(index)[:, low - first : high - first]
        return x

    def _noise_block(self, index: int) -> Signal:
        if index not in self._noise:
            rng = self._generator(5, index + 1)
            bins = self._shape.shape[1]
            count = self.num_channels + self._traits.common.shape[1]
            white = rng.standard_normal((count, bins, 2), np.float32).view(np.complex64)[..., 0]
            sources = white[self.num_channels :]
            # Neighbours share sources, as electrodes in one tissue do: independent channels would be too easy.
            white = white[: self.num_channels] + self._traits.common @ sources
            self._noise[index] = scipy_fft.irfft(white * self._shape, self._block, axis=1) * self._window
            if len(self._noise) > 3:
                self._noise.popitem(last=False)
        return self._noise[index]

    def _add_line(self, x: Signal, start: int) -> None:
        if (line := self.difficulty.line_frequency) is None:
            return
        phase = 2 * np.pi * line * (start + np.arange(x.shape[1])) / self.sfreq
        wave = np.zeros_like(phase)
        # What lies above half the rate would come back as another frequency, in the band of seizures.
        for harmonic, share in ((1, 1.0), (2, 0.3), (3, 0.2)):
            if harmonic * line < self.sfreq / 2:
                wave += share * np.sin(harmonic * phase)
        x += self._traits.line[:, None] * wave.astype(np.float32)

    def _seizure(self, index: int) -> Signal:
        strength = self._generator(7, index).uniform(0.7, 1.3)
        gains = self._traits.seizure_gains * strength  # [C, K]
        wave = gains @ self._waveforms[index]
        if self.difficulty.irregular[1] > 0:
            wave += strength * self._irregular(index, wave.shape[1])
        return wave.astype(np.float32)

    def _irregular(self, index: int, length: int) -> NDArray[np.float64]:
        """Noise that grows in the first part of a seizure and fades at its end, flatter than the background [C, n]."""
        subject = np.random.default_rng([*self._key[:2], 9])
        amplitude, exponent = subject.uniform(*self.difficulty.irregular), subject.uniform(0.4, 1.4)
        rng = self._generator(8, index)
        frequency = scipy_fft.rfftfreq(length, 1 / self.sfreq)
        shape = 1.0 / np.maximum(frequency, 1.0) ** (exponent / 2)
        shape[frequency < 0.5] = 0.0
        white = rng.standard_normal((self.num_channels, len(shape), 2)).view(np.complex128)[..., 0]
        noise = scipy_fft.irfft(white * shape, length, axis=1)
        noise /= noise.std(1, keepdims=True)
        peak, place = rng.uniform(0.2, 0.7), np.linspace(0.0, 1.0, length)
        noise *= np.interp(place, [0.0, peak, 1.0], [rng.uniform(0.1, 0.4), 1.0, rng.uniform(0.3, 0.8)])
        reach = self._traits.zone + (1.0 - self._traits.zone) * subject.uniform(0.0, 0.8)
        return 40.0 * amplitude * reach[:, None] * noise

    @cached_property
    def _waveforms(self) -> list[Signal]:
        """Of the seizures, [K, samples] each, made when first needed."""
        lengths = np.array([offset - onset for onset, offset in self.seizures])
        return self._integrate(lengths, self._generator(6))

    def _integrate(self, lengths: NDArray[np.float64], rng: np.random.Generator) -> list[Signal]:
        """Field potentials of seizures this long (s), at the recording's rate, unit variance while they discharge."""
        # A seizure that is longer in model time runs more slowly.
        model_time = np.minimum(lengths * self._traits.speed * rng.uniform(0.9, 1.1, len(lengths)), 3000.0)
        tau0 = model_time / epileptor.DURATION
        pairs = (len(lengths), 2)
        x0 = np.concatenate([rng.uniform(-1.7, -1.55, pairs), rng.uniform(-2.3, -1.8, pairs)], 1)
        steps = math.ceil((1.4 * epileptor.DURATION + epileptor.ONSET) * tau0.max() / epileptor.STEP) + 1000
        potential, activity = epileptor.epileptor(x0, tau0, steps, generator=rng)
        waveforms = []
        for i, length in enumerate(lengths):
            onset, offset = epileptor.discharges(activity[:, i])
            samples = np.linspace(onset, offset, round(length * self.sfreq))
            wave = np.stack([np.interp(samples, np.arange(steps), potential[:, i, k]) for k in range(NODES)])
            # What an amplifier leaves of the shift between rest and seizure.
            sections = scipy_signal.butter(1, 0.5, "highpass", fs=self.sfreq, output="sos")
            wave = scipy_signal.sosfiltfilt(sections, wave - wave[:, :1], axis=1)
            wave /= np.maximum(wave.std(1, keepdims=True), 0.3)
            # A hard edge would be a click, by which any detector finds the seizure.
            fade = min(round(0.5 * self.sfreq), wave.shape[1] // 4)
            ramp = np.sin(0.5 * np.pi * (np.arange(fade) + 0.5) / fade) ** 2
            wave[:, :fade] *= ramp
            wave[:, -fade:] *= ramp[::-1]
            waveforms.append(wave.astype(np.float32))
        return waveforms

    def _rhythm(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """A waxing and waning rhythm, sinusoidal to arched, around one channel."""
        frequency = np.exp(rng.uniform(np.log(3.0), np.log(22.0))) * (1 + rng.uniform(-0.15, 0.15) * t / t[-1])
        phase = 2 * np.pi * np.cumsum(frequency) / self.sfreq + rng.uniform(0, 2 * np.pi)
        wave = np.sin(phase) + rng.uniform(0, 0.4) * np.sin(2 * phase + 1.0)
        waxing = 1 + 0.3 * np.sin(2 * np.pi * rng.uniform(0.2, 1.0) * t)
        wave *= np.sin(np.pi * (np.arange(len(t)) + 0.5) / len(t)) ** 0.5 * waxing
        reach = _reach(rng, self.num_channels) * self._traits.scale
        return np.outer(reach * rng.uniform(*_RHYTHM_AMPLITUDE), wave / wave.std()).astype(np.float32)

    def _muscle(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """Noise above 20 Hz in most channels."""
        low = min(20.0, 0.2 * self.sfreq)
        sections = scipy_signal.butter(2, low, "highpass", fs=self.sfreq, output="sos")
        noise = scipy_signal.sosfilt(sections, rng.standard_normal((self.num_channels, len(t))), axis=1)
        noise *= np.sin(np.pi * (np.arange(len(t)) + 0.5) / len(t)) ** 0.5
        gains = self._traits.scale * rng.uniform(*_MUSCLE_AMPLITUDE) * rng.uniform(0, 1, self.num_channels)
        return (gains[:, None] * noise).astype(np.float32)

    def _pop(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """A step that decays."""
        x = np.zeros((self.num_channels, len(t)), np.float32)
        channel = rng.integers(self.num_channels)
        height = rng.choice([-1, 1]) * rng.uniform(*_POP_AMPLITUDE) * self._traits.scale[channel]
        x[channel] = height * np.exp(-t / rng.uniform(0.2, 0.8))
        return x

    def _spike(self, start: float, t: NDArray[np.float64], rng: np.random.Generator) -> Signal:
        """A sharp wave of 70 ms and the slow wave after it, where seizures begin."""
        wave = np.exp(-(((t - 0.1) / 0.02) ** 2)) - 0.4 * np.exp(-(((t - 0.28) / 0.08) ** 2))
        gains = self._traits.zone * self._traits.scale * rng.uniform(*_SPIKE_AMPLITUDE)
        return np.outer(gains, wave).astype(np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_noise": OrderedDict()}


def _reach(rng: np.random.Generator, channels: int) -> NDArray[np.float64]:
    """Gains [C] that fall off around a random place in the order of channels."""
    distance = np.arange(channels) + 0.5 - rng.uniform(0, channels)
    return np.exp(-0.5 * (distance / (rng.uniform(0.1, 0.35) * max(channels, 4))) ** 2)
