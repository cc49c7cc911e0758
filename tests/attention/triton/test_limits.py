"""What the kernels could not count is refused before they start."""

import pytest
import torch

from mvpa_ts.attention.triton import why_unavailable

pytest.importorskip("triton")


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
def test_a_sample_too_large_is_refused(shape, reason, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = why_unavailable(torch.zeros(1).expand(shape))
    assert found is None if reason is None else reason in str(found)
