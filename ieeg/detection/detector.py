"""Seizure detection: a recording in, a probability for every 5 s and events out."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from mvpa_ts.checks import keep_whole, warn
from mvpa_ts.ieeg.constants import MARKED_BAD, SEGMENT_SECONDS, check_rate
from mvpa_ts.ieeg.detection import networks
from mvpa_ts.ieeg.detection.detection import NOT_SELECTED, Detection, Provenance, Skipped
from mvpa_ts.ieeg.detection.features import blocks, segment_features
from mvpa_ts.ieeg.detection.linear import LinearPart, RunningPart, load_linear
from mvpa_ts.ieeg.detection.rules import RULES, EventRules, RuleName, event_rules, probabilities_to_events
from mvpa_ts.ieeg.detection.store import ProbabilityStore
from mvpa_ts.ieeg.events import Floats, segment_labels, unscored_stretches
from mvpa_ts.ieeg.model import seen_subjects
from mvpa_ts.ieeg.model.pretrained import LINEAR, NETWORKS, folder_of
from mvpa_ts.ieeg.model.sliding import sliding_features
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.preprocessing.selection import MOST_CHANNELS, with_channels
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing, changed_preprocessing, default_preprocessing
from mvpa_ts.ieeg.recordings.reading import AnyRecording, as_recording
from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.weights import weight_hash

NO_CHANNEL = "no channel with a signal"


class Detector:
    """Probability of seizure for each 5 s of a recording, from the segments before it.

    Each segment is read and encoded once. Windows of `context` segments are cut from the embeddings, so memory does not
    grow with the recording. The first windows are padded on the left with masked segments. A segment without any valid
    channel is skipped, and `Detection.skipped` says so. Several networks give their mean logit. A detector that
    ``mvpformer finetune --config patient`` wrote, and "demo", have a `LinearPart` beside the networks.

    Parameters
    ----------
    model : MVPFormer, sequence of MVPFormer, or path
        A network with a classification head of two classes, or several of the same sizes; a folder that
        `MVPFormer.save_pretrained` or ``mvpformer finetune`` wrote; or "demo".
    preprocessing : Preprocessing or mapping, optional
        Default: `default_preprocessing` of each recording. A mapping, such as ``{"notch": 50.0}``, changes fields of
        it.
    threshold : float, optional
        A segment is positive if its probability exceeds this. Default: that of `rules` if they are an EventRules,
        otherwise the model's own, `MVPFormerConfig.threshold`.
    rules : {"szcore", "paper", "none"} or EventRules, default "szcore"
    channels : {"auto", "all"} or sequence of str, default "auto"
        "auto" selects up to 32 by `select_channels`. Channels are used in the recording's order. A name may lack the
        amplifier's prefix and reference: "A1" is "EEG A1-Ref".
    batch_size : int, default 4
        Windows decoded together.
    device : str, default "cpu"

    Raises
    ------
    ValueError
        The model has no head of two classes, the preprocessing gives another rate than the model's, the device is
        missing, or an option is out of range.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import Detector, MVPFormer, mvpformer_tiny, simulate_recording
    >>> model = MVPFormer(mvpformer_tiny(num_classes=2))
    >>> detection = Detector(model, rules="none").detect(simulate_recording("S01", num_channels=4, duration=62.0))
    >>> len(detection.probabilities), float(detection.starts[-1]), detection.skipped
    (13, 57.0, ())
    """

    classes: Sequence[str] = ()
    """Names of classes of one's own, which a `BaselineDetector` may tell apart in place of seizures."""

    def __init__(
        self,
        model: networks.Networks,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        *,
        threshold: float | None = None,
        rules: RuleName | EventRules = "szcore",
        channels: Literal["auto", "all"] | Sequence[str] = "auto",
        batch_size: int = 4,
        device: str | torch.device = "cpu",
    ) -> None:
        # What can be wrong without the model is said before it is loaded.
        if not isinstance(channels, str) and isinstance(channels, Iterable):
            channels = [*channels]  # an array of names, too
        names = isinstance(channels, list) and channels and all(isinstance(name, str) for name in channels)
        if not names and channels not in ("auto", "all"):
            raise ValueError(f"channels must be 'auto', 'all' or a list of names, got {channels!r}")
        self.batch_size = batch_size
        # NumPy's integers count, and 2.5 or "4" do not.
        keep_whole(self, 1, "batch_size")
        check_rate(changed_preprocessing(Preprocessing(), preprocessing).sfreq)
        self.device = checked_device(device)
        self.rules = event_rules(rules, threshold)
        self.model_name: str | None = None
        """What the model was loaded from, without the path before it; of runs/patient/model, "patient"."""
        self.linear: LinearPart | None = None
        """The part beside the networks, with which a segment is positive above 0.5 by default."""
        self.limit: int | None = None
        """Channels that the networks take at most; None for any number."""
        self.preprocessing = preprocessing
        self._folder: Path | None = None
        self.own_threshold = self._load(model)
        """The threshold that the model came with, whatever `rules` have."""
        if threshold is None and not isinstance(rules, EventRules):
            self.rules = dataclasses.replace(self.rules, threshold=self.own_threshold)
        self.channels = channels

    def _load(self, model: networks.Networks) -> float:
        """Load the networks, and give the threshold that they ask for."""
        # Only a folder says on whom a model was trained; a model in memory has none.
        if isinstance(model, (str, os.PathLike)):
            path = Path(model).resolve()
            self.model_name = path.parent.name if path.name == "model" else path.name
            self._folder = folder_of(os.fspath(model))
            self.linear = load_linear(model)
        loaded = networks.seizure_networks(model)
        self.config = dataclasses.replace(loaded[0].config, threshold=networks.mean_threshold(loaded))
        """Configuration of the networks, with the threshold of all."""
        self.limit = self.config.channel_rows
        self.networks = tuple(network.to(self.device).eval() for network in loaded)
        return self.config.threshold if self.linear is None else 0.5

    def __repr__(self) -> str:
        names = {dataclasses.replace(named, threshold=self.threshold): name for name, named in RULES.items()}
        rules = names.get(self.rules, "own")
        channels = repr(self.channels) if isinstance(self.channels, str) else f"{len(self.channels)} by name"
        return (
            f"<Detector {self.model_name or 'of a model in memory'}: threshold {self.threshold:g}, rules {rules}, "
            f"channels {channels}>"
        )

    @property
    def context(self) -> int:
        """Segments of a window."""
        return self.config.context

    @property
    def threshold(self) -> float:
        """A segment is positive where its probability exceeds this; the rules' own."""
        return self.rules.threshold

    def detect(self, recording: AnyRecording, *, store: str | Path | None = None, progress: bool = False) -> Detection:
        """Score a whole recording.

        Parameters
        ----------
        recording : Recording, Raw, path, or (samples, sfreq)
            Samples [C, n] are µV.
        store : path, optional
            File to which probabilities are appended. A run that was killed goes on from it. It is refused if weights,
            preprocessing, channels or recording differ.
        progress : bool, default False
            Show a bar with the remaining time.

        Raises
        ------
        ValueError
            The recording is shorter than 5 s, has no channel, or has more than the model's codebook; or `store` was
            begun with other settings, or is damaged.
        """
        return self.detect_segments(self.segments(as_recording(recording)), store=store, progress=progress)

    def detect_segments(
        self, segments: Segments, *, store: str | Path | None = None, progress: bool = False
    ) -> Detection:
        """Score segments that `segments` made; otherwise as `detect`."""
        if store is None:
            probabilities = np.concatenate([*self._batches(segments, 0, progress)])
        else:
            with ProbabilityStore(store, self.store_settings(segments), segments.starts) as rows:
                for batch in self._batches(segments, len(rows), progress):
                    rows.append(batch)
                probabilities = rows.probabilities
        return self._detection(segments, probabilities)

    def score_segments(self, segments: Segments, first: int = 0) -> Floats:
        """Probability of each segment from `first` on, as `detect_segments` gives it, NaN where there is none."""
        return np.concatenate([*self._scored(segments, first)])

    def segments(self, recording: Recording) -> Segments:
        """The recording's segments with the detector's preprocessing and channels."""
        preprocessing = changed_preprocessing(default_preprocessing(recording), self.preprocessing)
        check_rate(preprocessing.sfreq)
        # Resolved here, so that a notch is measured once and on all channels.
        # Before channels are picked: a median and a hum are those of the whole recording.
        preprocessing = preprocessing.resolve(recording)
        most = MOST_CHANNELS if self.limit is None else min(MOST_CHANNELS, self.limit)
        segments = with_channels(Segments(recording, preprocessing), self.channels, most=most)
        count = len(segments.channel_names)
        if self.limit is not None and self.config.attention == "mvpa" and count > self.limit:
            raise ValueError(
                f"{recording.name} has {count} channels, the model knows at most {self.limit}: use channels='auto', "
                "--channels auto in a command"
            )
        if self._folder is not None:
            seen_subjects.warn_of_other_channels(recording, self._folder)
        return segments

    def store_settings(self, segments: Segments) -> dict[str, Any]:
        """What the probabilities depend on, as JSON values: a store is gone on with where they are the same."""
        recording = segments.recording
        return {
            "weights": self.weights(),
            "model": self._sizes(),
            "preprocessing": segments.preprocessing.to_dict(),
            "channels": list(segments.channel_names),
            "recording": {
                "name": recording.name,
                "sfreq": recording.sfreq,
                "samples": recording.num_samples,
                "fingerprint": recording.fingerprint(),
            },
        }

    def weights(self) -> str:
        """SHA-256 of the weights of all networks."""
        return weight_hash(self.networks[0] if len(self.networks) == 1 else nn.ModuleList(self.networks))

    def _sizes(self) -> dict[str, Any]:
        """Fields of the configuration, the number of networks where there are several, and the linear part."""
        several = {NETWORKS: len(self.networks)} if len(self.networks) > 1 else {}
        linear = {} if self.linear is None else {LINEAR: self.linear.to_dict()}
        return self.config.to_dict() | several | linear

    def _detection(self, segments: Segments, probabilities: Floats) -> Detection:
        starts = np.asarray(segments.starts, dtype=np.float64)
        bad = segments.recording.bad_spans
        # After the store, which keeps what was computed: marks may change from run to run.
        probabilities = np.where(segment_labels(starts, bad), math.nan, probabilities)
        # A run that goes on from a store has not read the segments that are scored already.
        duration, silent = segments.recording.duration, segments.find_silent_channels()
        segments.warn_of_changes()
        skipped = [
            Skipped(on, off, MARKED_BAD if any(start < off and stop > on for start, stop in bad) else NO_CHANNEL)
            for on, off in unscored_stretches(probabilities, starts, duration)
        ]
        return Detection(
            probabilities,
            starts,
            probabilities_to_events(probabilities, starts, self.rules),
            tuple(skipped),
            duration,
            tuple(name for name in segments.channel_names if name not in silent),
            self.rules,
            self._provenance(segments, silent),
            [*segments.recording.seizures] if segments.recording.annotated else None,
            segments,
        )

    def _provenance(self, segments: Segments, silent: tuple[str, ...]) -> Provenance:
        # Every channel of the file is either used or listed with a reason, so that nothing is missing in silence.
        recording, used = segments.recording, {*segments.channel_names}
        dropped = dict(recording.dropped)
        if segments.preprocessing.reference != "bipolar":  # else the model's channels have names of their own
            reason = NOT_SELECTED["auto" if self.channels == "auto" else "list"]
            dropped |= {name: reason for name in recording.channel_names if name not in used}
        dropped |= dict.fromkeys(silent, "no signal: flat or not a number throughout")
        return Provenance(
            recording.name,
            recording.subject,
            recording.sfreq,
            segments.preprocessing.to_dict(),
            dropped,
            self.weights(),
            self._sizes(),
            self.model_name,
            self._trained_on(recording),
            implausible_samples=segments.implausible_samples,
            notes=recording.notes,
            left_out=recording.left_out,
            own_threshold=self.own_threshold,
            others_in_training=None if self._folder is None else seen_subjects.others_trained(recording, self._folder),
        )

    def was_taught(self, recording: Recording) -> bool:
        """Whether this very recording is known to have trained the detector."""
        taught = None if self._folder is None else seen_subjects.read_training_recordings(self._folder)
        return taught is not None and seen_subjects.recording_hash(recording) in taught

    def _trained_on(self, recording: Recording) -> bool | None:
        """Whether the networks were trained on a recording or its subject, with a warning; None if nothing says so."""
        trained = None if self._folder is None else seen_subjects.trained_on(recording, self._folder)
        if trained:
            other = "" if self.was_taught(recording) else f", or on others of a subject called {recording.subject_name}"
            warn(f"{recording.name}: the model was trained on this recording{other}: scores do not show how good it is")
        return trained

    def _batches(self, segments: Segments, first: int, progress: bool) -> Iterator[Floats]:
        """As `_scored`, with a bar if `progress`."""
        from tqdm.auto import tqdm

        count, name = segments.num_segments, segments.recording.name
        with tqdm(total=count, initial=first, unit="segment", disable=not progress or first == count, desc=name) as bar:
            for probabilities in self._scored(segments, first):
                yield probabilities
                bar.update(len(probabilities))

    @torch.inference_mode()
    def _scored(self, segments: Segments, first: int) -> Iterator[Floats]:
        """Probabilities of the windows that end with segments first, first + 1, …, batch by batch."""
        if first == segments.num_segments:
            return
        running, before = None, 0
        if self.linear is not None:
            # The mean over segments needs those before the first, too.
            before = min(self.linear.persistence - 1, first)
            first -= before
            running = RunningPart(self.linear, first)
        if running is not None and not running.part.network:
            for block in blocks(segments, first):
                probabilities = running.probabilities(segment_features(*block))
                yield probabilities[before:]
                before = 0
            return
        # A batch that was just read for one network is read from memory for the others.
        features_of_each = [
            sliding_features(network, segments, batch_size=self.batch_size, first=first) for network in self.networks
        ]
        for outputs in zip(*features_of_each, strict=True):
            batch, _, valid = outputs[0]
            pairs = zip(self.networks, outputs, strict=True)
            logits = (network.classify(features[:, None], channel_mask=valid) for network, (_, features, _) in pairs)
            if running is None:
                probabilities = networks.seizure_probability(logits).double().cpu().numpy()
            else:
                # From memory too, as this batch was just read.
                read = [segment_features(*block) for block in blocks(segments, batch.start, batch.stop)]
                probabilities = running.probabilities(np.concatenate(read), networks.mean_logit(logits).cpu().numpy())
            # Without any channel the head sees zeros and gives a number that means nothing.
            scored = valid.any(1).cpu().numpy()
            # NaN also marks what was skipped, so a broken model would look like a silent recording.
            if not np.isfinite(probabilities[scored]).all():
                begin, end = segments.starts[batch.start], segments.starts[batch.stop - 1] + SEGMENT_SECONDS
                place = f"{segments.recording.name} between {begin:g} and {end:g} s"
                raise ValueError(networks.why_not_finite(self.networks, place))
            new = np.where(scored, probabilities, math.nan)[before:]
            before = max(before - len(batch), 0)
            if len(new):
                yield new


def checked_device(device: str | torch.device) -> torch.device:
    """The device, or a ValueError that names those there are.

    Examples
    --------
    >>> checked_device("cpu")
    device(type='cpu')
    """
    devices = ["cpu"]
    if (accelerator := torch.accelerator.current_accelerator(check_available=True)) is not None:
        devices += [accelerator.type, *(f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count()))]
    if str(device) not in devices:
        raise ValueError(f"device must be one of {', '.join(devices)} on this machine with this torch, got '{device}'")
    return torch.device(device)
