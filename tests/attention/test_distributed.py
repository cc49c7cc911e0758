"""A stack of MVPA blocks in data-parallel training: two processes give the gradients of one on the joined batch."""

from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from support.distributed_gradients import PROCESSES, batch, loss, process, stack
from torch import Tensor, distributed, nn

from mvpa_ts import ForecastingConfig, ForecastingNetwork
from mvpa_ts.forecasting import FeatureSizes
from mvpa_ts.forecasting.network.mixing import ChannelMixing


@pytest.mark.skipif(not distributed.is_available(), reason="this torch is built without distributed training")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_gradients_are_those_of_one_process(kind, tmp_path):
    mp.spawn(process, (kind, str(tmp_path)), nprocs=PROCESSES)
    model = stack()
    loss(model, *batch()).backward()
    gradients = torch.load(tmp_path / "gradients.pt", weights_only=True)
    torch.testing.assert_close(gradients, {name: parameter.grad for name, parameter in model.named_parameters()})


_SIZES: dict[str, Any] = {
    "horizon": 6, "lookback": 12, "patch_length": 4, "patch_stride": 4, "dim": 8, "num_heads": 2, "mlp_dim": 8,
    "mixing_heads": 3,
}  # fmt: skip
_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "time": {"components": ("time",)},
    "channel": {"components": ("channel",)},
    "vectors": {"num_channels": 3, "per_channel": ("vectors",)},
    "vectors and time": {"num_channels": 3, "per_channel": ("vectors",), "components": ("time",)},
    "positions": {"position_size": 2},
    "positions, vectors and time": {
        "position_size": 1,
        "num_channels": 3,
        "per_channel": ("vectors",),
        "components": ("time",),
    },
    "no layers": {"num_layers": 0},
    "no heads": {"mixing_heads": 0},
    "absolute": {"channel_distance": "absolute"},
    "window": {"channel_window": 1},
    "cycles": {"cycle_length": 5, "num_channels": 3, "per_channel": ("cycle",)},
    "individual": {"num_channels": 3, "per_channel": ("matrix",)},
    "all features": {"feature_sizes": FeatureSizes(2, 1, 2), "num_channels": 3, "per_channel": ("vectors",)},
    "features without maps": {"feature_sizes": FeatureSizes(2, 1), "covariates": ()},
    "features without heads": {"feature_sizes": FeatureSizes(1), "covariates": ("maps",)},
    "levels": {"normalise": "reverting", "num_channels": 3, "per_channel": ("bounds",)},
    "as they are": {"normalise": False, "feature_sizes": FeatureSizes(1)},
    "a distribution": {"num_outputs": 2},
}


def _network(options: dict[str, Any], channels: int) -> tuple[ForecastingNetwork, Tensor, dict[str, Tensor]]:
    config = ForecastingConfig(**{**_SIZES, **options})
    steps = config.lookback + config.horizon
    inputs = {
        "positions": torch.randn(channels, config.position_size),
        "phase": torch.zeros(2 if config.cycle_length else 0, dtype=torch.long),
        "future": torch.randn(2, steps, channels, config.feature_sizes.future),
        "historic": torch.randn(2, config.lookback, channels, config.feature_sizes.historic),
        "static": torch.randn(channels, config.feature_sizes.static),
    }
    inputs = {name: tensor for name, tensor in inputs.items() if tensor.numel()}
    return ForecastingNetwork(config), torch.randn(2, config.lookback, channels), inputs


_CASES = [(name, 3) for name in _OPTIONS] + [(name, count) for name in ("default", "time") for count in (1, 40)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "channels"), _CASES)
def test_every_parameter_of_the_forecasting_network_gets_a_gradient(name, masked, channels):
    torch.manual_seed(0)
    network, x, inputs = _network(_OPTIONS[name], channels)
    mask = torch.rand(x.shape) > 0.2 if masked else None
    for _ in range(4):  # random branches took three steps in ten
        network.zero_grad(set_to_none=True)
        network(x, mask, **inputs).square().sum().backward()
        assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


# Tracing a layer takes 3 s.
@pytest.mark.parametrize("name", ["small", *(pytest.param(name, marks=pytest.mark.slow) for name in _OPTIONS)])
def test_training_is_one_graph(name):
    torch._dynamo.reset()
    options = (
        {"num_channels": 3, "per_channel": ("vectors",), "feature_sizes": FeatureSizes(1), "num_layers": 0}
        if name == "small"
        else _OPTIONS[name]
    )
    network, x, inputs = _network(options, 3)
    torch.compile(network, fullgraph=True, backend="eager")(x, **inputs).sum().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


def test_three_steps_in_ten_do_without_vectors():
    torch.manual_seed(0)
    mixing = ChannelMixing(2, 4, 3, channels=3)
    nn.init.normal_(mixing.maps)
    x = torch.randn(1, 4, 3)
    with_vectors, without = mixing.eval()(x), mixing(x, vectors=False)
    mixing.train()
    drawn = [mixing(x) for _ in range(200)]
    plain = sum(torch.allclose(each, without) for each in drawn)
    assert plain + sum(torch.allclose(each, with_vectors) for each in drawn) == 200
    assert 40 <= plain <= 80
