"""The folder of a training run, and its progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from tqdm import tqdm

from mvpa_ts.checks import keep_whole, warn
from mvpa_ts.files import write_csv
from mvpa_ts.ieeg.model.seen_subjects import save_training_subjects
from mvpa_ts.ieeg.training.checkpoints import AtomicCheckpointIO
from mvpa_ts.ieeg.training.loggers import InterruptibleTensorBoard
from mvpa_ts.ieeg.training.module import TrainingModule

LAST = "last"


class TrainingFiles:
    """The folder of a run: checkpoints/last.ckpt; csv/ and tensorboard/ by start of the run; at the end model/.

    Parameters
    ----------
    checkpoint_every : int
        Steps between checkpoints; the last step always writes one.
    """

    def __init__(self, folder: Path, checkpoint_every: int) -> None:
        self.folder = folder
        self.checkpoint_every = checkpoint_every
        keep_whole(self, 1, "checkpoint_every")

    @property
    def checkpoint(self) -> Path:
        """Path of the last checkpoint."""
        return self.folder / "checkpoints" / f"{LAST}.ckpt"

    def check(self, subcommand: str, ckpt_path: str | None) -> None:
        """Refuse to score random weights, to continue without a checkpoint, and to overwrite an earlier run.

        Raises
        ------
        FileNotFoundError
            The last checkpoint is asked for but does not exist.
        ValueError
            A checkpoint is needed but none is named, or an earlier one would be overwritten.
        """
        # Lightning would begin with random weights, and only hint at it.
        if ckpt_path == LAST and not self.checkpoint.exists():
            raise FileNotFoundError(
                f"--ckpt_path {LAST}: there is no checkpoint {self.checkpoint}; check --output, or leave --ckpt_path "
                "out to begin a new training"
            )
        if ckpt_path is None and subcommand == "validate":
            raise ValueError(f"validate needs --ckpt_path, {LAST} or a file: without one it would score random weights")
        # Days of training are one file, and starting again without a word would replace it.
        if ckpt_path is None and self.checkpoint.exists():
            raise ValueError(f"{self.folder} holds an earlier run: go on by --ckpt_path last, or name another --output")

    def resumption(self) -> str:
        """Describe the checkpoint from which a stopped run goes on."""
        if not self.checkpoint.exists():
            return f"{self.checkpoint} does not exist yet, start again (--checkpoint_every is {self.checkpoint_every})"
        step = ""
        if self.checkpoint.is_file():  # not in parts, one a process; mmap, as only a number is read
            step = f" holds step {torch.load(self.checkpoint, mmap=True, weights_only=True)['global_step']}"
        return f"{self.checkpoint}{step}, go on with --ckpt_path {LAST}"

    def trainer_arguments(self, *, progress: bool = True) -> dict[str, list[Any]]:
        """Return callbacks, loggers and plugins for the Trainer, with a progress bar if `progress`."""
        # The name is the one that `ckpt_path="last"` looks for; overwritten in place, which is a rename.
        # One checkpoint: the last one holds all that a continued run needs, and older ones only fill the disk.
        checkpoint = ModelCheckpoint(
            self.checkpoint.parent,
            filename=LAST,
            every_n_train_steps=self.checkpoint_every,
            save_on_train_epoch_end=False,
            enable_version_counter=False,
        )
        losses = CSVLogger(self.folder, name="csv", flush_logs_every_n_steps=1)
        return {
            "callbacks": [checkpoint, FinalFiles(self), *([StepProgressBar()] if progress else [])],
            "logger": [losses, InterruptibleTensorBoard(self.folder, name="tensorboard")],
            "plugins": [AtomicCheckpointIO()],
        }


class StepProgressBar(TQDMProgressBar):
    """Progress bar over the steps of the whole training, so that it shows the remaining time of the training."""

    @property
    def total_train_batches(self) -> int | float:
        """Number of batches up to the last step."""
        steps = self.trainer.max_steps
        return steps * self.trainer.accumulate_grad_batches if steps > 0 else super().total_train_batches

    def on_train_start(self, trainer: Trainer, *arguments: Any) -> None:
        """Begin the bar of a continued run: Lightning does not announce the epoch in which it starts."""
        super().on_train_start(trainer, *arguments)
        self._place(trainer)

    def on_train_epoch_start(self, trainer: Trainer, *arguments: Any) -> None:
        """Begin the bar; the total stays that of the training."""
        super().on_train_epoch_start(trainer, *arguments)
        self._place(trainer)

    def _place(self, trainer: Trainer) -> None:
        bar: tqdm[Any] = self.train_progress_bar
        total = self.total_train_batches
        bar.total = None if total == float("inf") else total
        bar.initial = bar.n = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        bar.set_description(getattr(trainer.lightning_module, "task", "training"))


class FinalFiles(Callback):
    """Writes model/ after training, and similarity.csv and similarity.png after validation."""

    def __init__(self, files: TrainingFiles) -> None:
        self.files = files

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Write table and plot of the three-reference similarity, see `mvpa_ts.ieeg.training.similarity`."""
        similarity = getattr(module, "similarity", None)
        if trainer.sanity_checking or not trainer.is_global_zero or similarity is None or similarity.segments.empty:
            return
        write_csv(self.files.folder / "similarity.csv", similarity.table())
        similarity.plot(self.files.folder / "similarity.png", f"step {trainer.global_step}")

    def on_fit_end(self, trainer: Trainer, module: TrainingModule) -> None:
        """Write the last checkpoint, and the weights as safetensors."""
        trainer.save_checkpoint(self.files.checkpoint)
        if not trainer.is_global_zero:
            return
        # FSDP may save one file a process, which no single process can read as a model.
        if self.files.checkpoint.is_dir():
            warn(
                f"{self.files.checkpoint} is in parts, one for each process, so no model/ is written: docs/scaling.md "
                "says how to merge them"
            )
            return
        module.export(self.files.folder)
        save_training_subjects(self.files.folder / "model", module.training_subjects(), module.training_recordings())
