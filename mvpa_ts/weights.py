"""Weights on disk: safetensors and JSON, whole or not there, read strictly; and their hash."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mvpa_ts.files import replaced

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"


def weight_hash(model: nn.Module) -> str:
    """SHA-256 over names, shapes, types and values of all weights and buffers.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 2)
    >>> before = weight_hash(layer)
    >>> _ = layer.weight.data.add_(1e-3)
    >>> before == weight_hash(layer)
    False
    """
    return tensor_hash(model.state_dict())


def tensor_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes, types and values, whatever their order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_model(model: nn.Module, config: Mapping[str, Any], directory: str | Path) -> None:
    """Write config.json and model.safetensors; where writing fails, what was there before stays whole.

    Raises OSError where the disk is full or the folder cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    directory = Path(directory)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with replaced(directory / CONFIG_NAME) as config_file, replaced(directory / WEIGHTS_NAME) as weights_file:
        try:
            save_file(weights, weights_file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"cannot write {directory / WEIGHTS_NAME}: {error}") from error
        config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for path in (config_file, weights_file):
            with path.open("rb") as file:
                os.fsync(file.fileno())


def load_strictly(model: nn.Module, weights: Mapping[str, Tensor], source: object) -> None:
    """Put `weights` in the place of the model's own, which may be on the meta device.

    Raises a ValueError that names every missing, unexpected and misshapen tensor.
    """
    check_tensors(model.state_dict(), weights, source)
    model.load_state_dict(dict(weights), strict=True, assign=True)


def check_tensors(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: object) -> None:
    """Raise a ValueError that names every tensor of `weights` that is missing, unexpected or of another shape."""
    missing = sorted(own.keys() - weights.keys())
    unexpected = sorted(weights.keys() - own.keys())
    misshapen = sorted(
        f"{name} {tuple(weights[name].shape)} in place of {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if weights[name].shape != own[name].shape
    )
    faults = [
        f"{len(names)} {kind}: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    if faults:
        matched = len(own.keys() & weights.keys()) - len(misshapen)
        raise ValueError(f"{source} does not fit the model ({matched} tensors match; {'; '.join(faults)})")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; a ValueError says where it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
