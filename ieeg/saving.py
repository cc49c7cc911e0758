"""Weights and JSON on disk: written to a temporary file and renamed, read strictly."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"


def save_model(model: nn.Module, config: Mapping[str, Any], directory: str | Path) -> None:
    """Write config.json and model.safetensors; where writing fails, what was there before stays whole.

    Raises OSError where the disk is full or the folder cannot be written.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    written = {}
    try:
        for name in (WEIGHTS_NAME, CONFIG_NAME):
            temporary = written[name] = directory / f".{name}.{os.getpid()}"
            if name == WEIGHTS_NAME:
                _write_weights(weights, temporary)
            else:
                temporary.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            _to_disk(temporary)
        for name, temporary in written.items():
            os.replace(temporary, directory / name)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; a ValueError says where it is none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; a ValueError says where it is damaged."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error


def load_strictly(model: nn.Module, weights: Mapping[str, Tensor], source: object) -> None:
    """Put `weights` in the place of the model's own, which may be on the meta device.

    Raises a ValueError that names every missing, unexpected and misshapen tensor.
    """
    own = model.state_dict()
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
    model.load_state_dict(dict(weights), strict=True, assign=True)


def _write_weights(weights: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(weights, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"cannot write {path.parent / WEIGHTS_NAME}: {error}") from error


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
