"""Names, order, bipolar pairs and the automatic selection."""

import numpy as np
import pytest
from scipy import stats
from support.made_up_recordings import PLAIN

from mvpa_ts.ieeg import Recording, Segments
from mvpa_ts.ieeg.preprocessing.selection import Moments, rank_channels, select_channels
from mvpa_ts.ieeg.recordings.channels import bipolar_pairs, natural_order, not_eeg, plain_name


def test_natural_order():
    names = ["L10", "EKG1", "L2", "POL L'9", "POL L'14", "a1", "EEG L1-Ref", "B"]
    assert [names[i] for i in natural_order(names)] == [
        "a1", "B", "EKG1", "EEG L1-Ref", "L2", "L10", "POL L'9", "POL L'14",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["EKG", "EKG1", "EKGL", "ECG-", "DC01", "DC 5", "POL DC12", "TRIG4", "EEG EKG1-Ref", "STI 014", "Status",
             "EMG1", "EOG", "HEOG", "EDF Annotations", "SpO2", "PR", "REF", "-", "Event",
             "PULSE RATE", "ECG1-ECG2", "EKG1-CHIN", "EOG(L)", "LEKG", "POL $EKG", "DC1-DC", "--0", "VNS", "EXG8",
             "EtCO2", "Heart Rate", "RESP ABDOMEN-REF", "AUX1",
             # As EDF+, Micromed, Natus and laboratories of cognition call what is no brain.
             "Light", "Sound", "Crc16", "Temp rectal", "BEAT+", "PULS+", "CHEST1", "FLOW1", "SNORE1", "POS", "CO2Wave",
             "Photodiode", "PHOTO 1", "MIC", "Audio L", "ACC X", "ACC-Y", "Accelerometer X", "PD", "MK", "NC"],
)  # fmt: skip
def test_no_eeg(name):
    assert not_eeg(name)


@pytest.mark.parametrize(
    "name",
    ["ACC1", "PD1", "MIC2", "PHO1", "NC3", "POS1", "ACCX1", "MK4", "CHE1", "A1-A2", "DCA1-DCA2", "REC1", "$A1",
     "A1", "EC1", "DCA1", "TRI1", "RAT3", "PR1", "HR2", "EKF1", "REF1", "L'13", "C12", "BTM1", "1", "Fp1"],
)  # fmt: skip
def test_eeg(name):
    assert not_eeg(name) is None


def test_plain_names():
    assert [plain_name(n) for n in ("EEG A1-Ref", "POL G2", "SEEG LA 1", "EKG2", "EEG ")] == [
        "A1", "G2", "LA 1", "EKG2", "EEG",
    ]  # fmt: skip


def test_bipolar_pairs_follow_the_wire_not_the_order():
    assert bipolar_pairs(["A2", "B1", "A1", "A10", "A9", "x", "B3"]) == [(2, 0), (4, 3)]


@pytest.mark.parametrize("names", [["EEG A1-Ref", "POL A1", "A2"], ["A01", "A1", "A2"]])
def test_bipolar_pairs_of_a_contact_that_is_there_twice(names):
    with pytest.raises(ValueError, match=f"{names[0]} and {names[1]} are one contact by their names"):
        bipolar_pairs(names)


def test_no_pairs_of_pairs():
    assert bipolar_pairs(["A1-A2", "A1-A3", "B1", "B2"]) == [(2, 3)]


def test_moments_equal_scipy():
    x = np.random.default_rng(0).gamma(2.0, 30.0, (3, 5000)).astype(np.float32)
    moments = Moments(4)
    for start in range(0, 5000, 777):
        block = np.concatenate([x[:, start : start + 777], np.full((1, x[:, start : start + 777].shape[1]), 9.0, "f4")])
        moments.add(block, np.array([True, True, True, False]))
    variance, kurtosis = moments.variance_and_kurtosis()
    np.testing.assert_allclose(variance[:3], x.astype(float).var(1), rtol=1e-6)
    np.testing.assert_allclose(kurtosis[:3], stats.kurtosis(x.astype(float), axis=1, fisher=False), rtol=1e-6)
    assert np.isnan(variance[3])


def test_rank_follows_the_rule():
    rng = np.random.default_rng(0)
    variance, kurtosis = rng.uniform(1, 100, 60), rng.uniform(2, 9, 60)
    variance[[3, 7]] = 1e9, 1e-9
    kurtosis[11] = 500.0
    variance[20] = np.nan
    order = rank_channels(variance, kurtosis)
    known = np.delete(np.arange(60), 20)
    low, high = np.percentile(variance[known], [1, 99])
    aside = {i for i in known if not low <= variance[i] <= high or kurtosis[i] > np.percentile(kurtosis[known], 95)}
    assert {3, 7, 11} <= aside
    score = variance / (1 + kurtosis)
    kept = sorted(set(known) - aside, key=lambda i: -score[i])
    assert order == [*kept, *sorted(aside, key=lambda i: -score[i]), 20]
    assert order.index(3) == len(kept)  # refilled from those set aside, best first


def test_selection_keeps_the_recordings_order_and_its_first_minutes():
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, (40, 512 * 60)) * rng.uniform(10, 100, 40)[:, None]
    x[:, 512 * 30 :] *= rng.uniform(0.1, 10, 40)[:, None]  # must not count with minutes=0.5
    names = [f"A{i + 1}" for i in range(40)]
    segments = Segments(Recording.from_array(x, 512.0, names, "µV"), PLAIN)
    chosen = select_channels(segments, 32, minutes=0.5)
    assert len(chosen) == 32
    assert list(chosen) == [name for name in names if name in chosen]
    early = x[:, : 512 * 30].astype("f4").astype(float)
    order = rank_channels(early.var(1), stats.kurtosis(early, axis=1, fisher=False))
    assert set(chosen) == {names[i] for i in order[:32]}
    assert select_channels(segments, 40) == tuple(names)


def test_a_dead_channel_comes_last():
    x = np.random.default_rng(1).normal(0, 30, (4, 512 * 10))
    x[1] = 0.0
    segments = Segments(Recording.from_array(x, 512.0, list("ABCD"), "µV"), PLAIN)
    assert select_channels(segments, 3) == ("A", "C", "D")
