"""Detection on a recording that keeps coming: samples in at their own rate, a probability out for each 5 s."""

from __future__ import annotations

import math
import numbers
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS, check_rate
from mvpa_ts.ieeg.detection import networks
from mvpa_ts.ieeg.detection.features import segment_features
from mvpa_ts.ieeg.detection.linear import RunningPart, load_linear
from mvpa_ts.ieeg.detection.rules import EventRules, OnlineRule, online_rule
from mvpa_ts.ieeg.model.pretrained import folder_of
from mvpa_ts.ieeg.model.seen_subjects import warn_of_other_channels
from mvpa_ts.ieeg.model.streaming import StreamingMVPFormer
from mvpa_ts.ieeg.preprocessing import filters, settings
from mvpa_ts.ieeg.preprocessing.bad_samples import BRIDGE_SECONDS, bad_samples, flat_run
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.preprocessing.signal import PreprocessedSignal
from mvpa_ts.ieeg.recordings.channels import in_recording_order
from mvpa_ts.ieeg.recordings.levels import warn_if_implausible
from mvpa_ts.ieeg.recordings.recording import Recording, Signal, microvolts, real_numbers


@dataclass(frozen=True)
class Decision:
    """Probability and alarm of one segment.

    Attributes
    ----------
    start : float
        Seconds from the first sample to the segment's.
    probability : float
        Probability of seizure; NaN if no channel had a signal.
    alarm : bool
        State of the online rule after this segment.
    """

    start: float
    probability: float
    alarm: bool


class StreamingDetector:
    """Seizure probability of each 5 s of a stream.

    The filters of `Preprocessing` run forward and backward, so a segment must wait for some signal after it; `delay`
    says how long. With a shorter `lookahead` it answers sooner: the filters then treat the stream's present end as the
    end of a recording.

    With the default `lookahead`, and until the model's context is full, probabilities equal those of `Detector.detect`
    on the same samples. After that, old segments leave the cache; see `StreamingMVPFormer`. One difference is left
    beside gaps of more than 10 s (5 s at an end), which are filled with the channel's offset: a stream knows it from
    the first 5 s of good samples only.

    Parameters
    ----------
    model : MVPFormer, sequence of MVPFormer, or path
        As for `Detector`.
    sfreq : float
        Samples per second of the stream.
    channel_names : sequence of str
    preprocessing : Preprocessing or mapping, optional
        Default: `default_preprocessing` without a notch. A mapping, such as ``{"notch": 50.0}``, changes fields of it.
        A `notch` of "auto" is an error, because it would have to measure the whole recording.
    channels : sequence of str, optional
        Channels for the model, used in the stream's order; all by default. A median reference is taken over all.
    unit : str, default "µV"
        Unit of the samples; MNE and LSL often give volts, "V". A warning says if the first seconds are implausible in
        µV.
    lookahead : float, optional
        Seconds of signal that a segment waits for. Default: as many as its filters reach.
    online : OnlineRule, optional
        Default: 1 of the last 2 segments.
    threshold : float, optional
        A segment is positive where its probability exceeds this; default: the model's own.

    Raises
    ------
    ValueError
        The model has no such head, `notch` is "auto", or a value is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    >>> model = MVPFormer(mvpformer_tiny(num_classes=2))
    >>> stream = StreamingDetector(model, 1000.0, ["A1", "A2"], {"notch": 50.0}, lookahead=0.0)
    >>> samples = np.random.default_rng(0).normal(0, 50, (2, 12000))
    >>> [decision.start for chunk in np.split(samples, 24, axis=1) for decision in stream.feed(chunk)]
    [0.0, 5.0]
    >>> [decision.start for decision in stream.finish()]
    [7.0]
    """

    def __init__(
        self,
        model: networks.Networks,
        sfreq: float,
        channel_names: Sequence[str],
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        *,
        channels: Sequence[str] | None = None,
        unit: str = "µV",
        lookahead: float | None = None,
        online: OnlineRule | None = None,
        threshold: float | None = None,
    ) -> None:
        loaded = networks.seizure_networks(model)
        self._linear: RunningPart | None = None
        self._buffer = _Buffer(len(channel_names))
        begin = Recording(self._buffer, sfreq=sfreq, channel_names=channel_names, num_samples=1, name="stream")
        self._begin = begin
        self._sfreq, self._names = begin.sfreq, begin.channel_names
        if isinstance(model, (str, os.PathLike)):
            linear = load_linear(model)
            self._linear = None if linear is None else RunningPart(linear)
            warn_of_other_channels(begin, folder_of(os.fspath(model)))
        # A stream has no middle in which a hum could be looked for.
        default = replace(settings.default_preprocessing(begin), notch=None)
        preprocessing = settings.changed_preprocessing(default, preprocessing)
        if preprocessing.notch == "auto":
            raise ValueError("preprocessing.notch must be Hz or None in a stream, 'auto' needs a whole recording")
        check_rate(preprocessing.sfreq)
        settings.warn_of_low_rate(begin, preprocessing)
        if lookahead is not None and not (isinstance(lookahead, numbers.Real) and 0 <= lookahead < math.inf):
            raise ValueError(f"lookahead must not be negative, and must be a finite number, got {lookahead!r}")
        if isinstance(channels, str):
            raise ValueError(f"channels must be a list of names, or None for all, got {channels!r}")
        if threshold is None:
            threshold = networks.mean_threshold(loaded) if self._linear is None else 0.5
        self.preprocessing = preprocessing
        self.online = online_rule(online)
        self.threshold = EventRules(threshold=threshold).threshold  # out of range is an error there
        self._scale = microvolts(unit)
        self._channels: tuple[str, ...] | None = None
        self._ratio = filters.rational_ratio(self._sfreq, preprocessing.sfreq)
        self._size = round(SEGMENT_SECONDS * preprocessing.sfreq)
        sections = filters.second_order_sections(preprocessing.sfreq, preprocessing.band, preprocessing.notch)
        self._settling = filters.settling_samples(sections)
        self._reach = int(BRIDGE_SECONDS * self._sfreq)
        self._ahead = self._full_lookahead() if lookahead is None else math.ceil(lookahead * self._sfreq)
        # Gaps are bridged around a channel's offset, and a stream cannot look at its end for it.
        self._offsets = _Offsets(len(channel_names), self._reach, flat_run(self._sfreq))
        if channels is not None:
            self._channels = in_recording_order(channels, self._signal(1).channel_names)
        count = len(self._signal(1).channel_names)
        self._streams = [StreamingMVPFormer(network, count) for network in loaded]
        self._recent: deque[float] = deque(maxlen=self.online.n)
        self._emitted = 0
        self._over = False

    @property
    def delay(self) -> float:
        """Seconds from the end of a segment to its decision, without computing time."""
        return self._ahead / self._sfreq

    def feed(self, samples: npt.ArrayLike) -> list[Decision]:
        """Take new samples [C, n], any n, and give the decisions that they complete.

        Raises
        ------
        ValueError
            The samples have another shape, the stream is over, or the model gives no finite probability.
        """
        if self._over:
            raise ValueError("the stream is over since finish(): make another StreamingDetector for what comes now")
        new = real_numbers(samples, "samples").astype(np.float32)
        if new.ndim != 2 or len(new) != len(self._names):
            raise ValueError(f"samples must be [C, n] with C = {len(self._names)}, got shape {new.shape}")
        self._buffer.append(new * np.float32(self._scale))
        decisions = []
        while self._buffer.stop >= self._needed(self._emitted * self._size + self._size) + self._ahead:
            # Said once, when enough signal has come to tell the unit.
            if self._emitted == 0:
                warn_if_implausible(self._begin.replaced(num_samples=self._buffer.stop))
            decisions.append(self._decide(self._emitted * self._size))
            self._emitted += 1
            first = filters.input_range(self._emitted * self._size - self._settling, 0, self._ratio)[0]
            # The tail goes back by a segment at most, and a bridge reaches beyond what the filters see.
            self._buffer.forget(first - 2 * self._reach - self._needed(self._size))
        return decisions

    def finish(self) -> list[Decision]:
        """The decisions that still waited for signal, the last over the final 5 s; the stream is over."""
        total = filters.resampled_length(self._buffer.stop, self._ratio)
        decisions = []
        while (self._emitted + 1) * self._size <= total:
            decisions.append(self._decide(self._emitted * self._size))
            self._emitted += 1
        if total % self._size and total > self._size:
            decisions.append(self._decide(total - self._size))
        # The memory goes at once: a stream may be kept for its decisions.
        self._buffer, self._over = _Buffer(len(self._names)), True
        return decisions

    @torch.inference_mode()
    def _decide(self, start: int) -> Decision:
        """Decision on the segment that begins with this sample at the model's rate."""
        values, bad = self._signal(self._buffer.stop).read(start, start + self._size)
        most = self.preprocessing.max_bad_share * self._size
        valid = np.ones(len(values), bool) if bad is None else bad.sum(1) <= most
        # As `Segments` does, so that a stream and a file give the same.
        values[~valid] = 0.0
        mask = torch.from_numpy(valid)
        logits = []
        for stream in self._streams:
            features = stream.step(torch.from_numpy(values), mask)
            logits.append(stream.model.classify(features[None, None], mask[None].to(features.device)))
        if self._linear is None:
            probability = float(networks.seizure_probability(logits)) if valid.any() else math.nan
        else:
            # A segment without a signal is passed on, too: it is one of the first minute.
            mean = networks.mean_logit(logits).cpu().numpy()
            probability = float(self._linear.probabilities(segment_features(values[None], valid[None]), mean)[0])
        if valid.any() and not math.isfinite(probability):
            first = start / self.preprocessing.sfreq
            place = f"the stream between {first:g} and {first + SEGMENT_SECONDS:g} s"
            raise ValueError(networks.why_not_finite([stream.model for stream in self._streams], place))
        self._recent.append(probability)
        alarm = sum(value > self.threshold for value in self._recent) >= self.online.k
        return Decision(start / self.preprocessing.sfreq, probability, alarm)

    def _signal(self, num_samples: int) -> PreprocessedSignal:
        """The preprocessed stream as if it ended with what has come so far."""
        stream = self._begin.replaced(num_samples=num_samples)
        return PreprocessedSignal(stream, self.preprocessing, self._channels, self._offsets.measure(self._buffer))

    def _needed(self, stop: int) -> int:
        """Input samples before the output's end."""
        return math.ceil(stop / self._ratio)

    def _full_lookahead(self) -> int:
        """Input samples after a segment that its preprocessed signal depends on."""
        if self._settling == 0 and self._ratio == 1:
            # A gap at the segment's end is bridged to its far edge, before which a flat stretch must be told.
            return self._reach + flat_run(self._sfreq)
        # Samples after the segment that its filters see, and those that bridge a gap at their edge.
        last = filters.input_range(0, self._size + self._settling, self._ratio)[1]
        return last - self._needed(self._size) + self._reach


class _Offsets:
    """Median of each channel over its first good samples; until they have come, over those that are there."""

    def __init__(self, channels: int, count: int, run: int) -> None:
        self._first = [np.empty(0, np.float32)] * channels
        self._medians = np.zeros(channels)
        self._count, self._run, self._seen = count, run, 0

    def measure(self, buffer: _Buffer) -> npt.NDArray[np.float64]:
        """Offsets [C] as far as they are known; 0 for a channel that had no good sample yet."""
        # Whether the newest samples are flat is not known yet.
        stop = buffer.stop - self._run
        short = np.array([channel for channel, first in enumerate(self._first) if len(first) < self._count], np.intp)
        if stop > self._seen and len(short):
            low = max(self._seen - self._run, 0)
            x = buffer.read(low, buffer.stop, short)
            bad = bad_samples(x, self._run)
            good = np.ones(x.shape, bool) if bad is None else ~bad
            new = slice(self._seen - low, stop - low)
            for channel, values, usable in zip(short, x[:, new], good[:, new], strict=True):
                first = np.concatenate([self._first[channel], values[usable]])[: self._count]
                if len(first):
                    self._first[channel], self._medians[channel] = first, np.median(first)
            self._seen = stop
        return self._medians.copy()


class _Buffer:
    """The newest samples of a stream, by their place in it."""

    def __init__(self, channels: int) -> None:
        self._values = np.empty((channels, 0), np.float32)
        self._first = 0

    @property
    def stop(self) -> int:
        """Samples that have come."""
        return self._first + self._values.shape[1]

    def append(self, values: Signal) -> None:
        self._values = np.concatenate([self._values, values], axis=1)

    def forget(self, before: int) -> None:
        # Half of the buffer at a time, so that each sample is copied once on average.
        if before - self._first > self._values.shape[1] // 2:
            self._values = self._values[:, before - self._first :].copy()
            self._first = before

    def read(self, start: int, stop: int, channels: npt.NDArray[np.intp]) -> Signal:
        if start < self._first:
            raise ValueError(f"sample {start} is no longer in the buffer, which begins with sample {self._first}")
        return self._values[channels, start - self._first : stop - self._first]
