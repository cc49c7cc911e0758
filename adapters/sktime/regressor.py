"""MVPA as a regressor of sktime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sktime.regression.base import BaseRegressor

from mvpa_ts.adapters.sktime.panels import PanelEstimator


class MVPARegressor(PanelEstimator, BaseRegressor):
    """Multi-variate parallel attention for sktime: a number for series of any length, with gaps, in many channels.

    The network and its training are those of `MVPAClassifier`; the loss is the squared error.

    Parameters
    ----------
    dim, num_layers, components, dropout, kernel_features, max_steps, learning_rate, num_networks
        As in `MVPAClassifier`, and so are `network`, `training`, `random_state`, `device` and `verbose`.
    augment : bool
        Train on randomly changed series (warped and cropped time, scaled channels, noise, gaps). Off by default: a
        number often measures what these change, a speed or a size.
    validation_fraction : float
        Share of the training data, of small and of large numbers alike, that the first network holds out for early
        stopping; 0 trains for all steps.

    Attributes
    ----------
    fitted_ : FittedRegressor
        Networks and scaler.

    Notes
    -----
    Series are as `MVPAClassifier` takes them: of any length, with NaN, and the channels of `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> from mvpa_ts.adapters.sktime import MVPARegressor
    >>> rates = np.linspace(0.5, 1.5, 20)
    >>> X = np.sin(rates[:, None, None] * np.arange(30))  # 20 series of one channel
    >>> MVPARegressor(max_steps=2, kernel_features=500, random_state=0).fit(X, rates).predict(X).shape
    (20,)
    """

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
        self._keep(locals())

    def _fit(self, X: list[pd.DataFrame], y: np.ndarray) -> MVPARegressor:
        from mvpa_ts.classification import fit_regressor

        if not np.isfinite(y).all():
            raise ValueError(f"y must be finite, got {y[~np.isfinite(y)][0]} for series {np.argmin(np.isfinite(y))}")
        return self._fit_networks(X, y, fit_regressor, 1, "R²")

    def _predict(self, X: list[pd.DataFrame]) -> np.ndarray:
        return self.fitted_.predict(self._known(X))

    def to_files(self, folder: str | Path) -> None:
        """Write networks, scaler and names of channels as safetensors and JSON, without the parameters of training."""
        self._fitted_networks("to_files").to_files(folder, beside=self._channels_file())

    def _read_networks(self, folder: str | Path) -> Any:
        from mvpa_ts.classification import FittedRegressor

        return FittedRegressor.from_files(folder)
