"""One detector made of several networks that were trained from different seeds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from mvpa_ts.ieeg.model.mvpformer import MVPFormer


def joined(models: Sequence[MVPFormer]) -> MVPFormer:
    """A detector that takes the mean of the logits of several; the given models stay as they are.

    After training on few seizures it depends less on chance than one of them. Its threshold is the mean of theirs, as
    logits.

    Parameters
    ----------
    models : sequence of MVPFormer
        Detectors of one network each, with the same configuration but for the threshold.

    Raises
    ------
    ValueError
        There is no model, one holds several networks or no head of two classes, or their configurations differ.

    Examples
    --------
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    >>> model = joined([MVPFormer(mvpformer_tiny(num_classes=2)) for _ in range(3)])
    >>> len(model.networks), model.config.members
    (3, 3)
    """
    if not models:
        raise ValueError("models must hold at least one model, got none")
    configs = [replace(model.config, threshold=0.5) for model in models]
    for number, config in enumerate(configs):
        if config.members != 1 or config.num_classes != 2:
            raise ValueError(
                f"models must be detectors of one network each, models[{number}] has {config.members} networks and "
                f"{config.num_classes} classes"
            )
        if config != configs[0]:
            raise ValueError(f"models must have the same configuration, models[{number}] differs from models[0]")
    thresholds = torch.tensor([model.config.threshold for model in models], dtype=torch.float64)
    first, *others = (copy.deepcopy(model) for model in models)
    # To twelve digits, so that the mean of equal thresholds is the same number.
    threshold = round(float(thresholds.logit().mean().sigmoid()), 12)
    first.config = replace(first.config, members=len(models), threshold=threshold)
    first.others.extend(others)
    return first
