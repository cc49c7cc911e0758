"""Power transform: a skewed series is forecast in the root whose values lie symmetrically about their mean.

Means, repeated seasons and regressions forecast the mean. Where values are skewed, as those of rain, pollution or sales
are, the median lies elsewhere, and errors grow with the level. The quantiles of the root, taken back, are those of the
values.

Legend: B panels, L steps of history, C series, h steps ahead, Q quantiles.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

POWERS = (1.0, 0.5, 0.25)
"""Powers that are tried."""
# Share of zeros above which the fourth root is not tried: it sets them far apart from all other values.
_ZEROS = 0.1
_SKEWED = 0.7  # skewness from which a root is looked for; less changes a forecast little
# Steps whose mean is the level that values are compared with, and observed ones among them at the least.
_LEVEL_STEPS, _LEAST_STEPS = 24, 4


class PowerTransform(NamedTuple):
    """An exponent and a unit, both [B, C]: series are divided by the unit and raised, or stay as they are with 1.

    The unit is negative where the series is.
    """

    exponent: Tensor
    unit: Tensor

    @classmethod
    def fitted(cls, x: Tensor, mask: Tensor) -> PowerTransform:
        """The one that leaves the least skewness to series [B, L, C], where they are skewed and do not change sign.

        Counted are the skewness of the values and that from the level of the steps before: a series that grows is
        skewed by its level alone, one that falls faster than it rises looks skewed the other way without it.
        """
        number = mask.sum(1).clamp(min=1)
        x = x.masked_fill(~mask, 0.0)
        one_sign = (x >= 0.0).all(1) | (x <= 0.0).all(1)
        unit = x.sum(1) / number
        unit = torch.where(unit != 0.0, unit, 1.0)
        raised = [(x / unit[:, None]).abs() ** power for power in POWERS]
        skewness = torch.stack([0.5 * (_skewness(size, mask) + _skewness(*_from_level(size, mask))) for size in raised])
        zeros = ((x == 0.0) & mask).sum(1) / number
        skewness[-1] = skewness[-1].masked_fill(zeros > _ZEROS, torch.inf)
        # So much shows by chance in few values.
        least = (24.0 / number).sqrt().clamp(min=_SKEWED)
        chosen = torch.where(one_sign & (skewness[0] > least), skewness.argmin(0), 0)
        return cls(x.new_tensor(POWERS)[chosen], unit)

    def apply(self, x: Tensor) -> Tensor:
        """Values [B, L, C], raised; negative ones stay negative."""
        exponent, unit = self.exponent[:, None], self.unit[:, None]
        return torch.where(exponent == 1.0, x, x.sign() * (x / unit).abs() ** exponent)

    def inverse(self, quantiles: Tensor) -> Tensor:
        """Quantiles [B, h, C, Q] of raised values, in the units of the series, and on its side of zero."""
        exponent, unit = self.exponent[:, None, :, None], self.unit[:, None, :, None]
        # A root says nothing beyond zero: a power of what lies there would be far from the series.
        size = (quantiles * unit.sign()).clamp(min=0.0)
        return torch.where(exponent == 1.0, quantiles, size ** (1.0 / exponent) * unit)


def _skewness(x: Tensor, mask: Tensor) -> Tensor:
    """Size of the skewness of each series, [B, C]; 0 without a spread."""
    number = mask.sum(1).clamp(min=1)
    deviation = (x - (x * mask).sum(1, keepdim=True) / number[:, None]) * mask
    spread = deviation.square().sum(1) / number
    return ((deviation**3).sum(1) / number).abs() / spread.clamp(min=1e-12) ** 1.5


def _from_level(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """How far values lie from the mean of the steps before, and where there is one."""
    sums = F.pad(torch.stack([x * mask, mask.to(x.dtype)]).cumsum(2), (0, 0, _LEVEL_STEPS + 1, 0))
    total, number = sums[:, :, _LEVEL_STEPS:-1] - sums[:, :, : -_LEVEL_STEPS - 1]
    return x - total / number.clamp(min=1.0), mask & (number >= _LEAST_STEPS)
