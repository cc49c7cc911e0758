"""Products by oneDNN: as exact as float32, and no trace of the setting that lets oneDNN have them."""

import threading

import pytest
import torch
from support.attention_checks import Case

from mvpa_ts import mvpa_attention
from mvpa_ts.attention.separable import products
from mvpa_ts.attention.separable.products import _LEAST_MULTIPLICATIONS, faster_products

MATMUL = torch.backends.mkldnn.matmul
ALLOWED = "bf16"


@pytest.fixture(autouse=True)
def setting() -> object:
    """The setting of a fresh process, put back whatever a test does."""
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "none"
    products._remain_float32.cache_clear()
    yield None
    assert MATMUL.fp32_precision == "none"
    MATMUL.fp32_precision = before
    products._remain_float32.cache_clear()


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that computes in float32 under the setting, whatever this one does."""
    monkeypatch.setattr(products, "_remain_float32", lambda: True)


def rounding_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that uses bfloat16 where the setting allows it."""
    float32_product = torch.bmm

    def bmm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        if MATMUL.fp32_precision == ALLOWED and first.dtype == torch.float32:
            first, second = first.bfloat16().float(), second.bfloat16().float()
        return float32_product(first, second)

    monkeypatch.setattr(torch, "bmm", bmm)


def test_a_large_call_is_as_exact_as_float32():
    case = Case((12, 21), window=5, kv_heads=2, batch=2, head_dim=32)
    exact, found = (
        mvpa_attention(*case.inputs(dtype), impl="separable", **case.options())
        for dtype in (torch.float64, torch.float32)
    )
    # bfloat16 would be off by some 1e-2.
    torch.testing.assert_close(found.double(), exact, atol=2e-5, rtol=2e-5)


def test_the_setting_holds_inside_and_not_after_even_an_error(exact):
    with faster_products(torch.zeros(1), _LEAST_MULTIPLICATIONS):
        assert MATMUL.fp32_precision == ALLOWED
    assert MATMUL.fp32_precision == "none"
    with pytest.raises(KeyError), faster_products(torch.zeros(1), _LEAST_MULTIPLICATIONS):
        raise KeyError


def test_a_setting_of_the_user_comes_back(exact):
    MATMUL.fp32_precision = "ieee"
    with faster_products(torch.zeros(1), _LEAST_MULTIPLICATIONS):
        pass
    assert MATMUL.fp32_precision == "ieee"
    MATMUL.fp32_precision = "none"


def test_the_last_thread_out_puts_the_setting_back(exact):
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with faster_products(torch.zeros(1), _LEAST_MULTIPLICATIONS):
            inside.set()
            leave.wait(60)

    with faster_products(torch.zeros(1), _LEAST_MULTIPLICATIONS):
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(60)
    assert MATMUL.fp32_precision == ALLOWED
    leave.set()
    thread.join()
    assert MATMUL.fp32_precision == "none"


@pytest.mark.parametrize(
    ("like", "multiplications"),
    [
        (torch.zeros(1), _LEAST_MULTIPLICATIONS - 1),
        (torch.zeros(1, dtype=torch.float64), _LEAST_MULTIPLICATIONS),
        (torch.zeros(1, device="meta"), _LEAST_MULTIPLICATIONS),
        (torch.nn.Parameter(torch.zeros(1)), _LEAST_MULTIPLICATIONS),
    ],
    ids=["small", "float64", "meta", "subclass"],
)
def test_other_products_stay_as_they_are(exact, like, multiplications):
    with faster_products(like, multiplications):
        assert MATMUL.fp32_precision == "none"


def test_a_processor_that_rounds_is_found_out(monkeypatch):
    rounding_processor(monkeypatch)
    assert not products._remain_float32()
    with faster_products(torch.zeros(1), _LEAST_MULTIPLICATIONS):
        assert MATMUL.fp32_precision == "none"
