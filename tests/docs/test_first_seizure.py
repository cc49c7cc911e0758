"""The page "Your first seizure in five minutes", executed: its commands, its code, and what they say is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("edfio")
import demo_model
import first_seizure

PAGE = Path(__file__).parents[2] / "docs" / "first_seizure.md"


def test_the_page_runs_from_top_to_bottom(tmp_path, run_page):
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"```(bash|python)\n", text) == ["bash", "bash", "python"]
    names = run_page(PAGE)
    (report,) = (tmp_path / "results").rglob("report.html")
    assert "<svg" in report.read_text(encoding="utf-8") or "<img" in report.read_text(encoding="utf-8")
    assert (report.parent / "events.tsv").is_file()
    ((onset, offset),) = names["recording"].seizures
    assert any(first < offset and last > onset for first, last in names["detection"].events)


def test_the_page_shows_the_picture_of_the_report():
    """A script makes it of the page's own recording."""
    (picture,) = re.findall(r"^!\[[^]]+\]\((\S+\.png)\)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    path = (PAGE.parent / picture).resolve()
    assert path == Path(first_seizure.__file__).parents[1] / "results" / "detection" / "first_seizure.png"
    assert 10_000 < path.stat().st_size < 100_000


def test_no_model_was_trained_on_the_pages_recordings():
    text = PAGE.read_text(encoding="utf-8")
    seeds = [int(seed) for seed in re.findall(r"(?:--seed |seed=)(\d+)", text)]
    assert seeds == [first_seizure.PAGE_SEED] * 2 + [seeds[-1]]
    assert seeds[-1] in first_seizure.SEEDS  # the weak one is from the table
    assert demo_model.SEED not in {first_seizure.PAGE_SEED, *first_seizure.SEEDS}
    assert first_seizure.PAGE_SEED not in first_seizure.SEEDS
    assert "S101" in text
    assert demo_model.SUBJECTS < 101
