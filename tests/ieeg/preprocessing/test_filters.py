"""Resampling and filters: against SciPy's, in decibels, in drift."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import signal as scipy_signal

from mvpa_ts.ieeg.preprocessing import filters

ECOG = 999.4121105232217
RATES = (200.0, 250.0, 256.0, 400.0, 499.907, ECOG, 1000.0, 1024.0, 2000.0, 2048.0, 5000.0, 30_000.0)


@pytest.mark.parametrize("rate", RATES)
def test_drift_is_at_most_a_millisecond_an_hour(rate):
    ratio = filters.rational_ratio(rate, 512.0)
    last = filters.resampled_length(round(3600 * rate), ratio) - 1
    # Output `last` stands at input sample last / ratio.
    drift = float(last / ratio) / rate - last / 512.0
    assert abs(drift) <= 1e-3


def test_simple_rates_have_simple_ratios():
    assert filters.rational_ratio(1024.0, 512.0) == Fraction(1, 2)
    assert filters.rational_ratio(1000.0, 512.0) == Fraction(64, 125)
    assert filters.rational_ratio(512.0, 512.0) == 1


def whole(x: np.ndarray, ratio: Fraction) -> np.ndarray:
    stop = filters.resampled_length(x.shape[1], ratio)
    left, right = filters.input_range(0, stop, ratio)
    padded = np.pad(x, [(0, 0), (-left, max(right - x.shape[1], 0))])[:, : right - left]
    return filters.resample(padded, left, 0, stop, ratio)


def tone(frequency: float, rate: float, samples: int) -> np.ndarray:
    return np.cos(2 * np.pi * frequency * np.arange(samples) / rate)[None]


@pytest.mark.parametrize("rate", [250.0, ECOG, 1000.0, 1024.0, 2048.0])
@pytest.mark.parametrize("frequency", [1.0, 37.0, 90.0])
def test_a_tone_stays_where_it_is(rate, frequency):
    """Amplitude and phase, far from the ends: no delay, no gain."""
    ratio = filters.rational_ratio(rate, 512.0)
    y = whole(tone(frequency, rate, int(20 * rate)), ratio)
    expected = np.cos(2 * np.pi * frequency * np.arange(y.shape[1]) / float(ratio) / rate)
    inside = slice(2048, -2048)
    np.testing.assert_allclose(y[0, inside], expected[inside], atol=2e-4)


class TestRatesWithoutASimpleRatio:
    """Their filter would have tens of millions of taps; it is never built."""

    @pytest.fixture(autouse=True)
    def no_long_filter(self, monkeypatch):
        def refuse(taps, *_args, **_options):
            raise AssertionError(f"a filter of {taps} taps")

        monkeypatch.setattr(filters.scipy_signal, "firwin", refuse)

    @pytest.mark.parametrize("rate", [2047.9987, 511.99967])
    @pytest.mark.parametrize("first", [0, 24 * 3600 * 512])
    def test_a_tone_stays_where_it_is(self, rate, first):
        ratio = filters.rational_ratio(rate, 512.0)
        assert 50 * max(ratio.numerator, ratio.denominator) > filters.MOST_TAPS
        left, right = filters.input_range(first, first + 3000, ratio)
        for frequency in (1.0, 37.0, 90.0, 200.0):
            x = np.cos(2 * np.pi * frequency * np.arange(left, right) / rate)[None]
            y = filters.resample(x, left, first, first + 3000, ratio)
            expected = np.cos(2 * np.pi * frequency * np.arange(first, first + 3000) / float(ratio) / rate)
            np.testing.assert_allclose(y[0], expected, atol=2e-4)
            later, _ = filters.input_range(first + 1500, first + 3000, ratio)
            late = filters.resample(x[:, later - left :], later, first + 1500, first + 3000, ratio)
            np.testing.assert_allclose(late, y[:, 1500:], atol=1e-12)

    def test_what_would_alias_is_80_db_down(self):
        ratio = filters.rational_ratio(2047.9987, 512.0)
        left, right = filters.input_range(0, 3000, ratio)
        for frequency in (256.5, 300.0, 900.0):
            x = np.cos(2 * np.pi * frequency * np.arange(left, right) / 2047.9987)[None]
            assert 20 * np.log10(np.abs(filters.resample(x, left, 0, 3000, ratio)).max()) <= -79


@pytest.mark.parametrize("ratio", [Fraction(2707, 5284), Fraction(64, 125), Fraction(256, 125)])
def test_the_table_gives_what_all_taps_give(monkeypatch, ratio):
    x = np.random.default_rng(0).normal(size=(3, 9001))
    expected = whole(x, ratio)
    monkeypatch.setattr(filters, "MOST_TAPS", 0)
    np.testing.assert_allclose(whole(x, ratio), expected, atol=1e-6)


@pytest.mark.parametrize(("rate", "frequency"), [(1024.0, 300.0), (1024.0, 260.0), (ECOG, 300.0), (2048.0, 900.0)])
def test_what_would_alias_is_60_db_down(rate, frequency):
    y = whole(tone(frequency, rate, int(20 * rate)), filters.rational_ratio(rate, 512.0))
    assert 20 * np.log10(np.abs(y[0, 2048:-2048]).max()) <= -60


@pytest.mark.parametrize("ratio", [Fraction(1, 2), Fraction(64, 125), Fraction(256, 125), Fraction(3, 7), Fraction(1)])
def test_blocks_equal_the_whole_and_direct_convolution(ratio):
    x = np.random.default_rng(0).normal(size=(2, 3001))
    y = whole(x, ratio)
    taps = filters.antialias_filter(ratio)
    up, down, half = ratio.numerator, ratio.denominator, len(filters.antialias_filter(ratio)) // 2
    if ratio != 1:
        for n in (0, 5, 333, y.shape[1] - 1):  # the sum of the definition, at the upsampled rate
            k = np.arange(len(x[0]))
            places = n * down - k * up + half
            inside = (places >= 0) & (places < len(taps))
            np.testing.assert_allclose(y[:, n], x[:, inside] @ taps[places[inside]], atol=1e-10)
    for start, stop in [(0, 1), (7, 20), (331, 900), (y.shape[1] - 3, y.shape[1])]:
        left, right = filters.input_range(start, stop, ratio)
        padded = np.pad(x, [(0, 0), (500, 500)])[:, left + 500 : right + 500]
        np.testing.assert_allclose(filters.resample(padded, left, start, stop, ratio), y[:, start:stop], atol=1e-12)


def response(sections: np.ndarray, frequency: float) -> float:
    """Gain forward and backward, dB."""
    _, h = scipy_signal.sosfreqz(sections, [frequency], fs=512.0)
    return float(40 * np.log10(np.abs(h[0]) + 1e-12))


def test_band_and_notch():
    sections = filters.second_order_sections(512.0, (0.5, 120.0), 50.0)
    assert abs(response(sections, 20.0)) < 0.1
    assert response(sections, 0.5) == pytest.approx(-6.02, abs=0.1)
    assert response(sections, 120.0) == pytest.approx(-6.02, abs=0.1)
    for harmonic in (50.0, 100.0, 150.0, 200.0, 250.0):
        assert response(sections, harmonic) < -100
    assert response(sections, 45.0) > -1.5
    assert response(sections, 0.05) < -150
    expected = scipy_signal.butter(4, (0.5, 120.0), "bandpass", fs=512.0, output="sos")
    np.testing.assert_array_equal(filters.second_order_sections(512.0, (0.5, 120.0), None), expected)


@pytest.mark.parametrize("band", [(0.5, 120.0), (0.0, 40.0), None])
def test_open_bands(band):
    sections = filters.second_order_sections(512.0, band, None)
    gain = {f: response(sections, f) if len(sections) else 0.0 for f in (0.05, 20.0, 200.0)}
    assert abs(gain[20.0]) < 0.1
    assert (gain[0.05] < -60) == (band is not None and band[0] > 0)
    assert (gain[200.0] < -60) == (band is not None and band[1] < 256)


def test_settling_is_long_enough():
    sections = filters.second_order_sections(512.0, (0.5, 120.0), 50.0)
    length = filters.settling_samples(sections)
    impulse = np.zeros((1, 6 * length))
    impulse[0, 3 * length] = 1.0
    answer = filters.zero_phase(impulse, sections)[0]
    assert np.abs(answer[: 2 * length]).max() < 1e-6 * np.abs(answer).max()


def test_odd_extension_is_scipys_and_holds_beyond():
    x = np.random.default_rng(0).normal(size=(2, 10))
    y = filters.odd_extension(x, 4, 4)
    np.testing.assert_allclose(y, np.pad(x, [(0, 0), (4, 4)], mode="reflect", reflect_type="odd"))
    y = filters.odd_extension(x, 12, 0)
    np.testing.assert_array_equal(y[:, :4], np.repeat(y[:, 3:4], 4, axis=1))
    np.testing.assert_allclose(filters.odd_extension(x, 0, 3)[:, :10], x)
