"""Seizure detection: a recording in, a probability for every 5 s and events out."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS, check_rate
from mvpa_ts.ieeg.detection.rules import EventRules, RuleName, event_rules, probabilities_to_events
from mvpa_ts.ieeg.detection.store import ProbabilityStore
from mvpa_ts.ieeg.events import SeizureEvents, unscored_stretches
from mvpa_ts.ieeg.model.amplitude import LEVEL_SEGMENTS
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.preprocessing.selection import select_channels
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing, default_preprocessing
from mvpa_ts.ieeg.recordings.channels import in_recording_order
from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.weights import weight_hash

if TYPE_CHECKING:
    import mne

    from mvpa_ts.ieeg.model.mvpformer import MVPFormer

NO_CHANNEL = "no channel with a signal"


@dataclass(frozen=True)
class Skipped:
    """A stretch that got no probability, and why.

    Attributes
    ----------
    onset, offset : float
        Seconds.
    reason : str
    """

    onset: float
    offset: float
    reason: str


@dataclass(frozen=True)
class Detection:
    """What a detector says of a recording.

    Attributes
    ----------
    probabilities : array, shape (n,)
        Of seizure in each segment; NaN where it was skipped.
    starts : array, shape (n,)
        Seconds at which segments begin; each lasts 5 s, the last may overlap the one before.
    events : list of (onset, offset)
        Seconds.
    skipped : tuple of Skipped
        With the segments, these cover every second.
    duration : float
        Of the recording (s).
    channel_names : tuple of str
        Channels the model saw, in order.
    threshold : float
    rules : EventRules
    settings : mapping
        What the probabilities depend on and how channels were selected, for ``run.json``.
    """

    probabilities: npt.NDArray[np.float64]
    starts: npt.NDArray[np.float64]
    events: SeizureEvents
    skipped: tuple[Skipped, ...]
    duration: float
    channel_names: tuple[str, ...]
    threshold: float
    rules: EventRules
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def confidences(self) -> list[float]:
        """Highest probability inside each event."""
        return [
            float(np.nanmax(self.probabilities[(self.starts < offset) & (self.starts + SEGMENT_SECONDS > onset)]))
            for onset, offset in self.events
        ]

    def to_annotations(self, description: str = "seizure") -> mne.Annotations:
        """The events as MNE annotations, from the first sample of the recording."""
        import mne

        onsets = [onset for onset, _ in self.events]
        return mne.Annotations(onsets, [offset - onset for onset, offset in self.events], description)


class Detector:
    """Probability of seizure for each 5 s of a recording, from the segments before it.

    Each segment is read and encoded once. Windows of `context` segments are cut from the embeddings, so memory does not
    grow with the recording. The first windows are padded on the left with masked segments; a segment without any
    valid channel is skipped and stated.

    Parameters
    ----------
    model : MVPFormer or path
        With a classification head of two classes; a folder that `MVPFormer.save_pretrained` wrote.
    preprocessing : Preprocessing, optional
        Default: `default_preprocessing` of each recording.
    threshold : float, default 0.5
        A segment is positive where its probability exceeds this; 0.5 is the argmax.
    rules : {"szcore", "paper", "none"} or EventRules, default "szcore"
    channels : {"auto", "all"} or sequence of str, default "auto"
        "auto" selects up to 32 by `select_channels`. Channels are used in the recording's order.
    batch_size : int, default 4
        Windows decoded together.
    device : str, default "cpu"

    Raises
    ------
    ValueError
        The model has no head of two classes, the preprocessing gives another rate than the model's, the device is not
        there, or an option is out of its range.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import Detector, MVPFormer, mvpformer_tiny, simulate_recording
    >>> model = MVPFormer(mvpformer_tiny(num_classes=2))
    >>> detection = Detector(model, rules="none").detect(simulate_recording("S01", num_channels=4, duration=62.0))
    >>> len(detection.probabilities), float(detection.starts[-1]), detection.skipped
    (13, 57.0, ())
    """

    def __init__(
        self,
        model: MVPFormer | str | os.PathLike[str],
        preprocessing: Preprocessing | None = None,
        *,
        threshold: float = 0.5,
        rules: RuleName | EventRules = "szcore",
        channels: Literal["auto", "all"] | Sequence[str] = "auto",
        batch_size: int = 4,
        device: str | torch.device = "cpu",
    ) -> None:
        if isinstance(model, (str, os.PathLike)):
            from mvpa_ts.ieeg.model.mvpformer import MVPFormer

            model = MVPFormer.from_pretrained(Path(model))
        if model.config.num_classes != 2:
            raise ValueError(
                f"model must have a classification head of two classes, it has {model.config.num_classes}: finetune it "
                "first"
            )
        if isinstance(channels, str) and channels not in ("auto", "all"):
            raise ValueError(f"channels must be 'auto', 'all' or a list of names, got {channels!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"threshold must be between 0 and 1, got {threshold}")
        if preprocessing is not None:
            check_rate(preprocessing.sfreq)
        self.device = checked_device(device)
        self.model = model.to(self.device).eval()
        self.preprocessing = preprocessing
        self.threshold = threshold
        self.rules = event_rules(rules)
        self.channels = channels
        self.batch_size = batch_size

    @property
    def context(self) -> int:
        """Segments of a window."""
        return self.model.config.context

    def detect(
        self,
        recording: Recording | mne.io.BaseRaw | str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> Detection:
        """Score a whole recording.

        Parameters
        ----------
        recording : Recording, Raw or path
        store : path, optional
            File that probabilities are appended to while they come; a run that was killed goes on from it. It is
            refused where weights, preprocessing, channels or recording are others.
        progress : bool, default False
            Show a bar with the remaining time.

        Raises
        ------
        ValueError
            The recording is shorter than 5 s, has no channel, or has more than the model's codebook.
        """
        return self.detect_segments(self.segments(as_recording(recording)), store=store, progress=progress)

    def detect_segments(
        self, segments: Segments, *, store: str | os.PathLike[str] | None = None, progress: bool = False
    ) -> Detection:
        """Score segments that `segments` made; otherwise as `detect`."""
        settings = self.settings(segments)
        if store is None:
            parts = list(self._scored(segments, 0, progress))
            probabilities = np.concatenate(parts)
        else:
            with ProbabilityStore(store, settings, segments.starts) as rows:
                for part in self._scored(segments, len(rows), progress):
                    rows.append(part)
                probabilities = rows.probabilities
        return self.detection(segments, probabilities, settings)

    def segments(self, recording: Recording) -> Segments:
        """The recording's segments with the detector's preprocessing and channels."""
        preprocessing = self.preprocessing or default_preprocessing(recording)
        check_rate(preprocessing.sfreq)
        # Resolved here, so that a notch is measured once and on all channels.
        preprocessing = preprocessing.resolve(recording)
        everything = Segments(recording, preprocessing)
        if self.channels == "all":
            chosen = everything.channel_names
        elif self.channels == "auto":
            chosen = select_channels(everything, count=min(32, self.model.config.channel_rows))
        else:
            chosen = in_recording_order(self.channels, everything.channel_names)
        most = self.model.config.channel_rows
        if self.model.config.attention == "mvpa" and len(chosen) > most:
            raise ValueError(
                f"{recording.name} has {len(chosen)} channels, the model knows at most {most}: use channels='auto'"
            )
        return everything if chosen == everything.channel_names else Segments(recording, preprocessing, chosen)

    def settings(self, segments: Segments) -> dict[str, Any]:
        """What the probabilities depend on, as JSON values."""
        recording = segments.recording
        return {
            "weights": weight_hash(self.model),
            "model": self.model.config.to_dict(),
            "preprocessing": segments.preprocessing.to_dict(),
            "channels": list(segments.channel_names),
            "recording": {
                "name": recording.name,
                "sfreq": recording.sfreq,
                "samples": recording.num_samples,
                "start": _fingerprint(recording),
            },
        }

    def detection(
        self, segments: Segments, probabilities: npt.NDArray[np.float64], settings: dict[str, Any] | None = None
    ) -> Detection:
        """Events from the probabilities of all segments."""
        starts = np.asarray(segments.starts, dtype=np.float64)
        duration = segments.recording.duration
        return Detection(
            probabilities,
            starts,
            probabilities_to_events(probabilities, starts, self.rules, threshold=self.threshold),
            skipped_stretches(probabilities, starts, duration),
            duration,
            segments.channel_names,
            self.threshold,
            self.rules,
            (settings or {}) | {"selection": self.channels if isinstance(self.channels, str) else "list"},
        )

    def _scored(self, segments: Segments, first: int, progress: bool) -> Iterator[npt.NDArray[np.float64]]:
        """Probabilities of the windows that end with segments first, first + 1, …, batch by batch."""
        count = segments.num_segments
        if first == count:
            return
        from tqdm.auto import tqdm

        # A resumed run encodes the context of its first window again; nothing else is read twice.
        embeddings, valid, powers = self._past(segments, first)
        with tqdm(
            total=count, initial=first, unit="segment", disable=not progress, desc=segments.recording.name
        ) as bar:
            for batch in _batches(first, count, self.batch_size):
                *new, powers = self._encoded(segments, batch.start, batch.stop, powers)
                embeddings, valid = torch.cat([embeddings, new[0]]), torch.cat([valid, new[1]])
                yield self._decoded(embeddings, valid)
                embeddings, valid = embeddings[len(batch) :], valid[len(batch) :]
                bar.update(len(batch))

    def _past(self, segments: Segments, first: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Embeddings [context − 1, C, D] and validity of what precedes a segment; masked before the recording.

        And the log powers that the segment's running level is taken over.
        """
        channels, length = len(segments.channel_names), self.context - 1
        embeddings = torch.zeros(length, channels, self.model.config.dim, device=self.device)
        valid = torch.zeros(length, channels, dtype=torch.bool, device=self.device)
        powers: Tensor | None = None
        lead = 0 if self.model.amplitude is None else LEVEL_SEGMENTS - 1  # the context's own running level
        for batch in _batches(max(first - length - lead, 0), first, self.batch_size):
            *new, powers = self._encoded(segments, batch.start, batch.stop, powers)
            embeddings, valid = (
                torch.cat([old, added])[len(added) :] for old, added in zip((embeddings, valid), new, strict=True)
            )
        return embeddings, valid, powers

    @torch.inference_mode()
    def _encoded(
        self, segments: Segments, first: int, last: int, powers: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Embeddings [n, C, D] of segments, which of their channels are valid [n, C], and the log powers to go on."""
        signal, ok = segments.read(first, last)
        valid = torch.from_numpy(ok).to(self.device)
        embeddings, powers = self.model.encode_onward(
            torch.from_numpy(signal)[None].to(self.device), valid[None], powers
        )
        return embeddings[0], valid, powers

    @torch.inference_mode()
    def _decoded(self, embeddings: Tensor, valid: Tensor) -> npt.NDArray[np.float64]:
        """Probability at the end of each window in a stretch of segments [n, C, D]."""
        windows = len(embeddings) - self.context + 1
        rows = torch.arange(windows, device=self.device)[:, None] + torch.arange(self.context, device=self.device)
        token_mask = valid[rows]  # [W, T, C]
        features = self.model.decode(embeddings[rows], segment_mask=token_mask.any(2), token_mask=token_mask)
        logits = self.model.classify(features, channel_mask=token_mask[:, -1])
        probabilities = logits.float().softmax(-1)[:, 1].double().cpu().numpy()
        return np.where(token_mask[:, -1].any(1).cpu().numpy(), probabilities, math.nan)


def checked_device(device: str | torch.device) -> torch.device:
    """The device, or a ValueError that names those there are.

    Examples
    --------
    >>> checked_device("cpu")
    device(type='cpu')
    """
    there = ["cpu"]
    if (accelerator := torch.accelerator.current_accelerator(check_available=True)) is not None:
        there += [accelerator.type, *(f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count()))]
    if str(device) not in there:
        raise ValueError(
            f"device must be one of {', '.join(there)} on this machine with this torch, got {str(device)!r}"
        )
    return torch.device(device)


def as_recording(recording: Recording | mne.io.BaseRaw | str | os.PathLike[str]) -> Recording:
    """A recording from itself, from an MNE Raw, or from a file."""
    if isinstance(recording, Recording):
        return recording
    if isinstance(recording, (str, os.PathLike)):
        from mvpa_ts.ieeg.recordings.reading import read_recording

        return read_recording(Path(recording))
    return Recording.from_raw(recording)


def skipped_stretches(
    probabilities: npt.NDArray[np.float64], starts: npt.NDArray[np.float64], duration: float
) -> tuple[Skipped, ...]:
    """Stretches of [0, duration) that no scored segment covers, with the reason."""
    return tuple(Skipped(*stretch, NO_CHANNEL) for stretch in unscored_stretches(probabilities, starts, duration))


def _batches(first: int, count: int, size: int) -> Iterator[range]:
    """Ranges that end on multiples of `size`, so that a resumed run has the batches of an uninterrupted one."""
    while first < count:
        last = min((first // size + 1) * size, count)
        yield range(first, last)
        first = last


def _fingerprint(recording: Recording) -> str:
    """Hash of the first second, which tells recordings of the same length and name apart."""
    import hashlib

    samples = recording.read(0, min(recording.num_samples, math.ceil(recording.sfreq)))
    return hashlib.sha256(np.ascontiguousarray(samples).tobytes()).hexdigest()[:16]
