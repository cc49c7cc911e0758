"""The networks of a detector, most often one: loaded, saved, and what they say together.

Several networks of the same sizes that were trained from different seeds make one detector, which takes the mean of
their logits. After training on few seizures it depends less on chance than one of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mvpa_ts.files import read_config
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.pretrained import LINEAR, NETWORKS, folder_of, pretrained_file, warn_of_unfinished, write_card
from mvpa_ts.weights import CONFIG_NAME, WEIGHTS_NAME, load_strictly, read_weights, save_model

# What a detector is made of: a network, several of the same sizes, or the folder or name of either.
Networks = MVPFormer | Sequence[MVPFormer] | str | Path


def load_networks(folder: str | Path) -> tuple[MVPFormer, ...]:
    """The networks in a folder that `save_networks` or `MVPFormer.save_pretrained` wrote, or of a name on the hub.

    Raises
    ------
    FileNotFoundError, ValueError
        As for `MVPFormer.from_pretrained`.
    """
    folder = os.fspath(folder)
    fields = read_config(pretrained_file(folder, CONFIG_NAME))
    if NETWORKS not in fields:
        return (MVPFormer.from_pretrained(folder),)
    count = fields.pop(NETWORKS)
    if not isinstance(count, int) or count < 2:
        raise ValueError(f"{NETWORKS} in {CONFIG_NAME} of {folder} must be a whole number of at least 2, got {count!r}")
    fields.pop(LINEAR, None)
    config = MVPFormerConfig.from_dict(fields)
    weights = pretrained_file(folder, WEIGHTS_NAME)
    with torch.device("meta"):  # no memory and no random numbers for weights that come from the file
        networks = [MVPFormer(config) for _ in range(count)]
    load_strictly(nn.ModuleList(networks), read_weights(weights), weights)
    return tuple(network.eval() for network in networks)


def save_networks(networks: Sequence[MVPFormer], folder: str | Path) -> None:
    """Write the networks of a detector into one folder, whose threshold is the mean of theirs, as logits.

    Parameters
    ----------
    networks : sequence of MVPFormer
        With a head of two classes, and the same configuration but for the threshold.
    folder : path
        It holds config.json, model.safetensors and a card, as one network's does.

    Examples
    --------
    >>> import tempfile
    >>> from mvpa_ts.ieeg import Detector, MVPFormer, mvpformer_tiny
    >>> folder = tempfile.mkdtemp()
    >>> save_networks([MVPFormer(mvpformer_tiny(num_classes=2)) for _ in range(3)], folder)
    >>> len(load_networks(folder)), len(Detector(folder).networks)
    (3, 3)
    """
    networks, folder = seizure_networks(networks), Path(folder)
    # One network is a plain model, which everything else takes too.
    if len(networks) == 1:
        networks[0].save_pretrained(folder)
        return
    config = replace(networks[0].config, threshold=mean_threshold(networks))
    modules = nn.ModuleList(networks)
    save_model(modules, config.to_dict() | {NETWORKS: len(networks)}, folder)
    write_card(config, sum(parameter.numel() for parameter in modules.parameters()), folder)


def seizure_networks(model: Networks) -> tuple[MVPFormer, ...]:
    """The networks of a detector, loaded if they are named by a folder.

    Raises
    ------
    TypeError
        `model` is something else.
    ValueError
        A network has no head of two classes, their configurations differ by more than the threshold, or there is none.
    """
    loaded: Any = model
    if isinstance(model, (str, os.PathLike)):
        warn_of_unfinished(folder_of(model))
        loaded = load_networks(model)
    networks: tuple[Any, ...] = tuple(loaded) if isinstance(loaded, (list, tuple)) else (loaded,)
    if not networks:
        raise ValueError("model must hold at least one network, got none")
    for number, network in enumerate(networks):
        if not hasattr(network, "config"):
            raise TypeError(f"model must be an MVPFormer, or the folder or name of one, got {type(network).__name__}")
        if network.config.num_classes != 2:
            raise ValueError(f"model must have a head of two classes, it has {network.config.num_classes}: finetune it")
        if replace(network.config, threshold=0.5) != replace(networks[0].config, threshold=0.5):
            raise ValueError(f"networks of a detector must have the same configuration, number {number} has another")
    return networks


def mean_threshold(networks: Sequence[MVPFormer]) -> float:
    """The threshold of networks whose logits are averaged: the mean of theirs, as logits.

    Examples
    --------
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    >>> mean_threshold([MVPFormer(mvpformer_tiny(num_classes=2, threshold=value)) for value in (0.2, 0.8)])
    0.5
    """
    if len(networks) == 1:
        return networks[0].config.threshold
    thresholds = torch.tensor([network.config.threshold for network in networks], dtype=torch.float64)
    # To twelve digits, so that the mean of equal thresholds is the same number.
    return round(float(thresholds.logit().mean().sigmoid()), 12)


def mean_logit(logits: Iterable[Tensor]) -> Tensor:
    """Logit of seizure [n] of several networks, each [n, 2]: the mean, its second column less its first."""
    mean = torch.stack([network_logits.float() for network_logits in logits]).mean(0)
    return mean[:, 1] - mean[:, 0]


def seizure_probability(logits: Iterable[Tensor]) -> Tensor:
    """Probability of seizure [n] by the mean logits of several networks, each [n, 2]."""
    return torch.stack([network_logits.float() for network_logits in logits]).mean(0).softmax(-1)[:, 1]


def why_not_finite(networks: Sequence[MVPFormer], place: str) -> str:
    """Why a probability is not finite where there is a signal: the weights, or what this signal makes of them.

    `place` says which signal it was, such as "night1 between 5 and 10 s".
    """
    tensors = [item for network in networks for item in network.state_dict().items()]
    if broken := [name for name, tensor in tensors if not bool(tensor.isfinite().all())]:
        return (
            f"the model gives no finite probability: {len(broken)} of its tensors hold NaN or infinite values, such as "
            f"{broken[0]}; it diverged in training, or its file is damaged"
        )
    return f"the model gives no finite probability for {place}, although channels have a signal there"
