"""Made-up panels whose series tell about each other, and windows of real panels, for pretraining.

A third of the panels hold series that say nothing about each other, with places all the same: trust is to be learnt.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from harness.forecasting import synthetic
from harness.forecasting.synthetic import _chance, _integers, _normal, _remembered, _uniform
from torch import Tensor

from mvpa_ts.forecasting.pretrained.layout import Layout, layout

KINDS = ("alone", "mixture", "line", "leaders", "plane", "flow", "regimes")
SHARES = (0.32, 0.14, 0.18, 0.12, 0.08, 0.09, 0.07)


class Panels(NamedTuple):
    """Panels of one step, with the season that a calendar tells, 0 where nothing is told.

    Parameters
    ----------
    values, mask : Tensor, shape (B, L, C)
    place : Layout
    season : Tensor, shape (B,)
    """

    values: Tensor
    mask: Tensor
    place: Layout
    season: Tensor


def made_up(
    number: int, channels: int, length: int, generator: torch.Generator, visible: Tensor, calendar: Tensor
) -> tuple[Tensor, Tensor, Layout]:
    """Values and mask [B, L, C] of panels of all kinds, and where their series lie.

    Parameters
    ----------
    number, channels, length : int
    generator : torch.Generator
    visible : Tensor, shape (B,)
        Steps at the end that will be seen or forecast.
    calendar : Tensor, shape (B,)
        Season that most series share, in steps; 0 for none.
    """
    device = generator.device
    series = synthetic._series(
        visible.repeat_interleave(channels)[:, None], length, generator, calendar.repeat_interleave(channels)
    )
    series = series.view(number, channels, length)
    places = torch.zeros(number, channels, 2, device=device)
    kind = torch.multinomial(torch.tensor(SHARES, device=device), number, True, generator=generator)
    if channels == 1:
        kind = torch.zeros_like(kind)
    x = series.clone()
    for index, name in enumerate(KINDS[1:], 1):
        chosen = (kind == index).nonzero()[:, 0]
        if len(chosen):
            x[chosen], places[chosen] = _RELATE[name](series[chosen], generator)
    for index in (0, 1, 3):  # no places of their own: some drawn ones
        chosen = (kind == index).nonzero()[:, 0]
        places[chosen] = _places(len(chosen), channels, generator, plane=False)
    x = x.flatten(0, 1)
    for change in (synthetic._counts, synthetic._limits, synthetic._outliers):
        x = change(x, generator)
    x = x * torch.exp(2.0 * _normal((len(x), 1), generator)) + 3.0 * _normal((len(x), 1), generator)
    x = torch.where(_uniform((len(x), 1), generator) < 0.3, -x, x)
    mask = synthetic._gaps(x, generator)
    shape = (number, channels, length)
    mask = _failing(mask.view(shape), visible, generator)
    return x.view(shape).mT.contiguous(), mask.mT.contiguous(), _layout(places, kind == 4, generator)


def _layout(places: Tensor, plane: Tensor, generator: torch.Generator) -> Layout:
    """Layouts; of a quarter of the panels nothing is told."""
    B, C, _ = places.shape
    unknown = layout(None, B, C, places.device)
    if C == 1:
        return unknown
    line, space = layout(places[..., :1], B, C), layout(places, B, C)
    placed = _uniform((B,), generator) < 0.75
    rows = torch.where(plane[:, None, None], space.rows, line.rows)
    order = torch.where(plane[:, None], -1, line.order)
    return Layout(
        torch.where(placed[:, None, None], rows, unknown.rows), torch.where(placed[:, None], order, unknown.order)
    )


def _failing(mask: Tensor, visible: Tensor, generator: torch.Generator) -> Tensor:
    """Up to half of the series of some panels are lost some steps before the end, or begin late, [B, C, L]."""
    B, C, L = mask.shape
    step = torch.arange(L, device=mask.device)
    hit = (_uniform((B, 1, 1), generator) < 0.08) & (_uniform((B, C, 1), generator) < 0.4) if C > 2 else None
    if hit is None:
        return mask
    since = L - visible[:, None, None] * _uniform((B, C, 1), generator)
    late = _uniform((B, 1, 1), generator) < 0.4
    # The truth of the horizon stays; what is lost is the end of the history.
    return mask & ~(hit & torch.where(late, step < since, (step >= since) & (step < L)))


def _places(number: int, channels: int, generator: torch.Generator, *, plane: bool) -> Tensor:
    """Places [B, C, 2]: regular or irregular gaps along a line, or anywhere in a square."""
    if plane:
        return channels**0.5 * _uniform((number, channels, 2), generator)
    gaps = 0.3 + 1.4 * _uniform((number, channels), generator)
    gaps = torch.where(_uniform((number, 1), generator) < 0.6, 1.0, gaps)
    place = gaps.cumsum(1)
    return torch.stack([place, torch.zeros_like(place)], 2)


def _shuffled(x: Tensor, places: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Half of the panels with their series in any order; places follow."""
    B, C, L = x.shape
    order = _uniform((B, C), generator).argsort(1)
    order = torch.where(_uniform((B, 1), generator) < 0.5, order, torch.arange(C, device=x.device))
    return x.gather(1, order[..., None].expand(B, C, L)), places.gather(1, order[..., None].expand(B, C, 2))


def _sources(series: Tensor, generator: torch.Generator) -> Tensor:
    """What travels, [B, 2 L]: noise with memory, a walk back to its mean, or a series with seasons."""
    B, _, L = series.shape
    memory = 1.0 - torch.exp(-(1.0 + 4.0 * _uniform((B, 1), generator)))  # .63 … .993
    noise = _remembered(_normal((B, 2 * L), generator), memory)
    double = torch.cat([series[:, -1], series[:, 0]], 1)
    double = (double - double.mean(1, keepdim=True)) / double.std(1, keepdim=True).clamp(min=1e-3)
    share = (_uniform((B, 1), generator) < 0.3).float() * _uniform((B, 1), generator)
    return (1 - share) * noise + share * double


def _late(source: Tensor, delay: Tensor, L: int) -> Tensor:
    """The source [B, 2 L] as each series sees it, `delay` steps late, [B, C, L]; delays [B, C] or [B, C, L]."""
    step = torch.arange(L, device=source.device)
    place = L + step - (delay[..., None] if delay.ndim == 2 else delay)
    index = place.clamp(0, 2 * L - 1)
    return source[:, None].expand(-1, delay.shape[1], -1).gather(2, index)


def _noisy(clean: Tensor, series: Tensor, generator: torch.Generator) -> Tensor:
    """With noise, a gain of each series, and perhaps some of each series' series."""
    B, C, L = clean.shape
    size = torch.exp(-3.0 + 3.0 * _uniform((B, 1, 1), generator))
    gain = torch.exp(0.3 * _normal((B, C, 1), generator))
    some = (_uniform((B, 1, 1), generator) < 0.4).float() * _uniform((B, C, 1), generator)
    return gain * clean + size * _normal((B, C, L), generator) + some * series


def _delays(distance: Tensor, L: int, generator: torch.Generator) -> Tensor:
    """Whole delays [B, C] of a wave that needs .3 to 16 steps a gap, in either direction, and is there within L."""
    slowness = torch.exp(math.log(0.3) + math.log(50.0) * _uniform((len(distance), 1), generator))
    slowness = torch.minimum(slowness, 0.9 * L / distance.abs().amax(1, keepdim=True).clamp(min=1.0))
    delay = (slowness * distance).round().long()
    return delay - delay.amin(1, keepdim=True)


def _line(series: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    B, C, L = series.shape
    places = _places(B, C, generator, plane=False)
    sign = torch.where(_uniform((B, 1), generator) < 0.5, 1.0, -1.0)
    clean = _late(_sources(series, generator), _delays(sign * places[..., 0], L, generator), L)
    fading = 1.0 - 0.1 * _uniform((B, 1, 1), generator) * (_uniform((B, 1, 1), generator) < 0.4)
    clean = clean * fading ** torch.arange(C, device=series.device)[:, None]
    return _shuffled(_noisy(clean, series, generator), places, generator)


def _plane(series: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    B, C, L = series.shape
    places = _places(B, C, generator, plane=True)
    angle = 2 * math.pi * _uniform((B, 1), generator)
    along = places[..., 0] * torch.cos(angle) + places[..., 1] * torch.sin(angle)
    return _noisy(_late(_sources(series, generator), _delays(along, L, generator), L), series, generator), places


def _regimes(series: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A wave whose direction and speed change every 120 to 400 steps."""
    B, C, L = series.shape
    places = _places(B, C, generator, plane=False)
    source = _sources(series, generator)
    step = torch.arange(L, device=series.device)
    delay = torch.zeros(B, C, L, dtype=torch.long, device=series.device)
    since = torch.full((B, 1), L, device=series.device)
    for _ in range(4):  # from the end backwards
        sign = torch.where(_uniform((B, 1), generator) < 0.5, 1.0, -1.0)
        now = _delays(sign * places[..., 0], L, generator)
        begin = since - 120 - _integers(281, (B, 1), generator)
        within = ((step >= begin) & (step < since))[:, None]
        delay = torch.where(within, now[..., None], delay)
        since = begin
    return _shuffled(_noisy(_late(source, delay, L), series, generator), places, generator)


def _leaders(series: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Half of the series follow others, 1 to 48 steps behind."""
    B, C, L = series.shape
    memory = 1.0 - torch.exp(-(1.0 + 3.0 * _uniform((B, C, 1), generator)))
    noise = _remembered(_normal((B * C, 2 * L), generator), memory.flatten(0, 1)).view(B, C, 2 * L)
    leader = (_integers(C, (B, C), generator) % max(1, C // 2))[..., None].expand(B, C, 2 * L)
    lag = 1 + _integers(48, (B, C, 1), generator)
    follows = torch.arange(C, device=series.device)[None, :, None] >= C // 2
    step = L + torch.arange(L, device=series.device)
    led = noise.gather(1, leader).gather(2, (step - lag).expand(B, C, L))
    x = torch.where(follows, led, noise[..., L:])
    x = _noisy(x, series, generator)
    order = _uniform((B, C), generator).argsort(1)
    return x.gather(1, order[..., None].expand(B, C, L)), torch.zeros(B, C, 2, device=series.device)


def _flow(series: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What is carried along a line, spreads and fades, driven by noise everywhere: an AR(1) of each wave number."""
    B, C, L = series.shape
    M = 2 * C + 8
    wave = 2 * math.pi * torch.fft.fftfreq(M, device=series.device)
    speed = torch.exp(math.log(0.03) + math.log(50.0) * _uniform((B, 1), generator))
    speed = speed * torch.where(_uniform((B, 1), generator) < 0.5, 1.0, -1.0)
    spread = 0.3 * _uniform((B, 1), generator) ** 2
    keep = 1.0 - torch.exp(-(1.5 + 4.5 * _uniform((B, 1), generator)))
    factor = torch.log(keep) - spread * wave.square() - 1j * speed * wave  # [B, M]
    response = torch.exp(factor[..., None] * torch.arange(L, device=series.device))
    drive = torch.fft.fft(_normal((B, M, 2 * L), generator), dim=1)
    width = 3.0 * _uniform((B, 1), generator)
    drive = drive * torch.exp(-0.5 * (width * wave).square())[..., None]
    moved = torch.fft.ifft(torch.fft.fft(response, n=4 * L) * torch.fft.fft(drive, n=4 * L))[..., L : 2 * L]
    x = torch.fft.ifft(moved, dim=1).real[:, :C]
    x = x / x.std((1, 2), keepdim=True).clamp(min=1e-4)
    places = torch.arange(C, device=series.device, dtype=torch.float32).expand(B, C)
    places = torch.stack([places, torch.zeros_like(places)], 2)
    return _shuffled(_noisy(x, series, generator), places, generator)


def _mixed(series: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return synthetic._mixture(series, generator), torch.zeros(*series.shape[:2], 2, device=series.device)


def _means(x: Tensor, rows: int) -> Tensor:
    """Means of so many rows of [L, …] each, over what is observed."""
    whole = x[: len(x) // rows * rows].unflatten(0, (-1, rows))
    return whole.nanmean(1)


_RELATE = {
    "mixture": _mixed, "line": _line, "leaders": _leaders, "plane": _plane, "flow": _flow, "regimes": _regimes,
}  # fmt: skip


class RealPanels:
    """Windows of the training parts of real panels: sea level by latitude, Beijing's stations, tide gauges.

    The air of Beijing is drawn by the hour, and as means of 3 hours to a week, up to November 2015.

    Sea level: latitudes 14 to 17 and 32 to 34 degrees on both sides, and the last five years, are left for development.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        sea = np.load(folder / "sea_level" / "sea_level_1deg.npz")
        level = sea["sla_mm"].astype(np.float32)
        level[level == sea["missing"]] = np.nan
        away = np.abs(sea["lat"])
        kept = ~((away > 14) & (away < 17) | (away > 32) & (away < 34))
        self.sea = torch.tensor(level[:-60, kept], device=device)  # [months, latitudes, longitudes]
        panels = folder / "panels"
        gauges = np.load(panels / "tide_gauges.npz")
        self.gauges = torch.tensor(gauges["x"][:600], device=device)
        place = np.radians(np.stack([gauges["lat"], gauges["lon"]], 1))
        x = np.stack([np.cos(place[:, 0]) * np.cos(place[:, 1]), np.cos(place[:, 0]) * np.sin(place[:, 1])], 1)
        self.gauge_places = torch.tensor(x, dtype=torch.float32, device=device)
        air = torch.tensor(np.load(panels / "beijing_air.npz")["x"][:24_000], device=device)
        self.air = [air, *(_means(air, hours) for hours in (3, 6, 24, 168))]

    def draw(
        self, number: int, channels: int, length: int, horizon: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Layout]:
        """Values and mask [B, length, C] of one kind of panel, and its layout; the last `horizon` steps are targets."""
        device = generator.device
        kind = int(torch.multinomial(torch.tensor([0.5, 0.4, 0.1], device=device), 1, generator=generator))
        by_hours = self.air[int(_integers(len(self.air), (), generator))]
        source = (self.sea, by_hours, self.gauges)[kind]
        rows = len(source)
        # Monthly sets are shorter than a history: their beginning is missing.
        end = min(horizon + 24, rows - 1) + _integers(max(1, rows - horizon - 24), (number, 1), generator)
        step = end - length + torch.arange(length, device=device)
        before = step < 0
        step = step.clamp(0, rows - 1)
        if kind == 0:
            latitude = _integers(source.shape[1], (number, 1, 1), generator)
            first = _integers(source.shape[2], (number, 1, 1), generator)
            stride = 1 + _integers(2, (number, 1, 1), generator)
            longitude = (first + stride * torch.arange(channels, device=device)) % source.shape[2]
            values = source[step[..., None], latitude, longitude]
            places = torch.arange(channels, device=device, dtype=torch.float32)[:, None].expand(number, channels, 1)
        elif kind == 2:
            chosen = torch.stack([torch.randperm(source.shape[1], generator=generator, device=device)[:channels]
                                  for _ in range(number)])  # fmt: skip
            if chosen.shape[1] < channels:
                chosen = chosen.repeat(1, math.ceil(channels / chosen.shape[1]))[:, :channels]
            values = source[step[..., None], chosen[:, None]]
            places = self.gauge_places[chosen]
        else:
            variable = _integers(source.shape[2], (number, 1, 1), generator)
            several = _chance(0.3, generator)  # variables of one station
            station = _integers(source.shape[1], (number, 1, channels), generator)
            if several:
                station = station[..., :1].expand_as(station)
                variable = _integers(source.shape[2], (number, 1, channels), generator)
            values = source[step[..., None], station, variable.expand_as(station)]
            places = None
        mask = ~values.isnan() & ~before[..., None]
        if places is not None and channels > 1 and not (places[:, :1] == places).all(2).all(1).any():
            place = layout(places, number, channels, device)._replace(places=None)  # what travels has no weights
        else:
            place = layout(None, number, channels, device)
        return values.nan_to_num(0.0), mask, place
