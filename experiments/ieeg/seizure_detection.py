"""Seizure detection: the rows of the paper's tables, on the data that is available.

With recordings of the SWEC layout in ``MVPA_TS_DATA/swec`` (folders ID01 to ID68) the studies run on them, by the
paper's split and with what it states of the training; every configuration also has the scores on the 32 subjects whose
recordings nobody trained on. The paper's row stands below each of ours, line length and a logistic regression on band
power above them. The rows on simulated subjects are those of ``demo_detect.py --ablations``.

MAYO and FNUSA are read from ``MVPA_TS_DATA/DATASET_MAYO`` and ``DATASET_FNUSA``. With ``--simulated``, or where there
is no SWEC, they alone are run, simulated in their layout, with MVPFormer-tiny in place of S, a model of twice the width
in place of M, and simulated subjects to pretrain on.

Stopped, the study goes on: rows that the table holds are not run again, and models and detections lie in ``--output``.

Examples
--------
    python experiments/ieeg/seizure_detection.py --list                          # the configurations
    python experiments/ieeg/seizure_detection.py mvpformer-s --seeds 0           # some of them
    python experiments/ieeg/seizure_detection.py --simulated                     # MAYO and FNUSA
    python experiments/ieeg/seizure_detection.py --simulated --report            # the tables from the rows at hand
    python experiments/ieeg/seizure_detection.py --simulated --quick             # a smoke run, written elsewhere
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection import interictal, paper_rows
from harness.detection.baselines import INSTALLED, short_name
from harness.detection.pipeline import Study
from harness.detection.settings import Cohort, Configuration, Effort
from harness.detection.simulated import QUICK, SIMULATED, simulated_swec, write_nejedly
from harness.tables import append_row, hardware, read_rows, results_folder, write_page

from mvpa_ts.checks import grouped
from mvpa_ts.ieeg import read_recording
from mvpa_ts.ieeg.datasets.cohort import PAPER_TEST, PAPER_TRAIN
from mvpa_ts.ieeg.datasets.nejedly import DATA_SETS

PRETRAINING_40 = tuple(f"ID{i:02d}" for i in range(19, 59))
"""Subjects of the pretraining that is continued; the ten after them test it."""

_S58 = {"continued": "pretraining40", "channels": "manual"}
CONFIGURATIONS = (
    Configuration("mvpformer", "MVPFormer-M", size="m", printed="MVPFormer"),
    Configuration("mvpformer-s", "MVPFormer-S", printed="MVPFormer-S"),
    Configuration("mv-llama", "MV-Llama", attention="llama", printed="MV-Llama"),
    Configuration("manual", "MVPFormer-S, manual channels", channels="manual", printed="18_patients_small_manual"),
    Configuration("all-channels", "MVPFormer-S, all channels", channels="all", printed="18_patients_small_allchannels"),
    Configuration(
        "no-pretraining", "MVPFormer-S, no pretraining, manual channels", pretraining=None, finetuning="full",
        channels="manual", printed="18_patients_nopretrain",
    ),
    *(
        Configuration(f"noise-{snr}", f"MVPFormer-S, noise {snr} dB", noise=float(snr), printed=f"18_patients_{snr}dB")
        for snr in (60, 50, 40, 30)
    ),
    Configuration(
        "18-last10", "18 subjects, tested on the last 10", channels="manual", test="last10",
        printed="18_patients_selected",
    ),
    Configuration(
        "58-last10", "58 subjects, tested on the last 10", test="last10", printed="58_patients_small", **_S58
    ),
    Configuration(
        "18-test40", "18 subjects, tested on the 40 of the 58", channels="manual", test="test40",
        printed="18_patients_teston40",
    ),
    Configuration(
        "58-test40", "58 subjects, tested on the 40 of the 58", test="test40", printed="58_patients_teston40", **_S58
    ),
    Configuration("full", "MVPFormer-S, all weights finetuned", finetuning="full"),
    Configuration("head", "MVPFormer-S, head only", finetuning="head"),
)  # fmt: skip
NEJEDLY = ("mvpformer", "mvpformer-s", "mv-llama", "no-pretraining")
"""Configurations that are also run on MAYO and FNUSA."""

BASELINE_NAMES = {short_name(name): name for name in INSTALLED}
"""Baselines, which have no seed, by what the command line calls them."""
QUICK_NAMES = ("line-length", "mvpformer-s")


def main() -> None:
    """Run what is asked for and write the tables."""
    arguments = parse_arguments()
    if arguments.list:
        for name, row in [*BASELINE_NAMES.items(), *((c.name, c.row) for c in CONFIGURATIONS)]:
            print(f"{name:16} {row}")
        return
    torch.set_num_threads(arguments.threads)
    data = Path(os.environ.get("MVPA_TS_DATA", "data"))
    simulated = arguments.simulated or not (data / "swec").is_dir()
    results = results_folder("detection", quick=arguments.quick)
    folder = results if arguments.quick else arguments.output
    if simulated:
        cohort, effort = simulated_swec(arguments.quick), QUICK if arguments.quick else SIMULATED
        data = folder / "nejedly"
        chosen = [smaller(configuration) for configuration in CONFIGURATIONS]
        if not arguments.report:
            write_nejedly(data, 8, 8 if arguments.quick else 100)
    else:
        cohort, chosen = swec_cohort(data / "swec", arguments.manual), [*CONFIGURATIONS]
        effort = Effort(rules="paper", devices=arguments.devices)
    everything = [*BASELINE_NAMES, *(NEJEDLY if simulated else (c.name for c in CONFIGURATIONS))]
    names = arguments.names or (QUICK_NAMES if arguments.quick else everything)
    table = results / f"seizure_detection_{cohort.name}.csv"
    others = results / f"interictal_{cohort.name}.csv"
    nejedly = [data / name for name in DATA_SETS]
    for seed in [] if arguments.report else arguments.seeds:
        study = Study(cohort, effort, folder, seed)
        for short, name in BASELINE_NAMES.items():
            skip = short not in names or seed != arguments.seeds[0] or has(table, short)
            if not skip and {"finetuning", "unseen"} <= set(cohort.groups):
                row, _ = study.baseline(name)
                append_row(table, {**row, "hardware": hardware()})
            chosen_baseline = name in interictal.BASELINES and short in names
            if chosen_baseline and not has(others, short) and (found := interictal.baseline(name, nejedly)):
                append_row(others, {**found, "hardware": hardware()})
        for configuration in [c for c in chosen if c.name in names]:
            if reason := missing(configuration, cohort):
                print(f"{configuration.row}: {reason}", flush=True)
            elif not has(table, configuration.name, seed):
                row, _ = study.run(configuration)
                append_row(table, {**row, "hardware": hardware()})
                kappas = f"kappa {row['kappa_episodic']:.3f} post-processed, {row['kappa']:.3f} raw"
                print(f"{row['row']}, seed {seed}: F1 {row['event_f1']:.3f}, {kappas}", flush=True)
            if configuration.name in NEJEDLY and not has(others, configuration.name, seed):
                scores = interictal.run(study, configuration, nejedly)
                if scores:
                    append_row(others, {**scores, "hardware": hardware()})
    for path, made in ((table, report), (others, interictal.markdown)):
        rows = read_rows(path)
        if not rows.empty:
            write_page(path, made(rows, chosen))


def missing(configuration: Configuration, cohort: Cohort) -> str:
    """What the cohort lacks for this row; empty if nothing."""
    if groups := configuration.groups() - set(cohort.groups):
        return f"no recordings for {', '.join(sorted(groups))}"
    if configuration.channels == "manual" and not cohort.manual:
        return "no channels chosen by hand; name their table with --manual"
    return ""


def has(table: Path, name: str, seed: int | None = None) -> bool:
    """Whether the table holds this run; without a seed, one of any seed."""
    rows = read_rows(table)
    if rows.empty:
        return False
    found = rows["configuration"] == name
    return bool((found if seed is None else found & (rows["seed"] == seed)).any())


def report(rows: pd.DataFrame, configurations: list[Configuration]) -> str:
    """The rows with the paper's below each."""
    lead = (
        f"Seizure detection, SWEC; {rows['seed'].nunique()} seed(s), up to {rows['subjects'].max()} subjects and "
        f"{rows['hours'].max():.1f} h. Events by the paper's rules, pooled; kappa and raw F1 are means over subjects. "
        "The paper's kappa is on post-processed decisions. Rows in italics are cited: the paper's summaries, or means "
        "over the subjects of a table; of the 58 subjects tested on the 40, over these 40 of the 50 that its table "
        "lists. Two of its tables print the sensitivity again in place of false detections (–)."
    )
    machines = ", ".join(rows["hardware"].unique())
    return f"{lead}\n\n{paper_rows.markdown(rows, configurations)}\nMeasured on {machines}; one thread.\n"


def manual_channels(path: Path | None) -> dict[str, list[str]]:
    """Channels by subject from a table with the columns subject and channel."""
    if path is None:
        return {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        if missing := {"subject", "channel"} - set(reader.fieldnames or []):
            raise ValueError(f"{path} must have the columns subject and channel, it lacks {', '.join(sorted(missing))}")
        return grouped((row["subject"], row["channel"]) for row in reader)


def swec_cohort(folder: Path, manual: Path | None = None) -> Cohort:
    """The paper's groups of what is there."""
    recordings = {path.name: read_recording(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    groups = {
        "pretraining": PAPER_TRAIN,
        "pretraining40": PRETRAINING_40,
        "finetuning": PAPER_TRAIN,
        "unseen": PAPER_TEST,
        "last10": tuple(subject for subject in PAPER_TEST if subject not in PRETRAINING_40),
        "test40": PRETRAINING_40,
    }
    found = {name: [recordings[s] for s in subjects if s in recordings] for name, subjects in groups.items()}
    return Cohort("swec", {name: members for name, members in found.items() if members}, manual_channels(manual))


def smaller(configuration: Configuration) -> Configuration:
    """The same row with the tiny model in place of S and the small one in place of M."""
    size = "small" if configuration.size == "m" else "tiny"
    return replace(configuration, size=size, row=configuration.row.replace("-M", "-small").replace("-S", "-tiny"))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = script_parser(__doc__, "a smoke run, written to a temporary folder")
    parser.add_argument("names", nargs="*", help="configurations; all by default")
    parser.add_argument("--list", action="store_true", help="print the configurations")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--manual", type=Path, help="table of channels chosen by hand (columns subject and channel)")
    parser.add_argument("--simulated", action="store_true", help="simulated subjects even where there are others")
    parser.add_argument("--report", action="store_true", help="run nothing, write the tables from the rows")
    parser.add_argument(
        "--output", type=Path, default=Path("seizure_detection_output"), help="folder of models and reports"
    )
    parser.add_argument(
        "--devices",
        type=int,
        default=max(1, torch.cuda.device_count()),
        help="processes of a training on SWEC, one for each GPU; default: all GPUs of the machine (the paper: 8)",
    )
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*BASELINE_NAMES, *(configuration.name for configuration in CONFIGURATIONS)}:
        parser.error(f"unknown configurations {', '.join(sorted(unknown))}: see --list")
    return arguments


if __name__ == "__main__":
    main()
