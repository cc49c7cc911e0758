"""Finetuning MVPFormer to label its last segment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, BinaryCohenKappa, BinaryF1Score

from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.ieeg.model.lora import Method, core_of, prepared, save_finetuned, trainable_share, with_head
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.random_streams import stream_seed
from mvpa_ts.ieeg.training.module import TrainingModule
from mvpa_ts.ieeg.training.seen_subjects import read_training_subjects
from mvpa_ts.ieeg.training.spans import real_tokens, unfold_windows


class FinetuningModule(TrainingModule):
    """Cross-entropy of the last segment's label in all windows of a batch's spans.

    Each segment is encoded once and windows are cut from the embeddings. Windows whose last segment has no signal in
    any channel are left out, and so are those that begin in the padding before a short span: the span before it holds
    them whole.

    Parameters
    ----------
    base : path, optional
        Pretrained model to start from; None: from scratch, with `architecture` and method "full" ("no pretraining").
    architecture : MVPFormerConfig, optional
        Of a model from scratch.
    method : {"lora", "head", "full"}, default "lora"
    rank, alpha : int
        Of LoRA; the paper's.
    learning_rate, weight_decay, schedule, warmup_steps, final_rate
        See `TrainingModule`. The paper's rate of 1e-4 is for its sizes; small models learn at some 1e-3.
    class_weights : {"balanced"} or None, default None
        "balanced": ictal and other windows of a batch weigh the same. The ictal-balanced sampler makes it less needed.
    gradient_checkpointing : bool, default False
    seed : int, default 0

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import mvpformer_tiny
    >>> from mvpa_ts.ieeg.training.finetuning import FinetuningModule
    >>> module = FinetuningModule(architecture=mvpformer_tiny(context=4), method="full")
    >>> batch = {"signal": torch.randn(2, 3, 5 * 2560), "ictal": torch.zeros(2, 5, dtype=torch.bool)}
    >>> [part.shape for part in module.logits_and_labels(batch)]  # 2 spans of 5 segments hold 4 windows
    [torch.Size([4, 2]), torch.Size([4])]
    """

    task = "finetune"

    def __init__(
        self,
        base: str | Path | None = None,
        architecture: MVPFormerConfig | None = None,
        method: Method = "lora",
        rank: int = 8,
        alpha: int = 16,
        learning_rate: float = 1e-4,
        weight_decay: float = 0.1,
        schedule: Literal["cosine", "constant"] = "cosine",
        warmup_steps: int = 100,
        final_rate: float = 0.1,
        class_weights: Literal["balanced"] | None = None,
        gradient_checkpointing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(learning_rate, weight_decay, schedule, warmup_steps, final_rate, seed)
        if (base is None) == (architecture is None):
            raise ValueError("give either base, a pretrained model's folder, or architecture, and not both")
        if architecture is not None and method in ("lora", "head"):
            raise ValueError(
                f"method={method!r} leaves the weights under it as they are, which are random without base: train all "
                "of them by method='full', or give a pretrained model as base"
            )
        if class_weights not in (None, "balanced"):
            raise ValueError(f"class_weights must be 'balanced' or None, got {class_weights!r}")
        if base is not None:
            pretrained = MVPFormer.from_pretrained(base)
            self.base_subjects = read_training_subjects(base) or frozenset()
        else:
            assert architecture is not None
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream_seed(seed, "initialisation"))
                pretrained = MVPFormer(architecture)
        self.method = method
        self.lora = {"rank": rank, "alpha": alpha}
        self.class_weights = class_weights
        self.model = prepared(with_head(pretrained, seed=seed), method, seed=seed, **self.lora)
        self.core.set_gradient_checkpointing(gradient_checkpointing)
        self.train()
        self.metrics = MetricCollection(
            {
                "auroc": BinaryAUROC(),
                "average_precision": BinaryAveragePrecision(),
                "f1": BinaryF1Score(),
                "kappa": BinaryCohenKappa(),
            },
            prefix="validation/",
        )

    @property
    def core(self) -> MVPFormer:
        """The MVPFormer that is trained, without peft's wrapper."""
        return core_of(self.model)

    def on_fit_start(self) -> None:
        """Say what share of the weights is trained."""
        trained, total, share = trainable_share(self.model)
        head = self.core.head
        assert head is not None
        size = sum(parameter.numel() for parameter in head.parameters())
        _print(f"{self.method}: {trained:,} of {total:,} weights are trained ({share:.2%}), and {size:,} of the head")

    def logits_and_labels(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Logits [n, 2] and labels [n] of all windows that lie in their span and end in a segment with a signal."""
        T = self.core.config.context
        signal, ictal = batch["signal"], batch["ictal"]
        real = real_tokens(batch)
        embeddings = self.core.encode(signal, real)
        windows, masks = (unfold_windows(x, T).flatten(0, 1) for x in (embeddings, real))
        scored = masks[:, -1].any(1)
        if "segment_mask" in batch:
            scored = scored & unfold_windows(batch["segment_mask"], T)[:, :, 0].flatten()
        # Attention takes no empty batch: where all windows are left out, one goes through it and is left out after it.
        chosen = scored if bool(scored.any()) else torch.arange(len(scored), device=scored.device) == 0
        windows, masks = windows[chosen], masks[chosen]
        features = self.core.decode(windows, token_mask=None if bool(masks.all()) else masks)
        labels = unfold_windows(ictal, T)[:, :, -1].flatten()[scored]
        return self.core.classify(features, masks[:, -1])[scored[chosen]], labels.long()

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        """Loss of a batch; logs ``train/loss`` and the share of ictal windows."""
        logits, labels = self.logits_and_labels(batch)
        self.batches_done += 1
        if len(labels) == 0:
            return logits.sum()
        loss = F.cross_entropy(logits, labels, self._weights(labels))
        self.log("train/loss", loss, prog_bar=True, batch_size=len(labels))
        self.log("train/ictal", labels.float().mean(), batch_size=len(labels))
        self.log("train/learning_rate", self.optimizers().param_groups[0]["lr"], batch_size=len(labels))
        return loss

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        """Loss, and metrics of the windows of all validation subjects together."""
        logits, labels = self.logits_and_labels(batch)
        if len(labels) == 0:
            return
        loss = F.cross_entropy(logits, labels)
        self.log("validation/loss", loss, prog_bar=True, sync_dist=True, batch_size=len(labels))
        self.metrics.update(logits.float().softmax(1)[:, 1], labels)
        self.log_dict(self.metrics)

    def record(self) -> dict[str, Any]:
        """Settings that a continued run must share."""
        names = ("method", "learning_rate", "weight_decay", "schedule", "warmup_steps", "final_rate", "class_weights")
        settings = {name: getattr(self, name) for name in (*names, "seed")}
        return {"architecture": self.core.config.to_dict(), **settings, **self.lora}

    def export(self, folder: Path) -> None:
        """Write ``folder/model`` and, for LoRA, ``folder/adapter``."""
        save_finetuned(self.model, folder)

    def _weights(self, labels: Tensor) -> Tensor | None:
        if self.class_weights is None:
            return None
        counts = torch.bincount(labels, minlength=2).clamp(min=1)
        return len(labels) / (2 * counts)


@rank_zero_only
def _print(line: str) -> None:
    print(line, file=sys.stderr)
