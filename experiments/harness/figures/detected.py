"""Figures of detections: how kappa converges over its draws, and the scores of each subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from harness.figures.style import BLUE, GREEN, GREY, ORANGE, RED

from mvpa_ts.ieeg.scoring import kappa
from mvpa_ts.ieeg.scoring.cohort import CohortReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def convergence(report: CohortReport) -> Figure:
    """Change of the running kappa from draw to draw, mean and deviation over subjects, and the means themselves."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 2.9), layout="constrained")
    kinds = (("raw decisions", report.kappas, BLUE), ("post-processed", report.kappas_episodic, ORANGE))
    for label, estimates, colour in kinds:
        curves = [kappa.convergence(estimate.values)[:, 0] for estimate in estimates.values()]
        curves = [curve for curve in curves if len(curve) > 1]
        if not curves:
            continue
        length = min(len(curve) for curve in curves)
        steps = np.array([np.abs(np.diff(curve[:length])) for curve in curves])
        draws = np.arange(2, length + 1)
        mean, deviation = steps.mean(0), steps.std(0)
        left.plot(draws, mean, color=colour, label=label)
        left.fill_between(draws, np.maximum(mean - deviation, 0), mean + deviation, color=colour, alpha=0.2, lw=0)
        for curve in curves:
            right.plot(np.arange(1, len(curve) + 1), curve, color=colour, lw=0.7)
    left.set(xlabel="draws of 300 segments", ylabel="|change of the running kappa|", xscale="log", ylim=(0, None))
    left.set_title(f"mean and deviation over {len(report.kappas)} subjects")
    left.legend()
    right.set(xlabel="draws of 300 segments", ylabel="running kappa", title="each subject")
    return figure


def scores(report: CohortReport) -> Figure:
    """F1, sensitivity and false detections of each subject, and both kappas with the intervals of their draws."""
    table = report.subjects.sort_values("kappa_episodic", ascending=False, na_position="last")
    places = np.arange(len(table))
    figure, axes = plt.subplots(3, 1, figsize=(10, 6), sharex=True, layout="constrained")
    measures = (("event_f1", "episodic F1", BLUE), ("event_sensitivity", "sensitivity", GREEN))
    for shift, (column, label, colour) in zip((-0.2, 0.0), measures, strict=True):
        axes[0].bar(places + shift, table[column], 0.18, color=colour, label=label)
    axes[0].bar(places + 0.2, table["segment_f1"], 0.18, color=GREY, label="raw F1")
    axes[0].set(ylim=(0, 1.05), ylabel="score")
    axes[0].legend(ncols=3, loc="upper left", bbox_to_anchor=(0, 1.3))
    axes[1].bar(places, table["false_positives_per_hour"], 0.5, color=RED)
    axes[1].set_ylabel("false detections/h")
    for shift, column, label, colour in (
        (-0.1, "kappa_episodic", "kappa, post-processed decisions", ORANGE),
        (0.1, "kappa", "kappa, raw decisions", BLUE),
    ):
        middle, low, high = (table[name].to_numpy(float) for name in (column, f"{column}_low", f"{column}_high"))
        error = np.nan_to_num(np.clip(np.stack([middle - low, high - middle]), 0, None))
        axes[2].errorbar(places + shift, middle, error, fmt="o", ms=4, capsize=2, color=colour, label=label)
    axes[2].axhline(kappa.EXPERT_KAPPA, color=GREY, ls="--", label=f"experts ({kappa.EXPERT_KAPPA})")
    axes[2].set_ylabel("Cohen's kappa")
    axes[2].legend(ncols=3, loc="upper left", bbox_to_anchor=(0, 1.3))
    axes[2].set_xticks(places, table["subject"])
    return figure
