"""The power of each series whose values lie evenly about their mean.

Means, repeated seasons and regressions forecast the mean. Where values are skewed, as those of rain, pollution or sales
are, the median lies elsewhere, and errors grow with the level. A power of such values is even; its quantiles, taken
back, are those of the values.

Legend: B panels, L steps of history, C series, h steps ahead, Q quantiles.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

POWERS = (1.0, 0.5, 0.25, 2.0)
"""Powers that are tried. The square is for what is bounded above, such as speeds on a road."""
_SKEWED = 0.7
"""Skewness from which another power than 1 is looked for. Less is not seen in a forecast."""


class Powers(NamedTuple):
    """An exponent and the unit to raise, both [B, C], of each series; a series whose exponent is 1 stays as it is."""

    exponent: Tensor
    unit: Tensor

    def of(self, x: Tensor) -> Tensor:
        """Values [B, L, C], raised."""
        exponent, unit = self.exponent[:, None], self.unit[:, None]
        return torch.where(exponent == 1.0, x, x.sign() * (x.abs() / unit) ** exponent)

    def undone(self, quantiles: Tensor) -> Tensor:
        """Quantiles [B, h, C, Q] of raised values, in the units of the series."""
        exponent, unit = self.exponent[:, None, :, None], self.unit[:, None, :, None]
        return torch.where(exponent == 1.0, quantiles, quantiles.sign() * quantiles.abs() ** (1.0 / exponent) * unit)


def even_powers(x: Tensor, mask: Tensor) -> Powers:
    """The powers with the least skewness, of series [B, L, C] that are clearly skewed and do not change their sign."""
    number = mask.sum(1).clamp(min=1)
    x = x.masked_fill(~mask, 0.0)
    unit = x.abs().sum(1) / number
    one_sign = (x >= 0.0).all(1) | (x <= 0.0).all(1)
    unit = torch.where(unit > 0.0, unit, 1.0)
    size = x.abs() / unit[:, None]
    skewness = torch.stack([_skewness(size**power, mask, number) for power in POWERS])
    # So much shows by chance in few values.
    least = (2.0 * math.sqrt(6.0) * number.to(x.dtype).rsqrt()).clamp(min=_SKEWED)
    chosen = torch.where(one_sign & (skewness[0] > least), skewness.argmin(0), 0)
    return Powers(x.new_tensor(POWERS)[chosen], unit)


def _skewness(x: Tensor, mask: Tensor, number: Tensor) -> Tensor:
    """Size of the skewness of each series, [B, C]; 0 without a spread."""
    apart = (x - (x * mask).sum(1, keepdim=True) / number[:, None]) * mask
    spread = apart.square().sum(1) / number
    return ((apart**3).sum(1) / number).abs() / spread.clamp(min=1e-12) ** 1.5
