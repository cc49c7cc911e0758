"""A model made ready for finetuning, by LoRA (peft), its head alone or whole; how it is saved and loaded."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mvpa_ts.files import read_config, write_json
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.random_streams import stream_seed
from mvpa_ts.weights import CONFIG_NAME, WEIGHTS_NAME, check_finite, check_tensors, read_weights, tensor_hash

Method = Literal["lora", "head", "amplitude", "blocks", "full"]
METHODS = ("lora", "head", "amplitude", "blocks", "full")
ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
# Beside an adapter: the SHA-256 of the weights it was trained on.
BASE_NAME = "base.json"


def with_head(base: MVPFormer, num_classes: int = 2, *, seed: int = 0, **changes: Any) -> MVPFormer:
    """A copy of a model, in float32 at least, with a new classification head in place of the prediction head.

    Nothing depends on the prediction head any more; and peft, which finds modules by the end of their names, would take
    ``prediction_head`` for ``head``.

    Parameters
    ----------
    base : MVPFormer
        Its classification head, if any, is not copied.
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
    fields = {"num_classes": num_classes, "prediction_head": False, "threshold": 0.5, **changes}
    config = dataclasses.replace(base.config, **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "head"))
        model = MVPFormer(config)
    weight = next(base.parameters())
    model.to(weight.device, torch.promote_types(weight.dtype, torch.float32))  # what trains has no 16 bits
    model.set_gradient_checkpointing(base.stack.gradient_checkpointing)
    # Strict apart from the new head: a tensor that fits nowhere says that base is another kind of model.
    left = ("head.", "prediction_head.")
    weights = {name: tensor for name, tensor in base.state_dict().items() if not name.startswith(left)}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"head.weight"}:
        raise ValueError(f"changes {changes} do not fit the weights of base: {sorted({*missing, *unexpected})}")
    return model


def prepared(model: MVPFormer, method: Method = "lora", *, rank: int = 8, alpha: int = 16, seed: int = 0) -> nn.Module:
    """The model ready for training: a `peft.PeftModel` for "lora", else the model itself, frozen but for what trains.

    "head" trains the head alone, "amplitude" the amplitude map with it, "blocks" all but the encoder, whose projection
    has most weights of a small model, and "full" all. The model should be one that `with_head` gave. Raises ValueError
    for an unknown method, a model without a classification head, or one with a prediction head, which peft would take
    for it.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if model.head is None:
        raise ValueError("the model has no classification head: add one with with_head")
    if model.prediction_head is not None:
        raise ValueError("the model has a prediction head: replace it by a classification head with with_head")
    if method == "amplitude" and model.amplitude is None:
        raise ValueError("method='amplitude' needs a model with amplitude='bands', got 'none'")
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        # Rank 8 and alpha 16 are the paper's: 0.33 % of the weights of MVPFormer-S, 0.11 % of M, beside the head.
        targets, whole = ["query", "value"], ["head", "amplitude"]
        adapters = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, modules_to_save=whole)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "adapters"))
            return get_peft_model(model, adapters)
    # It may have been prepared by another method before.
    model.requires_grad_(True)
    if method in ("head", "amplitude"):
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        if method == "amplitude" and model.amplitude is not None:
            model.amplitude.requires_grad_(True)
    if method == "blocks":
        model.encoder.requires_grad_(False)
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
    # The paper counts without the head, which is new in every finetuning.
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
    # Before the first file is written, so that a diverged training leaves an older adapter whole.
    check_finite(core.state_dict(), f"the model for {folder}")
    model.save_pretrained(folder / "adapter", safe_serialization=True)  # type: ignore[operator]
    # What peft does not know: the head's size, and which weights are below. No path of this machine is left in a file.
    hashes = {"sha256": _base_hash(core), "adapter_config_sha256": _file_hash(folder / "adapter" / ADAPTER_CONFIG_NAME)}
    for name, content in ((CONFIG_NAME, core.config.to_dict()), (BASE_NAME, hashes)):
        write_json(folder / "adapter" / name, content)
    merged(model).save_pretrained(folder / "model")


def merged(model: nn.Module) -> MVPFormer:
    """A plain MVPFormer with the adapters of a `PeftModel` added into its weights; the given model stays as it is."""
    # peft adds the products of the two factors to the weights in place.
    plain: MVPFormer = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
    return plain.requires_grad_(True).cpu().eval()


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _base_hash(core: MVPFormer) -> str:
    """SHA-256 of the weights that LoRA leaves as they were, with or without adapters on them."""
    return tensor_hash(
        {
            name.replace(".base_layer.", ".").replace(".original_module.", "."): tensor
            for name, tensor in core.state_dict().items()
            if "lora_" not in name and ".modules_to_save." not in name and not name.startswith("head.")
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
            f"{BASE_NAME} is not in {adapter}, so it is not known on which weights the adapter was trained: load the "
            "model beside it, or finetune again"
        )
    if base is None:
        raise FileNotFoundError(f"{adapter} is an adapter: name the model it was trained on as base")
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    hashes = read_config(adapter / BASE_NAME)
    # The fields decide what loading does, some of them, such as ``init_lora_weights``, to the weights of the base.
    if _file_hash(adapter / ADAPTER_CONFIG_NAME) != hashes.get("adapter_config_sha256"):
        raise ValueError(
            f"{adapter / ADAPTER_CONFIG_NAME} was changed after the adapter was saved: {BASE_NAME} states another "
            "SHA-256 of it; load the model beside the adapter, or finetune again"
        )
    config = MVPFormerConfig.from_dict(read_config(adapter / CONFIG_NAME))
    plain = base if isinstance(base, MVPFormer) else MVPFormer.from_pretrained(base)
    changes = {name: getattr(config, name) for name in ("pooling", "num_channels", "context", "threshold")}
    headed = with_head(plain, config.num_classes, **changes)
    wanted, given = config.to_dict(), headed.config.to_dict()
    if differ := [f"{name} is {given[name]!r}, not {wanted[name]!r}" for name in wanted if given[name] != wanted[name]]:
        raise ValueError(f"the adapter in {adapter} does not fit base: its {'; its '.join(differ)}")
    expected, actual = hashes.get("sha256"), _base_hash(headed)
    if actual != expected:
        raise ValueError(
            f"the adapter in {adapter} does not fit base: it was trained on weights with SHA-256 {expected}, those of "
            f"base have {actual}; give the model that finetuning began with"
        )
    # peft's own loading only warns of missing tensors and is silent on others.
    model = get_peft_model(headed, LoraConfig.from_pretrained(str(adapter)))
    weights = read_weights(adapter / ADAPTER_WEIGHTS_NAME)
    check_tensors(get_peft_model_state_dict(model), weights, adapter / ADAPTER_WEIGHTS_NAME)
    check_finite(weights, adapter / ADAPTER_WEIGHTS_NAME)
    set_peft_model_state_dict(model, weights)
    return merged(model)
