"""How much the channels of a panel attend to each other while a network forecasts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.attention.module import MVPAttention
from mvpa_ts.forecasting.pretrained.attention import PanelAttention


class ChannelWeights:
    """Notes what reaches the attention between channels of a network, within a `with` block.

    Parameters
    ----------
    network : nn.Module
        A `ForecastingNetwork` or a `BaseForecaster`.

    Raises
    ------
    ValueError
        The network has no attention between channels.

    Examples
    --------
    >>> from mvpa_ts import ForecastingConfig, ForecastingNetwork
    >>> network = ForecastingNetwork(ForecastingConfig(horizon=24, lookback=96)).eval()
    >>> with ChannelWeights(network) as recorded:
    ...     forecast = network(torch.randn(1, 96, 5))
    >>> recorded.of(5).shape
    (5, 5)
    """

    def __init__(self, network: nn.Module) -> None:
        attentions = (module for module in network.modules() if isinstance(module, (MVPAttention, PanelAttention)))
        self.attentions = [module for module in attentions if module.channel_key is not None]
        if not self.attentions:
            raise ValueError(f"the model must have attention of channels, got a {type(network).__name__} without any")
        self.calls: dict[nn.Module, tuple[Any, Any]] = {}

    def __enter__(self) -> ChannelWeights:
        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.calls[module] = args, kwargs

        self.hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in self.attentions]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    @torch.no_grad()
    def of(self, count: int) -> np.ndarray:
        """Weights (C, C) of the last call, in the network's order: row c reads column c'. Each row sums to 1.

        They are means over heads, layers, segments and windows. Past covariates of a series, which the pretrained
        forecaster reads as further channels, count as the series.
        """
        layers = torch.stack([_of_layer(module, *self.calls[module]) for module in self.attentions]).mean(0)
        layers_each, over = divmod(len(layers), count)
        if over or not layers_each:
            raise ValueError(f"the panel must have at most 128 series, which attend to each other, got {count}")
        weights = layers.unflatten(1, (count, layers_each)).sum(2)[::layers_each]
        return (weights / weights.sum(1, keepdim=True)).cpu().numpy()


class _Marks(nn.Module):
    """In place of the values of tokens, 1 where they are of one channel: a feature a channel from `first` on."""

    def __init__(self, first: int, width: int, projection: nn.Linear) -> None:
        super().__init__()
        self.first, self.width, self.projection = first, width, projection

    def forward(self, x: Tensor) -> Tensor:
        C = x.shape[2]
        marks = torch.eye(C, device=x.device, dtype=x.dtype)[:, self.first : self.first + self.width]
        marks = F.pad(marks, (0, self.width - marks.shape[1]))
        size = self.projection.out_features
        if size == self.projection.in_features * 3:  # of queries, keys and values together
            query, key, _ = self.projection(x).chunk(3, dim=3)
            heads = size // 3 // self.width
            return torch.cat([query, key, marks.repeat(1, heads).expand_as(key)], 3)
        return marks.repeat(1, size // self.width).expand(*x.shape[:3], size)


def _of_layer(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    """Weights [C, C] of one layer."""
    # Attention is linear in its values, so that values which mark a channel give the weight that goes to it, whichever
    # implementation runs.
    C, width = args[0].shape[2], int(module.head_dim)  # type: ignore[arg-type]
    columns = []
    for first in range(0, C, width):
        probe: Any = copy.copy(module)
        probe._modules = dict(module._modules)  # the module itself keeps its parts
        into, out = ("qkv", "out") if isinstance(module, PanelAttention) else ("value", "output")
        setattr(probe, into, _Marks(first, width, getattr(module, into)))
        setattr(probe, out, nn.Identity())
        attended = probe(*args, **kwargs)  # [B, T, C, H·d]
        columns.append(attended.unflatten(3, (-1, width)).mean((0, 1, 3)))
    return torch.cat(columns, 1)[:, :C]
