"""Forecasts that stay within the bounds of their channel."""

import numpy as np
import pytest
import torch
from support.made_up_networks import BATCH, CHANNELS, HORIZON, make_mask, make_network, make_windows

from mvpa_ts.forecasting.quantiles import pinball_loss


@pytest.mark.parametrize("outputs", [1, 3])
def test_bounds_hold_every_output_and_nothing_else_changes(outputs):
    plain = make_network(num_outputs=outputs)
    network = make_network(num_outputs=outputs, num_channels=CHANNELS, per_channel=("bounds",))
    x, mask = make_windows(), make_mask()
    torch.testing.assert_close(network(x, mask), plain(x, mask), rtol=0, atol=0)  # the widest bounds
    lower = torch.tensor([-torch.inf, 4.0, 4.5, -1.0, 5.0])
    upper = torch.tensor([torch.inf, 5.0, torch.inf, 5.0, 5.0])
    network.set_bounds(lower, upper)
    expected = np.clip(plain(x, mask).detach().numpy(), lower[:, None], upper[:, None])
    np.testing.assert_array_equal(network(x, mask).detach().numpy(), expected)
    again = make_network(num_outputs=outputs, num_channels=CHANNELS, per_channel=("bounds",))
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(x, mask), network(x, mask))


def test_a_wrong_bound_is_learned_from_and_a_right_one_is_not():
    plain, network = make_network(), make_network(num_channels=CHANNELS, per_channel=("bounds",))
    x = make_windows()
    bound = plain(x).max().item() + 1.0
    network.set_bounds(torch.full((CHANNELS,), bound), torch.full((CHANNELS,), torch.inf))
    target = torch.full((BATCH, HORIZON, CHANNELS, 1), bound)
    (network(x) - target).abs().sum().backward()
    assert not any(parameter.grad.any() for parameter in network.parameters() if parameter.grad is not None)
    # Past the bound and too low: the same as without bounds.
    for one in (plain, network):
        one.zero_grad()
        (one(x) - (target + 1.0)).abs().sum().backward()
    torch.testing.assert_close(*([x.grad for x in model.parameters()] for model in (network, plain)))


def test_no_quantile_is_pushed_further_past_a_bound():
    levels = torch.tensor([0.1, 0.5, 0.9])
    network = make_network(num_outputs=3, num_channels=CHANNELS, per_channel=("bounds",))
    free = make_network(num_outputs=3)(make_windows())
    bound = free.max().item() + 1.0
    for sign, lower, upper in ((1.0, bound, torch.inf), (-1.0, -torch.inf, free.min().item() - 1.0)):
        network.set_bounds(torch.full((CHANNELS,), lower), torch.full((CHANNELS,), upper))
        edge = lower if sign > 0 else upper
        for beyond in (0.0, 1.0):  # targets on the bound, and inside of it
            network.zero_grad()
            target = torch.full((BATCH, HORIZON, CHANNELS), edge + sign * beyond)
            pinball_loss(network(make_windows()), target, levels).sum().backward()
            # Of the linear path's outputs, which all windows share: descent moves them back to the bound, if at all.
            gradient = sign * network.linear.bias.grad.unflatten(0, (HORIZON, 3))
            assert (gradient <= 0).all()
            if beyond:
                assert (gradient < 0).all()


def test_bounds_of_another_precision():
    network = make_network(num_channels=2, per_channel=("bounds",)).double()
    network.set_bounds([0, -torch.inf], torch.tensor([1.0, torch.inf], requires_grad=True))
    assert network.upper.dtype == torch.float64
    assert not network.upper.requires_grad
    assert network(make_windows(2).double())[:, :, 0].max() <= 1.0


def test_compiled_networks_of_other_channel_numbers():  # the second number makes the compiler's sizes symbolic
    for channels in (3, 4, CHANNELS):
        options = {"num_channels": channels, "per_channel": ("bounds",), "num_layers": 0, "mixing_heads": 0}
        network, x = make_network(**options), make_windows(channels)
        network.set_bounds(torch.full((channels,), 4.0), torch.full((channels,), 6.0))
        compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), network(x))


@pytest.mark.parametrize("transform", ["export", "vmap"])
def test_bounds_under_transforms(transform):
    network, x = make_network(num_channels=CHANNELS, per_channel=("bounds",)), make_windows()
    network.set_bounds(torch.full((CHANNELS,), 4.0), torch.full((CHANNELS,), 6.0))
    expected = network(x)
    if transform == "export":
        made = torch.export.export(network, (x,)).module()(x)
    else:
        made = torch.func.vmap(lambda one: network(one[None])[0])(x)
    torch.testing.assert_close(made, expected)


def test_bounds_survive_an_average_of_buffers():
    network = make_network(num_channels=CHANNELS, per_channel=("bounds",))
    average = torch.optim.swa_utils.AveragedModel(
        network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    for _ in range(3):
        network.set_bounds(torch.full((CHANNELS,), -torch.inf), torch.full((CHANNELS,), torch.inf))
        average.update_parameters(network)
    torch.testing.assert_close(average(make_windows()), network(make_windows()))


@pytest.mark.parametrize(
    ("lower", "upper"), [([0.0] * 4, [1.0] * 4), ([0.0] * 5, [[1.0] * 5]), ([2.0] * 5, [1.0] * 5),
                         ([float("nan")] * 5, [1.0] * 5)], ids=["four", "matrix", "crossed", "nan"],
)  # fmt: skip
def test_bad_bounds(lower, upper):
    network = make_network(num_channels=CHANNELS, per_channel=("bounds",))
    with pytest.raises(ValueError, match=r"lower and upper must have shape \(5,\) and lower <= upper, got \["):
        network.set_bounds(torch.tensor(lower), torch.tensor(upper))


def test_bounds_need_channels_to_belong_to():
    with pytest.raises(ValueError, match="set_bounds needs a network with 'bounds' in per_channel"):
        make_network().set_bounds(torch.zeros(CHANNELS), torch.ones(CHANNELS))
    with pytest.raises(ValueError, match="x must have num_channels = 5 channels, each with its bounds, got 4"):
        make_network(num_channels=CHANNELS, per_channel=("bounds",))(make_windows(4))
