"""A trained classifier: networks, the scaler they were trained behind, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mvpa_ts.classification.network import ClassificationConfig, ClassificationNetwork
from mvpa_ts.classification.panel import Scaler, batches, checked_series
from mvpa_ts.files import read_config, write_bytes
from mvpa_ts.weights import read_weights

_FORMAT = "mvpa-ts classifier 1"


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
        from safetensors.torch import save

        folder = Path(folder)
        description = {
            "format": _FORMAT,
            "config": asdict(self.config),
            "scaler": asdict(self.scaler),
            "num_networks": len(self.networks),
        }
        tensors = {
            f"{index}.{name}": tensor.contiguous().cpu()
            for index, network in enumerate(self.networks)
            for name, tensor in network.state_dict().items()
        }
        write_bytes(folder / "classifier.safetensors", save(tensors))
        write_bytes(folder / "classifier.json", json.dumps(description, indent=1).encode())

    @classmethod
    def from_files(cls, folder: str | Path) -> FittedClassifier:
        """Read what `to_files` wrote.

        Raises
        ------
        OSError
            A file is missing.
        ValueError
            The folder holds something else, or weights that do not fit the description.
        """
        folder = Path(folder)
        description = read_config(folder / "classifier.json")
        if description.get("format") != _FORMAT:
            raise ValueError(
                f"{folder / 'classifier.json'} must have format {_FORMAT!r}, got {description.get('format')!r}"
            )
        config = description["config"]
        config = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
        made = ClassificationConfig(**config)
        tensors = read_weights(folder / "classifier.safetensors")
        networks = []
        for index in range(description["num_networks"]):
            network = ClassificationNetwork(made).eval()
            own = {name.partition(".")[2]: t for name, t in tensors.items() if name.partition(".")[0] == str(index)}
            try:
                network.load_state_dict(own)
            except RuntimeError as error:
                raise ValueError(f"the weights in {folder} do not fit its classifier.json: {error}") from error
            networks.append(network)
        scaler = Scaler(**{name: tuple(values) for name, values in description["scaler"].items()})
        return cls(made, scaler, networks)
