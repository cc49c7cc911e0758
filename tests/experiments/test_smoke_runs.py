"""Every script that has a quick form is run by `make test`, on made-up data where there are no others."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support import made_up_data

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS, forecasting_windows, load_forecasting_frame

ROOT = Path(__file__).parents[2]


def test_quick_runs_are_those_of_the_scripts_that_have_one() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    demos = re.search(r"^DEMOS := (.*?)\)\)$", makefile, re.DOTALL | re.MULTILINE)
    assert demos
    quick = {path.name for path in (ROOT / "experiments").glob("*.py") if '"--quick"' in path.read_text("utf-8")}
    assert set(re.findall(r"\w+\.py", demos[1])) == quick


def test_made_up_data_has_every_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)  # nothing is downloaded
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path))
    made_up_data.write(tmp_path)
    for name in FORECASTING_DATASETS:
        windows = forecasting_windows(load_forecasting_frame(name), name, lookback=96, horizon=720)
        assert all(len(part) for part in windows.values())
