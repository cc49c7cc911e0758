"""MVPA's score with any table of distances, on PyTorch's fused attention.

The score ``q·k + a[t − t'] + b[c, c']`` is plain attention with longer heads: a key carries a one-hot vector of its
segment and one of its channel, a query the scores of its time and channel terms for each segment and channel.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.blocks import SwiGLU

_FAR = -1e4  # a logit that no weight is left for, also in 16 bits


class PanelAttention(nn.Module):
    """Attention over the tokens of one series, or over those of all series of a panel.

    Parameters
    ----------
    dim, num_heads : int
    time_rows : int
        Rows of the table of signed lags; tokens further apart share the last.
    channel_rows : int
        Rows of the table of distances; 0: it reads each series alone.
    """

    def __init__(self, dim: int, num_heads: int, time_rows: int, channel_rows: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.biases = nn.Parameter(torch.zeros(3, num_heads, self.head_dim))  # u, v, w
        self.time_key = nn.Parameter(0.3 * torch.randn(time_rows, num_heads, self.head_dim))
        self.channel_key = (
            nn.Parameter(0.3 * torch.randn(channel_rows, num_heads, self.head_dim)) if channel_rows else None
        )

    def forward(self, x: Tensor, real: Tensor, rows: Tensor) -> Tensor:
        """Map tokens [B, T, C, D] to [B, T, C, D]; `real` [B, T, C] marks keys, `rows` [B, C, C] the distances."""
        B, T, C, _ = x.shape
        alone = self.channel_key is None
        if alone:
            x, real = rearrange(x, "b t c d -> (b c) t 1 d"), rearrange(real, "b t c -> (b c) t 1")
        q, k, v = rearrange(self.qkv(x), "b t c (n h d) -> n b h t c d", n=3, h=self.num_heads)
        u, v_bias, w = self.biases[:, None, :, None, None]
        parts_q, parts_k = [q + u], [k]
        segment = torch.arange(T, device=x.device)
        most = (self.time_key.shape[0] - 1) // 2
        lag = (segment[:, None] - segment).clamp(-most, most) + most  # [T, T]
        scores = torch.einsum("bhtcd,rhd->bhtcr", q + v_bias, self.time_key)
        parts_q.append(scores.gather(4, lag[:, None].expand(*scores.shape[:4], T)))
        parts_k.append(torch.eye(T, device=x.device, dtype=k.dtype)[:, None].expand(*k.shape[:4], T))
        if self.channel_key is not None:
            scores = torch.einsum("bhtcd,rhd->bhtcr", q + w, self.channel_key)
            parts_q.append(scores.gather(4, rows[:, None, None].expand(*scores.shape[:4], C)))
            parts_k.append(torch.eye(C, device=x.device, dtype=k.dtype).expand(*k.shape[:4], C))
        parts_q.append(torch.ones_like(q[..., :1]))
        parts_k.append(torch.where(real, 0.0, _FAR)[:, None, ..., None].to(k.dtype).expand(*k.shape[:4], 1))
        width = sum(tensor.shape[4] for tensor in parts_k)
        padding = -width % 8
        dtype = q.dtype
        query, key = (
            F.pad(torch.cat([tensor.to(dtype) for tensor in parts], 4), (0, padding)).flatten(2, 3)
            for parts in (parts_q, parts_k)
        )
        # Fused kernels take values of the width of the keys.
        value = F.pad(v, (0, width + padding - self.head_dim)).flatten(2, 3)
        out = F.scaled_dot_product_attention(query, key, value, scale=self.head_dim**-0.5)[..., : self.head_dim]
        out = rearrange(out, "b h (t c) d -> b t c (h d)", t=T)
        return self.out(rearrange(out, "(b c) t 1 d -> b t c d", b=B) if alone else out)


class PanelBlock(nn.Module):
    """``x + attention(norm(x)) + MLP(norm(x))``, as in MVPFormer."""

    def __init__(self, attention: PanelAttention, mlp: SwiGLU, dim: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor, real: Tensor, rows: Tensor) -> Tensor:
        """Map tokens [B, T, C, D] to [B, T, C, D]."""
        normed = self.norm(x)
        return x + self.attention(normed, real, rows) + self.mlp(normed)
