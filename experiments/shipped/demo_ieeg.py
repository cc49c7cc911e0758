"""Pretrain the tiny MVPFormer on simulated subjects and show that it predicts the next segment of unseen ones.

Runs ``mvpformer pretrain --config tiny`` on 14 simulated subjects, 8 to train on and 6 that training never sees. The
encoder does not see the amplitude, as in the paper (``--model.architecture.amplitude none``). Then the three-reference
similarity before and after training: the prediction at segment t against the true segment t+1, against segment t+2 and
against a random later one within two minutes.

    python experiments/shipped/demo_ieeg.py  # minutes on two cores; results/pretraining/pretraining_demo.*
    python experiments/shipped/demo_ieeg.py --quick  # a few steps on short recordings, written to a temporary folder
    python experiments/shipped/demo_ieeg.py --output runs/demo  # keep the model, go on after a stop
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

sys.path.append(str(Path(__file__).parents[1]))  # the harness

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import torch
import yaml
from harness.command_line import script_parser
from harness.figures import style
from harness.tables import hardware, results_folder

from mvpa_ts.files import write_text
from mvpa_ts.ieeg.commands import pretrain
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.training.data_module import RecordingDataModule, Simulation
from mvpa_ts.ieeg.training.pretraining import PretrainingModule, measure_similarity
from mvpa_ts.ieeg.training.similarity import REFERENCES, Similarity

# Few short recordings, six steps; the same commands and files.
QUICK = """
model: {architecture: {context: 6}, warmup_steps: 2}
data: {simulation: {subjects: 4, hours: 0.05, seizures: 1}, validation_subjects: [S03, S04]}
trainer: {max_steps: 6, val_check_interval: 3, log_every_n_steps: 1}
"""


def main() -> None:
    """Train, measure, write."""
    parser = script_parser(__doc__, "six steps, results in a temporary folder")
    parser.add_argument("--output", type=Path, help="folder of the run; a temporary one by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        output = arguments.output or Path(temporary) / "run"
        results = Path(temporary) if arguments.quick else results_folder("pretraining")
        started, worked = time.perf_counter(), time.process_time()
        configurations = ["--config", "tiny", "--model.architecture.amplitude", "none"]
        if arguments.quick:
            quick = Path(temporary) / "quick.yaml"
            quick.write_text(QUICK)
            configurations += ["--config", str(quick)]
        if (output / "checkpoints" / "last.ckpt").exists():
            configurations += ["--ckpt_path", "last"]
        pretrain.main([*configurations, "--output", str(output)])
        seconds = {"wall": time.perf_counter() - started, "processor": time.process_time() - worked}
        report = write_results(output, results, seconds)
        print(report)


def write_results(output: Path, results: Path, seconds: dict[str, float]) -> str:
    """Similarities before and after, loss curve and plots of a finished run; returns the Markdown."""
    config = yaml.safe_load((versions(output)[-1] / "config.yaml").read_text())
    losses = loss_curve(output)
    data = RecordingDataModule(
        simulation=Simulation(**config["data"].pop("simulation")),
        context=config["model"]["architecture"]["context"],
        seed=config["seed_everything"],
        **{name: value for name, value in config["data"].items() if name not in ("recordings", "context", "seed")},
    )
    data.setup()
    untrained = PretrainingModule(MVPFormerConfig.from_dict(config["model"]["architecture"]), seed=1).model
    trained = MVPFormer.from_pretrained(output / "model")
    similarities = {
        "before": measure_similarity(untrained, data.val_dataloader()),
        "after": measure_similarity(trained, data.val_dataloader()),
    }
    plot_losses(losses, results / "pretraining_demo_loss.png")
    similarities["after"].plot(results / "pretraining_demo_similarity.png", "tiny MVPFormer, subjects not seen before")
    settings = {
        "steps": config["trainer"]["max_steps"],
        "subjects": {
            "training": sorted(set(data.training.subjects)),
            "validation": sorted(set(data.validation.subjects)),
        },
        "seconds": {name: round(value) for name, value in seconds.items()},
        "machine": f"{hardware()}; 1 thread, torch {torch.__version__}",
    }
    content = {
        **settings,
        "losses": losses.to_dict("list"),
        "similarity": {
            when: {
                "overall": similarity.overall().to_dict("records"),
                "subjects": similarity.table().to_dict("records"),
                "ictal_test": str(similarity.ictal_test()),
            }
            for when, similarity in similarities.items()
        },
    }
    text = markdown(settings, losses, similarities)
    write_text(results / "pretraining_demo.json", json.dumps(content, indent=1) + "\n")
    write_text(results / "pretraining_demo.md", text)
    return text


def loss_curve(output: Path) -> pd.DataFrame:
    """Training and validation loss by step; what a resumed run logged again takes the place of the first."""
    tables = [folder / "metrics.csv" for folder in versions(output)]
    frames = [pd.read_csv(path) for path in tables if path.is_file()]
    names = ["train/loss", "validation/loss"]
    everything = pd.concat([frame.reindex(columns=["step", *names]) for frame in frames])
    return everything.groupby("step")[names].last().reset_index().astype(object).where(lambda x: x.notna(), None)


def versions(output: Path) -> list[Path]:
    """Folders of the log, one for each start, in order."""
    return sorted(output.glob("csv/version_*"), key=lambda folder: int(folder.name.removeprefix("version_")))


def plot_losses(losses: pd.DataFrame, path: Path) -> None:
    """Loss of training and validation by step."""
    style.apply()
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for name, line in (("train/loss", "-"), ("validation/loss", "o-")):
        chosen = losses.dropna(subset=[name])
        axes.plot(chosen["step"], chosen[name].astype(float), line, label=name.replace("/", " "))
    axes.axhline(torch.log(torch.tensor(31.0)).item(), color=style.GREY, linestyle=":", label="chance, log 31")
    axes.set_xlabel("step")
    axes.set_ylabel("InfoNCE (nats)")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)
    plt.close(figure)


def markdown(settings: dict[str, Any], losses: pd.DataFrame, similarities: dict[str, Similarity]) -> str:
    """Tables of the run."""
    subjects = settings["subjects"]
    lines = [
        f"Tiny MVPFormer, {settings['steps']} steps on {len(subjects['training'])} simulated subjects; similarities on "
        f"{len(subjects['validation'])} others ({', '.join(subjects['validation'])}).",
        "",
        "| | state | subjects | true next segment | two-step | random later |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for when, similarity in similarities.items():
        for row in similarity.overall().itertuples():
            values = " | ".join(f"{getattr(row, name):.3f}" for name in REFERENCES)
            lines.append(f"| {when} training | {row.state} | {row.subjects} | {values} |")
    validation = losses["validation/loss"].dropna()
    lines += [
        "",
        f"Validation loss from {validation.iloc[0]:.2f} to {validation.iloc[-1]:.2f} nats (chance: log 31 = 3.43).",
        "",
        "Ictal against interictal similarity to the true next segment, Wilcoxon signed-rank test over subjects' means: "
        f"{similarities['after'].ictal_test()}.",
        "",
        f"{settings['seconds']['processor']} s of processor time for simulation, training and validation "
        f"({settings['seconds']['wall']} s on a machine with other work): {settings['machine']}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
