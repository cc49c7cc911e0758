"""Attention of the pretrained forecaster against its definition, pair by pair."""

import pytest
import torch

from mvpa_ts.forecasting.pretrained.attention import PanelAttention


def by_pairs(attention, x, real, rows):
    B, T, C, _ = x.shape
    H, d = attention.num_heads, attention.head_dim
    q, k, v = attention.qkv(x).view(B, T, C, 3, H, d).unbind(3)
    u, v_bias, w = attention.biases
    most = (len(attention.time_key) - 1) // 2
    out = torch.zeros(B, T, C, H, d, dtype=x.dtype)
    for b, t, c, h in torch.cartesian_prod(*(torch.arange(size) for size in (B, T, C, H))).tolist():
        keys = [
            (s, e)
            for s in range(T)
            for e in range(C)
            if real[b, s, e] and (attention.channel_key is not None or e == c)
        ]
        scores = []
        for s, e in keys:
            query = q[b, t, c, h]
            score = (query + u[h]) @ k[b, s, e, h]
            score = score + (query + v_bias[h]) @ attention.time_key[max(-most, min(most, t - s)) + most, h]
            if attention.channel_key is not None:
                score = score + (query + w[h]) @ attention.channel_key[rows[b, c, e], h]
            scores.append(score)
        weights = (torch.stack(scores) / d**0.5).softmax(0)
        out[b, t, c, h] = sum(weight * v[b, s, e, h] for weight, (s, e) in zip(weights, keys, strict=True))
    return attention.out(out.flatten(3))


@pytest.mark.parametrize("queries", [1, 7, 128], ids="queries={}".format)
@pytest.mark.parametrize("table", [0, 9], ids="distances={}".format)
def test_output_and_gradients_are_those_of_all_pairs(monkeypatch, table, queries):
    monkeypatch.setattr("mvpa_ts.forecasting.pretrained.attention._QUERIES", queries)
    torch.manual_seed(0)
    attention = PanelAttention(12, 2, 5, table).double()
    torch.nn.init.normal_(attention.biases)
    x, rows = torch.randn(2, 4, 3, 12, dtype=torch.float64), torch.randint(0, 9, (2, 3, 3))
    some = torch.rand(2, 4, 3) > 0.3
    some[:, -1] = True
    for real in (some, torch.ones_like(some)):
        gradients = [
            (of, *torch.autograd.grad(of.square().sum(), list(attention.parameters())))
            for of in (attention(x, real, rows), by_pairs(attention, x, real, rows))
        ]
        torch.testing.assert_close(*gradients)
