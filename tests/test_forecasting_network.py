"""The forecasting network: what it starts from, what it must not depend on, and what each input does."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mvpa_ts import ForecastingConfig, ForecastingNetwork
from mvpa_ts.quantiles import in_order, pinball_loss

HORIZON, LOOKBACK, CHANNELS, BATCH = 10, 24, 5, 3


def make_config(**options: object) -> ForecastingConfig:
    defaults = {
        "horizon": HORIZON,
        "lookback": LOOKBACK,
        "patch_length": 8,
        "patch_stride": 4,
        "dim": 16,
        "mlp_dim": 24,
    }
    return ForecastingConfig(**{**defaults, **options})  # type: ignore[arg-type]


def make_network(*, fresh: bool = False, **options: object) -> ForecastingNetwork:
    """A network in evaluation mode whose linear path is filled; unless fresh, also its head, codebooks enlarged."""
    torch.manual_seed(0)
    network = ForecastingNetwork(make_config(**options))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("linear") or (not fresh and ("codebook" in name or not parameter.any())):
                nn.init.normal_(parameter, std=0.5)
    return network.eval()


def make_windows(channels: int = CHANNELS, steps: int = LOOKBACK, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn(BATCH, steps, channels, generator=generator) + 5.0


def make_mask(missing: float = 0.3) -> Tensor:
    mask = torch.rand(BATCH, LOOKBACK, CHANNELS, generator=torch.Generator().manual_seed(2)) >= missing
    mask[0, :, 1] = False  # a channel that was never observed
    mask[1, :8, :] = False  # patches without any observed step
    return mask


# Shapes and sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"horizon": 1},
        {"lookback": 25, "patch_length": 7, "patch_stride": 3},
        {"lookback": 8},
        {"lookback": 1, "patch_length": 1, "patch_stride": 1},
        {"num_layers": 0},
        {"num_layers": 2, "num_heads": 2},
        {"num_outputs": 3},
        {"components": ()},
        {"components": ("time",)},
        {"channel_distance": "signed"},
        {"normalise": False},
    ],
    ids=str,
)
def test_output_shape(options, channels):
    network = make_network(**options)
    config = network.config
    output = network(make_windows(channels, config.lookback))
    assert output.shape == (BATCH, config.horizon, channels, config.num_outputs)
    assert output.isfinite().all()


@pytest.mark.parametrize(("lookback", "length", "stride", "segments"), [(24, 8, 4, 5), (25, 8, 4, 6), (8, 8, 8, 1)])
def test_number_of_segments(lookback, length, stride, segments):
    config = make_config(lookback=lookback, patch_length=length, patch_stride=stride)
    assert config.segments == segments
    assert config.future_segments == 0
    assert make_config(future_size=2).future_segments == math.ceil(HORIZON / 4)


def test_parameter_count_does_not_know_the_channels():
    network = make_network(fresh=True)
    count = sum(parameter.numel() for parameter in network.parameters())
    for channels in (1, 7, 50):
        network(make_windows(channels))
    assert count == sum(parameter.numel() for parameter in network.parameters())
    assert network(make_windows(50)).shape[2] > network.config.max_channels


def test_channels_beyond_the_codebook_share_its_last_row():
    network, longer = make_network(max_channels=3), make_network(max_channels=20)
    weights = network.state_dict()
    codebook = weights["encoder.stack.channel_codebook"]
    weights["encoder.stack.channel_codebook"] = torch.cat([codebook, codebook[-1:].expand(17, -1)])
    longer.load_state_dict(weights)
    x = make_windows(20)
    torch.testing.assert_close(network(x), longer(x))


# The linear path --------------------------------------------------------------------------------------------------


def test_a_new_network_forecasts_the_mean():
    x = make_windows()
    output = ForecastingNetwork(make_config())(x)[..., 0]
    torch.testing.assert_close(output, x.mean(1, keepdim=True).expand_as(output))


def test_starts_as_the_linear_model():
    network, linear = make_network(fresh=True), make_network(fresh=True, num_layers=0)
    assert linear.encoder is None
    linear.load_state_dict({name: value for name, value in network.state_dict().items() if "encoder" not in name})
    x = make_windows()
    assert torch.equal(network(x), linear(x))
    assert torch.equal(network.train()(x), linear(x)), "dropout must not touch the linear path"


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "phase_weights"])
def test_linear_path_against_numpy(weighted, with_mask, num_outputs):
    network = make_network(num_layers=0, num_outputs=num_outputs, cycle_length=7, phase_weights=weighted)
    factor = 1.0 + 0.1 * network.phase_weights.detach().double().numpy()[:, 0] if weighted else np.ones(7)
    x, mask, phase = make_windows(), make_mask(), torch.tensor([0, 5, 100])
    output = network(x, mask if with_mask else None, phase=phase).detach().numpy()

    weight, bias, cycle = (
        parameter.detach().double().numpy() for parameter in (network.linear.weight, network.linear.bias, network.cycle)
    )
    for sample in range(BATCH):
        for channel in range(CHANNELS):
            series = x[sample, :, channel].double().numpy()
            observed = mask[sample, :, channel].numpy() if with_mask else np.ones(LOOKBACK, bool)
            mean = series[observed].mean() if observed.any() else 0.0
            deviation = np.sqrt((np.var(series[observed]) if observed.any() else 0.0) + 1e-5)
            phases = (int(phase[sample]) + np.arange(LOOKBACK + HORIZON)) % 7
            template = cycle[phases, 0]
            normed = np.where(observed, (series - mean) / deviation - template[:LOOKBACK], 0.0)
            forecast = (weight @ (factor[phases[:LOOKBACK]] * normed) + bias).reshape(HORIZON, num_outputs) + template[
                LOOKBACK:, None
            ]
            expected = forecast * deviation + mean
            np.testing.assert_allclose(output[sample, :, channel], expected, rtol=2e-5, atol=2e-5)


def test_instance_normalisation_makes_it_equivariant():
    network = make_network()
    x = 100.0 * make_windows()  # so that the floor of the variance plays no part
    factor, shift = torch.tensor([2.0, 0.5, 1.0, 30.0, 7.0]), torch.tensor([0.0, 300.0, -900.0, 5.0, 40.0])
    torch.testing.assert_close(
        network(x * factor + shift),
        network(x) * factor[:, None] + shift[:, None],
        rtol=1e-4,
        atol=1e-2,
    )


@pytest.mark.parametrize("options", [{}, {"num_outputs": 3, "location_outputs": (0, 2)}], ids=str)
def test_level_reversion_takes_a_share_of_the_mean_off_each_step(options):
    plain, network = make_network(**options), make_network(level_reversion=True, **options)
    network.load_state_dict(plain.state_dict(), strict=False)
    x, mask = make_windows(), make_mask()
    with torch.no_grad():
        network.reversion.copy_(torch.linspace(0.0, 0.9, HORIZON))
    expected = plain(x, mask).detach().clone()
    for sample in range(BATCH):
        for channel in range(CHANNELS):
            seen = x[sample, :, channel][mask[sample, :, channel]]
            mean = seen.mean().item() if len(seen) else 0.0
            for step in range(HORIZON):
                for output in network.config.location_outputs or range(network.config.num_outputs):
                    expected[sample, step, channel, output] -= network.reversion[step].item() * mean
    torch.testing.assert_close(network(x, mask), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        network.reversion.zero_()
    torch.testing.assert_close(network(x, mask), plain(x, mask))


@pytest.mark.parametrize("outputs", [1, 3])
def test_bounds_hold_every_output_and_nothing_else_changes(outputs):
    plain = make_network(num_outputs=outputs)
    network = make_network(num_outputs=outputs, bounded_channels=CHANNELS)
    x, mask = make_windows(), make_mask()
    torch.testing.assert_close(network(x, mask), plain(x, mask), rtol=0, atol=0)  # the widest bounds
    lower = torch.tensor([-torch.inf, 4.0, 4.5, -1.0, 5.0])
    upper = torch.tensor([torch.inf, 5.0, torch.inf, 5.0, 5.0])
    network.set_bounds(lower, upper)
    expected = np.clip(plain(x, mask).detach().numpy(), lower[:, None], upper[:, None])
    np.testing.assert_array_equal(network(x, mask).detach().numpy(), expected)
    again = make_network(num_outputs=outputs, bounded_channels=CHANNELS)
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(x, mask), network(x, mask))


def test_a_wrong_bound_is_learned_from_and_a_right_one_is_not():
    plain, network = make_network(), make_network(bounded_channels=CHANNELS)
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
    for mine, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_no_quantile_is_pushed_further_past_a_bound():
    levels = torch.tensor([0.1, 0.5, 0.9])
    network = make_network(num_outputs=3, bounded_channels=CHANNELS)
    free = make_network(num_outputs=3)(make_windows())
    bound = free.max().item() + 1.0
    for sign, lower, upper in ((1.0, bound, torch.inf), (-1.0, -torch.inf, free.min().item() - 1.0)):
        network.set_bounds(torch.full((CHANNELS,), lower), torch.full((CHANNELS,), upper))
        edge = lower if sign > 0 else upper
        for beyond in (0.0, 1.0):  # targets on the bound, and inside of it
            network.zero_grad()
            target = torch.full((BATCH, HORIZON, CHANNELS), edge + sign * beyond)
            pinball_loss(in_order(network(make_windows()), levels), target, levels).sum().backward()
            # Of the linear path's outputs, which all windows share: descent moves them back to the bound, if at all.
            gradient = sign * network.linear.bias.grad.unflatten(0, (HORIZON, 3))
            assert (gradient <= 0).all()
            if beyond:
                assert (gradient < 0).all()


def test_bounds_of_another_precision():
    network = make_network(bounded_channels=2).double()
    network.set_bounds([0, -torch.inf], torch.tensor([1.0, torch.inf], requires_grad=True))
    assert network.upper.dtype == torch.float64
    assert not network.upper.requires_grad
    assert network(make_windows(2).double())[:, :, 0].max() <= 1.0


@pytest.mark.parametrize("transform", ["compile", "export", "vmap"])
def test_bounds_under_transforms(transform):
    network, x = make_network(bounded_channels=CHANNELS), make_windows()
    network.set_bounds(torch.full((CHANNELS,), 4.0), torch.full((CHANNELS,), 6.0))
    expected = network(x)
    if transform == "compile":
        made = torch.compile(network, fullgraph=True, backend="aot_eager")(x)
        made.sum().backward()
    elif transform == "export":
        made = torch.export.export(network, (x,)).module()(x)
    else:
        made = torch.func.vmap(lambda one: network(one[None])[0])(x)
    torch.testing.assert_close(made, expected)


def test_bounds_survive_an_average_of_buffers():
    network = make_network(bounded_channels=CHANNELS)
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
    network = make_network(bounded_channels=CHANNELS)
    with pytest.raises(ValueError, match=r"lower and upper must have shape \(5,\) and lower <= upper, got \["):
        network.set_bounds(torch.tensor(lower), torch.tensor(upper))


def test_bounds_need_channels_to_belong_to():
    with pytest.raises(ValueError, match="set_bounds needs a network with bounded_channels"):
        make_network().set_bounds(torch.zeros(CHANNELS), torch.ones(CHANNELS))
    with pytest.raises(ValueError, match="x must have bounded_channels = 5 channels, got 4"):
        make_network(bounded_channels=CHANNELS)(make_windows(4))


def test_constant_series_stay_finite():
    network = make_network()
    x = torch.full((BATCH, LOOKBACK, CHANNELS), 7.0, requires_grad=True)
    output = network(x)
    output.sum().backward()
    assert output.isfinite().all()
    assert x.grad.isfinite().all()


# Missing values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30], ids=str)
@pytest.mark.parametrize("options", [{}, {"cycle_length": 7}, {"lookback": LOOKBACK, "patch_stride": 5}], ids=str)
def test_masked_values_do_not_matter(options, poison):
    network = make_network(**options)
    phase = torch.zeros(BATCH, dtype=torch.long) if network.config.cycle_length else None
    mask = make_mask()
    results = []
    for stored in (0.0, poison):
        network.zero_grad()
        x = make_windows().masked_fill(~mask, stored).requires_grad_()
        output = network(x, mask, phase=phase)
        output.square().mean().backward()
        gradients = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
        results.append([output.detach(), x.grad, *gradients])
        assert not x.grad[~mask].any()
    for clean, poisoned in zip(*results, strict=True):
        assert clean.isfinite().all()
        assert torch.equal(clean, poisoned)


def test_full_mask_is_no_mask():
    network, x = make_network(), make_windows()
    assert torch.equal(network(x, torch.ones_like(x, dtype=torch.bool)), network(x))


def test_exported_with_a_mask_it_takes_any_mask():
    network, x, mask = make_network(), make_windows(), make_mask()
    exported = torch.export.export(network, (x, mask)).module()
    for one in (mask, torch.ones_like(mask)):
        torch.testing.assert_close(exported(x, one), network(x, one))


def test_a_missing_step_differs_from_a_mean_one():
    network, x = make_network(), make_windows()
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[:, 3] = False
    location = x.masked_fill(~mask, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    assert not torch.allclose(network(x, mask), network(torch.where(mask, x, location)), atol=1e-3)


def test_first_patch_is_padded_as_missing():
    # 22 steps in patches of 8 with stride 4: two steps are lacking. A look-back of 24 whose first two steps are
    # masked cuts the same patches.
    short, long = make_network(lookback=22), make_network(lookback=24)
    assert short.config.segments == long.config.segments
    weights = short.state_dict()
    for name in ("linear.weight", "encoder.embed_lookback.weight"):  # one column a step of the look-back
        weights[name] = nn.functional.pad(weights[name], (2, 0))
    long.load_state_dict(weights)
    x = make_windows()
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[:, :2] = False
    torch.testing.assert_close(short(x[:, 2:]), long(x, mask), rtol=1e-4, atol=1e-4)


# The order of channels --------------------------------------------------------------------------------------------


def test_reversing_the_channels_reverses_the_forecasts():
    network, x = make_network(), make_windows()
    torch.testing.assert_close(network(x.flip(2)), network(x).flip(2), rtol=1e-4, atol=1e-4)


def test_signed_distances_know_the_direction():
    network, x = make_network(channel_distance="signed"), make_windows()
    assert not torch.allclose(network(x.flip(2)), network(x).flip(2), atol=1e-3)


@pytest.mark.parametrize("components", [("content", "time"), ("content",), ("time",), ()], ids=str)
def test_permutation_without_the_channel_term(components):
    network, x = make_network(components=components), make_windows()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(network(x[:, :, order]), network(x)[:, :, order], rtol=1e-4, atol=1e-4)


def test_the_channel_term_knows_the_order():
    network, x = make_network(), make_windows()
    order = torch.tensor([3, 0, 4, 1, 2])
    assert not torch.allclose(network(x[:, :, order]), network(x)[:, :, order], atol=1e-3)


def test_channels_are_mixed():
    network, x = make_network(), make_windows()
    changed = x.clone()
    changed[:, :, 4] += torch.randn(BATCH, LOOKBACK)
    assert not torch.allclose(network(changed)[:, :, 0], network(x)[:, :, 0], atol=1e-4)


def test_shuffled_channels_in_training_only():
    network, x = make_network(shuffle_channels=True, dropout=0.0, head_dropout=0.0), make_windows()
    plain = make_network(dropout=0.0, head_dropout=0.0)
    assert torch.equal(network(x), plain(x))
    network.train()
    drawn = [network(x) for _ in range(4)]
    assert any(not torch.allclose(one, drawn[0], atol=1e-3) for one in drawn[1:])

    torch.manual_seed(5)
    output = network(x)
    torch.manual_seed(5)
    order = torch.randperm(CHANNELS)
    torch.testing.assert_close(output, plain(x[:, :, order])[:, :, order.argsort()], rtol=1e-4, atol=1e-4)


# Cycle and exogenous features -------------------------------------------------------------------------------------


def test_cycle_moves_with_the_phase():
    network, x = make_network(cycle_length=7), make_windows()
    first = network(x, phase=torch.tensor([0, 1, 2]))
    assert torch.equal(first, network(x, phase=torch.tensor([7, 15, 702])))
    assert not torch.allclose(first, network(x, phase=torch.tensor([1, 2, 3])), atol=1e-3)


def test_cycle_of_each_channel():
    network, x = make_network(cycle_length=7, cycle_channels=CHANNELS), make_windows()
    assert network.cycle.shape == (7, CHANNELS)
    network(x, phase=torch.zeros(BATCH, dtype=torch.long)).square().mean().backward()
    assert network.cycle.grad.any(0).all()
    with pytest.raises(ValueError, match="x must have cycle_channels = 5 channels, got 2"):
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
    sizes = {f"{name}_size": tensor.shape[-1] for name, tensor in inputs.items()}
    network = make_network(**sizes)
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
    network, inputs = make_network(future_size=2), exogenous()
    future = inputs["future"].requires_grad_()
    network(make_windows(), future=future).square().sum().backward()
    assert future.grad.flatten(2).any(-1).all()


def test_exogenous_network_starts_as_the_linear_model():
    inputs = exogenous()
    network = make_network(fresh=True, future_size=2, historic_size=3, static_size=4)
    linear = make_network(fresh=True, num_layers=0)
    linear.load_state_dict({name: value for name, value in network.state_dict().items() if "encoder" not in name})
    assert torch.equal(network(make_windows(), **inputs), linear(make_windows()))


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"lookback": 0}, "lookback must be at least 1, got 0"),
        ({"patch_length": 0}, "patch_length must be at least 1, got 0"),
        ({"patch_stride": 0}, "patch_stride must be at least 1, got 0"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"mlp_dim": 0}, "mlp_dim must be at least 1, got 0"),
        ({"max_channels": 0}, "max_channels must be at least 1, got 0"),
        ({"num_outputs": 0}, "num_outputs must be at least 1, got 0"),
        ({"num_layers": -1}, "num_layers must be at least 0, got -1"),
        ({"lookback": 24.0}, r"lookback must be a whole number, got 24\.0"),
        ({"future_size": -1}, "future_size must be at least 0, got -1"),
        ({"historic_size": -1}, "historic_size must be at least 0, got -1"),
        ({"static_size": -1}, "static_size must be at least 0, got -1"),
        ({"patch_length": 25}, r"patch_length \(25\) must not exceed lookback \(24\)"),
        ({"patch_stride": 9}, r"patch_stride \(9\) must not exceed patch_length \(8\)"),
        ({"num_heads": 3}, r"dim \(16\) must be a multiple of num_heads \(3\)"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, r"attention_dropout must be in \[0, 1\), got -0.1"),
        ({"head_dropout": float("nan")}, r"head_dropout must be in \[0, 1\), got nan"),
        ({"cycle_length": 0}, "cycle_length must be at least 1, got 0"),
        ({"cycle_length": 7, "cycle_channels": 0}, "cycle_channels must be at least 1, got 0"),
        ({"cycle_channels": 7}, "cycle_channels needs cycle_length"),
        ({"phase_weights": True}, "phase_weights needs cycle_length"),
        ({"num_layers": 0, "static_size": 1}, "num_layers must be at least 1 with exogenous features, got 0"),
        ({"location_outputs": (0, 1)}, r"location_outputs must be .* the 1 outputs .*got \(0, 1\)"),
        ({"level_reversion": True, "normalise": False}, "level_reversion needs normalise"),
        ({"bounded_channels": 0}, "bounded_channels must be at least 1, got 0"),
        ({"bounded_channels": 2, "location_outputs": (0,)}, "bounded_channels needs location_outputs = None"),
        ({"components": ("time", "space")}, "components must be a subset of .*got unknown 'space'"),
        ({"channel_distance": "euclidean"}, "channel_distance must be 'absolute' or 'signed', got 'euclidean'"),
    ],
    ids=str,
)
def test_bad_configuration(options, message):
    with pytest.raises(ValueError, match=message):
        make_config(**options)


def test_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_config().horizon = 3


@pytest.mark.parametrize(
    ("options", "inputs", "message"),
    [
        ({}, {"x": torch.zeros(2, 23, 5)}, r"x must be \[B, L, C\] with L = lookback = 24, got shape \(2, 23, 5\)"),
        ({}, {"x": torch.zeros(24, 5)}, r"x must be \[B, L, C\]"),
        ({}, {"mask": torch.ones(2, 24, 4, dtype=torch.bool)}, r"mask must be a bool tensor of shape \(2, 24, 5\)"),
        ({}, {"mask": torch.ones(2, 24, 5)}, r"mask must be a bool tensor .*got torch.float32"),
        ({"cycle_length": 7}, {}, "phase is needed: the network has a cycle of 7 steps"),
        ({"cycle_length": 7}, {"phase": torch.zeros(2, 1)}, r"phase must be an integer tensor of shape \(2,\)"),
        ({"future_size": 2}, {}, r"future must have shape \(2, 34, 5, 2\), got None"),
        ({"future_size": 2}, {"future": torch.zeros(2, 24, 5, 2)}, r"future must have shape .*got \(2, 24, 5, 2\)"),
        ({"historic_size": 2}, {"historic": torch.zeros(2, 24, 5, 3)}, r"historic must have shape \(2, 24, 5, 2\)"),
        ({}, {"static": torch.zeros(5, 2)}, r"static must have shape .*got \(5, 2\): static_size is 0"),
        ({"static_size": 2}, {"static": torch.zeros(4, 2)}, r"static must have shape \(5, 2\), got \(4, 2\)"),
    ],
    ids=str,
)
def test_bad_input(options, inputs, message):
    with pytest.raises(ValueError, match=message):
        make_network(**options)(**{"x": torch.zeros(2, 24, 5), **inputs})


# Learning ---------------------------------------------------------------------------------------------------------


def test_learns_what_the_linear_path_cannot():
    # Channel 0 follows the product of two other channels: only attention over channels can tell.
    torch.manual_seed(0)
    config = make_config(horizon=1, lookback=8, dim=32, normalise=False, dropout=0.0, head_dropout=0.0)
    network = ForecastingNetwork(config)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8, 3)
        x[:, :, 1:] = x[:, :1, 1:].sign()
        return x, x[:, 0, 1] * x[:, 0, 2]

    for _ in range(200):
        x, target = draw(64)
        loss = (network(x)[:, 0, 0, 0] - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x, target = draw(500)
    assert (network.eval()(x)[:, 0, 0, 0] - target).square().mean() < 0.3


def test_individual_channels_have_a_matrix_and_a_vector_of_their_own() -> None:
    torch.manual_seed(0)
    network = ForecastingNetwork(ForecastingConfig(6, 12, 4, 4, 8, 2, 8, individual_channels=3)).eval()
    x = torch.randn(1, 12, 1).expand(2, 12, 3)
    with torch.no_grad():
        network.encoder.head.weight.normal_()
        same = network(x)
        assert (same[:, :, 0] - same[:, :, 1]).abs().max() > 1e-3  # the vectors tell channels apart
        network.encoder.embed_channel.zero_()
        network.encoder.stack.channel_codebook.zero_()
        same = network(x)
        torch.testing.assert_close(same[:, :, 0], same[:, :, 1])
        network.corrections[1] += 0.1
        moved = network(x)
        torch.testing.assert_close(moved[:, :, [0, 2]], same[:, :, [0, 2]])
        location, scale = x[:, :, 0].mean(1), (x[:, :, 0].var(1, correction=0) + 1e-5).sqrt()
        correction = (((x[:, :, 1] - location[:, None]) / scale[:, None]) @ network.corrections[1]) * scale[:, None]
        torch.testing.assert_close(moved[:, :, 1, 0], same[:, :, 1, 0] + correction, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="individual_channels = 3 channels, got 2"):
        network(torch.randn(1, 12, 2))
