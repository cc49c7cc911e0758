"""Made-up series of kinds that the pretrained forecaster is not trained on, to choose what should hold elsewhere too.

Each function gives `number` series of `length` steps, [N, T].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g)


def _uniform(g: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=g)


def integrated(number: int, length: int, g: torch.Generator) -> Tensor:
    """ARIMA(1, 1, 1) with a drift and a few large shocks."""
    shocks = _normal(g, number, length + 1) * (1 + 3.0 * (_uniform(g, number, length + 1) < 0.03))
    memory, average = 1.4 * _uniform(g, number) - 0.7, 1.4 * _uniform(g, number) - 0.7
    steps, step = [], torch.zeros(number)
    for t in range(length):
        step = memory * step + shocks[:, t + 1] + average * shocks[:, t]
        steps.append(step)
    return torch.stack(steps, 1).cumsum(1) + 0.2 * _normal(g, number, 1) * torch.arange(length)


def two_states(number: int, length: int, g: torch.Generator) -> Tensor:
    """Threshold autoregression: another rule above zero than below."""
    low, high = 0.3 + 0.6 * _uniform(g, number), -0.9 + 0.6 * _uniform(g, number)
    push = 1.0 + _uniform(g, number)
    values, last = [], _normal(g, number)
    for _ in range(length):
        last = torch.where(last > 0, high * last + push, low * last + 0.8 * push) + 0.5 * _normal(g, number)
        values.append(last)
    return torch.stack(values, 1)


def delayed_growth(number: int, length: int, g: torch.Generator) -> Tensor:
    """A population that its size of two steps ago slows down (Ricker)."""
    rate = 0.6 * (1.2 + 1.2 * _uniform(g, number))
    values = [torch.full((number,), 0.8)] * 2
    for _ in range(length + 20):
        values.append(values[-1] * torch.exp(rate * (1 - values[-2]) + 0.25 * _normal(g, number)))
    return torch.stack(values[-length:], 1)


def changing_variance(number: int, length: int, g: torch.Generator) -> Tensor:
    """GARCH(1, 1), as it is and summed up."""
    variance, values, last = torch.ones(number), [], _normal(g, number)
    for _ in range(length):
        variance = 0.05 + 0.15 * last.square() + 0.8 * variance
        last = variance.sqrt() * _normal(g, number)
        values.append(last)
    x = torch.stack(values, 1)
    return torch.where(_uniform(g, number, 1) < 0.5, x.cumsum(1), x)


def growing_season(number: int, length: int, g: torch.Generator) -> Tensor:
    """Exponential smoothing's model with multiplied errors, trend and season of 12 steps."""
    season, level = list(torch.exp(0.3 * _normal(g, 12, number))), torch.ones(number)
    growth, size = 0.004 * _normal(g, number), 0.02 + 0.1 * _uniform(g, number)
    of_level, of_season = 0.3 * _uniform(g, number), 0.2 * _uniform(g, number)
    values = []
    for t in range(length):
        error = size * _normal(g, number)
        values.append(level * season[t % 12] * (1 + error))
        level = level * (1 + growth) * (1 + of_level * error)
        season[t % 12] = season[t % 12] * (1 + of_season * error)
    return torch.stack(values, 1)


def walking_parts(number: int, length: int, g: torch.Generator) -> Tensor:
    """Level, slope and season of 4 steps that all walk."""
    level, slope, season = _normal(g, number), 0.05 * _normal(g, number), list(_normal(g, 4, number))
    size, values = 0.5 * (0.1 + 0.9 * _uniform(g, number)), []
    for t in range(length):
        slope = slope + 0.03 * _normal(g, number)
        level = level + slope + size * _normal(g, number)
        season[t % 4] = season[t % 4] + 0.1 * _normal(g, number)
        values.append(level + season[t % 4] + 0.3 * _normal(g, number))
    return torch.stack(values, 1)


def arrivals(number: int, length: int, g: torch.Generator) -> Tensor:
    """Counts: of those there some stay, others come, more in some months."""
    stay, rate = 0.2 + 0.7 * _uniform(g, number), 0.2 + 3.0 * _uniform(g, number)
    present, values = torch.poisson(rate / (1 - stay), generator=g), []
    for t in range(length):
        come = torch.poisson(rate * (1 + 0.5 * math.sin(2 * math.pi * t / 12)), generator=g)
        present = torch.binomial(present, stay, generator=g) + come
        values.append(present)
    return torch.stack(values, 1)


def gaussian_process(number: int, length: int, g: torch.Generator) -> Tensor:
    """Matérn kernels, half of them with a periodic one that fades, and noise."""
    time = torch.arange(length, dtype=torch.float64)
    apart, drawn = (time[:, None] - time).abs(), []
    for index in range(8):
        reach, period, noise = (
            math.exp(1 + 3.5 * float(_uniform(g, 1))),
            4 + 30 * float(_uniform(g, 1)),
            0.02 + 0.3 * float(_uniform(g, 1)),
        )
        kernel = (1 + 3**0.5 * apart / reach) * torch.exp(-(3**0.5) * apart / reach)
        periodic = torch.exp(-2 * torch.sin(math.pi * apart / period).square() - apart / (6 * period))
        kernel = kernel + (index % 2) * periodic + (noise + 1e-6) * torch.eye(length)
        normal = torch.randn(length, number // 8, generator=g, dtype=torch.float64)
        drawn.append((torch.linalg.cholesky(kernel) @ normal).mT.float())
    return torch.cat(drawn)


def breaks(number: int, length: int, g: torch.Generator) -> Tensor:
    """Slopes that change at some steps, and a level that jumps."""
    slope, level, values = torch.zeros(number), torch.zeros(number), []
    for _ in range(length):
        slope = torch.where(_uniform(g, number) < 2.5 / length, 0.3 * _normal(g, number), slope)
        level = level + slope + 4.0 * (_uniform(g, number) < 1.5 / length) * _normal(g, number)
        values.append(level + 0.5 * _normal(g, number))
    return torch.stack(values, 1)


def saturation(number: int, length: int, g: torch.Generator) -> Tensor:
    """Growth to a limit, with noise that has a memory."""
    time, error, errors = torch.arange(length), torch.zeros(number), []
    middle, width = length * (0.3 + 1.2 * _uniform(g, number, 1)), length * (0.05 + 0.2 * _uniform(g, number, 1))
    share = torch.sigmoid((time - middle) / width)
    for _ in range(length):
        error = 0.8 * error + 0.03 * _normal(g, number)
        errors.append(error)
    return share * (1 + torch.stack(errors, 1)) + 0.02 * _normal(g, number, length) * (share + 0.1)


KINDS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    make.__name__.replace("_", " "): make
    for make in (integrated, two_states, delayed_growth, changing_variance, growing_season, walking_parts, arrivals,
                 gaussian_process, breaks, saturation)
}  # fmt: skip
