"""The windows that a forecasting network reads: what is given, checked against its options, and their own units."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mvpa_ts.attention.functional import check_floats, check_mask
from mvpa_ts.forecasting.network.configuration import ForecastingConfig
from mvpa_ts.forecasting.normalisation import location_scale, unit_of_windows


class Window(NamedTuple):
    """A batch of windows on its way through the network.

    Parameters
    ----------
    x : Tensor, shape (B, L, C)
        Zero where nothing was observed.
    mask : bool Tensor, shape (B, L, C), or None
        None: all was observed.
    phases : integer Tensor, shape (B, L + h), or None
        Place of each step in the cycle.
    future, historic, static, series, positions, units
        As in `ForecastingNetwork.forward`.
    location, scale : Tensor, shape (B, 1, C) or ()
        Of what was read; `in_units` undoes both.
    """

    x: Tensor
    mask: Tensor | None
    phases: Tensor | None
    future: Tensor | None
    historic: Tensor | None
    static: Tensor | None
    series: Tensor | None
    positions: Tensor | None
    units: Tensor | None
    location: Tensor
    scale: Tensor

    def less(self, values: Tensor | None) -> Window:
        """The window without `values` [B, L or more, C or 1]; missing steps stay zero. None takes nothing away."""
        if values is None:
            return self
        x = self.x - values[:, : self.x.shape[1]]
        return self._replace(x=x if self.mask is None else x.masked_fill(~self.mask, 0.0))

    def normalised(self) -> Window:
        """The window with its own mean and deviation taken away."""
        location, scale = self.own_units()
        x = (self.x - location) / scale
        # Zero, the mean, for the tokens; the linear path fills it in (ForecastingNetwork._filled).
        x = x if self.mask is None else x.masked_fill(~self.mask, 0.0)
        return self._replace(x=x, location=location, scale=scale)

    def in_units(self, forecast: Tensor, levels: Tensor) -> Tensor:
        """A forecast [B, h, C, m] of the normalised window in the units of the window; `levels` [m] are 0 or 1."""
        return forecast * self.scale[..., None] + self.location[..., None] * levels

    def own_units(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each window; without an observed value, the mean of its whole series."""
        if self.units is None:
            return location_scale(self.x, self.mask)
        location, scale = location_scale(self.x, self.mask, self.series_scale(unit_of_windows(self.x, self.mask)))
        if self.mask is not None:
            of_window = self.mask.any(1, keepdim=True) | self.units.isnan().any(1)
            location = torch.where(of_window, location, self.units[:, 0])
        return location, scale

    def series_scale(self, scale: Tensor) -> Tensor:
        """Deviation of each channel over its series where it is given, else `scale`."""
        return scale if self.units is None else torch.where(self.units.isnan().any(1), scale, self.units[:, 1])


def check_window(
    config: ForecastingConfig,
    weight: Tensor,
    x: Tensor,
    mask: Tensor | None,
    phase: Tensor | None,
    future: Tensor | None,
    historic: Tensor | None,
    static: Tensor | None,
) -> None:
    """Raise a ValueError if a window, its features or its phase do not fit the configuration or the weights' type."""
    if x.ndim != 3 or x.shape[1] != config.lookback or 0 in x.shape:
        raise ValueError(
            f"x must be [B, L, C] with L = lookback = {config.lookback} and no empty axis, got shape {tuple(x.shape)}"
        )
    check_floats("x", x, weight)
    B, L, C = x.shape
    if mask is not None:
        check_mask("mask", mask, tuple(x.shape))
    if config.cycle_length is not None:
        if phase is None:
            raise ValueError(f"phase must be given, because the network has a cycle of {config.cycle_length} steps")
        shapes = (B,), (B, L + config.horizon)
        if phase.shape not in shapes or phase.is_floating_point():
            raise ValueError(
                f"phase must be an integer tensor of shape {shapes[0]} or {shapes[1]}, got {phase.dtype} of "
                f"{tuple(phase.shape)}"
            )
    for name in ("cycle", "matrix", "bounds"):
        expected = config.channels_with(name)
        if expected is not None and expected != C:  # not "in (None, C)": torch.compile errs there on symbolic sizes
            raise ValueError(f"x must have num_channels = {expected} channels, each with its {name}, got {C}")
    for name, tensor, shape in (
        ("future", future, (B, L + config.horizon, C, config.feature_sizes.future)),
        ("historic", historic, (B, L, C, config.feature_sizes.historic)),
        ("static", static, (C, config.feature_sizes.static)),
    ):
        came = None if tensor is None else tuple(tensor.shape)
        if came != shape and (shape[-1] or came is not None):
            raise ValueError(f"{name} must have shape {shape}, got {came}: feature_sizes.{name} is {shape[-1]}")
        if tensor is not None:
            check_floats(name, tensor, weight)


def check_channels(
    config: ForecastingConfig, C: int, series: Tensor | None, positions: Tensor | None, units: Tensor | None
) -> None:
    """Raise a ValueError if what is said of the C channels does not fit their number or the configuration."""
    if series is not None:
        if "vectors" not in config.per_channel:
            raise ValueError("series needs a network with learnt vectors (per_channel), this has none: leave it out")
        if series.shape != (C,) or series.is_floating_point():
            raise ValueError(f"series must be integers of shape {(C,)}, got {series.dtype} of {tuple(series.shape)}")
    size = config.position_size
    if (positions is None) != (size == 0) or (positions is not None and positions.shape != (C, size)):
        shape = None if positions is None else tuple(positions.shape)
        raise ValueError(f"positions must be {(C, size) if size else None} (position_size is {size}), got {shape}")
    config.check_cost("position_size", C)
    if positions is not None and not torch.compiler.is_compiling() and not bool(positions.isfinite().all()):
        raise ValueError(f"positions must be finite, got {positions.tolist()}")
    if units is not None and units.shape != (C, 2):
        raise ValueError(f"units must have shape {(C, 2)}, got {tuple(units.shape)}")
