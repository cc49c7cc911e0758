"""Weights of the attention between channels equal those of the formula."""

import numpy as np
import pytest
import torch

from mvpa_ts import ForecastingConfig, ForecastingNetwork
from mvpa_ts.attention.problem import Problem
from mvpa_ts.attention.reference import reference_attention
from mvpa_ts.forecasting.channel_weights import ChannelWeights
from mvpa_ts.forecasting.pretrained import BaseConfig, BaseForecaster


@pytest.mark.parametrize("channels", [1, 3, 11])
def test_weights_of_the_trained_network_are_those_of_the_softmax(channels, monkeypatch):
    torch.manual_seed(channels)
    network = ForecastingNetwork(
        ForecastingConfig(horizon=4, lookback=24, patch_length=8, patch_stride=8, dim=16, num_heads=4)
    ).eval()
    problems: list[Problem] = []

    def noted(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        problems.append(problem)
        return reference_attention(problem)

    monkeypatch.setattr("mvpa_ts.attention.functional._load", lambda name: noted)
    with torch.no_grad(), ChannelWeights(network) as recorded:
        network(torch.randn(2, 24, channels))
    p = problems[0]
    B, T, C, H, d = p.query.shape
    expected = np.zeros((C, C))
    for b, h, t, c in np.ndindex(B, H, T, C):
        scores = torch.stack(
            [
                (p.query[b, t, c, h] + p.content_bias[h]) @ p.key[b, s, e, h]
                + (p.query[b, t, c, h] + p.time_bias[h]) @ p.time_key[t - s + T - 1, h]
                + (p.query[b, t, c, h] + p.channel_bias[h]) @ p.channel_key[p.channel_rows(torch.tensor(c - e)), h]
                for s in range(T)
                for e in range(C)
            ]
        )
        weights = (scores / d**0.5).softmax(0).view(T, C).sum(0)
        expected[c] += weights.detach().double().numpy() / (B * H * T)
    np.testing.assert_allclose(recorded.of(channels), expected, atol=1e-5)


def test_weights_of_the_pretrained_network_change_its_output_as_they_say():
    torch.manual_seed(0)
    network = BaseForecaster(BaseConfig(dim=24, num_heads=2, mlp_dim=32, blocks="p")).eval()
    attention = network.blocks[0].attention
    x = torch.randn(1, 3, 15, 24)
    real, rows = torch.ones(1, 3, 15, dtype=torch.bool), torch.zeros(1, 15, 15, dtype=torch.long)
    with torch.no_grad(), ChannelWeights(network) as recorded:
        attention(x, real, rows)
    weights = recorded.of(15)
    # The mean output, before the last projection, is the sum over channels of weight times value, where all values of a
    # channel are alike; so it is the derivative of the output by a shift of the channel's values.
    attention.out = torch.nn.Identity()
    value = attention.qkv.weight[48:]
    with torch.no_grad():
        before = attention(x, real, rows).mean((0, 1, 3))
        expected = np.zeros((15, 15))
        for channel in range(15):
            hook = attention.qkv.register_forward_hook(
                lambda _, __, out, channel=channel: torch.cat(
                    [out[..., :48], out[..., 48:] + torch.eye(15)[channel][:, None]], 3
                )
            )
            expected[:, channel] = (attention(x, real, rows).mean((0, 1, 3)) - before).numpy()
            hook.remove()
    assert value.shape == (24, 24)
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)


def test_a_network_without_attention_is_an_error():
    network = ForecastingNetwork(ForecastingConfig(horizon=4, lookback=24, num_layers=0))
    with pytest.raises(ValueError, match="attention of channels"):
        ChannelWeights(network)
