"""What the host's losses want of a model: who scales, in which order outputs lie, which of them are locations."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch
from einops import rearrange
from neuralforecast.losses.pytorch import GMM, NBMM, PMM, DistributionLoss, HuberIQLoss, HuberMQLoss, IQLoss, MQLoss
from torch import Tensor, nn

from mvpa_ts.adapters.options import temporarily


def scaled_by_host(loss: nn.Module) -> bool:
    """Whether the loss maps the network's numbers itself, so that only the host can undo a scaling after it.

    True for distributions, whose parameters are no levels, and for implicit quantiles, where the loss adds a layer.
    """
    return bool(loss.is_distribution_output) or isinstance(loss, (IQLoss, HuberIQLoss))


def flattened(output: Tensor, loss: nn.Module) -> Tensor:
    """[B, h, N, m] to the [B, h, N·m] that `loss.domain_map` takes apart.

    Distributions split it into parameters first, all other losses (ISQF and the mixtures too) into series first.
    """
    if isinstance(loss, DistributionLoss) and loss.distribution != "ISQF":
        return rearrange(output, "b h n m -> b h (m n)")
    return rearrange(output, "b h n m -> b h (n m)")


def sorted_quantiles(output: Tensor, loss: nn.Module) -> Tensor:
    """The network's quantiles [B, h, N, Q], which increase, in the order of a multi-quantile loss; others unchanged."""
    if (quantile_levels := levels(loss)) is None:
        return output
    return output.sort(dim=-1, stable=True).values[..., quantile_levels.argsort().argsort()]


def levels(loss: nn.Module) -> Tensor | None:
    """Levels of a multi-quantile loss; None for others."""
    return loss.quantiles if isinstance(loss, (MQLoss, HuberMQLoss)) else None


def asked_levels(level: Any, quantiles: Any) -> dict[str, float]:
    """Quantiles that a call of the host asks for, by the ends of their columns' names; raises ValueError for others."""
    argument, values, most = ("quantiles", quantiles, 1) if level is None else ("level", level, 100)
    if values is None:
        return {}
    right = isinstance(values, Iterable) and not isinstance(values, str)
    if not right or any(not isinstance(value, Real) or not 0 < float(value) < most for value in values):
        raise ValueError(f"{argument} must be a list of numbers between 0 and {most}, got {values!r}")
    values = sorted({float(value) for value in values})
    if argument == "quantiles":
        return {"-median": 0.5, **{f"_ql{value}": value for value in values}}
    below = {f"-lo-{value:g}": round(0.5 - value / 200, 6) for value in reversed(values)}
    return {"-median": 0.5, **below, **{f"-hi-{value:g}": round(0.5 + value / 200, 6) for value in values}}


def as_trained(loss: nn.Module) -> Any:
    """Within a block a call may ask for other quantiles; after it, a later call is answered as before."""
    names = ("q", "quantiles", "output_names", "has_predicted")
    return temporarily(loss, **{name: getattr(loss, name) for name in names if hasattr(loss, name)})


def is_central(loss: nn.Module) -> bool:
    """Whether the middle output is a mean or a median."""
    if (quantile_levels := levels(loss)) is not None:
        return abs(float(quantile_levels.sort().values[(len(quantile_levels) - 1) // 2]) - 0.5) < 1e-3
    return type(loss).__name__ in ("MAE", "MSE", "RMSE", "HuberLoss")  # not a loss of one quantile


def location_outputs(loss: nn.Module) -> tuple[int, ...] | None:
    """Which outputs move with the series' level, and so with its cycle; None where all do."""
    if isinstance(loss, DistributionLoss):
        if loss.distribution == "StudentT":
            return (1,)  # degrees of freedom come first
        if loss.distribution == "ISQF":
            return (loss.outputsize_multiplier - len(loss.quantiles),)  # the lowest knot; the others are increments
        return (0,)
    if isinstance(loss, (PMM, GMM, NBMM)):
        return tuple(range(loss.n_components))
    # darts tells how many outputs it wants; only its distributions have two, a location mostly first.
    return (0,) if loss.outputsize_multiplier == 2 and levels(loss) is None else None


def count_location_scale(loss: nn.Module, location: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The location and scale that give a count distribution room on both sides of the window's mean.

    The host anchors a positive number to them: a negative binomial's mean is ``scale · positive + location`` and a
    Tweedie's ``location · exp(positive)``, so that with mean and standard deviation neither could fall below the mean.
    """
    if isinstance(loss, DistributionLoss) and loss.distribution == "NegativeBinomial":
        return torch.zeros_like(location), location.clamp(min=1.0)
    if isinstance(loss, DistributionLoss) and loss.distribution == "Tweedie":
        return (location / 4).clamp(min=1.0), scale
    if isinstance(loss, NBMM):
        return location.clamp(min=1.0), scale
    return location, scale
