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
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.baselines import BASELINES, INSTALLED, short_name
from harness.detection.pipeline import Study
from harness.detection.settings import Cohort, Configuration, Effort
from harness.tables import hardware, results_folder

from mvpa_ts.files import write_text
from mvpa_ts.ieeg import MVPFormer, simulate_cohort
from mvpa_ts.ieeg.commands import detect
from mvpa_ts.ieeg.constants import RESEARCH_USE
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
    parser.add_argument("--minutes", type=float, help="with --ablations: begin no row after so long")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(RESEARCH_USE, flush=True)
    output = arguments.output or Path(tempfile.mkdtemp(prefix="mvpa-ts-") if arguments.quick else "demo_detect_output")
    cohort = simulated(arguments.quick)
    effort = QUICK if arguments.quick else EFFORT
    if arguments.ablations:
        results = output if arguments.quick else results_folder("detection")
        ablations(cohort, effort, output, results, arguments.seeds, arguments.minutes)
        return
    started = time.process_time(), time.perf_counter()
    rows = []
    for rules in RULES[: 1 if arguments.quick else None]:
        study = Study(cohort, replace(effort, rules=rules), output, seed=0)
        rows += [study.baseline(name)[0] | {"rules": rules} for name in INSTALLED]
        for configuration in (FULL,) if arguments.quick else (LORA, FULL):
            row, report = study.run(configuration)
            rows.append(row | {"rules": rules})
            save_cohort_plots(report, output / "figures" / f"{configuration.name}-{rules}")
    text = write_table(rows, output / "detection_demo.md", started)
    print(f"\n{text}")
    command(study.finetuned(FULL), cohort, output, row["threshold"], rules)
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


def ablations(
    cohort: Cohort, effort: Effort, output: Path, results: Path, seeds: Sequence[int], minutes: float | None
) -> None:
    """Rows of all models and seeds, each appended when it is done; rows that are there are not repeated."""
    path = results / "detection_ablations.csv"
    started = time.perf_counter()
    rows: list[dict[str, Any]] = pd.read_csv(path).to_dict("records") if path.is_file() else []
    done = {(row["configuration"], row["rules"], row["seed"]) for row in rows}
    for seed, chosen, rules in itertools.product(seeds, (*INSTALLED, *ABLATIONS), RULES):
        name = short_name(chosen) if isinstance(chosen, str) else chosen.name
        if (name, rules, seed) in done or (isinstance(chosen, str) and seed != SEEDS[0]):
            continue
        if minutes is not None and time.perf_counter() - started > 60 * minutes:
            print("time is up: start the same command again", flush=True)
            break
        study = Study(cohort, replace(effort, rules=rules), output, seed)
        row, _ = study.baseline(chosen) if isinstance(chosen, str) else study.run(chosen)
        rows.append(row | {"rules": rules, "hardware": hardware()})
        write_text(path, pd.DataFrame(rows).to_csv(index=False))
        print(f"{row['row']}, {rules}, seed {seed}: F1 {row['event_f1']:.3f}, raw kappa {row['kappa']:.3f}", flush=True)
    write_table(rows, path.with_suffix(".md"))
    if shown := default_rows(rows):
        write_table(shown, results / "detection_demo.md")


def default_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of `rows` that a run without --ablations computes, in its order."""
    names = [*map(short_name, BASELINES), LORA.name, FULL.name]
    wanted = {(name, rules, SEEDS[0]): place for place, (rules, name) in enumerate(itertools.product(RULES, names))}
    found = {wanted.get((row["configuration"], row["rules"], row["seed"]), -1): row for row in rows}
    return [row for place, row in sorted(found.items()) if place >= 0]


def write_table(rows: list[dict[str, Any]], path: Path, started: tuple[float, float] | None = None) -> str:
    """The table as Markdown: mean over seeds, with the standard deviation where there are several."""
    frame = pd.DataFrame(rows)
    keys = ["row", "rules"]
    numbers = [name for name in COLUMNS if name not in keys]
    lines = []
    for key, group in frame.groupby(keys, sort=False):
        mean, deviation = group[numbers].mean(), group[numbers].std()
        shown = [f"{mean[c]:.3f}" + (f" ± {deviation[c]:.3f}" if len(group) > 1 else "") for c in numbers]
        lines.append([*key, *shown, len(group)])
    table = markdown_table(pd.DataFrame(lines, columns=[*(COLUMNS[c] for c in (*keys, *numbers)), "seeds"]))
    first = frame.iloc[0]
    machines = ", ".join(frame["hardware"].unique()) if "hardware" in frame else hardware()
    if started is None:
        spent = f"{sum(row['seconds'] for row in rows):.0f} s by the clock, beside other work"
    else:
        cpu, wall = time.process_time() - started[0], time.perf_counter() - started[1]
        spent = f"{cpu:.0f} s of processor time, {wall:.0f} s by the clock (load {os.getloadavg()[0]:.0f})"
    text = (
        f"Simulated data: {first['subjects']} unseen subjects, {first['hours']:.0f} h, {first['seizures']} seizures. "
        "Events and scores by SzCORE's rules and by the paper's, pooled over subjects; kappas are means over subjects, "
        "raw ones on the decision of each segment, post-processed ones on detected events; 250 draws of 300 segments. "
        f"Thresholds were chosen on validation subjects, who neither train nor test.\n\n{table}\n"
        f"{spent}: {machines}; 1 thread, torch {torch.__version__}.\n"
    )
    write_text(path, text)
    return text


if __name__ == "__main__":
    main()
