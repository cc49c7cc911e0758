"""Events that a reader kept, moved, deleted or added, and a detector that learns from them in seconds."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.files import read_config, write_json
from mvpa_ts.ieeg.detection.baselines import fit_baselines
from mvpa_ts.ieeg.detection.detector import Detector
from mvpa_ts.ieeg.detection.features import TrainingFeatures
from mvpa_ts.ieeg.detection.linear import LinearPart, fit_linear, save_linear
from mvpa_ts.ieeg.events import Intervals, SeizureEvents, clip_events
from mvpa_ts.ieeg.model import seen_subjects
from mvpa_ts.ieeg.model.pretrained import folder_of
from mvpa_ts.ieeg.recordings.annotations import stated_seizures
from mvpa_ts.ieeg.recordings.events_table import read_seizures, write_events
from mvpa_ts.ieeg.recordings.raw import RawSource
from mvpa_ts.ieeg.recordings.recording import Recording

if TYPE_CHECKING:
    import mne

REVIEW, REVIEWED = "review.json", "reviewed_events.tsv"
# Seconds by which both ends of an event may differ and it still counts as kept.
SAME = 0.05


@dataclass(frozen=True)
class Review:
    """The events of a recording as a reader left them.

    Attributes
    ----------
    recording : str
        Name of the recording.
    fingerprint : str
        Of its samples: another recording is refused.
    duration : float
        Seconds.
    until : float
        The reader looked at the recording up to here (s); what comes later trains nothing.
    events : list of (onset, offset)
    changes : mapping
        How many events were kept, moved, deleted and added.
    """

    recording: str
    fingerprint: str
    duration: float
    until: float
    events: SeizureEvents
    changes: dict[str, int]

    def save(self, folder: str | Path) -> None:
        """Write ``reviewed_events.tsv`` and ``review.json`` into the folder of the detection."""
        # "bckg" would say of all of it that it is free of seizures.
        write_events(Path(folder) / REVIEWED, self.events, self.duration, background=self.until >= self.duration)
        fields = asdict(self)
        del fields["events"]
        write_json(Path(folder) / REVIEW, fields)

    def check(self, recording: Recording) -> None:
        """Raise a ValueError where the review is of another recording."""
        if self.fingerprint != recording.fingerprint() or abs(self.duration - recording.duration) > 1e-6:
            raise ValueError(
                f"the review is of another recording: it is of {self.recording} ({self.duration:g} s), and "
                f"{recording.name} ({recording.duration:g} s) has other samples. Give the file that was reviewed"
            )


def load_review(folder: str | Path, seizure_words: Sequence[str] = ()) -> Review:
    """Read what `Review.save` wrote; the table may have been edited by hand, with further words for a seizure."""
    path = Path(folder) / REVIEW
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {REVIEW}: `mvpformer review` writes one into a detection's folder")
    try:
        fields = read_config(path)
        events = read_seizures(Path(folder) / REVIEWED, float(fields["duration"]), seizure_words)
        return Review(events=events, **fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no review of this library: {error}") from error


def review(
    recording: Recording,
    events: Intervals,
    show: Callable[[mne.io.BaseRaw], Any] | None = None,
    *,
    until: float | None = None,
    seizure_words: Sequence[str] = (),
) -> Review:
    """Let a reader correct events.

    Parameters
    ----------
    recording : Recording
    events : sequence of (onset, offset)
        As detected (s); they become annotations "seizure".
    show : callable, optional
        Shows a Raw and returns when its annotations are as they should be. Default: `browse`.
    until : float, optional
        How far the reader looked (s). Default: to the end.
    seizure_words : sequence of str
        Further words that mean a seizure in annotations.

    Returns
    -------
    Review
        All annotations that mean a seizure are its events; one without a length is taken for a start.

    Raises
    ------
    ModuleNotFoundError
        mne-qt-browser is not installed.

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_recording
    >>> recording = simulate_recording("S01", num_channels=2, duration=60.0, num_seizures=1)
    >>> review(recording, [(5.0, 10.0), (20.0, 30.0)], lambda raw: raw.annotations.delete(0)).changes
    {'kept': 1, 'moved': 0, 'deleted': 1, 'added': 0}
    """
    if until is not None and not 0 < until <= recording.duration:
        raise ValueError(f"until must lie in the recording, which lasts {recording.duration:g} s, got {until!r}")
    import mne

    raw = _raw_of(recording)
    before = clip_events(events, recording.duration)
    raw.set_annotations(mne.Annotations([on for on, _ in before], [off - on for on, off in before], "seizure"))
    (browse if show is None else show)(raw)
    # MNE counts from the start of the measurement, of which a file may hold a later part.
    marks = [(item["onset"] - raw.first_time, item["duration"], str(item["description"])) for item in raw.annotations]
    seizures = stated_seizures(marks, recording.duration, name=recording.name, words=seizure_words)
    after = clip_events(seizures or [], recording.duration)
    end = recording.duration if until is None else float(until)
    changes = _changes(before, after)
    return Review(recording.name, recording.fingerprint(), recording.duration, end, after, changes)


def browse(raw: mne.io.BaseRaw) -> None:
    """Open mne-qt-browser; press "a" to keep, move, delete or add annotations, and close the window."""
    try:
        importlib.import_module("mne_qt_browser")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'mvpformer review needs mne-qt-browser: pip install ".[review]" in the clone. Without it, edit a copy of '
            f"events.tsv as {REVIEWED} by hand"
        ) from None
    import mne

    # Where the first event is, on the scale of what is seen there: MNE's usual one is for EEG from the scalp.
    start = max(0.0, min(raw.annotations.onset, default=0.0) - raw.first_time - 10.0)
    seen = np.nan_to_num(raw.get_data(None, *raw.time_as_index([start, min(start + 30.0, raw.times[-1])])))
    scale = float(np.quantile(np.abs(seen - np.median(seen, axis=1, keepdims=True)), 0.99)) or 1e-4
    with mne.viz.use_browser_backend("qt"):
        try:
            raw.plot(
                block=True, title="Correct the events and close the window", start=start, duration=30.0,
                scalings=dict.fromkeys(raw.get_channel_types(), scale), verbose="error",
            )  # fmt: skip
        except RuntimeError as error:
            if "valid display" not in str(error):
                raise
            raise OSError(
                f"the window needs a display, and this machine has none: edit a copy of events.tsv as {REVIEWED} by "
                "hand, and pass --no-window"
            ) from error


def retrain(model: str | Path, reviews: Sequence[tuple[Review, Recording]], output: str | Path) -> LinearPart:
    """Train the linear part of a detector again on corrected events, and write the detector.

    The networks are copied and have no weight: a few corrections cannot show that they help.

    Parameters
    ----------
    model : path
        Folder of a detector, or "demo".
    reviews : sequence of (Review, Recording)
    output : path
        Folder that gets ``model/`` with the detector and its baselines.

    Raises
    ------
    ValueError
        A review is of another recording, or the reviewed stretches hold no seizure, or nothing else.
    """
    detector = Detector(model)
    segments = []
    for item, recording in reviews:
        item.check(recording)
        reviewed = recording.with_seizures(item.events).crop(0.0, item.until)
        segments.append(detector.segments(reviewed))
    training = TrainingFeatures.of(segments)
    linear = _best_bias(fit_linear(training), training)
    target, source = Path(output) / "model", folder_of(os.fspath(model))
    if target.exists():
        raise ValueError(f"{target} exists: name another --output")
    # Made beside the target and renamed at the end: the folder is whole or not there.
    partial = target.with_name(".model.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    save_linear(linear, partial)
    for baseline in fit_baselines(training):
        baseline.save(partial / f"{baseline.kind}.json")
    subjects = seen_subjects.read_training_subjects(source) or frozenset()
    recordings = seen_subjects.read_training_recordings(source)
    seen = [recording for _, recording in reviews]
    seen_subjects.save_training_subjects(
        partial,
        {*subjects, *(seen_subjects.subject_hash(recording.subject_name) for recording in seen)},
        None if recordings is None else {*recordings, *(seen_subjects.recording_hash(recording) for recording in seen)},
    )
    seen_subjects.save_training_channels(partial, seen)
    partial.rename(target)
    return linear


def _best_bias(linear: LinearPart, training: TrainingFeatures) -> LinearPart:
    """The same with the threshold that gives the highest F1 of segments, each stretch scored by a fit without it."""
    # `fit_linear` is careful, because it knows few quiet minutes. A reader has looked at whole recordings.
    logits = linear.logits(training.features)
    for out, others in training.left_out():
        other = fit_linear(others)
        # Weights of another fit, bias of this one: a bias would move with the stretch that is missing.
        shift = np.median(others.features[~others.ictal] @ np.subtract(other.weights, linear.weights))
        logits[out] = training.features[out] @ np.asarray(other.weights) + linear.bias - shift
    order = np.argsort(-logits)
    f1 = 2 * np.cumsum(training.ictal[order]) / (np.arange(1, len(order) + 1) + training.ictal.sum())
    best = int(np.argmax(f1[:-1]))
    middle = (logits[order[best]] + logits[order[best + 1]]) / 2
    return replace(linear, bias=linear.bias - float(middle))


def _raw_of(recording: Recording) -> mne.io.BaseRaw:
    """A Raw with the recording's channels; lazy where the recording is one."""
    import mne

    if isinstance(recording.source, RawSource) and recording.first_sample == 0:
        raw = recording.source.raw.copy().pick(list(recording.channel_names))
        if raw.n_times == recording.num_samples:
            return raw
    info = mne.create_info([*recording.channel_names], recording.sfreq, "seeg")
    values = recording.read(0, recording.num_samples).astype(np.float64) * 1e-6
    return mne.io.RawArray(values, info, verbose="error")


def _changes(before: SeizureEvents, after: SeizureEvents) -> dict[str, int]:
    same = [event for event in before if any(np.abs(np.subtract(event, other)).max() <= SAME for other in after)]
    touched = [event for event in before if any(on < event[1] and off > event[0] for on, off in after)]
    added = [event for event in after if not any(on < event[1] and off > event[0] for on, off in before)]
    return {
        "kept": len(same),
        "moved": len(touched) - len(same),
        "deleted": len(before) - len(touched),
        "added": len(added),
    }
