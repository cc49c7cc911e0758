"""Studies of Optuna: what tells two searches apart, how one is opened, and whether it came to anything."""

from __future__ import annotations

import hashlib
import math
import time
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
