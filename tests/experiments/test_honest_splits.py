"""What is chosen is chosen without the test: penalties, thresholds, folds, and the column that says test error."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forecasting
import numpy as np
import pandas as pd
import pytest
import structure
import torch
from harness.structure import tasks

from mvpa_ts.windows import Windows


def test_the_ridge_penalty_is_chosen_on_validation() -> None:
    """Noise wants a large penalty; rows that were trained on want a small one."""
    draws = torch.Generator().manual_seed(0)

    def noise(rows: int) -> Windows:
        return Windows(torch.randn(rows, 2, generator=draws), torch.arange(rows - 8), lookback=6, horizon=2)

    train, other = noise(60), noise(400)

    def penalty(validation: Windows, test: Windows) -> float:
        task = SimpleNamespace(windows={"train": train, "validation": validation, "test": test})
        return tasks.ridge_error(task)[1]  # type: ignore[arg-type]

    assert penalty(other, train) == penalty(other, other)
    assert penalty(train, other) == penalty(train, train)
    assert penalty(other, train) > penalty(train, other)


def test_the_test_error_of_a_forecasting_row_is_that_of_the_test_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_test_error_of_a_task_is_that_of_its_test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks.leaders(1, quick=True, fixed=True)
    seen = {id(windows): name for name, windows in task.windows.items()}
    monkeypatch.setitem(structure.TASKS, "leaders, fixed", lambda seed, quick: task)
    monkeypatch.setattr(structure, "masked_error", lambda model, windows: seen[id(windows)])
    ((row),) = structure.run("leaders, fixed", "Linear", 1, 1, quick=True)
    assert (row["test_mse"], row["validation_mse"]) == ("test", "validation")
