"""Levels that no electrode gives: a wrong unit or gain, noise, a gain that changes, channels that are copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.checks import listed
from mvpa_ts.ieeg.constants import readable

# Clinical iEEG has some 10 to 500 µV; volts read as microvolts give 1e-4, the reverse 1e8, a gain of 100 some 1e4.
PLAUSIBLE_UV = (0.5, 2000.0)
# Power of the differences of neighbouring samples by the signal's: 2 for white noise, far below 1 for a brain.
WHITE_RATIO, WHITE_UV = 1.5, 100.0
# Pieces of a second, spread over the recording, by whose levels a change of gain is found.
PIECES = 48
# By how much the level changes that is told; outside of seizures that of public recordings changes by 5 at most.
CHANGE = 8.0
CHANGES = "the standard deviation of channels changes"


class Readable(Protocol):
    """What is asked of a `Recording`, which is checked when it is made."""

    name: str
    sfreq: float
    num_samples: int
    channel_names: tuple[str, ...]
    seizures: tuple[tuple[float, float], ...]
    bad_spans: tuple[tuple[float, float], ...]

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Samples [start, stop) in µV, [C, stop − start]."""

    def warn(self, text: str) -> None:
        """Warn, and note on the recording that this was said, once."""


def warn_if_implausible(recording: Readable, pieces: int = PIECES) -> None:
    """Warn of standard deviations that no electrode gives, in ten seconds from the middle and over the recording.

    So many `pieces` are read to find a change; few where each costs much.
    """
    # From the middle, as electrodes are often connected late.
    x = _ten_seconds(recording, 0.5)
    deviations = _deviations(x)
    alive = deviations > 0
    _warn_of_changes(recording, pieces)
    if not alive.any():
        return
    level = float(np.median(deviations[alive]))
    usual = f"usual are {PLAUSIBLE_UV[0]:g} to {PLAUSIBLE_UV[1]:,g} µV, most often 10 to 500"
    x, deviations = x[alive], deviations[alive]
    plausible = PLAUSIBLE_UV[0] <= level <= PLAUSIBLE_UV[1]
    if not plausible:
        problem = f"the channels' median standard deviation is {readable(level)} µV, {usual}"
        recording.warn(f"{recording.name}: {problem}: is the unit right?")
    names = [name for name, usable in zip(recording.channel_names, alive, strict=True) if usable]
    white = _are_white(x)
    for share in (0.25, 0.75):  # muscles are white for a while, a loose electrode always
        white = white & _are_white(_ten_seconds(recording, share)[alive]) if white.any() else white
    if plausible and white.any():
        noisy = [f"{names[i]} ({readable(deviations[i])} µV)" for i in np.flatnonzero(white)]
        recording.warn(f"{recording.name}: {listed(noisy)} are white noise ({usual}): is an electrode connected?")
    for odd, extreme in (
        (deviations > PLAUSIBLE_UV[1], f"up to {readable(deviations.max())}"),
        (deviations < PLAUSIBLE_UV[0], f"down to {readable(deviations.min())}"),
    ):
        if plausible and odd.any():
            recording.warn(
                f"{recording.name}: {listed([name for name, far in zip(names, odd, strict=True) if far])} have a "
                f"standard deviation of {extreme} µV where the other channels have {readable(level)} µV "
                f"({usual}): leave them out (--channels, or mark them bad) if their gain is wrong",
            )
    _warn_of_steps(recording, names, x)
    at = np.isfinite(x).any(0)  # a sample that all channels lack has no median
    # No more is left of the variance after a median reference, if all channels hold the same.
    if len(x) > 1 and np.nanvar(x[:, at] - np.nanmedian(x[:, at], axis=0)) < 1e-6 * level**2:
        recording.warn(
            f"{recording.name}: all {len(x)} channels hold the same signal, of which a median reference leaves nothing",
        )
    elif copied := _copies(x):
        sizes = [f"{name} ({readable(deviation)} µV)" for name, deviation in zip(names, deviations, strict=True)]
        pairs = [f"{sizes[copy]} as {sizes[first]}" for first, copy in copied]
        recording.warn(
            f"{recording.name}: channels hold the same signal as another one, if with another gain: {listed(pairs)}; "
            "one signal counts twice. Leave the copies out (--channels, or mark them bad)",
        )


def _ten_seconds(recording: Readable, share: float) -> NDArray[np.float64]:
    """Samples [C, n] around a place of the recording, at this share of its length."""
    middle, half = int(share * recording.num_samples), int(5 * recording.sfreq)
    return recording.read(max(middle - half, 0), min(middle + half + 1, recording.num_samples)).astype(np.float64)


def _are_white(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each channel [C] is strong white noise."""
    deviations = _deviations(x)
    white = deviations > WHITE_UV
    white[white] = np.nanvar(np.diff(x[white]), axis=1) > WHITE_RATIO * deviations[white] ** 2
    return white


def _warn_of_steps(recording: Readable, names: Sequence[str], x: NDArray[np.float64]) -> None:
    cut, coarse = [], []
    for name, row in zip(names, x, strict=True):
        row = row[np.isfinite(row)]
        # A signal that is not coarse has at least so many values in 2,000 samples.
        if (count := len(np.unique(row[:2000]))) < min(16, len(row)):
            coarse.append(f"{name} ({count} values)")
            continue
        low, high = row.min(), row.max()
        for end, distance in ((high, high - row), (low, row - low)):
            share = float((distance == 0.0).mean())
            # A wave lingers at its end too, but as much just before it.
            # Signals that are not cut off have a few in 10,000 of their samples there.
            if share > max(0.01, float((distance < 0.05 * (high - low)).mean()) - share):
                cut.append(f"{name} ({share:.0%} of its samples are {readable(end)} µV)")
                break
    if cut:
        recording.warn(f"{recording.name}: channels are cut off at a limit of the amplifier or file: {listed(cut)}")
    if coarse:
        recording.warn(
            f"{recording.name}: channels have few different values: {listed(coarse)}. Was the file written with the "
            "right range (physical and digital minimum and maximum)?",
        )


def _warn_of_changes(recording: Readable, pieces: int) -> None:
    """Warn of channels whose level changes as no brain's does: pieces all over the recording have one level each."""
    length = min(max(int(recording.sfreq), 2), recording.num_samples)
    starts = np.unique(np.linspace(0, recording.num_samples - length, pieces).astype(np.int64))
    # Where the pieces are few, those in seizures are not read.
    starts = starts[_quiet(recording, starts / recording.sfreq, 1.0)]
    if not len(starts):
        return
    levels = np.array([_deviations(recording.read(start, start + length)) for start in starts.tolist()])
    if text := changes_in_words(recording, recording.channel_names, starts / recording.sfreq, levels, 1.0, 3):
        recording.warn(text)


def changes_in_words(
    recording: Readable,
    channel_names: Sequence[str],
    times: NDArray[np.floating],
    levels: NDArray[np.floating],
    seconds: float,
    neighbours: int,
) -> str:
    """Which channels' levels change as no brain's do; empty where none does.

    Pieces of so many `seconds` begin at `times` [n] and have standard deviations `levels` [n, C], 0 or NaN where there
    is none. The middle one of so many `neighbours` counts, so that an artefact in fewer than half of them does not.
    """
    quiet = _quiet(recording, times, seconds)
    changed = []
    for name, row in zip(channel_names, levels[quiet].T, strict=True):
        heard = np.flatnonzero(row > 0)
        if len(heard) < 2 * neighbours:
            continue
        usual = np.sort(row[heard])[len(heard) // 2]
        windows = np.lib.stride_tricks.sliding_window_view(row[heard], neighbours)
        ratio = np.median(windows, axis=1) / usual
        farthest = int(np.abs(np.log(ratio)).argmax())
        if max(ratio[farthest], 1 / ratio[farthest]) > CHANGE:
            level, time = ratio[farthest] * usual, times[quiet][heard[farthest + neighbours // 2]]
            changed.append(f"{name} has {readable(level)} µV at {time:.0f} s and {readable(usual)} µV most of the time")
    if not changed:
        return ""
    return (
        f"{recording.name}: {CHANGES} by more than {CHANGE:g} times outside of stated seizures: {listed(changed)}. If "
        "a gain was changed or an electrode disconnected, mark the stretch (BAD_) or leave channels out (--channels)"
    )


def _quiet(recording: Readable, times: NDArray[np.floating], seconds: float) -> NDArray[np.bool_]:
    """Which pieces lie outside of seizures, which are louder, and of marked stretches, of which the user knows."""
    quiet = np.ones(len(times), bool)
    for onset, offset in (*recording.seizures, *recording.bad_spans):
        quiet &= (times + seconds <= onset) | (times >= offset)
    return quiet


def _deviations(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Standard deviation of each channel's finite samples, 0 without two of them; others become NaN in place."""
    x = x.astype(np.float64, copy=False)
    x[~np.isfinite(x)] = np.nan
    usable = np.isfinite(x).sum(1) > 1
    deviations = np.zeros(len(x))
    deviations[usable] = np.nanstd(x[usable], axis=1)
    return deviations


def _copies(x: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs of channels (first, copy) that hold one signal up to gain, sign and offset."""
    # A thousand samples tell channels apart, and keep ten thousand channels cheap.
    x = x[:, :: max(x.shape[1] // 1000, 1)]
    x = np.where(np.isfinite(x), x, 0.0) - np.nanmean(x, axis=1, keepdims=True)
    x = np.nan_to_num(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300))
    pairs = []
    for start in range(0, len(x), 256):
        # The share of its variance that another, scaled, does not explain; of neighbours on an electrode it is 0.005.
        alike = 1.0 - (x[start : start + 256] @ x.T) ** 2 < 1e-4
        for row in np.flatnonzero(alike.sum(1) > 1).tolist():
            first = int(alike[row].argmax())
            if first < start + row:
                pairs.append((first, start + row))
    return pairs
