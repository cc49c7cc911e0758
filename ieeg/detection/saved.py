"""The files of a detection: tables and run.json."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.files import write_json, write_text
from mvpa_ts.ieeg.constants import RESEARCH_USE, SEGMENT_SECONDS
from mvpa_ts.ieeg.detection.report import html_report
from mvpa_ts.ieeg.detection.rules import EventRules, OnlineRule
from mvpa_ts.ieeg.recordings.annotations import read_seizures, write_events

if TYPE_CHECKING:
    from mvpa_ts.ieeg.detection.detector import Detection
    from mvpa_ts.ieeg.preprocessing.segments import Segments

EVENTS, REFERENCE, PROBABILITIES, RUN, REPORT = (
    "events.tsv",
    "reference_events.tsv",
    "probabilities.tsv",
    "run.json",
    "report.html",
)


_PACKAGES = ("mvpa-ts", "torch", "numpy", "scipy", "mne", "timescoring")


NOT_SELECTED = {
    "auto": "not selected: other channels rank higher by variance / (1 + kurtosis)",
    "list": "not selected: not in the list of channels",
}
"""Why a channel was not used, by the way of selection."""


def save_detection(
    folder: str | os.PathLike[str],
    detection: Detection,
    segments: Segments,
    *,
    online: OnlineRule | None = None,
    positions: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Write a detection's files to `folder`.

    ``events.tsv`` (SzCORE/BIDS), ``probabilities.tsv``, ``reference_events.tsv`` where the recording states seizures,
    ``report.html``, and at last ``run.json``. None holds a name or birth date. What an earlier run left is replaced or
    removed, its ``run.json`` first, so that a folder with one is of a single run.

    Parameters
    ----------
    folder : path
    detection : Detection
    segments : Segments
        What was scored; the report reads the stretches that it draws.
    online : OnlineRule, optional
        Default: 1 of 2.
    positions : mapping of channel name to (x, y, z), optional
        For the report's map of channels.
    """
    folder = Path(folder)
    recording = segments.recording
    online = online or OnlineRule(threshold=detection.threshold)
    # Of an earlier run over a recording whose annotations may have changed; without it the folder is not complete.
    (folder / RUN).unlink(missing_ok=True)
    write_events(folder / EVENTS, detection.events, detection.duration, confidences=detection.confidences)
    reference = [*recording.seizures] if recording.seizures else None
    if reference is None:
        (folder / REFERENCE).unlink(missing_ok=True)
    else:
        write_events(folder / REFERENCE, reference, detection.duration)
    alarms = online.alarms(detection.probabilities)
    lines = ["onset\tduration\tprobability\tpositive\talarm"]
    for start, probability, alarm in zip(detection.starts, detection.probabilities, alarms, strict=True):
        value = "n/a" if math.isnan(probability) else f"{probability:.6f}"
        positive = "n/a" if math.isnan(probability) else str(int(probability > detection.threshold))
        lines.append(f"{start:.3f}\t{SEGMENT_SECONDS:.3f}\t{value}\t{positive}\t{int(alarm)}")
    write_text(folder / PROBABILITIES, "\n".join(lines) + "\n")
    run = describe_run(detection, segments, online)
    write_text(folder / REPORT, html_report(detection, segments, run, reference, positions))
    write_json(folder / RUN, run)


def describe_run(detection: Detection, segments: Segments, online: OnlineRule) -> dict[str, Any]:
    """Everything that ``run.json`` states, as JSON values."""
    recording = segments.recording
    used = set(segments.channel_names)
    dropped = dict(recording.dropped)
    if segments.preprocessing.reference != "bipolar":
        reason = NOT_SELECTED.get(detection.settings.get("selection", ""), "not selected")
        dropped |= {name: reason for name in recording.channel_names if name not in used}
    rules = {name: "none" if value == math.inf else value for name, value in vars(detection.rules).items()} | {
        "threshold": detection.threshold
    }
    return {
        "notice": RESEARCH_USE,
        "recording": {
            "name": recording.name,
            "subject": recording.subject,
            "duration": detection.duration,
            "sfreq": recording.sfreq,
        },
        "segments": len(detection.probabilities),
        "skipped": [vars(stretch) for stretch in detection.skipped],
        "events": len(detection.events),
        "threshold": detection.threshold,
        "rules": rules,
        "online": {"k": online.k, "n": online.n, "latency": list(online.latency())},
        "preprocessing": segments.preprocessing.to_dict(),
        "channels": {"used": list(segments.channel_names), "dropped": dropped},
        "model": {key: detection.settings.get(key) for key in ("weights", "model", "subject_in_training")},
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
    }


def read_detection(folder: str | os.PathLike[str]) -> Detection:
    """A saved detection as `Detector.detect` gave it, probabilities to six decimals.

    Raises
    ------
    FileNotFoundError
        The folder holds no complete detection.
    ValueError
        A file cannot be read.
    """
    from mvpa_ts.ieeg.detection.detector import Detection, Skipped

    folder = Path(folder)
    if not (folder / RUN).is_file():
        raise FileNotFoundError(f"{folder} holds no {RUN}: it is no folder of a complete detection")
    run = json.loads((folder / RUN).read_text(encoding="utf-8"))
    duration = float(run["recording"]["duration"])
    starts, probabilities = [], []
    with (folder / PROBABILITIES).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            starts.append(float(row["onset"]))
            probabilities.append(math.nan if row["probability"] == "n/a" else float(row["probability"]))
    rules: dict[str, Any] = {name: math.inf if value == "none" else value for name, value in run["rules"].items()}
    return Detection(
        np.array(probabilities),
        np.array(starts),
        read_seizures(folder / EVENTS, duration),
        tuple(Skipped(**stretch) for stretch in run["skipped"]),
        duration,
        tuple(run["channels"]["used"]),
        float(run["threshold"]),
        EventRules(**rules),
        {**run["model"], "recording": run["recording"]},
    )
