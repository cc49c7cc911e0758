"""The classification network: masks are exact, any length and many channels, both paths."""

import math

import numpy as np
import pytest
import torch
from support.made_up_networks import SMALL_CLASSIFIER
from torch import Tensor

from mvpa_ts.classification.network import ClassificationConfig, ClassificationNetwork


def make(num_channels: int = 3, length: int = 50, **changes: object) -> ClassificationNetwork:
    """A small network whose kernel path is fitted, so that both paths matter."""
    torch.manual_seed(0)
    config = ClassificationConfig(num_channels, 4, length, **{**SMALL_CLASSIFIER, **changes})  # type: ignore[arg-type]
    network = ClassificationNetwork(config).eval()
    if network.kernels is not None:
        x, labels = torch.randn(20, length, num_channels), torch.arange(20) % 4
        x[:, :, 0] += labels[:, None] * torch.linspace(0, 1, length)
        network.kernels.fit(x, torch.ones_like(x, dtype=torch.bool), labels, torch.ones(20))
    return network


def observed(x: Tensor) -> Tensor:
    return torch.ones_like(x, dtype=torch.bool)


@pytest.mark.parametrize("length", [1, 2, 7, 49, 50, 51, 130])
@pytest.mark.parametrize("num_channels", [3, 30])  # 30 are mixed before the convolutions
def test_padding_changes_no_logit(length, num_channels):
    network = make(num_channels)
    x = torch.randn(2, length, num_channels)
    alone = network(x, observed(x))
    for extra in (1, 3, 64):
        more = torch.full((2, extra, num_channels), 1e6)
        padded = torch.cat([x, more], 1)
        mask = torch.cat([observed(x), torch.zeros_like(more, dtype=torch.bool)], 1)
        torch.testing.assert_close(network(padded, mask), alone, rtol=1e-4, atol=1e-5)


def test_what_is_stored_where_nothing_was_observed_does_not_matter():
    network = make()
    x = torch.randn(3, 50, 3)
    mask = torch.rand(3, 50, 3) > 0.3
    mask[0, :, 1] = False  # a channel that is missing as a whole
    other = torch.where(mask, x, torch.full_like(x, torch.nan))
    assert torch.equal(network(x, mask), network(other, mask))
    assert not torch.equal(network(x, mask), network(x, observed(x)))


def test_no_nan_in_the_gradients_of_masked_input():
    network = make()
    x = torch.randn(3, 50, 3)
    mask = torch.rand(3, 50, 3) > 0.5
    network.train()(torch.where(mask, x, torch.full_like(x, torch.nan)), mask).square().sum().backward()
    assert all(bool(one.grad.isfinite().all()) for one in network.attention.parameters() if one.grad is not None)
    assert sum(one.grad is not None for one in network.attention.parameters()) > 20


def test_a_series_alone_and_in_a_batch():
    network = make()
    x = torch.randn(9, 50, 3)
    alone = torch.cat([network(one[None]) for one in x])
    torch.testing.assert_close(network(x), alone, rtol=1e-4, atol=1e-5)


def test_without_mask_everything_is_observed():
    network = make()
    x = torch.randn(2, 50, 3)
    assert torch.equal(network(x), network(x, observed(x)))


def test_probabilities_are_the_average_of_both_paths():
    network = make()
    network.kernel_share.fill_(0.25)
    x = torch.randn(5, 50, 3)
    assert network.kernels is not None
    expected = 0.75 * network.attention(x).softmax(1) + 0.25 * network.kernels(x).softmax(1)
    torch.testing.assert_close(network(x).softmax(1), expected)
    assert make(kernel_features=0).kernels is None


def test_every_component_and_the_order_of_channels_matter():
    x = torch.randn(2, 50, 3)
    logits = []
    for components in (("content", "time", "channel"), ("content",), ("time",), ("channel",), ()):
        network = make(components=components, kernel_features=0)
        for block in network.attention.encoder.stack.blocks:
            torch.manual_seed(1)
            for bias in (block.attention.content_bias, block.attention.time_bias, block.attention.channel_bias):
                torch.nn.init.normal_(bias)
        network.attention.encoder.stack.time_codebook.data.mul_(100)
        network.attention.encoder.stack.channel_codebook.data.mul_(100)
        logits.append(network(x))
    for one in range(5):
        for other in range(one):
            assert (logits[one] - logits[other]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("num_channels", "length"), [(1, 1), (1, 5), (2, 152), (12, 29), (61, 405), (144, 62), (3, 1751), (963, 144)]
)
def test_tokens_stay_within_the_budget(num_channels, length):
    config = ClassificationConfig(num_channels, 2, length)
    assert config.channels <= 16
    assert math.ceil(length / config.stem_stride) <= config.positions
    assert config.segments * config.channels <= config.tokens
    assert config.segments >= 1


@pytest.mark.parametrize(("num_channels", "length"), [(963, 144), (3, 6000)])
def test_many_channels_and_long_series(num_channels, length):
    network = ClassificationNetwork(ClassificationConfig(num_channels, 7, length, kernel_features=1000))
    x = torch.randn(2, length, num_channels)
    network(x).square().sum().backward()
    assert network(x).isfinite().all()
    assert sum(parameter.numel() for parameter in network.parameters()) < 3e6


def test_shape_view_is_free_of_level_and_scale():
    from mvpa_ts.classification.views import series_views

    x = torch.randn(2, 60, 3, dtype=torch.float64)
    mask = torch.rand(2, 60, 3) > 0.2
    level, shape, seen = series_views(x, mask)
    for b in range(2):
        for c in range(3):
            values = x[b, mask[b, :, c], c].numpy()
            expected = (values - values.mean()) / np.sqrt(values.var() + 1e-4)
            np.testing.assert_allclose(shape[b, c, mask[b, :, c]], expected, rtol=1e-10)
            np.testing.assert_allclose(level[b, c, mask[b, :, c]], values)
    assert torch.equal(seen, mask.mT)
    assert level[~seen].abs().sum() == shape[~seen].abs().sum() == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"dim": 30}, r"dim \(30\) must be a multiple of num_heads \(4\)"),
        ({"tokens": 0}, "tokens must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"components": ("contents",)}, "contents"),
    ],
)
def test_bad_configurations(changes, message):
    with pytest.raises(ValueError, match=message):
        ClassificationConfig(**{"num_channels": 3, "num_classes": 2, "length": 10, **changes})  # type: ignore[arg-type]


def test_bad_input():
    network = make()
    with pytest.raises(ValueError, match=r"x must be \[B, L, C\], got shape \(50, 3\)"):
        network(torch.randn(50, 3))
    with pytest.raises(ValueError, match=r"x must have the precision of the weights, .*: give x\.to\(torch\.float32\)"):
        network(torch.randn(2, 50, 3).double())
    with pytest.raises(ValueError, match="x must have 3 channels, got 4"):
        network(torch.randn(2, 50, 4))
    with pytest.raises(ValueError, match="mask must be a bool tensor of shape"):
        network(torch.randn(2, 50, 3), torch.ones(2, 50, 3))
