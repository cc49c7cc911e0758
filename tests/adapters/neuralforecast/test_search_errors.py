"""Searches that go wrong: which errors end a trial, which the search, and what they say."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from neuralforecast.common._base_auto import OptunaOptions
from neuralforecast.losses.pytorch import MSE, MQLoss
from support.made_up_networks import SMALL

from mvpa_ts.adapters.neuralforecast import MVPA, AutoMVPA

FIXED = SMALL | {"max_steps": 1}


def fixed(trial: Any) -> dict[str, Any]:
    return FIXED


@pytest.fixture
def search(panel: Callable, fit: Callable) -> Callable[..., Any]:
    """Search on 3 series of 60 rows; gives the fitted forecaster."""

    def run(config: Callable, *, h: int = 6, val_size: int = 6, **options: Any) -> Any:
        model = AutoMVPA(h, 3, config=config, **{"storage": None, "num_samples": 2, **options})
        return fit(model, panel(3), val_size=val_size)

    return run


def both(trial: Any, name: str, first: int, then: int) -> int:
    """The first value in the first trial, the other one in later trials."""
    value: int = trial.suggest_categorical(name, [first, then])
    return (first if trial.number == 0 else then) if isinstance(trial, optuna.Trial) else value


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("input_size", 200, r"more than input_size \(200\) rows to train on, got 54: .* less val_size \(6\)"),
        ("n_heads", 3, "n_heads"),
    ],
)
def test_a_setting_that_is_impossible_fails_its_trial_alone(name, value, reason, search):
    fitted = search(lambda trial: {**FIXED, name: both(trial, name, value, FIXED[name])})
    failed, done = fitted.models[0].results.trials
    assert (failed.state.name, done.state.name) == ("FAIL", "COMPLETE")
    with pytest.raises(ValueError, match=reason):
        raise ValueError(failed.user_attrs["reason"])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError("Unable to allocate 9 GiB"),
    ],
    ids=["cuda", "cpu", "numpy"],
)
def test_a_trial_without_memory_fails_alone(error, search, monkeypatch):
    train = MVPA.training_step

    def large(model: MVPA, *args: Any) -> Any:
        if model.hparams["hidden_size"] == 16:
            raise error
        return train(model, *args)

    monkeypatch.setattr(MVPA, "training_step", large)
    fitted = search(lambda trial: {**FIXED, "hidden_size": both(trial, "hidden_size", 16, 8)})
    failed, done = fitted.models[0].results.trials
    assert (failed.state.name, done.state.name) == ("FAIL", "COMPLETE")
    assert failed.user_attrs["reason"] == f"the trial ran out of memory: {error}"
    if not isinstance(error, torch.OutOfMemoryError):
        return  # the host's word for one kind of memory is enough below
    with pytest.raises(type(error), match=str(error)):  # nothing was drawn: the next trial would need as much
        search(lambda trial: {**FIXED, "hidden_size": 16})


def test_a_search_of_impossible_settings_says_why(search):
    def too_long(trial: Any) -> dict[str, Any]:
        return {**FIXED, "input_size": trial.suggest_int("steps", 100, 200)}

    with pytest.raises(ValueError, match=r"no trial .* \(2 trials, 0 finished\): df must leave more than input_size"):
        search(too_long)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"hidden": 8}, TypeError, "hidden is neither an argument of MVPA"),
        ({"n_heads": 3}, ValueError, "n_heads"),
        ({"input_size": 200}, ValueError, r"input_size \(200\)"),
    ],
)
def test_an_error_of_every_trial_ends_the_search(wrong, error, message, search):
    asked = []

    def config(trial: Any) -> dict[str, Any]:
        asked.append(isinstance(trial, optuna.Trial))
        return {**FIXED, **wrong, "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2)}

    with pytest.raises(error, match=message):
        search(config, num_samples=5)
    assert sum(asked) == 1


@pytest.mark.parametrize("start_padding_enabled", [False, True])
def test_a_split_without_training_rows_names_val_size(start_padding_enabled, tiny, dataset,
                                                      panel):  # fmt: skip
    model = tiny(3, start_padding_enabled=start_padding_enabled)
    most = 60 - (2 if start_padding_enabled else 13)
    model.fit(dataset(panel(3)), val_size=most)
    with pytest.raises(ValueError, match=rf"60 rows, less val_size \({most + 1}\).* Give a smaller val_size"):
        model.fit(dataset(panel(3)), val_size=most + 1)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"h": 5}, "h"),
        ({"loss": MSE()}, "loss, valid_loss"),
        ({"loss": MQLoss(level=[80])}, "loss, valid_loss"),
        ({"config": lambda trial: {**FIXED, "dropout": 0.1}}, "dropout"),
    ],
)
def test_a_named_study_of_another_search_is_reported(changed, named, tmp_path, search):
    options = {"storage": f"sqlite:///{tmp_path}/sweep.db", "study_name": "mine", "num_samples": 1}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*study_name")
        for _ in range(2):
            search(fixed, loss=MQLoss(level=[90]), **options)
    with pytest.warns(UserWarning, match=f"study_name='mine' has trials of other {named}; they count as finished"):
        search(**{"config": fixed, "loss": MQLoss(level=[90]), **changed, **options})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1, got 0"),
        ({"num_samples": "3"}, "num_samples must be a whole number of at least 1, got '3'"),
        ({"time_budget": -5}, "time_budget must be a positive number of seconds or None, got -5"),
        ({"time_budget": "600"}, "time_budget must be a positive number of seconds or None, got '600'"),
        ({"pruner": "median"}, r"pruner must be None or an object such as .*MedianPruner\(\), got 'median'"),
        ({"pruner": optuna.pruners.MedianPruner}, "got the class MedianPruner: call it"),
        ({"search_alg": "tpe"}, r"search_alg must be None or an object such as .*TPESampler\(\), got 'tpe'"),
        ({"search_alg": optuna.samplers.TPESampler}, "search_alg must be .* got the class TPESampler: call it"),
        ({"callbacks": print}, r"callbacks must be None or an object such as \[callback\], got <built-in function"),
        ({"loss": "MAE"}, r"loss must be None or an object such as MAE\(\), got 'MAE'"),
        ({"valid_loss": MQLoss}, "valid_loss must be .* got the class MQLoss: call it"),
        ({"config": "abc"}, "config must be a function of a trial .* got 'abc'"),
        ({"config": lambda trial: None}, "config must return a dict of MVPA's arguments, got None"),
        ({"config": lambda trial: {"alias": "mine"}}, "alias in config is not read, got 'mine'"),
        ({"config": lambda trial: {"n_series": 5}}, "n_series in config is not read, got 5"),
        ({"config": lambda trial: {"max_steps": trial.number}}, "config must not compute with what trial suggests"),
        ({"optuna_options": {}}, "optuna_options must be None or an object such as OptunaOptions"),
        ({"ray_options": {"cpus": 1}}, "ray_options must be None or an object such as RayOptions"),
        ({"search_alg": optuna.samplers.TPESampler(), "backend": "ray"}, r"search_alg must be .*VariantGenerator\(\)"),
        ({"callbacks": ["x"]}, "callbacks must be functions of a study and a trial, got 'x'"),
        ({"refit_with_val": "yes"}, "refit_with_val must be True or False, got 'yes'"),
        ({"study_name": 3}, 'study_name must be None or an object such as "mine", got 3'),
        ({"storage": Path("sweep.sqlite")}, "storage must be None or an object such as \"sqlite:///sweep.sqlite\""),
    ],
)  # fmt: skip
def test_arguments_are_checked_at_once(wrong, message):
    with pytest.raises(ValueError, match=message):
        AutoMVPA(6, 3, **wrong)


def test_a_search_for_the_largest_loss_is_refused(search):
    with pytest.raises(ValueError, match=r"must minimise the loss, got the direction \['maximize'\]"):
        search(fixed, optuna_options=OptunaOptions(create_study_kwargs={"direction": "maximize"}))


@pytest.mark.parametrize(("loss", "got"), [("MAE", "'MAE'"), (MQLoss, "the class MQLoss: call it")])
def test_the_loss_of_a_model_is_an_object(loss, got):
    for model in (lambda: MVPA(6, 12, 3, loss=loss), lambda: MVPA.from_pretrained(h=6, loss=loss)):
        with pytest.raises(ValueError, match=f"loss must be None or an object such as .* got {got}"):
            model()


@pytest.mark.parametrize(
    ("storage", "error", "message"),
    [
        ("sweep.sqlite", ValueError, "for a file write 'sqlite:///sweep.sqlite'"),
        ("sqllite:///x", ValueError, "storage must begin with a kind of database, .* got sqllite://"),
        ("sqlite:///nowhere/x.db", FileNotFoundError, "lies in the folder nowhere, which is not there: make it first"),
    ],
)
def test_a_storage_that_cannot_be_is_named(storage, error, message, search):
    with pytest.raises(error, match=message):
        search(fixed, storage=storage)


def test_an_argument_that_no_database_holds_is_named_before_training(tmp_path, search):
    def config(trial: Any) -> dict[str, Any]:
        return {**FIXED, "optimizer": torch.optim.SGD}

    with pytest.raises(
        ValueError, match=r"optimizer in config must be JSON .*SGD'>: leave it out, or set storage=None"
    ):
        search(config, storage=f"sqlite:///{tmp_path}/sweep.db")
    assert not list(tmp_path.iterdir())
    search(config, num_samples=1)


def test_choices_that_differ_within_a_trial_are_named(search):
    def twice(trial: Any) -> dict[str, Any]:
        size = trial.suggest_categorical("size", [4, 8])
        return {**FIXED, "hidden_size": size, "network": {"mlp_dim": trial.suggest_categorical("size", [8, 16])}}

    with pytest.raises(ValueError, match="or config names the parameter twice"):
        search(twice)


def test_a_pruner_that_never_or_always_prunes_is_named(search):
    with pytest.warns(UserWarning, match=r"val_check_steps \(100\) must be below max_steps \(1\) for the pruner"):
        search(fixed, num_samples=1, pruner=optuna.pruners.MedianPruner())
    config = {**FIXED, "max_steps": 4, "val_check_steps": 1}
    with pytest.raises(ValueError, match=r"\(2 trials, 0 finished\): pruner ended them all; let it begin later"):
        search(lambda trial: config, pruner=optuna.pruners.ThresholdPruner(upper=1e-9))
