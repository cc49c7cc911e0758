"""Trials of a search under way: their validations are reported, bad ones are pruned, late ones end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import optuna
from optuna.trial import TrialState


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
