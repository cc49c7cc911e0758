"""The classification network: an MVPA path over convolved tokens, and a path of fixed kernels, averaged."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.attention.functional import check_floats
from mvpa_ts.blocks import stack_of_whole_windows
from mvpa_ts.classification.configuration import ClassificationConfig
from mvpa_ts.classification.kernels import KernelPath
from mvpa_ts.classification.views import series_views

# Taps of the stem's convolutions, whose outputs are added, and of those after it.
_STEM_TAPS, _TAPS = (3, 9, 19), 7


class ClassificationNetwork(nn.Module):
    """Logits of the classes of each series, from two paths that are averaged in probability; or one number.

    The MVPA path reads tokens (segments × channels) from a convolutional stem with bidirectional MVPA blocks and pools
    them. The fixed-kernel path is a ridge classifier on shares of positive responses to fixed kernels; it is fitted in
    closed form (`KernelPath.fit`), not by gradients.

    Parameters
    ----------
    config : ClassificationConfig
    seed : int
        For the channels that the fixed kernels read.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts import ClassificationConfig, ClassificationNetwork
    >>> network = ClassificationNetwork(ClassificationConfig(num_channels=6, num_classes=4, length=100))
    >>> network(torch.randn(8, 100, 6)).shape
    torch.Size([8, 4])
    """

    def __init__(self, config: ClassificationConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.attention = AttentionPath(config)
        self.kernels = None
        # Of the fixed-kernel path in the average; training chooses it on what is held out.
        self.kernel_share = nn.Buffer(torch.tensor(0.5))
        if config.kernel_features:
            sizes = (config.num_channels, config.num_classes, config.length, config.kernel_features)
            self.kernels = KernelPath(*sizes, seed)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map series x [B, L, C], True = observed in mask [B, L, C], to logits [B, num_classes].

        With one class that is a number, the average of the paths' numbers.

        What x holds where nothing was observed does not matter, and steps missing at the end change nothing. Raises
        ValueError where x or mask does not fit.
        """
        check_floats("x", x, self.attention.head.weight)
        attended = self.attention(x, mask)
        convolved = None if self.kernels is None else self.kernels(x, mask)
        if self.config.regression:
            return attended if convolved is None else torch.lerp(attended, convolved, self.kernel_share)
        attended = attended.log_softmax(-1)
        if convolved is None:
            return attended
        convolved = convolved.log_softmax(-1)
        return torch.logaddexp(attended + torch.log1p(-self.kernel_share), convolved + self.kernel_share.log())

    def embed(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map series [B, L, C] to the features [B, D] that the output layer of the MVPA path reads."""
        return self.attention.encoder(*series_views(x, mask))


class AttentionPath(nn.Module):
    """The MVPA path: an encoder and a linear output layer."""

    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__()
        self.encoder = TokenEncoder(config)
        self.dropout = nn.Dropout(config.head_dropout)
        self.head = nn.Linear(self.encoder.embedding_size, config.num_classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map series x [B, L, C] and mask to logits [B, num_classes]."""
        return self.head(self.dropout(self.encoder(*series_views(x, mask))))


class TokenEncoder(nn.Module):
    """Convolutions at several widths, residual convolutions within token channels, MVPA, pooling."""

    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__()
        self.config = config
        C, W, D = config.channels, config.width, config.dim
        planes, most = 4 * config.num_channels, 4 * config.token_channels
        # Many channels are mixed first: convolutions over 963 channels would hold 61 million weights.
        self.mix = nn.Conv1d(planes, most, 1) if planes > most else nn.Identity()
        self.stem = nn.ModuleList(nn.Conv1d(min(planes, most), C * W, taps, padding=taps // 2) for taps in _STEM_TAPS)
        self.convolutions = nn.ModuleList(TokenConvolution(C, W, config.dropout) for _ in range(config.conv_layers))
        self.merge = nn.Linear(W * config.segment_stride, D)
        self.channel_embedding = nn.Parameter(torch.randn(C, D) * 0.02)
        self.segment_embedding = nn.Parameter(torch.randn(config.segments, 1, D) * 0.02)
        self.stack = stack_of_whole_windows(config, 2 * config.segments - 1, C)
        self.embedding_size = 2 * C * D

    def forward(self, level: Tensor, shape: Tensor, mask: Tensor) -> Tensor:
        """Map level, shape and mask [B, C, L] to features [B, embedding_size]."""
        config = self.config
        if level.shape[1] != config.num_channels:
            raise ValueError(f"x must have {config.num_channels} channels, got {level.shape[1]}")
        m = config.segment_stride
        x, real = self._positions(level, shape, mask)
        x = self.mix(x) * real[:, None]
        x = sum(convolution(x) for convolution in self.stem) * real[:, None]
        for convolution in self.convolutions:
            x = convolution(x, real)
        short = -x.shape[2] % m
        x, real = F.pad(x, (0, short)), F.pad(real, (0, short))
        x = rearrange(x, "b (c w) (t m) -> b t c (w m)", c=config.channels, m=m)
        real = rearrange(real, "b (t m) -> b t m", m=m).any(-1)
        # Attention knows lags only, but when something happens matters too where series begin with an event.
        rows = torch.arange(x.shape[1], device=x.device).clamp(max=config.segments - 1)
        features = self.stack(self.merge(x) + self.channel_embedding + self.segment_embedding[rows], segment_mask=real)
        gone = ~real[:, :, None, None]
        mean = features.masked_fill(gone, 0.0).sum(1) / real.sum(1)[:, None, None].clamp(min=1)
        most = features.masked_fill(gone, -torch.inf).amax(1)
        most = most.masked_fill(~real.any(1)[:, None, None], 0.0)
        return torch.cat([mean.flatten(1), most.flatten(1)], 1)

    def _positions(self, level: Tensor, shape: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Means of level and shape, spread and share of observed steps of each stride: [B, 4·C, P], real [B, P]."""
        s = self.config.stem_stride
        short = -level.shape[2] % s
        views = (level, shape, mask.to(level))
        level, shape, observed = (rearrange(F.pad(view, (0, short)), "b c (p s) -> b c p s", s=s) for view in views)
        count = observed.sum(-1)
        share = count.clamp(min=1)
        average = shape.sum(-1) / share
        spread = ((shape - average[..., None]) * observed).square().sum(-1) / share
        planes = [level.sum(-1) / share, average, (spread + 1e-6).sqrt() - 1e-3, count / s]
        return torch.cat(planes, 1), (count > 0).any(1)


class TokenConvolution(nn.Module):
    """A residual pair of convolutions over time within each token channel; x [B, C·W, P]."""

    def __init__(self, channels: int, width: int, dropout: float) -> None:
        super().__init__()
        self.channels = channels
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.first = nn.Conv1d(channels * width, channels * width, _TAPS, padding=_TAPS // 2, groups=channels)
        self.second = nn.Conv1d(channels * width, channels * width, _TAPS, padding=_TAPS // 2, groups=channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Map x [B, C·W, P] to the same shape, given the positions that are real, [B, P]."""
        keep = real[:, None]
        normed = rearrange(self.norm(rearrange(x, "b (c w) p -> b c p w", c=self.channels)), "b c p w -> b (c w) p")
        hidden = F.gelu(self.first(normed * keep)) * keep
        return (x + self.dropout(self.second(hidden))) * keep
