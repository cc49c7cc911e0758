"""docs/guides/explanations.md: its code runs as printed, and its numbers are those of the committed table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "explanations.md"


def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("neuralforecast")
    pytest.importorskip("captum")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(block, str(PAGE), "exec"), names)
    assert names["share"].shape == (2,)
    assert (names["share"] > 0).all()


def test_the_page_says_what_the_table_says():
    table = pd.read_csv(ROOT / "experiments" / "results" / "structure" / "explanations.csv", index_col="channel")
    read = table.loc[2:5]
    assert (read["found"] == read["true"]).all()
    assert set(read.index) == set(table.loc[:5].nlargest(4, "share").index)
    assert (table.loc[:1, "share"] <= 0.02).all()
