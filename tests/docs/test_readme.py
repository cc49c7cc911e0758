"""The code in the README runs and prints what it says."""

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


@pytest.mark.parametrize("block", BLOCKS)
def test_a_door_has_six_lines(block):
    assert len([line for line in block.splitlines() if line]) == 6


def test_forecast(tmp_path):
    pytest.importorskip("neuralforecast")
    printed = run("import pandas; pandas.set_option('display.max_columns', None)\n" + BLOCKS[0], tmp_path)
    for column in ("MVPA-median", "MVPA-lo-80", "MVPA-hi-80"):
        assert column in printed
    assert "[24 rows" in printed or len(re.findall(r"Airline\d", printed)) == 24


def test_classifier(tmp_path):
    pytest.importorskip("sktime")
    (promised,) = re.findall(r"# (\[.*\])", BLOCKS[1])
    assert run(BLOCKS[1], tmp_path).splitlines()[-1] == promised


def test_detection(tmp_path):
    pytest.importorskip("mne")
    (promised,) = re.findall(r"# (\[.*\])", BLOCKS[2])
    assert run(BLOCKS[2], tmp_path).splitlines()[-1] == promised
    assert (tmp_path / "seizure.png").stat().st_size > 1000


def test_length():
    assert len(README.splitlines()) <= 120


def test_citation_names_the_paper():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    title = "A foundation model with multi-variate parallel attention to generate neuronal activity"
    for text in (README, citation):
        assert title in text
        assert "2506.20354" in text
        assert "not affiliated with" in " ".join(text.split())
