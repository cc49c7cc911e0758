"""What a detection leaves behind: tables, ``run.json`` and one HTML page that needs no other file."""

from __future__ import annotations

import base64
import csv
import importlib.metadata
import io
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.files import replaced, write_json, write_text
from mvpa_ts.ieeg.command_line import RESEARCH_USE
from mvpa_ts.ieeg.data.annotations import read_seizures
from mvpa_ts.ieeg.events import SEGMENT, EventRules, OnlineRule, SeizureEvents, write_events
from mvpa_ts.ieeg.results import RecordingResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mvpa_ts.ieeg.data.segments import Segments
    from mvpa_ts.ieeg.detection import Detection

EVENTS, REFERENCE, PROBABILITIES, RUN, REPORT = (
    "events.tsv",
    "reference_events.tsv",
    "probabilities.tsv",
    "run.json",
    "report.html",
)
MAX_FIGURES = 6
"""Events drawn in a report, the surest first."""
_MARGIN = 10.0  # seconds before and after an event in its figure
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
        lines.append(f"{start:.3f}\t{SEGMENT:.3f}\t{value}\t{positive}\t{int(alarm)}")
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
    from mvpa_ts.ieeg.detection import Detection, Skipped

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


def read_result(
    folder: str | os.PathLike[str], reference: SeizureEvents | str | os.PathLike[str] | None = None
) -> RecordingResult:
    """A saved detection, for scoring.

    Parameters
    ----------
    folder : path
        What `save_detection` wrote.
    reference : list of (onset, offset) or path, optional
        Seconds, or an events.tsv; by default the folder's ``reference_events.tsv``.

    Raises
    ------
    FileNotFoundError
        The detection is not complete, or no reference is known.
    ValueError
        A file cannot be read.
    """
    detection = read_detection(folder)
    if reference is None:
        if not (Path(folder) / REFERENCE).is_file():
            raise FileNotFoundError(
                f"{folder} has no {REFERENCE}, as the recording states no seizures: give the reference events"
            )
        reference = Path(folder) / REFERENCE
    if isinstance(reference, (str, os.PathLike)):
        reference = read_seizures(Path(reference), detection.duration)
    about = detection.settings["recording"]
    return RecordingResult(
        name=about["name"],
        subject=about["subject"] or about["name"],
        duration=detection.duration,
        starts=detection.starts,
        probabilities=detection.probabilities,
        reference=reference,
        detected=detection.events,
        threshold=detection.threshold,
    )


def html_report(
    detection: Detection,
    segments: Segments,
    run: Mapping[str, Any],
    reference: Sequence[tuple[float, float]] | None = None,
    positions: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """The report as one HTML page with its figures inside."""
    from mvpa_ts.ieeg.plots import channel_rms, plot_channel_map, plot_timeline, plot_traces

    surest = sorted(range(len(detection.events)), key=lambda index: -detection.confidences[index])[:MAX_FIGURES]
    traces = []
    for index in sorted(surest):
        onset, offset = detection.events[index]
        first = max(onset - _MARGIN, 0.0)
        last = min(offset + _MARGIN, onset + 60.0, detection.duration)
        figure = plot_traces(segments, first, last, detection.events, reference or ())
        traces.append((f"Event {index + 1}: {onset:.0f} to {offset:.0f} s", embedded(figure)))
    if not traces:
        figure = plot_traces(segments, 0.0, min(30.0, detection.duration), (), reference or ())
        traces.append(("No event was detected; the beginning of the recording", embedded(figure)))
    rms = channel_rms(segments)
    return render(
        f"Seizure detection: {run['recording']['name']}",
        [
            ("Probability", "", embedded(plot_timeline(detection, reference))),
            *((title, "", image) for title, image in traces),
            (
                "Channels",
                "RMS of the preprocessed signal, in segments spread over the recording.",
                embedded(plot_channel_map(segments.channel_names, rms, run["channels"]["dropped"], positions)),
            ),
        ],
        {
            "Recording": f"{detection.duration:.1f} s at {segments.recording.sfreq:g} Hz, "
            f"{len(segments.channel_names)} channels used",
            "Events": f"{len(detection.events)}; rules: {run['rules']}",
            "Threshold": f"{detection.threshold:g}",
            "Scored": f"{int(np.isfinite(detection.probabilities).sum())} of {len(detection.probabilities)} segments "
            f"of 5 s; skipped: {run['skipped'] or 'nothing'}",
            "Online rule": f"{run['online']['k']} of {run['online']['n']} segments, latency "
            f"{run['online']['latency'][0]:g} to {run['online']['latency'][1]:g} s",
            "Preprocessing": str(run["preprocessing"]),
            "Channels dropped": ", ".join(f"{name} ({why})" for name, why in run["channels"]["dropped"].items())
            or "none",
            "Model": f"weights {str(run['model']['weights'])[:16]}…",
            "Versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
        },
        table=(
            ("onset (s)", "duration (s)", "confidence"),
            [
                (f"{onset:.1f}", f"{offset - onset:.1f}", f"{confidence:.3f}")
                for (onset, offset), confidence in zip(detection.events, detection.confidences, strict=True)
            ],
        ),
    )


_TEMPLATE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
  body { font-family: sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
  table { border-collapse: collapse } th, td { padding: .25rem .8rem; text-align: left; vertical-align: top }
  thead th { border-bottom: 2px solid #222 } tbody th { font-weight: 600; white-space: nowrap }
  img { max-width: 100% } .notice { border: 1px solid #b00; padding: .5rem 1rem }
</style>
<h1>{{ title }}</h1>
<p class="notice">{{ notice }}</p>
{% if table and table[1] %}<table>
<thead><tr>{% for name in table[0] %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table[1] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table>{% endif %}
{% for heading, text, image in sections %}
<h2>{{ heading }}</h2>
{% if text %}<p>{{ text }}</p>{% endif %}
<img alt="{{ heading }}" src="data:image/png;base64,{{ image }}">
{% endfor %}
<h2>How</h2>
<table><tbody>{% for name, value in facts.items() %}<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}
</tbody></table>
</html>
"""


def render(
    title: str,
    sections: Sequence[tuple[str, str, str]],
    facts: Mapping[str, str],
    table: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None,
) -> str:
    """A self-contained page: heading, text and PNG (base64) of each section, a table, and facts; all text escaped."""
    from jinja2 import Environment

    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_TEMPLATE)
    return template.render(title=title, notice=RESEARCH_USE, sections=sections, facts=facts, table=table)


def embedded(figure: Figure) -> str:
    """A figure as PNG in base64; the figure is closed."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of the file's ending, and close it."""
    import matplotlib.pyplot as plt

    with replaced(path) as temporary:
        figure.savefig(temporary, dpi=150)
    plt.close(figure)
