"""Sweeps that finish: pruning by validation, a time limit, what a database shows of a trial."""

import importlib.util
import time
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from support.made_up_networks import SMALL

from mvpa_ts.adapters.neuralforecast import AutoMVPA
from mvpa_ts.adapters.neuralforecast import search as search_module

STEPS = 4
FIXED = SMALL | {"max_steps": STEPS, "val_check_steps": 1}


def worse_and_worse(trial: Any) -> dict[str, Any]:
    """The first trial is a good one, later ones overshoot."""
    number = getattr(trial, "number", 0)
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    return {**FIXED, "learning_rate": rate, "training": {"linear_learning_rate": 1e-3 if number == 0 else 500.0}}


def states(forecaster: Any) -> list[str]:
    return [trial.state.name for trial in forecaster.models[0].results.trials]


def test_a_trial_that_does_worse_is_pruned_and_counts(url, panel, fit):
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=30)
    options = {"config": worse_and_worse, "storage": url, "pruner": pruner, "study_name": "mine"}
    for samples in (2, 2, 3):  # the second call has nothing left to do
        fitted = fit(AutoMVPA(6, 3, num_samples=samples, **options), panel(3), val_size=6)
        assert states(fitted) == ["COMPLETE", "PRUNED", "PRUNED"][:samples]
    kept, pruned, _ = fitted.models[0].results.trials
    assert list(kept.intermediate_values) == [25, 50, 75, 100]  # percent of the training
    assert list(pruned.intermediate_values) == [25, 50]
    assert pruned.intermediate_values[50] > kept.intermediate_values[50]
    assert fitted.models[0].results.best_trial.number == 0
    assert fitted.models[0].model._training.validated is None


def test_nothing_is_pruned_by_default(url, panel, fit):
    fitted = fit(AutoMVPA(6, 3, config=worse_and_worse, num_samples=3, storage=url), panel(3), val_size=6)
    assert states(fitted) == ["COMPLETE"] * 3


def test_a_trial_ends_when_the_time_is_up(url, panel, forecaster, monkeypatch):
    def search(samples: int, **options: Any) -> Any:
        fitted = forecaster(
            AutoMVPA(6, 3, config=worse_and_worse, num_samples=samples, storage=url, study_name="mine", **options)
        )
        fitted.fit(panel(3), val_size=6)
        return fitted

    clock = iter([0.0])
    monkeypatch.setattr(search_module, "time", SimpleNamespace(monotonic=lambda: next(clock, 1e9), sleep=time.sleep))
    assert states(search(1, time_budget=1000)) == ["COMPLETE"]  # the only one goes on
    clock = iter([0.0])
    fitted = search(2, time_budget=1000)
    assert states(fitted) == ["COMPLETE", "FAIL"]
    assert list(fitted.models[0].results.trials[1].intermediate_values) == [25]
    monkeypatch.setattr(search_module, "time", time)
    assert states(search(2)) == ["COMPLETE", "FAIL", "COMPLETE"]


def test_arguments_without_effect_are_gone():
    with pytest.raises(TypeError, match="unexpected keyword argument 'cpus'"):
        AutoMVPA(6, 3, cpus=2)
    with pytest.raises(ValueError, match="pruner needs backend=\"optuna\", got 'ray'"):
        AutoMVPA(6, 3, backend="ray", pruner=optuna.pruners.MedianPruner())


@pytest.mark.skipif(importlib.util.find_spec("optuna_dashboard") is None, reason="optuna-dashboard is not installed")
def test_the_dashboard_reads_the_database(url, panel, forecaster):
    import json
    from wsgiref.util import setup_testing_defaults

    from optuna_dashboard import wsgi

    forecaster(AutoMVPA(6, 3, config=worse_and_worse, num_samples=1, storage=url, study_name="mine")).fit(
        panel(3), val_size=6
    )
    environment: dict[str, Any] = {"PATH_INFO": "/api/studies"}
    setup_testing_defaults(environment)
    answers: list[str] = []
    answer = wsgi(optuna.storages.RDBStorage(url))(environment, lambda status, *_: answers.append(status))
    body = b"".join(answer)
    assert answers == ["200 OK"], body
    assert [study["study_name"] for study in json.loads(body)["study_summaries"]] == ["mine"]
