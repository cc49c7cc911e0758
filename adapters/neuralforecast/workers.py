"""Processes that share a search: its database, who is at work on it, and the trials of those that were killed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

_HEARTBEAT, _GRACE = 60, 300  # seconds; a worker that is silent for longer is taken for dead
_RETRIES = 5  # a trial that kills each process, for want of memory, is not drawn for ever


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
    path = _file_of(url)
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(f"storage={url!r} lies in the folder {path.parent}, which is not there: make it first")


def opened_database(url: str) -> RDBStorage:
    """The database of a search, to which each worker tells that it lives."""
    if (path := _file_of(url)) is not None and not path.exists():
        _make_whole(path)
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

    The function draws the trials of killed workers again where no other worker is at work. For files of SQLite a lock
    on ``<database>.lock`` tells, which the system gives free when a process ends, however it ends. For servers, and
    where other workers go on, heartbeats tell after some minutes.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        url = None
    database = _file_of(url)
    if database is None:
        yield lambda study: None
        return
    with database.with_name(f"{database.name}.lock").open("ab") as file:
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
    """Queue the running trials of a study once more, and mark them as failed, as nobody is at work on them.

    In this order, so that no draw is lost where this process is killed as well.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        queue = RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES)
        trials = study.get_trials()
        queued = {number for trial in trials for number in trial.system_attrs.get("retry_history", [])}
        for trial in trials:
            if trial.state == TrialState.RUNNING:
                if trial.number not in queued:
                    queue(study, trial)
                study.tell(trial.number, state=TrialState.FAIL)


@contextmanager
def named_errors(url: str | None) -> Iterator[None]:
    """Let an error of the database say which one it is, and what is wrong: Optuna names neither."""
    try:
        yield
    except (DBAPIError, StorageInternalError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        name = "in memory" if url is None else make_url(url).render_as_string(hide_password=True)
        raise OSError(
            f"the search cannot read or write its database {name} ({getattr(cause, 'orig', cause)}); trials that are "
            "finished in it stay, and the same call goes on from them"
        ) from error


def _make_whole(path: Path) -> None:
    """Make an empty database under another name, then rename it.

    A process killed while Optuna makes the tables would leave some without their indices. Optuna could
    then make two studies of the same name, and the search would never open again.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        RDBStorage(f"sqlite:///{temporary}").engine.dispose()
        os.link(temporary, path)  # unlike a renaming, leaves the database of a worker that was quicker
    except FileExistsError:
        pass
    except OSError:  # a file system without links
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
