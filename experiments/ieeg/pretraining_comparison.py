"""Sizes, MV-Llama and component subsets, pretrained alike on one simulated cohort and compared on unseen subjects.

With a seed, every model sees the same batches in the same order, with the same settings, and all are measured against
the same random references. One file a model and seed, so that a stopped comparison goes on where it was.

    python experiments/ieeg/pretraining_comparison.py            # results/pretraining/pretraining_comparison.*
    python experiments/ieeg/pretraining_comparison.py --quick    # two models, four steps, written to a temporary folder
"""

from __future__ import annotations

import itertools
import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.training import quiet_trainer
from harness.figures.predicted import SEEDS, mean_over_seeds
from harness.quiet import silence
from harness.study import grid, paragraphs, spread
from harness.tables import hardware, results_folder, write_record

from mvpa_ts.files import write_text
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig, mvpformer_tiny
from mvpa_ts.ieeg.training.data_module import RecordingDataModule, Simulation
from mvpa_ts.ieeg.training.pretraining import PretrainingModule, measure_similarity
from mvpa_ts.ieeg.training.similarity import REFERENCES, compare_models

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
STEPS, WARMUP, RATE = 250, 50, 1e-3
TESTED = {"median_difference": "+.3f", "p_value": ".2g", "p_holm": ".2g"}
"""Columns of the table of tests, and how their numbers are written."""


def main() -> None:
    """Train what is not yet trained, and write the tables."""
    quick = script_parser(__doc__, "two models, four steps, written to a temporary folder").parse_args().quick
    torch.set_num_threads(1)
    silence()
    results = results_folder("pretraining", quick=quick)
    parts = results / "parts" if quick else Path("build") / "pretraining_comparison"
    finished: dict[str, list[dict[str, Any]]] = {name: [] for name in [*MODELS][: 2 if quick else None]}
    for name, seed in itertools.product(finished, SEEDS[: 1 if quick else None]):
        file = parts / f"{name.replace(' ', '-')}-{seed}.json"
        if not file.exists():
            write_text(file, json.dumps(train(MODELS[name], cohort(quick), seed, quick)))
        finished[name].append(json.loads(file.read_text()))
    similarities = {name: mean_over_seeds([each["segments"] for each in records]) for name, records in finished.items()}
    content: dict[str, Any] = {
        name: {
            "subjects": similarities[name].table().to_dict("records"),
            "ictal_test": str(similarities[name].ictal_test()),
            "seeds": [mean_over_seeds([record["segments"]]).overall().to_dict("records") for record in records],
            **{key: records[0][key] for key in ("steps", "parameters", "machine")},
        }
        for name, records in finished.items()
    }
    content["comparison"] = compare_models(similarities, against=TINY).to_dict("records")
    write_record(results, "pretraining_comparison", content, markdown(content))


@cache
def cohort(quick: bool) -> RecordingDataModule:
    """The simulated subjects, read and preprocessed once for all models."""
    simulation = Simulation(subjects=4, hours=0.07, seizures=1) if quick else COHORT
    validation = ("S03", "S04") if quick else VALIDATION
    context = mvpformer_tiny().context
    data = RecordingDataModule(simulation=simulation, validation_subjects=validation, context=context, in_memory=True)
    data.setup()
    return data


def train(architecture: MVPFormerConfig, data: RecordingDataModule, seed: int, quick: bool) -> dict[str, Any]:
    """Pretrain a model; its similarities segment by segment."""
    module = PretrainingModule(architecture, learning_rate=RATE, warmup_steps=2 if quick else WARMUP, seed=seed)
    trainer = quiet_trainer(4 if quick else STEPS)
    data.seed = seed
    trainer.fit(module, data)
    data.seed = SEEDS[0]  # the same references for all
    similarity = measure_similarity(module.model, data.val_dataloader(), seed=data.seed)
    return {
        "segments": similarity.segments.to_dict("list"),
        "steps": trainer.global_step,
        "parameters": sum(parameter.numel() for parameter in module.model.parameters()),
        "machine": f"{hardware()}; 1 thread, torch {torch.__version__}",
    }


def markdown(content: dict[str, Any]) -> str:
    """The tables."""
    models = {name: record for name, record in content.items() if name != "comparison"}
    first = models[TINY]
    lines, margins = [], {}
    for name, record in models.items():
        of_seeds = pd.concat(map(pd.DataFrame, record["seeds"]))
        everything = of_seeds[of_seeds["state"] == "all"]
        margins[name] = spread(everything["true"] - everything["random"])
        overall = of_seeds.groupby("state")[[*REFERENCES]].mean()
        means = [*overall.loc["all"], *overall.loc[["ictal", "interictal"], "true"]]
        lines.append([name, f"{record['parameters']:,}", *map("{:.3f}".format, means), record["ictal_test"]])
    heads = ["model", "parameters", "true next segment", "two-step", "random later", "ictal: true", "interictal: true"]
    tests = [
        [name := row["other"], margins[name], *(f"{row[key]:{form}}" for key, form in TESTED.items())]
        for row in content["comparison"]
    ]
    return paragraphs(
        f"Pretrained for {first['steps']} steps each on the same batches of a simulated cohort; "
        f"{len(first['seeds'])} seed(s), whose mean is taken in each segment; measured on "
        f"{first['seeds'][0][0]['subjects']} subjects that training did not see. Means over subjects.",
        grid([*heads, "ictal against interictal"], lines),
        f"Models against {TINY}: margin of the true next segment over a random later one, mean over subjects and its "
        f"standard deviation over seeds, that of {TINY} being {margins[TINY]}; Wilcoxon signed-rank test, paired by "
        "subject, Holm over the rows.",
        grid(["model", "margin", f"median difference ({TINY} − model)", "p", "p (Holm)"], tests),
        f"{first['machine']}.",
    )


if __name__ == "__main__":
    main()
