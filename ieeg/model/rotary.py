"""Ordinary attention with rotary positions: the MV-Llama ablation of MVPFormer, whose code is not published.

The paper names "vanilla positional encoding" at the Cantor index; that it is rotary is our reading.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.attention.functional import merged_mask


def cantor_pairing(segment: Tensor, channel: Tensor) -> Tensor:
    """One number for a pair of numbers, (t + c)(t + c + 1)/2 + c; no two pairs share one.

    >>> import torch
    >>> cantor_pairing(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 0, 1, 0]))
    tensor([0, 1, 2, 3])
    """
    diagonal = segment + channel
    return diagonal * (diagonal + 1) // 2 + channel


class RotaryAttention(nn.Module):
    """Attention over all tokens of this segment and earlier ones, with rotary positions on the Cantor pairing.

    It is called like `mvpa_ts.MVPAttention` and ignores the codebooks. Positions count from a sample's first real
    segment and channel, so padding changes nothing.

    Parameters
    ----------
    dim : int
        Model width D.
    num_heads, num_kv_heads : int
        Query heads, and key/value heads that they share.
    dropout : float, default 0.0
        Of single weights, in training.

    Examples
    --------
    >>> import torch
    >>> RotaryAttention(32, num_heads=4, num_kv_heads=2)(torch.randn(1, 6, 5, 32)).shape
    torch.Size([1, 6, 5, 32])
    """

    def __init__(self, dim: int, num_heads: int, num_kv_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def forward(
        self,
        x: Tensor,
        time_codebook: Tensor | None = None,
        channel_codebook: Tensor | None = None,
        *,
        channel_mask: Tensor | None = None,
        segment_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend within x [B, T, C, D]; masks as in `mvpa_ts.MVPAttention`."""
        B, T, C, _ = x.shape
        real = merged_mask((B, T, C), channel_mask, segment_mask, token_mask)
        if real is not None:
            x = x.masked_fill(~real[..., None], 0.0)
        layers = (self.query, self.key, self.value)
        query, key, value = (rearrange(layer(x), "b t c (h d) -> b h (t c) d", d=self.head_dim) for layer in layers)
        # One position for a pair of segment and channel, because rotary embeddings know one axis only.
        rotation = self._rotation(T, C, real, x.device)
        segment = torch.arange(T, device=x.device).repeat_interleave(C)
        allowed = segment[:, None] >= segment  # [N, N]
        if real is not None:
            keys = rearrange(real, "b t c -> b 1 1 (t c)")
            # Queries that are not real see themselves, as no row may be empty; their output is cleared.
            allowed = (allowed & keys) | torch.eye(T * C, dtype=torch.bool, device=x.device)
        attended = F.scaled_dot_product_attention(
            _rotate(query, rotation),
            _rotate(key, rotation),
            value,
            attn_mask=allowed,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=True,
        )
        output = self.output(rearrange(attended, "b h (t c) d -> b t c (h d)", t=T))
        return output if real is None else output.masked_fill(~real[..., None], 0.0)

    def _rotation(self, T: int, C: int, real: Tensor | None, device: torch.device) -> Tensor:
        """Angles [B or 1, 1, N, d/2] in float32."""
        segment = torch.arange(T, device=device).view(1, T, 1)
        channel = torch.arange(C, device=device).view(1, 1, C)
        if real is not None:
            # Padding at the start or before the first channel must not move the positions of what is real.
            segment = (segment - real.any(2).int().argmax(1).view(-1, 1, 1)).clamp(min=0)
            channel = (channel - real.any(1).int().argmax(1).view(-1, 1, 1)).clamp(min=0)
        position = rearrange(cantor_pairing(segment, channel), "b t c -> b 1 (t c) 1")
        exponent = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32) / self.head_dim
        return position * 10_000.0**-exponent


def _rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i + d/2}) of x [B, H, N, d] by angle [B, 1, N, d/2]."""
    # Angles in float32: at position 10,000 bfloat16 would be wrong by whole turns.
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
