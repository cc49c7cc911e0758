"""The forecasting network: a linear path from look-back to horizon, and an MVPA path over patch tokens added to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from einops import rearrange
from torch import Tensor, nn

from mvpa_ts.blocks import zeroed
from mvpa_ts.forecasting.network.bounds import Bounded, checked_bounds
from mvpa_ts.forecasting.network.configuration import ForecastingConfig
from mvpa_ts.forecasting.network.fitted import FittedRegressions
from mvpa_ts.forecasting.network.mixing import ChannelMixing, FeatureMaps
from mvpa_ts.forecasting.network.patches import PatchEncoder
from mvpa_ts.forecasting.network.regressions import Regressed, RegressionShares, carried, regress
from mvpa_ts.forecasting.network.window import Window, check_channels, check_window


class ForecastingNetwork(nn.Module):
    """Forecast all channels of a window at once.

    The window is normalised per channel; a linear map from look-back to horizon, shared by the channels, gives the
    base forecast. An encoder of bidirectional MVPA blocks over patch tokens (segments × channels) adds to it. Both
    start at zero, so that training departs from the window's mean.

    Parameters
    ----------
    config : ForecastingConfig
    location_outputs : tuple of int, optional
        Outputs that are levels of the series, for distributions whose other parameters do not move with it. By default
        all are, as quantiles.

    Raises
    ------
    ValueError
        `location_outputs` names an output that does not exist, or some are no levels and ``"bounds"`` are to be kept.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts import ForecastingConfig, ForecastingNetwork
    >>> network = ForecastingNetwork(ForecastingConfig(horizon=24, lookback=96))
    >>> network(torch.randn(8, 96, 7)).shape  # 7 channels; any number will do
    torch.Size([8, 24, 7, 1])
    """

    def __init__(self, config: ForecastingConfig, location_outputs: tuple[int, ...] | None = None) -> None:
        super().__init__()
        if not set(location_outputs or ()) <= set(range(config.num_outputs)):
            raise ValueError(
                f"location_outputs must be None or numbers of the {config.num_outputs} outputs (num_outputs), counted "
                f"from 0, got {location_outputs}"
            )
        if location_outputs is not None and "bounds" in config.per_channel:
            raise ValueError("bounds in per_channel need location_outputs=None: else not every output is a level")
        self.config, self.location_outputs = config, location_outputs
        outputs = config.horizon * config.num_outputs
        # From zero (the window's mean) rather than at random: the noise of a random start outlives a short training.
        self.linear = zeroed(nn.Linear(config.lookback, outputs))
        if (channels := config.channels_with("matrix")) is not None:
            self.corrections = nn.Parameter(torch.zeros(channels, config.lookback, outputs))
        if config.cycle_length is not None:
            self.cycle = nn.Parameter(torch.zeros(config.cycle_length, config.channels_with("cycle") or 1))
        if config.normalise == "reverting":
            self.reversion = nn.Parameter(torch.zeros(config.horizon))
        if (channels := config.channels_with("bounds")) is not None:
            widest = torch.full((channels,), torch.finfo(torch.float32).max)
            self.lower = nn.Buffer(-widest)
            self.upper = nn.Buffer(widest)
        self.encoder = PatchEncoder(config) if config.num_layers else None
        self.regressions = RegressionShares(config.horizon) if config.reads_regressions else None
        # Regressions on all rows read no features.
        fits = config.reads_regressions and not any(config.feature_sizes)
        self.fitted = FittedRegressions(config.channels_with("vectors")) if fits else None
        self.mixing = None
        if config.mixing_heads:
            self.mixing = ChannelMixing(
                config.mixing_heads,
                config.lookback,
                outputs,
                max_channels=config.max_channels,
                channel_distance=config.channel_distance,
                channels=config.channels_with("vectors"),
                coordinates=config.position_size,
            )
        if self.reads_effects:
            self.future_effects = nn.Parameter(torch.zeros(config.feature_sizes.future))
        self.features = nn.ModuleDict()
        channels = config.channels_with("vectors")
        for name, steps in (("future", config.lookback + config.horizon), ("historic", config.lookback)):
            size = steps * getattr(config.feature_sizes, name)  # numbers of a channel over a window
            if not size or "maps" not in config.covariates:
                continue
            # Zero, like all of the linear path.
            self.register_parameter(f"{name}_map", nn.Parameter(torch.zeros(size, outputs)))
            if "channels" in config.covariates and channels is not None:
                self.features[name] = FeatureMaps(size, outputs, channels)

    @property
    def unbounded(self) -> bool:
        """Whether the network has room for bounds, and none were set yet."""
        if "bounds" not in self.config.per_channel:
            return False
        widest = torch.finfo(torch.float32).max
        return bool((self.lower <= -widest).all() and (self.upper >= widest).all())

    @property
    def reads_effects(self) -> bool:
        """Whether effects of covariates at the same step are subtracted from what is read and added to the forecast."""
        config = self.config
        return "effects" in config.covariates and config.feature_sizes.future > 0

    @torch.no_grad()
    def set_bounds(self, lower: Tensor, upper: Tensor) -> None:
        """Keep the forecasts of each channel between two numbers; a new network has the widest bounds.

        Parameters
        ----------
        lower, upper : Tensor, shape (C,)
            In the units of the windows; infinite means no bound.

        Raises
        ------
        ValueError
            The network has no bounds, or these are not C pairs with the smaller one first.

        Examples
        --------
        >>> import torch
        >>> from mvpa_ts import ForecastingConfig, ForecastingNetwork
        >>> config = ForecastingConfig(horizon=24, lookback=96, num_channels=2, per_channel=("bounds",))
        >>> network = ForecastingNetwork(config)
        >>> network.set_bounds(torch.zeros(2), torch.tensor([1.0, torch.inf]))
        >>> forecast = network(torch.randn(8, 96, 2))
        >>> bool(forecast.min() >= 0), bool(forecast[:, :, 0].max() <= 1)
        (True, True)
        """
        if "bounds" not in self.config.per_channel:
            raise ValueError("set_bounds needs a network with 'bounds' in per_channel; this network has none")
        lower, upper = checked_bounds(lower, upper, self.lower)
        self.lower.copy_(lower)
        self.upper.copy_(upper)

    @contextmanager
    def bounded_by(self, lower: Tensor | float, upper: Tensor | float) -> Iterator[None]:
        """Other bounds for a while, as for windows in other units; nothing changes in a network without bounds."""
        if "bounds" not in self.config.per_channel:
            yield
            return
        kept = self.lower.clone(), self.upper.clone()
        self.set_bounds(*(torch.as_tensor(bound).expand_as(kept[0]) for bound in (lower, upper)))
        try:
            yield
        finally:
            self.set_bounds(*kept)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        phase: Tensor | None = None,
        future: Tensor | None = None,
        historic: Tensor | None = None,
        static: Tensor | None = None,
        series: Tensor | None = None,
        positions: Tensor | None = None,
        units: Tensor | None = None,
    ) -> Tensor:
        """Forecast the horizon of each window.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Look-back windows.
        mask : bool Tensor, shape (B, L, C), optional
            True = observed. What is stored elsewhere does not matter. The linear path reads what remains of the value
            before a gap; where the end is missing, it reads its own forecast of it.
        phase : integer Tensor, shape (B,) or (B, L + h), optional
            Position in the cycle of the first step, or of each step (needed where a clock was changed or rows are
            missing). Taken modulo `cycle_length`.
        future : Tensor, shape (B, L + h, C, F), optional
        historic : Tensor, shape (B, L, C, X), optional
        static : Tensor, shape (C, S), optional
            Exogenous features known ahead, of the past, and constant.
        series : integer Tensor, shape (C,), optional
            Which of the learnt vectors each channel has; −1 is a series that was not in the training. By default
            the channels are those of the training; if their number differs, all are new.
        positions : Tensor, shape (C, position_size), optional
        units : Tensor, shape (C, 2), optional
            Mean and deviation of each channel over its series, by which heads compare channels; NaN if unknown. Pass
            zeros and ones for series that were standardised. By default those of each window are taken, which hide how
            much of one channel arrives in another, and a window that varies by less than 0.003 counts as one that
            hardly varies.

        Returns
        -------
        Tensor, shape (B, h, C, m)
            Several outputs that all are levels are quantiles, the smallest first.

        Raises
        ------
        ValueError
            The window length, the features or the phase do not fit the configuration.
        """
        check_window(self.config, self.linear.weight, x, mask, phase, future, historic, static)
        check_channels(self.config, x.shape[2], series, positions, units)
        units, positions = (None if tensor is None else tensor.to(x.dtype) for tensor in (units, positions))
        x, mask = self._observed(x, mask)
        phases = None
        if self.config.cycle_length is not None and phase is not None:
            phases = phase_of_steps(phase, self.config.lookback + self.config.horizon) % self.config.cycle_length
        zero = x.new_zeros(1, 1, 1)
        window = Window(x, mask, phases, future, historic, static, series, positions, units, zero, zero + 1.0)
        effects, cycle = self.effects(x, mask, future, units), None if phases is None else self.cycle[phases]
        window = window.less(effects)
        read, regressed = window.x, None
        if self.regressions is not None and not self.regressions.off:
            regressed = regress(window.x, mask, units, self.config.horizon)
        window = window.normalised() if self.config.normalise else window
        window = window.less(cycle)
        attended, scores = self._attended(window, regressed)
        window = self._filled(window)
        forecast = window.in_units(self._moved(self._own_past(window) + attended, cycle), self._levels(x))
        forecast = forecast + self._other_channels_and_features(window) - self._return_to_zero(window)
        if self.config.num_outputs > 1 and self.location_outputs is None:
            # Quantiles that cross change places in training, so that none has a column of its own. Of quantiles that
            # are equal each keeps its own gradient; a stable sort is not in ONNX.
            exported = torch.onnx.is_in_onnx_export()
            forecast = (forecast.sort(dim=-1) if exported else forecast.sort(dim=-1, stable=True)).values
        if self.regressions is not None:
            moved = self.regressions(forecast[..., self.middle], regressed, scores)
            forecast = forecast + moved[..., None] * self._levels(moved)
        if self.fitted is not None and not self.fitted.off:
            middle = forecast[..., self.middle]
            moved, width = self.fitted(middle, read, mask, units, series)
            narrower = (width - 1.0) * (forecast - middle[..., None])
            forecast = forecast + (moved[..., None] + narrower) * self._levels(moved)
        forecast = self._moved(forecast, effects)
        if "bounds" in self.config.per_channel:
            forecast = Bounded.apply(forecast, self.lower[:, None], self.upper[:, None])
        return forecast

    def effects(self, x: Tensor, mask: Tensor | None, future: Tensor | None, units: Tensor | None) -> Tensor | None:
        """What covariates known ahead do at the same step, in the units of x, [B, L + h, C]; None without any.

        Arguments are those of `forward`; x is zero where nothing was observed.
        """
        if not self.reads_effects or future is None:
            return None
        effects = future @ self.future_effects
        if not self.config.normalise:
            return effects
        window = Window(x, mask, None, future, None, None, None, None, units, x.new_zeros(1, 1, 1), x.new_ones(1, 1, 1))
        return effects * window.series_scale(window.own_units()[1])

    def _observed(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The window with zeros where nothing was observed, and the mask; None if all was."""
        # Check for an all-true mask only on the CPU. On a GPU this would wait for the device, and a compiled graph
        # cannot branch on data.
        quick = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if mask is None or (quick and bool(mask.all())):
            return x, None
        return x.masked_fill(~mask, 0.0), mask

    def _filled(self, window: Window) -> Window:
        """The window with its gaps filled: by the last value, at the end by what the linear path forecasts there."""
        if window.mask is None:
            return window
        x, last = carried(window.x, window.mask)
        end = last[:, -1:]
        steps = torch.arange(x.shape[1], device=x.device)[:, None]
        shifted = window._replace(x=x.gather(1, (steps - steps[-1] + end).clamp(min=0)))
        ahead = self._own_past(shifted)[..., self.middle].detach()
        # What is missing beyond the horizon of the last value repeats the last forecast.
        forecast = ahead.gather(1, (steps - end - 1).clamp(0, self.config.horizon - 1))
        return window._replace(x=torch.where((steps > end) & (end >= 0), forecast, x))

    def _own_past(self, window: Window) -> Tensor:
        """The linear path's forecast from each channel's own look-back, [B, h, C, m]."""
        read = window.x
        forecast = self.linear(read.mT)
        if "matrix" in self.config.per_channel:
            forecast = forecast + torch.einsum("blc,clk->bck", read, self.corrections)
        return self._by_step(forecast)

    def _attended(self, window: Window, regressed: Regressed | None) -> tuple[Tensor | float, Tensor | float]:
        """What the attention path adds to the forecast [B, h, C, m], and to the regressions' scores; 0 without."""
        if self.encoder is None:
            return 0.0, 0.0
        read = None
        if regressed is not None:
            # As the tokens are: in units of the window, the cycle aside.
            forecasts = (regressed.forecasts - window.location.mT[..., None]) / window.scale.mT[..., None]
            read = torch.cat([forecasts.flatten(2), regressed.evidence], 2)
        added: tuple[Tensor, Tensor | float] = self.encoder(
            window.x, window.mask, window.future, window.historic, window.static, read
        )
        return added

    def _other_channels_and_features(self, window: Window) -> Tensor | float:
        """What the linear path reads in other channels and in features, in the units of the forecast, [B, h, C, m]."""
        config, scale, added = self.config, window.scale, []
        if self.mixing is not None:
            scale = window.series_scale(scale)
            heads = self.mixing(
                window.x * (window.scale / scale),
                series=window.series,
                positions=window.positions,
                distances="channel" in config.components,
                vectors="content" in config.components,
            )
            added.append(heads)
        for name, features in (("future", window.future), ("historic", window.historic)):
            if "maps" in config.covariates and features is not None and getattr(config.feature_sizes, name):
                read, shared = rearrange(features, "b t c f -> b c (t f)"), getattr(self, f"{name}_map")
                mapped = self.features[name](read, shared, window.series) if name in self.features else read @ shared
                added.append(mapped)
        return self._by_step(sum(added[1:], added[0])) * scale[..., None] if added else 0.0

    def _return_to_zero(self, window: Window) -> Tensor | float:
        """How far each step returns from the window's mean towards zero, [B, h, C, m]; 0 unless it is learnt."""
        if self.config.normalise != "reverting":
            return 0.0
        return (self.reversion[:, None] * window.location)[..., None] * self._levels(window.x)

    def _moved(self, forecast: Tensor, values: Tensor | None) -> Tensor:
        """The forecast with the horizon's part of `values` [B, L + h, C or 1] added to its levels."""
        if values is None:
            return forecast
        return forecast + values[:, self.config.lookback :, :, None] * self._levels(forecast)

    @property
    def middle(self) -> int:
        """The output that stands for a level of the series: the median, or the first one that is a level."""
        levels = self.location_outputs
        return levels[0] if levels else (self.config.num_outputs - 1) // 2

    def _levels(self, like: Tensor) -> Tensor:
        """1 for outputs that are levels of the series, 0 for other parameters of a distribution, [m]."""
        outputs = range(self.config.num_outputs)
        levels = outputs if self.location_outputs is None else self.location_outputs
        return like.new_tensor([float(output in levels) for output in outputs])

    def _by_step(self, forecast: Tensor) -> Tensor:
        return rearrange(forecast, "b c (h m) -> b h c m", m=self.config.num_outputs)


def phase_of_steps(phase: Tensor, steps: int) -> Tensor:
    """Positions [B, steps] of all steps of each window, counted on where those of the first steps [B] are given."""
    return phase if phase.ndim == 2 else phase[:, None] + torch.arange(steps, device=phase.device)
