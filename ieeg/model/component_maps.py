"""Component maps: the channel term and the time term of each layer and head, averaged over queries.

The time term of a score depends on the query and the lag, the channel term on the query and the distance between
channels. Their averages over queries show what the model learned about lags and about channels that belong together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import torch
from einops import rearrange
from matplotlib.figure import Figure
from torch import Tensor, nn

from mvpa_ts.attention import MVPAttention
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.figures import literal, styled
from mvpa_ts.ieeg.model.mvpformer import MVPFormer


@dataclass(frozen=True)
class ComponentMaps:
    """Scores as they enter the softmax (divided by √d), averaged over queries and windows.

    A term that the model's `components` leave out is zero.

    Attributes
    ----------
    channel : array, shape (layers, heads, C, C)
        Channel term of a query at the row's channel for keys at the column's, mean over the queries' segments.
    time : array, shape (layers, heads, T, T)
        Time term of a query in the row's segment for keys in the column's, mean over the queries' channels; NaN where
        the key would lie in the future.
    channel_names : tuple of str
    """

    channel: npt.NDArray[np.float64]
    time: npt.NDArray[np.float64]
    channel_names: tuple[str, ...]


@torch.no_grad()
def component_maps(
    model: MVPFormer, signals: Iterable[Tensor | tuple[Tensor, Tensor]], channel_names: Iterable[str] | None = None
) -> ComponentMaps:
    """Average the channel and time terms of every layer and head over the queries of some windows.

    Parameters
    ----------
    model : MVPFormer
        With MVPA attention; the codebooks' rows may be counted in either order.
    signals : iterable of Tensor, shape (B, C, T·2560)
        µV at 512 Hz, read one after the other; all must have the same channels and segments. Or pairs of a signal and
        its token_mask [B, T, C]: missing tokens count as no query, and a channel that is always missing has NaN.
    channel_names : iterable of str, optional

    Raises
    ------
    ValueError
        The model has another attention, or there is no signal.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    >>> maps = component_maps(MVPFormer(mvpformer_tiny()), [torch.randn(2, 3, 4 * 2560)])
    >>> maps.channel.shape, maps.time.shape
    ((2, 4, 3, 3), (2, 4, 4, 4))
    """
    layers = [module for module in model.modules() if isinstance(module, MVPAttention)]
    if not layers:
        raise ValueError("model has no MVPA attention: a Llama model has no channel and time terms")
    sums: list[tuple[Any, Any]] = [(0.0, 0.0)] * len(layers)
    queries: Tensor | None = None  # real ones of each segment and channel, [T, C]
    real = torch.empty(0)

    def watch(index: int) -> Any:
        def hook(module: Any, inputs: tuple[Tensor, ...]) -> None:
            x, time_codebook, channel_codebook = inputs[:3]
            channel, time = _terms(module, x, time_codebook, channel_codebook, real)
            sums[index] = sums[index][0] + channel, sums[index][1] + time

        return hook

    # Hooks see the inputs of each layer in a normal pass, so that the maps belong to the very model that is used.
    handles = [layer.register_forward_pre_hook(watch(index)) for index, layer in enumerate(layers)]
    training = model.training
    model.eval()
    try:
        for signal in signals:
            x, mask = signal if isinstance(signal, tuple) else (signal, None)
            B, C, samples = x.shape
            real = torch.ones(B, samples // SEGMENT_SAMPLES, C, device=x.device) if mask is None else mask
            real = real.to(x.dtype)
            queries = real.sum(0) if queries is None else queries + real.sum(0)
            model(x, token_mask=mask)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    if queries is None:
        raise ValueError("signals must hold at least one window, got none")
    channel, time = (
        (torch.stack([pair[i] for pair in sums]).double() / queries.sum(i).double()[:, None]).cpu().numpy()
        for i in (0, 1)
    )
    # The model is causal: a score for a key in the future exists as a number, but is never used.
    future = np.triu(np.ones(time.shape[-2:], bool), 1)
    time[..., future] = np.nan
    names = tuple(channel_names) if channel_names is not None else tuple(map(str, range(channel.shape[-1])))
    if len(names) != channel.shape[-1]:
        raise ValueError(f"channel_names must be {channel.shape[-1]} names, one for each channel, got {len(names)}")
    return ComponentMaps(channel, time, names)


def _terms(
    attention: MVPAttention, x: Tensor, time_codebook: Tensor, channel_codebook: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Channel term [H, C, C] and time term [H, T, T] of one layer, summed over the real queries of the batch."""
    T, C = x.shape[1:3]
    segments, channels = torch.arange(T, device=x.device), torch.arange(C, device=x.device)
    # The authors count codebook rows from the far end, so the row of lag 0 is the last one that the input needs.
    released = attention.row_order == "released"
    time_rows, channel_rows = (segments.flip(0), channels.flip(0)) if released else (segments, channels)
    d = attention.head_dim
    query = rearrange(attention.query(x), "b t c (h d) -> b t c h d", d=d)
    # Several query heads share one key head; the biases belong to the key heads and are repeated like their keys.
    groups = query.shape[3] // attention.time_bias.shape[0]

    def scores(projection: nn.Linear, rows: Tensor, bias: Tensor) -> Tensor:
        """Score of each query for each row, [B, T, C, H, R]."""
        key = rearrange(projection(rows), "r (h d) -> r h d", d=d).repeat_interleave(groups, 1)
        return torch.einsum("btchd,rhd->btchr", query + bias.repeat_interleave(groups, 0), key) / d**0.5

    by_distance = scores(attention.channel_key, channel_codebook[channel_rows], attention.channel_bias)
    by_lag = scores(attention.time_key, time_codebook[time_rows], attention.time_bias)
    distance = (channels[:, None] - channels).abs()
    lag = (segments[:, None] - segments).clamp(min=0)
    of_channels = torch.einsum("btchr,btc->hcr", by_distance, real)
    of_segments = torch.einsum("btchr,btc->htr", by_lag, real)
    heads = of_channels.shape[0]
    # A model has weights for the terms that it leaves out; they mean nothing.
    return (
        of_channels.gather(2, distance.expand(heads, C, C)) * ("channel" in attention.components),
        of_segments.gather(2, lag.expand(heads, T, T)) * ("time" in attention.components),
    )


@styled
def plot_component_maps(
    maps: ComponentMaps, before: ComponentMaps | None = None, term: str = "channel", layer: int | None = None
) -> Figure:
    """Heat maps, one row a layer and one column a head; with `before`, before and after training side by side.

    Parameters
    ----------
    layer : int, optional
        Only this layer, from 0; negative counts from the last.
    """
    if term not in ("channel", "time"):
        raise ValueError(f"term must be 'channel' or 'time', got {term!r}")
    after = getattr(maps, term)
    if layer is not None and not -len(after) <= layer < len(after):
        raise ValueError(f"layer must be from 0 to {len(after) - 1}, or from -{len(after)} to -1, got {layer}")
    chosen = range(len(after)) if layer is None else [range(len(after))[layer]]
    stages = [("", after)]
    if before is not None:
        earlier = getattr(before, term)
        if earlier.shape[:2] != after.shape[:2]:
            raise ValueError(
                "before must have as many layers and heads as the model it is compared with, got "
                f"{earlier.shape[0]} × {earlier.shape[1]} and {after.shape[0]} × {after.shape[1]}"
            )
        stages = [("before training", earlier), ("after training", after)]
    panels = [(index, name, values) for index in chosen for name, values in stages]
    heads, unit = after.shape[1], "channel" if term == "channel" else "segment"
    names = [literal(name) for name in maps.channel_names]
    # Every channel is named, so panels grow with their number.
    side = max(2.1, 0.1 * len(names)) if term == "channel" else 2.1
    size = (1.2 + side * heads, 0.6 + (side - 0.1) * len(panels))
    figure, axes = plt.subplots(len(panels), heads, figsize=size, squeeze=False, layout="constrained")
    for row, (index, name, values) in zip(axes, panels, strict=True):
        # One scale for a layer's heads before and after, so that colours can be compared.
        limit = max(float(np.nanmax(np.abs(scores[index]))) for _, scores in stages) or 1.0
        for head, axis in enumerate(row):
            image = axis.imshow(values[index, head], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="none")
            axis.set_title(f"layer {index}, head {head}", fontsize="x-small")
            axis.tick_params(labelsize="xx-small")
            if term == "channel":
                axis.set_yticks(range(len(names)), names)
                axis.set_xticks(range(len(names)), names, rotation=90)
        row[0].set_ylabel(f"query {unit}\n{name}")
        bar = figure.colorbar(image, ax=row.tolist(), shrink=0.8)
        bar.set_label(f"mean {term} term\nof the score", fontsize="x-small")
    figure.suptitle(f"{term.capitalize()} term of the attention score", fontsize="medium")
    for axis in axes[-1]:
        axis.set_xlabel(f"key {unit}", fontsize="x-small")
    return figure
