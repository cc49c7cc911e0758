"""Quantile forecasts: their loss, their order, and any quantile from the few that a network gives."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor, nn

LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)  # of the intervals of 50, 80, 90 and 95 %
_MOST_STEPS = 100  # of the range of a series that is counted; rounding to smaller ones cannot be seen
_FARTHEST = 2048  # rows that are looked at, the last ones


def checked_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """The levels as a tuple; raises a ValueError unless they increase within (0, 1) and hold the median."""
    try:
        values = tuple(float(level) for level in levels)
    except (TypeError, ValueError):  # no sequence, or no numbers
        values = ()
    rising = all(low < high for low, high in itertools.pairwise(values))
    if not values or not rising or values[0] <= 0.0 or values[-1] >= 1.0:
        raise ValueError(f"levels must be increasing numbers within (0, 1), got {levels!r}")
    if 0.5 not in values:
        raise ValueError(f"levels must hold 0.5, the point forecast, got {values}")
    return values


def pinball_loss(forecast: Tensor, target: Tensor, levels: Tensor) -> Tensor:
    """Loss of each quantile (Koenker and Bassett 1978): ``max(a·e, (a − 1)·e)`` with ``e = target − forecast``.

    Parameters
    ----------
    forecast : Tensor, shape (..., Q)
    target : Tensor, shape (...)
    levels : Tensor, shape (Q,)

    Returns
    -------
    Tensor, shape (..., Q)
    """
    error = target[..., None] - forecast
    return torch.maximum(levels * error, (levels - 1.0) * error)


def start_in_order(outputs: nn.Linear, levels: Tensor) -> None:
    """Start the quantiles at those of a normal distribution around the window's mean.

    Started together they cross, and sorting then hands each of them the errors of another. The last axis of the
    layer's output must be the quantile.
    """
    offsets = torch.special.ndtri(levels.detach().double())
    with torch.no_grad():
        outputs.bias.copy_(offsets.repeat(len(outputs.bias) // len(offsets)))


def quantiles_at(forecast: Tensor, levels: Sequence[float], wanted: Sequence[float]) -> Tensor:
    """Any quantiles from those at hand.

    The quantile function is taken as piecewise linear in the normal score of the level: exact for a normal
    distribution, with normal tails beyond the outermost levels, and increasing, so that nothing crosses.

    Parameters
    ----------
    forecast : Tensor, shape (..., Q)
        In order.
    levels, wanted : sequence of float
        Increasing levels of `forecast`; levels to return. From one level, only that one can be returned.

    Returns
    -------
    Tensor, shape (..., len(wanted))

    Raises
    ------
    ValueError
        There is one level and another is wanted, or one is not within (0, 1).

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.forecasting.quantiles import quantiles_at
    >>> quantiles_at(torch.tensor([-1.0, 0.0, 1.0]), (0.1587, 0.5, 0.8413), (0.5, 0.9772)).round(decimals=2)
    tensor([0., 2.])
    """
    if len(levels) == 1:
        if others := [level for level in wanted if level != levels[0]]:
            others = [round(level, 6) for level in others]
            raise ValueError(f"quantiles {others} need at least two levels to lie between, got {tuple(levels)}")
        return forecast.expand(*forecast.shape[:-1], len(wanted))
    if not all(0.0 < level < 1.0 for level in wanted):
        raise ValueError(f"levels must be numbers within (0, 1), got {list(wanted)}")
    left, share = _places(tuple(levels), tuple(wanted))
    low, high = forecast[..., left], forecast[..., [at + 1 for at in left]]
    return low + forecast.new_tensor(share) * (high - low)


def _places(levels: tuple[float, ...], wanted: tuple[float, ...]) -> tuple[list[int], list[float]]:
    """The level before each wanted one, and the share of the way to the next."""
    score = NormalDist().inv_cdf  # in plain numbers, because ONNX has no inverse of the normal distribution
    left = [min(max(bisect_right(levels, level) - 1, 0), len(levels) - 2) for level in wanted]
    steps = [(score(levels[at]), score(levels[at + 1])) for at in left]
    return left, [(score(level) - low) / (high - low) for level, (low, high) in zip(wanted, steps, strict=True)]


# As `torch.compiler.assume_constant_result` does, which would load the compiler with the package.
_places._dynamo_marked_constant = True  # type: ignore[attr-defined]


def rounded_as_counted(forecast: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """Quantiles [B, h, C, Q] rounded to what a series can be, where it is counted: in at most 100 equal steps.

    The 90 % quantile of pieces sold now and then is a whole piece; below one, a fourth of the values would exceed it.
    Nothing is negative where no value of the history x, [B, L, C], observed where `mask` is True, is.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.forecasting.quantiles import rounded_as_counted
    >>> pieces = torch.tensor([0.0, 2.0, 0.0, 1.0])[None, :, None]
    >>> rounded_as_counted(torch.tensor([0.1, 0.4, 0.9])[None, None, None], pieces, pieces >= 0.0).flatten()
    tensor([0., 0., 1.])
    """
    values = x.masked_fill(~mask, torch.nan)[:, -_FARTHEST:]
    ordered = values.sort(1).values  # NaN come last
    least = ordered[:, :1]
    gaps = ordered.diff(dim=1, append=torch.full_like(least, torch.inf))
    span = (values - least).nan_to_num(0.0).amax(1, keepdim=True)
    # Values that differ by less of their size are the same, but for how numbers are stored.
    step = torch.where(gaps > 1e-5 * ordered.abs(), gaps, torch.inf).amin(1, keepdim=True)
    number = (span / step).round()
    places = (values - least) / span * number
    beside = (places - places.round()).abs().nan_to_num(0.0).amax(1, keepdim=True)
    counted = (number >= 1.0) & (number <= _MOST_STEPS) & (beside < 0.01)
    least, step = least[..., None], (span / number)[..., None]
    rounded = least + ((forecast - least) / step).round() * step
    rounded = torch.where(least >= 0.0, rounded.clamp(min=0.0), rounded)  # less than no piece is none
    return torch.where(counted[..., None], rounded, forecast)
