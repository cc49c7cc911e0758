"""The helpers themselves: a check that cannot fail checks nothing."""

import itertools

import pytest
import torch
from support.attention_checks import EXTRA_FACTORS, Case, assert_as_accurate_as_reference, covering_cases

EXACT = torch.linspace(-1.0, 1.0, 101, dtype=torch.float64)


def test_every_pair_of_options_meets_in_the_covering_cases():
    cases = covering_cases(EXTRA_FACTORS)
    assert len(cases) <= 150
    for first, second in itertools.combinations(EXTRA_FACTORS, 2):
        met = {(getattr(case, first), getattr(case, second)) for case in cases}
        assert met == set(itertools.product(EXTRA_FACTORS[first], EXTRA_FACTORS[second]))


def test_covering_cases_are_the_same_each_time():
    assert covering_cases(EXTRA_FACTORS) == covering_cases(EXTRA_FACTORS)
    assert len({str(case) for case in covering_cases(EXTRA_FACTORS)}) == len(covering_cases(EXTRA_FACTORS))


def test_masks_of_the_cases_mask_something_and_leave_something():
    options = Case(shape=(13, 19), masks="all", dropout=0.4).options()
    for mask in (options["channel_mask"], options["segment_mask"], options["token_mask"], *options["dropout_masks"]):
        assert mask.any()
        assert not mask.all()


def test_a_rounded_result_is_accurate_enough():
    rounded = EXACT.bfloat16()
    assert_as_accurate_as_reference(rounded, rounded, EXACT)


@pytest.mark.parametrize("wrong", ["scaled", "one_element", "nan"])
def test_a_wrong_result_is_not_accurate_enough(wrong):
    actual = EXACT.bfloat16()
    if wrong == "scaled":
        actual = actual * 1.05
    else:
        actual[17] = {"one_element": 1.0, "nan": float("nan")}[wrong]
    with pytest.raises(AssertionError, match="value: error"):
        assert_as_accurate_as_reference(actual, EXACT.bfloat16(), EXACT, "value")


def test_another_precision_than_the_reference_is_refused():
    with pytest.raises(AssertionError, match="float32"):
        assert_as_accurate_as_reference(EXACT.float(), EXACT.bfloat16(), EXACT)
