"""The code in docs/neuralforecast.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("neuralforecast")
pytest.importorskip("darts")

PAGE = Path(__file__).parents[2] / "docs" / "neuralforecast.md"


def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 12
    names: dict[str, Any] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        if "forecast" in names:
            forecast = names.pop("forecast")
            assert len(forecast) == 24
            assert np.isfinite(forecast.drop(columns=["unique_id", "ds"]).to_numpy()).all()
    assert names["ahead"].values().shape == (12, 2)
    assert set(names["best"]) == {"input_size", "learning_rate"}
    assert (tmp_path / "automvpa.db").exists()
