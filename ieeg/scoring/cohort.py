"""Scores of a cohort: one row for each subject; means, pooled values and bootstrap intervals for groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from mvpa_ts.files import write_csv, write_text
from mvpa_ts.ieeg.scoring.comparison import compare_results, ranking
from mvpa_ts.ieeg.scoring.kappa import EXPERT_KAPPA, KappaEstimate, Scheme, sampled_kappa
from mvpa_ts.ieeg.scoring.regression import COLUMNS, regression_rows
from mvpa_ts.ieeg.scoring.results import SubjectResult
from mvpa_ts.ieeg.scoring.scores import Scores
from mvpa_ts.ieeg.scoring.words import MIN_HOURS, MIN_SUBJECTS, in_words

# Subjects with fewer false detections an hour than this are counted; of the paper's, 81 % have fewer.
QUIET = 0.05

# Columns of the table that are averaged over subjects.
MEASURES = (
    *("kappa", "kappa_stratified", "kappa_whole", "kappa_episodic", "kappa_episodic_whole"),
    *("event_sensitivity", "event_precision", "event_f1", "false_positives_per_hour", "false_positives_per_day"),
    *("segment_auroc", "segment_auprc"),
    *("segment_sensitivity", "segment_precision", "segment_f1", "segment_specificity"),
    *("second_sensitivity", "second_precision", "second_f1", "second_specificity"),
    *("alarm_sensitivity", "alarm_delay", "false_alarms_per_hour"),
)

RATES = ("false_positives_per_hour", "false_positives_per_day", "false_alarms_per_hour")
# Columns of the table of subjects that are shown; its file has all.
MAIN_COLUMNS = (
    *("subject", "in_training", "recordings", "hours", "hours_scored", "seizures", "seizures_skipped"),
    *("event_sensitivity", "event_precision", "event_f1", *RATES, "alarm_sensitivity", "alarm_delay"),
    *("segment_auroc", "segment_auprc", "false_event_seconds"),
    *("segment_sensitivity", "segment_specificity", "kappa_whole", "kappa_episodic", "kappa", "kappa_stratified"),
    *("prevalence", "prevalence_stratified"),
)

_NOTE = """All columns are in `subjects.csv`, all rows in the other .csv files.

`kappa`, `kappa_stratified` and `kappa_whole` are on raw decisions, one for each segment. `kappa_episodic`
and `kappa_episodic_whole` are on post-processed ones, which are positive where a detected event lies; the paper's kappa
is `kappa_episodic`. `alarm_delay` is the median of seconds from onset to alarm, over seizures with an alarm.

`kappa_stratified` is kappa at `prevalence_stratified`, the share of seizure segments in its draws: each
holds one at least. Where that is more than `prevalence`, the share in what was scored, it is higher than the
recording's kappa and not comparable with it.
"""


@dataclass(frozen=True)
class CohortReport:
    """Tables of a cohort; see `cohort_report`.

    Attributes
    ----------
    subjects : DataFrame
        One row for each subject. `prevalence` is the share of seizure segments. `kappa_stratified` is kappa at
        `prevalence_stratified`. If seizures are rare, that is far above `prevalence`; do not compare with `kappa_whole`
        then.
    summary : DataFrame
        One row for each group and measure: mean over subjects, pooled value, and their bootstrap intervals.
    groups : DataFrame
        One row for each group: number of subjects, share of them with less than 0.05 false detections an hour, and
        share at expert agreement by `kappa` (raw decisions) and by `kappa_episodic` (post-processed ones). Subjects of
        whom nothing was scored do not count in the shares.
    regression : DataFrame
        One row for each group, outcome (kappa on raw or on post-processed decisions) and regressor: length, number and
        rate of seizures. The regressor "joint" is all three at once; it has R² and p of the F-test, but no slope.
    kappas, kappas_episodic : mapping
        Draws of each subject, on raw and on post-processed decisions.
    members : mapping
        Subjects of each group.
    words : sequence of str
        What was found, in a sentence, and what these numbers cannot tell; see `in_words`.
    """

    subjects: pd.DataFrame
    summary: pd.DataFrame
    groups: pd.DataFrame
    regression: pd.DataFrame
    kappas: Mapping[str, KappaEstimate]
    kappas_episodic: Mapping[str, KappaEstimate]
    members: Mapping[str, Sequence[str]]
    words: Sequence[str] = ()

    def save(self, folder: str | Path) -> None:
        """Write the four tables as CSV, and last one page ``cohort.md`` with those that say something."""
        (Path(folder) / "cohort.md").unlink(missing_ok=True)
        page = [f"{sentence}\n" for sentence in self.words]
        for name in ("groups", "summary", "subjects", "regression"):
            write_csv(Path(folder) / f"{name}.csv", getattr(self, name))
            if len(frame := self.shown(name)):
                page.append(f"## {name.capitalize()}\n\n{markdown_table(frame)}\n")
        page.append(_NOTE)
        write_text(Path(folder) / "cohort.md", "\n".join(page))

    def shown(self, name: str) -> pd.DataFrame:
        """One of the four tables as it is shown: without columns and rows that say nothing in a cohort of this size.

        The table of subjects has its main columns, with few subjects as rows; the CSV file has all. Rates need an hour
        (`MIN_HOURS`). Means, shares and regressions over subjects need three of them (`MIN_SUBJECTS`).
        """
        frame: pd.DataFrame = getattr(self, name)
        few, short = len(self.subjects) < MIN_SUBJECTS, self.subjects["hours_scored"].sum() < MIN_HOURS
        if name == "regression":
            return frame.dropna(subset="r_squared")
        if name != "subjects" and few:
            return frame[:0]
        if name == "summary" and short:
            return frame[~frame["measure"].isin(RATES)]
        if name != "subjects":
            return frame
        frame = frame[[*MAIN_COLUMNS]].copy()
        frame.loc[frame["hours_scored"] < MIN_HOURS, [*RATES]] = math.nan
        if not few:
            return frame
        # With a few subjects a row for each column is read more easily than twenty columns.
        turned = frame.set_index("subject").T.dropna(how="all")
        return turned.rename_axis(columns=None).rename_axis("").reset_index()


def cohort_report(
    results: Sequence[SubjectResult],
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    draws: int = 250,
    resamples: int = 2000,
    seed: int = 0,
) -> CohortReport:
    """Score a cohort.

    Parameters
    ----------
    results : sequence of SubjectResult
    groups : mapping of name to subjects, optional
        For SWEC ``all50`` and ``unseen32``; see `mvpa_ts.ieeg.datasets.cohort`. Default: all subjects, as "all".
    draws
        As in `sampled_kappa`.
    resamples : int, default 2000
        Bootstrap samples, drawn over subjects, because segments of one subject are not independent.
    seed : int, default 0

    Raises
    ------
    ValueError
        There is no subject, a subject appears twice, or a group names a subject without a result.
    """
    names = [result.subject for result in results]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"results must hold every subject once and at least one, got {names}")
    # Every group is scored as a cohort of its own, as the paper's 50 subjects and the 32 unseen ones are.
    chosen = {"all": names} if groups is None else {name: list(members) for name, members in groups.items()}
    for name, members in chosen.items():
        if missing := sorted(set(members) - set(names)):
            raise ValueError(f"group {name} names subjects without result: {', '.join(missing)}")

    def estimate(result: SubjectResult, decisions: str, scheme: Scheme) -> KappaEstimate:
        if not result.hours_scored:
            return KappaEstimate(np.full(draws, math.nan), math.nan, draws, scheme, *[math.nan] * 5)
        return sampled_kappa(result.labels, getattr(result, decisions), draws=draws, scheme=scheme, seed=seed)

    kappas = {result.subject: estimate(result, "predictions", "uniform") for result in results}
    stratified = {result.subject: estimate(result, "predictions", "stratified") for result in results}
    episodic = {result.subject: estimate(result, "episodic", "uniform") for result in results}
    estimates = kappas, stratified, episodic
    table = pd.DataFrame([_row(result, *(of[result.subject] for of in estimates)) for result in results])
    by_name = {result.subject: result for result in results}
    summaries, shares, regressions = [], [], []
    for name, members in chosen.items():
        rows = table[table["subject"].isin(members)]
        people = [by_name[member] for member in members]
        summaries += _summary(name, rows, people, resamples, seed)
        shares.append(_shares(name, rows))
        regressions += regression_rows(name, rows)
    regression = pd.DataFrame(regressions, columns=COLUMNS)
    tables = table, pd.DataFrame(summaries), pd.DataFrame(shares), regression
    return CohortReport(*tables, kappas, episodic, chosen, (*in_words(results), *compare_results(results).words()))


def swec_groups(subjects: Iterable[str]) -> dict[str, list[str]] | None:
    """Return the paper's test subjects as group ``all50``, and those who were not trained on as ``unseen32``.

    None if no subject is one of SWEC's 50. The groups hold only the given subjects; the report states how many.

    Examples
    --------
    >>> swec_groups(["ID19", "ID20", "ID68"])
    {'all50': ['ID19', 'ID20', 'ID68'], 'unseen32': ['ID19', 'ID68']}
    """
    from mvpa_ts.ieeg.datasets.cohort import PAPER_TEST, UNSEEN32

    names = list(subjects)
    members = {"all50": PAPER_TEST, "unseen32": UNSEEN32}
    groups = {group: [name for name in names if name in everyone] for group, everyone in members.items()}
    return {group: present for group, present in groups.items() if present} or None


def bootstrap_interval(
    statistic: Callable[[npt.NDArray[np.intp]], float], count: int, *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile interval of a statistic of rows drawn with replacement; NaN for fewer than two rows.

    `statistic` receives row numbers [count]. Samples in which it is NaN are left out.
    """
    if count < 2:
        return math.nan, math.nan
    generator = np.random.default_rng(seed)
    # Subjects are drawn, not segments: those of one subject are alike and would make intervals too narrow.
    values = np.array([statistic(generator.integers(0, count, count)) for _ in range(resamples)])
    values = values[~np.isnan(values)]
    if not values.size:
        return math.nan, math.nan
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def markdown_table(frame: pd.DataFrame) -> str:
    """Write a frame as a Markdown table, numbers with three decimals, NaN as a dash."""

    def cell(value: object) -> str:
        if isinstance(value, float):
            return "–" if math.isnan(value) else f"{value:.3f}"
        return str(value).replace("|", r"\|")

    rows = [[cell(value) for value in row] for row in frame.itertuples(index=False, name=None)]
    lines = [list(map(str, frame.columns)), ["---"] * len(frame.columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _row(
    result: SubjectResult, kappa: KappaEstimate, stratified: KappaEstimate, episodic: KappaEstimate
) -> dict[str, object]:
    events, segments, seconds = result.events, result.segments, result.seconds
    auroc, auprc = ranking(result.labels, result.probabilities)
    return {
        "subject": result.subject,
        "in_training": result.in_training,
        "recordings": len(result.recordings),
        **{name: getattr(result, name) for name in ("hours", "hours_scored", "hours_skipped")},
        "seizures": result.num_seizures,
        "seizures_skipped": result.seizures_skipped,
        "seizures_per_hour": result.num_seizures / result.hours,
        **_interval("kappa", kappa),
        "draws_undefined": kappa.undefined,
        "agreement": kappa.label,
        **_interval("kappa_stratified", stratified),
        "prevalence": result.segments.prevalence,
        "prevalence_stratified": stratified.prevalence,
        **{f"kappa_{name}": getattr(kappa, name) for name in ("whole", "whole_low", "whole_high")},
        **_interval("kappa_episodic", episodic),
        "agreement_episodic": episodic.label,
        "kappa_episodic_whole": episodic.whole,
        **{name: getattr(events, name) for name in ("false_positives_per_hour", "false_positives_per_day")},
        **{f"event_{name}": getattr(events, name) for name in ("sensitivity", "precision", "f1")},
        **{f"segment_{name}": getattr(segments, name) for name in ("sensitivity", "precision", "f1", "specificity")},
        **{f"second_{name}": getattr(seconds, name) for name in ("sensitivity", "precision", "f1", "specificity")},
        "segment_auroc": auroc,
        "segment_auprc": auprc,
        "false_event_seconds": seconds.false_positives,
        "alarm_sensitivity": result.online.sensitivity,
        "alarm_delay": result.online.delay,
        "false_alarms_per_hour": result.online.false_alarms_per_hour,
    }


def _interval(name: str, kappa: KappaEstimate) -> dict[str, object]:
    return {name: kappa.mean, f"{name}_low": kappa.low, f"{name}_high": kappa.high}


def _pooled(people: Sequence[SubjectResult]) -> dict[str, Callable[[npt.NDArray[np.intp]], float]]:

    def score(unit: str, name: str) -> Callable[[npt.NDArray[np.intp]], float]:
        scores = [getattr(person, unit) for person in people]
        return lambda rows: float(getattr(Scores.pooled(scores[row] for row in rows), name))

    measures = {
        f"{prefix}_{name}": score(unit, name)
        for prefix, unit in (("event", "events"), ("segment", "segments"), ("second", "seconds"))
        for name in ("sensitivity", "precision", "f1", "specificity")
    }
    measures |= {name: score("events", name) for name in ("false_positives_per_hour", "false_positives_per_day")}
    return {**measures, "kappa_whole": score("segments", "kappa")}


def _summary(
    group: str, table: pd.DataFrame, people: Sequence[SubjectResult], resamples: int, seed: int
) -> list[dict[str, object]]:
    pooled = _pooled(people)
    everyone = np.arange(len(people))
    interval = partial(bootstrap_interval, resamples=resamples, seed=seed)
    rows = []
    for measure in MEASURES:
        values = table[measure].to_numpy(np.float64)
        defined = values[~np.isnan(values)]
        low, high = interval(_mean_of(defined), len(defined))
        row: dict[str, object] = {
            "group": group,
            "measure": measure,
            "subjects": len(defined),
            "mean": float(defined.mean()) if defined.size else math.nan,
            "mean_low": low,
            "mean_high": high,
            **dict.fromkeys(("pooled", "pooled_low", "pooled_high"), math.nan),
        }
        if measure in pooled:
            row["pooled"] = pooled[measure](everyone)
            row["pooled_low"], row["pooled_high"] = interval(pooled[measure], len(people))
        rows.append(row)
    return rows


def _mean_of(values: npt.NDArray[np.float64]) -> Callable[[npt.NDArray[np.intp]], float]:
    return lambda rows: float(values[rows].mean())


def _shares(group: str, table: pd.DataFrame) -> dict[str, object]:
    scored = table[table["hours_scored"] > 0]
    # Subjects of whom nothing was scored have no rate, and would count as quiet.
    rates = scored["false_positives_per_hour"].to_numpy(np.float64)
    kinds = ("kappa", "kappa_episodic")
    shares = {kind: np.mean(scored[kind].to_numpy(np.float64) >= EXPERT_KAPPA) for kind in kinds if len(scored)}
    return {
        "group": group,
        "subjects": len(table),
        "subjects_scored": len(scored),
        **{name: float(table[name].sum()) for name in ("hours", "hours_scored", "hours_skipped")},
        **{name: int(table[name].sum()) for name in ("seizures", "seizures_skipped")},
        f"share_under_{QUIET}_false_positives_per_hour": float(np.mean(rates < QUIET)) if len(scored) else math.nan,
        **{f"share_at_expert_{kind}_{EXPERT_KAPPA}": float(shares.get(kind, math.nan)) for kind in kinds},
        # The mean of no kappa is NaN, which is not at that level.
        **{f"mean_{kind}_at_expert_level": bool(table[kind].mean() >= EXPERT_KAPPA) for kind in kinds},
        "subjects_without_kappa": int(table["kappa"].isna().sum()),
    }
