"""A trained classifier: networks, the scaler they were trained behind, and their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mvpa_ts.checks import check_numbers, read_fields
from mvpa_ts.classification.configuration import ClassificationConfig
from mvpa_ts.classification.network import ClassificationNetwork
from mvpa_ts.classification.panel import Scaler, batches, checked_series
from mvpa_ts.weights import built_for, check_sizes, read_description, read_weights, save_model

_FORMAT = "mvpa-ts classifier 1"
_FILES = ("classifier.json", "classifier.safetensors")


@dataclass
class FittedClassifier:
    """Networks whose probabilities are averaged, and the scaler of the data they were trained on.

    Attributes
    ----------
    config : ClassificationConfig
    scaler : Scaler
    networks : list of ClassificationNetwork
    """

    config: ClassificationConfig
    scaler: Scaler
    networks: list[ClassificationNetwork]

    def predict_proba(self, series: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities [n, K] of series [C, L_i], NaN = missing; raises ValueError as `checked_series` does."""
        return self._read(series, lambda network, x, mask: network(x, mask).softmax(-1), mean=True)

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
        found = []
        for batch in batches(checked_series(series, self.config.num_channels)):
            x, mask = self.scaler.padded(batch)
            device = next(self.networks[0].parameters()).device
            outputs = [function(network.eval(), x.to(device), mask.to(device)).cpu() for network in self.networks]
            found.append(torch.stack(outputs).double().mean(0) if mean else torch.cat(outputs, 1))
        return torch.cat(found).numpy()

    def to_files(self, folder: str | Path) -> None:
        """Write `classifier.json` and `classifier.safetensors` into a folder, which is made if need be."""
        description = {
            "format": _FORMAT,
            "config": asdict(self.config),
            "scaler": asdict(self.scaler),
            "num_networks": len(self.networks),
        }
        save_model(nn.ModuleList(self.networks), description, folder, names=_FILES)

    @classmethod
    def from_files(cls, folder: str | Path) -> FittedClassifier:
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
        description = read_description(path, _FORMAT, "config", "scaler", "num_networks")
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
        return cls(config, scaler, [network.eval() for network in networks])  # type: ignore[misc]
