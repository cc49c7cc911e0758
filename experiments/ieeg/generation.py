"""Similarity of generated embeddings to the true future, 5 to 60 s ahead, beside persistence and the channel's mean.

Tiny models are pretrained on simulated subjects and roll out the embeddings of the minute after a moment of other
subjects' recordings. They get what lies before that moment alone; the filters see no future either. The cosine with the
embeddings of the true future is compared with that of two references that need no model: the last true embedding
(persistence), and the mean direction of the same channel over the context. A fourth row shows what the filters would
give away: they run forward and backward, so the last segment of a recording filtered whole holds some of the next one.

    python experiments/ieeg/generation.py  # three models, three seeds; results/detection/generation.*; goes on
    python experiments/ieeg/generation.py --quick  # one model, four steps, written to a temporary folder
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.results import begin_study
from harness.detection.simulated import held
from harness.detection.training import Training, pretrain
from harness.figures import style
from harness.study import Study
from torch.nn import functional as F

from mvpa_ts.ieeg import MVPFormer, MVPFormerConfig, Recording, Segments, generate, mvpformer_tiny, simulate_cohort
from mvpa_ts.ieeg.model.amplitude import LEVEL_SEGMENTS
from mvpa_ts.ieeg.model.generation import roll_out
from mvpa_ts.ieeg.model.sliding import encoded_past
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.training.spans import HeldSegments

MODELS: dict[str, MVPFormerConfig] = {
    "MVPFormer-tiny": mvpformer_tiny(amplitude="none"),
    "MV-Llama-tiny": mvpformer_tiny(amplitude="none", attention="llama"),
    "MVPFormer-tiny with amplitude": mvpformer_tiny(),
}
SEEDS = (0, 1, 2)
CHANNELS = (4, 6, 8)
STEPS, RATE, BATCH = 200, 1e-3, 8
HORIZON, SHOWN = 12, (1, 2, 3, 4, 6, 9, 12)
"""Segments of 5 s that are generated, and those of the table."""
SPACING = 15
"""Segments from one moment to the next."""
KINDS = {
    "generated": "generated",
    "persistence": "persistence",
    "mean": "mean",
    "leaked": "generated, filters saw the future",
}


def main() -> None:
    """Train and measure what is missing, and write table and figure."""
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--minutes", type=float, help="begin no model after so long; the next call goes on")
    arguments = parser.parse_args()
    quick = arguments.quick
    results = begin_study(quick=quick)
    output = results if quick else Path("generation_output")
    duration = 300.0 if quick else 1200.0
    train = simulate_cohort(2 if quick else 8, num_channels=CHANNELS, duration=duration, num_seizures=1 if quick else 3)
    test = simulate_cohort(
        1 if quick else 10, num_channels=CHANNELS, duration=duration, num_seizures=1 if quick else 3, first_subject=9
    )
    study = Study("detection", "generation", ["model", "seed"], report, table=results / "generation.csv")
    segments: list[HeldSegments] = []

    def measure(name: str, seed: int) -> list[dict[str, Any]]:
        segments.extend([] if segments else [HeldSegments(Segments(item)) for item in train])
        worked = time.process_time()
        model = pretrained(MODELS[name], segments, seed, output / f"{name.replace(' ', '-')}-{seed}", quick)
        rows = [row for subject in test for row in similarities(model, held(subject), HORIZON)]
        facts = {"steps": 4 if quick else STEPS, "cpu_s": round(time.process_time() - worked)}
        return [{**facts, **row} for row in rows]

    seeds, names = (arguments.seeds[:1], [*MODELS][:1]) if quick else (arguments.seeds, [*MODELS])
    study.run([(name, seed) for seed in seeds for name in names], measure, minutes=arguments.minutes)
    folder = next(iter(sorted(output.glob("MVPFormer-tiny-[0-9]"))), None)
    if folder is not None:
        figure(study.rows, MVPFormer.from_pretrained(folder), held(test[0]), study.table.with_suffix(".png"))


def pretrained(
    config: MVPFormerConfig, segments: Sequence[Segments], seed: int, folder: Path, quick: bool
) -> MVPFormer:
    """A model pretrained by next-segment prediction, from its folder where it is done."""
    if not (folder / "config.json").is_file():
        options = {"accelerator": "cpu", "devices": 1}
        training = Training(4 if quick else STEPS, RATE, BATCH, 1, folder, seed, options)
        pretrain(config, segments, training).save_pretrained(folder)
    return MVPFormer.from_pretrained(folder)


def moments(segments: Segments, context: int) -> range:
    """Segments at which a future begins: a whole context lies before, and a whole horizon after."""
    return range(context + LEVEL_SEGMENTS, segments.num_samples // segments.segment_samples - HORIZON + 1, SPACING)


def similarities(model: MVPFormer, recording: Recording, horizon: int) -> list[dict[str, Any]]:
    """Mean cosine with the true future over moments and channels, one row for each horizon."""
    segments = Segments(recording)
    encoded, valid, _ = encoded_past(model, segments, segments.num_segments, segments.num_segments, 16)
    truth = F.normalize(encoded.detach(), dim=-1)
    context = model.config.context
    found: dict[str, list[torch.Tensor]] = {kind: [] for kind in KINDS}
    real = []
    for moment in moments(segments, context):
        past = recording.crop(0.0, 5.0 * moment)
        generated = generate(model, past, horizon, preprocessing=segments.preprocessing, past=context)
        future = truth[moment : moment + horizon]
        before = seen(model, past, segments, context)
        guesses = {"generated": generated.embeddings, "persistence": before[-1:], "mean": before.mean(0, keepdim=True)}
        inputs = slice(moment - context, moment)
        guesses["leaked"] = roll_out(model, encoded[inputs].detach(), valid[inputs], horizon)
        for kind, guess in guesses.items():
            found[kind].append((F.normalize(guess, dim=-1) * future).sum(-1))  # [horizon, C]
        real.append(valid[moment : moment + horizon] & generated.valid)
    mask = torch.stack(real)
    means = {
        kind: (torch.stack(found[kind]) * mask).sum((0, 2)) / mask.sum((0, 2)).clamp(min=1) for kind in found
    }  # [horizon]
    return [
        {"subject": recording.subject, "moments": len(real), "seconds": 5 * (ahead + 1)}
        | {kind: float(mean[ahead]) for kind, mean in means.items()}
        for ahead in range(horizon)
    ]


def seen(model: MVPFormer, past: Recording, segments: Segments, context: int) -> torch.Tensor:
    """Directions of the last embeddings that the model generates from, [context, C, D]."""
    own = Segments(past, segments.preprocessing)
    embeddings, _, _ = encoded_past(model, own, own.num_segments, context, 16)
    return F.normalize(embeddings.detach(), dim=-1)


def report(rows: pd.DataFrame) -> str:
    """The table as Markdown: mean over subjects and seeds, by horizon."""
    lines = []
    for name, group in rows.groupby("model", sort=False):
        for kind in KINDS:
            by_subject = group.groupby(["seconds", "subject"])[kind].mean().unstack()
            line = {"embeddings of": name, "": KINDS[kind], "seeds": group["seed"].nunique()}
            line |= {f"{5 * ahead} s": f"{by_subject.loc[5 * ahead].mean():.3f}" for ahead in SHOWN}
            lines.append(line)
        best = group.groupby(["seconds", "subject"])[list(KINDS)].mean()
        better = (best["generated"] > best[["persistence", "mean"]].max(axis=1)).unstack()
        lines.append(
            {"embeddings of": name, "": "subjects in whom generated is best", "seeds": group["seed"].nunique()}
            | {f"{5 * ahead} s": f"{int(better.loc[5 * ahead].sum())} of {better.shape[1]}" for ahead in SHOWN}
        )
    first, subjects = rows.iloc[0], rows["subject"].nunique()
    return (
        "Cosine of embeddings with those of the true future, by horizon. Simulated subjects that training did not see "
        f"({subjects}, {first['moments']} moments each), models pretrained for {first['steps']} steps. "
        "Each model has an embedding space of its own, so compare rows of one model. Generated: rolled out from the "
        "signal before the moment. Persistence: the last true embedding. Mean: the channel's mean direction over the "
        "context. Last: from the past of a recording that was filtered whole, whose filters saw the next segment.\n\n"
        f"{markdown_table(pd.DataFrame(lines))}\n"
        f"{rows.groupby(['model', 'seed'])['cpu_s'].first().sum():.0f} s of processor time; "
        f"{', '.join(rows['hardware'].unique())}, beside other work; 1 thread.\n"
    )


def figure(rows: pd.DataFrame, model: MVPFormer, recording: Recording, path: Path) -> None:
    """Similarity by horizon for each model, and a generated waveform beside the true one."""
    style.apply()
    models = [*rows["model"].unique()]
    shown, axes = plt.subplots(2, len(models), figsize=(4 * max(len(models), 2), 7), squeeze=False)
    for axis, name in zip(axes[0], models, strict=True):
        group = rows[rows["model"] == name].groupby("seconds")[list(KINDS)].mean()
        for kind, line in zip(KINDS, ("-o", "--", ":", "-x"), strict=True):
            axis.plot(group.index, group[kind], line, label=KINDS[kind])
        axis.set(title=name, xlabel="seconds ahead", ylabel="cosine with the true future")
    axes[0, 0].legend()
    for axis in axes[1]:
        axis.remove()
    traces = shown.add_subplot(axes[1, 0].get_gridspec()[1, :])
    segments = Segments(recording)
    moment = moments(segments, model.config.context)[0]
    generated = generate(model, recording.crop(0.0, 5.0 * moment), 4, preprocessing=segments.preprocessing)
    true, _ = segments.read(moment - 4, moment + 4)
    step = 6 * float(np.std(true))
    times = np.arange(true.shape[1]) / generated.sfreq - 20.0
    names = generated.channel_names[:4]
    for channel in range(len(names)):
        label = "true" if channel == 0 else None
        traces.plot(times, true[channel] - step * channel, color="0.6", linewidth=0.4, label=label)
        label = "pieces of the past, chosen by generated embeddings" if channel == 0 else None
        waveform = generated.waveform[channel] - step * channel - 0.45 * step
        traces.plot(times[-len(waveform) :], waveform, color=style.RED, linewidth=0.4, label=label)
    traces.axvline(0.0, color="black", linewidth=0.6)
    traces.set_yticks(-step * np.arange(len(names)), names)
    traces.set(xlabel="seconds; a simulated recording", ylabel="channel")
    traces.legend(loc="upper left")
    shown.savefig(path)
    plt.close(shown)


if __name__ == "__main__":
    main()
