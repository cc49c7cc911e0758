"""What regressions read of a segment: log band power and line length, over channels their median and upper spread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mvpa_ts.ieeg.events import Flags, Floats, Integers, Intervals, segment_labels
from mvpa_ts.ieeg.model.amplitude import band_log_power
from mvpa_ts.ieeg.model.wavelet import wavedec
from mvpa_ts.ieeg.preprocessing.segments import BLOCK_SEGMENTS, Segments
from mvpa_ts.ieeg.recordings.recording import Signal

# Bands of `wavedec` that are read: 0 to 128 Hz, from coarse to fine. The finest, 128 to 256 Hz, is beyond the band-pass
# and many amplifiers.
BANDS = 8
# Median over channels of each band and of line length, then the 90th percentile less the median of each.
NUM_FEATURES = 2 * (BANDS + 1)
# Segments that train at most (28 hours); of more, whole blocks without a seizure are left out evenly.
MOST_TRAINING_SEGMENTS = 20_000


@dataclass(frozen=True)
class TrainingFeatures:
    """Features and labels of the training segments that have a signal and no mark of bad signal.

    Attributes
    ----------
    features : array, shape (n, 18)
    lengths : array, shape (n,)
        Line length (µV).
    ictal : array of bool, shape (n,)
    stretch : array of int, shape (n,)
        Number of the stretch that a segment lies in: a recording, cut halfway between two seizures. Stretches are left
        out one by one where something is validated.
    """

    features: Floats
    lengths: Floats
    ictal: Flags
    stretch: Integers

    def left_out(self) -> Iterator[tuple[Flags, TrainingFeatures]]:
        """Mask of each stretch, and the features of all others where those hold segments of both kinds."""
        for stretch in np.unique(self.stretch):
            others = self.stretch != stretch
            if self.ictal[others].any() and not self.ictal[others].all():
                columns = (self.features, self.lengths, self.ictal, self.stretch)
                yield ~others, TrainingFeatures(*(column[others] for column in columns))

    @classmethod
    def of(cls, training: Sequence[Segments]) -> TrainingFeatures:
        """Read the training recordings.

        Raises
        ------
        ValueError
            No training segment lies in a seizure, or all do.
        """
        columns: list[tuple[Floats, Floats, Flags, Integers]] = []
        step = -(-sum(item.num_segments for item in training) // MOST_TRAINING_SEGMENTS)
        first_stretch = 0
        for segments in training:
            ictal, bad = segments.labels(), segment_labels(segments.starts, segments.recording.bad_spans)
            seizures: Intervals = segments.recording.seizures or []
            middles = [(before[1] + after[0]) / 2 for before, after in itertools.pairwise(seizures)]
            stretch = first_stretch + np.searchsorted(middles, segments.starts, side="right")
            first_stretch += len(middles) + 1
            for start in range(0, segments.num_segments, BLOCK_SEGMENTS):
                rows = slice(start, min(start + BLOCK_SEGMENTS, segments.num_segments))
                if start // BLOCK_SEGMENTS % max(step, 1) and not ictal[rows].any():
                    continue
                ((signal, valid),) = blocks(segments, rows.start, rows.stop)
                lengths = mean_length(line_lengths(signal), valid)
                lengths[bad[rows]] = math.nan
                columns.append((segment_features(signal, valid), lengths, ictal[rows], stretch[rows]))
            segments.warn_of_changes()
        features, lengths, ictal, stretch = (np.concatenate(column) for column in zip(*columns, strict=True))
        scored = ~np.isnan(lengths)
        label = ictal[scored]
        if label.all() or not label.any():
            missing = "without a seizure" if label.any() else "in a seizure"
            raise ValueError(
                f"line length and regression learn from segments with and without seizure, and no training segment "
                f"with a signal is {missing}: add such a recording (--data.recordings, with --from-review --recordings)"
            )
        return cls(features[scored], lengths[scored], label, stretch[scored])


def blocks(segments: Segments, first: int = 0, last: int | None = None) -> Iterator[tuple[Signal, Flags]]:
    """Signal [n, C, samples] and valid [n, C] of the segments from `first` on, before `last`; 36 at a time."""
    last = segments.num_segments if last is None else last
    for start in range(first, last, BLOCK_SEGMENTS):
        signal, valid = segments.read(start, min(start + BLOCK_SEGMENTS, last))
        yield signal.reshape(len(signal), len(valid), -1).swapaxes(0, 1), valid


def line_lengths(signal: Signal) -> Floats:
    """Line length of each channel [n, C]; segment by segment, which bounds the memory."""
    return np.array([np.abs(np.diff(segment, axis=-1)).mean(-1, dtype=np.float64) for segment in signal])


def mean_length(lengths: Floats, valid: Flags) -> Floats:
    """Mean over the channels with a signal [n], NaN without any."""
    count = valid.sum(1)
    total = np.where(valid, lengths, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), math.nan)


def segment_features(signal: Signal, valid: Flags) -> Floats:
    """Features [n, 18] of segments [n, C, samples], NaN for a segment without a valid channel."""
    features = np.full((len(signal), NUM_FEATURES), math.nan)
    lengths = np.log(line_lengths(signal) + 0.01)
    for row, (segment, usable) in enumerate(zip(signal, valid, strict=True)):
        if not usable.any():
            continue
        power = band_log_power(wavedec(torch.from_numpy(segment[usable])))[:, :BANDS].double().numpy()
        values = np.column_stack([power, lengths[row, usable]])
        median, upper = np.quantile(values, [0.5, 0.9], axis=0)
        features[row] = np.concatenate([median, upper - median])
    return features
