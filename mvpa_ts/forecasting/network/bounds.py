"""Forecasts that stay between two bounds of their channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Bounded(torch.autograd.Function):
    """A clamp whose gradient passes, but for what would push a forecast further past its bound.

    With no gradient at all, a forecast past a bound would never come back; with all of it, a low quantile of what lies
    on the bound would go further down without end.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(forecast: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Clamp [..., C] to bounds that broadcast with it."""
        return forecast.clamp(lower, upper)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        """Keep where the forecast lay past a bound."""
        forecast, lower, upper = inputs
        ctx.save_for_backward(forecast < lower, forecast > upper)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Pass the gradient on, but for what pushes further past a bound."""
        below, above = ctx.saved_tensors
        return gradient.masked_fill((below & (gradient > 0)) | (above & (gradient < 0)), 0.0), None, None


def checked_bounds(lower: Tensor, upper: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of the type and length of `like`, infinite ones as the largest finite numbers.

    Raises ValueError unless there is one pair for each channel, with the smaller one first.
    """
    lower, upper = torch.as_tensor(lower).to(like), torch.as_tensor(upper).to(like)
    shape = tuple(like.shape)
    if lower.shape != shape or upper.shape != shape or not bool((lower <= upper).all()):
        raise ValueError(
            f"lower and upper must have shape {shape} and lower <= upper, got {lower.tolist()} and {upper.tolist()}"
        )
    # Training averages buffers, and an average of infinite ones would be NaN.
    limit = torch.finfo(like.dtype).max
    return lower.clamp(-limit, limit), upper.clamp(-limit, limit)
