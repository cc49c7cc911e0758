"""The code in docs/neuralforecast.md runs as printed, and the docstrings' examples too."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("neuralforecast")

from mvpa_ts.adapters.neuralforecast import auto, model

PAGE = Path(__file__).parents[2] / "docs" / "neuralforecast.md"


def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        if "forecast" in names:
            forecast = names.pop("forecast")
            assert len(forecast) == 24
            assert np.isfinite(forecast.drop(columns=["unique_id", "ds"]).to_numpy()).all()
    assert set(names["best"]) == {"input_size", "learning_rate"}
    assert (tmp_path / "automvpa.db").exists()


@pytest.mark.parametrize("module", [model, auto])
def test_docstring_examples(module: Any, capfd: pytest.CaptureFixture):
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 4
