"""Polyphase resampling by a rational ratio and zero-phase filters, each by blocks that know their neighbourhood."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy import signal as scipy_signal
from scipy import sparse

from mvpa_ts.ieeg.events import Floats

# Seconds by which resampled time may run away in a second: 1 ms per hour.
DRIFT = 1e-3 / 3600
# Attenuation of what would alias.
STOPBAND_DB = 80.0
# Share of the lower Nyquist frequency that resampling passes unchanged.
PASSBAND = 0.8
# Hz between the −3 dB points of a notch in one direction.
NOTCH_WIDTH = 2.0
# Taps of the longest filter that is kept whole, 16 MB; rates without a simple ratio, as 2047.9987 Hz, need more.
MOST_TAPS = 2_000_000
# Share of a transient that a filter has left when a block is far enough from its edge.
SETTLED = 1e-7


@lru_cache(maxsize=64)
def rational_ratio(source: float, target: float) -> Fraction:
    """Target / source as the simplest fraction that drifts at most 1 ms per hour.

    Examples
    --------
    >>> rational_ratio(1024.0, 512.0)
    Fraction(1, 2)
    >>> rational_ratio(999.4121105232217, 512.0)
    Fraction(2707, 5284)
    """
    exact = Fraction(target) / Fraction(source)
    limit = 1
    while True:
        ratio = exact.limit_denominator(limit)
        if ratio > 0 and abs(ratio / exact - 1) <= DRIFT:
            return ratio
        # Denominators grow slowly, as the simplest ratio has the shortest filter.
        limit += max(limit // 16, 1)


@lru_cache(maxsize=64)
def antialias_filter(ratio: Fraction) -> Floats:
    """Kaiser-windowed low-pass at the upsampled rate: odd length, gain `ratio.numerator`.

    It passes up to 0.8 of the lower Nyquist frequency and stops by 80 dB from that frequency on.
    """
    beta = scipy_signal.kaiser_beta(STOPBAND_DB)
    # A Kaiser window gives the wanted attenuation at a known length.
    taps = scipy_signal.firwin(2 * _half_length(ratio) + 1, _cutoff(ratio), window=("kaiser", beta))
    return taps * ratio.numerator


def _cutoff(ratio: Fraction) -> float:
    """Middle of the transition band as a share of the upsampled rate's Nyquist frequency."""
    return (1 + PASSBAND) / 2 / max(ratio.numerator, ratio.denominator)


def _half_length(ratio: Fraction) -> int:
    """Taps on either side of the middle one."""
    width = (1 - PASSBAND) / max(ratio.numerator, ratio.denominator)
    return math.ceil((STOPBAND_DB - 7.95) / (2.285 * math.pi * width)) // 2 + 1


def resampled_length(samples: int, ratio: Fraction) -> int:
    """Samples at the new rate, rounded."""
    return math.floor(samples * ratio + Fraction(1, 2))


def input_range(start: int, stop: int, ratio: Fraction) -> tuple[int, int]:
    """Input samples [i0, i1) that outputs [start, stop) depend on; i0 may be negative."""
    if ratio == 1:
        return start, stop
    half = _half_length(ratio)
    up, down = ratio.numerator, ratio.denominator
    return (start * down - half) // up, -((-((stop - 1) * down + half)) // up) + 1


def resample(x: Floats, first: int, start: int, stop: int, ratio: Fraction) -> Floats:
    """Outputs [start, stop) from the input range that begins with input sample `first` (see `input_range`).

    Output n stands at input time n / ratio exactly, whatever the block.
    """
    if ratio == 1:
        return x[:, start - first : stop - first]
    if 2 * _half_length(ratio) + 1 > MOST_TAPS:
        return _resample_by_table(x, first, start, stop, ratio)
    taps = antialias_filter(ratio)
    up, down = ratio.numerator, ratio.denominator
    # Zeros before the taps shift the grid of upfirdn's outputs onto ours.
    # Outputs lie on the grid of the whole recording, not on one that begins with the block: blocks must agree.
    offset = start * down - first * up + len(taps) // 2
    shift = -offset % down
    padded = np.concatenate([np.zeros(shift), taps])
    skip = (offset + shift) // down
    return scipy_signal.upfirdn(padded, x, up, down, axis=1)[:, skip : skip + stop - start]


@lru_cache(maxsize=4)
def _filter_table(ratio: Fraction) -> Floats:
    """One side of the filter's curve at 2¹⁸ + 1 places from the middle on, which a line joins to within 1e-8 of it."""
    position = np.linspace(0.0, 1.0, 2**18 + 1)
    beta = scipy_signal.kaiser_beta(STOPBAND_DB)
    half = _half_length(ratio)
    curve = np.sinc(_cutoff(ratio) * half * position) * np.i0(beta * np.sqrt(1 - position**2))
    # As firwin does: all taps add up to one, times the numerator.
    area = (2 * curve.sum() - curve[0] - curve[-1]) * half / (len(position) - 1)
    return curve * ratio.numerator / area


def _resample_by_table(x: Floats, first: int, start: int, stop: int, ratio: Fraction) -> Floats:
    """What `resample` gives, with the taps that each output needs read from the filter's curve."""
    table, half = _filter_table(ratio), _half_length(ratio)
    up, down = ratio.numerator, ratio.denominator
    out = np.empty((len(x), stop - start))
    # In pieces, since each output has its own taps and all of them would need gigabytes.
    for low in range(start, stop, 1024):
        n = np.arange(low, min(low + 1024, stop))
        nearest = (n * down - half) // up  # the first input that an output may depend on
        inputs = nearest[:, None] + np.arange(2 * half // up + 2)
        lags = np.abs(n[:, None] * down - inputs * up)
        position = np.minimum(lags / half, 1.0) * (len(table) - 1)
        left = np.minimum(position.astype(np.intp), len(table) - 2)
        weights = table[left] + (position - left) * (table[left + 1] - table[left])
        weights[lags > half] = 0.0
        begin = max(int(inputs[0, 0]) - first, 0)
        needed = np.ascontiguousarray(x[:, begin : int(inputs[-1, -1]) - first + 1].T)
        columns = np.clip(inputs - first - begin, 0, len(needed) - 1)
        rows = np.arange(len(n) + 1) * inputs.shape[1]
        taps = sparse.csr_array((weights.ravel(), columns.ravel(), rows), shape=(len(n), len(needed)))
        out[:, low - start : low - start + len(n)] = (taps @ needed).T
    return out


def second_order_sections(sfreq: float, band: tuple[float, float] | None, notch: float | None) -> Floats:
    """4th-order Butterworth band-pass, and notches at `notch` and its harmonics; shape (sections, 6).

    A lower edge of 0 makes the band-pass a low-pass; the upper edge lies below the Nyquist frequency.
    """
    sections = [np.zeros((0, 6))]
    nyquist = sfreq / 2
    if band is not None:
        edges, kind = (band, "bandpass") if band[0] > 0 else (band[1], "lowpass")
        sections.append(scipy_signal.butter(4, edges, kind, fs=sfreq, output="sos"))
    if notch is not None:
        # Hum is no sine, and its harmonics reach into the band.
        for harmonic in np.arange(notch, nyquist - NOTCH_WIDTH, notch):
            b, a = scipy_signal.iirnotch(harmonic, harmonic / NOTCH_WIDTH, fs=sfreq)
            sections.append(np.concatenate([b, a])[None])
    return np.concatenate(sections)


def settling_samples(sections: Floats) -> int:
    """Samples after which the filter, run in one direction, has all but a 1e-7 of a transient behind it."""
    if not len(sections):
        return 0
    # The slowest pole decides how long a transient lasts.
    radius = max(np.abs(np.roots(section[3:])).max() for section in sections)
    # Twice over, a pole of multiplicity two decays as n·r^n; the factor 1.25 covers n.
    return math.ceil(1.25 * math.log(SETTLED) / math.log(radius))


def zero_phase(x: Floats, sections: Floats) -> Floats:
    """Filter [C, n] forward and backward; the caller has extended the ends."""
    return scipy_signal.sosfiltfilt(sections, x, axis=1, padtype=None) if len(sections) else x


def odd_extension(x: Floats, left: int, right: int) -> Floats:
    """Extend [C, n] by the point reflection of its ends, as far as it reaches, and hold the last value beyond."""
    if not left and not right:
        return x
    reach = x.shape[1] - 1
    a, b = min(left, reach), min(right, reach)
    extended = np.pad(x, [(0, 0), (a, b)], mode="reflect", reflect_type="odd")
    return np.pad(extended, [(0, 0), (left - a, right - b)], mode="edge") if left > a or right > b else extended
