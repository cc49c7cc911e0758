"""A calibrated threshold keeps its promise, and refuses none that it can make."""

import json
import math
import warnings

import numpy as np
import pytest

from mvpa_ts.ieeg import simulate_recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.baselines import BaselineDetector, LineLength
from mvpa_ts.ieeg.detection.calibration import calibrate, calibrate_scores, load_calibration
from mvpa_ts.ieeg.detection.detection import read_detection
from mvpa_ts.ieeg.detection.rules import RULES, EventRules, probabilities_to_events
from mvpa_ts.ieeg.model.seen_subjects import recording_hash, save_training_subjects, subject_hash
from mvpa_ts.ieeg.simulation.writing import write_edf

SZCORE = RULES["szcore"]


def quiet_stream(random, hours, an_hour):
    """Scores of quiet hours: bursts of 1 to 6 segments at random times, each with a height of its own."""
    count = int(hours * 720)
    scores = random.uniform(0.0, 0.1, count)
    for place in random.integers(0, count, random.poisson(an_hour * hours)):
        length = random.integers(1, 7)
        scores[place : place + length] = np.maximum(scores[place : place + length], 0.1 + 0.9 * random.beta(2, 5))
    return scores, 5.0 * np.arange(count)


def test_the_hours_of_a_copy_do_not_count():
    quiet = simulate_recording("S01", num_channels=2, duration=600.0, num_seizures=0)
    with pytest.raises(ValueError, match="S01_session0 and S01_session0 hold the same signal"):
        calibrate(BaselineDetector("line-length"), [quiet, quiet.pick(["A2", "A1"]).crop(0, 599)], 200.0)


@pytest.mark.parametrize(("hours", "rate"), [(10, 6.0), (24, 6.0), (56, 1.0), (20, 24.0)])
def test_the_promise_is_kept_in_nine_of_ten_patients(hours, rate):
    random = np.random.default_rng(54)
    kept, patients, further = 0, 100, 200
    for _ in range(patients):
        an_hour = random.uniform(3.0, 20.0)
        rules = calibrate_scores([quiet_stream(random, hours, an_hour)], rate, rules=SZCORE).rules
        events = probabilities_to_events(*quiet_stream(random, further, an_hour), rules)
        kept += len(events) <= rate * further / 24
    # Two standard errors of 100 patients, and the noise of 200 further hours.
    assert kept >= 84


def test_with_events_far_apart_the_threshold_is_an_order_statistic():
    # 20 quiet events of one segment each, 72 minutes apart: 24 hours at 6 a day allow two of them (Gamma of shape 3).
    random = np.random.default_rng(0)
    scores, heights = np.zeros(24 * 720), np.sort(random.uniform(0.2, 0.9, 20))[::-1]
    scores[random.permutation(20) * 864] = heights
    calibration = calibrate_scores([(scores, 5.0 * np.arange(len(scores)))], 6.0, rules=SZCORE)
    assert calibration.rules.threshold == heights[2]
    assert calibration.alarms == 2
    # Poisson by hand: at the rate that is promised, 6 events are expected; three or more come with this probability.
    assert calibration.confidence == pytest.approx(1 - math.exp(-6) * (1 + 6 + 18))
    assert calibration.rules.merge_gap == SZCORE.merge_gap


def test_alarms_that_cluster_promise_less():
    # All alarms lie in a fifth of the half hours, as where a gain drifts: taken for Poisson, 72 patients kept it.
    random, kept = np.random.default_rng(3), 0
    for _ in range(100):
        nights = [quiet_stream(random, 0.5, an_hour) for an_hour in 30.0 * (random.random(240) < 0.2)]
        rules = calibrate_scores(nights[:40], 48.0, rules=SZCORE).rules
        kept += sum(len(probabilities_to_events(*night, rules)) for night in nights[40:]) <= 48.0 * 100 / 24
    assert kept >= 84
    # Twelve alarms in one of 40 half hours are one cluster: no alarm is allowed, and even that promises little.
    scores = np.zeros(20 * 720)
    scores[24:336:26] = np.linspace(0.3, 0.9, 12)
    with pytest.warns(UserWarning, match="quiet alarms cluster, so the confidence is .* in place of 90%"):
        assert calibrate_scores([(scores, 5.0 * np.arange(len(scores)))], 6.0, rules=SZCORE).alarms == 0


@pytest.mark.parametrize("rules", ["paper", "szcore"])
def test_where_lower_thresholds_only_join_events_none_is_taken(rules):
    random, starts = np.random.default_rng(0), 5.0 * np.arange(1440)
    nights = [(random.beta(1, 30, 1440), starts) for _ in range(2)]
    calibration = calibrate_scores(nights, 800.0, rules=RULES[rules])
    alarms = [event for night in nights for event in probabilities_to_events(*night, calibration.rules)]
    assert len(alarms) == calibration.alarms
    # Before, nearly everything was one alarm.
    assert sum(offset - onset for onset, offset in alarms) < 0.8 * 14400


def test_the_overlap_of_the_last_segment_counts_once():
    clip = (np.zeros(2), np.array([0.0, 1.0]))  # 6 s
    assert calibrate_scores([clip] * 600, 60.0, rules=SZCORE).hours == pytest.approx(1.0)


@pytest.mark.parametrize(("hours", "rate", "possible"), [(10, 6, True), (9, 6, False), (55, 1, True), (50, 1, False)])
def test_it_refuses_only_what_the_hours_cannot_promise(hours, rate, possible):
    quiet = quiet_stream(np.random.default_rng(1), hours, 5.0)
    if possible:
        assert calibrate_scores([quiet], rate, rules=SZCORE).alarms == 0
    else:
        least = math.log(10) * 24
        message = rf"promise {least / hours:.3g} at best, and {rate:g} a day needs {least / rate:.1f} hours"
        with pytest.raises(ValueError, match=message):
            calibrate_scores([quiet], rate, rules=SZCORE)


def test_hours_without_a_score_do_not_count_and_bad_values_are_named():
    scores, starts = quiet_stream(np.random.default_rng(1), 12, 5.0)
    scores[::2] = np.nan
    with pytest.raises(ValueError, match=r"6\.0 quiet hours cannot promise 6"):
        calibrate_scores([(scores, starts)], 6.0, rules=SZCORE)
    with pytest.raises(ValueError, match="per_day must be a positive number"):
        calibrate_scores([(scores, starts)], 0.0, rules=SZCORE)
    with pytest.raises(ValueError, match=r"per_day must be a positive number .*, at most 17280, got 1000000000"):
        calibrate(BaselineDetector("line-length"), [], 1e9)  # before a recording is read
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        calibrate_scores([(scores, starts)], 6.0, rules=SZCORE, confidence=90)
    with pytest.warns(UserWarning, match="which no segment exceeds"):
        calibrate_scores([(np.ones(8640), 5.0 * np.arange(8640))], 6.0, rules=EventRules())


def test_a_recording_that_states_a_seizure_is_not_quiet():
    recording = simulate_recording("S01", num_channels=2, duration=120.0, num_seizures=1)
    with pytest.raises(ValueError, match="S01_session0 is not quiet: it states 1 seizure, the first from"):
        calibrate(BaselineDetector("line-length"), [recording], 400.0)
    with pytest.warns(UserWarning, match="^S01_session0: no annotation says .* so all of it counts as quiet"):
        calibrate(BaselineDetector("line-length"), [recording.with_seizures(None)], 3000.0)


def test_two_people_get_no_common_promise():
    first, second, third = (
        simulate_recording(name, seed=7, num_channels=channels, duration=600.0, num_seizures=0)
        for name, channels in (("S01", 2), ("S02", 2), ("S03", 3))
    )
    with pytest.raises(ValueError, match="of several people, S01, S02, and a promise holds for one"):
        calibrate(BaselineDetector("line-length"), [first, second], 200.0)
    first.subject = third.subject = None  # as of files outside of BIDS
    with pytest.warns(UserWarning, match="S03_session0 has other channels than S01_session0"):
        calibrate(BaselineDetector("line-length"), [first, third], 200.0)


def test_a_promise_is_not_taken_to_other_people():
    first, second = (simulate_recording(name, num_channels=2, duration=600, num_seizures=0) for name in ("S01", "S02"))
    calibration = calibrate(BaselineDetector("line-length"), [first], 400.0)
    with warnings.catch_warnings(action="error"):
        calibration.warn_of_another(first.crop(0, 60))
        calibration.warn_of_another(first.replaced(channel_names=["EEG A1-Ref", "EEG A2-Ref"]))
    with pytest.warns(UserWarning, match="S02_session0 is of another person than the quiet recordings"):
        calibration.warn_of_another(second)
    with pytest.warns(UserWarning, match="S01_session0 has other channels than the quiet recordings"):
        calibration.warn_of_another(first.pick(["A1"]))


def test_a_lower_threshold_than_the_detector_s_is_said(tmp_path):
    quiet = simulate_recording("S01", num_channels=2, duration=600.0, num_seizures=0)
    detector = BaselineDetector(LineLength(quiet=9.0), rules="none")
    calibration = calibrate(detector, [quiet], 400.0)
    assert calibration.rules.threshold == detector.detect(quiet).probabilities.max() < 0.5
    assert "The threshold lies below the detector's own, 0.5: it alarms more often" in str(calibration)
    calibration.save(tmp_path / "calibration.json")
    assert load_calibration(tmp_path / "calibration.json") == calibration
    assert calibration.own_threshold == 0.5
    calibrated = BaselineDetector(LineLength(quiet=9.0), rules=calibration.rules).detect(quiet)
    calibrated.save(tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["threshold"], run["model"]["own_threshold"]) == (calibration.rules.threshold, 0.5)
    assert read_detection(tmp_path).provenance == calibrated.provenance


@pytest.mark.parametrize(("minutes", "said"), [(2, r"2 quiet minutes .* 1,660 at"), (0, "0 quiet seconds cannot")])
def test_numbers_are_written_as_a_person_would(minutes, said):
    starts = 5.0 * np.arange(12 * minutes)
    with pytest.raises(ValueError, match=rf"{said}.* 400 a day needs 8 minutes"):
        calibrate_scores([(np.zeros(len(starts)), starts)], 400.0, rules=SZCORE)


def test_what_trained_a_detector_promises_nothing(tmp_path):
    taught, other = (simulate_recording("S01", seed=n, num_channels=2, duration=600.0, num_seizures=0) for n in (1, 2))
    LineLength(quiet=9.0).save(tmp_path / "line-length.json")
    save_training_subjects(tmp_path, [subject_hash("S01")], [recording_hash(taught)])
    detector = BaselineDetector(tmp_path / "line-length.json")
    assert calibrate(detector, [other], 400.0).alarms == 0
    with pytest.raises(ValueError, match="S01_session0 trained the detector, so its hours promise nothing for others"):
        calibrate(detector, [other, taught], 400.0)


def test_detect_takes_what_calibrate_wrote_and_no_other_model(tmp_path, capsys, fails):
    quiet = simulate_recording("S01", num_channels=2, duration=600.0, num_seizures=0, sfreq=256.0)
    write_edf(quiet, tmp_path / "quiet.edf")
    file, options = tmp_path / "calibration.json", ["--model", "line-length"]
    words = ["calibrate", str(tmp_path / "quiet.edf"), *options, "--per-day", "400", "-o", str(file)]
    for taken in (tmp_path / "quiet.edf", tmp_path):
        before = (tmp_path / "quiet.edf").read_bytes()
        fails("exists and is no calibration: name another file", *words[:-1], taken)
        assert (tmp_path / "quiet.edf").read_bytes() == before
    assert main(words) == 0
    assert "at most 400 false alarms a day with 94% confidence, from 10 quiet minutes" in capsys.readouterr().out
    calibration = load_calibration(file)
    detect = ["detect", str(tmp_path / "quiet.edf"), "-o", str(tmp_path / "out"), "--calibration", str(file)]
    assert main([*detect, *options]) == 0
    detection = read_detection(tmp_path / "out" / "quiet")
    assert (detection.rules, detection.events) == (calibration.rules, [])
    fails("the calibration is of another detector than demo", *detect, "--model", "demo")
    fails("--calibration sets the rules", *detect, *options, "--rules", "paper")
    fails("--calibration promises nothing for stretches marked BAD_", *detect, *options, "--score-bad")
    for other in (["--preprocessing", '{"notch": 50}'], ["--channels", quiet.channel_names[0]]):
        fails("take the same preprocessing and channels, or calibrate with these", *detect, *options, *other)
    (tmp_path / "night.trc").touch()
    fails("all are read but 1 of a kind that is not read, such as night.trc", "calibrate", tmp_path, *words[2:])
    file.write_text("{}")
    fails("is no calibration", *detect, *options)
