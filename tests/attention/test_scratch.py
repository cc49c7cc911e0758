"""Memory that the separable path keeps from call to call must never show in a result."""

import threading

import pytest
import torch
from support.attention_checks import Case
from torch import Tensor

from mvpa_ts import mvpa_attention
from mvpa_ts.attention.separable import scratch
from mvpa_ts.attention.separable.scratch import Scratch

CASE = Case((7, 4), window=2, kv_heads=1, batch=2, head_dim=8)


def evaluate(case: Case = CASE, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    inputs = case.inputs(dtype)
    output = mvpa_attention(*inputs, impl="separable", **case.options())
    return [output.detach(), *torch.autograd.grad(output.sum(), inputs)]


def poison() -> None:
    """Fill what the thread keeps with NaN."""
    for buffers in scratch._kept.__dict__.values():
        for buffer in buffers.values():
            buffer.fill_(float("nan"))


@pytest.mark.parametrize("masks", ["none", "token"])
@pytest.mark.parametrize("shape", [(7, 4), (3, 9), (11, 2)])
def test_what_a_call_left_does_not_show_in_the_next(shape, masks):
    case = Case(shape, window=1, kv_heads=1, batch=2, head_dim=8, masks=masks)
    first = evaluate(case)
    evaluate(Case((12, 5), kv_heads=1, batch=2, head_dim=8))
    poison()
    torch.testing.assert_close(evaluate(case), first, rtol=0, atol=0)


def test_a_call_in_inference_mode_leaves_memory_for_training():
    scratch._kept.__dict__.clear()
    with torch.inference_mode():
        inputs = [x.detach() for x in CASE.inputs(torch.float32)]
        expected = mvpa_attention(*inputs, impl="separable", **CASE.options())
    torch.testing.assert_close(evaluate()[0], expected, rtol=0, atol=0)


def test_threads_and_calls_within_calls_share_nothing():
    like = torch.empty(0)
    found: list[int] = []

    def work() -> None:
        with Scratch(like) as other:
            found.append(other.tile("near", (4,)).data_ptr())

    with Scratch(like) as outer:
        here = outer.tile("near", (4,)).data_ptr()
        with Scratch(like) as inner:
            assert inner.tile("near", (4,)).data_ptr() != here
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found[0] != here


def test_little_is_kept_and_of_plain_tensors_only():
    scratch._kept.__dict__.clear()
    with Scratch(torch.empty(0)) as large:
        large.tile("near", (scratch._MOST_KEPT,))
    assert not scratch._kept.__dict__
    with Scratch(torch.empty(0, device="meta")) as absent:
        absent.tile("near", (4,))
    assert not scratch._kept.__dict__
    evaluate()
    assert sum(x.nbytes for kept in scratch._kept.__dict__.values() for x in kept.values()) <= scratch._MOST_KEPT
