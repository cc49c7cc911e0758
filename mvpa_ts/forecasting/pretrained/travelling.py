"""Forecasts of what travels over the series of a panel, at one speed in one direction: others showed it before.

The slowness, in steps for each unit of distance, is the one at which series nearby were most alike of late. With it, a
step to come of one series is a step that others have seen: their mean is the forecast. What none has seen fades like
the autocorrelation. This takes one number a coordinate from all series together, so a few rows after a change it is
found again, long before the weights of a regression are.

Legend: B panels, C series, L steps of history, h steps ahead, k coordinates, S series nearby, V slownesses, O origins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

MEMORIES = (24.0, 96.0, 384.0)
"""Steps after which a row counts 1/e: soon after a change the shortest is right, without a change the longest."""
NEARBY, READ = 12, 512
"""Series that are compared with each, and steps that are read."""
LAGS = 49
SLOWEST = {1: 12.0, 2: 8.0, 3: 6.0}
"""Largest slowness on each axis, by the number of coordinates."""
TRIED, FINER = {1: 97, 2: 33, 3: 13}, 9
"""Values that are tried on each axis, and then between the neighbours of the best."""


def travelling_forecasts(x: Tensor, origins: Sequence[int], horizon: int, places: Tensor) -> list[Tensor]:
    """Forecasts [1 + O, B, C, h] of histories `x` [B, C, L], for each memory, from the end and from earlier origins.

    Those from origins, increasing steps before the end, mean nothing beyond as many steps. They go by the slowness at
    the end: late origins show whether it holds. Histories are standardised, without gaps, their season taken away.
    `places` [B, C, k] are in usual gaps.
    """
    B, C, L = x.shape
    distance = (places[:, :, None] - places[:, None]).square().sum(3)
    distance = distance + torch.diag_embed(places.new_full((B, C), torch.inf))
    near = distance.topk(min(NEARBY, C - 1), largest=False).indices  # [B, C, S]
    apart = places[:, :, None] - _of_series(places, near)
    ended = F.pad(x, (READ, 0))[..., -READ:]
    fading = _autocorrelation(x[..., : max(8, L - max(origins))], horizon)
    forecasts = []
    for memory in MEMORIES:
        slowness, alike = _slowness(ended, near, apart, memory)
        arrival = (places @ slowness[..., None])[..., 0]
        of_origins = []
        for back in (0, *origins):
            seen = F.pad(x[..., : max(1, L - back)], (READ, 0))[..., -READ:]
            steps = min(horizon, back) if back else horizon
            arriving = _arriving(seen, arrival, alike, fading, memory, steps)
            of_origins.append(F.pad(arriving, (0, horizon - steps)))
        forecasts.append(torch.stack(of_origins))
    return forecasts


def _of_series(x: Tensor, chosen: Tensor) -> Tensor:
    """Rows [B, C, S, n] of x [B, C, n] that are chosen for each series, [B, C, S]."""
    return x.gather(1, chosen.flatten(1)[..., None].expand(-1, -1, x.shape[2])).unflatten(1, chosen.shape[1:])


def _slowness(x: Tensor, near: Tensor, apart: Tensor, memory: float) -> tuple[Tensor, Tensor]:
    """The slowness [B, k] at which series nearby are most alike, and their correlation there, [B]."""
    B, _, L = x.shape
    k = apart.shape[3]
    weight = (torch.arange(1 - L, 1, device=x.device) / memory).exp()
    weight = weight / weight.sum()
    z = (x - (x * weight).sum(2, keepdim=True)) * weight.sqrt()
    z = z / z.square().sum(2, keepdim=True).sqrt().clamp(min=1e-6)
    later = F.pad(z, (0, LAGS - 1)).unfold(2, L, 1)  # [B, C, LAGS, L]
    correlation = torch.einsum("bcsl, bcgl -> bcsg", _of_series(z, near), later)
    best, reach, number = x.new_zeros(B, k), SLOWEST[k], TRIED[k]
    for _ in range(2):
        steps = torch.cartesian_prod(*[torch.linspace(-reach, reach, number, device=x.device)] * k).view(-1, k)
        tried = best[:, None] + steps
        score = _alike(correlation, torch.einsum("bvk, bcsk -> bcsv", tried, apart))
        most, found = score.max(1)
        best = tried.gather(1, found[:, None, None].expand(-1, 1, k))[:, 0]
        reach, number = 2 * reach / (number - 1), FINER
    return best, most.clamp(0.0, 1.0)


def _alike(correlation: Tensor, delay: Tensor) -> Tensor:
    """Mean correlation [B, V] of pairs of series at delays [B, C, S, V]."""
    inside = (delay >= 0) & (delay <= LAGS - 1)
    whole = delay.clamp(0, LAGS - 2).floor()
    below, above = (correlation.gather(3, whole.long() + more) for more in (0, 1))
    alike = (below + (delay - whole) * (above - below)).masked_fill(~inside, 0.0).sum((1, 2))
    number = inside.sum((1, 2))
    # A slowness at which few pairs can be compared is none.
    return torch.where(number >= correlation.shape[1] - 1, alike / number.clamp(min=1), -1.0)


def _arriving(x: Tensor, arrival: Tensor, alike: Tensor, fading: Tensor, memory: float, steps: int) -> Tensor:
    """Forecasts [B, C, h] where each series shows at its `arrival` [B, C] what others show at theirs."""
    B, C, L = x.shape
    behind = (arrival[:, :, None] - arrival[:, None]).round().long()  # [B, C, of others]
    ahead = torch.arange(1, steps + 1, device=x.device)
    seen = torch.minimum(ahead, behind.amax(2)[..., None])  # [B, C, h]: later steps no series has seen
    age = behind[:, :, None] - seen[..., None]
    inside = (age >= 0) & (age < L)
    place = L - 1 - age.clamp(0, L - 1)
    shown = x.gather(2, place.movedim(3, 1).flatten(2)).view(B, C, C, steps).movedim(1, 3)
    weight = (-age / memory).exp() * inside
    total = weight.sum(3)
    mean = (weight * shown).sum(3) / total.clamp(min=1e-6)
    number = total.square() / weight.square().sum(3).clamp(min=1e-6)
    alike = alike[:, None, None]
    # What single values tell of each other, their mean tells better.
    share = number * alike / (1.0 + (number - 1.0) * alike)
    unseen = ahead - seen
    fades = torch.where(unseen > 0, (fading[:, None].expand(B, C, -1).gather(2, unseen) / alike.clamp(min=0.1)), 1.0)
    return share * mean * fades.clamp(0.0, 1.0)


def _autocorrelation(x: Tensor, lags: int) -> Tensor:
    """Of all series together, at lags from 0, [B, 1 + lags]; 0 where the history is too short."""
    L = x.shape[2]
    products = [(x[..., lag:] * x[..., : L - lag]).sum((1, 2)) for lag in range(min(lags, L - 1) + 1)]
    return F.pad(torch.stack(products, 1), (0, max(0, lags + 1 - len(products)))) / products[0][:, None].clamp(min=1e-6)
