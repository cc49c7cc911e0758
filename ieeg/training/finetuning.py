"""Finetuning MVPFormer to label its last segment."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, BinaryCohenKappa, BinaryF1Score

from mvpa_ts.checks import check_choices
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.ieeg.model.lora import Method, core_of, prepared, save_finetuned, trainable_share, with_head
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.pretrained import folder_of
from mvpa_ts.ieeg.model.seen_subjects import read_training_recordings, read_training_subjects
from mvpa_ts.ieeg.random_streams import stream_seed
from mvpa_ts.ieeg.training.augmentation import Augmentation, augment
from mvpa_ts.ieeg.training.data_module import RecordingDataModule, SeizureDataModule
from mvpa_ts.ieeg.training.module import TrainingModule
from mvpa_ts.ieeg.training.spans import collate, real_tokens, unfold_windows


class FinetuningModule(TrainingModule):
    """Training of the label of the last segment, by cross-entropy in all windows of a batch of spans.

    Each segment is encoded once, and windows are cut from the embeddings. ``target`` in the batch marks the segments to
    label; their windows are padded on the left as in detection. Without it, every segment that ends a whole window is a
    target. Segments without a signal in any channel are left out.

    Parameters
    ----------
    base : path, optional
        Pretrained model to start from. If it has a head of two classes, that head is trained further. None: train from
        scratch, with `architecture` and method "full".
    architecture : MVPFormerConfig, optional
        Sizes of a model that is trained from scratch.
    method : {"lora", "head", "amplitude", "blocks", "full"}, default "lora"
        Weights that are trained, see `mvpa_ts.ieeg.model.lora.prepared`.
    rank, alpha : int
        Rank and scale of LoRA; the defaults are those of the paper.
    learning_rate, weight_decay, schedule, warmup_steps, final_rate
        See `TrainingModule`. The paper's rate of 1e-4 suits its large models; small models need about 1e-3.
    class_weights : {"balanced"} or None, default None
        "balanced": windows with and without seizure have the same weight in a batch. Less needed with
        ``balance="ictal"``.
    augmentation : Augmentation, optional
        Changes of the training batches that keep their labels.
    keep : {"last", "best"}, default "last"
        Weights that are exported: those of the last step, or those with the lowest validation loss.
    calibrate : bool, default False
        At the end, choose `MVPFormerConfig.threshold`, which is saved with the model, from the training and validation
        recordings. Take the logit of the highest segment without seizure. Take the highest logit of each seizure, and
        of these the lowest. The threshold is halfway between the two. If seizures are not above the other segments, it
        stays 0.5, and a line says so.
    gradient_checkpointing : bool, default False
    seed : int, default 0

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import mvpformer_tiny
    >>> from mvpa_ts.ieeg.training.finetuning import FinetuningModule
    >>> module = FinetuningModule(architecture=mvpformer_tiny(context=4), method="full")
    >>> batch = {"signal": torch.randn(2, 3, 5 * 2560), "ictal": torch.zeros(2, 5, dtype=torch.bool)}
    >>> [tensor.shape for tensor in module.logits_and_labels(batch)]  # 2 spans of 5 segments hold 4 windows
    [torch.Size([4, 2]), torch.Size([4])]
    """

    task = "finetune"
    recorded = ("method", "class_weights", "keep", "calibrate")

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
        augmentation: Augmentation | None = None,
        keep: Literal["last", "best"] = "last",
        calibrate: bool = False,
        gradient_checkpointing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(learning_rate, weight_decay, schedule, warmup_steps, final_rate, seed)
        if (base is None) == (architecture is None):
            raise ValueError("exactly one of base (the folder of a pretrained model) and architecture must be given")
        if architecture is not None and method in ("lora", "head", "amplitude"):
            raise ValueError(
                f"method={method!r} trains only some weights, and without base the others are random: use "
                "method='full' to train all, or give a pretrained model as base"
            )
        self.class_weights, self.keep = class_weights, keep
        check_choices(self, class_weights=("balanced", None), keep=("last", "best"))
        if base is not None:
            pretrained = MVPFormer.from_pretrained(base)
            self.base_subjects = read_training_subjects(folder_of(base)) or frozenset()
            self.base_recordings = read_training_recordings(folder_of(base))
            if self.base_recordings is None and not self.base_subjects:
                self.base_recordings = frozenset()
        else:
            assert architecture is not None
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream_seed(seed, "initialisation"))
                pretrained = MVPFormer(architecture)
        self.method = method
        self.lora = {"rank": rank, "alpha": alpha}
        self.augmentation = augmentation
        self.calibrate = calibrate
        self.best: dict[str, Any] | None = None
        """Lowest validation loss so far, its step, and the trained weights of then."""
        config = pretrained.config
        # A detector is trained further, with its head, which is what it has learned of seizures.
        if config.num_classes != 2 or config.prediction_head or config.pooling == "concatenate":
            pretrained = with_head(pretrained, seed=seed)
        # The threshold of the base was chosen for other weights.
        pretrained.config = replace(pretrained.config, threshold=0.5)
        self.model = prepared(pretrained, method, seed=seed, **self.lora)
        self.core.set_gradient_checkpointing(gradient_checkpointing)
        self.train()
        self._ensemble = nn.ModuleList()
        self._both_classes = True
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
        """The trained MVPFormer, without the wrapper of peft."""
        return core_of(self.model)

    @property
    def config(self) -> MVPFormerConfig:
        return self.core.config

    def on_fit_start(self) -> None:
        """Print the share of the weights that is trained; raise a ValueError if nothing says which are best."""
        data = self.trainer.datamodule
        # Weights of a step that nothing measured would be kept by chance.
        if self.keep == "best" and isinstance(data, RecordingDataModule) and data.validation is None:
            raise ValueError(
                "keep='best' takes the weights of the lowest validation loss, and validation_recordings is empty: "
                "set keep to 'last' (--model.keep last), or list validation recordings"
            )
        if isinstance(data, SeizureDataModule):
            _print(data.summary())
        trained, total, share = trainable_share(self.model)
        size = sum(p.numel() for name, p in self.core.named_parameters() if name.startswith("head."))
        _print(f"{trained:,} of {total:,} weights are trained ({share:.2%}), and the {size:,} of the head")

    def logits_and_labels(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Compute logits [n, 2] and labels [n] of the targets with a signal."""
        if len(self._ensemble) == 0:
            return self._of_network(self.core, batch)
        logits, labels = zip(*(self._of_network(network, batch) for network in self._ensemble), strict=True)
        return torch.stack(logits).mean(0), labels[0]

    def _of_network(self, network: Any, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        T = network.config.context
        real = real_tokens(batch)
        # Where nothing says which segments are targets: those with T − 1 segments of their span before them.
        segments = batch.get("segment_mask", torch.ones_like(real[..., 0]))
        target = batch.get("target", F.pad(segments, (T - 1, 0))[:, : real.shape[1]])
        # Each segment once: windows overlap in all but one segment.
        embeddings = network.encode(batch["signal"], real, batch.get("past"))
        windows = unfold_windows(F.pad(embeddings, (0, 0, 0, 0, T - 1, 0)), T).flatten(0, 1)
        masks = unfold_windows(F.pad(real, (0, 0, T - 1, 0)), T).flatten(0, 1)
        scored = masks[:, -1].any(1) & target.flatten()
        # Attention takes no empty batch: where all windows are left out, one goes through it and is left out after it.
        chosen = scored if bool(scored.any()) else torch.arange(len(scored), device=scored.device) == 0
        windows, masks = windows[chosen], masks[chosen]
        features = network.decode(windows, token_mask=None if bool(masks.all()) else masks)
        labels = batch["ictal"].flatten()[scored]
        return network.classify(features, masks[:, -1])[scored[chosen]], labels.long()

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        """Compute the loss of a batch; log ``train/loss`` and the share of ictal windows."""
        if self.augmentation is not None:
            # By the number of the batch, so that a continued run changes it as the whole run does.
            generator = self.generator("augmentation", self.batches_done, self.global_rank)
            batch = augment(dict(batch), self.augmentation, generator)
        logits, labels = self.logits_and_labels(batch)
        self.batches_done += 1
        weights = None
        if self.class_weights is not None:
            counts = self.summed(torch.bincount(labels, minlength=2))
            weights = counts.sum() / (2 * counts.clamp(min=1))
        if len(labels) == 0:
            return self.over_processes(logits.sum(), logits.new_zeros(()))
        loss = F.cross_entropy(logits, labels, weights)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(labels))
        self.log("train/ictal", labels.float().mean(), batch_size=len(labels))
        self.log("train/learning_rate", self.optimizers().param_groups[0]["lr"], batch_size=len(labels))
        weight = torch.ones_like(labels) if weights is None else weights[labels]
        return self.over_processes(self.checked(loss), weight.sum())

    def on_validation_start(self) -> None:
        """See whether validation holds both classes: with one alone torchmetrics would log an AUROC of 0."""
        super().on_validation_start()
        data = self.trainer.datamodule
        if isinstance(data, RecordingDataModule) and data.validation is not None:
            labels = [label for segments in data.validation.segments for label in segments.labels()]
            self._both_classes = len({*labels}) == 2

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        """Compute the loss, and metrics over the windows of all validation subjects."""
        logits, labels = self.logits_and_labels(batch)
        if len(labels) == 0:
            return
        loss = F.cross_entropy(logits, labels)
        self.log("validation/loss", loss, prog_bar=True, sync_dist=True, batch_size=len(labels))
        if self._both_classes:
            self.metrics.update(logits.float().softmax(1)[:, 1], labels)
            self.log_dict(self.metrics)

    def on_validation_end(self) -> None:
        """Keep the weights with the lowest validation loss."""
        loss = self.trainer.callback_metrics.get("validation/loss")
        if self.keep != "best" or loss is None or self.trainer.sanity_checking or self.trainer.state.fn != "fit":
            return
        # Only what trains is kept, which with adapters is a thousandth of the model.
        if self.best is None or float(loss) < self.best["loss"]:
            trained = {name: p.detach().cpu().clone() for name, p in self.named_parameters() if p.requires_grad}
            self.best = {"loss": float(loss), "step": self.trainer.global_step, "weights": trained}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the best weights so far."""
        super().on_save_checkpoint(checkpoint)
        if self.best is not None:
            checkpoint["best"] = self.best

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the best weights of the run that is continued."""
        super().on_load_checkpoint(checkpoint)
        self.best = checkpoint.get("best")

    def record(self) -> dict[str, Any]:
        """Settings that a continued run must share."""
        augmentation = None if self.augmentation is None else asdict(self.augmentation)
        return {**super().record(), "augmentation": augmentation, **self.lora}

    def export(self, folder: Path) -> None:
        """Write ``folder/model`` and, for LoRA, ``folder/adapter``; print the last validation."""
        self._print_validation("last validation")
        if self.best is not None:
            _print(f"kept: the weights of step {self.best['step']}, validation loss {self.best['loss']:.4f}")
            self.load_state_dict(self.best["weights"], strict=False)
        if self.calibrate:
            self.core.config = replace(self.core.config, threshold=self._threshold())
        save_finetuned(self.model, folder)

    def _print_validation(self, name: str) -> None:
        names = {"loss": "loss", "auroc": "AUROC", "f1": "F1", "kappa": "kappa of raw decisions"}
        measured = self.trainer.callback_metrics
        note = "" if self._both_classes else "; all else needs segments with and without seizure"
        values = [
            f"{label} {float(measured[f'validation/{key}']):.3f}"
            for key, label in names.items()
            if f"validation/{key}" in measured
        ]
        if values:
            _print(f"{name}: {', '.join(values)}{note}")

    def validate_together(self, networks: Sequence[MVPFormer]) -> None:
        """Validate a detector of several networks on the data of this training, and print how good it is."""
        data = self.trainer.datamodule
        if isinstance(data, RecordingDataModule) and data.validation is not None:
            self._ensemble.extend(networks)
            self.trainer.validate(self, datamodule=data, verbose=False)
            self._print_validation(f"validation of the {len(networks)} networks together")

    @torch.inference_mode()
    def _threshold(self) -> float:
        data = self.trainer.datamodule
        quiet = -math.inf
        seizures: list[float] = []
        self.eval()
        # Both, because few recordings hold few seizures, and the threshold is no measure of how good the model is.
        for dataset in filter(None, (data.training, data.validation)):
            previous: tuple[int, bool] | None = None
            for index, span in enumerate(dataset.spans):
                batch = self.transfer_batch_to_device(collate([dataset[index]]), self.device, 0)
                logits, labels = self.logits_and_labels(batch)
                for score, ictal in zip((logits[:, 1] - logits[:, 0]).tolist(), labels.tolist(), strict=True):
                    if not ictal:
                        quiet = max(quiet, score)
                    elif previous == (span.recording, True):
                        seizures[-1] = max(seizures[-1], score)
                    else:
                        seizures.append(score)
                    previous = span.recording, bool(ictal)
        lowest = min(seizures, default=math.inf)
        # Where the classes overlap, halfway between two extremes is no better than the argmax.
        if not math.isfinite(quiet) or not math.isfinite(lowest) or lowest <= quiet:
            _print("threshold: 0.5, for segments without seizure are as high as seizures, or one of the two is missing")
            return 0.5
        threshold = 1.0 / (1.0 + math.exp(-0.5 * (quiet + lowest)))
        _print(f"threshold: {threshold:.4f}, kept with the model; no segment without seizure is above it here")
        return threshold


@rank_zero_only
def _print(line: str) -> None:
    print(line, file=sys.stderr)
