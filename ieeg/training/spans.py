"""Spans of segments, which are cut into overlapping windows after encoding, and batches of spans of different sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor
from torch.utils.data import Dataset

from mvpa_ts.attention.functional import merged_mask
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES, SEGMENT_SECONDS
from mvpa_ts.ieeg.events import Flags, segment_labels
from mvpa_ts.ieeg.model.amplitude import LEVEL_SEGMENTS, NUM_BANDS, band_log_power
from mvpa_ts.ieeg.model.wavelet import wavedec
from mvpa_ts.ieeg.preprocessing.segments import BLOCK_SEGMENTS, Segments, SegmentsInMemory

# Recordings of a data set whose buffers and file handles a process keeps at a time.
OPEN_RECORDINGS = 4


@dataclass(frozen=True)
class Span:
    """Segments [first, last) of one recording of a data set."""

    recording: int
    first: int
    last: int


def cover(num_segments: int, length: int, window: int = 1) -> list[tuple[int, int]]:
    """Cut segments into spans [first, last) of at most `length`, so that each window of `window` segments is in one.

    Neighbouring spans share `window` − 1 segments, so with ``length`` = 4 × ``window`` a third of the segments is
    encoded twice. A recording shorter than a window is one span.

    Examples
    --------
    >>> cover(10, length=4, window=2)
    [(0, 4), (3, 7), (6, 10)]
    >>> cover(9, length=4)
    [(0, 4), (4, 8), (8, 9)]
    """
    if not 1 <= window <= length:
        raise ValueError(f"length ({length}) must be at least window ({window}), and window at least 1")
    if num_segments <= window:
        return [(0, num_segments)]
    # The windows of one span end where those of the next begin, so none is lost and none is read twice.
    step = length - window + 1
    return [(first, min(first + length, num_segments)) for first in range(0, num_segments - window + 1, step)]


def unfold_windows(embeddings: Tensor, window: int) -> Tensor:
    """View encoded spans, or their masks, [B, S, …] as all windows of T segments [B, S − T + 1, T, …], without copying.

    Examples
    --------
    >>> unfold_windows(torch.arange(4)[None], 3)
    tensor([[[0, 1, 2],
             [1, 2, 3]]])
    """
    if not 1 <= window <= embeddings.shape[1]:
        raise ValueError(f"window must lie between 1 and the span's {embeddings.shape[1]} segments, got {window}")
    return embeddings.unfold(1, window, 1).movedim(-1, 2)


def real_tokens(batch: Mapping[str, Any]) -> Tensor:
    """Mark the tokens [B, S, C] of a batch of spans that are real under all of its masks."""
    signal = batch["signal"]
    shape = signal.shape[0], signal.shape[2] // SEGMENT_SAMPLES, signal.shape[1]
    real = merged_mask(shape, batch.get("channel_mask"), batch.get("segment_mask"), batch.get("token_mask"))
    return torch.ones(shape, dtype=torch.bool, device=signal.device) if real is None else real


class SpanDataset(Dataset[dict[str, Any]]):
    """Spans of several recordings; each span is read once from its file and holds all windows inside it.

    Parameters
    ----------
    segments : sequence of Segments
        One for each recording.
    length : int
        S, segments in a span.
    window : int
        T, segments in a window; spans overlap so that no window is lost. With 1, spans do not overlap.
    before : int, default 0
        Segments to read before a span, as far as the recording has them: the context of its first segments.
    past : bool, default False
        Return the log power of the segments before those that are read, see `mvpa_ts.ieeg.model.amplitude`.
    tail : bool, default False
        Keep the last segment even if it overlaps the one before it, as detection does. False: times are evenly spaced.

    Attributes
    ----------
    spans : tuple of Span
        Without the segments of `before`.
    subjects : tuple of str
        Subject of each span.
    ictal : ndarray of bool, shape (len,)
        Whether a span holds an ictal segment that is a target.

    Notes
    -----
    Each process opens the files that it reads, so workers never share a handle. At most `OPEN_RECORDINGS` recordings
    are open at a time.
    """

    def __init__(
        self,
        segments: Sequence[Segments],
        length: int,
        window: int = 1,
        *,
        before: int = 0,
        past: bool = False,
        tail: bool = False,
    ) -> None:
        if not segments:
            raise ValueError("segments is empty: give at least one recording")
        self.segments, self.window = list(segments), window
        self.before, self.past = before, past
        self._labels = [s.labels() for s in self.segments]
        # As in detection, which gives a segment with a mark of bad signal no probability.
        self._bad = [segment_labels(s.starts, s.recording.bad_spans) for s in self.segments]
        self._names = _distinct_names(self.segments)
        spans = []
        for index, item in enumerate(self.segments):
            # The tail overlaps the segment before it, and a prediction of it would be known in part.
            uneven = item.num_segments > 1 and item.starts[-1] - item.starts[-2] < SEGMENT_SECONDS
            count = item.num_segments - int(uneven and not tail)
            spans += [Span(index, first, last) for first, last in cover(count, length, window)]
        self.spans = tuple(spans)
        self.subjects = tuple(self.segments[span.recording].subject for span in spans)
        targets = [label & ~bad for label, bad in zip(self._labels, self._bad, strict=True)]
        self.ictal: Flags = np.array([targets[s.recording][s.first : s.last].any() for s in spans])
        self._used: OrderedDict[int, None] = OrderedDict()
        self._following = 0

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Signal [C, S·2560], token_mask [S, C], ictal, target [S], subject, recording, start (s), segment_samples.

        ``target`` is False for the segments of `before` and those that are marked bad; ``past`` [P, C, bands] is there
        if asked for. Subject and recording together identify a recording: if several have the same name, such as files
        in a folder for each day, the later ones are called "ieeg (2)", "ieeg (3)", ….
        """
        span = self.spans[index]
        segments = self.segments[span.recording]
        self._used[span.recording] = None
        self._used.move_to_end(span.recording)
        while len(self._used) > OPEN_RECORDINGS:
            # Each open recording holds file handles and buffers of minutes, and a cohort has hundreds.
            self.segments[self._used.popitem(last=False)[0]].release()
        # In order, a span shares segments with the next span of its recording; in another order nothing can be reused.
        # What the next span begins with stays in memory when spans come in order, as in validation.
        repeated = self.before + self.window - 1 if index in (0, self._following) else 0
        self._following = index + 1
        first = max(span.first - self.before, 0)
        past = {"past": _past(segments, first)} if self.past else {}
        signal, valid = segments.read(first, span.last, repeated)
        return past | {
            "signal": torch.from_numpy(signal),
            "token_mask": torch.from_numpy(valid),
            "ictal": torch.from_numpy(self._labels[span.recording][first : span.last].copy()),
            "target": (torch.arange(first, span.last) >= span.first)
            & ~torch.from_numpy(self._bad[span.recording][first : span.last]),
            "subject": segments.subject,
            "recording": self._names[span.recording],
            "start": float(segments.starts[first]),
            "segment_samples": segments.segment_samples,
        }

    def read_ahead(self, *, progress: bool = True) -> None:
        """Read recordings that are kept in memory at once, with a bar, and not in silence during the first batches."""
        from tqdm import tqdm

        for item in tqdm(self.segments, desc="read", unit="recording", disable=not progress):
            item.read(0, 1)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_used": OrderedDict()}


class HeldSegments(SegmentsInMemory):
    """Segments of a recording that are preprocessed when first read and then kept in memory."""

    _held_power: Tensor | None = None

    def log_power(self, first: int, last: int) -> Tensor:
        """Return log power [n, C, bands] of segments [first, last), NaN if a channel has no signal; it is kept too."""
        if self._held_power is None:
            starts = range(0, self.num_segments, BLOCK_SEGMENTS)
            blocks = [_log_power(self, start, min(start + BLOCK_SEGMENTS, self.num_segments)) for start in starts]
            self._held_power = torch.cat(blocks)
        return self._held_power[first:last]


def _log_power(segments: Segments, first: int, last: int) -> Tensor:
    signal, valid = segments.read(first, last)
    x = rearrange(torch.from_numpy(signal), "c (t samples) -> t c samples", samples=segments.segment_samples)
    return band_log_power(wavedec(x)).masked_fill(~torch.from_numpy(valid)[..., None], torch.nan)


def _past(segments: Segments, stop: int) -> Tensor:
    """Return the log power of the segments before `stop` over which its running level is computed."""
    first = max(stop - (LEVEL_SEGMENTS - 1), 0)
    if first == stop:
        return torch.empty(0, len(segments.channel_names), NUM_BANDS)
    if isinstance(segments, HeldSegments):
        return segments.log_power(first, stop)
    return _log_power(segments, first, stop)


def _distinct_names(segments: Sequence[Segments]) -> list[str]:
    """Return the names of the recordings; number those of a subject with the same name."""
    names: list[str] = []
    taken: set[tuple[str, str]] = set()
    for item in segments:
        name, number = item.recording.name, 1
        # Similarities are stored by name, and two files of one name would be averaged into one.
        while (item.subject, name) in taken:
            number += 1
            name = f"{item.recording.name} ({number})"
        taken.add((item.subject, name))
        names.append(name)
    return names


def collate(items: Sequence[dict[str, Any]], segments: int = 1) -> dict[str, Any]:
    """Make a batch of spans with different numbers of channels and segments.

    Channels are padded at the end. Segments are padded at the start, because the label of a window is at its end.

    Parameters
    ----------
    items : sequence of dict
        From `SpanDataset`.
    segments : int, default 1
        Pad to at least this many segments, so that the length does not depend on the other spans in the batch.

    Returns
    -------
    dict
        ``signal`` float32 [B, C, S·2560], ``channel_mask`` [B, C], ``token_mask`` [B, S, C], ``segment_mask`` [B, S]
        (True = real), ``ictal`` [B, S], ``subject`` and ``recording`` (lists of str), ``start`` float64 [B]: seconds
        at which the first row begins (if it is padding, that may be before the recording). If the items have them,
        also ``target`` [B, S], False in padding, and ``past`` [B, P, C, bands], NaN in padding.
    """
    sizes = {item["segment_samples"] for item in items}
    if len(sizes) != 1:
        raise ValueError(f"the spans of a batch must have the same rate, got segments of {sorted(sizes)} samples")
    size = sizes.pop()
    B = len(items)
    shapes = [item["token_mask"].shape for item in items]
    S, C = map(max, zip(*shapes, (segments, 1), strict=True))
    padded = any(shape != (S, C) for shape in shapes)
    alone = B == 1 and not padded  # fresh memory for a copy would cost more than reading the file
    batch: dict[str, Any] = {
        "signal": items[0]["signal"][None] if alone else (torch.zeros if padded else torch.empty)(B, C, S * size),
        "channel_mask": torch.zeros(B, C, dtype=torch.bool),
        "token_mask": torch.zeros(B, S, C, dtype=torch.bool),
        "segment_mask": torch.zeros(B, S, dtype=torch.bool),
        "subject": [item["subject"] for item in items],
        "recording": [item["recording"] for item in items],
        "start": torch.zeros(B, dtype=torch.float64),
    }
    flags = ["ictal", "target"] if all("target" in item for item in items) else ["ictal"]
    batch |= {name: torch.zeros(B, S, dtype=torch.bool) for name in flags}
    for b, (item, (length, channels)) in enumerate(zip(items, shapes, strict=True)):
        # Padding comes first, because the last segment carries the label.
        first = S - length
        if not alone:
            batch["signal"][b, :channels, first * size :] = item["signal"]
        batch["channel_mask"][b, :channels] = True
        batch["token_mask"][b, first:, :channels] = item["token_mask"]
        batch["segment_mask"][b, first:] = True
        for name in flags:
            batch[name][b, first:] = item[name]
        batch["start"][b] = item["start"] - first * SEGMENT_SECONDS
    if all("past" in item for item in items):
        longest = max(len(item["past"]) for item in items)
        batch["past"] = torch.full((B, longest, C, NUM_BANDS), torch.nan)
        for b, item in enumerate(items):
            earlier, channels, _ = item["past"].shape
            batch["past"][b, longest - earlier :, :channels] = item["past"]
    return batch
