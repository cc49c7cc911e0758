"""Sizes, MV-Llama and component subsets, pretrained alike on one simulated cohort and compared on unseen subjects.

Every model sees the same batches in the same order, with the same settings, and is measured against the same random
references. One file a model, so that a stopped comparison goes on where it was.

    python experiments/ieeg/pretraining_comparison.py            # results/pretraining/pretraining_comparison.*
    python experiments/ieeg/pretraining_comparison.py --quick    # two models, four steps, written to a temporary folder
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import matplotlib.pyplot as plt
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.training import quiet_trainer
from harness.figures import style
from harness.quiet import silence
from harness.study import paragraphs
from harness.tables import hardware, results_folder, write_record

from mvpa_ts.files import write_text
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig, mvpformer_tiny
from mvpa_ts.ieeg.training.data_module import RecordingDataModule, Simulation
from mvpa_ts.ieeg.training.pretraining import PretrainingModule, measure_similarity
from mvpa_ts.ieeg.training.similarity import REFERENCES, Similarity, compare_models

TINY = "MVPFormer-tiny"
tiny = partial(mvpformer_tiny, amplitude="none")  # the paper's encoder does not see the amplitude
MODELS: dict[str, MVPFormerConfig] = {
    TINY: tiny(),
    "MVPFormer-small": tiny(dim=128, num_layers=4, num_heads=4, mlp_dim=288),
    "MV-Llama-tiny": tiny(attention="llama"),
    "content": tiny(components=("content",)),
    "content and time": tiny(components=("content", "time")),
    "time and channel": tiny(components=("time", "channel")),
}
COHORT = Simulation(subjects=18, channels=(4, 6, 8), hours=0.5, seizures=4, seed=0)
VALIDATION = tuple(f"S{n:02d}" for n in range(9, 19))
STEPS, WARMUP, RATE, SEED = 250, 50, 1e-3, 1


def main() -> None:
    """Train what is not yet trained, and write the tables."""
    quick = script_parser(__doc__, "two models, four steps, written to a temporary folder").parse_args().quick
    torch.set_num_threads(1)
    silence()
    results = results_folder("pretraining", quick=quick)
    parts = results / "parts" if quick else Path("build") / "pretraining_comparison"
    finished = {}
    data: RecordingDataModule | None = None
    for name, architecture in [*MODELS.items()][: 3 if quick else None : 2 if quick else 1]:
        file = parts / f"{name.replace(' ', '-')}.json"
        if not file.exists():
            data = data or cohort(quick)
            write_text(file, json.dumps(train(architecture, data, quick)))
        finished[name] = json.loads(file.read_text())
    write_results(finished, results)


def cohort(quick: bool) -> RecordingDataModule:
    """The simulated subjects, read and preprocessed once for all models."""
    simulation = Simulation(subjects=4, hours=0.07, seizures=1) if quick else COHORT
    validation = ("S03", "S04") if quick else VALIDATION
    data = RecordingDataModule(
        simulation=simulation,
        validation_subjects=validation,
        context=mvpformer_tiny().context,
        in_memory=True,
        seed=SEED,
    )
    data.setup()
    return data


def train(architecture: MVPFormerConfig, data: RecordingDataModule, quick: bool) -> dict[str, Any]:
    """Pretrain a model; its similarities segment by segment, losses and time."""
    module = PretrainingModule(architecture, learning_rate=RATE, warmup_steps=2 if quick else WARMUP, seed=SEED)
    losses = Losses()
    trainer = quiet_trainer(4 if quick else STEPS, losses)
    started = time.process_time()
    trainer.fit(module, data)
    seconds = time.process_time() - started
    similarity = measure_similarity(module.model, data.val_dataloader(), seed=SEED)
    return {
        "segments": similarity.segments.to_dict("list"),
        "losses": losses.values,
        "processor_seconds": seconds,
        "parameters": sum(parameter.numel() for parameter in module.model.parameters()),
        "machine": f"{hardware()}; 1 thread, torch {torch.__version__}",
    }


class Losses(pl.Callback):
    """The loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Keep the loss."""
        self.values.append(outputs["loss"].item())


def restored(segments: dict[str, list[Any]]) -> Similarity:
    """A `Similarity` from its table of segments."""
    return Similarity([pd.DataFrame(segments)])


def write_results(finished: dict[str, dict[str, Any]], results: Path) -> None:
    """Tables of similarities and tests, and the loss curves."""
    similarities = {name: restored(record["segments"]) for name, record in finished.items()}
    comparison = compare_models(similarities, against=TINY)
    content = {
        name: {
            "overall": similarities[name].overall().to_dict("records"),
            "subjects": similarities[name].table().to_dict("records"),
            "ictal_test": str(similarities[name].ictal_test()),
            **{key: value for key, value in record.items() if key != "segments"},
        }
        for name, record in finished.items()
    }
    content["comparison"] = comparison.to_dict("records")
    write_record(results, "pretraining_comparison", content, markdown(finished, similarities, comparison))
    style.apply()
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, record in finished.items():
        smooth = pd.Series(record["losses"]).rolling(15, min_periods=1).mean()
        axes.plot(range(1, len(smooth) + 1), smooth, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("InfoNCE (nats), mean of 15 steps")
    axes.legend()
    figure.savefig(results / "pretraining_comparison.png")
    plt.close(figure)


def markdown(finished: dict[str, dict[str, Any]], similarities: dict[str, Similarity], comparison: pd.DataFrame) -> str:
    """The tables."""
    first = next(iter(finished.values()))
    subjects = similarities[next(iter(similarities))].segments["subject"].unique()
    table = [
        "| model | parameters | true next segment | two-step | random later | ictal: true | interictal: true | "
        "ictal against interictal | processor s |",
        "|---|--:|--:|--:|--:|--:|--:|---|--:|",
    ]
    for name, record in finished.items():
        overall = similarities[name].overall().set_index("state")
        values = [f"{overall.loc['all', reference]:.3f}" for reference in REFERENCES]
        values += [f"{overall.loc[state, 'true']:.3f}" for state in ("ictal", "interictal")]
        test = similarities[name].ictal_test()
        table.append(
            f"| {name} | {record['parameters']:,} | {' | '.join(values)} | {test} | {record['processor_seconds']:.0f} |"
        )
    margins = [
        f"| {row.other} | {row.other_margin:.3f} | {row.margin:.3f} | {row.median_difference:+.3f} | "
        f"{row.p_value:.2g} | {row.p_holm:.2g} |"
        for row in comparison.itertuples()
    ]
    heads = [f"| model | margin | {TINY} | median difference ({TINY} − model) | p | p (Holm) |", "|---|" + "--:|" * 5]
    return paragraphs(
        f"Pretrained for {len(first['losses'])} steps each on the same batches of a simulated cohort, one seed; "
        f"measured on {len(subjects)} subjects that training did not see. Means over subjects.",
        table,
        "Models against " + TINY + ": margin of the true next segment over a random later one, mean over subjects; "
        "Wilcoxon signed-rank test, paired by subject, Holm over the rows.",
        [*heads, *margins],
        f"{first['machine']}; the machine had other work.",
    )


if __name__ == "__main__":
    main()
