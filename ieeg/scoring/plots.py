"""Figures of a cohort report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from mvpa_ts.ieeg.figures import GREEN, literal, save_figure, styled
from mvpa_ts.ieeg.scoring.cohort import QUIET, CohortReport
from mvpa_ts.ieeg.scoring.kappa import EXPERT_KAPPA, convergence
from mvpa_ts.ieeg.scoring.regression import JOINT, REGRESSORS
from mvpa_ts.ieeg.scoring.words import MIN_HOURS, MIN_SUBJECTS

# Columns of the two kappas, the paper's first, and what they are of.
KINDS = {"kappa_episodic": "post-processed decisions", "kappa": "raw decisions"}


@styled
def plot_kappas(report: CohortReport) -> Figure:
    """Plot kappa of every subject: uniform and stratified draws, whole recording, intervals, and the expert's level.

    Each stratified draw holds a seizure segment. If that makes seizures more frequent than they are, the circle is
    open: do not compare its kappa with the others.
    """
    table = report.subjects.sort_values("kappa_whole", ascending=False, na_position="last")
    figure, axis = plt.subplots(figsize=(max(6.0, 0.28 * len(table) + 2), 4), layout="constrained")
    places = np.arange(len(table))
    for shift, column, label in (
        (-0.2, "kappa", "raw decisions, uniform draws"),
        (0.0, "kappa_episodic", "post-processed decisions, uniform draws"),
        (0.2, "kappa_stratified", "raw decisions, stratified draws"),
    ):
        middle = table[column].to_numpy(float)
        low, high = (table[f"{column}_{end}"].to_numpy(float) for end in ("low", "high"))
        error = np.nan_to_num(np.clip(np.stack([middle - low, high - middle]), 0, None))
        axis.errorbar(places + shift, middle, error, fmt="o", markersize=3, capsize=2, label=label)
    # Kappa depends on how frequent seizures are, so these circles must not be compared with the others.
    # Rounding to whole segments alone makes seizures at most 4/3 times as frequent in stratified draws.
    raised = (table["prevalence_stratified"] > 1.5 * table["prevalence"]).to_numpy(bool)
    if raised.any():
        values, label = table["kappa_stratified"][raised], "not comparable: seizures made more frequent"
        axis.plot(places[raised] + 0.2, values, "o", color=GREEN, markerfacecolor="white", markersize=4, label=label)
    axis.plot(places, table["kappa_whole"], "k_", markersize=8, label="raw decisions, whole recording")
    axis.axhline(EXPERT_KAPPA, color="0.4", linestyle="--", label=f"experts ({EXPERT_KAPPA})")
    axis.set_xticks(places, [literal(subject) for subject in table["subject"]], rotation=90)
    axis.set(xlabel="subjects, from high to low kappa of the whole recording", xlim=(-0.6, len(table) - 0.4))
    axis.set_ylabel("Cohen's kappa")
    axis.legend()
    return figure


@styled
def plot_false_positives(report: CohortReport) -> Figure:
    """Plot sensitivity to events against false detections an hour, one point for each subject."""
    table = report.subjects
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    axis.scatter(table["false_positives_per_hour"], table["event_sensitivity"], s=18)
    axis.axvline(QUIET, color="0.4", linestyle="--", label=f"{QUIET} an hour")
    # Many subjects have no false detection at all, which a logarithm cannot show.
    axis.set_xscale("symlog", linthresh=0.01)
    axis.set(xlabel="false detections an hour", ylabel="sensitivity (events)", ylim=(-0.05, 1.05))
    axis.legend()
    return figure


@styled
def plot_regression(report: CohortReport) -> Figure:
    """Plot both kappas against length, number and rate of seizures: subjects of the first group, with a line each."""
    group = report.groups["group"].iloc[0]
    everybody = report.subjects[report.subjects["subject"].isin(report.members[group])]
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), sharex="col", sharey=True, layout="constrained")
    for row, (outcome, name) in zip(axes, KINDS.items(), strict=True):
        rows = report.regression[(report.regression["group"] == group) & (report.regression["outcome"] == outcome)]
        lines = rows.set_index("regressor")
        table = everybody.dropna(subset=outcome)
        for axis, column in zip(row, REGRESSORS, strict=True):
            x = table[column].to_numpy(float)
            axis.scatter(x, table[outcome], s=18)
            line = lines.loc[column]
            ends = np.array([x.min(), x.max()] if len(x) else [])
            axis.plot(ends, line["intercept"] + line["slope"] * ends, "k-")
            axis.set(title=f"r² = {line['r_squared']:.2f}, p = {line['p']:.2g}")
        joint = lines.loc[JOINT, "r_squared"]
        row[0].set_ylabel(f"kappa, {name}\n{len(table)} subjects; all three at once: R² = {joint:.2f}")
    for axis, label in zip(axes[-1], REGRESSORS.values(), strict=True):
        axis.set_xlabel(label)
    figure.suptitle(literal(group), fontsize="medium")
    return figure


@styled
def plot_convergence(report: CohortReport) -> Figure:
    """Plot the running mean of both kappas over the draws, one line a subject, to see if 250 draws are enough."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharex=True, sharey=True, layout="constrained")
    estimates = {"kappa": report.kappas, "kappa_episodic": report.kappas_episodic}
    for axis, (kind, name) in zip(axes, KINDS.items(), strict=True):
        for estimate in estimates[kind].values():
            curve = convergence(estimate.values)
            draws = np.arange(1, len(curve) + 1)
            (line,) = axis.plot(draws, curve[:, 0], linewidth=1)
            low, high = curve[:, 0] - curve[:, 1], curve[:, 0] + curve[:, 1]
            axis.fill_between(draws, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axis.set(title=name, xlabel="draws in which kappa is defined", ylim=(-0.3, 1.05))
    axes[0].set_ylabel("mean kappa, 95 % interval")
    return figure


@styled
def plot_scores(report: CohortReport) -> Figure:
    """Plot how event scores and raw segment scores spread over subjects."""
    names = {"sensitivity": "sensitivity", "precision": "precision", "f1": "F1"}
    columns = {f"{of}_{score}": f"{name}\n({of}s)" for of in ("event", "segment") for score, name in names.items()}
    columns["segment_specificity"] = "specificity\n(segments)"
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    values = [report.subjects[column].dropna().to_numpy(float) for column in columns]
    axis.boxplot(values, showfliers=False)
    generator = np.random.default_rng(0)
    for place, points in enumerate(values, start=1):
        axis.scatter(place + generator.uniform(-0.15, 0.15, len(points)), points, s=10, alpha=0.6)
    axis.set_xticks(range(1, len(columns) + 1), list(columns.values()), fontsize="small")
    axis.set(ylim=(-0.05, 1.05))
    return figure


# Name of each figure, which is its file's, and what draws it.
COHORT_PLOTS: dict[str, Callable[[CohortReport], Figure]] = {
    "kappa": plot_kappas,
    "scores": plot_scores,
    "false_positives": plot_false_positives,
    "regression": plot_regression,
    "convergence": plot_convergence,
}


def save_cohort_plots(report: CohortReport, folder: str | Path) -> list[Path]:
    """Write the figures as PNG for which there are hours and subjects enough; return the files."""
    few = len(report.subjects) < MIN_SUBJECTS
    short = report.subjects["hours_scored"].sum() < MIN_HOURS
    left_out = {"scores": few, "regression": few, "false_positives": short}
    paths = []
    for name, draw in COHORT_PLOTS.items():
        path = Path(folder) / f"{name}.png"
        if left_out.get(name):
            path.unlink(missing_ok=True)  # of an earlier run
            continue
        save_figure(draw(report), path, dpi=120)
        paths.append(path)
    return paths
