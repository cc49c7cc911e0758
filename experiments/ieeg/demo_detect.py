"""Seizure detection on simulated subjects of the hard cohort, unseen in training: train, detect, score.

In the hard cohort (docs/recordings.md) amplitude lies, and a seizure differs from harmless runs of the same discharge
by how it spreads. A tiny MVPFormer is trained, and with --ablations also MV-Llama, MVPFormer without each term of its
score and a wider one; the pretrained one is tested under noise and on fewer channels, too. They stand beside line
length, two logistic regressions and a rule that knows how these seizures spread. All thresholds are the best on
validation subjects, who neither train nor test. The cohort was fixed before any network was trained on it.

    python experiments/ieeg/demo_detect.py              # one seed, minutes on two cores; demo_detect_output/
    python experiments/ieeg/demo_detect.py --quick      # a few steps on short recordings, written to a temporary folder
    python experiments/ieeg/demo_detect.py --ablations  # the paper's rows, three seeds; results/detection/hard_cohort.*
    python experiments/ieeg/demo_detect.py --few        # one to three seizures of a new subject; few_seizures.*
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection import paper_rows
from harness.detection.baselines import BASELINES, INSTALLED, read, short_name
from harness.detection.pipeline import Study as Pipeline
from harness.detection.results import MEASURES
from harness.detection.settings import Cohort, Configuration
from harness.detection.simulated import SIMULATED
from harness.detection.spread import SPREAD
from harness.detection.training import augmented, finetune
from harness.figures import detected, style
from harness.study import Study, spread
from harness.tables import results_folder
from sklearn.metrics import average_precision_score, roc_auc_score

from mvpa_ts.ieeg import Detector, MVPFormer, Recording, Segments, read_recording, simulate_cohort
from mvpa_ts.ieeg.commands import detect
from mvpa_ts.ieeg.constants import RESEARCH_USE
from mvpa_ts.ieeg.detection.baselines import fit_baselines
from mvpa_ts.ieeg.detection.features import TrainingFeatures
from mvpa_ts.ieeg.detection.linear import fit_linear
from mvpa_ts.ieeg.detection.rules import RuleName
from mvpa_ts.ieeg.scoring.cohort import CohortReport, markdown_table
from mvpa_ts.ieeg.scoring.plots import save_cohort_plots
from mvpa_ts.ieeg.simulation.writing import write_edf

FEWER = 6
"""Channels of the 8 or 12 that all other rows read."""
TINY = Configuration("mvpformer", "MVPFormer-tiny", size="tiny", pretraining=None, finetuning="blocks")


def changed(name: str, row: str, **changes: Any) -> Configuration:
    """Another configuration that is trained in the same way."""
    return replace(TINY, name=name, row=f"MVPFormer-tiny, {row}", **changes)


PRETRAINED = changed("pretrained", "pretrained", pretraining="pretraining", printed="MVPFormer-S")


def on_pretrained(name: str, row: str, printed: str | None = None, **changes: Any) -> Configuration:
    """The pretrained configuration, finetuned or tested differently; it is pretrained once."""
    return replace(PRETRAINED, name=name, row=f"{PRETRAINED.row}, {row}", printed=printed, **changes)


ABLATIONS = (
    replace(TINY, printed="18_patients_nopretrain"),
    replace(TINY, name="mv-llama", row="MV-Llama-tiny", attention="llama"),
    changed("no-channel", "no channel term", model=(("components", ("content", "time")),)),
    changed("no-time", "no time term", model=(("components", ("content", "channel")),)),
    changed("no-content", "no content term", model=(("components", ("time", "channel")),)),
    changed("suspicious", "most suspicious channels", model=(("pooling", "logsumexp"),)),
    PRETRAINED,
    *(
        on_pretrained(f"noise-{snr}", f"noise {snr} dB", f"18_patients_{snr}dB", noise=float(snr))
        for snr in (60, 50, 40, 30)
    ),
    on_pretrained("lora", "LoRA", finetuning="lora"),
    on_pretrained("head", "head only", finetuning="head"),
    on_pretrained("full", "all weights", finetuning="full"),
    on_pretrained("6-channels", f"{FEWER} channels by the paper's rule", channels=FEWER),
    on_pretrained("manual", f"{FEWER} channels chosen by hand", "18_patients_small_manual", channels="manual"),
    replace(PRETRAINED, name="small", row="MVPFormer-small, pretrained", size="small", printed="MVPFormer"),
    replace(
        PRETRAINED, name="mv-llama-pretrained", row="MV-Llama-tiny, pretrained", attention="llama", printed="MV-Llama"
    ),
)
SEEDS = (0, 1, 2)
BY_HAND = f"logistic regression, {FEWER} channels chosen by hand"
BASELINE_NAMES = tuple(map(short_name, (*BASELINES, BY_HAND, SPREAD)))  # nothing about them depends on a seed
RULES: tuple[Literal["szcore", "paper"], ...] = ("szcore", "paper")
"""Post-processing and scoring; each has a threshold of its own."""
COHORT_SEED, CHANNELS, RATE = 51, (8, 12), 256.0
EFFORT = replace(
    SIMULATED, pretraining_steps=200, finetuning_steps=300, batch_size=12, windows=4, copies=8, rules="szcore"
)
QUICK = replace(EFFORT, pretraining_steps=3, finetuning_steps=3, batch_size=2, copies=2)
FEW, FEW_SUBJECTS, FEW_STEPS = (1, 2, 3), range(301, 309), 120
"""Seizures to learn from, subjects who are in no group, and steps, as many as one patient's detector trains."""
DRAWN = (PRETRAINED.name, "paper", SEEDS[0])
"""The row whose subjects have figures of their own."""


def main() -> None:
    """Run the study and write its table."""
    parser = script_parser(__doc__)
    parser.add_argument("--ablations", action="store_true", help="all models and three seeds; goes on after a stop")
    parser.add_argument("--few", action="store_true", help="the curve of few seizures; goes on after a stop")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="of --ablations (default: 0 1 2)")
    parser.add_argument("--output", type=Path, help="folder of models, stores and reports")
    parser.add_argument("--minutes", type=float, help="begin no row after so long")
    arguments = parser.parse_args()
    quick = arguments.quick
    torch.set_num_threads(1)
    print(RESEARCH_USE, flush=True)
    output = arguments.output or Path(tempfile.mkdtemp(prefix="mvpa-ts-") if quick else "demo_detect_output")
    cohort, effort = simulated(output / "recordings", quick=quick), QUICK if quick else EFFORT
    if arguments.few or quick:
        few_seizures(Pipeline(cohort, effort, output, SEEDS[0]), output if quick else results_folder("detection"))
    if arguments.few:
        return
    models, seeds, rules = (TINY,), SEEDS[:1], RULES
    folder, name = output, "detection_demo"
    if arguments.ablations:
        models, seeds, name = ABLATIONS, arguments.seeds, "hard_cohort"
        folder = output if quick else results_folder("detection")
    elif quick:
        rules = RULES[:1]
    baselines = (*INSTALLED, *([BY_HAND] if arguments.ablations else []), SPREAD)
    chosen = {short_name(name): name for name in baselines} | {model.name: model for model in models}

    def measure(name: str, rules: RuleName, seed: int) -> dict[str, Any]:
        pipeline = Pipeline(cohort, replace(effort, rules=rules), output, seed)
        if chosen[name] == BY_HAND:
            groups = {"finetuning": cohort.groups["finetuning"]}
            for group in ("calibration", "unseen"):
                groups[group] = [each.pick(cohort.manual[each.subject_name]) for each in cohort.groups[group]]
            pipeline.cohort = replace(cohort, groups=groups)
            return pipeline.baseline("logistic regression")[0] | {"configuration": name, "row": BY_HAND}
        if isinstance(chosen[name], str):
            return pipeline.baseline(chosen[name])[0]
        row, scored = pipeline.run(chosen[name])
        save_cohort_plots(scored, output / "figures" / f"{name}-{rules}-{seed}")
        if quick or (name, rules, seed) == DRAWN:
            draw(scored, results_folder("figures", quick=quick))
        return row

    study = Study("detection", name, ["configuration", "rules", "seed"], report, table=folder / f"{name}.csv")
    cases = itertools.product(chosen, seeds, rules)
    cases = [(name, rule, seed) for name, seed, rule in cases if seed == SEEDS[0] or name not in BASELINE_NAMES]
    study.run(cases, measure, minutes=arguments.minutes)
    if arguments.ablations:
        return
    last = study.rows[study.rows["configuration"] == TINY.name].iloc[-1]
    model = Pipeline(cohort, effort, output, SEEDS[0]).finetuned(TINY)
    command(model, cohort, output, last["threshold"], last["rules"])
    print(f"model: {output / 'model'}; figures: {output / 'figures'}")


def simulated(folder: Path, *, quick: bool) -> Cohort:
    """Training, validation and test subjects, written once: seizures to learn from, and one an hour to be found."""
    hours, train_hours, seizures = (0.05, 0.05, 1) if quick else (2.0, 1 / 3, 2)
    many, validating, testing = (3, 2, 2) if quick else (24, 6, 8)
    train = [*written(folder, many, duration=3600 * train_hours, num_seizures=seizures)]
    validation = [*written(folder, validating, first_subject=101, duration=3600 * hours)]
    test = [*written(folder, testing, first_subject=201, duration=3600 * hours)]
    return Cohort(
        "quick" if quick else "hard",
        {"pretraining": train, "finetuning": train, "calibration": validation, "unseen": test},
        {recording.subject_name: chosen_by_hand(recording) for recording in [*validation, *test]},
    )


def chosen_by_hand(recording: Recording) -> list[str]:
    """The channels that a seizure in another recording of the subject reaches most, as an expert would know them."""
    (other,) = simulate_cohort(
        1, first_subject=int(recording.subject_name[1:]), seed=COHORT_SEED, num_channels=len(recording.channel_names),
        sfreq=RATE, cohort="hard", session=1, duration=600.0, num_seizures=1,
    )  # fmt: skip
    source: Any = other.source
    strength = np.abs(source._seizure(0)).sum(1)[source._order]
    return [recording.channel_names[index] for index in sorted(np.argsort(-strength)[:FEWER])]


def few_seizures(pipeline: Pipeline, folder: Path) -> None:
    """One to three seizures of a new subject train: rules, and networks with and without pretraining on the cohort."""
    bases = {model.row: pipeline.base(model) for model in ABLATIONS if model.name in ("mvpformer", "pretrained")}
    quick = pipeline.cohort.name == "quick"

    def measure(subject: int, seizures: int) -> Iterator[dict[str, Any]]:
        recordings = [
            simulate_cohort(
                1, first_subject=subject, seed=COHORT_SEED, num_channels=CHANNELS[subject % 2], sfreq=RATE,
                cohort="hard", session=session, duration=150.0 if quick else 1200.0, num_seizures=1,
            )[0]
            for session in range(2 * len(FEW))
        ]  # fmt: skip
        learnt, tests = recordings[:seizures], recordings[len(FEW) :]
        training = TrainingFeatures.of([Segments(recording) for recording in learnt])
        (_, regression), linear = fit_baselines(training), fit_linear(training)
        scores = {
            "line length": [read(test)[1] for test in tests],
            "logistic regression": [regression.of_features(read(test)[0]) for test in tests],
            "one patient's detector": [linear.probabilities(read(test)[0]) for test in tests],
        }
        views = [view for recording in learnt for view in augmented(recording, pipeline.effort.copies, pipeline.seed)]
        for name, base in bases.items():
            of_case = pipeline.folder / "few" / f"{subject}-{seizures}-{name}"
            settings = replace(pipeline.training(TINY, "finetuning", of_case), steps=3 if quick else FEW_STEPS)
            detector = Detector(finetune(base, views, TINY.finetuning, settings)[0], channels="all", batch_size=8)
            scores[name] = [detector.detect(test).probabilities for test in tests]
        labels = np.concatenate([read(test)[2] for test in tests])
        for name, parts in scores.items():
            values = np.concatenate(parts)
            scored = ~np.isnan(values)
            auroc = float(roc_auc_score(labels[scored], values[scored]))
            yield {
                "detector": name,
                "auroc": auroc,
                "auprc": float(average_precision_score(labels[scored], values[scored])),
            }

    key = ["subject", "seizures"]
    study = Study("detection", "few_seizures", key, few_report, table=folder / "few_seizures.csv")
    study.run(itertools.product(FEW_SUBJECTS[: 1 if quick else None], FEW[: 1 if quick else None]), measure)


def few_report(rows: pd.DataFrame) -> str:
    """Means over subjects for each detector and number of seizures, and what pretraining is worth."""
    lines = [
        {"": name, **{f"{measure}, {number}": spread(group.loc[group["seizures"] == number, column])
                      for measure, column in (("AUROC", "auroc"), ("AUPRC", "auprc")) for number in FEW}}
        for name, group in rows.groupby("detector", sort=False)
    ]  # fmt: skip
    by_case = rows.pivot(index=["seizures", "subject"], columns="detector", values="auroc")
    gained = by_case[PRETRAINED.row] - by_case[TINY.row]
    gains = "; ".join(f"{number}: {spread(group)}" for number, group in gained.groupby("seizures"))
    return (
        f"{rows['subject'].nunique()} new subjects of the hard cohort: one to three recordings of 20 minutes with a "
        f"seizure each train, and three others are scored, each row once. Networks train for {FEW_STEPS} steps from "
        "fresh weights, or from those that 24 other subjects pretrained without labels. AUROC and AUPRC of segments by "
        "the number of seizures, mean and standard deviation over subjects.\n\n"
        f"{markdown_table(pd.DataFrame(lines))}\nWhat pretraining adds to the AUROC, by seizures, with its standard "
        f"deviation over subjects: {gains}.\n\n{', '.join(rows['hardware'].unique())}; 1 thread.\n"
    )


def written(folder: Path, count: int, **settings: Any) -> Iterator[Recording]:
    """Recordings of the hard cohort as files, which are read many times."""
    for recording in simulate_cohort(
        count, seed=COHORT_SEED, num_channels=CHANNELS, sfreq=RATE, cohort="hard", **settings
    ):
        path = folder / f"{recording.subject}.edf"
        if not path.is_file():
            write_edf(recording, path)
        yield read_recording(path).with_seizures(recording.seizures)


def draw(scored: CohortReport, folder: Path) -> None:
    """Kappa over its draws, and the scores of each subject."""
    style.apply()
    for name, figure in (("kappa_convergence", detected.convergence), ("scores_by_subject", detected.scores)):
        style.save(figure(scored), folder, name)


def command(model: MVPFormer, cohort: Cohort, output: Path, threshold: float, rules: str) -> None:
    """Save the model and run ``mvpformer detect`` with it on one test recording as EDF."""
    model.save_pretrained(output / "model")
    recording = cohort.groups["unseen"][0]
    path = output / "recordings" / f"{recording.subject}.edf"
    options = ["--model", str(output / "model"), "--threshold", str(threshold), "--channels", "all", "--rules", rules]
    detect.main([str(path), "-o", str(output / "detected"), *options])


def report(rows: pd.DataFrame) -> str:
    """The table as Markdown: mean over seeds, with the standard deviation where there are several, and the paper's."""
    cited = {model.row: model.printed for model in ABLATIONS if model.printed}
    pages = []
    for rules, heading in (("szcore", "SzCORE's rules"), ("paper", "the paper's rules")):
        lines = []
        for row, group in rows[rows["rules"] == rules].groupby("row", sort=False):
            lines.append([row, *(spread(group[name]) for name in MEASURES)])
            if rules == "paper" and row in cited:
                lines.append(cited_line("*the paper*", cited[row]))
        if rules == "paper":
            lines += [cited_line(f"*the paper: {model}*", name) for model, name in paper_rows.CITED.items()]
        pages.append(markdown_table(pd.DataFrame(lines, columns=[heading, *MEASURES.values()])))
    tables = "\n".join(pages)
    first = rows.iloc[0]
    return (
        f"Simulated data: {first['subjects']} unseen subjects, {first['hours']:.0f} h, {first['seizures']} seizures. "
        f"Networks: {rows['seed'].nunique()} seed(s), mean ± standard deviation. Events "
        "are pooled; kappas are means over subjects, raw ones of segments, post-processed ones of events. "
        "Thresholds were chosen on validation subjects, who neither train nor test and are without noise. Models read "
        f"all 8 or 12 channels in training, and in the test unless the row says {FEWER}. Numbers in italics are "
        "printed in the paper: of patients, and of models a thousand times as large. They show which of its rows is "
        f"meant; tiny stands for its S, small for M.\n\n{tables}\n"
        f"{rows['seconds'].sum():.0f} s by the clock, beside other work: {', '.join(rows['hardware'].unique())}; "
        "1 thread.\n"
    )


def cited_line(name: str, printed: str) -> list[str]:
    """The paper's numbers of these measures; a dash where it prints none."""
    values = pd.Series(paper_rows.printed(printed)).reindex([*MEASURES])
    return [name, *("–" if pd.isna(value) else f"*{value:.2f}*" for value in values)]


if __name__ == "__main__":
    main()
