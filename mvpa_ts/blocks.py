"""The transformer block and the stack of blocks that all networks of this library are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mvpa_ts.attention.cache import KeyValueCache
from mvpa_ts.attention.module import MVPAttention


def zeroed(layer: nn.Linear) -> nn.Linear:
    """The layer with weights and biases of zero: what it adds to begins as it is."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class SwiGLU(nn.Module):
    """Gated MLP ``W2 (silu(Wg x) · Wu x)`` without biases."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden_dim, bias=False)
        self.up = nn.Linear(dim, hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        return self.down(self.dropout(F.silu(self.gate(x)) * self.up(x)))


class ParallelBlock(nn.Module):
    """``x + Dropout(attention(norm(x))) + MLP(norm(x))`` with one shared RMSNorm, as in MVPFormer.

    `attention` is an `MVPAttention` or a module that is called like one.
    """

    def __init__(self, attention: nn.Module, mlp: SwiGLU, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = attention
        self.mlp = mlp
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, time_codebook: Tensor | None, channel_codebook: Tensor | None, **masks: Any) -> Tensor:
        """Map tokens [B, T, C, D] to [B, T, C, D]; masks as in `MVPAttention.forward`."""
        normed = self.norm(x)
        return x + self.dropout(self.attention(normed, time_codebook, channel_codebook, **masks)) + self.mlp(normed)

    def step(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """Map a stream's newest segment [1 or 2, C, D], as `MVPAttention.step` does; for inference."""
        if not isinstance(self.attention, MVPAttention):
            raise TypeError(f"a stream needs MVPAttention in every block, got {type(self.attention).__name__}")
        normed = self.norm(x)
        return x + self.attention.step(normed, cache) + self.mlp(normed)


class MVPAStack(nn.Module):
    """Blocks that share a time and a channel codebook, and a final RMSNorm.

    Parameters
    ----------
    blocks : list of ParallelBlock
    dim : int
        Model width D.
    time_rows, channel_rows : int
        Rows of the codebooks: one for each lag and distance, signed ones counted twice but for zero. With 0 rows
        there is no codebook and the blocks receive None.

    Attributes
    ----------
    gradient_checkpointing : bool
        In training, keep only the input of each block and compute the rest again in the backward pass.
    """

    def __init__(self, blocks: list[ParallelBlock], dim: int, time_rows: int, channel_rows: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.time_codebook = nn.Parameter(torch.randn(time_rows, dim) * 0.02) if time_rows else None
        self.channel_codebook = nn.Parameter(torch.randn(channel_rows, dim) * 0.02) if channel_rows else None
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.gradient_checkpointing = False

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        """Map tokens [B, T, C, D] to features [B, T, C, D]; masks as in `MVPAttention.forward`."""
        again = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        if again and masks.get("generator") is not None:
            raise ValueError("gradient_checkpointing repeats draws of the default generator only: pass no generator")
        for block in self.blocks:
            if again:
                x = checkpoint(block, x, self.time_codebook, self.channel_codebook, use_reentrant=False, **masks)
            else:
                x = block(x, self.time_codebook, self.channel_codebook, **masks)
        return self.norm(x)


def stack_of_whole_windows(config: Any, time_rows: int, channel_rows: int, **distance: Any) -> MVPAStack:
    """The stack of a network that reads a window at once, by the sizes in its configuration.

    `distance` are options of `MVPAttention` for the distance of channels.
    """
    blocks = []
    for _ in range(config.num_layers):
        attention = MVPAttention(
            config.dim,
            config.num_heads,
            causal=False,
            components=config.components,
            dropout=config.attention_dropout,
            beyond="clamp",
            **distance,
        )
        mlp = SwiGLU(config.dim, config.mlp_dim, config.dropout)
        blocks.append(ParallelBlock(attention, mlp, config.dim, config.dropout))
    return MVPAStack(blocks, config.dim, time_rows=time_rows, channel_rows=channel_rows)
