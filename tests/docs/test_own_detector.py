"""The guide "from your recordings to a detector you can argue about": its commands and code run on made-up data."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("edfio")

from mvpa_ts.ieeg.detection.calibration import load_calibration
from mvpa_ts.ieeg.detection.detection import read_detection

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "own_detector.md"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_the_guide_runs_from_top_to_bottom(tmp_path, run_page):
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 600
    run_page(PAGE)
    board = (tmp_path / "board" / "board.csv").read_text(encoding="utf-8")
    assert all(name in board for name in ("demo", "line-length", "runs/mine/model", "runs/mine/model: regression"))
    detection = read_detection(tmp_path / "new" / "new")
    assert detection.rules == load_calibration("calibration.json").rules
    assert (tmp_path / "new" / "new" / "onsets.tsv").is_file()
