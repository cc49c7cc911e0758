"""The code in docs/sktime.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sktime")

PAGE = Path(__file__).parents[2] / "docs" / "sktime.md"


@pytest.mark.filterwarnings("ignore")
def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 16
    names: dict[str, Any] = {"__name__": "docs"}
    seen = set()
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        for name in ("forecast", "labels", "best", "intervals", "embedding", "probabilities", "numbers"):
            if name in names:
                seen.add(name)
                found = names.pop(name)
                assert len(found) > 1
                assert name in ("labels", "best") or np.isfinite(np.asarray(found, float)).all()
    assert seen == {"forecast", "labels", "best", "intervals", "embedding", "probabilities", "numbers"}
    assert np.isfinite(names["likelihood"]).all(axis=None)
    assert (tmp_path / "classifier.db").exists()
    assert sorted(path.name for path in (tmp_path / "vowels").iterdir()) == [
        "classes.json",
        "classifier.json",
        "classifier.safetensors",
    ]
