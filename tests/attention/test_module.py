"""The attention module: projections, codebook rows, masks, dropout, saving."""

from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange
from torch import Tensor, nn

from mvpa_ts import MVPAttention, mvpa_attention

B, T, C, D, HEADS = 3, 5, 4, 24, 4


def codebooks(time_rows: int = T, channel_rows: int = C) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(time_rows, D, generator=generator), torch.randn(channel_rows, D, generator=generator)


def sample(segments: int = T, channels: int = C, batch: int = B) -> Tensor:
    return torch.randn(batch, segments, channels, D, generator=torch.Generator().manual_seed(6))


def module(**options: Any) -> MVPAttention:
    torch.manual_seed(7)
    attention = MVPAttention(D, HEADS, **options)
    for bias in (attention.content_bias, attention.time_bias, attention.channel_bias):
        torch.nn.init.normal_(bias)
    return attention.eval()


def directly(attention: MVPAttention, x: Tensor, time_rows: Tensor, channel_rows: Tensor, **options: Any) -> Tensor:
    """The module's definition, given codebook rows in the order in which the function reads them."""

    def heads(tensor: Tensor) -> Tensor:
        return rearrange(tensor, "... (h d) -> ... h d", d=D // HEADS)

    attended = mvpa_attention(
        *(heads(projection(x)) for projection in (attention.query, attention.key, attention.value)),
        heads(attention.time_key(time_rows)),
        heads(attention.channel_key(channel_rows)),
        attention.content_bias,
        attention.time_bias,
        attention.channel_bias,
        impl="reference",
        **options,
    )
    return attention.output(rearrange(attended, "b t c h d -> b t c (h d)"))


@pytest.mark.parametrize("impl", ["auto", "reference", "separable"])
@pytest.mark.parametrize("kv_heads", [None, 1, 2])
def test_it_is_the_function_between_projections(kv_heads, impl):
    attention = module(num_kv_heads=kv_heads, window=1, impl=impl)
    x, (time_codebook, channel_codebook) = sample(), codebooks()
    output = attention(x, time_codebook, channel_codebook)
    assert output.shape == x.shape
    torch.testing.assert_close(output, directly(attention, x, time_codebook, channel_codebook, window=1))


def test_options_reach_the_function():
    options: dict[str, Any] = {
        "causal": False,
        "window": 1,
        "dense_last_segment": True,
        "components": ("content", "channel"),
        "channel_distance": "signed",
    }
    x, tables = sample(), codebooks(2 * T - 1, 2 * C - 1)
    attention = module(**options)
    torch.testing.assert_close(attention(x, *tables), directly(attention, x, *tables, **options))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 25, "num_heads": 4}, r"dim \(25\) must be a multiple of num_heads \(4\)"),
        ({"dim": 24, "num_heads": 0}, "num_heads"),
        ({"dim": 24, "num_heads": 12, "num_kv_heads": 5}, r"num_heads \(12\) must be a multiple of num_kv_heads \(5\)"),
        ({"dim": 24, "num_heads": 4, "num_kv_heads": 0}, "num_kv_heads"),
        ({"dim": 24, "num_heads": 4, "components": ["space"]}, "components.*'space'"),
        ({"dim": 24, "num_heads": 4, "row_order": "reversed"}, "row_order must be .*got 'reversed'"),
        ({"dim": 24, "num_heads": 4, "row_order": "released", "causal": False}, "row_order='released' needs causal"),
        ({"dim": 24, "num_heads": 4, "row_order": "released", "channel_distance": "signed"}, "row_order='released'"),
        ({"dim": 24, "num_heads": 4, "causal": "no"}, "causal must be True or False, got 'no'"),
        ({"dim": 24, "num_heads": 4, "beyond": "wrap"}, "beyond must be 'error' or 'clamp', got 'wrap'"),
        ({"dim": 24, "num_heads": 4, "impl": "fast"}, "impl must be one of .*got 'fast'"),
        ({"dim": 24, "num_heads": 4, "dropout": 1.0}, "dropout"),
        ({"dim": 24, "num_heads": 4, "window": -1}, "window"),
        ({"dim": 24, "num_heads": 4, "channel_distance": "squared"}, "channel_distance"),
        ({"dim": 24, "num_heads": 4, "channel_window": 0}, "channel_window .* at least 1 channel, got 0"),
    ],
)
def test_a_wrong_configuration_is_refused_when_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        MVPAttention(**arguments)


@pytest.mark.parametrize(
    ("options", "time_rows", "channel_rows", "message"),
    [
        ({}, T - 1, C, "time_codebook covers 4 positions, the input has 5"),
        ({}, T, C - 1, "channel_codebook covers 3 positions, the input has 4"),
        (
            {"causal": False},
            2 * T - 3,
            C,
            r"time_codebook covers 4 positions.*from 7 to 2·5 − 1 = 9 rows \(causal=False\)",
        ),
        ({"causal": False}, 2 * T, C, "time_codebook must have an odd number of rows with causal=False: 2·5 − 1 = 9"),
        (
            {"channel_distance": "signed"},
            T,
            2 * C - 3,
            r"channel_codebook covers 3 .*= 7 rows \(channel_distance='signed'",
        ),
        ({"row_order": "released"}, T - 1, C, "time_codebook covers 4 positions"),
    ],
)
def test_a_short_codebook_is_refused(options, time_rows, channel_rows, message):
    with pytest.raises(ValueError, match=message):
        module(**options)(sample(), *codebooks(time_rows, channel_rows))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(2, T * C, 24)}, r"x must be \[B, T, C, D\] with D = dim = 24 .*, got shape \(2, 20, 24\)"),
        ({"x": torch.zeros(2, T, 0, 24)}, r"x must be .*no empty axis, got shape \(2, 5, 0, 24\)"),
        ({"x": torch.zeros(2, T, C, 12)}, r"x must be .*got shape \(2, 5, 4, 12\)"),
        ({"x": torch.zeros(2, T, C, 24).long()}, r"x must hold floats, got torch\.int64: give x\.float\(\)"),
        ({"x": np.zeros((2, T, C, 24))}, r"x must be a torch\.Tensor, got ndarray"),
        ({"channel_codebook": None}, r"channel_codebook must be a tensor \[R, D\] .* got None; only .*'channel'"),
        ({"time_codebook": torch.zeros(T, 12)}, r"time_codebook must be \[R, D\] with D = dim = 24, .*\(5, 12\)"),
        ({"channel_codebook": torch.zeros(24)}, r"channel_codebook must be .*got shape \(24,\)"),
        ({"time_codebook": nn.Embedding(T, 24)}, r"time_codebook must be a tensor \[R, D\] .*24, got Embedding"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_input_of_another_shape_or_precision_is_refused_by_name(changes, message):
    time_codebook, channel_codebook = codebooks(T, C)
    inputs = {"x": sample(), "time_codebook": time_codebook, "channel_codebook": channel_codebook}
    with pytest.raises(ValueError, match=message):
        module()(**{**inputs, **changes})


@pytest.mark.parametrize("causal", [True, False])
def test_clamp_repeats_the_last_rows(causal):
    attention = module(beyond="clamp", causal=causal)
    x = sample()
    time_codebook, channel_codebook = codebooks(3 if causal else 5, 2)
    time_rows = [0, 1, 2, 2, 2] if causal else [0, 0, 0, 1, 2, 3, 4, 4, 4]
    expected = directly(attention, x, time_codebook[time_rows], channel_codebook[[0, 1, 1, 1]], causal=causal)
    torch.testing.assert_close(attention(x, time_codebook, channel_codebook), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_a_longer_codebook_changes_nothing(causal):
    """Rows are distances, so the rows for larger distances than occur are not read."""
    attention, x = module(causal=causal), sample()
    time_codebook, channel_codebook = codebooks(T + 3 if causal else 2 * T + 5, C + 2)
    needed = time_codebook[:T] if causal else time_codebook[3:-3]
    torch.testing.assert_close(
        attention(x, time_codebook, channel_codebook), attention(x, needed, channel_codebook[:C])
    )


def test_released_rows_count_down_from_the_extent():
    attention = module(row_order="released", window=1, dense_last_segment=True)
    x, (time_codebook, channel_codebook) = sample(), codebooks(T + 2, C + 3)
    expected = directly(
        attention, x, time_codebook[:T].flip(0), channel_codebook[:C].flip(0), window=1, dense_last_segment=True
    )
    torch.testing.assert_close(attention(x, time_codebook, channel_codebook), expected)


def test_released_rows_are_those_of_each_sample_without_its_padding():
    """Samples of mixed extents in one batch give what each gives alone, wherever the padding lies."""
    attention = module(row_order="released", window=1)
    tables = codebooks(T + 2, C + 3)
    x = sample()
    extents = [(5, 4), (3, 2), (4, 4)]
    starts = [(0, 0), (0, 1), (1, 0)]
    real = torch.zeros(B, T, C, dtype=torch.bool)
    for mask, (segments, channels), (t, c) in zip(real, extents, starts, strict=True):
        mask[t : t + segments, c : c + channels] = True
    output = attention(x.masked_fill(~real[..., None], float("nan")), *tables, token_mask=real)
    for i, ((segments, channels), (t, c)) in enumerate(zip(extents, starts, strict=True)):
        place = (slice(i, i + 1), slice(t, t + segments), slice(c, c + channels))
        time_rows, channel_rows = tables[0][:segments].flip(0), tables[1][:channels].flip(0)
        torch.testing.assert_close(output[place], directly(attention, x[place], time_rows, channel_rows, window=1))
        torch.testing.assert_close(output[place], attention(x[place], *tables))
    assert (output[~real] == 0).all()


def test_a_hole_inside_does_not_change_the_extent():
    attention = module(row_order="released")
    channel_mask = torch.tensor([[True, False, True, True]] * B)
    tables = codebooks()
    expected = directly(
        attention, sample(), tables[0].flip(0), tables[1].flip(0), token_mask=channel_mask[:, None].expand(B, T, C)
    )
    torch.testing.assert_close(attention(sample(), *tables, channel_mask=channel_mask), expected)


@pytest.mark.parametrize("row_order", ["distance", "released"])
def test_padding_changes_nothing_forward_and_backward(row_order):
    attention, tables = module(row_order=row_order, window=1), codebooks(T + 2, C + 3)
    x = sample()
    padded = torch.full((B, T + 2, C + 1, D), float("nan"))
    padded[:, :T, :C] = x
    masks = {
        "segment_mask": (torch.arange(T + 2) < T).expand(B, -1),
        "channel_mask": (torch.arange(C + 1) < C).expand(B, -1),
    }

    def evaluate(tensor: Tensor, **masks: Tensor) -> tuple[Tensor, list[Tensor]]:
        output = attention(tensor, *tables, **masks)[:, :T, :C]
        return output.detach(), list(torch.autograd.grad(output.square().sum(), list(attention.parameters())))

    output, gradients = evaluate(x)
    padded_output, padded_gradients = evaluate(padded, **masks)
    torch.testing.assert_close(padded_output, output)
    torch.testing.assert_close(padded_gradients, gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("row_order", ["distance", "released"])
def test_a_batch_may_hold_a_sample_without_any_real_token(row_order):
    attention = module(row_order=row_order)
    token_mask = torch.ones(B, T, C, dtype=torch.bool)
    token_mask[1] = False
    output = attention(sample(), *codebooks(), token_mask=token_mask)
    assert (output[1] == 0).all()
    torch.testing.assert_close(output[[0, 2]], attention(sample()[[0, 2]], *codebooks()))


def test_dropout_acts_in_training_only():
    attention, x, tables = module(dropout=0.5), sample(), codebooks()
    torch.testing.assert_close(attention(x, *tables), module()(x, *tables))
    attention.train()

    def drop(seed: int) -> Tensor:
        return attention(x, *tables, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(drop(1), drop(1))
    assert not torch.allclose(drop(1), drop(2))
    assert not torch.allclose(drop(1), attention.eval()(x, *tables))


@pytest.mark.parametrize("impl", ["reference", "separable"])
@pytest.mark.parametrize("row_order", ["distance", "released"])
def test_autocast_to_bfloat16(row_order, impl):
    attention = module(impl=impl, row_order=row_order)
    token_mask = torch.ones(B, T, C, dtype=torch.bool)
    token_mask[0, 3:] = False
    x = sample().requires_grad_()
    exact = attention(x, *codebooks(), token_mask=token_mask)
    with torch.autocast("cpu", torch.bfloat16):
        output = attention(x, *codebooks(), token_mask=token_mask)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), exact, atol=0.05, rtol=0.05)
    output.float().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(parameter.grad is not None for parameter in attention.parameters())


@pytest.mark.parametrize(
    ("components", "options"),
    [
        ((), {}),
        (("content",), {}),
        (("content", "channel"), {"causal": False, "channel_distance": "signed"}),
        (("time",), {"row_order": "released"}),
    ],
    ids=str,
)
def test_the_codebook_of_a_term_that_is_off_may_be_left_out(components, options):
    attention, x = module(components=components, **options), sample()
    two_sided = "causal" in options
    time, channel = codebooks(2 * T - 1 if two_sided else T, 2 * C - 1 if two_sided else C)
    needed = {
        name: book
        for name, book in (("time_codebook", time), ("channel_codebook", channel))
        if name.removesuffix("_codebook") in components
    }
    torch.testing.assert_close(attention(x, **needed), attention(x, time, channel))


@pytest.mark.parametrize(
    ("weights", "others"),
    [
        (torch.float32, torch.float64),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
    ids=str,
)
def test_precisions_that_do_not_go_together_are_named(weights, others):
    attention, x = MVPAttention(24, 4, dtype=weights), torch.randn(1, 3, 2, 24)
    time, channel = torch.randn(3, 24), torch.randn(2, 24).to(weights)
    message = f"must have the precision of the weights, {weights}, got {others}"
    with pytest.raises(ValueError, match=f"^x {message}"):
        attention(x.to(others), time.to(weights), channel)
    with pytest.raises(ValueError, match=f"^time_codebook {message}"):
        attention(x.to(weights), time.to(others), channel)


def test_device_and_dtype_are_those_of_all_parameters():
    made = MVPAttention(24, 4, device="meta", dtype=torch.bfloat16)
    assert {(parameter.device.type, parameter.dtype) for parameter in made.parameters()} == {("meta", torch.bfloat16)}
    assert list(made.state_dict()) == list(MVPAttention(24, 4).state_dict())


@pytest.mark.parametrize("by_layer", [False, True], ids=["module", "each layer that has them"])
def test_parameters_of_the_meta_device_can_be_drawn(by_layer):
    made = MVPAttention(24, 4, 2, device="meta").to_empty(device="cpu")
    for parameter in made.parameters():
        nn.init.constant_(parameter, float("nan"))
    torch.manual_seed(0)
    for layer in made.modules() if by_layer else [made]:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    assert all((bias == 0).all() for bias in (made.content_bias, made.time_bias, made.channel_bias))
    if not by_layer:
        torch.manual_seed(0)
        drawn = MVPAttention(24, 4, 2).state_dict()
        assert all(torch.equal(parameter, drawn[name]) for name, parameter in made.state_dict().items())
    assert made(sample(), *codebooks()).isfinite().all()


def test_exported_for_named_numbers_of_samples_segments_and_channels():
    """A codebook longer than the input must not tie the graph to a number of channels."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.tables = MVPAttention(D, HEADS), codebooks(20, 20)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, *self.tables)

    network = Network()
    sizes = {axis: torch.export.Dim(name, max=20) for axis, name in enumerate("BTC")}
    exported = torch.export.export(network, (sample(),), dynamic_shapes=(sizes,)).module()
    for size in ((T, C, B), (T + 4, C + 5, B + 2)):
        torch.testing.assert_close(exported(sample(*size)), network(sample(*size)))
