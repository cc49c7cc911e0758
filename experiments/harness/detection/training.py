"""Pretraining and finetuning of the detection studies, on the package's own Lightning modules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import torch
from harness.quiet import QUIET, silence
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset, RandomSampler

from mvpa_ts.ieeg import MVPFormer, MVPFormerConfig, Recording, Segments
from mvpa_ts.ieeg.model.lora import Method, merged, with_head
from mvpa_ts.ieeg.training.data_module import EndlessBatches
from mvpa_ts.ieeg.training.finetuning import FinetuningModule
from mvpa_ts.ieeg.training.pretraining import PretrainingModule
from mvpa_ts.ieeg.training.sampling import Balance, SpanSampler
from mvpa_ts.ieeg.training.spans import HeldSegments, SpanDataset, collate
from mvpa_ts.weights import weight_hash

Recipe = Literal["paper", "small"]
"""How a model trains.

"paper": a fixed rate, weight decay 0.1 and windows at random from the whole set, which the paper states, and N(0, 0.02)
as initial weights, which it does not. "small": a cosine after a warm-up of a tenth of the steps, weight decay 0.05 in
finetuning, every subject as often and wider initial weights, for models of some 64 dimensions and some hundred steps.
"""


@dataclass(frozen=True)
class Training:
    """Settings of one training.

    Attributes
    ----------
    steps : int
    learning_rate : float
        At its highest.
    batch_size, windows : int
        Spans in a batch of one process, and windows in a span.
    folder : Path
        Of checkpoints and losses; a training that was stopped goes on from here.
    seed : int
    trainer : mapping
        Further arguments of Lightning's Trainer.
    recipe : {"paper", "small"}
    """

    steps: int
    learning_rate: float
    batch_size: int
    windows: int
    folder: Path
    seed: int
    trainer: dict[str, Any]
    recipe: Recipe = "small"

    def schedule(self) -> dict[str, Any]:
        """Arguments of a training module."""
        if self.recipe == "paper":
            return {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.1}
        return {"warmup_steps": max(self.steps // 10, 1)}


def pretrain(
    config: MVPFormerConfig,
    segments: Sequence[Segments],
    training: Training,
    start: MVPFormer | None = None,
) -> MVPFormer:
    """Contrastive pretraining, from `start` where there is one."""
    made = PretrainingModule(config, learning_rate=training.learning_rate, seed=training.seed, **training.schedule())
    if start is not None:
        made.model.load_state_dict(start.state_dict())
    elif training.recipe == "small":
        scale_initialisation(made.model)
    length = config.context + training.windows
    dataset = SpanDataset(segments, length, length, past=config.amplitude == "bands")
    _fit(made, SpanData(dataset, training, "none" if training.recipe == "paper" else "subject"), training)
    return made.model


def scale_initialisation(model: MVPFormer) -> None:
    """Widen the initial N(0, 0.02), which is meant for widths around 768, to that of a narrow model.

    The standard deviation grows with the root of 768 / D, and a little more: 5 times at D = 64. Products of two
    projections, through which a model sees power, begin 25 times as strong and are learned in fewer steps.
    """
    factor = max(1.0, 1.44 * (768 / model.config.dim) ** 0.5)
    with torch.no_grad():
        for name, parameter in model.stack.named_parameters():
            if parameter.ndim > 1 and "codebook" not in name:
                parameter.mul_(factor)


def augmented(recording: Recording, copies: int, seed: int) -> list[Segments]:
    """A preprocessed recording in memory, and views of it that begin later and have channels turned upside down.

    What an electrode is referenced to, and where the 5 s grid falls, is chance. Segments that begin elsewhere and have
    another polarity keep a model from learning single waveforms by heart.

    Parameters
    ----------
    recording : Recording
    copies : int
        Views, the first of them unchanged.
    seed : int
    """
    segments = Segments(recording)
    whole = segments.num_samples // segments.segment_samples
    signal, valid = segments.read(0, whole)
    generator = np.random.default_rng((seed, *map(ord, recording.name)))
    views: list[Segments] = []
    for index in range(copies):
        first = 0 if index == 0 else int(generator.integers(1, segments.segment_samples))
        signs = np.ones(len(signal)) if index == 0 else generator.choice([-1.0, 1.0], len(signal))
        views.append(SegmentsView(segments, signal, valid, first, signs.astype(np.float32)))
    return views


class SegmentsView(HeldSegments):
    """Segments of a signal in memory from some sample on, by channel times 1 or −1."""

    def __init__(
        self, segments: Segments, signal: np.ndarray, valid: np.ndarray, first: int, signs: np.ndarray
    ) -> None:
        super().__init__(segments)
        self.signal, self.first, self.signs = signal, first, signs
        # A segment that lies in two of the grid is valid where both are.
        self.valid = valid if first == 0 else valid[:-1] & valid[1:]
        self.num_segments = len(self.valid)
        self.starts = first / self.preprocessing.sfreq + 5.0 * np.arange(self.num_segments)

    def read(self, first: int, last: int, again: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """See `Segments.read`."""
        size = self.segment_samples
        part = self.signal[:, self.first + first * size : self.first + last * size] * self.signs[:, None]
        return part, self.valid[first:last].copy()

    def release(self) -> None:
        """There is nothing to close."""


def finetune(
    base: MVPFormer, segments: Sequence[Segments], method: Method, training: Training
) -> tuple[MVPFormer, float]:
    """A seizure head and, by `method`, adapters or all weights; returns the merged model and the share that trained."""
    past = base.config.amplitude == "bands"
    dataset = SpanDataset(segments, training.windows, before=base.config.context - 1, past=past, tail=True)
    return _finetuned(base, method, training, SpanData(dataset, training, "ictal"))


def trial_item(signal: np.ndarray, ictal: bool, subject: str = "", recording: str = "") -> dict[str, Any]:
    """A trial [C, samples] of one segment as an item that `collate` takes; see `SpanDataset.__getitem__`."""
    return {
        "signal": torch.from_numpy(signal),
        "token_mask": torch.ones(1, len(signal), dtype=torch.bool),
        "ictal": torch.tensor([ictal]),
        "subject": subject,
        "recording": recording,
        "start": 0.0,
        "segment_samples": signal.shape[1],
    }


def finetune_on_trials(
    base: MVPFormer,
    dataset: Dataset[dict[str, Any]] | Sequence[dict[str, Any]],
    method: Method,
    training: Training,
    num_channels: int | None = None,
) -> tuple[MVPFormer, float]:
    """The same on labelled segments of their own, such as `NejedlyDataset` gives: windows of one segment.

    With `num_channels` the head reads the channels' features one after the other instead of their mean. Checkpoints lie
    below the folder by weights and settings, so that no model goes on from those of another.
    """
    settings = [weight_hash(base), training.steps, training.learning_rate, training.batch_size, num_channels]
    digest = hashlib.sha256(json.dumps([*settings, training.seed]).encode()).hexdigest()[:10]
    training = replace(training, folder=training.folder / f"{method}-{digest}")
    order = RandomSampler(
        dataset,  # type: ignore[arg-type]
        replacement=True,
        num_samples=training.steps * training.batch_size,
        generator=torch.Generator().manual_seed(training.seed),
    )
    loader = DataLoader(dataset, batch_size=training.batch_size, sampler=order, collate_fn=collate)
    pooling = {} if num_channels is None else {"pooling": "concatenate", "num_channels": num_channels}
    return _finetuned(base, method, training, loader, context=1, **pooling)


def _finetuned(
    base: MVPFormer, method: Method, training: Training, data: Any, **changes: Any
) -> tuple[MVPFormer, float]:
    # As a file, because that is what a run that was stopped begins again from.
    with_head(base, seed=training.seed, **changes).save_pretrained(training.folder / "base")
    module = FinetuningModule(
        training.folder / "base",
        method=method,
        learning_rate=training.learning_rate,
        seed=training.seed,
        **{"weight_decay": 0.05, **training.schedule()},
    )
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    _fit(module, data, training)
    model = merged(module.model) if method == "lora" else module.core
    return model, trained / sum(p.numel() for p in model.parameters())


class SpanData(pl.LightningDataModule):
    """Batches of spans without end, the same after a stop; all subjects train, as the number of steps is fixed."""

    def __init__(self, dataset: SpanDataset, training: Training, balance: Balance) -> None:
        super().__init__()
        self.dataset = dataset
        self.balance = balance
        self.seed = training.seed
        self.batch_size = training.batch_size

    def sampler(self, rank: int = 0, world_size: int = 1) -> SpanSampler:
        """Order of the spans of one process; all processes share one order, and each takes its part."""
        subjects, ictal = self.dataset.subjects, self.dataset.ictal
        return SpanSampler(subjects, ictal, balance=self.balance, seed=self.seed, rank=rank, world_size=world_size)

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        """From the batch after those that the module has done."""
        trainer = self.trainer
        assert trainer is not None
        sampler = self.sampler(trainer.global_rank, trainer.world_size)
        batches = EndlessBatches(sampler, self.batch_size, lambda: trainer.lightning_module.batches_done)
        return DataLoader(self.dataset, batch_sampler=batches, collate_fn=collate)


def quiet_trainer(steps: int, *callbacks: pl.Callback) -> pl.Trainer:
    """A trainer on the processor that validates, shows and keeps nothing."""
    return pl.Trainer(
        max_steps=steps, callbacks=[*callbacks], devices=1, enable_checkpointing=False, use_distributed_sampler=False,
        limit_val_batches=0, gradient_clip_val=1.0, **QUIET,
    )  # fmt: skip


def _fit(module: pl.LightningModule, data: Any, training: Training) -> None:
    silence()
    training.folder.mkdir(parents=True, exist_ok=True)
    last = training.folder / "checkpoints" / "last.ckpt"
    trainer = pl.Trainer(
        max_steps=training.steps,
        logger=CSVLogger(training.folder, name="", version="losses"),
        callbacks=[
            ModelCheckpoint(training.folder / "checkpoints", save_last=True, save_top_k=0, every_n_train_steps=200),
            TQDMProgressBar(refresh_rate=20),
        ],
        limit_val_batches=0,
        gradient_clip_val=1.0,
        enable_model_summary=False,
        use_distributed_sampler=False,
        log_every_n_steps=10,
        **training.trainer,
    )
    trainer.fit(module, data, ckpt_path=str(last) if last.is_file() else None)
