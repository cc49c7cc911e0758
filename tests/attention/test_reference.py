"""The oracle against equation (1), evaluated term by term."""

import pytest
import torch
from support.attention_checks import EXTRA_FACTORS, INPUTS, Case, covering_cases, direct_attention

from mvpa_ts import mvpa_attention

TINY = EXTRA_FACTORS | {"shape": ((1, 1), (3, 1), (1, 4), (4, 3), (2, 5)), "groups": (1, 2), "window": (None, 0, 1)}


NEIGHBOURS = TINY | {
    "shape": ((1, 2), (3, 3), (2, 5), (2, 6)),
    "channel_window": (None, 1),
    "channel_reach": (None, 0, 1, 3),
}


@pytest.mark.parametrize("case", covering_cases(TINY, head_dim=3) + covering_cases(NEIGHBOURS, head_dim=3), ids=str)
def test_reference_is_equation_1(case):
    torch.testing.assert_close(case.evaluate("reference")["output"], direct_attention(case), atol=1e-12, rtol=0)


def test_without_components_the_output_is_the_average_over_the_allowed_keys():
    case = Case(components=())
    value = case.inputs()[INPUTS.index("value")]
    output = case.evaluate("reference")["output"]
    for t in range(case.shape[0]):
        average = value[:, : t + 1].mean((1, 2), keepdim=True)
        torch.testing.assert_close(output[:, t : t + 1], average.expand_as(output[:, t : t + 1]))


def test_the_window_is_inclusive_and_takes_content_away_without_hiding_the_key():
    case = Case(shape=(6, 2), window=2)
    inputs = case.inputs()
    query, key, value = inputs[:3]
    far_key, window_edge, far_value = key.clone(), key.clone(), value.clone()
    far_key[:, 2], window_edge[:, 3], far_value[:, 2] = 9.0, 9.0, 9.0  # lags 3, 2 and 3 of the last segment

    def last_segment(*tensors: torch.Tensor) -> torch.Tensor:
        return mvpa_attention(*tensors, *inputs[3:], window=2, impl="reference")[:, 5]

    before = last_segment(query, key, value)
    assert torch.equal(before, last_segment(query, far_key, value))
    assert not torch.allclose(before, last_segment(query, window_edge, value))
    assert not torch.allclose(before, last_segment(query, key, far_value))
