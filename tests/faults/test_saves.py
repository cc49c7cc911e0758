"""A save that is killed, or whose disk is full, at each of its steps: what is read afterwards is the old or the new.

A process forked from this one saves over an older save. An audit hook, which Python calls before it opens, renames or
removes anything, ends it with signal 9 or without room at the first of these calls, at the second, and so on.
"""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from neuralforecast import NeuralForecast
from support.made_up_networks import QUIET
from support.made_up_recordings import SMALL
from support.made_up_series import fitted, waves

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster
from mvpa_ts.forecasting.pretrained import load_base, save_base
from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
from mvpa_ts.ieeg.detection.calibration import Calibration, load_calibration
from mvpa_ts.ieeg.detection.rules import EventRules
from mvpa_ts.ieeg.scoring.board import Board

_REFUSED = (OSError, ValueError)
_CALLS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


@dataclass(frozen=True)
class Saved:
    """Two objects, how one is saved to a folder, and what a reader of the folder gets."""

    old: Any
    new: Any
    save: Callable[[Any, Path], Any]
    read: Callable[[Path], Any]
    refused: tuple[type[Exception], ...] = _REFUSED


def _forecaster() -> Saved:
    y = waves(columns=3)
    pair = [fitted(y, channel_order=[*order], random_state=seed) for seed, order in enumerate([("c2", "c0", "c1"), y])]

    def read(folder: Path) -> Any:
        again = MVPAForecaster.from_files(folder, finetune_steps=0)
        return again.channel_order, again.fit(y, fh=[1, 2]).predict().to_numpy().tolist()

    return Saved(*pair, lambda forecaster, folder: forecaster.to_files(folder), read)


def _classifier() -> Saved:
    sizes = {"num_heads": 1, "mlp_dim": 4, "width": 4, "conv_layers": 1, "tokens": 4}
    X = np.random.default_rng(0).standard_normal((6, 2, 12))
    pair = [
        MVPAClassifier(
            dim=4, num_layers=1, network=sizes, max_steps=1, kernel_features=0, validation_fraction=0.0, num_networks=1,
            random_state=seed,
        ).fit(X, np.array(labels * 3))
        for seed, labels in enumerate((["left", "right"], ["rest", "task"]))
    ]  # fmt: skip

    def read(folder: Path) -> Any:
        again = MVPAClassifier.from_files(folder)
        return again.predict(X).tolist(), again.predict_proba(X).tolist()

    return Saved(*pair, lambda classifier, folder: classifier.to_files(folder), read)


def _host() -> Saved:
    frame = waves(columns=2).to_timestamp().rename_axis("ds").reset_index().melt("ds", var_name="unique_id")
    frame = frame.rename(columns={"value": "y"})
    pair = []
    for seed in (1, 2):
        model = MVPA(h=3, input_size=6, n_series=2, hidden_size=8, n_heads=2, max_steps=1, random_seed=seed, **QUIET)
        pair.append(NeuralForecast([model], freq="MS"))
        pair[-1].fit(frame)

    def read(folder: Path) -> Any:
        return NeuralForecast.load(str(folder)).predict()["MVPA"].tolist()

    return Saved(*pair, lambda host, folder: host.save(str(folder), overwrite=True), read, (Exception,))


def _base() -> Saved:
    old, new = load_base("base"), load_base("base")
    with torch.no_grad():
        for weight in new.parameters():
            weight.mul_(0.5)

    def read(folder: Path) -> Any:
        return [float(weight.detach().double().sum()) for weight in load_base(str(folder)).parameters()]

    return Saved(old, new, save_base, read)


def _mvpformer() -> Saved:
    pair = [MVPFormer(mvpformer_tiny(**SMALL, threshold=threshold)).eval() for threshold in (0.25, 0.75)]

    def read(folder: Path) -> Any:
        model = MVPFormer.from_pretrained(folder)
        return model.config.threshold, [float(weight.detach().double().sum()) for weight in model.parameters()]

    return Saved(*pair, lambda model, folder: model.save_pretrained(folder), read)


def _board() -> Saved:
    facts = {"hours": [30.0], "quiet time alarmed": [0.1]}
    old, new = (Board(pd.DataFrame({"detector": [name], **facts}), {}, {}, {}) for name in ("old", "new"))

    def read(folder: Path) -> Any:
        page, table = ((folder / name).read_text(encoding="utf-8") for name in ("board.html", "board.csv"))
        return ["old" in text for text in (page, table)]

    return Saved(old, new, lambda board, folder: board.save(folder), read)


def _calibration() -> Saved:
    pair = [Calibration(6.0, 0.9, 10.0, 0, EventRules(threshold=threshold)) for threshold in (0.2, 0.8)]
    return Saved(*pair, lambda one, folder: one.save(folder / "one.json"), lambda at: load_calibration(at / "one.json"))


_SAVES = {
    "board": _board,
    "calibration": _calibration,
    "MVPAForecaster": _forecaster,
    "MVPAClassifier": _classifier,
    "NeuralForecast": _host,
    "pretrained forecaster": _base,
    "MVPFormer": _mvpformer,
}


class _Fault:
    """What an audit hook does at one of the calls; hooks stay for good, so this one is in children alone."""

    def __init__(self, folder: Path, step: int, *, killed: bool) -> None:
        self.folder, self.step, self.killed = str(folder), step, killed

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if event not in _CALLS or not writes or self.folder not in str(arguments[0]):
            return
        self.step -= 1
        if self.step == 0 and self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.step <= 0 and event in ("open", "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _faulty(saved: Saved, folder: Path, step: int, *, killed: bool) -> int:
    """The status of a process that saves the new over the old, and meets a fault at one of its steps."""
    process = os.fork()
    if process == 0:
        status = 99
        try:
            sys.addaudithook(_Fault(folder.parent, step, killed=killed))
            saved.save(saved.new, folder)
            status = 0
        except OSError:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "full"])
@pytest.mark.parametrize("name", _SAVES)
def test_a_fault_at_each_step_of_a_save(name, killed, tmp_path):
    saved = _SAVES[name]()
    folder, kept = tmp_path / "place" / "saved", tmp_path / "kept"
    saved.save(saved.old, kept)
    old = saved.read(kept)
    outcomes = []
    for step in range(1, 60):
        shutil.rmtree(folder.parent, ignore_errors=True)
        shutil.copytree(kept, folder)
        status = _faulty(saved, folder, step, killed=killed)
        try:
            outcomes.append(saved.read(folder))
        except saved.refused as error:
            outcomes.append(type(error).__name__)
        if status == 0:
            break
        assert status == (-signal.SIGKILL if killed else 1)
    new = outcomes.pop()
    assert new != old
    assert status == 0
    assert outcomes
    # A kill between two renames leaves a folder that is refused; without room nothing is renamed.
    assert all(outcome in (old, new) or (killed and isinstance(outcome, str)) for outcome in outcomes)


@pytest.mark.parametrize("name", [name for name in _SAVES if name != "calibration"])
def test_of_two_saves_at_once_one_is_read(name, tmp_path):
    saved = _SAVES[name]()
    for each in ("old", "new"):
        saved.save(getattr(saved, each), tmp_path / each)
    whole = [saved.read(tmp_path / each) for each in ("old", "new")]
    for _ in range(8):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda each: saved.save(each, tmp_path / "place"), (saved.old, saved.new)))
        assert saved.read(tmp_path / "place") in whole
