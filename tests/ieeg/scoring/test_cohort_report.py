"""Cohort tables against numbers counted by hand, scikit-learn and numpy."""

import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import cohen_kappa_score
from support.reading import refuses

from mvpa_ts.ieeg.detection.rules import OnlineRule, probabilities_to_events
from mvpa_ts.ieeg.events import segment_labels
from mvpa_ts.ieeg.scoring.cohort import bootstrap_interval, cohort_report, markdown_table, swec_groups
from mvpa_ts.ieeg.scoring.plots import COHORT_PLOTS, save_cohort_plots
from mvpa_ts.ieeg.scoring.regression import joint_regression
from mvpa_ts.ieeg.scoring.results import RecordingResult, SubjectResult


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    plt.close("all")


def recording(subject, segments, seizures, seed, error=0.02, name="1"):
    """A detector that is wrong in a share of its segments."""
    generator = np.random.default_rng(seed)
    starts = 5.0 * np.arange(segments)
    labels = segment_labels(starts, seizures)
    probabilities = np.where(labels, 0.9, 0.1)
    wrong = generator.random(segments) < error
    probabilities[wrong] = 1 - probabilities[wrong]
    detected = probabilities_to_events(probabilities, starts, "szcore")
    return RecordingResult(name, subject, 5.0 * segments, starts, probabilities, seizures, detected)


@pytest.fixture(scope="module")
def cohort():
    results = []
    for index in range(6):
        seizures = [(600.0 * k + 13.0, 600.0 * k + 80.0) for k in range(1, 3 + index)]
        parts = [recording(f"S{index}", 720 * (1 + index), seizures, seed=index, error=0.01 * (1 + index))]
        if index == 5:
            parts.append(recording("S5", 500, [], seed=99, name="2"))
        results.append(SubjectResult(f"S{index}", parts))
    results.append(SubjectResult("none", [recording("none", 800, [], seed=7, error=0.0)]))
    return results


@pytest.fixture(scope="module")
def report(cohort):
    everybody = [result.subject for result in cohort]
    return cohort_report(cohort, {"everybody": everybody, "unseen": everybody[:4]}, resamples=200)


def summary(report, group, measure):
    rows = report.summary
    return rows[(rows["group"] == group) & (rows["measure"] == measure)].iloc[0]


def test_subject_rows(report, cohort):
    table = report.subjects.set_index("subject")
    assert table.loc["S5", "recordings"] == 2
    assert table.loc["S5", "seizures"] == 7
    assert table.loc["S5", "hours"] == pytest.approx((720 * 6 + 500) * 5 / 3600)
    for result in cohort[:6]:
        expected = cohen_kappa_score(result.labels, result.predictions)
        assert table.loc[result.subject, "kappa_whole"] == pytest.approx(expected)
    assert math.isnan(table.loc["none", "kappa"])
    assert table.loc["none", "draws_undefined"] == 250
    assert table.loc["none", "agreement"] == "undefined"


def disconnected(scored_segments=720, total=7200):
    """Ten hours of which the first is scored: one false event in it, one seizure in it and one in what was skipped."""
    starts = 5.0 * np.arange(total)
    probabilities = np.full(total, np.nan)
    probabilities[:scored_segments] = 0.1
    probabilities[100:104] = 0.9
    seizures, detected = [(1000.0, 1060.0), (20000.0, 20060.0)], [(500.0, 520.0)]
    return RecordingResult("r", "half", 5.0 * total, starts, probabilities, seizures, detected)


class TestSkipped:
    """Time without a probability is neither silence nor observation."""

    @pytest.mark.parametrize("mode", ["szcore", "paper"])
    def test_rates_are_per_scored_hour(self, mode):
        result = SubjectResult("half", [disconnected()], mode)
        assert (result.hours, result.hours_scored, result.hours_skipped) == (10.0, 1.0, 9.0)
        assert result.events.false_positives_per_hour == 1.0
        assert result.events.false_positives_per_day == 24.0
        # The skipped seizure stays missed.
        assert (result.num_seizures, result.seizures_skipped, result.events.reference) == (2, 1, 2)
        assert result.events.sensitivity == 0.0

    def test_segments_and_kappa_are_over_scored_segments(self):
        part = disconnected()
        result = SubjectResult("half", [part])
        # 720 scored segments: 12 of a seizure that was missed, 4 false positives.
        assert (result.segments.reference, result.segments.true_negatives) == (12, 704)
        assert result.segments.specificity == 704 / 708
        assert result.segments.hours == 1.0
        expected = cohen_kappa_score(part.labels[:720], part.predictions[:720])
        table = cohort_report([result], draws=20, resamples=20).subjects
        assert table.loc[0, "kappa_whole"] == pytest.approx(expected)
        columns = ["hours", "hours_scored", "hours_skipped", "seizures", "seizures_skipped"]
        assert table.loc[0, columns].tolist() == [10.0, 1.0, 9.0, 2, 1]

    def test_skipped_seconds_are_missed_in_a_seizure_and_else_do_not_count(self):
        scores = SubjectResult("half", [disconnected()]).seconds
        assert (scores.reference, scores.true_positives, scores.false_positives) == (120, 0, 20)
        assert (scores.hours, scores.true_negatives) == (1.0, 3600 - 60 - 20)

    def test_a_seizure_that_is_scored_in_part_is_not_skipped(self):
        part = disconnected()
        part.probabilities[4011] = 0.1  # 20055 to 20060 s
        assert part.seizures_skipped == 0
        assert part.skipped == [(3600.0, 20055.0), (20060.0, 36000.0)]

    def test_hours_of_several_recordings_add_up(self, cohort):
        whole = recording("half", 720, [(600.0, 660.0)], seed=0, error=0.0, name="2")
        result = SubjectResult("half", [disconnected(), whole])
        assert (result.hours, result.hours_scored) == (11.0, 2.0)
        assert result.events.false_positives_per_hour == 0.5
        assert cohort[5].hours_scored == pytest.approx(cohort[5].hours)
        assert cohort[5].hours_skipped == 0.0

    def test_a_subject_with_nothing_scored_has_no_rate_and_no_share(self):
        starts = 5.0 * np.arange(7200)
        blind = RecordingResult("q", "blind", 36000.04, starts, np.full(7200, np.nan), [(1000.0, 1060.0)], [])
        results = [SubjectResult("half", [disconnected()]), SubjectResult("blind", [blind])]
        report = cohort_report(results, draws=20, resamples=20)
        row = report.subjects.set_index("subject").loc["blind"]
        names = ("false_positives_per_hour", "segment_specificity", "second_specificity", "kappa", "kappa_whole")
        assert row[[*names, "kappa_stratified"]].isna().all()
        assert (row["hours_scored"], row["event_sensitivity"], row["seizures_skipped"]) == (0.0, 0.0, 1)
        groups = report.groups.iloc[0]
        assert (groups["subjects"], groups["subjects_scored"]) == (2, 1)
        assert groups["share_under_0.05_false_positives_per_hour"] == 0.0
        rate = summary(report, "all", "false_positives_per_hour")
        assert (rate["subjects"], rate["mean"], rate["pooled"]) == (1, 1.0, 1.0)
        seconds = summary(report, "all", "second_specificity")
        assert (seconds["subjects"], seconds["mean"], seconds["pooled"]) == (1, 3520 / 3540, 3520 / 3540)
        alone = cohort_report(results[1:], draws=20, resamples=20)
        assert math.isnan(alone.groups["share_under_0.05_false_positives_per_hour"][0])
        for draw in COHORT_PLOTS.values():
            assert draw(alone).axes


def test_means_and_pooled_values(report, cohort):
    people = cohort[:4]
    row = summary(report, "unseen", "kappa_whole")
    assert row["mean"] == pytest.approx(np.mean([cohen_kappa_score(p.labels, p.predictions) for p in people]))
    labels, predictions = (np.concatenate([getattr(p, name) for p in people]) for name in ("labels", "predictions"))
    assert row["pooled"] == pytest.approx(cohen_kappa_score(labels, predictions))
    assert row["mean_low"] <= row["mean"] <= row["mean_high"]
    assert row["pooled_low"] <= row["pooled"] <= row["pooled_high"]

    rate = summary(report, "unseen", "false_positives_per_hour")
    false, hours = sum(p.events.false_positives for p in people), sum(p.hours for p in people)
    assert rate["pooled"] == pytest.approx(false / hours)
    assert summary(report, "everybody", "kappa")["subjects"] == 6  # the subject without seizures has none


def test_stratified_kappa_comes_with_its_prevalence(tmp_path):
    sparse = recording("sparse", 17280, [(1000.0, 1014.0)], seed=0, error=0.001)  # 3 segments of 17280
    common = recording("common", 3000, [(1000.0, 2000.0)], seed=0, error=0.001)  # 200 of 3000
    never = recording("never", 3000, [], seed=0, error=0.001)
    results = [SubjectResult(part.subject, [part]) for part in (sparse, common, never)]
    report = cohort_report(results, draws=50, resamples=20)
    table = report.subjects.set_index("subject")
    np.testing.assert_allclose(table["prevalence"], [3 / 17280, 1 / 15, 0.0])
    np.testing.assert_allclose(table["prevalence_stratified"], [1 / 300, 1 / 15, 0.0])
    assert table.loc["sparse", "kappa_stratified"] > table.loc["sparse", "kappa_whole"] + 0.3
    axis = COHORT_PLOTS["kappa"](report).axes[0]
    (marked,) = [line for line in axis.lines if str(line.get_label()).startswith("not comparable")]
    order = report.subjects.sort_values("kappa_whole", ascending=False, na_position="last")["subject"].tolist()
    assert marked.get_xdata().tolist() == [order.index("sparse") + 0.2]
    report.save(tmp_path)
    assert "kappa and not comparable with it" in (tmp_path / "cohort.md").read_text()


def test_groups(report):
    groups = report.groups.set_index("group")
    assert groups.loc["everybody", "subjects"] == 7
    assert groups.loc["everybody", "subjects_without_kappa"] == 1
    table = report.subjects.head(4)
    expected = np.mean(table["false_positives_per_hour"] < 0.05)
    assert groups.loc["unseen", "share_under_0.05_false_positives_per_hour"] == expected
    for kind in ("kappa", "kappa_episodic"):
        assert groups.loc["unseen", f"share_at_expert_{kind}_0.53"] == np.mean(table[kind] >= 0.53)
        assert groups.loc["unseen", f"mean_{kind}_at_expert_level"] == (table[kind].mean() >= 0.53)


def test_regression_is_least_squares(report):
    table = report.subjects.dropna(subset="kappa")
    for regressor in ("hours", "seizures", "seizures_per_hour"):
        rows = report.regression.query("group == 'everybody' and outcome == 'kappa'").set_index("regressor")
        slope, intercept = np.polyfit(table[regressor], table["kappa"], 1)
        assert rows.loc[regressor, "slope"] == pytest.approx(slope)
        assert rows.loc[regressor, "intercept"] == pytest.approx(intercept)
        assert rows.loc[regressor, "r"] == pytest.approx(np.corrcoef(table[regressor], table["kappa"])[0, 1])


def test_joint_regression_is_that_of_scikit_learn(report):
    table = report.subjects
    names = ["hours", "seizures", "seizures_per_hour"]
    for outcome in ("kappa", "kappa_episodic"):
        part = table.dropna(subset=outcome)
        fit = LinearRegression().fit(part[names], part[outcome])
        rows = report.regression.query("group == 'everybody' and outcome == @outcome").set_index("regressor")
        assert rows.loc["joint", "r_squared"] == pytest.approx(fit.score(part[names], part[outcome]))
        assert rows.loc["joint", "r_squared"] >= rows.loc["hours", "r_squared"]
        assert math.isnan(rows.loc["joint", "slope"])


def test_p_of_the_joint_regression_is_uniform_where_nothing_depends_on_anything():
    generator = np.random.default_rng(0)
    values = [joint_regression(generator.normal(size=(20, 3)), generator.normal(size=20))[1] for _ in range(400)]
    assert kstest(values, "uniform").pvalue > 0.01
    assert all(map(math.isnan, joint_regression(np.ones((4, 3)), np.arange(4.0))))
    assert joint_regression(np.ones((9, 2)), np.arange(9.0))[0] == 0.0


def made_up_subject():
    """A detector that marks a third of each seizure and 16 segments elsewhere: poor raw, good after post-processing."""
    starts = 5.0 * np.arange(6000)
    seizures = [(5.0 * first, 5.0 * (first + 30)) for first in (200, 600, 1000, 1400)]
    probabilities = np.full(6000, 0.1)
    for first in (200, 600, 1000, 1400):
        probabilities[[first + place for place in (1, 4, 7, 10, 13, 16, 19, 22, 25, 27)]] = 0.9
    probabilities[227] = 0.1
    probabilities[1600 + 100 * np.arange(16)] = 0.9
    detected = probabilities_to_events(probabilities, starts, "paper")
    return RecordingResult("1", "A", 30_000.0, starts, probabilities, seizures, detected)


def test_kappa_on_post_processed_decisions_is_another_number():
    result = made_up_subject()
    row = cohort_report([SubjectResult("A", [result], "paper")], resamples=5).subjects.iloc[0]
    starts = result.starts
    after = np.zeros(6000, bool)
    for onset, offset in result.detected:
        after |= (starts < offset) & (starts + 5 > onset)
    assert row["kappa_whole"] == pytest.approx(cohen_kappa_score(result.labels, result.predictions))
    assert row["kappa_episodic_whole"] == pytest.approx(cohen_kappa_score(result.labels, after))
    assert (round(row["kappa_whole"], 2), round(row["kappa_episodic_whole"], 2)) == (0.44, 0.94)
    assert row["kappa"] == pytest.approx(0.44, abs=0.05)
    assert row["kappa_episodic"] == pytest.approx(0.94, abs=0.05)
    assert (row["agreement"], row["agreement_episodic"]) == ("moderate", "almost perfect")


def test_alarms_are_timed_and_counted():
    """Seizures at 23 s and 100 s; alarms at 25 to 35 s, at 60 s, and none in the second."""
    starts = 5.0 * np.arange(40)
    probabilities = np.full(40, 0.1)
    probabilities[[5, 6, 11]] = 0.9
    reference = [(23.0, 41.0), (100.0, 120.0)]
    result = RecordingResult("1", "A", 200.0, starts, probabilities, reference, [])
    online = SubjectResult("A", [result, result]).online
    assert online.delays[0] == 7.0  # the segment of 25 to 30 s is known at 30 s
    assert (online.sensitivity, online.delay, online.false_alarms) == (0.5, 7.0, 2)
    assert online.false_alarms_per_hour == pytest.approx(2 / (400 / 3600))
    row = cohort_report([SubjectResult("A", [result], alarm=OnlineRule(2, 2))], resamples=5).subjects.iloc[0]
    assert (row["alarm_sensitivity"], row["alarm_delay"], row["false_alarms_per_hour"]) == (0.5, 12.0, 0.0)
    marked_twice = [(-9.0, 0.0), (23.0, 41.0), (30.0, 35.0), (100.0, 110.0), (110.0, 120.0), (190.0, 500.0)]
    twice = SubjectResult("A", [RecordingResult("1", "A", 200.0, starts, probabilities, marked_twice, [])])
    assert len(twice.online.delays) == twice.num_seizures == 3
    silent = RecordingResult("1", "B", 200.0, starts, np.full(40, math.nan), [], [])
    assert math.isnan(silent.online(OnlineRule()).false_alarms_per_hour)


@pytest.mark.parametrize("members", [4, 7])
def test_regression_is_drawn_for_the_first_group(cohort, members):
    """For both kappas, points, ends of the line and its height are those of the group's subjects that have one."""
    everybody = [result.subject for result in cohort]
    report = cohort_report(cohort, {"first": everybody[:members], "rest": everybody}, draws=20, resamples=20)
    figure = COHORT_PLOTS["regression"](report)
    panels = itertools.product(("kappa_episodic", "kappa"), ("hours", "seizures", "seizures_per_hour"))
    for axis, (outcome, regressor) in zip(figure.axes, panels, strict=True):
        table = report.subjects.iloc[:members].dropna(subset=outcome)
        assert len(table) == min(members, 6)
        points = axis.collections[0].get_offsets()
        np.testing.assert_allclose(points, table[[regressor, outcome]])
        slope, intercept = np.polyfit(table[regressor], table[outcome], 1)
        ends = np.array([table[regressor].min(), table[regressor].max()])
        np.testing.assert_allclose(axis.lines[0].get_xdata(), ends)
        np.testing.assert_allclose(axis.lines[0].get_ydata(), intercept + slope * ends)
    assert "kappa, post-processed decisions" in figure.axes[0].get_ylabel()
    assert "kappa, raw decisions" in figure.axes[3].get_ylabel()


def test_convergence_is_drawn_for_both_kappas():
    result = SubjectResult("A", [made_up_subject()], "paper")
    report = cohort_report([result], draws=40, resamples=5)
    processed, raw = COHORT_PLOTS["convergence"](report).axes
    assert (processed.get_title(), raw.get_title()) == ("post-processed decisions", "raw decisions")
    for axis, estimates in ((processed, report.kappas_episodic), (raw, report.kappas)):
        assert axis.lines[0].get_ydata()[-1] == pytest.approx(np.nanmean(estimates["A"].values))


def test_bootstrap_interval_covers_the_mean():
    generator = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        values = generator.normal(1.0, 1.0, 40)
        low, high = bootstrap_interval(lambda rows, v=values: float(v[rows].mean()), 40, resamples=300, seed=seed)
        covered += low <= 1.0 <= high
    assert 0.88 < covered / 200 < 0.99
    assert all(map(math.isnan, bootstrap_interval(lambda rows: 1.0, 1)))


def test_files_and_figures(report, tmp_path):
    report.save(tmp_path)
    save_cohort_plots(report, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("cohort.md", "groups.csv", "summary.csv", "subjects.csv", "regression.csv"),
        *(f"{name}.png" for name in COHORT_PLOTS),
    }
    assert pd.read_csv(tmp_path / "subjects.csv")["subject"].tolist() == report.subjects["subject"].tolist()


def test_swec_groups_are_the_papers():
    everybody = [f"ID{i:02d}" for i in range(1, 69)]
    groups = swec_groups(everybody)
    assert {name: len(members) for name, members in groups.items()} == {"all50": 50, "unseen32": 32}
    assert "ID20" not in groups["unseen32"]  # the same recording as ID01, on which the paper trained
    assert swec_groups(["S01", "ID01"]) is None


def test_single_subject_has_no_interval(cohort):
    report = cohort_report(cohort[:1], resamples=50)
    row = summary(report, "all", "event_f1")
    assert math.isnan(row["mean_low"])
    assert not math.isnan(row["mean"])
    assert report.regression["slope"].isna().all()
    for draw in COHORT_PLOTS.values():
        assert draw(report).axes


def test_errors(cohort):
    refuses(cohort_report, "every subject once", [*cohort, cohort[0]])
    refuses(cohort_report, "group g names subjects without result: X", cohort, {"g": ["S0", "X"]})
    refuses(SubjectResult, "subject S must hold at least one recording", "S", [])


def test_markdown_shows_undefined_as_a_dash_and_keeps_bars_in_their_cell():
    text = markdown_table(pd.DataFrame({"a": [1.23456, math.nan], "b": ["x", "y|z"]}))
    assert text.splitlines()[2:] == ["| 1.235 | x |", r"| – | y\|z |"]
