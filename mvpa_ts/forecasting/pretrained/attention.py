"""MVPA's score with any table of distances, on PyTorch's fused attention.

The score is ``q·k + a[t − t'] + b[c, c']``: the time and channel terms are a mask that is added to the logits.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.blocks import SwiGLU

_FAR = -1e4  # a logit that no weight is left for, also in 16 bits
_QUERIES = 128  # per head that go through together: their mask stays in the cache


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
        q, (u, v_bias, w) = q * self.head_dim**-0.5, self.biases[:, None, :, None, None] * self.head_dim**-0.5
        segment = torch.arange(T, device=x.device)
        most = (self.time_key.shape[0] - 1) // 2
        lag = (segment[:, None] - segment).clamp(-most, most) + most  # [T, T]
        time = torch.einsum("bhtcd,rhd->bhtcr", q + v_bias, self.time_key)
        time = time.gather(4, lag[:, None].expand(*time.shape[:4], T))[..., None]  # [B, H, T, C, T, 1]
        if self.channel_key is not None:
            channel = torch.einsum("bhtcd,rhd->bhtcr", q + w, self.channel_key)
            channel = channel.gather(4, rows[:, None, None].expand(*channel.shape[:4], C))[..., None, :]
        hidden = None
        if torch.compiler.is_compiling() or not bool(real.all()):
            hidden = torch.where(real, 0.0, _FAR)[:, None, None, None].to(q.dtype)
        query, key, value = (q + u).to(k.dtype), k.flatten(2, 3), v.flatten(2, 3)
        outputs = []
        step = max(1, _QUERIES // x.shape[2])
        for first in range(0, T, step):
            here = slice(first, first + step)
            mask = time[:, :, here] if self.channel_key is None else time[:, :, here] + channel[:, :, here]
            mask = mask if hidden is None else mask + hidden
            mask = mask.flatten(4, 5).flatten(2, 3).to(k.dtype)
            queries = query[:, :, here].flatten(2, 3)
            outputs.append(F.scaled_dot_product_attention(queries, key, value, mask, scale=1.0))
        out = torch.cat(outputs, 2)
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
