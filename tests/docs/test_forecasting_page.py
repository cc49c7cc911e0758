"""The code in docs/forecasting.md runs as printed, its links lead somewhere; figures of how it was tested are true."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "forecasting.md"
TEXT = PAGE.read_text(encoding="utf-8")
RESULTS = PAGE.parents[1] / "experiments" / "results" / "forecasting"


def test_the_code_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {"__name__": "docs"})
        promised = re.findall(r"print\(.*\)  # (.*)", block)
        assert capsys.readouterr().out.splitlines() == promised


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", TEXT)
    assert not [link for link in links if not (PAGE.parent / link).exists()]


def test_figures_of_dropped_batches_are_those_of_the_table() -> None:
    rows = pd.read_csv(RESULTS / "drop_last.csv")
    means = rows[rows["dataset"] == "ETTh2"].groupby("batch_size")["test_mse"].mean()
    text = " ".join((PAGE.parent / "development" / "forecasting.md").read_text(encoding="utf-8").split())
    for size, form in ((1, "is {:.3f} over all"), (128, "{:.3f} at batches of 128"), (256, "{:.3f} at 256")):
        assert form.format(means[size]) in text
    assert f"{means[2048]:.3f} at 2048" in text
