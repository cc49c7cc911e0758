"""Training in two processes (DDP over gloo) equals training in one process on the joined batches."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from support.made_up_recordings import quiet_trainer, recording
from torch import Tensor

from mvpa_ts.ieeg import mvpformer_tiny
from mvpa_ts.ieeg.training.data_module import RecordingDataModule, SeizureDataModule
from mvpa_ts.ieeg.training.finetuning import FinetuningModule
from mvpa_ts.ieeg.training.pretraining import PretrainingModule

# Dropout draws by process. In float64, as AdamW's first steps make ± rate of gradients that are zero but for rounding.
SIZES: dict[str, Any] = {"dim": 16, "mlp_dim": 24, "num_layers": 1, "context": 4, "dropout": 0.0}
STEPS, SPANS = 5, 4


class OfTwo(PretrainingModule):
    """What two processes do, in one: negatives come from each half's own spans and random numbers."""

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        losses, counts = [], []
        for rank in range(2):
            half = {name: values[rank::2] for name, values in batch.items()}
            generator = self.generator("negatives", self.batches_done, rank)
            loss, _, count = self.loss_and_accuracy(half, generator)
            losses.append(loss * count)
            counts.append(count)
        self.batches_done += 1
        assert counts[0] != counts[1]
        return sum(losses, torch.tensor(0.0)) / sum(counts)


class Halves(Callback):
    """Sees that the halves of some batch hold different numbers of seizures, and so different weights of classes."""

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        first, second = (batch["ictal"][rank::2].sum() for rank in range(2))
        self.differ = getattr(self, "differ", False) or bool(first != second)


def weights(
    module: pl.LightningModule, data: RecordingDataModule, processes: int, *callbacks: Callback
) -> list[Tensor]:
    trainer = quiet_trainer(
        max_steps=STEPS,
        devices=processes,
        strategy="auto" if processes == 1 else "ddp_fork",
        precision="64-true",
        callbacks=[*callbacks],
        gradient_clip_val=1.0,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    trainer.fit(module, data)
    return [parameter.detach() for parameter in module.parameters()]


def data(kind: type[RecordingDataModule], batch_size: int, **options: Any) -> RecordingDataModule:
    recordings = [recording(f"S{n}", seed=n, channels=2 + n, segments=30) for n in range(4)]
    return kind(
        recordings, validation_subjects=["S3"], context=4, windows=2, batch_size=batch_size, in_memory=True, **options
    )


@pytest.mark.skipif(not hasattr(torch.distributed, "ProcessGroupGloo"), reason="this torch has no gloo")
@pytest.mark.parametrize("task", ["pretrain", "finetune", "finetune, balanced classes"])
def test_two_processes_train_as_one(task):
    rates = {"learning_rate": 1e-3, "warmup_steps": 2, "schedule": "constant"}
    if task == "pretrain":
        alone, together = (kind(mvpformer_tiny(**SIZES), **rates) for kind in (OfTwo, PretrainingModule))
        expected = weights(alone, data(RecordingDataModule, SPANS), 1)
        actual = weights(together, data(RecordingDataModule, SPANS // 2), 2)
    else:
        rates |= {"method": "full", "class_weights": "balanced" if "balanced" in task else None}
        alone, together = (FinetuningModule(architecture=mvpformer_tiny(**SIZES), **rates) for _ in range(2))
        halves = Halves()
        expected = weights(alone, data(SeizureDataModule, SPANS, balance="ictal"), 1, halves)
        assert halves.differ
        actual = weights(together, data(SeizureDataModule, SPANS // 2, balance="ictal"), 2)
    # Without weights for the terms of each process they would be as far apart as all steps went, 5e-3.
    for x, y in zip(expected, actual, strict=True):
        torch.testing.assert_close(y.double(), x, atol=1e-6, rtol=0.0)  # Lightning brings float32 back
