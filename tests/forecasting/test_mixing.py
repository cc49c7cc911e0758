"""Heads of the linear path that read other channels, against sums written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.made_up_networks import CHANNELS, HORIZON, LOOKBACK, make_network, make_windows

from mvpa_ts.forecasting.network import ForecastingNetwork, mixing
from mvpa_ts.forecasting.network.configuration import FeatureSizes, ForecastingConfig
from mvpa_ts.forecasting.network.mixing import ChannelMixing, mixing_share
from mvpa_ts.forecasting.normalisation import location_scale
from mvpa_ts.windows import Windows


def filled(outputs: int = 6, lookback: int = 10, **options: object) -> ChannelMixing:
    torch.manual_seed(0)
    heads = ChannelMixing(4, lookback, outputs, max_channels=5, **options).double().eval()  # type: ignore[arg-type]
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    return heads


def by_hand(heads: ChannelMixing, x: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Softmax over channels and over reading nothing, weighted sums of look-backs, one map a head."""
    weight = np.exp(score)
    weight /= weight.sum(-1, keepdims=True) + np.exp(3.0 * heads.nothing_score.detach().numpy())[:, None, None]
    return np.einsum("hce,ble,hlk->bck", weight, x, heads.maps.detach().numpy())


@pytest.mark.parametrize("outputs", [6, 13], ids=["maps first", "mixes first"])
@pytest.mark.parametrize("distance", ["absolute", "signed"])
@pytest.mark.parametrize("trained", [0, 3, 50])
def test_distances_against_numpy(outputs, distance, trained):
    heads = filled(outputs, channel_distance=distance)
    heads.reach.fill_(trained)
    x = torch.randn(2, 10, 8, dtype=torch.float64)
    table, furthest = 3.0 * heads.distance_score.detach().numpy(), min(5, trained or 5) - 1
    score = np.zeros((4, 8, 8))
    for c in range(8):
        for key in range(8):
            apart = max(-furthest, min(furthest, c - key))
            score[:, c, key] = table[:, abs(apart) if distance == "absolute" else apart + 4]
    np.testing.assert_allclose(heads(x).detach(), by_hand(heads, x.numpy(), score), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("distance", ["absolute", "signed"])
@pytest.mark.parametrize("trained", [0, 3])
def test_many_channels_give_the_same_by_running_sums(monkeypatch, distance, trained):
    heads = filled(channel_distance=distance)
    heads.reach.fill_(trained)
    x = torch.randn(2, 10, 47, dtype=torch.float64, requires_grad=True)
    found = heads(x)
    gradients = torch.autograd.grad(found.square().sum(), [x, *heads.parameters()])
    monkeypatch.setattr(mixing, "DENSE_LIMIT", 1000)
    expected = heads(x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    for gradient, right in zip(
        gradients, torch.autograd.grad(expected.square().sum(), [x, *heads.parameters()]), strict=True
    ):
        torch.testing.assert_close(gradient, right, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("channels", [4, 47], ids=["matrix", "running sums"])
def test_a_head_that_reads_nothing_is_silent(channels):
    heads, x = filled(), torch.randn(2, 10, channels, dtype=torch.float64)
    heads.nothing_score.data.fill_(100.0)
    assert heads(x).abs().max() < 1e-20
    heads.nothing_score.data.fill_(-100.0)  # always another channel, with weights that sum to one
    level = heads(torch.ones_like(x))
    torch.testing.assert_close(level, heads.maps.sum((0, 1)).expand_as(level))


def test_vectors_of_series_that_were_not_there_are_left_out():
    heads = filled(channels=8)
    x = torch.randn(2, 10, 8, dtype=torch.float64)
    everybody = heads(x)
    assert torch.equal(everybody, heads(x, series=torch.arange(8)))
    strangers = heads(x, series=torch.full((8,), -1))
    assert not torch.allclose(strangers, everybody)
    torch.testing.assert_close(strangers, heads(x, vectors=False))
    # Another number of channels without names: all are new.
    assert heads(x[:, :, :6]).shape == (2, 6, 6)


def test_positions_are_read_by_place_not_by_order():
    heads, order = filled(coordinates=2), torch.randperm(7)
    x, places = torch.randn(2, 10, 7, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    found = heads(x, positions=places)
    torch.testing.assert_close(heads(x[:, :, order], positions=places[order]), found[:, order])
    torch.testing.assert_close(heads(x, positions=100.0 * places + 3.0), found)


def test_training_remembers_how_far_it_saw():
    heads = filled()
    heads.train()(torch.randn(1, 10, 3).double())
    assert heads.reach == 3
    heads.eval()(torch.randn(1, 10, 4).double())
    assert heads.reach == 3


def test_units_decide_how_channels_are_compared():
    network, x = make_network(), 100.0 * make_windows()
    own = network(x)
    unknown = torch.full((CHANNELS, 2), torch.nan)
    torch.testing.assert_close(network(x, units=unknown), own)
    units = torch.tensor([[0.0, 200.0], [500.0, 300.0], [-90.0, 50.0], [400.0, 1000.0], [0.0, 1.0]])
    factor, shift = torch.tensor([2.0, 0.5, 1.0, 30.0, 7.0]), torch.tensor([0.0, 300.0, -900.0, 5.0, 40.0])
    scaled = torch.stack([units[:, 0] * factor + shift, units[:, 1] * factor], dim=1)
    torch.testing.assert_close(
        network(x * factor + shift, units=scaled),
        network(x, units=units) * factor[:, None] + shift[:, None],
        rtol=1e-3,
        atol=1.0,
    )
    # The heads read and write in these units.
    alone = make_network(mixing_heads=0)
    alone.load_state_dict({name: value for name, value in network.state_dict().items() if "mixing" not in name})
    standard = (x - x.mean(1, keepdim=True)) / units[:, 1]
    added = network.mixing(standard).mT * units[:, 1]
    torch.testing.assert_close(network(x, units=units), alone(x) + added[..., None], rtol=1e-3, atol=1.0)


@pytest.mark.parametrize("name", ["future", "historic"])
def test_features_reach_the_linear_path(name):
    network = make_network(
        num_layers=1, mixing_heads=0, covariates=("maps", "channels"), feature_sizes=FeatureSizes(**{name: 2})
    )
    steps = LOOKBACK + (HORIZON if name == "future" else 0)
    features = torch.randn(3, steps, CHANNELS, 2)
    x = make_windows()
    with torch.no_grad():
        network.encoder.head.weight.zero_()
        if name == "future":
            network.encoder.future_head.weight.zero_()
    added = network(x, **{name: features}) - network(x, **{name: torch.zeros_like(features)})
    flat = features.permute(0, 2, 1, 3).reshape(3, CHANNELS, -1)
    expected = (flat @ getattr(network, f"{name}_map")).mT * location_scale(x, None)[1]
    torch.testing.assert_close(added[..., 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["future", "historic"])
def test_channels_with_vectors_read_features_by_weights_of_their_own(name):
    """A loop over channels; an unknown series, and a panel of another size, have the shared map alone."""
    sizes = {"feature_sizes": FeatureSizes(**{name: 2}), "covariates": ("maps", "channels")}
    network = make_network(
        mixing_heads=1, num_channels=CHANNELS, per_channel=("vectors",), num_layers=1, **sizes
    ).eval()
    steps = LOOKBACK + (HORIZON if name == "future" else 0)
    features = torch.randn(3, steps, CHANNELS, 2)
    x = make_windows()
    maps = network.features[name]
    with torch.no_grad():
        for parameter in (getattr(network, f"{name}_map"), maps.maps):
            parameter.normal_()
        network.encoder.head.weight.zero_()
        if name == "future":
            network.encoder.future_head.weight.zero_()
    series = torch.tensor([2, -1, *range(2, CHANNELS)])
    for known in (None, series):
        added = network(x, series=known, **{name: features})
        added = added - network(x, series=known, **{name: torch.zeros_like(features)})
        for c in range(CHANNELS):
            weight = maps.channel_weight[c if known is None else int(known[c])]
            if known is not None and known[c] < 0:
                weight = torch.zeros_like(weight)
            whole = getattr(network, f"{name}_map") + sum(w * each for w, each in zip(weight, maps.maps, strict=True))
            expected = 0.3 * features[:, :, c].reshape(3, -1) @ whole * location_scale(x, None)[1][:, :, c]
            torch.testing.assert_close(added[:, :, c, 0], expected, rtol=1e-3, atol=1e-3)
    few, alone = x[:, :, :2], features[:, :, :2]
    unknown = torch.full((2,), -1)
    torch.testing.assert_close(network(few, **{name: alone}), network(few, series=unknown, **{name: alone}))


def test_weights_of_features_learn():
    """A driver that reaches two channels with opposite signs: one shared map would find nothing."""
    torch.manual_seed(0)
    driver = torch.randn(64, LOOKBACK + HORIZON, 1, 1).expand(-1, -1, 2, -1)
    target = driver[:, LOOKBACK:, :, 0] * torch.tensor([1.0, -1.0])
    config = ForecastingConfig(
        HORIZON, LOOKBACK, num_layers=1, feature_sizes=FeatureSizes(1), mixing_heads=1, num_channels=2,
        per_channel=("vectors",), patch_length=4, patch_stride=4, dim=8, num_heads=2, mlp_dim=8, normalise=False,
    )  # fmt: skip
    errors = {}
    for heads, covariates in ((0, ("maps",)), (4, ("maps", "channels"))):
        network = ForecastingNetwork(replace(config, covariates=covariates))
        network.encoder = None  # the linear path alone
        optimiser = torch.optim.Adam(network.parameters(), 0.05)
        for _ in range(60):
            optimiser.zero_grad()
            forecast = network(torch.zeros(64, LOOKBACK, 2), future=driver, units=torch.tensor([[0.0, 1.0]] * 2))
            loss = (forecast[..., 0] - target).square().mean()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            forecast = network.eval()(torch.zeros(64, LOOKBACK, 2), future=driver)
        errors[heads] = float((forecast[..., 0] - target).square().mean())
    power = float(target.square().mean())
    assert errors[4] < 0.1 * power < 0.9 * power < errors[0]


@pytest.mark.parametrize(
    ("options", "inputs", "message"),
    [
        ({}, {"series": torch.arange(5)}, "series needs a network with learnt vectors"),
        (
            {"num_channels": 5, "per_channel": ("vectors",)},
            {"series": torch.arange(4)},
            r"series must be integers of shape \(5,\)",
        ),
        (
            {"num_channels": 5, "per_channel": ("vectors",)},
            {"series": torch.ones(5)},
            "series must be integers .*float32",
        ),
        ({}, {"positions": torch.zeros(5, 1)}, r"positions must be None \(position_size is 0\), got \(5, 1\)"),
        ({"position_size": 1}, {}, r"positions must be \(5, 1\) \(position_size is 1\), got None"),
        ({"position_size": 1}, {"positions": torch.zeros(4, 1)}, r"positions must be \(5, 1\) .*got \(4, 1\)"),
        ({"position_size": 1}, {"positions": torch.full((5, 1), torch.nan)}, "positions must be finite, got"),
        ({}, {"units": torch.ones(5)}, r"units must have shape \(5, 2\), got \(5,\)"),
    ],
    ids=str,
)
def test_bad_input(options, inputs, message):
    with pytest.raises(ValueError, match=message):
        make_network(**options)(make_windows(), **inputs)


def test_whole_numbers_are_positions():
    network = make_network(position_size=1).eval()
    places = torch.arange(5)[:, None]
    forecasts = [network(make_windows(), positions=positions) for positions in (places, places.float())]
    torch.testing.assert_close(*forecasts)


def test_an_average_of_buffers_keeps_the_reach():
    network = make_network().train()
    average = torch.optim.swa_utils.AveragedModel(network, use_buffers=True)
    for _ in range(3):
        network(make_windows())
        average.update_parameters(network)
    assert average.module.mixing.reach == CHANNELS


def cut(values: torch.Tensor, lookback: int = 24, horizon: int = 6, **fields: object) -> Windows:
    return Windows(values, torch.arange(len(values) - lookback - horizon + 1), lookback, horizon, **fields)  # type: ignore[arg-type]


def walks(rows: int = 300, channels: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, channels, generator=torch.Generator().manual_seed(seed)).cumsum(0)


def led(rows: int = 300, lag: int = 10, seed: int = 0) -> torch.Tensor:
    """A walk, two of its own, and one that follows the first."""
    values = walks(rows + lag, 4, seed)
    return torch.cat([values[lag:, :3], values[:rows, :1]], dim=1)


def test_heads_learn_slowly_where_no_channel_tells_of_another():
    shares = [mixing_share(cut(walks(seed=seed))) for seed in range(8)]
    assert sorted(shares)[6] == 0.1  # one of eight seems to tell something
    assert all(mixing_share(cut(led(seed=seed))) == 1.0 for seed in range(8))


def test_share_rises_with_what_a_follower_takes_from_its_leader():
    source, noise = led()[:, [0, 3]].diff(dim=0), torch.randn(299, generator=torch.Generator().manual_seed(9))
    shares = [
        mixing_share(cut(torch.stack([source[:, 0], part * source[:, 1] + noise], dim=1).cumsum(0)))
        for part in (0.0, 0.2, 0.3, 1.0)
    ]
    assert shares == sorted(shares)
    assert shares[0] == 0.1
    assert shares[-1] == 1.0


def test_units_do_not_change_the_share():
    for values in (walks(), led()):
        share = mixing_share(cut(values))
        moved = values * torch.tensor([1e-6, 1.0, 1e6, 3.0]) + torch.tensor([0.0, 5.0, -1e5, 0.1])
        assert mixing_share(cut(moved)) == pytest.approx(share, abs=0.02)


def test_too_few_windows_too_many_or_one_channel_keep_the_rate():
    assert mixing_share(cut(walks(128))) == 1.0  # 99 windows
    assert mixing_share(cut(walks(129))) < 1.0
    assert mixing_share(cut(walks(1029))) < 1.0
    assert mixing_share(cut(walks(1030))) == 1.0
    assert mixing_share(cut(walks(300, 1))) == 1.0
    assert mixing_share(cut(walks(300), horizon=60)) == 1.0  # 217 windows, of which too few share no target


def test_share_with_missing_values():
    """Numbers that stand where nothing was observed are not read, also before a channel's first value."""
    observed = torch.rand(300, 4, generator=torch.Generator().manual_seed(1)) > 0.1
    observed[:20, 1] = False
    for values, expected in ((walks(), 0.1), (led(), 1.0)):
        shares = [mixing_share(cut(values.where(observed, other), observed=observed)) for other in (0.0, 1e8)]
        assert shares == [expected, expected]
    nothing = observed.clone()
    nothing[:, 2] = False
    assert mixing_share(cut(led(), observed=nothing)) == 1.0


def test_share_of_channels_that_never_change():
    assert mixing_share(cut(torch.ones(300, 4))) == 0.1
    values = walks()
    values[:, 2] = 7.0
    assert mixing_share(cut(values)) == 0.1
