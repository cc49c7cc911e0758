"""The board: panels with known answers, floors and regressions from other formulas, the sampler and the page."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from harness.board import models, regressions, tasks

CHANGING = [name for name in tasks.TASKS if name not in tasks.REAL]


@pytest.mark.parametrize("name", CHANGING)
def test_panels_have_unit_variance_and_windows_of_one_part(name):
    task = tasks.TASKS[name](1, True)
    assert np.nanvar(task.values) == pytest.approx(1.0, abs=0.35)
    assert task.truth.shape == task.values.shape
    for part, (begin, end) in {"validation": task.ends, "test": (task.ends[1], len(task.values))}.items():
        starts = task.starts(part)
        assert starts.min() + task.lookback == begin
        assert end - 4 < starts.max() + task.lookback + task.horizon <= end
    again = tasks.TASKS[name](1, True)
    np.testing.assert_array_equal(task.values, again.values)


def test_the_floor_of_the_wave_is_the_variance_that_the_look_back_leaves():
    """Of the process, by its joint covariance; the windows of a draw are near it."""
    (C, L, h), memory, noise = (12, 96, 48), 0.9, 0.3
    place = (np.arange(L + h)[:, None] - 8 * np.arange(C)).ravel()
    joint = memory ** np.abs(place[:, None] - place) + noise**2 * np.eye(len(place))
    seen, ahead, between = joint[: L * C, : L * C], joint[L * C :, L * C :], joint[: L * C, L * C :]
    left = np.trace(ahead - between.T @ np.linalg.solve(seen, between)) / (h * C) / (1 + noise**2)
    floors = [tasks.floor_error(tasks.wave(seed, quick=True)) for seed in range(6)]
    assert np.mean(floors) == pytest.approx(left, rel=0.15)


def test_relations_change_between_regimes_and_stay_within():
    moment = tasks.changing_wave(3, quick=True).shown.moment
    delay = np.diff(moment, axis=1)
    assert (delay == delay[:, :1]).all()  # one speed for all neighbours
    assert set(np.abs(delay[:, 0])) <= set(range(3, 11))
    changes = np.flatnonzero(np.diff(delay[:, 0]))
    assert len(changes) >= 1
    assert np.diff(changes).min(initial=250) >= 250
    swap = tasks.leaders(3, quick=True, kind="swap").shown
    assert len(np.unique(swap.source, axis=0)) > 1
    followers = (swap.source != np.arange(8)).sum(1)
    assert (followers == 4).all()


def test_a_follower_has_what_its_leader_had_sixteen_steps_before():
    values = torch.tensor(tasks.leaders(1, kind="fixed").values[:4000])
    for leader, follower in ((0, 2), (1, 3), (4, 6), (5, 7)):
        at_lag = [
            float(torch.corrcoef(torch.stack([values[:-lag, leader], values[lag:, follower]]))[0, 1])
            for lag in range(1, 33)
        ]
        assert int(np.argmax(at_lag)) + 1 == 16
        assert at_lag[15] == pytest.approx(1 / 1.09, abs=0.03)  # each has noise of its own


def test_at_most_half_of_the_sensors_fail_and_all_are_scored():
    task = tasks.failing(1, quick=True)
    dead = np.isnan(task.values).sum(1)
    assert 0 < dead.max() <= 6
    assert not np.isnan(task.truth).any()


def test_a_walk_visits_every_place_once_along_links():
    links = np.zeros((5, 5))
    for place, following in ((3, 1), (1, 4), (4, 0), (0, 2)):
        links[place, following] = links[following, place] = 1.0
    assert tasks.walk(links).tolist() in ([3, 1, 4, 0, 2], [2, 0, 4, 1, 3])


def test_ridge_regression_is_that_of_scikit_learn():
    from sklearn.linear_model import Ridge

    task = tasks.leaders(1, quick=True, kind="fixed")
    (error,), penalty = regressions.ridge_errors(task, regressions.every_channel)

    def design(part: str, every: int) -> tuple[np.ndarray, np.ndarray]:
        steps = task.starts(part, every)[:, None] + np.arange(120)
        rows = task.values[steps].reshape(len(steps), 120 * 8)
        return rows[:, : 96 * 8], rows[:, 96 * 8 :]

    fitted = Ridge(penalty, fit_intercept=False).fit(*design("train", 1))
    past, future = design("test", 4)
    assert error["mse"] == pytest.approx(((fitted.predict(past) - future) ** 2).mean(), rel=1e-6)


def test_nobody_learns_from_what_a_dead_sensor_did_not_show():
    task = tasks.failing(1, True)
    lost = np.isnan(task.values)
    lost[task.ends[0] :] = False
    truth = np.where(lost, 1e6, task.truth)
    expected = regressions.ridge_errors(task, regressions.by_place)
    assert lost.any()
    assert regressions.ridge_errors(replace(task, truth=truth), regressions.by_place) == expected


def test_a_pooled_regression_reads_neighbours_by_place():
    x = torch.arange(2 * 3 * 4, dtype=torch.float64).view(2, 3, 4)
    read = regressions.by_place(x, torch.zeros(2, 4, 0)).unflatten(2, (2 * regressions.BESIDE + 1, 3))
    for channel in range(4):
        for offset in range(-regressions.BESIDE, regressions.BESIDE + 1):
            place = channel + offset
            expected = x[:, :, place] if 0 <= place < 4 else torch.zeros(2, 3, dtype=torch.float64)
            torch.testing.assert_close(read[:, channel, offset + regressions.BESIDE], expected)


def test_every_model_has_as_many_draws_of_its_own_and_the_first_is_its_defaults():
    for name, space in models.SPACES.items():
        drawn = [models.drawn(name, trial) for trial in range(models.TRIALS)]
        assert drawn[0] == ({"hidden_size": 128} if name in ("iTransformer", "TimeXer") else {})
        assert len({json.dumps(settings) for settings in drawn}) == models.TRIALS
        assert all(set(space) <= set(settings) for settings in drawn[1:])
        assert drawn == [models.drawn(name, trial) for trial in range(models.TRIALS)]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_regression_reads_the_covariates_that_are_known(ahead):
    """Values are one covariate, of the horizon or of the look-back: forecast without error by who reads it there."""
    draws = np.random.default_rng(0)
    covariates = draws.standard_normal((500, 3, 2))
    values = covariates[..., 1].copy() if ahead else np.roll(covariates[..., 1], 4, axis=0)
    unit = np.array([1.0, 10.0, 100.0])
    task = tasks.Task(values, (300, 400), 8, 4, values, covariates=covariates, ahead=ahead, unit=unit)
    for design in regressions.REGRESSIONS.values():
        (error,), _ = regressions.ridge_errors(task, design)
        assert error["mse"] < 0.05
        assert error["mae"] == pytest.approx(37 * error["mse"] ** 0.5 * (2 / np.pi) ** 0.5, rel=0.25)
    assert regressions.ridge_errors(replace(task, covariates=None), regressions.own_channel)[0][0]["mse"] > 0.9


def test_gaps_of_covariates_hold_the_value_before():
    covariates = np.arange(20.0)[:, None, None] * np.ones((1, 2, 1))
    covariates[[5, 6, 18], 0] = np.nan
    task = tasks._real(np.random.default_rng(0).standard_normal((20, 2)), 4, 2, covariates)
    standard = (covariates - np.nanmean(covariates[:14])) / np.nanstd(covariates[:14])
    np.testing.assert_allclose(task.covariates[:, 0, 0], pd.Series(standard[:, 0, 0]).ffill())
    assert task.ends == (14, 16)


def test_models_of_the_board_get_the_covariates_that_they_take():
    pytest.importorskip("neuralforecast")
    rows = np.random.default_rng(0).standard_normal((60, 4))
    task = tasks.Task(rows, (40, 50), 12, 4, rows, covariates=rows[..., None])
    built = {name: models.build(name, task, models.drawn(name, 1), {}, 2, 1) for name in models.SPACES}
    assert {name for name, model in built.items() if model.hist_exog_list} == {"TSMixer", "NHITS", "TimeXer", "MVPA"}
    assert built["MVPA"].hist_exog_list == ["covariate_0"]
    ahead = models.build("iTransformer", replace(task, ahead=True), {}, {}, 2, 1)
    assert ahead.futr_exog_list == ["covariate_0"]
