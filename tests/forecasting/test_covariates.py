"""Effects of covariates that are known ahead: what drives a series is found, what does not is left alone."""

import warnings

import pytest
import torch
from torch import Tensor

from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.covariates import covariate_effects

pytestmark = pytest.mark.usefixtures("no_gradients")

L, H, N = 160, 24, 40


def remembered(memory: float, generator: torch.Generator) -> Tensor:
    """Noise with memory, [N, L + h]."""
    noise = torch.randn(N, L + H, generator=generator)
    for step in range(1, L + H):
        noise[:, step] = memory * noise[:, step - 1] + (1 - memory**2) ** 0.5 * noise[:, step]
    return noise


def drivers(kind: str, generator: torch.Generator) -> Tensor:
    if kind == "promotion":
        return (torch.rand(N, L + H, generator=generator) < 0.15).float()
    if kind == "walk":
        return remembered(0.0, generator).cumsum(1)
    return remembered({"price": 0.0, "weather": 0.9}[kind], generator)


@pytest.mark.parametrize("kind", ["price", "weather", "promotion", "walk"])
def test_a_driver_is_found_and_noise_is_left_out(kind):
    generator = torch.Generator().manual_seed(5)
    covariate, rest = drivers(kind, generator), remembered(0.8, generator)
    effect = 2.0 * covariate / covariate.std(1, keepdim=True)
    seen = torch.ones(N, L, dtype=torch.bool)

    def rms(x: Tensor) -> float:
        return x.square().mean().sqrt().item()

    found = covariate_effects((rest + effect)[:, :L], seen, covariate[..., None])
    level = (effect - found)[:, :L].mean(1, keepdim=True)  # a constant stays with the series
    # A walk leaves the range of its history, and counts as little more than its end there.
    share = 0.6 if kind == "walk" else 0.25
    assert rms((effect - found - level)[:, L:]) < share * rms((effect - effect[:, :L].mean(1, keepdim=True))[:, L:])
    assert rms(covariate_effects(rest[:, :L], seen, covariate[..., None])) < 0.05


def test_units_and_places_do_not_matter():
    generator = torch.Generator().manual_seed(6)
    covariate = remembered(0.5, generator)
    series = remembered(0.8, generator)[:, :L] + covariate[:, :L]
    seen = torch.ones(N, L, dtype=torch.bool)
    found = covariate_effects(series, seen, covariate[..., None])
    other = covariate_effects(100.0 + 1000.0 * series, seen, 7.0 - 50.0 * covariate[..., None])
    torch.testing.assert_close(other, 1000.0 * found, rtol=1e-3, atol=0.1)
    torch.testing.assert_close(
        covariate_effects(series[[3]], seen[[3]], covariate[[3]][..., None]), found[[3]], rtol=1e-4, atol=1e-5
    )


def test_what_no_row_tells_has_no_effect():
    constant, few = torch.ones(1, L + H, 1), torch.ones(1, L, dtype=torch.bool)
    series = torch.randn(1, L, generator=torch.Generator().manual_seed(1))
    assert not covariate_effects(series, few, constant).any()
    few[:, 14:] = False
    assert not covariate_effects(series, few, torch.randn(1, L + H, 1)).any()


def test_a_driver_is_found_in_few_rows():
    generator = torch.Generator().manual_seed(7)
    x = torch.rand(100, 26, 1, generator=generator)
    y = 100.0 + 3.0 * x[..., 0] + 0.1 * torch.randn(100, 26, generator=generator)
    effect = covariate_effects(y[:, :20], torch.ones(100, 20, dtype=torch.bool), x)
    wrong = torch.diff(effect - 3.0 * x[..., 0])[:, 20:].abs().mean()
    assert wrong < 0.4 * torch.diff(3.0 * x[:, 20:, 0]).abs().mean()


@pytest.mark.parametrize("first", [10, 50, 80])
def test_a_campaign_that_came_once_counts(first):
    x = ((torch.arange(162) - first) // 20 == 0) | (torch.arange(162) >= 150)
    y = 50.0 + 40.0 * x + torch.randn(162, generator=torch.Generator().manual_seed(first))
    effect = covariate_effects(y[None, :150], torch.ones(1, 150, dtype=torch.bool), x[None, :, None].float())[0]
    assert 36.0 < effect[150:].mean() - effect[140:150].mean() < 44.0


@pytest.mark.parametrize("beside", [0.0, 1e9])
def test_constant_columns_and_large_levels_change_no_effect(beside):
    generator = torch.Generator().manual_seed(8)
    x = torch.rand(1, 162, 1, generator=generator, dtype=torch.float64)
    y = 5.0 * x[:, :150, 0].roll(1, 1) + 0.1 * torch.randn(1, 150, generator=generator)  # a step later
    seen = torch.ones(1, 150, dtype=torch.bool)
    others = torch.cat([x + beside, torch.full((1, 162, 10), 3.0)], 2)
    torch.testing.assert_close(covariate_effects(y, seen, others), covariate_effects(y, seen, x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rising", [True, False])
def test_the_steps_of_a_running_total_follow_a_covariate(rising):
    generator = torch.Generator().manual_seed(9)
    x = torch.rand(1, 162, 1, 1, generator=generator)
    total = (5.0 + 9.0 * x[..., 0] + 0.2 * torch.rand(1, 162, 1, generator=generator)).cumsum(1)
    total = total if rising else 1e4 - total
    forecast = forecast_quantiles(load_base("base"), total[:, :150], horizon=12, future=x)[..., 4]
    assert (forecast - total[:, 150:]).abs().mean() < 1.0  # 6 without the covariate


def test_a_price_far_outside_counts_as_a_little_outside():
    generator = torch.Generator().manual_seed(2)
    price = torch.rand(1, L + 1, 1, 1, generator=generator)
    sales = 10.0 - 4.0 * price[:, :L, :, 0] + 0.05 * torch.randn(1, L, 1, generator=generator)
    network = load_base("base")
    price[:, L] = 30.0
    with pytest.warns(UserWarning, match=r"the covariate price goes \d+ times its range over what"):
        far = forecast_quantiles(network, sales, horizon=1, future=price, names=["price"])[0, 0, 0, 4]
    assert 5.0 < far < 6.3  # 10 − 4 · 1.1
    with warnings.catch_warnings():  # in training, windows are padded with zeros beyond the end
        warnings.simplefilter("error")
        forecast_quantiles(network.train(), sales, horizon=1, future=price, names=["price"])


def test_padding_before_the_beginning_says_nothing():
    generator = torch.Generator().manual_seed(3)
    future = torch.rand(1, 120 + 8, 1, 1, generator=generator)
    x = 3.0 * future[:, :120, :, 0] + 0.1 * torch.randn(1, 120, 1, generator=generator)
    mask = torch.ones_like(x, dtype=torch.bool)
    network = load_base("base")

    def padded(tensor: Tensor, value: float) -> Tensor:
        return torch.cat([torch.full_like(tensor[:, :50], value), tensor], 1)

    plain = forecast_quantiles(network, x, mask, horizon=8, future=future)
    later = forecast_quantiles(
        network, padded(x, 0.0), padded(mask.float(), 0.0).bool(), horizon=8, future=padded(future, 99.0)
    )
    torch.testing.assert_close(later, plain, rtol=1e-3, atol=1e-3)


def test_a_past_covariate_that_leads_is_read():
    generator = torch.Generator().manual_seed(4)
    leader = torch.randn(1, 400, generator=generator)
    x = torch.cat([torch.zeros(1, 12), leader[:, :-12]], 1)[..., None]
    x = x + 0.1 * torch.randn(x.shape, generator=generator)
    network = load_base("base")
    alone = forecast_quantiles(network, x[:, :388], horizon=12)[..., 4]
    led = forecast_quantiles(network, x[:, :388], horizon=12, historic=leader[:, :388, None, None])[..., 4]
    error = [(forecast - x[:, 388:]).square().mean().item() for forecast in (alone, led)]
    assert led.shape == alone.shape
    assert error[1] < 0.5 * error[0], error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"future": torch.zeros(1, 40, 2, 1)}, r"future must be \[B, L \+ horizon, C, k\] = \[1, 44, 2, k\], got"),
        ({"future": torch.zeros(1, 44, 2, 1).index_fill(1, torch.tensor([42]), torch.nan)},
         "future must hold a number at each step of the horizon, got none at step 3 of 4: a covariate that ends"),
        ({"historic": torch.zeros(1, 44, 2, 1)}, r"historic must be \[B, L, C, m\] = \[1, 40, 2, m\], got shape"),
        ({"historic": torch.zeros(1, 40, 2, 1), "positions": torch.tensor([[0.0], [1.0]])},
         "historic must be left out with positions"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        forecast_quantiles(load_base("base"), torch.randn(1, 40, 2), horizon=4, **options)


def test_bounds_are_those_of_the_rows_seen_or_as_given():
    x = torch.tensor([[[1.0, 0.0], [3.0, 0.0]] * 20])
    mask = torch.tensor([True, False]).expand(x.shape)
    network = load_base("base")
    with pytest.warns(UserWarning, match="fewer than 16 observed steps"):
        within = forecast_quantiles(network, x, mask, horizon=3, bounded=True)
    outside = r"bounded is \(None, 1.5\), but 20 values of the history lie outside, such as 3: all"
    with pytest.warns(UserWarning, match=outside), pytest.warns(match="fewer than 16 observed steps"):
        below = forecast_quantiles(network, x, mask, horizon=3, bounded=(None, 1.5))
    assert within[:, :, 0].min() >= 1.0
    assert within[:, :, 0].max() <= 3.0
    assert within.isfinite().all()  # the second series was never seen
    assert below.max() <= 1.5


def test_pieces_sold_now_and_then_are_whole_and_their_quantiles_hold():
    draws = torch.Generator().manual_seed(5)
    promotion = (torch.rand(12, 214, generator=draws) < 0.2).float()
    sold = torch.poisson(0.3 + 0.7 * promotion, draws)
    plain, led = (
        forecast_quantiles(load_base("base"), sold[:, :200, None], horizon=14, future=future)[:, :, 0]
        for future in (None, promotion[..., None, None])
    )
    for forecast in (plain, led):
        assert torch.equal(forecast, forecast.round())
        above = (sold[:, 200:] > forecast[..., -1]).float().mean()
        assert above <= 0.13  # of the network's own, which lie between the pieces, .2 to .3
    assert (led[..., -1][promotion[:, 200:] > 0].mean() - led[..., -1][promotion[:, 200:] == 0].mean()) > 0.3


def test_a_short_series_beside_it_changes_no_effect():
    generator = torch.Generator().manual_seed(11)
    price = torch.rand(1, 212, 2, 1, generator=generator)
    now = price[:, :, 0, 0]
    effect = -4.0 * now - 3.0 * now.roll(1, 1) - 2.0 * now.roll(2, 1)
    x = torch.stack([10.0 + effect, torch.zeros_like(effect)], 2) + 0.3 * torch.randn(1, 212, 2, generator=generator)
    mask = torch.ones(1, 200, 2, dtype=torch.bool)
    mask[:, :188, 1] = False  # begins twelve rows before the end
    price[:, :188, 1], price[:, 200:, 1] = 0.1, 0.5
    with pytest.warns(UserWarning, match="fewer than 16"):
        forecast = forecast_quantiles(load_base("small"), x[:, :200], mask, horizon=12, future=price)[0, :, 0, 4]
    assert (forecast - 10.0 - effect[0, 200:]).abs().mean() < 0.5  # 1.2 without earlier prices


def test_a_covariate_that_stayed_the_same_is_named_also_where_a_series_begins_late():
    mask = torch.ones(1, 100, 2, dtype=torch.bool)
    mask[:, :37, 1] = False
    x = torch.randn(1, 100, 2, generator=torch.Generator().manual_seed(3))
    holiday = torch.full((1, 106, 2, 1), 0.1)  # a mean of such numbers is another one
    holiday[:, 100:] = 5.0
    with pytest.warns(UserWarning, match="never vary") as said:
        forecast_quantiles(load_base("small"), x, mask, horizon=6, future=holiday, names=["holiday"])
    assert [str(each.message) for each in said] == [
        "covariates that never vary in their history have no effect, whatever comes: holiday"
    ]
