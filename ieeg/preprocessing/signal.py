"""From a recording at its own rate to a clean signal at 512 Hz, block by block in bounded memory."""

from __future__ import annotations

import math

import numpy as np

from mvpa_ts.ieeg.events import Flags, Floats
from mvpa_ts.ieeg.preprocessing import filters
from mvpa_ts.ieeg.preprocessing.bad_samples import BRIDGE_SECONDS, bad_samples, bridge, flat_run, implausible
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.recordings.channels import bipolar_pairs, plain_name
from mvpa_ts.ieeg.recordings.recording import Recording, Signal

_GROUP = 16  # channels filtered at a time, so that float64 copies stay small


class PreprocessedSignal:
    """A recording after preprocessing, computed for any range of samples from a bounded neighbourhood.

    What comes out for a range does not depend on how the recording is cut into ranges: resampling is exact, and
    filters see the signal around the range until their transients have fallen to 1e-7.

    Parameters
    ----------
    channels : sequence of str, optional
        What to give out, by name after the montage. The median is always taken over all channels of the recording.
    offsets : array, shape (C,), optional
        Of the recording's channels, µV. Measured by default, for which its middle and end are read.

    Attributes
    ----------
    channel_names : tuple of str
    num_samples : int
        At the new rate.
    implausible : dict of (int, int) to int
        Samples beyond ±1 V that were bad for that reason, by the range that was read. They are counted at the
        recording's own rate, over the channels of the recording that were read.
    """

    def __init__(
        self,
        recording: Recording,
        preprocessing: Preprocessing,
        channels: tuple[str, ...] | None = None,
        offsets: Floats | None = None,
    ) -> None:
        self.recording = recording
        self.preprocessing = settings = preprocessing.resolve(recording)
        if settings.reference == "median" and len(recording.channel_names) < 2:
            raise ValueError(f"{recording.name}: a median reference needs two channels or more; set reference=None")
        names = recording.channel_names
        inputs, minus = np.arange(len(names)), None
        if settings.reference == "bipolar":
            # Pairs come from names, as positions are rarely known.
            pairs = bipolar_pairs(names)
            if not pairs:
                raise ValueError(f"{recording.name}: no two channels are neighbouring contacts, such as A1 and A2")
            inputs, minus = np.array(pairs).T
            names = tuple(f"{plain_name(names[i])}-{plain_name(names[j])}" for i, j in pairs)
        self.channel_names = names if channels is None else tuple(channels)
        place = {name: index for index, name in enumerate(names)}
        if unknown := [name for name in self.channel_names if name not in place]:
            raise ValueError(f"{recording.name} has no channel {', '.join(unknown)}; it has {', '.join(names)}")
        if not self.channel_names:
            raise ValueError(f"{recording.name}: channels must name at least one channel, got none")
        chosen = np.array([place[name] for name in self.channel_names])
        # A median needs every channel; `_chosen` picks at the end.
        self._chosen = chosen if settings.reference == "median" else None
        self._inputs = inputs if settings.reference == "median" else inputs[chosen]
        self._minus = None if minus is None else minus[chosen]

        every = [*range(len(recording.channel_names))]
        self._picked = None if self._inputs.tolist() == every else self._inputs.tolist()
        self.ratio = filters.rational_ratio(recording.sfreq, settings.sfreq)
        self.num_samples = filters.resampled_length(recording.num_samples, self.ratio)
        self._sections = filters.second_order_sections(settings.sfreq, settings.band, settings.notch)  # type: ignore[arg-type]
        self._settling = filters.settling_samples(self._sections)
        self._run = flat_run(recording.sfreq)
        self._reach = int(BRIDGE_SECONDS * recording.sfreq)
        self._filters = self.ratio != 1 or len(self._sections) > 0
        self._offsets = offsets
        if offsets is not None:
            self._offsets = offsets[self._inputs] - (0.0 if self._minus is None else offsets[self._minus])
        self.implausible: dict[tuple[int, int], int] = {}

    def read(self, start: int, stop: int) -> tuple[Signal, Flags | None]:
        """Samples [start, stop) at the new rate, [C, stop − start], and which of them are bad, None when none is.

        Bad samples hold a bridge between their neighbours.
        """
        if self._filters:
            signal, bad = self._filtered(start, stop)
        else:
            signal = np.empty((len(self._inputs), stop - start), np.float32)
            bad = self._as_it_is(signal, 0, start, stop)
        if self.preprocessing.reference == "median":
            signal -= _median(signal, bad)
        if self._chosen is not None:
            signal, bad = signal[self._chosen], None if bad is None else bad[self._chosen]
        return signal, bad if bad is not None and bad.any() else None

    def read_into(self, out: Signal, column: int, start: int, stop: int) -> Flags | None:
        """Like `read`, into `out` [C, n] from column `column` on, without fresh memory where nothing is to be done."""
        if not self._filters and self.preprocessing.reference is None:
            return self._as_it_is(out, column, start, stop)
        out[:, column : column + stop - start], bad = self.read(start, stop)
        return bad

    def _as_it_is(self, out: Signal, column: int, start: int, stop: int) -> Flags | None:
        # A view: where nothing is to be done, samples go from the file to their place without a copy.
        x = out[:, column : column + stop - start]
        if self._minus is None:
            self.recording.read_into(out, column, start, stop, self._picked)
            if self._clean(x):
                return None
        # A bridge needs both edges of its gap, which may lie beyond the range; and what is flat at the edge of what is
        # read may be part of a longer flat stretch.
        around = self._reach + self._run
        left, right = min(around, start), min(around, self.recording.num_samples - stop)
        # Only where a sample may be bad: reading beyond the range costs, and most ranges are clean.
        wide, bad = self._read_inputs(start - left, stop + right)
        inside = slice(left, left + stop - start)
        x[:] = wide[:, inside]
        if bad is None:
            return None
        self._count(x, bad[:, inside], start, stop)
        if (rows := bad[:, inside].any(1)).any():
            values = wide[rows].astype(np.float64)
            bridge(values, bad[rows], self._reach)
            x[rows] = values[:, inside]
        return bad[:, inside]

    def _clean(self, x: Signal) -> bool:
        """Whether no sample can be bad, whatever lies beyond the range."""
        edge = min(8, max(self._run // 2, 1), x.shape[1])
        at_edge = (x[:, 0] == x[:, edge - 1]) | (x[:, -edge] == x[:, -1])
        if at_edge.any():
            at_edge = (x[:, :edge] == x[:, :1]).all(1) | (x[:, -edge:] == x[:, -1:]).all(1)
        return not at_edge.any() and bad_samples(x, self._run) is None

    def _filtered(self, start: int, stop: int) -> tuple[Signal, Flags | None]:
        first, last = start - self._settling, stop + self._settling
        left, right = filters.input_range(first, last, self.ratio)
        # Bridges across the outermost gaps need their far edges.
        low = max(left - self._reach, 0)
        x, bad = self._read_inputs(low, min(right + self._reach, self.recording.num_samples))
        if self._offsets is None:
            self._offsets = self._measure_offsets()
        out = np.empty((len(x), stop - start), np.float32)
        inside = slice(max(left, 0) - low, min(right, self.recording.num_samples) - low)
        if bad is not None:
            begin, end = (math.ceil(edge / self.ratio) for edge in (start, stop))
            range_itself = slice(begin - low, min(end, self.recording.num_samples) - low)
            self._count(x[:, range_itself], bad[:, range_itself], start, stop)
        beyond = max(-left, 0), max(right - self.recording.num_samples, 0)
        for group in range(0, len(x), _GROUP):
            rows = slice(group, group + _GROUP)
            # Filters start from zero, and an offset of millivolts would be a step at every edge.
            values = x[rows] - self._offsets[rows, None]
            if bad is not None:
                bridge(values, bad[rows], self._reach)
            values = filters.odd_extension(values[:, inside], *beyond)
            values = filters.resample(values, left, first, last, self.ratio)
            values = filters.zero_phase(values, self._sections)[:, start - first : stop - first]
            # Without a band-pass the offset belongs to the signal.
            band = self.preprocessing.band
            out[rows] = values if band is not None and band[0] > 0 else values + self._offsets[rows, None]
        if bad is not None:
            # A bad sample marks the sample of the new rate that lies nearest to it.
            up, down = self.ratio.as_integer_ratio()
            nearest = (np.arange(start, stop) * down * 2 + up) // (2 * up)
            bad = bad[:, np.minimum(nearest, self.recording.num_samples - 1) - low]
        return out, bad

    def _count(self, x: Signal, bad: Flags, start: int, stop: int) -> None:
        """Count the implausible among bad samples; `x` is what of the recording belongs to the range [start, stop)."""
        if count := int(implausible(x[bad]).sum()):
            self.implausible[start, stop] = count

    def _read_inputs(self, start: int, stop: int) -> tuple[Signal, Flags | None]:
        """Samples at the recording's rate, after the montage, and which are bad in either contact."""
        x = self.recording.read(start, stop, self._picked)
        bad = bad_samples(x, self._run)
        if self._minus is not None:
            y = self.recording.read(start, stop, self._minus.tolist())
            # A difference with a dead contact is the other contact alone and looks like a signal.
            other = bad_samples(y, self._run)
            x = x - y
            bad = other if bad is None else bad if other is None else bad | other
        return x, bad

    def _measure_offsets(self) -> Floats:
        """Median of each channel over 5 s at the start, in the middle and at the end: gaps are bridged around it."""
        length = min(int(5 * self.recording.sfreq) + 1, self.recording.num_samples)
        starts = {0, (self.recording.num_samples - length) // 2, self.recording.num_samples - length}
        pieces = []
        for start in sorted(starts):
            x, bad = self._read_inputs(start, start + length)
            pieces.append(x.astype(np.float64) if bad is None else np.where(bad, np.nan, x))
        values = np.concatenate(pieces, axis=1)
        return np.array([np.nanmedian(row) if np.isfinite(row).any() else 0.0 for row in values])


def _median(signal: Signal, bad: Flags | None) -> Signal:
    """Median over channels [1, n] of the good samples; 0 where one or none is good, which leaves that one as it is."""
    median = np.median(signal, axis=0, keepdims=True)
    if bad is not None:
        columns = np.flatnonzero(bad.any(0))
        good = np.ma.array(signal[:, columns], mask=bad[:, columns])
        median[0, columns] = np.where(good.count(axis=0) > 1, np.ma.median(good, axis=0).filled(0.0), 0.0)
    return median
