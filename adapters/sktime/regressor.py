"""MVPA as a regressor of sktime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state
from sktime.regression.base import BaseRegressor

from mvpa_ts.adapters.sktime.files import check_folder
from mvpa_ts.adapters.sktime.panels import PANEL_TAGS, PanelEstimator, arrays, network_config, shown, training_of
from mvpa_ts.adapters.sktime.progress import progress_bar


class MVPARegressor(PanelEstimator, BaseRegressor):
    """Multi-variate parallel attention for sktime: a number for series of any length, with gaps, in many channels.

    The network and its training are those of `MVPAClassifier`; the loss is the squared error.

    Parameters
    ----------
    dim, num_layers, components, dropout, kernel_features
        As in `ClassificationConfig`.
    max_steps, learning_rate, num_networks
        As in `ClassificationTraining`, where the first is `steps`.
    augment : bool
        Train on randomly changed series (warped and cropped time, scaled channels, noise, gaps). Off by default: a
        number often measures what these change, a speed or a size.
    validation_fraction : float
        Share of the training data, of small and of large numbers alike, that the first network holds out for early
        stopping; 0 trains for all steps.
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
    fitted_ : FittedRegressor
        Networks and scaler.

    Notes
    -----
    Series may differ in length and hold NaN. Nothing is cut or filled in. Series of `predict` may be shorter or longer
    than those of `fit`; they need the same channels in the same order.

    Examples
    --------
    >>> import numpy as np
    >>> from mvpa_ts.adapters.sktime import MVPARegressor
    >>> rates = np.linspace(0.5, 1.5, 20)
    >>> X = np.sin(rates[:, None, None] * np.arange(30))  # 20 series of one channel
    >>> MVPARegressor(max_steps=2, kernel_features=500, random_state=0).fit(X, rates).predict(X).shape
    (20,)
    """

    _tags = {**PANEL_TAGS}  # noqa: RUF012

    def __init__(
        self,
        dim: int = 64,
        num_layers: int = 2,
        components: Sequence[str] = ("content", "time", "channel"),
        dropout: float = 0.1,
        kernel_features: int = 5000,
        max_steps: int | None = None,
        learning_rate: float = 0.003,
        augment: bool = False,
        validation_fraction: float = 0.2,
        num_networks: int = 2,
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
        self.network = network
        self.training = training
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        super().__init__()

    def _fit(self, X: list[pd.DataFrame], y: np.ndarray) -> MVPARegressor:
        from mvpa_ts.adapters.sktime.parameters import checked_device
        from mvpa_ts.classification import fit_regressor

        series, parameters = arrays(X), self.get_params(deep=False)
        self._channel_names = list(X[0].columns)
        if not np.isfinite(y).all():
            raise ValueError(f"y must be finite, got {y[~np.isfinite(y)][0]} for series {np.argmin(np.isfinite(y))}")
        seed = int(check_random_state(self.random_state).randint(2**31))
        with progress_bar(self.verbose) as bar:
            self.fitted_ = fit_regressor(
                series,
                y,
                config=network_config(parameters, series, 1),
                training=training_of(parameters),
                seed=seed,
                progress=shown(bar, "R²"),
                device=checked_device(self.device),
            )
        return self

    def _predict(self, X: list[pd.DataFrame]) -> np.ndarray:
        return self.fitted_.predict(self._known(X))

    def to_files(self, folder: str | Path) -> None:
        """Write networks, scaler and names of channels as safetensors and JSON, without the parameters of training."""
        self._fitted_networks("to_files").to_files(folder, beside=self._channels_file())

    @classmethod
    def from_files(cls, folder: str | Path, **parameters: Any) -> MVPARegressor:
        """Read a fitted regressor that `to_files` wrote. No code in the files is run, unlike with sktime's `load`.

        `parameters` are those of the constructor, for a later `fit`.
        """
        from mvpa_ts.classification import FittedRegressor

        check_folder(folder, "MVPARegressor")
        regressor = cls(**parameters)
        regressor.fitted_ = FittedRegressor.from_files(folder)
        regressor._read_channels(folder)
        regressor._y_metadata = {"is_univariate": True, "mtype": "numpy1D"}
        regressor._is_fitted = True
        return regressor

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
                "augment": True,
            },
        ]
