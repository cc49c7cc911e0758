"""Loading of the authors' released checkpoints: tensors renamed strictly, LoRA adapters merged."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from mvpa_ts.checks import listed
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig, mvpformer_m, mvpformer_s
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.wavelet import band_lengths
from mvpa_ts.weights import check_tensors, load_strictly, read_weights

# Scale of the released adapters, of rank 8.
LORA_ALPHA = 16.0

# Tensors in released files that the authors' forward pass does not read.
_UNUSED = re.compile(
    r"seizure_embeddings|class_loss\.weight|mvpformer\.h\.\d+\.(ln_2\.weight|attn\.(time_bias|masked_bias|bias))"
)
_LORA = re.compile(r"(mvpformer\.h\.\d+\.attn\.(?:q_attn|c_attn))\.(lora_[AB])")
_HEAD = "head.head.weight"
_ENCODER_NORM = "encoder.ln.weight"

# Released name in a block: our name. c_attn and attn_bias hold several of our tensors and are split in `_renamed`.
_BLOCK_KEYS = {
    "ln_1.weight": "norm.weight",
    "attn.q_attn.weight": "attention.query.weight",
    "attn.position_net.weight": "attention.time_key.weight",
    "attn.channel_net.weight": "attention.channel_key.weight",
    "attn.c_proj.weight": "attention.output.weight",
    "mlp.gate_proj.weight": "mlp.gate.weight",
    "mlp.up_proj.weight": "mlp.up.weight",
    "mlp.down_proj.weight": "mlp.down.weight",
}
_OTHER_KEYS = {
    _ENCODER_NORM: "encoder.norm.weight",
    "encoder.proj.weight": "encoder.projection.weight",
    "mvpformer.positional_embedding.weight": "stack.time_codebook",
    "mvpformer.channel_embedding.weight": "stack.channel_codebook",
    "mvpformer.ln_f.weight": "stack.norm.weight",
}


@dataclass(frozen=True)
class Conversion:
    """What became of the tensors of released files.

    Attributes
    ----------
    matched : int
        Tensors that were taken over.
    merged : int
        Weights that a LoRA adapter was added to.
    unused : tuple of str
        Tensors that the released model does not use either.
    notes : tuple of str
        What was assumed.
    """

    matched: int
    merged: int
    unused: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.matched} tensors matched, none missing, none unexpected",
            f"{self.merged} weights with a LoRA adapter merged",
            f"{len(self.unused)} tensors left out that the released model does not use",
            *self.notes,
        ]
        return "\n".join(lines)


def load_released(
    base_path: str | Path,
    head_path: str | Path | None = None,
    config: str | MVPFormerConfig = "s",
    *,
    context: int | None = None,
    lora_alpha: float = LORA_ALPHA,
) -> MVPFormer:
    """Load the authors' checkpoints into an `MVPFormer`, in float32 and evaluation mode.

    Parameters
    ----------
    base_path : path
        The pretrained model: a state dict of torch, or safetensors; under the authors' names, or those of braindecode's
        class of 1.8, whose `final_layer` is the classification head.
    head_path : path, optional
        A finetuned classifier: its head, and the LoRA adapters of the query and value projections.
    config : {"s", "m"} or MVPFormerConfig
        Sizes. The order of the codebook rows is always "released".
    context : int, optional
        Segments of a window; default that of `config`, which is the paper's 100. The released configuration files
        have 25.
    lora_alpha : float, default 16
        The adapters are scaled by it over their rank.

    Returns
    -------
    MVPFormer

    Raises
    ------
    FileNotFoundError
        A path is wrong.
    ValueError
        A file is damaged or holds more than tensors. Or tensors are missing, unexpected or of a wrong shape; the
        message names them.
    """
    return convert_released(base_path, head_path, config, context=context, lora_alpha=lora_alpha)[0]


def convert_released(
    base_path: str | Path,
    head_path: str | Path | None = None,
    config: str | MVPFormerConfig = "s",
    *,
    context: int | None = None,
    lora_alpha: float = LORA_ALPHA,
    progress: bool = False,
) -> tuple[MVPFormer, Conversion]:
    """`load_released`, and an account of what became of every tensor; with `progress`, a bar over the layers."""
    base = _read(Path(base_path))
    extra = {} if head_path is None else _read(Path(head_path))
    if head_path is not None and _HEAD not in extra:
        raise ValueError(f"{head_path} must hold {_HEAD}, the head of a finetuned classifier; it does not")
    # A head's file that also holds weights of a base was saved from another base than ours, perhaps: merging would
    # guess.
    base_only = sorted(key for key in extra if key != _HEAD and not _LORA.fullmatch(key) and not _UNUSED.fullmatch(key))
    if base_only:
        raise ValueError(f"{head_path} must hold a head and LoRA adapters only; {listed(base_only, 3)} are of a base")

    heads = [weights.pop(_HEAD) for weights in (base, extra) if _HEAD in weights]
    adapters = {key: w.pop(key).float() for w in (base, extra) for key in list(w) if _LORA.fullmatch(key)}
    unused = sorted(key for key in {**base, **extra} if _UNUSED.fullmatch(key))
    weights = {key: tensor.float() for key, tensor in base.items() if not _UNUSED.fullmatch(key)}

    config = _configuration(config, heads, context)
    notes = []
    # The released files lack this gain and the authors' loading sets ones, which is said in the account.
    if _ENCODER_NORM not in weights:
        weights[_ENCODER_NORM] = torch.ones(sum(band_lengths(SEGMENT_SAMPLES)))
        notes.append(f"{_ENCODER_NORM} is not in the file: ones, as the authors' own loading sets it")
    with torch.device("meta"):
        model = MVPFormer(config)
    check_tensors(_expected(model), weights, base_path)
    merged = _merge_adapters(weights, adapters, config, lora_alpha)

    state = _renamed(weights, config, progress)
    for head in heads:
        state["prediction_head.weight" if head.shape[0] == config.dim else "head.weight"] = head.float()
    load_strictly(model, state, base_path)
    matched = len(weights) + len(adapters) + len(heads) - len(notes)
    return model.eval(), Conversion(matched, merged, tuple(unused), tuple(notes))


def _read(path: Path) -> dict[str, Tensor]:
    """Tensors of a file by their released names; the prefix "genie." of some files is removed."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix.lower() == ".safetensors":
        weights: Any = read_weights(path)
    else:
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # bytes of another kind of file make the reader stumble anywhere
            raise ValueError(
                f"{path} is damaged, no file of torch, or holds more than tensors and plain values, which is never "
                f"loaded ({os.path.getsize(path)} bytes, {type(error).__name__}). The authors' weights are .ckpt, .pt "
                "or .safetensors files"
            ) from error
    if isinstance(weights, Mapping) and isinstance(weights.get("state_dict"), Mapping):
        weights = weights["state_dict"]
    if not isinstance(weights, Mapping) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise ValueError(f"{path} must hold a state dict, tensors by name, got {type(weights).__name__}")
    # braindecode gives its class other names for the same weights.
    name = _name_from_braindecode if "patch_embed.proj.weight" in weights else _without_prefix
    named = {name(key): tensor for key, tensor in weights.items()}
    # Two tensors of one name would overwrite each other in silence.
    if len(named) < len(weights):
        raise ValueError(f"{path} holds some tensors twice, with and without the prefix 'genie.'")
    return named


def _without_prefix(key: str) -> str:
    """The key as MVPFormer's files have it: `genie` is the decoder's older name, or stands before the whole key."""
    if not key.startswith("genie."):
        return key
    plain = key.removeprefix("genie.")
    decoder = plain.startswith(("h.", "ln_f.", "positional_embedding.", "channel_embedding."))
    return f"mvpformer.{plain}" if decoder else plain


def _name_from_braindecode(key: str) -> str:
    """The released name of a tensor of braindecode's MVPFormer, whose weights on the hub are the authors'."""
    for theirs, released in (
        ("patch_embed.", "encoder."),
        ("blocks.", "mvpformer.h."),
        ("ln_f.", "mvpformer.ln_f."),
        ("positional_embedding.", "mvpformer.positional_embedding."),
        ("channel_embedding.", "mvpformer.channel_embedding."),
        ("final_layer.", "head.head."),
    ):
        if key.startswith(theirs):
            return released + key.removeprefix(theirs)
    return key


def _configuration(config: str | MVPFormerConfig, heads: list[Tensor], context: int | None) -> MVPFormerConfig:
    sizes = {"s": mvpformer_s, "m": mvpformer_m}
    if isinstance(config, str):
        if config not in sizes:
            raise ValueError(f"config must be 's', 'm' or an MVPFormerConfig, got {config!r}")
        config = sizes[config]()
    for head in heads:
        if head.ndim != 2 or head.shape[1] != config.dim:
            raise ValueError(f"{_HEAD} must be [classes, D] or [D, D] with D = {config.dim}, got {tuple(head.shape)}")
    # Both kinds of head have the same name in released files. A square one predicts embeddings, any other one
    # classifies.
    rows = [head.shape[0] for head in heads]
    if len(rows) == 2 and (rows[0] == config.dim) == (rows[1] == config.dim):
        raise ValueError(f"{_HEAD} must be [D, D] in one file and a classifier in the other, got {rows} rows")
    return replace(
        config,
        row_order="released",
        context=config.context if context is None else context,
        prediction_head=config.dim in rows,
        num_classes=next((count for count in rows if count != config.dim), 0),
        pooling="mean",
        num_channels=None,
    )


def _expected(model: MVPFormer) -> dict[str, Tensor]:
    """Every tensor of a released model of this size, without heads and adapters, on the meta device."""
    config, ours = model.config, model.state_dict()
    kv = config.dim // config.num_heads * config.num_kv_heads
    expected = {released: ours[name] for released, name in _OTHER_KEYS.items()}
    for i in range(config.num_layers):
        expected |= {f"mvpformer.h.{i}.{key}": ours[f"stack.blocks.{i}.{name}"] for key, name in _BLOCK_KEYS.items()}
        # Keys and values are one tensor there, and so are the three biases.
        expected |= {f"mvpformer.h.{i}.attn.c_attn.weight": torch.empty(2 * kv, config.dim, device="meta")}
        expected |= {f"mvpformer.h.{i}.attn.attn_bias": torch.empty(3 * kv, device="meta")}
    return expected


def _merge_adapters(
    weights: dict[str, Tensor], adapters: Mapping[str, Tensor], config: MVPFormerConfig, alpha: float
) -> int:
    """Add (α/r)·B·A to the query weights and to the value half of the fused weights; returns how many."""
    if not adapters:
        return 0
    outputs = {"q_attn": config.dim, "c_attn": config.dim // config.num_heads * config.num_kv_heads}
    rows_of = {f"mvpformer.h.{i}.attn.{name}": rows for i in range(config.num_layers) for name, rows in outputs.items()}
    expected: dict[str, Tensor] = {}
    for target, rows in rows_of.items():
        down = adapters.get(f"{target}.lora_A", torch.empty(0, 0))
        expected[f"{target}.lora_A"] = torch.empty(*down.shape[:1], config.dim, device="meta")
        expected[f"{target}.lora_B"] = torch.empty(rows, *down.shape[:1], device="meta")
    check_tensors(expected, adapters, "the set of LoRA adapters")
    for target, rows in rows_of.items():
        down, up = adapters[f"{target}.lora_A"], adapters[f"{target}.lora_B"]
        weight = weights[f"{target}.weight"].clone()
        # Keys and values are one weight in released files, and only its second half, the values, has an adapter.
        weight[-rows:] += alpha / len(down) * (up @ down)
        weights[f"{target}.weight"] = weight
    return len(rows_of)


def _renamed(weights: Mapping[str, Tensor], config: MVPFormerConfig, progress: bool) -> dict[str, Tensor]:
    from tqdm import tqdm

    state = {ours: weights[released] for released, ours in _OTHER_KEYS.items()}
    for i in tqdm(range(config.num_layers), desc="convert", unit="layer", disable=not progress):
        released, ours = f"mvpformer.h.{i}", f"stack.blocks.{i}"
        for name, our_name in _BLOCK_KEYS.items():
            state[f"{ours}.{our_name}"] = weights[f"{released}.{name}"]
        key, value = weights[f"{released}.attn.c_attn.weight"].chunk(2)
        state[f"{ours}.attention.key.weight"] = key.contiguous()
        state[f"{ours}.attention.value.weight"] = value.contiguous()
        joined = weights[f"{released}.attn.attn_bias"]
        biases = rearrange(joined, "(kind k d) -> kind k d", kind=3, k=config.num_kv_heads)
        for name, bias in zip(("content", "time", "channel"), biases, strict=True):
            state[f"{ours}.attention.{name}_bias"] = bias.clone()
    return state
