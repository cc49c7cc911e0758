"""A stream through `MVPAttention.step` against the module over all segments at once."""

import copy

import pytest
import torch

from mvpa_ts import MVPAttention

SEGMENTS, C, D = 7, 4, 16


def stream(attention: MVPAttention, x: torch.Tensor, mask: torch.Tensor | None, context: int, **sizes: int) -> list:
    codebooks = codebook(9), codebook(sizes.get("channel_rows", 6))
    cache = attention.make_cache(*codebooks, num_channels=C, context=context)
    found = []
    for t in range(SEGMENTS):
        cache.advance(None if mask is None else mask[t])
        found.append(attention.step(x[None, t].clone(), cache)[0])
    return found


def codebook(rows: int) -> torch.Tensor:
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)


@pytest.fixture
def begun():
    """An attention, and a cache of it that waits for its first step."""
    attention = MVPAttention(D, 2).double()
    cache = attention.make_cache(codebook(3), codebook(C), num_channels=C, context=3)
    cache.advance()
    return attention, cache


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", [{}, {"window": 2}, {"num_kv_heads": 1, "window": 0}, {"beyond": "clamp"}], ids=str)
@pytest.mark.parametrize("context", [SEGMENTS, 3])
def test_every_step_is_the_last_row_of_its_context(context, options, masked):
    torch.manual_seed(0)
    attention = MVPAttention(D, 2, **options).double().eval()
    rows = 2 if "beyond" in options else 6
    x = torch.randn(SEGMENTS, C, D, dtype=torch.float64)
    mask = torch.rand(SEGMENTS, C) > 0.3 if masked else None
    found = stream(attention, x, mask, context, channel_rows=rows)
    for t, row in enumerate(found):
        seen = slice(max(0, t + 1 - context), t + 1)
        whole = attention(
            x[None, seen], codebook(9), codebook(rows), token_mask=None if mask is None else mask[None, seen]
        )
        torch.testing.assert_close(row, whole[0, -1], atol=1e-12, rtol=1e-10)


def test_what_cannot_stream_is_refused_and_so_is_a_codebook_that_is_too_short():
    for options in ({"causal": False}, {"channel_distance": "signed"}, {"channel_window": 2}):
        with pytest.raises(ValueError, match="a stream needs causal=True, channel_distance='absolute' and channel_w"):
            MVPAttention(D, 2, **options).make_cache(torch.zeros(9, D), torch.zeros(9, D), num_channels=3, context=3)
    with pytest.raises(ValueError, match="time_codebook covers 2 positions, the input has 3"):
        MVPAttention(D, 2).make_cache(torch.zeros(2, D), torch.zeros(9, D), num_channels=3, context=3)


def test_a_step_without_room_is_refused():
    attention, x = MVPAttention(D, 2).double(), torch.zeros(1, C, D, dtype=torch.float64)
    cache = attention.make_cache(codebook(3), codebook(C), num_channels=C, context=3)
    with pytest.raises(RuntimeError, match=r"call cache.advance\(\) before each step"):
        attention.step(x, cache)
    cache.advance()
    attention.step(x, cache)
    with pytest.raises(RuntimeError, match=r"call cache.advance\(\) before each step"):
        attention.step(x, cache)
    cache.reset()
    with pytest.raises(RuntimeError, match=r"call cache.advance\(\) before each step"):
        attention.step(x, cache)


@torch.no_grad()
@pytest.mark.parametrize("skipped", [4, 5])
def test_a_segment_without_a_step_is_missing(skipped):
    """Its place holds the keys of an older segment. The buffers move after segment 5."""
    attention, x = MVPAttention(D, 2).double().eval(), torch.randn(SEGMENTS, C, D, dtype=torch.float64)
    cache = attention.make_cache(codebook(3), codebook(C), num_channels=C, context=3)
    for t in range(SEGMENTS):
        cache.advance()
        if t != skipped:
            newest = attention.step(x[None, t], cache)
    real = (torch.arange(SEGMENTS) != skipped)[None, -3:]
    whole = attention(x[None, -3:], codebook(3), codebook(C), segment_mask=real)
    torch.testing.assert_close(newest[0], whole[0, -1], atol=1e-12, rtol=1e-10)


def test_a_stream_keeps_no_gradients_and_a_cache_can_be_copied(begun):
    """With gradients the graph of the whole stream would stay in memory."""
    attention, cache = begun
    x = torch.randn(2, 1, C, D, dtype=torch.float64)
    assert not attention.step(x[0], cache).requires_grad
    branch = copy.deepcopy(cache)
    found = []
    for one in (cache, branch):
        one.advance()
        found.append(attention.step(x[1], one))
    torch.testing.assert_close(*found, atol=0, rtol=0)
    assert branch.keys.data_ptr() != cache.keys.data_ptr()


@pytest.mark.parametrize(
    ("mask", "came"),
    [
        (torch.ones(1, dtype=torch.bool), r"torch.bool of \(1,\)"),
        (torch.ones(C), r"torch.float32 of \(4,\)"),
        ([True] * C, "list"),
    ],
    ids=str,
)
def test_a_mask_that_does_not_fit_the_stream_is_refused(begun, mask, came):
    with pytest.raises(ValueError, match=rf"channel_mask must be a bool tensor of shape \(4,\), got {came}"):
        begun[1].advance(mask)


def test_a_step_of_another_shape_or_precision_is_refused(begun):
    attention, cache = begun
    for shape in ((C, D), (4, C, D), (1, C - 1, D), (1, C, D + 1)):
        with pytest.raises(ValueError, match=r"x must be the newest segment of one stream, \[1, C, D\] = \[1, 4, 16\]"):
            attention.step(torch.zeros(shape, dtype=torch.float64), cache)
    with pytest.raises(ValueError, match=r"the cache holds torch.float64 and the newest segment is torch.float32"):
        attention.float().step(torch.zeros(1, C, D), cache)


@torch.no_grad()
def test_autocast_steps_with_a_cache_made_before():
    attention, x = MVPAttention(D, 2), torch.randn(3, C, D)
    books = codebook(3).float(), codebook(C).float()
    cache = attention.make_cache(*books, num_channels=C, context=3)
    with torch.autocast("cpu", torch.bfloat16):
        for segment in x:
            cache.advance()
            newest = attention.step(segment[None], cache)
    assert newest.dtype == torch.bfloat16
    torch.testing.assert_close(newest[0].float(), attention(x[None], *books)[0, -1], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", ["context", "num_channels"])
def test_a_cache_without_room_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        MVPAttention(D, 2).make_cache(codebook(3), codebook(3), **{"num_channels": 3, "context": 3, name: 0})


@torch.no_grad()
def test_a_stream_without_time_and_channel_terms_needs_no_codebook():
    attention = MVPAttention(D, 2, components=["content"]).eval()
    x = torch.randn(1, SEGMENTS, C, D, generator=torch.Generator().manual_seed(0))
    cache = attention.make_cache(None, None, num_channels=C, context=SEGMENTS)
    for t in range(SEGMENTS):
        cache.advance()
        newest = attention.step(x[:, t], cache)
    torch.testing.assert_close(newest, attention(x)[:, -1])
