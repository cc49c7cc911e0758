"""A trained classifier or regressor: networks, the scaler they were trained behind, and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from mvpa_ts.checks import check_numbers, read_fields
from mvpa_ts.classification.configuration import ClassificationConfig
from mvpa_ts.classification.network import ClassificationNetwork
from mvpa_ts.classification.panel import Scaler, batches, checked_series
from mvpa_ts.weights import built_for, check_sizes, read_description, read_weights, save_model


@dataclass
class FittedNetworks:
    """Networks whose outputs are averaged, and the scaler of the data they were trained on.

    Attributes
    ----------
    config : ClassificationConfig
    scaler : Scaler
    networks : list of ClassificationNetwork
    """

    kind: ClassVar[str]
    config: ClassificationConfig
    scaler: Scaler
    networks: list[ClassificationNetwork]

    def embed(self, series: Sequence[np.ndarray]) -> np.ndarray:
        """Features [n, D] of the MVPA path, those of several networks side by side."""
        return self._read(series, lambda network, x, mask: network.embed(x, mask), mean=False)

    @torch.no_grad()
    def _read(
        self,
        series: Sequence[np.ndarray],
        function: Callable[[ClassificationNetwork, Tensor, Tensor], Tensor],
        *,
        mean: bool,
    ) -> np.ndarray:
        outputs_of_batches = []
        for batch in batches(checked_series(series, self.config.num_channels)):
            x, mask = self.scaler.padded(batch)
            device = next(self.networks[0].parameters()).device
            outputs = [function(network.eval(), x.to(device), mask.to(device)).cpu() for network in self.networks]
            outputs_of_batches.append(torch.stack(outputs).double().mean(0) if mean else torch.cat(outputs, 1))
        return torch.cat(outputs_of_batches).numpy()

    def to_files(self, folder: str | Path, beside: Mapping[str, str] | None = None) -> None:
        """Write a JSON and a safetensors file, named after `kind`, into a folder, which is made if need be.

        `beside` names further files and their texts, which are replaced together with these.
        """
        extras = {name: value for name, value in vars(self).items() if name not in ("config", "scaler", "networks")}
        description = {
            "format": f"mvpa-ts {self.kind} 1",
            "config": asdict(self.config),
            "scaler": asdict(self.scaler),
            "num_networks": len(self.networks),
            **extras,
        }
        save_model(nn.ModuleList(self.networks), description, folder, names=_files(self.kind), beside=beside or {})

    @classmethod
    def from_files(cls, folder: str | Path) -> Self:
        """Read what `to_files` wrote; nothing in the files is executed.

        Raises
        ------
        OSError
            A file is missing.
        ValueError
            The folder holds something else, or weights that do not fit the description; every tensor that is missing,
            unexpected or of another shape is named.
        """
        path, weights = (Path(folder) / name for name in _files(cls.kind))
        extras = [field.name for field in fields(cls) if field.name not in ("config", "scaler", "networks")]
        description = read_description(path, f"mvpa-ts {cls.kind} 1", "config", "scaler", "num_networks", *extras)
        check_numbers([description[name] for name in extras], None, f"{path}: {' and '.join(extras)}")
        config = read_fields(ClassificationConfig, description["config"], path)
        tensors, count = read_weights(weights), description["num_networks"]
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{path}: num_networks must be a whole number of at least 1, got {count!r:.100}")
        check_sizes({"num_networks": count, **asdict(config)}, tensors, path)
        networks = built_for(
            lambda: nn.ModuleList(ClassificationNetwork(config) for _ in range(count)), tensors, weights
        )
        scaler = read_fields(Scaler, description["scaler"], path)
        for values in (scaler.location, scaler.scale):
            check_numbers(values, config.num_channels, f"{path}: scaler")
        return cls(config, scaler, [network.eval() for network in networks], *(description[name] for name in extras))  # type: ignore[misc]


@dataclass
class FittedClassifier(FittedNetworks):
    """Networks whose probabilities are averaged.

    Examples
    --------
    >>> from mvpa_ts.classification import ClassificationTraining, fit_classifier
    >>> series = [np.sin(np.arange(24) * (0.5 + row % 2))[None] for row in range(12)]
    >>> fitted = fit_classifier(series, [row % 2 for row in range(12)], training=ClassificationTraining(steps=5))
    >>> fitted.predict_proba(series[:3]).shape, fitted.embed(series[:3]).shape
    ((3, 2), (3, 256))
    """

    kind: ClassVar[str] = "classifier"

    def predict_proba(self, series: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities [n, K] of series [C, L_i], NaN = missing; raises ValueError as `checked_series` does."""
        return self._read(series, lambda network, x, mask: network(x, mask).cpu().double().softmax(-1), mean=True)


@dataclass
class FittedRegressor(FittedNetworks):
    """Networks whose numbers are averaged.

    Attributes
    ----------
    target_location, target_scale : float
        Mean and deviation of the targets in training.

    Examples
    --------
    >>> from mvpa_ts.classification import ClassificationTraining, fit_regressor
    >>> series = [np.sin(np.arange(24) * rate)[None] for rate in np.linspace(0.5, 1.5, 12)]
    >>> fitted = fit_regressor(series, np.linspace(0.5, 1.5, 12), training=ClassificationTraining(steps=5))
    >>> fitted.target_location
    1.0
    """

    kind: ClassVar[str] = "regressor"
    target_location: float
    target_scale: float

    def predict(self, series: Sequence[np.ndarray]) -> np.ndarray:
        """Numbers [n] of series [C, L_i], NaN = missing; raises ValueError as `checked_series` does."""
        standard = self._read(series, lambda network, x, mask: network(x, mask), mean=True)
        return standard[:, 0] * self.target_scale + self.target_location


def _files(kind: str) -> tuple[str, str]:
    return f"{kind}.json", f"{kind}.safetensors"
