"""Zero-shot: the naive forecasts, and a run of the script on made-up sets of different widths."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import zero_shot
from harness import study

from mvpa_ts.windows import Windows


def test_a_season_longer_than_the_look_back_is_read_from_the_series() -> None:
    values = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    windows = Windows(values, torch.arange(20, 40), lookback=4, horizon=8)
    squared = [
        (values[start + 4 + step, channel] - values[start + 4 - 6 + step % 6, channel]).item() ** 2
        for start in range(20, 40)
        for step in range(8)
        for channel in range(3)
    ]
    assert zero_shot.evaluate(zero_shot.LastSeason(windows, 6), windows)[0] == pytest.approx(np.mean(squared), rel=1e-6)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a quick run on made-up sets writes its rows."""

    def frame(name: str) -> pd.DataFrame:
        rows, channels = 14400, {"ETTh1": 3, "ETTh2": 3, "Weather": 5}[name]
        values = np.random.default_rng(channels).standard_normal((rows, channels))
        dates = pd.date_range("2020", periods=rows, freq="h")
        return pd.DataFrame({"date": dates, **{f"x{i}": values[:, i] for i in range(channels)}})

    monkeypatch.setattr(zero_shot, "load_forecasting_frame", frame)
    monkeypatch.setattr(study, "results_folder", lambda subject, quick: tmp_path)
    monkeypatch.setattr(sys, "argv", ["zero_shot.py", "--quick"])
    return tmp_path / "zero_shot.csv"


EVERY_ROW = set(itertools.product(("MVPA", "MVPA linear path alone", "last value", "last day"), ("ETTh2", "Weather")))


def test_a_model_of_one_set_forecasts_others(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zero_shot.main()
    rows = pd.read_csv(table)
    assert set(rows[["model", "target"]].itertuples(False, None)) == EVERY_ROW
    assert np.isfinite(rows[["test_mse", "test_mae"]]).all(None)
    zero_shot.main()  # nothing is run again
    assert capsys.readouterr().out.count("min left") == 4


def test_a_run_stopped_between_two_sets_is_made_up_for(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, called = zero_shot.evaluate, itertools.count(1)

    def stopped(*arguments: object) -> tuple[float, float]:
        if next(called) == 6:  # after the naive forecasts, and one set of the first model
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(zero_shot, "evaluate", stopped)
    with pytest.raises(KeyboardInterrupt):
        zero_shot.main()
    zero_shot.main()
    rows = pd.read_csv(table)
    assert len(rows) == len(EVERY_ROW)
    assert set(rows[["model", "target"]].itertuples(False, None)) == EVERY_ROW
