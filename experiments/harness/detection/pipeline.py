"""From recordings to scores: pretraining, finetuning, detection, scoring; each stage is kept and not repeated.

A configuration names a row of a table. Its stages lie in folders named after what they depend on, so configurations
share a pretrained model, and a study that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from harness.detection.baselines import BASELINES, short_name
from harness.detection.settings import SIZES, Cohort, Configuration, Effort
from harness.detection.spread import SPREAD, spread
from harness.detection.training import Training, augmented, finetune, pretrain, scale_initialisation

from mvpa_ts.checks import grouped
from mvpa_ts.files import write_json
from mvpa_ts.ieeg import Detector, MVPFormer, MVPFormerConfig, Recording
from mvpa_ts.ieeg.detection.rules import RuleName, probabilities_to_events
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.preprocessing.selection import select_channels
from mvpa_ts.ieeg.recordings.noise import add_noise
from mvpa_ts.ieeg.scoring.cohort import CohortReport, cohort_report, swec_groups
from mvpa_ts.ieeg.scoring.results import RecordingResult, SubjectResult
from mvpa_ts.ieeg.scoring.scores import Mode, Scores, score_seconds

_BASE = ("size", "attention", "pretraining", "continued")
_FINETUNED = (*_BASE, "finetuning")
# The selection is that of the test: models are finetuned on the automatic channels, as in the paper's main results.
_TRAINED_CHANNELS: Literal["auto"] = "auto"


class Study:
    """Configurations on one cohort with one effort and seed, below one folder."""

    def __init__(self, cohort: Cohort, effort: Effort, folder: Path, seed: int = 0) -> None:
        self.cohort, self.effort, self.folder, self.seed = cohort, effort, folder, seed
        self._memory: dict[str, list[Segments]] = {}

    def run(self, configuration: Configuration) -> tuple[dict[str, Any], CohortReport]:
        """Row of the table and full report of a configuration."""
        started = time.perf_counter()
        model = self.finetuned(configuration)
        threshold = self.threshold(configuration, model)
        results = self.results(configuration, model, configuration.test, threshold)
        report = self.report(results)
        name = f"{configuration.name}-{self.effort.rules}-{self.seed}"
        report.save(self.folder / self.cohort.name / "reports" / name)
        row = summary_row(configuration.row, report, self.seed) | {
            "configuration": configuration.name,
            "threshold": threshold,
            "trained_share": self._trained_share(configuration),
            "seconds": time.perf_counter() - started,
        }
        return row, report

    def baseline(self, name: str) -> tuple[dict[str, Any], CohortReport]:
        """A baseline's row: the threshold that is best on the calibration recordings, applied to the test.

        Where there are none, those that it learns from choose the threshold.
        """
        started = time.perf_counter()
        score = spread if name == SPREAD else BASELINES[name](self.cohort.groups["finetuning"])
        calibration = "calibration" if "calibration" in self.cohort.groups else "finetuning"
        chosen_on, test = (
            [(recording, *score(recording)) for recording in self.cohort.groups[group]]
            for group in (calibration, "unseen")
        )
        threshold = best_threshold(chosen_on, self.effort.rules)
        report = self.report([result_of(*each, threshold, self.effort.rules) for each in test])
        row = summary_row(name, report, self.seed)
        return row | {
            "configuration": short_name(name),
            "threshold": threshold,
            "trained_share": 0.0,
            "seconds": time.perf_counter() - started,
        }, report

    def report(self, results: Sequence[RecordingResult]) -> CohortReport:
        """Tables over the subjects of these results."""
        by_subject = grouped((result.subject, result) for result in results)
        mode: Mode = self.effort.rules
        subjects = [SubjectResult(subject, parts, mode) for subject, parts in by_subject.items()]
        return cohort_report(subjects, swec_groups(by_subject), seed=self.seed)

    def config(self, configuration: Configuration) -> MVPFormerConfig:
        """The model's sizes and options."""
        changes = {"context": self.effort.context, "attention": configuration.attention, **(self.effort.model or {})}
        return SIZES[configuration.size](**changes | dict(configuration.model))

    def base(self, configuration: Configuration) -> MVPFormer:
        """The pretrained model, or fresh weights."""
        config = self.config(configuration)
        if configuration.pretraining is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                model = MVPFormer(config)
            if self.effort.recipe == "small":
                scale_initialisation(model)
            return model
        folder = self._stage("base", configuration, _BASE, "pretraining")
        if not (folder / "config.json").is_file():
            group, start = configuration.pretraining, None
            if configuration.continued is not None:
                group, start = configuration.continued, self.base(replace(configuration, continued=None))
            segments = self._prepared(self.cohort.groups[group])
            training = self.training(configuration, "pretraining", folder)
            pretrain(config, segments, training, start).save_pretrained(folder)
        return MVPFormer.from_pretrained(folder)

    def finetuned(self, configuration: Configuration) -> MVPFormer:
        """The model with its seizure head, adapters merged."""
        folder = self._stage("finetuned", configuration, _FINETUNED, "finetuning")
        if not (folder / "config.json").is_file():
            base = self.base(configuration)
            chosen = [with_channels(r, _TRAINED_CHANNELS, self.cohort) for r in self.cohort.groups["finetuning"]]
            training = self.training(configuration, "finetuning", folder)
            model, share = finetune(base, self._prepared(chosen), configuration.finetuning, training)
            write_json(folder / "trained_share.json", share)
            model.save_pretrained(folder)
        return MVPFormer.from_pretrained(folder)

    def threshold(self, configuration: Configuration, model: MVPFormer) -> float:
        """The best on the calibration recordings, without noise; 0.5, the argmax, where there are none."""
        if "calibration" not in self.cohort.groups:
            return 0.5
        quiet = replace(configuration, noise=None)
        return best_threshold(self._probabilities(quiet, model, "calibration"), self.effort.rules)

    def results(
        self, configuration: Configuration, model: MVPFormer, group: str, threshold: float
    ) -> list[RecordingResult]:
        """Detections in a group's recordings with their reference."""
        return [
            result_of(*each, threshold, self.effort.rules) for each in self._probabilities(configuration, model, group)
        ]

    def _probabilities(
        self, configuration: Configuration, model: MVPFormer, group: str
    ) -> list[tuple[Recording, npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        folder = self._stage("detections", configuration, (*_FINETUNED, "channels", "noise"), "finetuning")
        gpu = self.effort.accelerator in ("gpu", "cuda", "auto") and torch.cuda.is_available()
        found = []
        for recording in self.cohort.groups[group]:
            chosen = with_channels(recording, configuration.channels, self.cohort)
            if configuration.noise is not None:
                chosen = add_noise(chosen, configuration.noise, seed=self.seed)
            detector = Detector(model, channels="all", batch_size=8, device="cuda" if gpu else "cpu")
            detection = detector.detect(chosen, store=folder / f"{recording.name}.store")
            found.append((recording, detection.probabilities, detection.starts))
        return found

    def _prepared(self, recordings: Sequence[Recording]) -> list[Segments]:
        """Segments for training: read from their files, or in memory with augmented copies."""
        if not self.effort.copies:
            return [Segments(recording) for recording in recordings]
        for recording in recordings:
            if recording.name not in self._memory:
                self._memory[recording.name] = augmented(recording, self.effort.copies, self.seed)
        return [view for recording in recordings for view in self._memory[recording.name]]

    def training(
        self, configuration: Configuration, stage: Literal["pretraining", "finetuning"], folder: Path
    ) -> Training:
        """Settings of a stage's training in this folder."""
        effort = self.effort
        steps, rate = effort.pretraining_steps, effort.pretraining_rate
        if stage == "finetuning":
            steps = effort.finetuning_steps
            rate = effort.full_rate if configuration.finetuning == "full" else effort.finetuning_rate
        options: dict[str, Any] = {name: getattr(effort, name) for name in ("accelerator", "precision", "devices")}
        if effort.devices > 1:
            # The processes end with the training, so that one process detects and writes what follows.
            options["strategy"] = "ddp_spawn"
        batch = effort.batch(configuration.size)
        return Training(steps, rate, batch, effort.windows, folder, self.seed, options, effort.recipe)

    def _trained_share(self, configuration: Configuration) -> float:
        path = self._stage("finetuned", configuration, _FINETUNED, "finetuning") / "trained_share.json"
        return float(json.loads(path.read_text()))

    def _stage(self, stage: str, configuration: Configuration, fields: Sequence[str], effort: str) -> Path:
        """A folder named after all that the stage depends on."""
        chosen = {name: getattr(configuration, name) for name in fields}
        settings = {
            **chosen,
            "config": self.config(configuration).to_dict(),
            "effort": {
                name: value
                for name, value in asdict(self.effort).items()
                if name != "rules" and (effort == "finetuning" or not name.startswith(("finetuning", "full")))
            },
            "channels of": {"automatic": self.cohort.automatic, "manual": self.cohort.manual},
            "recordings": {
                group: [r.name for r in self.cohort.groups[group]]
                for group in (configuration.pretraining, configuration.continued, "finetuning")
                if group is not None
            },
            "seed": self.seed,
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:10]
        label = "-".join(str(value) for value in chosen.values() if value is not None)
        return self.folder / self.cohort.name / stage / f"{label}-{self.seed}-{digest}"


def with_channels(recording: Recording, channels: Literal["auto", "all", "manual"] | int, cohort: Cohort) -> Recording:
    """The recording with its selected channels."""
    if channels == "all":
        return recording
    if channels == "manual":
        subject = recording.subject_name
        if subject not in cohort.manual:
            raise ValueError(f"the table of manual channels must have every subject, it lacks {subject}")
        wanted = set(cohort.manual[subject])
        return recording.pick([name for name in recording.channel_names if name in wanted])
    count = cohort.automatic if channels == "auto" else channels
    if len(recording.channel_names) <= count:
        return recording
    return recording.pick(select_channels(Segments(recording), count))


def best_threshold(
    scored: Sequence[tuple[Recording, npt.NDArray[np.float64], npt.NDArray[np.float64]]], rules: RuleName
) -> float:
    """The threshold whose events cover the seizures best, by the pooled F1 of seconds; of equals the highest.

    Not by the F1 of events: that is high for a detection that never ends, because it overlaps every seizure and merged
    events are false only once.
    """
    values = np.concatenate([probabilities[~np.isnan(probabilities)] for _, probabilities, _ in scored])
    candidates = np.unique(np.quantile(values, np.linspace(0.5, 0.999, 80)))
    best = (-1.0, 0.5)
    for threshold in candidates:
        pooled = Scores.pooled(
            score_seconds(
                recording.seizures,
                probabilities_to_events(probabilities, starts, rules, threshold=float(threshold)),
                recording.duration,
            )
            for recording, probabilities, starts in scored
        )
        best = max(best, (0.0 if np.isnan(pooled.f1) else pooled.f1, float(threshold)))
    return best[1]


def summary_row(row: str, report: CohortReport, seed: int) -> dict[str, Any]:
    """Pooled and mean scores of the report's first group, and of ``unseen32`` where there is one."""
    summary = report.summary.set_index(["group", "measure"])
    values: dict[str, Any] = {"row": row, "seed": seed}
    for group in report.groups["group"]:
        suffix = "" if group == report.groups["group"].iloc[0] else f" ({group})"
        for measure in ("event_f1", "event_sensitivity", "event_precision", "false_positives_per_hour"):
            values[measure + suffix] = float(summary.loc[(group, measure), "pooled"])
        kappas = ("kappa", "kappa_episodic", "kappa_stratified", "kappa_whole")
        for measure in (*kappas, "segment_f1", "segment_specificity"):
            values[measure + suffix] = float(summary.loc[(group, measure), "mean"])
    groups = report.groups.iloc[0]
    return values | {
        "subjects": int(groups["subjects"]),
        "hours": float(groups["hours"]),
        "seizures": int(groups["seizures"]),
    }


def result_of(
    recording: Recording,
    probabilities: npt.NDArray[np.float64],
    starts: npt.NDArray[np.float64],
    threshold: float,
    rules: RuleName,
) -> RecordingResult:
    """A recording's probabilities and events with its true seizures."""
    return RecordingResult(
        recording.name,
        recording.subject_name,
        recording.duration,
        starts,
        probabilities,
        [*recording.seizures],
        probabilities_to_events(probabilities, starts, rules, threshold=threshold),
        threshold,
    )
