"""Attention of the last segment alone against that segment's row of the whole."""

import pytest
import torch
from einops import rearrange

from mvpa_ts import mvpa_attention
from mvpa_ts.attention.last_segment import last_segment_attention

d = 5


@pytest.mark.parametrize("components", [("content", "time", "channel"), ("content",), ("time", "channel"), ()], ids=str)
@pytest.mark.parametrize("window", [None, 0, 2])
@pytest.mark.parametrize(("T", "C", "heads", "kv_heads"), [(1, 1, 2, 2), (6, 4, 4, 2), (3, 7, 6, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_last_row_of_the_whole(T, C, heads, kv_heads, window, components, masked):
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key, value = make(1, T, C, heads, d), make(1, T, C, kv_heads, d), make(1, T, C, kv_heads, d)
    tables = make(T + 2, kv_heads, d), make(C + 1, kv_heads, d)
    biases = make(3, kv_heads, d)
    real = torch.rand(T, C, generator=generator) > 0.3 if masked else None
    if real is not None:
        for tensor in (query, key, value):
            tensor[0, ~real] = torch.nan
    whole = mvpa_attention(
        query,
        key,
        value,
        *tables,
        *biases,
        window=window,
        components=components,
        token_mask=None if real is None else real[None],
        impl="reference",
    )
    last = last_segment_attention(
        query[0, -1],
        *(rearrange(tensor[0], "t c k d -> k t c d") for tensor in (key, value)),
        *tables,
        *biases,
        window=window,
        components=components,
        real=real,
    )
    torch.testing.assert_close(last, whole[0, -1], atol=1e-12, rtol=1e-10)
