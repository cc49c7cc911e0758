"""What is killed: five tasks that are started again until they end, and how to look into what they leave."""

import hashlib
import importlib
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

Report = Callable[[str], None]

_MODEL: dict[str, Any] = {"dim": 16, "mlp_dim": 24, "num_layers": 1, "context": 4}
_TRAINING = {"max_steps": 12, "log_every_n_steps": 1, "accelerator": "cpu", "enable_progress_bar": False}
_ROWS = 60
_TRIALS = 4


@dataclass(frozen=True)
class Workload:
    """One task.

    Attributes
    ----------
    run : callable
        ``run(inputs, output, report)`` begins the task or goes on with it, and reports each thing that it has saved.
    held : callable
        ``held(output)`` gives the same things as the folder holds them, each as often as it is there.
    result : callable
        ``result(output)`` gives the hash of each thing that must not depend on kills.
    """

    run: Callable[[Path, Path, Report], int]
    held: Callable[[Path], Iterable[str]]
    result: Callable[[Path], dict[str, str]]


def prepare(inputs: Path) -> None:
    """Recordings of four subjects, a model for training and one for detection."""
    from support.made_up_recordings import recording

    from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    from mvpa_ts.ieeg.simulation.writing import write_edf

    for n in range(4):
        made_up = recording(f"S{n}", seed=n)
        write_edf(made_up, inputs / "recordings" / f"S{n}.edf")
        if n < 2:
            write_edf(made_up, inputs / "few" / f"S{n}.edf")
    torch.manual_seed(0)
    MVPFormer(mvpformer_tiny(**_MODEL)).eval().save_pretrained(inputs / "base")
    MVPFormer(mvpformer_tiny(**_MODEL, num_classes=2)).eval().save_pretrained(inputs / "detector")


def _detect(inputs: Path, output: Path, report: Report) -> int:
    from mvpa_ts.ieeg.commands.main import main
    from mvpa_ts.ieeg.detection.store import ProbabilityStore

    append = ProbabilityStore.append

    def reported(store: ProbabilityStore, probabilities: Any) -> None:
        first = len(store)
        append(store, probabilities)
        for index in range(first, len(store)):
            report(f"{store.path.parent.name} {index} {store.probabilities[index]!r}")

    ProbabilityStore.append = reported  # type: ignore[method-assign]
    arguments = ["detect", str(inputs / "few"), "--model", str(inputs / "detector"), "-o", str(output)]
    return main([*arguments, "--batch_size", "1", "--channels", "all"])


def _stored_rows(output: Path) -> Iterable[str]:
    for store in sorted(output.glob("*/probabilities.store")):
        rows = store.read_bytes().split(b"\n")[1:-1]  # what follows the last line break was never reported
        for row in rows:
            index, _, value, _ = row.decode().split("\t")
            yield f"{store.parent.name} {index} {np.float64(value)!r}"


def _pretrain(inputs: Path, output: Path, report: Report) -> int:
    model = {f"model.architecture.{name}": value for name, value in _MODEL.items()}
    return _train("pretrain", {**model, "model.warmup_steps": 3}, inputs, output, report)


def _finetune(inputs: Path, output: Path, report: Report) -> int:
    return _train("finetune", {"model.base": str(inputs / "base"), "model.rank": 2}, inputs, output, report)


def _train(command: str, settings: dict[str, Any], inputs: Path, output: Path, report: Report) -> int:
    from mvpa_ts.ieeg.commands.main import main
    from mvpa_ts.ieeg.training.checkpoints import AtomicCheckpointIO

    save = AtomicCheckpointIO.save_checkpoint

    def reported(self: AtomicCheckpointIO, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save(self, checkpoint, path, storage_options)
        report(f"{Path(path).name} {checkpoint['global_step']}")

    AtomicCheckpointIO.save_checkpoint = reported  # type: ignore[method-assign]
    settings = {
        **settings,
        **{f"trainer.{name}": value for name, value in _TRAINING.items()},
        "trainer.val_check_interval": 4,
        "trainer.limit_val_batches": 1,
        "checkpoint_every": 2,
        "data.simulation": None,
        "data.recordings": f"[{inputs / 'recordings'}]",
        "data.validation_subjects": "[S2, S3]",
        "data.batch_size": 4,
        "output": str(output),
    }
    arguments = [command, "--config", "tiny"]
    for name, value in settings.items():
        arguments += [
            f"--{name}",
            "null" if value is None else str(value).lower() if value in (True, False) else str(value),
        ]
    if (output / "checkpoints" / "last.ckpt").exists():
        arguments += ["--ckpt_path", "last"]
    return main(arguments)


def _checkpoints(output: Path) -> Iterable[str]:
    """A checkpoint takes the place of those before it: it holds their steps too."""
    for path in sorted(output.glob("checkpoints/*.ckpt")):
        last = torch.load(path, weights_only=True)["global_step"]
        yield from (f"{path.name} {step}" for step in range(last + 1))


def _tables(inputs: Path, output: Path, report: Report) -> int:
    from harness.tables import append_row, read_rows

    table = output / "rows.csv"
    done = len(read_rows(table))
    for index in range(done, _ROWS):
        append_row(table, {"row": index, "value": float(np.random.default_rng(index).normal())})
        report(f"row {index}")
    return 0


def _rows(output: Path) -> Iterable[str]:
    from harness.tables import read_rows

    rows = read_rows(output / "rows.csv")
    return [] if rows.empty else [f"row {index}" for index in rows["row"]]


def _sweep(inputs: Path, output: Path, report: Report) -> int:
    import optuna
    import pandas as pd
    from neuralforecast import NeuralForecast
    from support.made_up_networks import SMALL

    from mvpa_ts.adapters.neuralforecast import AutoMVPA

    steps = np.arange(60)
    frame = pd.DataFrame(
        {
            "unique_id": np.repeat(["a", "b"], 60),
            "ds": np.tile(steps, 2),
            "y": np.concatenate([np.sin(steps / 3), np.cos(steps / 3)]),
        }
    )
    rates = [1e-3 * 2**n for n in range(_TRIALS)]

    def space(trial: Any) -> dict[str, Any]:
        return {**SMALL, "max_steps": 3, "learning_rate": trial.suggest_categorical("learning_rate", rates)}

    def finished(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if trial.state.name == "COMPLETE":
            report(f"{trial.number} {trial.value!r}")

    output.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    model = AutoMVPA(
        h=6,
        n_series=2,
        config=space,
        num_samples=_TRIALS,
        storage=f"sqlite:///{output / 'study.sqlite'}",
        study_name="sweep",
        search_alg=optuna.samplers.GridSampler({"learning_rate": rates}, seed=0),
        callbacks=[finished],
    )
    NeuralForecast(models=[model], freq=1).fit(frame, val_size=6)
    return 0


def _trials(output: Path) -> list[Any]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    database = output / "study.sqlite"
    if not database.exists():
        return []
    url = f"sqlite:///{database}"
    names = optuna.get_all_study_names(url)
    return optuna.load_study(study_name="sweep", storage=url).trials if names else []


def _finished_trials(output: Path) -> Iterable[str]:
    return [f"{trial.number} {trial.value!r}" for trial in _trials(output) if trial.state.name == "COMPLETE"]


def _searched(output: Path) -> dict[str, str]:
    """Losses by what was tried, and what is still said to be running once the grace of what was killed has passed."""
    import optuna

    trials = _trials(output)
    if any(trial.state.name == "RUNNING" for trial in trials):
        time.sleep(2.5)
        url = f"sqlite:///{output / 'study.sqlite'}"
        storage = optuna.storages.RDBStorage(url, heartbeat_interval=1, grace_period=1)
        optuna.storages.fail_stale_trials(optuna.load_study(study_name="sweep", storage=storage))
        trials = _trials(output)
    results = [(trial.params["learning_rate"], trial.value) for trial in trials if trial.state.name == "COMPLETE"]
    running = sum(trial.state.name in ("RUNNING", "WAITING") for trial in trials)
    return {"trials": repr(sorted(results)), "running": str(running)}


def _hashes(output: Path, *patterns: str) -> dict[str, str]:
    files = sorted(file for pattern in patterns for file in output.glob(pattern) if file.is_file())
    files = [file for file in files if not temporary(file)]
    return {str(file.relative_to(output)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _detected(output: Path) -> dict[str, str]:
    return _hashes(output, "**/*")


def _trained(output: Path) -> dict[str, str]:
    """Every file of the models, the tensors of the checkpoint and of its optimiser, and the loss of each step."""
    import pandas as pd

    checkpoint = torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)
    optimizer = checkpoint["optimizer_states"][0]["state"]
    tensors = {
        **checkpoint["state_dict"],
        **{f"{n} {k}": v for n, state in optimizer.items() for k, v in state.items()},
    }
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].numpy().tobytes())
    losses: dict[int, str] = {}
    for path in sorted(output.glob("csv/version_*/metrics.csv"), key=lambda path: int(path.parent.name[8:])):
        frame = pd.read_csv(path, dtype=str, on_bad_lines="skip")
        if "train/loss" in frame:
            frame = frame.dropna(subset=["train/loss"])
            losses |= dict(zip(frame["step"].astype(int), frame["train/loss"], strict=True))
    return {
        **_hashes(output, "model/**/*", "adapter/**/*"),
        "checkpoint": digest.hexdigest(),
        "last step": losses[max(losses)],
    }


WORKLOADS = {
    "detect": Workload(_detect, _stored_rows, _detected),
    "pretrain": Workload(_pretrain, _checkpoints, _trained),
    "finetune": Workload(_finetune, _checkpoints, _trained),
    "tables": Workload(_tables, _rows, lambda output: _hashes(output, "*.csv")),
    "sweep": Workload(_sweep, _finished_trials, _searched),
}


def warm() -> None:
    """Import what the tasks import, so that their processes, which are forked, begin at once."""
    for name in (
        "lightning.pytorch.cli",
        "matplotlib.pyplot",
        "neuralforecast",
        "peft",
        "mvpa_ts.adapters.neuralforecast",
        "mvpa_ts.ieeg.commands.detect",
        "mvpa_ts.ieeg.commands.training",
        "mvpa_ts.ieeg.detection.report",
        "mvpa_ts.ieeg.training.data_module",
        "mvpa_ts.ieeg.training.finetuning",
        "mvpa_ts.ieeg.training.pretraining",
    ):
        importlib.import_module(name)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning_fabric"):
        logging.getLogger(f"{name}.utilities.rank_zero").setLevel(logging.ERROR)
        logging.getLogger(name).setLevel(logging.ERROR)


def temporary(file: Path) -> bool:
    """Whether a file is one that was being written: hidden, or a checkpoint's part; nothing reads it."""
    return file.name.startswith(".") or file.suffix == ".part"


def doubled(held: Iterable[str]) -> int:
    """How many things are there more than once."""
    return sum(count - 1 for count in Counter(held).values())
