"""What `mvpformer detect` does with one recording, as plain values that another process or machine can take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.checks import warn
from mvpa_ts.ieeg.commands.main import load_detector, names_baseline, read_named
from mvpa_ts.ieeg.constants import counted
from mvpa_ts.ieeg.detection.rules import OnlineRule
from mvpa_ts.ieeg.detection.saved import STATED, STORE
from mvpa_ts.ieeg.detection.store import ProbabilityStore
from mvpa_ts.ieeg.events import Floats, class_labels
from mvpa_ts.ieeg.recordings.bids import electrode_positions
from mvpa_ts.ieeg.recordings.left_out import Row, of_recording
from mvpa_ts.ieeg.recordings.noise import add_noise
from mvpa_ts.ieeg.recordings.reading import read_classes

if TYPE_CHECKING:
    from mvpa_ts.ieeg.detection.detection import Detection
    from mvpa_ts.ieeg.detection.detector import Detector
    from mvpa_ts.ieeg.detection.onsets import Positions
    from mvpa_ts.ieeg.preprocessing.segments import Segments
    from mvpa_ts.ieeg.recordings.recording import Recording

# The detector of this process, by the settings and files that it was made with.
_LOADED: dict[str, Detector] = {}


@dataclass(frozen=True)
class ScoringTask:
    """Settings of `mvpformer detect`, which are the same for all recordings; see its options."""

    model: str
    preprocessing: dict[str, Any] | None
    threshold: float | None
    rules: str
    channels: str
    online: tuple[int, int]
    reading: dict[str, Any]
    clock: bool
    noise: float | None
    batch_size: int
    device: str
    calibration: str | None = None
    score_bad: bool = False

    def detector(self) -> Detector:
        """The detector, loaded once in a process."""
        from mvpa_ts.ieeg.detection.calibration import load_calibration

        # A worker scores many recordings, loading takes longer than a short one, and the model may be trained again.
        files = [*Path(self.model).glob("*"), Path(self.model), Path(self.calibration or "")]
        key = repr((self, [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file()]))
        if (loaded := _LOADED.get(key)) is not None:
            return loaded
        _LOADED.clear()
        calibration = None if self.calibration is None else load_calibration(self.calibration)
        detector = _LOADED[key] = load_detector(
            self.model,
            self.preprocessing,
            self.channels,
            threshold=self.threshold,
            rules=self.rules if calibration is None else calibration.rules,
            batch_size=self.batch_size,
            device=self.device,
        )
        if calibration is not None:
            calibration.check(detector)
        settings = (self.threshold, self.calibration, self.rules, self.online, self.reading["seizure_words"])
        if detector.classes and settings != (None, None, "szcore", (1, 2), ()):
            options = "--threshold, --calibration, --rules, --online and --seizure-words"
            raise ValueError(f"{options} are for seizures, and {self.model} is of {', '.join(detector.classes)}")
        return detector

    def score(self, file: Path, output: Path, *, progress: bool = False) -> tuple[str, list[Row]]:
        """Detect in one file and write its results; returns a line about it, and what was left out of it.

        `output` is a folder, or a file.tsv for the events alone; `progress` shows a bar. A ValueError says that the
        file cannot be read or scored, or that nothing in it was scored.
        """
        detector = self.detector()
        recording = read_named(file, self.channels, **self.reading)
        files = [file, *filter(None, getattr(getattr(recording.source, "raw", None), "filenames", ()))]
        recording = self._as_scored(recording)
        segments = detector.segments(recording)
        with segments.recording.noting():
            positions = _positions(recording.name, segments.channel_names, file)
        baselines = self._stated(segments, file) if detector.classes else {}
        table = output.suffix.lower() == ".tsv"
        store = None if table else self._store(detector, segments, files, output / STORE)
        detection = detector.detect_segments(segments, store=store, progress=progress)
        if table:
            detection.save_events(output, clock=self.clock)
        else:
            detection.save(
                output,
                online=OnlineRule(*self.online),
                positions=positions,
                clock=self.clock,
                detector=detector,
                baselines=baselines or self._baselines(segments),
            )
        if not detection.scored.any():
            reasons = ", ".join(dict.fromkeys(stretch.reason for stretch in detection.skipped))
            share = segments.implausible_samples / (recording.num_samples * len(segments.channel_names))
            if share > 0.1:
                reasons += f"; {share:.0%} of the values are beyond ±1 V, which no electrode gives: is the unit right?"
            raise ValueError(f"{recording.name}: nothing was scored ({reasons}), so {output} tells nothing of seizures")
        source = detection.provenance
        rows = of_recording(recording.name, source.dropped, source.left_out, source.notes)
        return self._summary(detection, detector, output), rows

    def _as_scored(self, recording: Recording) -> Recording:
        """The recording without its marks of bad signal, or with noise, as the options say."""
        from mvpa_ts.ieeg.detection.calibration import load_calibration

        if self.calibration is not None:
            load_calibration(self.calibration).warn_of_another(recording)
        if self.score_bad:
            recording.bad_spans = ()
        if self.clock and "start" not in recording.metadata:
            recording.warn(f"{recording.name} does not state when it began: --clock writes 1900, which hides a date")
        return recording if self.noise is None else add_noise(recording, self.noise)

    @staticmethod
    def _store(detector: Detector, segments: Segments, files: Sequence[Path], store: Path) -> Path | None:
        """The file that keeps probabilities; None for classes, of which it keeps none."""
        # Its fingerprint is of pieces, and a change between them would not be seen.
        if store.is_file() and max(map(os.path.getmtime, files)) > store.stat().st_mtime:
            warn(
                f"{segments.recording.name} was written or copied after {store}, whose probabilities are kept: if its "
                "samples were changed, name another --output",
            )
        if not detector.classes:
            return store
        # It refuses the place of another recording or detector all the same.
        with ProbabilityStore(store, detector.store_settings(segments), segments.starts):
            return None

    def _summary(self, detection: Detection, detector: Detector, output: Path) -> str:
        """A line about what was found, with what a user may want to do about it."""
        skipped = sum(stretch.offset - stretch.onset for stretch in detection.skipped)
        events = f"{counted(len(detection.events), 'event')} in {detection.duration:.0f} s"
        line = f"{detection.provenance.recording}: {events}, {skipped:.0f} s skipped; see {output}"
        if self.calibration is not None and detector.threshold < detector.own_threshold:
            line += (
                f". The calibrated threshold, {detector.threshold:.3g}, lies below the detector's own, "
                f"{detector.own_threshold:g}: more events are found, and more false ones, as the promise allows"
            )
        if detection.reference and not detection.events:
            line += (
                f". The file marks {len(detection.reference)}: finetune learns from marked seizures, and with a lower "
                "--threshold more are found, and more false ones"
            )
        return line

    def _stated(self, segments: Segments, file: Path) -> dict[str, Any]:
        """The class of each segment that the recording states, NaN where it states none."""
        spans = read_classes(file, segments.recording, self.detector().classes, self.reading["truncated"])
        names = [*spans, np.nan]
        return {STATED: [names[label] for label in class_labels(segments.starts, spans)]}

    def _baselines(self, segments: Segments) -> dict[str, Floats]:
        """What the baselines say of the same segments, which `mvpformer evaluate` compares."""
        from mvpa_ts.ieeg.detection.baselines import baselines_beside

        baselines = [] if names_baseline(self.model) else baselines_beside(self.model)
        return {item.name: np.concatenate([*item.probabilities(segments)]) for item in baselines}


def _positions(name: str, channels: Sequence[str], file: Path) -> Positions:
    """Positions of the electrodes in the tables beside a file; none, with a warning, where they are of others."""
    from mvpa_ts.ieeg.detection.onsets import check_positions

    positions = electrode_positions(file)
    # Before the hours of scoring; positions only place channels in a figure, so no recording is left unscored.
    try:
        check_positions(channels, positions)
    except ValueError as error:
        warn(f"{name}: {error}")
        return {}
    return positions
