"""Seizure detection on simulated subjects that training never saw: pretrain, finetune, detect, score.

A tiny MVPFormer is pretrained by next-segment prediction, finetuned with LoRA and, for comparison, in all weights, and
detects seizures in recordings of other subjects. Beside it: line length and logistic regression. All thresholds are
the best on validation subjects, who neither train nor test. How hard the simulated seizures are to tell from rhythmic
bursts and artefacts is the default of `mvpa_ts.ieeg.simulation.subject.Difficulty`, which was fixed before any
detector ran.

    python experiments/ieeg/demo_detect.py              # one seed, minutes on two cores; demo_detect_output/
    python experiments/ieeg/demo_detect.py --quick      # a few steps on short recordings, written to a temporary folder
    python experiments/ieeg/demo_detect.py --ablations  # also MV-Llama and no pretraining, three seeds; results/, where
                                                   # detection_demo.md holds the rows of the default command
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.baselines import BASELINES, INSTALLED, short_name
from harness.detection.pipeline import Study as Pipeline
from harness.detection.settings import Cohort, Configuration, Effort
from harness.study import Study, spread
from harness.tables import results_folder

from mvpa_ts.files import write_text
from mvpa_ts.ieeg import MVPFormer, simulate_cohort
from mvpa_ts.ieeg.commands import detect
from mvpa_ts.ieeg.constants import RESEARCH_USE
from mvpa_ts.ieeg.detection.rules import RuleName
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.scoring.plots import save_cohort_plots
from mvpa_ts.ieeg.simulation.writing import write_edf

LORA = Configuration("mvpformer", "MVPFormer-tiny, LoRA", size="tiny")
FULL = Configuration("full", "MVPFormer-tiny, all weights finetuned", size="tiny", finetuning="full")
ABLATIONS = (
    LORA,
    Configuration("mv-llama", "MV-Llama-tiny, LoRA", size="tiny", attention="llama"),
    FULL,
    Configuration(
        "mv-llama-full", "MV-Llama-tiny, all weights finetuned", size="tiny", attention="llama", finetuning="full"
    ),
    Configuration("blocks", "MVPFormer-tiny, all but the encoder finetuned", size="tiny", finetuning="blocks"),
    Configuration(
        "mv-llama-blocks",
        "MV-Llama-tiny, all but the encoder finetuned",
        size="tiny",
        attention="llama",
        finetuning="blocks",
    ),
    Configuration("no-pretraining", "MVPFormer-tiny, no pretraining", size="tiny", pretraining=None, finetuning="full"),
    Configuration("no-pretraining-lora", "MVPFormer-tiny, LoRA, no pretraining", size="tiny", pretraining=None),
    Configuration(
        "no-pretraining-blocks",
        "MVPFormer-tiny, all but the encoder, no pretraining",
        size="tiny",
        pretraining=None,
        finetuning="blocks",
    ),
)
SEEDS = (0, 1, 2)
BASELINE_NAMES = tuple(map(short_name, BASELINES))  # nothing about them depends on a seed
RULES: tuple[Literal["szcore", "paper"], ...] = ("szcore", "paper")
"""Post-processing and scoring; each has a threshold of its own."""
CHANNELS = (4, 6, 8)
EFFORT = Effort(
    context=4,
    pretraining_steps=400,
    finetuning_steps=2000,
    pretraining_rate=5e-4,
    finetuning_rate=5e-3,
    full_rate=3e-3,
    batch_size=24,
    windows=1,
    copies=32,
    model={"dropout": 0.0},
    accelerator="cpu",
    precision="32-true",
    devices=1,
    recipe="small",
)
QUICK = replace(EFFORT, pretraining_steps=3, finetuning_steps=3, batch_size=2, copies=2)
COLUMNS = {
    "row": "",
    "rules": "rules",
    "event_f1": "episodic F1",
    "event_sensitivity": "sensitivity",
    "false_positives_per_hour": "false detections/h",
    "kappa_episodic": "kappa, post-processed",
    "kappa": "kappa, raw",
    "kappa_stratified": "kappa, raw, stratified",
    "kappa_whole": "kappa, raw, whole",
    "trained_share": "share trained",
}


def main() -> None:
    """Run the study and write its table."""
    parser = script_parser(__doc__)
    parser.add_argument("--ablations", action="store_true", help="all models and three seeds; goes on after a stop")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="of --ablations (default: 0 1 2)")
    parser.add_argument("--output", type=Path, help="folder of models, stores and reports")
    parser.add_argument("--minutes", type=float, help="begin no row after so long")
    arguments = parser.parse_args()
    quick = arguments.quick
    torch.set_num_threads(1)
    print(RESEARCH_USE, flush=True)
    output = arguments.output or Path(tempfile.mkdtemp(prefix="mvpa-ts-") if quick else "demo_detect_output")
    cohort, effort = simulated(quick), QUICK if quick else EFFORT
    models, seeds, rules = (LORA, FULL), SEEDS[:1], RULES
    folder, name = output, "detection_demo"
    if arguments.ablations:
        models, seeds, name = ABLATIONS, arguments.seeds, "detection_ablations"
        folder = output if quick else results_folder("detection")
    elif quick:
        models, rules = (FULL,), RULES[:1]
    chosen = {short_name(name): name for name in INSTALLED} | {model.name: model for model in models}

    def measure(name: str, rules: RuleName, seed: int) -> dict[str, Any]:
        pipeline = Pipeline(cohort, replace(effort, rules=rules), output, seed)
        if isinstance(chosen[name], str):
            return pipeline.baseline(chosen[name])[0]
        row, scored = pipeline.run(chosen[name])
        save_cohort_plots(scored, output / "figures" / f"{name}-{rules}-{seed}")
        return row

    study = Study("detection", name, ["configuration", "rules", "seed"], report, table=folder / f"{name}.csv")
    cases = itertools.product(seeds, chosen, rules)
    cases = [(name, rule, seed) for seed, name, rule in cases if seed == SEEDS[0] or name not in BASELINE_NAMES]
    study.run(cases, measure, minutes=arguments.minutes)
    if arguments.ablations:
        write_text(folder / "detection_demo.md", report(default_rows(study.rows)))
        return
    last = study.rows[study.rows["configuration"] == FULL.name].iloc[-1]
    model = Pipeline(cohort, effort, output, SEEDS[0]).finetuned(FULL)
    command(model, cohort, output, last["threshold"], last["rules"])
    print(f"model: {output / 'model'}; figures: {output / 'figures'}")


def simulated(quick: bool) -> Cohort:
    """Training, validation and test subjects; 3 seizures in 20 minutes to learn from, 2 an hour to be found."""
    if quick:
        train = simulate_cohort(3, num_channels=CHANNELS, duration=180.0, num_seizures=2)
        test = simulate_cohort(2, num_channels=CHANNELS, first_subject=4, duration=180.0, num_seizures=1)
        validation = simulate_cohort(2, num_channels=CHANNELS, first_subject=6, duration=180.0, num_seizures=1)
    else:
        train = simulate_cohort(60, num_channels=CHANNELS, duration=1200.0, num_seizures=3)
        test = simulate_cohort(10, num_channels=CHANNELS, first_subject=61, duration=5400.0, num_seizures=3)
        validation = simulate_cohort(8, num_channels=CHANNELS, first_subject=71, duration=5400.0, num_seizures=3)
    return Cohort(
        "quick" if quick else "demo",
        {"pretraining": train, "finetuning": train, "calibration": validation, "unseen": test},
    )


def command(model: MVPFormer, cohort: Cohort, output: Path, threshold: float, rules: str) -> None:
    """Save the model and run ``mvpformer detect`` with it on one test recording as EDF."""
    model.save_pretrained(output / "model")
    recording = cohort.groups["unseen"][0]
    path = output / f"{recording.name}.edf"
    if not path.is_file():
        write_edf(recording, path)
    options = ["--model", str(output / "model"), "--threshold", str(threshold), "--channels", "all", "--rules", rules]
    detect.main([str(path), "-o", str(output / "detected"), *options])


def default_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of `rows` that a run without --ablations computes, in its order."""
    order = [(name, rules) for rules in RULES for name in (*BASELINE_NAMES, LORA.name, FULL.name)]
    rows = rows[rows["seed"] == SEEDS[0]].set_index(["configuration", "rules"])
    return rows.loc[[key for key in order if key in rows.index]].reset_index()


def report(rows: pd.DataFrame) -> str:
    """The table as Markdown: mean over seeds, with the standard deviation where there are several."""
    keys = ["row", "rules"]
    numbers = [name for name in COLUMNS if name not in keys]
    lines = [
        [*key, *(spread(group[name]) for name in numbers), len(group)] for key, group in rows.groupby(keys, sort=False)
    ]
    table = markdown_table(pd.DataFrame(lines, columns=[*(COLUMNS[c] for c in (*keys, *numbers)), "seeds"]))
    first = rows.iloc[0]
    return (
        f"Simulated data: {first['subjects']} unseen subjects, {first['hours']:.0f} h, {first['seizures']} seizures. "
        "Events and scores by SzCORE's rules and by the paper's, pooled over subjects; kappas are means over subjects, "
        "raw ones on the decision of each segment, post-processed ones on detected events; 250 draws of 300 segments. "
        f"Thresholds were chosen on validation subjects, who neither train nor test.\n\n{table}\n"
        f"{rows['seconds'].sum():.0f} s by the clock, beside other work: {', '.join(rows['hardware'].unique())}; "
        "1 thread.\n"
    )


if __name__ == "__main__":
    main()
