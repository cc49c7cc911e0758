"""Studies of Optuna: what tells two searches apart, how one is opened, how its trials go, and what came of it."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
import torch
from optuna.trial import TrialState
from sqlalchemy.exc import DBAPIError

from mvpa_ts.adapters.neuralforecast.workers import opened_database

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
REASON = "reason"  # user attribute of a trial that failed
_TELL_OF_STUDIES = ("optuna.study.study", "optuna.storages._in_memory", "optuna.storages._rdb.storage")


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


def described(config: dict[str, Any]) -> dict[str, str]:
    """Arguments as text that can be compared; objects by their class and the arguments of a loss."""

    def plain(value: Any) -> Any:
        return [getattr(value, "__name__", type(value).__name__), getattr(value, "_nf_init_kwargs", None)]

    return {name: json.dumps(value, sort_keys=True, default=plain) for name, value in config.items()}


def check_json(config: dict[str, Any]) -> None:
    """Raise ValueError for an argument that no database can hold; Optuna would say so after the first training."""
    for name in config.keys() - {"loss", "valid_loss"}:
        try:
            json.dumps(config[name])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} in config must be JSON to be kept in a database, got {config[name]!r}: leave it out, or set "
                "storage=None"
            ) from error


def warn_of_others(study: optuna.Study, facts: dict[str, Any]) -> None:
    """Warn where a study has trials of another search, by what `opened` has noted with it."""
    earlier, now = study.user_attrs["settings"], facts["settings"]
    changed = ["data or split"] if study.user_attrs["panel"] != facts["panel"] else []
    changed += sorted(name for name in {*earlier, *now} if earlier.get(name) != now.get(name))
    if changed:
        warnings.warn(
            f"study_name={study.study_name!r} has trials of other {', '.join(changed)}; they count as finished. Give "
            "another study_name, or none",
            stacklevel=2,
        )


def choices_of(trial: Any, name: str, choices: list[Any]) -> list[Any]:
    """The choices of a parameter with which the trial's study began: Optuna takes no others in one study."""
    study = getattr(trial, "study", None)  # the host also asks without one
    earlier = [] if study is None else study.get_trials(deepcopy=False)
    found = next((past.distributions[name] for past in earlier if name in past.distributions), None)
    return list(found.choices) if isinstance(found, optuna.distributions.CategoricalDistribution) else choices


def opened(
    options: dict[str, Any], facts: dict[str, Any], attempts: int = 6
) -> tuple[optuna.Study, optuna.storages.BaseStorage]:
    """The study, begun with these facts if it is new, and its storage.

    It is tried again where another worker begins at the same moment.
    """
    for attempt in range(1, attempts + 1):
        try:
            storage = options["storage"] or optuna.storages.InMemoryStorage()
            if isinstance(storage, str):
                storage = opened_database(storage)
            study = optuna.create_study(**{**options, "storage": storage})
            for name in facts.keys() - study.user_attrs.keys():
                study.set_user_attr(name, facts[name])
            return study, storage
        except (DBAPIError, optuna.exceptions.StorageInternalError):
            if attempt == attempts:
                raise
            time.sleep(0.2 * attempt)
    raise AssertionError("unreachable")


@contextmanager
def without_notes_of_opening() -> Iterator[None]:
    """Keep Optuna from logging that a study was made or found: the host opens it again, which reads as two studies."""

    def is_another(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(("A new study created", "Using an existing study"))

    loggers = [logging.getLogger(name) for name in _TELL_OF_STUDIES]
    for logger in loggers:
        logger.addFilter(is_another)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_another)


class TimeIsUpError(Exception):
    """The time of a search is over; the trial under way has failed."""


class SettingError(Exception):
    """What a trial drew does not go together, or needs too much memory; the search goes on."""


class TrialWatch:
    """Tells the trial of each thread how its training goes.

    Parameters
    ----------
    time_budget : float or None
        Seconds from now after which a trial ends, if the search has a finished one.
    settings : dict
        The arguments without a trial, as `described`. Those that a trial has otherwise were drawn.
    """

    def __init__(self, time_budget: float | None, settings: dict[str, str]) -> None:
        self._settings = settings
        self._deadline = None if time_budget is None else time.monotonic() + time_budget
        self._threads = threading.local()  # Optuna's n_jobs runs trials in threads

    def noting(self, config: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        """The same search space, which notes the trial that asks, and names a study with other choices."""

        def noted(trial: Any) -> dict[str, Any]:
            self._threads.trial = trial if isinstance(trial, optuna.Trial) else None
            try:
                chosen = config(trial)
            except ValueError as error:
                if "dynamic value space" not in str(error):
                    raise
                raise ValueError(
                    f"config must suggest a parameter with the same choices throughout study "
                    f"{trial.study.study_name!r}, which began with others (or config names the parameter twice): give "
                    "another study_name, another name of the parameter, or the first choices"
                ) from error
            drawn = described(chosen).items() - self._settings.items()
            self._threads.drawn = {name for name, _ in drawn}
            return chosen

        return noted

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Keep with the trial why it fails.

        The search goes on if the error names an argument that was drawn, or if a trial that drew any ran out of memory.
        """
        try:
            yield
        except (ValueError, FloatingPointError, TimeIsUpError) as error:
            self._threads.trial.set_user_attr(REASON, str(error))
            if isinstance(error, ValueError) and self._threads.drawn & set(re.findall(r"\w+", str(error))):
                raise SettingError(str(error)) from error
            raise
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)):
                raise
            reason = f"the trial ran out of memory: {error}"
            self._threads.trial.set_user_attr(REASON, reason)
            if not self._threads.drawn:
                raise
            raise SettingError(reason) from error

    def reporting(self, model: Any) -> Callable[[int, float], None] | None:
        """A function to call after each validation of a model, with the step and the loss; None without a trial."""
        trial: optuna.Trial | None = getattr(self._threads, "trial", None)
        if trial is None:
            return None
        if model.val_check_steps >= model.max_steps and not isinstance(trial.study.pruner, optuna.pruners.NopPruner):
            warnings.warn(
                f"val_check_steps ({model.val_check_steps}) must be below max_steps ({model.max_steps}) for the pruner "
                "to end a trial early: set it in config",
                stacklevel=2,
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
