"""What impl="auto" takes on a GPU, which need not be there, and what it says about it."""

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.attention_checks import Case

from mvpa_ts import mvpa_attention
from mvpa_ts.attention import choice
from mvpa_ts.attention.choice import PASSED, pick
from mvpa_ts.attention.problem import INPUTS, Problem
from mvpa_ts.attention.triton import why_unavailable

LARGE = (64, 20, 20, 12, 64)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of those that are in the table, with its torch and its Triton."""
    name, torch_version, triton_version = min(PASSED)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch, "__version__", f"{torch_version}.0+cu130")
    monkeypatch.setattr(pytest.importorskip("triton"), "__version__", f"{triton_version}.1")
    monkeypatch.setattr(choice, "why_unavailable", lambda _: None)


def problem(shape: tuple[int, ...] = LARGE, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Problem:
    """A problem whose query says that it lies on a GPU."""
    query: Any = SimpleNamespace(shape=shape, dtype=dtype, device=torch.device("cuda", 0), is_meta=False)
    tensors: dict[str, Any] = dict.fromkeys((*INPUTS[1:], "real"))
    usual = Problem(
        query=query, **tensors, all_real=True, causal=True, window=10, dense_last_segment=True,
        components=("content", "time", "channel"), channel_distance="absolute", channel_window=None,
    )  # fmt: skip
    return replace(usual, **changes)


def test_the_kernels_are_taken_where_they_passed():
    assert pick(problem(), False)[0] == "triton"
    assert pick(problem((1, 4, 4, 12, 64)), False)[0] == "reference"


@pytest.mark.parametrize(
    "changes", [{"causal": False}, {"components": ("time",)}, {"shape": (64, 20, 20, 12, 128)}], ids=str
)
def test_what_was_not_checked_on_a_gpu_is_torchs_own(changes):
    name, reason = pick(problem(**changes), False)
    assert name == "sdpa"
    assert "were checked on this GPU for causal use, all terms and heads of 64" in reason


@pytest.mark.parametrize("changed", ["GPU", "torch", "Triton"])
def test_another_gpu_or_version_takes_torchs_own(changed, monkeypatch):
    if changed == "GPU":
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    else:
        monkeypatch.setattr(torch if changed == "torch" else pytest.importorskip("triton"), "__version__", "9.9.0")
    assert pick(problem(), False) == ("sdpa", "the kernels were not checked on this GPU with this torch and Triton")


@pytest.mark.parametrize(
    ("changes", "needs_lse"),
    [
        ({"dtype": torch.float64}, False),
        ({"channel_window": 2}, False),
        ({"causal": False}, True),
        ({"shape": (64, 200, 128, 12, 64), "causal": False}, False),
    ],
    ids=str,
)
def test_what_torchs_own_cannot_do_is_separable(changes, needs_lse, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    assert pick(problem(**changes), needs_lse)[0] == "separable"


def test_one_line_says_what_was_taken_and_why(caplog):
    choice._logged.clear()
    inputs = Case().inputs()
    with caplog.at_level(logging.INFO, "mvpa_ts"):
        torch.compile(lambda: mvpa_attention(*inputs), backend="eager", fullgraph=True)()
        mvpa_attention(*inputs)
    assert [record.getMessage() for record in caplog.records if record.name == choice.__name__] == [
        "mvpa_attention takes impl='reference' on cpu: few pairs of tokens"
    ]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((1, 1000, 1000, 36, 64), "fewer than 2147483648 numbers a sample, got 2304000000"),
        ((1, 1024, 1024, 2, 16), "fewer than 1048576 tokens a sample, got 1048576"),
        ((1, 10_000, 10, 12, 64), "at most 4294967296 scores of time and channel a sample, this one has 12012000000"),
        ((1, 10_000, 1, 12, 64), None),
        ((9, 300, 300, 12, 64), None),
    ],
    ids=str,
)
def test_a_sample_too_large_for_the_kernels_is_refused(shape, reason, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    said = why_unavailable(torch.zeros(1).expand(shape))
    assert said is None if reason is None else reason in str(said)
