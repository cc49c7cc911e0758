"""The report of a detection: one HTML page, in plain words and with its figures inside, that needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.checks import grouped, listed
from mvpa_ts.files import write_text
from mvpa_ts.ieeg.constants import RESEARCH_USE, SEGMENT_SECONDS, counted
from mvpa_ts.ieeg.events import Flags, Floats, Intervals
from mvpa_ts.ieeg.figures import embedded
from mvpa_ts.ieeg.model.pretrained import LINEAR, NETWORKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Events drawn in a report, the surest first.
MAX_FIGURES = 6
# Box at the top of the report of such a recording.
SEEN = "The model was trained on this recording or on others of its subject, so this page does not show how good it is."
# Beside each onset map.
ONSET_WORDS = (
    "Channels by how strongly and how early they change (all in onsets.tsv). Not a diagnosis: the contact that changes "
    "first need not be where the event begins."
)
ONSET_UNKNOWN = "In which channel it begins cannot be told: less than 10 s of signal lie before it."
COMPARISON_COLUMNS = ("detector", "segments above its threshold", "of those in seizures", "AUROC of segments")
# Seconds before and after an event in its figure.
MARGIN = 10.0
# An event is drawn to its end, but no more than so many seconds of it.
MOST_SECONDS = 900.0


def html_report(
    path: str | Path,
    run: Mapping[str, Any],
    figures: Iterable[tuple[str, str, Figure]],
    events: Sequence[tuple[float, float, float]],
    reference: Intervals | None = None,
    compared: Sequence[Sequence[str]] = (),
) -> None:
    """Write the report as one HTML page.

    `run` is what ``run.json`` states, `figures` are (heading, text, figure) and closed when they are drawn, `reference`
    are seizures that the recording states, and `compared` the rows of `comparison_rows`.
    """
    # One after the other, so that one figure at a time is in memory.
    sections = [(heading, text, embedded(figure)) for heading, text, figure in figures]
    rows = [(f"{onset:.1f}", f"{duration:.1f}", f"{confidence:.3f}") for onset, duration, confidence in events]
    tables: list[tuple[str, Sequence[str], list[Sequence[str]]]] = []
    if rows:
        tables.append(("Detected events", ("onset (s)", "duration (s)", "confidence"), [*rows]))
    if reference:
        tables.append(("Seizures that the recording states", ("onset (s)", "duration (s)", "detected"), []))
        for onset, offset in reference:
            # Any overlap, as the report shows what was found and leaves scores to `mvpformer evaluate`.
            touched = any(begin < offset and begin + length > onset for begin, length, _ in events)
            tables[-1][2].append((f"{onset:.1f}", f"{offset - onset:.1f}", "yes" if touched else "no"))
    if compared:
        tables.append(("The detector beside simple ones", COMPARISON_COLUMNS, [*compared]))
    caveats = [SEEN] * bool(run["model"].get("subject_in_training"))
    caveats += [text for key in ("left_out", "notes") for text in run["recording"].get(key, [])]
    write_text(path, render(f"Seizure detection: {run['recording']['name']}", sections, facts(run), tables, caveats))


def comparison_rows(
    scores: Mapping[str, Floats], thresholds: Mapping[str, float], labels: Flags | None
) -> list[tuple[str, ...]]:
    """Rows of `COMPARISON_COLUMNS`: probabilities [n] by detector, their thresholds, and which segments are seizures.

    Examples
    --------
    >>> scores = {"ours": np.array([0.1, 0.9]), "line-length": np.array([0.6, 0.7])}
    >>> comparison_rows(scores, {"ours": 0.5}, np.array([False, True]))
    [('ours', '1', '1 of 1', '1.000'), ('line-length', '2', '1 of 1', '1.000')]
    """
    # On the segments that all of them scored, as `mvpformer evaluate`: a baseline says something of bad ones too.
    scored = ~np.any([np.isnan(values) for values in scores.values()], axis=0)
    labels = np.zeros(0, bool) if labels is None else labels[scored]
    rows: list[tuple[str, ...]] = []
    for name, values in scores.items():
        positive, inside, auroc = values[scored] > thresholds.get(name, 0.5), "–", "–"
        if labels.any():
            inside = f"{int((positive & labels).sum())} of {int(labels.sum())}"
        if labels.any() and not labels.all():
            from sklearn.metrics import roc_auc_score

            auroc = f"{roc_auc_score(labels, values[scored]):.3f}"
        rows.append((name, str(int(positive.sum())), inside, auroc))
    return rows


def facts(run: Mapping[str, Any]) -> dict[str, str]:
    """What ``run.json`` states, in words."""
    recording, model, online = run["recording"], run["model"], run["online"]
    used = counted(len(run["channels"]["used"]), "channel")
    dropped = grouped((reason, name) for name, reason in run["channels"]["dropped"].items())
    not_used = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in dropped.items())
    first, last = online["latency"]
    own = model.get("own_threshold")
    replaced = {} if own in (None, run["threshold"]) else {"Its own threshold": f"{own:g}, which is not used here"}
    return {
        "Recording": f"{recording['duration']:.1f} s at {recording['sfreq']:g} Hz, {used} used",
        "Events": f"{run['events']}; {_rules_in_words(run['rules'])}",
        "Threshold": f"a segment is positive above a probability of {run['threshold']:g}",
        **replaced,
        "Segments": f"{run['segments']} of {SEGMENT_SECONDS:g} s",
        "Skipped": _skipped_in_words(run["skipped"]),
        "Online rule": f"alarm while {online['k']} of the last {online['n']} segments are positive, {first:g} to "
        f"{last:g} s after an onset at the earliest",
        "Preprocessing": _preprocessing_in_words(run["preprocessing"]),
        "Channels not used": not_used or "none",
        "Model": _model_in_words(model),
        "Versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
    }


def _rules_in_words(rules: Mapping[str, Any]) -> str:
    words = []
    if rules["merge_gap"]:
        words.append(f"less than {rules['merge_gap']:g} s apart are one event")
    if rules["min_duration"]:
        words.append(f"shorter than {rules['min_duration']:g} s are dropped")
    if rules["min_positives"] > 1:
        words.append(f"with fewer than {rules['min_positives']} positive segments are dropped")
    if rules["max_duration"] != "none":
        words.append(f"longer than {rules['max_duration']:g} s are cut")
    return f"positive stretches {', '.join(words)}" if words else "every positive stretch is an event"


def _skipped_in_words(skipped: Sequence[Mapping[str, Any]]) -> str:
    """Total and number of stretches for each reason, with the first few of them."""
    words = []
    for reason, stretches in grouped((stretch["reason"], stretch) for stretch in skipped).items():
        total = sum(stretch["offset"] - stretch["onset"] for stretch in stretches)
        places = listed([f"{stretch['onset']:.0f}–{stretch['offset']:.0f} s" for stretch in stretches])
        words.append(f"{total:.0f} s with {reason} ({places})")
    return "; ".join(words) or "nothing"


def _preprocessing_in_words(preprocessing: Mapping[str, Any]) -> str:
    band, notch, reference = (preprocessing.get(name) for name in ("band", "notch", "reference"))
    words = [f"resampled to {preprocessing.get('sfreq', 512):g} Hz"]
    words.append("no band-pass" if band is None else f"band-pass {band[0]:g} to {band[1]:g} Hz")
    words.append("no notch" if notch is None else f"notch at {notch:g} Hz and its harmonics")
    references = {"median": "median of the channels as reference", "bipolar": "bipolar, neighbouring contacts"}
    words.append(references.get(str(reference), "reference as recorded"))
    if "max_bad_share" in preprocessing:
        words.append(f"a channel's segment with more than {preprocessing['max_bad_share']:.0%} bad samples is left out")
    return "; ".join(words)


def _model_in_words(model: Mapping[str, Any]) -> str:
    words = [model["name"]] if model.get("name") else []
    config = model.get("model") or {}
    if "baseline" in config:
        words.append(f"the baseline {config['baseline']}, no network")
    elif config:
        kind = "MV-Llama" if config.get("attention") == "llama" else "MVPFormer"
        count = config.get(NETWORKS, 1)
        kind = kind if count == 1 else f"{count} networks, each {kind}"
        words.append(
            f"{kind} with {config.get('num_layers')} layers of width {config.get('dim')} and a context of "
            f"{config.get('context')} segments"
        )
    if linear := config.get(LINEAR):
        words.append(f"a regression decides {'with it' if linear.get('network') else 'alone, networks have no weight'}")
    if model.get("weights"):
        words.append(f"weights {model['weights'][:16]}…")
    if model.get("subject_in_training"):
        words.append("trained on this recording, or on others of a subject of this name")
    if model.get("others_in_training"):
        words.append("trained on other recordings of this subject")
    return "; ".join(words) or "unknown"


def render(
    title: str,
    sections: Sequence[tuple[str, str, str]],
    facts: Mapping[str, str],
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
    caveats: Sequence[str] = (),
) -> str:
    """A self-contained page, all text escaped: caveats, tables (heading, names of columns, rows), sections and facts.

    A section is a heading, a text and a PNG (base64).
    """
    from jinja2 import Environment

    template = resources.files("mvpa_ts.ieeg.detection").joinpath("report.html").read_text(encoding="utf-8")
    # Channel names come from files and may hold markup.
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    return page.render(title=title, notice=RESEARCH_USE, caveats=caveats, sections=sections, facts=facts, tables=tables)
