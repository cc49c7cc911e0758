"""The base of pretraining and finetuning: optimizer, schedule, random streams, checkpoints that know their run."""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from mvpa_ts.checks import check_choices, keep_whole
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.ieeg.model.seen_subjects import recording_hash, refuse_seen, refuse_seen_recordings, subject_hash
from mvpa_ts.ieeg.random_streams import stream_seed
from mvpa_ts.ieeg.training.data_module import RecordingDataModule

# Key under which a checkpoint says how it was trained.
RECORD = "mvpformer"


class TrainingModule(pl.LightningModule):
    """A training that continues after a stop as if there had been none.

    The random numbers of a batch follow from (`seed`, number of the batch, rank), not from a generator whose state
    changes during the training.

    Parameters
    ----------
    learning_rate : float
        Highest learning rate of AdamW.
    weight_decay : float
        For matrices; gains, biases and codebooks are not decayed.
    schedule : {"cosine", "constant"}
        Learning rate after the warm-up: "cosine" falls to `final_rate` over the steps of the trainer, "constant" stays.
    warmup_steps : int
        Steps in which the learning rate rises linearly from zero.
    final_rate : float
        Share of the learning rate at which "cosine" ends.
    """

    task: ClassVar[str]
    """The command that trains so."""
    recorded: ClassVar[tuple[str, ...]]
    """Settings of its own that a continued run must share."""

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float,
        schedule: Literal["cosine", "constant"],
        warmup_steps: int,
        final_rate: float,
        seed: int,
    ) -> None:
        super().__init__()
        if not 0.0 <= final_rate <= 1.0:
            raise ValueError(f"final_rate must be in [0, 1], got {final_rate}")
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.schedule = schedule
        check_choices(self, schedule=("cosine", "constant"))
        self.warmup_steps = warmup_steps
        keep_whole(self, 0, "warmup_steps")
        self.final_rate = final_rate
        self.seed = seed
        self.batches_done = 0
        # Hashes of what the model's weights have seen before; None where the base does not tell its recordings.
        self.base_subjects: frozenset[str] = frozenset()
        self.base_recordings: frozenset[str] | None = frozenset()

    @property
    @abstractmethod
    def config(self) -> MVPFormerConfig:
        """Of the model."""

    def setup(self, stage: str) -> None:
        """Refuse validation subjects and recordings that the base of the model was trained on."""
        data = self.trainer.datamodule
        if isinstance(data, RecordingDataModule):
            # Before the first step, not with the scores: they would look good.
            refuse_seen(data.validation_subjects, self.base_subjects, allow_duplicates=data.allow_duplicates)
            if data.validation_sources is not None and data.validation is not None and self.base_recordings:
                refuse_seen_recordings((item.recording for item in data.validation.segments), self.base_recordings)

    def training_subjects(self) -> frozenset[str]:
        """Hashes of the subjects that the weights have seen, in this training and in that of the base."""
        data = self.trainer.datamodule
        trained = data.training.subjects if isinstance(data, RecordingDataModule) and data.training is not None else ()
        return self.base_subjects | {subject_hash(subject) for subject in trained}

    def training_recordings(self) -> frozenset[str] | None:
        """Hashes of the recordings that the weights have seen; None if those of the base are unknown."""
        data = self.trainer.datamodule
        if self.base_recordings is None or not isinstance(data, RecordingDataModule) or data.training is None:
            return None
        return self.base_recordings | {recording_hash(item.recording) for item in data.training.segments}

    def record(self) -> dict[str, Any]:
        """Settings as JSON values that a continued run must share."""
        names = ("learning_rate", "weight_decay", "schedule", "warmup_steps", "final_rate", "seed", *self.recorded)
        return {"architecture": self.config.to_dict(), **{name: getattr(self, name) for name in names}}

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write the trained model into the folder, as safetensors."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed dropout by the number of the batch."""
        # A generator's state would differ after a stop, and a continued run would be another one.
        torch.manual_seed(stream_seed(self.seed, "dropout", self.batches_done, self.global_rank))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Have the last step validated, wherever it lies: Lightning validates before it stops."""
        if self.global_step == self.trainer.max_steps:
            self.trainer.should_stop = True

    def checked(self, loss: Tensor) -> Tensor:
        """Return the loss of a training step; raise a ValueError that names the step if it is NaN or infinite."""
        # NaN spreads to all weights in this step, and the next checkpoint would replace the last good one.
        if not bool(loss.detach().isfinite().all()):
            raise ValueError(
                f"the loss of step {self.global_step + 1} is {loss.item():g}: training diverged and ends here; saved "
                f"checkpoints stay. Begin again with a learning_rate below {self.learning_rate:g} or more "
                "warmup_steps, or continue from the last checkpoint with them"
            )
        return loss

    def summed(self, amount: Tensor) -> Tensor:
        """Add up an amount of a batch over all processes."""
        return amount if self.trainer.world_size == 1 else self.trainer.strategy.reduce(amount.clone(), reduce_op="sum")

    def over_processes(self, loss: Tensor, weight: Tensor) -> Tensor:
        """Weigh the mean loss of this process by that of its terms, so that DDP's mean is the mean over all terms.

        Without it, a term would count more in a process that has few of them.
        """
        if self.trainer.world_size == 1:
            return loss
        total = self.summed(weight.to(loss.dtype))
        return loss * (self.trainer.world_size * weight / total.clamp(min=torch.finfo(loss.dtype).tiny))

    def configure_optimizers(self) -> dict[str, Any]:
        """Make AdamW, fused if the device has it, and the schedule by steps."""
        # Gains, biases and codebooks are few, and pulling them to zero only shrinks what they scale.
        decayed = {id(module.weight) for module in self.modules() if isinstance(module, nn.Linear)}
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in parameters if id(p) in decayed], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
        ]
        fused = self.device.type in ("cpu", "cuda", "mps")
        optimizer = torch.optim.AdamW(groups, lr=self.learning_rate, fused=fused)
        # Fused steps could undo a loss scale by themselves, so Lightning refuses to clip. Without the mark the scale,
        # if there is one, is undone before clipping, as for any optimizer.
        optimizer._step_supports_amp_scaling = False
        steps = self.trainer.estimated_stepping_batches
        # Batches never end, so epochs do not either: Lightning then says inf, or passes on the -1 of "no limit".
        if self.schedule == "cosine" and not 0 <= steps < math.inf:
            raise ValueError("schedule='cosine' needs a number of steps: set trainer.max_steps")
        scale = learning_rate_scale(self.schedule, self.warmup_steps, self.final_rate, steps)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm of all gradients, also if the model is divided (FSDP), which Lightning does not do."""
        # Each process holds a part of every gradient, so the norm needs all of them.
        divided = getattr(self.trainer.strategy.model, "clip_grad_norm_", None)
        if divided is not None and gradient_clip_val and gradient_clip_algorithm in (None, "norm"):
            divided(gradient_clip_val)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state and the settings that a resumed run needs."""
        checkpoint[RECORD] = self._settings() | {"task": self.task, "batches_done": self.batches_done}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another architecture or of other settings."""
        record = dict(checkpoint.get(RECORD) or {})
        if record.pop("task", None) != self.task:
            raise ValueError(f"the checkpoint was not written by `mvpformer {self.task}`")
        self.batches_done = record.pop("batches_done")
        ours = self._settings()
        # Settings that one side lacks, as between two versions, count too.
        different = [name for name in {**ours, **record} if record.get(name) != ours.get(name)]
        if different and self.trainer.training:
            changes = "; ".join(f"{name}: {record.get(name)!r} there, {ours.get(name)!r} here" for name in different)
            raise ValueError(f"the checkpoint belongs to a run with other settings ({changes})")

    def _settings(self) -> dict[str, Any]:
        """The record of the module, and the settings of the trainer that decide what a step does."""
        names = ("accumulate_grad_batches", "gradient_clip_val", "precision")
        return self.record() | {f"trainer.{name}": getattr(self.trainer, name) for name in names}

    def generator(self, *stream: object) -> torch.Generator:
        """Make a generator for one named stream, such as ("negatives", batch, rank)."""
        return torch.Generator(self.device).manual_seed(stream_seed(self.seed, *stream))


def learning_rate_scale(schedule: str, warmup_steps: int, final_rate: float, steps: float) -> Any:
    """Make the factor of the learning rate as a function of the step: linear rise, then cosine or constant.

    >>> scale = learning_rate_scale("cosine", warmup_steps=10, final_rate=0.1, steps=110)
    >>> [round(scale(step), 2) for step in (0, 9, 10, 60, 110, 500)]
    [0.1, 1.0, 1.0, 0.55, 0.1, 0.1]
    """

    def scale(step: int) -> float:
        if step < warmup_steps:
            # Not from zero: the first step would do nothing.
            return (step + 1) / warmup_steps
        if schedule == "constant":
            return 1.0
        progress = min(1.0, (step - warmup_steps) / max(1.0, steps - warmup_steps))
        return final_rate + (1.0 - final_rate) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return scale
