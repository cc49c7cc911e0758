"""How one patient's detector is finetuned: changes of `mvpformer finetune --config patient` on simulated animals.

Four simulated animals have files of the names and layout of ``dog_seizures``: three seizures and seven stretches
without, whose gain drifts. Each setting is a change of the documented command. It trains on one seizure and its
stretches, and is tested on another, as in experiments/real_seizures.py; three folds an animal, one seed. The changes
are tried on one network instead of three. Baselines have the same folds and no settings; that of brainmaze-eeg-models
is run where it is installed.
No real recording is read.

    python experiments/patient_choices.py          # results/detection/patient_choices.*; about 4 minutes a setting
    python experiments/patient_choices.py --quick  # one animal, one setting, a few steps
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
from harness.command_line import script_parser
from harness.detection.real import (
    BASELINES,
    QUICK_ANIMAL,
    QUICK_FINETUNING,
    detected,
    evaluate,
    finetuned,
    folds_of,
    networks_of,
    simulated_animal,
)
from harness.detection.results import begin_study
from harness.tables import append_row, hardware, read_rows, write_page

from mvpa_ts.ieeg.scoring.cohort import markdown_table

ANIMALS, FIRST_SEED = 4, 31
GAINS = (1.0, 1.5, 2.0, 3.0)
"""Factors of the tested stretches."""
AUGMENTATION = "--model.augmentation."
THREE, EACH = "as documented", "as documented, each of the three networks alone"
WAYS = {
    THREE: (),
    EACH: (),
    "one network": (),
    "from demo": ("--model.base", "demo"),
    "power drifts": (f"{AUGMENTATION}fluctuation", "1.0"),
    "gain up to 1.5": (f"{AUGMENTATION}gain", "1.5"),
    "gain up to 6": (f"{AUGMENTATION}gain", "6.0"),
    "gain up to 10": (f"{AUGMENTATION}gain", "10.0"),
    "gain up to 30": (f"{AUGMENTATION}gain", "30.0"),
    "60 steps": ("--trainer.max_steps", "60"),
    "all but the encoder": ("--model.method", "blocks"),
    "best of validation": ("--model.keep", "best"),
    "amplitude map and head alone": ("--model.method", "amplitude", "--model.learning_rate", "1e-2"),
}


def main() -> None:
    """Run what the table lacks, then write it."""
    parser = script_parser(__doc__)
    ways = [*BASELINES, *WAYS]
    parser.add_argument("--settings", nargs="+", default=ways, choices=ways, help="which rows (default: all)")
    arguments = parser.parse_args()
    results = begin_study(quick=arguments.quick)
    output = results / "patient_choices_output" if arguments.quick else Path("patient_choices_output")
    table = results / "patient_choices.csv"
    animals, settings, sizes = ANIMALS, arguments.settings, {}
    if arguments.quick:
        animals, settings, sizes = 1, ["line length", THREE], QUICK_ANIMAL
    known = read_rows(table)
    done = [] if known.empty else known[["setting", "animal", "fold"]].to_numpy().tolist()
    for setting in settings:
        for animal in range(animals):
            data = simulated_animal(output / f"animal{animal}", FIRST_SEED + animal, **sizes)
            for fold in folds_of(data):
                if [setting, animal, fold.number] in done:
                    continue
                started = time.process_time()
                if setting in BASELINES:
                    detectors = [BASELINES[setting](fold)]
                else:
                    threes = setting in (THREE, EACH)
                    name = (THREE if threes else setting).replace(" ", "_")
                    folder = output / name / f"animal{animal}-fold{fold.number}"
                    steps = QUICK_FINETUNING if arguments.quick else ()
                    model = finetuned(fold, 0, folder, [*WAYS[setting], *steps], members=3 if threes else 1)
                    models = networks_of(model) if setting == EACH else [model]
                    detectors = [(detected(each), 0.5) for each in models]
                seconds = time.process_time() - started
                measured = pd.DataFrame([evaluate(fold, *detector, GAINS) for detector in detectors]).mean()
                row = {"setting": setting, "animal": animal, "fold": fold.number, "cpu_s": seconds, **measured}
                append_row(table, row | {"hardware": hardware()})
                print(f"{setting}, animal {animal}, fold {fold.number}: AUROC {row['auroc']:.3f}", flush=True)
    write_page(table, report(read_rows(table)))


def report(rows: pd.DataFrame) -> str:
    """The table as Markdown: means over animals and folds."""
    lines = []
    for setting, group in rows.groupby("setting", sort=False):
        line = {"": setting, "AUROC": f"{group['auroc'].mean():.3f}", "lowest": f"{group['auroc'].min():.3f}"}
        line |= {f"background ×{gain:g}": f"{group[f'auroc ×{gain:g}'].mean():.3f}" for gain in GAINS[1:]}
        line["found"] = f"{group['found'].mean():.2f}"
        line["alarmed stretches a fold"] = f"{group['alarmed'].mean():.2f}"
        line["s of processor"] = f"{group['cpu_s'].mean():.0f}"
        lines.append(line | {"folds": len(group)})
    return (
        f"{ANIMALS} simulated animals, 3 folds each, one seed; changes of `mvpformer finetune --config patient`, which "
        "trains three networks with a random gain of 1/3 to 3; the changes are tried on one. AUROC of segments of 5 s; "
        "a stretch is alarmed when one of its segments is above 0.5, for line length above the threshold that is best "
        "on the files that are not tested. Line length and the regression learn from all of these, the published model "
        "from none.\n\n"
        f"{markdown_table(pd.DataFrame(lines))}\n{', '.join(rows['hardware'].unique())}, 1 thread.\n"
    )


if __name__ == "__main__":
    main()
