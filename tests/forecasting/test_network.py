"""The forecasting network: what it starts from, what it must not depend on, and what each input does."""

import math

import numpy as np
import pytest
import torch
from support.made_up_networks import (
    BATCH,
    CHANNELS,
    HORIZON,
    LOOKBACK,
    make_config,
    make_mask,
    make_network,
    make_windows,
)
from torch import Tensor, nn

from mvpa_ts import ForecastingConfig, ForecastingNetwork
from mvpa_ts.forecasting import FeatureSizes
from mvpa_ts.forecasting.normalisation import location_scale


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
    assert make_config(feature_sizes=FeatureSizes(2)).future_segments == math.ceil(HORIZON / 4)


def test_parameter_count_does_not_know_the_channels():
    network = make_network(fresh=True)
    count = sum(parameter.numel() for parameter in network.parameters())
    for channels in (1, 7, 50):
        network(make_windows(channels))
    assert count == sum(parameter.numel() for parameter in network.parameters())
    assert network(make_windows(50)).shape[2] > network.config.max_channels


def test_channels_beyond_the_codebook_share_its_last_row(monkeypatch):
    networks = []
    for rows in (3, 20):
        monkeypatch.setattr(ForecastingConfig, "max_channels", rows)
        networks.append(make_network(mixing_heads=0, channel_distance="absolute"))
    network, longer = networks
    weights = network.state_dict()
    codebook = weights["encoder.stack.channel_codebook"]
    weights["encoder.stack.channel_codebook"] = torch.cat([codebook, codebook[-1:].expand(17, -1)])
    longer.load_state_dict(weights)
    x = make_windows(20)
    torch.testing.assert_close(network(x), longer(x))


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


def test_phases_of_all_steps():
    """Given one by one they may jump; where they do not, they are those counted on from the first."""
    network = make_network(cycle_length=7)
    x, phase = make_windows(), torch.tensor([0, 5, 100])
    steps = phase[:, None] + torch.arange(LOOKBACK + HORIZON)
    expected = network(x, phase=phase)
    torch.testing.assert_close(network(x, phase=steps), expected)
    late = steps + 3 * (torch.arange(LOOKBACK + HORIZON) >= LOOKBACK)  # three steps of the clock are skipped
    cycle = network.cycle[late % 7] - network.cycle[steps % 7]
    scale = location_scale(x, None)[1]
    torch.testing.assert_close(network(x, phase=late), expected + (cycle[:, LOOKBACK:] * scale)[..., None])


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("with_mask", [False, True])
def test_linear_path_against_numpy(with_mask, num_outputs):
    network = make_network(num_layers=0, mixing_heads=0, num_outputs=num_outputs, cycle_length=7)
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
            normed = (series - mean) / deviation - template[:LOOKBACK]
            last = np.maximum.accumulate(np.where(observed, np.arange(LOOKBACK), -1))
            normed = np.where(last >= 0, normed[last] * 0.9 ** (np.arange(LOOKBACK) - last), 0.0)
            if 0 <= last[-1] < LOOKBACK - 1:  # the end is missing: what the path forecasts from the rows before
                before = np.r_[[normed[0]] * (LOOKBACK - 1 - last[-1]), normed[: last[-1] + 1]]
                ahead = (weight @ before + bias).reshape(HORIZON, num_outputs)[:, num_outputs // 2]
                normed[last[-1] + 1 :] = np.r_[ahead, [ahead[-1]] * LOOKBACK][: LOOKBACK - 1 - last[-1]]
            forecast = (weight @ normed + bias).reshape(HORIZON, num_outputs) + template[LOOKBACK:, None]
            expected = np.sort(forecast * deviation + mean)  # several outputs are quantiles
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
    plain, network = make_network(**options), make_network(normalise="reverting", **options)
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
                for output in network.location_outputs or range(network.config.num_outputs):
                    expected[sample, step, channel, output] -= network.reversion[step].item() * mean
    torch.testing.assert_close(network(x, mask), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        network.reversion.zero_()
    torch.testing.assert_close(network(x, mask), plain(x, mask))


def test_constant_series_stay_finite():
    network = make_network()
    x = torch.full((BATCH, LOOKBACK, CHANNELS), 7.0, requires_grad=True)
    output = network(x)
    output.sum().backward()
    assert output.isfinite().all()
    assert x.grad.isfinite().all()


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


@pytest.mark.parametrize("missing", [1, 6, 11])
def test_a_season_goes_on_where_the_last_rows_are_missing(missing):
    network = make_network(lookback=24, horizon=12, num_layers=0, mixing_heads=0)
    with torch.no_grad():  # the last season again
        network.linear.weight.copy_(torch.eye(24)[12:])
        network.linear.bias.zero_()
    season = torch.sin(torch.arange(36) * torch.pi / 6)[None, :, None] * torch.tensor([1.0, 5.0])
    mask = torch.ones(1, 24, 2, dtype=torch.bool)
    mask[:, -missing:, 1] = False
    x = season[:, :24].masked_fill(~mask, 0.0)
    torch.testing.assert_close(network(x, mask)[..., 0], season[:, 24:], rtol=1e-4, atol=1e-4)


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
    short, long = (make_network(lookback=steps, mixing_heads=0) for steps in (22, 24))
    assert short.config.segments == long.config.segments
    weights = short.state_dict()
    for name in ("linear.weight", "encoder.embed_lookback.weight"):  # one column a step of the look-back
        weights[name] = nn.functional.pad(weights[name], (2, 0))
    long.load_state_dict(weights)
    x = make_windows()
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[:, :2] = False
    torch.testing.assert_close(short(x[:, 2:]), long(x, mask), rtol=1e-4, atol=1e-4)


def test_reversing_the_channels_reverses_the_forecasts_and_signed_distances_know_the_direction():
    network, x = make_network(channel_distance="absolute"), make_windows()
    torch.testing.assert_close(network(x.flip(2)), network(x).flip(2), rtol=1e-4, atol=1e-4)
    network = make_network(channel_distance="signed")
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


def test_quantiles_that_cross_are_put_in_order_and_parameters_are_not():
    """What moves the middle output, such as regressions, then moves the median."""
    quantiles, parameters = (
        make_network(num_outputs=3, location_outputs=levels)(make_windows()) for levels in (None, (0,))
    )
    assert (quantiles.diff(dim=-1) >= 0.0).all()
    assert (parameters.diff(dim=-1) < 0.0).any()


def test_learns_what_the_linear_path_cannot():
    # Channel 0 follows the product of two other channels: only attention over channels can tell.
    torch.manual_seed(0)
    config = make_config(horizon=1, lookback=8, dim=32, normalise=False, dropout=0.0, head_dropout=0.0)
    network = ForecastingNetwork(config)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8, 3)
        x[:, :, 1:] = x[:, :1, 1:].sign()
        return x, x[:, 0, 1] * x[:, 0, 2]

    for _ in range(100):
        x, target = draw(64)
        loss = (network(x)[:, 0, 0, 0] - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x, target = draw(500)
    assert (network.eval()(x)[:, 0, 0, 0] - target).square().mean() < 0.3


def test_individual_channels_have_a_matrix_and_a_vector_of_their_own():
    torch.manual_seed(0)
    network = ForecastingNetwork(
        ForecastingConfig(6, 12, 4, 4, 8, 2, 8, num_channels=3, per_channel=("matrix",))
    ).eval()
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
    with pytest.raises(ValueError, match="num_channels = 3 channels, each with its matrix, got 2"):
        network(torch.randn(1, 12, 2))


def test_a_window_over_channels_reaches_the_attention(monkeypatch):
    """The value of a far channel still counts, its content does not; fewer channels than the window are no error."""
    monkeypatch.setattr(ForecastingConfig, "max_channels", 2)
    config = make_config(channel_window=1, components=("content",), num_layers=1)
    torch.manual_seed(0)
    network = ForecastingNetwork(config)
    torch.nn.init.normal_(network.encoder.head.weight)
    attention = network.encoder.stack.blocks[0].attention
    assert attention.channel_window == 1
    assert network(torch.randn(2, config.lookback, 1)).isfinite().all()
    x = torch.randn(1, config.lookback, 90)
    attention.impl = "separable"
    forecast = network.eval()(x)
    attention.impl = "reference"
    torch.testing.assert_close(network(x), forecast)
    attention.channel_window = None
    assert not torch.allclose(network(x), forecast)


def test_a_window_over_channels_takes_positions_of_few_channels_only(monkeypatch):
    monkeypatch.setattr(ForecastingConfig, "max_channels", 2)
    network = ForecastingNetwork(make_config(channel_window=1, position_size=1)).eval()
    assert network(torch.randn(1, 24, 16), positions=torch.arange(16.0)[:, None]).isfinite().all()
    message = r"position_size with channel_window needs at most 16 channels, got 17: it compares"
    with pytest.raises(ValueError, match=message):
        network(torch.randn(1, 24, 17), positions=torch.arange(17.0)[:, None])
