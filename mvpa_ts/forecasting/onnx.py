"""A trained network, or the pretrained one, as an ONNX file, which runs where there is no PyTorch."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mvpa_ts._lazy import library_of
from mvpa_ts.files import write_bytes
from mvpa_ts.forecasting.network.network import ForecastingNetwork
from mvpa_ts.forecasting.pretrained.base import LEAST_STEPS, LEVELS, BaseForecaster
from mvpa_ts.forecasting.pretrained.jumps import spikes
from mvpa_ts.windows import Scaling

# The networks have no operators of torchvision, which need not be there.
_EXPORTER = logging.getLogger("torch.onnx._internal.exporter._registration")
_EXPORTER.addFilter(lambda record: "torchvision is not installed" not in record.getMessage())


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
    C = len(scaling.scale)
    window = _Window(copy.deepcopy(network), scaling, channel_inputs, range(C) if order is None else order)
    inputs = {"values": torch.zeros(1, config.lookback, C, dtype=torch.float64)}
    if config.cycle_length is not None:
        inputs["phase"] = torch.zeros(1, dtype=torch.long)
    with torch.no_grad():
        _write(window.eval(), inputs, path)


class _Panel(nn.Module):
    """The pretrained network with all that a call of it is told beside the values; NaN for what a graph gets wrong."""

    def __init__(self, network: BaseForecaster, **options: Any) -> None:
        super().__init__()
        self.network, self.options = network, options

    def forward(self, values: Tensor) -> Tensor:
        observed = ~values.isnan()
        whole = (observed & ~spikes(values, observed))[:, -1].all() & observed[:, 0].all() & ~values.isinf().any()
        return torch.where(whole, self.network(values, **self.options), torch.nan)


def base_to_onnx(
    network: BaseForecaster,
    path: str | Path,
    *,
    shape: tuple[int, int],
    horizon: int,
    positions: Tensor | None = None,
    season: int | None = None,
    levels: Sequence[float] = LEVELS,
) -> None:
    """Write the pretrained network for histories of one size, regressions and all.

    The graph takes `values`, float32 (1, rows, series), where NaN is missing, and gives `quantiles`, float32
    (1, horizon, series, Q): those of `network(values)`, to the rounding of single precision. They are NaN if a value is
    infinite, or one of the first or last row missing, or one of the last an outlier, because the network then looks
    how many rows there are. What else looks at the numbers is not in the file: yearly seasons and long cycles, and all
    that `forecast_quantiles` adds (running totals, whole numbers of counts, prices that stay, covariates, bounds).

    Parameters
    ----------
    network : BaseForecaster
        Such as ``load_base("base")``.
    path : str or path
        Written whole or not at all.
    shape : (rows, series)
        Of each history. Up to 512 rows are read one by one, up to 2048 as means of several.
    horizon, positions, season, levels
        As in `BaseForecaster.forward`.

    Raises
    ------
    ImportError
        onnx or onnxscript are not installed.
    ValueError
        `shape` is no pair of numbers, with at least 16 rows; or what `BaseForecaster.forward` refuses.

    Examples
    --------
    Writing takes a minute, several of more than 512 rows. The file runs with onnxruntime alone::

        base_to_onnx(load_base("base"), "base.onnx", shape=(512, 7), horizon=24)
        session = onnxruntime.InferenceSession("base.onnx")
        (quantiles,) = session.run(["quantiles"], {"values": rows[None].astype("float32")})
    """
    if not isinstance(network, BaseForecaster):
        raise ValueError(f"network must be a BaseForecaster, such as load_base('base'), got {network!r:.100}")
    rows, series = shape if isinstance(shape, Sequence) and len(shape) == 2 else (0, 0)
    if not isinstance(rows, Integral) or not isinstance(series, Integral) or rows < LEAST_STEPS or series < 1:
        raise ValueError(f"shape must be (rows, series), with {LEAST_STEPS} rows or more, got {shape!r}")
    with library_of("onnx", "base_to_onnx"):
        from mvpa_ts.forecasting.onnx_operators import decompositions, translations
    values = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    network = copy.deepcopy(network).cpu().eval()
    panel = _Panel(network, horizon=horizon, positions=positions, season=season, levels=levels)
    with torch.no_grad(), warnings.catch_warnings(action="ignore", category=FutureWarning):  # as in `_write`
        panel(values)  # its errors name what is wrong with the arguments
        program = torch.export.export(panel, (values,)).run_decompositions(decompositions())
        _write(program, {"values": values}, path, custom_translation_table=translations(), optimize=False)


def _write(
    network: nn.Module | torch.export.ExportedProgram, inputs: dict[str, Tensor], path: str | Path, **options: Any
) -> None:
    with library_of("onnx", "to_onnx"):
        import onnx  # noqa: F401
        from onnxscript import ir
    names: dict[str, Any] = {"input_names": [*inputs], "output_names": ["quantiles"]}
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of torch about itself
        program: Any = torch.onnx.export(network, (*inputs.values(),), dynamo=True, verbose=False, **names, **options)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # lines of the code that each comes from, five times as large as all else
        if node.op_type == "CastLike":  # of which onnxruntime warns
            ir.convenience.get_const_tensor(node.inputs[1], propagate_shape_type=True)
            if kind := node.inputs[1].dtype:
                node.op_type, node.attributes["to"] = "Cast", ir.AttrInt64("to", kind)
                node.resize_inputs(1)
    write_bytes(path, program.model_proto.SerializeToString())
