"""MVPA as a classifier of sktime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state
from sktime.classification.base import BaseClassifier

from mvpa_ts.adapters import host_words
from mvpa_ts.adapters.sktime.progress import progress_bar
from mvpa_ts.classification import (
    Augmentation,
    ClassificationConfig,
    ClassificationTraining,
    FittedClassifier,
    Progress,
    fit_classifier,
)
from mvpa_ts.files import write_bytes

_DEFAULT = ClassificationConfig(1, 2, 1)
_TRAINING = ClassificationTraining()
_UNCHANGED = Augmentation(warp=0.0, crop=0.0, scale=0.0, noise=0.0, cut=0.0, channel_dropout=0.0)
_HOST_NAMES = {  # of ClassificationTraining's fields
    "steps": "max_steps",
    "validation": "validation_fraction",
    "evaluate_every": "validate_every",
    "class_weights": "class_weight",
}


class MVPAClassifier(BaseClassifier):
    """Multi-variate parallel attention for sktime: classes of series of any length, with gaps, in many channels.

    Parameters
    ----------
    dim, num_heads, mlp_dim, num_layers, width, conv_layers, tokens, components, dropout, attention_dropout,
    head_dropout, kernel_features, kernel_weight
        As in `ClassificationConfig`.
    max_steps, batch_size, learning_rate, weight_decay, label_smoothing, mixup, validate_every, patience, num_networks,
    refit
        As in `ClassificationTraining`, where the first is `steps` and `validate_every` is `evaluate_every`.
    validation_fraction : float
        Share of each class, within the training data, that the first network holds out for early stopping; 0 trains
        for all steps.
    augment : bool
        Train on randomly changed series (warped and cropped time, scaled channels, noise, gaps).
    class_weight : {"balanced"}, dict of label to float, or None
        How much each class counts in the loss.
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
    Missing values (NaN) and unequal lengths are masked, never cut or filled in. Series of `predict` may be shorter and
    longer than those of `fit`; they need the same channels in the same order.

    With one class only, sktime itself warns and predicts that class.

    Examples
    --------
    >>> from sktime.datasets import load_basic_motions
    >>> from mvpa_ts.adapters.sktime import MVPAClassifier
    >>> X, y = load_basic_motions(split="train", return_type="numpy3D")
    >>> classifier = MVPAClassifier(max_steps=2, kernel_features=500, random_state=0)
    >>> classifier.fit(X, y).predict_proba(X).shape
    (40, 4)
    """

    _tags = {  # noqa: RUF012
        "authors": "mvpa-ts developers",
        "maintainers": "mvpa-ts developers",
        "python_dependencies": ["torch"],
        "X_inner_mtype": "df-list",
        "y_inner_mtype": "numpy1D",
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "capability:predict_proba": True,
        "capability:class_weight": True,
        "capability:categorical_in_X": False,
        "capability:random_state": True,
        "property:randomness": "derandomized",
    }

    def __init__(
        self,
        dim: int = _DEFAULT.dim,
        num_heads: int = _DEFAULT.num_heads,
        mlp_dim: int = _DEFAULT.mlp_dim,
        num_layers: int = _DEFAULT.num_layers,
        width: int = _DEFAULT.width,
        conv_layers: int = _DEFAULT.conv_layers,
        tokens: int = _DEFAULT.tokens,
        components: Sequence[str] = _DEFAULT.components,
        dropout: float = _DEFAULT.dropout,
        attention_dropout: float = _DEFAULT.attention_dropout,
        head_dropout: float = _DEFAULT.head_dropout,
        kernel_features: int = _DEFAULT.kernel_features,
        kernel_weight: float | None = _DEFAULT.kernel_weight,
        max_steps: int | None = _TRAINING.steps,
        batch_size: int = _TRAINING.batch_size,
        learning_rate: float = _TRAINING.learning_rate,
        weight_decay: float = _TRAINING.weight_decay,
        label_smoothing: float = _TRAINING.label_smoothing,
        mixup: float = _TRAINING.mixup,
        augment: bool = True,
        validation_fraction: float = _TRAINING.validation,
        validate_every: int = _TRAINING.evaluate_every,
        patience: int = _TRAINING.patience,
        num_networks: int = _TRAINING.num_networks,
        refit: bool = _TRAINING.refit,
        class_weight: str | dict[Any, float] | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.dim = dim
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.num_layers = num_layers
        self.width = width
        self.conv_layers = conv_layers
        self.tokens = tokens
        self.components = components
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.head_dropout = head_dropout
        self.kernel_features = kernel_features
        self.kernel_weight = kernel_weight
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.label_smoothing = label_smoothing
        self.mixup = mixup
        self.augment = augment
        self.validation_fraction = validation_fraction
        self.validate_every = validate_every
        self.patience = patience
        self.num_networks = num_networks
        self.refit = refit
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        super().__init__()

    def _check_input(self, X: Any, y: Any = None, **options: Any) -> Any:
        if hasattr(X, "__len__") and not len(X):  # the host stumbles over it
            raise ValueError("X must hold at least one series, got none")
        return super()._check_input(X, y, **options)

    def _fit(self, X: list[pd.DataFrame], y: np.ndarray) -> MVPAClassifier:
        series = _arrays(X)
        config = replace(
            _DEFAULT,
            num_channels=len(series[0]),
            num_classes=len(self.classes_),
            length=max(one.shape[1] for one in series),
            dim=self.dim,
            num_heads=self.num_heads,
            mlp_dim=self.mlp_dim,
            num_layers=self.num_layers,
            width=self.width,
            conv_layers=self.conv_layers,
            tokens=self.tokens,
            components=self.components,  # type: ignore[arg-type]
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            head_dropout=self.head_dropout,
            kernel_features=self.kernel_features,
            kernel_weight=self.kernel_weight,
        )
        class_weights = self._class_weights()
        with host_words(_HOST_NAMES):
            training = replace(
                _TRAINING,
                steps=self.max_steps,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                label_smoothing=self.label_smoothing,
                mixup=self.mixup,
                augmentation=_TRAINING.augmentation if self.augment else _UNCHANGED,
                validation=self.validation_fraction,
                evaluate_every=self.validate_every,
                patience=self.patience,
                num_networks=self.num_networks,
                refit=self.refit,
                kernel_copies=_TRAINING.kernel_copies if self.augment else 0,
                class_weights=class_weights,
            )
        seed = int(check_random_state(self.random_state).randint(2**31))
        labels = np.searchsorted(self.classes_, y)
        with progress_bar(self.verbose) as bar:

            def show(now: Progress) -> None:
                label = f"network {now.network}/{now.num_networks}"
                facts = {"loss": now.loss, "validation": now.validation_loss, "accuracy": now.validation_accuracy}
                bar(label, now.step, now.steps, **facts)

            self.fitted_ = fit_classifier(
                series,
                labels,
                config=config,
                training=training,
                seed=seed,
                progress=show,
                device=self.device,
            )
        return self

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

    def embed(self, X: Any) -> np.ndarray:
        """Features of each series from before the last layer, shape (n, D), for any panel that `predict` takes."""
        fitted = self._one_classifier("embed")
        return fitted.embed(self._known(self._check_convert_X_for_predict(X)))

    def to_files(self, folder: str | Path) -> None:
        """Write networks, scaler and classes as safetensors and JSON; parameters of training stay behind."""
        fitted = self._one_classifier("to_files")
        fitted.to_files(folder)
        classes = {"classes": self.classes_.tolist(), "dtype": self.classes_.dtype.str}
        write_bytes(Path(folder) / "classes.json", json.dumps(classes).encode())

    @classmethod
    def from_files(cls, folder: str | Path, **parameters: Any) -> MVPAClassifier:
        """A fitted classifier from what `to_files` wrote; unlike sktime's `load`, which unpickles, it executes nothing.

        `parameters` are those of the constructor, for a later `fit`.
        """
        classifier = cls(**parameters)
        classifier.fitted_ = FittedClassifier.from_files(folder)
        found = json.loads((Path(folder) / "classes.json").read_text())
        classifier.classes_ = np.array(found["classes"], dtype=found["dtype"])
        classifier.n_classes_ = len(classifier.classes_)
        classifier._class_dictionary = {label: index for index, label in enumerate(classifier.classes_)}
        classifier._y_metadata = {"is_univariate": True, "mtype": "numpy1D"}
        classifier._is_fitted = True
        return classifier

    def _one_classifier(self, method: str) -> FittedClassifier:
        self.check_is_fitted()
        if not hasattr(self, "fitted_"):
            raise ValueError(f"{method} needs a fit on one column y with two classes or more: there is no network")
        fitted: FittedClassifier = self.fitted_
        return fitted

    def _known(self, X: list[pd.DataFrame]) -> list[np.ndarray]:
        """The series, if they have the channels of fit."""
        series = _arrays(X)
        channels = self.fitted_.config.num_channels
        for row, one in enumerate(series):
            if len(one) != channels:
                raise ValueError(f"X must have the {channels} channels of fit, got {len(one)} in series {row}")
        return series

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small networks and few steps, for sktime's conformance tests."""
        small = {"dim": 4, "num_heads": 1, "mlp_dim": 4, "num_layers": 1, "width": 4, "conv_layers": 1, "tokens": 4}
        return [
            {**small, "max_steps": 2, "validate_every": 1, "kernel_features": 84, "random_state": 0},
            {
                **small,
                "max_steps": 2,
                "validation_fraction": 0.0,
                "kernel_features": 0,
                "augment": False,
                "class_weight": "balanced",
            },
        ]


def _arrays(X: list[pd.DataFrame]) -> list[np.ndarray]:
    """Series [C, L]."""
    series = [one.to_numpy(float).T for one in X]
    for row, one in enumerate(series):
        if np.isinf(one).any():
            raise ValueError(f"X must be finite, or NaN where missing, got inf in series {row}")
        if np.isnan(one).all():
            raise ValueError(f"X must hold a value of each series, got none in series {row}: leave it out")
    return series
