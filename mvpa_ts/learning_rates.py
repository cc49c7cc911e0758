"""Learning rates: their cycle, and those of the paths of a forecasting network, which are lower for few windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

_LEAST_SHARE = 0.05  # of the windows that full learning rates would need
# Powers of that share by which their rates fall. With .75, 1 and 1.25 for the linear path six short panels miss by .94,
# .86 and .83 after 1000 steps. But a trend must be learnt, too: fertility has a scaled error of 1.24, 1.40 and 2.25.
_FALL = {"attention": 2.0, "mixing": 2.0}


def on_linear_path(name: str) -> bool:
    """Whether a parameter of a `ForecastingNetwork` belongs to the linear path, cycle and return to zero."""
    return not name.startswith(("encoder.", "mixing."))


def parameter_groups(
    network: nn.Module,
    *,
    learning_rate: float,
    linear_rate: float,
    mixing_share: float = 1.0,
    others: Iterable[nn.Parameter] = (),
    linear: Callable[[str], bool] = on_linear_path,
) -> list[dict[str, Any]]:
    """Groups for an optimiser: the attention path and others, then the linear path with cycle and return to zero.

    The linear path may want a far higher rate: on ETTh1 seventy times that of the attention path. With a share below 1
    of the rate, the heads that read other channels are a third group, see `mixing_share`.
    """
    rates = {"attention": learning_rate, "mixing": mixing_share * learning_rate, "linear": linear_rate}
    paths: dict[str, list[nn.Parameter]] = {path: [] for path in rates}
    paths["attention"] += others
    for name, parameter in network.named_parameters():
        if mixing_share < 1.0 and name.startswith("mixing."):
            paths["mixing"].append(parameter)
        else:
            paths["linear" if linear(name) else "attention"].append(parameter)
    return [{"params": paths[path], "lr": rate, "path": path} for path, rate in rates.items() if paths[path]]


def lower_rates(groups: Iterable[dict[str, Any]], steps: int, windows: int, full_rate_steps: float) -> None:
    """Lower the learning rates of a training that has more than so many steps for each window, in place.

    The attention path learns few windows by heart first, so its rate falls most. The share of windows counts as at
    least a twentieth: with less, a linear path that starts at zero would not come as far as the trend of a series of
    thirty rows.
    """
    share = min(1.0, max(_LEAST_SHARE, full_rate_steps * windows / max(steps, 1)))
    for group in groups:
        group["lr"] *= share ** _FALL.get(group.get("path", ""), 1.0)


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.OneCycleLR:
    """One cycle of the learning rates over that many steps: up for a fifth of them, then down to nearly nothing."""
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        total_steps=steps + 1,
        pct_start=max(0.2, 1.5 / (steps + 1)),  # torch divides by zero where the rise takes one step
    )
