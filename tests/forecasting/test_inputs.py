"""What the network is told beside the series: phases, exogenous features, and inputs that do not fit."""

import pytest
import torch
from support.made_up_networks import BATCH, CHANNELS, HORIZON, LOOKBACK, make_mask, make_network, make_windows
from torch import Tensor

from mvpa_ts.forecasting import FeatureSizes


def test_cycle_moves_with_the_phase():
    network, x = make_network(cycle_length=7), make_windows()
    first = network(x, phase=torch.tensor([0, 1, 2]))
    assert torch.equal(first, network(x, phase=torch.tensor([7, 15, 702])))
    assert not torch.allclose(first, network(x, phase=torch.tensor([1, 2, 3])), atol=1e-3)


def test_cycle_of_each_channel():
    network, x = make_network(cycle_length=7, num_channels=CHANNELS, per_channel=("cycle",)), make_windows()
    assert network.cycle.shape == (7, CHANNELS)
    network(x, phase=torch.zeros(BATCH, dtype=torch.long)).square().mean().backward()
    assert network.cycle.grad.any(0).all()
    with pytest.raises(ValueError, match="x must have num_channels = 5 channels, each with its cycle, got 2"):
        network(x[:, :, :2], phase=torch.zeros(BATCH, dtype=torch.long))


def exogenous() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "future": torch.randn(BATCH, LOOKBACK + HORIZON, CHANNELS, 2, generator=generator),
        "historic": torch.randn(BATCH, LOOKBACK, CHANNELS, 3, generator=generator),
        "static": torch.randn(CHANNELS, 4, generator=generator),
    }


@pytest.mark.parametrize("names", [("future",), ("historic",), ("static",), tuple(exogenous())], ids="+".join)
@pytest.mark.parametrize("with_mask", [False, True])
def test_exogenous_features_have_an_effect_and_a_gradient(names, with_mask):
    inputs = {name: tensor.requires_grad_() for name, tensor in exogenous().items() if name in names}
    sizes = FeatureSizes(**{name: tensor.shape[-1] for name, tensor in inputs.items()})
    network = make_network(feature_sizes=sizes)
    x, mask = make_windows(), make_mask() if with_mask else None
    output = network(x, mask, **inputs)
    output.square().sum().backward()
    for name, tensor in inputs.items():
        assert tensor.grad.flatten(0, -2).any(0).all(), f"a feature of {name} is without effect"
        changed = {**inputs, name: tensor + 1.0}
        assert not torch.allclose(network(x, mask, **changed), output, atol=1e-3), name
    for name, parameter in network.named_parameters():
        if with_mask or "embed_missing" not in name:
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name


def test_each_step_ahead_reaches_the_forecast():
    network, inputs = make_network(feature_sizes=FeatureSizes(2)), exogenous()
    future = inputs["future"].requires_grad_()
    network(make_windows(), future=future).square().sum().backward()
    assert future.grad.flatten(2).any(-1).all()


def test_exogenous_network_starts_as_the_linear_model():
    inputs = exogenous()
    network = make_network(fresh=True, feature_sizes=FeatureSizes(2, 3, 4))
    linear = make_network(fresh=True, num_layers=0)
    linear.load_state_dict({name: value for name, value in network.state_dict().items() if name in linear.state_dict()})
    assert torch.equal(network(make_windows(), **inputs), linear(make_windows()))


@pytest.mark.parametrize(
    ("options", "inputs", "message"),
    [
        ({}, {"x": torch.zeros(2, 23, 5)}, r"x must be \[B, L, C\] with L = lookback = 24 .*, got shape \(2, 23, 5\)"),
        ({}, {"x": torch.zeros(2, 24, 0)}, r"x must be .* no empty axis, got shape \(2, 24, 0\)"),
        ({}, {"x": torch.zeros(24, 5)}, r"x must be \[B, L, C\]"),
        ({}, {"x": make_windows().long()}, r"x must hold floats, got torch.int64: give x.float\(\)"),
        ({}, {"mask": torch.ones(2, 24, 4, dtype=torch.bool)}, r"mask must be a bool tensor of shape \(2, 24, 5\)"),
        ({}, {"mask": torch.ones(2, 24, 5)}, r"mask must be a bool tensor .*got torch.float32"),
        ({"cycle_length": 7}, {}, "phase must be given, because the network has a cycle of 7 steps"),
        ({"cycle_length": 7}, {"phase": torch.zeros(2, 1)}, r"phase must be .* shape \(2,\) or \(2, \d+\)"),
        ({"feature_sizes": FeatureSizes(2)}, {}, r"future must have shape \(2, 34, 5, 2\), got None"),
        (
            {"feature_sizes": FeatureSizes(2)},
            {"future": torch.zeros(2, 24, 5, 2)},
            r"future must have shape .*got \(2, 24, 5, 2\)",
        ),
        (
            {"feature_sizes": FeatureSizes(0, 2)},
            {"historic": torch.zeros(2, 24, 5, 3)},
            r"historic must have shape \(2, 24, 5, 2\)",
        ),
        ({}, {"static": torch.zeros(5, 2)}, r"static must have shape .*got \(5, 2\): feature_sizes.static is 0"),
        (
            {"feature_sizes": FeatureSizes(0, 0, 2)},
            {"static": torch.zeros(4, 2)},
            r"static must have shape \(5, 2\), got \(4, 2\)",
        ),
    ],
    ids=str,
)
def test_bad_input(options, inputs, message):
    with pytest.raises(ValueError, match=message):
        make_network(**options)(**{"x": torch.zeros(2, 24, 5), **inputs})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_positions_and_units_may_be_more_precise_than_the_network(dtype):
    network = make_network(position_size=2).to(dtype).eval()
    places, x = torch.arange(2.0 * CHANNELS).reshape(CHANNELS, 2), make_windows().to(dtype)
    units = torch.tensor([[0.5, 2.0]]).expand(CHANNELS, 2)
    forecast = network(x, positions=places, units=units)
    assert forecast.dtype == dtype
    wanted = network.float()(x.float(), positions=places, units=units)
    assert (forecast.float() - wanted).norm() < 8 * torch.finfo(torch.bfloat16).eps * wanted.norm()


@pytest.mark.parametrize("name", ["x", "future", "static"])
def test_more_precise_windows_are_refused(name):
    network, inputs = make_network(feature_sizes=FeatureSizes(2, 0, 4)), {"x": make_windows(), **exogenous()}
    inputs = {key: inputs[key] for key in ("x", "future", "static")}
    with pytest.raises(ValueError, match=rf"{name} must have the precision of the weights, torch\.float32, got"):
        network(**{**inputs, name: inputs[name].double()})
