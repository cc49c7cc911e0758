"""The average of weights against a scalar loop."""

import pytest
import torch
from torch import nn

from mvpa_ts.weight_averaging import WeightAverage


def test_is_the_recursion_it_says():
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    average = WeightAverage(module, 0.5)
    expected = 2.0
    for step, value in enumerate([5.0, -1.0, 3.0, 7.0, 0.5, 4.0, 4.0, 4.0, 9.0, 1.0], start=1):
        nn.init.constant_(module.weight, value)
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    with average.in_place():
        assert module.weight.item() == pytest.approx(expected, rel=1e-6)
    assert module.weight.item() == 1.0
    average.keep()
    assert module.weight.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("decay", "frozen"), [(None, False), (0.9, True)], ids=["no decay", "frozen"])
def test_weights_that_are_not_averaged_stay(decay, frozen):
    module = nn.Linear(2, 2).requires_grad_(not frozen)
    average = WeightAverage(module, decay)
    nn.init.constant_(module.weight, 3.0)
    average.update()
    with average.in_place():
        assert (module.weight == 3.0).all()
    average.keep()
    assert (module.weight == 3.0).all()


def test_weights_come_back_after_an_error():
    module = nn.Linear(1, 1, bias=False)
    average = WeightAverage(module, 0.5)
    nn.init.constant_(module.weight, 3.0)
    with pytest.raises(RuntimeError), average.in_place():
        raise RuntimeError
    assert torch.equal(module.weight, torch.full((1, 1), 3.0))
