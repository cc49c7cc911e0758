"""The guide "from your recordings to a detector you can argue about": its commands and code run on made-up data."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("edfio")

from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.calibration import load_calibration
from mvpa_ts.ieeg.detection.detection import read_detection

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "own_detector.md"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_the_guide_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.split()) <= 600
    names: dict[str, Any] = {"__name__": "docs"}
    for kind, block in re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL):
        if kind == "python":
            exec(compile(block, str(PAGE), "exec"), names)
            continue
        for line in block.strip().splitlines():
            command, *arguments = shlex.split(line)
            assert command == "mvpformer"
            assert main(arguments) == 0, capsys.readouterr().err
    board = (tmp_path / "board" / "board.csv").read_text(encoding="utf-8")
    assert all(name in board for name in ("demo", "line-length", "runs/mine/model", "runs/mine/model: regression"))
    detection = read_detection(tmp_path / "new" / "new")
    assert detection.rules == load_calibration("calibration.json").rules
    assert (tmp_path / "new" / "new" / "onsets.tsv").is_file()
