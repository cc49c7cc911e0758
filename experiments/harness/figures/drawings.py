"""Figures that explain: the three terms of the attention, the model, structured dropout, two kinds of seizures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from harness.figures.style import BLUE, GREEN, GREY, ORANGE, RED
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from mvpa_ts.attention.functional import draw_dropout_masks
from mvpa_ts.ieeg import Segments, simulate_recording
from mvpa_ts.ieeg.simulation.simulate import Difficulty

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEGMENTS, CHANNELS, WINDOW = 8, 6, 2
QUERY = (6, 2)  # segment and channel


def attention() -> Figure:
    """Content, time and channel term of one query over all keys, their sum, and its softmax."""
    generator = np.random.default_rng(4)
    segment, channel = np.meshgrid(np.arange(SEGMENTS), np.arange(CHANNELS))  # [C, T]
    lag, distance = QUERY[0] - segment, np.abs(QUERY[1] - channel)
    near = (lag >= 0) & (lag <= WINDOW)
    content = np.where(near, generator.normal(0, 1.0, lag.shape), 0.0)
    of_lag, of_distance = generator.normal(0, 0.35, (2, 8))
    time = 1.2 - 0.4 * np.maximum(lag, 0) + of_lag[np.maximum(lag, 0)]
    space = 1.0 - 0.5 * distance + of_distance[distance]
    logits = content + time + space
    weights = np.where(lag >= 0, np.exp(logits), 0.0)
    weights /= weights.sum()
    terms = {
        "content\n(keys of the window)": content,
        "time\n(by lag alone)": time,
        "channel\n(by distance alone)": space,
        "logit": logits,
        "softmax": weights,
    }
    figure, axes = plt.subplots(1, 5, figsize=(10, 2.3), sharey=True, layout="constrained")
    for axis, (title, values), sign in zip(axes, terms.items(), ("", "+", "+", "=", "→"), strict=True):
        shown = np.ma.masked_where(lag < 0, values)
        span = {"vmin": 0.0} if title == "softmax" else {"vmin": -3.0, "vmax": 3.0}
        axis.imshow(shown, cmap="Blues" if title == "softmax" else "RdBu_r", **span)
        axis.add_patch(Rectangle((QUERY[0] + 0.5, -0.5), 1, CHANNELS, hatch="////", fill=False, edgecolor=GREY, lw=0))
        axis.plot(*QUERY, "*", color="black", markersize=8)
        if title.startswith("content"):
            axis.add_patch(Rectangle((QUERY[0] - WINDOW - 0.5, -0.5), WINDOW + 1, CHANNELS, fill=False, lw=1.5))
        axis.set(title=title, xlabel="segment", xticks=range(0, SEGMENTS, 2), yticks=range(0, CHANNELS, 2))
        axis.spines[:].set_visible(False)
        axis.text(-0.13, 0.5, sign, transform=axis.transAxes, ha="center", va="center", fontsize=14)
    axes[0].set_ylabel("channel")
    return figure


def architecture() -> Figure:
    """From the signal to the next segment and to a decision."""
    figure, axis = plt.subplots(figsize=(10, 3.2), layout="constrained")
    axis.set(xlim=(0, 100), ylim=(0, 31))
    axis.axis("off")
    generator = np.random.default_rng(0)
    for row in range(4):
        signal = np.cumsum(generator.normal(0, 1, 200))
        signal -= np.linspace(signal[0], signal[-1], 200)
        axis.plot(np.linspace(1, 16, 200), 25 - 5 * row + 1.6 * signal / np.abs(signal).max(), color="black", lw=0.6)
    for edge in np.linspace(1, 16, 4):
        axis.plot([edge, edge], [7, 27.5], color=GREY, lw=0.6, ls=":")
    axis.text(8.5, 4.5, "signal: segments\nof 5 s × channels", ha="center", va="top")
    _box(axis, (20, 12), (12, 10), "encoder\ndb4 wavelets,\nRMSNorm, linear", ORANGE)
    for row in range(4):
        for column in range(3):
            axis.add_patch(
                Rectangle((37 + 2.6 * column, 9 + 4 * row), 2.0, 3.2, color=ORANGE, alpha=0.35 + 0.2 * column)
            )
    axis.text(40.6, 4.5, "tokens: one a segment\nand channel, width D", ha="center", va="top")
    axis.add_patch(FancyBboxPatch((50, 7), 22, 20, boxstyle="round,pad=0.4", fill=False, edgecolor=GREY, ls="--"))
    axis.text(61, 4.5, "block, causal in time\n12 of them in S, 24 in M", ha="center", va="top")
    axis.text(52.2, 17, "norm", rotation=90, va="center", ha="center")
    _box(axis, (55, 18), (11, 6.5), "MVPA\ncontent + time\n+ channel", BLUE)
    _box(axis, (55, 9.5), (11, 5), "SwiGLU", BLUE)
    axis.text(69.5, 17, "+", fontsize=16, va="center", ha="center")
    _box(
        axis,
        (79, 19),
        (20, 7.5),
        "prediction head: the next\nsegment's token, nearer than\nothers (contrastive)",
        GREEN,
    )
    _box(axis, (79, 8), (20, 7), "class head on the last\nsegment: seizure or not\n(LoRA on q and v)", RED)
    arrows = [
        ((16.5, 17), (19.3, 17)), ((32.7, 17), (36, 17)), ((45.2, 17), (51, 17)), ((53.1, 18), (54.5, 21)),
        ((53.1, 16), (54.5, 12.5)), ((66.5, 21), (68.7, 18)), ((66.5, 12.5), (68.7, 16)), ((72.8, 18), (78.4, 22)),
        ((72.8, 16), (78.4, 12)),
    ]  # fmt: skip
    for start, stop in arrows:
        axis.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=9, color="black", lw=0.9))
    axis.plot([50.8, 50.8, 69.5], [17, 26.5, 26.5], color=GREY, lw=0.9)
    residual = FancyArrowPatch((69.5, 26.9), (69.5, 19), arrowstyle="-|>", mutation_scale=9, color=GREY, lw=0.9)
    axis.add_patch(residual)
    return figure


def _box(axis: Axes, corner: tuple[float, float], size: tuple[float, float], text: str, colour: str) -> None:
    axis.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0.4", facecolor=colour, alpha=0.18, lw=0))
    axis.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0.4", fill=False, edgecolor=colour))
    axis.text(corner[0] + size[0] / 2, corner[1] + size[1] / 2, text, ha="center", va="center", fontsize=8)


def structured_dropout(rate: float = 0.2, segments: int = 30, channels: int = 20) -> Figure:
    """Keys that are dropped: whole segments and channels, and as large a share of single keys."""
    generator = torch.Generator().manual_seed(8)
    masks = draw_dropout_masks(1, segments, channels, rate, torch.device("cpu"), generator)
    structured = (masks[0][0][None, :] & masks[1][0][:, None]).numpy()  # [C, T]
    single = torch.rand(channels, segments, generator=generator).numpy() >= rate
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), sharey=True, layout="constrained")
    for axis, keep, title in zip(axes, (structured, single), ("structured", "of single keys"), strict=True):
        axis.imshow(keep, cmap="Blues", vmin=-0.3, vmax=1.6, aspect="auto", interpolation="nearest")
        axis.set(title=f"{title}: {1 - keep.mean():.0%} dropped at a rate of {rate:.0%}", xlabel="segment")
    axes[0].set_ylabel("channel")
    return figure


def seizures() -> Figure:
    """A simulated seizure that everybody sees and one that hardly rises above the background, with their marks."""
    kinds = {"a strong one": (2.5, "S05", 1), "a weak one": (0.8, "S02", 1)}
    figure, axes = plt.subplots(2, 1, figsize=(9, 4), layout="constrained")
    for axis, (title, (strength, subject, seed)) in zip(axes, kinds.items(), strict=True):
        difficulty = Difficulty(seizure_amplitude=(strength, strength))
        recording = simulate_recording(
            subject, seed=seed, num_channels=6, duration=240.0, num_seizures=1, difficulty=difficulty
        )
        _traces(axis, recording, title)
    axes[1].set_xlabel("time (s)")
    return figure


def _traces(axis: Axes, recording: Any, title: str) -> None:
    segments = Segments(recording)
    signal, _ = segments.read(0, segments.num_segments)
    times = np.arange(signal.shape[1]) / segments.preprocessing.sfreq
    ((onset, offset),) = recording.seizures
    shown = (times >= onset - 20) & (times <= offset + 20)
    spread = np.percentile(np.abs(signal[:, shown]), 99)
    step = max(1, int(segments.preprocessing.sfreq // 128))
    for row, values in enumerate(signal):
        axis.plot(times[shown][::step], values[shown][::step] - 1.6 * spread * row, color="black", lw=0.4)
    axis.axvspan(onset, offset, color=RED, alpha=0.12, lw=0)
    for mark in (onset, offset):
        axis.axvline(mark, color=RED, lw=1)
    places = [-1.6 * spread * row for row in range(len(signal))]
    axis.set_yticks(places, segments.channel_names, fontsize=7)
    axis.set(title=f"{title}: {recording.subject}, onset at {onset:.0f} s, {offset - onset:.0f} s long")
    axis.margins(x=0)
