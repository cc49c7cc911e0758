"""MVPA's score with any table of distances, on PyTorch's fused attention.

The score is ``q·k + a[t − t'] + b[c, c']``: the time and channel terms are a mask that is added to the logits.
"""

from __future__ import annotations

from itertools import product

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.blocks import SwiGLU

_FAR = -1e4  # a logit that no weight is left for, also in 16 bits
_QUERIES, _LOGITS = 256, 300_000  # of a head, and of those that go through together: they stay in the cache


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
        channel_key = 0.3 * torch.randn(channel_rows, num_heads, self.head_dim)
        self.channel_key = nn.Parameter(channel_key) if channel_rows else None

    def forward(self, x: Tensor, real: Tensor, rows: Tensor, last: int | None = None) -> Tensor:
        """Map tokens [B, T, C, D] to the last [B, last, C, D]; `real` [B, T, C] marks keys, `rows` are distances."""
        B, T, C, D = x.shape
        last = T if last is None else last
        alone = self.channel_key is None
        if alone:
            x, real = rearrange(x, "b t c d -> (b c) t 1 d"), rearrange(real, "b t c -> (b c) t 1")
        qkv = self.qkv(x)
        q = rearrange(qkv[:, T - last :, :, :D], "b t c (h d) -> b h t c d", h=self.num_heads)
        key, value = rearrange(qkv[..., D:], "b t c (n h d) -> n (b h) (t c) d", n=2, h=self.num_heads)
        q, (u, v_bias, w) = q * self.head_dim**-0.5, self.biases[:, None, :, None, None] * self.head_dim**-0.5
        segment = torch.arange(T, device=x.device)
        most = (self.time_key.shape[0] - 1) // 2
        lag = (segment[T - last :, None] - segment).clamp(-most, most) + most  # [last, T]
        time = torch.einsum("bhtcd,tshd->bhtcs", q + v_bias, self.time_key[lag]).flatten(0, 1)[..., None]
        channel = None
        if self.channel_key is not None:
            channel = torch.einsum("bhtcd,rhd->bhtcr", q + w, self.channel_key)
            channel = channel.gather(4, rows[:, None, None].expand(*channel.shape[:4], C)).flatten(0, 1)[..., None, :]
        hidden = None
        if torch.compiler.is_compiling() or not bool(real.all()):
            hidden = torch.where(real, 0.0, _FAR).to(q.dtype).repeat_interleave(self.num_heads, 0)[:, None, None]
        query = (q + u).to(key.dtype).flatten(0, 1)  # [B·H, last, C, d]
        step = min(last, max(1, _QUERIES // x.shape[2]))
        heads = len(query) if x.is_cuda else max(1, _LOGITS // (step * x.shape[2] * key.shape[1]))
        out = torch.empty_like(query)
        for head, first in product(range(0, len(query), heads), range(0, last, step)):
            of_head = slice(head, head + heads)
            block = of_head, slice(first, first + step)
            mask = time[block] if channel is None else time[block] + channel[block]
            mask = mask if hidden is None else mask + hidden[of_head]
            mask = mask.expand(*mask.shape[:3], T, x.shape[2]).flatten(3, 4).flatten(1, 2).to(key.dtype)
            queries = query[block].flatten(1, 2)[None]
            keys, values = key[None, of_head], value[None, of_head]
            attended = F.scaled_dot_product_attention(queries, keys, values, mask[None], scale=1.0)
            out[block] = attended[0].unflatten(1, (-1, x.shape[2]))
        out = rearrange(out, "(b h) t c d -> b t c (h d)", h=self.num_heads)
        return self.out(rearrange(out, "(b c) t 1 d -> b t c d", b=B) if alone else out)


class PanelBlock(nn.Module):
    """``x + attention(norm(x)) + MLP(norm(x))``, as in MVPFormer."""

    def __init__(self, attention: PanelAttention, mlp: SwiGLU, dim: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor, real: Tensor, rows: Tensor, last: int | None = None) -> Tensor:
        """Map tokens [B, T, C, D] to [B, last, C, D], by default to all T."""
        normed = self.norm(x)
        first = 0 if last is None else x.shape[1] - last
        return x[:, first:] + self.attention(normed, real, rows, last) + self.mlp(normed[:, first:])
