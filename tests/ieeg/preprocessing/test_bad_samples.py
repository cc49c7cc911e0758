"""Bad samples against a loop, and bridges that filters do not notice."""

import numpy as np
import pytest
from support.made_up_recordings import PLAIN

from mvpa_ts.ieeg import Recording, Segments
from mvpa_ts.ieeg.preprocessing.bad_samples import bad_samples, bridge


def slow_bad(x: np.ndarray, run: int) -> np.ndarray:
    bad = ~np.isfinite(x)
    for channel in range(len(x)):
        start = 0
        for i in range(1, x.shape[1] + 1):
            if i == x.shape[1] or x[channel, i] != x[channel, start]:
                if i - start >= run:
                    bad[channel, start:i] = True
                start = i
    return bad


@pytest.mark.parametrize("seed", range(30))
def test_equals_a_loop(seed):
    rng = np.random.default_rng(seed)
    run = int(rng.integers(2, 40))
    x = rng.normal(0, 1, (3, int(rng.integers(1, 400)))).astype(np.float32)
    for _ in range(4):
        channel, start, length = rng.integers(3), rng.integers(x.shape[1]), rng.integers(1, 60)
        x[channel, start : start + length] = rng.choice([0.0, np.nan, np.inf, 3.0, x[channel, start]])
    found = bad_samples(x, run)
    np.testing.assert_array_equal(np.zeros(x.shape, bool) if found is None else found, slow_bad(x, run))


def test_good_signals_give_none():
    assert bad_samples(np.random.default_rng(0).normal(size=(4, 5000)), 128) is None
    assert bad_samples(np.round(np.random.default_rng(0).normal(size=(4, 5000))), 128) is None


def test_bridge_is_straight_between_near_edges():
    x = np.array([[0.0, np.nan, np.nan, np.nan, 4.0, 5.0]])
    bad = np.isnan(x)
    bridge(x, bad, reach=1000)
    np.testing.assert_allclose(x, [[0, 1, 2, 3, 4, 5]], atol=1e-2)


def test_bridge_holds_a_lonely_edge_and_is_zero_out_of_reach():
    x = np.full((2, 50), np.nan)
    x[0, 10] = 7.0
    bad = np.isnan(x)
    bridge(x, bad, reach=5)
    np.testing.assert_allclose(x[0, 6:15], 7.0)
    np.testing.assert_array_equal(x[0, :6], 0.0)
    np.testing.assert_array_equal(x[0, 15:], 0.0)
    np.testing.assert_array_equal(x[1], 0.0)


@pytest.mark.parametrize("value", [1e15, -2e6, 1e30, 3e38, np.inf, 1.1e6])
@pytest.mark.parametrize(("rate", "settings"), [(512.0, PLAIN), (512.0, None), (1000.0, None), (1000.0, PLAIN)])
def test_one_sample_beyond_a_volt_moves_nothing_else(value, rate, settings):
    """1e15 µV in one sample changed decisions 20 s away; now it is masked and counted, once however it is read."""
    x = np.random.default_rng(0).normal(0, 50, (5, round(400 * rate))).astype(np.float32)
    names = [f"A{i + 1}" for i in range(5)]
    clean = Segments(Recording.from_array(x, rate, names, "µV"), settings)
    expected, _ = clean.read(0, 80)
    assert clean.implausible_samples == 0
    at = round(200.5 * rate)
    x[2, at] = value
    segments = Segments(Recording.from_array(x, rate, names, "µV"), settings)
    signal, valid = segments.read(0, 80)
    assert segments.implausible_samples == 1
    segments.read(35, 45)
    segments.read(40, 41)
    assert segments.implausible_samples == 1
    assert valid.all()  # one sample of 2560 is bridged
    far = np.ones(signal.shape[1], bool)
    far[200 * 512 : 201 * 512 + 256] = False
    assert np.abs(signal - expected)[:, far].max() < 2.0
    assert np.isfinite(signal).all()
    assert np.abs(signal).max() < 1000


def test_a_long_stretch_beyond_a_volt_is_masked():
    x = np.random.default_rng(0).normal(0, 50, (4, 20 * 512)).astype(np.float32)
    x[1, 6 * 512 : 8 * 512] *= 1e6
    segments = Segments(Recording.from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV"), PLAIN)
    _, valid = segments.read(0, 4)
    np.testing.assert_array_equal(valid[:, 1], [True, False, True, True])
    assert valid[:, [0, 2, 3]].all()
    assert segments.implausible_samples == int((np.abs(x[1]) > 1e6).sum())


def test_channels_without_a_signal_are_named():
    x = np.random.default_rng(0).normal(0, 50, (4, 20 * 512)).astype(np.float32)
    x[1], x[2, : 10 * 512] = np.nan, 3.0
    segments = Segments(Recording.from_array(x, 512.0, ["A1", "A2", "A3", "A4"], "µV"), PLAIN)
    assert segments.silent_channels == ()
    segments.read(0, 2)
    assert segments.silent_channels == ()  # what comes may hold a signal
    segments.read(2, 4)
    assert segments.silent_channels == ("A2",)
