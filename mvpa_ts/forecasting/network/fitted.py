"""Regressions that are solved once on the rows of training, beside the trained network, and what share each has.

Where channels follow each other in the same way always, a ridge regression on all of them is better than what a network
learns by gradient in some hundred steps, and it costs seconds. After the training its share is set on the last quarter
of the windows, by weights that were solved without them. The network has seen these windows, so the share is rather too
small than too large; where a regression gains no more than chance gives, it is left out and nothing changes.

Legend: B windows, L look-back, h steps ahead, C channels, p lags that are read, S neighbours a side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.forecasting.network.regressions import LEAST_HORIZONS, early_and_late, read_off, room, standardised
from mvpa_ts.windows import Windows

_NEIGHBOURS = 6
_MOST_INPUTS = 2048  # of one regression, so that it is solved in a second; longer look-backs are cut to the last steps
_MOST_WEIGHTS = 4_000_000  # a regression of all channels on all grows with the square of their number
_MOST_ROWS = 24_000  # equations; windows are left out evenly
_TRIED = 4800  # windows times channels on which penalties and shares are chosen
_PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # times the mean square of what is read
_LEFT, _MOST_MISSING, _ROUND_PENALTY = 0.02, 0.6, 0.1  # in rounds that fill missing targets: eight at most
_LEAST_ERROR = 0.01  # of a network whose forecasts can be bettered, in units of the series
_BATCH = 128

Design = Callable[[Tensor, int], Tensor]
"""Standardised windows [B, L, C] to what a regression with so many inputs reads."""


class FittedRegressions(nn.Module):
    """Ridge regressions on the rows of training and their shares of the forecast.

    Parameters
    ----------
    channels : int or None
        Number of channels of the training whose names are known; they also get a regression of all on all. None: only
        one by relative place, whose weights all channels share and which reads other panels, too.
    """

    def __init__(self, channels: int | None) -> None:
        super().__init__()
        self.channels = channels
        self.clear()
        self.register_load_state_dict_pre_hook(_take_sizes)
        self.register_load_state_dict_post_hook(read_off)

    def clear(self) -> None:
        """Leave all to the network."""
        device = self.shares.device if hasattr(self, "shares") else None
        self.of_all: Tensor = nn.Buffer(torch.zeros(0, 0, device=device))
        self.by_place: Tensor = nn.Buffer(torch.zeros(0, 0, device=device))
        self.series: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.long, device=device))
        # Of all on all, by place beside it, and by place in a panel of other series, which the former cannot read.
        self.shares: Tensor = nn.Buffer(torch.zeros(3, device=device))
        self.narrowing = nn.Buffer(torch.ones((), device=device))
        self.off = True

    def _read_off(self) -> None:
        # A plain attribute, because a compiled graph cannot branch on a tensor.
        self.off = not bool(self.shares.any())

    def forward(
        self, forecast: Tensor, x: Tensor, mask: Tensor | None, units: Tensor | None, series: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What is to be added to the network's forecast [B, h, C], and how much narrower its spread is to be.

        Parameters
        ----------
        forecast : Tensor, shape (B, h, C)
        x, mask, units, series
            As in `ForecastingNetwork.forward`; x is zero where nothing was observed.
        """
        rows = standardised(x, mask, units)
        moved, share = torch.zeros_like(forecast), self.shares[2]
        if len(self.series) == x.shape[2]:
            in_training = torch.ones((), device=x.device) if series is None else (series == self.series).all().to(x)
            moved = moved + in_training * self.shares[0] * (_forecast(_all, self.of_all, *rows) - forecast)
            share = torch.where(in_training > 0.0, self.shares[1], share)
        if self.by_place.numel():
            moved = moved + share * (_forecast(_near, self.by_place, *rows) - forecast)
        return moved, self.narrowing

    @torch.no_grad()
    def finish(self, network: nn.Module, windows: Windows, *, middle: int, power: float) -> None:
        """After a training: solve the regressions and set the shares that pay beside the network.

        Parameters
        ----------
        network : nn.Module
            The one that these belong to.
        windows : Windows
            Those it was trained on.
        middle : int
            The output that is a mean or a median.
        power : float
            Of the errors that the shares are to make small: 2 where the network learnt means, 1 for medians.
        """
        h, C = windows.horizon, windows.values.shape[1]
        early, late = early_and_late(windows)
        if C == 1 or not len(early) or not len(late):
            return
        horizons = C * (len(late) - 1 + h) / h
        later = windows.only(slice(len(early), None))
        tried = late.thinned(-(-len(late) // max(8, _TRIED // C)))
        forecasts, truth, counts = _by_network(network, tried, middle)
        designs: list[tuple[str, Design, int]] = []
        inputs = min(_MOST_INPUTS // C, windows.lookback)
        if self.channels == C and inputs and inputs * C * C * h <= _MOST_WEIGHTS:
            designs.append(("of_all", _all, inputs * C))
        places = 2 * _NEIGHBOURS + 1
        designs.append(("by_place", _near, places * min(_MOST_INPUTS // places, windows.lookback)))
        solved, differences = {}, {}
        for name, design, size in designs:
            weights, solved[name] = _solved(design, size, early, later, tried)
            regressed = torch.cat([_forecast(design, weights, *rows) for rows, _, _ in _batches(tried)])
            differences[name] = (regressed - forecasts) * counts
        missed = (truth - forecasts) * counts
        shares, width = _shares(missed, list(differences.values()), power)
        # No least gain: a network that learns by heart seems to leave little to gain on windows that it has seen.
        gain = 1.0 - width**2
        if not gain * horizons >= LEAST_HORIZONS:
            return
        used = dict(zip(differences, shares, strict=True))
        elsewhere = _shares(missed, [differences["by_place"]], power)[0][0]
        self.shares.copy_(torch.tensor([used.get("of_all", 0.0), used["by_place"], elsewhere]))
        if used["by_place"] + elsewhere > 0.0:
            self.by_place = solved["by_place"].to(self.shares).contiguous()
        if self.shares[0] > 0.0:
            self.of_all = solved["of_all"].to(self.shares).contiguous()
            series = windows.channel_inputs.get("series")
            self.series = (torch.arange(C) if series is None else series).to(self.series)
        self.narrowing.fill_(width)
        self._read_off()


def _take_sizes(fitted: FittedRegressions, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: buffers of their sizes; weights of before there were any are those of none."""
    fitted.clear()
    for name, buffer in list(fitted.named_buffers()):
        saved = state.setdefault(prefix + name, buffer)
        setattr(fitted, name, torch.zeros(saved.shape, dtype=buffer.dtype, device=buffer.device))


def _all(z: Tensor, size: int) -> Tensor:
    """The last steps of all channels, [B, C·p]."""
    return z[:, z.shape[1] - size // z.shape[2] :].flatten(1)


def _near(z: Tensor, size: int) -> Tensor:
    """Last steps of each channel and its neighbours by relative place, zero beyond the ends, [B, C, (2 S + 1) p]."""
    places = 2 * _NEIGHBOURS + 1
    padded = F.pad(z[:, z.shape[1] - size // places :], (_NEIGHBOURS, _NEIGHBOURS))
    return padded.unfold(2, places, 1).permute(0, 2, 3, 1).flatten(2)


def _batches(windows: Windows) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor | None]]:
    """Standardised look-backs [B, L, C] with location and scale [B, 1, C], targets, 0 for NaN, and which count."""
    for inputs, target, counted in windows.batches(_BATCH):
        x, mask = inputs["x"], inputs["mask"]
        x = x if mask is None else x.masked_fill(~mask, 0.0)
        yield standardised(x, mask, inputs["units"]), target.nan_to_num(0.0), counted


def _forecast(design: Design, weights: Tensor, z: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """Forecasts [B, h, C] in the units of the windows."""
    forecast = design(z, len(weights)) @ weights.to(z)
    forecast = forecast.mT if forecast.ndim == 3 else forecast.unflatten(1, (-1, z.shape[2]))
    lowest, highest = room(z)
    return torch.minimum(torch.maximum(forecast, lowest[:, None]), highest[:, None]) * scale + location


def _by_network(network: nn.Module, windows: Windows, middle: int) -> tuple[Tensor, Tensor, Tensor]:
    """Forecasts of the network, truths and which of them count, [B, h, C]; errors count in units of the series."""
    training = network.training
    network.eval()
    rows = []
    for inputs, target, counted in windows.batches(_BATCH):
        forecast = network(inputs.pop("x"), **inputs)[..., middle]
        counts = torch.ones_like(target) if counted is None else counted.to(target.dtype)
        if (units := inputs["units"]) is not None:
            counts = counts / units[:, 1].nan_to_num(1.0).clamp(min=1e-6)
        rows.append((forecast, torch.where(counts > 0.0, target, 0.0), counts))
    network.train(training)
    forecasts, truths, counts = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return forecasts, truths, counts


def _solved(design: Design, size: int, early: Windows, rest: Windows, tried: Windows) -> tuple[Tensor, Tensor]:
    """Weights of early windows, and of all, by the penalty that is best on those tried when solved without them."""
    equations = (len(early) + len(rest)) * (early.values.shape[1] if design is _near else 1)
    early, rest = (windows.thinned(-(-equations // _MOST_ROWS)) for windows in (early, rest))
    gram, cross = _sums(design, size, [early])
    best: tuple[float, float, Tensor] | None = None
    for penalty in _PENALTIES:
        weights = _ridge(gram, cross, penalty)
        error = 0.0
        for (z, location, scale), target, counted in _batches(tried):
            missed = (_forecast(design, weights, z, location, scale) - target) / scale
            error += float((missed if counted is None else missed * counted).square().sum())
        if best is None or error < best[0]:
            best = error, penalty, weights
    assert best is not None
    return best[2], _ridge(*_sums(design, size, [early, rest]), best[1])


def _ridge(gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
    size = gram.diagonal().mean().clamp(min=1e-9)
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky_ex(gram + penalty * size * identity)[0]  # without an error for numbers that are NaN
    return torch.cholesky_solve(cross, factor).float()


def _sums(design: Design, size: int, parts: Sequence[Windows]) -> tuple[Tensor, Tensor]:
    """Products of what is read with itself [F, F] and with what follows [F, outputs]."""
    gram = cross = torch.zeros((), dtype=torch.float64, device=parts[0].values.device)
    for rows, ahead, _ in _equations(design, size, parts):
        gram, cross = gram + (rows.mT @ rows).double(), cross + (rows.mT @ ahead).double()
    # Targets that are missing are forecast by the regression of the round before, at first by 0, which would draw all
    # forecasts to 0 (expectation and maximisation: Dempster, Laird and Rubin, 1977).
    observed = parts[0].observed
    # Of the channel that lacks most; each round leaves so much of what is to be done.
    missing = 0.0 if observed is None else min(_MOST_MISSING, 1.0 - float(observed.double().mean(0).min()))
    for _ in range(math.ceil(math.log(_LEFT) / math.log(missing)) if missing else 0):
        weights, cross = _ridge(gram, cross, _ROUND_PENALTY), torch.zeros_like(gram[:, :1])
        for rows, ahead, counted in _equations(design, size, parts):
            ahead = ahead if counted is None else torch.where(counted, ahead, rows @ weights)
            cross = cross + (rows.mT @ ahead).double()
    return gram, cross


def _equations(design: Design, size: int, parts: Sequence[Windows]) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """What is read [E, F], what follows [E, outputs], 0 where it is missing, and what of it counts."""
    for windows in parts:
        for (z, location, scale), target, counted in _batches(windows):
            ahead = (target - location) / scale
            ahead = ahead if counted is None else ahead * counted
            rows = design(z, size)

            def flat(steps: Tensor, each: bool = rows.ndim == 3) -> Tensor:
                return steps.mT.flatten(0, 1) if each else steps.flatten(1)

            read = rows.flatten(0, 1) if rows.ndim == 3 else rows
            yield read, flat(ahead), None if counted is None else flat(counted)


def _shares(missed: Tensor, differences: list[Tensor], power: float) -> tuple[list[float], float]:
    """The shares with the least error, none below 0 and not above 1 in all, and what is left of the network's error."""

    def size(shares: Sequence[float]) -> float:
        left = missed - sum(share * moved for share, moved in zip(shares, differences, strict=True))
        return float(left.abs().pow(power).mean() ** (1.0 / power))

    # What is left is 1 where nothing helps, also where these numbers are NaN.
    chosen = [0.0] * len(differences)
    best = before = size(chosen)
    if before < _LEAST_ERROR:
        return chosen, 1.0
    for twentieths in product(range(21), repeat=len(differences)):
        if sum(twentieths) <= 20:
            shares = [number / 20 for number in twentieths]
            if (error := size(shares)) < best:
                best, chosen = error, shares
    return chosen, best / before
