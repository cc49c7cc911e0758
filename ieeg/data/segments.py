"""A recording as 5 s segments of its preprocessed signal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.ieeg.data.preprocessing import SEGMENT_SECONDS, PreprocessedSignal, Preprocessing, default_preprocessing
from mvpa_ts.ieeg.data.recording import Recording

BLOCK_SEGMENTS = 36
"""Segments computed at a time: 3 min, which is one chunk of a SWEC file."""


class Segments:
    """Preprocessed segments of 5 s, streamed in bounded memory; in sequence each sample is read once.

    Every second of the recording is in a segment: where the last 5 s are not a multiple of 5 s from the start, one more
    segment over the end overlaps the one before it.

    Parameters
    ----------
    recording : Recording
    preprocessing : Preprocessing, optional
        `default_preprocessing(recording)` by default.
    channels : sequence of str, optional
        Names to give out, in this order; after a bipolar montage these are names such as "A1-A2". All by default.

    Attributes
    ----------
    recording : Recording
    preprocessing : Preprocessing
        As used: an automatic notch is resolved.
    channel_names : tuple of str
    num_segments : int
    starts : ndarray of float64, shape (num_segments,)
        Seconds at which the segments begin.
    segment_samples : int
        2560 at 512 Hz.

    Raises
    ------
    ValueError
        The recording is shorter than 5 s, or a channel is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(0, 50, (4, 12 * 512))
    >>> segments = Segments(Recording.from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV", seizures=[(9.0, 12.0)]))
    >>> segments.starts, segments.labels()
    (array([0., 5., 7.]), array([False,  True,  True]))
    >>> signal, valid = segments.read(0, 2)
    >>> signal.shape, valid.shape
    ((4, 5120), (2, 4))
    """

    def __init__(
        self,
        recording: Recording,
        preprocessing: Preprocessing | None = None,
        channels: Sequence[str] | None = None,
    ) -> None:
        preprocessing = default_preprocessing(recording) if preprocessing is None else preprocessing
        self.recording = recording
        self.segment_samples = round(SEGMENT_SECONDS * preprocessing.sfreq)
        if recording.duration < SEGMENT_SECONDS - 0.5 / preprocessing.sfreq:
            raise ValueError(
                f"{recording.name} lasts {recording.duration:.3f} s, shorter than one segment of {SEGMENT_SECONDS:g} s"
            )
        self._stream = PreprocessedSignal(
            recording, preprocessing, None if channels is None else tuple(dict.fromkeys(channels))
        )
        self.preprocessing = self._stream.preprocessing
        self.channel_names = self._stream.channel_names
        self.num_samples = max(self._stream.num_samples, self.segment_samples)
        whole, rest = divmod(self.num_samples, self.segment_samples)
        self._first_samples = np.arange(whole + bool(rest)) * self.segment_samples
        if rest:
            self._first_samples[-1] = self.num_samples - self.segment_samples
        self.num_segments = len(self._first_samples)
        self.starts = self._first_samples / preprocessing.sfreq
        self._blocks: OrderedDict[int, tuple[NDArray[np.float32], NDArray[np.bool_] | None]] = OrderedDict()

    @property
    def subject(self) -> str:
        """The recording's subject, or its name where none is known."""
        return self.recording.subject or self.recording.name

    def read(self, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Segments [first, last).

        Returns
        -------
        signal : ndarray of float32, shape (C, (last − first)·2560)
            µV; 0 where a segment of a channel is not valid.
        valid : ndarray of bool, shape (last − first, C)
            False where NaN, flat and zero stretches make up more than `max_bad_share` of the segment.
        """
        if not 0 <= first < last <= self.num_segments:
            raise ValueError(
                f"{self.recording.name} has segments [0, {self.num_segments}), asked for [{first}, {last})"
            )
        size = self.segment_samples
        shape = (last - first, len(self.channel_names))
        if self._stream.untouched and last - first >= BLOCK_SEGMENTS // 2 and not self._overlapping_tail(last):
            signal, out = self._stream.read(first * size, last * size)
            bad = np.zeros(shape) if out is None else out.reshape(shape[1], shape[0], size).sum(2).T
        else:
            signal, bad = np.empty((shape[1], shape[0] * size), np.float32), np.zeros(shape)
            self._gather(signal, bad, first, last)
        valid = bad <= self.preprocessing.max_bad_share * size
        if not valid.all():
            for segment, channel in np.argwhere(~valid):
                signal[channel, segment * size : (segment + 1) * size] = 0.0
        return signal, valid

    def _overlapping_tail(self, last: int) -> bool:
        return last == self.num_segments and self._first_samples[-1] % self.segment_samples != 0

    def _gather(self, signal: NDArray[np.float32], bad: NDArray[np.float64], first: int, last: int) -> None:
        """Copy segments [first, last) out of blocks."""
        size = self.segment_samples
        # Runs of segments that follow one another; only the overlapping tail starts a second one.
        whole = last - self._overlapping_tail(last)
        runs = [(first, whole)] if whole > first else []
        for low, high in [*runs, *([(whole, last)] if whole < last else [])]:
            place = slice((low - first) * size, (high - first) * size)
            self._fill(signal[:, place], bad[low - first : high - first], int(self._first_samples[low]))

    def _fill(self, signal: NDArray[np.float32], bad: NDArray[np.float64], start: int) -> None:
        """Copy the samples from `start` on into `signal` and count the bad ones of each segment into `bad` [n, C]."""
        size = self.segment_samples
        length, position = signal.shape[1], 0
        while position < length:
            block, offset = divmod(start + position, BLOCK_SEGMENTS * size)
            values, out = self._block(block)
            count = min(length - position, values.shape[1] - offset)
            signal[:, position : position + count] = values[:, offset : offset + count]
            if out is not None:
                for segment in range(position // size, -(-(position + count) // size)):
                    low, high = max(segment * size, position), min((segment + 1) * size, position + count)
                    bad[segment] += out[:, offset + low - position : offset + high - position].sum(1)
            position += count

    def _block(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Blocks lie on a fixed grid, so that a segment is the same to the bit however it is reached."""
        if index in self._blocks:
            self._blocks.move_to_end(index)
            return self._blocks[index]
        start = index * BLOCK_SEGMENTS * self.segment_samples
        stop = min(start + BLOCK_SEGMENTS * self.segment_samples, self.num_samples)
        signal, bad = self._stream.read(start, stop)
        self._blocks[index] = signal, bad
        while len(self._blocks) > 2:
            self._blocks.popitem(last=False)
        return signal, bad

    def __iter__(self) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.bool_]]]:
        """Index, signal [C, 2560] and valid [C] of each segment in turn."""
        for index in range(self.num_segments):
            signal, valid = self.read(index, index + 1)
            yield index, signal, valid[0]

    def __len__(self) -> int:
        return self.num_segments

    def labels(self, rule: Literal["any", "half"] = "any") -> NDArray[np.bool_]:
        """Which segments are ictal.

        Parameters
        ----------
        rule : {"any", "half"}
            Seizures cover any of the segment, or at least half of it.

        Returns
        -------
        ndarray of bool, shape (num_segments,)
        """
        if rule not in ("any", "half"):
            raise ValueError(f'rule must be "any" or "half", got {rule!r}')
        covered = np.zeros(self.num_segments)
        for onset, offset in _merged(self.recording.seizures):
            ends = np.minimum(self.starts + SEGMENT_SECONDS, offset)
            covered += np.maximum(ends - np.maximum(self.starts, onset), 0.0)
        # A touch of rounding is no overlap.
        return covered > 1e-9 if rule == "any" else covered >= SEGMENT_SECONDS / 2 - 1e-9

    def release(self) -> None:
        """Give back buffers and file handles; the next reading makes new ones."""
        self._blocks.clear()
        self.recording.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_blocks": OrderedDict()}


def _merged(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sorted intervals without overlap, so that no second counts twice."""
    merged: list[tuple[float, float]] = []
    for onset, offset in sorted(intervals):
        if merged and onset <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(offset, merged[-1][1])
        else:
            merged.append((onset, offset))
    return merged
