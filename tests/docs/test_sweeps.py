"""The code in docs/guides/sweeps.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("neuralforecast")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "sweeps.md"


def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(block, str(PAGE), "exec"), names)
    assert len(names["forecaster"].predict()) == 24
    assert set(names["trials"]["state"]) <= {"COMPLETE", "PRUNED"}
    assert len(names["trials"]) == 4
    assert (tmp_path / "sweep.sqlite").exists()
