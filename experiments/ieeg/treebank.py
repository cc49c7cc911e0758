"""Brain TreeBank: four decoding tasks, three protocols, two splits, and a sweep over 10 to 50 channels.

As in the paper, one model is finetuned for each subject, on a part of all of the subject's trials, and tested on the
rest; tables show averages over subjects. Trials are looked for in ``MVPA_TS_DATA/braintreebank``
(``sub_X_trialYYY.h5`` with the data set's lists); words in ``subjectX_trialY_words_df.csv`` and ``…_nonverbal_df.csv``
beside them, or in ``transcripts/sub_X_trialYYY/features.csv`` with ``subject_timings/sub_X_trialYYY_timings.csv``. A
task whose columns the tables lack is named and left out. Where there is no trial, or with ``--simulated``, three
made-up ones of two subjects stand in, whose words show in waves that a model can learn from unlabelled recordings.

Every row has ROC-AUC and balanced accuracy. The random split is the published one, in which a test window overlaps
training windows; the blocked split does not leak, and made-up trials have no other.

    python experiments/ieeg/treebank.py --model runs/s/model  # LoRA at 10 to 50 channels, as the paper
    python experiments/ieeg/treebank.py --model runs/s/model --finetuning probe  # a linear probe on frozen features
    python experiments/ieeg/treebank.py --simulated --steps 60 --most 200  # made-up trials, minutes on one core
    python experiments/ieeg/treebank.py --simulated --steps 60 --most 200 --model MV-Llama-tiny  # pretrained on others
    python experiments/ieeg/treebank.py --simulated --quick                # a smoke run, written elsewhere
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import h5py
import numpy as np
import pandas as pd
import torch
from harness.command_line import script_parser
from harness.detection.decoding import CHANNEL_COUNTS, channel_sweep, decode, rank_by_decoding, trial_features
from harness.detection.training import Training, finetune_on_trials, pretrain, trial_item
from harness.paper import tables as paper
from harness.study import grid, paragraphs
from harness.tables import hardware, read_rows, results_folder
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from mvpa_ts.checks import grouped
from mvpa_ts.files import replaced, write_text
from mvpa_ts.ieeg import MVPFormer, MVPFormerConfig, Preprocessing, Recording, Segments, mvpformer_tiny
from mvpa_ts.ieeg.datasets.treebank import read_treebank, read_words
from mvpa_ts.ieeg.datasets.treebank_tasks import (
    PROTOCOLS,
    TASKS,
    Examples,
    ExampleSplit,
    read_examples,
    split_examples,
    treebank_examples,
)
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.training.spans import HeldSegments

PRETRAINED = {"MVPFormer-tiny": "mvpa", "MV-Llama-tiny": "llama"}
"""Models that this script pretrains itself, by prediction on made-up recordings: there is no SWEC to do it on."""
SPLITS = ("random", "blocked")
SIMULATED = ((1, 1), (1, 2), (2, 1))
"""Subject and trial of the made-up ones."""
WORD_SECONDS = 1.25
"""Between the onsets of made-up words: a segment of 5 s, and a window centred on a word, begin with one."""


def main() -> None:
    """Decode what is there and write the tables."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    results = results_folder("treebank", quick=arguments.quick)
    output = results if arguments.quick else arguments.output
    root = Path(os.environ.get("MVPA_TS_DATA", "data")) / "braintreebank"
    trials = [] if arguments.simulated or not root.is_dir() else sorted(root.glob("sub_*_trial*.h5"))
    simulated = not trials
    if simulated:
        root = output / "simulated"
        size, keys = ((300.0, 16), SIMULATED[:1]) if arguments.quick else ((900.0, 72), SIMULATED)
        trials = [simulate_trial(root, *key, *size) for key in keys]
        print(f"no trial in MVPA_TS_DATA: made-up ones in {root}", flush=True)
    subjects = grouped((path.stem.split("_trial")[0], path) for path in trials)
    name, model = load_model(arguments.model, output, quick=arguments.quick)
    protocols = arguments.protocols[: 1 if simulated else None]
    table = results / f"treebank{'_simulated' if simulated else ''}.csv"
    rows: list[dict[str, Any]] = read_rows(table).to_dict("records")
    done = {(row["model"], row["subject"], row["task"], row["protocol"]) for row in rows}
    label = f"{name}, {arguments.finetuning}"
    for (subject, paths), task, protocol in itertools.product(subjects.items(), arguments.tasks, protocols):
        if (label, subject, task, protocol) in done:
            continue
        loaded = []
        for path in paths:
            try:
                loaded.append(load_task(root, path, task, protocol, arguments.most))
            except (KeyError, ValueError, FileNotFoundError) as error:
                # A published table need not have every column; the trial is missing, and why is said.
                print(f"{path.stem}, {task}, {protocol}: not run: {error}", flush=True)
        if not loaded:
            continue
        signals = np.concatenate([signal for signal, _ in loaded])
        labels = np.concatenate([examples.labels for _, examples in loaded])
        features = trial_features(model, signals)
        for how in SPLITS[1 if simulated else 0 :]:
            try:
                split = split_trials([examples for _, examples in loaded], how)
            except ValueError as error:
                print(f"{subject}, {task}, {protocol}, {how}: not run: {error}", flush=True)
                continue
            known = {"model": label, "subject": subject, "task": task, "protocol": protocol, "split": how}
            known |= {"recordings": len(loaded), "hardware": hardware()}
            if arguments.finetuning == "probe":
                probes = channel_sweep(features, labels, split, CHANNEL_COUNTS)
                if probes[-1].channels < features.shape[1]:
                    probes.append(decode(features, labels, split))
                kept = ("channels", "roc_auc", "balanced_accuracy", "trials")
                rows += [known | {name: getattr(scores, name) for name in kept} for scores in probes]
                continue
            ranked = rank_by_decoding(features, labels, split)
            # Of made-up trials the fewest and the most are enough.
            counts = sorted({min(count, len(ranked)) for count in CHANNEL_COUNTS[:: 4 if simulated else 1]})
            for count in counts[:1] if arguments.quick else counts:
                best = sorted(ranked[:count])
                folder = output / "finetuned" / f"{subject}-{task}-{protocol}-{how}-{arguments.most}-{count}"
                trainer = {"accelerator": "auto", "devices": 1}
                steps = 2 if arguments.quick else arguments.steps
                training = Training(steps, arguments.rate, 16, 1, folder, 0, trainer)
                found = finetuned_scores(model, signals[:, best], labels, split, arguments.finetuning, training)
                rows.append({**known, "channels": count, "steps": steps, **found})
        print(f"{subject}, {task}, {protocol}: {len(labels)} windows, {signals.shape[1]} channels", flush=True)
        if rows:
            write_text(table, pd.DataFrame(rows).to_csv(index=False))
        write_text(table.with_suffix(".md"), report(rows, simulated=simulated))
    print(report(rows, simulated=simulated))


def split_trials(trials: Sequence[Examples], how: Any) -> ExampleSplit:
    """Split each trial for itself, and join the parts: a subject's trials are in all of them."""
    starts = np.cumsum([0, *(len(examples) for examples in trials)])
    splits = [split_examples(examples, how) for examples in trials]
    names = ("train", "validation", "test", "removed")
    joined = {
        name: np.concatenate([getattr(split, name) + start for split, start in zip(splits, starts, strict=False)])
        for name in names
    }
    return ExampleSplit(**joined)


def load_model(which: str | None, output: Path, *, quick: bool) -> tuple[str, MVPFormer]:
    """A pretrained model, or random weights, which are a baseline of their own."""
    if which in PRETRAINED:
        steps, trainer = 2 if quick else 500, {"accelerator": "cpu", "devices": 1}
        training = Training(steps, 5e-4, 8, 1, output / "pretrained" / which, 0, trainer)
        config = mvpformer_tiny(attention=PRETRAINED[which], context=4)
        return f"{which}, pretrained", pretrained_on_made_up(config, training, 2 if quick else 12)
    if which is not None:
        folder = Path(which)
        return folder.parent.name if folder.name == "model" else folder.name, MVPFormer.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return "random weights", MVPFormer(mvpformer_tiny()).eval()


def load_task(root: Path, path: Path, task: Any, protocol: Any, most: int) -> tuple[np.ndarray, Any]:
    """Signals [n, C, 2560] of a task's windows and the examples; at most `most` windows."""
    found = re.fullmatch(r"sub_(\d+)_trial(\d+)", path.stem)
    if found is None:
        raise ValueError(f"{path.name} is not named sub_X_trialYYY.h5")
    subject, trial = int(found[1]), int(found[2])
    recording = read_treebank(root, subject, trial)
    words, nonverbal = word_tables(root, subject, trial)
    examples = treebank_examples(words, nonverbal, task, protocol, num_samples=recording.num_samples)
    if len(examples) > most:
        examples = examples.select(np.sort(np.random.default_rng(0).choice(len(examples), most, replace=False)))
    signals = np.stack(
        [signal for signal, _ in read_examples(recording, examples, Preprocessing(notch=60.0, reference=None))]
    )
    return signals, examples


def word_tables(root: Path, subject: int, trial: int) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Words and windows without speech of a trial."""
    stem = f"subject{subject}_trial{trial}"
    nonverbal = root / f"{stem}_nonverbal_df.csv"
    silent = pd.read_csv(nonverbal) if nonverbal.is_file() else None
    if (root / f"{stem}_words_df.csv").is_file():
        return pd.read_csv(root / f"{stem}_words_df.csv"), silent
    name = f"sub_{subject}_trial{trial:03d}"
    features, timings = root / "transcripts" / name / "features.csv", root / "subject_timings" / f"{name}_timings.csv"
    if not features.is_file():
        raise FileNotFoundError(f"neither {stem}_words_df.csv nor transcripts/{name}/features.csv")
    return read_words(features, timings), silent


def finetuned_scores(
    base: MVPFormer, signals: np.ndarray, labels: np.ndarray, split: Any, mode: Any, training: Training
) -> dict[str, Any]:
    """Finetune with a head on the concatenated channels, and score the test windows."""
    dataset = [trial_item(signals[row], bool(labels[row])) for row in split.train]
    model, _ = finetune_on_trials(base, dataset, mode, training, num_channels=signals.shape[1])
    model.eval()
    with torch.inference_mode():
        batches = torch.from_numpy(signals[split.test]).split(32)
        logits = torch.cat([model.classify(model(batch)) for batch in batches])
    truth, decision = labels[split.test], (logits[:, 1] - logits[:, 0]).numpy()
    return {
        "roc_auc": float(roc_auc_score(truth, decision)),
        "balanced_accuracy": float(balanced_accuracy_score(truth, decision > 0)),
        "trials": len(truth),
    }


def report(rows: list[dict[str, Any]], *, simulated: bool) -> str:
    """Averages over subjects: tasks at the most channels, means over tasks by channels, and the paper's numbers."""
    if not rows:
        return "No task could be run.\n"
    frame = pd.DataFrame(rows)
    frame = frame[frame["channels"] <= max(CHANNEL_COUNTS)]
    keys = ["model", "protocol", "split"]
    lines = []
    for key, rows_of in frame.groupby(keys, sort=False):
        means = rows_of.groupby(["channels", "task"], sort=False)["roc_auc"].mean().unstack()
        by_count = {f"{count} ch.": mean for count, mean in means.mean(axis=1).items()}
        lines.append(dict(zip(keys, key, strict=True)) | means.iloc[-1].to_dict() | by_count)
    lead = (
        f"ROC-AUC, averages over {frame['subject'].nunique()} subject(s), for each of whom one model is trained on all "
        "trials. Tasks are at the most channels, and below the number of channels are means over tasks. Balanced "
        f"accuracy is in the rows beside this page. {frame['trials'].min()} or more test windows a subject; chance is "
        "0.5. The random split is the published one, in which test windows overlap training windows; the blocked split "
        "does not leak."
    )
    if "steps" in frame and frame["steps"].notna().any():
        lead += f" Finetuned for {frame['steps'].max():.0f} steps."
    if simulated:
        lead += (
            " The trials are made up and are nothing to compare with the paper's accuracies. Volume, pitch and speech "
            "each show in the polarity and size of a wave of 1 s below the noise, on electrodes of their own, so that "
            "both classes have the same power. Pretraining is on twelve other subjects with these waves and without "
            "labels. Unlike the paper's encoder, that of the tiny model reads the amplitude, too (amplitude='bands')."
        )
    machines = ", ".join(frame["hardware"].unique())
    return f"{lead}\n\n{markdown_table(pd.DataFrame(lines))}\n{cited()}\nMeasured on {machines}; one thread.\n"


def cited() -> str:
    """The paper's accuracies, on the real recordings; its peers need models that this project does not hold."""
    printed = paper.treebank()
    counts = paper.treebank_channels().rename(index=lambda count: f"MVPFormer-S, {count} channels")
    rows = [[f"*{name}*", *map("{:.2f}".format, row)] for name, row in pd.concat([printed, counts]).iterrows()]
    heads = ["the paper, cited, not run: accuracy", *printed.columns]
    return paragraphs(grid(heads, rows), "† reads the electrodes' positions.")


def made_up(generator: np.random.Generator, seconds: float, channels: int, rate: float) -> tuple[np.ndarray, ...]:
    """Signals, onsets of words (s), and volume, pitch and speech at each [3, n], about 0; speech is 1 or −1.

    Each of the three multiplies a wave of its own, 1 s from the onset, on a quarter of the channels. The waves are the
    same in everybody. They lie below the noise, and either polarity has the same power, so that a model must know them.
    All three change slowly, so that one segment tells of the next.
    """
    onsets = np.arange(0.0, seconds - WORD_SECONDS, WORD_SECONDS)
    phases = generator.uniform(0, 2 * np.pi, (2, 1))
    slow = 1.2 * np.sin(2 * np.pi * onsets / np.array([[40.0], [32.0]]) + phases)
    speech = np.where(onsets // 40 % 2 == 0, 1.0, -1.0)
    said = np.vstack([slow + 0.5 * generator.standard_normal(slow.shape), speech])
    # White, so that the last samples of a segment do not tell the first of the next, which would be learned instead.
    signal = (rate / 512) ** 0.5 * 20 * generator.standard_normal((channels, round(seconds * rate)), np.float32)
    frequencies, length = np.arange(4, 21), round(rate)
    angles = 2 * np.pi * np.random.default_rng(0).random((3, len(frequencies), 1))
    turns = 2 * np.pi * frequencies[:, None] * np.arange(length) / rate
    waves = np.sin(turns + angles).sum(1) * np.hanning(length)
    waves *= 3.5 / np.abs(waves).max(1, keepdims=True)
    places = generator.permutation(channels)[: 3 * (channels // 4)].reshape(3, -1)
    for number, onset in enumerate(np.round(onsets * rate).astype(int)):
        for chosen, wave, value in zip(places, waves, said[:, number], strict=True):
            signal[chosen, onset : onset + length] += value * wave
    return signal, onsets, said


def pretrained_on_made_up(config: MVPFormerConfig, training: Training, subjects: int) -> MVPFormer:
    """A model that has learned to predict made-up subjects of 10 minutes; read from the folder if it is there."""
    folder = training.folder / "model"
    if not (folder / "config.json").is_file():
        segments = []
        for number in range(subjects):
            signal, _, _ = made_up(np.random.default_rng((100, number)), 600.0, 16, 512.0)
            person = f"P{number}"
            recording = Recording.from_array(signal, 512.0, [*"abcdefghijklmnop"], "µV", subject=person, name=person)
            segments.append(HeldSegments(Segments(recording, Preprocessing(notch=60.0, reference=None))))
        pretrain(config, segments, training).save_pretrained(folder)
    return MVPFormer.from_pretrained(folder)


def simulate_trial(root: Path, subject: int, trial: int, seconds: float, contacts: int) -> Path:
    """A made-up trial of the data set's layout."""
    path = root / f"sub_{subject}_trial{trial:03d}.h5"
    if path.is_file():
        return path
    labels = [f"{chr(65 + index // 8)}{index % 8 + 1}" for index in range(contacts)]
    folder = root / "electrode_labels" / f"sub_{subject}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "electrode_labels.json").write_text(json.dumps(labels))
    people = sorted({person for person, _ in SIMULATED})
    (root / "corrupted_elec.json").write_text(json.dumps({f"sub_{person}": [] for person in people}))
    (root / "clean_laplacian.json").write_text(json.dumps({f"sub_{person}": labels for person in people}))
    signal, onsets, said = made_up(np.random.default_rng((subject, trial)), seconds, contacts, 2048.0)
    volume, pitch, speech = said
    spoken = speech > 0
    words = pd.DataFrame({"est_idx": onsets[spoken] * 2048, "rms": volume[spoken], "pitch": pitch[spoken] * 50 + 200})
    words["is_onset"] = (np.arange(len(words)) % 3 == 0).astype(int)
    # Their middle is where a word would begin.
    silent = onsets[~spoken] * 2048
    stem = f"subject{subject}_trial{trial}"
    words.to_csv(root / f"{stem}_words_df.csv", index=False)
    nonverbal = pd.DataFrame({"est_idx": silent - 1024, "est_end_idx": silent + 1024})
    nonverbal.to_csv(root / f"{stem}_nonverbal_df.csv", index=False)
    with replaced(path) as temporary, h5py.File(temporary, "w") as file:
        for index, row in enumerate(signal):
            file[f"data/electrode_{index}"] = row
    return path


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = script_parser(__doc__, "a smoke run, written to a temporary folder")
    named = " or ".join(PRETRAINED)
    parser.add_argument(
        "--model", help=f"folder of a pretrained model, or {named}, pretrained here first; random weights by default"
    )
    parser.add_argument(
        "--finetuning", choices=("lora", "full", "head", "probe"), default="lora", help="probe: on frozen features"
    )
    parser.add_argument("--steps", type=int, default=500, help="of finetuning")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of finetuning")
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--most", type=int, default=4000, help="windows of a task at most, drawn at random")
    parser.add_argument("--simulated", action="store_true", help="a made-up trial even where there are others")
    parser.add_argument("--output", type=Path, default=Path("treebank_output"), help="folder of models")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
