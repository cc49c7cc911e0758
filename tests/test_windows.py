"""Windows: which rows are read, learned and held out, against loops over them."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from support.made_up_networks import identity, series

from mvpa_ts.windows import Scaling, Series, Windows, last_window, series_windows

L, H = 8, 3


def numbered(rows: int = 50, lookback: int = 4, horizon: int = 3) -> Windows:
    """Windows over 0, 1, 2, … in two channels, starting at row 5."""
    values = torch.arange(rows, dtype=torch.float32)[:, None] + torch.tensor([0.0, 0.5])
    return Windows(values, torch.arange(5, rows - lookback - horizon + 1), lookback, horizon)


@pytest.mark.parametrize("kind", [np.array, list, tuple])
def test_positions_of_rows_count_on_from_both_ends(kind):
    series = Series(np.zeros((4, 1)), position=kind([7, 8, 20, 21]))
    assert series.positions(2, 3).tolist() == [5, 6, 7, 8, 20, 21, 22, 23, 24]
    assert Series(np.zeros((4, 1)), position=7).positions(2, 1).tolist() == [5, 6, 7, 8, 9, 10, 11]


_KINDS = {
    "list": np.ndarray.tolist, "tensor": torch.tensor, "frame": pd.DataFrame,
    "NA": lambda values: pd.DataFrame(values).astype("Float64"), "objects": lambda values: values.astype(object),
}  # fmt: skip


@pytest.mark.parametrize("kind", _KINDS.values(), ids=_KINDS.keys())
def test_a_series_is_made_of_what_numpy_reads(kind):
    values = np.array([[1.0, 2.0], [np.nan, 3.0]])
    series = Series(kind(values), kind(np.ones((3, 1))))
    assert type(series.values) is type(series.features) is np.ndarray
    np.testing.assert_array_equal(series.values, values)


@pytest.mark.parametrize("size", [1, 7, 39, 1000])
def test_no_window_is_dropped_in_batches(size):
    windows = numbered()
    batches = [(inputs["x"], target, inputs["phase"]) for inputs, target, _ in windows.batches(size)]
    assert sum(len(starts) for *_, starts in batches) == len(windows) == 39
    past, future, starts = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert torch.equal(starts, windows.starts)
    steps = starts[:, None] + torch.arange(4 + 3)
    both = torch.cat([past, future], dim=1)
    assert both.shape == (39, 7, 2)
    assert torch.equal(both, steps[..., None] + torch.tensor([0.0, 0.5]))


def test_shuffled_batches_are_a_permutation_that_the_seed_decides():
    windows = numbered()
    first, again, other = (
        torch.cat([inputs["phase"] for inputs, *_ in windows.batches(8, torch.Generator().manual_seed(seed))])
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first.sort().values, windows.starts)


def test_complete_windows_hold_no_missing_value():
    windows = numbered()
    observed = torch.ones(50, 2, dtype=torch.bool)
    observed[20, 1] = observed[33, 0] = False
    complete = dataclasses.replace(windows, observed=observed).complete()
    clean = [start for start in range(5, 44) if not {20, 33} & set(range(start, start + 7))]
    assert complete.starts.tolist() == clean
    assert windows.complete() is windows  # everything is observed


def test_value_range_is_that_of_the_rows_of_the_windows():
    windows = numbered()  # rows 5 to 49
    windows.values[:5] = 999.0
    windows.values[20] = torch.tensor([-7.0, 70.0])
    assert [bound.tolist() for bound in windows.value_range()] == [[-7.0, 5.5], [49.0, 70.0]]
    observed = torch.ones(50, 2, dtype=torch.bool)
    observed[20] = False
    coded = dataclasses.replace(windows, observed=observed)
    assert [bound.tolist() for bound in coded.value_range()] == [[5.0, 5.5], [49.0, 49.5]]
    parted = dataclasses.replace(windows, starts=torch.tensor([6, 7, 21, 30]))  # rows 6 to 13, 21 to 27, 30 to 36
    assert [bound.tolist() for bound in parted.value_range()] == [[6.0, 6.5], [36.0, 36.5]]
    unseen = dataclasses.replace(windows, starts=torch.tensor([0]), values=torch.full((9, 2), -7.0))
    unseen = dataclasses.replace(unseen, observed=torch.tensor([False, True]).expand(9, 2))
    assert [bound.tolist() for bound in unseen.value_range()] == [[-torch.inf, -7.0], [torch.inf, -7.0]]


def cut(given: list[Series], **options: float) -> dict[str, Windows]:
    channels = given[0].values.shape[1]
    feature_scaling = None if given[0].features is None else identity(given[0].features.shape[1])
    return series_windows(
        given, [identity(channels)] * len(given), lookback=L, horizon=H, feature_scaling=feature_scaling, **options
    )


def test_windows_of_series_hold_the_rows_they_should():
    """Each window of two series of different length, row by row."""
    given = [series(13, features=2), series(5, features=2, ahead=2, seed=1)]
    given[0].values[4, 1] = np.nan
    targets = [(0, target) for target in range(5, 13)] + [(1, target) for target in range(1, 5)]
    batches = list(cut(given)["train"].batches(1))
    assert len(batches) == len(targets)
    for (i, target), (inputs, ahead, counted) in zip(targets, batches, strict=True):
        one = given[i]
        n, known = len(one.values), len(one.features)
        x, mask, future = inputs["x"][0], inputs["mask"][0], inputs["future"][0, :, 0]
        assert inputs["phase"].item() == target - L
        seen = [one.features[row] for row in range(target - L, target) if row >= 0]
        for step in range(L + H):
            row = target - L + step
            here = (x if step < L else ahead[0])[step if step < L else step - L]
            there = (mask if step < L else counted[0])[step if step < L else step - L]
            expected = one.values[row] if 0 <= row < n else np.full(2, np.nan)
            assert there.tolist() == (~np.isnan(expected)).tolist()
            np.testing.assert_allclose(here, np.nan_to_num(expected), rtol=1e-6)
            feature = one.features[row] - np.mean(seen, axis=0) if 0 <= row < known else np.zeros(2)
            np.testing.assert_allclose(future[step], feature if row < n + H else 0, atol=1e-6)


def test_targets_count_within_their_part_only():
    given = series(20)
    given.values[18:] = np.nan
    found: dict[str, dict[int, list[bool]]] = {}
    for part, windows in cut([given], validation_fraction=0.25).items():
        found[part] = {}
        for inputs, _, counted in windows.batches(4):
            for phase, rows in zip(inputs["phase"].tolist(), counted[..., 0].tolist(), strict=True):
                found[part][phase + L] = rows
    assert found["train"] == {first: [first + step < 15 for step in range(H)] for first in range(6, 15)}
    assert found["validation"] == {first: [15 <= first + step < 18 for step in range(H)] for first in range(13, 18)}


def test_shuffled_batches_hold_each_window_once():
    windows = cut([series(), series(25)])["train"]
    shuffled = list(windows.batches(10, torch.Generator().manual_seed(0)))
    sums = torch.cat([inputs["x"].sum((1, 2)) for inputs, _, _ in shuffled])
    plain = torch.cat([inputs["x"].sum((1, 2)) for inputs, _, _ in windows.batches(100)])
    assert len(windows) == len(sums) == 32 + 17
    assert not torch.equal(sums, plain)
    assert torch.equal(sums.sort().values, plain.sort().values)


@pytest.mark.parametrize("rows", [1, 5, 30])
def test_last_window_ends_where_the_series_does(rows):
    given = Series(np.arange(1.0, rows + 1)[:, None], position=100)
    inputs, target, _ = next(last_window(given, identity(1), lookback=L, horizon=H).batches(1))
    seen = min(rows, L)
    assert inputs["x"][0, L - seen :, 0].tolist() == given.values[-seen:, 0].tolist()
    assert inputs["mask"][0, :, 0].tolist() == [False] * (L - seen) + [True] * seen
    assert inputs["phase"].item() == 100 + rows - L
    assert target.shape == (1, H, 1)


def test_tensors_move_together():
    windows = cut([series(features=1)])["train"].to("meta")
    kinds = {value.device.type for value in vars(windows).values() if isinstance(value, torch.Tensor)}
    assert kinds == {"meta"}


def test_scaling_of_constant_and_empty_columns():
    scaling = Scaling.of(np.array([[5.0, np.nan, 1e9], [5.0, np.nan, 1e9 + 1]]))
    assert scaling.location.tolist() == [5.0, 0.0, 1e9 + 0.5]
    assert scaling.scale.tolist() == [1.0, 1.0, 0.5]
    # Squares of both are beyond double precision.
    np.testing.assert_allclose(Scaling.of(np.array([[1e-200, 1e200], [3e-200, 3e200]])).scale, [1e-200, 1e200])


def test_scaling_of_several_tables_is_that_of_all_their_rows():
    values = np.random.default_rng(0).normal(3.0, [1.0, 1e-13, 1e5], (50, 3))
    values[::7, 1] = np.nan
    scaling = Scaling.of(values[:5], values[5:8], values[8:])
    np.testing.assert_allclose(scaling.location, np.nanmean(values, 0), rtol=1e-12)
    np.testing.assert_allclose(scaling.scale, [np.std(values[:, 0]), 1.0, np.std(values[:, 2])], rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "features", "message"),
    [
        (np.zeros(3), None, "values must be"),
        (np.zeros((0, 2)), None, "values must be"),
        (np.array([[np.inf]]), None, "values must be finite"),
        (np.array([[1j]]), None, "values must hold real numbers, or NaN where missing, got others: complex ones"),
        (np.zeros((3, 1)), [["a"]] * 3, "features must hold real numbers"),
        (np.zeros((3, 1)), np.zeros((2, 1)), "features must be finite"),
        (np.zeros((1, 1)), np.array([[np.nan]]), "features must be finite"),
    ],
)
def test_bad_series_are_refused(values, features, message):
    with pytest.raises(ValueError, match=message):
        Series(values, features)
