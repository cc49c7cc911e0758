"""The forecaster that is trained once and forecasts any panel.

Every series is standardised by its own history. Simple forecasts (last value, means, trends, repeated seasons) and
regressions on neighbours and leaders are made for the horizon, with the errors that they would have made so far. Tokens
of history and horizon attend over time and over the panel's series. Each step of the forecast is a mixture of the
simple ones, plus a correction, with quantiles around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.attention.functional import check_floats, check_mask
from mvpa_ts.blocks import SwiGLU, zeroed
from mvpa_ts.forecasting.normalisation import location_scale, unit_of_windows
from mvpa_ts.forecasting.pretrained import relations, simple_forecasts, trend_forecasts
from mvpa_ts.forecasting.pretrained.annual_season import annual_season
from mvpa_ts.forecasting.pretrained.attention import PanelAttention, PanelBlock
from mvpa_ts.forecasting.pretrained.configuration import BaseConfig
from mvpa_ts.forecasting.pretrained.cycle_profile import cycle_profile, cycles_of
from mvpa_ts.forecasting.pretrained.direct_regression import direct_regression
from mvpa_ts.forecasting.pretrained.gaps import between, carried_on, change_since_end, left_alone
from mvpa_ts.forecasting.pretrained.jumps import cleaned, spikes
from mvpa_ts.forecasting.pretrained.layout import ROWS, Layout, layout
from mvpa_ts.forecasting.pretrained.power_transform import PowerTransform
from mvpa_ts.forecasting.pretrained.resolutions import WIDTHS, at_steps, means, widths
from mvpa_ts.forecasting.pretrained.seasons import checked_season, week_of
from mvpa_ts.forecasting.pretrained.simple_forecasts import CYCLES, PERIODS, SEEN, filled, season_shape, season_spread
from mvpa_ts.forecasting.pretrained.travelling import MEMORIES
from mvpa_ts.forecasting.pretrained.trust import trust_in_relations
from mvpa_ts.forecasting.quantiles import quantiles_at

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Quantiles that the network gives."""
ORIGINS = (4, 8, 12, 24, 48, 96)
"""Steps before the end from which the simple forecasts are tried on the history."""
FARTHEST = 2048
"""Steps that simple forecasts look back at, at the most, where the told season is long."""
LONGEST, HORIZONS = 8192, 64
"""Steps that a regression is fitted on, at the most, and horizons: what lies farther back says less of what follows."""
LEAST_STEPS = 16
"""Observed steps below which a history says too little: the network is trained on this many and more."""
MOST_SERIES = 128
"""Series that attend to one another. Of more, groups of neighbours do, so that time grows with their number only."""
QUICK = ("weights.bias", "error_weight", "advantage_weight")
"""Parameters that choose among the simple forecasts for all series alike."""
QUICK_RATE = 100.0
"""Their learning rate in finetuning over that of the rest: a hundred small steps would not move the choice."""
STRONG_SEASON = 0.8
"""Height of a peak of the autocorrelation from which a season is taken away before regressions on other series."""
# Gain of regressions on other series, log of errors, from which means of several steps are not asked.
_CLEARLY = 0.1
_BOUND = 20.0  # in standard deviations
_LEAST_TRIED = 0.7  # of what usual times of a season change: surer ones say little about others
_NORMAL_WIDTH = 2.5631  # standard deviations from the first of `LEVELS` to the last
_TOKENS = 1024  # that go through the network together: they stay in the cache


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
    width : Tensor, shape (B, C, h)
        The same at each step, for intervals.
    location, scale : Tensor, shape (B, C)
        Of the history.
    rows : long Tensor, shape (B, C, C)
        Distances of the series, as rows of a table.
    travelling : Tensor, shape (B, C, M, h)
        Forecasts of what travels, where the series have places; else M is 0.
    trust : Tensor, shape (B, R + M, s)
        Share of each forecast from other series, by what it would have brought so far.
    """

    values: Tensor
    real: Tensor
    simple: Tensor
    relative: Tensor
    features: Tensor
    unit: Tensor
    width: Tensor
    location: Tensor
    scale: Tensor
    rows: Tensor
    travelling: Tensor
    trust: Tensor

    def of(self, windows: Tensor) -> Reading:
        """Some of the windows, by their number."""
        return Reading(*(tensor[windows] for tensor in self))

    def ahead(self) -> Tensor:
        """How far regressions on other series were ahead at the next steps, log of errors, by window, [B]."""
        R = len(relations.NAMES)
        simple, related = self.relative[..., 0].split((self.relative.shape[2] - R, R), 2)
        return (simple.amin(2) - related[..., 1:].amin(2)).mean(1)

    def with_upside_down(self) -> Reading:
        """The same windows, and behind them what would have been read had all values the other sign."""
        values, mask = self.values.chunk(2, dim=3)
        turned = self._replace(
            values=torch.cat([-values, mask], 3), simple=-self.simple, travelling=-self.travelling,
            location=-self.location,
        )  # fmt: skip
        return Reading(*(torch.cat(pair) for pair in zip(self, turned, strict=True)))


class BaseForecaster(nn.Module):
    """Quantiles of the next steps of every series of a panel.

    Parameters
    ----------
    config : BaseConfig

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.forecasting.pretrained.base import BaseConfig, BaseForecaster
    >>> network = BaseForecaster(BaseConfig(dim=24, num_heads=2, mlp_dim=32))
    >>> network(torch.randn(2, 100, 5), horizon=40).shape  # two windows of 100 steps, five series
    torch.Size([2, 40, 5, 9])
    """

    def __init__(self, config: BaseConfig) -> None:
        super().__init__()
        self.config = config
        D, P, K = config.dim, config.patch_length, self.num_simple
        self.history_tokens = config.lookback // P
        features = len(self.origins) * (K + 1) + 3 * K + 2 * PERIODS + 3
        self.embed_history = nn.Linear(2 * P, D)
        self.embed_simple = nn.Linear(K * P, D, bias=False)
        self.embed_features = nn.Sequential(nn.Linear(features, D), nn.SiLU(), nn.Linear(D, D))
        self.place = nn.Parameter(torch.randn(config.most_patches, D) * 0.1)
        time_rows = 2 * (self.history_tokens + config.most_patches) - 1
        self.blocks = nn.ModuleList()
        for kind in config.blocks:
            attention = PanelAttention(D, config.num_heads, time_rows, ROWS if kind == "p" else 0)
            self.blocks.append(PanelBlock(attention, SwiGLU(D, config.mlp_dim), D))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        self.weights = zeroed(nn.Linear(D, (P // config.chunk_length) * K))
        self.correction = zeroed(nn.Linear(D, P))
        self.spread = nn.Linear(D, P * (len(LEVELS) - 1))
        self.error_weight = nn.Parameter(torch.tensor(4.0))
        # A regression on other series counts by how far it was ahead of the best forecast without them.
        self.advantage_weight = nn.Parameter(torch.full((len(relations.NAMES),), 8.0))
        nn.init.normal_(self.spread.weight, std=1e-3)
        scores = torch.special.ndtri(torch.tensor(LEVELS))
        steps = torch.diff(scores).expm1().log()  # softplus gives the distances of a normal distribution
        with torch.no_grad():
            self.spread.bias.copy_(steps.repeat(P))

    @property
    def num_simple(self) -> int:
        """Number of simple forecasts that are weighed."""
        return len(simple_forecasts.NAMES) + len(trend_forecasts.NAMES) + len(relations.NAMES)

    @property
    def origins(self) -> tuple[int, ...]:
        """Steps before the end from which simple forecasts are tried; with as much history before as after."""
        return tuple(back for back in ORIGINS if 2 * back <= self.config.lookback)

    @property
    def farthest(self) -> int:
        """Steps of history that are read at the most."""
        return max(LONGEST, self.config.lookback)

    @property
    def _farthest(self) -> int:  # that simple forecasts read
        return max(FARTHEST, self.config.lookback)

    def reach(self, season: Tensor) -> Tensor:
        """Steps that the forecast of steps reads for each told season: the look-back, or six of a long season."""
        lookback = self.config.lookback
        return torch.where(SEEN * season > lookback, (CYCLES * season).clamp(max=self._farthest), lookback)

    def checked_mask(self, x: Tensor, mask: Tensor | None, horizon: int) -> Tensor:
        """The mask of histories, where NaN are missing without one; raises ValueError for inputs of another kind."""
        # Medians and regressions have no such precision.
        if getattr(x, "dtype", None) in (torch.float16, torch.bfloat16):
            raise ValueError(f"x must be float32 or float64, got {x.dtype}: give x.float()")
        check_floats("x", x, self.correction.weight)
        if x.ndim != 3 or 0 in x.shape:
            raise ValueError(f"x must be [B, L, C] with no empty axis, got shape {tuple(x.shape)}")
        if isinstance(horizon, bool) or not isinstance(horizon, Integral) or horizon < 1:
            raise ValueError(f"horizon must be a whole number of at least 1, got {horizon!r}")
        if mask is None:
            return ~x.isnan()
        check_mask("mask", mask, tuple(x.shape))
        return mask

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        horizon: int = 64,
        positions: Tensor | None = None,
        season: int | Tensor | None = None,
        levels: Sequence[float] = LEVELS,
    ) -> Tensor:
        """Forecast `horizon` steps.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Histories that end at the same step. The last `lookback` steps are read. Where the told season is too long
            for them, simple forecasts read six of it, at most `FARTHEST` steps. So far back means of several steps
            are read, where the horizon is long enough for them. A regression is fitted on up to `LONGEST` steps.
        mask : bool Tensor, shape (B, L, C), optional
            True = observed. What is stored elsewhere does not matter. Without it, NaN are missing.
        horizon : int
        positions : Tensor, shape (C, k), optional
            Coordinates of the series: one for places on a line, two or three for places in space.
        season : int, or Tensor of shape (B,), optional
            Steps of the season that the calendar gives, such as 288 of every 5 minutes: it is tried among others. The
            history must hold it once; one that is found in the history must be there nearly twice. 0 is none.
        levels : sequence of float
            Increasing, within (0, 1). Tails are normal, in the root of a series that is forecast in one.

        Returns
        -------
        Tensor, shape (B, h, C, Q)
            Quantiles `levels`, in the units of x.
        """
        mask, horizon = self.checked_mask(x, mask, horizon), int(horizon)
        C = x.shape[2]
        if positions is not None and (not isinstance(positions, Tensor) or positions.ndim != 2 or len(positions) != C):
            got = positions.shape if isinstance(positions, Tensor) else type(positions)
            raise ValueError(f"positions must be a tensor [C, k] = [{C}, k], got {got}")
        season = season if isinstance(season, Tensor) else checked_season(season) or 0
        seasons = torch.as_tensor(season, device=x.device).expand(len(x))
        alone = torch.zeros_like(mask[:, 0])
        if not (self.training or torch.compiler.is_compiling()):  # a graph is for panels that reach the last step
            # A last value that is far off says no more than a missing one.
            observed = mask[:, -self.farthest :] & ~spikes(x[:, -self.farthest :], mask[:, -self.farthest :])
            stopped = observed.any(2).flip(1).to(torch.uint8).argmax(1)  # steps ago that each panel stopped
            if stopped.any():
                # Nobody knows how it went on since then: that is forecast, too.
                forecast = x.new_empty(len(x), horizon, C, len(levels))
                for steps in stopped.unique().tolist():
                    panels, end = stopped == steps, x.shape[1] - steps
                    forecast[panels] = self(
                        x[panels, :end], mask[panels, :end], horizon=steps + horizon, positions=positions,
                        season=seasons[panels], levels=levels,
                    )[:, steps:]  # fmt: skip
                return forecast
            alone = left_alone(observed, self.reach(seasons))
        # Neighbours of a line stay together where the panel is read in groups.
        along = torch.arange(C) if positions is None or positions.shape[1] > 1 else positions[:, 0].argsort(stable=True)
        groups = along.tensor_split(math.ceil(C / MOST_SERIES))
        # Windows do not see one another: so many go together that memory stays small.
        number = 1 if torch.compiler.is_compiling() else math.ceil(len(x) * len(groups[0]) / MOST_SERIES)
        windows = torch.arange(len(x)).tensor_split(min(number, len(x)))
        forecasts = []
        for group in groups:
            at = None if positions is None else positions[group]
            parts = [(x[batch][..., group], mask[batch][..., group], seasons[batch]) for batch in windows]
            of_windows = [self._of_group(*window, horizon, at, levels) for window in parts]
            forecasts.append(torch.cat(of_windows))
        forecast = torch.cat(forecasts, dim=2)[:, :, along.argsort()]
        if not torch.compiler.is_compiling() and alone.any():
            forecast.movedim(2, 1)[alone] = self(
                x.mT[alone][..., None], mask.mT[alone][..., None], horizon=horizon,
                season=seasons[:, None].expand_as(alone)[alone], levels=levels,
            )[:, :, 0]  # fmt: skip
        return forecast

    def _of_group(
        self, x: Tensor, mask: Tensor, season: Tensor, horizon: int, positions: Tensor | None, levels: Sequence[float]
    ) -> Tensor:
        """Quantiles [B, h, C, Q] of series that attend to one another; arguments as of `forward`."""
        B, L, C = x.shape
        place = layout(None if positions is None else positions.to(x).expand(B, C, -1), B, C, x.device)
        steps = self._farthest if self.training else max(self._farthest, min(self.farthest, HORIZONS * horizon))
        if not torch.compiler.is_compiling():  # what lies before all series costs time and says nothing
            steps = min(steps, L - int(mask.any(2).any(0).to(torch.uint8).argmax()))
        longer, observed = cleaned(x[:, -steps:], mask[:, -steps:])
        transform = PowerTransform.fitted(longer[:, -self._farthest :], observed[:, -self._farthest :])
        longer = transform.apply(longer)
        calendar = self._calendar(longer, observed, season, horizon)
        longer, calendar = longer - calendar[:, : longer.shape[1]], calendar[:, longer.shape[1] :, :, None]
        x, mask = longer[:, -self._farthest :], observed[:, -self._farthest :]
        forecast, share = self._at_one_resolution(x, mask, horizon, place, season)
        if self.training:
            return transform.inverse(_at_levels(forecast + calendar, levels))
        # A graph is for panels that begin with the first step, and knows no share.
        lengths, shares = [longer.shape[1]] * B, [1.0] * B
        if not torch.compiler.is_compiling():
            begin = observed.any(2).to(torch.uint8).argmax(1)
            lengths, shares = (longer.shape[1] - begin).tolist(), share.tolist()
        total, number = forecast.clone(), torch.ones_like(share)
        of_panels = [widths(min(length, x.shape[1]), horizon, self.config.lookback) for length in lengths]
        for width in WIDTHS:
            panels = [i for i in range(B) if shares[i] and width in of_panels[i]]
            if not panels:
                continue
            coarse, _ = self._at_one_resolution(
                *means(x[panels], mask[panels], width), math.ceil(horizon / width), place.of(panels),
                torch.where(season % width == 0, season // width, 0)[panels],
            )  # fmt: skip
            total[panels] += at_steps(coarse, forecast[panels], width)
            number[panels] += 1.0
        mean = total / number[:, None, None, None]
        for length in sorted({length for length in lengths if length > self.config.lookback}):
            if panels := [i for i in range(B) if shares[i] and lengths[i] == length]:
                regression = direct_regression(longer[panels, -length:], observed[panels, -length:], horizon)
                mean[panels] = _moved(mean[panels], *regression)
        # What other series show, they show step by step: where that counts, means and long histories say less.
        forecast = forecast + share[:, None, None, None] * (mean - forecast)
        return transform.inverse(_at_levels(forecast + calendar, levels))

    @staticmethod
    def _calendar(x: Tensor, mask: Tensor, season: Tensor, horizon: int) -> Tensor:
        """What comes again by the calendar, as the told season says, [B, L + h, C]: the year's wave, days and weeks."""
        calendar = x.new_zeros(x.shape[0], x.shape[1] + horizon, x.shape[2])
        if torch.compiler.is_compiling():  # a graph does not look at the season
            return calendar
        for steps in season.unique().tolist():
            panels = season == steps
            history, observed = x[panels], mask[panels]
            if week := week_of(steps):
                calendar[panels] = annual_season(history, observed, horizon, week)
            for cycle in cycles_of(steps):
                remainder = history - calendar[panels, : x.shape[1]]
                calendar[panels] += cycle_profile(remainder, observed, horizon, cycle)
        return calendar

    def _at_one_resolution(
        self, x: Tensor, mask: Tensor, horizon: int, place: Layout, season: int | Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Quantiles [B, h, C, Q], and the share that coarser forecasts may have, [B]."""
        reading = self.read(x, mask, horizon, place, season)
        share = 1.0 - (reading.ahead() / _CLEARLY).clamp(0.0, 1.0)
        if self.training:
            return self.forecast(reading)[:, :horizon], share
        # Series upside down are forecast upside down: the mean of both is a little better.
        reading = reading.with_upside_down()
        at_once = max(1, _TOKENS // (x.shape[2] * (self.history_tokens + horizon // self.config.patch_length)))
        windows = torch.arange(2 * len(x), device=x.device).split(at_once)
        upright, turned = torch.cat([self.forecast(reading.of(batch))[:, :horizon] for batch in windows]).chunk(2)
        return 0.5 * (upright - turned.flip(3)), share

    @torch.no_grad()
    def read(self, x: Tensor, mask: Tensor, horizon: int, place: Layout, season: int | Tensor | None = None) -> Reading:
        """All that the forecast takes from the histories and that no weight changes; arguments as of `forward`."""
        config = self.config
        C, P = x.shape[2], config.patch_length
        hint = torch.as_tensor(0 if season is None else season, device=x.device).expand(len(x))
        reach = self.reach(hint)
        farthest = self._farthest if torch.compiler.is_compiling() else int(reach.max())  # a graph has fixed sizes
        length, padding = x.shape[1], max(0, config.lookback - x.shape[1])
        longer = F.pad(x.masked_fill(~mask, torch.nan), (0, 0, padding, 0), value=torch.nan)
        x, mask = (F.pad(tensor[:, -farthest:], (0, 0, padding, 0)) for tensor in (x, mask))
        mask = mask & (torch.arange(x.shape[1], 0, -1, device=x.device) <= reach[:, None])[..., None]
        x = x.masked_fill(~mask, 0.0)
        location, scale = location_scale(x, mask, unit_of_windows(x, mask))
        x = ((x - location) / scale).masked_fill(~mask, 0.0)
        longer = (longer - location) / scale
        rows, observed, longer = (rearrange(tensor, "b l c -> (b c) l") for tensor in (x, mask, longer))
        steps = math.ceil(horizon / P) * P
        *of_series, trust = self._simple(rows, observed, longer, length, C, hint.repeat_interleave(C), steps, place)
        of_panels = (rearrange(rows, "(b c) ... -> b c ...", c=C) for rows in of_series)
        simple, relative, features, unit, width, travelling = of_panels
        x, mask = x[:, -config.lookback :], mask[:, -config.lookback :]
        patches = [rearrange(tensor, "b (t p) c -> b t c p", p=P) for tensor in (x.asinh(), mask.to(x.dtype))]
        values = torch.cat(patches, dim=3)
        real = rearrange(mask, "b (t p) c -> b t c p", p=P).any(3)
        location, scale = location[:, 0], scale[:, 0]
        return Reading(
            values, real, simple, relative, features, unit, width, location, scale, place.rows, travelling, trust
        )

    def forecast(self, reading: Reading) -> Tensor:
        """Quantiles [B, h, C, Q] from what `read` gave; h is a whole number of patches."""
        config = self.config
        P, K, R, Q = config.patch_length, self.num_simple, len(relations.NAMES), len(LEVELS)
        simple, unit = reading.simple, reading.unit
        T = simple.shape[3] // P
        patches = rearrange(simple.asinh(), "b c k (t p) -> b t c (k p)", p=P)
        about = self.embed_features(reading.features)[:, None]
        values, observed = reading.values, reading.real
        if not torch.compiler.is_compiling():
            # Tokens that no series has cost time and say nothing.
            first = int(observed.any(2).any(0).to(torch.uint8).argmax())
            values, observed = values[:, first:], observed[:, first:]
        history = self.embed_history(values) + about
        later = torch.arange(T, device=simple.device).clamp(max=config.most_patches - 1)
        x = torch.cat([history, self.embed_simple(patches) + about + self.place[later][:, None]], dim=1)
        real = F.pad(observed, (0, 0, 0, T), value=True)
        for index, block in enumerate(self.blocks, 1):  # the last is asked for the horizon only
            x = block(x, real, reading.rows, T if index == len(self.blocks) else None)
        out = self.norm(x).to(simple.dtype)
        with torch.autocast(simple.device.type, enabled=False):
            logits = rearrange(self.weights(out), "b t c (s k) -> b c k (t s)", k=K)
            logits = logits - self.error_weight * reading.relative
            alone, related = reading.relative.split((K - R, R), 2)
            advantage = (alone.amin(2, keepdim=True) - related).clamp(-0.5, 1.5)
            logits = logits + F.pad(self.advantage_weight[:, None] * advantage, (0, 0, K - R, 0))
            share = logits.softmax(2)
            middle = (share.repeat_interleave(config.chunk_length, dim=3) * simple).sum(2)
            middle = middle + unit * rearrange(self.correction(out), "b t c p -> b c (t p)")
            step = torch.arange(middle.shape[2], device=middle.device).clamp(max=reading.trust.shape[2] - 1)
            trust = reading.trust[:, None, :, step].split((R, reading.trust.shape[1] - R), 2)
            for related, of_each in zip((simple[:, :, -R:], reading.travelling), trust, strict=True):
                middle = middle + (of_each * (related - middle[:, :, None])).sum(2)
            spread = rearrange(self.spread(out), "b t c (p q) -> b c (t p) q", q=Q - 1)
            steps = reading.width[..., None] * F.softplus(spread)
            half = Q // 2
            above = steps[..., half:].cumsum(3)
            below = -steps[..., :half].flip(3).cumsum(3).flip(3)
            quantiles = middle[..., None] + torch.cat([below, torch.zeros_like(middle)[..., None], above], dim=3)
            quantiles = rearrange(quantiles, "b c h q -> b h c q")
            return quantiles * reading.scale[:, None, :, None] + reading.location[:, None, :, None]

    def _simple(
        self, x: Tensor, mask: Tensor, longer: Tensor, length: int, channels: int, hint: Tensor, horizon: int,
        place: Layout,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Forecasts [N, K, h], log errors [N, K, chunks], features [N, F], usual errors [N, 1] and [N, h].

        Then what travels, [N, M, h], and the trust in it and in regressions.
        """
        config = self.config
        observed = mask[:, -config.lookback :].to(x.dtype).mean(1, keepdim=True)
        # Short histories: what lies before all of them costs time and says nothing. A graph knows their length alone.
        graph = torch.compiler.is_compiling()
        begin = max(0, x.shape[1] - length) if graph else int(mask.to(torch.uint8).argmax(1).min())
        begin = min(begin, max(0, x.shape[1] - 2 * max(self.origins)))
        x, mask = x[:, begin:], mask[:, begin:]
        values, first, periods, strength = self._completed(x, mask, channels, hint)
        near = min(horizon, max(self.origins))
        # What was not observed is no truth: where a sensor has failed, its last value repeats and would look right.
        counted = values.masked_fill(~mask, torch.nan)
        truth = self._from_origins(counted, near)
        related = self._related(values, mask, first, length, periods, strength, channels, horizon, place)
        # One call for the forecast and for those from earlier origins, whose histories end earlier and begin later.
        if near == horizon:
            forecasts = self._tried(values, first, periods, hint, (0, *self.origins), horizon)
            ahead, past = forecasts[0], forecasts[1:]
        else:
            ahead = self._tried(values, first, periods, hint, (0,), horizon)[0]
            past = self._tried(values, first, periods, hint, self.origins, near)
        R = len(relations.NAMES)
        related, travelling = related.split((R, related.shape[2] - R), 2)
        ahead = torch.cat([ahead, related[0]], 1)
        past = torch.cat([past, related[1:, ..., :near]], 2)
        errors = (past - truth[:, :, None]).abs()  # [O, N, K, near]
        enough = x.shape[1] - first >= 2 * torch.tensor(self.origins, device=x.device)[:, None] + 4
        errors = errors.masked_fill(~enough[..., None, None], torch.nan)
        pooled = rearrange(errors, "o n k (s p) -> o n k s p", p=config.chunk_length).nanmean(4).nanmean(0)
        overall = errors.nanmean(3)  # [O, N, K]
        total = overall.nanmean(0)[..., None]
        pooled = 0.5 * (total + torch.where(pooled.isnan(), total, pooled))  # [N, K, chunks]
        best = pooled.amin(1, keepdim=True)
        relative = ((pooled + 1e-3).log() - (best + 1e-3).log()).nan_to_num(0.0)
        unit = best.mean(2)
        compared = truth.masked_fill(~enough[..., None], torch.nan)
        unit, width = self._usual_errors(unit, counted, longer, periods, compared, horizon)
        features = [
            rearrange((overall + 1e-3).log(), "o n k -> n (o k)"),
            enough.mT.to(x.dtype),
            *(relative[..., chunk] for chunk in (0, relative.shape[2] // 2, -1)),
            strength,
            (periods + 1.0).log() / 3.0,
            unit.log(),
            observed,
            (observed + 1e-3).log(),
        ]
        past = torch.cat([past, travelling[1:, ..., :near]], 2)
        trust = trust_in_relations(past, compared, relative, self.origins, channels, config.chunk_length)
        chunks = horizon // config.chunk_length
        relative = F.pad(relative, (0, chunks - relative.shape[2]), mode="replicate")
        return ahead, relative, torch.cat(features, dim=1).nan_to_num(0.0), unit, width, travelling[0], trust

    def _completed(self, x: Tensor, mask: Tensor, channels: int, hint: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Histories [N, L] without gaps, their first observed step, their seasons and how strong these are."""
        values, first = filled(x, mask)
        if channels > 1 and not (self.training or torch.compiler.is_compiling()):
            values, observed = (rearrange(tensor, "(b c) l -> b c l", c=channels) for tensor in (values, mask))
            values = carried_on(values, observed).flatten(0, 1)
        periods, strength = simple_forecasts.seasons_of_panel(values, first, channels, hint)
        later = torch.arange(x.shape[1], device=x.device) > first[:, None]
        if torch.compiler.is_compiling() or (later & ~mask).any():
            values = between(values, mask, periods)  # in which seasons show better
            periods, strength = simple_forecasts.seasons_of_panel(values, first, channels, hint)
        return values, first, periods, strength

    def _usual_errors(
        self, unit: Tensor, counted: Tensor, longer: Tensor, periods: Tensor, compared: Tensor, horizon: int
    ) -> tuple[Tensor, Tensor]:
        """The best simple forecast's error [N, 1], within limits, and the width of intervals at each step, [N, h].

        `counted` [N, L] and `longer` are histories with NaN where nothing was observed, `compared` [O, N, near] the
        values that forecasts from the origins were compared with.
        """
        near = compared.shape[2]
        change, growth = change_since_end(counted, periods, near, max(self.origins))
        factor = season_spread(longer, torch.where(periods[:, :1] > 1, periods[:, :1], periods[:, -1:]), horizon)
        history, ahead = factor.split([longer.shape[1], factor.shape[1] - longer.shape[1]], 1)
        # Errors were tried at some times of the season, which may be surer than those to come.
        times = self._from_origins(history, near)
        tried = times.masked_fill(compared.isnan(), torch.nan).nanmean((0, 2))[:, None]
        width = torch.where(unit.isnan(), change, unit * growth / tried.nan_to_num(1.0).clamp(min=_LEAST_TRIED))
        unit, width = (error.nan_to_num(0.5, posinf=0.5).clamp(0.02, 2.0) for error in (unit, width))
        return unit, (width * ahead).clamp(min=1e-3)

    def _from_origins(self, x: Tensor, near: int) -> Tensor:
        """So many steps of x [N, L] as a trial from each origin forecasts them, [O, N, near]; NaN beyond the last."""
        trials = (x[:, x.shape[1] - back :][:, :near] for back in self.origins)
        return torch.stack([F.pad(steps, (0, near - steps.shape[1]), value=torch.nan) for steps in trials])

    @staticmethod
    def _tried(
        values: Tensor, first: Tensor, periods: Tensor, hint: Tensor, backs: tuple[int, ...], horizon: int
    ) -> Tensor:
        """Simple forecasts from some steps before the end, [len(backs), N, K, h]."""
        L = values.shape[1]
        offsets = torch.tensor(backs, device=values.device)
        earlier = torch.stack([F.pad(values, (back, 0), value=0.0)[:, :L] for back in backs]).flatten(0, 1)
        starts = (first + offsets[:, None]).clamp(max=L - 1)
        room = (L - starts)[..., None]
        # A season that was found must be there nearly twice then, too; one that was told, once.
        needed = torch.where(periods == hint[:, None], 1.0, SEEN) * periods
        within = torch.where(needed <= room, periods, torch.minimum(periods, room // 2).clamp(min=1)).flatten(0, 1)
        starts = starts.flatten()
        shapes = season_shape(earlier, starts, within.mT[..., None], horizon)
        families = (simple_forecasts.simple_forecasts, trend_forecasts.trend_forecasts)
        forecasts = torch.cat([family(earlier, starts, within, shapes) for family in families], 1)
        return forecasts.clamp(-_BOUND, _BOUND).unflatten(0, (len(backs), -1))

    def _related(
        self, values: Tensor, mask: Tensor, first: Tensor, length: int, periods: Tensor, strength: Tensor,
        channels: int, horizon: int, place: Layout,
    ) -> Tensor:  # fmt: skip
        """Regressions on other series, then what travels, from the end and from all origins, [1 + O, N, R + M, h]."""
        surplus = max(0, values.shape[1] - self.config.lookback)
        values, mask, first = values[:, surplus:], mask[:, surplus:], (first - surplus).clamp(min=0)
        latest = max(0, values.shape[1] - LEAST_STEPS)
        begin = first.view(-1, channels).amin(1).clamp(max=latest)
        # Panels that begin at different steps are read apart, so that none depends on those beside it. In training,
        # where panels of a batch are about as long, that would cost time.
        start = 0 if self.training else min(max(0, values.shape[1] - length), latest)
        starts = [start] if self.training or torch.compiler.is_compiling() else begin.unique().tolist()
        if len(starts) == 1:
            values, mask, first = values[:, starts[0] :], mask[:, starts[0] :], first - starts[0]
            return self._regressions(values, mask, first, periods, strength, channels, horizon, place)
        number = len(relations.NAMES) + (0 if place.places is None else len(MEMORIES))
        forecasts = values.new_empty(1 + len(self.origins), len(values), number, horizon)
        for start in starts:
            panels = begin == start
            rows = panels.repeat_interleave(channels)
            forecasts[:, rows] = self._regressions(
                values[rows, start:], mask[rows, start:], first[rows] - start, periods[rows], strength[rows], channels,
                horizon, place.of(panels),
            )  # fmt: skip
        return forecasts

    def _regressions(
        self, values: Tensor, mask: Tensor, first: Tensor, periods: Tensor, strength: Tensor, channels: int,
        horizon: int, place: Layout,
    ) -> Tensor:  # fmt: skip
        L = values.shape[1]
        tried = max([0, *[back for back in self.origins if 2 * back + 4 <= L]])
        # The season's shape is that before the origins, so that a trial there is fair.
        period = periods[:, :1]
        strong = (strength[:, :1] > STRONG_SEASON) & (2 * period <= (L - tried - first)[:, None])
        usable = torch.where(strong, period, 1)
        shape = season_shape(values[:, : L - tried], first.clamp(max=L - tried - 1), usable, tried + horizon)
        shape = torch.where(strong, shape, 0.0)
        deseasonalised = rearrange(values - shape[:, :L], "(b c) l -> b c l", c=channels)
        observed = rearrange(mask, "(b c) l -> b c l", c=channels)
        forecasts = relations.relation_forecasts(deseasonalised, observed, self.origins, horizon, *place[1:])
        forecasts = rearrange(forecasts, "o b c k h -> o (b c) k h")
        # From origins before the beginning nothing is asked.
        steps = [shape[:, max(0, L - back) :][:, :horizon] for back in (0, *self.origins)]
        return (forecasts + torch.stack(steps)[:, :, None]).clamp(-_BOUND, _BOUND)


def _moved(quantiles: Tensor, regression: Tensor, error: Tensor, certainty: Tensor) -> Tensor:
    """Quantiles [B, h, C, Q] moved towards a regression: both count by their precision, it by its certainty."""
    size = ((quantiles[..., -1] - quantiles[..., 0]) / _NORMAL_WIDTH).clamp(min=1e-9)
    precision = (size / error).square()
    share = certainty[:, None] * precision / (precision + 1.0)
    return quantiles + (share * (regression - quantiles[..., quantiles.shape[3] // 2]))[..., None]


def _at_levels(forecast: Tensor, levels: Sequence[float]) -> Tensor:
    return forecast if tuple(levels) == LEVELS else quantiles_at(forecast, LEVELS, levels)
