"""Processes that share a search: its database, who is at work on it, and the trials of those that were killed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from sqlalchemy.engine import make_url

_HEARTBEAT, _GRACE = 60, 300  # seconds; a worker that is silent for longer is taken for dead
_RETRIES = 1  # a trial that kills its process twice, for want of memory, is not drawn a third time


def opened_database(url: str) -> RDBStorage:
    """The database of a search, to which each worker tells that it lives."""
    patience = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return RDBStorage(
            url,
            engine_kwargs=patience,
            heartbeat_interval=_HEARTBEAT,
            grace_period=_GRACE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES),
        )


@contextmanager
def at_work(url: str | None) -> Iterator[Callable[[optuna.Study], None]]:
    """Be a worker of the search in a database; gives a function to call once the study is open.

    The function draws the trials of killed workers again where no other worker is there. For files of SQLite a lock on
    ``<database>.lock`` tells, which the system gives free when a process ends, however it ends. For servers, and where
    other workers go on, heartbeats tell after some minutes.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        url = None
    file_of_locks = _file_of_locks(url)
    if file_of_locks is None:
        yield lambda study: None
        return
    with file_of_locks.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
            alone = False

        def begin(study: optuna.Study) -> None:
            if alone:
                draw_again(study)
                fcntl.flock(file, fcntl.LOCK_SH)

        yield begin


def draw_again(study: optuna.Study) -> None:
    """Mark the running trials of a study as failed and queue each once more, as nobody is at work on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        queue = RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES)
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
            queue(study, trial)


def _file_of_locks(url: str | None) -> Path | None:
    if url is None or not url.startswith("sqlite"):
        return None
    database = make_url(url).database
    if not database or database == ":memory:" or database.startswith("file:"):
        return None
    return Path(f"{database}.lock")
