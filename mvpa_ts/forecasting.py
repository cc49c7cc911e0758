"""The forecasting network: a linear path from look-back to horizon, and an MVPA path over patch tokens added to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.attention.functional import COMPONENTS, checked_components
from mvpa_ts.attention.module import MVPAttention
from mvpa_ts.blocks import MVPAStack, ParallelBlock, SwiGLU


@dataclass(frozen=True)
class ForecastingConfig:
    """Sizes and options of a `ForecastingNetwork`.

    The number of parameters depends on no number of channels, except through `cycle_channels` and
    `individual_channels` when those are set.

    Attributes
    ----------
    horizon, lookback : int
        Steps to forecast (h) and steps to look at (L).
    patch_length, patch_stride : int
        Steps in a token and between the starts of two tokens. When the look-back is no whole number of strides, the
        first patch is padded with missing values.
    dim, num_heads, mlp_dim, num_layers : int
        Width D, heads, hidden width of the gated MLP, and blocks. No layer leaves the linear path alone.
    components : tuple of {"content", "time", "channel"}
        Terms of the attention score.
    channel_distance : {"absolute", "signed"}
    max_channels : int
        Rows of the channel codebook; channels further apart share the last row.
    dropout : float
        On tokens, on the attention's output and inside the MLP.
    attention_dropout : float
        Structured dropout of whole segments and channels.
    head_dropout : float
        On the features before the output head.
    num_outputs : int
        Numbers per forecast step: quantiles, or parameters of a distribution.
    cycle_length : int or None
        Steps of a learnable cycle that is taken from the input and added to the output (CycleNet); needs `phase`.
    cycle_channels : int or None
        Channels with a cycle of their own; None shares one cycle among all.
    individual_channels : int or None
        Number of channels, if each gets parameters of its own: a correction of the linear path's matrix and a vector
        that is added to its tokens. Needed where channels are different things, as in weather data. None keeps the
        network free of channel identities, so that it runs on any number of channels.
    future_size, historic_size, static_size : int
        Exogenous features known ahead, known in the past only, and constant.
    normalise : bool
        Instance normalisation per window and channel, undone on the output.
    shuffle_channels : bool
        Train on random channel orders.
    location_outputs : tuple of int or None
        Outputs that the cycle is added to, for distributions whose other parameters do not move with it; None is all.
    """

    horizon: int
    lookback: int
    patch_length: int = 48
    patch_stride: int = 24
    dim: int = 32
    num_heads: int = 4
    mlp_dim: int = 64
    num_layers: int = 1
    components: tuple[str, ...] = COMPONENTS
    channel_distance: Literal["absolute", "signed"] = "absolute"
    max_channels: int = 32
    dropout: float = 0.3
    attention_dropout: float = 0.0
    head_dropout: float = 0.5
    num_outputs: int = 1
    cycle_length: int | None = None
    cycle_channels: int | None = None
    individual_channels: int | None = None
    future_size: int = 0
    historic_size: int = 0
    static_size: int = 0
    normalise: bool = True
    shuffle_channels: bool = False
    location_outputs: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in (
            "horizon",
            "lookback",
            "patch_length",
            "patch_stride",
            "dim",
            "num_heads",
            "mlp_dim",
            "max_channels",
            "num_outputs",
            "cycle_length",
            "cycle_channels",
            "individual_channels",
        ):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("num_layers", "future_size", "historic_size", "static_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.num_layers and self.patch_length > self.lookback:
            raise ValueError(f"patch_length ({self.patch_length}) must not exceed lookback ({self.lookback})")
        if self.patch_stride > self.patch_length:
            raise ValueError(
                f"patch_stride ({self.patch_stride}) must not exceed patch_length ({self.patch_length}): "
                "steps between patches would be lost"
            )
        if self.num_layers and self.dim % self.num_heads:
            raise ValueError(f"dim ({self.dim}) must be a multiple of num_heads ({self.num_heads})")
        for name in ("dropout", "attention_dropout", "head_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.cycle_channels is not None and self.cycle_length is None:
            raise ValueError("cycle_channels needs cycle_length")
        if self.channel_distance not in ("absolute", "signed"):
            raise ValueError(f"channel_distance must be 'absolute' or 'signed', got {self.channel_distance!r}")
        checked_components(self.components)
        if self.channel_distance not in ("absolute", "signed"):
            raise ValueError(f"channel_distance must be 'absolute' or 'signed', got {self.channel_distance!r}")

    @property
    def segments(self) -> int:
        """Tokens per channel over the look-back."""
        return 1 + math.ceil((self.lookback - self.patch_length) / self.patch_stride)

    @property
    def future_segments(self) -> int:
        """Tokens per channel over the horizon; none without future exogenous features."""
        return math.ceil(self.horizon / self.patch_stride) if self.future_size else 0


class ForecastingNetwork(nn.Module):
    """Forecast all channels of a window at once.

    The window is normalised per channel; a linear map from look-back to horizon, shared by the channels, gives the
    base forecast. An encoder of bidirectional MVPA blocks over patch tokens (segments × channels) adds to it. Both
    start at zero, so that training departs from the window's mean.

    Parameters
    ----------
    config : ForecastingConfig

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts import ForecastingConfig, ForecastingNetwork
    >>> network = ForecastingNetwork(ForecastingConfig(horizon=24, lookback=96))
    >>> network(torch.randn(8, 96, 7)).shape  # 7 channels; any number will do
    torch.Size([8, 24, 7, 1])
    """

    def __init__(self, config: ForecastingConfig) -> None:
        super().__init__()
        self.config = config
        self.linear = nn.Linear(config.lookback, config.horizon * config.num_outputs)
        # From zero (the window's mean) rather than at random: the noise of a random start outlives a short training.
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        if config.individual_channels is not None:
            self.corrections = nn.Parameter(
                torch.zeros(config.individual_channels, config.lookback, config.horizon * config.num_outputs)
            )
        if config.cycle_length is not None:
            self.cycle = nn.Parameter(torch.zeros(config.cycle_length, config.cycle_channels or 1))
        self.encoder = PatchEncoder(config) if config.num_layers else None

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        phase: Tensor | None = None,
        future: Tensor | None = None,
        historic: Tensor | None = None,
        static: Tensor | None = None,
    ) -> Tensor:
        """Forecast the horizon of each window.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Look-back windows.
        mask : bool Tensor, shape (B, L, C), optional
            True = observed. What is stored elsewhere does not matter.
        phase : integer Tensor, shape (B,), optional
            Position of the first step in the cycle; taken modulo `cycle_length`.
        future : Tensor, shape (B, L + h, C, F), optional
        historic : Tensor, shape (B, L, C, X), optional
        static : Tensor, shape (C, S), optional
            Exogenous features known ahead, of the past, and constant.

        Returns
        -------
        Tensor, shape (B, h, C, m)

        Raises
        ------
        ValueError
            The window length, the features or the phase do not fit the configuration.
        """
        self._check(x, mask, phase, future, historic, static)
        config = self.config
        if mask is None or (mask.device.type == "cpu" and bool(mask.all())):
            mask = None
        else:
            x = x.masked_fill(~mask, 0.0)
        location, scale = location_scale(x, mask) if config.normalise else (x.new_zeros(()), x.new_ones(()))
        x = (x - location) / scale
        cycle = None
        if config.cycle_length is not None and phase is not None:
            steps = torch.arange(config.lookback + config.horizon, device=x.device)
            cycle = self.cycle[(phase[:, None] + steps) % config.cycle_length]  # [B, L + h, C or 1]
            x = x - cycle[:, : config.lookback]
        if mask is not None:
            x = x.masked_fill(~mask, 0.0)  # a missing step is read as the window's mean

        forecast = self.linear(x.mT)
        if config.individual_channels is not None:
            forecast = forecast + torch.einsum("blc,clk->bck", x, self.corrections)
        forecast = rearrange(forecast, "b c (h m) -> b h c m", m=config.num_outputs)
        if self.encoder is not None:
            forecast = forecast + self.encoder(x, mask, future, historic, static)
        if cycle is not None:
            moving = range(config.num_outputs) if config.location_outputs is None else config.location_outputs
            shifts = forecast.new_tensor([float(output in moving) for output in range(config.num_outputs)])
            forecast = forecast + cycle[:, config.lookback :, :, None] * shifts
        return forecast * scale[..., None] + location[..., None]

    def _check(
        self,
        x: Tensor,
        mask: Tensor | None,
        phase: Tensor | None,
        future: Tensor | None,
        historic: Tensor | None,
        static: Tensor | None,
    ) -> None:
        config = self.config
        if x.ndim != 3 or x.shape[1] != config.lookback:
            raise ValueError(f"x must be [B, L, C] with L = lookback = {config.lookback}, got shape {tuple(x.shape)}")
        B, L, C = x.shape
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape):
            raise ValueError(
                f"mask must be a bool tensor of shape {tuple(x.shape)}, got {mask.dtype} of {tuple(mask.shape)}"
            )
        if config.cycle_length is not None:
            if phase is None:
                raise ValueError(f"phase is needed: the network has a cycle of {config.cycle_length} steps")
            if phase.shape != (B,) or phase.is_floating_point():
                raise ValueError(
                    f"phase must be an integer tensor of shape {(B,)}, got {phase.dtype} of {tuple(phase.shape)}"
                )
        for name in ("cycle_channels", "individual_channels"):
            if getattr(config, name) not in (None, C):
                raise ValueError(f"x must have {name} = {getattr(config, name)} channels, got {C}")
        for name, tensor, shape in (
            ("future", future, (B, L + config.horizon, C, config.future_size)),
            ("historic", historic, (B, L, C, config.historic_size)),
            ("static", static, (C, config.static_size)),
        ):
            if shape[-1] and (tensor is None or tensor.shape != shape):
                raise ValueError(
                    f"{name} must have shape {shape}, got {None if tensor is None else tuple(tensor.shape)}"
                )


class PatchEncoder(nn.Module):
    """Patches to tokens, bidirectional MVPA over segments × channels, features to the horizon.

    A token is the sum of its patch and of its channel's whole look-back, each through a linear map: validation errors
    on ETTh1 and ETTh2 are smaller than with patches alone.

    Steps ahead with known features become tokens of their own: they attend with the others and each adds its
    stretch of the horizon.
    """

    def __init__(self, config: ForecastingConfig) -> None:
        super().__init__()
        self.config = config
        D, P, m = config.dim, config.patch_length, config.num_outputs
        self.embed = nn.Linear(P, D)
        self.embed_lookback = nn.Linear(config.lookback, D, bias=False)
        self.embed_missing = nn.Linear(P, D, bias=False)
        if config.historic_size:
            self.embed_historic = nn.Linear(P * config.historic_size, D, bias=False)
        if config.individual_channels is not None:
            self.embed_channel = nn.Parameter(torch.randn(config.individual_channels, D) / D**0.5)
        if config.static_size:
            self.embed_static = nn.Linear(config.static_size, D, bias=False)
        if config.future_size:
            self.embed_future = nn.Linear(P * config.future_size, D, bias=False)
            self.future_token = nn.Parameter(torch.randn(D) * 0.02)
            self.future_head = nn.Linear(D, config.patch_stride * m)
            nn.init.zeros_(self.future_head.weight)
            nn.init.zeros_(self.future_head.bias)
        blocks = [
            ParallelBlock(
                MVPAttention(
                    D,
                    config.num_heads,
                    causal=False,
                    components=config.components,
                    dropout=config.attention_dropout,
                    channel_distance=config.channel_distance,
                    beyond="clamp",
                ),
                SwiGLU(D, config.mlp_dim, config.dropout),
                D,
                config.dropout,
            )
            for _ in range(config.num_layers)
        ]
        segments = config.segments + config.future_segments
        channel_rows = config.max_channels if config.channel_distance == "absolute" else 2 * config.max_channels - 1
        self.stack = MVPAStack(blocks, D, time_rows=2 * segments - 1, channel_rows=channel_rows)
        self.dropout = nn.Dropout(config.dropout)
        self.head_dropout = nn.Dropout(config.head_dropout)
        self.head = nn.Linear(config.segments * D, config.horizon * m)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, x: Tensor, mask: Tensor | None, future: Tensor | None, historic: Tensor | None, static: Tensor | None
    ) -> Tensor:
        """Map normalised windows [B, L, C] to an addition to the forecast, [B, h, C, m]."""
        config = self.config
        tokens, token_mask = self._tokens(x, mask, future, historic, static)
        order = torch.randperm(x.shape[2], device=x.device) if config.shuffle_channels and self.training else None
        if order is not None:
            tokens = tokens[:, :, order]
            token_mask = None if token_mask is None else token_mask[:, :, order]
        features = self.head_dropout(self.stack(self.dropout(tokens), token_mask=token_mask))
        if order is not None:
            features = features[:, :, order.argsort()]
        past, ahead = features.split([config.segments, config.future_segments], dim=1)
        forecast = self.head(rearrange(past, "b t c d -> b c (t d)"))
        forecast = rearrange(forecast, "b c (h m) -> b h c m", m=config.num_outputs)
        if config.future_size:
            steps = rearrange(self.future_head(ahead), "b t c (s m) -> b (t s) c m", m=config.num_outputs)
            forecast = forecast + steps[:, : config.horizon]
        return forecast

    def _tokens(
        self, x: Tensor, mask: Tensor | None, future: Tensor | None, historic: Tensor | None, static: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, T, C, D] of past and horizon, and which of them are real (None: all)."""
        config = self.config
        ahead = config.patch_length + (config.segments - 1) * config.patch_stride - config.lookback  # steps to pad
        whole = self.embed_lookback(x.mT)[:, None]
        tokens = self.embed(self._patches(x[..., None], ahead, config.segments)) + whole
        token_mask = None
        if mask is not None or ahead:
            observed = torch.ones_like(x) if mask is None else mask.to(x.dtype)
            observed = self._patches(observed[..., None], ahead, config.segments)
            tokens = tokens + self.embed_missing(1.0 - observed)
            token_mask = None if mask is None else observed.any(-1)
        else:
            # A gradient of zero instead of none: data-parallel training waits for that of every parameter.
            tokens = tokens + 0.0 * self.embed_missing.weight.sum()
        if historic is not None and config.historic_size:
            tokens = tokens + self.embed_historic(self._patches(historic, ahead, config.segments))
        if future is not None and config.future_size:
            known = self._patches(future[:, : config.lookback], ahead, config.segments)
            coming = self._patches(future[:, config.lookback :], 0, config.future_segments)
            later = self.embed_future(coming) + self.future_token + whole
            tokens = torch.cat([tokens + self.embed_future(known), later], dim=1)
            if token_mask is not None:
                token_mask = torch.cat([token_mask, token_mask.new_ones(later.shape[:3])], dim=1)
        if config.individual_channels is not None:
            tokens = tokens + self.embed_channel
        if static is not None and config.static_size:
            tokens = tokens + self.embed_static(static)
        return tokens, token_mask

    def _patches(self, x: Tensor, ahead: int, count: int) -> Tensor:
        """Cut [B, L, C, F] into `count` patches after padding `ahead` zeros: [B, T, C, P·F]."""
        config = self.config
        length = config.patch_length + (count - 1) * config.patch_stride
        x = F.pad(x, (0, 0, 0, 0, ahead, max(0, length - ahead - x.shape[1])))
        patches = x[:, :length].unfold(1, config.patch_length, config.patch_stride)
        return rearrange(patches, "b t c f p -> b t c (p f)")


def location_scale(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the observed steps, [B, 1, C]; x holds zeros at the others."""
    if mask is None:
        location = x.mean(1, keepdim=True)
        variance = (x - location).square().mean(1, keepdim=True)
    else:
        count = mask.sum(1, keepdim=True).clamp(min=1)
        location = x.sum(1, keepdim=True) / count
        variance = ((x - location).masked_fill(~mask, 0.0)).square().sum(1, keepdim=True) / count
    return location.detach(), (variance + 1e-5).sqrt().detach()
