"""What the linear path reads beside a channel's own look-back: other channels, and features that change with time."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.forecasting.network.configuration import DENSE_LIMIT
from mvpa_ts.windows import Windows

# Scores are the parameters times this, so that one learning rate suits scores and maps: with 1 the heads of the
# travelling wave (experiments/results/structure/structure.md in commit f1028d9) stay half as sharp after 400 steps.
_SHARPNESS = 3.0
_VECTOR_SIZE = 8
# Share of training steps without channel vectors, so that the network also learns to do without them.
_WITHOUT_VECTORS = 0.3
# Share of the learning rate that maps of features have. With all of it the error on 100 windows of the US macroeconomy
# rises from .373 to .414 on validation; with .1 that of a driver rises from .494 to .511
# (experiments/results/structure/structure.md in commit f1028d9).
FEATURE_RATE = 0.3
_FEATURE_MAPS = 4  # that channels combine
# Of `mixing_share`: windows from which and up to which it asks, those that it reads, and channels that it forecasts.
_LEAST_WINDOWS, _MOST_WINDOWS, _READ_WINDOWS, _ASKED_CHANNELS = 100, 1000, 256, 16
# Share of the error, times the windows, that unrelated walks take from each other by chance; the least share.
_CHANCE, _LEAST_SHARE = 6.0, 0.1
_RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0)
_WEIGHTS_OF_OTHERS = (0.1, 1.0)  # of the kernel, beside a channel's own look-back
_LEAST_SIZE = 1e-12  # of what is divided by


class ChannelMixing(nn.Module):
    """Heads that average the look-backs of channels and map them linearly to the horizon.

    The weights are a softmax over scores that do not depend on the data: one score per distance, ``w·K[c − c']``, plus
    a product of two channel vectors, ``q_c·k_c'``. These are the terms of the MVPA score for queries that are learnt
    once. A head's map has a column for every step of the look-back, so the lag needs no table of its own.

    One more score a head stands for reading nothing, whose value is zero. At the end of a row of channels there is no
    neighbour. Without this score a head would have to read another channel in its place.

    Head 0 starts at the channel itself, heads 1, 2, 3, … at distances +1, −1, +2, …. If all started alike, or at
    random, the heads of a short training would stay blurred. The maps start at zero.

    Without vectors and positions the cost is linear in the number of channels: those beyond the table share its end
    rows and enter by two running sums.

    Parameters
    ----------
    heads : int
    lookback, outputs : int
        Steps that are read, L, and numbers that are written for each channel, K.
    max_channels : int
        Rows R of the table on each side; channels further apart share the last row. Rows that no training window
        reached are read as the furthest one that was.
    channel_distance : {"absolute", "signed"}
    channels : int, optional
        Number of channels with vectors of their own.
    coordinates : int
        Numbers in a channel's position. With positions, heads look at places relative to the channel, each with a
        centre and a width that are learnt, instead of at distances in the order of channels.
    """

    def __init__(
        self,
        heads: int,
        lookback: int,
        outputs: int,
        *,
        max_channels: int = 32,
        channel_distance: Literal["absolute", "signed"] = "signed",
        channels: int | None = None,
        coordinates: int = 0,
    ) -> None:
        super().__init__()
        self.signed, self.max_channels, self.channels = channel_distance == "signed", max_channels, channels
        self.maps = nn.Parameter(torch.zeros(heads, lookback, outputs))
        starts = torch.tensor([(head + 1) // 2 * (1 if head % 2 else -1) for head in range(heads)])
        if coordinates:
            # In units of the distance to the nearest channel; each head starts along one of the coordinates.
            centre = torch.zeros(heads, coordinates)
            centre[torch.arange(heads), (torch.arange(heads) + 1) // 2 % coordinates] = starts / coordinates
            self.centre, self.log_width = nn.Parameter(centre), nn.Parameter(torch.zeros(heads, coordinates))
        else:
            rows = torch.arange(1 - max_channels if self.signed else 0, max_channels)
            starts = starts if self.signed else torch.arange(heads)
            scores = -(rows - starts[:, None]).square().clamp(max=4) + 0.1 * torch.randn(heads, len(rows))
            self.distance_score = nn.Parameter(scores / _SHARPNESS)
        self.nothing_score = nn.Parameter(torch.zeros(heads))
        if channels is not None:
            self.channel_query = nn.Parameter(torch.randn(channels, heads, _VECTOR_SIZE))
            self.channel_key = nn.Parameter(torch.randn(channels, heads, _VECTOR_SIZE) * 0.3)
        self.reach = nn.Buffer(torch.zeros(()))  # a float, for averages of buffers

    def forward(
        self,
        x: Tensor,
        *,
        series: Tensor | None = None,
        positions: Tensor | None = None,
        distances: bool = True,
        vectors: bool = True,
    ) -> Tensor:
        """Map look-backs [B, L, C] to [B, C, K].

        Parameters
        ----------
        series : integer Tensor, shape (C,), optional
            Which vector each channel has; −1 is a channel that was not there in training, without one.
        positions : Tensor, shape (C, k), optional
        distances, vectors : bool
            Terms of the score that count.
        """
        B, L, C = x.shape
        H, _, K = self.maps.shape
        if self.training:
            # Counted as a tensor: torch.compile would make a graph for each number of channels of clamp_(min=C).
            self.reach.copy_(torch.maximum(self.reach, self.reach.new_ones(C).sum()))
        near = self._identities(C, series) if vectors else None
        if near is None and positions is None and C / self.max_channels > DENSE_LIMIT:
            return self._linear(x, distances)
        score = x.new_zeros(H, C, C)
        if distances:
            score = score + (self._distance_scores(C) if positions is None else self._position_scores(positions))
        if near is not None:
            score = score + near
        if self.training:
            score = score + self._unread(distances, near is not None)
        nothing = (_SHARPNESS * self.nothing_score)[:, None, None].expand(H, C, 1)
        weights = torch.cat([score, nothing], dim=-1).softmax(-1)[..., :C]
        if K <= L:  # the smaller of the two is mixed
            mapped = torch.einsum("blc,hlk->bhck", x, self.maps)
            return weights.transpose(0, 1).reshape(C, H * C) @ mapped.reshape(B, H * C, K)
        gathered = torch.einsum("hce,ble->bchl", weights, x)
        return gathered.reshape(B, C, H * L) @ self.maps.reshape(H * L, K)

    def _rows(self, distance: Tensor) -> Tensor:
        trained = torch.where(self.reach > 0.0, self.reach.round(), float(self.max_channels))
        reach = (trained.clamp(max=self.max_channels) - 1.0).to(distance.dtype)
        distance = torch.minimum(torch.maximum(distance, -reach), reach)
        return distance + self.max_channels - 1 if self.signed else distance.abs()

    def _distance_scores(self, C: int) -> Tensor:
        channel = torch.arange(C, device=self.maps.device)
        return _SHARPNESS * self.distance_score[:, self._rows(channel[:, None] - channel)]

    def _position_scores(self, positions: Tensor) -> Tensor:
        offset = positions[:, None] - positions
        far = torch.linalg.vector_norm(offset, dim=-1) + torch.diag(positions.new_full((len(positions),), torch.inf))
        # ONNX has neither cdist nor a median.
        unit = far.amin(1).sort().values[(len(far) - 1) // 2] if len(far) > 1 else far.new_ones(())
        offset = offset / unit.clamp(min=torch.finfo(unit.dtype).eps)
        away = (offset - self.centre[:, None, None]) * (-self.log_width[:, None, None]).exp()
        return -away.square().sum(-1)

    def _identities(self, C: int, series: Tensor | None) -> Tensor | None:
        """Scores from channel vectors [H, C, C]; None where no channel has any."""
        if self.channels is None or (series is None and self.channels != C):
            return None
        query: Tensor = self.channel_query
        key: Tensor = self.channel_key
        if series is not None:
            trained = (series >= 0)[:, None, None]
            query, key = query[series.clamp(min=0)] * trained, key[series.clamp(min=0)] * trained
        product = torch.einsum("chd,ehd->hce", query, key) * (2.0 * _VECTOR_SIZE**-0.5)
        return product * kept(product) if self.training else product

    def _unread(self, distances: bool, vectors: bool) -> Tensor:
        # Data-parallel training waits for the gradient of every parameter: those that no score reads get one of zero.
        names = () if distances else ("distance_score", "centre", "log_width")
        names = names if vectors else (*names, "channel_query", "channel_key")
        parameters = [parameter for name, parameter in self.named_parameters() if name in names]
        return 0.0 * sum((parameter.sum() for parameter in parameters), self.nothing_score.new_zeros(()))

    def _linear(self, x: Tensor, distances: bool) -> Tensor:
        """As `forward`, with a sum over the table's distances and running sums beyond."""
        B, _, C = x.shape
        H, _, K = self.maps.shape
        R = self.max_channels - 1
        offsets = torch.arange(R, -R - 1, -1, device=x.device)  # of the key, seen from the query: c − c'
        score = self.distance_score[:, self._rows(offsets)] * (_SHARPNESS if distances else 0.0)
        nothing = _SHARPNESS * self.nothing_score[:, None]
        largest = torch.maximum(score.amax(1, keepdim=True), nothing)
        weight = (score - largest).exp()  # [H, 2R + 1], of keys from c − R to c + R
        mapped = torch.einsum("blc,hlk->bkhc", x, self.maps).reshape(B * K, H, C)
        values = torch.cat([mapped, x.new_ones(1, H, C)])
        near = F.conv1d(values, weight[:, None], padding=R, groups=H)
        before = F.pad(values.cumsum(-1)[..., : -R - 1], (R + 1, 0))  # sums over keys up to c − R − 1
        after = F.pad(values.flip(-1).cumsum(-1).flip(-1)[..., R + 1 :], (0, R + 1))
        sums = near + weight[:, :1] * before + weight[:, -1:] * after
        mixed, total = sums.split([B * K, 1])
        total = total + (nothing - largest).exp()
        return (mixed / total).reshape(B, K, H, C).sum(2).mT


class FeatureMaps(nn.Module):
    """Linear maps of a channel's features over a window to its horizon, combined by learnt weights of the channel.

    A driver reaches each channel at a lag and with a weight of its own, which one map for all channels would blur.

    Parameters
    ----------
    size, outputs : int
        Numbers that are read, F, and written for each channel, K.
    channels : int
        Number of channels with weights of their own.
    """

    def __init__(self, size: int, outputs: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.maps = nn.Parameter(torch.zeros(_FEATURE_MAPS, size, outputs))
        self.channel_weight = nn.Parameter(torch.randn(channels, _FEATURE_MAPS) * 0.5)

    def forward(self, features: Tensor, shared: Tensor, series: Tensor | None = None) -> Tensor:
        """Map features [B, C, F] to [B, C, K] by a `shared` map [F, K] and by these; `series` as in `ChannelMixing`.

        A channel that was not there in training has the shared map alone.
        """
        features = FEATURE_RATE * features
        mapped = features @ shared
        if series is None and self.channels != features.shape[1]:
            return mapped
        weight: Tensor = self.channel_weight
        if self.training:
            weight = weight * kept(weight)
        if series is not None:
            weight = weight[series.clamp(min=0)] * (series >= 0)[:, None]
        return mapped + torch.einsum("bcf,rfk,cr->bck", features, self.maps, weight)


def kept(like: Tensor) -> Tensor:
    """0 in the share of training steps that do without channel vectors, else 1.

    A factor, not a branch: a compiled graph cannot branch on a draw, and data-parallel training waits for the gradient
    of every parameter, if only zero.
    """
    return (torch.rand(()) >= _WITHOUT_VECTORS).to(like)


@torch.no_grad()
def mixing_share(windows: Windows) -> float:
    """Share of the learning rate that `ChannelMixing` should have: less where no channel tells of another.

    On a few hundred windows heads learn by heart what unrelated channels seem to tell of each other. So a ridge
    regression is asked first: it forecasts each quarter of the windows from the other three, from a channel's own
    look-back and from that of all channels. The share rises from .1 to 1 with the part of the squared error that other
    channels take away: from what unrelated walks take by chance, 2 % with 300 windows, to twice as much.

    Parameters
    ----------
    windows : Windows
        To train on. A missing value is read as the last one before it.

    Returns
    -------
    float
        1 with a single channel; with fewer windows than 100 or than four horizons have steps, which say too little;
        and with more than 1000, which are not soon learnt by heart.

    Examples
    --------
    >>> import torch
    >>> source = torch.randn(340, generator=torch.Generator().manual_seed(0))
    >>> leader, follower = source[20:].cumsum(0), source[:-20].cumsum(0)
    >>> def share(values):
    ...     return round(mixing_share(Windows(values, torch.arange(280), lookback=30, horizon=10)), 2)
    >>> share(torch.stack([leader, follower], dim=1))
    1.0
    >>> share(torch.randn(320, 2, generator=torch.Generator().manual_seed(1)).cumsum(0))
    0.1
    """
    C, count = windows.values.shape[1], len(windows)
    if C < 2 or not max(_LEAST_WINDOWS, 4 * windows.horizon) <= count <= _MOST_WINDOWS:
        return 1.0
    inside = windows.rows_inside().cpu()  # not the rows that are held out
    windows = windows.thinned(-(-count // _READ_WINDOWS))
    channels = torch.linspace(0, C - 1, min(C, _ASKED_CHANNELS)).round().long().unique().tolist()
    starts, quarter = windows.starts.cpu(), torch.arange(len(windows)) * 4 // len(windows)
    total, kernels, truths = torch.zeros(len(windows), len(windows), dtype=torch.float64), {}, {}
    for channel in range(C):  # one by one, for a thousand of them would fill the memory
        past, ahead = _changes(windows, channel, inside)
        kernel = past @ past.T
        total += kernel
        if channel in channels:
            kernels[channel], truths[channel] = kernel, ahead
    errors = torch.zeros(len(channels), 1 + len(_WEIGHTS_OF_OTHERS), len(_RIDGES), dtype=torch.float64)
    for row, channel in enumerate(channels):
        alone, others = kernels[channel], total - kernels[channel]
        for column, weight in enumerate((0.0, *_WEIGHTS_OF_OTHERS)):
            kernel = _of_unit_size(alone) + weight * _of_unit_size(others)
            for number in range(4):
                left_out = quarter == number
                first, last = starts[left_out].min(), starts[left_out].max()
                # Windows whose targets lie among those of the quarter would give them away.
                outside = (starts <= first - windows.horizon) | (starts >= last + windows.horizon)
                truth, truth_of_others = truths[channel][left_out], truths[channel][outside]
                values, vectors = torch.linalg.eigh(kernel[outside][:, outside])
                read, coefficients = kernel[left_out][:, outside] @ vectors, vectors.T @ truth_of_others
                for place, ridge in enumerate(_RIDGES):
                    forecast = read @ (coefficients / (values[:, None].clamp(min=0.0) + ridge))
                    errors[row, column, place] += (truth - forecast).square().sum()
    alone, together = errors[:, 0].amin(1).sum(), errors[:, 1:].amin((1, 2)).sum()
    gain = float((alone - together) / alone.clamp(min=_LEAST_SIZE))
    return min(max(gain * count / _CHANCE - 1.0, _LEAST_SHARE), 1.0)


def _changes(windows: Windows, channel: int, inside: Tensor) -> tuple[Tensor, Tensor]:
    """A channel's look-backs [n, L] and horizons [n, h] less the look-back's last value, in deviations of `inside`."""
    L = windows.lookback
    values = windows.values[:, channel].cpu().double()
    if windows.observed is not None:
        # The row of the last observed value up to each; before the first one, that of the first.
        observed = windows.observed[:, channel].cpu()
        last = torch.where(observed, torch.arange(len(values)), -1).cummax(0).values
        values = values[torch.where(last < 0, observed.long().argmax(), last)]
    values = values / values[inside].std().clamp(min=_LEAST_SIZE)
    cut = values[windows.starts.cpu()[:, None] + torch.arange(L + windows.horizon)]
    cut = cut - cut[:, L - 1 : L]
    return cut[:, :L], cut[:, L:]


def _of_unit_size(kernel: Tensor) -> Tensor:
    return kernel / kernel.diagonal().mean().clamp(min=_LEAST_SIZE)
