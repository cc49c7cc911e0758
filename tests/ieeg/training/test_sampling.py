"""Orders of spans: balance, determinism, processes."""

from collections import Counter

import numpy as np
import pytest

from mvpa_ts.ieeg.training.sampling import SpanSampler

SUBJECTS = ["S01"] * 40 + ["S02"] * 10 + ["S03"] * 3
ICTAL = np.zeros(53, bool)
ICTAL[[0, 1, 45, 46, 47]] = True  # S03 has none


def test_shuffled_epoch_holds_every_span_once():
    sampler = SpanSampler(SUBJECTS, seed=5)
    first = list(sampler)
    assert sorted(first) == list(range(53))
    assert list(sampler) == first
    assert list(SpanSampler(SUBJECTS, seed=5)) == first
    second = sampler.of_process(1).tolist()
    assert sorted(second) == list(range(53))
    assert second != first
    assert list(SpanSampler(SUBJECTS, seed=6)) != first


def test_subjects_are_drawn_equally_often():
    order = list(SpanSampler(SUBJECTS, balance="subject", num_samples=90))
    assert Counter(SUBJECTS[i] for i in order) == {"S01": 30, "S02": 30, "S03": 30}
    assert max(Counter(i for i in order if SUBJECTS[i] == "S01").values()) == 1
    assert set(Counter(i for i in order if SUBJECTS[i] == "S03").values()) == {10}


def test_seizures_are_drawn_as_often_as_asked():
    order = list(SpanSampler(SUBJECTS, ICTAL, balance="ictal", num_samples=200))
    assert sum(ICTAL[i] for i in order) == 100
    assert Counter(SUBJECTS[i] for i in order if ICTAL[i]) == {"S01": 50, "S02": 50}
    rest = Counter(SUBJECTS[i] for i in order if not ICTAL[i])
    assert max(rest.values()) - min(rest.values()) <= 1
    halves = sum(ICTAL[i] for i in order[:100])
    assert 30 < halves < 70  # mixed, not one kind after the other


@pytest.mark.parametrize("balance", ["none", "subject", "ictal"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_processes_share_one_order(balance, world_size):
    samplers = [SpanSampler(SUBJECTS, ICTAL, balance=balance, rank=r, world_size=world_size) for r in range(world_size)]
    parts = [list(sampler) for sampler in samplers]
    assert {len(part) for part in parts} == {len(samplers[0])}
    together = [index for group in zip(*parts, strict=True) for index in group]
    assert together[:53] == list(SpanSampler(SUBJECTS, ICTAL, balance=balance))
    if balance == "none":
        assert set(together) == set(range(53))  # none is dropped


@pytest.mark.parametrize("change", [{"seed": 1}, {"num_samples": 9}, {"balance": "subject"}, {"world_size": 2}])
def test_settings_of_another_order_differ(change):
    assert SpanSampler(SUBJECTS, **change).settings() != SpanSampler(SUBJECTS).settings()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subjects": []}, "at least one span"),
        ({"balance": "sex"}, "balance"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"num_samples": 0}, "num_samples"),
        ({"balance": "ictal"}, "needs ictal, a flag for each span"),
        ({"balance": "ictal", "ictal": np.zeros(53, bool)}, "recordings that train hold no seizure"),
        ({"balance": "ictal", "ictal": np.ones(53, bool)}, "train hold only seizures, or less than a span"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        SpanSampler(**({"subjects": SUBJECTS} | settings))
