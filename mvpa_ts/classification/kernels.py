"""The fixed-kernel path: shares of positive responses to kernels that are not learned, and a ridge on them."""

from __future__ import annotations

import itertools
import math

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.classification.ridge import fit_ridge
from mvpa_ts.classification.views import series_views

_TAPS = 9
_PATTERNS = 84  # ways to choose three taps of nine
# Training series whose responses set the thresholds of one dilation; more change the quantiles little.
_THRESHOLD_SERIES = 32
_THRESHOLD_STEPS = 1 << 17  # of these series; where they hold more, about as many, evenly spaced, are read
_BATCH_STEPS = 1 << 15  # steps of a batch while features are computed: 84 responses each, 11 MiB

_INTERVAL_FEATURES = 2000  # at most, unless one level has more
# Standard deviations of an interval feature against those of a share, which are many more (docs/classification.md).
_INTERVAL_WEIGHT = 2.0


class FixedKernels(nn.Module):
    """Shares of steps at which fixed kernels respond above a threshold (MiniRocket, Dempster et al. 2021).

    Each of the 84 kernels has nine taps, three of weight 2 and six of weight −1, and reads a random subset of channels
    at each dilation. Its thresholds are quantiles of its responses to training data. Unlike the original, steps that
    are missing or past the end are left out of the share, so that padding changes nothing.

    Parameters
    ----------
    num_channels : int
    length : int
        Longest training series; the widest kernel spans it.
    num_features : int
        About how many shares: each dilation gets the same number of thresholds per kernel, at least one.
    seed : int
        For the channel subsets.
    """

    def __init__(self, num_channels: int, length: int, num_features: int, seed: int = 0) -> None:
        super().__init__()
        patterns = torch.full((_PATTERNS, _TAPS), -1.0)
        for row, taps in enumerate(itertools.combinations(range(_TAPS), 3)):
            patterns[row, list(taps)] = 2.0
        widest = math.log2(max((length - 1) / (_TAPS - 1), 1.0))
        most = max(1, min(16, num_features // _PATTERNS))
        self.dilations = sorted({int(2.0**power) for power in torch.linspace(0, widest, most, device="cpu").tolist()})
        generator = torch.Generator().manual_seed(seed)
        subsets = torch.zeros(len(self.dilations), _PATTERNS, num_channels, dtype=torch.bool)
        largest = math.log2(min(num_channels, _TAPS) + 1)
        for dilation, row in itertools.product(range(len(self.dilations)), range(_PATTERNS)):
            size = int(2 ** (largest * torch.rand((), generator=generator, device="cpu").item()))
            chosen = torch.randperm(num_channels, generator=generator, device="cpu")[:size]
            subsets[dilation, row, chosen.to(subsets.device)] = True
        per_kernel = max(1, round(num_features / _PATTERNS / len(self.dilations)))
        self.patterns = nn.Buffer(patterns, persistent=False)
        self.subsets = nn.Buffer(subsets)
        self.thresholds = nn.Buffer(torch.zeros(len(self.dilations), _PATTERNS, per_kernel))

    @property
    def num_features(self) -> int:
        """Shares that `forward` returns for each series."""
        return self.thresholds.numel()

    @torch.no_grad()
    def fit(self, x: Tensor, real: Tensor, generator: torch.Generator) -> None:
        """Set the thresholds from training series x [n, C, L] and the steps that are real, [n, L]."""
        count = self.thresholds.shape[2]
        golden = (math.sqrt(5) + 1) / 2  # a low-discrepancy sequence of quantiles
        for index in range(len(self.dilations)):
            rows = torch.randperm(len(x), generator=generator)[:_THRESHOLD_SERIES].to(x.device)
            responses = self._spaced_responses(x[rows], real[rows], index).sort(1).values
            numbers = torch.arange(_PATTERNS * count, dtype=torch.float64) + 1 + index * _PATTERNS * count
            shares = torch.remainder(numbers * golden, 1.0).reshape(_PATTERNS, count)
            chosen = responses.gather(1, (shares * (responses.shape[1] - 1)).long().to(x.device))
            # Off the responses themselves: the zeros of a flat stretch must not be above zero by rounding.
            self.thresholds[index] = chosen + 1e-4 * responses.std(1, keepdim=True) + 1e-6

    @torch.no_grad()
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Shares [B, features] of x [B, C, L], given the steps that are real, [B, L]."""
        weight = real.to(x.dtype) / real.sum(1, keepdim=True).clamp(min=1)
        shares = []
        for index, thresholds in enumerate(self.thresholds):
            responses = self._responses(x, index)
            for column in thresholds.T:
                above = (responses > column[:, None]).to(x.dtype)
                shares.append(torch.einsum("b k l, b l -> b k", above, weight))
        return torch.cat(shares, 1)

    def _spaced_responses(self, x: Tensor, real: Tensor, index: int) -> Tensor:
        """Responses [84, steps] to x [B, C, L] at the steps that are real; at every n-th where they are many."""
        stride = max(1, int(real.sum()) // _THRESHOLD_STEPS)
        size = max(1, _BATCH_STEPS // x.shape[2])
        spaced = []
        for chunk, chunk_real in zip(x.split(size), real.split(size), strict=True):
            responses = rearrange(self._responses(chunk, index), "b k l -> k (b l)")
            spaced.append(responses[:, chunk_real.flatten()][:, ::stride])
        return torch.cat(spaced, 1)

    def _responses(self, x: Tensor, index: int) -> Tensor:
        """Responses [B, 84, L] to x [B, C, L] at one dilation."""
        weight = self.subsets[index, :, :, None] * self.patterns[:, None]
        dilation = self.dilations[index]
        return F.conv1d(x, weight, dilation=dilation, padding=dilation * (_TAPS // 2))


def interval_statistics(x: Tensor, real: Tensor, depth: int) -> Tensor:
    """Mean and logarithm of the standard deviation of each channel over the series, its halves, quarters and so on.

    The kernels have no mean and so do not see a series' level. Maps x [B, C, L] and real [B, L], whose real steps are
    counted from the first to the last one, to [B, 2 · C · (2^depth − 1)].
    """
    steps = torch.arange(x.shape[2], device=x.device)
    lengths = (real * (steps + 1)).amax(1, keepdim=True)
    statistics = []
    for parts in (2**level for level in range(depth)):
        for interval in range(parts):
            inside = (steps * parts >= lengths * interval) & (steps * parts < lengths * (interval + 1)) & real
            weight = inside.to(x.dtype) / inside.sum(1, keepdim=True).clamp(min=1)
            mean = torch.einsum("b c l, b l -> b c", x, weight)
            square = torch.einsum("b c l, b l -> b c", x.square(), weight)
            statistics += [mean, 0.5 * ((square - mean.square()).clamp(min=0.0) + 1e-4).log()]
    return torch.cat(statistics, 1)


class KernelPath(nn.Module):
    """Ridge classifier or regression on fixed features of series.

    The features are the shares of two banks of fixed kernels, one for the level and one for the shape of a series, and
    the means and deviations over intervals.

    It holds buffers only: `fit` sets them in closed form. Before that all classes are equally likely, a number is 0.

    Parameters
    ----------
    num_channels, num_classes, length, num_features, seed
        As in `FixedKernels`; the banks share the features.
    """

    def __init__(self, num_channels: int, num_classes: int, length: int, num_features: int, seed: int = 0) -> None:
        super().__init__()
        self.level_bank = FixedKernels(num_channels, length, num_features // 2, seed=2 * seed)
        self.shape_bank = FixedKernels(num_channels, length, num_features // 2, seed=2 * seed + 1)
        # Four levels of intervals, fewer where there are many channels.
        self.depth = max(1, min(4, int(math.log2(_INTERVAL_FEATURES / (2 * num_channels) + 1))))
        self.num_intervals = 2 * num_channels * (2**self.depth - 1)
        size = self.level_bank.num_features + self.shape_bank.num_features + self.num_intervals
        self.location = nn.Buffer(torch.zeros(size))
        self.scale = nn.Buffer(torch.ones(size))
        self.weight = nn.Buffer(torch.zeros(num_classes, size))
        self.bias = nn.Buffer(torch.zeros(num_classes))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map series x [B, L, C] and mask to logits [B, K], or to numbers [B, 1]."""
        features = self.features(x, mask)
        return F.linear((features - self.location) / self.scale, self.weight, self.bias)

    @torch.no_grad()
    def fit(
        self, x: Tensor, mask: Tensor, labels: Tensor, weights: Tensor, *, copies: int = 1, seed: int = 0
    ) -> Tensor:
        """Set thresholds, and weight and bias of the ridge.

        Parameters
        ----------
        x, mask : Tensor, shape (copies · n, L, C)
            All training series, then a changed copy of all, and so on.
        labels, weights : Tensor, shape (n,)
            Class or number of each series and what it counts.
        copies : int
            How many forms of each series there are, the first being the series itself. The ridge is fitted with and
            without the changed ones, and the better on series that are left out is kept.
        seed : int
            For the series whose responses set the thresholds.

        Returns
        -------
        Tensor, shape (n, K)
            Logits or numbers of each series by a ridge that was fitted without it.
        """
        generator = torch.Generator().manual_seed(seed)
        level, shape, observed = series_views(x, mask)
        for bank, view in ((self.level_bank, level), (self.shape_bank, shape)):
            bank.fit(view[: len(labels)], observed.any(1)[: len(labels)], generator)
        size = max(1, _BATCH_STEPS // x.shape[1])
        features = torch.cat([self.features(*chunk) for chunk in zip(x.split(size), mask.split(size), strict=True)])
        self.location.copy_(features.mean(0))
        self.scale.copy_(features.std(0, correction=0) + 1e-4)
        self.scale[-self.num_intervals :] /= _INTERVAL_WEIGHT
        standard = (features - self.location) / self.scale
        ridge = fit_ridge(standard[: len(labels)], labels, weights, num_classes=len(self.bias))
        if copies > 1:
            # Copies help where series of a class differ in speed, and harm where the moment of an event counts.
            warped = fit_ridge(standard, labels, weights, num_classes=len(self.bias), copies=copies)
            ridge = min(ridge, warped, key=lambda found: found.loss)
        self.weight.copy_(ridge.weight)
        self.bias.copy_(ridge.bias)
        return ridge.left_out

    def features(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Features [B, P] of series x [B, L, C] and mask, as they are before `location` and `scale`."""
        level, shape, observed = series_views(x, mask)
        real = observed.any(1)
        shares = self.level_bank(level, real), self.shape_bank(shape, real)
        return torch.cat([*shares, interval_statistics(level, real, self.depth)], 1)
