"""MVPA as a classifier of sktime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state
from sktime.classification.base import BaseClassifier

from mvpa_ts.adapters.sktime.files import check_folder
from mvpa_ts.adapters.sktime.panels import PANEL_TAGS, PanelEstimator, arrays, network_config, shown, training_of
from mvpa_ts.adapters.sktime.progress import progress_bar
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

    _tags = {  # noqa: RUF012
        **PANEL_TAGS,
        "capability:predict_proba": True,
        "capability:class_weight": True,
    }

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
        self.dim = dim
        self.num_layers = num_layers
        self.components = components
        self.dropout = dropout
        self.kernel_features = kernel_features
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.augment = augment
        self.validation_fraction = validation_fraction
        self.num_networks = num_networks
        self.class_weight = class_weight
        self.network = network
        self.training = training
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        super().__init__()

    def _fit(self, X: list[pd.DataFrame], y: np.ndarray) -> MVPAClassifier:
        from mvpa_ts.adapters.sktime.parameters import checked_device
        from mvpa_ts.classification import fit_classifier

        series, parameters = arrays(X), self.get_params(deep=False)
        self._channel_names = list(X[0].columns)
        config = network_config(parameters, series, len(self.classes_))
        training = training_of(parameters, class_weights=self._class_weights())
        seed = int(check_random_state(self.random_state).randint(2**31))
        with progress_bar(self.verbose) as bar:
            self.fitted_ = fit_classifier(
                series,
                np.searchsorted(self.classes_, y),
                config=config,
                training=training,
                seed=seed,
                progress=shown(bar, "accuracy"),
                device=checked_device(self.device),
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

    @classmethod
    def from_files(cls, folder: str | Path, **parameters: Any) -> MVPAClassifier:
        """Read a fitted classifier that `to_files` wrote. No code in the files is run, unlike with sktime's `load`.

        `parameters` are those of the constructor, for a later `fit`.

        Raises
        ------
        FileNotFoundError
            There is no such folder, or a file is missing in it.
        ValueError
            The folder holds something else, a file is damaged, or the files do not belong together.
        """
        from mvpa_ts.classification import FittedClassifier

        check_folder(folder, "MVPAClassifier")
        classifier = cls(**parameters)
        classifier.fitted_ = FittedClassifier.from_files(folder)
        classifier._read_channels(folder)
        classifier.classes_ = _read_classes(Path(folder) / "classes.json", classifier.fitted_.config.num_classes)
        classifier.n_classes_ = len(classifier.classes_)
        classifier._class_dictionary = {label: index for index, label in enumerate(classifier.classes_)}
        classifier._y_metadata = {"is_univariate": True, "mtype": "numpy1D"}
        classifier._is_fitted = True
        return classifier

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small networks and few steps, for sktime's conformance tests."""
        sizes = {"num_heads": 1, "mlp_dim": 4, "width": 4, "conv_layers": 1, "tokens": 4}
        small = {"dim": 4, "num_layers": 1, "network": sizes, "max_steps": 2}
        return [
            {**small, "training": {"evaluate_every": 1}, "kernel_features": 84, "random_state": 0},
            {
                **small,
                "validation_fraction": 0.0,
                "kernel_features": 0,
                "augment": False,
                "class_weight": "balanced",
            },
        ]


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
