"""The code in docs/classification.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "classification.md"


def test_the_page_runs_as_printed() -> None:
    pytest.importorskip("sktime")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(blocks[0], str(PAGE), "exec"), names)
    assert names["probabilities"].shape == (3, 9)
    assert len(names["features"]) == 3
    assert np.isfinite(names["features"]).all()
