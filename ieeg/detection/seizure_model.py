"""The model of a detector: loaded, its head checked, and what to say where it gives no number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvpa_ts.ieeg.model.mvpformer import MVPFormer


def seizure_model(model: MVPFormer | str | os.PathLike[str]) -> MVPFormer:
    """A model with a head of two classes, loaded if it is named by a folder; a ValueError for another head."""
    if isinstance(model, (str, os.PathLike)):
        from mvpa_ts.ieeg.model.mvpformer import MVPFormer

        model = MVPFormer.from_pretrained(os.fspath(model))
    if not hasattr(model, "config"):
        raise TypeError(f"model must be an MVPFormer, or the folder or name of one, got {type(model).__name__}")
    if model.config.num_classes != 2:
        raise ValueError(
            f"model must have a classification head of two classes, it has {model.config.num_classes} classes: "
            "finetune it first"
        )
    return model


def why_not_finite(model: MVPFormer, place: str) -> str:
    """Why a probability is not finite where there is a signal: the weights, or what this signal makes of them.

    Parameters
    ----------
    model : MVPFormer
    place : str
        Which signal it was, such as "night1 between 5 and 10 s".
    """
    broken = [name for name, tensor in model.state_dict().items() if not bool(tensor.isfinite().all())]
    if broken:
        return (
            f"the model gives no finite probability: {len(broken)} of its tensors hold NaN or infinite values, such as "
            f"{broken[0]}; it diverged in training, or its file is damaged"
        )
    return f"the model gives no finite probability for {place}, although channels have a signal there"
