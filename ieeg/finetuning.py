"""Finetuning MVPFormer to label its last segment: LoRA by peft, the head alone, or all weights."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, BinaryCohenKappa, BinaryF1Score

from mvpa_ts.files import read_config, read_weights, replaced
from mvpa_ts.ieeg.configuration import MVPFormerConfig
from mvpa_ts.ieeg.data.windows import unfold_windows
from mvpa_ts.ieeg.model import MVPFormer
from mvpa_ts.ieeg.saving import CONFIG_NAME, WEIGHTS_NAME, check_tensors
from mvpa_ts.ieeg.store import tensor_hash
from mvpa_ts.ieeg.training_module import TrainingModule, stream_seed
from mvpa_ts.ieeg.training_subjects import read_training_subjects

if TYPE_CHECKING:
    from peft import LoraConfig

Method = Literal["lora", "head", "full"]
METHODS = ("lora", "head", "full")
ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
BASE_NAME = "base.json"
"""Beside an adapter: the SHA-256 of the weights it was trained on."""


def lora_config(rank: int = 8, alpha: int = 16, dropout: float = 0.0) -> LoraConfig:
    """Adapters on the query and value projections of every block, and a head that is trained whole.

    Rank 8 and alpha 16 are the paper's: 0.33 % of the weights of MVPFormer-S, 0.11 % of M, beside the head.
    """
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=["query", "value"],
        modules_to_save=["head"],
    )


def with_head(base: MVPFormer, num_classes: int = 2, *, seed: int = 0, **changes: Any) -> MVPFormer:
    """A copy of a model with a new classification head in place of the prediction head.

    Nothing depends on the prediction head any more; and peft, which finds modules by the end of their names, would take
    ``prediction_head`` for ``head``.

    Parameters
    ----------
    base : MVPFormer
        Its own head, if it has one, is left behind.
    num_classes : int, default 2
    seed : int
        Of the head's weights.
    **changes
        Fields of the configuration, such as ``pooling="concatenate", num_channels=50``.

    Examples
    --------
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    >>> with_head(MVPFormer(mvpformer_tiny())).head
    Linear(in_features=64, out_features=2, bias=False)
    """
    config = dataclasses.replace(base.config, num_classes=num_classes, prediction_head=False, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "head"))
        model = MVPFormer(config)
    left = ("head.", "prediction_head.")
    weights = {name: tensor for name, tensor in base.state_dict().items() if not name.startswith(left)}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"head.weight"}:
        raise ValueError(f"changes {changes} do not fit the weights of base: {sorted({*missing, *unexpected})}")
    return model


def prepared(model: MVPFormer, method: Method = "lora", *, rank: int = 8, alpha: int = 16, seed: int = 0) -> nn.Module:
    """The model ready for training: a `peft.PeftModel` for "lora", else the model itself, frozen but for what trains.

    The model should be one that `with_head` gave. Raises ValueError for an unknown method, a model without a
    classification head, or one with a prediction head, which peft would take for it.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if model.head is None:
        raise ValueError("the model has no classification head: give it one by with_head")
    if model.prediction_head is not None:
        raise ValueError("the model has a prediction head: put the classification head in its place by with_head")
    if method == "lora":
        from peft import get_peft_model

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "adapters"))
            return get_peft_model(model, lora_config(rank, alpha))
    if method == "head":
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    return model


def core_of(model: nn.Module) -> MVPFormer:
    """The MVPFormer within a model that `prepared` gave."""
    core = model if isinstance(model, MVPFormer) else model.base_model.model  # type: ignore[union-attr]
    assert isinstance(core, MVPFormer)
    return core


def trainable_share(model: nn.Module) -> tuple[int, int, float]:
    """Trained weights beside the head, all weights of the model without adapters and head, and the share of the former.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_s
    >>> with torch.device("meta"):
    ...     model = prepared(MVPFormer(mvpformer_s(num_classes=2, prediction_head=False)))
    >>> trained, total, share = trainable_share(model)
    >>> trained, total, f"{share:.2%}"
    (245760, 73577778, '0.33%')
    """
    named = [(name, p) for name, p in model.named_parameters() if ".head." not in f".{name}"]
    trained = sum(p.numel() for _, p in named if p.requires_grad)
    total = sum(p.numel() for name, p in named if "lora_" not in name)
    return trained, total, trained / total


def save_finetuned(model: nn.Module, folder: str | Path) -> None:
    """Write ``folder/model``, a plain MVPFormer with its head, and for LoRA ``folder/adapter`` as peft writes it.

    The plain model has the adapters added into its weights; `MVPFormer.from_pretrained` and `Detector` read it. The
    given model stays as it is.
    """
    folder = Path(folder)
    core = core_of(model)
    if core is model:
        core.save_pretrained(folder / "model")
        return
    model.save_pretrained(folder / "adapter", safe_serialization=True)  # type: ignore[operator]
    # What peft does not know: the head's size, and which weights are below. No path of this machine is left in a file.
    for name, content in ((CONFIG_NAME, core.config.to_dict()), (BASE_NAME, {"sha256": _base_hash(core)})):
        with replaced(folder / "adapter" / name) as file:
            file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    merged(model).save_pretrained(folder / "model")


def merged(model: nn.Module) -> MVPFormer:
    """A plain MVPFormer with the adapters of a `PeftModel` added into its weights; the given model stays as it is."""
    core = core_of(model)
    plain = MVPFormer(core.config)
    weights: dict[str, Tensor] = {}
    for name, module in core.named_modules():
        if hasattr(module, "lora_A"):
            weights[f"{name}.weight"] = module.base_layer.weight + module.get_delta_weight("default")
    for name, tensor in core.state_dict().items():
        if "lora_" in name or ".base_layer." in name or ".original_module." in name:
            continue
        weights[name.replace(".modules_to_save.default", "")] = tensor
    plain.load_state_dict({name: tensor.detach().cpu() for name, tensor in weights.items()}, strict=True)
    return plain.eval()


def _base_hash(core: MVPFormer) -> str:
    """SHA-256 of the weights that LoRA leaves as they were, with or without adapters on them."""
    return tensor_hash(
        {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in core.state_dict().items()
            if "lora_" not in name and not name.startswith("head.")
        }
    )


def load_finetuned(folder: str | Path, base: str | Path | MVPFormer | None = None) -> MVPFormer:
    """A finetuned model as a plain MVPFormer.

    Parameters
    ----------
    folder : path
        What `save_finetuned` or ``mvpformer finetune`` wrote; or its ``model`` or ``adapter`` alone.
    base : path or MVPFormer, optional
        Of an adapter that stands alone; the very weights it was trained on, which its ``base.json`` tells by their
        SHA-256. No path is taken from the adapter's files.

    Raises
    ------
    FileNotFoundError
        Neither a model nor an adapter is there, a file of the adapter is missing, or `base` is missing for an adapter.
    ValueError
        Files are damaged or do not fit, or `base` is not what the adapter was trained on.
    """
    folder = Path(folder)
    for model in (folder, folder / "model"):
        if (model / WEIGHTS_NAME).is_file():
            return MVPFormer.from_pretrained(model)
    adapter = folder if (folder / ADAPTER_CONFIG_NAME).is_file() else folder / "adapter"
    if not (adapter / ADAPTER_CONFIG_NAME).is_file():
        raise FileNotFoundError(f"{folder} holds neither {WEIGHTS_NAME} nor {ADAPTER_CONFIG_NAME}")
    if not (adapter / ADAPTER_WEIGHTS_NAME).is_file():
        raise FileNotFoundError(f"{ADAPTER_WEIGHTS_NAME} is not in {adapter}; other formats are not read")
    if not (adapter / BASE_NAME).is_file():
        raise FileNotFoundError(
            f"{BASE_NAME} is not in {adapter}, so nothing says on which weights the adapter was trained: load the "
            "model beside it, or finetune again"
        )
    if base is None:
        raise FileNotFoundError(f"{adapter} is an adapter: name the model it was trained on as base")
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    config = MVPFormerConfig.from_dict(read_config(adapter / CONFIG_NAME))
    plain = base if isinstance(base, MVPFormer) else MVPFormer.from_pretrained(base)
    changes = {name: getattr(config, name) for name in ("pooling", "num_channels", "context")}
    headed = with_head(plain, config.num_classes, **changes)
    wanted, given = config.to_dict(), headed.config.to_dict()
    if differ := [f"{name} is {given[name]!r}, not {wanted[name]!r}" for name in wanted if given[name] != wanted[name]]:
        raise ValueError(f"the adapter in {adapter} does not fit base: its {'; its '.join(differ)}")
    expected, found = read_config(adapter / BASE_NAME).get("sha256"), _base_hash(headed)
    if found != expected:
        raise ValueError(
            f"the adapter in {adapter} does not fit base: it was trained on weights with SHA-256 {expected}, those of "
            f"base have {found}; give the model that finetuning began with"
        )
    # peft's own loading only warns of missing tensors and is silent on others.
    model = get_peft_model(headed, LoraConfig.from_pretrained(str(adapter)))
    weights = read_weights(adapter / ADAPTER_WEIGHTS_NAME)
    check_tensors(get_peft_model_state_dict(model), weights, adapter / ADAPTER_WEIGHTS_NAME)
    set_peft_model_state_dict(model, weights)
    return merged(model)


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
    >>> from mvpa_ts.ieeg.finetuning import FinetuningModule
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
        real = torch.ones(signal.shape[0], ictal.shape[1], signal.shape[1], dtype=torch.bool, device=signal.device)
        for name, spread in (("token_mask", ()), ("channel_mask", (slice(None), None)), ("segment_mask", (..., None))):
            if name in batch:
                real = real & batch[name][spread]
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
