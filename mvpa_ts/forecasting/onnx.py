"""A trained network as an ONNX file, which runs where there is no PyTorch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mvpa_ts._lazy import library_of
from mvpa_ts.files import replaced
from mvpa_ts.forecasting.network.network import ForecastingNetwork
from mvpa_ts.windows import Scaling


class _Window(nn.Module):
    """From values in the user's units, columns in the user's order, to quantiles in both."""

    def __init__(
        self, network: ForecastingNetwork, scaling: Scaling, inputs: Mapping[str, Tensor], order: Sequence[int]
    ) -> None:
        super().__init__()
        self.network, self.inputs = network, dict(inputs)
        self.location = nn.Buffer(torch.tensor(scaling.location))
        self.scale = nn.Buffer(torch.tensor(scaling.scale))
        self.order = nn.Buffer(torch.tensor(list(order)))
        self.back = nn.Buffer(torch.tensor(np.argsort(order)))

    def forward(self, values: Tensor, phase: Tensor | None = None) -> Tensor:
        values = values[:, :, self.order]
        observed = ~values.isnan()
        # In double precision first, because large levels with small changes would leave float32.
        x = torch.where(observed, (values - self.location) / self.scale, 0.0).float()
        quantiles = self.network(x, observed, phase=phase, **self.inputs)
        return (quantiles.double() * self.scale[:, None] + self.location[:, None])[:, :, self.back]


def to_onnx(
    network: ForecastingNetwork,
    path: str | Path,
    *,
    scaling: Scaling,
    channel_inputs: Mapping[str, Tensor],
    order: Sequence[int] | None = None,
) -> None:
    """Write a trained network for windows of one size; `MVPAForecaster.to_onnx` and `MVPA.to_onnx` call this.

    The graph takes `values`, float64 (1, lookback, C), where NaN is missing, and with a cycle `phase`, int64 (1,), the
    position of the first row. It gives `quantiles`, float64 (1, horizon, C, Q), in the units of the values.

    Parameters
    ----------
    network : ForecastingNetwork
        Its outputs are quantiles of increasing levels, or one point.
    path : str or path
        Written whole or not at all.
    scaling : Scaling
        Of the series in training, in the network's order.
    channel_inputs : mapping of str to Tensor
        `units`, `positions` and `series`, as in `ForecastingNetwork.forward`.
    order : sequence of int, optional
        Which column of `values` each channel of the network is.

    Raises
    ------
    ImportError
        onnx or onnxscript are not installed.
    ValueError
        The network reads covariates, which a graph of one input cannot take.

    Examples
    --------
    The file runs with onnxruntime alone::

        session = onnxruntime.InferenceSession("forecaster.onnx")
        (quantiles,) = session.run(["quantiles"], {"values": rows[None]})
    """
    config = network.config
    if any(config.feature_sizes):
        raise ValueError("a network that reads covariates cannot be written as ONNX: train one without them")
    with library_of("onnx", "to_onnx"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    C = len(scaling.scale)
    window = _Window(network, scaling, channel_inputs, range(C) if order is None else order)
    arguments: list[Any] = [torch.zeros(1, config.lookback, C, dtype=torch.float64)]
    names = ["values"]
    if config.cycle_length is not None:
        arguments.append(torch.zeros(1, dtype=torch.long))
        names.append("phase")
    training = network.training
    # In a folder of its own first: the exporter may write more than one file.
    with replaced(path) as temporary, tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = os.path.join(folder, "network.onnx")
        torch.onnx.export(
            window.eval(), tuple(arguments), file, dynamo=True, external_data=False, verbose=False, input_names=names,
            output_names=["quantiles"],
        )  # fmt: skip
        temporary.write_bytes(Path(file).read_bytes())
    network.train(training)
