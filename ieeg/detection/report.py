"""What a detection leaves behind: tables, ``run.json`` and one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.ieeg.constants import RESEARCH_USE
from mvpa_ts.ieeg.figures import embedded

if TYPE_CHECKING:
    from mvpa_ts.ieeg.detection.detector import Detection
    from mvpa_ts.ieeg.preprocessing.segments import Segments

MAX_FIGURES = 6
"""Events drawn in a report, the surest first."""
_MARGIN = 10.0  # seconds before and after an event in its figure


def html_report(
    detection: Detection,
    segments: Segments,
    run: Mapping[str, Any],
    reference: Sequence[tuple[float, float]] | None = None,
    positions: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """The report as one HTML page with its figures inside."""
    from mvpa_ts.ieeg.detection.plots import channel_rms, plot_channel_map, plot_timeline, plot_traces

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
