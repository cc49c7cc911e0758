"""Classifiers that MVPA is compared with: two transformers, MiniRocket, and nearest neighbours under DTW."""

from __future__ import annotations

import math

import numpy as np
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F


def _encoder(dim: int, heads: int, layers: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.1, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _pooled(tokens: Tensor, real: Tensor) -> Tensor:
    """Mean over real tokens: [B, N, D], [B, N] -> [B, D]."""
    return (tokens * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)


class PatchTransformer(nn.Module):
    """PatchTST for classification (Nie et al. 2023): patches of each channel by itself, all joined in the head.

    Patches of 16 steps every 8, fewer where series are short; width 64, two layers. Series are not normalised one by
    one as in forecasting, because classes may differ in level. What a test series has beyond the longest training
    series is added to its last patch.
    """

    def __init__(self, num_channels: int, num_classes: int, length: int, dim: int = 64) -> None:
        super().__init__()
        self.patch = min(16, max(2, length // 4))
        self.stride = max(1, self.patch // 2)
        self.embed = nn.Linear(self.patch, dim)
        self.positions = nn.Parameter(torch.randn(math.ceil(length / self.stride), dim) * 0.02)
        self.encoder = _encoder(dim, 4, 2)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(num_channels * len(self.positions) * dim, num_classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map x [B, L, C] and mask to logits [B, K]."""
        B, L, C = x.shape
        short = (math.ceil(L / self.stride) - 1) * self.stride + self.patch - L  # a patch starts at every stride
        patches = F.pad(x.mT, (0, short)).unfold(2, self.patch, self.stride)
        real = F.pad(mask.mT, (0, short)).unfold(2, self.patch, self.stride).any(-1)
        real = rearrange(real, "b c n -> (b c) n")
        rows = torch.arange(patches.shape[2]).clamp(max=len(self.positions) - 1)
        tokens = self.embed(rearrange(patches, "b c n p -> (b c) n p")) + self.positions[rows]
        attended = real | ~real.any(1, keepdim=True)  # a channel without any value attends to its empty patches
        tokens = self.encoder(tokens, src_key_padding_mask=~attended)
        places = tokens.new_zeros(B * C, *self.positions.shape).index_add(1, rows, tokens * real[..., None])
        return self.head(self.dropout(rearrange(places, "(b c) n d -> b (c n d)", b=B)))


class StepTransformer(nn.Module):
    """The plain Transformer encoder: one token a step, all channels embedded by a convolution of three steps."""

    def __init__(self, num_channels: int, num_classes: int, length: int, dim: int = 64) -> None:
        super().__init__()
        self.embed = nn.Conv1d(num_channels, dim, 3, padding=1)
        position = torch.arange(4 * length)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.register_buffer("positions", torch.stack([position.sin(), position.cos()], -1).flatten(1))
        self.encoder = _encoder(dim, 4, 2)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map x [B, L, C] and mask to logits [B, K]."""
        real = mask.any(2)
        tokens = self.embed(x.mT).mT + self.positions[: x.shape[1]]
        return self.head(self.dropout(_pooled(self.encoder(tokens, src_key_padding_mask=~real), real)))


def minirocket_scores(train: list[np.ndarray], labels: np.ndarray, test: list[np.ndarray], seed: int) -> np.ndarray:
    """Scores [n, K] of sktime's MiniRocket (10 000 features) and a ridge classifier, the usual pair."""
    import pandas as pd
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sktime.transformations.panel.rocket import MiniRocketMultivariate, MiniRocketMultivariateVariable

    unequal = len({one.shape[1] for one in (*train, *test)}) > 1
    if unequal:
        transform = MiniRocketMultivariateVariable(random_state=seed, pad_value_short_series=0.0)
        parts = [pd.DataFrame([[pd.Series(channel) for channel in one] for one in series]) for series in (train, test)]
    else:
        transform = MiniRocketMultivariate(random_state=seed)
        parts = [np.stack(series).astype(np.float32) for series in (train, test)]
    transform.fit(parts[0])
    features = [np.asarray(transform.transform(part)) for part in parts]
    classifier = make_pipeline(StandardScaler(with_mean=False), RidgeClassifierCV(alphas=np.logspace(-3, 3, 10)))
    classifier.fit(features[0], labels)
    scores = classifier.decision_function(features[1])
    return scores if scores.ndim == 2 else np.stack([-scores, scores], 1)


def dtw_neighbours(train: list[np.ndarray], test: list[np.ndarray]) -> np.ndarray:
    """The training series nearest to each test series under dependent DTW without a window, on raw values."""
    from numba import njit

    @njit(fastmath=True)
    def distance(a: np.ndarray, b: np.ndarray, best: float) -> float:
        above = np.full(b.shape[0] + 1, np.inf)
        above[0] = 0.0
        for i in range(a.shape[0]):
            row, left, least = np.full(b.shape[0] + 1, np.inf), np.inf, np.inf
            for j in range(b.shape[0]):
                cost = 0.0
                for c in range(a.shape[1]):
                    cost += (a[i, c] - b[j, c]) ** 2
                left = cost + min(left, above[j], above[j + 1])
                row[j + 1] = left
                least = min(least, left)
            if least > best:  # no path from here can win
                return np.inf
            above = row
        return above[-1]

    nearest = np.empty(len(test), dtype=np.int64)
    references = [np.ascontiguousarray(one.T) for one in train]
    for row, one in enumerate(test):
        best, query = np.inf, np.ascontiguousarray(one.T)
        for index, reference in enumerate(references):
            found = distance(query, reference, best)
            if found < best:
                best, nearest[row] = found, index
    return nearest
