"""A trained forecaster: the network, its quantiles, the scaling of its features, and its files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mvpa_ts.checks import check_numbers, read_fields
from mvpa_ts.forecasting.configuration import BEFORE, ForecastingConfig
from mvpa_ts.forecasting.network import ForecastingNetwork
from mvpa_ts.forecasting.quantiles import checked_levels, in_order
from mvpa_ts.weights import built_for, check_sizes, read_description, read_weights, save_model
from mvpa_ts.windows import Scaling, Series, last_window

_FORMAT = "mvpa-ts forecaster 1"
_FILES = ("forecaster.json", "forecaster.safetensors")


@dataclass(frozen=True)
class FittedForecaster:
    """A trained network and what it needs to know about its numbers.

    Attributes
    ----------
    network : ForecastingNetwork
    levels : tuple of float
        Quantiles that the network gives.
    feature_scaling : Scaling or None
        Of the features, from training.
    feature_names : tuple or None
        Of the features, in the network's order, where whoever trained it says so.
    """

    network: ForecastingNetwork
    levels: tuple[float, ...]
    feature_scaling: Scaling | None = None
    feature_names: tuple[Any, ...] | None = None

    @property
    def config(self) -> ForecastingConfig:
        """Sizes of the network."""
        return self.network.config

    @torch.no_grad()
    def predict(self, series: Series, scaling: Scaling | None = None) -> np.ndarray:
        """Quantiles of the steps after the series' last row, shape (h, C, Q).

        Parameters
        ----------
        series : Series
            Features, where the network has any, must reach `horizon` rows past the values. Rows before the look-back
            are not used; missing ones are masked.
        scaling : Scaling, optional
            Of the series in training; by default that of the series itself.
        """
        config = self.config
        if config.future_size and (
            series.features is None or len(series.features) < len(series.values) + config.horizon
        ):
            raise ValueError(f"features must reach horizon ({config.horizon}) rows past the values")
        scaling = Scaling.of(series.values) if scaling is None else scaling
        window = last_window(
            series,
            scaling,
            lookback=config.lookback,
            horizon=config.horizon,
            feature_scaling=self.feature_scaling,
        )
        inputs, _, _ = next(window.batches(1))
        quantiles = in_order(self.network(**inputs), torch.tensor(self.levels))[0]
        return quantiles.double().numpy() * scaling.scale[:, None] + scaling.location[:, None]

    def to_files(self, folder: str | Path) -> None:
        """Write `forecaster.json` and `forecaster.safetensors` into a folder, which is made if need be."""
        scaling, names = self.feature_scaling, self.feature_names
        description = {
            "format": _FORMAT,
            "config": asdict(self.config),
            "levels": self.levels,
            "feature_scaling": scaling and {name: values.tolist() for name, values in asdict(scaling).items()},
            "feature_names": names,
        }
        save_model(self.network, description, folder, names=_FILES)

    @classmethod
    def from_files(cls, folder: str | Path) -> FittedForecaster:
        """Read what `to_files` wrote; nothing in the files is executed.

        Raises
        ------
        OSError
            A file is missing.
        ValueError
            The folder holds something else, or weights that do not fit the description; every tensor that is missing,
            unexpected or of another shape is named.
        """
        path, weights = (Path(folder) / name for name in _FILES)
        description = read_description(path, _FORMAT, "config", "levels", "feature_scaling", "feature_names")
        fields, tensors = description["config"], read_weights(weights)
        config = read_fields(ForecastingConfig, {**BEFORE, **fields} if isinstance(fields, dict) else fields, path)
        check_sizes(asdict(config), tensors, path)
        network = built_for(lambda: ForecastingNetwork(config), tensors, weights)
        check_numbers(description["levels"], None, f"{path}: levels")
        levels = checked_levels(description["levels"])
        if config.num_outputs != len(levels):
            raise ValueError(f"{path}: levels must be {config.num_outputs}, as num_outputs says, got {len(levels)}")
        scaling, names = description["feature_scaling"], description["feature_names"]
        if scaling is not None:
            if not isinstance(scaling, dict) or scaling.keys() != {"location", "scale"}:
                raise ValueError(f"{path}: feature_scaling must hold location and scale, got {scaling!r:.100}")
            for values in scaling.values():
                check_numbers(values, config.future_size, f"{path}: feature_scaling")
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError(f"{path}: feature_names must be a list of names, got {names!r:.100}")
        return cls(
            network.eval(),
            levels,
            scaling and Scaling(**{name: np.array(values) for name, values in scaling.items()}),
            None if names is None else tuple(names),
        )
