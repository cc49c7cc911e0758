"""The example sweep runs, resumes, and draws."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("neuralforecast")
pytest.importorskip("matplotlib")

SCRIPT = Path(__file__).parents[2] / "experiments" / "forecasting" / "sweep.py"


def test_the_sweep_runs_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    steps = np.arange(14400)
    frame = pd.DataFrame({"date": pd.date_range("2016-07-01", periods=len(steps), freq="h")})
    for i, name in enumerate(("a", "b")):
        frame[name] = 10 * i + np.sin(2 * np.pi * steps / 24 + i)
    frame.loc[11520:, ["a", "b"]] = np.nan  # the test rows: reading them would be an error of neuralforecast
    monkeypatch.setattr("mvpa_ts.datasets.forecasting.load_forecasting_frame", lambda name: frame)
    for trials, finished in ((2, 2), (3, 3)):
        arguments = ["sweep.py", "--quick", "--horizon", "12", "--trials", str(trials), "--output", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(str(SCRIPT), run_name="__main__")
        assert json.loads((tmp_path / "sweep-ETTh1-12-quick.json").read_text())["trials"] == finished
    assert {path.suffix for path in tmp_path.iterdir()} - {".lock"} == {".json", ".db", ".png"}
    assert (tmp_path / "sweep-ETTh1-12-quick-importance.png").stat().st_size > 5000


def test_help_teaches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["sweep.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "goes on where it stopped" in capsys.readouterr().out
