"""What the estimators of panels share: checks of series, their network's sizes, and what they tell scikit-learn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd

from mvpa_ts.adapters.options import Group, host_words
from mvpa_ts.adapters.sktime.parameters import DictOptions, check_folder, checked_device, seed_of
from mvpa_ts.adapters.sktime.progress import progress_bar
from mvpa_ts.checks import check_switches, warn
from mvpa_ts.files import read_config

if TYPE_CHECKING:
    from mvpa_ts.classification import ClassificationConfig, ClassificationTraining, Progress
    from mvpa_ts.classification.fitted import FittedNetworks

HOST_NAMES = {  # of ClassificationTraining's fields
    "steps": "max_steps",
    "validation": "validation_fraction",
    "class_weights": "class_weight",
}
# Fields of ClassificationConfig that are parameters of their own or follow from the data.
_SIZES = ("dim", "num_layers", "components", "dropout", "kernel_features")
NETWORK_ELSEWHERE = {name: f"it is the parameter {name}" for name in _SIZES} | {
    **dict.fromkeys(("num_channels", "length"), "it follows from X"),
    "num_classes": "it follows from y",
}
# Fields of ClassificationTraining that are parameters of both estimators.
_TRAINING = ("steps", "learning_rate", "validation", "num_networks")
TRAINING_ELSEWHERE = {
    **{field: f"it is the parameter {HOST_NAMES.get(field, field)}" for field in (*_TRAINING, "class_weights")},
    **dict.fromkeys(("augmentation", "kernel_copies"), "augment switches it"),
}
# Channels for each step of the longest series. Of the sets in the UEA archive, InsectWingbeat has most: 200 channels,
# up to 22 steps.
_MOST_CHANNELS = 10
_CHANNELS = "channels.json"


def panel_groups() -> tuple[Group, Group]:
    """What `network` and `training` of the classifier and the regressor may hold."""
    from mvpa_ts.classification import ClassificationConfig, ClassificationTraining

    return (
        Group("network", ClassificationConfig, NETWORK_ELSEWHERE),
        Group("training", ClassificationTraining, TRAINING_ELSEWHERE),
    )


class PanelEstimator(DictOptions):
    """Mix-in for the classifier and the regressor."""

    _tags: ClassVar[dict[str, Any]] = {"X_inner_mtype": "df-list", "capability:unequal_length": True}
    _groups = staticmethod(panel_groups)
    _renamed: ClassVar[dict[str, str]] = {"validate_every": "evaluate_every"}

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks an estimator: its searches, scores and pipelines then take this one."""
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        kind = self._estimator_type
        return Tags(
            estimator_type=kind,
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags() if kind == "classifier" else None,
            regressor_tags=RegressorTags() if kind == "regressor" else None,
            input_tags=InputTags(two_d_array=False, three_d_array=True, allow_nan=True),
        )

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to series and their labels or numbers, as sktime's estimators do; `y` may also be a list."""
        # sktime 1.2 takes a list for a table of dicts, and stumbles over it.
        if isinstance(y, (list, tuple)):  # numpy makes texts of numbers beside texts
            y = np.array(y, dtype=object if 0 < sum(isinstance(label, str) for label in y) < len(y) else None)
        _check_targets(y, self._estimator_type)
        if isinstance(y, pd.Series) and isinstance(getattr(X, "index", None), pd.MultiIndex):
            # The host goes by order, and labels that are sorted otherwise would be those of other series.
            names = X.index.droplevel(-1).unique()
            if len(names) == len(y) and not names.equals(y.index) and {*names} == {*y.index}:
                raise ValueError(
                    f"y must have the series in the order of X, which begins with {list(names[:3])}, got "
                    f"{list(y.index[:3])}: take y.loc[X.index.droplevel(-1).unique()], or y.to_numpy() if that is meant"
                )
        return super().fit(X, y)

    def _fit_networks(
        self, X: list[pd.DataFrame], y: np.ndarray, fit: Callable[..., Any], outputs: int, score: str, **others: Any
    ) -> Self:
        """Train by the core's `fit`; `score` names what a validation shows, `others` are those of `training_of`."""
        series, parameters = arrays(X), self.get_params(deep=False)
        self._channel_names = list(X[0].columns)
        config = network_config(parameters, series, outputs)
        training = training_of(parameters, **others)

        def show(now: Progress) -> None:
            facts = {"loss": now.loss, "validation": now.validation_loss, score: now.validation_accuracy}
            bar(f"network {now.network}/{now.num_networks}", now.step, now.steps, **facts)

        with progress_bar(self.verbose) as bar:
            self.fitted_ = fit(
                series,
                y,
                config=config,
                training=training,
                seed=seed_of(self.random_state),
                progress=show,
                device=checked_device(self.device),
            )
        return self

    def reset(self) -> Any:
        """Go back to the state before `fit`, as sktime does, but for what scikit-learn's searches keep here."""
        # Searches of scikit-learn mark an estimator before they fit it, and look for the mark afterwards.
        kept = {name: value for name, value in vars(self).items() if name == "_parent_callback_ctx"}
        super().reset()
        self.__dict__.update(kept)
        return self

    def _check_input(self, X: Any, y: Any = None, **options: Any) -> Any:
        if hasattr(X, "__len__") and not len(X):  # the host stumbles over it
            raise ValueError("X must hold at least one series, got none")
        if isinstance(X, np.ndarray) and (np.iscomplexobj(X) or X.dtype.kind in "USmM"):
            raise ValueError(f"X must hold real numbers, got {X.dtype}: give its parts or sizes as channels")
        return super()._check_input(X, y, **options)

    def embed(self, X: Any) -> np.ndarray:
        """Features of each series from before the last layer, shape (n, D), for any panel that `predict` takes."""
        return self._fitted_networks("embed").embed(self._known(self._check_convert_X_for_predict(X)))

    def _channels_file(self) -> dict[str, str]:
        from mvpa_ts.forecasting.series import plain

        names = getattr(self, "_channel_names", None)
        return {_CHANNELS: json.dumps({"names": None if names is None else [plain(name) for name in names]})}

    @classmethod
    def from_files(cls, folder: str | Path, **parameters: Any) -> Self:
        """Read a fitted estimator that `to_files` wrote. No code in the files is run, unlike with sktime's `load`.

        `parameters` are those of the constructor, for a later `fit`.

        Raises
        ------
        FileNotFoundError
            There is no such folder, or a file is missing in it.
        ValueError
            The folder holds something else, a file is damaged, or the files do not belong together.
        """
        estimator: Any = cls(**parameters)
        check_folder(folder, estimator._estimator_type)
        estimator.fitted_ = estimator._read_networks(folder)
        path, channels = Path(folder) / _CHANNELS, estimator.fitted_.config.num_channels
        if (names := read_config(path).get("names")) is not None:
            if not isinstance(names, list) or len(names) != channels:
                raise ValueError(f"{path} must hold the names of {channels} channels, got {names!r:.100}")
            estimator._channel_names = names
        estimator._y_metadata = {"is_univariate": True, "mtype": "numpy1D"}
        estimator._is_fitted = True
        return estimator

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small networks and few steps, for sktime's conformance tests."""
        sizes = {"num_heads": 1, "mlp_dim": 4, "width": 4, "conv_layers": 1, "tokens": 4}
        small = {"dim": 4, "num_layers": 1, "network": sizes, "max_steps": 2}
        # Both ways of an option that the estimators have other defaults of.
        changed = {"augment": not cls.get_param_defaults()["augment"]}
        return [
            {**small, "training": {"evaluate_every": 1}, "kernel_features": 84, "random_state": 0},
            {**small, "validation_fraction": 0.0, "kernel_features": 0, **changed},
        ]

    def _fitted_networks(self, method: str) -> FittedNetworks:
        self.check_is_fitted()
        if not hasattr(self, "fitted_"):
            kind = self._estimator_type
            classes = " with two classes or more" if kind == "classifier" else ""
            raise ValueError(f"{method} needs a {kind} that was fitted on one column y{classes}: this one was not")
        return self.fitted_

    def _known(self, X: list[pd.DataFrame]) -> list[np.ndarray]:
        """The series, if they have the channels of fit."""
        series = arrays(X, getattr(self, "_channel_names", None))
        channels = self.fitted_.config.num_channels
        if (got := len(series[0])) != channels:
            hint = f"; one series of {channels} channels is an array (1, {channels}, steps)" * (got == 1)
            raise ValueError(f"X must have the {channels} channels of fit, got {got} in series 0{hint}")
        return series


def network_config(parameters: Mapping[str, Any], series: list[np.ndarray], num_classes: int) -> ClassificationConfig:
    """The network for these series; one class stands for a regression."""
    from mvpa_ts.classification import ClassificationConfig

    length, channels = max(values.shape[1] for values in series), len(series[0])
    if channels > _MOST_CHANNELS * length:
        warn(
            f"X has {channels} channels of {length} steps: arrays must be (series, channels, steps). If the last two "
            "axes are swapped, take X.transpose(0, 2, 1)"
        )
    options = panel_groups()[0].checked(parameters["network"])
    return ClassificationConfig(channels, num_classes, length, **{name: parameters[name] for name in _SIZES}, **options)


def training_of(parameters: Mapping[str, Any], **others: Any) -> ClassificationTraining:
    """How the network is trained; `others` are fields of `ClassificationTraining` that only one estimator has."""
    from mvpa_ts.classification import ClassificationTraining
    from mvpa_ts.classification.augmentation import UNCHANGED

    check_switches(augment=parameters["augment"])
    unchanged: dict[str, Any] = {} if parameters["augment"] else {"augmentation": UNCHANGED, "kernel_copies": 0}
    options = panel_groups()[1].checked(parameters["training"])
    settings = {field: parameters[HOST_NAMES.get(field, field)] for field in _TRAINING}
    with host_words(HOST_NAMES):
        return ClassificationTraining(**settings, **unchanged, **options, **others)


def _check_targets(y: Any, kind: str) -> None:
    values = np.asarray(y)
    if np.iscomplexobj(values):
        raise ValueError(f"y must hold real numbers or labels, got {values.dtype}: give its size or its parts")
    if values.ndim == 1 and kind == "classifier" and (missing := pd.isna(values)).any():
        row = int(np.argmax(missing))
        raise ValueError(f"y must hold a label for each series, got {values[row]} for series {row}: leave it out")
    if values.dtype == object and kind == "classifier":
        try:
            np.unique(values)
        except TypeError:
            kinds = ", ".join(sorted({type(value).__name__ for value in values.flat}))
            raise ValueError(
                f"y must have labels of one kind, which can be sorted, got {kinds}: make them text"
            ) from None
    if values.ndim == 1 and kind == "regressor":
        for row, value in enumerate(values):
            try:
                float(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"y must hold a number for each series, got {str(value)!r} for series {row}: MVPAClassifier learns "
                    "labels"
                ) from None


def arrays(X: list[pd.DataFrame], names: Sequence[Any] | None = None) -> list[np.ndarray]:
    """Series [C, L], channels in the order of `names`, or of the first series, where theirs are the same names.

    Raises ValueError for infinite values and for a series without any value.
    """
    from mvpa_ts.classification.panel import checked_series

    # Columns of an array have numbers for names, which then are the same in every series.
    names = list(X[0].columns if names is None else names)
    for row, frame in enumerate(X):
        # Some names that are the same, and others that are not: neither names nor order say which channel is which.
        if {*names} & {*frame.columns} and {*names} != {*frame.columns} and len(names) == frame.shape[1]:
            raise ValueError(
                f"X must have the channels of fit, {names}, got {list(frame.columns)} in series {row}: rename them, or "
                "give an array, whose channels go by their order"
            )
    alike = [
        frame[names] if len({*names}) == len(names) == frame.shape[1] and {*names} == {*frame.columns} else frame
        for frame in X
    ]
    with host_words({"series": "X"}):
        return checked_series([frame.to_numpy(float).T for frame in alike])
