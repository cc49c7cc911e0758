"""The code in the README runs and prints what it says."""

import re
from pathlib import Path

import pandas
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """What a block prints, run in an empty folder."""
    names = {"__name__": "readme"}

    def printed(block: str) -> str:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        exec(compile(block, "README.md", "exec"), names)
        return capsys.readouterr().out

    return printed


def test_forecasts(run):
    pytest.importorskip("neuralforecast")
    with pandas.option_context("display.max_columns", None):
        untrained, trained = run(BLOCKS[0]), run(BLOCKS[1])  # the second goes on from the first
    for printed in (untrained, trained):
        for column in ("MVPA-median", "MVPA-lo-80", "MVPA-hi-80"):
            assert column in printed
        assert "[24 rows" in printed or len(re.findall(r"Airline\d", printed)) == 24


def test_detection(run, tmp_path):
    pytest.importorskip("mne")
    (promised,) = re.findall(r"# (\[.*\])", BLOCKS[2])
    assert run(BLOCKS[2]).splitlines()[-1] == promised
    assert (tmp_path / "seizure.png").stat().st_size > 1000
