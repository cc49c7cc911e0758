"""Where an event begins: how strongly and how early each channel changes, beside the epileptogenicity index.

Two measures of the same stretch stand beside each other. `epileptogenicity` is the index of Bartolomei et al. (2008),
which asks for fast discharges: energy above 12.4 Hz against that below. Many seizures begin without them, so channels
are ranked by `rises`: a change of energy in any band, whatever it is. None of this is a diagnosis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import signal as scipy_signal

from mvpa_ts.checks import listed, warn
from mvpa_ts.files import write_text
from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.events import Floats
from mvpa_ts.ieeg.preprocessing.segments import Segments, SegmentsInMemory
from mvpa_ts.ieeg.recordings.channels import plain_name

# Theta and alpha, beta and gamma of Bartolomei et al. (Hz).
SLOW, FAST = (3.4, 12.4), (12.4, 97.0)
# Seconds: what the index sums, and what keeps its delay from being zero.
HORIZON, TAU = 5.0, 1.0
# Bias υ and threshold λ of the cumulative sum, which the paper sets by hand for each patient. Here they are of a ratio
# that is 1 before the event.
BIAS, THRESHOLD = 0.5, 10.0
# Bands (Hz). `rises` leaves the last out, which muscle fills.
EDGES = (1.0, 2.4, 3.4, 4.4, 5.4, 6.4, 7.4, 8.4, 9.4, 10.9, 12.4, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 28.0, 32.0, 48.0,
         97.0)  # fmt: skip
# Seconds that are compared before and after a change; share of the strongest change that counts as one; channels whose
# common change is looked for in all, or a fourth of all if that is more. Chosen on 128 made-up subjects of other seeds
# than the table's, and looked at on 64 further ones.
COMPARED, SHARE, ALIKE = 10.0, 0.4, 5
# The course of an event, from so many seconds before its start to so many after it; the longest delay of a channel (s),
# and what a squared second of it takes from its likeness; share of the course that a channel must show. Chosen on 200
# made-up subjects of further seeds, and looked at twice on 200 more (first among three: 86 %).
COURSE, LONGEST_DELAY, UNLIKELY, LEAST_SHARE = (6.0, 25.0), 8.0, 0.0015, 0.4
# Rise of a channel with what rises in most, over that of most, at the largest. Chosen on 400 made-up subjects of
# further seeds (first among three: 92 %), and looked at twice on 200 more (90 %).
MOST_IN_COMMON = 1.5
# Seconds back to a change that counts by exp(−½), from the event's onset in a first look, then from when a fourth of
# what changes has changed. Chosen on 112 made-up subjects of further seeds, with events up to 25 s late.
EARLIER, FOURTH = (15.0, 5.0), 0.25
# Spectra of one second, four a second.
WINDOW, STEP = 1.0, 0.25
# The stretch that is looked at, from the event's onset (s).
BEFORE, AFTER = 30.0, 30.0
# Windows after a change at the end of a recording: fewer tell nothing.
FEWEST = 2
# Segments before the detector's window that a score may depend on, by a running level or the rule of the first minute.
# With them and the event it stays below the 5 min of which brainmaze wants whole ones.
PAST = 48


# (x, y, z) by the name of a channel.
Positions = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class OnsetMap:
    """How each channel of an event begins; for research use, never a diagnosis.

    Attributes
    ----------
    event : (float, float)
        Onset and offset as detected (s).
    start : float
        When the first channel changes (s); NaN if none does.
    channel_names : tuple of str
    onsets : array, shape (C,)
        When each channel changes (s); NaN where less than 10 s of signal before tell what changes in it, or a gap of
        the stretch that was looked at lies before the change or less than 10 s after it.
    rise : array, shape (C,)
        How much of the event's course the channel shows, over its delay behind the first; 1 in the first channel.
        Channels are ranked by it. See `delays`.
    epileptogenicity : array, shape (C,)
        Index of Bartolomei et al.; 0 in a channel without fast discharges, 1 at most.
    scores : array, shape (C,) or None
        Mean probability by the detector when it sees this channel alone.
    """

    event: tuple[float, float]
    start: float
    channel_names: tuple[str, ...]
    onsets: Floats
    rise: Floats
    epileptogenicity: Floats
    scores: Floats | None = None

    @property
    def ranked(self) -> list[int]:
        """Indices of channels, first the one in which the event most likely begins."""
        return np.lexsort((-self.rise, np.isnan(self.onsets))).tolist()

    @property
    def known(self) -> bool:
        """Whether enough signal before the event tells where it begins."""
        return bool(np.isfinite(self.onsets).any())


def onset_map(segments: Segments, event: tuple[float, float], detector: Any = None) -> OnsetMap:
    """The onset map of an event.

    Parameters
    ----------
    segments : Segments
        The recording as the detector reads it, `Detection.segments`.
    event : (onset, offset)
        Seconds. Changes are looked for from 30 s before the onset on; the later it is, the less sure they are.
    detector : Detector, optional
        For `OnsetMap.scores`.

    Raises
    ------
    ValueError
        The event does not lie in the recording.

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_recording
    >>> recording = simulate_recording("S01", num_channels=4, duration=120.0, num_seizures=1)
    >>> found = onset_map(Segments(recording), recording.seizures[0])
    >>> found.channel_names[found.ranked[0]] in recording.channel_names
    True
    """
    (onset, offset), recording = event, segments.recording
    if not 0 <= onset < offset or onset >= recording.duration:
        raise ValueError(f"event must lie in {recording.name}, which lasts {recording.duration:g} s, got {event}")
    # The earliest change needs signal before it, too.
    first = int(np.searchsorted(segments.starts, max(onset - BEFORE - COMPARED, 0.0), side="right")) - 1
    last = max(int(np.searchsorted(segments.starts, onset + AFTER)), first + 1)
    signal, valid = segments.read(first, last)
    begin, sfreq, size = float(segments.starts[first]), segments.preprocessing.sfreq, segments.segment_samples
    # A masked segment is zero; what jumps at its ends is no change.
    masked = ~np.repeat(valid.T, size, axis=1)
    # The tail of a recording overlaps the segment before it, and time would go back.
    tail = signal.shape[1] - size
    overlap = max(tail - round((segments.starts[last - 1] - begin) * sfreq), 0)
    twice = slice(tail, tail + overlap)
    masked = np.delete(masked, twice, axis=1)
    times, energy = band_energies(np.delete(signal, twice, axis=1), sfreq)
    scores = None if detector is None else channel_scores(detector, segments, event)
    if np.count_nonzero(~masked[:, : round((onset - begin) * sfreq)].all(0)) < COMPARED * sfreq:
        unknown = np.full(len(masked), math.nan)
        return OnsetMap(event, math.nan, segments.channel_names, unknown, np.zeros(len(masked)), unknown, scores)
    half = WINDOW / 2
    shown = np.array([masked[:, round((t - half) * sfreq) : round((t + half) * sfreq)].any(1) for t in times])
    energy = np.where(shown.T[:, None], np.nan, energy)
    usual = np.nanmedian(np.where(np.isnan(energy).all(-1, keepdims=True), 1.0, energy), axis=-1, keepdims=True)
    energy = np.where(np.isnan(energy), usual, energy)
    ratio = energy_ratio(energy)
    energy = without_common(energy[:, :-1])
    fewest = FEWEST if last == segments.num_segments else None
    # An artefact must not count as a change. What is taken away with it of an event that most channels show does not
    # move the change, but would tell in the delays.
    local = without_common_in_bands(energy)
    changes, strength, pattern = rises(local, times - (onset - begin), fewest=fewest)
    # A change after a gap, or just before it, may as well lie in it. What begins with a gap only begins later.
    since, heard = np.arange(len(times)) - changes[:, None], np.maximum.accumulate(~shown.T, axis=1)
    reach = COMPARED / STEP
    unsure = np.any(shown.T & (since < reach) & (heard | (since > -reach)), axis=1)
    strength[unsure] = 0.0
    if unsure.any() and not unsure.all():  # they had a say in where the second look was
        changes[~unsure], strength[~unsure], pattern = rises(local[~unsure], times - (onset - begin), fewest=fewest)
    quiet = times < max(onset - begin - SEGMENT_SECONDS, times[min(4, len(times) - 1)])
    ratio /= np.maximum(np.median(ratio[:, quiet], axis=1, keepdims=True), 1e-12)
    index = np.full(len(unsure), math.nan)
    index[~unsure], _ = epileptogenicity(ratio[~unsure])
    onsets = np.where(unsure, math.nan, begin + np.interp(changes, np.arange(len(times)), times))
    strong = strength >= SHARE * strength.max() if strength.max() > 0 else np.zeros(len(strength), bool)
    start = float(onsets[strong].min()) if strong.any() else math.nan
    rise = np.zeros(len(strength))
    if strong.any():
        delay, share = delays(energy, int(np.searchsorted(begin + times, start)), pattern, strength)
        share[unsure] = 0.0
        alike = share >= LEAST_SHARE * share.max()
        rise = share / (np.where(alike, delay - delay[alike].min(), LONGEST_DELAY) + STEP)
        rise /= max(rise.max(), 1e-12)
    return OnsetMap(event, start, segments.channel_names, onsets, rise, index, scores)


def band_energies(signal: npt.ArrayLike, sfreq: float) -> tuple[Floats, Floats]:
    """Times [n] (s, of the middles) and energy [C, bands, n] in `EDGES` of windows of one second."""
    x = np.asarray(signal, dtype=np.float64)
    size, hop = round(WINDOW * sfreq), round(STEP * sfreq)
    frequency, times, power = scipy_signal.spectrogram(x, sfreq, "hann", size, size - hop, axis=-1)
    bands = [(frequency >= low) & (frequency < high) for low, high in itertools.pairwise(EDGES)]
    # A band beyond half of the rate is silent in all channels.
    energy = np.stack([power[:, band].sum(1) for band in bands], axis=1)
    return times, energy + 1e-9 * np.maximum(energy.mean((0, 1), keepdims=True), 1e-12)


def energy_ratio(energy: Floats) -> Floats:
    """Energy of beta and gamma over that of theta and alpha [C, n], from `band_energies`."""
    slow = [place for place, low in enumerate(EDGES[:-1]) if SLOW[0] <= low < SLOW[1]]
    fast = [place for place, low in enumerate(EDGES[:-1]) if FAST[0] <= low < FAST[1]]
    return energy[:, fast].sum(1) / energy[:, slow].sum(1)


def epileptogenicity(
    ratio: npt.ArrayLike, step: float = STEP, *, bias: float = BIAS, threshold: float = THRESHOLD
) -> tuple[Floats, Floats]:
    """Epileptogenicity index of Bartolomei, Chauvel and Wendling (Brain 131, 2008).

    Page and Hinkley's cumulative sum ``U[n] = Σ_k≤n (ER[k] − mean(ER[..k]) − υ)`` raises an alarm where it lies λ above
    its lowest value so far; the place of that value is the detection time N_i. With N_0 the earliest of all channels,
    the index is ``Σ ER[N_i .. N_i + H] / (N_i − N_0 + τ)``, H = 5 s and τ = 1 s, over the largest of all channels.

    Parameters
    ----------
    ratio : array, shape (C, n)
        Energy ratio ER of each channel.
    step : float
        Seconds from value to value.
    bias, threshold : float
        υ and λ, in units of the ratio.

    Returns
    -------
    index : array, shape (C,)
        0 without an alarm.
    times : array, shape (C,)
        Detection times (s from the first value); NaN without an alarm.

    Examples
    --------
    >>> ratio = np.ones((2, 100))
    >>> ratio[0, 40:] = ratio[1, 48:] = 6.0
    >>> index, times = epileptogenicity(ratio)
    >>> index.round(2).tolist(), times.tolist()
    ([1.0, 0.33], [9.75, 11.75])
    """
    values = np.asarray(ratio, dtype=np.float64)
    means = np.cumsum(values, axis=1) / np.arange(1, values.shape[1] + 1)
    sums = np.cumsum(values - means - bias, axis=1)
    alarms = sums - np.minimum.accumulate(sums, axis=1) > threshold
    courses = zip(sums, alarms, strict=True)
    places = np.array([np.argmin(row[: np.argmax(alarm) + 1]) if alarm.any() else -1 for row, alarm in courses])
    if not alarms.any():
        return np.zeros(len(values)), np.full(len(values), math.nan)
    times = np.where(places < 0, math.nan, places * step)
    length = round(HORIZON / step)
    sums_after = np.array([row[place : place + length + 1].sum() for row, place in zip(values, places, strict=True)])
    index = np.where(places < 0, 0.0, sums_after / (times - np.nanmin(times) + TAU))
    return index / index.max(), times


def without_common(energy: Floats) -> Floats:
    """Energy [C, bands, n] over what all channels do at once, as in movement."""
    usual = np.median(energy, axis=-1, keepdims=True)
    return energy / np.median((energy / usual).mean(1), axis=0)


def without_common_in_bands(energy: Floats) -> Floats:
    """Energy [C, bands, n] without what rises in most channels at once, in each band, as much as in each of them."""
    rise = np.log(energy / np.median(energy, axis=-1, keepdims=True))
    common = np.median(rise, axis=0)
    risen = np.maximum(common, 0.0)
    factors = np.einsum("cbn, bn -> c", rise, risen) / max(np.square(risen).sum(), 1e-12)
    # A reference spreads the event of one channel over all, but far weaker than it is there.
    return energy * np.exp(-np.clip(factors, 0.0, MOST_IN_COMMON)[:, None, None] * common)


def gain(before: Floats, after: Floats, share: float = 0.5) -> Floats:
    """Log-likelihood of two mean energies against one, where energy rises; this share of the windows lies before."""
    mixed = np.log(share * before + (1 - share) * after)
    return np.where(after > before, mixed - share * np.log(before) - (1 - share) * np.log(after), 0.0)


def rises(energy: Floats, late: Floats, *, fewest: int | None = None) -> tuple[Floats, Floats, Floats]:
    """Where the energy of each channel changes most, and how much.

    The mean energy of 10 s is compared with that of the 10 s before, by `gain` in each band. Bands count by how much
    they rise in the channels that change most, where the same discharge is. Changes long before the event count less.

    Parameters
    ----------
    energy : array, shape (C, bands, n)
        Without what is common to all channels.
    late : array, shape (n,)
        Seconds from the event's onset to each window.
    fewest : int, optional
        Windows that must follow a change; default: those of 10 s.

    Returns
    -------
    place : array, shape (C,)
        Windows before the change.
    strength : array, shape (C,)
        0 where nothing rises.
    pattern : array, shape (bands,)
        How much each band counts, 1 on average.
    """
    count, pattern = energy.shape[-1], np.ones(energy.shape[1])
    length = min(round(COMPARED / STEP), count // 3)
    if length < 1:
        return np.zeros(len(energy)), np.zeros(len(energy)), pattern
    sums = np.concatenate([np.zeros((*energy.shape[:2], 1)), np.cumsum(energy, axis=-1)], axis=-1)
    middles = np.arange(length, count - min(fewest or length, length) + 1)
    ends = np.minimum(middles + length, count)
    after = (sums[..., ends] - sums[..., middles]) / (ends - middles)
    before = (sums[..., middles] - sums[..., middles - length]) / length
    compared = ends - middles + length
    gains = gain(before, after, length / compared) * compared / (2 * length)
    late, about = late[middles - 1], 0.0
    # A detection may come late: changes are looked for about it, and then about the first of those found.
    for earlier in EARLIER:
        near, pattern = gains * np.exp(-0.5 * (np.minimum(late - about, 0.0) / earlier) ** 2), np.ones(energy.shape[1])
        for _ in range(2):
            weighed = np.einsum("cbn, b -> cn", near, pattern)
            best, strength = weighed.argmax(1), weighed.max(1)
            alike = np.argsort(-strength)[: max(ALIKE, len(strength) // 4)]
            pattern = strength[alike] @ near[alike, :, best[alike]]
            pattern = pattern / max(pattern.mean(), 1e-12)
        in_time = alike[np.argsort(late[best[alike]])]
        changed = np.cumsum(strength[in_time])
        about = min(late[best[in_time[np.searchsorted(changed, FOURTH * changed[-1])]]], 0.0)
    return middles[best] - 0.5, strength, pattern


def delays(energy: Floats, middle: int, pattern: Floats, strength: Floats) -> tuple[Floats, Floats]:
    """Delay [C] (s) of each channel behind the common course of an event, and how much of that course it shows [C].

    The course is how energy rises in each band, averaged over channels that are shifted until they are most alike. All
    of it tells the delay, not only its weak beginning. Windows of the start, weights of bands and strengths of
    channels are those of `rises`.
    """
    length, longest = round(sum(COURSE) / STEP), round(LONGEST_DELAY / STEP)
    earliest = longest + round(COURSE[0] / STEP)
    usual = energy[..., max(0, middle - round(COMPARED / STEP)) : max(1, middle)].mean(-1, keepdims=True)
    rise = np.maximum(np.log(energy / usual), 0.0) * np.sqrt(pattern)[:, None]
    rise = np.pad(rise, [(0, 0), (0, 0), (earliest, length + longest)])[..., middle : middle + 2 * longest + length]
    courses = np.lib.stride_tricks.sliding_window_view(rise, length, axis=-1)  # [C, bands, shifts, length]
    courses = courses - courses.mean(-1, keepdims=True)
    size = np.sqrt(np.square(courses).sum((1, 3))) + 1e-12
    channels, seconds = np.arange(len(energy)), STEP * np.arange(-longest, longest + 1)
    common = courses[strength.argmax(), :, longest]
    for _ in range(4):
        common = common / max(np.sqrt(np.square(common).sum()), 1e-12)
        likeness = np.einsum("cbsn, bn -> cs", courses, common) / size
        shift = (likeness - UNLIKELY * seconds**2).argmax(1)
        share = np.maximum(likeness[channels, shift], 0.0)
        common = np.einsum("c, cbn -> bn", strength * share, courses[channels, :, shift])
    return seconds[shift], share * size[channels, shift]


def channel_scores(detector: Any, segments: Segments, event: tuple[float, float]) -> Floats:
    """Mean probability [C] of the first 30 s of an event when the detector sees one channel alone.

    It reads these, the detector's window and 4 min before it. Our detectors then say what they say of the whole
    recording; brainmaze sees this stretch alone.
    """
    onset, offset = event
    starts = segments.starts
    first = min(int(np.searchsorted(starts + SEGMENT_SECONDS, onset, side="right")), segments.num_segments - 1)
    last = max(int(np.searchsorted(starts, min(offset, onset + AFTER))), first + 1)
    begin = max(first - detector.context - PAST, 0)
    starts = starts[begin:last]
    recording = segments.recording.crop(float(starts[0]), float(starts[-1]) + SEGMENT_SECONDS)
    scores = np.full(len(segments.channel_names), math.nan)
    signal, valid = segments.read(begin, last)
    for place, name in enumerate(segments.channel_names):
        # Reading a channel by itself would filter the references of all channels again.
        held = signal[place : place + 1], valid[:, place : place + 1]
        alone = SegmentsInMemory(segments, held)
        alone.recording, alone.channel_names = recording, (name,)
        alone.starts, alone.num_segments = starts - starts[0], len(starts)
        probabilities = detector.score_segments(alone, first - begin)
        inside = probabilities[~np.isnan(probabilities)]
        scores[place] = inside.mean() if len(inside) else math.nan
    return scores


def check_positions(names: Sequence[str], positions: Positions) -> None:
    """Raise a ValueError where positions are those of other channels; warn where some channels have none."""
    placed = {plain_name(name) for name in positions}
    parts = {plain_name(name) for name in names} | {part for name in names for part in plain_name(name).split("-")}
    if placed and not placed & parts:
        raise ValueError(
            f"the positions are of other channels: they name {listed(positions)}, the recording has "
            f"{listed(names)}. Give the table of this recording, or none"
        )
    if missing := [name for name in names if placed and plain_name(name) not in placed]:
        warn(f"channels are not drawn at their positions, for some have none: {listed(missing)}")


def write_onsets(path: str | Path, maps: Sequence[OnsetMap]) -> None:
    """Write the table of onset maps: one row for each event and channel, channels by rank; n/a where it is unknown."""
    lines = ["event\tonset\tduration\trank\tchannel\tbegins\trise\tepileptogenicity\tscore"]
    for number, item in enumerate(maps, start=1):
        onset, offset = item.event
        for rank, place in enumerate(item.ranked, start=1):
            score = math.nan if item.scores is None else item.scores[place]
            cells = [f"{item.onsets[place]:.2f}", f"{item.rise[place]:.4f}", f"{item.epileptogenicity[place]:.4f}"]
            order, *measures = [str(rank), *cells] if np.isfinite(item.onsets[place]) else ["n/a"] * 4
            event = [str(number), f"{onset:.3f}", f"{offset - onset:.3f}", order, item.channel_names[place]]
            lines.append("\t".join([*event, *measures, "n/a" if math.isnan(score) else f"{score:.4f}"]))
    write_text(path, "\n".join(lines) + "\n")
