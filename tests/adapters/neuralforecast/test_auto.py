"""AutoMVPA: searches in a database, resumed and shared, with Optuna and with Ray."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from neuralforecast import NeuralForecast
from neuralforecast.common._base_auto import MockTrial, OptunaOptions
from neuralforecast.core import MODEL_FILENAME_DICT
from neuralforecast.losses.pytorch import DistributionLoss, MQLoss
from optuna.trial import TrialState
from support.made_up_networks import SMALL

from mvpa_ts import plots
from mvpa_ts.adapters.neuralforecast import MVPA, AutoMVPA
from mvpa_ts.adapters.neuralforecast import search as search_module
from mvpa_ts.adapters.neuralforecast.search import opened, opened_database

FIXED = SMALL | {"max_steps": 2}


def config(trial: Any) -> dict[str, Any]:
    return {**FIXED, "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)}


def test_a_search_is_resumed(url, panel, fit):
    frame, sizes, best = panel(3), [], []
    for trials in (2, 2, 3):
        fitted = fit(AutoMVPA(6, 3, config=config, num_samples=trials, storage=url), frame, val_size=6)
        sizes.append(len(fitted.models[0].results.trials))
        best.append(fitted.models[0].results.best_value)
    assert sizes == [2, 2, 3]
    assert best[0] == best[1] >= best[2]
    assert len(optuna.get_all_study_names(url)) == 1
    np.testing.assert_allclose(fitted.predict().groupby("unique_id")["AutoMVPA"].mean(), [100, 200, 300], rtol=0.1)


def test_a_search_has_the_effects_of_its_model(panel, fit):
    frame = panel(3).assign(x=lambda df: np.random.default_rng(1).normal(size=len(df)))
    model = AutoMVPA(6, 3, config=lambda _: {**FIXED, "futr_exog_list": ["x"]}, num_samples=1, storage=None)
    with pytest.raises(ValueError, match="effects needs a search that is over"):
        model.effects(frame)
    fitted = fit(model, frame, val_size=6)
    expected = MVPA(6, 12, 3, futr_exog_list=["x"]).effects(frame)
    pd.testing.assert_frame_equal(fitted.models[0].effects(frame), expected)


@pytest.mark.parametrize("kept", [False, True])
def test_a_search_says_nothing_of_its_study(kept, url, panel, forecaster, caplog):
    """The host opens each study once more. Trials are told of."""
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.logging.enable_propagation()
    try:
        for trials in (1, 2):
            model = AutoMVPA(6, 3, config=config, num_samples=trials, storage=url if kept else None)
            forecaster(model).fit(panel(3), val_size=6)
    finally:
        optuna.logging.disable_propagation()
    told = {record.getMessage() for record in caplog.records if record.name.startswith("optuna")}
    assert len(told) == (2 if kept else 3)
    assert all(message.startswith("Trial ") for message in told)


@pytest.mark.parametrize("changed", ["data", "validation", "loss", "fixed argument"])
def test_another_search_is_another_study(changed, url, panel, forecaster):
    frame = panel(3)
    forecaster(AutoMVPA(6, 3, config=config, num_samples=1, storage=url)).fit(frame, val_size=6)
    if changed == "data":
        frame.loc[7, "y"] += 1
    options = {"loss": MQLoss(level=[80])} if changed == "loss" else {}
    given = (lambda trial: {**config(trial), "dropout": 0.1}) if changed == "fixed argument" else config
    model = AutoMVPA(6, 3, config=given, num_samples=1, storage=url, **options)
    forecaster(model).fit(frame, val_size=7 if changed == "validation" else 6)
    assert len(optuna.get_all_study_names(url)) == 2


def test_a_named_study_is_used_and_other_data_are_reported(url, panel, forecaster):
    for rows in (60, 61):
        fitted = forecaster(AutoMVPA(6, 3, config=config, num_samples=1, storage=url, study_name="mine"))
        with warnings.catch_warnings(record=True, action="always") as caught:
            fitted.fit(panel(3, rows=rows), val_size=6)
        assert any("has trials of other data or split;" in str(warning.message) for warning in caught) == (rows == 61)
    assert optuna.get_all_study_names(url) == ["mine"]
    assert len(optuna.load_study(study_name="mine", storage=url).trials) == 1


def test_a_study_with_other_choices_of_ones_own_is_named(url, panel, forecaster):
    def narrow(sizes: list[int]) -> Callable:
        return lambda trial: {**FIXED, "hidden_size": trial.suggest_categorical("hidden_size", sizes)}

    def search(sizes: list[int], trials: int) -> None:
        model = AutoMVPA(6, 3, config=narrow(sizes), num_samples=trials, storage=url, study_name="mine")
        forecaster(model).fit(panel(3), val_size=6)

    search([4, 8], 1)
    with pytest.raises(ValueError, match="same choices throughout study 'mine', which began with others"):
        search([4, 16], 2)
    search([4, 8], 2)  # its trials are as they were


def wait_for_another(own: list[int]) -> Callable[[optuna.Study, optuna.trial.FrozenTrial], None]:
    """A callback that notes the trials of its process, and after the first waits until another process has one."""
    deadline = time.monotonic() + 150

    def noted(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        own.append(trial.number)
        while {trial.number for trial in study.get_trials()} <= set(own) and time.monotonic() < deadline:
            time.sleep(0.02)

    return noted


WORKER = """
import sys
import pandas as pd
from neuralforecast import NeuralForecast
from mvpa_ts.adapters.neuralforecast import AutoMVPA
from test_auto import wait_for_another
fixed = {fixed}
config = lambda trial: {{**fixed, "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)}}
model = AutoMVPA(6, 3, config=config, num_samples=4, storage=sys.argv[1], callbacks=[wait_for_another([])])
NeuralForecast([model], freq="h").fit(pd.read_pickle(sys.argv[2]), val_size=6)
"""


@pytest.mark.slow  # a process of its own; in small: the next test, and a search that is resumed
def test_two_workers_share_a_search(url, tmp_path, panel, forecaster):
    """Another process and this one, neither of which goes on before both have begun."""
    panel(3).to_pickle(tmp_path / "panel")
    code, folders = WORKER.format(fixed=FIXED), [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    with subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", code, url, str(tmp_path / "panel")],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            # No empty part: it would stand for the folder that the tests run in, before the installed package.
            "PYTHONPATH": os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")])),
        },
    ) as other:
        mine: list[int] = []
        callbacks = [wait_for_another(mine)]
        fitted = forecaster(AutoMVPA(6, 3, config=config, num_samples=4, storage=url, callbacks=callbacks))
        fitted.fit(panel(3), val_size=6)
        _, errors = other.communicate(timeout=200)
    assert other.returncode == 0, errors
    assert len(optuna.get_all_study_names(url)) == 1
    finished = [trial.number for trial in fitted.models[0].results.get_trials(states=(TrialState.COMPLETE,))]
    assert 4 <= len(finished) <= 5, "each worker may have one under way when the fourth is finished"
    assert 0 < len(mine) < len(finished)


def begin(url: str, barrier: Any) -> None:
    barrier.wait()
    opened({"storage": url, "study_name": "same", "load_if_exists": True}, {"panel": "facts"})


def test_workers_that_begin_at_the_same_moment(url):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    workers = [context.Process(target=begin, args=(url, barrier)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert optuna.load_study(study_name="same", storage=url).user_attrs == {"panel": "facts"}


def test_failed_and_interrupted_trials_are_not_counted(url, panel, forecaster, fit):
    def broken(trial: Any) -> dict[str, Any]:
        return {**config(trial), **({"patch": 4} if getattr(trial, "number", 0) == 1 else {})}

    with pytest.raises(TypeError, match="patch is neither an argument of MVPA"):
        forecaster(AutoMVPA(6, 3, config=broken, num_samples=3, storage=url)).fit(panel(3), val_size=6)
    fitted = fit(AutoMVPA(6, 3, config=broken, num_samples=3, storage=url), panel(3), val_size=6)
    states = [trial.state.name for trial in fitted.models[0].results.trials]
    assert sorted(states) == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL"]


def killed_in_its_second_trial(url: str, search: Callable) -> None:
    def deadly(trial: Any) -> dict[str, Any]:
        chosen = config(trial)
        if getattr(trial, "number", 0) == 1:
            # A thread writes the trial's first sign of life. Without one Optuna never takes it for dead.
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
                while not database.execute("select 1 from trial_heartbeats where trial_id = 2").fetchone():
                    time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return chosen

    search(deadly)


def test_trial_of_a_killed_search_is_drawn_again(url, panel, forecaster, monkeypatch):
    monkeypatch.setattr(search_module, "HEARTBEAT", 1)
    monkeypatch.setattr(search_module, "GRACE", 2)

    def search(space: Callable) -> Any:
        model = AutoMVPA(6, 3, config=space, num_samples=3, storage=url, study_name="mine")
        return forecaster(model).fit(panel(3), val_size=6)

    worker = multiprocessing.get_context("fork").Process(target=killed_in_its_second_trial, args=(url, search))
    worker.start()
    worker.join(200)
    assert worker.exitcode == -signal.SIGKILL
    (killed,) = optuna.load_study(study_name="mine", storage=url).get_trials(states=(TrialState.RUNNING,))
    time.sleep(3)
    search(config)
    trials = optuna.load_study(study_name="mine", storage=url).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert trials[2].params == killed.params
    search(config)
    assert len(optuna.load_study(study_name="mine", storage=url).trials) == 4


def test_trial_killed_before_its_first_sign_of_life_is_drawn_again(url, monkeypatch):
    monkeypatch.setattr(search_module, "HEARTBEAT", 1)
    monkeypatch.setattr(search_module, "GRACE", 1)
    options = {"storage": url, "study_name": "mine", "load_if_exists": True}
    killed = opened(options, {}).ask({"rate": optuna.distributions.FloatDistribution(0, 1)})
    study = opened(options, {})
    time.sleep(2.5)
    optuna.storages.fail_stale_trials(study)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "WAITING"]
    assert study.ask().params == killed.params


def test_killed_while_the_database_is_made(url, tmp_path, monkeypatch):
    """Optuna makes table after table; one without its index would take two studies of one name."""
    from optuna.storages._rdb import storage as optuna_storage

    def killed(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(optuna_storage.models.BaseModel.metadata, "create_all", killed)
        with pytest.raises(SystemExit):
            opened_database(url)
    assert not (tmp_path / "sweep.db").exists()
    for _ in range(2):
        optuna.create_study(storage=opened_database(url), study_name="mine", load_if_exists=True)
    assert optuna.get_all_study_names(url) == ["mine"]
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.db"]


def test_error_of_the_database_names_it(tmp_path, panel, forecaster):
    database = tmp_path / "notes.db"
    database.write_text("no database\n" * 100)
    model = AutoMVPA(6, 3, config=config, num_samples=1, storage=f"sqlite:///{database}")
    with pytest.raises(OSError, match=r"cannot read or write its database .*notes\.db \(file is not a database\)"):
        forecaster(model).fit(panel(3), val_size=6)
    assert database.read_text() == "no database\n" * 100


def test_search_without_a_finite_loss_says_so(url, panel, forecaster):
    def diverging(trial: Any) -> dict[str, Any]:
        return {**config(trial), "learning_rate": 1e30, "max_steps": 3}

    model = AutoMVPA(6, 3, config=diverging, num_samples=2, storage=url)
    with pytest.raises(ValueError, match=r"no trial of study .* finite validation loss \(2 trials, 0 finished\)"):
        forecaster(model).fit(panel(3), val_size=6)


def test_search_goes_on_past_a_diverged_trial(url, panel, fit):
    def one_diverges(trial: Any) -> dict[str, Any]:
        return {**config(trial), "learning_rate": 1e30 if getattr(trial, "number", 0) == 0 else 1e-3, "max_steps": 3}

    fitted = fit(AutoMVPA(6, 3, config=one_diverges, num_samples=2, storage=url), panel(3), val_size=6)
    assert [trial.state.name for trial in fitted.models[0].results.trials] == ["FAIL", "COMPLETE"]
    assert np.isfinite(fitted.predict()["AutoMVPA"]).all()


def test_options_of_the_host_win(url, panel, fit):
    options = OptunaOptions(create_study_kwargs={"study_name": "theirs", "storage": url})
    seen = []
    model = AutoMVPA(
        6, 3, config=config, num_samples=2, storage=None, optuna_options=options,
        search_alg=optuna.samplers.RandomSampler(seed=1), callbacks=[lambda study, trial: seen.append(trial.number)],
    )  # fmt: skip
    fitted = fit(model, panel(3), val_size=6)
    assert optuna.get_all_study_names(url) == ["theirs"]
    assert seen == [0, 1]
    assert isinstance(fitted.models[0].results.sampler, optuna.samplers.RandomSampler)
    assert len(fitted.models[0].callbacks) == 1


def test_save_and_load(reloaded, panel, fit):
    model = AutoMVPA(6, 3, config=config, num_samples=1, storage=None, loss=MQLoss(level=[80]))
    fitted = fit(model, panel(3), val_size=6)
    assert plots.channels(fitted).axes[0].get_ylabel() == "forecast channel"
    loaded = reloaded(fitted)
    assert type(loaded.models[0]) is MVPA
    pd.testing.assert_frame_equal(loaded.predict(), fitted.predict())
    loaded.models[0].finetune(n_series=2, max_steps=1)
    loaded.fit(panel(2))
    assert len(loaded.predict()) == 12


def test_subclasses_are_registered():
    class AutoMine(AutoMVPA):
        pass

    assert MODEL_FILENAME_DICT.pop("automine") is MVPA


def test_cross_validation_and_exogenous_columns(panel, forecaster):
    frame = panel(3).assign(z=1.0)
    model = AutoMVPA(
        6, 3, config=lambda trial: {**config(trial), "futr_exog_list": ["z"]}, num_samples=1, storage=None,
        loss=DistributionLoss("Normal", num_samples=10), alias="mine",
    )  # fmt: skip
    result = forecaster(model).cross_validation(frame, n_windows=2, step_size=6, val_size=6)
    assert "mine-median" in result


def test_bad_panels_are_refused_before_the_search(panel, forecaster):
    with pytest.raises(ValueError, match=r"n_series \(4\) must be the number of series in df, got 3"):
        forecaster(AutoMVPA(6, 4, config=config, storage=None)).fit(panel(3), val_size=6)


def test_columns_of_a_search_are_checked_as_those_of_a_model(panel, forecaster):
    def search(*names: str) -> NeuralForecast:
        columns = {"futr_exog_list": list(names) or None, "hist_exog_list": None}
        return forecaster(AutoMVPA(6, 3, config=lambda trial: {**FIXED, **columns}, num_samples=1, storage=None))

    # The host would read the numbers of the categories: 0, 1 and 2 for 0.1, 0.2 and 0.3.
    frame = panel(3)
    frame["z"] = pd.Categorical(np.arange(len(frame)) % 3 / 10 + 0.1)
    with pytest.raises(ValueError, match="df must hold real numbers in column 'z', got category"):
        search("z").fit(frame, val_size=6)
    with pytest.raises(ValueError, match=r"df must have the columns .* got none of \['absent'\]"):
        search("absent").fit(panel(3), val_size=6)
    with pytest.raises(ValueError, match="save needs a search that is over"):
        search().save("absent")
    fitted = search()
    fitted.fit(panel(3), val_size=6)
    assert len(fitted.predict()) == 18


def drawn(space: dict[str, Any]) -> dict[str, Any]:
    """A sample of Ray's distributions."""
    return {
        name: drawn(values) if isinstance(values, dict) else values.sample() if hasattr(values, "sample") else values
        for name, values in space.items()
    }


def test_options_in_dicts_are_searched(url, panel, fit):
    """A trial keeps them by their own names, and an impossible one fails its trial alone."""

    def nested(trial: Any) -> dict[str, Any]:
        heads = trial.suggest_categorical("mixing_heads", [2, -1])
        return {
            **FIXED,
            "network": {"mlp_dim": 8, "mixing_heads": {0: -1}.get(getattr(trial, "number", 1), heads and 2)},
            "training": {"weight_averaging": trial.suggest_float("weight_averaging", 0.5, 0.9)},
        }

    fitted = fit(AutoMVPA(6, 3, config=nested, num_samples=2, storage=url), panel(3), val_size=6)
    failed, best = fitted.models[0].results.trials
    assert "mixing_heads must be at least 0, got -1" in failed.user_attrs["reason"]
    model = fitted.models[0].model
    assert model.network.config.mixing_heads == 2
    assert model.hparams["training"] == {"weight_averaging": best.params["weight_averaging"]}


def test_default_configs_build_models():
    """Both spaces hold the same names; every corner of them makes a model."""
    ray = AutoMVPA.get_default_config(h=6, backend="ray", n_series=3)
    native = AutoMVPA.get_default_config(h=6, backend="optuna", n_series=3)
    assert native(MockTrial()).keys() == ray.keys()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(3):
        MVPA(h=6, **native(study.ask()))
        MVPA(h=6, **drawn(ray))
    assert AutoMVPA(6, 3, storage=None).config(MockTrial())["n_series"] == 3
    assert AutoMVPA(6, 3, backend="ray").config["n_series"] == 3


@pytest.mark.slow
def test_ray(tmp_path, panel, fit, monkeypatch):
    from ray import tune

    monkeypatch.chdir(tmp_path)
    space = {**FIXED, "learning_rate": tune.loguniform(1e-4, 1e-2)}
    fitted = fit(AutoMVPA(6, 3, config=space, num_samples=2, backend="ray"), panel(3), val_size=6)
    np.testing.assert_allclose(fitted.predict().groupby("unique_id")["AutoMVPA"].mean(), [100, 200, 300], rtol=0.1)
