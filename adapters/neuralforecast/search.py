"""Hyperparameter search for MVPA, kept in a database of Optuna so that it can be resumed and shared."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from neuralforecast.common._base_auto import BaseAuto, MockTrial, OptunaOptions, RayOptions
from neuralforecast.losses.pytorch import MAE
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import MaxTrialsCallback, StudyDirection
from optuna.trial import TrialState
from ray import tune
from ray.tune.search import SearchAlgorithm, Searcher
from ray.tune.search.sample import Categorical, LogUniform
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from torch import nn

from mvpa_ts.adapters.neuralforecast.base_model import SERIES, arguments_of, register
from mvpa_ts.adapters.neuralforecast.model import FITTED_COPY, MVPA
from mvpa_ts.adapters.neuralforecast.panel import Panel
from mvpa_ts.adapters.options import check_objects, check_whole
from mvpa_ts.checks import check_flags, warn
from mvpa_ts.forecasting.series import SeriesBook

_log = logging.getLogger(__name__)
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
REASON = "reason"  # user attribute of a trial that failed
# Seconds. A worker that was silent for the grace period is taken for dead, and its trial is drawn again.
HEARTBEAT, GRACE = 15, 90
_METRICS = {"loss": "ptl/val_loss", "train_loss": "train_loss"}  # kept with a trial, by their names in the model
_RETRIES = 5  # a trial that kills each process, for want of memory, is not drawn for ever


# What is searched, in one place for both backends: distributions of Ray, or a dict of them.
SPACE: dict[str, Any] = {
    "hidden_size": tune.choice([16, 32, 64]),
    "encoder_layers": tune.choice([1, 2, 3]),
    "dropout": tune.uniform(0.0, 0.5),
    "network": {"head_dropout": tune.uniform(0.0, 0.6)},
    "learning_rate": tune.loguniform(1e-4, 1e-2),
    "training": {
        "linear_learning_rate": tune.loguniform(1e-3, 5e-2),
        "weight_averaging": tune.choice([None, 0.9, 0.99]),
    },
    "channel_order": tune.choice([None, "correlation"]),
    "windows_batch_size": tune.choice([32, 64, 128]),
    "max_steps": tune.choice([500, 1000, 2000]),
    "random_seed": tune.choice(list(range(1, 11))),
}


def suggested(trial: Any, space: Mapping[str, Any]) -> dict[str, Any]:
    """The space as a trial of Optuna draws it; parameters within a dict have their own names."""

    def draw(name: str, values: Any) -> Any:
        if isinstance(values, dict):
            return suggested(trial, values)
        # The host's own translation has no dicts, and calls functions that Optuna will drop.
        if isinstance(values, Categorical):
            return trial.suggest_categorical(name, values.categories)
        return trial.suggest_float(name, values.lower, values.upper, log=isinstance(values.sampler, LogUniform))

    return {name: draw(name, values) for name, values in space.items()}


class AutoMVPA(BaseAuto):
    """Search MVPA's hyperparameters by the loss on the validation rows, then fit the best.

    With Optuna, the default, trials are kept in a database. So an interrupted search goes on where it stopped, and
    several processes or machines can share one search.

    Parameters
    ----------
    h, n_series : int
        As in `MVPA`.
    config : callable or dict, optional
        The search space: a function of an Optuna trial that returns MVPA's arguments, or a dict of Ray's distributions.
        The function is also called without a trial, so do not compute with the values that are suggested. It must
        return JSON to be kept in a database. Default: `get_default_config`.
    search_alg : optuna.samplers.BaseSampler or a searcher of Ray, optional
        Do not fix its seed if several workers share the search: they would all try the same.
    num_samples : int
        Finished trials of the whole search. Pruned trials, trials of earlier runs and of other workers count.
    time_budget : float, optional
        Seconds of this call, after which no trial begins. The running trial ends at its next validation and is marked
        as failed, unless the search has no finished trial yet. Then the best so far is fitted.
    pruner : optuna.pruners.BasePruner, optional
        Ends bad trials early, such as ``optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=30)``. Its steps
        are percent of `max_steps`. It needs several validations a trial: set `val_check_steps` in `config` well below
        `max_steps`. None prunes nothing. Optuna only.
    storage : str or None
        URL of the database; Optuna only. Default: the file ``automvpa.db`` in the working directory. None keeps
        trials in memory.
    study_name : str, optional
        Name of the search in the database. By default it is made of the horizon, the loss, the fixed arguments and the
        data, so that only the same search is resumed.
    loss, valid_loss, refit_with_val, verbose, alias, backend, callbacks, ray_options, optuna_options
        As in every automatic model of neuralforecast. `ray_options` holds the CPUs and GPUs of a trial.

    Examples
    --------
    >>> from neuralforecast import NeuralForecast
    >>> from neuralforecast.utils import AirPassengersPanel
    >>> from mvpa_ts.adapters.neuralforecast import AutoMVPA
    >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    >>> def config(trial):
    ...     rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    ...     return {"input_size": 24, "max_steps": 1, "learning_rate": rate, **quiet}
    >>> model = AutoMVPA(h=12, n_series=2, config=config, num_samples=2, storage=None)
    >>> forecaster = NeuralForecast(models=[model], freq="ME")
    >>> forecaster.fit(AirPassengersPanel[["unique_id", "ds", "y"]], val_size=12)
    >>> len(forecaster.models[0].results.trials)
    2
    """

    default_config = SPACE

    def __init__(
        self,
        h: int,
        n_series: int,
        loss: nn.Module | None = None,
        valid_loss: nn.Module | None = None,
        config: Callable[[Any], dict[str, Any]] | dict[str, Any] | None = None,
        search_alg: Any = None,
        num_samples: int = 10,
        time_budget: float | None = None,
        refit_with_val: bool = False,
        verbose: bool = False,
        alias: str | None = None,
        backend: str = "optuna",
        callbacks: list[Any] | None = None,
        ray_options: RayOptions | None = None,
        optuna_options: OptunaOptions | None = None,
        storage: str | None = "sqlite:///automvpa.db",
        study_name: str | None = None,
        pruner: optuna.pruners.BasePruner | None = None,
    ) -> None:
        check_whole(h=h, n_series=n_series, num_samples=num_samples)
        check_objects(str, '"mine"', alias=alias, study_name=study_name)
        if time_budget is not None and not (isinstance(time_budget, Real) and time_budget > 0):
            raise ValueError(f"time_budget must be a positive number of seconds or None, got {time_budget!r}")
        check_objects(nn.Module, "MAE()", loss=loss, valid_loss=valid_loss)
        check_objects(optuna.pruners.BasePruner, "optuna.pruners.MedianPruner()", pruner=pruner)
        check_objects((str, optuna.storages.BaseStorage), '"sqlite:///sweep.sqlite"', storage=storage)
        check_objects((list, tuple), "[callback]", callbacks=callbacks)
        check_objects(RayOptions, "RayOptions(cpus=2)", ray_options=ray_options)
        check_objects(OptunaOptions, "OptunaOptions(study_kwargs={})", optuna_options=optuna_options)
        # The host would leave out what is no sampler of Optuna, without a word.
        if backend == "optuna":
            check_objects(optuna.samplers.BaseSampler, "optuna.samplers.TPESampler()", search_alg=search_alg)
        else:
            check_objects((Searcher, SearchAlgorithm), "BasicVariantGenerator()", search_alg=search_alg)
        if backend == "optuna" and (wrong := [each for each in callbacks or () if not callable(each)]):
            raise ValueError(f"callbacks must be functions of a study and a trial, got {wrong[0]!r}")
        if pruner is not None and backend != "optuna":
            raise ValueError(f'pruner needs backend="optuna", got {backend!r}: give Ray a scheduler in ray_options')
        if config is None:
            config = self.get_default_config(h=h, backend=backend, n_series=n_series)
        config, loss = _with_series(config, n_series), MAE() if loss is None else loss
        super().__init__(cls_model=MVPA, **arguments_of(BaseAuto, locals()))
        check_flags(self, "refit_with_val", "verbose")
        self.pruner, self.n_series = pruner, n_series
        self.storage, self.study_name = storage, study_name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls.__name__, MVPA)  # what is saved is the best MVPA

    @classmethod
    def get_default_config(cls, h: int, backend: str, n_series: int) -> Any:
        """The search space for a horizon: a function of a trial with "optuna", a dict with "ray"."""
        space = {"input_size": tune.choice([h, 2 * h, 4 * h]), **deepcopy(SPACE)}
        if backend == "ray":
            return {**space, "n_series": n_series}
        return lambda trial: {"n_series": n_series, **suggested(trial, space)}

    def fit(self, dataset: Any, val_size: int = 0, test_size: int = 0, **options: Any) -> AutoMVPA:
        """Check the panel, search and fit the best; called by `NeuralForecast.fit`."""
        # Else every trial would fail with the same words.
        panel = Panel(dataset, val_size + test_size, fitting=True)
        panel.check_count(self.n_series)
        panel.check_values(None)
        panel.check_dates()
        return super().fit(dataset, val_size, test_size, **options)

    def to_onnx(self, path: str | Path) -> None:
        """Write the best network as ONNX, as `MVPA.to_onnx` does."""
        self._best("to_onnx").to_onnx(path)

    def effects(self, *args: Any, **options: Any) -> Any:
        """Effects of covariates as the best model has them, see `MVPA.effects`."""
        return self._best("effects").effects(*args, **options)

    def serialize(self) -> bytes:
        """What `NeuralForecast.save` writes: the best model."""
        return self._best("save").serialize()

    def _best(self, call: str) -> MVPA:
        if not hasattr(self, "model"):
            raise ValueError(f"{call} needs a search that is over: {FITTED_COPY}")
        return self.model

    def _optuna_tune_model(self, **search: Any) -> optuna.Study:
        """Resume the study of this search, or begin it; `search` is what the host's method takes."""
        space = self.config(MockTrial())
        facts: dict[str, Any] = {
            "panel": fingerprint(search["dataset"], search["val_size"], search["test_size"]),
            "settings": described(space),
        }
        # Facts make two searches comparable, so a study is resumed by the same search alone.
        digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=5).hexdigest()
        chosen = {
            "storage": self.storage,
            "study_name": self.study_name or f"{self}-h{self.h}-{type(self.loss).__name__}-{digest}",
            "load_if_exists": True,
            "direction": "minimize",
            "sampler": search["search_alg"],
            "pruner": self.pruner or optuna.pruners.NopPruner(),
            **(self.optuna_options.create_study_kwargs or {}),
        }
        storage = chosen["storage"]
        if isinstance(storage, str):
            check_url(storage)
        # Memory holds any object, a database only JSON.
        if not isinstance(storage, optuna.storages.InMemoryStorage | None):
            for name in space.keys() - {"loss", "valid_loss"}:
                try:
                    json.dumps(space[name])
                except (TypeError, ValueError) as error:  # Optuna would say so after the first training
                    raise ValueError(
                        f"{name} in config must be JSON to be kept in a database, got {space[name]!r}: leave it out, "
                        "or set storage=None"
                    ) from error
        with named_errors(getattr(storage, "url", storage)):
            study = opened(chosen, facts)
            if study.directions != [StudyDirection.MINIMIZE]:  # the best trial would be the worst
                raise ValueError(
                    f"study {study.study_name!r} must minimise the loss, got the direction "
                    f"{[each.name.lower() for each in study.directions]}: leave it out of optuna_options, and give "
                    "another study_name"
                )
            warn_of_others(study, facts)
            finished = len(study.get_trials(deepcopy=False, states=FINISHED))
            _log.info("study %r has %d finished trials of %d", study.study_name, finished, search["num_samples"])
            options = {
                "n_trials": max(0, search["num_samples"] - finished),
                "timeout": search["time_budget"],
                "callbacks": [*(self.callbacks or []), MaxTrialsCallback(search["num_samples"], states=FINISHED)],
                "show_progress_bar": search["verbose"],
                # A trial whose training diverges, or cannot begin or go on, has failed; the search goes on.
                "catch": (FloatingPointError, SettingError, TimeIsUpError),
                "gc_after_trial": True,  # an error holds what its trial had in memory until garbage is collected
                **(self.optuna_options.study_kwargs or {}),
            }
            # The host's own call neither ends a trial early nor opens a study that is there already.
            study.optimize(Objective(search, facts["settings"]), **options)
        check_outcome(study)
        return study


def _with_series(config: Any, n_series: int) -> Any:
    def completed(chosen: Any) -> dict[str, Any]:
        if not isinstance(chosen, dict):
            expected = "return a dict of" if callable(config) else "be a function of a trial that returns a dict of"
            raise ValueError(f"config must {expected} MVPA's arguments, got {chosen!r}")
        for name, argument in (("alias", None), ("n_series", n_series)):
            if chosen.get(name, argument) != argument:
                raise ValueError(f"{name} in config is not read, got {chosen[name]!r}: give AutoMVPA {name}=…")
        # The host reads these lists without a look whether there are any.
        chosen = {
            # Without a trial it gets all choices, None among them.
            name: [entry for entry in value if entry is not None] if "_exog_list" in name else value
            for name, value in chosen.items()
            if value is not None or "_exog_list" not in name
        }
        if (positions := chosen.get("channel_positions")) is not None:
            # Keys of a dict would become strings in the database.
            book = SeriesBook.checked(None, positions, words=SERIES, id_column="unique_id")
            chosen = {**chosen, "channel_positions": book.pairs}
        return {**chosen, "n_series": n_series}

    def suggestions(trial: Any) -> dict[str, Any]:
        try:
            return completed(config(trial))
        except (TypeError, AttributeError) as error:
            if not isinstance(trial, MockTrial):
                raise
            raise ValueError(
                "config must not compute with what trial suggests, because neuralforecast also calls it without a "
                f"trial, to see which columns are needed ({error}): suggest the value itself, such as the whole list"
            ) from error

    return suggestions if callable(config) else completed(config)


def check_outcome(study: optuna.Study) -> None:
    """Raise ValueError unless a finished trial has a finite loss."""
    trials = study.get_trials(deepcopy=False)
    losses = [trial.value for trial in trials if trial.state == TrialState.COMPLETE]
    if not any(math.isfinite(loss) for loss in losses):
        reasons = [trial.user_attrs[REASON] for trial in trials if REASON in trial.user_attrs]
        unknown = "training diverged or was cut short; lower learning_rate in config, or give more time_budget"
        if trials and all(trial.state == TrialState.PRUNED for trial in trials):
            unknown = "pruner ended them all; let it begin later, with more n_startup_trials or n_warmup_steps"
        raise ValueError(
            f"no trial of study {study.study_name!r} has a finite validation loss ({len(trials)} trials, {len(losses)} "
            f"finished): {reasons[-1] if reasons else unknown}"
        )


def fingerprint(dataset: Any, val_size: int, test_size: int) -> str:
    """A digest of the data and the split: trials of other data are no trials of this search."""
    digest = hashlib.blake2b(f"{val_size} {test_size} {list(dataset.temporal_cols)}".encode(), digest_size=10)
    digest.update(np.ascontiguousarray(getattr(dataset, "indptr", [])).tobytes())
    for tensor in (getattr(dataset, "temporal", None), dataset.static):
        if tensor is not None:
            digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return digest.hexdigest()


def described(config: Mapping[str, Any]) -> dict[str, str]:
    """Arguments as text that can be compared; objects by their class and the arguments of a loss."""

    def plain(value: Any) -> Any:
        return [getattr(value, "__name__", type(value).__name__), getattr(value, "_nf_init_kwargs", None)]

    described_values: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and name in ("network", "training"):
            described_values |= described(value)  # their options have names of their own in a trial
        else:
            described_values[name] = json.dumps(value, sort_keys=True, default=plain)
    return described_values


def warn_of_others(study: optuna.Study, facts: dict[str, Any]) -> None:
    """Warn where a study has trials of another search, by what `opened` has noted with it."""
    earlier, now = study.user_attrs["settings"], facts["settings"]
    changed = ["data or split"] if study.user_attrs["panel"] != facts["panel"] else []
    changed += sorted(name for name in {*earlier, *now} if earlier.get(name) != now.get(name))
    if changed:
        warn(
            f"study_name={study.study_name!r} has trials of other {', '.join(changed)}; they count as finished. Give "
            "another study_name, or none"
        )


def opened(options: dict[str, Any], facts: dict[str, Any], attempts: int = 6) -> optuna.Study:
    """The study, begun with these facts if it is new.

    It is tried again where another worker begins at the same moment.
    """
    storage, verbosity = options["storage"], optuna.logging.get_verbosity()
    for attempt in range(1, attempts + 1):
        try:
            optuna.logging.set_verbosity(optuna.logging.WARNING)  # that a study was made or found
            database = opened_database(storage) if isinstance(storage, str) else storage
            study = optuna.create_study(**{**options, "storage": database})
            for name in facts.keys() - study.user_attrs.keys():
                study.set_user_attr(name, facts[name])
            if isinstance(database, RDBStorage) and database.get_heartbeat_interval():
                _watch_all(study, database)
            return study
        except (DBAPIError, StorageInternalError):
            if attempt == attempts:
                raise
            time.sleep(0.2 * attempt)
        finally:
            optuna.logging.set_verbosity(verbosity)
    raise AssertionError("unreachable")


def _watch_all(study: optuna.Study, database: RDBStorage) -> None:
    """Note a first sign of life of running trials that have none."""
    # A worker that was killed before its first sign is never taken for dead by Optuna.
    with database.engine.connect() as connection:
        watched = set(connection.execute(text("SELECT trial_id FROM trial_heartbeats")).scalars())
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        if trial._trial_id not in watched:
            database.record_heartbeat(trial._trial_id)


class TimeIsUpError(Exception):
    """The time of a search is over; the trial under way has failed."""


class SettingError(Exception):
    """What a trial drew does not go together, or needs too much memory; the search goes on."""


class Objective:
    """The validation loss of a trial, which is told how its training goes; `search` is what the host's method takes.

    A training ends when the seconds of `time_budget` are over. `settings` are the arguments without a trial, as
    `described`. Those that a trial has otherwise were drawn.
    """

    def __init__(self, search: dict[str, Any], settings: dict[str, str]) -> None:
        self._search, self._settings = search, settings
        budget = search["time_budget"]
        self._deadline = None if budget is None else time.monotonic() + budget

    def __call__(self, trial: optuna.Trial) -> float:
        """Train a model with the arguments that a trial draws."""
        try:
            chosen: dict[str, Any] = self._search["config"](trial)
        except ValueError as error:
            if "dynamic value space" not in str(error):
                raise
            raise ValueError(
                f"config must suggest a parameter with the same choices throughout study "
                f"{trial.study.study_name!r}, which began with others (or config names the parameter twice): give "
                "another study_name, another name of the parameter, or the first choices"
            ) from error
        drawn = {name for name, _ in described(chosen).items() - self._settings.items()}
        with noting_failure(trial, drawn):
            model = self._search["cls_model"](**deepcopy(chosen))
            model._training.validated = self._reporting(trial, model)
            model.fit(**{name: self._search[name] for name in ("dataset", "val_size", "test_size")})
        # By these names the host makes the best model, and its users read what a trial was.
        parameters = {name: value for name, value in chosen.items() if name not in ("loss", "valid_loss")}
        trial.set_user_attr("ALL_PARAMS", parameters)
        losses = {name: float(model.metrics[key]) for name, key in _METRICS.items()}
        trial.set_user_attr("METRICS", losses)
        return losses["loss"]

    def _reporting(self, trial: optuna.Trial, model: Any) -> Callable[[int, float], None]:
        """A function to call after each validation of a model, with the step and the loss."""
        if model.val_check_steps >= model.max_steps and not isinstance(trial.study.pruner, optuna.pruners.NopPruner):
            warn(
                f"val_check_steps ({model.val_check_steps}) must be below max_steps ({model.max_steps}) for the pruner "
                "to end a trial early: set it in config"
            )
        last = -1

        def report(step: int, loss: float) -> None:
            nonlocal last
            # One cycle of the rates takes all of a training: trials of other lengths compare at the same share.
            percent = round(100 * step / max(1, model.max_steps))
            if percent > last:
                trial.report(loss, percent)
                last = percent
            if percent >= 100:
                return
            if trial.should_prune():
                raise optuna.TrialPruned(f"worse than others at {percent} % of the training")
            late = self._deadline is not None and time.monotonic() > self._deadline
            if late and trial.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
                raise TimeIsUpError(f"the time_budget of the search ended at {percent} % of the training")

        return report


@contextmanager
def noting_failure(trial: optuna.Trial, drawn: set[str]) -> Iterator[None]:
    """Keep with the trial why it fails.

    The search goes on if the error names an argument that was drawn, or if a trial that drew any ran out of memory.
    """
    try:
        yield
    except (ValueError, FloatingPointError, TimeIsUpError, RuntimeError, MemoryError) as error:
        full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)
        if isinstance(error, RuntimeError) and not full:
            raise
        reason = f"the trial ran out of memory: {error}" if full else str(error)
        trial.set_user_attr(REASON, reason)
        named = isinstance(error, ValueError) and drawn & set(re.findall(r"\w+", reason))
        if named or (full and drawn):
            raise SettingError(reason) from error
        raise


def check_url(url: str) -> None:
    """Raise ValueError for text that is no URL of a database, FileNotFoundError for a file in no folder."""
    kind, mark, _ = url.partition("://")
    if not mark:
        raise ValueError(f"storage must be the URL of a database, got {url!r}: for a file write 'sqlite:///{url}'")
    try:
        make_url(url).get_dialect()
    except ArgumentError as error:
        raise ValueError(
            f"storage must begin with a kind of database, such as sqlite:/// or postgresql://, got {kind}://"
        ) from error
    if (path := _file_of(url)) is not None and not path.parent.is_dir():
        raise FileNotFoundError(f"storage={url!r} lies in the folder {path.parent}, which is not there: make it first")


def opened_database(url: str) -> RDBStorage:
    """The database of a search, in which each worker notes that it lives."""
    if (path := _file_of(url)) is not None and not path.exists():
        _make_whole(path)
    # SQLite locks the whole file for each write, and workers write often.
    patience = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        return RDBStorage(
            url,
            engine_kwargs=patience,
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES),
        )


@contextmanager
def named_errors(url: Any) -> Iterator[None]:
    """Let an error of the database say which one it is, and what is wrong: Optuna names neither."""
    try:
        yield
    except (DBAPIError, StorageInternalError) as error:
        # The first cause is the database's own error, which says what is wrong.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        name = make_url(url).render_as_string(hide_password=True) if isinstance(url, str) else "in memory"
        raise OSError(
            f"the search cannot read or write its database {name} ({getattr(cause, 'orig', cause)}); trials that are "
            "finished in it stay, and the same call goes on from them"
        ) from error


def _make_whole(path: Path) -> None:
    # A process killed while Optuna makes the tables would leave some without their indices. Optuna could then make two
    # studies of the same name, and the search would never open again.
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        RDBStorage(f"sqlite:///{temporary}").engine.dispose()
        os.link(temporary, path)  # unlike a renaming, leaves the database of a worker that was quicker
    except OSError:  # it is there already, or a file system has no links
        if not path.exists():
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _file_of(url: str | None) -> Path | None:
    """The file of a database of SQLite; None for others."""
    if url is None or not url.startswith("sqlite"):
        return None
    database = make_url(url).database
    if not database or database == ":memory:" or database.startswith("file:"):
        return None
    return Path(database)


register("AutoMVPA", MVPA)
