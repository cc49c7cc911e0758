"""The season of the year as a wave, in histories of half a year to two years.

Weather, energy and sales follow the year, and its length is known. So a wave of 365.25 days can be fitted before the
year has repeated. Where it has, the network sees it. A random walk looks like half a wave, too: two trials say how
much of it is believed.

Legend: B panels, L steps of history, C series, N = B·C, W weeks, h steps ahead, R persistences.
"""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

WEEKS = 365.25 / 7  # of a year
FEWEST, MOST = 26, 104  # weeks of history
_PERSISTENCE = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)  # of what is left, from week to week
_COST = 1.5  # of a coefficient, in that of the Bayesian information criterion
_DOUBT = 0.2  # of a mean square change, for each week ahead: it is added to the squares of what waves told
_PENALTY = 0.02  # of the ridge on an earlier wave, in the weeks of a year
_LEVEL = 2  # weeks before an origin whose mean is the forecast without a wave
_FIRST = 13  # weeks of a series before its first origin
_FARTHEST = 13  # weeks ahead that are tried: a year ahead the wave is where it was


def annual_season(x: Tensor, mask: Tensor, horizon: int, week: int) -> Tensor:
    """The wave of the year in all steps of history and horizon, [B, L + h, C]; 0 where none is believed.

    Histories `x` and where they were observed, `mask`, are [B, L, C]; `week` is the steps of a week. The wave counts
    by two trials. Which noise explains the weeks better: one around a line and a wave, or one around a line alone,
    each as persistent as it needs to be? And, had the wave been fitted before, how much of the change from the last
    weeks to the weeks of the horizon would it have told?
    """
    B, L, C = x.shape
    W, ahead = math.ceil(L / week), min(math.ceil(horizon / week), _FARTHEST)
    if W < FEWEST:
        return x.new_zeros(B, L + horizon, C)
    padded = (F.pad(rows.double(), (0, 0, W * week - L, 0)) for rows in (x.masked_fill(~mask, 0.0), mask))
    weeks, counts = (rearrange(rows, "b (w s) c -> (b c) w s", s=week) for rows in padded)
    observed = (counts.mean(2) >= 0.5).double()
    values = weeks.sum(2) / counts.sum(2).clamp(min=1.0)
    count = observed.sum(1, keepdim=True).clamp(min=1.0)
    values = (values - (values * observed).sum(1, keepdim=True) / count) * observed
    scale = (values.square().sum(1, keepdim=True) / count).sqrt().clamp(min=1e-9)
    values = values / scale
    # A series may begin later than those beside it.
    first = observed.argmax(1, keepdim=True)
    enough = (W - first >= FEWEST) & (W - first <= MOST)
    number = torch.arange(W + ahead, device=x.device)
    wave = _wave(number)
    line = torch.stack([torch.ones_like(wave[:W, 0]), (number[:W] - W) / WEEKS], 1)
    told_before = _told_before(values, observed, first, wave, ahead)
    coefficients = _believed(values, observed, line, wave[:W]) * told_before * enough
    steps = torch.arange(W * week - L, W * week + horizon, device=x.device) - 0.5 * (week - 1)
    return rearrange((coefficients * scale) @ _wave(steps / week).T, "(b c) l -> b l c", c=C).to(x.dtype)


def _wave(weeks: Tensor) -> Tensor:
    """Cosine and sine of the year, [weeks, 2]."""
    angle = 2.0 * math.pi * weeks.double() / WEEKS
    return torch.stack([angle.cos(), angle.sin()], 1)


def _believed(values: Tensor, observed: Tensor, line: Tensor, wave: Tensor) -> Tensor:
    """Coefficients of the wave [N, 2], averaged over noises with and without one by what each explains."""
    persistence = torch.tensor(_PERSISTENCE, dtype=torch.float64, device=values.device)[:, None]
    pairs = observed[:, 1:] * observed[:, :-1]
    number = pairs.sum(1, keepdim=True).clamp(min=1.0)
    left = values[:, None, 1:] - persistence * values[:, None, :-1]  # [N, R, W - 1]
    evidence = []
    for shapes in (line, torch.cat([line, wave], 1)):
        basis = shapes[1:] - persistence[..., None] * shapes[:-1]
        gram = torch.einsum("rwp,nw,rwq->nrpq", basis, pairs, basis)
        gram = gram + 1e-4 * torch.eye(shapes.shape[1], device=values.device)
        products = torch.einsum("rwp,nw,nrw->nrp", basis, pairs, left)
        coefficients = torch.linalg.solve(gram, products)
        missed = (left.square() * pairs[:, None]).sum(2) - (products * coefficients).sum(2)
        missed = missed.clamp(min=1e-9) / number
        evidence.append(-0.5 * number * missed.log() - 0.5 * _COST * shapes.shape[1] * number.log())
    share = torch.cat(evidence, 1).softmax(1)[:, len(persistence) :]
    return (share[..., None] * coefficients[..., line.shape[1] :]).sum(1)


def _told_before(values: Tensor, observed: Tensor, first: Tensor, wave: Tensor, ahead: int) -> Tensor:
    """How much of the change from the last weeks to the weeks `ahead` earlier waves told, [N, 1] from 0 to 1."""
    W = values.shape[1]
    basis = F.pad(wave[:W], (1, 0), value=1.0)
    gram = (observed[..., None, None] * basis[:, :, None] * basis[:, None]).cumsum(1)
    gram = gram + torch.diag(gram.new_tensor([1e-6, _PENALTY * WEEKS, _PENALTY * WEEKS]))
    fitted = torch.linalg.solve(gram, (values[..., None] * basis).cumsum(1))[..., 1:]  # by the weeks up to each
    origins = torch.arange(_LEVEL, W - ahead, device=values.device)

    def lately(of: Tensor) -> Tensor:
        sums = F.pad(of.cumsum(1), (0, 0, 1, 0))
        return sums[:, origins + 1] - sums[:, origins + 1 - _LEVEL]

    later = observed[:, origins + ahead] * (origins >= first + _FIRST)
    level = (lately(values[..., None]) / lately(observed[..., None]).clamp(min=1.0))[..., 0]
    change = (values[:, origins + ahead] - level) * later
    predicted = (fitted[:, origins] * (wave[origins + ahead] - lately(wave[None]) / _LEVEL)).sum(2) * later
    doubt = _DOUBT * change.square().sum(1) / later.sum(1).clamp(min=1.0) * ahead
    return ((predicted * change).sum(1) / (predicted.square().sum(1) + doubt).clamp(min=1e-9)).clamp(0.0, 1.0)[:, None]
