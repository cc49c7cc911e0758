"""Made-up panels for pretraining a forecaster: seasons, trends, walks, noise, counts, regimes, waves, gaps.

Nothing of any real data set is in here but the lengths of usual seasons (7 days, 12 months, 24 hours, …).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

USUAL_SEASONS = (4, 5, 7, 12, 24, 30, 48, 52, 60, 96, 144, 168, 288)


def made_up_panels(number: int, channels: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, bool]:
    """A batch of panels.

    Returns
    -------
    values : Tensor, shape (number, length, channels)
    mask : bool Tensor, shape (number, length, channels)
        True = observed.
    ordered : bool
        Whether neighbouring series of these panels belong together.
    """
    ordered = channels > 2 and _chance(0.25, generator)
    shared = channels > 1 and (ordered or _chance(0.6, generator))
    own = _series(number * channels, length, generator).view(number, channels, length)
    if shared:
        own = _wave(own, generator) if ordered else _mixture(own, generator)
    x = own.flatten(0, 1)
    x = _counts(x, generator)
    x = _limits(x, generator)
    x = _outliers(x, generator)
    x = x * torch.exp(2.0 * _normal((len(x), 1), generator)) + 3.0 * _normal((len(x), 1), generator)
    mask = _gaps(x, generator)
    shape = (number, channels, length)
    return x.view(shape).mT.contiguous(), mask.view(shape).mT.contiguous(), ordered


def _series(N: int, L: int, generator: torch.Generator) -> Tensor:
    """Sums of a trend, up to two seasons and noise, each of many kinds, [N, L]."""
    time = torch.arange(L, dtype=torch.float32)
    x = torch.zeros(N, L)
    # Seasons: random harmonics of a random length, with slowly changing size.
    for order in range(2):
        usual = torch.tensor(USUAL_SEASONS, dtype=torch.float32)[_integers(len(USUAL_SEASONS), (N,), generator)]
        any_length = torch.exp(_uniform((N,), generator) * math.log(80.0)) * 4.0
        period = torch.where(_uniform((N,), generator) < 0.65, usual, any_length)
        harmonics = torch.arange(1, 7, dtype=torch.float32)
        roughness = 0.5 + 2.0 * _uniform((N, 1), generator)
        size = _normal((N, 6), generator) / harmonics**roughness
        phase = 2 * math.pi * _uniform((N, 6), generator)
        angle = 2 * math.pi * time[None, None] * harmonics[:, None] / period[:, None, None] + phase[..., None]
        season = (size[..., None] * torch.sin(angle)).sum(1)
        sharp = (_uniform((N, 1), generator) < 0.15).float()  # a few hours of traffic, a day of sales
        season = season * (1 - sharp) + sharp * torch.exp(2.0 * season.clamp(-3, 2)) / 4.0
        change = 1.0 + 0.4 * (_uniform((N, 1), generator) < 0.4).float() * _smooth(N, L, generator)
        present = (_uniform((N, 1), generator) < (0.75, 0.25)[order]).float()
        x = x + present * season * change
    # Trends: straight, bent, or a smooth curve.
    steep = _normal((N, 1), generator) * (_uniform((N, 1), generator) < 0.4).float() * 2.0
    bend = _integers(L, (N, 1), generator).float()
    x = (
        x
        + steep * (time / L)
        + (_uniform((N, 1), generator) < 0.15).float()
        * _normal((N, 1), generator)
        * 3.0
        * ((time - bend).clamp(min=0.0) / L)
    )
    x = x + (_uniform((N, 1), generator) < 0.3).float() * _smooth(N, L, generator) * 1.5
    # Noise: white, with memory, or a walk; its size may change.
    white = _normal((N, L), generator)
    heavy = (_uniform((N, 1), generator) < 0.15).float()
    white = white * (1 + heavy * (_normal((N, L), generator).abs() * 1.5 - 0.8))
    volatility = torch.exp((_uniform((N, 1), generator) < 0.25).float() * _smooth(N, L, generator))
    memory = torch.where(
        _uniform((N, 1), generator) < 0.5, _uniform((N, 1), generator), 0.9 + 0.1 * _uniform((N, 1), generator)
    )
    kind = _uniform((N, 1), generator)
    coloured = _remembered(white, memory)
    walk = torch.cumsum(white, 1)
    walk = walk / walk.std(1, keepdim=True).clamp(min=1e-3)
    noise = torch.where(kind < 0.35, white, torch.where(kind < 0.75, coloured, 2.0 * walk))
    level = torch.exp(_uniform((N, 1), generator) * 4.0 - 3.0)
    only = _uniform((N, 1), generator) < 0.12  # nothing but noise or a walk: the last value, or the mean
    x = torch.where(only, noise, x + level * volatility * noise)
    # Regimes: a step of the level, or of the season's size.
    at = _integers(L, (N, 1), generator).float()
    x = x + (_uniform((N, 1), generator) < 0.12).float() * (time >= at) * 2.0 * _normal((N, 1), generator)
    growing = _uniform((N, 1), generator) < 0.15  # seasons that grow with the level
    return torch.where(growing, torch.exp(0.5 * x.clamp(-4, 6)), x)


def _mixture(x: Tensor, generator: torch.Generator) -> Tensor:
    """Series [B, C, L] of a panel as mixtures of common ones, some of them late."""
    B, C, L = x.shape
    weights = _normal((B, C, C), generator) / C**0.5 * (_uniform((B, C, C), generator) < 0.5)
    mixed = weights @ x
    delay = _integers(64, (B, C), generator) * (_uniform((B, C), generator) < 0.3)
    place = (torch.arange(L) - delay[..., None]) % L
    follower = x[:, :1].expand_as(x).gather(2, place) * _normal((B, C, 1), generator)
    share = _uniform((B, C, 1), generator)
    return share * x + (1 - share) * torch.where((delay > 0)[..., None], follower, mixed)


def _wave(x: Tensor, generator: torch.Generator) -> Tensor:
    """What passes series after series with a delay, and some of each series' own."""
    B, C, L = x.shape
    delay = _integers(17, (B, 1), generator) * torch.arange(C)
    if _chance(0.5, generator):
        delay = delay.flip(1)
    place = (torch.arange(L) - delay[..., None]) % L
    share = 0.6 * _uniform((B, C, 1), generator)
    return (1 - share) * x[:, :1].expand_as(x).gather(2, place) + share * x


def _counts(x: Tensor, generator: torch.Generator) -> Tensor:
    """Some series as counts, many of them zero."""
    N = len(x)
    some = _uniform((N, 1), generator) < 0.1
    scaled = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True).clamp(min=1e-3)
    rate = torch.exp(0.7 * scaled + 3.0 * _uniform((N, 1), generator) - 1.5).clamp(max=200.0)
    return torch.where(some, torch.poisson(rate, generator=generator), x)


def _limits(x: Tensor, generator: torch.Generator) -> Tensor:
    """Some series cut off below or above."""
    N = len(x)
    low = torch.quantile(x, 0.4 * float(_uniform((), generator)), dim=1, keepdim=True)
    high = torch.quantile(x, 1.0 - 0.3 * float(_uniform((), generator)), dim=1, keepdim=True)
    x = torch.where(_uniform((N, 1), generator) < 0.08, x.maximum(low), x)
    return torch.where(_uniform((N, 1), generator) < 0.04, x.minimum(high), x)


def _outliers(x: Tensor, generator: torch.Generator) -> Tensor:
    """Single values far off, in some series."""
    some = _uniform((len(x), 1), generator) < 0.1
    hit = some & (_uniform(x.shape, generator) < 0.01)
    return torch.where(hit, x + 6.0 * x.std(1, keepdim=True) * _normal(x.shape, generator), x)


def _gaps(x: Tensor, generator: torch.Generator) -> Tensor:
    """True where a value is observed; single values and stretches are missing in some series."""
    N, L = x.shape
    missing = (_uniform((N, 1), generator) < 0.08) & (_uniform((N, L), generator) < 0.1)
    begin, size = _integers(L, (N, 1), generator), _integers(64, (N, 1), generator)
    step = torch.arange(L)
    missing |= (_uniform((N, 1), generator) < 0.06) & (step >= begin) & (step < begin + size)
    return ~missing


def _smooth(N: int, L: int, generator: torch.Generator) -> Tensor:
    """Smooth curves of unit size, [N, L]."""
    knots = _normal((N, 1, 6), generator)
    return torch.nn.functional.interpolate(knots, size=L, mode="linear", align_corners=True)[:, 0]


def _remembered(white: Tensor, memory: Tensor) -> Tensor:
    """``y[t] = memory · y[t − 1] + white[t]`` of unit variance, by its impulse response."""
    L = white.shape[1]
    response = memory ** torch.arange(L)
    product = torch.fft.rfft(response, n=2 * L) * torch.fft.rfft(white, n=2 * L)
    return torch.fft.irfft(product, n=2 * L)[:, :L] * (1.0 - memory.square()).clamp(min=0.01).sqrt()


def _uniform(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator)


def _normal(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def _integers(high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(high, shape, generator=generator)


def _chance(share: float, generator: torch.Generator) -> bool:
    return float(torch.rand((), generator=generator)) < share
