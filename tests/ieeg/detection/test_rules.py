"""Post-processing against hand-made cases and a scalar oracle; events.tsv against the standard and timescoring."""

import math

import numpy as np
import pandas as pd
import pytest
from support.reading import refuses

from mvpa_ts.ieeg.detection.rules import EventRules, OnlineRule, event_rules, probabilities_to_events
from mvpa_ts.ieeg.events import clip_events, merge_events, split_events
from mvpa_ts.ieeg.recordings.events_table import COLUMNS, read_seizures, write_events


def series(*runs):
    """Probabilities from (value, count) runs."""
    return np.concatenate([np.full(count, value) for value, count in runs])


def starts(count):
    return 5.0 * np.arange(count)


def events_of(probabilities, rules, **options):
    return probabilities_to_events(probabilities, starts(len(probabilities)), rules, **options)


class TestPaperRules:
    def test_gap_of_295_s_is_merged_and_300_s_is_not(self):
        near = series((0.9, 6), (0.1, 59), (0.9, 6))
        far = series((0.9, 6), (0.1, 60), (0.9, 6))
        assert events_of(near, "paper") == [(0.0, 355.0)]
        assert events_of(far, "paper") == [(0.0, 30.0), (330.0, 360.0)]

    def test_merging_comes_before_dropping(self):
        # Two runs of 3: each alone is too short, together they are 30 s of positives inside 330 s.
        assert events_of(series((0.9, 3), (0.1, 20), (0.9, 3)), "paper") == [(0.0, 130.0)]

    def test_positives_are_counted_without_the_merged_gap(self):
        # 4 positives in an event of 120 s: long enough, but too few.
        assert events_of(series((0.9, 2), (0.1, 20), (0.9, 2)), "paper") == []

    def test_four_positives_are_dropped_and_five_kept(self):
        assert events_of(series((0.1, 3), (0.9, 4), (0.1, 3)), "paper") == []
        assert events_of(series((0.1, 3), (0.9, 5), (0.1, 3)), "paper") == [(15.0, 40.0)]

    def test_short_events_are_dropped_even_when_positives_suffice(self):
        rules = EventRules(min_duration=20.0, min_positives=1)
        assert events_of(series((0.9, 3), (0.1, 3)), rules) == []
        assert events_of(series((0.9, 4), (0.1, 3)), rules) == [(0.0, 20.0)]


class TestSzcoreRules:
    def test_gap_of_85_s_is_merged_and_90_s_is_not(self):
        assert events_of(series((0.9, 1), (0.1, 17), (0.9, 1)), "szcore") == [(0.0, 95.0)]
        assert events_of(series((0.9, 1), (0.1, 18), (0.9, 1)), "szcore") == [(0.0, 5.0), (95.0, 100.0)]

    def test_seven_minutes_are_split_at_five(self):
        assert events_of(series((0.9, 84)), "szcore") == [(0.0, 300.0), (300.0, 420.0)]


def test_threshold_is_exceeded_not_met():
    assert events_of([0.5, 0.51, 0.5], "none") == [(5.0, 10.0)]
    assert events_of([0.3, 0.2], "none", threshold=0.25) == [(0.0, 5.0)]


def test_unscored_segments_are_negative_and_an_overlapping_tail_lengthens_the_event():
    assert events_of([0.9, np.nan, 0.9], "none") == [(0.0, 5.0), (10.0, 15.0)]
    assert probabilities_to_events([0.1, 0.9, 0.9], [0.0, 5.0, 7.3], "none") == [(5.0, 12.3)]


def oracle(probabilities, rules):
    """The rules on a list of seconds, one after the other, without any array."""
    runs = []
    for index, value in enumerate(probabilities):
        if value > rules.threshold:
            if runs and runs[-1][1] == 5 * index:
                runs[-1] = (runs[-1][0], 5 * index + 5, runs[-1][2] + 1)
            else:
                runs.append((5 * index, 5 * index + 5, 1))
    merged = []
    for run in runs:
        if merged and run[0] - merged[-1][1] < rules.merge_gap:
            merged[-1] = (merged[-1][0], run[1], merged[-1][2] + run[2])
        else:
            merged.append(run)
    long_enough = [run for run in merged if run[1] - run[0] >= rules.min_duration]
    return [(float(run[0]), float(run[1])) for run in long_enough if run[2] >= rules.min_positives]


@pytest.mark.parametrize("seed", range(30))
def test_random_probabilities_match_the_oracle(seed):
    generator = np.random.default_rng(seed)
    probabilities = np.repeat(generator.random(40), generator.integers(1, 40, 40)) * generator.random()
    rules = EventRules(
        threshold=0.3,
        merge_gap=float(generator.integers(0, 300)),
        min_duration=float(generator.integers(0, 40)),
        min_positives=int(generator.integers(1, 8)),
    )
    assert events_of(probabilities, rules) == oracle(probabilities, rules)


def test_splitting_and_clipping():
    assert split_events([(10.0, 310.0)], 300.0) == [(10.0, 310.0)]
    assert clip_events([(-5, 3), (8, 8), (95, 120), (130, 140)], 100.0) == [(0.0, 3.0), (95.0, 100.0)]
    assert merge_events([]) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: event_rules("strict"), "rules must be an EventRules or one of szcore, paper, none, got 'strict'"),
        (lambda: EventRules(threshold=1.5), "threshold must be between 0 and 1, got 1.5"),
        (lambda: EventRules(threshold="0.5"), "threshold must be a number, got '0.5'"),
        (lambda: EventRules(merge_gap=-1), "merge_gap must not be negative"),
        (lambda: EventRules(merge_gap=math.nan), "merge_gap must not be negative, and must be finite, got nan"),
        (lambda: EventRules(min_duration=math.inf), "min_duration must not be negative, and must be finite, got inf"),
        (lambda: probabilities_to_events([0.1, 0.2], [0.0]), r"must both have shape .n,., got \(2,\) and \(1,\)"),
        (lambda: probabilities_to_events([0.1, 0.2], [5.0, 0.0]), "starts must be in ascending order"),
        (lambda: merge_events([(5, 3)]), "must not end before it begins"),
        (lambda: probabilities_to_events([0.9], [0.0], threshold="0.5"), "threshold must be a number, got '0.5'"),
        (lambda: probabilities_to_events([0.9], [0.0], threshold=50), "threshold must be between 0 and 1, got 50"),
        (lambda: OnlineRule(k=3, n=2), "1 <= k <= n, got k=3, n=2"),
        (lambda: OnlineRule(k="1", n=2), "k of an online rule must be a whole number, got '1'"),
        (lambda: OnlineRule(k=1, n=2.5), "n of an online rule must be a whole number, got 2.5"),
    ],
)
def test_errors(call, message):
    refuses(call, message)


class TestOnlineRule:
    @pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 2), (2, 2), (2, 3), (3, 5)])
    def test_alarms_look_back_only(self, k, n):
        probabilities = np.random.default_rng(k * 10 + n).random(60)
        alarms = OnlineRule(k, n).alarms(probabilities)
        for index in range(60):
            positives = sum(value > 0.5 for value in probabilities[max(0, index - n + 1) : index + 1])
            assert alarms[index] == (positives >= k)

    def test_delay_of_an_ideal_detector_keeps_its_bounds(self):
        rule = OnlineRule(k=2, n=3)
        low, high = rule.latency()
        assert (low, high) == (5.0, 10.0)
        for onset in (50.0, 51.3, 54.9):
            ideal = [float(start + 5 > onset and start < 100.0) for start in starts(40)]
            (delay,) = rule.delays(ideal, starts(40), [(onset, 100.0)])
            assert low < delay <= high

    def test_missed_seizure_has_no_delay(self):
        assert math.isnan(OnlineRule().delays(np.zeros(20), starts(20), [(30.0, 60.0)])[0])


class TestFile:
    def test_round_trip_with_the_standards_columns(self, tmp_path):
        path = tmp_path / "events.tsv"
        write_events(path, [(12.5, 40.0), (300.0, 600.0)], 3600.0, confidences=[0.91, 0.6])
        frame = pd.read_csv(path, sep="\t")
        assert tuple(frame.columns) == COLUMNS
        assert frame["eventType"].tolist() == ["sz", "sz"]
        assert frame["duration"].tolist() == [27.5, 300.0]
        assert frame["recordingDuration"].tolist() == [3600.0, 3600.0]
        assert pd.to_datetime(frame["dateTime"], format="%Y-%m-%d %H:%M:%S").dt.year.max() < 1925
        assert read_seizures(path, 3600.0) == [(12.5, 40.0), (300.0, 600.0)]

    def test_no_event_is_one_background_row(self, tmp_path):
        path = tmp_path / "events.tsv"
        write_events(path, [], 60.0)
        frame = pd.read_csv(path, sep="\t")
        assert frame[["onset", "duration", "eventType"]].values.tolist() == [[0.0, 60.0, "bckg"]]
        assert read_seizures(path, 60.0) == []

    def test_a_failed_write_leaves_the_old_file(self, tmp_path):
        path = tmp_path / "events.tsv"
        write_events(path, [], 60.0)
        refuses(write_events, "confidences", path, [(1.0, 2.0)], 60.0, confidences=[])
        assert read_seizures(path, 60.0) == []
        assert [file.name for file in tmp_path.iterdir()] == ["events.tsv"]
