"""The forecaster that is trained once, on made-up series, and forecasts any panel.

Every series is standardised by its own history. Simple forecasts (last value, means, trends, repeated seasons) are made
for the horizon, with the errors that they would have made so far. Tokens of history and horizon attend over time and
over the panel's series. Each step of the forecast is a mixture of the simple ones, plus a correction, with quantiles
around it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.attention.functional import check_floats
from mvpa_ts.attention.module import MVPAttention
from mvpa_ts.blocks import MVPAStack, ParallelBlock, SwiGLU
from mvpa_ts.forecasting.normalisation import location_scale, unit_of_windows
from mvpa_ts.forecasting.pretrained import trend_forecasts
from mvpa_ts.forecasting.pretrained.configuration import BaseConfig
from mvpa_ts.forecasting.pretrained.simple_forecasts import (
    CYCLES,
    NAMES,
    PERIODS,
    SEEN,
    filled,
    seasons_of_panel,
    simple_forecasts,
)

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Quantiles that the network gives."""
ORIGINS = (4, 8, 12, 24, 48, 96)
"""Steps before the end from which the simple forecasts are tried on the history."""
FARTHEST = 2048
"""Steps that simple forecasts look back at, at the most, where the told season is long."""
LEAST_STEPS = 16
"""Observed steps below which a history says too little: the network is trained on this many and more."""
MOST_SERIES = 256
"""Series that attend to one another. Of more, groups of neighbours do, so that time grows with their number only."""

QUICK = ("weights.bias", "error_weight")
"""Parameters that choose among the simple forecasts for all series alike."""
QUICK_RATE = 100.0
"""Their learning rate in finetuning over that of the rest: a hundred small steps would not move the choice."""


class Reading(NamedTuple):
    """What a forecast takes from histories, by window and series, without any weight.

    Parameters
    ----------
    values : Tensor, shape (B, T, C, 2 P)
        Patches of the standardised history and of its mask.
    real : bool Tensor, shape (B, T, C)
        Whether a patch has an observed step.
    simple : Tensor, shape (B, C, K, h)
        Simple forecasts.
    relative : Tensor, shape (B, C, K, chunks)
        Log of their errors so far over the least.
    features : Tensor, shape (B, C, F)
    unit : Tensor, shape (B, C, 1)
        A usual error.
    location, scale : Tensor, shape (B, C)
        Of the history.
    """

    values: Tensor
    real: Tensor
    simple: Tensor
    relative: Tensor
    features: Tensor
    unit: Tensor
    location: Tensor
    scale: Tensor

    def of(self, windows: Tensor) -> Reading:
        """Some of the windows, by their number."""
        return Reading(*(part[windows] for part in self))

    def series(self, start: int, stop: int) -> Reading:
        """Some of the series."""
        return Reading(*(part[:, :, start:stop] for part in self[:2]), *(part[:, start:stop] for part in self[2:]))

    def upside_down(self) -> Reading:
        """What would have been read had all values the other sign."""
        values, mask = self.values.chunk(2, dim=3)
        return self._replace(values=torch.cat([-values, mask], 3), simple=-self.simple, location=-self.location)


def widening(horizon: int, observed: Tensor) -> Tensor:
    """How far quantiles are moved from the median, a factor for each step and series.

    On series of other kinds than those of the training the next steps, and those of short histories, lie outside more
    often than they should. The factors were chosen there (docs/development/forecasting.md).

    Parameters
    ----------
    horizon : int
    observed : Tensor, shape (B, C)
        Observed steps of the histories.

    Returns
    -------
    Tensor, shape (B, horizon, C, 1)
    """
    ahead = torch.arange(horizon, device=observed.device, dtype=torch.float32)
    near, short = 0.2 * torch.exp(-ahead / 3.0), 0.15 * 32.0 / observed.clamp(min=8)
    return 1.0 + near[None, :, None, None] + short[:, None, :, None]


class BaseForecaster(nn.Module):
    """Quantiles of the next steps of every series of a panel.

    Parameters
    ----------
    config : BaseConfig

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.forecasting.pretrained.base import BaseConfig, BaseForecaster
    >>> network = BaseForecaster(BaseConfig(dim=24, num_heads=2, mlp_dim=32, num_layers=1))
    >>> network(torch.randn(2, 100, 5)).shape  # two windows of 100 steps, five series
    torch.Size([2, 64, 5, 9])
    """

    def __init__(self, config: BaseConfig) -> None:
        super().__init__()
        self.config = config
        D, P, K = config.dim, config.patch_length, self.num_simple
        self.history_tokens = config.lookback // P
        self.horizon_tokens = config.horizon // P
        features = len(self.origins) * (K + 1) + 3 * K + 2 * PERIODS + 3
        self.embed_history = nn.Linear(2 * P, D)
        self.embed_simple = nn.Linear(K * P, D, bias=False)
        self.embed_features = nn.Sequential(nn.Linear(features, D), nn.SiLU(), nn.Linear(D, D))
        self.place = nn.Parameter(torch.randn(self.horizon_tokens, D) * 0.1)
        blocks = [
            ParallelBlock(
                MVPAttention(D, config.num_heads, causal=False, channel_distance="signed", beyond="clamp"),
                SwiGLU(D, config.mlp_dim, config.dropout),
                D,
                config.dropout,
            )
            for _ in range(config.num_layers)
        ]
        segments = self.history_tokens + self.horizon_tokens
        self.stack = MVPAStack(blocks, D, time_rows=2 * segments - 1, channel_rows=2 * config.max_channels - 1)
        self.weights = nn.Linear(D, (P // config.chunk_length) * K)
        self.correction = nn.Linear(D, P)
        self.spread = nn.Linear(D, P * (len(LEVELS) - 1))
        self.error_weight = nn.Parameter(torch.tensor(2.0))
        nn.init.zeros_(self.weights.weight)
        nn.init.zeros_(self.weights.bias)
        nn.init.zeros_(self.correction.weight)
        nn.init.zeros_(self.correction.bias)
        nn.init.normal_(self.spread.weight, std=1e-3)
        scores = torch.special.ndtri(torch.tensor(LEVELS))
        steps = torch.diff(scores).expm1().log()  # softplus gives the distances of a normal distribution
        with torch.no_grad():
            self.spread.bias.copy_(steps.repeat(P))

    @property
    def num_simple(self) -> int:
        """Number of simple forecasts that are weighed."""
        return len(NAMES) + len(trend_forecasts.NAMES)

    @property
    def origins(self) -> tuple[int, ...]:
        """Steps before the end from which simple forecasts are tried; with as much history before as after."""
        return tuple(back for back in ORIGINS if 2 * back <= self.config.lookback)

    @property
    def farthest(self) -> int:
        """Steps of history that are read at the most: `FARTHEST`, or the look-back of a network that reads more."""
        return max(FARTHEST, self.config.lookback)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        ordered: bool = False,
        season: int | Tensor | None = None,
    ) -> Tensor:
        """Forecast `horizon` steps.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Histories that end at the same step. The last `lookback` steps are read. Where the told season is too long
            for them, simple forecasts read six of it, at most `FARTHEST` steps.
        mask : bool Tensor, shape (B, L, C), optional
            True = observed. What is stored elsewhere does not matter.
        ordered : bool, default False
            Whether neighbouring series belong together, as sensors along a line do: then the channel term of the
            attention counts as well.
        season : int, or Tensor of shape (B,), optional
            Steps of the season that the calendar gives, such as 288 of every 5 minutes: it is tried among others. The
            history must hold it once; one that is found in the history must be there nearly twice. 0 is none.

        Returns
        -------
        Tensor, shape (B, h, C, Q)
            Quantiles `LEVELS`, in the units of x.
        """
        if x.ndim != 3 or 0 in x.shape:
            raise ValueError(f"x must be [B, L, C] with no empty axis, got shape {tuple(x.shape)}")
        check_floats("x", x, self.correction.weight)
        if mask is None:
            mask = torch.ones_like(x, dtype=torch.bool)
        elif mask.dtype != torch.bool or mask.shape != x.shape:
            raise ValueError(
                f"mask must be a bool tensor of shape {tuple(x.shape)}, got {mask.dtype} of {tuple(mask.shape)}"
            )
        reading = self.read(x, mask, season)
        forecast = self.forecast(reading, ordered=ordered)
        if self.training:
            return forecast
        # Series upside down are forecast upside down: the mean of both is a little better.
        forecast = 0.5 * (forecast - self.forecast(reading.upside_down(), ordered=ordered).flip(3))
        middle = forecast[..., len(LEVELS) // 2, None]
        return middle + widening(self.config.horizon, mask[:, -self.config.lookback :].sum(1)) * (forecast - middle)

    @torch.no_grad()
    def read(self, x: Tensor, mask: Tensor, season: int | Tensor | None = None) -> Reading:
        """All that the forecast takes from the histories and that no weight changes; arguments as of `forward`."""
        config = self.config
        C, P = x.shape[2], config.patch_length
        told = torch.as_tensor(0 if season is None else season, device=x.device).expand(len(x))
        reach = self._reach(told)
        farthest = self.farthest if torch.compiler.is_compiling() else int(reach.max())
        x, mask = x[:, -farthest:], mask[:, -farthest:]
        mask = mask & (torch.arange(x.shape[1], 0, -1, device=x.device) <= reach[:, None])[..., None]
        padding = max(0, config.lookback - x.shape[1])
        x = F.pad(x.masked_fill(~mask, 0.0), (0, 0, padding, 0))
        mask = F.pad(mask, (0, 0, padding, 0))
        location, scale = location_scale(x, mask, unit_of_windows(x, mask))
        x = ((x - location) / scale).masked_fill(~mask, 0.0)
        rows, observed = (rearrange(part, "b l c -> (b c) l") for part in (x, mask))
        hint = told.repeat_interleave(C)
        read = self._simple(rows, observed, C, hint.long())
        simple, relative, features, unit = (rearrange(part, "(b c) ... -> b c ...", c=C) for part in read)
        x, mask = x[:, -config.lookback :], mask[:, -config.lookback :]
        values = torch.cat(
            [rearrange(part, "b (t p) c -> b t c p", p=P) for part in (x.asinh(), mask.to(x.dtype))], dim=3
        )
        real = rearrange(mask, "b (t p) c -> b t c p", p=P).any(3)
        return Reading(values, real, simple, relative, features, unit, location[:, 0], scale[:, 0])

    def _reach(self, season: Tensor) -> Tensor:
        """Steps that simple forecasts look back at, [B]: six cycles of a season that the look-back cannot show.

        There a longer history helps most (docs/development/forecasting.md). Of shorter seasons it changes little, and
        days of traffic were forecast worse with the days of another part of the week in the mean.
        """
        lookback = torch.full_like(season, self.config.lookback)
        return torch.where(SEEN * season > lookback, (CYCLES * season).clamp(max=self.farthest), lookback)

    def forecast(self, reading: Reading, *, ordered: bool = False) -> Tensor:
        """Quantiles [B, h, C, Q] from what `read` gave; of many series in groups of neighbours, see `MOST_SERIES`."""
        C = reading.simple.shape[1]
        if C <= MOST_SERIES:
            return self._forecast(reading, ordered)
        groups = math.ceil(C / MOST_SERIES)
        ends = [C * group // groups for group in range(groups + 1)]
        return torch.cat([self._forecast(reading.series(*span), ordered) for span in pairwise(ends)], dim=2)

    def _forecast(self, reading: Reading, ordered: bool) -> Tensor:
        config = self.config
        P, K, Q = config.patch_length, self.num_simple, len(LEVELS)
        simple, unit, real = reading.simple, reading.unit, reading.real
        patches = rearrange(simple.asinh(), "b c k (t p) -> b t c (k p)", p=P)
        about = self.embed_features(reading.features)[:, None]
        history = self.embed_history(reading.values) + about
        horizon = self.embed_simple(patches) + about + self.place[:, None]
        real = torch.cat([real, real.new_ones(len(real), self.horizon_tokens, real.shape[2])], dim=1)
        for module in self.stack.modules():
            if isinstance(module, MVPAttention):
                module.components = ("content", "time", "channel") if ordered else ("content", "time")
        out = self.stack(torch.cat([history, horizon], dim=1), token_mask=real)[:, -self.horizon_tokens :]

        logits = rearrange(self.weights(out), "b t c (s k) -> b c k (t s)", k=K)
        share = (logits - self.error_weight * reading.relative).softmax(2)
        middle = (share.repeat_interleave(config.chunk_length, dim=3) * simple).sum(2)
        middle = middle + unit * rearrange(self.correction(out), "b t c p -> b c (t p)")
        steps = unit[..., None] * F.softplus(rearrange(self.spread(out), "b t c (p q) -> b c (t p) q", q=Q - 1))
        half = Q // 2
        above = steps[..., half:].cumsum(3)
        below = -steps[..., :half].flip(3).cumsum(3).flip(3)
        quantiles = middle[..., None] + torch.cat([below, torch.zeros_like(middle)[..., None], above], dim=3)
        return (
            rearrange(quantiles, "b c h q -> b h c q") * reading.scale[:, None, :, None]
            + reading.location[:, None, :, None]
        )

    def _simple(self, x: Tensor, mask: Tensor, channels: int, hint: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Simple forecasts [N, K, h], log errors beside the best [N, K, chunks], features [N, F], a usual error [N, 1].

        The chunks are those of the horizon.
        """
        config, origins = self.config, self.origins
        observed = mask[:, -config.lookback :].to(x.dtype).mean(1, keepdim=True)
        if not torch.compiler.is_compiling():  # a compiled graph has fixed sizes
            # Short histories: what lies before all of them costs time and says nothing.
            begin = min(int(mask.to(torch.uint8).argmax(1).min()), max(0, x.shape[1] - 2 * max(origins)))
            x, mask = x[:, begin:], mask[:, begin:]
        L, h = x.shape[1], config.horizon
        values, first = filled(x, mask)
        periods, strength = seasons_of_panel(values, first, channels, hint)
        # One call for the forecast and for those from earlier origins, whose histories end earlier and begin later.
        backs = torch.tensor((0, *origins), device=x.device)
        earlier = torch.stack([F.pad(values, (back, 0), value=0.0)[:, :L] for back in (0, *origins)])
        starts = (first + backs[:, None]).clamp(max=L - 1)
        room = (L - starts)[..., None]
        # A season that was found must be there nearly twice then, too; one that was told, once.
        needed = torch.where(periods == hint[:, None], 1.0, SEEN) * periods
        within = torch.where(needed <= room, periods, torch.minimum(periods, room // 2).clamp(min=1))
        every = self._forecasts(earlier.flatten(0, 1), starts.flatten(), within.flatten(0, 1)).unflatten(
            0, (len(backs), -1)
        )
        truth = torch.stack(
            [F.pad(values[:, L - back :][:, :h], (0, max(0, h - back)), value=torch.nan) for back in origins]
        )
        errors = (every[1:] - truth[:, :, None]).abs()  # [O, N, K, h]
        enough = L - first >= 2 * backs[1:, None] + 4
        errors = errors.masked_fill(~enough[..., None, None], torch.nan)
        of_chunk = rearrange(errors, "o n k (s p) -> o n k s p", p=config.chunk_length).nanmean(4)
        pooled = of_chunk.nanmean(0)  # [N, K, s]
        overall = errors.nanmean(3)  # [O, N, K]
        total = overall.nanmean(0)[..., None]
        pooled = 0.5 * (total + torch.where(pooled.isnan(), total, pooled))
        best = pooled.amin(1, keepdim=True)
        relative = ((pooled + 1e-3).log() - (best + 1e-3).log()).nan_to_num(0.0)
        unit = best.mean(2).nan_to_num(0.5).clamp(0.02, 2.0)
        features = [
            rearrange((overall + 1e-3).log(), "o n k -> n (o k)"),
            enough.mT.to(x.dtype),
            *(relative[..., place] for place in (0, relative.shape[2] // 2, -1)),
            strength,
            (periods + 1.0).log() / 3.0,
            unit.log(),
            observed,
            (observed + 1e-3).log(),
        ]
        return every[0], relative, torch.cat(features, dim=1).nan_to_num(0.0), unit

    def _forecasts(self, values: Tensor, first: Tensor, periods: Tensor) -> Tensor:
        families = (simple_forecasts, trend_forecasts.trend_forecasts)
        h = self.config.horizon
        return torch.cat([family(values, first, periods, h) for family in families], 1).clamp(-20.0, 20.0)
