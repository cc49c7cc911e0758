"""Made-up series for pretraining a forecaster: seasons, trends, walks, noise, counts, regimes, gaps.

Nothing of any real data set is in here but the lengths of usual seasons (7 days, 12 months, 24 hours, …).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

USUAL_SEASONS = (4, 5, 7, 12, 24, 30, 48, 52, 60, 96, 144, 168, 288)


def _series(visible: Tensor, L: int, generator: torch.Generator, calendar: Tensor | None = None) -> Tensor:
    """Sums of a trend, up to two seasons and noise, each of many kinds, [N, L]."""
    N = len(visible)
    time = torch.arange(L, dtype=torch.float32)
    share = 1.0 + (time - L) / visible  # 0 … 1 within what will be seen
    x = torch.zeros(N, L)
    # Seasons: random harmonics of a random length, with slowly changing size.
    for order in range(2):
        period = _season_lengths(visible[:, 0], generator, calendar if order == 0 else None)
        season = _season(period, L, generator)
        sharp = (_uniform((N, 1), generator) < 0.15).float()  # a few hours of traffic, a day of sales
        season = season * (1 - sharp) + sharp * torch.exp(2.0 * season.clamp(-3, 2)) / 4.0
        change = 1.0 + 0.4 * (_uniform((N, 1), generator) < 0.4).float() * _smooth(share, generator)
        present = (_uniform((N, 1), generator) < (0.75, 0.25)[order]).float()
        x = x + present * season * change
    # Trends: straight, bent, a smooth curve, or a slope that walks.
    steep = _normal((N, 1), generator) * (_uniform((N, 1), generator) < 0.45).float() * 2.0
    bend = _uniform((N, 1), generator)
    bent = (_uniform((N, 1), generator) < 0.15).float() * _normal((N, 1), generator) * 3.0
    x = x + steep * share + bent * (share - bend).clamp(min=0.0)
    x = x + (_uniform((N, 1), generator) < 0.2).float() * _smooth(share, generator) * 1.5
    x = x + (_uniform((N, 1), generator) < 0.2).float() * _smooth(share, generator, walking=True)
    walking = torch.cumsum(_remembered(_normal((N, L), generator), 0.9 + 0.1 * _uniform((N, 1), generator)), 1)
    inside = (share >= 0).float()
    size = (walking.square() * inside).sum(1, keepdim=True) / inside.sum(1, keepdim=True).clamp(min=1)
    x = x + (_uniform((N, 1), generator) < 0.12).float() * 2.0 * walking / size.sqrt().clamp(min=1e-3)
    # Noise: white, with memory, a walk, or cycles that lose their beat; its size may change.
    white = _normal((N, L), generator)
    heavy = (_uniform((N, 1), generator) < 0.15).float()
    white = white * (1 + heavy * (_normal((N, L), generator).abs() * 1.5 - 0.8))
    volatility = torch.exp((_uniform((N, 1), generator) < 0.25).float() * _smooth(share, generator))
    memory = torch.where(
        _uniform((N, 1), generator) < 0.5, _uniform((N, 1), generator), 0.9 + 0.1 * _uniform((N, 1), generator)
    )
    kind = _uniform((N, 1), generator)
    coloured = _remembered(white, memory)
    walk = torch.cumsum(white, 1)
    walk = walk / walk.std(1, keepdim=True).clamp(min=1e-3)
    cycles = _cycles(white, generator)
    noise = torch.where(
        kind < 0.32, white, torch.where(kind < 0.65, coloured, torch.where(kind < 0.88, 2.0 * walk, cycles))
    )
    level = torch.exp(_uniform((N, 1), generator) * 4.5 - 3.5)
    only = _uniform((N, 1), generator) < 0.14  # nothing but noise or a walk: the last value, or the mean
    x = torch.where(only, noise, x + level * volatility * noise)
    gaussian = _uniform((N, 1), generator) < 0.25
    x = torch.where(gaussian, _gaussian_process(visible[:, 0], L, generator, calendar) + steep * share, x)
    # Regimes: a step of the level.
    at = _uniform((N, 1), generator)
    x = x + (_uniform((N, 1), generator) < 0.12).float() * (share >= at) * 2.0 * _normal((N, 1), generator)
    growing = _uniform((N, 1), generator) < 0.22  # seasons that grow with the level
    rate = 0.15 + 0.5 * _uniform((N, 1), generator)
    x = torch.where(growing, torch.exp(rate * x.clamp(-4, 6)), x)
    kind = _uniform((N, 1), generator)
    period = _season_lengths(visible[:, 0], generator, calendar)
    # Where a calendar is known, hours of the day matter more often.
    daily = 0.05 if calendar is None else torch.where(calendar > 1, 0.15, 0.05)[:, None]
    x = torch.where(kind < daily, _days_with_nights(period, L, generator), x)
    return torch.where(kind > 1.0 - daily, _rush_hours(period, L, generator), x)


def _gaussian_process(visible: Tensor, L: int, generator: torch.Generator, calendar: Tensor | None) -> Tensor:
    """Stationary Gaussian processes whose covariance is a sum or product of three kernels, [N, L]."""
    N = len(visible)
    lag = torch.arange(L + 1, dtype=torch.float32)
    total = torch.zeros(N, L + 1)
    for index in range(3):
        length = torch.exp(math.log(2.0) + _uniform((N, 1), generator) * math.log(150.0))
        period = _season_lengths(visible, generator, calendar)[:, None]
        width = torch.exp(1.5 * _normal((N, 1), generator))
        kinds = torch.stack(
            [
                torch.exp(-0.5 * (lag / length).square()),
                torch.exp(-lag / length),
                (1.0 + (lag / length).square() / (2.0 * width)) ** -width,
                torch.exp(-2.0 * torch.sin(math.pi * lag / period).square() / width.clamp(0.3, 3.0)),
                torch.exp(-2.0 * torch.sin(math.pi * lag / period).square() / width.clamp(0.3, 3.0))
                * torch.exp(-0.5 * (lag / (4.0 * period)).square()),
                (lag == 0).float().expand(N, -1),
            ]
        )
        kernel = kinds[_integers(6, (N,), generator), torch.arange(N)]
        size = torch.exp(_normal((N, 1), generator))
        multiply = (_uniform((N, 1), generator) < 0.3) & (index > 0)
        total = torch.where(multiply, total * kernel, total + size * kernel)
    # A circle of twice the length has these covariances; what is not a covariance there is cut off.
    spectrum = torch.fft.rfft(torch.cat([total, total[:, 1:-1].flip(1)], 1)).real.clamp(min=0.0)
    white = torch.fft.rfft(_normal((N, 2 * L), generator))
    x = torch.fft.irfft(white * spectrum.sqrt(), n=2 * L)[:, :L]
    return x / total[:, :1].sqrt().clamp(min=1e-3)


def _season_lengths(visible: Tensor, generator: torch.Generator, calendar: Tensor | None = None) -> Tensor:
    """Steps of a season for each series, [N]; most fit twice into what is seen, those of a calendar perhaps once."""
    N = len(visible)
    usual = torch.tensor(USUAL_SEASONS, dtype=torch.float32)[_integers(len(USUAL_SEASONS), (N,), generator)]
    any_length = torch.exp(_uniform((N,), generator) * math.log(80.0)) * 4.0
    period = torch.where(_uniform((N,), generator) < 0.65, usual, any_length)
    short = torch.tensor(USUAL_SEASONS[:4], dtype=torch.float32)[_integers(4, (N,), generator)]
    period = torch.where((period > visible / 2) & (_uniform((N,), generator) < 0.75), short, period)
    if calendar is None:
        return period
    return torch.where((calendar > 1) & (_uniform((N,), generator) < 0.85), calendar.to(period), period)


def _season(period: Tensor, L: int, generator: torch.Generator) -> Tensor:
    """Seasons of six random harmonics, [N, L]."""
    N = len(period)
    harmonics = torch.arange(1, 7, dtype=torch.float32)
    size = _normal((N, 6), generator) / harmonics ** (0.5 + 2.0 * _uniform((N, 1), generator))
    phase = 2 * math.pi * _uniform((N, 6), generator)
    time = torch.arange(L, dtype=torch.float32)
    angle = 2 * math.pi * time * harmonics[:, None] / period[:, None, None] + phase[..., None]
    return (size[..., None] * torch.sin(angle)).sum(1)


def _cycles(white: Tensor, generator: torch.Generator) -> Tensor:
    """Noise that swings: animals and their prey, business, the sun; unit variance, [N, L]."""
    N, L = white.shape
    period = torch.exp(math.log(3.0) + math.log(20.0) * _uniform((N, 1), generator))
    fading = 1.0 - 0.15 * _uniform((N, 1), generator) ** 2 - 0.005
    time = torch.arange(L, dtype=torch.float32)
    response = fading**time * torch.sin(2 * math.pi * (time + 1) / period)
    product = torch.fft.rfft(response, n=2 * L) * torch.fft.rfft(white, n=2 * L)
    x = torch.fft.irfft(product, n=2 * L)[:, :L]
    return x / x.std(1, keepdim=True).clamp(min=1e-3)


def _of_each_cycle(period: Tensor, phase: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Where in its cycle each step lies, 0 … 1, and the value of its cycle, both [N, L]; values [N, L] by cycle."""
    position = torch.arange(values.shape[1], dtype=torch.float32) / period[:, None] + phase
    return position % 1.0, values.gather(1, position.long().clamp(max=values.shape[1] - 1))


def _days_with_nights(period: Tensor, L: int, generator: torch.Generator) -> Tensor:
    """Zero at night, and days that differ in height: solar power, visits, [N, L]."""
    N = len(period)
    memory = 0.8 * _uniform((N, 1), generator)
    cloudy = 0.8 * _uniform((N, 1), generator)
    heights = 1.0 - cloudy * torch.sigmoid(1.5 * _remembered(_normal((N, L), generator), memory))
    place, height = _of_each_cycle(period, _uniform((N, 1), generator), heights)
    night = 0.9 * _uniform((N, 1), generator) - 0.3
    day = (torch.sin(2 * math.pi * place) - night).clamp(min=0.0)
    ripple = 1.0 + 0.4 * _uniform((N, 1), generator) * _remembered(_normal((N, L), generator), 0.7 * memory + 0.2)
    return 3.0 * day * height * ripple.clamp(0.0, 2.0)


def _rush_hours(period: Tensor, L: int, generator: torch.Generator) -> Tensor:
    """A level with dips, or peaks, at the same hours, not as deep each day and missing on some, [N, L]."""
    N = len(period)
    x = (
        0.1
        * torch.exp(_normal((N, 1), generator))
        * _remembered(_normal((N, L), generator), _uniform((N, 1), generator))
    )
    phase = _uniform((N, 1), generator)
    free = 2 * (_uniform((N, 1), generator) < 0.5).long()
    for _ in range(2):
        depths = torch.exp(0.7 * _uniform((N, 1), generator) * _normal((N, L), generator))
        depths = depths * (torch.arange(L) % 7 >= free)
        place, depth = _of_each_cycle(period, phase, depths)
        width = 0.02 + 0.08 * _uniform((N, 1), generator)
        hour = 0.1 + 0.8 * _uniform((N, 1), generator)
        x = x - depth * torch.exp(-0.5 * ((place - hour) / width).square())
    return 3.0 * x * torch.where(_uniform((N, 1), generator) < 0.5, 1.0, -1.0)


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


def _smooth(share: Tensor, generator: torch.Generator, *, walking: bool = False) -> Tensor:
    """Curves through six random points, or points of a walk, over shares 0 … 1 of what is seen, [N, L]."""
    knots = _normal((len(share), 6), generator)
    if walking:
        knots = torch.cumsum(knots, 1)
    place = 5.0 * share.clamp(0.0, 1.0)
    left = place.long().clamp(max=4)
    low, high = knots.gather(1, left), knots.gather(1, left + 1)
    return low + (place - left) * (high - low)


def _remembered(white: Tensor, memory: Tensor) -> Tensor:
    """``y[t] = memory · y[t − 1] + white[t]`` of unit variance, by its impulse response."""
    L = white.shape[1]
    response = memory ** torch.arange(L)
    product = torch.fft.rfft(response, n=2 * L) * torch.fft.rfft(white, n=2 * L)
    return torch.fft.irfft(product, n=2 * L)[:, :L] * (1.0 - memory.square()).clamp(min=0.01).sqrt()


def _uniform(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _normal(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _integers(high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(high, shape, generator=generator, device=generator.device)


def _chance(share: float, generator: torch.Generator) -> bool:
    return float(_uniform((), generator)) < share
