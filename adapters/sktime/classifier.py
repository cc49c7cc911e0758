"""MVPA as a classifier of sktime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sktime.classification.base import BaseClassifier

from mvpa_ts.adapters.sktime.panels import PanelEstimator
from mvpa_ts.files import read_config


class MVPAClassifier(PanelEstimator, BaseClassifier):
    """Multi-variate parallel attention for sktime: classes of series of any length, with gaps, in many channels.

    Parameters
    ----------
    dim, num_layers, components, dropout, kernel_features
        As in `ClassificationConfig`.
    max_steps, learning_rate, num_networks
        As in `ClassificationTraining`, where the first is `steps`.
    validation_fraction : float
        Share of each class, within the training data, that the first network holds out for early stopping; 0 trains
        for all steps.
    augment : bool
        Train on randomly changed series (warped and cropped time, scaled channels, noise, gaps).
    class_weight : {"balanced"}, dict of label to float, or None
        How much each class counts in the loss.
    network : dict, optional
        Further options of `ClassificationConfig` by their names there, such as ``{"width": 64}``. Grids and
        `set_params` reach an option as ``network__width``.
    training : dict, optional
        Further options of `ClassificationTraining` by their names there, such as ``{"mixup": 0.2}``.
    random_state : int, RandomState or None
        Two fits on the CPU with the same number agree to the bit.
    device : str
        Where to train and predict, "cpu" or "cuda".
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    fitted_ : FittedClassifier
        Networks and scaler.

    Notes
    -----
    Series may differ in length and hold NaN. Nothing is cut or filled in. Series of `predict` may be shorter or longer
    than those of `fit`; they need the same channels in the same order.

    One class is not enough to train: sktime warns and predicts that class.

    Examples
    --------
    >>> from sktime.datasets import load_basic_motions
    >>> from mvpa_ts.adapters.sktime import MVPAClassifier
    >>> X, y = load_basic_motions(split="train", return_type="numpy3D")
    >>> classifier = MVPAClassifier(max_steps=2, kernel_features=500, random_state=0)
    >>> classifier.fit(X, y).predict_proba(X).shape
    (40, 4)
    """

    _tags = {"capability:predict_proba": True, "capability:class_weight": True}  # noqa: RUF012

    def __init__(
        self,
        dim: int = 64,
        num_layers: int = 2,
        components: Sequence[str] = ("content", "time", "channel"),
        dropout: float = 0.1,
        kernel_features: int = 5000,
        max_steps: int | None = None,
        learning_rate: float = 0.003,
        augment: bool = True,
        validation_fraction: float = 0.2,
        num_networks: int = 2,
        class_weight: str | dict[Any, float] | None = None,
        network: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def _fit(self, X: list[pd.DataFrame], y: np.ndarray) -> MVPAClassifier:
        from mvpa_ts.classification import fit_classifier

        labels, weights = np.searchsorted(self.classes_, y), self._class_weights()
        return self._fit_networks(X, labels, fit_classifier, len(self.classes_), "accuracy", class_weights=weights)

    def _class_weights(self) -> Any:
        if self.class_weight in (None, "balanced"):
            return self.class_weight
        if not isinstance(self.class_weight, dict):
            raise ValueError(
                f"class_weight must be None, 'balanced' or a dict of label to weight, got {self.class_weight!r}"
            )
        if strange := [label for label in self.class_weight if label not in self.classes_]:
            raise ValueError(f"class_weight must name classes of y, {self.classes_.tolist()}, got {strange}")
        return tuple(float(self.class_weight.get(label, 1.0)) for label in self.classes_)

    def _predict(self, X: list[pd.DataFrame]) -> np.ndarray:
        return self.classes_[self._predict_proba(X).argmax(1)]

    def _predict_proba(self, X: list[pd.DataFrame]) -> np.ndarray:
        return self.fitted_.predict_proba(self._known(X))

    def to_files(self, folder: str | Path) -> None:
        """Write networks, scaler, classes and channel names as safetensors and JSON, without parameters of training."""
        fitted, kind = self._fitted_networks("to_files"), self.classes_.dtype
        labels = self.classes_.astype(np.int64) if kind.kind in "mM" else self.classes_  # JSON has no dates
        # Before any file is written: a folder is whole or not there.
        for label in labels.tolist():
            if not isinstance(label, (str, int, float)):
                raise ValueError(
                    f"to_files keeps labels that are text, numbers or numpy's dates, got {label!r} of type "
                    f"{type(label).__name__}: fit with y as text, np.array([str(label) for label in y])"
                )
        classes = json.dumps({"classes": labels.tolist(), "dtype": kind.str}, indent=2)
        fitted.to_files(folder, beside={"classes.json": classes, **self._channels_file()})

    def _read_networks(self, folder: str | Path) -> Any:
        from mvpa_ts.classification import FittedClassifier

        fitted = FittedClassifier.from_files(folder)
        self.classes_ = _read_classes(Path(folder) / "classes.json", fitted.config.num_classes)
        self.n_classes_ = len(self.classes_)
        self._class_dictionary = {label: index for index, label in enumerate(self.classes_)}
        return fitted

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """As of all panel estimators, with and without weights of the classes."""
        first, second = super().get_test_params(parameter_set)
        return [first, {**second, "class_weight": "balanced"}]


def _read_classes(path: Path, count: int) -> np.ndarray:
    """The labels that `to_files` wrote; a ValueError where they are not those of a network with `count` classes."""
    description = read_config(path)
    labels = description.get("classes")
    if not isinstance(labels, list) or len(labels) != count:
        raise ValueError(f"{path} must hold the {count} classes of the network, got {labels!r:.100}")
    try:
        return np.array(labels, dtype=description["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must hold classes of one numpy dtype, got {description!r:.100}") from error
