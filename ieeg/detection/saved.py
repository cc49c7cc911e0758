"""The files of a detection: their names, the table of probabilities, and ``run.json`` read with care."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mvpa_ts.checks import warn
from mvpa_ts.files import read_config, write_text
from mvpa_ts.ieeg.constants import CLASSES, SEGMENT_SECONDS
from mvpa_ts.ieeg.events import Flags, Floats, unscored_stretches

EVENTS, REFERENCE, BASELINES, ONSETS = "events.tsv", "reference_events.tsv", "baselines.tsv", "onsets.tsv"
PROBABILITIES, RUN, REPORT = "probabilities.tsv", "run.json", "report.html"
STORE = "probabilities.store"  # of a detection that goes on
# Column of the class that the recording states, in the table of probabilities of classes.
STATED = "stated"
# Seconds by which times in the tables, which have three decimals, may differ from those in ``run.json``.
STRETCH_TOLERANCE = 0.01

_NUMBER = (int, float)
_TEXT_OR_NONE = (str, type(None))
# What run.json must hold, by section; sections and keys that a later version adds are not named here and do no harm.
_RUN_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "recording": {"name": (str,), "subject": _TEXT_OR_NONE, "duration": _NUMBER, "sfreq": _NUMBER},
    "channels": {"used": (list,), "dropped": (dict,)},
    "model": {"weights": _TEXT_OR_NONE, "model": (dict, type(None))},
    "rules": dict.fromkeys(("threshold", "merge_gap", "min_duration"), _NUMBER)
    | {"min_positives": (int,), "max_duration": (*_NUMBER, str)},
}


def write_probabilities(
    path: str | Path, starts: Floats, probabilities: Floats, threshold: float, alarms: Flags
) -> None:
    """Write ``probabilities.tsv``: onset, duration, probability, decision and alarm of each segment."""
    lines = ["onset\tduration\tprobability\tpositive\talarm"]
    for start, probability, alarm in zip(starts, probabilities, alarms, strict=True):
        # BIDS's word for a missing value.
        value = "n/a" if math.isnan(probability) else f"{probability:.6f}"
        positive = "n/a" if math.isnan(probability) else str(int(probability > threshold))
        lines.append(f"{start:.3f}\t{SEGMENT_SECONDS:.3f}\t{value}\t{positive}\t{int(alarm)}")
    write_text(path, "\n".join(lines) + "\n")


def write_baselines(path: str | Path, starts: Floats, scores: Mapping[str, Any]) -> None:
    """Write ``baselines.tsv``: onset, and the probability by each baseline; or of classes, with the one stated."""
    lines = ["\t".join(["onset", *scores])]
    for start, *values in zip(starts, *scores.values(), strict=True):
        cells = [value if isinstance(value, str) else f"{value:.9f}".replace("nan", "n/a") for value in values]
        lines.append("\t".join([f"{start:.3f}", *cells]))
    write_text(path, "\n".join(lines) + "\n")


def read_baselines(folder: str | Path, count: int) -> dict[str, Floats]:
    """Probabilities [count] by each baseline of ``baselines.tsv``; none where a detection has no such table."""
    path = Path(folder) / BASELINES
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        try:
            names, *rows = [row[1:] for row in csv.reader(file, delimiter="\t")]
            columns = [[math.nan if cell == "n/a" else float(cell) for cell in row] for row in zip(*rows, strict=True)]
            scores = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
    if len(rows) != count:
        raise ValueError(f"{path} contradicts {PROBABILITIES}: it has {len(rows)} rows, not {count}")
    return scores


def read_run(folder: str | Path) -> dict[str, Any]:
    """``run.json`` of a complete detection, its fields checked."""
    path = Path(folder) / RUN
    if not path.is_file():
        inside = min((path.parent for path in Path(folder).rglob(RUN)), default=None)
        hint = "" if inside is None else f"; did you mean {inside}?"
        raise FileNotFoundError(f"{folder} holds no {RUN}: it is not the folder of a complete detection{hint}")
    run = read_config(path)
    for section, fields in _RUN_FIELDS.items():
        content = run.get(section)
        if not isinstance(content, dict):
            raise ValueError(f"{path}: {section} must be an object, got {content!r:.100}")
        _check(path, f"{section}.", content, fields)
    _check(path, "", run, {"segments": (int,), "skipped": (list,), "preprocessing": (dict,)})
    # A rule that is unknown here may change what an event is.
    if unknown := sorted(run["rules"].keys() - _RUN_FIELDS["rules"].keys()):
        raise ValueError(f"{path}: rules has fields that are unknown here: {', '.join(unknown)}")
    if isinstance(run["rules"]["max_duration"], str) and run["rules"]["max_duration"] != "none":
        raise ValueError(f"{path}: rules.max_duration must be seconds or 'none', got {run['rules']['max_duration']!r}")
    for stretch in run["skipped"]:
        if not isinstance(stretch, dict) or stretch.keys() != {"onset", "offset", "reason"}:
            raise ValueError(f"{path}: skipped must list onset, offset and reason, got {stretch!r:.100}")
        _check(path, "skipped.", stretch, {"onset": _NUMBER, "offset": _NUMBER, "reason": (str,)})
    for name in ("duration", "sfreq"):
        if not (math.isfinite(run["recording"][name]) and run["recording"][name] > 0):
            raise ValueError(f"{path}: recording.{name} must be positive, got {run['recording'][name]}")
    run["recording"]["duration"] = float(run["recording"]["duration"])
    return run


def classes_of(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the classes of a detection by its ``run.json``; none where it is of seizures."""
    model = run["model"]["model"] or {}
    return tuple(model["names"]) if model.get("baseline") == CLASSES else ()


def warn_of_mixed(folders: Iterable[Path]) -> None:
    """Warn of detections by several detectors, whose rows one table of scores would mix."""
    kinds: dict[str, dict[str, Path]] = {}
    for folder in folders:
        with suppress(ValueError):  # a damaged one is named where it is scored
            run = read_run(folder)
            read = run["preprocessing"]
            settings = {"model": run["model"]["weights"], "rules or threshold": run["rules"], "band": read.get("band")}
            # A notch is measured in each recording, and SWEC comes filtered, so neither tells settings apart.
            settings["montage"] = read.get("reference") == "bipolar"
            for kind, value in settings.items():
                if value is not None:
                    kinds.setdefault(kind, {}).setdefault(repr(value), folder)
    if differ := {kind: [*of.values()] for kind, of in kinds.items() if len(of) > 1}:
        first, second = next(iter(differ.values()))[:2]
        warn(
            f"{first} and {second} differ in {' and '.join(differ)}, so scores of both together are of no one "
            "detector. If that is not meant, keep them in folders of their own"
        )


def _check(path: Path, section: str, content: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]]) -> None:
    for name, kinds in fields.items():
        if name not in content:
            raise ValueError(f"{path} has no {section}{name}: it is damaged, or not a {RUN} of this library")
        if not isinstance(content[name], kinds) or isinstance(content[name], bool):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise ValueError(f"{path}: {section}{name} must be {names}, got {content[name]!r:.100}")


def read_probabilities(folder: str | Path, run: Mapping[str, Any]) -> tuple[Floats, Floats]:
    """Starts and probabilities of ``probabilities.tsv``, which must agree with ``run.json``.

    Raises ValueError where a row cannot be read, or where the rows are not the segments that ``run`` speaks of.
    """
    path = Path(folder) / PROBABILITIES
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {PROBABILITIES}: it is not the folder of a complete detection")
    with path.open(encoding="utf-8", newline="") as file:
        try:
            rows = [_row(row) for row in csv.DictReader(file, delimiter="\t")]
        except (ValueError, TypeError, KeyError, csv.Error) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
    starts, probabilities = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    duration = run["recording"]["duration"]
    _check_segments(path, starts, run["segments"], duration)
    skipped = unscored_stretches(probabilities, starts, duration)
    stated = [(float(stretch["onset"]), float(stretch["offset"])) for stretch in run["skipped"]]
    # Tables are edited by hand. What was skipped decides the hours of every score.
    first, second = (np.array(spans).reshape(-1, 2) for spans in (skipped, stated))
    if first.shape != second.shape or not (np.abs(first - second) <= STRETCH_TOLERANCE).all():
        raise ValueError(f"{path} contradicts {RUN}: it leaves out {skipped}, {RUN} says {stated}")
    return starts, probabilities


def _row(row: Mapping[str, str]) -> tuple[float, float]:
    onset = float(row["onset"])
    probability = math.nan if row["probability"] == "n/a" else float(row["probability"])
    if not (math.isnan(probability) or 0.0 <= probability <= 1.0):
        raise ValueError(f"a probability must be between 0 and 1, got {row['probability']}")
    if not math.isfinite(onset):
        raise ValueError(f"an onset must be a number of seconds, got {row['onset']}")
    return onset, probability


def _check_segments(path: Path, starts: Floats, count: int, duration: float) -> None:
    """Segments follow one another from 0 to the recording's end, and are as many as ``run.json`` says."""
    if len(starts) != count or count < 1:
        raise ValueError(f"{path} contradicts {RUN}: it has {len(starts)} rows, {RUN} says {count} segments")
    steps = np.diff(starts)
    # Scores count segments, so a lost row would shorten the recording.
    even = np.abs(starts[:-1] - SEGMENT_SECONDS * np.arange(len(starts) - 1)) <= STRETCH_TOLERANCE
    regular = (steps > 0) & (steps <= SEGMENT_SECONDS + STRETCH_TOLERANCE)
    if abs(starts[0]) > STRETCH_TOLERANCE or not even.all() or not regular.all():
        raise ValueError(f"{path} contradicts {RUN}: its rows are not segments of 5 s, one after the other from 0 s")
    # Resampled time may drift by a millisecond an hour.
    end = starts[-1] + SEGMENT_SECONDS
    if abs(end - duration) > STRETCH_TOLERANCE + 1e-6 * duration:
        raise ValueError(f"{path} contradicts {RUN}: its rows end at {end:.3f} s, the recording at {duration:.3f} s")
