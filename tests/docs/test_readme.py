"""The code in the README holds, and so do the links of every page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(code: str, folder: Path) -> str:
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_forecast_in_eight_lines(tmp_path):
    pytest.importorskip("neuralforecast")
    assert len([line for line in BLOCKS[0].splitlines() if line]) == 8
    printed = run(BLOCKS[0], tmp_path)
    for column in ("MVPA-median", "MVPA-lo-80", "MVPA-hi-80"):
        assert column in printed
    assert "[24 rows" in printed or len(re.findall(r"Airline\d", printed)) == 24


def test_core_example(tmp_path):
    run(BLOCKS[2], tmp_path)


def test_classifier_example(tmp_path):
    pytest.importorskip("sktime")
    assert len(re.findall(r"'(\w+)'", run(BLOCKS[1], tmp_path))) == 4


def test_citation_names_the_paper():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    title = "A foundation model with multi-variate parallel attention to generate neuronal activity"
    for text in (README, citation):
        assert title in text
        assert "2506.20354" in text
        assert "not affiliated with" in " ".join(text.split())


PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#([^)]+))?\)", path.read_text(encoding="utf-8"))
    assert links or "toctree" in path.read_text(encoding="utf-8")
    for file, heading in links:
        target = path.parent / file
        assert target.exists(), file
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, (
                f"{file}#{heading}"
            )
