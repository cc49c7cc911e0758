"""Whole networks under torch.compile: one graph, forward and backward, for all numbers of channels, masked or not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attention_checks import assert_compiled_same
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from mvpa_ts import ClassificationConfig, ClassificationNetwork, ForecastingConfig, ForecastingNetwork, MVPAttention
from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny


def forecasting() -> tuple[nn.Module, Callable[[int], Tensor], Callable[[Tensor], dict[str, Any]]]:
    network = ForecastingNetwork(ForecastingConfig(horizon=24, lookback=96, dim=16, num_heads=2, num_layers=1))
    return network, lambda C: torch.randn(2, 96, C), lambda x: {"mask": torch.rand(x.shape) > 0.2}


def mvpformer() -> tuple[nn.Module, Callable[[int], Tensor], Callable[[Tensor], dict[str, Any]]]:
    network = MVPFormer(mvpformer_tiny(num_layers=1))
    return (
        network,
        lambda C: torch.randn(2, C, 4 * 2560),
        lambda x: {"token_mask": torch.rand(2, 4, x.shape[1]) > 0.2},
    )


def classification() -> tuple[nn.Module, Callable[[int], Tensor], Callable[[Tensor], dict[str, Any]]]:
    """A network for one number of channels: the number of series changes."""
    network = ClassificationNetwork(ClassificationConfig(num_channels=3, num_classes=2, length=64)).eval()
    return network, lambda B: torch.randn(B, 64, 3), lambda x: {"mask": torch.rand(x.shape) > 0.2}


@pytest.mark.parametrize("name", ["forecasting", "mvpformer"])
def test_one_graph_of_a_small_network_serves_all_numbers_of_channels(name):
    """In the default run: small sizes, with dropout, and the axis of channels alone is dynamic."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    network: nn.Module
    if name == "forecasting":
        sizes = {"dim": 8, "num_heads": 1, "num_layers": 1, "attention_dropout": 0.2}
        config = ForecastingConfig(horizon=4, lookback=32, **sizes)
        network, shape, axis = ForecastingNetwork(config), (2, 32, 0), 2
    else:
        sizes = {"dim": 16, "num_heads": 1, "num_kv_heads": 1, "mlp_dim": 16, "num_layers": 1}
        network, shape, axis = MVPFormer(mvpformer_tiny(**sizes)), (1, 0, 2 * 2560), 1
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(network, fullgraph=True, backend=counter)
    for C in (7, 11, 13):
        x = torch.randn([*shape[:axis], C, *shape[axis + 1 :]])
        torch._dynamo.mark_dynamic(x, axis)
        assert_compiled_same(network, compiled, x, atol=1e-4, rtol=1e-3)
        assert counter.frame_count == 1, C
    if name == "forecasting":
        assert network.mixing.reach == 13  # channels seen in training, also by the compiled network


@pytest.mark.slow  # tracing a network for any number of channels takes up to a minute
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("make", "masked", "backend"),
    [
        (make, masked, backend)
        for make in (forecasting, classification, mvpformer)
        for masked in (False, True)
        for backend in ("eager", "aot_eager")  # the second traces the backward pass as well
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_one_graph_serves_all_numbers_of_channels(make, masked, backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    network, inputs, masks = make()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(network, fullgraph=True, dynamic=True, backend=counter)
    graphs = []
    for C in (7, 11, 13):
        x = inputs(C)
        assert_compiled_same(network, compiled, x, atol=1e-4, rtol=1e-3, **(masks(x) if masked else {}))
        graphs.append(counter.frame_count)
    assert graphs[1] == graphs[2], graphs


# Tracing all sizes, and the backward pass as well, takes 45 s; in the small form the channels alone vary.
@pytest.mark.parametrize(
    ("backend", "graphs_of_a_call"), [("eager", 1), pytest.param("aot_eager", 2, marks=pytest.mark.slow)]
)
def test_released_rows_of_masked_samples_are_one_graph(backend, graphs_of_a_call):
    """Also backward, and for all numbers of channels; a row that the codebook lacks is an error there too."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    counter = CompileCounterWithBackend(backend)
    attention = MVPAttention(16, 2, row_order="released", window=1, impl="separable").double()
    every_size = True if backend == "aot_eager" else None
    compiled = torch.compile(attention, fullgraph=True, dynamic=every_size, backend=counter)
    codebooks = torch.randn(2, 11, 16).double()
    graphs = set()
    for channels in (4, 7, 9):
        x = torch.randn(3, 6, channels, 16, requires_grad=True, dtype=torch.float64)
        real = torch.ones(3, 6, channels, dtype=torch.bool)
        real[0, 4:], real[1, :, 2:], real[2, 0] = False, False, False
        for tensor in (x, real):
            torch._dynamo.mark_dynamic(tensor, 2)
        assert_compiled_same(attention, compiled, x, *codebooks, atol=1e-7, rtol=1e-7, token_mask=real)
        graphs.add(counter.frame_count)
    assert graphs == {graphs_of_a_call}
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.randn(3, 6, 12, 16).double(), *codebooks, token_mask=torch.ones(3, 6, 12, dtype=torch.bool))
