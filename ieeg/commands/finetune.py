"""``mvpformer finetune``: train a pretrained model to detect seizures, run and resumed from a YAML file."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mvpa_ts.checks import listed
from mvpa_ts.files import write_csv, write_text
from mvpa_ts.ieeg.commands.main import check_model
from mvpa_ts.ieeg.commands.training_arguments import USAGE, with_named_configs
from mvpa_ts.ieeg.constants import MARKED_BAD
from mvpa_ts.ieeg.events import clip_events, segment_labels
from mvpa_ts.ieeg.recordings.channels import plain_names
from mvpa_ts.ieeg.recordings.left_out import not_read, of_recording, of_segments, report_left_out
from mvpa_ts.ieeg.recordings.recording import Recording

if TYPE_CHECKING:
    from mvpa_ts.ieeg.preprocessing.segments import Segments

CONFIGS = {name: f"finetune-{name}.yaml" for name in ("patient", "tiny", "s", "m")}
HELP = f"""usage: mvpformer finetune [fit | validate] {USAGE}

Teach a pretrained MVPFormer to tell whether the last 5 s of a window lie in a seizure.

  mvpformer finetune --config patient --data.recordings '[seizure1.edf, seizure2.edf, night1.edf]' \\
                     --data.validation_recordings '[seizure3.edf, night2.edf]' --output runs/patient
  mvpformer finetune --config tiny --model.base runs/tiny/model --output runs/seizures
  mvpformer finetune --config s --model.base s/model --data.recordings /data/swec/ID0? /data/swec/ID1[0-8] \\
                     --data.validation_subjects '[ID05]' --output runs/s
  mvpformer finetune --config tiny --model.base runs/tiny/model --output runs/seizures --ckpt_path last
  mvpformer finetune --from-review results/night --recordings night.edf --model runs/patient/model --output runs/new
  mvpformer finetune --classes awake sleep --recordings a.edf b.edf --validation-recordings c.edf --output runs/states
  mvpformer finetune validate --config tiny --model.base runs/tiny/model --output runs/seizures --ckpt_path last

--classes learns classes of your own in place of seizures: 'mvpformer finetune --classes A B --help' says how.

--members 3 (as in --config patient) trains three networks, one after the other; the detector takes the mean of their
logits. The other two lie in DIR/networks. 'validate' measures the first.

--model.method is lora (adapters of rank 8 on query and value projections and the head, as in the paper; and the
amplitude map of models that have one), head (nothing else is trained), amplitude (head and amplitude map), blocks (all
but the encoder) or full. --config is one of {", ".join(CONFIGS)} (they come with the package) or a YAML
file; any key of it can be given on the command line. 'mvpformer finetune fit --help' lists all keys.

DIR receives checkpoints/last.ckpt; csv/ and tensorboard/, each with a folder version_0, version_1, … for every start
(losses; validation AUROC, average precision, F1 and kappa of raw decisions; in csv/ the settings too, config.yaml); and
at the end model/ (safetensors), which 'mvpformer detect --model DIR/model' reads. With --model.method lora it also
receives adapter/, as peft writes it. Line length, a logistic regression and, where it is installed, brainmaze are
compared on the same validation segments: a line says which has the highest AUROC, validation.csv the rest, and
model/line-length.json and model/regression.json are for 'mvpformer detect --model regression FILE'."""


def main(arguments: list[str]) -> None:
    """Run the command; see `HELP`."""
    if not arguments or arguments in (["-h"], ["--help"]):
        print(HELP)
        return
    options = {word.partition("=")[0].replace("_", "-") for word in arguments}
    if "--from-review" in options:
        from mvpa_ts.ieeg.commands.review import train_again

        train_again(arguments)
        return
    if "--classes" in options:
        from mvpa_ts.ieeg.commands.classes import train_classes

        train_classes(arguments)
        return
    arguments = with_named_configs(with_architecture(arguments), CONFIGS)
    from mvpa_ts.ieeg.commands.training import TrainingTask, run_training
    from mvpa_ts.ieeg.training.data_module import SeizureDataModule
    from mvpa_ts.ieeg.training.finetuning import FinetuningModule

    task = TrainingTask(
        FinetuningModule,
        SeizureDataModule,
        output="finetuning_output",
        context_from=("model.base", "model.architecture"),
        context=_context,
        next_command="mvpformer detect RECORDING --model {model} -o results",
        before=_say_before_training,
        train_others=_train_others,
    )
    run_training(arguments, task)


def _say_before_training(config: Any, training: Sequence[Recording], validation: Sequence[Recording]) -> None:
    from mvpa_ts.ieeg.preprocessing.segments import Segments
    from mvpa_ts.ieeg.recordings.swec_table import identity

    people = sorted({identity(item.subject_name) for item in (*training, *validation) if item.person_known})
    if config.linear and len(people) > 1:
        print(
            f"the recordings are of several people, {listed(people)}: --config patient makes a detector of one, "
            "whose regression and baselines are measured from quiet recordings of this one",
            file=sys.stderr,
        )
    kinds = {plain_names(item.channel_names): item.name for item in (*training, *validation)}
    if config.linear and len(kinds) > 1:
        print(
            f"channels differ between recordings, such as {' and '.join([*kinds.values()][:2])}: a detector of one "
            "patient measures other places there. If they are different people, train a detector for each",
            file=sys.stderr,
        )
    reason = _too_little([Segments(recording) for recording in validation])
    if config.linear and config.members > 1 and reason:
        print(
            f"the regression will decide alone, because {reason}: the {config.members} networks train, and have no "
            "weight. --members 1 gives the same decisions sooner",
            file=sys.stderr,
        )


def _too_little(validation: Sequence[Segments]) -> str | None:
    """Why recordings that validate cannot show that networks help, if they cannot."""
    from mvpa_ts.ieeg.scoring.comparison import MIN_SEGMENTS
    from mvpa_ts.ieeg.scoring.words import MIN_SEIZURES

    if sum(len(segments.recording.seizures or []) for segments in validation) < MIN_SEIZURES:
        return f"fewer than {MIN_SEIZURES} seizures validate"
    if sum(segments.num_segments for segments in validation) < MIN_SEGMENTS:
        return f"fewer than {MIN_SEGMENTS} segments validate"
    return None


def _train_others(first: Any, again: Callable[[Sequence[str]], object]) -> None:
    """Train the other networks of the detector, each in a folder of its own, and save all as one detector."""
    from mvpa_ts.ieeg.model.pretrained import UNFINISHED

    config, files = first.config[first.subcommand], first.files
    # A run that is killed here leaves a network that would detect alone, worse, and without a word.
    if first.trainer.is_global_zero and (files.folder / "model").is_dir():
        write_text(files.folder / "model" / UNFINISHED, "mvpformer finetune has not written all of this detector yet\n")
    if config.members > 1:
        _train_more(first, again)
    if first.trainer.is_global_zero:
        _stand_beside(first.trainer.datamodule, files.folder, first.model.device, linear=config.linear)
        _list_left_out(first.trainer.datamodule, files.folder)


def _list_left_out(data: Any, folder: Path) -> None:
    """Print, and write beside the model, what was left out of the recordings that train and validate."""
    others, links = not_read(data.given_paths)
    rows = [*dict.fromkeys([*others, *links])]
    for dataset in (data.training, data.validation):
        for segments in () if dataset is None else dataset.segments:
            recording = segments.recording
            rows += of_recording(recording.name, recording.dropped, recording.left_out, recording.notes)
            rows += of_segments(recording.name, segment_labels(segments.starts, recording.bad_spans), MARKED_BAD)
    report_left_out(folder, rows)


def _train_more(first: Any, again: Callable[[Sequence[str]], object]) -> None:
    from mvpa_ts.ieeg.detection.networks import save_networks
    from mvpa_ts.ieeg.model.mvpformer import MVPFormer
    from mvpa_ts.ieeg.training.run_folder import LAST, TrainingFiles

    config, files = first.config[first.subcommand], first.files
    folders = [files.folder]
    for number in range(2, config.members + 1):
        print(f"network {number} of {config.members}", file=sys.stderr)
        others = TrainingFiles(files.folder / "networks" / str(number), config.checkpoint_every)
        again(
            [
                "--members=1",
                f"--output={others.folder}",
                # Another seed gives other dropout, batches and changes: networks that err in the same way gain nothing.
                f"--seed_everything={config.seed_everything + number - 1}",
                # What was trained before, or in part, goes on.
                f"--ckpt_path={LAST if others.checkpoint.exists() else 'null'}",
            ]
        )
        folders.append(others.folder)
    networks = [MVPFormer.from_pretrained(folder / "model") for folder in folders]
    save_networks(networks, files.folder / "model")
    first.model.validate_together(networks)


def _stand_beside(data: Any, folder: Path, device: Any, *, linear: bool) -> None:
    """Fit baselines on the training recordings, save them beside the model, and compare all on validation segments."""
    import pandas as pd

    from mvpa_ts.ieeg.detection import baselines
    from mvpa_ts.ieeg.detection.detector import Detector
    from mvpa_ts.ieeg.detection.features import TrainingFeatures
    from mvpa_ts.ieeg.model.pretrained import UNFINISHED
    from mvpa_ts.ieeg.scoring.comparison import compare_segments

    simple: list[baselines.Baseline] = [baselines.LineLength()]
    try:
        training = TrainingFeatures.of(data.training.segments)
    except ValueError as error:
        print(f"baselines: {error}", file=sys.stderr)
    else:
        if linear:
            _add_linear(training, data, folder / "model", device)
        fitted = baselines.fit_baselines(training)
        for learned in fitted:
            learned.save(folder / "model" / f"{learned.kind}.json")
        simple += fitted
    (folder / "model" / UNFINISHED).unlink(missing_ok=True)
    if data.validation is None:
        return
    validation = data.validation.segments
    baselines.warn_of_other_channels([*data.training.segments, *validation])
    if baselines.brainmaze_installed():
        simple.append(baselines.Brainmaze())
    # Loaded from the folder, so that what is compared is what `mvpformer detect` will run.
    detector = Detector(folder / "model", device=device)
    ours = "the detector"  # not "MVPFormer": its regression may decide alone
    scores = {ours: [detector.detect_segments(segments).probabilities for segments in validation]}
    for baseline in simple:
        scores[baseline.name] = [np.concatenate([*baseline.probabilities(segments)]) for segments in validation]
    comparison = compare_segments(
        np.concatenate([segments.labels() for segments in validation]),
        {name: np.concatenate(arrays) for name, arrays in scores.items()},
        sum(len(clip_events(item.recording.seizures or [], item.recording.duration)) for item in validation),
        {ours: detector.threshold},
    )
    print(f"validation beside baselines: {' '.join(comparison.words())}", file=sys.stderr)
    if not baselines.brainmaze_installed():
        print("brainmaze is not compared: the package brainmaze-eeg-models is not installed", file=sys.stderr)
    counts = {"segments": comparison.segments, "ictal": comparison.ictal, "seizures": comparison.seizures}
    rows = [{"detector": name, **counts, **row} for name, row in comparison.rows.items()]
    write_csv(folder / "validation.csv", pd.DataFrame(rows))


def _add_linear(training: Any, data: Any, model: Path, device: Any) -> None:
    """Fit the linear part, weigh the networks by the validation recordings, and save it with the model."""
    from dataclasses import replace

    from mvpa_ts.ieeg.detection.detector import Detector
    from mvpa_ts.ieeg.detection.features import blocks, segment_features
    from mvpa_ts.ieeg.detection.linear import choose_network_weight, fit_linear, save_linear
    from mvpa_ts.ieeg.detection.networks import load_networks
    from mvpa_ts.ieeg.model.seen_subjects import save_training_channels

    save_training_channels(model, [segments.recording for segments in data.training.segments])
    linear = fit_linear(training)
    validation = [] if data.validation is None else data.validation.segments
    reason = _too_little(validation)
    if reason is None:
        networks = Detector(load_networks(model), device=device)
        probabilities = np.concatenate([networks.detect_segments(segments).probabilities for segments in validation])
        features = np.concatenate([segment_features(*block) for segments in validation for block in blocks(segments)])
        ictal = np.concatenate([segments.labels() for segments in validation])
        recording = np.repeat(np.arange(len(validation)), [segments.num_segments for segments in validation])
        scored = ~np.isnan(probabilities)
        clipped = np.clip(probabilities[scored], 1e-6, 1 - 1e-6)
        logits = linear.logits(features[scored]), np.log(clipped / (1 - clipped))
        weight = choose_network_weight(*logits, ictal[scored], recording[scored])
        linear = replace(linear, network=weight)
        reason = "recordings that train neither do not show that they help"
    if linear.network:
        words = f"networks (weight {linear.network:g}) and a regression that withstands drift decide together"
    else:
        words = (
            f"a regression that withstands drift decides alone; the networks have no weight, because {reason}. "
            "Loss, F1 and kappa of the training are those of the networks, not of the detector"
        )
    print(words, file=sys.stderr)
    save_linear(linear, model)


def with_architecture(arguments: Sequence[str]) -> list[str]:
    """Let sizes of a model from scratch change those of the named configuration, not those of MVPFormer-S.

    Examples
    --------
    >>> with_architecture(["--config", "tiny", "--model.architecture.context", "4"])[2][:20]
    '--model.architecture'
    """
    from mvpa_ts.ieeg.model.configuration import mvpformer_m, mvpformer_s, mvpformer_tiny

    sizes_of = {"tiny": mvpformer_tiny, "s": mvpformer_s, "m": mvpformer_m}
    sizes = [index for index, argument in enumerate(arguments) if argument.startswith("--model.architecture.")]
    # "--config tiny" and "--config=tiny" alike.
    words = [word for argument in arguments for word in argument.split("=", 1)]
    names = [name for option, name in itertools.pairwise(words) if option in ("--config", "-c") and name in sizes_of]
    if not sizes or not names:
        return [*arguments]
    architecture = f"--model.architecture={json.dumps(sizes_of[names[-1]]().to_dict())}"
    return [*arguments[: sizes[0]], architecture, *arguments[sizes[0] :]]


def _context(base: str | None, architecture: Any) -> int:
    """Segments of a window: those that the model was pretrained with."""
    from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
    from mvpa_ts.ieeg.model.pretrained import pretrained_config

    if base is None:
        # Optional in the class, the architecture comes here as what its keys say, not as an object.
        fields = getattr(architecture, "init_args", architecture)
        return getattr(fields, "context", MVPFormerConfig.context)
    check_model(base)
    return pretrained_config(base).context
