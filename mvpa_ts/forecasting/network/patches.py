"""The attention path of the forecasting network: patches to tokens, MVPA over them, features to the horizon."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.blocks import stack_of_whole_windows, zeroed
from mvpa_ts.forecasting.network.configuration import ForecastingConfig
from mvpa_ts.forecasting.network.regressions import CHUNK, FARTHEST, NAMES


class PatchEncoder(nn.Module):
    """Patches to tokens, bidirectional MVPA over segments × channels, features to the horizon.

    A token is the sum of its patch and of its channel's whole look-back, each through a linear map: validation errors
    on ETTh1 and ETTh2 are smaller than with patches alone.

    Tokens also hold the forecasts of regressions in the window and their errors, and say how far each counts.

    Steps ahead with known features become tokens of their own: they attend with the others and each adds its
    stretch of the horizon.

    Parameters
    ----------
    config : ForecastingConfig

    Examples
    --------
    >>> encoder = PatchEncoder(ForecastingConfig(horizon=24, lookback=96))
    >>> windows, read = torch.randn(2, 96, 5), torch.randn(2, 5, 106)  # normalised; of five channels
    >>> added, scores = encoder(windows, None, None, None, None, read)
    >>> added.shape, scores.shape
    (torch.Size([2, 24, 5, 1]), torch.Size([2, 5, 24, 5]))
    """

    def __init__(self, config: ForecastingConfig) -> None:
        super().__init__()
        self.config = config
        D, P, m = config.dim, config.patch_length, config.num_outputs
        self.embed = nn.Linear(P, D)
        self.embed_lookback = nn.Linear(config.lookback, D, bias=False)
        self.embed_missing = nn.Linear(P, D, bias=False)
        if config.feature_sizes.historic:
            self.embed_historic = nn.Linear(P * config.feature_sizes.historic, D, bias=False)
        if (channels := config.channels_with("matrix")) is not None:
            self.embed_channel = nn.Parameter(torch.randn(channels, D) / D**0.5)
        if config.reads_regressions:
            K, steps = len(NAMES), min(config.horizon, FARTHEST)
            self.embed_regressions = nn.Linear(K * steps + 2 * K + 2, D, bias=False)
            self.score_head = zeroed(nn.Linear(config.segments * D, -(-steps // CHUNK) * (K + 1)))
        if config.feature_sizes.static:
            self.embed_static = nn.Linear(config.feature_sizes.static, D, bias=False)
        if config.feature_sizes.future:
            self.embed_future = nn.Linear(P * config.feature_sizes.future, D, bias=False)
            self.future_token = nn.Parameter(torch.randn(D) * 0.02)
            self.future_head = zeroed(nn.Linear(D, config.patch_stride * m))
        distance = {"channel_distance": config.channel_distance, "channel_window": config.channel_window}
        segments = config.segments + config.future_segments
        channel_rows = config.max_channels if config.channel_distance == "absolute" else 2 * config.max_channels - 1
        self.stack = stack_of_whole_windows(config, 2 * segments - 1, channel_rows, **distance)
        self.dropout = nn.Dropout(config.dropout)
        self.head_dropout = nn.Dropout(config.head_dropout)
        self.head = zeroed(nn.Linear(config.segments * D, config.horizon * m))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        future: Tensor | None,
        historic: Tensor | None,
        static: Tensor | None,
        regressed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | float]:
        """Map normalised windows [B, L, C] to an addition to the forecast, [B, h, C, m], and to scores, [B, C, h, K].

        `regressed` [B, C, K·h + evidence] is what regressions in the window gave; without them the scores are 0.
        """
        config = self.config
        # Tokens [B, T, C, D] of past and horizon, and which of them are real (None: all).
        ahead = config.patch_length + (config.segments - 1) * config.patch_stride - config.lookback  # steps to pad
        whole = self.embed_lookback(x.mT)[:, None]
        if regressed is not None:
            whole = whole + self.embed_regressions(regressed)[:, None]
        elif config.reads_regressions:  # turned off; gradients of zero, as below
            unused = (self.embed_regressions.weight, self.score_head.weight, self.score_head.bias)
            whole = whole + 0.0 * sum(parameter.sum() for parameter in unused)
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
        if historic is not None and config.feature_sizes.historic:
            tokens = tokens + self.embed_historic(self._patches(historic, ahead, config.segments))
        if future is not None and config.feature_sizes.future:
            past = self._patches(future[:, : config.lookback], ahead, config.segments)
            horizon = self._patches(future[:, config.lookback :], 0, config.future_segments)
            later = self.embed_future(horizon) + self.future_token + whole
            tokens = torch.cat([tokens + self.embed_future(past), later], dim=1)
            if token_mask is not None:
                token_mask = torch.cat([token_mask, token_mask.new_ones(later.shape[:3])], dim=1)
        if "matrix" in config.per_channel:
            tokens = tokens + self.embed_channel
        if static is not None and config.feature_sizes.static:
            tokens = tokens + self.embed_static(static)
        features = self.head_dropout(self.stack(self.dropout(tokens), token_mask=token_mask))
        of_past, of_horizon = features.split([config.segments, config.future_segments], dim=1)
        read = rearrange(of_past, "b t c d -> b c (t d)")
        forecast = rearrange(self.head(read), "b c (h m) -> b h c m", m=config.num_outputs)
        if config.feature_sizes.future:
            steps = rearrange(self.future_head(of_horizon), "b t c (s m) -> b (t s) c m", m=config.num_outputs)
            forecast = forecast + steps[:, : config.horizon]
        if regressed is None:
            return forecast, 0.0
        scores = rearrange(self.score_head(read), "b c (s k) -> b c s k", k=len(NAMES) + 1)
        return forecast, scores.repeat_interleave(CHUNK, 2)[:, :, : min(config.horizon, FARTHEST)]

    def _patches(self, x: Tensor, ahead: int, count: int) -> Tensor:
        """Cut [B, L, C, F] into `count` patches after padding `ahead` zeros: [B, T, C, P·F]."""
        config = self.config
        length = config.patch_length + (count - 1) * config.patch_stride
        x = F.pad(x, (0, 0, 0, 0, ahead, max(0, length - ahead - x.shape[1])))
        patches = x[:, :length].unfold(1, config.patch_length, config.patch_stride)
        return rearrange(patches, "b t c f p -> b t c (p f)")
