"""A recording as 5 s segments of its preprocessed signal."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.events import Flags, Floats, segment_labels
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing, default_preprocessing, warn_of_low_rate
from mvpa_ts.ieeg.preprocessing.signal import PreprocessedSignal
from mvpa_ts.ieeg.recordings.levels import CHANGES, changes_in_words
from mvpa_ts.ieeg.recordings.reading import AnyRecording, as_recording
from mvpa_ts.ieeg.recordings.recording import Signal

# Segments computed at a time: 3 min, which is one chunk of a SWEC file.
BLOCK_SEGMENTS = 36


class Segments:
    """Preprocessed segments of 5 s, streamed in bounded memory; in sequence each sample is read once.

    Every second of the recording is in a segment: if less than 5 s are left at the end, one more segment covers the
    last 5 s and overlaps the one before it.

    Parameters
    ----------
    recording : Recording, Raw, path, or (samples in µV, sfreq)
    preprocessing : Preprocessing, optional
        `default_preprocessing(recording)` by default.
    channels : sequence of str, optional
        Names of the channels to read, in this order. After a bipolar montage they are names such as "A1-A2". By default
        all.

    Attributes
    ----------
    recording : Recording
    preprocessing : Preprocessing
        As used: with the frequency that an automatic notch found.
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
    >>> from mvpa_ts.ieeg import Recording
    >>> x = np.random.default_rng(0).normal(0, 50, (4, 12 * 512))
    >>> segments = Segments(Recording.from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV", seizures=[(9.0, 12.0)]))
    >>> segments.starts, segments.labels()
    (array([0., 5., 7.]), array([False,  True,  True]))
    >>> signal, valid = segments.read(0, 2)
    >>> signal.shape, valid.shape
    ((4, 5120), (2, 4))
    """

    def __init__(
        self, recording: AnyRecording, preprocessing: Preprocessing | None = None, channels: Sequence[str] | None = None
    ) -> None:
        recording = as_recording(recording)
        preprocessing = default_preprocessing(recording) if preprocessing is None else preprocessing
        warn_of_low_rate(recording, preprocessing)
        self.recording = recording
        self.segment_samples = round(SEGMENT_SECONDS * preprocessing.sfreq)
        # Half a sample of the new rate is allowed, which rounding takes.
        if recording.duration < SEGMENT_SECONDS - 0.5 / preprocessing.sfreq:
            raise ValueError(
                f"{recording.name} lasts {recording.duration:.3f} s, shorter than one segment of {SEGMENT_SECONDS:g} s"
            )
        chosen = None if channels is None else tuple(dict.fromkeys(channels))
        self._stream = PreprocessedSignal(recording, preprocessing, chosen)
        self.preprocessing = self._stream.preprocessing
        self.channel_names = self._stream.channel_names
        self.num_samples = max(self._stream.num_samples, self.segment_samples)
        # The last seconds are scored too: a seizure may lie there.
        whole, remainder = divmod(self.num_samples, self.segment_samples)
        self._first_samples = np.arange(whole + bool(remainder)) * self.segment_samples
        if remainder:
            self._first_samples[-1] = self.num_samples - self.segment_samples
        self.num_segments = len(self._first_samples)
        self.starts = self._first_samples / preprocessing.sfreq
        self._blocks: OrderedDict[int, tuple[Signal, Flags | None]] = OrderedDict()
        self._room = 2  # blocks kept
        self._read = np.zeros(self.num_segments, bool)
        self._heard = np.zeros(len(self.channel_names), bool)
        self._levels = np.full((self.num_segments, len(self.channel_names)), np.nan, np.float32)

    @property
    def implausible_samples(self) -> int:
        """Samples beyond ±1 V in what was read so far, all channels together; they are masked like NaN."""
        return sum(self._stream.implausible.values())

    @property
    def silent_channels(self) -> tuple[str, ...]:
        """Channels without a single valid segment: flat, not a number or never connected; empty until all are read.

        `find_silent_channels` reads what is missing.
        """
        if not self._read.all():
            return ()
        return tuple(name for name, heard in zip(self.channel_names, self._heard, strict=True) if not heard)

    @property
    def subject(self) -> str:
        """See `Recording.subject_name`."""
        return self.recording.subject_name

    def read(self, first: int, last: int, repeated: int = 0) -> tuple[Signal, Flags]:
        """Segments [first, last).

        Parameters
        ----------
        first, last : int
        repeated : int
            How many of the last segments the next reading begins with: they are kept, and not read twice.

        Returns
        -------
        signal : ndarray of float32, shape (C, (last − first)·2560)
            µV; 0 where a segment of a channel is not valid.
        valid : ndarray of bool, shape (last − first, C)
            False where NaN, flat and zero stretches make up more than `max_bad_share` of the segment.

        Raises
        ------
        ValueError
            The range is empty, or reaches beyond the recording.
        """
        self._check_range(first, last)
        count, size = last - first, self.segment_samples
        # Made once for the whole range and filled in place, as these arrays are most of the memory that is used.
        signal = np.empty((len(self.channel_names), count * size), np.float32)
        bad = np.zeros((count, len(signal)))
        # A tail may overlap the segment before it; all others follow one another.
        tail = last == self.num_segments and self._first_samples[-1] % size != 0
        repeated = min(max(repeated, int(tail)), count)
        kept_from = int(self._first_samples[last - repeated]) if repeated else self.num_samples
        self._room = repeated // BLOCK_SEGMENTS + 2
        self._fill(signal, bad, 0, first * size, (last - tail) * size, kept_from)
        if tail:
            self._fill(signal, bad, count - 1, int(self._first_samples[-1]), self.num_samples, kept_from)
        # A few bad samples were bridged and do no harm. A segment that is mostly bridge would be invented.
        valid = bad <= self.preprocessing.max_bad_share * size
        self._heard |= valid.any(0)
        for segment, channel in np.argwhere(~valid):
            signal[channel, segment * size : (segment + 1) * size] = 0.0
        for segment in np.flatnonzero(~self._read[first:last]):
            self._levels[first + segment] = signal[:, segment * size : (segment + 1) * size].std(1)
        self._read[first:last] = True
        return signal, valid

    def _check_range(self, first: int, last: int) -> None:
        if not 0 <= first < last <= self.num_segments:
            has = f"{self.recording.name} has segments [0, {self.num_segments})"
            raise ValueError(f"{has}, asked for [{first}, {last})")

    def find_silent_channels(self) -> tuple[str, ...]:
        """The `silent_channels`; segments that were not read yet are, until each channel has had a valid one."""
        for first in range(0, self.num_segments, BLOCK_SEGMENTS):
            # A channel that was heard once is not silent, so most recordings are not read to the end for this.
            if self._heard.all():
                return ()
            last = min(first + BLOCK_SEGMENTS, self.num_segments)
            if not self._read[first:last].all():
                self.read(first, last)
        return self.silent_channels

    def warn_of_changes(self) -> None:
        """Warn, once for a recording, of levels that change as no brain's do in what was read, and note it there.

        When a recording is opened only some seconds are looked at, and a gain may change between two of them.
        """
        if any(CHANGES in note for note in self.recording.notes):
            return
        # The middle one of 25 s: shorter artefacts are common.
        if text := changes_in_words(self.recording, self.channel_names, self.starts, self._levels, SEGMENT_SECONDS, 5):
            self.recording.warn(text)

    def _fill(self, signal: Signal, bad: Floats, segment: int, start: int, stop: int, kept_from: int) -> None:
        """Samples [start, stop) into `signal`, from `segment` of it on; the bad ones are counted in `bad` [n, C]."""
        # Blocks lie on a fixed grid, so that a segment is the same to the bit however it is reached.
        size, length = self.segment_samples, BLOCK_SEGMENTS * self.segment_samples
        shift = segment * size - start
        while start < stop:
            index = start // length
            low, high = index * length, min((index + 1) * length, self.num_samples)
            end = min(high, stop)
            columns = slice(start + shift, end + shift)
            # A whole block is read straight to its place; one that is read in part, or reaches beyond `kept_from`, is
            # kept for the next reading.
            if (start, end) == (low, high) and high <= kept_from and index not in self._blocks:
                out = self._stream.read_into(signal, columns.start, low, high)
            else:
                values, out = self._block(index, low, high)
                signal[:, columns] = values[:, start - low : end - low]
                out = None if out is None else out[:, start - low : end - low]
            if out is not None:
                bounds = [columns.start, *range((columns.start // size + 1) * size, columns.stop, size), columns.stop]
                for left, right in itertools.pairwise(bounds):
                    bad[left // size] += out[:, left - columns.start : right - columns.start].sum(1)
            start = end

    def _block(self, index: int, start: int, stop: int) -> tuple[Signal, Flags | None]:
        """Samples [start, stop), which are a block, and which of them are bad."""
        if index not in self._blocks:
            values = None
            # The oldest block gives its memory to the new one: fresh pages cost more than the copying.
            while len(self._blocks) >= self._room:  # their memory is used again
                values = self._blocks.popitem(last=False)[1][0]
            if values is None:
                values = np.empty((len(self.channel_names), BLOCK_SEGMENTS * self.segment_samples), np.float32)
            self._blocks[index] = values, self._stream.read_into(values, 0, start, stop)
        self._blocks.move_to_end(index)
        return self._blocks[index]

    def __iter__(self) -> Iterator[tuple[int, Signal, Flags]]:
        """Index, signal [C, 2560] and valid [C] of each segment in turn."""
        size = self.segment_samples
        for first in range(0, self.num_segments, BLOCK_SEGMENTS):
            signal, valid = self.read(first, min(first + BLOCK_SEGMENTS, self.num_segments))
            for row, ok in enumerate(valid):
                yield first + row, signal[:, row * size : (row + 1) * size], ok

    def __len__(self) -> int:
        return self.num_segments

    def labels(self) -> Flags:
        """Which segments hold seizure, [num_segments]; see `segment_labels`."""
        return segment_labels(self.starts, self.recording.seizures)

    def release(self) -> None:
        """Give back buffers and file handles; the next reading makes new ones."""
        self._blocks.clear()
        self.recording.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_blocks": OrderedDict()}


class SegmentsInMemory(Segments):
    """Segments whose signal is in memory: `held`, or what the first reading gives of the whole recording."""

    def __init__(self, segments: Segments, held: tuple[Signal, Flags] | None = None) -> None:
        self.__dict__.update(segments.__dict__)
        self._held = held

    def read(self, first: int, last: int, repeated: int = 0) -> tuple[Signal, Flags]:
        """See `Segments.read`."""
        self._check_range(first, last)
        if self._held is None:
            self._held = super().read(0, self.num_segments)
        signal, valid = self._held
        size = self.segment_samples
        return signal[:, first * size : last * size].copy(), valid[first:last].copy()
