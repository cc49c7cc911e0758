"""
The attention in a module of your own
=====================================

`MVPAttention` is a layer like any other. Ten lines put it into a network of your own. Tokens lie on a grid of segments
× channels, and the same weights take any number of channels.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from mvpa_ts import MVPAttention


class Encoder(nn.Module):
    """Patches to features, one block."""

    def __init__(self, patch: int, dim: int, segments: int, channels: int) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, dim)
        self.attention = MVPAttention(dim, num_heads=4, causal=False, beyond="clamp")
        self.time_codebook = nn.Parameter(torch.randn(2 * segments - 1, dim))
        self.channel_codebook = nn.Parameter(torch.randn(channels, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x.unflatten(1, (-1, self.patch)).movedim(2, 3))  # [B, T, C, D]
        return tokens + self.attention(tokens, self.time_codebook, self.channel_codebook)


# %%
encoder = Encoder(patch=12, dim=32, segments=8, channels=7)
for channels in (3, 7, 21):
    print(channels, "channels:", tuple(encoder(torch.randn(2, 96, channels)).shape))

# %%
# In a single layer every token reads every other one. The picture shows how strongly the token in segment 3 of channel
# 2 depends on each of them, before any training.

patches = torch.randn(1, 96, 7, requires_grad=True)
encoder(patches)[0, 3, 2].sum().backward()
dependence = patches.grad[0].unflatten(0, (8, 12)).norm(dim=1)  # segments × channels
figure, axis = plt.subplots(figsize=(5, 3.5))
image = axis.imshow(dependence.mT.log10())
axis.set_xlabel("segment")
axis.set_ylabel("channel")
figure.colorbar(image, label="size of the gradient, log10")
plt.show()
