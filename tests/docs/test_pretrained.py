"""The code in docs/pretrained.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("neuralforecast")

PAGE = Path(__file__).parents[2] / "docs" / "pretrained.md"


@pytest.mark.filterwarnings("ignore")
def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        if "forecast" in names:
            table = names.pop("forecast").drop(columns=["unique_id", "ds"])
            assert len(table) == 24
            assert np.isfinite(table.to_numpy()).all()
    assert np.isfinite(names["months"]).all()
    assert names["intervals"].shape == (12, 2)
    assert names["quantiles"].shape == (1, 100, 3, 9)
