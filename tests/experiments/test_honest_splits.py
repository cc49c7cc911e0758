"""What is chosen is chosen without the test: penalties, thresholds, folds, and the column that says test error."""

import argparse
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import forecasting
import numpy as np
import pandas as pd
import panels
import pytest
import torch
from harness.board import models as board_models
from harness.board import regressions, tasks
from harness.study import Study

from mvpa_ts.windows import Windows


def noise(rows: np.ndarray) -> tasks.Task:
    """A panel [60 + 200 + 200, 2] for windows of 20 + 2 steps."""
    return tasks.Task(rows, (60, 260), 20, 2, rows)


def test_the_ridge_penalty_is_chosen_on_validation():
    """Noise wants a large penalty; rows that were trained on want a small one."""
    train, other = np.random.default_rng(0).standard_normal((2, 200, 2))
    train[:60] = train[60:120] = train[120:180]

    def penalty(validation: np.ndarray, test: np.ndarray) -> float:
        panel = noise(np.concatenate([train[:60], validation, test]))
        return regressions.ridge_errors(panel, regressions.every_channel)[1]

    assert penalty(other, train) == penalty(other, other)
    assert penalty(train, other) == penalty(train, train)
    assert penalty(other, train) > penalty(train, other)


def test_the_test_error_of_a_forecasting_row_is_that_of_the_test_windows(tmp_path, monkeypatch):
    dates = pd.date_range("2016-07-01", periods=17420, freq="h")
    frame = pd.DataFrame({"date": dates, "a": np.sin(np.arange(17420) / 4), "b": np.cos(np.arange(17420) / 4)})
    lengths, whole = {"train": 64, "validation": 32, "test": 48}, forecasting.forecasting_windows

    def few(*arguments: Any, **options: Any) -> dict[str, Windows]:
        parts = whole(*arguments, **options)
        return {name: replace(parts[name], starts=parts[name].starts[:length]) for name, length in lengths.items()}

    monkeypatch.setattr(forecasting, "load_forecasting_frame", lambda name: frame)
    monkeypatch.setattr(forecasting, "forecasting_windows", few)
    monkeypatch.setattr(forecasting, "evaluate", lambda model, windows: (len(windows), 2 * len(windows)))
    options = argparse.Namespace(lookback=96, device="cpu", quick=False, threads=1, table=tmp_path / "table.csv")
    outcome = {"validation_mse": 32.0, "validation_mae": 64.0, "epochs": 1, "seconds": 0.0, "seconds_per_epoch": 0.0}
    monkeypatch.setattr(forecasting, "train", lambda *arguments, **others: SimpleNamespace(**outcome))
    row = forecasting.run_one("Linear", "ETTh1", 24, 1, arguments=options)
    assert (row["test_mse"], row["test_mae"], row["test_windows"]) == (48, 96, 48)
    assert (row["validation_mse"], row["validation_mae"]) == (32.0, 64.0)


def test_rows_of_the_board_are_scored_on_test_and_trials_on_validation(tmp_path, monkeypatch):
    """What a trial could see ends with the validation rows, and the best trial is that of validation."""
    parts: list[str] = []

    def trained(model: Any, task: tasks.Task, part: str) -> tuple[Any, dict[str, Any]]:
        parts.append(part)
        return None, {"mse": float(len(parts)), "seconds": 0.0, "weights": 1}

    monkeypatch.setattr(panels.models, "trained", trained)
    monkeypatch.setattr(panels.models, "build", lambda model, task, settings, *others: settings)
    study = Study("board", "panels", panels.KEY, lambda rows: "", table=tmp_path / "panels.csv")
    for trial in (0, 1, panels.TESTED):
        case = ("leaders, fixed", "TSMixer", 400, trial, 0)
        study.run([case], partial(panels.measured, study, quick=True))
    rows = study.rows
    assert parts == ["validation", "validation", "test"]
    assert rows["validation_mse"].tolist()[:2] == [1.0, 2.0]
    assert rows["test_mse"].isna().tolist() == [True, True, False]
    assert rows["settings"].iloc[2] == rows["settings"].iloc[0]  # the first trial was better on validation


def test_a_trial_forecasts_validation_rows_alone(monkeypatch):
    rows = np.arange(460.0)[:, None] * np.ones(2)
    asked: list[tuple[int, int]] = []

    class Host:
        def __init__(self, **options: Any) -> None:
            self.models = [torch.nn.Linear(1, 1)]

        def cross_validation(self, frame: pd.DataFrame, **options: Any) -> pd.DataFrame:
            asked.append((int(frame["ds"].max()) + 1, options["test_size"]))
            return frame.assign(model=frame["y"])

    neuralforecast = pytest.importorskip("neuralforecast")
    monkeypatch.setattr(neuralforecast, "NeuralForecast", lambda models, freq: Host())
    assert board_models.trained(None, noise(rows), "validation")[1]["mse"] == 0.0
    board_models.trained(None, noise(rows), "test")
    ((end, scored), (last, tested)) = asked
    assert (end - scored, last - tested) == (60, 260)
    assert end <= 260 < last <= 460
