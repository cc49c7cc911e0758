"""The hard cohort: what is loud is harmless, seizures are weak and spread, and simple rules do badly."""

import numpy as np
import pytest
from scipy.signal import welch

from mvpa_ts.ieeg import simulate_recording
from mvpa_ts.ieeg.simulation.hard import HardSource
from mvpa_ts.ieeg.simulation.subject import Difficulty


class Bare(HardSource):
    """Without background and artefacts, so that what is left is the seizure."""

    def _background(self, start, stop):
        return np.zeros((self.num_channels, stop - start), np.float32)


def bare(subject, seconds=300.0, channels=16):
    difficulty = Difficulty(artefacts=0.0, line_frequency=None)
    return Bare(subject, 3, channels, seconds, 256.0, 1, 0, difficulty)


def test_a_seizure_begins_at_one_contact_and_reaches_neighbours_later():
    source = bare("S1")
    ((onset, offset),) = source.seizures
    assert 10.0 <= offset - onset <= 90.0
    wave = np.abs(source.read(0, 300 * 256, np.arange(16)))[np.argsort(source._order)]
    peak = wave.max(1)
    reached = np.flatnonzero(peak > 0.05 * peak.max())
    begins = np.array([np.argmax(wave[contact] > 0) for contact in reached])
    first = int(np.argmin(begins))
    assert (np.diff(begins[first:]) >= 0).all()
    assert (np.diff(begins[: first + 1]) <= 0).all()
    assert begins.max() - begins.min() > 0.3 * 256
    assert len(reached) < 16 or peak.min() < 0.5 * peak.max()


def test_a_harmless_run_has_the_spectrum_of_a_seizure_and_begins_in_all_its_contacts_at_once():
    source = bare("S1")
    run = source._run(0.0, np.arange(7680) / 256.0, np.random.default_rng(0))
    strongest = int(np.abs(run).max(1).argmax())
    shapes = np.corrcoef(run[np.abs(run).max(1) > 0])
    np.testing.assert_allclose(shapes, 1.0, atol=1e-5)
    seizure = source._seizure(0)
    seizure = seizure[int(np.abs(seizure).max(1).argmax())]
    share = []
    for wave in (run[strongest], seizure):
        frequency, power = welch(wave, fs=256.0, nperseg=512)
        share.append(power[(frequency > 3.0) & (frequency < 30.0)].sum() / power.sum())
    assert abs(share[0] - share[1]) < 0.25
    # As frequent in a recording without a seizure, whose false alarms it makes.
    quiet = HardSource("S1", 3, 16, 7200.0, 256.0, 0, 0, Difficulty())
    assert sum(event.kind == "run" for event in quiet._events) > 8
    assert np.isfinite(quiet.read(0, 256, np.arange(16))).all()


def test_the_gain_drifts_over_a_day():
    recording = simulate_recording("S1", duration=86400.0, num_channels=2, sfreq=64.0, num_seizures=0, cohort="hard")
    hours = [recording.read(h * 3600 * 64, (h * 3600 + 60) * 64) for h in range(0, 24, 2)]
    spread = [np.median(np.abs(x)) for x in hours]
    assert 3.0 < max(spread) / min(spread) < 12.0


def test_movement_lifts_all_channels_at_once():
    source = HardSource("S1", 3, 8, 3600.0, 128.0, 0, 0, Difficulty(line_frequency=None))
    event = max((item for item in source._events if item.kind == "movement"), key=lambda item: item.duration)
    middle, half = event.start + event.duration / 2, int(event.duration * 128 / 4)
    during = source.read(int(middle * 128) - half, int(middle * 128) + half, np.arange(8)).std(1)
    calm = np.median([source.read(k * 1280, k * 1280 + 1280, np.arange(8)).std(1) for k in range(40)], axis=0)
    assert (during > 1.1 * calm).all()


def test_any_cut_gives_the_same_samples_and_the_order_is_of_the_subject():
    recording = simulate_recording("S2", duration=1200.0, num_channels=8, sfreq=64.0, cohort="hard")
    whole = recording.read(0, 1200 * 64)
    np.testing.assert_allclose(recording.read(500 * 64, 600 * 64), whole[:, 500 * 64 : 600 * 64], atol=1e-3)
    orders = [bare(f"S{n}")._order.tolist() for n in range(12)]
    assert 2 <= sum(order == sorted(order) for order in orders) <= 10
    assert bare("S1", seconds=400.0)._order.tolist() == orders[1]


def test_a_cohort_that_is_unknown_is_named():
    with pytest.raises(ValueError, match="cohort must be 'usual' or 'hard', got 'easy'"):
        simulate_recording("S1", cohort="easy")
