"""The forecasting network: a linear path from look-back to horizon, and an MVPA path over patch tokens added to it."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mvpa_ts.attention.functional import check_floats
from mvpa_ts.forecasting.network.configuration import ForecastingConfig
from mvpa_ts.forecasting.network.mixing import ChannelMixing, FeatureMaps
from mvpa_ts.forecasting.network.patches import PatchEncoder
from mvpa_ts.forecasting.normalisation import location_scale, unit_of_windows


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

    lower: Tensor
    upper: Tensor

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
            if config.phase_weights:
                self.phase_weights = nn.Parameter(torch.zeros(config.cycle_length, 1))
        if config.level_reversion:
            self.reversion = nn.Parameter(torch.zeros(config.horizon))
        if config.bounded_channels is not None:
            widest = torch.full((config.bounded_channels,), torch.finfo(torch.float32).max)
            self.register_buffer("lower", -widest)
            self.register_buffer("upper", widest)
        self.encoder = PatchEncoder(config) if config.num_layers else None
        self.mixing = None
        if config.mixing_heads:
            self.mixing = ChannelMixing(
                config.mixing_heads,
                config.lookback,
                config.horizon * config.num_outputs,
                max_channels=config.max_channels,
                channel_distance=config.channel_distance,
                channels=config.channel_vectors,
                coordinates=config.position_size,
            )
        if self.reads_effects:
            self.future_effects = nn.Parameter(torch.zeros(config.future_size))
        self.features = nn.ModuleDict()
        for name, size in self._covariate_sizes().items() if config.covariate_maps else ():
            outputs = config.horizon * config.num_outputs
            # Zero, like all of the linear path.
            self.register_parameter(f"{name}_map", nn.Parameter(torch.zeros(size, outputs)))
            if config.covariate_heads and config.channel_vectors is not None:
                self.features[name] = FeatureMaps(config.covariate_heads, size, outputs, config.channel_vectors)

    @property
    def unbounded(self) -> bool:
        """Whether the network has room for bounds, and none were set yet."""
        if self.config.bounded_channels is None:
            return False
        widest = torch.finfo(torch.float32).max
        return bool((self.lower <= -widest).all() and (self.upper >= widest).all())

    @property
    def reads_effects(self) -> bool:
        """Whether effects of covariates at the same step are subtracted from what is read and added to the forecast."""
        config = self.config
        return config.covariate_effects and config.covariate_maps and config.future_size > 0

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
        >>> network = ForecastingNetwork(ForecastingConfig(horizon=24, lookback=96, bounded_channels=2))
        >>> network.set_bounds(torch.zeros(2), torch.tensor([1.0, torch.inf]))
        >>> forecast = network(torch.randn(8, 96, 2))
        >>> bool(forecast.min() >= 0), bool(forecast[:, :, 0].max() <= 1)
        (True, True)
        """
        if self.config.bounded_channels is None:
            raise ValueError("set_bounds needs a network with bounded_channels; this network has none")
        expected = (self.config.bounded_channels,)
        lower, upper = torch.as_tensor(lower).to(self.lower), torch.as_tensor(upper).to(self.upper)
        if lower.shape != expected or upper.shape != expected or not bool((lower <= upper).all()):
            raise ValueError(
                f"lower and upper must have shape {expected} and lower <= upper, got {lower.tolist()} "
                f"and {upper.tolist()}"
            )
        # An average of buffers would make NaN of infinite ones.
        limit = torch.finfo(self.lower.dtype).max
        self.lower.copy_(lower.clamp(-limit, limit))
        self.upper.copy_(upper.clamp(-limit, limit))

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
            True = observed. What is stored elsewhere does not matter.
        phase : integer Tensor, shape (B,) or (B, L + h), optional
            Position in the cycle of the first step, or of each step (needed where a clock was changed or rows are
            missing). Taken modulo `cycle_length`.
        future : Tensor, shape (B, L + h, C, F), optional
        historic : Tensor, shape (B, L, C, X), optional
        static : Tensor, shape (C, S), optional
            Exogenous features known ahead, of the past, and constant.
        series : integer Tensor, shape (C,), optional
            Which of the `channel_vectors` each channel has; −1 is a series that was not in the training. By default
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

        Raises
        ------
        ValueError
            The window length, the features or the phase do not fit the configuration.
        """
        self._check(x, mask, phase, future, historic, static)
        self._check_channels(x, series, positions, units)
        config = self.config
        units = None if units is None else units.to(x.dtype)
        # Looked at where that is quick: a GPU would have to be waited for, and a compiled graph holds for any mask.
        quick = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if mask is not None and quick and bool(mask.all()):
            mask = None
        if mask is not None:
            x = x.masked_fill(~mask, 0.0)
        effects = self.effects(x, mask, future, units)
        if effects is not None:
            x = x - effects[:, : config.lookback]
            x = x if mask is None else x.masked_fill(~mask, 0.0)
        location, scale = self._location_scale(x, mask, units)
        x = (x - location) / scale
        cycle, phases = None, None
        if config.cycle_length is not None and phase is not None:
            phases = phase_of_steps(phase, config.lookback + config.horizon) % config.cycle_length
            cycle = self.cycle[phases]  # [B, L + h, C or 1]
            x = x - cycle[:, : config.lookback]
        if mask is not None:
            x = x.masked_fill(~mask, 0.0)  # a missing step is read as the window's mean

        read = x
        if phases is not None and config.phase_weights:
            # A tenth, for an optimiser shall move them that much slower than the matrix.
            read = x * (1.0 + 0.1 * self.phase_weights[phases[:, : config.lookback]])
        forecast = self.linear(read.mT)
        if config.individual_channels is not None:
            forecast = forecast + torch.einsum("blc,clk->bck", read, self.corrections)
        forecast = rearrange(forecast, "b c (h m) -> b h c m", m=config.num_outputs)
        if self.encoder is not None:
            forecast = forecast + self.encoder(x, mask, future, historic, static)
        moving = range(config.num_outputs) if config.location_outputs is None else config.location_outputs
        shifts = forecast.new_tensor([float(output in moving) for output in range(config.num_outputs)])
        if cycle is not None:
            forecast = forecast + cycle[:, config.lookback :, :, None] * shifts
        forecast = forecast * scale[..., None] + location[..., None]
        positions = None if positions is None else positions.to(x.dtype)
        others = self._from_others(x, scale, future, historic, series, positions, units)
        if others is not None:
            forecast = forecast + others
        if config.level_reversion:
            forecast = forecast - (self.reversion[:, None] * location)[..., None] * shifts
        if effects is not None:
            forecast = forecast + effects[:, config.lookback :, :, None] * shifts
        if config.bounded_channels is not None:
            forecast = _Bounded.apply(forecast, self.lower[:, None], self.upper[:, None])
        return forecast

    def effects(self, x: Tensor, mask: Tensor | None, future: Tensor | None, units: Tensor | None) -> Tensor | None:
        """What covariates known ahead do at the same step, in the units of x, [B, L + h, C]; None without any.

        Arguments are those of `forward`; x is zero where nothing was observed.
        """
        if not self.reads_effects or future is None:
            return None
        scale = self._location_scale(x, mask, units)[1]
        if units is not None and self.config.normalise:
            scale = torch.where(~units.isnan().any(1), units[:, 1], scale)
        return (future @ self.future_effects) * scale

    def _location_scale(self, x: Tensor, mask: Tensor | None, units: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each window; without an observed value, the mean of its whole series."""
        if not self.config.normalise:
            return x.new_zeros(()), x.new_ones(())
        if units is None:
            return location_scale(x, mask)
        known = ~units.isnan().any(1)
        location, scale = location_scale(x, mask, torch.where(known, units[:, 1], unit_of_windows(x, mask)))
        if mask is not None:
            location = torch.where(mask.any(1, keepdim=True) | ~known, location, units[:, 0])
        return location, scale

    def _covariate_sizes(self) -> dict[str, int]:
        """Numbers of a channel's features over a window."""
        config = self.config
        sizes = {
            "future": config.future_size * (config.lookback + config.horizon),
            "historic": config.historic_size * config.lookback,
        }
        return {name: size for name, size in sizes.items() if size}

    def _from_others(
        self,
        x: Tensor,
        window_scale: Tensor,
        future: Tensor | None,
        historic: Tensor | None,
        series: Tensor | None,
        positions: Tensor | None,
        units: Tensor | None,
    ) -> Tensor | None:
        """What the linear path reads in other channels and in features, in the units of the forecast, [B, h, C, m]."""
        config = self.config
        scale = window_scale
        if units is not None and self.mixing is not None:
            scale = torch.where(~units.isnan().any(1), units[:, 1], window_scale)
        added = None
        if self.mixing is not None:
            added = self.mixing(
                x * (window_scale / scale),
                series=series,
                positions=positions,
                distances="channel" in config.components and not config.shuffle_channels,
                vectors="content" in config.components,
            )
        if config.covariate_maps:
            for name, features in (("future", future), ("historic", historic)):
                if features is not None and name in self._covariate_sizes():
                    read, shared = rearrange(features, "b t c f -> b c (t f)"), getattr(self, f"{name}_map")
                    mapped = self.features[name](read, shared, series) if name in self.features else read @ shared
                    added = mapped if added is None else added + mapped
        if added is None:
            return None
        added = rearrange(added, "b c (h m) -> b h c m", m=config.num_outputs)
        return added * scale[..., None]

    def _check_channels(self, x: Tensor, series: Tensor | None, positions: Tensor | None, units: Tensor | None) -> None:
        C, config = x.shape[2], self.config
        if series is not None:
            if config.channel_vectors is None:
                raise ValueError("series needs a network with channel_vectors; this network has none: leave series out")
            if series.shape != (C,) or series.is_floating_point():
                raise ValueError(
                    f"series must be an integer tensor of shape {(C,)}, got {series.dtype} of {tuple(series.shape)}"
                )
        size = config.position_size
        if (positions is None) != (size == 0) or (positions is not None and positions.shape != (C, size)):
            found = None if positions is None else tuple(positions.shape)
            raise ValueError(f"positions must be {(C, size) if size else None} (position_size is {size}), got {found}")
        config.check_cost("position_size", C)
        if positions is not None and not torch.compiler.is_compiling() and not bool(positions.isfinite().all()):
            raise ValueError(f"positions must be finite, got {positions.tolist()}")
        if units is not None and units.shape != (C, 2):
            raise ValueError(f"units must have shape {(C, 2)}, got {tuple(units.shape)}")

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
        if x.ndim != 3 or x.shape[1] != config.lookback or 0 in x.shape:
            raise ValueError(
                f"x must be [B, L, C] with L = lookback = {config.lookback} and no empty axis, got shape "
                f"{tuple(x.shape)}"
            )
        check_floats("x", x, self.linear.weight)
        B, L, C = x.shape
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape):
            raise ValueError(
                f"mask must be a bool tensor of shape {tuple(x.shape)}, got {mask.dtype} of {tuple(mask.shape)}"
            )
        if config.cycle_length is not None:
            if phase is None:
                raise ValueError(f"phase must be given, because the network has a cycle of {config.cycle_length} steps")
            shapes = (B,), (B, L + config.horizon)
            if phase.shape not in shapes or phase.is_floating_point():
                raise ValueError(
                    f"phase must be an integer tensor of shape {shapes[0]} or {shapes[1]}, got {phase.dtype} of "
                    f"{tuple(phase.shape)}"
                )
        for name in ("cycle_channels", "individual_channels", "bounded_channels"):
            if getattr(config, name) not in (None, C):
                raise ValueError(f"x must have {name} = {getattr(config, name)} channels, got {C}")
        for name, tensor, shape in (
            ("future", future, (B, L + config.horizon, C, config.future_size)),
            ("historic", historic, (B, L, C, config.historic_size)),
            ("static", static, (C, config.static_size)),
        ):
            found = None if tensor is None else tuple(tensor.shape)
            if found != shape and (shape[-1] or found is not None):
                raise ValueError(f"{name} must have shape {shape}, got {found}: {name}_size is {shape[-1]}")
            if tensor is not None:
                check_floats(name, tensor, self.linear.weight)


def phase_of_steps(phase: Tensor, steps: int) -> Tensor:
    """Positions [B, steps] of all steps of each window, counted on where those of the first steps [B] are given."""
    return phase if phase.ndim == 2 else phase[:, None] + torch.arange(steps, device=phase.device)


class _Bounded(torch.autograd.Function):
    """A clamp whose gradient passes, but for what would push a forecast further past its bound.

    With no gradient at all, a forecast past a bound would never come back; with all of it, a low quantile of what lies
    on the bound would go further down without end.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(forecast: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        return forecast.clamp(lower, upper)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        forecast, lower, upper = inputs
        ctx.save_for_backward(forecast < lower, forecast > upper)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        below, above = ctx.saved_tensors
        return gradient.masked_fill((below & (gradient > 0)) | (above & (gradient < 0)), 0.0), None, None
