"""Seizure detection: the rows of the paper's tables, on the data that there is.

With recordings of the SWEC layout in ``MVPA_TS_DATA/swec`` (folders ID01 to ID68) the studies run on them, by the
paper's split; every configuration also states the scores on the 32 subjects whose recordings nobody trained on. With
``--simulated``, or where there are none, the same configurations run with the tiny model on simulated subjects, which
shows that everything works and not how well. MAYO and FNUSA are read from ``MVPA_TS_DATA/DATASET_MAYO`` and
``DATASET_FNUSA``.

Examples
--------
    python experiments/seizure_detection.py --list                          # the configurations
    python experiments/seizure_detection.py mvpformer-s --seeds 0           # some of them; goes on after a stop
    python experiments/seizure_detection.py --simulated --quick             # a smoke run, written elsewhere
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from harness.detection.pipeline import Cohort, Configuration, Effort, Study
from harness.detection.training import Training, finetune_on_trials
from harness.tables import read_rows, results_folder
from torch.utils.data import DataLoader

from mvpa_ts.files import write_text
from mvpa_ts.ieeg import read_recording, simulate_cohort
from mvpa_ts.ieeg.datasets.cohort import PAPER_TEST, PAPER_TRAIN
from mvpa_ts.ieeg.datasets.nejedly import DATA_SETS, NejedlyDataset, first_patients, nejedly_segments
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.scoring.scores import score_segments
from mvpa_ts.ieeg.training.spans import collate

PRETRAINING_58 = tuple(f"ID{i:02d}" for i in range(1, 59))
"""Subjects of the larger pretraining; the other ten test it."""

CONFIGURATIONS = (
    Configuration("mvpformer", "MVPFormer", size="m"),
    Configuration("mvpformer-s", "MVPFormer-S"),
    Configuration("mv-llama", "MV-Llama", attention="llama"),
    Configuration("no-pretraining", "MVPFormer-S, no pretraining", pretraining=None, finetuning="full"),
    Configuration("all-channels", "MVPFormer-S, all channels", channels="all"),
    Configuration("16-channels", "MVPFormer-S, 16 channels", channels=16),
    Configuration("8-channels", "MVPFormer-S, 8 channels", channels=8),
    *(Configuration(f"noise-{snr}", f"MVPFormer-S, noise {snr} dB", noise=float(snr)) for snr in (60, 50, 40, 30)),
    Configuration("pretraining-18", "MVPFormer-S, 18 subjects, tested on the last 10", test="last10"),
    Configuration(
        "pretraining-58", "MVPFormer-S, 58 subjects, tested on the last 10", pretraining="pretraining58", test="last10"
    ),
    Configuration("pretrained-subjects", "MVPFormer-S, on pretrained subjects", test="pretrained"),
    Configuration("full", "MVPFormer-S, all weights finetuned", finetuning="full"),
    Configuration("head", "MVPFormer-S, head only", finetuning="head"),
)
NEJEDLY = ("mvpformer", "mvpformer-s", "mv-llama", "no-pretraining")
"""Configurations that are also run on MAYO and FNUSA where these are there."""
CITED = ("Brant-2", "BrainBERT")
"""Rows of the paper's table whose models this project does not hold."""

QUICK = Effort(
    context=4,
    pretraining_steps=2,
    finetuning_steps=2,
    batch_size=2,
    windows=2,
    copies=1,
    accelerator="cpu",
    rules="paper",
)

QUICK_NAMES = ("mvpformer-s", "mv-llama", "no-pretraining", "8-channels", "noise-30", "pretrained-subjects")


def main() -> None:
    """Run what is asked for and write the table."""
    arguments = parse_arguments()
    if arguments.list:
        for configuration in CONFIGURATIONS:
            print(f"{configuration.name:20} {configuration.row}")
        return
    torch.set_num_threads(arguments.threads)
    data = Path(os.environ.get("MVPA_TS_DATA", "data")) / "swec"
    simulated = arguments.simulated or not data.is_dir()
    results = results_folder("detection", quick=arguments.quick)
    folder = results if arguments.quick else arguments.output
    cohort = simulated_cohort(arguments.quick) if simulated else swec_cohort(data)
    names = arguments.names or (QUICK_NAMES if arguments.quick else None)
    chosen = [c for c in CONFIGURATIONS if names is None or c.name in names]
    if simulated:
        # One size fits all: S and M would train for days on a CPU.
        chosen = [as_tiny(configuration) for configuration in chosen]
    rows: list[dict[str, object]] = []
    others: list[dict[str, object]] = []
    for seed in arguments.seeds:
        study = Study(cohort, QUICK if arguments.quick else Effort(rules="paper"), folder, seed)
        for configuration in chosen:
            if configuration.name not in NEJEDLY:
                continue
            row = interictal(study, configuration, seed, arguments.quick)
            if row is not None:
                others.append(row)
        for configuration in chosen:
            if missing := {configuration.pretraining, configuration.test, "finetuning"} - {None, *cohort.groups}:
                print(f"{configuration.row}: no recordings for {', '.join(sorted(missing))}", flush=True)
                continue
            row, _ = study.run(configuration)
            rows.append(row)
            print(f"{row['row']}, seed {seed}: F1 {row['event_f1']:.3f}, kappa {row['kappa']:.3f}", flush=True)
            table(rows, results / f"seizure_detection_{cohort.name}", cohort.name)
    if rows:
        print(table(rows, results / f"seizure_detection_{cohort.name}", cohort.name))
    if others:
        text = markdown_table(pd.DataFrame(others))
        write_text(results / "interictal.md", text)
        print(text)


def interictal(study: Study, configuration: Configuration, seed: int, quick: bool) -> dict[str, object] | None:
    """Pathology against everything else in MAYO and FNUSA: finetuned on the first four patients, pooled F1 of the rest.

    The recordings are interictal, so this is no seizure detection, though the paper counts it as such.
    """
    root = Path(os.environ.get("MVPA_TS_DATA", "data"))
    folders = [root / name for name in DATA_SETS if (root / name).is_dir()]
    if not folders or configuration.pretraining not in (None, *study.cohort.groups):
        return None
    base = study.base(configuration)
    row: dict[str, object] = {"row": configuration.row, "seed": seed}
    for folder in folders:
        train, test = first_patients(nejedly_segments(folder))
        effort = study.effort
        training = Training(
            steps=effort.finetuning_steps,
            learning_rate=effort.finetuning_rate,
            batch_size=effort.batch_size,
            windows=1,
            folder=study.folder / "interictal" / f"{configuration.name}-{folder.name}-{seed}",
            seed=seed,
            trainer={"accelerator": effort.accelerator, "precision": effort.precision, "devices": 1},
        )
        model, _ = finetune_on_trials(base, NejedlyDataset(train), configuration.finetuning, training)
        dataset = NejedlyDataset(test[:20] if quick else test)
        loader = DataLoader(dataset, batch_size=64, collate_fn=collate)
        model.eval()
        with torch.inference_mode():
            positive = torch.cat([model.classify(model(batch["signal"])).argmax(-1) for batch in loader]).numpy()
        scores = score_segments(dataset.ictal, positive, segment=3.0)
        row |= {f"{folder.name} F1": scores.f1, f"{folder.name} sensitivity": scores.sensitivity}
        row[f"{folder.name} specificity"] = scores.specificity
    return row


def swec_cohort(folder: Path) -> Cohort:
    """The paper's groups of what is there."""
    recordings = {path.name: read_recording(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    groups = {
        "pretraining": PAPER_TRAIN,
        "pretraining58": PRETRAINING_58,
        "finetuning": PAPER_TRAIN,
        "unseen": PAPER_TEST,
        "last10": tuple(subject for subject in PAPER_TEST if subject not in PRETRAINING_58),
        "pretrained": PAPER_TRAIN,
    }
    found = {name: [recordings[s] for s in subjects if s in recordings] for name, subjects in groups.items()}
    return Cohort("swec", {name: members for name, members in found.items() if members})


def simulated_cohort(quick: bool) -> Cohort:
    """Small groups of simulated subjects with the same names."""
    size = {"duration": 120.0, "num_seizures": 1} if quick else {"duration": 1800.0, "num_seizures": 4}
    count = 3 if quick else 18
    train = simulate_cohort(count, num_channels=(4, 6, 8), **size)
    others = simulate_cohort(2 * count, num_channels=(4, 6, 8), first_subject=count + 1, **size)
    return Cohort(
        "simulated",
        {
            "pretraining": train,
            "pretraining58": [*train, *others[:count]],
            "finetuning": train,
            "unseen": others,
            "last10": others[count:],
            "pretrained": simulate_cohort(count, num_channels=(4, 6, 8), session=1, **size),
        },
    )


def as_tiny(configuration: Configuration) -> Configuration:
    """The same row with the tiny model."""
    return replace(configuration, size="tiny", row=configuration.row.replace("-S", "-tiny"))


def table(rows: list[dict[str, object]], path: Path, data: str) -> str:
    """Add the rows to the CSV, in place of those of the same run, and write all as Markdown, which is returned."""
    frame = pd.DataFrame(rows)
    known = read_rows(path.with_suffix(".csv"))
    if not known.empty:
        frame = pd.concat([known, frame]).drop_duplicates(["row", "seed"], keep="last")
    write_text(path.with_suffix(".csv"), frame.to_csv(index=False))
    columns = [name for name in frame.columns if name not in ("row", "seed", "configuration", "seconds")]
    mean = frame.groupby("row", sort=False)[columns].mean().reset_index()
    text = (
        f"Seizure detection on {data} data, {frame['seed'].nunique()} seed(s); events by the paper's rules, pooled; "
        f"kappa is the mean over subjects.\n\n{markdown_table(mean)}\n"
        + "".join(f"{name}: cited, not run.\n" for name in CITED)
    )
    write_text(path.with_suffix(".md"), text)
    return text


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="configurations; all by default")
    parser.add_argument("--list", action="store_true", help="print the configurations")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--simulated", action="store_true", help="simulated subjects even where there are others")
    parser.add_argument("--quick", action="store_true", help="a smoke run, written to a temporary folder")
    parser.add_argument(
        "--output", type=Path, default=Path("seizure_detection_output"), help="folder of models and reports"
    )
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {configuration.name for configuration in CONFIGURATIONS}:
        parser.error(f"unknown configurations {', '.join(sorted(unknown))}: see --list")
    return arguments


if __name__ == "__main__":
    main()
