"""Studies of Optuna: what tells two searches apart, how one is opened, how its trials go, and what came of it."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState
from sqlalchemy.exc import DBAPIError

from mvpa_ts.adapters.neuralforecast.workers import opened_database

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


def check_outcome(study: optuna.Study) -> None:
    """Raise ValueError unless a finished trial has a finite loss."""
    trials = study.get_trials(deepcopy=False)
    losses = [trial.value for trial in trials if trial.state == TrialState.COMPLETE]
    if not any(math.isfinite(loss) for loss in losses):
        raise ValueError(
            f"no trial of study {study.study_name!r} has a finite validation loss ({len(trials)} trials, {len(losses)} "
            "finished): training diverged or was cut short; lower learning_rate in config, or give more time_budget"
        )


def fingerprint(dataset: Any, val_size: int, test_size: int) -> str:
    """A digest of the data and the split: trials of other data are no trials of this search."""
    digest = hashlib.blake2b(f"{val_size} {test_size} {list(dataset.temporal_cols)}".encode(), digest_size=10)
    digest.update(np.ascontiguousarray(getattr(dataset, "indptr", [])).tobytes())
    for tensor in (getattr(dataset, "temporal", None), dataset.static):
        if tensor is not None:
            digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return digest.hexdigest()


def choices_of(trial: Any, name: str, choices: list[Any]) -> list[Any]:
    """The choices of a parameter with which the trial's study began: Optuna takes no others in one study."""
    study = getattr(trial, "study", None)  # the host also asks without one
    earlier = [] if study is None else study.get_trials(deepcopy=False)
    found = next((past.distributions[name] for past in earlier if name in past.distributions), None)
    return list(found.choices) if isinstance(found, optuna.distributions.CategoricalDistribution) else choices


def opened(options: dict[str, Any], facts: str, attempts: int = 6) -> tuple[optuna.Study, optuna.storages.BaseStorage]:
    """The study, begun if it is new, and its storage; tried again where another worker begins at the same moment."""
    for attempt in range(1, attempts + 1):
        try:
            storage = options["storage"] or optuna.storages.InMemoryStorage()
            if isinstance(storage, str):
                storage = opened_database(storage)
            study = optuna.create_study(**{**options, "storage": storage})
            if "panel" not in study.user_attrs:
                study.set_user_attr("panel", facts)
            return study, storage
        except (DBAPIError, optuna.exceptions.StorageInternalError):
            if attempt == attempts:
                raise
            time.sleep(0.2 * attempt)
    raise AssertionError("unreachable")


class TimeIsUpError(Exception):
    """The time of a search is over; the trial under way has failed."""


class TrialWatch:
    """Tells the trial of each thread how its training goes.

    Parameters
    ----------
    time_budget : float or None
        Seconds from now after which a trial ends, if the search has a finished one.
    """

    def __init__(self, time_budget: float | None) -> None:
        self._deadline = None if time_budget is None else time.monotonic() + time_budget
        self._threads = threading.local()  # Optuna's n_jobs runs trials in threads

    def noting(self, config: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        """The same search space, which notes the trial that asks, and names a study with other choices."""

        def noted(trial: Any) -> dict[str, Any]:
            self._threads.trial = trial if isinstance(trial, optuna.Trial) else None
            try:
                return config(trial)
            except ValueError as error:
                if "dynamic value space" not in str(error):
                    raise
                raise ValueError(
                    f"study {trial.study.study_name!r} began with other choices of a parameter than config has now, "
                    "and Optuna takes no others in one study: give another study_name, or the first choices"
                ) from error

        return noted

    def reporting(self, model: Any) -> Callable[[int, float], None] | None:
        """A function to call after each validation of a model, with the step and the loss; None without a trial."""
        trial: optuna.Trial | None = getattr(self._threads, "trial", None)
        if trial is None:
            return None
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
