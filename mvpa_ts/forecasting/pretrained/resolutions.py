"""Forecasts of means of several steps, which see farther back and ahead, and how they move the forecast of the steps.

The network reads 512 steps and weighs simple forecasts by their errors of at most 96 steps. Of quarters of an hour that
is five days, and a day. Means of 2, 4 and 8 steps show it weeks, without the noise of single steps.

Legend: B panels, C series, L steps of history, h steps ahead, Q quantiles, k steps that are taken together.
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

WIDTHS = (2, 4, 8, 24)
"""Steps that are taken together. All divide a day of hours, of quarters of an hour and of ten minutes."""
_TRIED = 3  # at most so many widths, the largest that the horizon and the history allow
_LEAST_AHEAD, _LEAST_BEFORE = 12, 64  # means that horizon and history must hold


def widths(length: int, horizon: int, lookback: int) -> tuple[int, ...]:
    """Widths for a history of `length` steps; none where the network's look-back holds all of it.

    Examples
    --------
    >>> from mvpa_ts.forecasting.pretrained.resolutions import widths
    >>> widths(600, 48, 512), widths(2048, 480, 512), widths(512, 48, 512)
    ((2, 4), (4, 8, 24), ())
    """
    if length <= lookback:
        return ()
    allowed = [k for k in WIDTHS if k * _LEAST_AHEAD <= horizon and k * _LEAST_BEFORE <= length]
    return tuple(allowed[-_TRIED:])


def means(x: Tensor, mask: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Means of the observed values of each `k` steps, counted from the end, and where there are some, [B, L / k, C]."""
    before = -x.shape[1] % k
    x, mask = (rearrange(F.pad(tensor, (0, 0, before, 0)), "b (l k) c -> b l k c", k=k) for tensor in (x, mask))
    number = mask.sum(2)
    return x.masked_fill(~mask, 0.0).sum(2) / number.clamp(min=1), number > 0


def at_steps(coarse: Tensor, forecast: Tensor, k: int) -> Tensor:
    """A forecast of means, [B, ceil(h / k), C, Q], at each step, [B, h, C, Q].

    Between the centres of the means it is linear. What lies within them is as in the median of `forecast`.
    """
    _, h, C, Q = forecast.shape
    median = rearrange(forecast[..., Q // 2], "b h c -> (b c) 1 h")
    of_steps = F.pad(median, (0, coarse.shape[1] * k - h), mode="replicate")
    change = rearrange(coarse, "b s c q -> (b c) q s") - F.avg_pool1d(of_steps, k)
    change = F.interpolate(change, scale_factor=k, mode="linear", align_corners=False)[..., :h]
    return rearrange(median + change, "(b c) q h -> b h c q", c=C)
