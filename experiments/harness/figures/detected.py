"""Figures of detections: how kappa converges over its draws, and the scores of each subject."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from harness.detection.pipeline import result_of
from harness.figures.style import BLUE, GREEN, GREY, ORANGE, RED

from mvpa_ts.ieeg import Detector, simulate_cohort
from mvpa_ts.ieeg.scoring.cohort import CohortReport, cohort_report
from mvpa_ts.ieeg.scoring.kappa import EXPERT_KAPPA, convergence
from mvpa_ts.ieeg.scoring.results import SubjectResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Detected:
    """Detections of the small detector in the box in simulated subjects that it never saw."""

    def __init__(self, *, quick: bool = False) -> None:
        self.quick = quick

    @cached_property
    def report(self) -> CohortReport:
        """By the paper's rules and scoring."""
        count, size = (2, (300.0, 1)) if self.quick else (12, (1800.0, 2))
        subjects = simulate_cohort(count, first_subject=101, num_channels=8, duration=size[0], num_seizures=size[1])
        detector = Detector("demo", rules="paper", channels="all", batch_size=16)
        results = []
        for recording in subjects:
            detection = detector.detect(recording)
            result = result_of(recording, detection.probabilities, detection.starts, detection.threshold, "paper")
            results.append(SubjectResult(result.subject, [result], "paper"))
        return cohort_report(results, seed=0)

    def convergence(self) -> Figure:
        """Change of the running kappa from draw to draw, mean and deviation over subjects, and the means themselves."""
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 2.9), layout="constrained")
        kinds = (("raw decisions", self.report.kappas, BLUE), ("post-processed", self.report.kappas_episodic, ORANGE))
        for label, estimates, colour in kinds:
            curves = [convergence(estimate.values)[:, 0] for estimate in estimates.values()]
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
        left.set_title(f"mean and deviation over {len(self.report.kappas)} subjects")
        left.legend()
        right.set(xlabel="draws of 300 segments", ylabel="running kappa", title="each subject")
        return figure

    def scores(self) -> Figure:
        """F1, sensitivity and false detections of each subject, and both kappas with the intervals of their draws."""
        table = self.report.subjects.sort_values("kappa_episodic", ascending=False, na_position="last")
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
        axes[2].axhline(EXPERT_KAPPA, color=GREY, ls="--", label=f"experts ({EXPERT_KAPPA})")
        axes[2].set_ylabel("Cohen's kappa")
        axes[2].legend(ncols=3, loc="upper left", bbox_to_anchor=(0, 1.3))
        axes[2].set_xticks(places, table["subject"])
        return figure
