"""What a detector says of a recording, as values, tables, figures and files."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.checks import check_switches
from mvpa_ts.files import write_json
from mvpa_ts.ieeg.constants import RESEARCH_USE, SEGMENT_SECONDS, counted
from mvpa_ts.ieeg.detection import report, saved
from mvpa_ts.ieeg.detection.onsets import OnsetMap, Positions, check_positions, onset_map, write_onsets
from mvpa_ts.ieeg.detection.rules import EventRules, OnlineRule, online_rule
from mvpa_ts.ieeg.events import Flags, Floats, Intervals, SeizureEvents, segment_labels
from mvpa_ts.ieeg.recordings.events_table import read_seizures, write_events
from mvpa_ts.ieeg.recordings.recording import Recording

if TYPE_CHECKING:
    import mne
    from matplotlib.figure import Figure

    from mvpa_ts.ieeg.preprocessing.segments import Segments

_PACKAGES = ("mvpa-ts", "torch", "numpy", "scipy", "mne", "timescoring")
# What run.json says of the model beside its name, as fields of `Provenance`.
_OF_MODEL = ("weights", "model", "subject_in_training", "others_in_training", "own_threshold")

# Why a channel was not used, by the way of selection.
NOT_SELECTED = {
    "auto": "not selected: other channels rank higher by variance / (1 + kurtosis)",
    "list": "not selected: not in the list of channels",
}


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
class Provenance:
    """What a detection was made of: the recording, its preprocessing and channels, and the model.

    Attributes
    ----------
    recording : str
        Name of the recording.
    subject : str or None
    sfreq : float
        Rate of the recording, Hz.
    preprocessing : mapping
        Fields of `Preprocessing`, as used.
    dropped : mapping of name to reason
        Channels of the recording that the model did not see.
    weights : str or None
        SHA-256 of the model's weights.
    model : mapping or None
        Fields of its `MVPFormerConfig`.
    model_name : str or None
        What the model was loaded from, without the path before it; None for a model in memory.
    subject_in_training : bool or None
        Whether the model was trained on this recording or, where nothing says on which, on a subject of this name; None
        if that is unknown.
    implausible_samples : int
        Samples beyond ±1 V, which were masked. A resumed run counts only its own part.
    notes, left_out : tuple of str
        What was doubted, and left out, when the recording was read, see `Recording`.
    own_threshold : float or None
        The detector's own threshold, which a calibration or the user may have replaced.
    others_in_training : bool or None
        Whether the model was trained on other recordings of the subject, and not on this one; None if that is unknown.
    """

    recording: str
    subject: str | None
    sfreq: float
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None
    model: Mapping[str, Any] | None = None
    model_name: str | None = None
    subject_in_training: bool | None = None
    implausible_samples: int = 0
    notes: tuple[str, ...] = ()
    own_threshold: float | None = None
    others_in_training: bool | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Detection:
    """Seizures that a detector found in a recording, and the probabilities behind them.

    Attributes
    ----------
    probabilities : array, shape (n,)
        Probability of seizure in each segment; NaN if the segment was skipped.
    starts : array, shape (n,)
        Seconds at which segments begin; each lasts 5 s, the last may overlap the one before.
    events : list of (onset, offset)
        Seconds.
    skipped : tuple of Skipped
        With the segments, these cover every second.
    duration : float
        Length of the recording (s).
    channel_names : tuple of str
        Channels with a signal that the model saw, in order; the others are in `Provenance.dropped`.
    rules : EventRules
        How events were made from the probabilities, with the threshold.
    provenance : Provenance
    reference : list of (onset, offset) or None
        Seizures that the recording states; empty if it states that there is none, None if it says nothing.
    classes : mapping of name to array, shape (n,)
        Of classes of one's own, the probability of each; `probabilities` are the highest.
    names : sequence of str
        Then the class of each event.
    segments : Segments or None
        The signal that was scored, for figures. None for a detection that was read from files.

    Examples
    --------
    >>> import tempfile
    >>> from mvpa_ts.ieeg import Detector, MVPFormer, mvpformer_tiny, simulate_recording
    >>> model = MVPFormer(mvpformer_tiny(num_classes=2))
    >>> detection = Detector(model).detect(simulate_recording("S01", num_channels=4, duration=60))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     detection.save(folder)
    ...     again = read_detection(folder)
    >>> again.events == detection.events, again.channel_names == detection.channel_names
    (True, True)
    """

    probabilities: Floats
    starts: Floats
    events: SeizureEvents
    skipped: tuple[Skipped, ...]
    duration: float
    channel_names: tuple[str, ...]
    rules: EventRules
    provenance: Provenance
    reference: SeizureEvents | None = None
    segments: Segments | None = None
    classes: Mapping[str, Floats] = field(default_factory=dict)
    names: Sequence[str] = ()

    @property
    def threshold(self) -> float:
        """A segment is positive where its probability exceeds this."""
        return self.rules.threshold

    @property
    def scored(self) -> Flags:
        """Whether each segment got a probability, [n]."""
        return ~np.isnan(self.probabilities)

    @property
    def confidences(self) -> list[float]:
        """Highest probability inside each event."""
        return [
            float(np.nanmax(self.probabilities[(self.starts < offset) & (self.starts + SEGMENT_SECONDS > onset)]))
            for onset, offset in self.events
        ]

    def __repr__(self) -> str:
        events, channels = counted(len(self.events), "event"), counted(len(self.channel_names), "channel")
        skipped = sum(stretch.offset - stretch.onset for stretch in self.skipped)
        where = f"{self.provenance.recording}: {events} in {self.duration:.1f} s"
        return f"<Detection {where}, {skipped:.1f} s skipped, {channels}>"

    def to_annotations(self, description: str | Sequence[str] = "detected seizure") -> mne.Annotations:
        """The events as MNE annotations, which can be added to those of the Raw that was scored.

        A Raw with these annotations may be scored again: a "detected seizure" is not taken for one that is known. With
        the description "seizure" it is.

        Onsets count from the Raw's measurement date, as in MNE; without a Raw, from the recording's first sample.
        """
        import mne

        description = [f"detected {name}" for name in self.names] or description
        recording = None if self.segments is None else self.segments.recording
        raw = None if recording is None else getattr(recording.source, "raw", None)
        date, shift = None, 0.0
        if recording is not None and raw is not None and raw.annotations.orig_time is not None:
            # MNE counts from the start of the measurement, of which the file may hold a later part only.
            date, shift = raw.annotations.orig_time, raw.first_time + recording.first_sample / recording.sfreq
        # In MNE's own count, so that raw.set_annotations puts them where they were found.
        onsets = [onset + shift for onset, _ in self.events]
        return mne.Annotations(onsets, [offset - onset for onset, offset in self.events], description, orig_time=date)

    def plot(self, reference: Intervals | None = None) -> Figure:
        """Probability over time with threshold, events and what was skipped.

        Parameters
        ----------
        reference : sequence of (onset, offset), optional
            Seizures to draw above; by default those that the recording states.
        """
        from mvpa_ts.ieeg.detection.plots import plot_timeline

        shown = (self.reference or ()) if reference is None else reference
        return plot_timeline(self.probabilities, self.starts, self.duration, self.threshold, self.events, shown)

    def save(
        self,
        folder: str | Path,
        *,
        online: OnlineRule | None = None,
        positions: Positions | None = None,
        clock: bool = False,
        detector: Any = None,
        baselines: Mapping[str, Floats] | None = None,
    ) -> None:
        """Write the files that ``mvpformer detect`` writes for one recording, into `folder` itself.

        The command makes a folder for each recording: ``save(Path("results") / "patient")`` gives what
        ``mvpformer detect patient.edf -o results`` does. ``mvpformer evaluate`` reads both.

        These are ``events.tsv`` (SzCORE/BIDS), ``probabilities.tsv``, ``reference_events.tsv`` if the recording states
        its seizures or that there are none, ``onsets.tsv`` if the signal is at hand, ``run.json``, and last
        ``report.html``. None holds a name or birth date.
        Files of an earlier run are replaced or removed. Of classes there are events, probabilities and ``run.json``.

        Parameters
        ----------
        folder : path
        online : OnlineRule, optional
            Default: 1 of 2.
        positions : mapping of channel name to (x, y, z), optional
            For the report's map of channels.
        clock : bool, default False
            Write the recording's date and time into ``events.tsv``; by default they are hidden.
        detector : Detector, optional
            For the channels' scores in the onset maps of the surest events.
        baselines : mapping of name to array, shape (n,), optional
            Their probabilities of the same segments, for ``baselines.tsv`` and the report.

        Raises
        ------
        ValueError
            `folder` is a file, or `positions` are those of other channels.
        """
        check_switches(clock=clock)
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"folder must be a folder, {folder} is a file; save_events writes the events to one file")
        online = online_rule(online)
        if positions:
            check_positions(self.channel_names, positions)
        # Of an earlier run over a recording whose annotations may have changed; without it the folder is not complete.
        # run.json is written last but for the report: where it is there, the folder is whole.
        for file in (saved.RUN, saved.REPORT, saved.REFERENCE, saved.BASELINES, saved.ONSETS):
            (folder / file).unlink(missing_ok=True)
        self.save_events(folder / saved.EVENTS, clock=clock)
        if self.classes:
            saved.write_baselines(folder / saved.PROBABILITIES, self.starts, {**self.classes, **(baselines or {})})
            write_json(folder / saved.RUN, self.describe(online))
            return
        if self.reference is not None:
            write_events(folder / saved.REFERENCE, self.reference, self.duration, start=self._start(clock))
        alarms = online.alarms(self.probabilities, self.threshold)
        saved.write_probabilities(folder / saved.PROBABILITIES, self.starts, self.probabilities, self.threshold, alarms)
        if baselines:
            saved.write_baselines(folder / saved.BASELINES, self.starts, baselines)
        maps: list[OnsetMap] = []
        if self.segments is not None:
            surest = self._surest()  # the channels' scores take seconds
            for index, event in enumerate(self.events):
                maps.append(onset_map(self.segments, event, detector if index in surest else None))
            write_onsets(folder / saved.ONSETS, maps)
        run = self.describe(online)
        write_json(folder / saved.RUN, run)
        scores = {"the detector": self.probabilities, **(baselines or {})}
        labels = None if self.reference is None else segment_labels(self.starts, self.reference)
        compared = report.comparison_rows(scores, {"the detector": self.threshold}, labels) if len(scores) > 1 else ()
        figures = self._figures(positions, maps)
        events = [(on, off - on, sure) for (on, off), sure in zip(self.events, self.confidences, strict=True)]
        report.html_report(folder / saved.REPORT, run, figures, events, self.reference, compared)

    def save_events(self, path: str | Path, *, clock: bool = False) -> None:
        """Write the events alone, as SzCORE's table; `clock` as for `save`."""
        check_switches(clock=clock)
        write_events(
            path,
            self.events,
            self.duration,
            confidences=self.confidences,
            event_type=self.names or "sz",
            background=bool(self.scored.any()),
            start=self._start(clock),
        )

    def _start(self, clock: bool) -> datetime | None:
        """When the recording begins, if that is asked for and known."""
        recording = None if self.segments is None else self.segments.recording
        if not clock or recording is None or "start" not in recording.metadata:
            return None
        later = timedelta(seconds=recording.first_sample / recording.sfreq)  # of a part, by `Recording.crop`
        return datetime.fromisoformat(recording.metadata["start"]) + later

    def describe(self, online: OnlineRule | None = None) -> dict[str, Any]:
        """Everything that ``run.json`` states, as JSON values."""
        online = online_rule(online)
        source = self.provenance
        rules = {name: "none" if value == math.inf else value for name, value in vars(self.rules).items()}
        return {
            "notice": RESEARCH_USE,
            "recording": {
                "name": source.recording,
                "subject": source.subject,
                "duration": self.duration,
                "sfreq": source.sfreq,
                "implausible_samples": source.implausible_samples,
                "left_out": list(source.left_out),
                "notes": list(source.notes),
            },
            "segments": len(self.probabilities),
            "skipped": [vars(stretch) for stretch in self.skipped],
            "events": len(self.events),
            "threshold": self.threshold,
            "rules": rules,
            "online": {"k": online.k, "n": online.n, "latency": list(online.latency())},
            "preprocessing": dict(source.preprocessing),
            "channels": {"used": list(self.channel_names), "dropped": dict(source.dropped)},
            "model": {"name": source.model_name, **{name: getattr(source, name) for name in _OF_MODEL}},
            "versions": {
                "python": platform.python_version(),
                **{name: importlib.metadata.version(name) for name in _PACKAGES},
            },
        }

    def _surest(self) -> list[int]:
        """The events that a report draws, in order: a page with hundreds of figures is not read."""
        return sorted(sorted(range(len(self.events)), key=lambda index: -self.confidences[index])[: report.MAX_FIGURES])

    def _figures(self, positions: Positions | None, maps: Sequence[OnsetMap]) -> Iterator[tuple[str, str, Figure]]:
        """Heading, text and figure of each part of the report; without a signal only the probability."""
        from mvpa_ts.ieeg.detection.plots import channel_rms, plot_channel_map, plot_onset_map, plot_traces

        yield "Probability", "", self.plot()
        if self.segments is None:
            return
        reference, segments = self.reference or [], self.segments

        def traces(onset: float, offset: float) -> Figure:
            last = min(offset + report.MARGIN, onset + report.MOST_SECONDS, self.duration)
            return plot_traces(segments, max(onset - report.MARGIN, 0.0), last, self.events, reference)

        for index in self._surest():
            onset, offset = self.events[index]
            is_known = maps[index].known
            text = "" if is_known else report.ONSET_UNKNOWN
            yield f"Event {index + 1}: {onset:.0f} to {offset:.0f} s", text, traces(onset, offset)
            if is_known:
                yield f"Event {index + 1}: where it begins", report.ONSET_WORDS, plot_onset_map(maps[index], positions)
        if not self.events:
            for onset, offset in reference[: report.MAX_FIGURES] or [(0.0, 30.0 - report.MARGIN)]:
                shown = f"a seizure that is marked, {onset:.0f} to {offset:.0f} s" if reference else "the beginning"
                yield f"No event was detected; {shown}", "", traces(onset, offset)
        yield (
            "Channels",
            "RMS of the preprocessed signal, in segments spread over the recording.",
            plot_channel_map(segments.channel_names, channel_rms(segments), self.provenance.dropped, positions),
        )


def read_detection(folder: str | Path) -> Detection:
    """A saved detection as `Detector.detect` gave it, probabilities to six decimals."""
    folder = Path(folder)
    run = saved.read_run(folder)
    if classes := saved.classes_of(run):
        raise ValueError(f"{folder} holds spans of {', '.join(classes)}, and seizures are needed here")
    starts, probabilities = saved.read_probabilities(folder, run)
    recording, model, reference = run["recording"], run["model"], folder / saved.REFERENCE
    # JSON has no infinity.
    rules: dict[str, Any] = {name: math.inf if value == "none" else value for name, value in run["rules"].items()}
    return Detection(
        probabilities,
        starts,
        read_seizures(folder / saved.EVENTS, recording["duration"], kind="detection"),
        tuple(Skipped(**stretch) for stretch in run["skipped"]),
        recording["duration"],
        tuple(run["channels"]["used"]),
        EventRules(**rules),
        Provenance(
            recording["name"],
            recording["subject"],
            recording["sfreq"],
            run["preprocessing"],
            run["channels"]["dropped"],
            model_name=model.get("name"),
            implausible_samples=recording.get("implausible_samples", 0),
            notes=tuple(recording.get("notes", ())),
            left_out=tuple(recording.get("left_out", ())),
            **{name: model.get(name) for name in _OF_MODEL},
        ),
        read_seizures(reference, recording["duration"]) if reference.is_file() else None,
    )


def detection_of(recording: Recording, folder: str | Path) -> Detection:
    """A saved detection of this recording; a ValueError where it is of another."""
    detection = read_detection(folder)
    if detection.provenance.recording != recording.name or abs(detection.duration - recording.duration) > 0.01:
        raise ValueError(
            f"{folder} is a detection of another recording: of {detection.provenance.recording} "
            f"({detection.duration:g} s), not of {recording.name} ({recording.duration:g} s)"
        )
    return detection
