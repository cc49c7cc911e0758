"""Hyperparameter search for MVPA, kept in a database so that it can be resumed and shared."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import optuna
from neuralforecast.common._base_auto import BaseAuto, MockTrial, OptunaOptions, RayOptions
from neuralforecast.losses.pytorch import MAE
from optuna.study import MaxTrialsCallback
from ray import tune
from torch import nn

from mvpa_ts.adapters.neuralforecast import panel
from mvpa_ts.adapters.neuralforecast.configuration import check_objects, check_whole
from mvpa_ts.adapters.neuralforecast.model import MVPA, register
from mvpa_ts.adapters.neuralforecast.series import checked_positions
from mvpa_ts.adapters.neuralforecast.studies import (
    FINISHED,
    SettingError,
    TimeIsUpError,
    TrialWatch,
    check_json,
    check_outcome,
    choices_of,
    described,
    fingerprint,
    opened,
    warn_of_others,
    without_notes_of_opening,
)
from mvpa_ts.adapters.neuralforecast.tables import check_tables
from mvpa_ts.adapters.neuralforecast.workers import at_work, check_url, named_errors

_log = logging.getLogger(__name__)


class Range(NamedTuple):
    """Numbers from low to high; drawn by their logarithm if `log`."""

    low: float
    high: float
    log: bool = False


# What is searched, in one place for both backends: a list of choices or a range.
SPACE: dict[str, list[Any] | Range] = {
    "hidden_size": [16, 32, 64],
    "encoder_layers": [1, 2, 3],
    "dropout": Range(0.0, 0.5),
    "head_dropout": Range(0.0, 0.6),
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "linear_learning_rate": Range(1e-3, 5e-2, log=True),
    "weight_averaging": [None, 0.9, 0.99],
    "channel_vectors": [None, False],
    "channel_order": [None, "correlation"],
    "windows_batch_size": [32, 64, 128],
    "max_steps": [500, 1000, 2000],
    "random_seed": list(range(1, 11)),
}


def space_of(h: int) -> dict[str, list[Any] | Range]:
    """Choices and ranges by name of an argument, for a horizon of h steps."""
    return {"input_size": [h, 2 * h, 4 * h], **SPACE}


def for_ray(space: dict[str, list[Any] | Range]) -> dict[str, Any]:
    """The same as distributions of Ray."""
    return {
        name: tune.choice(values)
        if isinstance(values, list)
        else (tune.loguniform if values.log else tune.uniform)(values.low, values.high)
        for name, values in space.items()
    }


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
    >>> def config(trial):
    ...     return {
    ...         "input_size": 24,
    ...         "max_steps": 1,
    ...         "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
    ...         "enable_progress_bar": False,
    ...         "enable_model_summary": False,
    ...         "logger": False,
    ...     }
    >>> model = AutoMVPA(h=12, n_series=2, config=config, num_samples=2, storage=None)
    >>> forecaster = NeuralForecast(models=[model], freq="ME")
    >>> forecaster.fit(AirPassengersPanel[["unique_id", "ds", "y"]], val_size=12)
    >>> len(forecaster.models[0].results.trials)
    2
    """

    default_config = for_ray(SPACE)
    optuna_options: Any
    callbacks: Any
    _watch: TrialWatch | None = None

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
        check_whole(num_samples=num_samples)
        if time_budget is not None and not (isinstance(time_budget, Real) and time_budget > 0):
            raise ValueError(f"time_budget must be a positive number of seconds or None, got {time_budget!r}")
        check_objects(nn.Module, "MAE()", loss=loss, valid_loss=valid_loss)
        check_objects(optuna.pruners.BasePruner, "optuna.pruners.MedianPruner()", pruner=pruner)
        check_objects((str, optuna.storages.BaseStorage), '"sqlite:///sweep.sqlite"', storage=storage)
        check_objects((list, tuple), "[callback]", callbacks=callbacks)
        if backend == "optuna":  # the host would leave out what is no sampler, without a word
            check_objects(optuna.samplers.BaseSampler, "optuna.samplers.TPESampler()", search_alg=search_alg)
        if pruner is not None and backend != "optuna":
            raise ValueError(f'pruner needs backend="optuna", got {backend!r}: give Ray a scheduler in ray_options')
        if config is None:
            config = self.get_default_config(h=h, backend=backend, n_series=n_series)
        super().__init__(
            cls_model=MVPA,
            h=h,
            loss=MAE() if loss is None else loss,
            valid_loss=valid_loss,
            config=_with_series(config, n_series),
            search_alg=search_alg,
            num_samples=num_samples,
            time_budget=time_budget,
            refit_with_val=refit_with_val,
            verbose=verbose,
            alias=alias,
            backend=backend,
            callbacks=callbacks,
            ray_options=ray_options,
            optuna_options=optuna_options,
        )
        self.pruner = pruner
        self.n_series = n_series
        self.storage = storage
        self.study_name = study_name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls.__name__, MVPA)  # what is saved is the best MVPA

    @classmethod
    def get_default_config(cls, h: int, backend: str, n_series: int) -> Any:
        """The search space for a horizon: a function of a trial with "optuna", a dict with "ray"."""
        space = space_of(h)
        if backend == "ray":
            return {**for_ray(space), "n_series": n_series}

        def config(trial: Any) -> dict[str, Any]:
            suggested: dict[str, Any] = {"n_series": n_series}
            for name, values in space.items():
                if isinstance(values, list):
                    suggested[name] = trial.suggest_categorical(name, choices_of(trial, name, values))
                else:
                    suggested[name] = trial.suggest_float(name, values.low, values.high, log=values.log)
            return suggested

        return config

    def fit(
        self,
        dataset: Any,
        val_size: int = 0,
        test_size: int = 0,
        random_seed: int | None = None,
        distributed_config: Any = None,
    ) -> AutoMVPA:
        """Check the panel, search and fit the best; called by `NeuralForecast.fit`."""
        panel.check_local(dataset, distributed_config)
        panel.check_series(dataset, self.n_series)
        check_tables(dataset)
        panel.check_values(dataset, None, 0)
        panel.check_dates(dataset)
        return super().fit(dataset, val_size, test_size, random_seed, distributed_config)

    def _optuna_tune_model(self, **search: Any) -> optuna.Study:
        """Resume the study of this search, or begin it; `search` is what the host's method takes."""
        space = self.config(MockTrial())
        facts: dict[str, Any] = {
            "panel": fingerprint(search["dataset"], search["val_size"], search["test_size"]),
            "settings": described(space),
        }
        chosen = {
            "storage": self.storage,
            "study_name": self.study_name or self._study_name(facts["panel"]),
            "load_if_exists": True,
            "pruner": self.pruner or optuna.pruners.NopPruner(),
            **(self.optuna_options.create_study_kwargs or {}),
        }
        storage = chosen["storage"]
        url = storage if isinstance(storage, str) else getattr(storage, "url", None)
        if isinstance(storage, str):
            check_url(storage)
        if not isinstance(storage, optuna.storages.InMemoryStorage | None):
            check_json(space)
        with named_errors(url), without_notes_of_opening(), at_work(url) as begin:
            study, chosen["storage"] = opened({"direction": "minimize", **chosen}, facts)
            begin(study)
            warn_of_others(study, facts)
            finished = len(study.get_trials(deepcopy=False, states=FINISHED))
            _log.info("study %r has %d finished trials of %d", study.study_name, finished, search["num_samples"])

            options, callbacks = self.optuna_options, self.callbacks
            # A trial whose training diverges, or cannot begin or go on, has failed; the search goes on.
            errors = (FloatingPointError, SettingError, TimeIsUpError)
            # An error holds what its trial had in memory until garbage is collected.
            optimize = {"catch": errors, "gc_after_trial": True, **(options.study_kwargs or {})}
            self.optuna_options = replace(options, create_study_kwargs=chosen, study_kwargs=optimize)
            of_all_workers = MaxTrialsCallback(search["num_samples"], states=FINISHED)
            self.callbacks = [*(callbacks or []), of_all_workers]
            self._watch = TrialWatch(search["time_budget"], facts["settings"])
            watched = {"config": self._watch.noting(search["config"])}
            try:
                missing = max(0, search["num_samples"] - finished)
                study = super()._optuna_tune_model(**{**search, **watched, "num_samples": missing})
            finally:
                self.optuna_options, self.callbacks, self._watch = options, callbacks, None
        check_outcome(study)
        return study

    def _fit_model(
        self, cls_model: Any, config: Any, dataset: Any, val_size: int, test_size: int, distributed_config: Any = None
    ) -> Any:
        """As the host; within a search, the trial is told of each validation and of what goes wrong."""
        with nullcontext() if self._watch is None else self._watch.noting_failure():
            model = cls_model(**config)
            if self._watch is not None:
                model.validated = self._watch.reporting(model)
            fitted = model.fit(dataset, val_size=val_size, test_size=test_size, distributed_config=distributed_config)
        fitted.validated = None
        return fitted

    def _study_name(self, facts: str) -> str:
        fixed = {
            "space": self.config(MockTrial()),
            "loss": getattr(self.loss, "_nf_init_kwargs", None),
            "valid_loss": [type(self.valid_loss).__name__, getattr(self.valid_loss, "_nf_init_kwargs", None)],
            "panel": facts,
        }
        text = json.dumps(fixed, sort_keys=True, default=lambda value: type(value).__name__)
        digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
        return f"{self}-h{self.h}-{type(self.loss).__name__}-{digest}"


def _with_series(config: Any, n_series: int) -> Any:
    def completed(chosen: Any) -> dict[str, Any]:
        if not isinstance(chosen, dict):
            expected = "return a dict of" if callable(config) else "be a function of a trial that returns a dict of"
            raise ValueError(f"config must {expected} MVPA's arguments, got {chosen!r}")
        positions = chosen.get("channel_positions")
        # Keys of a dict would become strings in the database.
        known = {} if positions is None else {"channel_positions": checked_positions(positions)}
        return {**chosen, **known, "n_series": n_series}

    return (lambda trial: completed(config(trial))) if callable(config) else completed(config)


register("AutoMVPA", MVPA)
