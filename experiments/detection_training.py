"""Pretraining and finetuning of the detection studies through the package's own Lightning modules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from quiet import silence

from mvpa_ts.ieeg import MVPFormer, MVPFormerConfig, Recording
from mvpa_ts.ieeg.data.module import RecordingDataModule
from mvpa_ts.ieeg.pretraining import PretrainingModule


def pretrain(
    config: MVPFormerConfig,
    recordings: Sequence[Recording],
    *,
    steps: int,
    learning_rate: float,
    batch_size: int,
    windows: int,
    folder: Path,
    seed: int,
    in_memory: bool,
    trainer: dict[str, Any],
) -> MVPFormer:
    """Contrastive pretraining; goes on from the folder's last checkpoint."""
    data = RecordingDataModule(
        recordings=recordings,
        validation_subjects=_last_subject(recordings),
        context=config.context,
        windows=windows,
        batch_size=batch_size,
        in_memory=in_memory,
        seed=seed,
    )
    module = PretrainingModule(config, learning_rate=learning_rate, warmup_steps=max(steps // 10, 1), seed=seed)
    _fit(module, data, steps, folder, trainer)
    return module.model


def _last_subject(recordings: Sequence[Recording]) -> list[str]:
    """The subject that Lightning's data module keeps for validation."""
    return [str(sorted({recording.subject for recording in recordings}, key=str)[-1])]


def _fit(module: pl.LightningModule, data: RecordingDataModule, steps: int, folder: Path, options: dict[str, Any]) -> None:
    silence()
    folder.mkdir(parents=True, exist_ok=True)
    last = folder / "checkpoints" / "last.ckpt"
    trainer = pl.Trainer(
        max_steps=steps,
        logger=CSVLogger(folder, name="", version="losses"),
        callbacks=[
            ModelCheckpoint(folder / "checkpoints", save_last=True, save_top_k=0, every_n_train_steps=200),
            TQDMProgressBar(refresh_rate=20),
        ],
        limit_val_batches=0,
        gradient_clip_val=1.0,
        enable_model_summary=False,
        use_distributed_sampler=False,
        log_every_n_steps=10,
        **options,
    )
    trainer.fit(module, data, ckpt_path=str(last) if last.is_file() else None)
