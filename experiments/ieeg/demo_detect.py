"""Seizure detection on simulated subjects of the hard cohort, unseen in training: train, detect, score.

In the hard cohort (docs/recordings.md) amplitude lies, and a seizure differs from harmless runs of the same discharge
by how it spreads. A tiny MVPFormer, MV-Llama and MVPFormer without each term of its score are trained, and stand beside
line length, two logistic regressions and a rule that knows how these seizures spread. All thresholds are the best on
validation subjects, who neither train nor test. The cohort was fixed before any network was trained on it.

    python experiments/ieeg/demo_detect.py              # one seed, minutes on two cores; demo_detect_output/
    python experiments/ieeg/demo_detect.py --quick      # a few steps on short recordings, written to a temporary folder
    python experiments/ieeg/demo_detect.py --ablations  # all models, three seeds; results/detection/hard_cohort.*
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

import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.baselines import BASELINES, INSTALLED, short_name
from harness.detection.pipeline import Study as Pipeline
from harness.detection.settings import Cohort, Configuration, Effort
from harness.detection.spread import SPREAD
from harness.study import Study, spread
from harness.tables import results_folder

from mvpa_ts.ieeg import MVPFormer, Recording, read_recording, simulate_cohort
from mvpa_ts.ieeg.commands import detect
from mvpa_ts.ieeg.constants import RESEARCH_USE
from mvpa_ts.ieeg.detection.rules import RuleName
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.scoring.plots import save_cohort_plots
from mvpa_ts.ieeg.simulation.writing import write_edf

TINY = Configuration("mvpformer", "MVPFormer-tiny", size="tiny", pretraining=None, finetuning="blocks")


def changed(name: str, row: str, **changes: Any) -> Configuration:
    """Another configuration that is trained in the same way."""
    return replace(TINY, name=name, row=f"MVPFormer-tiny, {row}", **changes)


ABLATIONS = (
    TINY,
    replace(TINY, name="mv-llama", row="MV-Llama-tiny", attention="llama"),
    changed("no-channel", "no channel term", model=(("components", ("content", "time")),)),
    changed("no-time", "no time term", model=(("components", ("content", "channel")),)),
    changed("no-content", "no content term", model=(("components", ("time", "channel")),)),
    changed("pretrained", "pretrained", pretraining="pretraining"),
    changed("suspicious", "most suspicious channels", model=(("pooling", "logsumexp"),)),
)
SEEDS = (0, 1, 2)
BASELINE_NAMES = tuple(map(short_name, (*BASELINES, SPREAD)))  # nothing about them depends on a seed
RULES: tuple[Literal["szcore", "paper"], ...] = ("szcore", "paper")
"""Post-processing and scoring; each has a threshold of its own."""
COHORT_SEED, CHANNELS, RATE = 51, (8, 12), 256.0
EFFORT = Effort(
    context=4,
    pretraining_steps=200,
    finetuning_steps=300,
    pretraining_rate=5e-4,
    finetuning_rate=5e-3,
    full_rate=3e-3,
    batch_size=12,
    windows=4,
    copies=8,
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
    cohort, effort = simulated(output / "recordings", quick=quick), QUICK if quick else EFFORT
    models, seeds, rules = (TINY,), SEEDS[:1], RULES
    folder, name = output, "detection_demo"
    if arguments.ablations:
        models, seeds, name = ABLATIONS, arguments.seeds, "hard_cohort"
        folder = output if quick else results_folder("detection")
    elif quick:
        rules = RULES[:1]
    baselines = (*INSTALLED, SPREAD)
    chosen = {short_name(name): name for name in baselines} | {model.name: model for model in models}

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


def command(model: MVPFormer, cohort: Cohort, output: Path, threshold: float, rules: str) -> None:
    """Save the model and run ``mvpformer detect`` with it on one test recording as EDF."""
    model.save_pretrained(output / "model")
    recording = cohort.groups["unseen"][0]
    path = output / "recordings" / f"{recording.subject}.edf"
    options = ["--model", str(output / "model"), "--threshold", str(threshold), "--channels", "all", "--rules", rules]
    detect.main([str(path), "-o", str(output / "detected"), *options])


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
        "Events by SzCORE's rules and by the paper's, pooled; kappas are means over subjects, raw ones of segments, "
        "post-processed ones of events. "
        f"Thresholds were chosen on validation subjects, who neither train nor test.\n\n{table}\n"
        f"{rows['seconds'].sum():.0f} s by the clock, beside other work: {', '.join(rows['hardware'].unique())}; "
        "1 thread.\n"
    )


if __name__ == "__main__":
    main()
