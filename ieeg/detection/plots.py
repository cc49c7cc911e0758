"""Figures of one recording: probability over time, traces around events, where the channels lie."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mvpa_ts.checks import grouped
from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.detection.onsets import OnsetMap, Positions, check_positions
from mvpa_ts.ieeg.events import Floats, Intervals, unscored_stretches
from mvpa_ts.ieeg.figures import BLUE, GREEN, RED, literal, styled
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.recordings.channels import left_out_electrodes, natural_order, plain_name

DETECTED, REFERENCE = RED, GREEN
# Inches: text of 8 to 9 points can still be read where a page is 400 pixels wide.
WIDTH = 5.5


@styled
def plot_timeline(
    probabilities: Floats, starts: Floats, duration: float, threshold: float, events: Intervals, reference: Intervals
) -> Figure:
    """Probability of each segment of a recording, threshold, events, reference seizures and skipped stretches."""
    figure, axis = plt.subplots(figsize=(WIDTH, 2.6), layout="constrained")
    unit, name = (3600.0, "h") if duration > 7200 else (60.0, "min") if duration > 300 else (1.0, "s")
    # Steps, not a line: a probability holds for 5 s.
    edges = np.append(starts, starts[-1] + SEGMENT_SECONDS) / unit
    axis.stairs(probabilities, edges, baseline=None, color=BLUE, linewidth=1)
    axis.axhline(threshold, color="0.3", linestyle="--", linewidth=0.8, label="threshold")
    _shade(axis, events, unit, (0.0, 1.0), "detected", color=DETECTED, alpha=0.25)
    _shade(axis, reference, unit, (1.02, 1.07), "reference", color=REFERENCE, alpha=0.9)
    skipped = unscored_stretches(probabilities, starts, duration)
    _shade(axis, skipped, unit, (-0.02, 1.09), "skipped", facecolor="none", edgecolor="0.6", hatch="///")
    axis.set(xlabel=f"time ({name})", ylabel="seizure probability", ylim=(-0.02, 1.09), xlim=(0, edges[-1]))
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4)
    return figure


@styled
def plot_traces(
    segments: Segments, onset: float, offset: float, events: Intervals = (), reference: Intervals = ()
) -> Figure:
    """The preprocessed signal from `onset` to `offset` (s), channels one below the other, events shaded.

    Only the segments that are drawn are read. Masked stretches are left blank.
    """
    first = int(np.searchsorted(segments.starts, onset, side="right")) - 1
    last = max(int(np.searchsorted(segments.starts, offset, side="left")), first + 1)
    signal, times = _stretch(segments, max(first, 0), last)
    # More channels cannot be told apart on a page.
    count = min(len(segments.channel_names), 32)
    rows = np.unique(np.linspace(0, len(segments.channel_names) - 1, count).round().astype(int))
    shown = signal[rows]
    # A percentile, as one artefact would flatten all other traces.
    spread = np.nanpercentile(np.abs(shown), 95) if np.isfinite(shown).any() else 1.0
    step = 3.0 * max(float(spread), 1e-3)
    figure, axis = plt.subplots(figsize=(WIDTH, 1.2 + 0.17 * len(rows)), layout="constrained")
    for row, values in enumerate(shown):
        axis.plot(*_envelope(times, values - row * step), color="k", linewidth=0.4)
    axis.set_yticks(-step * np.arange(len(rows)), [literal(segments.channel_names[row]) for row in rows])
    axis.tick_params(axis="y", labelsize=8)
    height = axis.get_xaxis_transform()
    _shade(axis, events, 1.0, (0.0, 1.0), "detected", color=DETECTED, alpha=0.25, transform=height)
    _shade(axis, reference, 1.0, (0.97, 1.0), "reference", color=REFERENCE, alpha=0.9, transform=height)
    axis.set(xlabel="time (s)", xlim=(onset, offset), ylim=(-len(rows) * step, step))
    axis.set_title(f"{step:.0f} µV between channels", loc="right", fontsize=8)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


@styled
def plot_channel_map(
    names: Sequence[str],
    values: npt.ArrayLike,
    dropped: Mapping[str, str] | None = None,
    positions: Positions | None = None,
) -> Figure:
    """Channels by value: at their positions if every one of `names` has one, else by electrode and contact.

    Electrodes among those that were `dropped` are drawn in grey; others, such as an EKG, are not drawn.
    """
    colours = np.asarray(values, dtype=np.float64)
    left_out = [name for name in left_out_electrodes(dropped or {}) if name not in names]
    everything = [*names, *left_out]
    position_of = {plain_name(name): position for name, position in (positions or {}).items()}
    placed = {name: position_of[plain_name(name)] for name in everything if plain_name(name) in position_of}
    # A map with some channels left out would hide them, so without all positions electrodes are drawn as rows.
    if all(name in placed for name in names):
        figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.8), layout="constrained")
        for axis, (first, second) in zip(axes, ((0, 1), (1, 2)), strict=True):
            where = np.array([placed[name] for name in names], dtype=float)
            grey = np.array([placed[name] for name in left_out if name in placed], dtype=float).reshape(-1, 3)
            axis.scatter(grey[:, first], grey[:, second], color="0.8", s=15)
            drawn = axis.scatter(where[:, first], where[:, second], c=colours, s=30, cmap="viridis")
            axis.set(xlabel="xyz"[first], ylabel="xyz"[second], aspect="equal")
        figure.colorbar(drawn, ax=axes, label="RMS (µV)")
        return figure
    everything = [everything[index] for index in natural_order(everything)]
    contacts = grouped((_wire(name)[0], name) for name in everything)
    places, firsts = _contact_places(contacts)
    rows = 1 + max(row for _, row in places.values())
    figure, axis = plt.subplots(figsize=(WIDTH, 1.2 + 0.24 * rows), layout="constrained")
    grey_places = np.array([places[name] for name in left_out], dtype=float).reshape(-1, 2)
    axis.scatter(grey_places[:, 0], grey_places[:, 1], color="0.85", s=70, marker="s", label="not used")
    used = np.array([places[name] for name in names], dtype=float).reshape(-1, 2)
    drawn = axis.scatter(used[:, 0], used[:, 1], c=colours, s=70, marker="s")
    axis.set_yticks([firsts[wire] for wire in contacts], [literal(wire) for wire in contacts])
    axis.set(xlabel="contact", ylabel="electrode")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.invert_yaxis()
    figure.colorbar(drawn, ax=axis, label="RMS (µV)")
    if left_out:
        axis.legend(loc="upper left", bbox_to_anchor=(0.0, 1.15))
    return figure


@styled
def plot_onset_map(onsets: OnsetMap, positions: Positions | None = None) -> Figure:
    """The first channels of an event with all measures, and where they lie if every channel has a position.

    Positions of other channels are a ValueError.
    """
    check_positions(onsets.channel_names, positions or {})
    where = {plain_name(name): position for name, position in (positions or {}).items()}
    placed = bool(where) and all(plain_name(name) in where for name in onsets.channel_names)
    figure, axes = plt.subplots(1, 1 + placed, figsize=(WIDTH, 3.4), layout="constrained", squeeze=False)
    axis, first = axes[0, 0], [row for row in onsets.ranked if np.isfinite(onsets.onsets[row])][:8]
    measures = {"rise": onsets.rise, "epileptogenicity index": onsets.epileptogenicity}
    if onsets.scores is not None:
        measures["detector on this channel alone"] = onsets.scores
    places, height = np.arange(len(first)), 0.8 / len(measures)
    for number, (label, values) in enumerate(measures.items()):
        axis.barh(places + (number - (len(measures) - 1) / 2) * height, values[first], height, label=label)
    names = [f"{literal(onsets.channel_names[row])} ({onsets.onsets[row]:.1f} s)" for row in first]
    axis.set_yticks(places, names)
    axis.set(xlim=(0, 1.02), xlabel="1: strongest", ylim=(len(first) - 0.4, -0.6))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=1)
    if placed:
        xyz = np.array([where[plain_name(name)] for name in onsets.channel_names], dtype=float)
        drawn = axes[0, 1].scatter(xyz[:, 0], xyz[:, 1], c=onsets.rise, s=30, cmap="viridis", vmin=0, vmax=1)
        axes[0, 1].set(xlabel="x", ylabel="y", aspect="equal")
        figure.colorbar(drawn, ax=axes[0, 1], label="rise")
    return figure


def channel_rms(segments: Segments, places: int = 4, count: int = 6) -> Floats:
    """RMS of each channel (µV) over `count` segments at each of `places` in the recording; 0 where none is valid."""
    total, number = np.zeros(len(segments.channel_names)), np.zeros(len(segments.channel_names))
    last = max(segments.num_segments - count, 0)
    # A few places of the recording, because reading days for one figure takes minutes.
    for first in np.unique(np.linspace(0, last, places).round().astype(int)).tolist():
        signal, valid = segments.read(first, min(first + count, segments.num_segments))
        power = np.square(signal, dtype=np.float64).reshape(len(signal), len(valid), -1).mean(2).T
        total += (power * valid).sum(0)
        number += valid.sum(0)
    return np.sqrt(total / np.maximum(number, 1))


def _stretch(segments: Segments, first: int, last: int) -> tuple[npt.NDArray[np.float32], Floats]:
    """Signal [C, n], NaN where it is masked, and times [n] (s) of segments [first, last)."""
    signal, valid = segments.read(first, last)
    size = signal.shape[1] // (last - first)
    times = (segments.starts[first:last, None] + np.arange(size) * SEGMENT_SECONDS / size).ravel()
    mask = np.repeat(valid.T, size, axis=1)  # [C, n·2560]
    # The overlapping tail goes back in time; what it repeats is left out.
    new = times > np.maximum.accumulate(np.append(-np.inf, times[:-1]))
    return np.where(mask, signal, np.nan)[:, new], times[new]


def _envelope(times: Floats, values: npt.NDArray[np.float32]) -> tuple[Floats, Floats]:
    """The trace, or of a long one the lowest and the highest value of each stretch: no spike is lost."""
    # So many samples are drawn at most.
    size = -(-2 * len(times) // 20_000)
    if size <= 2:
        return times, values.astype(np.float64)
    count = len(times) // size
    pieces = values[: count * size].reshape(count, size).astype(np.float64)
    # A masked stretch stays a gap.
    ends = np.stack([np.fmin.reduce(pieces, 1), np.fmax.reduce(pieces, 1)], 1)
    return np.repeat(times[: count * size : size], 2), ends.ravel()


def _shade(axis: Axes, events: Intervals, unit: float, span: tuple[float, float], label: str, **look: Any) -> None:
    stretches = [(onset / unit, (offset - onset) / unit) for onset, offset in events]
    # No entry in the legend for what did not happen.
    if stretches:
        axis.broken_barh(stretches, (span[0], span[1] - span[0]), linewidth=0, label=label, **look)


def _wire(name: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.*?)(\d+)(?:-.*)?", plain_name(name))
    return (match[1], int(match[2])) if match else (plain_name(name), None)


def _contact_places(contacts: Mapping[str, Sequence[str]]) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Column and row of each contact, and the first row of each electrode; one with many contacts is a grid.

    Examples
    --------
    >>> places, firsts = _contact_places({"A": ["A1", "A2"], "G": [f"G{n}" for n in range(1, 65)]})
    >>> places["A2"], places["G1"], places["G64"], firsts
    ((2, 0), (1, 1), (8, 8), {'A': 0, 'G': 1})
    """
    places, firsts, row = {}, {}, 0
    for wire, names in contacts.items():
        numbers = {name: _place(name, names) for name in names}
        last = max(numbers.values())
        # The longest strip or depth electrode in use has 20; what has more is a grid, mostly of 8 × 8 or 4 × 8.
        columns = 8 if last > 20 else last
        firsts[wire] = row
        for name, number in numbers.items():
            places[name] = ((number - 1) % columns + 1, row + (number - 1) // columns)
        row += -(-last // columns)
    return places, firsts


def _place(name: str, wire: Sequence[str]) -> int:
    number = _wire(name)[1]
    return wire.index(name) + 1 if number is None else number
