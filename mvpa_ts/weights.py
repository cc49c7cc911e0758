"""Weights on disk, as safetensors and JSON: written whole or not at all, read strictly. Their hash; and checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mvpa_ts.checks import listed
from mvpa_ts.files import read_config, replaced, replaced_together
from mvpa_ts.random_state import OwnRandomState

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
_ALIGNMENT = 64  # bytes, at which torch puts a tensor
Module = TypeVar("Module", bound=nn.Module)


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


def save_model(
    model: nn.Module,
    description: Mapping[str, Any],
    directory: str | Path,
    *,
    names: tuple[str, str] = (CONFIG_NAME, WEIGHTS_NAME),
    beside: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a description as JSON and the weights as safetensors; if this fails, older files stay as they were.

    Parameters
    ----------
    model : nn.Module
    description : mapping
        What a reader needs beside the weights, in values that JSON knows.
    directory : path
        Made if it does not exist.
    names : tuple of str
        Names of the two files.
    beside : mapping of str to str, default {}
        Names and texts of further files, which are replaced together with these.

    Raises
    ------
    OSError
        The disk is full or the folder cannot be written.
    ValueError
        A weight is NaN or infinite, so its training diverged. Nothing is written.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> layer = torch.nn.Linear(2, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(layer, {"format": "layer 1"}, folder)
    ...     load_strictly(torch.nn.Linear(2, 2), read_weights(Path(folder) / WEIGHTS_NAME), folder)
    """
    SafetensorError, save_file, _ = _safetensors()

    directory = Path(directory)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    check_finite(weights, f"the model for {directory}")
    config_name, weights_name = names
    with replaced_together(directory, config_name, weights_name, *beside) as (config_file, weights_file, *files):
        try:
            save_file(weights, weights_file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"cannot write {directory / weights_name}: {error}") from error
        config_file.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        for path, text in zip(files, beside.values(), strict=True):
            path.write_text(text, encoding="utf-8")
        for path in (config_file, weights_file, *files):
            with path.open("rb") as file:
                os.fsync(file.fileno())


def read_description(path: Path, expected: str, *fields: str) -> dict[str, Any]:
    """The JSON object beside weights; raises a ValueError if it is incomplete or of another "format"."""
    description = read_config(path)
    if description.get("format") != expected:
        raise ValueError(f"{path} must have format {expected!r}, got {description.get('format')!r:.100}")
    if missing := [field for field in fields if field not in description]:
        raise ValueError(f"{path} has no {', '.join(missing)}: it is damaged")
    return description


def check_sizes(description: Mapping[str, Any], weights: Mapping[str, Tensor], source: object) -> None:
    """Raise a ValueError if a whole number in a description is larger than its weights allow.

    No size of a network is larger than the number of its weights, and it has no more layers than tensors. Without this
    check, a description of a few bytes could ask for all memory.
    """
    numbers = sum(tensor.numel() for tensor in weights.values())
    for name, value in description.items():
        most = len(weights) if name in ("num_layers", "num_networks") else max(numbers, 1000)
        if isinstance(value, int) and not 0 <= value <= most:
            raise ValueError(f"{source}: {name} must lie between 0 and {most}, as its weights have it, got {value}")


def built_for(build: Callable[[], Module], weights: Mapping[str, Tensor], source: object) -> Module:
    """Make a module that holds these weights; raises a ValueError, which names the source, where sizes do not fit them.

    `build` makes the module. The first call is on the meta device, where it takes no memory.
    """
    try:
        with torch.device("meta"):
            skeleton = build()
    except (RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(f"{source}: no network of such sizes can be made ({error})") from error
    check_tensors(skeleton.state_dict(), weights, source)
    with OwnRandomState(0):  # its start is replaced by the weights
        module = build()
    load_strictly(module, weights, source)
    return module


def load_strictly(model: nn.Module, weights: Mapping[str, Tensor], source: object) -> None:
    """Replace the model's weights, which may be on the meta device, by `weights`.

    Raises a ValueError that names every missing, unexpected and misshapen tensor, and tensors whose values are not
    finite or are of another type than the model computes with.
    """
    check_tensors(model.state_dict(), weights, source)
    check_finite(weights, source)
    # Tensors of a safetensors file lie at any byte of it. Products of such ones are rounded otherwise: copied to where
    # torch would put them, they give what the model that was saved gives, to the bit.
    placed = {name: tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor for name, tensor in weights.items()}
    model.load_state_dict(placed, strict=True, assign=True)


def check_tensors(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: object) -> None:
    """Raise a ValueError that names every tensor of `weights` that is missing, unexpected or of another shape.

    Tensors of `own` without an element take any size: they are solved at the end of a training, if at all.
    """
    missing = sorted(own.keys() - weights.keys())
    unexpected = sorted(weights.keys() - own.keys())
    misshapen = sorted(
        f"{name} {tuple(weights[name].shape)} in place of {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if weights[name].shape != own[name].shape and (own[name].numel() or weights[name].ndim != own[name].ndim)
    )
    # One precision for all floating weights, whichever: a half-precision copy of a model is one, a mixture is damage.
    precisions = Counter(weights[name].dtype for name in own.keys() & weights.keys() if own[name].is_floating_point())
    usual = precisions.most_common(1)[0][0] if precisions else None
    mistyped = sorted(
        f"{name} {weights[name].dtype}"
        for name in own.keys() & weights.keys()
        if weights[name].dtype != (usual if own[name].is_floating_point() else own[name].dtype)
    )
    if usual is not None and not usual.is_floating_point:
        mistyped = [f"all {usual}"]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen, "of another type": mistyped}
    if faults := [f"{len(names)} {kind}: {listed(names)}" for kind, names in kinds.items() if names]:
        matched = len(own.keys() & weights.keys()) - len(misshapen) - len(mistyped)
        raise ValueError(f"{source} does not fit the model ({matched} tensors match; {'; '.join(faults)})")


def check_finite(weights: Mapping[str, Tensor], source: object) -> None:
    """Raise a ValueError that names tensors of `weights` with NaN or infinite values."""
    if broken := [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]:
        raise ValueError(
            f"{source} holds NaN or infinite weights in {len(broken)} of {len(weights)} tensors, such as {broken[0]}: "
            "its training diverged, or the file is damaged; train again with a lower learning rate, or from an earlier "
            "checkpoint"
        )


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises a ValueError if it is damaged."""
    SafetensorError, _, load_file = _safetensors()
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def _safetensors() -> tuple[type[Exception], Callable[..., None], Callable[..., dict[str, Tensor]]]:
    try:  # every extra of this package installs it
        from safetensors import SafetensorError
        from safetensors.torch import load_file, save_file
    except ImportError as error:
        raise ImportError("weights on disk need safetensors: pip install safetensors") from error
    return SafetensorError, save_file, load_file


@dataclass(frozen=True)
class Checkpoint:
    """A file for the state of a run that is under way.

    Attributes
    ----------
    path : Path
    settings : str
        What no other run has: a file with other settings is refused.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = Checkpoint(Path(folder) / "run.pt", "ETTh1, seed 1")
    ...     before = checkpoint.read()
    ...     checkpoint.write({"step": 40})
    ...     print(before, checkpoint.read()["step"])
    None 40
    """

    path: Path
    settings: str

    def write(self, state: dict[str, Any]) -> None:
        """Write a state through a temporary file."""
        with replaced(self.path) as temporary:
            torch.save(state | {"settings": self.settings}, temporary)

    def read(self) -> dict[str, Any] | None:
        """The state in the file, None without one; raises a ValueError if it is damaged or of other settings."""
        if not self.path.is_file():
            return None
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            settings = state["settings"]
        except (RuntimeError, EOFError, UnpicklingError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{self.path} is damaged: remove it to begin anew") from error
        if settings != self.settings:
            raise ValueError(
                f"{self.path} was begun with other settings, {settings}, not {self.settings}: remove it to begin anew"
            )
        return state
